"""Find again in the log what waits in a broker's queues, and in what order.

Most frames are for one queue from their first message to their last, and nothing of them is
done: such a frame is added as a whole, and no message of it becomes a Python object.

Messages that come slowly are synced one by one, so each has a frame of its own, and Arrow takes
longer to begin with a frame than with a thousand messages: small frames are read without it.
"""

from __future__ import annotations

import struct
from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise, repeat

from twisted_msgproto.core.broker.envelopes import opened
from twisted_msgproto.core.broker.message_table import SMALL, MessageTable
from twisted_msgproto.core.broker.terms import QUEUED_MESSAGE_BYTES, QueueName

from ..arrays import END_BYTES, Buffers, bits_of, read
from ..format import SEGMENT_HEADER_BYTES, Record, Segment, crc32
from ..payload import SMALL_MESSAGES, read_head
from ..schema import BODY, ENVELOPE
from .marks import Marks
from .message_frames import GATHERED_MESSAGES, Messages, may_have_envelopes, seconds
from .names import Names

HEADS_REMEMBERED_MAX = 4096
SMALL_BYTES = 64 << 10
"""A larger frame is left to Arrow, which does not copy its bytes."""


@dataclass(slots=True)
class Waiting:
    """What waits in one queue, in order; the columns belong together.

    ``weights`` are bytes as :func:`twisted_msgproto.core.broker.weight` counts them, ``arrived``
    are whole seconds since 1970 UTC.
    """

    message_ids: array[int] = field(default_factory=lambda: array("q"))
    weights: array[int] = field(default_factory=lambda: array("I"))
    arrived: array[int] = field(default_factory=lambda: array("I"))
    tries: MessageTable = field(default_factory=lambda: MessageTable(SMALL))
    """The tries of ids that have had one."""


Queues = dict[QueueName, Waiting]


class Scan:
    """What waits, gathered frame by frame in the order of ids.

    Attributes:
        queues: what was found.
        nonsense: this many envelopes make no sense, and their messages are in no queue.
    """

    def __init__(self, names: Names, marks: Marks) -> None:
        self._names = names
        self._marks = marks
        self._heads: dict[bytes, QueueName | None] = {}
        self.queues: Queues = {}
        self.nonsense: int = 0

    def add(self, messages: Messages, message_ids: Sequence[int] | None = None) -> int:
        """Add those of some messages that wait; return their number.

        ``message_ids`` are those of the messages, if they are not their offsets.
        """
        lo, hi = messages.first, messages.first + messages.count
        if message_ids is None:
            message_ids = range(lo, hi)
            rows = self._marks.unsettled(lo, hi)
            if len(rows) == hi - lo and not self._marks.moved:
                head = messages.only_head()
                name = None if head is None else self._name(head)
                if name is not None and self._names.holds(name, lo):
                    self._take_whole(name, messages)
                    return hi - lo
        else:
            known = message_ids
            rows = [row for row in range(hi - lo) if not self._marks.is_settled(known[row])]
        return self._take_rows(messages, message_ids, rows) if rows else 0

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
        queue.message_ids.extend(range(lo, hi))
        queue.weights.extend(messages.weights())
        queue.arrived.extend(messages.arrived())
        for tried, numbers in self._marks.tries.columns(lo, hi):
            queue.tries.extend(tried, numbers)

    def _take_rows(
        self, messages: Messages, message_ids: Sequence[int], rows: Sequence[int]
    ) -> int:
        weights, arrived, tries = messages.weights(), messages.arrived(), self._marks.tries
        taken = 0
        for name, some in self.members(messages, message_ids, rows).items():
            queue, here = self._queue(name), [message_ids[row] for row in some]
            queue.message_ids.extend(here)
            queue.weights.extend([weights[row] for row in some])
            queue.arrived.extend([arrived[row] for row in some])
            if tries.count:
                for message_id in here:
                    if number := tries.number(message_id):
                        queue.tries.insert(message_id, number)
            taken += len(some)
        return taken

    def members(
        self, messages: Messages, message_ids: Sequence[int], rows: Sequence[int]
    ) -> dict[QueueName, list[int]]:
        found: dict[QueueName, list[int]] = {}
        names, moved = self._names, self._marks.moved
        for name, some in self._named(messages, rows).items():
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

    def _named(self, messages: Messages, rows: Sequence[int]) -> dict[QueueName, list[int]]:
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
            message_ids = queue.message_ids
            if any(before > after for before, after in pairwise(message_ids)):
                rows = sorted(range(len(message_ids)), key=message_ids.__getitem__)
                for column in ("message_ids", "weights", "arrived"):
                    values = getattr(queue, column)
                    setattr(queue, column, array(values.typecode, [values[row] for row in rows]))


