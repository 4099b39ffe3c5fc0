"""The queue's append side without its thread: :class:`SegmentLog`.

Its caller's duties, in this order: :func:`~.payload.encode` batches, :meth:`SegmentLog.append`
them, and only then tell anybody that they are safe.  Everything happens in the caller's thread and
on the caller's ``Disk``, so that a simulator can drive it.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from itertools import count, pairwise
from shlex import quote
from typing import Any, Protocol

from twisted_msgproto.core.errors import QueueError, QueueFull

from ..core.disk import NO_ROOM, OS_DISK, Disk, File, Stat, exists, read_file, replace_file
from ..queue.recovery import Recovery
from . import consumers, damage, lineage, recovery
from .format import (
    EMPTY_SEGMENT_BYTES,
    END_BYTES,
    FORMAT_VERSION,
    FRAME_HEADER_BYTES,
    IDENTITY_FILE,
    SEGMENT_SUFFIX,
    Identity,
    Published,
    SegmentHeader,
    pack_frame_header,
    pack_lineage_frame,
    segment_name,
)
from .lineage import Landed, Lineage
from .payload import Encoded
from .queue_directories import URL
from .row_locator import RowLocator
from .troubles import failure

MAX_BYTES = 10 << 30
SEGMENT_BYTES = 64 << 20
UNFINISHED_SEGMENT = re.compile(r"\.\d{20}\.segment\.new", re.ASCII)  # a segment until it is synced
LOCK_FILE = "lock"
END_FILE = "end"
BROKER_NAMES = os.path.join("broker", "names")  # only beside a broker: ``docs/queue-format.md``
BROKER_SETTLED = os.path.join("broker", "settled")
CHECK_BYTES = 256 << 20  # before the queue accepts messages; the rest is checked later
SEGMENTS_PER_LOOK = 8  # so many older ones, in turn


def new_incarnation() -> int:
    """Return a random number of 63 bits for one start of a writer; never 0."""
    return secrets.randbits(lineage.NUMBER_BITS) or 1


class Keeper(Protocol):
    """Who needs messages of a log that all consumers have behind them, as a broker's queues do."""

    @property
    def missing(self) -> str | None:
        """Return which of its own files somebody has removed, and what to do; None if none."""

    def appended(self, segment: int, end: int, envelopes: int) -> None:
        """Note a durable group, before submitters are told; ``envelopes`` are for queues.

        May not block.
        """

    def releases(self, segments: Sequence[tuple[int, int, int]], *, pressed: bool) -> int:
        """Return how many of these segments (first offset, end, bytes) may be removed now.

        ``pressed``: the log is full, and waits for room.  This may not block.
        """


