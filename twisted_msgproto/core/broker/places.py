"""A backlog is an ordered set of places, in 12 bytes each.

Places ascend, and nearly all come at the end and leave at the front.  So they are kept in chunks of
arrays: the distance from the chunk's base, the weight, and the second of arrival.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

CHUNK: Final = 4096

DISTANCE_MAX: Final = 2**32 - 1
"""Distances from the base, weights and seconds are unsigned 32-bit integers."""


class Row(NamedTuple):
    """One place: its weight in bytes, and the second when its letter arrived."""

    place: int
    weight: int
    second: int


class Rows(NamedTuple):
    """The same columns of many places, in order."""

    places: list[int]
    weights: list[int]
    seconds: list[int]


class _Chunk:
    """Neighbouring places; those before ``head`` have left."""

    __slots__ = ("base", "distances", "head", "seconds", "weights")

    def __init__(self, base: int) -> None:
        self.base = base
        self.head = 0
        self.distances = array("I")
        self.weights = array("I")
        self.seconds = array("I")

    def __len__(self) -> int:
        return len(self.distances) - self.head

    def insert(self, at: int, row: Row) -> None:
        self.distances.insert(at, row.place - self.base)
        self.weights.insert(at, row.weight)
        self.seconds.insert(at, row.second)

    def row(self, at: int) -> Row:
        return Row(self.base + self.distances[at], self.weights[at], self.seconds[at])

    def cut(self, at: int) -> _Chunk:
        upper = _Chunk(self.base + self.distances[at])
        shift = self.distances[at]
        upper.distances.extend([distance - shift for distance in self.distances[at:]])
        upper.weights = self.weights[at:]
        upper.seconds = self.seconds[at:]
        del self.distances[at:], self.weights[at:], self.seconds[at:]
        return upper


_base = attrgetter("base")


class Places:
    """Places in ascending order, each with its weight and its second of arrival.

    What leaves from the front and what comes at the end costs no more for a longer backlog.
    ``count`` is how many there are; to ask for it is cheaper than for the length.
    """

    __slots__ = ("_chunks", "count")

    def __init__(self) -> None:
        self._chunks: list[_Chunk] = []  # none of them is empty
        self.count = 0

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Row]:
        for chunk in self._chunks:
            for at in range(chunk.head, len(chunk.distances)):
                yield chunk.row(at)

    @property
    def first(self) -> Row | None:
        return self._chunks[0].row(self._chunks[0].head) if self._chunks else None

    @property
    def last(self) -> int:
        """Return the highest place; -1 if there is none."""
        if not self._chunks:
            return -1
        chunk = self._chunks[-1]
        return chunk.base + chunk.distances[-1]

    def has(self, place: int) -> bool:
        index = bisect_right(self._chunks, place, key=_base) - 1
        if index < 0:
            return False
        chunk = self._chunks[index]
        at = bisect_left(chunk.distances, place - chunk.base, chunk.head)
        return at < len(chunk.distances) and chunk.distances[at] == place - chunk.base

    def extend(self, places: Sequence[int], weights: Sequence[int], seconds: Sequence[int]) -> None:
        """Add rows; ``places`` ascend, and mostly they are above all that are here."""
        if not places:
            return
        if places[0] <= self.last:
            for row in map(Row, places, weights, seconds):
                self.insert(row)
            return
        chunk = self._chunks[-1] if self._chunks else None
        if (
            chunk is None
            or len(chunk.distances) >= CHUNK
            or len(places) > CHUNK
            or places[-1] - chunk.base > DISTANCE_MAX
        ):
            if len(places) > CHUNK or places[-1] - places[0] > DISTANCE_MAX:
                half = len(places) // 2 if len(places) <= 2 * CHUNK else CHUNK
                for part in (slice(half), slice(half, None)):
                    self.extend(places[part], weights[part], seconds[part])
                return
            chunk = _Chunk(places[0])
            self._chunks.append(chunk)
        base = chunk.base
        chunk.distances.extend([place - base for place in places])
        chunk.weights.extend(weights)
        chunk.seconds.extend(seconds)
        self.count += len(places)

    def insert(self, row: Row) -> None:
        chunks = self._chunks
        index = bisect_right(chunks, row.place, key=_base) - 1
        if index < 0:
            # Others that came back may follow, mostly lower ones, so the base is far below.
            chunks.insert(0, _Chunk(max(row.place - DISTANCE_MAX // 2, 0)))
            index = 0
        chunk = chunks[index]
        if row.place - chunk.base > DISTANCE_MAX:
            index += 1
            chunk = _Chunk(row.place)
            chunks.insert(index, chunk)
        at = bisect_left(chunk.distances, row.place - chunk.base, chunk.head)
        chunk.insert(at, row)
        self.count += 1
        if len(chunk) >= 2 * CHUNK:
            chunks.insert(index + 1, chunk.cut(chunk.head + len(chunk) // 2))

    def take(self, count: int) -> Rows:
        rows = Rows([], [], [])
        chunks = self._chunks
        while count > 0 and chunks:
            chunk = chunks[0]
            start, end = chunk.head, min(chunk.head + count, len(chunk.distances))
            self._copy(chunk, start, end, rows)
            chunk.head = end
            count -= end - start
            self.count -= end - start
            if end == len(chunk.distances):
                del chunks[0]
        return rows

    def skip(self, count: int) -> None:
        chunks = self._chunks
        while count > 0 and chunks:
            chunk = chunks[0]
            left = min(count, len(chunk))
            chunk.head += left
            count -= left
            self.count -= left
            if not chunk:
                del chunks[0]

    def front(self, count: int) -> list[int]:
        places: list[int] = []
        for chunk in self._chunks:
            base, start = chunk.base, chunk.head
            places += [base + distance for distance in chunk.distances[start : start + count]]
            count -= len(chunk)
            if count <= 0:
                break
        return places

    def head(self, count: int) -> Rows:
        rows = Rows([], [], [])
        for chunk in self._chunks:
            end = min(chunk.head + count, len(chunk.distances))
            self._copy(chunk, chunk.head, end, rows)
            count -= end - chunk.head
            if count <= 0:
                break
        return rows

    @staticmethod
    def _copy(chunk: _Chunk, start: int, end: int, rows: Rows) -> None:
        base = chunk.base
        rows.places.extend([base + distance for distance in chunk.distances[start:end]])
        rows.weights.extend(chunk.weights[start:end])
        rows.seconds.extend(chunk.seconds[start:end])

    def remove(self, place: int) -> Row | None:
        index = bisect_right(self._chunks, place, key=_base) - 1
        if index < 0:
            return None
        chunk = self._chunks[index]
        at = bisect_left(chunk.distances, place - chunk.base, chunk.head)
        if at == len(chunk.distances) or chunk.distances[at] != place - chunk.base:
            return None
        row = chunk.row(at)
        del chunk.distances[at], chunk.weights[at], chunk.seconds[at]
        self.count -= 1
        if not chunk:
            del self._chunks[index]
        return row

    def prepend(self, others: Places) -> None:
        """Add all of ``others``, and empty them; most of them are below all that are here."""
        while (first := self.first) is not None and first.place < others.last:
            self.take(1)
            others.insert(first)
        if self._chunks:  # its base may be far below its first row
            self._chunks[0] = self._chunks[0].cut(self._chunks[0].head)
        self._chunks[:0] = others._chunks
        self.count += others.count
        others._chunks = []
        others.count = 0
