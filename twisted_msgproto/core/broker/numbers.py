"""Numbers of many places are kept in 6 bytes each: how often letters were tried.

A dictionary needs more than ten times as much, and peers decide how many letters are tried.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from .places import DISTANCE_MAX

CHUNK: Final = 4096
"""A chunk that has twice as many places is split into two of this many."""

SMALL: Final = "H"
"""Numbers up to 65,535 have this type code; each place needs 6 bytes then."""

LARGE: Final = "I"
"""Numbers up to 4,294,967,295 have this type code; each place needs 8 bytes then."""


class Numbers:
    """A number for each place; a place that is not here has the number 0.

    Places are kept in order, in chunks of arrays: the distance from the chunk's base, and the
    number.

    Attributes:
        count: how many places are here; to ask for it is cheaper than for the length.
        highest: the largest number that can be kept; a larger one is kept as this one.
    """

    __slots__ = ("_bases", "_chunks", "_typecode", "count", "highest")

    def __init__(self, typecode: str = SMALL) -> None:
        self._typecode = typecode
        self._bases: list[int] = []
        self._chunks: list[tuple[array[int], array[int]]] = []  # none of them is empty
        self.count = 0
        self.highest = 256 ** array(typecode).itemsize - 1

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for places, numbers in self.columns():
            yield from zip(places, numbers, strict=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Numbers) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def columns(
        self, lo: int = 0, hi: int = 2**64
    ) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
        """Yield the places lo ≤ place < hi and their numbers, in order, some thousands at a time;
        nothing may change meanwhile.
        """
        for index in range(max(bisect_right(self._bases, lo) - 1, 0), len(self._bases)):
            base, (distances, numbers) = self._bases[index], self._chunks[index]
            if base >= hi:
                return
            start, end = bisect_left(distances, lo - base), bisect_left(distances, hi - base)
            if start < end:
                yield [base + distance for distance in distances[start:end]], numbers[start:end]

    def get(self, place: int) -> int:
        index = bisect_right(self._bases, place) - 1
        if index < 0:
            return 0
        (distances, numbers), distance = self._chunks[index], place - self._bases[index]
        at = bisect_left(distances, distance)
        return numbers[at] if at < len(distances) and distances[at] == distance else 0

    @property
    def largest(self) -> int:
        return max((max(numbers) for _, numbers in self._chunks), default=0)

    # ── changes ─────────────────────────────────────────────────────────────────────────────────

    def set(self, place: int, number: int) -> None:
        number = min(number, self.highest)
        index = bisect_right(self._bases, place) - 1
        if index < 0:
            # Others may follow, mostly lower ones, so the base is far below.
            index = 0
            self._begin(0, max(place - DISTANCE_MAX // 2, 0))
        elif place - self._bases[index] > DISTANCE_MAX:
            index += 1
            self._begin(index, place)
        (distances, numbers), distance = self._chunks[index], place - self._bases[index]
        at = bisect_left(distances, distance)
        if at < len(distances) and distances[at] == distance:
            numbers[at] = number
            return
        distances.insert(at, distance)
        numbers.insert(at, number)
        self.count += 1
        if len(distances) >= 2 * CHUNK:
            self._split(index)

    def update(self, pairs: Iterable[tuple[int, int]]) -> None:
        for place, number in pairs:
            self.set(place, number)

    def merge(self, other: Numbers) -> None:
        """Let all places of ``other`` have the numbers that they have there."""
        for places, numbers in other.columns():
            self.extend(places, numbers)

    def extend(self, places: Sequence[int], numbers: Sequence[int]) -> None:
        """Do the same for many places at once; they ascend, and mostly follow what is here."""
        for start in range(0, len(places), CHUNK):
            part, some = places[start : start + CHUNK], numbers[start : start + CHUNK]
            if (
                part[0] <= self.last
                or part[-1] - part[0] > DISTANCE_MAX
                or max(some) > self.highest
            ):
                self.update(zip(part, some, strict=True))
                continue
            if (
                not self._bases
                or part[-1] - self._bases[-1] > DISTANCE_MAX
                or len(self._chunks[-1][0]) + len(part) >= 2 * CHUNK
            ):
                self._begin(len(self._bases), part[0])
            base, (distances, column) = self._bases[-1], self._chunks[-1]
            distances.extend([place - base for place in part])
            column.extend(some)
            self.count += len(part)

    @property
    def last(self) -> int:
        """Return the highest place; -1 if there is none."""
        return self._bases[-1] + self._chunks[-1][0][-1] if self._bases else -1

    def _begin(self, index: int, base: int) -> None:
        self._bases.insert(index, base)
        self._chunks.insert(index, (array("I"), array(self._typecode)))

    def _split(self, index: int) -> None:
        distances, numbers = self._chunks[index]
        half = len(distances) // 2
        shift = distances[half]
        upper = array("I", [distance - shift for distance in distances[half:]])
        self._bases.insert(index + 1, self._bases[index] + shift)
        self._chunks.insert(index + 1, (upper, numbers[half:]))
        del distances[half:], numbers[half:]

    def pop(self, place: int) -> int:
        number = self.get(place)
        self.remove(place, place + 1)
        return number

    def remove(self, lo: int, hi: int) -> None:
        index = max(bisect_right(self._bases, lo) - 1, 0)
        while index < len(self._bases) and self._bases[index] < hi:
            base, (distances, numbers) = self._bases[index], self._chunks[index]
            start, end = bisect_left(distances, lo - base), bisect_left(distances, hi - base)
            del distances[start:end], numbers[start:end]
            self.count -= end - start
            if distances:
                index += 1
            else:
                del self._bases[index], self._chunks[index]

    def discard(self, places: Sequence[int]) -> None:
        """Remove those of some places that are here; they come in any order."""
        if self.count < len(places):  # mostly one that comes again and again, beside many others
            places = [*set(places).intersection([place for place, _ in self])]
        for place in places:
            self.remove(place, place + 1)
