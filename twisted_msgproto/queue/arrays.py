"""Make Arrow's arrays of lists, as ``pa.array`` makes them, without pandas.

``pa.array`` and ``pa.scalar`` ask pandas whether the values are its own, and import it for that if
it is installed: 0.4 s of the first group that a gateway writes, and 44 MB for as long as it runs.
What this module does not know raises one of :data:`UNKNOWN`, and is left to Arrow.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from struct import error as StructError
from struct import pack
from types import NoneType
from typing import Any, Final, NamedTuple

import pyarrow as pa

from twisted_msgproto.core.packed import spans

from .schema import ATTACHMENTS, FIELDS, OCTETS, TEXT

UNKNOWN: Final = (TypeError, ValueError, AttributeError, OverflowError, KeyError, StructError)
"""What this module does not know raises one of these; UnicodeEncodeError is a ValueError."""


class Column(NamedTuple):
    """A column as Arrow describes it: its nodes, then their buffers."""

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
    """Return numbers as octets; an ``array`` would check each of them more slowly."""
    return pack(f"{len(numbers)}{code}", *numbers)


# Nearly all columns are without None, and to search each for it takes as long as to write it.  So
# the writing is tried first: it ends at the first None.


def _octets(values: Sequence[Any]) -> Column:
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
    pieces = _octets([piece for pieces in whole for piece in pieces])  # type: ignore[union-attr]
    return Column((len(values), nulls, *pieces.nodes), (validity, bounds, *pieces.buffers))


_KNOWN: Final[dict[pa.DataType, Callable[[Any], Column]]] = {
    TEXT: _texts,
    pa.int64(): _numbers,
    pa.int32(): _small_numbers,
    FIELDS: _maps,
    OCTETS: _octets,
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
