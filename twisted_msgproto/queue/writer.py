""":class:`QueueWriter` writes the queue.

Batches come from any thread; one thread of the writer's own makes them durable.  A group is
committed at once when no sync is under way; what arrives during a sync is the next group.

Lists of small batches are encoded once a group, by the writer's thread.  A packed batch is encoded
by whoever submits it, because its bytes are still in that processor's cache.  So is a long list,
since only one thread at a time can encode it anyway.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Sequence
from shlex import quote
from typing import TYPE_CHECKING, NamedTuple, TypedDict

from twisted_msgproto.core.errors import QueueClosed, QueueError, QueueFull
from twisted_msgproto.core.message import MessageBatch
from twisted_msgproto.core.packed import kept_packed

from ..core.disk import LOOK_S, OS_DISK, Disk
from . import segment_log
from .consumers import Watch, resting
from .damage import Range
from .fair import FairQueue, GroupCost
from .payload import Encoded, encode
from .recovery import Recovery
from .segment_log import SegmentLog
from .troubles import Troubles, remedy

if TYPE_CHECKING:
    from .broker_files import BrokerState

GROUP_BYTES = 8 << 20
GROUP_MESSAGES = 16_384  # exceeded by one batch alone, or the last one's; bulk may have less
ENCODED_AT_ONCE_MESSAGES = 512  # so large a batch of lists has a frame of its own
ROW_BYTES = 32  # a row's cost in a list's frame beside its bytes: offsets, numbers, short texts
RETRY_DELAY_S = 0.25  # before what could not be written is tried again
SILENT_S = 3.0  # a disk that has not answered for this many seconds is said not to answer
SILENT_CHECK_S = 0.5
STORING = "storing"  # the one trouble that keeps messages from being acknowledged
IDLE_S = 1.0  # a writer with nothing to do checks this often whether something can be trimmed
WATCH_S = 60.0
CLOSE_TIMEOUT_S = 4.0
GIVE_UP_S = 1.0

Callback = Callable[[BaseException | None, int | None], None]  # error, or first offset


class _Entry(NamedTuple):
    """A batch that waits: itself or its frame, never both, as memory counts its bytes once."""

    messages: int
    nbytes: int
    callback: Callback
    content: MessageBatch | Encoded

    def weight(self) -> int:
        """Return the bytes that it costs in a frame: ``{}`` is not as cheap as it seems."""
        if isinstance(self.content, Encoded):
            return self.content.nbytes
        return self.nbytes + ROW_BYTES * self.messages


Result = tuple[_Entry, BaseException | None]

_logger = logging.getLogger("twisted_msgproto.queue")

_writers: weakref.WeakSet[QueueWriter] = weakref.WeakSet()


def _forked() -> None:  # pragma: no cover - runs in forked processes only
    """This process is a fork of one with writers: their threads and locks stayed behind there."""
    for writer in list(_writers):
        writer._orphan()


if hasattr(os, "register_at_fork"):  # pragma: no branch - systems without have no fork either
    os.register_at_fork(after_in_child=_forked)


class QueueOptions(TypedDict, total=False):
    """What a queue's writer takes by name; :class:`QueueWriter` explains."""

    max_bytes: int
    segment_bytes: int
    check_bytes: int
    disk: Disk
    report: Callable[[str], None] | None


