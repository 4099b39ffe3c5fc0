"""Columns which stand in one buffer as they came from the wire.

A peer which sends in bulk sends one frame behind another.  Where each begins is all that has to be
found out at once; what stands in it is cut out when somebody asks, and the queue copies whole
columns without asking.  So a message in bulk is no Python object at all on its way to the disk.

Packed columns are sequences like any list, and equal to a list of the same values.

The loops over whole columns stand here in Python.  The compiled module ``_packed`` does
the same work many times as fast and is used where it was built; :data:`COMPILED` tells.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Final, Generic, TypeVar, overload

from .compiled import compiled

PACKED_MIN = 64
"""A shorter packed column costs more on its own than as a part of its neighbours' list."""

FORM: Final = 1
"""Of what ``_packed`` takes and gives; see :func:`~.compiled.compiled`."""

_compiled: Any = compiled("twisted_msgproto.core._packed", FORM)

COMPILED: Final = _compiled is not None
"""Whether the compiled form is in use."""

_NUMBER = struct.Struct(">I")

V = TypeVar("V")


@dataclass(slots=True)
class Rows:
    """Rows which touch each other in a buffer; they are never changed.

    Row ``k`` stands in ``octets[bounds[k]:bounds[k + 1]]``; there is one bound more than rows, and
    they are signed 32-bit integers (``array("i")``), which never fall.
    """

    octets: bytes
    bounds: array[int]

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @property
    def fill_half(self) -> bool:
        """Kept alone, they keep no more octets of others in memory than their own."""
        return 2 * (self.bounds[-1] - self.bounds[0]) >= len(self.octets)

    def text(self, row: int) -> str:
        """Row ``row`` as UTF-8."""
        return self.octets[self.bounds[row] : self.bounds[row + 1]].decode()


def cut_python(rows: Rows, skip: int) -> Rows:
    """Rows without the first ``skip`` octets of each, in a buffer which holds nothing else.

    Raises ValueError for a row which has not so many.
    """
    starts = [start + skip for start in rows.bounds[:-1]]
    sizes = [end - start for start, end in zip(starts, rows.bounds[1:], strict=True)]
    if min(sizes, default=0) < 0:
        raise ValueError("these are not the bounds of such rows")
    values = [rows.octets[start : start + size] for start, size in zip(starts, sizes, strict=True)]
    return Rows(b"".join(values), array("i", accumulate(sizes, initial=0)))


def cut_compiled(rows: Rows, skip: int) -> Rows:
    """See :func:`cut_python`."""
    octets, bounds = _compiled.cut(rows.octets, rows.bounds, skip)
    return Rows(octets, array("i", bounds))


def numbers_python(rows: Rows, at: int) -> bytes:
    """The number which stands ``at`` octets behind each row's start, as 64-bit native integers.

    Raises ValueError for a row which ends before its number does.
    """
    octets, unpack, size = rows.octets, _NUMBER.unpack_from, at + _NUMBER.size
    if any(end - start < size for start, end in pairwise(rows.bounds)):
        raise ValueError("these are not the bounds of such rows")
    return array("q", [unpack(octets, start + at)[0] for start in rows.bounds[:-1]]).tobytes()


def numbers_compiled(rows: Rows, at: int) -> bytes:
    """See :func:`numbers_python`."""
    numbers: bytes = _compiled.numbers(rows.octets, rows.bounds, at)
    return numbers


def shift_python(bounds: array[int], by: int) -> bytes:
    """``bounds``, each moved by so much, as they stand in memory; OverflowError beyond 31 bits."""
    return array("i", [bound + by for bound in bounds]).tobytes()


def shift_compiled(bounds: array[int], by: int) -> bytes:
    """See :func:`shift_python`."""
    shifted: bytes = _compiled.shift(bounds, by)
    return shifted


cut = cut_compiled if COMPILED else cut_python
numbers = numbers_compiled if COMPILED else numbers_python
shift = shift_compiled if COMPILED else shift_python


