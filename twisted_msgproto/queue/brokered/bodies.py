"""Read messages back from the log, many at a time: :class:`Bodies`.

A segment's file stays open and its frames are indexed once; the frames that were read last stay in
memory, because what is read next is mostly their neighbour.
"""

from __future__ import annotations

import contextlib
import os
from array import array
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from twisted_msgproto.core.broker.terms import Letter, weight
from twisted_msgproto.core.errors import QueueCorrupt, QueueError

from ..disk import Disk
from ..format import SEGMENT_HEADER_OCTETS, Record, Segment, segment_name
from ..log import SegmentLog
from ..recovery import segment_offsets
from .frames import SECOND, Frame, read_frame

OPEN_MAX = 8
FRAMES_MAX = 4
INDEX_OCTETS = 64 << 10


@dataclass(slots=True)
class Loaded:
    """What was read."""

    letters: list[Letter] = field(default_factory=list)
    unreadable: list[int] = field(default_factory=list)
    """These places are damaged, or nowhere."""
    unread: list[int] = field(default_factory=list)
    """The first of these places cannot be read now; ask for all of them again."""
    error: OSError | QueueError | None = None


class Indexed:
    """One open segment with the places of its frames."""

    def __init__(self, disk: Disk, path: str, frame_seed: int, first: int) -> None:
        self._file = disk.open(path)
        self._segment = Segment(self._file, frame_seed, first, window=INDEX_OCTETS)
        self._firsts = array("q")
        self._ends = array("q")
        self._positions = array("q")
        self._position = SEGMENT_HEADER_OCTETS
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

    def read(self, offsets: Iterable[int], places: dict[int, int] | None = None) -> Loaded:
        """Return the messages with these offsets as letters.

        ``places`` maps an offset to its place; without it both are the same.  It ends at the first
        one that cannot be read now: the disk fails, or somebody has taken the segment away.
        """
        loaded = Loaded()
        wanted = deque(sorted(offsets))
        try:
            firsts = segment_offsets(self._disk, self._directory)
            self._forget(firsts)
            while wanted:
                place = wanted[0] if places is None else places[wanted[0]]
                self._read_one(firsts, wanted[0], place, loaded)
                wanted.popleft()
        except (OSError, QueueError) as error:
            loaded.error = error
            loaded.unread = [*wanted] if places is None else [places[offset] for offset in wanted]
            self._forget([])  # a file may be open that the disk does not know any more
        return loaded

    def _read_one(self, firsts: list[int], offset: int, place: int, loaded: Loaded) -> None:
        index = bisect_right(firsts, offset) - 1
        frame = self._frame(firsts[index], offset) if index >= 0 else None
        row = offset - frame.first if frame is not None else 0
        envelope = frame.envelopes[row].as_py() if frame is not None else None
        if frame is None or envelope is None:
            self._log.check_there(offset)  # or it may be put back
            loaded.unreadable.append(place)
            return
        body = frame.bodies[row].as_py() or b""
        arrived = frame.received(row) / SECOND
        loaded.letters.append(Letter(place, weight(envelope, body), envelope, body, arrived))

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
        """Close what was trimmed: an open file would keep its octets on the disk."""
        for first in [first for first in self._open if first not in firsts]:
            self._open.pop(first).close()

    def close(self) -> None:
        self._frames.clear()
        while self._open:
            self._open.popitem()[1].close()
