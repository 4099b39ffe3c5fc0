"""The columns of a frame: made of lists, as they stand in its block, and as Arrow has them.

A block is a few buffers for each column, one behind the other, and in front of them where each of
them ends (``docs/queue-format.md``, "Stored columns").  Each buffer has so many bytes for each
value, or is the values themselves: so the columns of many frames are joined by joining their
buffers, and a message in a frame of its own costs no call of Arrow.

Arrow's own ``pa.array`` and ``pa.scalar`` ask pandas whether the values are its own, and import it
for that if it is installed: 0.4 s of the first group that a gateway writes, and 44 MB for as long
as it runs.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import accumulate
from struct import pack
from types import NoneType
from typing import Any, Final, NamedTuple

import pyarrow as pa

from twisted_msgproto.core.packed import PackedBytes, PackedMaps, PackedNumbers, shift, spans

from .format import ALIGNMENT
from .schema import ATTACHMENTS, BYTES, FIELDS, STORED, TEXT

Buffers = tuple[Any, ...]  # of a column; its presence first: 0 for each None, empty without one

END_BYTES: Final = 4
ENDS, LISTS, DATA = -1, -2, -3
"""What a buffer holds: for each value where it ends in the data that follow; or where it ends among
the pieces or pairs that follow; or the data of all values.  Other buffers hold numbers of so many
bytes.
"""
TRUTHS: Final = pa.bool_()
_END: Final = struct.Struct("<i")

_ROLES: Final[dict[pa.DataType, tuple[int, ...]]] = {
    TEXT: (ENDS, DATA),
    BYTES: (ENDS, DATA),
    FIELDS: (LISTS, ENDS, DATA, ENDS, DATA),
    ATTACHMENTS: (LISTS, ENDS, DATA),
    pa.int64(): (8,),
    TRUTHS: (1,),
}
"""The buffers of a column behind that of its presence."""


# -- from values ----------------------------------------------------------------------------------

# Nearly all columns are without None, and to search each for it takes as long as to write it.  So
# the writing is tried first: it ends at the first None.


def _presence(values: Sequence[Any]) -> bytes:
    if None not in values:
        raise TypeError("values of another type")
    return bytes([value is not None for value in values])


def _written(code: str, numbers: Sequence[Any]) -> bytes:
    """Return numbers as bytes; an ``array`` would check each of them more slowly."""
    return pack(f"{len(numbers)}{code}", *numbers)


def _bytes(values: Sequence[Any]) -> Buffers:
    try:
        bounds, data = spans(values)
        return b"", bounds[END_BYTES:], data
    except TypeError:
        presence = _presence(values)
        return presence, *_bytes([b"" if value is None else value for value in values])[1:]


def _texts(values: Sequence[str | None]) -> Buffers:
    first, count = values[0] if values else None, len(values)
    if first is not None and values.count(first) == count:  # a destination, say
        piece = first.encode()
        size = len(piece)
        ends = range(size, size * count + 1, size) if size else bytes(count)
        return b"", _written("i", ends), piece * count
    try:
        return _bytes([value.encode() for value in values])  # type: ignore[union-attr]
    except AttributeError:
        presence = _presence(values)
        return presence, *_bytes([b"" if value is None else value.encode() for value in values])[1:]


def _numbers(values: Sequence[int | None], code: str = "q") -> Buffers:
    try:
        return b"", _written(code, values)
    except struct.error:
        if None not in values:
            raise
        there = [0 if value is None else value for value in values]
        return _presence(values), _written(code, there)


def _maps(values: Sequence[Mapping[str, str] | None]) -> Buffers:
    count = len(values)
    if values.count({}) == count:  # as usual as pairs are
        return b"", bytes(END_BYTES * count), b"", b"", b"", b""
    keys: list[str] = []
    items: list[str] = []
    ends: list[int] = []
    presence = b""
    for pairs in values:
        if pairs is None:
            presence = presence or _presence(values)
        else:
            keys.extend(pairs)
            items.extend(pairs.values())
        ends.append(len(keys))
    return presence, _written("i", ends), *_no_null(_texts(keys)), *_no_null(_texts(items))


def _lists(values: Sequence[Sequence[bytes] | None]) -> Buffers:
    if not {list, tuple, NoneType}.issuperset(map(type, values)):
        raise TypeError("something other than lists")
    presence = _presence(values) if None in values else b""
    there = [pieces or () for pieces in values]
    ends = _written("i", [*accumulate(map(len, there))])
    return presence, ends, *_no_null(_bytes([piece for pieces in there for piece in pieces]))


def _no_null(buffers: Buffers) -> Buffers:
    if buffers[0]:
        raise TypeError("None in a map or a list")
    return buffers[1:]


def _truths(values: Sequence[bool | None]) -> Buffers:
    if not {bool, NoneType}.issuperset(map(type, values)):
        raise TypeError("something other than True and False")
    return _presence(values) if None in values else b"", bytes(map(bool, values))


_KNOWN: Final[dict[pa.DataType, Callable[[Any], Buffers]]] = {
    TEXT: _texts,
    BYTES: _bytes,
    FIELDS: _maps,
    ATTACHMENTS: _lists,
    pa.int64(): _numbers,
    pa.int32(): lambda values: _numbers(values, "i"),
    TRUTHS: _truths,
}


def _packed_bytes(values: PackedBytes) -> Buffers:
    bounds, data = values.bounds, values.nbytes
    first, last = bounds[0], bounds[-1]
    ends = memoryview(bounds)[1:]
    if first or last != len(data):
        return b"", shift(ends, -first), memoryview(data)[first:last]
    return b"", ends.cast("B"), data


def _packed_maps(values: PackedMaps) -> Buffers:
    ends = memoryview(values.bounds)[1:].cast("B")
    return b"", ends, *_packed_bytes(values.keys)[1:], *_packed_bytes(values.items)[1:]


_PACKED: Final[dict[type, Callable[[Any], Buffers]]] = {
    PackedBytes: _packed_bytes,
    PackedMaps: _packed_maps,
    PackedNumbers: lambda values: (b"", memoryview(values).cast("B")),
}


def buffers_of(values: Sequence[Any], kind: pa.DataType) -> Buffers:
    """Return the buffers of a column of this type; those of packed values are not copied.

    Raises TypeError, AttributeError or struct.error for other types' values, UnicodeEncodeError,
    and OverflowError beyond 31 bits.
    """
    return (_PACKED.get(type(values)) or _KNOWN[kind])(values)


def joined(kind: pa.DataType, parts: Sequence[Buffers], counts: Sequence[int]) -> tuple[Any, ...]:
    """Return the buffers of a column whose values stand in several parts, each with its count."""
    if len(parts) == 1:
        return parts[0]
    there, *others = zip(*parts, strict=True)
    presence = b""
    if any(there):
        filled = [part or b"\1" * count for part, count in zip(there, counts, strict=True)]
        presence = b"".join(filled)
    return presence, *map(_joined, _ROLES[kind], others)


def _joined(role: int, parts: Sequence[Any]) -> Any:
    if role == DATA and sum(map(len, parts)) > JOINED_BYTES * len(parts):
        # Arrow uses its memory again, where Python's comes from the system each time.
        arrays = [
            pa.Array.from_buffers(pa.uint8(), len(part), [None, pa.py_buffer(part)])
            for part in parts
        ]
        return pa.concat_arrays(arrays).buffers()[1]
    together = b"".join(parts)
    if role not in (ENDS, LISTS):
        return together
    numbers = len(together) // END_BYTES
    if numbers == len(parts) and all(parts):  # one in each
        return _written("i", [*accumulate(struct.unpack(f"{numbers}i", together))])
    shifted, base = [], 0
    for part in parts:
        if part:
            shifted.append(shift(part, base) if base else part)
            base += _END.unpack_from(part, len(part) - END_BYTES)[0]
    return b"".join(shifted)


# -- blocks ---------------------------------------------------------------------------------------

JOINED_BYTES: Final = 64 << 10  # a larger block is not one piece: that costs another copy


class Form(NamedTuple):
    """What blocks with the same columns have in common, and None in the same ones."""

    head: struct.Struct  # where each buffer ends, counted from behind the head
    roles: tuple[tuple[int, tuple[int, ...]], ...]  # has a presence, others' roles


@cache
def form_of(columns: int, partial: int) -> Form:
    roles = [(int(bool(partial & bit)), _ROLES[kind]) for bit, _, kind in STORED if columns & bit]
    return Form(struct.Struct(f"<{sum([there + len(own) for there, own in roles])}I"), (*roles,))


def written(columns: int, made: Sequence[Buffers]) -> tuple[int, list[Any]]:
    """Return which columns have None, and the block in pieces: what is large is not copied."""
    partial, buffers = 0, []
    for bit, column in zip(bits_of(columns), made, strict=True):
        if column[0]:
            partial |= bit
            buffers.append(column[0])
        buffers += column[1:]
    ends = [*accumulate(map(len, buffers))]
    head = form_of(columns, partial).head.pack(*ends)
    nbytes = len(head) + (ends[-1] if ends else 0)
    pieces = [head, *filter(len, buffers), bytes(-nbytes % ALIGNMENT)]
    return partial, pieces if nbytes > JOINED_BYTES else [b"".join(pieces)]


@cache
def bits_of(columns: int) -> tuple[int, ...]:
    return tuple(bit for bit, _, _ in STORED if columns & bit)


def read(columns: int, partial: int, block: Any, rows: int) -> list[Buffers]:
    """Return a block's columns (``bytes`` or views); ValueError or struct.error if not ``rows``."""
    head, roles = form_of(columns, partial)
    base = at = head.size
    ends = iter(head.unpack_from(block))
    found = []
    for there, own in roles:
        column = [b""]
        below = rows
        if there:
            last = base + next(ends)
            column[0] = block[at:last]
            at = last
            right = len(column[0]) == rows
        else:
            right = True
        end = 0
        for role in own:
            last = base + next(ends)
            buffer = block[at:last]
            at = last
            column.append(buffer)
            size = len(buffer)
            if role == DATA:
                right = right and size == end
            elif role > 0:
                right = right and size == role * rows
            else:
                right = right and size == END_BYTES * below
                end = _END.unpack_from(buffer, size - END_BYTES)[0] if size else 0
                if role == LISTS:
                    below = end
        if not right:
            raise ValueError(f"a column does not hold {rows} values")
        found.append(tuple(column))
    return found


