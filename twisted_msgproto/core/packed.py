"""Columns which stand in one buffer as they came from the wire.

A peer which sends in bulk sends one frame behind another.  Where each begins is all that has to be
found out at once; what stands in it is cut out when somebody asks, and the queue copies whole
columns without asking.  So a message in bulk is no Python object at all on its way to the disk.

Both kinds of column are sequences like any list, and equal to a list of the same values.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, TypeVar, overload

_NUMBER = struct.Struct(">I")

V = TypeVar("V")


@dataclass(slots=True, frozen=True)
class Rows:
    """Rows which touch each other in a buffer.

    Row ``k`` stands in ``octets[bounds[k]:bounds[k + 1]]``; there is one bound more than rows, and
    they are signed 32-bit integers (``array("i")``), which never fall.
    """

    octets: bytes
    bounds: array[int]

    def __len__(self) -> int:
        return len(self.bounds) - 1


class Packed(Sequence[V], Generic[V]):
    """A column of values which stand in :class:`Rows`; read-only."""

    __slots__ = ("rows",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def values(self) -> list[V]:
        """All values, cut out."""
        raise NotImplementedError

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

    __slots__ = ("skip",)

    def __init__(self, rows: Rows, skip: int = 0) -> None:
        """No row is shorter than ``skip`` octets."""
        super().__init__(rows)
        self.skip = skip

    @overload
    def __getitem__(self, place: int) -> bytes: ...
    @overload
    def __getitem__(self, place: slice) -> list[bytes]: ...
    def __getitem__(self, place: int | slice) -> bytes | list[bytes]:
        """The value at ``place``, a list for a slice; IndexError beyond."""
        if isinstance(place, slice):
            return self.values()[place]
        row = range(len(self))[place]
        octets, bounds = self.rows.octets, self.rows.bounds
        return octets[bounds[row] + self.skip : bounds[row + 1]]

    def values(self) -> list[bytes]:
        """All values, cut out."""
        octets, skip = self.rows.octets, self.skip
        return [octets[start + skip : end] for start, end in pairwise(self.rows.bounds)]


class PackedNumbers(Packed[int]):
    """A 32-bit unsigned number in network order, ``at`` octets behind each row's start."""

    __slots__ = ("at",)

    def __init__(self, rows: Rows, at: int = 0) -> None:
        """Every row has four octets from ``at`` on."""
        super().__init__(rows)
        self.at = at

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> list[int]: ...
    def __getitem__(self, place: int | slice) -> int | list[int]:
        """The value at ``place``, a list for a slice; IndexError beyond."""
        if isinstance(place, slice):
            return self.values()[place]
        row = range(len(self))[place]
        number: int = _NUMBER.unpack_from(self.rows.octets, self.rows.bounds[row] + self.at)[0]
        return number

    def values(self) -> list[int]:
        """All values as integers."""
        octets, at, unpack = self.rows.octets, self.at, _NUMBER.unpack_from
        return [unpack(octets, start + at)[0] for start in self.rows.bounds[:-1]]


def listed(values: Sequence[V]) -> list[V]:
    """A column as a list which may be added to: ``values`` itself if it is one."""
    return values if isinstance(values, list) else list(values)


__all__ = ["Packed", "PackedNumbers", "PackedOctets", "Rows", "listed"]
