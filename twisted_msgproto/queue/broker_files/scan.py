"""Find again in the log what waits in a broker's queues, and in what order.

Most frames are for one queue from their first message to their last, and nothing of them is
done: such a frame is added as a whole, and no message of it becomes a Python object.

Messages that come slowly are synced one by one, so each has a frame of its own, and Arrow takes
longer to begin with a frame than with a thousand messages.  Where the columns of a frame stand is
written in Arrow's metadata.  Frames with the same columns and as many messages have the same
metadata but for some numbers: a :class:`Layout` knows where these stand.  A frame that differs in
anything else, or whose checksum is wrong, is left to Arrow.
"""

from __future__ import annotations

import struct
from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise, repeat
from typing import NamedTuple

import pyarrow as pa

from twisted_msgproto.core.broker.envelopes import opened
from twisted_msgproto.core.broker.places import SMALL, Places
from twisted_msgproto.core.broker.terms import LETTER_BYTES, QueueName

from ..columns import RUNS
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
from ..schema import BODY, ENVELOPE, KNOWN_COLUMNS, TYPES
from .frames import GATHERED_MESSAGES, Messages, may_have_envelopes, seconds
from .marks import Marks
from .names import Names

HEADS_REMEMBERED_MAX = 4096


@dataclass(slots=True)
class Waiting:
    """What waits in one queue, in order; the columns belong together.

    ``weights`` are bytes as :func:`twisted_msgproto.core.broker.weight` counts them, ``arrived``
    are whole seconds since 1970 UTC.
    """

    places: array[int] = field(default_factory=lambda: array("q"))
    weights: array[int] = field(default_factory=lambda: array("I"))
    arrived: array[int] = field(default_factory=lambda: array("I"))
    tries: Places = field(default_factory=lambda: Places(SMALL))
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
                for place in here:
                    if number := tries.number(place):
                        queue.tries.insert(place, number)
            taken += len(some)
        return taken

    def members(
        self, messages: Messages, places: Sequence[int], rows: Sequence[int]
    ) -> dict[QueueName, list[int]]:
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
    for item in segment.walk(SEGMENT_HEADER_BYTES, segment.first, check=False):
        if isinstance(item, Record) and item.count:
            if item.first >= hi:
                return
            if _may_wait(segment, item, marks):
                yield item


def parts(segment: Segment, marks: Marks, hi: int) -> Iterator[Record | Few]:
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
            few, behind = small.read(item.position, item.first, hi)
            if few.count:
                position, expected = behind, few.end
                yield few
                continue
        if item.count and _may_wait(segment, item, marks):
            yield item


def _may_wait(segment: Segment, record: Record, marks: Marks) -> bool:
    return bool(may_have_envelopes(segment, record) and marks.unsettled(record.first, record.end))


SMALL_MESSAGES = 32
"""A frame of more messages is read with Arrow, which is faster then."""
SMALL_BYTES = 16 << 10
"""So much is read at once behind the beginning of a frame.  A larger one may be left to Arrow: most
of the time goes to its checksum then.
"""
LAYOUTS_MAX = 1024

_SHAPE = slice(24, FRAME_HEADER_BYTES + 8)
"""Here a frame says how many messages, bytes of runs, columns and runs it has."""
_PREFIX = struct.Struct("<II")
"""Arrow's message begins with a continuation marker and the number of bytes of its metadata."""
_HEADER, _BODY_LENGTH = 2, 3
"""Of the fields of Arrow's message, these are the record batch and the length of its columns."""
_BATCH_LENGTH, _BATCH_BUFFERS, _BATCH_FIELDS_BYTES = 0, 2, 10
"""Of three fields of a record batch the first is the number of its rows, and the third lists the
buffers of its columns.
"""
_LENGTH_BYTES = 8
_BUFFERS = {bit: len(pa.nulls(0, kind).buffers()) for bit, kind in TYPES.items()}
"""A column of the record batch has this many buffers; of each stands its place and its length."""
_BUFFER_BYTES = 16
_COUNT = struct.Struct("<I")
_ONE = _COUNT.pack(1)
_NO_BODIES = (0,) * (SMALL_MESSAGES + 1)


