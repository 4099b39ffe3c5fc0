"""A table that this package makes has these properties, this protocol and this first version."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from shlex import quote
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import Schema

from ..core.errors import ConfigurationError, TableChanged, TableError
from .actions import DataFile, Metadata, ProtocolVersions
from .storage import Storage, one_line

PROTOCOL = ProtocolVersions(reader=1, writer=2)  # the plainest, which every reader knows
CHECKPOINT_EVERY = 100  # versions: a reader replays no more
LOG_RETENTION_HOURS = 6  # of time travel, and of files in the log's folder

PROPERTIES: Mapping[str, str] = {
    "delta.logRetentionDuration": f"interval {LOG_RETENTION_HOURS} hours",
    "delta.checkpointInterval": str(CHECKPOINT_EVERY),
}


INTERVAL = re.compile(r"\s*(?:interval\s+)?(\d+)\s*(second|minute|hour|day|week)s?\s*", re.I)

FORGETTING = "delta.setTransactionRetentionDuration"  # makes quiet gateways' places go


def metadata_of(
    table_id: str,
    schema: pa.Schema,
    partition_by: Sequence[str],
    properties: Mapping[str, str] | None = None,
) -> Metadata:
    """Return the metadata of a new table; ConfigurationError for what Delta cannot have."""
    missing = [name for name in partition_by if name not in schema.names]
    if missing:
        raise ConfigurationError(f"the table has no column {missing[0]!r} to be partitioned by")
    try:
        text = Schema.from_arrow(schema).to_json()
    except Exception as error:  # delta-rs raises its own types, which differ between releases
        raise ConfigurationError(
            f"a Delta table cannot hold this schema: {one_line(error)}"
        ) from None
    return Metadata(table_id, text, tuple(partition_by), {**PROPERTIES, **(properties or {})})


def with_columns(metadata: Metadata, columns: Sequence[pa.Field]) -> Metadata:
    schema = json.loads(metadata.schema)
    nullable = [column.with_nullable(True) for column in columns]
    more = metadata_of(metadata.id, pa.schema(nullable), ())
    schema["fields"] += json.loads(more.schema)["fields"]
    text = json.dumps(schema, separators=(",", ":"), ensure_ascii=False)
    return replace(metadata, schema=text)


def arrow_schema(metadata: Metadata) -> pa.Schema:
    return pa.schema(Schema.from_json(metadata.schema).to_arrow())


WRITER_FEATURES = frozenset(
    {"appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns"}
)
"""A table may have these, listed or by an older protocol; what is made use of, is looked at."""

LEGACY_WRITER = 6  # protocols up to this writer version list no features

OF_COLUMNS: Mapping[str, str] = {
    "delta.invariants": "invariants",
    "delta.generationExpression": "generatedColumns",
    "delta.identity.start": "identityColumns",
}
COLUMN_MAPPING = "delta.columnMapping.mode"
CHANGE_FEED = "delta.enableChangeDataFeed"
APPEND_ONLY = "delta.appendOnly"
CONSTRAINT_PREFIX = "delta.constraints."


def unknown_features(protocol: ProtocolVersions, metadata: Metadata) -> list[str]:
    """Return what this package cannot write of a table; empty when it can write the table."""
    found = {*protocol.reader_features, *protocol.writer_features} - WRITER_FEATURES
    if not protocol.writer_features and protocol.writer > LEGACY_WRITER:
        return [f"reader version {protocol.reader}, writer version {protocol.writer}"]
    if metadata.properties.get(COLUMN_MAPPING, "none") != "none":
        found.add("columnMapping")
    for column in json.loads(metadata.schema)["fields"]:
        found |= {OF_COLUMNS[name] for name in column["metadata"] if name in OF_COLUMNS}
    return sorted(found)


def removal_refused(properties: Mapping[str, str]) -> str:
    """Return why rows cannot be taken out of a table with these properties; empty if they can."""
    for name, why in ((CHANGE_FEED, "its change data feed"), (APPEND_ONLY, "it is append-only:")):
        if properties.get(name, "").lower() == "true":
            return (
                f"{why} {'would not tell of it: ' if name == CHANGE_FEED else ''}ALTER TABLE … SET "
                f"TBLPROPERTIES ({name} = false), do this again, and switch it on again"
            )
    return ""


@dataclass(frozen=True, slots=True)
class Constraint:
    """A CHECK constraint: comparisons of a column with a literal, which all have to hold."""

    name: str
    text: str
    terms: tuple[tuple[str, str, Any], ...]  # column, operator ("": not null), value

    @property
    def columns(self) -> list[str]:
        return [column for column, _, _ in self.terms]

    def holds(self, rows: pa.Table) -> Any:
        """Return for each row whether it may stand in the table; null is no value that may."""
        found = pa.chunked_array([pa.repeat(pa.scalar(True), rows.num_rows)])
        for column, how, value in self.terms:
            values = rows.column(column)
            true = COMPARED[how](values, value) if how else pc.is_valid(values)
            found = pc.and_(found, pc.fill_null(true, False))
        return found


COMPARED: Mapping[str, Any] = {
    "=": pc.equal,
    "==": pc.equal,
    "!=": pc.not_equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_SWAPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_NAME = r"""(?:`(?P<quoted>[^`]+)`|(?P<plain>[A-Za-z_]\w*))"""
_LITERAL = r"""'(?:[^']|'')*'|-?\d+(?:\.\d+)?|TRUE|FALSE"""
_VALUE = rf"(?:(?:DATE|TIMESTAMP)\s+)?(?P<value>{_LITERAL})(?:::\w+)?"
_HOW = r"(?P<how><=|>=|<>|!=|==|=|<|>)"
_TERMS = [
    re.compile(rf"\s*\(*\s*{text}\s*\)*\s*(?:AND\b|$)", re.I)
    for text in (
        rf"{_NAME}\s+IS\s+NOT\s+NULL",
        rf"{_NAME}\s*{_HOW}\s*{_VALUE}",
        rf"{_VALUE}\s*{_HOW}\s*{_NAME}",
    )
]


def columns_of(
    storage: Storage, file: DataFile, names: Sequence[str], schema: pa.Schema
) -> pa.Table:
    wanted = [name for name in schema.names if name in {*names, "gateway", "offset"}]
    try:
        with storage.filesystem().open_input_file(file.path) as source:
            parquet = pq.ParquetFile(source)
            stored = [name for name in wanted if name in parquet.schema_arrow.names]
            rows = parquet.read(columns=stored)
    except (OSError, pa.ArrowException) as error:
        line = one_line(error)
        raise TableError(f"cannot read {file.path} of {storage.location}: {line}") from error
    for name in wanted:
        if name not in stored:  # of the partition, or of rows that do not have it
            value = pa.scalar(file.partition.get(name), pa.string()).cast(schema.field(name).type)
            rows = rows.append_column(name, pa.repeat(value, rows.num_rows))
    return rows


def constraints_of(metadata: Metadata) -> list[Constraint]:
    """Return the CHECK constraints; TableChanged for more than comparisons with literals."""
    return [
        _constraint(name.removeprefix(CONSTRAINT_PREFIX), text, arrow_schema(metadata))
        for name, text in metadata.properties.items()
        if name.startswith(CONSTRAINT_PREFIX)
    ]


def _constraint(name: str, text: str, schema: pa.Schema) -> Constraint:
    terms, at = [], 0
    while at < len(text):
        found = next((one for term in _TERMS if (one := term.match(text, at))), None)
        try:
            # An AND at the end has nothing behind it, and what is no AND has nothing behind it.
            if found is None or found[0].upper().endswith("AND") == (found.end() == len(text)):
                raise ValueError(text)
            terms.append(_term(found, schema))
        except (ValueError, KeyError, pa.ArrowException):
            raise TableChanged(
                f"its constraint {name} ({text}) is more than comparisons of a column with a "
                "literal: drop it (ALTER TABLE … DROP CONSTRAINT), or land in a table without it"
            ) from None
        at = found.end()
    return Constraint(name, text, tuple(terms))


def _term(found: re.Match[str], schema: pa.Schema) -> tuple[str, str, Any]:
    parts = found.groupdict()
    column = parts["quoted"] or parts["plain"]
    kind = schema.field(column).type
    if "how" not in parts:
        return column, "", None
    text, how = parts["value"], parts["how"]
    if text.startswith("'"):
        text = text[1:-1].replace("''", "'")
    if found.start("value") < found.start("how"):
        how = _SWAPPED.get(how, how)
    return column, how, pa.scalar(text).cast(kind)


KEPT_TO = frozenset(
    {"delta.appendOnly", "delta.deletedFileRetentionDuration"}
    | {"delta.enableExpiredLogCleanup", "delta.logRetentionDuration"}
)
"""A table can be given these properties, and any that are not Delta's."""


def check_properties(properties: Mapping[str, str]) -> None:
    """Raise ConfigurationError for a property that a table of this package cannot be given."""
    for name, value in properties.items():
        if name.lower().startswith("delta.") and name not in KEPT_TO:
            raise ConfigurationError(
                f"properties: {name} is none of {', '.join(sorted(KEPT_TO))}, nor a name of yours "
                "(without delta.)"
            )
        if name not in KEPT_TO:
            continue
        if not name.endswith("Duration") and value not in ("true", "false"):
            raise ConfigurationError(f"properties: {name} is true or false, not {value!r}")
        if name.endswith("Duration") and not INTERVAL.fullmatch(value):
            raise ConfigurationError(
                f'properties: {name} is an interval as "interval 30 days", not {value!r}'
            )


def forgetting(properties: Mapping[str, str], location: str) -> str:
    """Return why a table with these properties may forget places; empty when it keeps them."""
    if FORGETTING.lower() not in {name.lower() for name in properties}:
        return ""
    return (
        f"its property {FORGETTING} makes checkpoints forget how far gateways have landed, so that "
        "their rows would land twice; remove the property, and see with 'msgproto table verify "
        f"{quote(location)}' that every gateway still has its place"
    )


def incompatible(ours: Metadata, theirs: Metadata) -> str:
    """Return why files written for ``ours`` do not fit ``theirs``; empty when they do."""
    if ours.id != theirs.id:
        return f"it is another table, {theirs.id}"
    if ours.partition_by != theirs.partition_by:
        return f"it is partitioned by {', '.join(theirs.partition_by) or 'nothing'} now"
    before, after = _columns(ours), _columns(theirs)
    for name, column in before.items():
        if name not in after:
            return f"its column {name!r} is gone"
        if after[name]["type"] != column["type"]:
            return f"its column {name!r} has another type"
        if column["nullable"] and not after[name]["nullable"]:
            return f"its column {name!r} must not be null now"
    for name, column in after.items():
        if name not in before and not column["nullable"]:
            return f"its new column {name!r} must not be null"
    return ""


def _columns(metadata: Metadata) -> dict[str, Any]:
    return {column["name"]: column for column in json.loads(metadata.schema)["fields"]}
