"""Find again in the log what waits in a broker's queues, and in what order.

Most frames are for one queue from their first message to their last, and nothing of them is
done: such a frame is added as a whole, and no message of it becomes a Python object.

Messages that come slowly are synced one by one, so each has a frame of its own, and Arrow takes
longer to begin with a frame than with a thousand messages.  Frames with the same columns and as
many messages have their numbers at the same positions: a :class:`Layout` knows these.  A frame that
makes no sense, or whose checksum is wrong, is left to :func:`~.message_frames.read_frame`.
"""

from __future__ import annotations

import struct
from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise, repeat
from typing import NamedTuple

from twisted_msgproto.core.broker.envelopes import opened
from twisted_msgproto.core.broker.message_table import SMALL, MessageTable
from twisted_msgproto.core.broker.terms import QUEUED_MESSAGE_BYTES, QueueName

from ..arrays import form_of, place_of
from ..format import (
    FRAME_HEADER,
    FRAME_HEADER_BYTES,
    FRAME_MARKER,
    SEGMENT_HEADER_BYTES,
    Damage,
    Record,
    Segment,
    crc32,
)
from ..payload import RUNS, SMALL_MESSAGES
from ..schema import BODY, ENVELOPE, KNOWN_COLUMNS
from .marks import Marks
from .message_frames import GATHERED_MESSAGES, Messages, may_have_envelopes, seconds
from .names import Names

HEADS_REMEMBERED_MAX = 4096


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


def parts(segment: Segment, marks: Marks, hi: int) -> Iterator[Record | SmallFrameRun]:
    """Yield the same; small frames are read at once, many together."""
    small = SmallFrames(segment)
    position, expected = SEGMENT_HEADER_BYTES, segment.first
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
            run, behind = small.read(item.position, item.first, hi)
            if run.count:
                position, expected = behind, run.end
                yield run
                continue
        if item.count and _may_wait(segment, item, marks):
            yield item


def _may_wait(segment: Segment, record: Record, marks: Marks) -> bool:
    return bool(may_have_envelopes(segment, record) and marks.unsettled(record.first, record.end))


SMALL_BYTES = 16 << 10
"""So much is read at once behind the beginning of a frame.  A larger one may be left to Arrow: most
of the time goes to its checksum then.
"""
LAYOUTS_MAX = 1024

_SHAPE = slice(24, FRAME_HEADER_BYTES + RUNS.size)
"""Here a frame says how many messages, bytes of runs, columns and runs it has."""
_COUNT = struct.Struct("<I")
_ONE = _COUNT.pack(1)


@dataclass(slots=True)
class SmallFrameRun:
    """The messages of neighbouring small frames, without their bodies.

    It may be added to a scan, as a :class:`~.message_frames.Frame` may.
    """

    first: int
    _heads: list[bytes | None] = field(default_factory=list)
    _weights: list[int] = field(default_factory=list)
    _times: list[int] = field(default_factory=list)  # µs since 1970 UTC

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
        return array("I", self._weights)

    def arrived(self) -> array[int]:
        return seconds(self._times)

    def add(self, head: bytes | None, weight: int, time: int) -> None:
        """Add a message that was received at ``time``, in µs since 1970 UTC."""
        self._heads.append(head)
        self._weights.append(weight)
        self._times.append(time)

    def add_all(
        self, heads: Sequence[bytes | None], weights: Sequence[int], times: Sequence[int]
    ) -> None:
        self._heads += heads
        self._weights += weights
        self._times += times


class Layout(NamedTuple):
    """Where the numbers of a frame stand.

    ``frame`` reads a frame from its beginning: its header up to the first message's offset; its
    ``shape``; the time of the first run, and the other times and all counts; and where each buffer
    of its block ends.
    """

    frame: struct.Struct
    shape: bytes
    block_at: int
    """Where, from the frame's beginning, the buffers begin."""
    ends: struct.Struct
    messages: int
    columns: int
    envelopes: int
    bodies: int
    """Of the buffers these have the ends of envelopes and bodies; -1 for no bodies."""

    def add(
        self,
        run: SmallFrameRun,
        data: bytes,
        at: int,
        end: int,
        time: int,
        runs: bytes,
        buffers: list[int],
    ) -> bool:
        """Add the messages of the frame from ``at`` to ``end``; it was checked and has this layout.

        The other arguments are what ``frame`` has read.  False if they make no sense.
        """
        block, index, of_bodies = at + self.block_at, self.envelopes, self.bodies
        if block + buffers[-1] > end:
            return False
        try:
            if self.messages == 1 and runs == _ONE:
                start, stop = buffers[index], buffers[index + 1]
                weight = QUEUED_MESSAGE_BYTES + stop - start
                if of_bodies >= 0:
                    weight += buffers[of_bodies + 1] - buffers[of_bodies]
                if weight < QUEUED_MESSAGE_BYTES:
                    return False
                run.add(_head(data, block + start, block + stop), weight, time)
                return True
            ends, start = self._ends(data, block, buffers, index)
            bodies: Sequence[int] = (0,) * self.messages
            if of_bodies >= 0:
                bodies, _ = self._ends(data, block, buffers, of_bodies)
            spans = list(pairwise((0, *ends)))
            run.add_all(
                [_head(data, start + lo, start + hi) for lo, hi in spans],
                [
                    QUEUED_MESSAGE_BYTES + hi - lo + to - begin
                    for (lo, hi), (begin, to) in zip(spans, pairwise((0, *bodies)), strict=True)
                ],
                _times(time, runs, self.messages),
            )
        except (struct.error, IndexError):
            return False
        return True

    def _ends(
        self, data: bytes, block: int, buffers: list[int], index: int
    ) -> tuple[tuple[int, ...], int]:
        """Return where the values of a column end, and where they begin."""
        at = buffers[index - 1] if index else 0
        ends = self.ends.unpack_from(data, block + at)
        start = buffers[index]
        if at + self.ends.size != start or ends[-1] != buffers[index + 1] - start:
            raise struct.error("a column has other values")
        return ends, block + start