# -- to Arrow -------------------------------------------------------------------------------------


def array_from(kind: pa.DataType, rows: int, buffers: Buffers) -> pa.Array:
    """Return a column as Arrow has it; the bytes of its values are not copied."""
    presence, first, *below = buffers
    there = None
    if presence:
        truths = pa.Array.from_buffers(pa.uint8(), rows, [None, pa.py_buffer(presence)])
        there = truths.cast(pa.bool_()).buffers()[1]
    if kind in (TEXT, BYTES):
        return _spans(kind, rows, there, first, below[0])
    if kind is ATTACHMENTS:
        pieces = _spans(BYTES, len(below[0]) // END_BYTES, None, *below)
        return pa.Array.from_buffers(kind, rows, [there, _bounds(first)], children=[pieces])
    if kind is FIELDS:
        pairs = len(below[0]) // END_BYTES
        texts = [_spans(TEXT, pairs, None, *below[at : at + 2]) for at in (0, 2)]
        both = pa.Array.from_buffers(kind.field(0).type, pairs, [None], children=texts)
        return pa.Array.from_buffers(kind, rows, [there, _bounds(first)], children=[both])
    numbers = pa.py_buffer(bytes(first))  # a copy has the alignment that Arrow wants
    if kind is TRUTHS:
        bytewise = pa.Array.from_buffers(pa.uint8(), rows, [there, numbers])
        return bytewise.cast(kind)
    return pa.Array.from_buffers(kind, rows, [there, numbers])


def _bounds(ends: Any) -> pa.Buffer:
    return pa.py_buffer(b"".join([bytes(END_BYTES), ends]))


def _spans(kind: pa.DataType, rows: int, there: Any, ends: Any, data: Any) -> pa.Array:
    return pa.Array.from_buffers(kind, rows, [there, _bounds(ends), pa.py_buffer(data)])


def array_of(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    return array_from(kind, len(values), buffers_of(values, kind))


def scalar_of(value: Any, kind: pa.DataType) -> pa.Scalar:
    return array_of([value], kind)[0]


def compute() -> Any:
    """Return ``pyarrow.compute``: its import takes a tenth of a gateway's start."""
    import pyarrow.compute

    return pyarrow.compute
