"""Find again in the log what waits in a broker's queues, and in what order.

Most frames are for one queue from their first message to their last, and nothing of them is
done: such a frame is added as a whole, and no message of it becomes a Python object.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from twisted_msgproto.core.broker.envelopes import head_of, opened
from twisted_msgproto.core.broker.terms import LETTER_OCTETS, QueueName

from ..format import SEGMENT_HEADER_OCTETS, Record, Segment
from .frames import Frame, may_have_envelopes
from .marks import Marks
from .names import Names

SECOND = 1_000_000
"""A second has this many µs."""
WEIGHT_MAX = 2**32 - 1
HEADS_REMEMBERED_MAX = 4096
"""The queues of this many different heads of envelopes are remembered while frames are read."""


@dataclass(slots=True)
class Waiting:
    """Holds what waits in one queue, in order; the columns belong together.

    ``weights`` are octets as :func:`twisted_msgproto.core.broker.weight` counts them, ``arrived``
    are whole seconds since 1970 UTC.
    """

    places: array[int] = field(default_factory=lambda: array("q"))
    weights: array[int] = field(default_factory=lambda: array("I"))
    arrived: array[int] = field(default_factory=lambda: array("I"))
    tries: dict[int, int] = field(default_factory=dict)
    """place → number of tries, where there was one."""


Queues = dict[QueueName, Waiting]


class Scan:
    """Gathers what waits, frame by frame, in the order of places.

    Attributes:
        queues: what was found.
        nonsense: this many envelopes make no sense, and their messages are in no queue.
    """

    def __init__(self, names: Names, marks: Marks) -> None:
        self._names = names
        self._marks = marks
        self._heads: dict[bytes, QueueName | None] = {}
        self.queues: Queues = {}
        self.nonsense = 0

    def add(self, frame: Frame, places: Sequence[int] | None = None) -> int:
        """Add the waiting messages of a frame; return their number.

        ``places`` are those of its messages, if they are not its offsets.
        """
        lo, hi = frame.first, frame.first + frame.count
        of_log = places is None
        if places is None:
            places = range(lo, hi)
            rows = self._marks.unsettled(lo, hi)
        else:
            known = places
            rows = [row for row in range(hi - lo) if not self._marks.is_settled(known[row])]
        if not rows:
            return 0
        whole = of_log and len(rows) == frame.count and not frame.envelopes.null_count
        if whole and not self._marks.moved:
            name = self._of_all(frame)
            if name is not None and self._names.holds(name, lo):
                self._take_whole(name, frame)
                return frame.count
        return self._take_rows(frame, places, rows)

    def _queue(self, name: QueueName) -> Waiting:
        found = self.queues.get(name)
        if found is None:
            found = self.queues[name] = Waiting()
        return found

    def _name(self, head: bytes) -> QueueName | None:
        """Return the queue that the head of an envelope names; None if it makes no sense."""
        try:
            return self._heads[head]
        except KeyError:
            pass
        try:
            name: QueueName | None = opened(head).name
        except ValueError:
            name = None
        if len(self._heads) >= HEADS_REMEMBERED_MAX:
            self._heads.clear()
        self._heads[head] = name
        return name

    def _of_all(self, frame: Frame) -> QueueName | None:
        """Return the queue that all messages of a frame are for; None if it is not one."""
        try:
            head = head_of(frame.envelopes[0].as_py())
        except ValueError:
            return None
        if not pc.all(pc.starts_with(frame.envelopes, head)).as_py():
            return None
        return self._name(head)

    def _take_whole(self, name: QueueName, frame: Frame) -> None:
        queue = self._queue(name)
        queue.places.extend(range(frame.first, frame.first + frame.count))
        queue.weights.frombytes(_weights(frame))
        for time, count in zip(frame.times, frame.counts, strict=True):
            queue.arrived.extend(array("I", [second(time)]) * count)
        self._take_tries(queue, frame.first, frame.first + frame.count)

    def _take_tries(self, queue: Waiting, lo: int, hi: int) -> None:
        tries = self._marks.tries
        if tries:
            queue.tries.update({at: number for at, number in tries.items() if lo <= at < hi})

    def _take_rows(self, frame: Frame, places: Sequence[int], rows: Sequence[int]) -> int:
        weights = array("I")
        weights.frombytes(_weights(frame))
        times = array("I")
        for time, count in zip(frame.times, frame.counts, strict=True):
            times.extend(array("I", [second(time)]) * count)
        tries = self._marks.tries
        last: QueueName | None = None
        taken = 0
        for row, name in self.members(frame, places, rows):
            if name != last:
                last, queue = name, self._queue(name)
            place = places[row]
            queue.places.append(place)
            queue.weights.append(weights[row])
            queue.arrived.append(times[row])
            if place in tries:
                queue.tries[place] = tries[place]
            taken += 1
        return taken

    def members(
        self, frame: Frame, places: Sequence[int], rows: Sequence[int]
    ) -> Iterator[tuple[int, QueueName]]:
        """Yield those of the rows of a frame that are in a queue, each with its queue."""
        octets, bounds, given = binary(frame.envelopes)
        moved, names = self._marks.moved, self._names
        for row in rows:
            if given is not None and not given[row]:
                continue
            start, end = bounds[row], bounds[row + 1]
            length = octets[start + 2] | octets[start + 3] << 8 if end > start + 3 else 0
            name = self._name(bytes(octets[start : min(start + length, end)]))
            if name is None:
                self.nonsense += 1
                continue
            to = moved.get(places[row])
            if to is not None:
                yield row, to
            elif names.holds(name, places[row]):
                yield row, name

    def order(self) -> None:
        """Put the messages of each queue into the order of their places."""
        for queue in self.queues.values():
            places = queue.places
            if any(before > after for before, after in pairwise(places)):
                rows = sorted(range(len(places)), key=places.__getitem__)
                for column in ("places", "weights", "arrived"):
                    values = getattr(queue, column)
                    setattr(queue, column, array(values.typecode, [values[row] for row in rows]))


def second(time: int) -> int:
    """Return µs since 1970 as whole seconds that fit 32 bits without a sign."""
    return min(max(time // SECOND, 0), WEIGHT_MAX)


def _weights(frame: Frame) -> bytes:
    """Return what each message of a frame weighs, as unsigned 32-bit integers."""
    octets = pc.add(
        pc.fill_null(pc.binary_length(frame.envelopes), 0),
        pc.fill_null(pc.binary_length(frame.bodies), 0),
    )
    weights = pc.add(octets.cast(pa.int64()), LETTER_OCTETS).cast(pa.uint32())
    return bytes(weights.buffers()[1])[4 * weights.offset : 4 * (weights.offset + len(weights))]


def binary(column: pa.BinaryArray) -> tuple[memoryview, memoryview, list[bool] | None]:
    """Return the octets of a column, its bounds, and whether each value is there (None: all)."""
    _, bounds, octets = column.buffers()
    numbers = (
        memoryview(bounds).cast("B").cast("i")[column.offset : column.offset + len(column) + 1]
    )
    given = column.is_valid().to_pylist() if column.null_count else None
    return memoryview(octets if octets is not None else b"").cast("B"), numbers, given


def records(segment: Segment, marks: Marks, hi: int) -> Iterator[Record]:
    """Yield the frames of a segment below the offset ``hi`` that may hold something that waits."""
    for item in segment.walk(SEGMENT_HEADER_OCTETS, segment.first, check=False):
        if not isinstance(item, Record) or not item.count:
            continue
        if item.first >= hi:
            return
        if may_have_envelopes(segment, item) and marks.unsettled(item.first, item.end):
            yield item
