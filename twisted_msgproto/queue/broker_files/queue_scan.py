"""Find again in the log what waits in a broker's queues, and in what order.

Neighbouring frames are joined: messages that come slowly are synced one by one, each in a frame of
its own.  Most of what is joined is for one queue from its first message to its last, and nothing of
it is done: then it is added as a whole.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from twisted_msgproto.core.broker.envelopes import opened
from twisted_msgproto.core.broker.message_table import SMALL, MessageTable
from twisted_msgproto.core.broker.terms import QueueName
from twisted_msgproto.core.errors import QueueCorrupt

from ..format import SEGMENT_HEADER_BYTES, Record, Segment
from ..payload import SMALL_MESSAGES
from .marks import Marks
from .message_frames import Frame, may_have_envelopes, read_frame
from .names import Names

HEADS_REMEMBERED_MAX = 4096


@dataclass(slots=True)
class Waiting:
    """What waits in one queue, in order, by columns; ``arrived`` in seconds since 1970 UTC."""

    message_ids: array[int] = field(default_factory=lambda: array("q"))
    weights: array[int] = field(default_factory=lambda: array("I"))
    arrived: array[int] = field(default_factory=lambda: array("I"))
    tries: MessageTable = field(default_factory=lambda: MessageTable(SMALL))


Queues = dict[QueueName, Waiting]


class Scan:
    """What waits, gathered frame by frame in the order of ids."""

    def __init__(self, names: Names, marks: Marks) -> None:
        self._names = names
        self._marks = marks
        self._heads: dict[bytes, QueueName | None] = {}
        self.queues: Queues = {}
        self.nonsense: int = 0  # envelopes whose messages are in no queue

    def add(self, frame: Frame, message_ids: Sequence[int] | None = None) -> int:
        """Add what waits, return its number; ``message_ids`` where they are not the offsets."""
        lo, hi = frame.first, frame.end
        heads = frame.heads()
        if message_ids is None:
            message_ids = range(lo, hi)
            rows = self._marks.unsettled(lo, hi)
            if len(rows) == hi - lo and not self._marks.moved and heads.count(heads[0]) == hi - lo:
                name = None if heads[0] is None else self._name(heads[0])
                if name is not None and self._names.holds(name, lo):
                    self._take_whole(name, frame)
                    return hi - lo
        else:
            known = message_ids
            rows = [row for row in range(hi - lo) if not self._marks.is_settled(known[row])]
        if not rows:
            return 0
        members = self.members(heads, message_ids, rows)
        weights, arrived, tries = frame.weights(), frame.arrived(), self._marks.tries
        for name, some in members.items():
            queue, here = self._queue(name), [message_ids[row] for row in some]
            queue.message_ids.extend(here)
            queue.weights.extend([weights[row] for row in some])
            queue.arrived.extend([arrived[row] for row in some])
            if tries.count:
                for message_id in here:
                    if number := tries.number(message_id):
                        queue.tries.insert(message_id, number)
        return sum(map(len, members.values()))

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

    def _take_whole(self, name: QueueName, frame: Frame) -> None:
        queue, lo, hi = self._queue(name), frame.first, frame.end
        queue.message_ids.extend(range(lo, hi))
        queue.weights.extend(frame.weights())
        queue.arrived.extend(frame.arrived())
        for tried, numbers in self._marks.tries.columns(lo, hi):
            queue.tries.extend(tried, numbers)

    def members(
        self, heads: Sequence[bytes | None], message_ids: Sequence[int], rows: Sequence[int]
    ) -> dict[QueueName, list[int]]:
        found: dict[QueueName, list[int]] = {}
        names, moved = self._names, self._marks.moved
        for name, some in self._named(heads, rows).items():
            stay = some
            if moved:
                stay = []
                for row in some:
                    to = moved.get(message_ids[row])
                    (stay if to is None else found.setdefault(to, [])).append(row)
            if stay and not names.holds(name, message_ids[stay[0]]):
                stay = [row for row in stay if names.holds(name, message_ids[row])]
            if stay:
                found.setdefault(name, []).extend(stay)
        if moved:
            for some in found.values():
                some.sort()
        return found

    def _named(
        self, heads: Sequence[bytes | None], rows: Sequence[int]
    ) -> dict[QueueName, list[int]]:
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
            message_ids = queue.message_ids
            if any(before > after for before, after in pairwise(message_ids)):
                rows = sorted(range(len(message_ids)), key=message_ids.__getitem__)
                for column in ("message_ids", "weights", "arrived"):
                    values = getattr(queue, column)
                    setattr(queue, column, array(values.typecode, [values[row] for row in rows]))


def frames(
    segment: Segment, marks: Marks, hi: int, damaged: Callable[[Record, QueueCorrupt], None]
) -> Iterator[Frame]:
    """Yield a segment's frames below ``hi`` that may hold something that waits."""
    for item in segment.walk(SEGMENT_HEADER_BYTES, segment.first, check=False):
        if not isinstance(item, Record) or not item.count:
            continue
        if item.first >= hi:
            return
        if not may_have_envelopes(segment, item):
            continue
        # Small ones are read sooner than they are looked up.
        if item.count > SMALL_MESSAGES and not marks.unsettled(item.first, item.end):
            continue
        try:
            frame = read_frame(segment, item)
        except QueueCorrupt as error:
            if marks.unsettled(item.first, item.end):
                damaged(item, error)
        else:
            if frame is not None:
                yield frame
