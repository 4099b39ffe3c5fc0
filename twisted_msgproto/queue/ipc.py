"""Write lists as Arrow's message of a record batch, octet for octet as Arrow writes it.

Arrow takes longer to begin with a record batch than with a thousand values: five arrays, a batch
and a message cost as much as the sync of a small group.  The message of given columns differs only
in some numbers, so a :class:`Form` copies one that Arrow has made and writes these numbers into it.
What this module does not know is left to Arrow: :func:`message` returns None then, and Arrow says
what is wrong with it, if something is.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import accumulate
from typing import Any, Final, NamedTuple

import pyarrow as pa

from .schema import (
    BODY,
    DESTINATION,
    ENVELOPE,
    FIELDS_GIVEN,
    MESSAGE_ID_INTEGER,
    MESSAGE_ID_TEXT,
    STORED,
    stored_schema,
)

ALIGNMENT: Final = 8
"""Arrow fills each buffer up to a multiple of this many octets."""

JOINED_OCTETS: Final = 64 << 10
"""A message up to this size is one piece; a larger one would cost another copy of its octets."""

_PREFIX: Final = struct.Struct("<II")
"""A message begins with a continuation marker and the number of octets of its metadata."""

_HEADER, _BODY_LENGTH = 2, 3
"""Of the fields of Arrow's message, these are the record batch and the length of its columns."""

_LENGTH, _NODES, _BUFFERS = 0, 1, 2
"""A record batch has these fields: its rows, its columns and their buffers."""

UNKNOWN: Final = (TypeError, ValueError, AttributeError, OverflowError, struct.error)
"""What this module does not know raises one of these; UnicodeEncodeError is a ValueError."""

Node = tuple[int, int]
"""A column, or a part of one, has this many values, of which so many are null."""


class Column(NamedTuple):
    """Holds a column as Arrow describes it: its nodes, then their buffers."""

    nodes: tuple[int, ...]
    """These are the length and the number of nulls of each node, one after the other."""
    buffers: tuple[bytes, ...]


def _validity(values: Sequence[Any]) -> tuple[int, bytes]:
    """Return how many values are None, and Arrow's bitmap of the others; none if all are there."""
    nulls = values.count(None)
    if not nulls:
        return 0, b""
    bits = "".join(["0" if value is None else "1" for value in reversed(values)])
    return nulls, int(bits, 2).to_bytes((len(values) + 7) // 8, "little")


def _spans(pieces: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Return the bounds of the pieces, and their octets."""
    octets = b"".join(pieces)
    bounds = array("i", accumulate(map(len, pieces), initial=0))
    if bounds[-1] != len(octets):
        raise TypeError("something other than octets")
    return bounds.tobytes(), octets


def _octets(values: Sequence[bytes | None]) -> Column:
    nulls, validity = _validity(values)
    pieces = [b"" if value is None else value for value in values] if nulls else values
    return Column((len(values), nulls), (validity, *_spans(pieces)))  # type: ignore[arg-type]


def _texts(values: Sequence[str | None]) -> Column:
    first, count = values[0] if values else None, len(values)
    if first is not None and values.count(first) == count:  # a destination, say
        piece = first.encode()
        bounds = array("i", [number * len(piece) for number in range(count + 1)])
        return Column((count, 0), (b"", bounds.tobytes(), piece * count))
    nulls, validity = _validity(values)
    if nulls:
        pieces = [b"" if value is None else value.encode() for value in values]
    else:
        pieces = [value.encode() for value in values]  # type: ignore[union-attr]
    return Column((count, nulls), (validity, *_spans(pieces)))


def _numbers(values: Sequence[int | None]) -> Column:
    nulls, validity = _validity(values)
    numbers = [0 if value is None else value for value in values] if nulls else values
    return Column((len(values), nulls), (validity, array("q", numbers).tobytes()))  # type: ignore[type-var]


def _maps(values: Sequence[Mapping[str, str] | None]) -> Column:
    count = len(values)
    if values.count({}) == count:  # as usual as pairs are
        return Column((count, 0, *_NO_PAIRS.nodes), (b"", bytes(4 * count + 4), *_NO_PAIRS.buffers))
    keys: list[str] = []
    items: list[str] = []
    bounds = array("i", [0])
    for pairs in values:
        if pairs is not None:
            keys.extend(pairs)
            items.extend(pairs.values())
        bounds.append(len(keys))
    nulls, validity = _validity(values)
    pairs_of_all = _pairs(keys, items)
    return Column(
        (count, nulls, *pairs_of_all.nodes), (validity, bounds.tobytes(), *pairs_of_all.buffers)
    )


def _pairs(keys: Sequence[str], items: Sequence[str]) -> Column:
    if len(keys) != len(items):
        raise TypeError("not a mapping")
    names, values = _texts(keys), _texts(items)
    return Column(
        (len(keys), 0, *names.nodes, *values.nodes), (b"", *names.buffers, *values.buffers)
    )


_NO_PAIRS: Final = _pairs([], [])


_KNOWN: Final[dict[int, Callable[[Any], Column]]] = {
    MESSAGE_ID_TEXT: _texts,
    MESSAGE_ID_INTEGER: _numbers,
    DESTINATION: _texts,
    FIELDS_GIVEN: _maps,
    BODY: _octets,
    ENVELOPE: _octets,
}
"""This maps the bit of a column to what writes it."""

_PROBES: Final[dict[int, Any]] = {
    MESSAGE_ID_TEXT: "x",
    MESSAGE_ID_INTEGER: 1,
    DESTINATION: "x",
    FIELDS_GIVEN: [("x", "x")],
    BODY: b"x",
    ENVELOPE: b"x",
}


class Form(NamedTuple):
    """Knows Arrow's metadata of a record batch with given columns, and where its numbers stand."""

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
    probe = [pa.array([_PROBES[bit]], kind) for bit, _, kind in STORED if columns & bit]
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
        made = [_KNOWN[bit](values) for bit, values in columns.items()]
    except (*UNKNOWN, KeyError):
        return None
    pieces: list[Any] = form_of(sum(columns)).filled(rows, made)
    octets = sum(map(len, pieces))
    return pieces if octets > JOINED_OCTETS else [b"".join(pieces)]


__all__ = ["Form", "form_of", "message"]
