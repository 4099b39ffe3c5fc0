"""Marks say what a broker is done with, how often it tried, and where messages were moved.

They are kept by segment of the log, a bit for each message: a million messages that were
acknowledged here and there are 125 KB.  In a file, few ranges stand as ranges (see
:mod:`.settled`).
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from twisted_msgproto.core.broker.message_table import LARGE, SMALL, MessageTable
from twisted_msgproto.core.broker.terms import TRIES_COUNTED, QueueName

from ..arrays import compute
from ..damage import Range

OPEN_END = 2**63 - 1  # a segment ends here while more messages may come into it


def ranges_of(message_ids: list[int]) -> list[Range]:
    """Return ids as few ranges lo ≤ id < hi, in order; each id may come repeatedly."""
    if not message_ids:
        return []
    lo, hi = message_ids[0], message_ids[-1] + 1
    if hi - lo == len(message_ids) and message_ids == list(range(lo, hi)):
        return [(lo, hi)]
    found: list[Range] = []
    ordered = sorted(message_ids)
    lo = hi = ordered[0]
    for message_id in ordered:
        if message_id > hi:
            found.append((lo, hi))
            lo = hi = message_id
        if message_id == hi:
            hi += 1
    found.append((lo, hi))
    return found


class Segment:
    __slots__ = ("_bits", "done", "end", "first", "outstanding")

    def __init__(self, first: int, end: int = OPEN_END) -> None:
        self.first: int = first  # offset of its first message
        self.end: int = end  # behind its last one; OPEN_END while more may come
        self.outstanding: int = 0  # so many of its messages are in queues
        self.done: bool = False  # nothing of it is in a queue, and nothing can come into it
        self._bits = bytearray()

    def set(self, lo: int, hi: int) -> int:
        """Mark lo ≤ offset < hi as done; return how many were not."""
        if self.done:
            return 0
        lo, hi = lo - self.first, hi - self.first
        start, end = lo >> 3, (hi + 7) >> 3
        if len(self._bits) < end:
            self._bits.extend(bytes(end - len(self._bits)))
        mask = ((1 << (hi - lo)) - 1) << (lo & 7)
        before = int.from_bytes(self._bits[start:end], "little")
        after = before | mask
        if after == before:
            return 0
        self._bits[start:end] = after.to_bytes(end - start, "little")
        return after.bit_count() - before.bit_count()

    def finish(self) -> None:
        """Nothing of this segment will be in a queue any more: no bit is needed for that."""
        self.done = True
        self.outstanding = 0
        self._bits = bytearray()

    def bits(self) -> bytes:
        return bytes(self._bits)

    def settled(self, lo: int, hi: int) -> int:
        if self.done:
            return hi - lo
        return self._number(lo, hi).bit_count()

    def _number(self, lo: int, hi: int) -> int:
        lo, hi = lo - self.first, hi - self.first
        number = int.from_bytes(self._bits[lo >> 3 : (hi + 7) >> 3], "little") >> (lo & 7)
        return number & ((1 << (hi - lo)) - 1)

    def unsettled(self, lo: int, hi: int) -> Sequence[int]:
        """Return the rows r, 0 ≤ r < hi - lo, whose message lo + r is not done, in order."""
        if self.done:
            return ()
        number = self._number(lo, hi)
        if not number:
            return range(hi - lo)
        bits = f"{number:0{hi - lo}b}"[::-1]
        return [row for row, bit in enumerate(bits) if bit == "0"]

    def ranges(self) -> list[Range]:
        if self.done:
            return [(self.first, self.end)]
        return bit_ranges(self._bits, self.first)

    def scattered(self) -> bool:
        number = int.from_bytes(self._bits, "little")
        return (number ^ number << 1).bit_count() * 8 > len(self._bits)


def bit_ranges(bits: bytes | bytearray, first: int) -> list[Range]:
    """Return the offsets whose bits are set; bit 0 is that of ``first``."""
    number = int.from_bytes(bits, "little")
    edges = (number ^ number << 1).to_bytes(len(bits) + 1, "little")
    packed = pa.Array.from_buffers(pa.bool_(), 8 * len(edges), [None, pa.py_buffer(edges)])
    at = iter([first + bit for bit in compute().indices_nonzero(packed).to_pylist()])
    return list(zip(at, at, strict=True))


class Moved:
    """Messages and the queues they were moved to, in 8 bytes each."""

    def __init__(self) -> None:
        self._queue_numbers = MessageTable(LARGE)
        self._names: dict[int, QueueName] = {}
        self._known: dict[QueueName, int] = {}  # the number of each name; none is 0
        self._latest = 0

    def __bool__(self) -> bool:
        return self._queue_numbers.count > 0

    def __iter__(self) -> Iterator[tuple[QueueName, list[int]]]:
        for message_ids, numbers in self._queue_numbers.columns():
            found: defaultdict[int, list[int]] = defaultdict(list)
            for message_id, number in zip(message_ids, numbers, strict=True):
                found[number].append(message_id)
            for number, some in found.items():
                yield self._names[number], some

    def get(self, message_id: int) -> QueueName | None:
        number = self._queue_numbers.number(message_id)
        return self._names[number] if number else None

    def note(self, message_ids: Iterable[int], name: QueueName) -> None:
        number = self._known.get(name)
        if number is None:
            self._latest += 1
            number = self._known[name] = self._latest
            self._names[number] = name
        ordered = sorted(set(message_ids))
        self._queue_numbers.extend(ordered, [number] * len(ordered))

    def merge(self, other: Moved) -> None:
        for name, message_ids in other:
            self.note(message_ids, name)

    @property
    def last(self) -> int:
        return self._queue_numbers.last

    def remove(self, lo: int, hi: int) -> None:
        self._queue_numbers.remove(lo, hi)

    def queues(self) -> set[QueueName]:
        """Return the queues with messages that were moved there; other names are forgotten."""
        used: set[int] = set()
        for _, numbers in self._queue_numbers.columns():
            used.update(numbers)
        self._names = {number: self._names[number] for number in used}
        self._known = {name: number for number, name in self._names.items()}
        return set(self._known)


class Marks:
    def __init__(self) -> None:
        self._segments: dict[int, Segment] = {}
        self._firsts: list[int] = []
        self.limit = OPEN_END  # what is told of offsets from here on is passed over
        self._beyond = False
        self.tries: MessageTable = MessageTable(SMALL)  # of messages in queues that had one
        self.moved: Moved = Moved()  # messages in another queue than the one they came for

    def __iter__(self) -> Iterator[Segment]:
        return iter([self._segments[first] for first in self._firsts])

    def begun(self, first: int, end: int = OPEN_END) -> Segment:
        """Return the segment that begins at ``first``; a new one ends those before it."""
        found = self._segments.get(first)
        if found is None:
            index = bisect_right(self._firsts, first)
            self._firsts.insert(index, first)
            if index < len(self._firsts) - 1:
                end = min(end, self._firsts[index + 1])
            found = self._segments[first] = Segment(first, end)
            if index:
                before = self._segments[self._firsts[index - 1]]
                before.end = min(before.end, first)
        return found

    def of(self, message_id: int) -> Segment | None:
        index = bisect_right(self._firsts, message_id) - 1
        found = self._segments[self._firsts[index]] if index >= 0 else None
        return found if found is not None and message_id < found.end else None

    def _parts(self, lo: int, hi: int) -> Iterator[tuple[Segment, int, int]]:
        for at in range(max(bisect_right(self._firsts, lo) - 1, 0), len(self._firsts)):
            segment = self._segments[self._firsts[at]]
            if segment.first >= hi:
                return
            if segment.end > lo:
                yield segment, max(lo, segment.first), min(hi, segment.end)

    def settle(self, ranges: Iterable[Range]) -> set[int]:
        """Mark ranges as done; return the first offsets of the segments where that was new."""
        changed = set()
        for lo, hi in ranges:
            if hi > self.limit:
                self._beyond, hi = True, self.limit
                if lo >= hi:
                    continue
            for segment, part_lo, part_hi in self._parts(lo, hi):
                new = segment.set(part_lo, part_hi)
                if new:
                    segment.outstanding = max(segment.outstanding - new, 0)
                    changed.add(segment.first)
            if self.tries.count or self.moved:
                self._forget(lo, hi)
        return changed

    def note_tries(self, message_id: int, tries: int) -> None:
        if tries:
            self.tries.insert(message_id, min(tries, TRIES_COUNTED))
        else:
            self.tries.remove(message_id, message_id + 1)

    def _forget(self, lo: int, hi: int) -> None:
        self.tries.remove(lo, hi)
        self.moved.remove(lo, hi)

    def unsettled(self, lo: int, hi: int) -> Sequence[int]:
        parts = list(self._parts(lo, hi))
        if len(parts) == 1 and parts[0][1:] == (lo, hi):
            return parts[0][0].unsettled(lo, hi)
        rows: list[int] = []
        for segment, part_lo, part_hi in parts:
            rows += [part_lo - lo + row for row in segment.unsettled(part_lo, part_hi)]
        return rows

    def is_settled(self, message_id: int) -> bool:
        segment = self.of(message_id)
        return segment is not None and segment.settled(message_id, message_id + 1) == 1

    def live(self, message_ids: array[int]) -> int:
        return sum(not self.is_settled(message_id) for message_id in message_ids)

    def drop(self, first: int) -> None:
        segment = self._segments.pop(first)
        self._firsts.remove(first)
        self._forget(first, segment.end)

    def drop_from(self, end: int) -> bool:
        """Forget marks from ``end`` on, which other messages get; return if there were any."""
        dropped = self._beyond or self.tries.last >= end or self.moved.last >= end
        self._forget(end, 2**64)
        return dropped
