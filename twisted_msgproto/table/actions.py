"""What stands in a Delta table's log: actions, as values and as lines of JSON.

One version of the log is a file of one JSON object a line.  This module knows the actions that
this package writes and reads; unknown ones are left alone, as the Delta protocol demands.
"""

from __future__ import annotations

import datetime
import json
import os
import socket
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from types import MappingProxyType
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.parquet as pq

from ..queue.lineage import Landed
from .columns import Number, json_text

OURS = "msgproto"
OFFSET_PREFIX = "msgproto:"
INCARNATION_PREFIX = "msgproto-incarnation:"
WITNESS_PREFIX = "msgproto-witness:"  # before a queue's id: how far it has landed

COMMIT_INFO_WITHIN = 40
PATH_SAFE = "/=:-_.~!$&'()*+,;@"

TEXT_MAX = 32  # the log keeps so much of a text's bounds, as Delta's own writer does
TIE_BREAKER = "\U0010ffff"

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
MICRO = datetime.timedelta(microseconds=1)


Stamp = tuple[str, str, int]


class Torn(ValueError):
    """A part of a version's file was lost in a power cut."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a program that writes the table; every commit of the run names it."""

    id: str
    host: str
    pid: int

    @classmethod
    def new(cls) -> Run:
        return cls(uuid.uuid4().hex, socket.gethostname(), os.getpid())


@dataclass(frozen=True, slots=True)
class DataFile:
    """One Parquet file of the table: an ``add`` of its log."""

    path: str  # relative to the table, with ``/``, not percent-encoded
    size: int
    partition: Mapping[str, str | None]  # values as Delta writes them (``day`` → ``2026-01-31``)
    rows: int | None = None  # None when the file's statistics do not say
    statistics: str = ""
    modified: int = 0  # milliseconds since 1970


@dataclass(frozen=True, slots=True)
class Metadata:
    id: str
    schema: str
    partition_by: tuple[str, ...]
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ProtocolVersions:
    reader: int
    writer: int
    reader_features: frozenset[str] = frozenset()
    writer_features: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Commit:
    """One version of the log, as far as it was understood."""

    version: int
    operation: str  # ``WRITE``, ``OPTIMIZE``, ``RESTORE`` …; empty when unknown
    run: Run | None  # the run of this package that wrote it; None for other programs
    added: tuple[DataFile, ...] = ()
    removed: tuple[str, ...] = ()
    transactions: Mapping[str, int] = field(default_factory=dict)  # application id to version
    info: Mapping[str, Any] = field(default_factory=dict)  # beside its run
    parameters: Mapping[str, Any] = field(default_factory=dict)
    timestamp: int = 0  # milliseconds since 1970, by the writer's clock
    data_change: bool = True  # False when the commit only rearranges the same rows
    metadata: Metadata | None = None
    protocol: ProtocolVersions | None = None

    @property
    def landed(self) -> dict[str, Landed]:
        return landed_of(self.transactions)

    @property
    def stamp(self) -> Stamp:
        return (self.run.id if self.run else "", self.operation, self.timestamp)


