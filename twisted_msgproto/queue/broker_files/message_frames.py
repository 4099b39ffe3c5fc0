"""A broker needs the envelopes and bodies of a frame; they stay as Arrow has them."""

from __future__ import annotations

import contextlib
import os
import struct
from array import array
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, pairwise, repeat
from typing import Protocol, TypeVar

import pyarrow as pa

from twisted_msgproto.core.broker.envelopes import head_of
from twisted_msgproto.core.broker.terms import QUEUED_MESSAGE_BYTES, QueuedMessage, second, weight
from twisted_msgproto.core.errors import QueueCorrupt, QueueError

from ...core.disk import Disk
from ..arrays import array_from, bits_of, compute, read, scalar_of
from ..format import FRAME_HEADER_BYTES, SEGMENT_HEADER_BYTES, Record, Segment, crc32, segment_name
from ..payload import read_head
from ..recovery import segment_offsets
from ..schema import BODY, BYTES, ENVELOPE, MESSAGE_ID_INTEGER, TYPES
from ..segment_log import SegmentLog

COLUMNS_WORD = struct.Struct("<I")
SECOND = 1_000_000

_NONE = scalar_of(0, pa.int32())
_OBJECTS = scalar_of(QUEUED_MESSAGE_BYTES, pa.int64())


