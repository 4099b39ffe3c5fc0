"""The table has these columns, and a queue stores some of them for each message.

:data:`SCHEMA` is what readers return and what the Spark source promises, column for column.
:data:`STORED` are the columns that differ from message to message; a group leaves out those that
are null throughout (see ``docs/queue-format.md``, "Stored columns").
"""

from __future__ import annotations

import pyarrow as pa

TEXT: pa.DataType = pa.string()
BYTES: pa.DataType = pa.binary()
FIELDS: pa.DataType = pa.map_(pa.string(), pa.string())
ATTACHMENTS: pa.DataType = pa.list_(pa.field("element", pa.binary()))
TIME: pa.DataType = pa.timestamp("us", tz="UTC")

SCHEMA: pa.Schema = pa.schema(
    [
        pa.field("gateway", TEXT, nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("received_at", TIME, nullable=False),
        pa.field("protocol", TEXT, nullable=False),
        pa.field("peer", TEXT),
        pa.field("session", TEXT),
        pa.field("client_id", TEXT),
        pa.field("kind", TEXT),
        pa.field("message_id", TEXT),
        pa.field("destination", TEXT),
        pa.field("fields", FIELDS),
        pa.field("body", BYTES),
        pa.field("attachments", ATTACHMENTS),
        pa.field("truncated", pa.bool_(), nullable=False),
    ]
)
"""The table of one queue has these names, types and nullability for users and Spark."""

MESSAGE_ID_TEXT = 1
MESSAGE_ID_INTEGER = 2
DESTINATION = 4
FIELDS_GIVEN = 8
BODY = 16
ATTACHMENTS_GIVEN = 32
TRUNCATED = 64
ENVELOPE = 128  # a broker's envelopes are the one stored column that is not in SCHEMA

STORED: tuple[tuple[int, str, pa.DataType], ...] = (
    (MESSAGE_ID_TEXT, "message_id", TEXT),
    (MESSAGE_ID_INTEGER, "message_id", pa.int64()),
    (DESTINATION, "destination", TEXT),
    (FIELDS_GIVEN, "fields", FIELDS),
    (BODY, "body", BYTES),
    (ATTACHMENTS_GIVEN, "attachments", ATTACHMENTS),
    (TRUNCATED, "truncated", pa.bool_()),
    (ENVELOPE, "envelope", BYTES),
)
"""Bit, name and type of every column that a frame may hold, in the order they stand in it."""

TYPES: dict[int, pa.DataType] = {bit: kind for bit, _, kind in STORED}

KNOWN_COLUMNS = sum(bit for bit, _, _ in STORED)


def empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, kind) for kind in schema.types], schema=schema)