@dataclass(frozen=True, slots=True)
class Proposal:
    """A version that somebody wants to add to the log, whatever its number will be."""

    run: Run
    operation: str
    added: tuple[DataFile, ...] = ()
    removed: tuple[DataFile, ...] = ()
    landed: Mapping[str, Landed] = field(default_factory=dict)
    before: Mapping[str, Landed | None] = field(default_factory=dict)  # as known to the proposer
    notes: Mapping[str, int] = field(default_factory=dict)  # why offsets are not there
    notes_before: Mapping[str, int] = field(default_factory=dict)  # 0: not at all
    info: Mapping[str, object] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)
    data_change: bool = True
    metadata: Metadata | None = None  # made of ``metadata_before``
    metadata_before: Metadata | None = None
    protocol: ProtocolVersions | None = None

    @property
    def transactions(self) -> dict[str, int]:
        return {**transactions_of(self.landed), **self.notes}

    def became(self, commit: Commit) -> bool:
        """Whether ``commit`` is this proposal, or does for the same run what it was to do."""
        if commit.run is None or commit.run.id != self.run.id:
            return False
        if self.metadata is not None:
            return commit.metadata == self.metadata
        if self.landed:
            return self.transactions.items() <= commit.transactions.items()
        ours = ([file.path for file in self.added], [file.path for file in self.removed])
        if ours != ([file.path for file in commit.added], list(commit.removed)):
            return False
        return any(ours) or self.notes.items() <= commit.transactions.items()

    def as_commit(self, version: int, timestamp: int) -> Commit:
        """Return what :func:`parse_commit` would read from the version's file."""
        return Commit(
            version=version,
            operation=self.operation,
            run=self.run,
            added=self.added,
            removed=tuple(file.path for file in self.removed),
            transactions=self.transactions,
            info=self.info,
            parameters=self.parameters,
            timestamp=timestamp,
            data_change=self.data_change and bool(self.added or self.removed),
            metadata=self.metadata,
        )

    def lines(self, timestamp: int) -> bytes:
        """Return the version's file.

        ``commitInfo`` comes first and counts the actions, so that a file that was cut between two
        lines is known as one; transactions stand before what they speak of.
        """
        change = self.data_change
        actions: list[dict[str, Any]] = []
        if self.protocol is not None:
            actions.append({"protocol": _protocol_action(self.protocol)})
        if self.metadata is not None:
            actions.append({"metaData": _metadata_action(self.metadata, timestamp)})
        for name, value in self.transactions.items():
            actions.append({"txn": {"appId": name, "version": value, "lastUpdated": timestamp}})
        actions += ({"remove": remove_action(file, timestamp, change)} for file in self.removed)
        actions += ({"add": add_action(file, change)} for file in self.added)
        first = {
            "timestamp": timestamp,
            "operation": self.operation,
            "operationParameters": dict(self.parameters),
            "isBlindAppend": not self.removed and self.metadata is None,
            "engineInfo": "twisted-msgproto",
            OURS: {
                "run": self.run.id,
                "host": self.run.host,
                "pid": self.run.pid,
                "operation": self.operation,
                "actions": len(actions),
                "info": dict(self.info),
            },
        }
        return "".join(_line(action) for action in [{"commitInfo": first}, *actions]).encode()


def transactions_of(landed: Mapping[str, Landed]) -> dict[str, int]:
    values: dict[str, int] = {}
    for gateway, place in landed.items():
        values[OFFSET_PREFIX + gateway] = place.offset
        values[INCARNATION_PREFIX + gateway] = place.incarnation
        values[WITNESS_PREFIX + gateway] = place.witness
    return values


def landed_of(transactions: Mapping[str, int]) -> dict[str, Landed]:
    """Return the reverse of :func:`transactions_of`, without other programs' transactions."""
    return {
        gateway: Landed(
            offset,
            transactions.get(INCARNATION_PREFIX + gateway, 0),
            transactions.get(WITNESS_PREFIX + gateway, 0),
        )
        for name, offset in transactions.items()
        if name.startswith(OFFSET_PREFIX) and (gateway := name.removeprefix(OFFSET_PREFIX))
    }


def version_name(version: int) -> str:
    return f"{version:020d}.json"


def add_action(file: DataFile, data_change: bool) -> dict[str, Any]:
    return {
        "path": quote(file.path, safe=PATH_SAFE),
        "partitionValues": dict(file.partition),
        "size": file.size,
        "modificationTime": file.modified,
        "dataChange": data_change,
        **({"stats": file.statistics} if file.statistics else {}),
    }


def remove_action(file: DataFile, timestamp: int, data_change: bool) -> dict[str, Any]:
    return {
        "path": quote(file.path, safe=PATH_SAFE),
        "deletionTimestamp": timestamp,
        "dataChange": data_change,
        "extendedFileMetadata": True,
        "partitionValues": dict(file.partition),
        "size": file.size,
    }