def seconds(times: Sequence[int]) -> array[int]:
    """Return µs since 1970 as whole seconds."""
    try:
        return array("I", [time // SECOND for time in times])
    except OverflowError:
        return array("I", [second(time // SECOND) for time in times])


class Messages(Protocol):
    """Neighbouring messages of the log, as far as they matter to a scan.

    The lists that its methods return have an item for each message.
    """

    first: int

    @property
    def count(self) -> int:
        """Return the number of messages."""

    def heads(self) -> Sequence[bytes | None]:
        """Return the head of each envelope; None where there is no envelope."""

    def only_head(self) -> bytes | None:
        """Return the head that all envelopes have; None if they differ, or one is missing."""

    def weights(self) -> array[int]:
        """Return what each message weighs: :func:`twisted_msgproto.core.broker.weight`."""

    def arrived(self) -> array[int]:
        """Return the second in which each message was received, since 1970 UTC."""


@dataclass(slots=True)
class Frame:
    """The messages of one frame, as far as they matter to a broker.

    ``message_ids`` are there where they are numbers; the broker's own log has those of the
    messages in their queues.
    """

    first: int
    count: int
    times: Sequence[int]
    """The messages of each run were received at these times, µs since 1970 UTC."""
    counts: Sequence[int]
    envelopes: pa.BinaryArray
    bodies: pa.BinaryArray
    message_ids: pa.Int64Array | None

    @property
    def nbytes(self) -> int:
        return int(self.envelopes.nbytes + self.bodies.nbytes)

    def received_at(self) -> Iterator[int]:
        """Return for each message when it was received, µs since 1970 UTC."""
        return chain.from_iterable(map(repeat, self.times, self.counts))

    def heads(self) -> list[bytes | None]:
        _, bounds, data = self.envelopes.buffers()
        start, stop = self.envelopes.offset, self.envelopes.offset + self.count + 1
        ends = memoryview(bounds).cast("B").cast("i")[start:stop]
        raw = b"" if data is None else data.to_pybytes()
        return [
            raw[lo : min(hi, lo + int.from_bytes(raw[lo + 2 : lo + 4], "little"))]
            if lo < hi
            else None
            for lo, hi in pairwise(ends)
        ]

    def only_head(self) -> bytes | None:
        if self.envelopes.null_count:
            return None
        try:
            head = head_of(self.envelopes[0].as_py())
        except ValueError:
            return None
        pc = compute()
        return head if pc.all(pc.starts_with(self.envelopes, head)).as_py() else None

    def weights(self) -> array[int]:
        pc = compute()
        data = pc.add(
            pc.fill_null(pc.binary_length(self.envelopes), _NONE),
            pc.fill_null(pc.binary_length(self.bodies), _NONE),
        )
        column = pc.add(data.cast(pa.int64()), _OBJECTS).cast(pa.uint32())
        weights = array("I")
        start = weights.itemsize * column.offset
        weights.frombytes(column.buffers()[1].slice(start, weights.itemsize * self.count))
        return weights

    def arrived(self) -> array[int]:
        return seconds([*self.received_at()])


GATHERED_MESSAGES = 4096
"""Neighbouring frames are joined up to this many messages: each step costs the same for one
message as for a thousand.
"""
GATHERED_BYTES = 16 << 20
"""Beyond this the frames before are not joined with the next; Arrow joins no more than 2 GiB."""


Others = TypeVar("Others", bound=Messages)


def gathered(parts: Iterable[Frame | Others]) -> Iterator[Frame | Others]:
    joined: list[Frame] = []
    count = nbytes = 0
    for frame in parts:
        if joined and (
            not isinstance(frame, Frame)
            or frame.first != joined[-1].first + joined[-1].count
            or count + frame.count > GATHERED_MESSAGES
            or nbytes + frame.nbytes > GATHERED_BYTES
        ):
            yield _joined(joined)
            joined, count, nbytes = [], 0, 0
        if isinstance(frame, Frame):
            joined.append(frame)
            count += frame.count
            nbytes += frame.nbytes
        else:
            yield frame
    if joined:
        yield _joined(joined)


def _joined(frames: list[Frame]) -> Frame:
    if len(frames) == 1:
        return frames[0]
    return Frame(
        frames[0].first,
        sum([frame.count for frame in frames]),
        [time for frame in frames for time in frame.times],
        [count for frame in frames for count in frame.counts],
        pa.concat_arrays([frame.envelopes for frame in frames]),
        pa.concat_arrays([frame.bodies for frame in frames]),
        None,
    )


def may_have_envelopes(segment: Segment, record: Record) -> bool:
    """Return whether a frame has the column of envelopes, by the first bytes of its payload."""
    position = record.position + FRAME_HEADER_BYTES
    data = segment.nbytes(position, COLUMNS_WORD.size) if record.runs else b""
    if len(data) < COLUMNS_WORD.size:
        return False
    return bool(COLUMNS_WORD.unpack(data)[0] & ENVELOPE)


def read_frame(segment: Segment, record: Record) -> Frame | None:
    """Return a frame's messages; None if none of them has an envelope.

    Raises QueueCorrupt for a damaged one, OSError from the disk.
    """
    payload = segment.payload(record)
    if crc32(payload) != record.payload_crc:
        raise QueueCorrupt("checksum")
    try:
        columns, partial, times, counts, _, _ = read_head(payload[: record.runs], record.count)
        if not columns & ENVELOPE:
            return None
        found = read(columns, partial, payload[record.runs :], record.count)
        arrays = {
            bit: array_from(TYPES[bit], record.count, buffers)
            for bit, buffers in zip(bits_of(columns), found, strict=True)
            if bit & (BODY | ENVELOPE | MESSAGE_ID_INTEGER)
        }
        for column in arrays.values():
            column.validate(full=True)  # before Arrow reads where one ends that ends nowhere
        bodies = arrays[BODY] if BODY in arrays else pa.nulls(record.count, BYTES)
        message_ids = arrays.get(MESSAGE_ID_INTEGER)
        return Frame(
            record.first, record.count, times, counts, arrays[ENVELOPE], bodies, message_ids
        )
    except Exception as error:  # nonsense is met by struct and Arrow, each in its way
        raise QueueCorrupt(f"the record at offset {record.first} makes no sense: {error}") from None


OPEN_MAX = 8
FRAMES_MAX = 4
INDEX_BYTES = 64 << 10


@dataclass(slots=True)
class Loaded:
    messages: list[QueuedMessage] = field(default_factory=list)
    unreadable: list[int] = field(default_factory=list)
    """These ids are damaged, or nowhere."""
    unread: list[int] = field(default_factory=list)
    """The first of these ids cannot be read now; ask for all of them again."""
    error: OSError | QueueError | None = None


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
        """Return the frame with this offset; None if it is damaged or not there.

        Only what is below the offset ``end`` is published, and will not be written over.
        """
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
        """Return the messages with these offsets.

        ``message_ids`` maps an offset to the id; without it both are the same.  It ends at the
        first one that cannot be read now: the disk fails, or somebody has taken the segment away.
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
        envelope = frame.envelopes[row].as_py() if frame is not None else None
        if frame is None or envelope is None:
            self._log.check_there(offset)  # or it may be put back
            loaded.unreadable.append(message_id)
            return
        body = frame.bodies[row].as_py() or b""
        arrived = next(islice(frame.received_at(), row, None)) / SECOND
        loaded.messages.append(
            QueuedMessage(message_id, weight(envelope, body), envelope, body, arrived)
        )

    def _frame(self, first: int, offset: int) -> Frame | None:
        for frame in reversed(self._frames.values()):
            if frame is not None and frame.first <= offset < frame.first + frame.count:
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
