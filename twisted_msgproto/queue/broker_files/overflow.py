"""The broker's own log, ``broker/log``: messages that wait longer than the queue's log keeps them.

It is a queue directory like any other.  Before a segment of the queue's log goes, the messages of
it that still wait are copied here.  Each keeps its id, the offset that it had: it stands here as
the column ``message_id``.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from twisted_msgproto.core.errors import QueueCorrupt
from twisted_msgproto.core.message import MessageBatch

from ...core.disk import Disk
from ..damage import Range, merged
from ..format import Record, Segment
from ..payload import encode
from ..recovery import opened, segment_offsets
from ..segment_log import SegmentLog
from .marks import Marks
from .message_frames import Frame, may_have_envelopes, read_frame

DIRECTORY = "log"
PROTOCOL, KIND = "broker", "kept"
SEGMENT_BYTES = 16 << 20  # the broker's own segments have this size: small ones are free sooner
MAX_BYTES = 1 << 62  # the limits of the queues bound the log; it has no other bound
COPY_MESSAGES = 8192
COPY_BYTES = 8 << 20  # so much is copied with one write
SPARE_SEGMENTS = 2  # waiting messages may use twice their bytes on disk, and this many segments


@dataclass(slots=True)
class Chunk:
    first: int
    message_ids: array[int]
    nbytes: int
    live: int

    @property
    def span(self) -> tuple[int, int]:
        return self.message_ids[0], self.message_ids[-1] + 1


@dataclass(slots=True)
class Copy:
    message_ids: list[int]
    times: list[int]
    envelopes: list[bytes]
    bodies: list[bytes]
    nbytes: int = 0

    def add(self, other: Copy) -> None:
        self.message_ids += other.message_ids
        self.times += other.times
        self.envelopes += other.envelopes
        self.bodies += other.bodies
        self.nbytes += other.nbytes


class OverflowLog:
    """The broker's own log, for one thread at a time; ids from ``begin`` on are in the queue's."""

    def __init__(self, disk: Disk, directory: str, queue_id: str, *, begin: int):
        self._disk = disk
        self._queue_id = queue_id
        self.log: SegmentLog = SegmentLog(
            os.path.join(directory, DIRECTORY),
            disk=disk,
            segment_bytes=SEGMENT_BYTES,
            max_bytes=MAX_BYTES,
        )
        self.lines: list[str] = list(self.log.recovery.lines)
        self._spare = SPARE_SEGMENTS * self.log.segment_bytes
        self._chunks: dict[int, Chunk] = {}  # by the first id
        self._starts: list[int] = []  # these ids, in order
        # Copies that nobody needs and that are still in the log: where, and the ids' range.
        self._shadows: dict[int, Range] = {}
        try:
            self._find(begin)
        except BaseException:
            self.log.close()
            raise

    # -- what there is ----------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Chunk]:
        return iter([self._chunks[start] for start in self._starts])

    def where(self, message_id: int) -> int | None:
        index = bisect_right(self._starts, message_id) - 1
        if index < 0:
            return None
        chunk = self._chunks[self._starts[index]]
        row = bisect_right(chunk.message_ids, message_id) - 1
        return chunk.first + row if chunk.message_ids[row] == message_id else None

    def current(self, frame: Frame) -> bool:
        """Return whether a frame is what it is for its ids: no later copy stands for it."""
        message_ids = frame.message_ids
        chunk = None if message_ids is None else self._chunks.get(message_ids[0])
        return chunk is not None and chunk.first == frame.first

    @property
    def live_bytes(self) -> int:
        return sum(
            chunk.nbytes * chunk.live // len(chunk.message_ids) for chunk in self._chunks.values()
        )

    def _find(self, begin: int) -> None:
        """Read the ids of all copies.  A later copy of an id stands for the earlier one."""
        for frame in self.frames():
            if frame.message_ids is None:
                continue
            message_ids = array("q", frame.message_ids)
            if message_ids[-1] < begin:
                self._add(Chunk(frame.first, message_ids, frame.nbytes, len(message_ids)))
            else:
                self._shadows[frame.first] = message_ids[0], message_ids[-1] + 1

    def _add(self, chunk: Chunk) -> None:
        lo, hi = chunk.span
        # An older copy may begin before it, if its first messages are settled since.
        index = bisect_left(self._starts, lo, key=lambda start: self._chunks[start].message_ids[-1])
        for start in self._starts[index : bisect_left(self._starts, hi)]:
            self._drop(self._chunks[start])
        self._chunks[lo] = chunk
        insort(self._starts, lo)

    def _drop(self, chunk: Chunk) -> None:
        start = chunk.message_ids[0]
        del self._chunks[start]
        del self._starts[bisect_left(self._starts, start)]
        self._shadows[chunk.first] = chunk.span

    def spans(self) -> list[Range]:
        """Return the ranges of ids with a copy in the log: their marks have to be kept."""
        return merged([*(chunk.span for chunk in self), *self._shadows.values()])

    def frames(self, lo: int = 0) -> Iterator[Frame]:
        """Yield the frames from the offset ``lo`` on; damaged ones are passed over."""
        for segment, end in self._segments(lo):
            for item in segment.walk(*segment.locate(max(lo, segment.first)), check=False):
                if not isinstance(item, Record) or item.end <= lo or not item.count:
                    continue
                if item.first >= end:
                    break  # it could not be written or cut off: the next segment has it again
                try:
                    frame = read_frame(segment, item) if may_have_envelopes(segment, item) else None
                except QueueCorrupt:
                    continue  # told by the check of the log at its start, or when it is read
                if frame is not None:
                    yield frame

    def _segments(self, lo: int) -> Iterator[tuple[Segment, int]]:
        firsts = segment_offsets(self._disk, self.log.directory)
        for first, end in zip(firsts, [*firsts[1:], self.log.end], strict=True):
            if end <= lo:
                continue
            seed = self.log.identity.frame_seed
            with opened(self._disk, self.log.directory, first, seed) as segment:
                yield segment, end

    # -- copying ----------------------------------------------------------------------------------

    def put(self, copy: Copy) -> None:
        batches: list[MessageBatch] = []
        start = 0
        for row in range(1, len(copy.message_ids) + 1):
            if row == len(copy.message_ids) or copy.times[row] != copy.times[start]:
                batches.append(self._batch(copy, start, row))
                start = row
        encoded = encode(batches)
        end = self.log.append([encoded])
        message_ids = array("q", copy.message_ids)
        self._add(Chunk(end - encoded.count, message_ids, encoded.nbytes, len(message_ids)))

    def _batch(self, copy: Copy, start: int, end: int) -> MessageBatch:
        return MessageBatch(
            PROTOCOL,
            KIND,
            copy.times[start],
            client_id=self._queue_id,
            count=end - start,
            message_id=copy.message_ids[start:end],
            body=copy.bodies[start:end],
            envelope=copy.envelopes[start:end],
        )

    # -- trimming ---------------------------------------------------------------------------------

    def refresh(self, marks: Marks, changed: Callable[[Chunk], bool]) -> None:
        """Count again what still waits in the chunks that have ``changed``."""
        for start in list(self._starts):
            chunk = self._chunks[start]
            if changed(chunk):
                chunk.live = marks.live(chunk.message_ids)
                if not chunk.live:
                    self._drop(chunk)

    def trim(self, marks: Marks) -> None:
        """Remove segments without waiting messages; move what little waits in the others."""
        self._remove()
        while self.log.nbytes > 2 * self.live_bytes + self._spare and len(self.log.firsts) > 1:
            begin, bound = self.log.firsts[:2]
            for chunk in [chunk for chunk in self if begin <= chunk.first < bound]:
                self._move(chunk, marks)
            if not self._remove():
                return

    def _remove(self) -> int:
        low = min((chunk.first for chunk in self._chunks.values()), default=self.log.end)
        removed = self.log.remove_below(low)
        if removed:
            begin = self.log.begin
            self._shadows = {first: span for first, span in self._shadows.items() if first >= begin}
        return removed

    def _move(self, chunk: Chunk, marks: Marks) -> None:
        for frame in self.frames(chunk.first):
            if frame.first != chunk.first:
                break
            message_ids = chunk.message_ids
            rows = [
                row for row in range(len(message_ids)) if not marks.is_settled(message_ids[row])
            ]
            self.put(copied(frame, message_ids, rows))
            return
        self._drop(chunk)  # it cannot be read any more, which was told

    def close(self) -> None:
        self.log.close()


def copied(frame: Frame, message_ids: Sequence[int], rows: Sequence[int]) -> Copy:
    envelopes = [frame.envelope(row) for row in rows]
    bodies = [frame.body(row) for row in rows]
    nbytes = sum(map(len, envelopes)) + sum(map(len, bodies))
    return Copy(
        [message_ids[row] for row in rows],
        [frame.times[row] for row in rows],
        envelopes,
        bodies,
        nbytes,
    )
