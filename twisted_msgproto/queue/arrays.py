"""Make Arrow's arrays and messages of lists, as Arrow makes them, without pandas.

``pa.array`` and ``pa.scalar`` ask pandas whether the values are its own, and import it for that if
it is installed: 0.4 s of the first group that a gateway writes, and 44 MB for as long as it runs.
What this module does not know raises one of :data:`UNKNOWN`, and is left to Arrow.

Arrow also takes longer to begin with a record batch than with a thousand values: five arrays, a
batch and a message cost as much as the sync of a small group.  The message of given columns differs
only in some numbers, so a :class:`Form` copies one that Arrow has made and writes these into it.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import accumulate
from struct import error as StructError
from struct import pack
from types import NoneType
from typing import Any, Final, NamedTuple

import pyarrow as pa

from twisted_msgproto.core.packed import spans

from .schema import ATTACHMENTS, BYTES, FIELDS, STORED, TEXT, TYPES, stored_schema

UNKNOWN: Final = (TypeError, ValueError, AttributeError, OverflowError, KeyError, StructError)
"""What this module does not know raises one of these; UnicodeEncodeError is a ValueError."""


class Column(NamedTuple):
    nodes: tuple[int, ...]
    """These are the length and the number of nulls of each node, one after the other."""
    buffers: tuple[bytes, ...]


def _validity(values: Sequence[Any]) -> tuple[int, bytes]:
    nulls = values.count(None)
    return (nulls, _bits([value is not None for value in values])) if nulls else (0, b"")


def _bits(values: Sequence[bool | None]) -> bytes:
    bits = "".join(["1" if value else "0" for value in reversed(values)])
    return int(bits or "0", 2).to_bytes((len(values) + 7) // 8, "little")


def _written(code: str, numbers: Sequence[Any]) -> bytes:
    """Return numbers as bytes; an ``array`` would check each of them more slowly."""
    return pack(f"{len(numbers)}{code}", *numbers)


# Nearly all columns are without None, and to search each for it takes as long as to write it.  So
# the writing is tried first: it ends at the first None.


def _bytes(values: Sequence[Any]) -> Column:
    try:
        return Column((len(values), 0), (b"", *spans(values)))
    except TypeError:
        nulls, validity = _validity(values)
        if not nulls:
            raise
        pieces = [b"" if value is None else value for value in values]
        return Column((len(values), nulls), (validity, *spans(pieces)))


def _texts(values: Sequence[str | None]) -> Column:
    first, count = values[0] if values else None, len(values)
    if first is not None and values.count(first) == count:  # a destination, say
        piece = first.encode()
        size = len(piece)
        bounds = range(0, size * count + 1, size) if size else bytes(count + 1)
        return Column((count, 0), (b"", _written("i", bounds), piece * count))
    try:
        pieces = [value.encode() for value in values]  # type: ignore[union-attr]
        return Column((count, 0), (b"", *spans(pieces)))
    except AttributeError:
        nulls, validity = _validity(values)
        if not nulls:
            raise
        pieces = [b"" if value is None else value.encode() for value in values]
        return Column((count, nulls), (validity, *spans(pieces)))


def _numbers(values: Sequence[int | None], code: str = "q") -> Column:
    try:
        return Column((len(values), 0), (b"", _written(code, values)))
    except StructError:
        nulls, validity = _validity(values)
        if not nulls:
            raise
        numbers = [0 if value is None else value for value in values]
        return Column((len(values), nulls), (validity, _written(code, numbers)))


def _small_numbers(values: Sequence[int | None]) -> Column:
    return _numbers(values, "i")


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


def _truths(values: Sequence[bool | None]) -> Column:
    if not {bool, NoneType}.issuperset(map(type, values)):
        raise TypeError("something other than True and False")
    nulls, validity = _validity(values)
    return Column((len(values), nulls), (validity, _bits(values)))


def _lists(values: Sequence[Sequence[bytes] | None]) -> Column:
    if not {list, tuple, NoneType}.issuperset(map(type, values)):
        raise TypeError("something other than lists")
    nulls, validity = _validity(values)
    whole = [() if pieces is None else pieces for pieces in values] if nulls else values
    bounds = _written("i", [*accumulate(map(len, whole), initial=0)])  # type: ignore[arg-type]
    pieces = _bytes([piece for pieces in whole for piece in pieces])  # type: ignore[union-attr]
    return Column((len(values), nulls, *pieces.nodes), (validity, bounds, *pieces.buffers))


_KNOWN: Final[dict[pa.DataType, Callable[[Any], Column]]] = {
    TEXT: _texts,
    pa.int64(): _numbers,
    pa.int32(): _small_numbers,
    FIELDS: _maps,
    BYTES: _bytes,
    ATTACHMENTS: _lists,
    pa.bool_(): _truths,
}


def column_of(values: Sequence[Any], kind: pa.DataType) -> Column:
    """Return a list as Arrow describes a column of this type.

    Raises one of :data:`UNKNOWN` for another type, and for values that are not of this one.
    """
    return _KNOWN[kind](values)


def array_of(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return the array that ``pa.array(values, kind)`` returns; see the module.

    Raises one of :data:`UNKNOWN` for another type, and for values that are not of this one.
    """
    column = column_of(values, kind)
    numbers = iter(column.nodes)
    return _built(kind, zip(numbers, numbers, strict=True), iter(column.buffers))