class Packed(Sequence[V], Generic[V]):
    """A column of values which stand in :class:`Rows`; read-only."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        raise NotImplementedError

    def value(self, row: int) -> V:
        """The value at ``row``, 0 ≤ row < len."""
        raise NotImplementedError

    def values(self) -> list[V]:
        """All values, cut out."""
        return [self.value(row) for row in range(len(self))]

    @overload
    def __getitem__(self, place: int) -> V: ...
    @overload
    def __getitem__(self, place: slice) -> list[V]: ...
    def __getitem__(self, place: int | slice) -> V | list[V]:
        """The value at ``place``, a list for a slice; IndexError beyond."""
        rows = range(len(self))[place]
        return self.value(rows) if isinstance(rows, int) else [self.value(row) for row in rows]

    def __iter__(self) -> Iterator[V]:
        return iter(self.values())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, (str, bytes)):
            return NotImplemented
        return self.values() == list(other)

    def __repr__(self) -> str:
        return repr(self.values())


class PackedOctets(Packed[bytes]):
    """Each row's octets, but for the first ``skip`` of them."""

    __slots__ = ("rows", "skip")

    def __init__(self, rows: Rows, skip: int = 0) -> None:
        """No row is shorter than ``skip`` octets."""
        self.rows = rows
        self.skip = skip

    def __len__(self) -> int:
        return len(self.rows)

    def value(self, row: int) -> bytes:
        """The octets at ``row``, 0 ≤ row < len."""
        bounds = self.rows.bounds
        return self.rows.octets[bounds[row] + self.skip : bounds[row + 1]]

    def values(self) -> list[bytes]:
        """All values, cut out."""
        octets, skip = self.rows.octets, self.skip
        return [octets[start + skip : end] for start, end in pairwise(self.rows.bounds)]

    def alone(self) -> Rows:
        """The values as rows in a buffer which holds nothing else."""
        return cut(self.rows, self.skip)


class PackedNumbers(Packed[int]):
    """A 32-bit unsigned number in network order, ``at`` octets behind each row's start."""

    __slots__ = ("at", "rows")

    def __init__(self, rows: Rows, at: int = 0) -> None:
        """Every row has four octets from ``at`` on."""
        self.rows = rows
        self.at = at

    def __len__(self) -> int:
        return len(self.rows.bounds) - 1

    def value(self, row: int) -> int:
        """The number at ``row``, 0 ≤ row < len."""
        number: int = _NUMBER.unpack_from(self.rows.octets, self.rows.bounds[row] + self.at)[0]
        return number

    def values(self) -> list[int]:
        """All values as integers."""
        return array("q", self.alone()).tolist()

    def alone(self) -> bytes:
        """All values behind each other, as 64-bit native integers."""
        return numbers(self.rows, self.at)


class PackedMaps(Packed[dict[str, str]]):
    """Maps of texts: map ``k`` holds the pairs ``bounds[k]`` … ``bounds[k + 1] - 1``.

    ``keys`` and ``items`` have a row for each pair; all are UTF-8, and no map has a key twice.
    """

    __slots__ = ("bounds", "items", "keys")

    def __init__(self, bounds: array[int], keys: Rows, items: Rows) -> None:
        """``bounds`` are signed 32-bit integers from 0 on, one more than maps."""
        self.bounds = bounds
        self.keys = keys
        self.items = items

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def value(self, row: int) -> dict[str, str]:
        """The map at ``row``, 0 ≤ row < len."""
        pairs = range(self.bounds[row], self.bounds[row + 1])
        return {self.keys.text(pair): self.items.text(pair) for pair in pairs}


def joined(parts: Sequence[Rows]) -> Rows:
    """All rows of ``parts``, in one buffer which holds little else.

    A single part stays as it is, unless it would keep more octets of others in memory than its own.
    """
    if len(parts) == 1 and parts[0].fill_half:
        return parts[0]
    bounds = array("i", [0])
    for part in parts:
        place = bounds.pop()  # the part's first bound is the last one of the part before
        bounds.frombytes(shift(part.bounds, place - part.bounds[0]))
    octets = b"".join([part.octets[part.bounds[0] : part.bounds[-1]] for part in parts])
    return Rows(octets, bounds)


def kept_packed(values: object) -> bool:
    """Whether a column is packed and long enough to be worth it: it is not put to others then."""
    return isinstance(values, Packed) and len(values) >= PACKED_MIN


def listed(values: Sequence[V]) -> list[V]:
    """A column as a list which may be added to: ``values`` itself if it is one."""
    return values if isinstance(values, list) else list(values)


__all__ = [
    "PACKED_MIN",
    "Packed",
    "PackedMaps",
    "PackedNumbers",
    "PackedOctets",
    "Rows",
    "joined",
    "kept_packed",
    "listed",
]