@dataclass(slots=True)
class Few:
    """The messages of neighbouring small frames, without their bodies.

    It may be added to a scan, as a :class:`~.frames.Frame` may.
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
    """Where the numbers of a frame stand, and what has to stand around them.

    ``frame`` reads a frame from its beginning: its header up to the first message's offset; its
    ``shape``; the time of the first run, and the other times and all counts; what Arrow's message
    has ``before`` the length of its columns, and ``after`` it, up to the list of their buffers; and
    of that list where the bounds of the bodies stand, the bounds of the envelopes, and the
    envelopes.  These are counted from ``columns_at``, where in the frame the columns begin.
    """

    frame: struct.Struct
    shape: bytes
    before: bytes
    after: bytes
    columns_at: int
    bounds: struct.Struct
    messages: int
    columns: int

    def fits(self, frame: bytes) -> bool:
        try:
            values = self.frame.unpack_from(frame)
        except struct.error:
            return False
        return (values[5], *values[8:10]) == (self.shape, self.before, self.after)

    def add(
        self,
        few: Few,
        data: bytes,
        at: int,
        end: int,
        time: int,
        runs: bytes,
        bodies_at: int,
        bounds_at: int,
        start: int,
    ) -> bool:
        """Add the messages of the frame from ``at`` to ``end``; it was checked and has this layout.

        The other arguments are what ``frame`` has read.  False if they make no sense.
        """
        columns = at + self.columns_at
        start += columns
        try:
            bounds = self.bounds.unpack_from(data, columns + bounds_at)
            bodies = _NO_BODIES[: self.messages + 1]
            if self.columns & BODY:
                bodies = self.bounds.unpack_from(data, columns + bodies_at)
            if start + bounds[-1] > end:
                return False
            if self.messages == 1 and runs == _ONE:
                lo, hi = bounds
                few.add(
                    _head(data, start + lo, start + hi),
                    LETTER_BYTES + hi - lo + bodies[1] - bodies[0],
                    time,
                )
            else:
                spans = list(pairwise(bounds))
                sizes = [hi - lo for lo, hi in pairwise(bodies)]
                few.add_all(
                    [_head(data, start + lo, start + hi) for lo, hi in spans],
                    [
                        LETTER_BYTES + hi - lo + size
                        for (lo, hi), size in zip(spans, sizes, strict=True)
                    ],
                    _times(time, runs, self.messages),
                )
        except (struct.error, IndexError):
            return False
        return True


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
    """Return the layout of a frame that was checked; None if Arrow has to read it."""
    try:
        return _layout(frame)
    except struct.error:  # a frame that makes no sense
        return None


def _layout(frame: bytes) -> Layout | None:
    *_, count, runs_bytes = FRAME_HEADER.unpack_from(frame)
    columns, runs, _, _ = RUNS.unpack_from(frame, FRAME_HEADER_BYTES)
    shape, bounds = frame[_SHAPE], struct.Struct(f"<{count + 1}i")
    head = f"<4sIIIQ{len(shape)}s"
    if not columns & ENVELOPE:
        form = struct.Struct(f"{head}{7 * '0s'}")
        return Layout(form, shape, b"", b"", 0, bounds, count, columns)
    message_at = FRAME_HEADER_BYTES + runs_bytes
    message = frame[message_at:]
    length_at, buffers_at = _places_in(message, count)
    columns_at = _PREFIX.size + _PREFIX.unpack_from(message)[1]
    (buffers,) = struct.unpack_from("<I", message, buffers_at - 4)
    if columns & ~KNOWN_COLUMNS or buffers != _buffers_below(columns, KNOWN_COLUMNS + 1):
        return None
    length_end = length_at + _LENGTH_BYTES
    of_runs = f"8xq{12 * runs - 8}s{runs_bytes - RUNS.size - 12 * runs}x"
    of_message = f"{length_at}s{_LENGTH_BYTES}x{buffers_at - length_end}s"
    bodies = _BUFFER_BYTES * (_buffers_below(columns, BODY) + 1)
    bounds_at = _BUFFER_BYTES * (_buffers_below(columns, ENVELOPE) + 1)
    of_bodies = f"{bodies}xq{bounds_at - bodies - 8}x" if columns & BODY else f"0s{bounds_at}x"
    return Layout(
        struct.Struct(f"{head}{of_runs}{of_message}{of_bodies}q8xq"),
        shape,
        message[:length_at],
        message[length_end:buffers_at],
        message_at + columns_at,
        bounds,
        count,
        columns,
    )


def _buffers_below(columns: int, bit: int) -> int:
    return sum([number for one, number in _BUFFERS.items() if one & columns and one < bit])


def _places_in(message: bytes, count: int) -> tuple[int, int]:
    """Return where the length of the columns, and the first of their buffers, stand in Arrow's
    metadata.  It is a flatbuffer: tables that say where their fields are.

    Raises struct.error for what is none, for a batch that has not ``count`` rows, and for one with
    more fields: it may be compressed.
    """

    def number(form: str, at: int) -> int:
        return int(struct.unpack_from(form, message, at)[0])

    def fields_of(table: int) -> int:
        return table - number("<i", table)

    def field_at(table: int, field: int) -> int:
        return table + number("<H", fields_of(table) + 4 + 2 * field)

    def followed(at: int) -> int:
        return at + number("<I", at)

    whole = followed(_PREFIX.size)
    batch = followed(field_at(whole, _HEADER))
    if number("<H", fields_of(batch)) != _BATCH_FIELDS_BYTES:
        raise struct.error("another table")
    if number("<q", field_at(batch, _BATCH_LENGTH)) != count:
        raise struct.error("other messages")
    return field_at(whole, _BODY_LENGTH), followed(field_at(batch, _BATCH_BUFFERS)) + 4


class SmallFrames:
    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._layouts: dict[bytes, Layout] = {}

    def read(self, position: int, expected: int, bound: int) -> tuple[Few, int]:
        """Read consecutive small frames from ``position`` on that begin below the offset ``bound``.

        ``expected`` is the offset of the first one.  Return their messages, at most about
        :data:`~.frames.GATHERED_MESSAGES`, and the position behind them.  Raises OSError.
        """
        few = Few(expected)
        bound = min(bound, expected + GATHERED_MESSAGES)
        taken = -1
        while taken and few.end < bound:
            nbytes, at = self._segment.at_hand(position, SMALL_BYTES)
            taken = self._take(nbytes, at, few, bound)
            position += taken
        return few, position

    def _take(self, data: bytes, begin: int, few: Few, bound: int) -> int:
        seed = self._segment.frame_seed
        at, expected = begin, few.end
        layout = self._layout_at(data, at)
        while layout is not None and expected < bound:
            try:
                (
                    marker,
                    checksum,
                    payload_crc,
                    length,
                    first,
                    shape,
                    time,
                    runs,
                    before,
                    after,
                    bodies_at,
                    bounds_at,
                    start,
                ) = layout.frame.unpack_from(data, at)
            except struct.error:
                break  # the bytes end here
            if shape != layout.shape or before != layout.before or after != layout.after:
                layout = self._layout_at(data, at, but=layout)
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
                few.add_all([None] * layout.messages, nothing, nothing)
            elif not layout.add(few, data, at, end, time, runs, bodies_at, bounds_at, start):
                break
            at = end
            expected += layout.messages
        return at - begin

    def _layout_at(self, data: bytes, at: int, but: Layout | None = None) -> Layout | None:
        shape = data[at + _SHAPE.start : at + _SHAPE.stop]
        layout = self._layouts.get(shape)
        if layout is None or layout is but:
            frame = self._checked(data, at)
            layout = None if frame is None else layout_of(frame)
            if frame is None or layout is None or not layout.fits(frame):
                return None
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
