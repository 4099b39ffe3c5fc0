"""Compute what ranges of offsets cover together, cover twice and leave out.

Files of a table may hold rows of many gateways in any order, and a table has billions of rows. So
offsets are kept as ranges, in Arrow arrays of 16 octets a range, and files that are read in the
order of landing leave one range a gateway.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from ..queue.damage import Range, merged

SETTLE_RANGES = 4096

Ranges = tuple[pa.Array, pa.Array]

NONE: Ranges = (pa.array([], pa.int64()), pa.array([], pa.int64()))


def united(lo: pa.Array, hi: pa.Array) -> tuple[Ranges, Ranges]:
    """Return what ranges cover together, and what at least two of them cover; both in order,
    disjoint.
    """
    once, twice = _swept(lo, hi)
    return once, _swept(*twice)[0]


def _swept(lo: pa.Array, hi: pa.Array) -> tuple[Ranges, Ranges]:
    """Return the union of ranges, and where each begins below the end of those before it."""
    if not len(lo):
        return NONE, NONE
    order = pc.sort_indices(lo)
    lo, hi = lo.take(order), hi.take(order)
    top = pc.cumulative_max(hi)
    before = pa.concat_arrays([lo[:1], top[:-1]])
    begins = pc.greater(lo, before)
    first, last = pa.array([True]), pa.array([True])
    starts = pa.concat_arrays([first, begins[1:]])
    ends = pa.concat_arrays([begins[1:], last])
    again = pc.less(lo, before)
    twice = lo.filter(again), pc.min_element_wise(hi, before).filter(again)
    return (lo.filter(starts), top.filter(ends)), twice


@dataclass(slots=True)
class Coverage:
    """Offsets of one gateway that were seen, and those that were seen more than once."""

    rows: int = 0
    _once: Ranges = NONE
    _twice: Ranges = NONE
    _waiting: list[Ranges] = field(default_factory=list)
    _waits: int = 0

    def add(self, lo: pa.Array, hi: pa.Array) -> None:
        """Add rows; a row whose offset was seen before is there twice."""
        self._waiting.append((lo, hi))
        self._waits += len(lo)
        self.rows += (pc.sum(hi).as_py() or 0) - (pc.sum(lo).as_py() or 0)
        # Waiting as long as what is known keeps the work for each range constant.
        if self._waits >= max(SETTLE_RANGES, len(self._once[0])):
            self._settle()

    def ranges(self) -> list[Range]:
        self._settle()
        return _pairs(self._once)

    def twice(self) -> list[Range]:
        """Return what was seen more than once, in order."""
        self._settle()
        return _pairs(self._twice)

    def _settle(self) -> None:
        if self._waiting:
            self._once, again = united(*_joined([self._once, *self._waiting]))
            if len(again[0]):
                self._twice = united(*_joined([self._twice, again]))[0]
            self._waiting.clear()
            self._waits = 0


def _joined(parts: Sequence[Ranges]) -> Ranges:
    return pa.concat_arrays([lo for lo, _ in parts]), pa.concat_arrays([hi for _, hi in parts])


def _pairs(ranges: Ranges) -> list[Range]:
    return list(zip(ranges[0].to_pylist(), ranges[1].to_pylist(), strict=True))


def without(ranges: Iterable[Range], others: Iterable[Range]) -> list[Range]:
    """Return what of ``ranges`` none of ``others`` covers; both in any order."""
    return list(_without(merged(ranges), merged(others)))


def _without(ranges: list[Range], others: list[Range]) -> Iterator[Range]:
    place = 0
    for lo, hi in ranges:
        while place < len(others) and others[place][1] <= lo:
            place += 1
        at = place
        while at < len(others) and others[at][0] < hi:
            if lo < others[at][0]:
                yield lo, others[at][0]
            lo = max(lo, others[at][1])
            at += 1
        if lo < hi:
            yield lo, hi


def size(ranges: Iterable[Range]) -> int:
    """Return how many offsets there are in disjoint ranges."""
    return sum(hi - lo for lo, hi in ranges)