def records(segment: Segment, marks: Marks, hi: int) -> Iterator[Record]:
    """Yield the frames of a segment below the offset ``hi`` that may hold something that waits."""
    for item in segment.walk(SEGMENT_HEADER_BYTES, segment.first, check=False):
        if isinstance(item, Record) and item.count:
            if item.first >= hi:
                return
            if _may_wait(segment, item, marks):
                yield item


def parts(segment: Segment, marks: Marks, hi: int) -> Iterator[Record | SmallFrames]:
    """Yield the same; neighbouring small frames are read at once, many together."""
    small = SmallFrames(segment, segment.first)
    for item in segment.walk(SEGMENT_HEADER_BYTES, segment.first, check=False):
        if not isinstance(item, Record) or not item.count:
            continue
        if item.first >= hi:
            break
        added = item.first == small.end and small.count < GATHERED_MESSAGES and small.add(item)
        if not added:
            if small.count:
                yield small
            small = SmallFrames(segment, item.first)
            if not small.add(item):
                small = SmallFrames(segment, item.end)
                if _may_wait(segment, item, marks):
                    yield item
    if small.count:
        yield small


def _may_wait(segment: Segment, record: Record, marks: Marks) -> bool:
    return bool(may_have_envelopes(segment, record) and marks.unsettled(record.first, record.end))


class SmallFrames:
    """The messages of neighbouring small frames, without their bodies.

    They may be added to a scan, as a :class:`~.message_frames.Frame` may.
    """

    def __init__(self, segment: Segment, first: int) -> None:
        self._segment = segment
        self.first: int = first
        self._heads: list[bytes | None] = []
        self._weights = array("I")
        self._arrived = array("I")

    @property
    def count(self) -> int:
        return len(self._heads)

    @property
    def end(self) -> int:
        return self.first + len(self._heads)

    def heads(self) -> Sequence[bytes | None]:
        return self._heads

    def only_head(self) -> bytes | None:
        head = self._heads[0]
        return head if self._heads.count(head) == len(self._heads) else None

    def weights(self) -> array[int]:
        return self._weights

    def arrived(self) -> array[int]:
        return self._arrived

    def add(self, record: Record) -> bool:
        """Add the messages of the next frame; False for one that is large, damaged or nonsense."""
        count = record.count
        if count > SMALL_MESSAGES or record.nbytes > SMALL_BYTES:
            return False
        payload = bytes(self._segment.payload(record))
        if crc32(payload) != record.payload_crc:
            return False
        try:
            columns, partial, at, counts, _, _ = read_head(
                memoryview(payload)[: record.runs], count
            )
            heads: Sequence[bytes | None] = [None] * count
            sizes: Sequence[int] = [0] * count
            if columns & ENVELOPE:
                block = read(columns, partial, payload[record.runs :], count)
                found = dict(zip(bits_of(columns), block, strict=True))
                sizes, heads = _envelopes(found[ENVELOPE])
                if BODY in found:
                    bodies = pairwise((0, *_ends(found[BODY])))
                    sizes = [size + hi - lo for size, (lo, hi) in zip(sizes, bodies, strict=True)]
            times = at if count == 1 else [*chain(*map(repeat, at, counts))]
        except (ValueError, struct.error, IndexError):
            return False
        self._heads += heads
        self._weights.extend([QUEUED_MESSAGE_BYTES + size for size in sizes])
        self._arrived += seconds(times)
        return True


def _ends(column: Buffers) -> tuple[int, ...]:
    ends = struct.unpack(f"<{len(column[1]) // END_BYTES}i", column[1])
    if ends[0] < 0 or (len(ends) > 1 and list(ends) != sorted(ends)):
        raise ValueError("a column has an end before its beginning")
    return ends


def _envelopes(column: Buffers) -> tuple[list[int], list[bytes | None]]:
    """Return the size and the head of each envelope of a column; None where there is none."""
    sizes, heads = [], []
    data = column[2]
    for lo, hi in pairwise((0, *_ends(column))):
        envelope = data[lo:hi]
        sizes.append(hi - lo)
        heads.append(envelope[: envelope[2] | envelope[3] << 8] if envelope else None)
    return sizes, heads
