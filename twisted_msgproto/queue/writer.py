"""The queue's writer: :class:`QueueWriter`.

Batches come from any thread.  Two threads take turns: one gathers batches and encodes them while
the other writes and syncs what it has encoded before.  So the disk and the encoding work at the
same time, and a single message is encoded and written by one thread without being handed over.

A group is committed at once when no sync is under way; what arrives during a sync is the next
group: one message alone waits for nothing, many share a sync.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum

from twisted_msgproto.core.errors import QueueClosed, QueueError, QueueFull
from twisted_msgproto.core.message import MessageBatch

from . import log as segment_log
from .columns import Encoded, encode
from .damage import Range
from .disk import OS_DISK, Disk
from .log import SegmentLog
from .recovery import Recovery

GROUP_OCTETS = 8 << 20
GROUP_MESSAGES = 16_384
AHEAD_MESSAGES = 512
AHEAD_OCTETS = 128 << 10
"""From here on what waits is encoded while the disk is busy; less is gathered until it is free."""
RETRY_DELAY_S = 0.25
"""How long the writer waits before it looks for room again."""
IDLE_S = 1.0
"""How often a writer with nothing to do looks for something to trim."""
CLOSE_TIMEOUT_S = 4.0
GIVE_UP_S = 1.0
"""How long a closing writer waits for a disk which does not answer."""

Callback = Callable[[BaseException | None], None]
Entry = tuple[MessageBatch, Callback]
Result = tuple[Entry, BaseException | None]

_logger = logging.getLogger("twisted_msgproto.queue")


class QueueWriter:
    """Writes the queue in ``directory`` in a thread of its own.

    Making one takes the lock, recovers the queue and starts the thread.  Raises QueueLocked if
    another process writes this queue, QueueError if it cannot be opened; both are one line.

    * ``max_bytes``: octets on disk above which the queue waits for its consumers;
      ``segment_bytes``: octets of one segment.
    * ``group_octets``, ``group_messages``: what one group holds at most (one batch alone may be
      larger).
    * ``commit_delay``: seconds to wait for more before a group is written; for slow disks.
    * ``retry_delay``: seconds between looks for room when there is none.
    * ``check_octets``: how much of the queue is checked before it takes messages (the newest part;
      the rest is checked when there is nothing else to do).
    * ``report``: called in the writer thread with one line when something happens which an
      operator should know; default: the logger ``twisted_msgproto.queue``.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        max_bytes: int = segment_log.MAX_BYTES,
        segment_bytes: int = segment_log.SEGMENT_BYTES,
        group_octets: int = GROUP_OCTETS,
        group_messages: int = GROUP_MESSAGES,
        commit_delay: float = 0.0,
        retry_delay: float = RETRY_DELAY_S,
        check_octets: int = segment_log.CHECK_OCTETS,
        disk: Disk = OS_DISK,
        report: Callable[[str], None] | None = None,
    ) -> None:
        self._group_octets = group_octets
        self._group_messages = group_messages
        self._commit_delay_s = commit_delay
        self._retry_delay_s = retry_delay
        self._report_to = report or _logger.warning
        self._log = SegmentLog(
            directory,
            max_bytes=max_bytes,
            segment_bytes=segment_bytes,
            check_octets=check_octets,
            disk=disk,
        )
        self.directory = self._log.directory
        self.queue_id = self._log.queue_id
        """Names this queue for good: the table's ``gateway``."""
        self.recovery: Recovery = self._log.recovery
        """What was found at start; its ``lines`` are for the log."""
        self.sync_name = disk.sync_name
        """The system call which makes a group durable, for the log."""
        self.stalled: str | None = None
        """Why nothing is written at present (no room), or None."""
        self._changed = threading.Condition()
        self._waiting: deque[Entry] = deque()
        self._unencoded_messages = 0
        self._unencoded_octets = 0
        self._waiting_messages = 0
        self._waiting_octets = 0
        self._flushing = False
        self._closing = False
        self._turn = threading.Lock()
        self._trim_at = 0.0
        self._ahead_messages = min(AHEAD_MESSAGES, group_messages)
        self._give_up = threading.Event()
        self._failure: BaseException | None = None
        # What the gathering thread has in its hands, and whether it is encoding for it just now.
        self._gathered = _Group()
        self._encoding = False
        self._groups = 0
        self._messages = 0
        self._failed_messages = 0
        self._texts_replaced = 0
        self._stalls = 0
        self._disk_errors = 0
        self._append_us = 0
        self._append_last_us = 0
        # The first Arrow encoding of a process loads what takes more than 100 ms.
        encode([MessageBatch("", "", 0, count=1, fields=[{"": ""}], body=[b""], message_id=[0])])
        self._running = 2
        self._threads = [
            threading.Thread(target=self._run, name=f"msgproto-queue-{number}", daemon=True)
            for number in (1, 2)
        ]
        for thread in self._threads:
            thread.start()

    # -- for any thread ---------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """How often published records were lost (see the document of the format)."""
        return self._log.epoch

    @property
    def begin(self) -> int:
        """The first offset which is kept."""
        return self._log.begin

    @property
    def end(self) -> int:
        """The offset after the last durable, published message."""
        return self._log.end

    @property
    def damaged(self) -> list[Range]:
        """All ranges of offsets known to be damaged or lost."""
        return self._log.damaged

    def submit(self, batch: MessageBatch, callback: Callback) -> None:
        """Give ``batch`` to the queue; never blocks.

        ``callback`` is called once, in a thread of the writer: with None when the batch is
        durable, with an exception when it is not and never will be.  Batches become durable, and
        callbacks are called one after another, in the order of submission.  Raises QueueClosed
        after :meth:`close`, or if the writer has failed.
        """
        with self._changed:
            if self._closing or self._failure is not None:
                raise QueueClosed(f"the queue {self.directory} is closed") from self._failure
            self._waiting.append((batch, callback))
            self._unencoded_messages += batch.count
            self._unencoded_octets += batch.octets
            self._waiting_messages += batch.count
            self._waiting_octets += batch.octets
            if not self._flushing or self._worth_encoding():
                self._changed.notify()

    def statistics(self) -> dict[str, int]:
        """Counters and levels as they are now; a name ends with its unit."""
        return {
            "begin_offset": self._log.begin,
            "end_offset": self._log.end,
            "epoch": self._log.epoch,
            "stored_octets": self._log.octets,
            "segments": self._log.segments,
            "waiting_messages": self._waiting_messages,
            "waiting_octets": self._waiting_octets,
            "groups": self._groups,
            "messages": self._messages,
            "failed_messages": self._failed_messages,
            "append_us": self._append_us,
            "append_last_us": self._append_last_us,
            "stalls": self._stalls,
            "stalled": int(self.stalled is not None),
            "disk_errors": self._disk_errors,
            "texts_replaced": self._texts_replaced,
            "damaged_messages": sum(hi - lo for lo, hi in self._log.damaged),
            "truncated_octets": self.recovery.truncated_octets,
            "trimmed_segments": self._log.trimmed_segments,
        }

    def close(self, timeout: float = CLOSE_TIMEOUT_S) -> bool:
        """Write what waits, stop the threads and give the lock back; True if all was written.

        After ``timeout`` seconds (a disk without room, a hanging disk) what still waits is called
        back with QueueClosed.  May be called again.
        """
        with self._changed:
            self._closing = True
            self._changed.notify()
        until = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            self._give_up.set()
            for thread in self._threads:
                thread.join(GIVE_UP_S)
        return not self._give_up.is_set() and self._failure is None

    # -- the threads ------------------------------------------------------------------------------

    def _run(self) -> None:
        group: _Group | None = None
        try:
            while True:
                # Only one gathers, until it has the disk: so groups keep their order.
                with self._turn:
                    group = self._gather()
                if group is None:
                    break
                self._flush(group)
        except BaseException as error:  # a fault of ours: say so, and leave nobody waiting
            _logger.exception("the writer of the queue %s failed", self.directory)
            with self._changed:
                self._failure = error
                self._flushing = False
            self._call_back(group.results if group is not None else [], error)
        with self._changed:
            self._closing = True
            self._changed.notify()
            self._running -= 1
            if self._running:
                return
            rest = [(entry, None) for entry in self._waiting]
            self._waiting.clear()
        self._call_back(rest, QueueClosed(f"the queue {self.directory} was closed"))
        self._log.close()

    def _gather(self) -> _Group | None:
        """Take batches and encode them until the disk is free for them; None at the end.

        A group that is returned has the disk (``_flushing`` is set).
        """
        group = self._gathered
        while True:
            with self._changed:
                step = self._await_step(group)
                if step is _Step.TAKE:
                    taken = self._take(group)
                    self._encoding = True
                elif step is not _Step.END:
                    self._flushing = True
                    if step is _Step.FLUSH:
                        self._gathered = _Group()
            if step is _Step.TAKE:
                self._encode(taken, group)
                with self._changed:
                    self._encoding = False
                    self._changed.notify()
            elif step is _Step.TIDY:
                self._tidy()
                with self._changed:
                    self._flushing = False
            else:
                return group if step is _Step.FLUSH else None

    def _await_step(self, group: _Group) -> _Step:
        """Wait until something can be done for the group, and say what."""
        changed = self._changed
        while self._failure is None:
            if self._flushing:
                if self._worth_encoding() and not group.closed:
                    return _Step.TAKE
                changed.wait()
            elif group.results:
                return _Step.FLUSH
            elif self._waiting:
                self._delay()
                return _Step.TAKE
            elif self._closing:
                return _Step.END
            elif not changed.wait(IDLE_S) and not (self._waiting or self._closing):
                return _Step.TIDY
        self._call_back(group.results, self._failure)
        return _Step.END

    def _delay(self) -> None:
        """Wait for more to come into the group, if the operator wants that."""
        until = time.monotonic() + self._commit_delay_s
        while (
            not self._closing
            and self._unencoded_octets < self._group_octets
            and self._unencoded_messages < self._group_messages
            and (left := until - time.monotonic()) > 0
        ):
            self._changed.wait(left)

    def _worth_encoding(self) -> bool:
        """Whether enough waits to be encoded while the disk is busy."""
        return (
            self._unencoded_messages >= self._ahead_messages
            or self._unencoded_octets >= AHEAD_OCTETS
        )

    def _take(self, group: _Group) -> list[Entry]:
        """Waiting batches as many as fit into the group; at least one into an empty one."""
        taken: list[Entry] = []
        messages, octets = group.messages, group.octets
        while self._waiting:
            batch = self._waiting[0][0]
            messages += batch.count
            octets += batch.octets
            if (taken or group.results) and (
                messages > self._group_messages or octets > self._group_octets
            ):
                group.closed = True
                break
            taken.append(self._waiting.popleft())
            self._unencoded_messages -= batch.count
            self._unencoded_octets -= batch.octets
            group.messages, group.octets = messages, octets
        return taken

    def _report(self, line: str) -> None:
        """Tell the operator; a fault of whoever takes the line stops at itself."""
        try:
            self._report_to(line)
        except Exception:
            _logger.exception("the report of the queue %s failed", self.directory)

    def _trim(self) -> None:
        """Remove what every consumer has behind it."""
        try:
            self._log.trim()
        except OSError as error:
            self._disk_errors += 1
            self._report(f"queue {self.directory}: {error}")

    def _tidy(self) -> None:
        """Nothing waits: trim, and check one segment which the start left out."""
        self._trim()
        try:
            lines = self._log.check_older()
        except OSError as error:
            self._disk_errors += 1
            lines = [f"queue {self.directory}: {error}"]
        for line in lines:
            self._report(line)

    def _behind(self) -> list[Result]:
        """Take away everything that was submitted and not yet written, encoded or not."""
        with self._changed:
            while self._encoding:
                self._changed.wait()
            results = self._gathered.results
            results += [(entry, None) for entry in self._waiting]
            self._gathered.clear()
            self._waiting.clear()
            self._unencoded_messages = self._unencoded_octets = 0
        return results

    def _flush(self, group: _Group) -> None:
        """Make a group durable, call back, and leave the disk to the next one.

        What was submitted behind a group which failed fails too: its submitter does not know yet,
        and without that a session would stand in the queue with a gap.  So does what is submitted
        while others are being told.
        """
        error = self._append(group.frames) if group.frames else None
        results = group.results
        while results:
            self._call_back(results, error)
            results = self._behind() if error is not None else []
        if time.monotonic() >= self._trim_at:
            self._trim_at = time.monotonic() + IDLE_S
            self._trim()
        with self._changed:
            self._flushing = False
            self._changed.notify()

    def _encode(self, taken: list[Entry], group: _Group) -> None:
        """Add frames to the group; batches which cannot be encoded get their error."""
        errors: list[BaseException | None] = [None] * len(taken)
        try:
            good = [batch for batch, _ in taken if batch.count]
            frames = [encode(good)] if good else []
        except Exception:
            # Somebody's batch is wrong.  Its neighbours go on, each in a frame of its own.
            frames = []
            for index, (batch, _) in enumerate(taken):
                try:
                    if batch.count:
                        frames.append(encode([batch]))
                except Exception as error:
                    errors[index] = error
        group.frames.extend(frames)
        group.results.extend(zip(taken, errors, strict=True))
        self._texts_replaced += sum(frame.replaced for frame in frames)

    def _append(self, frames: list[Encoded]) -> BaseException | None:
        """Append to the log, waiting for room as long as it takes; the error if it failed."""
        while True:
            began = time.perf_counter()
            try:
                self._log.append(frames)
            except QueueFull as error:
                if self.stalled is None:
                    self._stalls += 1
                    self._report(f"{error}; waiting for room")
                self.stalled = str(error)
                if self._give_up.wait(self._retry_delay_s):
                    return QueueClosed(f"the queue {self.directory} was closed: {error}")
            except OSError as error:
                self._disk_errors += 1
                self._report(f"queue {self.directory}: a group was not written: {error}")
                return QueueError(f"cannot write to the queue {self.directory}: {error}")
            else:
                break
        self._append_last_us = int((time.perf_counter() - began) * 1e6)
        self._append_us += self._append_last_us
        self._groups += 1
        self._messages += sum(frame.count for frame in frames)
        if self.stalled is not None:
            self.stalled = None
            self._report(f"queue {self.directory}: there is room again")
        return None

    def _call_back(self, results: Sequence[Result], error: BaseException | None) -> None:
        """Tell each batch's submitter its own error, or ``error``, or None.

        A callback's own fault stops at itself.
        """
        messages = octets = failed = 0
        for (batch, callback), own in results:
            result = error if own is None else own
            messages += batch.count
            octets += batch.octets
            if result is not None:
                failed += batch.count
            try:
                callback(result)
            except Exception:
                _logger.exception("a callback of the queue %s failed", self.directory)
        with self._changed:
            self._waiting_messages -= messages
            self._waiting_octets -= octets
            self._failed_messages += failed


class _Step(Enum):
    """What the gathering thread does next."""

    TAKE = "encode some of what waits"
    FLUSH = "the disk is free: write the group"
    TIDY = "nothing to do: trim and check"
    END = "closed"


class _Group:
    """What goes to the disk together: encoded frames, and who waits for them."""

    __slots__ = ("closed", "frames", "messages", "octets", "results")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Nothing is in it."""
        self.frames: list[Encoded] = []
        self.results: list[Result] = []
        # Each batch and what was wrong with it alone.
        self.messages = 0
        self.octets = 0
        self.closed = False
        # The next batch does not fit.