def parse_commit(version: int, data: bytes) -> Commit:
    """Return a version's file as a :class:`Commit`; raise Torn if it is cut or is none."""
    if not data.strip(b"\0 \r\n"):
        raise Torn("it is empty")
    actions = action_lines(data)
    info: dict[str, Any] = next((a["commitInfo"] for a in actions if a.get("commitInfo")), {})
    ours: dict[str, Any] = info.get(OURS) or {}
    expected = ours.get("actions")
    if expected is not None and expected != len(actions) - 1:
        raise Torn(f"it holds {len(actions) - 1} of {expected} actions")
    adds = [a["add"] for a in actions if a.get("add")]
    removes = [a["remove"] for a in actions if a.get("remove")]
    metadata = [a["metaData"] for a in actions if a.get("metaData")]
    protocol = [a["protocol"] for a in actions if a.get("protocol")]
    try:
        run, operation, timestamp = _said(info)
        return Commit(
            version=version,
            operation=operation,
            run=run,
            added=tuple(data_file(a) for a in adds),
            removed=tuple(unquote(a["path"]) for a in removes),
            transactions={a["txn"]["appId"]: a["txn"]["version"] for a in actions if a.get("txn")},
            info=ours.get("info") or {},
            parameters=info.get("operationParameters") or {},
            timestamp=timestamp,
            data_change=any(a.get("dataChange", True) for a in (*adds, *removes)),
            metadata=parse_metadata(metadata[-1]) if metadata else None,
            protocol=parse_protocol(protocol[-1]) if protocol else None,
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise Torn(f"it holds an action without {error}") from error


def action_lines(data: bytes) -> list[dict[str, Any]]:
    """Return the actions of a version's file; raise Torn."""
    return [_action(line) for line in data.splitlines() if line.strip()]


def stamp_of(data: bytes) -> Stamp:
    """Return the stamp of a version's file, of which nothing else is parsed; raise Torn."""
    for line in data.splitlines():
        if b'"commitInfo"' in line[:COMMIT_INFO_WITHIN]:
            run, operation, timestamp = _said(_action(line).get("commitInfo") or {})
            return (run.id if run else "", operation, timestamp)
    return ("", "", 0)


def _said(info: Mapping[str, Any]) -> tuple[Run | None, str, int]:
    ours: dict[str, Any] = info.get(OURS) or {}
    operation = str(ours.get("operation") or info.get("operation") or "")
    return _run(ours), operation, int(info.get("timestamp") or 0)


def data_file(add: Mapping[str, Any]) -> DataFile:
    statistics = add.get("stats") or ""
    return DataFile(
        path=unquote(add["path"]),
        size=add["size"],
        partition=dict(add["partitionValues"]),
        rows=_rows(statistics),
        statistics=statistics,
        modified=add.get("modificationTime") or 0,
    )


def parse_metadata(action: Mapping[str, Any]) -> Metadata:
    return Metadata(
        id=action["id"],
        schema=action["schemaString"],
        partition_by=tuple(action["partitionColumns"] or ()),
        properties=dict(action.get("configuration") or {}),
    )


def parse_protocol(action: Mapping[str, Any]) -> ProtocolVersions:
    return ProtocolVersions(
        reader=action["minReaderVersion"],
        writer=action["minWriterVersion"],
        reader_features=frozenset(action.get("readerFeatures") or ()),
        writer_features=frozenset(action.get("writerFeatures") or ()),
    )


def _line(action: Mapping[str, Any]) -> str:
    return json.dumps(action, separators=(",", ":"), ensure_ascii=False) + "\n"


def _action(line: bytes) -> dict[str, Any]:
    try:
        action = json.loads(line)
    except ValueError:
        raise Torn("a line of it is cut") from None
    if not isinstance(action, dict):
        raise Torn("a line of it is not an action")
    return action


def _run(ours: Mapping[str, Any]) -> Run | None:
    if not ours.get("run"):
        return None
    return Run(str(ours["run"]), str(ours.get("host") or ""), int(ours.get("pid") or 0))


def _rows(statistics: str) -> int | None:
    try:
        rows = json.loads(statistics)["numRecords"] if statistics else None
    except (ValueError, KeyError, TypeError):
        return None
    return rows if isinstance(rows, int) else None


def _metadata_action(metadata: Metadata, timestamp: int) -> dict[str, Any]:
    return {
        "id": metadata.id,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": metadata.schema,
        "partitionColumns": list(metadata.partition_by),
        "configuration": dict(metadata.properties),
        "createdTime": timestamp,
    }


def _protocol_action(protocol: ProtocolVersions) -> dict[str, Any]:
    return {"minReaderVersion": protocol.reader, "minWriterVersion": protocol.writer}


# ── statistics of a data file ─────────────────────────────────────────────────────────────────────

# A file's ``add`` carries statistics of every column, or of none: pyarrow's and duckdb's readers
# treat a column without statistics, beside others that have them, as one without any value and skip
# the file wrongly. The columns of maps and lists, which nobody filters by range, are left out as
# every writer of Delta tables leaves them out.


@dataclass(slots=True)
class _Bounds:
    nulls: int = 0
    least: Any = None
    most: Any = None

    def take(
        self, column: Any, kind: pa.DataType, ordered: bool, known: tuple[str, str] | None
    ) -> bool:
        """Add a row group's column; False when its footer does not say enough."""
        found = column.statistics
        if found is None or not found.has_null_count:
            return False
        self.nulls += found.null_count
        if not ordered or found.null_count == column.num_values:
            return True
        if not found.has_min_max and known is None:
            return False
        try:
            least, most = _bounds_of(found, kind) if found.has_min_max else known or ("", "")
        except (OverflowError, ValueError):
            return False  # Python has no such time, and JSON no such year
        self.least = least if self.least is None else min(self.least, least)
        self.most = most if self.most is None else max(self.most, most)
        return True


def statistics_of(
    footer: pq.FileMetaData,
    *,
    finite: bool = False,
    texts: Mapping[str, tuple[str, str]] = MappingProxyType({}),
) -> str:
    """Return the ``stats`` of a Parquet file, from its footer: a JSON text.

    Only the number of rows stands there when a column's footer says too little, or when a column
    is of a type whose order in Parquet is not the one of Delta's readers (structures, times
    without a zone, floats unless all of them are known to be ``finite``).
    ``texts`` are the bounds of columns with texts for which a footer has no room.
    """
    rows: dict[str, Any] = {"numRecords": footer.num_rows}
    if footer.num_rows:
        rows |= _collect(footer, finite, texts) or {}
    return json_text(rows)


def _collect(
    footer: pq.FileMetaData, finite: bool, texts: Mapping[str, tuple[str, str]]
) -> dict[str, dict[str, Any]] | None:
    places = {footer.schema.column(index).path: index for index in range(len(footer.schema))}
    minimum: dict[str, Any] = {}
    maximum: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for column in footer.schema.to_arrow_schema():
        if pa.types.is_list(column.type) or pa.types.is_map(column.type):
            continue
        ordered = _ordered(column.type) or (finite and pa.types.is_floating(column.type))
        if not (ordered or pa.types.is_binary(column.type)):
            return None
        bounds = _Bounds()
        for group in range(footer.num_row_groups):
            part = footer.row_group(group).column(places[column.name])
            if not bounds.take(part, column.type, ordered, texts.get(column.name)):
                return None
        nulls[column.name] = bounds.nulls
        if bounds.least is not None:
            minimum[column.name] = _least(bounds.least)
            maximum[column.name] = _most(bounds.most)
    return {"minValues": minimum, "maxValues": maximum, "nullCount": nulls}


def _bounds_of(found: Any, kind: pa.DataType) -> tuple[Any, Any]:
    if pa.types.is_timestamp(kind):
        # For these Arrow would import pandas: half of a worker's start, and 40 MB.
        least, most = (EPOCH + MICRO * value for value in (found.min_raw, found.max_raw))
        return least, most
    return found.min, found.max


def _ordered(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_string(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_date32(kind)
        or kind == pa.timestamp("us", "UTC")
    )


def _least(value: Any) -> Any:
    return value[:TEXT_MAX] if isinstance(value, str) else _plain(value)


def _most(value: Any) -> Any:
    if isinstance(value, str):
        if len(value) <= TEXT_MAX or value[TEXT_MAX] == TIE_BREAKER:
            return value
        return value[:TEXT_MAX] + TIE_BREAKER
    return _plain(value)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        # Whole microseconds: a time cut to milliseconds is below the rows it speaks of.
        return f"{value.replace(tzinfo=None).isoformat(timespec='microseconds')}Z"
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, Decimal):  # all of its digits, which a float does not have
        return Number(f"{value:f}")
    return value
