"""A table that this package makes has these properties, this protocol and this first version."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from deltalake import Schema

from ..core.errors import ConfigurationError
from .actions import Metadata, ProtocolVersions

PROTOCOL = ProtocolVersions(reader=1, writer=2)
"""The plainest table there is: every reader of Delta tables knows it."""
CHECKPOINT_EVERY = 100
"""One checkpoint follows another after this many versions; a reader replays at most that many."""
LOG_RETENTION_HOURS = 6
"""How long old versions can be read (time travel), and how many files the log's folder keeps."""

PROPERTIES: Mapping[str, str] = {
    "delta.logRetentionDuration": f"interval {LOG_RETENTION_HOURS} hours",
    "delta.checkpointInterval": str(CHECKPOINT_EVERY),
}


FORGETTING = "delta.setTransactionRetentionDuration"
"""With this property a checkpoint leaves out application transactions that did not change for a
while: how far a quiet gateway has landed.
"""


def metadata_of(
    table_id: str,
    schema: pa.Schema,
    partition_by: Sequence[str],
    properties: Mapping[str, str] | None = None,
) -> Metadata:
    """Return the metadata of a new table.

    Raises:
        ConfigurationError: a partition column is not in the schema, or Delta has no such type.
    """
    missing = [name for name in partition_by if name not in schema.names]
    if missing:
        raise ConfigurationError(f"the table has no column {missing[0]!r} to be partitioned by")
    try:
        text = Schema.from_arrow(schema).to_json()
    except Exception as error:  # delta-rs raises its own types, which differ between releases
        raise ConfigurationError(f"a Delta table cannot hold this schema: {error}") from None
    return Metadata(table_id, text, tuple(partition_by), {**PROPERTIES, **(properties or {})})


def with_columns(metadata: Metadata, columns: Sequence[pa.Field]) -> Metadata:
    """Return ``metadata`` with more columns, which may be null, behind those that it has.

    Raises ConfigurationError for a type that Delta does not have.
    """
    schema = json.loads(metadata.schema)
    nullable = [column.with_nullable(True) for column in columns]
    more = metadata_of(metadata.id, pa.schema(nullable), ())
    schema["fields"] += json.loads(more.schema)["fields"]
    text = json.dumps(schema, separators=(",", ":"), ensure_ascii=False)
    return replace(metadata, schema=text)


def arrow_schema(metadata: Metadata) -> pa.Schema:
    return pa.schema(Schema.from_json(metadata.schema).to_arrow())


def unknown_features(protocol: ProtocolVersions) -> list[str]:
    """Return what this package does not know of a table's protocol; empty when it can write the
    table.
    """
    features = sorted(protocol.reader_features | protocol.writer_features - {"appendOnly"})
    if features:
        return features
    if protocol.reader > PROTOCOL.reader or protocol.writer > PROTOCOL.writer:
        return [f"reader version {protocol.reader}, writer version {protocol.writer}"]
    return []


def forgetting(properties: Mapping[str, str]) -> str:
    """Why a table with these properties may forget places; empty when it keeps them."""
    if FORGETTING.lower() not in {name.lower() for name in properties}:
        return ""
    return (
        f"its property {FORGETTING} makes checkpoints forget how far gateways have landed, so that "
        "their rows would land twice; remove the property, and see with 'msgproto table verify' "
        "that every gateway still has its place"
    )


def incompatible(ours: Metadata, theirs: Metadata) -> str:
    """Why files written for ``ours`` do not fit ``theirs``; empty when they do.

    A new column that may be null fits: files without it read as null.
    """
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