def scalar_of(value: Any, kind: pa.DataType) -> pa.Scalar:
    """Return the scalar that ``pa.scalar(value, kind)`` returns; raises as :func:`array_of`."""
    return array_of([value], kind)[0]


def compute() -> Any:
    """Return ``pyarrow.compute``.

    Its import makes 300 functions and takes a tenth of a gateway's start; many never need it.
    """
    import pyarrow.compute

    return pyarrow.compute


def _built(
    kind: pa.DataType, nodes: Iterator[tuple[int, int]], buffers: Iterator[bytes]
) -> pa.Array:
    length, nulls = next(nodes)
    own = [next(buffers) for _ in range(_BUFFERS.get(kind.id, 2))]
    whole = [pa.py_buffer(own[0]) if own[0] else None, *map(pa.py_buffer, own[1:])]
    below = [_built(kind.field(at).type, nodes, buffers) for at in range(kind.num_fields)]
    return pa.Array.from_buffers(kind, length, whole, nulls, children=below or None)


_BUFFERS: Final = {pa.string().id: 3, pa.binary().id: 3, pa.struct([]).id: 1}
"""Arrays of these types have this many buffers of their own, the others two."""


ALIGNMENT: Final = 8

JOINED_BYTES: Final = 64 << 10
"""A message up to this size is one piece; a larger one would cost another copy of its bytes."""

_PREFIX: Final = struct.Struct("<II")
"""A message begins with a continuation marker and the number of bytes of its metadata."""

_HEADER, _BODY_LENGTH = 2, 3
"""Of the fields of Arrow's message, these are the record batch and the length of its columns."""

_BATCH_LENGTH, _BATCH_NODES, _BATCH_BUFFERS = 0, 1, 2
"""A record batch has these fields: its rows, its columns and their buffers."""

_PROBES: Final[dict[pa.DataType, Any]] = {
    TEXT: "x",
    pa.int64(): 1,
    FIELDS: {"x": "x"},
    BYTES: b"x",
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
        metadata = bytearray(self.metadata)
        pieces: list[bytes | bytearray] = [metadata]
        places: list[int] = []
        at = 0
        for column in columns:
            for buffer in column.buffers:
                nbytes = len(buffer)
                places += (at, nbytes)
                if nbytes:
                    pieces.append(buffer)
                    if rest := -nbytes % ALIGNMENT:
                        pieces.append(bytes(rest))
                        nbytes += rest
                    at += nbytes
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
    def number(form: str, at: int) -> int:
        return int(struct.unpack_from(form, metadata, at)[0])

    def field_at(table: int, field: int) -> int:
        return table + number("<H", table - number("<i", table) + 4 + 2 * field)

    def followed(at: int) -> int:
        return at + number("<I", at)

    whole = followed(_PREFIX.size)
    batch = followed(field_at(whole, _HEADER))
    return (
        field_at(batch, _BATCH_LENGTH),
        field_at(whole, _BODY_LENGTH),
        followed(field_at(batch, _BATCH_NODES)) + 4,
        followed(field_at(batch, _BATCH_BUFFERS)) + 4,
    )


def ipc_message(rows: int, columns: Mapping[int, Sequence[Any]]) -> list[Any] | None:
    """Return Arrow's message of a record batch in pieces, or None if Arrow has to write it.

    ``columns`` maps the bit of each column to its values, in the order of the bits; each has
    ``rows`` values, and there is a column.
    """
    try:
        made = [column_of(values, TYPES[bit]) for bit, values in columns.items()]
    except UNKNOWN:
        return None
    pieces: list[Any] = form_of(sum(columns)).filled(rows, made)
    nbytes = sum(map(len, pieces))
    return pieces if nbytes > JOINED_BYTES else [b"".join(pieces)]
