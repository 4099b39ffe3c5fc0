"""Find again in the log what waits in a broker's queues, and in what order.

Most frames are for one queue from their first message to their last, and nothing of them is
done: such a frame is added as a whole, and no message of it becomes a Python object.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from twisted_msgproto.core.broker.envelopes import opened
from twisted_msgproto.core.broker.numbers import Numbers
from twisted_msgproto.core.broker.terms import QueueName

from ..format import SEGMENT_HEADER_OCTETS, Damage, Record, Segment
from .frames import Messages, may_have_envelopes
from .marks import Marks
from .names import Names
from .small import SMALL_MESSAGES, Few, SmallFrames

HEADS_REMEMBERED_MAX = 4096


@dataclass(slots=True)
class Waiting:
    """What waits in one queue, in order; the columns belong together.

    ``weights`` are octets as :func:`twisted_msgproto.core.broker.weight` counts them, ``arrived``
    are whole seconds since 1970 UTC.
    """

    places: array[int] = field(default_factory=lambda: array("q"))
    weights: array[int] = field(default_factory=lambda: array("I"))
    arrived: array[int] = field(default_factory=lambda: array("I"))
    tries: Numbers = field(default_factory=Numbers)
    """The tries of places that have had one."""


Queues = dict[QueueName, Waiting]


class Scan:
    """What waits, gathered frame by frame in the order of places.

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

    def add(self, messages: Messages, places: Sequence[int] | None = None) -> int:
        """Add those of some messages that wait; return their number.

        ``places`` are those of the messages, if they are not their offsets.
        """
        lo, hi = messages.first, messages.first + messages.count
        if places is None:
            places = range(lo, hi)
            rows = self._marks.unsettled(lo, hi)
            if len(rows) == hi - lo and not self._marks.moved:
                head = messages.only_head()
                name = None if head is None else self._name(head)
                if name is not None and self._names.holds(name, lo):
                    self._take_whole(name, messages)
                    return hi - lo
        else:
            known = places
            rows = [row for row in range(hi - lo) if not self._marks.is_settled(known[row])]
        return self._take_rows(messages, places, rows) if rows else 0

    def _queue(self, name: QueueName) -> Waiting:
        found = self.queues.get(name)
        if found is None:
            found = self.queues[name] = Waiting()
        return found

    def _name(self, head: bytes) -> QueueName | None:
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

    def _take_whole(self, name: QueueName, messages: Messages) -> None:
        queue, lo, hi = self._queue(name), messages.first, messages.first + messages.count
        queue.places.extend(range(lo, hi))
        queue.weights.extend(messages.weights())
        queue.arrived.extend(messages.arrived())
        for tried, numbers in self._marks.tries.columns(lo, hi):
            queue.tries.extend(tried, numbers)

    def _take_rows(self, messages: Messages, places: Sequence[int], rows: Sequence[int]) -> int:
        weights, arrived, tries = messages.weights(), messages.arrived(), self._marks.tries
        taken = 0
        for name, some in self.members(messages, places, rows).items():
            queue, here = self._queue(name), [places[row] for row in some]
            queue.places.extend(here)
            queue.weights.extend([weights[row] for row in some])
            queue.arrived.extend([arrived[row] for row in some])
            if tries.count:
                pairs = [(place, number) for place in here if (number := tries.get(place))]
                queue.tries.update(pairs)
            taken += len(some)
        return taken

    def members(
        self, messages: Messages, places: Sequence[int], rows: Sequence[int]
    ) -> dict[QueueName, list[int]]:
        """Return those of the rows that are in a queue, by their queue, each in order."""
        found: dict[QueueName, list[int]] = {}
        names, moved = self._names, self._marks.moved
        for name, some in self._named(messages, rows).items():
            stay = some
            if moved:
                stay = []
                for row in some:
                    to = moved.get(places[row])
                    (stay if to is None else found.setdefault(to, [])).append(row)
            if stay and not names.holds(name, places[stay[0]]):
                stay = [row for row in stay if names.holds(name, places[row])]
            if stay:
                found.setdefault(name, []).extend(stay)
        if moved:
            for some in found.values():
                some.sort()
        return found

    def _named(self, messages: Messages, rows: Sequence[int]) -> dict[QueueName, list[int]]:
        """Return rows by the queue that their envelopes name, each in order."""
        heads = messages.heads()
        by_head: defaultdict[bytes | None, list[int]] = defaultdict(list)
        for row in rows:
            by_head[heads[row]].append(row)
        by_name: dict[QueueName, list[int]] = {}
        for head, some in by_head.items():
            if head is None:
                continue
            name = self._name(head)
            if name is None:
                self.nonsense += len(some)
            elif name in by_name:  # two protocols may share a queue
                by_name[name] = sorted(by_name[name] + some)
            else:
                by_name[name] = some
        return by_name

    def order(self) -> None:
        for queue in self.queues.values():
            places = queue.places
            if any(before > after for before, after in pairwise(places)):
                rows = sorted(range(len(places)), key=places.__getitem__)
                for column in ("places", "weights", "arrived"):
                    values = getattr(queue, column)
                    setattr(queue, column, array(values.typecode, [values[row] for row in rows]))


def records(segment: Segment, marks: Marks, hi: int) -> Iterator[Record]:
    """Yield the frames of a segment below the offset ``hi`` that may hold something that waits."""
    for item in segment.walk(SEGMENT_HEADER_OCTETS, segment.first, check=False):
        if isinstance(item, Record) and item.count:
            if item.first >= hi:
                return
            if _may_wait(segment, item, marks):
                yield item


def parts(segment: Segment, marks: Marks, hi: int) -> Iterator[Record | Few]:
    """Yield the same; small frames are read at once, many together."""
    small = SmallFrames(segment)
    position, expected = SEGMENT_HEADER_OCTETS, segment.first
    while (item := next(segment.walk(position, expected, check=False), None)) is not None:
        if isinstance(item, Damage):
            if item.hi is None:
                return
            position, expected = item.end_position, item.hi
            continue
        if item.count and item.first >= hi:
            return
        position, expected = item.end_position, item.end
        if 0 < item.count <= SMALL_MESSAGES:
            few, behind = small.read(item.position, item.first, hi)
            if few.count:
                position, expected = behind, few.end
                yield few
                continue
        if item.count and _may_wait(segment, item, marks):
            yield item


def _may_wait(segment: Segment, record: Record, marks: Marks) -> bool:
    return bool(may_have_envelopes(segment, record) and marks.unsettled(record.first, record.end))
