"""Write lists as Arrow's message of a record batch, octet for octet as Arrow writes it.

Arrow takes longer to begin with a record batch than with a thousand values: five arrays, a batch
and a message cost as much as the sync of a small group.  The message of given columns differs only
in some numbers, so a :class:`Form` copies one that Arrow has made and writes these numbers into it.
What this module does not know is left to Arrow: :func:`message` returns None then, and Arrow says
what is wrong with it, if something is.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import pyarrow as pa

from .arrays import UNKNOWN, Column, array_of, column_of
from .schema import ATTACHMENTS, FIELDS, OCTETS, STORED, TEXT, TYPES, stored_schema

ALIGNMENT: Final = 8

JOINED_OCTETS: Final = 64 << 10
"""A message up to this size is one piece; a larger one would cost another copy of its octets."""

_PREFIX: Final = struct.Struct("<II")
"""A message begins with a continuation marker and the number of octets of its metadata."""

_HEADER, _BODY_LENGTH = 2, 3
"""Of the fields of Arrow's message, these are the record batch and the length of its columns."""

_LENGTH, _NODES, _BUFFERS = 0, 1, 2
"""A record batch has these fields: its rows, its columns and their buffers."""

_PROBES: Final[dict[pa.DataType, Any]] = {
    TEXT: "x",
    pa.int64(): 1,
    FIELDS: {"x": "x"},
    OCTETS: b"x",
    ATTACHMENTS: [b"x"],
    pa.bool_(): True,
}


class Form(NamedTuple):
    """Arrow's metadata of a record batch with given columns, and where its numbers stand."""

    metadata: bytes
    length_at: int
    body_length_at: int
    nodes_at: int
    nodes: struct.Struct
    buffers_at: int
    buffers: struct.Struct

    def filled(self, rows: int, columns: Sequence[Column]) -> list[bytes | bytearray]:
        """Return the message of these columns: its metadata and the buffers, each filled up."""
        metadata = bytearray(self.metadata)
        pieces: list[bytes | bytearray] = [metadata]
        places: list[int] = []
        at = 0
        for column in columns:
            for buffer in column.buffers:
                octets = len(buffer)
                places += (at, octets)
                if octets:
                    pieces.append(buffer)
                    if rest := -octets % ALIGNMENT:
                        pieces.append(bytes(rest))
                        octets += rest
                    at += octets
        struct.pack_into("<q", metadata, self.length_at, rows)
        struct.pack_into("<q", metadata, self.body_length_at, at)
        nodes = [number for column in columns for number in column.nodes]
        self.nodes.pack_into(metadata, self.nodes_at, *nodes)
        self.buffers.pack_into(metadata, self.buffers_at, *places)
        return pieces


@cache
def form_of(columns: int) -> Form:
    """Return the form of a record batch with these columns (a sum of bits)."""
    schema = stored_schema(columns)
    probe = [array_of([_PROBES[kind]], kind) for bit, _, kind in STORED if columns & bit]
    message = pa.RecordBatch.from_arrays(probe, schema=schema).serialize().to_pybytes()
    metadata = message[: _PREFIX.size + _PREFIX.unpack_from(message)[1]]
    places = _places_in(metadata)
    (nodes,) = struct.unpack_from("<I", metadata, places[2] - 4)
    (buffers,) = struct.unpack_from("<I", metadata, places[3] - 4)
    return Form(
        metadata,
        places[0],
        places[1],
        places[2],
        struct.Struct(f"<{2 * nodes}q"),
        places[3],
        struct.Struct(f"<{2 * buffers}q"),
    )


def _places_in(metadata: bytes) -> tuple[int, int, int, int]:
    """Return where the number of rows stands, the length of the columns, the first node and the
    first buffer.  The metadata is a flatbuffer: tables that say where their fields are.
    """

    def number(form: str, at: int) -> int:
        return int(struct.unpack_from(form, metadata, at)[0])

    def field_at(table: int, field: int) -> int:
        return table + number("<H", table - number("<i", table) + 4 + 2 * field)

    def followed(at: int) -> int:
        return at + number("<I", at)

    whole = followed(_PREFIX.size)
    batch = followed(field_at(whole, _HEADER))
    return (
        field_at(batch, _LENGTH),
        field_at(whole, _BODY_LENGTH),
        followed(field_at(batch, _NODES)) + 4,
        followed(field_at(batch, _BUFFERS)) + 4,
    )


def message(rows: int, columns: Mapping[int, Sequence[Any]]) -> list[Any] | None:
    """Return Arrow's message of a record batch in pieces, or None if Arrow has to write it.

    ``columns`` maps the bit of each column to its values, in the order of the bits; each has
    ``rows`` values, and there is a column.
    """
    try:
        made = [column_of(values, TYPES[bit]) for bit, values in columns.items()]
    except UNKNOWN:
        return None
    pieces: list[Any] = form_of(sum(columns)).filled(rows, made)
    octets = sum(map(len, pieces))
    return pieces if octets > JOINED_OCTETS else [b"".join(pieces)]