class QueueWriter:
    """A writer of the queue in ``directory``, with a thread of its own.

    Making one takes the lock, recovers the queue and starts the thread.  Raises QueueLocked if
    another process writes this queue, QueueError if it cannot be opened; both are one line.

    * ``max_bytes``: above this many bytes on disk the queue waits for its consumers;
      ``segment_bytes``: bytes of one segment.
    * ``check_bytes``: how much of the queue is checked before it accepts messages (the newest
      part; the rest is checked when there is nothing else to do).
    * ``report``: called in a thread of the writer's with one line when something happens that an
      operator should know (first of all what the start has found: damage, a torn tail); default:
      the logger ``twisted_msgproto.queue``.

    What cannot be stored is tried again until it can, or until the writer is closed: batches wait
    meanwhile, :attr:`stalled` says why, and so does a line, once a minute.  That holds for a full
    disk and for a broken one, for one that does not answer, and for files that somebody has
    removed, replaced or cut: a batch is durable once readers, and the next start, can find it.

    A process that is forked from this one cannot write: what it submits raises QueueClosed.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        max_bytes: int = segment_log.MAX_BYTES,
        segment_bytes: int = segment_log.SEGMENT_BYTES,
        check_bytes: int = segment_log.CHECK_BYTES,
        disk: Disk = OS_DISK,
        report: Callable[[str], None] | None = None,
    ) -> None:
        self._report_to = report or _logger.warning
        self._log = SegmentLog(
            directory,
            max_bytes=max_bytes,
            segment_bytes=segment_bytes,
            check_bytes=check_bytes,
            disk=disk,
        )
        self.directory: str = self._log.directory
        self.queue_id: str = self._log.queue_id
        """Names this queue for good: the table's ``gateway``."""
        self.recovery: Recovery = self._log.recovery
        """This was found at start; its ``lines`` are reported."""
        self.stalled: str | None = None
        """Why nothing can be stored at present, in a few words, or None."""
        # When the disk was asked for something, and whether somebody waits for its answer.
        self._asked: tuple[float, bool] | None = None
        self._look_at = 0.0
        self._changed = threading.Condition()
        self._waiting: FairQueue[_Entry] = FairQueue()  # not taken by the thread yet
        self._cost = GroupCost()
        self._waiting_messages = 0  # not called back yet
        self._waiting_bytes = 0
        self._idle = False  # the thread waits for something to do
        self._closing = False
        self._trim_at = 0.0
        self._watch_at = 0.0
        self._watch = Watch()
        self._check_at = 0.0
        self._troubles = Troubles(self._report)
        self._broker: BrokerState | None = None
        self._broker_at = time.monotonic() + WATCH_S  # a broker has joined by then
        self._give_up = threading.Event()
        self._failure: BaseException | None = None
        self._groups = 0
        self._messages = 0
        self._failed_messages = 0
        self._stalls = 0
        self._disk_errors = 0
        self._append_us = 0
        # The first Arrow encoding of a process loads what takes more than 100 ms.
        encode([MessageBatch("", "", 0, count=1, fields=[{"": ""}], body=[b""], message_id=[0])])
        self._thread = threading.Thread(target=self._run, name="msgproto-queue", daemon=True)
        self._thread.start()
        self._ended = threading.Event()
        threading.Thread(target=self._watch_disk, name="msgproto-queue-disk", daemon=True).start()
        _writers.add(self)

    # -- for any thread ---------------------------------------------------------------------------

    @property
    def losses(self) -> int:
        """How often published messages were lost (see the document of the format)."""
        return self._log.losses

    @property
    def begin(self) -> int:
        """Return the first offset that is kept."""
        return self._log.begin

    @property
    def end(self) -> int:
        """Return the offset after the last durable, published message."""
        return self._log.end

    @property
    def damaged(self) -> list[Range]:
        """All ranges of offsets known to be damaged or lost."""
        return self._log.damaged

    @property
    def max_bytes(self) -> int:
        """Return how many bytes the queue may hold on disk."""
        return self._log.max_bytes

    @property
    def refusal(self) -> str | None:
        """Return why nothing can be submitted any more, or None."""
        if self._failure is not None:
            return f"the queue's writer failed: {self._failure}"
        return "the queue is closed" if self._closing else None

    @property
    def unreadable(self) -> str | None:
        """Return the error of a read that fails at present and is repeated, or None."""
        errors = [error for what, error in self._troubles.errors().items() if what != STORING]
        if self._broker is not None:
            errors += self._broker.read_errors()
        return str(errors[0]) if errors else None

    def submit(self, batch: MessageBatch, callback: Callback) -> None:
        """Submit ``batch`` to the queue; never blocks.

        ``callback`` is called once, in the writer's thread: with (None, FIRST) when the batch is
        durable, whose messages have the offsets from FIRST on; with (error, None) when it is not
        and never will be.  The batches of one session
        (``batch.session``) become durable, and are called back, in the order of submission;
        sessions take turns.  Raises QueueClosed after :meth:`close`, or if the writer
        has failed.
        """
        entry = _Entry(batch.count, batch.nbytes, callback, self._encoded_at_once(batch))
        session: Hashable = batch.session or (batch.protocol, batch.peer)
        weight = entry.weight()
        with self._changed:
            if self._closing or self._failure is not None:
                why = f": {self._failure}" if self._failure is not None else ""
                raise QueueClosed(f"the queue {self.directory} is closed{why}") from self._failure
            self._waiting.add(session, entry, entry.messages, weight)
            self._waiting_messages += entry.messages
            self._waiting_bytes += entry.nbytes
            if self._idle:
                self._changed.notify()

    def broker(self) -> BrokerState:
        """Return what a broker keeps on disk over this queue.

        Call it once, before the first batch is submitted, and close what it returns before the
        writer.  Its lines go where the writer's go.  Raises QueueError if the broker's files cannot
        be opened.
        """
        from .broker_files import BrokerState

        self._broker = BrokerState(self._log, report=self._report)
        return self._broker

    @staticmethod
    def _encoded_at_once(batch: MessageBatch) -> MessageBatch | Encoded:
        packed = kept_packed(batch.body) or kept_packed(batch.fields)
        if not packed and batch.count < ENCODED_AT_ONCE_MESSAGES:
            return batch
        try:
            return encode([batch])
        except Exception:
            return batch  # the thread meets the same error and tells it to the callback

    def statistics(self) -> dict[str, int]:
        """Counters and levels as they are now; a name ends with its unit."""
        return {
            "begin_offset": self._log.begin,
            "end_offset": self._log.end,
            "losses": self._log.losses,
            "stored_bytes": self._log.nbytes,
            "segments": len(self._log.firsts),
            "waiting_messages": self._waiting_messages,
            "waiting_bytes": self._waiting_bytes,
            "groups": self._groups,
            "messages": self._messages,
            "failed_messages": self._failed_messages,
            "append_us": self._append_us,
            "stalls": self._stalls,
            "stalled": int(self.stalled is not None),
            "disk_errors": self._disk_errors,
            "damaged_messages": sum(hi - lo for lo, hi in self._log.damaged),
            "trimmed_segments": self._log.trimmed_segments,
        }

    def close(self, timeout: float = CLOSE_TIMEOUT_S) -> bool:
        """Write what waits, stop the thread and release the lock; return True if all was written.

        After ``timeout`` seconds (a full, slow or hanging disk) what still waits is called back
        with QueueClosed.  May be called again.
        """
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout)
        if self._thread.is_alive():
            self._give_up.set()
            self._thread.join(GIVE_UP_S)
        return not self._give_up.is_set() and self._failure is None

    # -- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        taken: list[_Entry] | None = None
        try:
            for line in list(self.recovery.lines):
                self._report(line)
            while (taken := self._take()) is not None:
                if taken:
                    self._commit(taken)
                else:
                    self._tidy()
        except BaseException as error:  # a fault of ours: say so, and leave nobody waiting
            _logger.exception("the writer of the queue %s failed", self.directory)
            with self._changed:
                self._failure = error
            self._call_back([(entry, None) for entry in taken or ()], error)
        with self._changed:
            behind = [(entry, None) for entry in self._waiting.clear()]
        self._call_back(behind, QueueClosed(f"the queue {self.directory} was closed"))
        self._ended.set()
        self._log.close()

    def _orphan(self) -> None:  # pragma: no cover - runs in forked processes only
        """Refuse all work: no thread of this process would ever do it."""
        self._changed = threading.Condition()  # the other one may be held for ever
        self._failure = QueueError(
            "it was opened before this process was forked; open it afterwards"
        )

    def _take(self) -> list[_Entry] | None:
        """Wait for a group of batches; empty for a while without, None when closed and done."""
        with self._changed:
            self._asked = None
            if not self._waiting.entries and not self._closing:
                self._idle = True
                self._changed.wait(IDLE_S)
                self._idle = False
            if self._give_up.is_set():
                return None
            if not self._waiting.entries:
                return None if self._closing else []
            return self._waiting.take(GROUP_MESSAGES, self._cost.bytes_max(GROUP_BYTES))

    def _report(self, line: str) -> None:
        try:
            self._report_to(line)
        except Exception:
            _logger.exception("the report of the queue %s failed", self.directory)

    def _trim(self) -> None:
        self._asked = time.monotonic(), False
        try:
            self._log.trim()
            self._look_at_broker()
            self._look_at_consumers()
        except OSError as error:
            self._disk_errors += 1
            self._troubles.met("trim", error, f"queue {self.directory}: {error}; trying again")
        else:
            self._troubles.over("trim", f"queue {self.directory}: it can be trimmed again")

    def _look_at_broker(self) -> None:
        missing = self._log.keeper is None and self._log.withheld
        if missing and time.monotonic() >= self._broker_at:
            self._broker_at = math.inf
            self._report(
                f"queue {self.directory}: messages of a broker's queues are kept, and no server "
                f"with queues runs. If nobody wants them: remove {self.directory}/broker"
            )

    def _look_at_consumers(self) -> None:
        now = time.monotonic()
        if now < self._watch_at:
            return
        self._watch_at = now + WATCH_S
        rests = resting(self.directory)
        awaited = {name: at for name, at in self._log.committed().items() if name not in rests}
        for name in self._watch.look(awaited, self._log.end, now):
            self._report(
                f"queue {self.directory}: the consumer {name!r} has not moved for "
                f"{self._watch.still[name] / 3600:.1f} h; what it needs is kept. If it is gone: "
                f"msgproto queue consumers {quote(self.directory)} --forget {quote(name)}"
            )

    def _tidy(self) -> None:
        if self._attempt(self._look) is not None:
            return
        self._trim()
        self._asked = time.monotonic(), False
        if time.monotonic() < self._check_at:
            return
        try:
            lines = self._log.check_older()
        except OSError as error:
            self._disk_errors += 1
            self._check_at = time.monotonic() + WATCH_S
            line = f"queue {self.directory}: {error}; it is read again later{remedy(error)}"
            self._troubles.met("check", error, line)
            return
        if not self._log.unchecked:
            self._troubles.over("check", f"queue {self.directory}: all of it can be read again")
        for line in lines:
            self._report(line)

    def _commit(self, taken: list[_Entry]) -> None:
        began, stalls = time.perf_counter(), self._stalls
        frames, results = self._encoded(taken)
        error = self._append(frames) if frames else None
        first = self._log.end - sum([frame.count for frame in frames])
        if error is None and stalls == self._stalls:
            weight = sum(entry.weight() for entry in taken)
            self._cost.learn(weight, time.perf_counter() - began)
        self._call_back(results, error, first)
        results.clear()
        taken.clear()
        if time.monotonic() >= self._trim_at:
            self._trim_at = time.monotonic() + IDLE_S
            self._trim()

    def _encoded(self, taken: list[_Entry]) -> tuple[list[Encoded], list[Result]]:
        frames: list[Encoded] = []
        errors: list[BaseException | None] = []
        gathered: list[MessageBatch] = []
        for entry in taken:
            if isinstance(entry.content, Encoded):
                errors += self._encode(gathered, frames)
                gathered = []
                frames.append(entry.content)
                errors.append(None)
            else:
                gathered.append(entry.content)
        errors += self._encode(gathered, frames)
        return frames, list(zip(taken, errors, strict=True))

    @staticmethod
    def _encode(batches: list[MessageBatch], frames: list[Encoded]) -> list[BaseException | None]:
        errors: list[BaseException | None] = [None] * len(batches)
        good = [batch for batch in batches if batch.count]
        try:
            if good:
                frames.append(encode(good))
        except Exception:
            # Somebody's batch is wrong.  Its neighbours go on, each in a frame of its own.
            for index, batch in enumerate(batches):
                try:
                    if batch.count:
                        frames.append(encode([batch]))
                except Exception as error:
                    errors[index] = error
        return errors

    def _append(self, frames: list[Encoded]) -> BaseException | None:
        """Store a group: durable, published, to be found; return an error if closed before."""
        written = False

        def store() -> None:
            nonlocal written
            self._look()
            if not written:
                began = time.perf_counter()
                self._log.append(frames)
                written = True
                self._append_us += int((time.perf_counter() - began) * 1e6)
            self._look()  # the sync may have taken long
            self._log.publish_again()

        while (error := self._attempt(store)) is not None:
            if self._give_up.wait(RETRY_DELAY_S):
                return QueueClosed(f"the queue {self.directory} was closed: {error}")
            if isinstance(error, QueueFull):
                self._trim()  # what was consumed meanwhile may be the room
        self._groups += 1
        self._messages += sum(frame.count for frame in frames)
        return None

    def _look(self) -> None:
        now = time.monotonic()
        if self.stalled is not None or now >= self._look_at:
            self._log.look()
            self._log.publish_again()
            self._look_at = now + LOOK_S

    # -- why nothing can be stored ----------------------------------------------------------------

    def _attempt(self, work: Callable[[], None]) -> QueueError | OSError | None:
        self._asked = time.monotonic(), True
        try:
            work()
        except (QueueError, OSError) as error:
            why = str(error)
            if isinstance(error, OSError):
                self._disk_errors += 1
                why = f"cannot write to the queue {self.directory}: {error}"
            with self._changed:
                self._asked = None
                self._stall(why)
            self._tell_stalled(why, error)
            return error
        with self._changed:
            self._asked = self.stalled = None
        self._troubles.over(STORING, f"queue {self.directory}: messages are acknowledged again")
        return None

    def _stall(self, why: str) -> None:
        self._stalls += self.stalled is None
        self.stalled = why

    def _tell_stalled(self, why: str, error: Exception) -> None:
        line = f"nothing can be acknowledged: {why}; trying again"
        self._troubles.met(STORING, error, line)

    def _watch_disk(self) -> None:
        while not self._ended.wait(SILENT_CHECK_S):
            with self._changed:
                asked_at, missed = self._asked or (math.inf, False)
                waits = time.monotonic() - asked_at
                if waits < SILENT_S or not (missed or self._waiting_messages):
                    continue
                why = f"the disk of {self.directory} has not answered for {waits:.0f} s"
                self._stall(why)
            self._tell_stalled(why, TimeoutError(why))

    def _call_back(
        self, results: Sequence[Result], error: BaseException | None, first: int = 0
    ) -> None:
        """Tell each submitter its error, or ``error``, or its offset; its fault stops at itself."""
        messages = nbytes = failed = 0
        for entry, own in results:
            result = error if own is None else own
            messages += entry.messages
            nbytes += entry.nbytes
            place = first if result is None else None
            if result is None:
                first += entry.messages
            else:
                failed += entry.messages
            try:
                entry.callback(result, place)
            except BaseException:  # also what would end a thread: nobody may miss his callback
                _logger.exception("a callback of the queue %s failed", self.directory)
        with self._changed:
            self._waiting_messages -= messages
            self._waiting_bytes -= nbytes
            self._failed_messages += failed
