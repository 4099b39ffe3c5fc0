"""Make checkpoints of a log, remove what they make needless, and mend what a loss of power tore.

A checkpoint is one Parquet file of the actions that still count. It gets its name only when it is
whole and durable; only then does ``_last_checkpoint`` name it.

This package makes versions and checkpoints durable before it relies on them; other programs sync
nothing. A torn checkpoint is removed when the log without it still says everything; a torn last
version, or one whose files are incomplete, becomes an empty version of the same number, which a
reader may have seen. Everything else is for a person to decide.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from ..core.errors import TableError
from .actions import Commit, DataFile, Torn, action_lines, version_name
from .properties import CHECKPOINT_EVERY, INTERVAL, LOG_RETENTION_HOURS
from .snapshot import (
    CHECKPOINT,
    READ_ERRORS,
    VERSION,
    Base,
    Listing,
    base_state,
    check_checkpoint,
    list_log,
    read_version,
    refused,
    stored_actions,
    unreadable,
)
from .storage import LOG, LocalStorage, Storage, is_temporary

LAST_CHECKPOINT = "_last_checkpoint"
EMPTY = "EMPTY"
PARQUET_MARK = b"PAR1"  # every complete Parquet file ends with these bytes
LEFTOVER_SECONDS = 3600.0  # no living writer keeps a temporary file so long
KEPT_CHECKPOINTS = 3  # the newest; of older ones in the retention one in THINNED
THINNED = 10
TOMBSTONE_SECONDS = 7 * 86_400.0  # other programs' vacuums keep files so long

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

    FileNotFoundError: another writer has cleaned the log; OSError: the table is as it was.
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
        if is_temporary(name) and modified <= now - LEFTOVER_SECONDS  # of a writer that was killed
    ]
    if properties.get("delta.enableExpiredLogCleanup", "true").lower() != "false":
        kept = _seconds(properties, "delta.logRetentionDuration", LOG_RETENTION_HOURS * 3600.0)
        needless += _expired(storage, times, until, now - kept)
    for name in needless:
        with contextlib.suppress(FileNotFoundError):
            storage.delete(f"{LOG}/{name}")
    return needless


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


# ── after a loss of power ─────────────────────────────────────────────────────────────────────────


def mend(storage: LocalStorage, clock: Callable[[], float]) -> list[str]:
    """Make the log whole; return a line for each thing done."""
    listing = list_log(storage)
    if not listing.exists:
        return []
    lines = _mend_checkpoints(storage, listing)
    if lines:
        listing = list_log(storage)
    return [*lines, *_mend_versions(storage, listing, clock)]


def _mend_checkpoints(storage: LocalStorage, listing: Listing) -> list[str]:
    torn: list[tuple[int, tuple[str, ...]]] = []
    for version, names in reversed(listing.checkpoints):
        try:
            check_checkpoint(storage, names)
        except READ_ERRORS as error:
            if not refused(storage, error):
                torn.append((version, names))
                continue
        break  # one that cannot be read just now may be whole: it stays
    if torn:
        # Raises when the log does not say everything without them.
        base_state(storage, listing, listing.newest, files=False)
    hint = _hinted(storage)
    stale = hint is not None and hint not in {v for v, _ in listing.checkpoints} - dict(torn).keys()
    if stale:
        _remove(storage, LAST_CHECKPOINT)
    for _, names in torn:
        for name in names:
            _remove(storage, name)
    if torn or stale:
        storage.disk.sync_directory(storage.log_path())
    return [
        *(f"removed checkpoint {v}, which a loss of power has torn" for v, _ in torn),
        *([f"removed {LAST_CHECKPOINT}, which names no checkpoint"] if stale else []),
    ]


def _hinted(storage: LocalStorage) -> int | None:
    try:
        return int(json.loads(storage.read(f"{LOG}/{LAST_CHECKPOINT}"))["version"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        return -1


def _mend_versions(
    storage: LocalStorage, listing: Listing, clock: Callable[[], float]
) -> list[str]:
    newest = listing.newest
    _, base = base_state(storage, listing, newest, files=False)
    commits: list[Commit] = []
    for version in range(base.version + 1, newest + 1):
        try:
            commits.append(read_version(storage, version))
        except Torn as error:
            return [_mend_last(storage, version, newest, str(error), clock)]
    # Before our last one everything was durable.
    own = [place for place, commit in enumerate(commits) if commit.run is not None]
    for commit in commits[own[-1] if own else 0 :]:
        gone = _not_whole(storage, commit, commits)
        if gone:
            return [_mend_last(storage, commit.version, newest, f"{gone} is not whole", clock)]
    return []


def _mend_last(
    storage: LocalStorage, version: int, newest: int, reason: str, clock: Callable[[], float]
) -> str:
    if version != newest or version == 0:
        behind = f"and version {newest} stands behind it" if version else "and it is the first"
        raise TableError(
            f"version {version} of {storage.location} is torn ({reason}), {behind}: restore the "
            "table's folder from a copy, or land the queues in a new table"
        )
    # Replaced, durably, by one of no run: what came before is still checked.
    info = {
        "timestamp": int(clock() * 1000),
        "operation": EMPTY,
        "operationParameters": {"reason": reason},
        "engineInfo": "twisted-msgproto",
    }
    data = json.dumps({"commitInfo": info}).encode() + b"\n"
    storage.put(f"{LOG}/{version_name(version)}", data)
    return f"version {version} is empty now: a loss of power has torn it ({reason})"


def _not_whole(storage: LocalStorage, commit: Commit, commits: list[Commit]) -> str:
    removed = {
        path for later in commits if later.version > commit.version for path in later.removed
    }
    for file in commit.added:
        if file.path not in removed and not _is_whole(storage, file):
            return file.path
    return ""


def _is_whole(storage: LocalStorage, file: DataFile) -> bool:
    """Return whether a file is there to its end; raise OSError where that cannot be seen."""
    try:
        found = storage.disk.open(storage.path(file.path))
    except (FileNotFoundError, NotADirectoryError):
        return False
    with contextlib.closing(found) as opened:
        end = max(0, opened.size() - len(PARQUET_MARK))
        return opened.size() == file.size and opened.read(end, file.size) == PARQUET_MARK


def _remove(storage: LocalStorage, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        storage.disk.remove(storage.log_path(name))
