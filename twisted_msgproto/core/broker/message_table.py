"""Rows of small numbers, a row for each id, in arrays.

A dictionary needs more than ten times as much, and peers decide how many messages wait or were
tried.  Places ascend, and nearly all come at the end and leave at the front.  So they are kept in
chunks of arrays: the distance from the chunk's base, and a column for each number.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import ClassVar, Final

CHUNK: Final = 4096
"""A chunk that has twice as many ids is split into two of this many."""

DISTANCE_MAX: Final = 2**32 - 1
"""Distances from the base are unsigned 32-bit integers."""

SMALL: Final = "H"
"""The type code of a column of numbers up to 65,535; each takes 2 bytes beside the 4 of an id."""

LARGE: Final = "I"
"""The type code of a column of numbers up to 4,294,967,295."""


class _Chunk:
    """Neighbouring ids; those before ``head`` have left."""

    __slots__ = ("base", "columns", "distances", "head")

    def __init__(self, base: int, columns: Iterable[array[int]]) -> None:
        self.base = base
        self.head = 0
        self.distances = array("I")
        self.columns = tuple(columns)

    def __len__(self) -> int:
        return len(self.distances) - self.head

    def at(self, message_id: int) -> int:
        return bisect_left(self.distances, message_id - self.base, self.head)

    def has(self, at: int, message_id: int) -> bool:
        return at < len(self.distances) and self.distances[at] == message_id - self.base

    def row(self, at: int) -> tuple[int, ...]:
        return (self.base + self.distances[at], *[column[at] for column in self.columns])

    def part(self, start: int, end: int) -> list[list[int]]:
        base = self.base
        message_ids = [base + distance for distance in self.distances[start:end]]
        return [message_ids, *[column[start:end].tolist() for column in self.columns]]

    def cut(self, at: int) -> _Chunk:
        shift = self.distances[at]
        upper = _Chunk(self.base + shift, [column[at:] for column in self.columns])
        upper.distances.extend([distance - shift for distance in self.distances[at:]])
        del self.distances[at:]
        for column in self.columns:
            del column[at:]
        return upper

    def remove(self, start: int, end: int) -> None:
        del self.distances[start:end]
        for column in self.columns:
            del column[start:end]


_base = attrgetter("base")


class MessageTable:
    """Places in ascending order, each with one number for each column.

    What leaves from the front and what comes at the end costs no more where there are more of
    them.  Many rows are a list of columns: their ids, and then the numbers of each.
    """

    __slots__ = ("_chunks", "_codes", "count")

    def __init__(self, codes: str) -> None:
        """``codes`` has the type code of each column, :data:`SMALL` or :data:`LARGE`."""
        self._codes = codes
        self._chunks: list[_Chunk] = []  # none of them is empty
        self.count: int = 0  # cheaper to ask for than the length

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        for columns in self.columns():
            yield from zip(*columns, strict=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MessageTable) and list(self) == list(other)

    __hash__: ClassVar[None] = None  # type: ignore[assignment]

    def columns(self, lo: int = 0, hi: int = 2**64) -> Iterator[list[list[int]]]:
        """Yield rows of lo ≤ id < hi, thousands at a time; nothing may change meanwhile."""
        chunks = self._chunks
        for index in range(max(bisect_right(chunks, lo, key=_base) - 1, 0), len(chunks)):
            chunk = chunks[index]
            if chunk.base >= hi:
                return
            start, end = chunk.at(lo), chunk.at(hi)
            if start < end:
                yield chunk.part(start, end)

    @property
    def first(self) -> tuple[int, ...] | None:
        return self._chunks[0].row(self._chunks[0].head) if self._chunks else None

    @property
    def last(self) -> int:
        """Return the highest id; -1 if there is none."""
        if not self._chunks:
            return -1
        chunk = self._chunks[-1]
        return chunk.base + chunk.distances[-1]

    @property
    def largest(self) -> int:
        """Return the largest number of the first column; 0 if there is none."""
        return max((max(chunk.columns[0][chunk.head :]) for chunk in self._chunks), default=0)

    def get(self, message_id: int) -> tuple[int, ...] | None:
        index = bisect_right(self._chunks, message_id, key=_base) - 1
        if index < 0:
            return None
        chunk = self._chunks[index]
        at = chunk.at(message_id)
        return chunk.row(at) if chunk.has(at, message_id) else None

    def number(self, message_id: int) -> int:
        """Return the number of the only column; 0 for an id that is not here."""
        row = self.get(message_id)
        return row[1] if row else 0

    def head(self, count: int) -> list[list[int]]:
        rows: list[list[int]] = [[] for _ in range(1 + len(self._codes))]
        for chunk in self._chunks:
            if count <= 0:
                break
            for column, part in zip(rows, chunk.part(chunk.head, chunk.head + count), strict=True):
                column += part
            count -= len(chunk)
        return rows

    # ── changes ─────────────────────────────────────────────────────────────────────────────────

    def insert(self, message_id: int, *numbers: int) -> None:
        chunks = self._chunks
        index = bisect_right(chunks, message_id, key=_base) - 1
        if index < 0:
            # Others may follow, mostly lower ones, so the base is far below.
            index = 0
            self._begin(0, max(message_id - DISTANCE_MAX // 2, 0))
        elif message_id - chunks[index].base > DISTANCE_MAX:
            index += 1
            self._begin(index, message_id)
        chunk = chunks[index]
        at = chunk.at(message_id)
        if chunk.has(at, message_id):
            for column, number in zip(chunk.columns, numbers, strict=True):
                column[at] = number
            return
        chunk.distances.insert(at, message_id - chunk.base)
        for column, number in zip(chunk.columns, numbers, strict=True):
            column.insert(at, number)
        self.count += 1
        if len(chunk) >= 2 * CHUNK:
            chunks.insert(index + 1, chunk.cut(chunk.head + len(chunk) // 2))

    def extend(self, message_ids: Sequence[int], *columns: Sequence[int]) -> None:
        """Add many rows; ``message_ids`` ascend, and mostly they are above all that are here."""
        if len(message_ids) > CHUNK:
            for start in range(0, len(message_ids), CHUNK):
                end = start + CHUNK
                self.extend(message_ids[start:end], *[column[start:end] for column in columns])
            return
        if not message_ids:
            return
        first, last = message_ids[0], message_ids[-1]
        chunk = self._chunks[-1] if self._chunks else None
        if last - first > DISTANCE_MAX or (
            chunk is not None and first - chunk.base <= chunk.distances[-1]
        ):
            for row in zip(message_ids, *columns, strict=True):
                self.insert(*row)
            return
        if (
            chunk is None
            or last - chunk.base > DISTANCE_MAX
            or len(chunk.distances) + len(message_ids) >= 2 * CHUNK
        ):
            chunk = self._begin(len(self._chunks), first)
        base = chunk.base
        chunk.distances.extend([message_id - base for message_id in message_ids])
        for at, column in enumerate(chunk.columns):
            column.extend(columns[at])
        self.count += len(message_ids)

    def _begin(self, index: int, base: int) -> _Chunk:
        chunk = _Chunk(base, map(array, self._codes))
        self._chunks.insert(index, chunk)
        return chunk

    def merge(self, other: MessageTable) -> None:
        """Let all ids of ``other`` have the numbers that they have there."""
        for columns in other.columns():
            self.extend(*columns)

    def prepend(self, others: MessageTable) -> None:
        """Add all of ``others``, and empty them; most of them are below all that are here."""
        while (first := self.first) is not None and first[0] < others.last:
            self.skip(1)
            others.insert(*first)
        if self._chunks:  # its base may be far below its first row
            self._chunks[0] = self._chunks[0].cut(self._chunks[0].head)
        self._chunks[:0] = others._chunks
        self.count += others.count
        others._chunks = []
        others.count = 0

    def take(self, count: int) -> list[list[int]]:
        rows = self.head(count)
        self.skip(count)
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

    def pop(self, message_id: int) -> tuple[int, ...] | None:
        row = self.get(message_id)
        if row is not None:
            self.remove(message_id, message_id + 1)
        return row

    def remove(self, lo: int, hi: int) -> None:
        chunks = self._chunks
        index = max(bisect_right(chunks, lo, key=_base) - 1, 0)
        while index < len(chunks) and chunks[index].base < hi:
            chunk = chunks[index]
            start, end = chunk.at(lo), chunk.at(hi)
            chunk.remove(start, end)
            self.count -= end - start
            if chunk:
                index += 1
            else:
                del chunks[index]

    def discard(self, message_ids: Sequence[int]) -> None:
        """The ids come in any order."""
        if self.count < len(message_ids):  # mostly one, again and again, beside many others
            here = [message_id for columns in self.columns() for message_id in columns[0]]
            message_ids = [*set(message_ids).intersection(here)]
        for message_id in message_ids:
            self.remove(message_id, message_id + 1)