def _head(data: bytes, lo: int, hi: int) -> bytes | None:
    head = data[lo : lo + (data[lo + 2] | data[lo + 3] << 8)] if lo < hi else None
    return data[lo:hi] if head and len(head) > hi - lo else head


def _times(time: int, runs: bytes, count: int) -> list[int]:
    """Return when each message was received; ``runs`` are the first count, or the other times and
    all counts.  Raises struct.error if they count other messages than ``count``.
    """
    if runs == _COUNT.pack(count):
        return [time] * count
    others = (len(runs) - 4) // 12
    numbers = struct.unpack(f"<{others}q{others + 1}I", runs)
    times, counts = (time, *numbers[:others]), numbers[others:]
    if sum(counts) != count:
        raise struct.error("the runs have other messages")
    return list(chain(*map(repeat, times, counts)))


def layout_of(frame: bytes) -> Layout | None:
    """Return the layout of a frame that was checked; None if it makes no sense."""
    *_, count, runs_bytes = FRAME_HEADER.unpack_from(frame)
    columns, runs, _, partial = RUNS.unpack_from(frame, FRAME_HEADER_BYTES)
    rest = runs_bytes - RUNS.size - 12 * runs
    if columns & ~KNOWN_COLUMNS or runs < 1 or rest < 0:
        return None
    shape = frame[_SHAPE]
    buffers = form_of(columns, partial).head.format[1:]
    frame_form = struct.Struct(f"<4sIIIQ{len(shape)}sq{12 * runs - 8}s{rest}x{buffers}")
    return Layout(
        frame_form,
        shape,
        frame_form.size,
        struct.Struct(f"<{count}I"),
        count,
        columns,
        place_of(columns, partial, ENVELOPE),
        place_of(columns, partial, BODY),
    )


class SmallFrames:
    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._layouts: dict[bytes, Layout] = {}

    def read(self, position: int, expected: int, bound: int) -> tuple[SmallFrameRun, int]:
        """Read consecutive small frames from ``position`` on that begin below the offset ``bound``.

        ``expected`` is the offset of the first one.  Return their messages, at most about
        :data:`~.message_frames.GATHERED_MESSAGES`, and the position behind them.  Raises OSError.
        """
        run = SmallFrameRun(expected)
        bound = min(bound, expected + GATHERED_MESSAGES)
        taken = -1
        while taken and run.end < bound:
            nbytes, at = self._segment.at_hand(position, SMALL_BYTES)
            taken = self._take(nbytes, at, run, bound)
            position += taken
        return run, position

    def _take(self, data: bytes, begin: int, run: SmallFrameRun, bound: int) -> int:
        seed = self._segment.frame_seed
        at, expected = begin, run.end
        layout = self._layout_at(data, at)
        while layout is not None and expected < bound:
            try:
                marker, checksum, payload_crc, length, first, shape, time, runs, *buffers = (
                    layout.frame.unpack_from(data, at)
                )
            except struct.error:
                break  # the bytes end here
            if shape != layout.shape:
                layout = self._layout_at(data, at)
                continue
            payload = at + FRAME_HEADER_BYTES
            end = payload + length
            if (
                marker != FRAME_MARKER
                or first != expected
                or end > len(data)
                or crc32(data[at + 8 : payload], seed) != checksum
                or crc32(data[payload:end]) != payload_crc
            ):
                break
            if not layout.columns & ENVELOPE:
                nothing = [0] * layout.messages
                run.add_all([None] * layout.messages, nothing, nothing)
            elif not layout.add(run, data, at, end, time, runs, buffers):
                break
            at = end
            expected += layout.messages
        return at - begin

    def _layout_at(self, data: bytes, at: int) -> Layout | None:
        shape = data[at + _SHAPE.start : at + _SHAPE.stop]
        layout = self._layouts.get(shape)
        if layout is None:
            frame = self._checked(data, at)
            layout = None if frame is None else layout_of(frame)
            if layout is not None:
                if len(self._layouts) >= LAYOUTS_MAX:
                    self._layouts.clear()
                self._layouts[shape] = layout
        return layout

    def _checked(self, data: bytes, at: int) -> bytes | None:
        if len(data) - at < FRAME_HEADER_BYTES:
            return None
        marker, checksum, payload_crc, length, _, count, runs = FRAME_HEADER.unpack_from(data, at)
        payload = at + FRAME_HEADER_BYTES
        end = payload + length
        if (
            marker != FRAME_MARKER
            or not 0 < count <= SMALL_MESSAGES
            or not RUNS.size <= runs <= length <= len(data) - payload
            or crc32(data[at + 8 : payload], self._segment.frame_seed) != checksum
            or crc32(data[payload:end]) != payload_crc
        ):
            return None
        return data[at:end]
