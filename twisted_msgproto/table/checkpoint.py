"""Make checkpoints of a log, and remove what they make needless.

A checkpoint is one Parquet file of the actions that still count. It gets its name only when it is
whole and durable; only then does ``_last_checkpoint`` name it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from .actions import Torn, action_lines, version_name
from .properties import CHECKPOINT_EVERY, INTERVAL, LOG_RETENTION_HOURS
from .snapshot import (
    CHECKPOINT,
    READ_ERRORS,
    VERSION,
    Base,
    list_log,
    stored_actions,
    unreadable,
)
from .storage import LOG, TEMPORARY_PREFIX, TEMPORARY_SUFFIX, Storage

LAST_CHECKPOINT = "_last_checkpoint"
LEFTOVER_SECONDS = 3600.0
"""No living writer keeps a temporary file so long."""
KEPT_CHECKPOINTS = 3
"""The newest checkpoints all stay; of the older ones within the retention one in THINNED."""
THINNED = 10
TOMBSTONE_SECONDS = 7 * 86_400.0
"""A checkpoint tells this long of a file that went out: vacuums of other programs keep it for
readers of older versions by that.
"""

_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}

_TEXTS = pa.map_(pa.string(), pa.string())
_SCHEMA = pa.schema(
    {
        "txn": pa.struct({"appId": pa.string(), "version": pa.int64(), "lastUpdated": pa.int64()}),
        "add": pa.struct(
            {
                "path": pa.string(),
                "partitionValues": _TEXTS,
                "size": pa.int64(),
                "modificationTime": pa.int64(),
                "dataChange": pa.bool_(),
                "stats": pa.string(),
                "tags": _TEXTS,
            }
        ),
        "remove": pa.struct(
            {
                "path": pa.string(),
                "deletionTimestamp": pa.int64(),
                "dataChange": pa.bool_(),
                "extendedFileMetadata": pa.bool_(),
                "partitionValues": _TEXTS,
                "size": pa.int64(),
            }
        ),
        "metaData": pa.struct(
            {
                "id": pa.string(),
                "name": pa.string(),
                "description": pa.string(),
                "format": pa.struct({"provider": pa.string(), "options": _TEXTS}),
                "schemaString": pa.string(),
                "partitionColumns": pa.list_(pa.string()),
                "configuration": _TEXTS,
                "createdTime": pa.int64(),
            }
        ),
        "protocol": pa.struct(
            {
                "minReaderVersion": pa.int32(),
                "minWriterVersion": pa.int32(),
                "readerFeatures": pa.list_(pa.string()),
                "writerFeatures": pa.list_(pa.string()),
            }
        ),
    }
)
"""The actions of a checkpoint as the Delta protocol has them; each row holds one."""


class _Actions:
    def __init__(self) -> None:
        self.kept: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in _SCHEMA.names}

    def take(self, name: str, value: dict[str, Any] | None) -> None:
        if value is None or name not in self.kept:
            return
        if name == "txn":
            key = value["appId"]
        elif name in ("add", "remove"):
            key = unquote(value["path"])
            self.kept["remove" if name == "add" else "add"].pop(key, None)
        else:
            key = ""
        self.kept[name][key] = value

    def written(self, cutoff: float) -> tuple[bytes, int]:
        """Return the file and its number of actions, but for what went out before ``cutoff``."""
        removes = self.kept["remove"]
        for key in [
            k for k, one in removes.items() if (one.get("deletionTimestamp") or 0) < cutoff
        ]:
            del removes[key]
        rows = [{name: _plain(one)} for name, some in self.kept.items() for one in some.values()]
        columns = [pa.array([row.get(field.name) for row in rows], field.type) for field in _SCHEMA]
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_arrays(columns, schema=_SCHEMA), sink, compression="zstd")
        return sink.getvalue().to_pybytes(), len(rows)


def _plain(action: Any) -> Any:
    """Return an action as Arrow takes it, which has pairs for a map; it changes no rows by now."""
    found: dict[str, Any] = {"dataChange": False}
    for name, value in action.items():
        if name == "format":
            found[name] = {**value, "options": [*(value.get("options") or {}).items()]}
        elif isinstance(value, dict):
            found[name] = [*value.items()]
        elif name != "dataChange":
            found[name] = value
    return found


def write_checkpoint(
    storage: Storage, base: Base, version: int, properties: Mapping[str, str], now: float
) -> Base:
    """Make a checkpoint of ``version``, durably; everything up to it is durable already.

    FileNotFoundError means that another writer has cleaned the log, OSError that the table is as it
    was.
    """
    actions = _Actions()
    for name in base.names:
        try:
            for kind, value in stored_actions(storage, name, _SCHEMA.names):
                actions.take(kind, value)
        except FileNotFoundError:
            raise
        except READ_ERRORS as error:
            raise OSError(unreadable(storage, name, error)) from error
    for number in range(base.version + 1, version + 1):
        try:
            lines = action_lines(storage.read(f"{LOG}/{version_name(number)}"))
        except Torn as error:
            raise OSError(f"version {number} is torn: {error}") from error
        for action in lines:
            for kind, value in action.items():
                actions.take(kind, value)
    kept = _seconds(properties, "delta.deletedFileRetentionDuration", TOMBSTONE_SECONDS)
    data, rows = actions.written((now - kept) * 1000)
    made = f"{version:020d}.checkpoint.parquet"
    with contextlib.suppress(FileExistsError):  # another bridge made the same
        storage.put_new(f"{LOG}/{made}", data)
    hint = {"version": version, "size": rows, "sizeInBytes": len(data)}
    storage.put(f"{LOG}/{LAST_CHECKPOINT}", json.dumps(hint, separators=(",", ":")).encode())
    return Base(version, (made,))


def clean_log(storage: Storage, properties: Mapping[str, str], until: int, now: float) -> list[str]:
    """Remove what is too old and behind ``until``, the newest durable checkpoint."""
    times = storage.log_times()
    now = min(now, times.get(LAST_CHECKPOINT, now))  # written just now, by the store's clock
    needless = [
        name
        for name, modified in times.items()
        if name.startswith(TEMPORARY_PREFIX)
        and name.endswith(TEMPORARY_SUFFIX)
        and modified <= now - LEFTOVER_SECONDS  # of a writer that was killed
    ]
    if properties.get("delta.enableExpiredLogCleanup", "true").lower() != "false":
        needless += _expired(storage, times, until, now - retention_seconds(properties))
    for name in needless:
        with contextlib.suppress(FileNotFoundError):
            storage.delete(f"{LOG}/{name}")
    return needless


def retention_seconds(properties: Mapping[str, str]) -> float:
    return _seconds(properties, "delta.logRetentionDuration", LOG_RETENTION_HOURS * 3600.0)


def _seconds(properties: Mapping[str, str], name: str, otherwise: float) -> float:
    found = INTERVAL.fullmatch(properties.get(name, ""))
    return otherwise if found is None else float(int(found[1]) * _SECONDS[found[2].lower()])


def _expired(storage: Storage, times: Mapping[str, float], until: int, cutoff: float) -> list[str]:
    durable = [(v, parts) for v, parts in list_log(storage).checkpoints if v <= until]
    old = [v for v, parts in durable if times.get(parts[0], float("inf")) <= cutoff]
    anchor = old[-1] if old else -1
    stay = {version for version, _ in durable[-KEPT_CHECKPOINTS:]}
    stay |= {version for version in old[-1:]}
    stay |= {version for version, _ in durable if not version % (THINNED * CHECKPOINT_EVERY)}
    needless = []
    for name in times:
        if found := VERSION.fullmatch(name):
            if int(found[1]) < anchor:
                needless.append(name)
        elif (found := CHECKPOINT.fullmatch(name)) and int(found[1]) <= until:
            version = int(found[1])
            if version < anchor or version not in stay:
                needless.append(name)
    return sorted(needless)