class SegmentLog:
    """The append side of a queue directory, for one caller at a time.

    Making one takes the queue's lock and recovers it; ``recovery`` tells what was found.  Raises
    QueueLocked if another process has the queue, QueueError if the queue cannot be opened.

    ``max_bytes`` bounds what all segments hold together, ``segment_bytes`` one segment (a single
    larger group gets a segment of its own); both in bytes.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        max_bytes: int = MAX_BYTES,
        segment_bytes: int = SEGMENT_BYTES,
        check_bytes: int = CHECK_BYTES,
        disk: Disk = OS_DISK,
    ) -> None:
        if URL.search(os.fspath(directory)):
            raise QueueError(f"{directory} is an address, and a queue a directory of this machine")
        self.directory: str = os.path.abspath(os.fspath(directory))
        self.disk: Disk = disk
        self.max_bytes: int = max_bytes
        # At the limit there are always several segments: trimming removes whole ones.
        self.segment_bytes: int = min(segment_bytes, max(max_bytes // 4, 1))
        self._file: File | None = None
        self._end_file: File | None = None
        self._sizes: dict[int, int] = {}
        # Which files the names of this queue led to when they were opened.
        self._own: dict[str, Stat] = {}
        self._looks = count()
        self.publish_failures: int = 0
        """Ends that could not be published at once; see :meth:`publish_again`."""
        self._unpublished: OSError | None = None
        self.trimmed_segments: int = 0
        self.withheld: bool = False
        """It is True if the last trim kept what no consumer needs, because of a broker's queues."""
        self.keeper: Keeper | None = None
        self._unlock: Callable[[], None] | None = None
        try:
            self._open(check_bytes)
        except OSError as error:
            self.close()
            if isinstance(error, FileExistsError | NotADirectoryError):
                raise QueueError(
                    f"cannot open the queue {self.directory}: it, or what it is in, is no directory"
                ) from error
            raise QueueError(failure(f"cannot open the queue {self.directory}", error)) from error
        except BaseException:
            self.close()
            raise

    def _open(self, check_bytes: int) -> None:
        disk, directory = self.disk, self.directory
        names = disk.names(directory) if exists(disk, directory) else []
        # An operator's slip must not close /tmp: only an empty directory, or one of ours.
        disk.make_directory(directory, close=not names or IDENTITY_FILE in names)
        self._unlock = disk.lock(
            os.path.join(directory, LOCK_FILE),
            f"queue {directory} is open for writing already",
            used=any(name == IDENTITY_FILE or name.endswith(SEGMENT_SUFFIX) for name in names),
        )
        for name in disk.names(directory):
            if UNFINISHED_SEGMENT.fullmatch(name):  # a process ended before it had its name
                with contextlib.suppress(OSError):
                    disk.remove(os.path.join(directory, name))
        disk.make_directory(os.path.join(directory, consumers.DIRECTORY))
        self._end_file = disk.open(os.path.join(directory, END_FILE), write=True)
        for path in (directory, *(os.path.join(directory, name) for name in (LOCK_FILE, END_FILE))):
            self._own[path] = disk.stat(path)
        broker_names = read_file(disk, os.path.join(directory, BROKER_NAMES))
        if broker_names:
            self._has_queues = b"queue " in broker_names
        else:  # or its next start knows the queues from their messages
            self._has_queues = exists(disk, os.path.join(directory, BROKER_SETTLED))
        found = recovery.recover(
            disk, directory, check_bytes=check_bytes, has_queues=self._has_queues
        )
        self._found = found
        self._sizes = found.sizes
        self.identity: Identity = found.identity
        self.queue_id: str = found.identity.queue_id
        """Names this queue for good: the table's ``gateway``."""
        self.end: int = found.end
        """This is the offset after the last durable message."""
        self.begin: int = next(iter(self._sizes), self.end)
        """This is the first offset that is kept."""
        self.nbytes: int = sum(self._sizes.values())
        self.recovery: Recovery = found.recovery
        self._first = next(reversed(self._sizes), self.end)
        for line in consumers.bereft(self.committed(), self.begin):
            self.recovery.lines.append(f"queue {directory}: {line}")
        self.incarnation: int = new_incarnation()
        """This number is drawn anew at every start; the rows that this writer appends have it."""
        self._start()
        # Behind the lineage, so that no loss of power can leave it out of its count.
        recovery.put_damaged(disk, directory, found)
        # What has no messages is begun anew: its head may say less than is known now.
        if found.appendable and self.end > self._first:
            self._file = disk.open(self._path(self._first), write=True)
            self._segment_path = self._path(self._first)
            self._segment = disk.stat(self._segment_path)
        else:
            try:
                self._begin_segment()
            except QueueFull as error:
                # The disk is full: what is there can be read, and appending tries again.
                self.recovery.lines.append(str(error))
        disk.sync_directory(directory)
        self._publish()
        self._end_file.sync()

    def _start(self) -> None:
        """Note this start in the lineage, before anything of it can be published."""
        here = Published(self.end, self._first, self._sizes.get(self._first, 0))
        known = lineage.read(self.disk, self.directory)
        if known is None:
            if self.end:
                self.recovery.lines.append(
                    f"the lineage of the queue {self.directory} was damaged: which start of the "
                    "gateway wrote what is not known of the messages which are there"
                )
            known = Lineage(((0, 0),))
        locator = RowLocator(
            self.disk, self.directory, self.identity, here, list(self._sizes), known
        )
        self._tail = locator.landed(self.end)
        started = known.started(self.end, self.incarnation, lost=self.recovery.lost)
        self._lineage = started.trimmed(self.begin)
        self._lineage_durable = False
        try:
            self._write_lineage()
        except QueueFull as error:
            # As below: appending tries again, and publishes nothing before.
            self.recovery.lines.append(str(error))

    def _write_lineage(self) -> None:
        if not self._lineage_durable:
            with self.no_room_is_full():
                lineage.write(self.disk, self.directory, self._lineage)
            self._lineage_durable = True

    @contextlib.contextmanager
    def no_room_is_full(self) -> Iterator[None]:
        """Raise QueueFull where the disk has no room."""
        try:
            yield
        except OSError as error:
            if error.errno in NO_ROOM:
                raise QueueFull(f"no room on the disk of {self.directory}: {error}") from error
            raise

    # -- what there is ----------------------------------------------------------------------------

    @property
    def firsts(self) -> list[int]:
        """Return the first offset of each segment, in order."""
        return list(self._sizes)

    @property
    def losses(self) -> int:
        """How often published messages were lost (see the document of the format)."""
        return self._lineage.losses

    def committed(self) -> dict[str, int]:
        """Return what each consumer has committed.  Raises OSError."""
        return consumers.read_all(self.disk, self.directory, self.queue_id)

    @property
    def damaged(self) -> list[damage.Range]:
        """All ranges of offsets known to be damaged or lost, in order."""
        return damage.merged(list(self._found.damaged))

    def _path(self, first: int) -> str:
        return os.path.join(self.directory, segment_name(first))

    # -- appending --------------------------------------------------------------------------------

    def append(self, group: Sequence[Encoded]) -> int:
        """Write ``group``, sync it, publish it; returns the new end.

        Raises QueueFull when the disk or ``max_bytes`` is used up: nothing has changed, and the
        same group may be tried again at any time.  Raises OSError when the disk failed in another
        way: the group is not in the queue, its segment is abandoned, and the next append begins
        another.  Raises QueueError when the segment's name does not lead to its file any more:
        nobody would find the group there.
        """
        nbytes = sum(FRAME_HEADER_BYTES + encoded.nbytes for encoded in group)
        try:
            self._make_room(nbytes)
            self._write_lineage()
            file = self._writable(nbytes)
            position = self._sizes[self._first]
            pieces, end = self._framed(group)
            file.write(position, pieces)
            file.sync()
            self._check_segment(position + nbytes)
        except OSError as error:
            if error.errno in NO_ROOM:
                self._cut_back()
                raise QueueFull(f"no room on the disk of {self.directory}: {error}") from error
            self._give_up_segment()
            raise
        self._sizes[self._first] = position + nbytes
        self.nbytes += nbytes
        self.end = end
        last = group[-1]
        self._tail = Landed(end, self.incarnation, lineage.witness(last.crc, last.count - 1))
        if self.keeper is not None:
            envelopes = sum([encoded.envelopes for encoded in group])
            self.keeper.appended(self._first, end, envelopes)
        self._publish()
        return end

    def _framed(self, group: Sequence[Encoded]) -> tuple[list[Any], int]:
        pieces: list[Any] = []
        end = self.end
        for encoded in group:
            pieces.append(
                pack_frame_header(
                    self.identity.frame_seed,
                    payload_crc=encoded.crc,
                    nbytes=encoded.nbytes,
                    first=end,
                    count=encoded.count,
                    runs=encoded.runs,
                )
            )
            pieces.extend(encoded.pieces)
            end += encoded.count
        return pieces, end

    def _make_room(self, nbytes: int) -> None:
        if self._file is None or self._ends_before(nbytes):
            nbytes += EMPTY_SEGMENT_BYTES
        if self.nbytes + nbytes <= self.max_bytes:
            return
        self.trim(ending=True)
        if self.nbytes + nbytes <= self.max_bytes or self.begin == self.end:
            return
        kept = self.committed()
        slowest = min(kept, key=lambda name: kept[name], default=None)
        why = "no consumer is registered" if slowest is None else f"waiting for {slowest!r}"
        if self.withheld:
            why = "messages in queues of the broker have to be copied, or consumed"
            if self.keeper is None:
                why = f"{BROKER_NAMES} tells of a broker's queues, and no broker runs"
        raise QueueFull(
            f"the queue {self.directory} holds {self.nbytes} of {self.max_bytes} bytes; {why}"
        )

    def _ends_before(self, nbytes: int) -> bool:
        has_messages = self.end != self._first
        return has_messages and self._sizes[self._first] + nbytes > self.segment_bytes

    def _writable(self, nbytes: int) -> File:
        if self._file is not None and self._ends_before(nbytes):
            self._end_segment()
        if self._file is None:
            self._begin_segment()
        assert self._file is not None
        return self._file

    def _begin_segment(self) -> None:
        """Begin a segment at the end, durably.  A file of that name holds nothing that counts.

        It is another file each time: a sync that failed may succeed the next time without anything
        on the disk, because the system calls pages clean that it could not write.

        Raises QueueFull when there is no room for it, OSError when the disk fails.
        """
        header = SegmentHeader(FORMAT_VERSION, self.identity, self.end).packed()
        header += pack_lineage_frame(
            self.identity.frame_seed,
            first=self.end,
            incarnation=self._tail.incarnation,
            witness=self._tail.witness,
        )
        path = self._path(self.end)
        with self.no_room_is_full():
            replace_file(self.disk, path, header)
            self._segment_path, self._segment = path, self.disk.stat(path)
            self._file = self.disk.open(path, write=True)
        self._first = self.end
        self.nbytes += len(header) - self._sizes.get(self.end, 0)
        self._sizes[self.end] = len(header)

    def _end_segment(self) -> None:
        """Close the segment; the published end is made durable now and then, here."""
        file, self._file = self._file, None
        with contextlib.suppress(OSError):
            if file is not None:
                file.close()
            if self._end_file is not None:
                self._end_file.sync()

    def _give_up_segment(self) -> None:
        """Cut the segment back to what is durable and abandon it, after a failed write or sync.

        A second sync of the same file may succeed without having written what the first one
        could not, so nothing is appended to it any more.
        """
        self._cut_back()
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()

    def _cut_back(self) -> None:
        """Remove what a failed write left: whole frames, which recovery would keep."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.truncate(self._sizes[self._first])

    def _publish(self) -> None:
        published = Published(self.end, self._first, self._sizes.get(self._first, 0)).packed()
        assert self._end_file is not None
        self._unpublished = None
        try:
            self._end_file.write(0, [published])
        except OSError as error:
            self.publish_failures += 1
            self._unpublished = error

    def publish_again(self) -> None:
        """Publish the end if that has failed; QueueError if it fails again."""
        if self._unpublished is not None:
            self._publish()
        if self._unpublished is not None:
            raise QueueError(
                f"cannot write {os.path.join(self.directory, END_FILE)}: {self._unpublished}"
            )

    # -- whether its files are where others find them ---------------------------------------------

    def look(self) -> None:
        """Check that readers, and the next start, will find the files that are written here.

        Raises QueueError, which says what is wrong and what to do, if somebody has removed,
        replaced or cut one; OSError if the disk fails.  What can be made again is: the file
        ``identity``, the lineage, the directory of the consumers, what ``end`` says, and the list
        of damaged ranges, for which readers wait.
        """
        emptied = False
        for path, own in self._own.items():
            found = self._named_by(path)
            if found is not None and found[:2] == own[:2]:
                emptied = path.endswith(END_FILE) and found.nbytes < END_BYTES
                continue
            if path.endswith(LOCK_FILE):
                raise QueueError(
                    f"{path} was removed or replaced, and another process may write this queue; "
                    "restart the gateway"
                )
            raise self._gone(path)
        path, sealed = os.path.join(self.directory, IDENTITY_FILE), self.identity.sealed()
        with self.no_room_is_full():
            if read_file(self.disk, path) != sealed:
                replace_file(self.disk, path, sealed)
        names = set(self.disk.names(self.directory))
        if lineage.FILE not in names:
            self._lineage_durable = False
            self._write_lineage()
        if consumers.DIRECTORY not in names:
            self.disk.make_directory(os.path.join(self.directory, consumers.DIRECTORY))
        if emptied:
            self._publish()
        with contextlib.suppress(OSError):  # it is tried again
            if damage.read(self.disk, self.directory) != self._found.damaged:
                damage.write(self.disk, self.directory, self._found.damaged)
        firsts = list(self._sizes)
        for first in firsts:
            if segment_name(first) not in names:
                raise self._gone(self._path(first))
        for _ in range(min(SEGMENTS_PER_LOOK, len(firsts))):
            self.check_there(firsts[next(self._looks) % len(firsts)])
        if self._file is not None:
            self._check_segment(self._sizes[self._first])
        if self.keeper is not None and self.keeper.missing is not None:
            raise QueueError(self.keeper.missing)

    def check_there(self, offset: int) -> None:
        """Raise QueueError if the segment with this offset was removed or cut short.

        Raises OSError from the disk.  Any thread may call it.
        """
        sizes = self._sizes.copy()
        first = max((first for first in sizes if first <= offset), default=None)
        if first is not None:
            found = self._named_by(self._path(first))
            if found is None or found.nbytes < sizes[first]:
                raise self._gone(self._path(first))

    def _check_segment(self, nbytes: int) -> None:
        found = self._named_by(self._segment_path)
        if found is None or found[:2] != self._segment[:2] or found[2] < nbytes:
            raise self._gone(self._segment_path)

    def _named_by(self, path: str) -> Stat | None:
        try:
            return self.disk.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _gone(self, path: str) -> QueueError:
        return QueueError(
            f"{path} was removed, replaced or cut short; put it back, "
            f"or restart the gateway and run msgproto queue verify {quote(self.directory)}"
        )

    # -- trimming and checking --------------------------------------------------------------------

    def trim(self, *, ending: bool = False) -> int:
        """Remove the segments that every consumer has behind it; returns how many.

        Without any consumer nothing is removed.  With ``ending`` the segment being written is
        ended first if everything in it was consumed, so that it can go too.
        """
        if len(self._sizes) == 1 and not ending:
            return 0
        committed = self.committed()
        low = min(committed.values(), default=0)
        if ending and low >= self.end > self._first:
            self._end_segment()
            self._begin_segment()
            self._publish()
        free = [
            (first, following, self._sizes[first])
            for first, following in pairwise(self._sizes)
            if following <= low
        ]
        return self._remove(free[: self._released(free, pressed=ending)])

    def _released(self, free: Sequence[tuple[int, int, int]], *, pressed: bool) -> int:
        released = len(free)
        if free and self.keeper is not None:
            released = self.keeper.releases(free, pressed=pressed)
        elif free and self._has_queues:
            released = 0  # a broker's queues are in them, and no broker runs that could copy them
        self.withheld = released < len(free)
        return released

    def remove_below(self, offset: int) -> int:
        """Remove the segments below ``offset`` but the newest; returns how many."""
        pairs = pairwise(self._sizes)
        return self._remove([(lo, hi, self._sizes[lo]) for lo, hi in pairs if hi <= offset])

    def _remove(self, segments: Sequence[tuple[int, int, int]]) -> int:
        removed = 0
        for first, following, nbytes in segments:
            self.disk.remove(self._path(first))
            del self._sizes[first]
            self.nbytes -= nbytes
            self.begin = following
            removed += 1
        if removed:
            self.disk.sync_directory(self.directory)
            self.trimmed_segments += removed
            known = self._found.damaged
            self._found.damaged = {one: why for one, why in known.items() if one[1] > self.begin}
            self._trim_lineage()
        return removed

    def _trim_lineage(self) -> None:
        """Drop the starts without remaining rows; if the disk is full, do so another time."""
        kept = self._lineage.trimmed(self.begin)
        if kept != self._lineage:
            self._lineage, self._lineage_durable = kept, False
        with contextlib.suppress(OSError, QueueFull):
            self._write_lineage()

    def check_older(self) -> list[str]:
        """Check one older segment that the start left out; lines for the log.

        Does nothing when all are checked (:attr:`unchecked` is 0).  Raises OSError for one that the
        disk cannot read now; it is checked again after the others.
        """
        found = self._found
        lines = len(found.recovery.lines)
        firsts = list(self._sizes)
        while found.unchecked:
            first = found.unchecked.pop()
            if first in self._sizes:
                bound = firsts[firsts.index(first) + 1]
                try:
                    recovery.check_segment(self.disk, self.directory, found, first, bound)
                    recovery.put_damaged(self.disk, self.directory, found)
                except OSError:
                    found.unchecked.appendleft(first)  # the others come before it
                    raise
                break
        return found.recovery.lines[lines:]

    @property
    def unchecked(self) -> int:
        """How many older segments are still to be checked."""
        return len(self._found.unchecked)

    def close(self) -> None:
        """Make the published end durable and release the lock.  May be called again."""
        if self._unlock is None:
            return
        self._end_segment()
        if self._end_file is not None:
            with contextlib.suppress(OSError):
                self._end_file.close()
        self._unlock()
        self._unlock = None
