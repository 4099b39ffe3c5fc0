""":class:`BrokerState` is what a broker keeps on disk, beside the queue's log.

The broker's queues are not written anywhere: they are made again from the log.  Its files
say what the log cannot say: the names of the queues, what is done, and the messages that wait for
longer than the log keeps them.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import chain, pairwise

from twisted_msgproto.core.broker.message_table import SMALL, MessageTable
from twisted_msgproto.core.broker.terms import QueueName
from twisted_msgproto.core.errors import QueueClosed, QueueCorrupt, QueueError, QueueFull

from ...core.disk import Disk, read_file
from ..arrays import compute
from ..format import Record
from ..format import Segment as LogSegment
from ..recovery import QUARANTINE, opened
from ..segment_log import SegmentLog
from ..troubles import Troubles, failure, remedy
from . import names, queue_scan, settled
from .marks import OPEN_END, Marks, ranges_of
from .message_frames import Bodies, Frame, Loaded, neighbours_joined
from .names import FILE as NAMES_FILE
from .names import Names
from .overflow import COPY_BYTES, COPY_MESSAGES, Chunk, Copy, OverflowLog, copied
from .settled import Group, SettledFile

DIRECTORY = "broker"
PIN_BYTES = 1 << 30  # of the log, at most, are kept for the queues alone; older ones are copied
PIN_SHARE = 4


READING, COPYING, MOVING = "messages of queues", "messages that wait for long", "old messages"
CALM_SECONDS = 5.0  # without a failure messages can be read again: who waits asks each second


class BrokerState:
    """A broker's durable queues, over the log of one queue directory.

    Making one reads its files, and lets nothing of the log go that a queue needs.  Then call
    :meth:`restored` once, before anything is published.  :meth:`tend` does all the work that
    writes; call it about once a second.  It and :meth:`restored`, :meth:`declare`, :meth:`load` and
    :meth:`close` wait for the disk: call them off the reactor's thread.  The other methods only
    note something, and never wait.

    ``report`` is called with one line when something happens that an operator should know, from any
    thread.  Raises QueueError if the files cannot be opened.
    """

    def __init__(self, log: SegmentLog, *, report: Callable[[str], None]) -> None:
        compute()  # its import would otherwise come in the midst of a turn of the reactor
        self._log = log
        self._report = report
        self._pin = min(PIN_BYTES, log.max_bytes // PIN_SHARE)
        self._directory = os.path.join(log.directory, DIRECTORY)
        self._mutex = threading.Lock()  # guards what follows, and is held while files are written
        self._reading = threading.Lock()
        self._marks = Marks()
        self._settled: deque[Sequence[int]] = deque()
        self._moved: deque[tuple[Sequence[int], QueueName]] = deque()
        self._noting = threading.Lock()  # guards the next one, for moments only
        # A message may come back again and again while the disk stalls.
        self._tries = MessageTable(SMALL)
        self._appended: deque[tuple[int, int, int]] = deque()
        self._wanted: list[tuple[int, int]] = []  # segments that are to be copied
        self._copied: set[int] = set()  # and those that are
        self._changed: set[int] = set()  # segments whose chunks have to be counted again
        self._forgotten: set[QueueName] = set()
        self._dropped = False  # the file ``settled`` tells of offsets that will be given again
        self._dirty = False  # the file ``settled`` is not what the marks say
        self._troubles = Troubles(report)
        self._restored = self._closed = False
        self.missing: str | None = None
        disk, queue_id = log.disk, log.queue_id
        try:
            disk.make_directory(self._directory)
            # What a killed process had not synced is relied upon from now on.
            disk.sync_directory(self._directory)
            self._names = Names(disk, self._directory, queue_id)
            self._names.renew()
            self._file = SettledFile(disk, self._directory, queue_id)
            self._overflow = OverflowLog(disk, self._directory, queue_id, begin=log.begin)
            try:
                for line in self._overflow.lines:
                    report(f"broker: {line}")
                self._read_settled()
            except BaseException:
                self._overflow.close()
                raise
        except OSError as error:
            raise QueueError(failure(f"cannot open {self._directory}", error)) from error
        self._bodies = Bodies(log)
        self._kept_bodies = Bodies(self._overflow.log)
        log.keeper = self

    # -- starting ---------------------------------------------------------------------------------

    def _read_settled(self) -> None:
        firsts = self._log.firsts
        for lo, hi in self._overflow.spans():
            if lo < self._log.begin:
                self._marks.begun(lo, min(hi, self._log.begin))
        for first, end in pairwise(firsts):
            self._marks.begun(first, end)
        if firsts:
            self._marks.begun(firsts[-1])
        self._marks.limit = self._log.end
        found = self._file.read()
        again = "what it says is settled is delivered again"
        if found is not None:
            path = os.path.join(self._directory, settled.FILE)
            if not found.ours:
                self._report(f"broker: {path} is damaged or is another queue's: {again}")
                aside = os.path.join(self._log.directory, QUARANTINE)
                self._log.disk.make_directory(aside)
                self._log.disk.rename(path, os.path.join(aside, f"broker-{settled.FILE}"))
            nonsense = settled.taken(found.groups, self._marks)
            # What is there may be what a disk could not write, if that process was killed then.
            self._dirty = True
            if found.damaged_bytes or nonsense:
                self._report(
                    f"broker: {found.damaged_bytes} bytes of {path} are damaged, {nonsense} "
                    f"groups make no sense: {again}"
                )
        self._dropped = self._marks.drop_from(self._log.end)
        self._marks.limit = OPEN_END
        if self._dropped:
            self._report(
                f"broker: {os.path.join(self._directory, settled.FILE)} tells of messages behind "
                f"the end of the log, {self._log.end}: the log was restored from an older copy"
            )
        self._overflow.refresh(self._marks, lambda chunk: True)
        if self._names.damaged and not (self._names.missing and found is None):
            self._report(
                f"broker: {os.path.join(self._directory, NAMES_FILE)} is missing, damaged or "
                "another queue's: its queues are known from their messages alone"
            )

    def restored(self) -> queue_scan.Queues:
        """Return what waits in each queue, in order; queues without messages are there too.

        Reads those segments of the log where something may wait.  Raises QueueError for what the
        disk cannot read now, and is closed then: without it, messages would be in no queue.
        """
        try:
            return self._find()
        except BaseException:
            self.close()
            raise

    def _find(self) -> queue_scan.Queues:
        with self._mutex:
            found = queue_scan.Scan(self._names, self._marks)
            try:
                for frame in self._overflow.frames():
                    if frame.message_ids is not None and self._overflow.current(frame):
                        found.add(frame, frame.message_ids)
                found.order()
                for first in self._log.firsts:
                    self._scan(found, first)
            except OSError as error:
                why = failure(f"cannot find what waits in queues of {self._log.directory}", error)
                raise QueueError(why) from error
            if found.nonsense:
                self._report(
                    f"broker: {found.nonsense} messages have envelopes that make no sense; "
                    "they are in no queue"
                )
            for name in self._names.first:
                found.queues.setdefault(name, queue_scan.Waiting())
            if self._dropped:  # before an offset is given again
                self._write_again()
            elif self._dirty:
                self._attempt("what is settled", self._write_again)
            self._restored = True
            return found.queues

    def _write_again(self) -> None:
        self._file.write(Group(), self._marks)
        self._dropped = self._dirty = False

    def _scan(self, found: queue_scan.Scan, first: int) -> None:
        outstanding = 0
        with self._opened(first) as segment:
            for frame in neighbours_joined(self._frames(segment, self._tell_damaged)):
                outstanding += found.add(frame)
        self._marks.begun(first).outstanding = outstanding

    def _frames(
        self, segment: LogSegment, damaged: Callable[[Record, QueueCorrupt], None]
    ) -> Iterator[Frame]:
        end = min(self._marks.begun(segment.first).end, self._log.end)
        return queue_scan.frames(segment, self._marks, end, damaged)

    def _tell_damaged(self, record: Record, error: QueueCorrupt) -> None:
        self._report(
            f"broker: offsets {record.first} to {record.end} are damaged ({error}): "
            "what they held is in no queue"
        )

    def _opened(self, first: int) -> AbstractContextManager[LogSegment]:
        log = self._log
        return opened(log.disk, log.directory, first, log.identity.frame_seed)

    # -- what the broker says; none of this waits -------------------------------------------------

    @property
    def end(self) -> int:
        """Return the offset behind all messages that are acknowledged: that of a new queue."""
        return self._log.end

    def settle(self, message_ids: Sequence[int]) -> None:
        """Note that these messages are done with; ``message_ids`` may not change any more."""
        self._settled.append(message_ids)

    def tried(self, tries: Mapping[int, int]) -> None:
        with self._noting:
            self._tries.extend(list(tries), list(tries.values()))

    def move(self, message_ids: Sequence[int], to: QueueName, *, tries: bool) -> None:
        """Note that messages are in the queue ``to`` from now on; ``tries``: with their tries."""
        self._moved.append((message_ids, to))
        if not tries:
            with self._noting:
                for message_id in message_ids:
                    self._tries.insert(message_id, 0)

    def forget(self, name: QueueName) -> None:
        self._forgotten.add(name)  # at once: what is declared afterwards is known again

    # -- what takes time --------------------------------------------------------------------------

    def declare(self, names: Mapping[QueueName, int]) -> None:
        """Make queues durable before the first message to them is acknowledged.

        Each has its first offset: :attr:`end` as it was before that message was submitted.  Raises
        QueueFull without room on the disk, OSError if it fails; then there is none of them.
        QueueClosed after :meth:`close`: another process may have the queue.
        """
        with self._mutex:
            if self._closed:
                raise QueueClosed(f"the broker's files in {self._directory} are closed")
            self._forgotten.difference_update(names)
            with self._log.no_room_is_full():
                self._names.declare(names)

    def load(self, message_ids: Sequence[int]) -> Loaded:
        """Read messages back, as many as possible; what cannot be read now is ``unread``."""
        with self._reading:
            if self._closed:
                closed = QueueClosed(f"the broker's files in {self._directory} are closed")
                return Loaded(unread=sorted(message_ids), error=closed)
            loaded = self._bodies.read(
                message_id for message_id in message_ids if message_id >= self._log.begin
            )
            missing = set(message_ids).difference(
                [message.message_id for message in loaded.messages]
            )
            # What was trimmed meanwhile was copied before; nothing is moved under the lock.
            with self._mutex:
                kept = {at: one for one in missing if (at := self._overflow.where(one)) is not None}
                found = self._kept_bodies.read(kept, kept)
        missing.difference_update([message.message_id for message in found.messages])
        unread = missing.intersection([*loaded.unread, *found.unread])
        loaded.unread, loaded.unreadable = sorted(unread), sorted(missing - unread)
        loaded.messages += found.messages
        loaded.messages.sort(key=lambda message: message.message_id)
        loaded.error = (loaded.error or found.error) if unread else None
        if loaded.error is not None:
            line = f"broker: {READING} cannot be read now: {loaded.error}; trying again"
            self._troubles.met(READING, loaded.error, line + remedy(loaded.error))
        if loaded.unreadable:
            self._report(
                f"broker: {len(loaded.unreadable)} messages cannot be read any more, at offsets "
                f"from {min(loaded.unreadable)} on; they are dropped from their queues"
            )
        return loaded

    def tend(self) -> None:
        """Write, copy and remove; what fails is told in a line, and tried again the next time."""
        with self._mutex:
            if self._restored and not self._closed:
                self._tend()

    def flush(self) -> None:
        """Write what was noted; raises OSError or QueueFull, and then :meth:`tend` tries again."""
        with self._mutex:
            if self._restored and not self._closed:
                self._write_settled()

    def _tend(self) -> None:
        self._attempt("what is settled", self._write_settled)
        self._attempt("the names of queues", self._write_names)
        self._attempt("its log", self._look)
        self._attempt(COPYING, self._copy_wanted)
        self._attempt(MOVING, self._trim)
        self._troubles.over(READING, f"broker: {READING} can be read again", CALM_SECONDS)

    def _look(self) -> None:
        """Note whether copies are gone: unlike the other files they cannot be written again."""
        try:
            self._overflow.log.look()
        except QueueFull:
            raise
        except QueueError as error:
            self.missing = str(error)
        else:
            self.missing = None

    def _attempt(self, what: str, work: Callable[[], None]) -> None:
        try:
            work()
        except (OSError, QueueFull) as error:
            line = f"broker: {what} cannot be written: {error}; trying again"
            self._troubles.met(what, error, line)
        else:
            self._troubles.over(what, f"broker: {what} can be written again")

    def _take_appended(self) -> None:
        while self._appended:
            first, _, envelopes = self._appended.popleft()
            self._marks.begun(first).outstanding += envelopes

    def _write_settled(self) -> None:
        if self._file.removed():
            self._dirty = True
        # In this order: what was settled was appended before, and what belongs to a segment was
        # appended before that segment was ended.
        ended = list(pairwise(self._log.firsts))
        group = self._take_noted()
        self._take_appended()
        for message_id, tries in group.tries:
            self._marks.note_tries(message_id, tries)
        self._marks.moved.merge(group.moved)
        self._changed |= self._marks.settle(group.settled)
        for first, end in ended:
            segment = self._marks.begun(first)
            segment.end = min(segment.end, end)  # the one behind it may have no message yet
            if not segment.done and not segment.outstanding:
                segment.finish()
                group.settled.append((segment.first, segment.end))
        if group or self._dirty:
            self._dirty = True  # until it is written
            self._file.write(group, self._marks)
            self._dirty = False

    def _take_noted(self) -> Group:
        group = Group()
        message_ids: list[int] = []
        while self._settled:
            message_ids.extend(self._settled.popleft())
        group.settled = ranges_of(message_ids)
        while self._moved:  # behind those: nothing is moved, or tried, after it is settled
            group.moved.note(*self._moved.popleft())
        with self._noting:
            group.tries, self._tries = self._tries, MessageTable(SMALL)
        return group

    def _write_names(self) -> None:
        self._names.write()
        forgotten = set(self._forgotten)
        if forgotten:
            # A queue is known as long as messages are in its dead letters.
            used = self._marks.moved.queues()
            gone = {name for name in forgotten if not used & {name, name.dead}}
            self._names.forget(gone)
            self._forgotten -= gone

    # -- the log's segments -----------------------------------------------------------------------

    def appended(self, segment: int, end: int, envelopes: int) -> None:
        self._appended.append((segment, end, envelopes))

    def releases(self, segments: Sequence[tuple[int, int, int]], *, pressed: bool) -> int:
        if self._closed or not self._restored or not self._mutex.acquire(blocking=False):
            return 0
        try:
            self._take_appended()
            free = 0
            while free < len(segments) and self._free(segments[free][0]):
                free += 1
            held = list(segments[free:])
            nbytes = sum(size for _, _, size in held)
            self._wanted = []
            for first, following, size in held:
                if nbytes <= self._pin and not (pressed and not self._wanted):
                    break
                self._wanted.append((first, following))
                nbytes -= size
            return free
        finally:
            self._mutex.release()

    def _free(self, first: int) -> bool:
        return first in self._copied or not self._marks.begun(first).outstanding

    def _copy_wanted(self) -> None:
        wanted, self._wanted = self._wanted, []
        for first, following in wanted:
            if first in self._log.firsts and not self._free(first):
                self._copy(first, following)
                self._copied.add(first)

    def _copy(self, first: int, following: int) -> None:
        copy = Copy([], [], [], [])
        members = queue_scan.Scan(self._names, self._marks).members
        with self._opened(first) as segment:
            for frame in self._frames(segment, lambda record, error: None):  # told at the start
                message_ids = range(frame.first, min(frame.end, following))
                unsettled = self._marks.unsettled(message_ids.start, message_ids.stop)
                rows = sorted(chain(*members(frame.heads(), message_ids, unsettled).values()))
                for start in range(0, len(rows), COPY_MESSAGES):
                    copy.add(copied(frame, message_ids, rows[start : start + COPY_MESSAGES]))
                    if len(copy.message_ids) >= COPY_MESSAGES or copy.nbytes >= COPY_BYTES:
                        self._overflow.put(copy)
                        copy = Copy([], [], [], [])
        if copy.message_ids:
            self._overflow.put(copy)

    def _trim(self) -> None:
        begin = self._log.begin
        self._copied = {first for first in self._copied if first >= begin}
        changed, self._changed = self._changed, set()

        def has_changed(chunk: Chunk) -> bool:
            segment = self._marks.of(chunk.message_ids[0])
            return segment is None or segment.first in changed

        self._overflow.refresh(self._marks, has_changed)
        self._overflow.trim(self._marks)
        spans = self._overflow.spans()
        for segment in list(self._marks):
            index = bisect_left(spans, (segment.end, 0)) - 1
            if segment.end <= begin and (index < 0 or spans[index][1] <= segment.first):
                self._marks.drop(segment.first)

    # -- what fails, and the end ------------------------------------------------------------------

    def failing(self) -> int:
        """Return how many kinds of its work fail at present, and are tried again."""
        return len(self._troubles.errors())

    def read_errors(self) -> list[Exception]:
        return [
            error
            for what, error in self._troubles.errors().items()
            if what in (READING, COPYING, MOVING) and not isinstance(error, QueueFull)
        ]

    def close(self) -> None:
        """Write what was noted; the log keeps what its queues need.  May be called again."""
        with self._reading, self._mutex:
            if self._closed:
                return
            if self._restored:
                self._attempt("what is settled", self._write_settled)
                self._attempt("the names of queues", self._write_names)
            self._closed = True
            self._file.close()
            self._bodies.close()
            self._kept_bodies.close()
            self._overflow.close()


def has_broker(disk: Disk, directory: str) -> bool:
    return read_file(disk, os.path.join(directory, DIRECTORY, names.FILE)) is not None


def faults(disk: Disk, directory: str, queue_id: str) -> Iterator[str]:
    here = os.path.join(directory, DIRECTORY)
    data = read_file(disk, os.path.join(here, names.FILE))
    if data is not None and names.parsed(data, queue_id) is None:
        yield (
            f"{DIRECTORY}/{names.FILE}: damaged, or of another queue; the next start of the "
            "gateway knows the queues from their messages"
        )
    data = read_file(disk, os.path.join(here, settled.FILE))
    if data is None:
        return
    found = settled.parsed(data, queue_id)
    if not found.ours:
        yield f"{DIRECTORY}/{settled.FILE}: damaged header, or of another queue; nothing is settled"
    if found.damaged_bytes:
        yield (
            f"{DIRECTORY}/{settled.FILE}: {found.damaged_bytes} damaged bytes; what they settled "
            "is delivered again"
        )
