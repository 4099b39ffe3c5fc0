"""A broker needs the envelopes and bodies of a frame, and no Arrow for them."""

from __future__ import annotations

import contextlib
import os
import struct
from array import array
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise, repeat
from operator import add, sub
from typing import Any

from twisted_msgproto.core.broker.terms import QUEUED_MESSAGE_BYTES, QueuedMessage, second, weight
from twisted_msgproto.core.errors import QueueCorrupt, QueueError

from ...core.disk import Disk
from ..arrays import END_BYTES, Buffers, bits_of, joined, read
from ..format import FRAME_HEADER_BYTES, SEGMENT_HEADER_BYTES, Record, Segment, crc32, segment_name
from ..payload import SMALL_MESSAGES, read_head
from ..recovery import segment_offsets
from ..schema import BODY, BYTES, ENVELOPE, MESSAGE_ID_INTEGER
from ..segment_log import SegmentLog

COLUMNS_WORD = struct.Struct("<I")
SECOND = 1_000_000
SIZE_END = 4  # here ends what an envelope says of the size of its head

_END = struct.Struct("<i")


@dataclass(slots=True)
class Frame:
    """Messages of neighbouring frames, for a broker; what is missing is empty."""

    first: int
    times: Sequence[int]  # in µs since 1970 UTC
    envelopes: Buffers
    bodies: Buffers
    message_ids: Sequence[int] | None = None  # if numbers, as in the broker's own log

    @property
    def end(self) -> int:
        return self.first + len(self.times)

    @property
    def nbytes(self) -> int:
        return len(self.envelopes[2]) + len(self.bodies[2])

    def envelope(self, row: int) -> bytes:
        return _value(self.envelopes, row)

    def body(self, row: int) -> bytes:
        return _value(self.bodies, row)

    def heads(self) -> list[bytes | None]:
        """Return the head of each envelope; None where there is no envelope."""
        data, bounds = bytes(self.envelopes[2]), _bounds(self.envelopes)
        size = int.from_bytes(data[2:SIZE_END], "little")
        if min(map(sub, bounds[1:], bounds)) >= size > SIZE_END:  # most have the same
            alike: list[bytes | None] = [data[lo : lo + size] for lo in bounds[:-1]]
            if alike.count(alike[0]) == len(alike):
                return alike
        return [
            data[lo : min(hi, lo + int.from_bytes(data[lo + 2 : lo + SIZE_END], "little"))]
            if lo < hi
            else None
            for lo, hi in pairwise(bounds)
        ]

    def weights(self) -> array[int]:
        """Return what each message weighs: :func:`twisted_msgproto.core.broker.weight`."""
        together = map(add, _bounds(self.envelopes), _bounds(self.bodies))
        return array("I", [QUEUED_MESSAGE_BYTES + hi - lo for lo, hi in pairwise(together)])

    def arrived(self) -> array[int]:
        """Return the second in which each message was received, since 1970 UTC."""
        seconds = [time // SECOND for time in self.times]
        try:
            return array("I", seconds)
        except OverflowError:
            return array("I", map(second, seconds))


def _bounds(column: Buffers) -> list[int]:
    return [0, *memoryview(column[1]).cast("B").cast("i")]


def _value(column: Buffers, row: int) -> bytes:
    begin = _END.unpack_from(column[1], END_BYTES * (row - 1))[0] if row else 0
    return bytes(column[2][begin : _END.unpack_from(column[1], END_BYTES * row)[0]])


JOINED_MESSAGES = 4096
JOINED_BYTES = 16 << 20


def neighbours_joined(frames: Iterable[Frame]) -> Iterator[Frame]:
    """Join frames: a step costs the same for one message as for a thousand."""
    found: list[Frame] = []
    count = nbytes = 0
    for frame in frames:
        count, nbytes = count + len(frame.times), nbytes + frame.nbytes
        if found and (
            frame.first != found[-1].end or count > JOINED_MESSAGES or nbytes > JOINED_BYTES
        ):
            yield _joined(found)
            found, count, nbytes = [], len(frame.times), frame.nbytes
        found.append(frame)
    if found:
        yield _joined(found)


def _joined(frames: list[Frame]) -> Frame:
    counts = [len(frame.times) for frame in frames]
    return Frame(
        frames[0].first,
        [*chain.from_iterable([frame.times for frame in frames])],
        joined(BYTES, [frame.envelopes for frame in frames], counts),
        joined(BYTES, [frame.bodies for frame in frames], counts),
    )


def may_have_envelopes(segment: Segment, record: Record) -> bool:
    """Return whether a frame has envelopes, by the first bytes of its payload."""
    position = record.position + FRAME_HEADER_BYTES
    data = segment.nbytes(position, COLUMNS_WORD.size) if record.runs else b""
    if len(data) < COLUMNS_WORD.size:
        return False
    return bool(COLUMNS_WORD.unpack(data)[0] & ENVELOPE)


def read_frame(segment: Segment, record: Record) -> Frame | None:
    """Return a frame's messages, None without envelopes; QueueCorrupt for a damaged one."""
    payload: Any = segment.payload(record)
    if crc32(payload) != record.payload_crc:
        raise QueueCorrupt("checksum")
    count = record.count
    if count <= SMALL_MESSAGES:
        payload = bytes(payload)  # is cut faster
    try:
        columns, partial, times, counts, _, _ = read_head(payload[: record.runs], count)
        if not columns & ENVELOPE:
            return None
        found = read(columns, partial, payload[record.runs :], count)
        column = dict(zip(bits_of(columns), found, strict=True))
        envelopes = column[ENVELOPE]
        bodies = column.get(BODY) or (b"", bytes(END_BYTES * count), b"")
        if count > 1:
            for bounds in _bounds(envelopes), _bounds(bodies):
                if bounds != sorted(bounds):
                    raise ValueError("a column has an end before its beginning")
        if len(times) != count:
            times = [*chain.from_iterable(map(repeat, times, counts))]
        message_ids = None
        if MESSAGE_ID_INTEGER in column:
            message_ids = memoryview(column[MESSAGE_ID_INTEGER][1]).cast("q")
        return Frame(record.first, times, envelopes, bodies, message_ids)
    except (ValueError, struct.error) as error:
        raise QueueCorrupt(f"the record at offset {record.first} makes no sense: {error}") from None


OPEN_MAX = 8
FRAMES_MAX = 4
INDEX_BYTES = 64 << 10


@dataclass(slots=True)
class Loaded:
    messages: list[QueuedMessage] = field(default_factory=list)
    unreadable: list[int] = field(default_factory=list)  # damaged, or nowhere
    unread: list[int] = field(default_factory=list)  # the first cannot be read now: ask again
    error: OSError | QueueError | None = None  # why some are ``unread``


class Indexed:
    def __init__(self, disk: Disk, path: str, frame_seed: int, first: int) -> None:
        self._file = disk.open(path)
        self._segment = Segment(self._file, frame_seed, first, 0, INDEX_BYTES)
        self._firsts = array("q")
        self._ends = array("q")
        self._positions = array("q")
        self._position = SEGMENT_HEADER_BYTES
        self._expected = first

    def record(self, offset: int, end: int) -> Record | None:
        """Return the frame with this offset; none from ``end`` on, which may be rewritten."""
        if offset >= self._expected:
            self._extend(end)
        index = bisect_right(self._firsts, offset) - 1
        if index < 0 or offset >= self._ends[index]:
            return None
        return self._segment.record_at(self._positions[index])

    def _extend(self, end: int) -> None:
        self._segment.size = self._file.size()
        self._segment.forget()
        for item in self._segment.walk(self._position, self._expected, check=False):
            if isinstance(item, Record):
                if item.end > end:
                    return
                if item.count:
                    self._firsts.append(item.first)
                    self._ends.append(item.end)
                    self._positions.append(item.position)
            elif item.hi is None or item.hi > end:
                return  # a write in progress, or the segment's damaged end
            self._position = item.end_position
            self._expected = item.end if isinstance(item, Record) else item.hi  # type: ignore[assignment]

    def read(self, record: Record) -> Frame | None:
        return read_frame(self._segment, record)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()


class Bodies:
    """A reader of messages of one queue directory, for one thread at a time."""

    def __init__(self, log: SegmentLog) -> None:
        self._log = log
        self._disk = log.disk
        self._directory = log.directory
        self._frame_seed = log.identity.frame_seed
        self._open: OrderedDict[int, Indexed] = OrderedDict()
        self._frames: OrderedDict[tuple[int, int], Frame | None] = OrderedDict()

    def read(self, offsets: Iterable[int], message_ids: dict[int, int] | None = None) -> Loaded:
        """Return messages; ``message_ids`` maps offsets to ids that are others.

        It ends at the first one that cannot be read now: the disk fails, or somebody has taken the
        segment away.
        """
        loaded = Loaded()
        wanted = deque(sorted(offsets))
        try:
            firsts = segment_offsets(self._disk, self._directory)
            self._forget(firsts)
            while wanted:
                message_id = wanted[0] if message_ids is None else message_ids[wanted[0]]
                self._read_one(firsts, wanted[0], message_id, loaded)
                wanted.popleft()
        except (OSError, QueueError) as error:
            loaded.error = error
            loaded.unread = (
                [*wanted] if message_ids is None else [message_ids[offset] for offset in wanted]
            )
            self._forget([])  # a file may be open that the disk does not know any more
        return loaded

    def _read_one(self, firsts: list[int], offset: int, message_id: int, loaded: Loaded) -> None:
        index = bisect_right(firsts, offset) - 1
        frame = self._frame(firsts[index], offset) if index >= 0 else None
        row = offset - frame.first if frame is not None else 0
        if frame is None or not (envelope := frame.envelope(row)):
            self._log.check_there(offset)  # or it may be put back
            loaded.unreadable.append(message_id)
            return
        body, arrived = frame.body(row), frame.times[row] / SECOND
        loaded.messages.append(
            QueuedMessage(message_id, weight(envelope, body), envelope, body, arrived)
        )

    def _frame(self, first: int, offset: int) -> Frame | None:
        for frame in reversed(self._frames.values()):
            if frame is not None and frame.first <= offset < frame.end:
                return frame
        try:
            segment = self._indexed(first)
        except FileNotFoundError:
            return None
        record = segment.record(offset, self._log.end)
        if record is None:
            return None
        key = first, record.position
        if key not in self._frames:
            try:
                found = segment.read(record)
            except QueueCorrupt:
                self._log.check_there(offset)
                found = None
            self._frames[key] = found
            while len(self._frames) > FRAMES_MAX:
                self._frames.popitem(last=False)
        return self._frames[key]

    def _indexed(self, first: int) -> Indexed:
        found = self._open.get(first)
        if found is None:
            path = os.path.join(self._directory, segment_name(first))
            found = self._open[first] = Indexed(self._disk, path, self._frame_seed, first)
        self._open.move_to_end(first)
        while len(self._open) > OPEN_MAX:
            self._open.popitem(last=False)[1].close()
        return found

    def _forget(self, firsts: list[int]) -> None:
        """Close what was trimmed: an open file would keep its bytes on the disk."""
        for first in [first for first in self._open if first not in firsts]:
            self._open.pop(first).close()

    def close(self) -> None:
        self._frames.clear()
        while self._open:
            self._open.popitem()[1].close()
