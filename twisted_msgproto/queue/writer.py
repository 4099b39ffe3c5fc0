"""The queue's writer thread: :class:`QueueWriter`.

Batches come from any thread; one thread encodes them, writes and syncs a group, and calls back.
A group is committed at once when no sync is under way, and what arrives during a sync is the next
group: one message alone waits for nothing, many share a sync.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

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
RETRY_DELAY_S = 0.25
"""How long the writer waits before it looks for room again."""
IDLE_S = 1.0
"""How often a writer with nothing to do looks for something to trim."""
CLOSE_TIMEOUT_S = 4.0

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
        disk: Disk = OS_DISK,
        report: Callable[[str], None] | None = None,
    ) -> None:
        self._group_octets = group_octets
        self._group_messages = group_messages
        self._commit_delay_s = commit_delay
        self._retry_delay_s = retry_delay
        self._report = report or _logger.warning
        self._log = SegmentLog(
            directory, max_bytes=max_bytes, segment_bytes=segment_bytes, disk=disk
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
        self._waiting_messages = 0
        self._waiting_octets = 0
        self._closing = False
        self._give_up = False
        self._failure: BaseException | None = None
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
        self._thread = threading.Thread(target=self._run, name="msgproto-queue", daemon=True)
        self._thread.start()

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

        ``callback`` is called once, in the writer thread: with None when the batch is durable,
        with an exception when it is not and never will be.  Batches become durable in the order
        of submission.  Raises QueueClosed after :meth:`close`, or if the thread has failed.
        """
        with self._changed:
            if self._closing or self._failure is not None:
                raise QueueClosed(f"the queue {self.directory} is closed") from self._failure
            self._waiting.append((batch, callback))
            self._waiting_messages += batch.count
            self._waiting_octets += batch.octets
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
        """Write what waits, stop the thread and give the lock back; True if all was written.

        After ``timeout`` seconds (a disk without room, a hanging disk) what still waits is called
        back with QueueClosed.  May be called again.
        """
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout)
        if self._thread.is_alive():
            with self._changed:
                self._give_up = True
                self._changed.notify()
            self._thread.join(self._retry_delay_s + 1)
        return not self._give_up and self._failure is None

    # -- the writer thread ------------------------------------------------------------------------

    def _run(self) -> None:
        entries: list[Entry] | None = None
        try:
            while (entries := self._next_group()) != []:
                if entries is None:
                    self._idle()
                else:
                    self._commit(entries)
        except BaseException as error:  # a fault of ours: say so, and leave nobody waiting
            _logger.exception("the writer of the queue %s failed", self.directory)
            self._failure = error
            self._call_back([(entry, error) for entry in entries or ()])
        finally:
            with self._changed:
                self._closing = True
                rest = list(self._waiting)
                self._waiting.clear()
            closed = QueueClosed(f"the queue {self.directory} was closed")
            self._call_back([(entry, closed) for entry in rest])
            self._log.close()

    def _next_group(self) -> list[Entry] | None:
        """Wait for batches and take a group of them; None when idle, empty when to end."""
        with self._changed:
            if not self._waiting and not self._closing and not self._changed.wait(IDLE_S):
                return None
            if self._commit_delay_s > 0:
                until = time.monotonic() + self._commit_delay_s
                while not self._closing and not self._enough():
                    left = until - time.monotonic()
                    if left <= 0:
                        break
                    self._changed.wait(left)
            if not self._waiting:
                return [] if self._closing else None
            return self._take()

    def _enough(self) -> bool:
        return (
            self._waiting_octets >= self._group_octets
            or self._waiting_messages >= self._group_messages
        )

    def _take(self) -> list[Entry]:
        """As many waiting batches as one group holds, at least one."""
        waiting = self._waiting
        entries = [waiting.popleft()]
        octets = entries[0][0].octets
        messages = entries[0][0].count
        while waiting:
            batch = waiting[0][0]
            octets += batch.octets
            messages += batch.count
            if octets > self._group_octets or messages > self._group_messages:
                break
            entries.append(waiting.popleft())
        return entries

    def _idle(self) -> None:
        """Nothing waits: trim, and check what the start left out."""
        try:
            self._log.trim()
            for line in self._log.check_older():
                self._report(line)
        except OSError as error:
            self._disk_errors += 1
            self._report(f"queue {self.directory}: {error}")

    def _commit(self, entries: list[Entry]) -> None:
        """Encode a group, make it durable and call back."""
        frames, results = self._encode(entries)
        if frames:
            error = self._append(frames)
            if error is not None:
                results = [(entry, error if known is None else known) for entry, known in results]
        self._call_back(results)

    def _encode(self, entries: list[Entry]) -> tuple[list[Encoded], list[Result]]:
        """The group's frame, and each batch's error so far (of those which cannot be encoded)."""
        errors: dict[int, BaseException] = {}
        good = [entry[0] for entry in entries if entry[0].count]
        try:
            frames = [encode(good)] if good else []
        except Exception:
            # Somebody's batch is wrong.  Find out whose; its neighbours go on.
            kept = []
            for index, (batch, _) in enumerate(entries):
                try:
                    if batch.count:
                        encode([batch])
                        kept.append(batch)
                except Exception as error:
                    errors[index] = error
            frames = [encode(kept)] if kept else []
        for frame in frames:
            self._texts_replaced += frame.replaced
        return frames, [(entry, errors.get(index)) for index, entry in enumerate(entries)]

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
                if not self._wait_for_room():
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

    def _wait_for_room(self) -> bool:
        """Wait a while before the next try; False when the writer is to give up."""
        until = time.monotonic() + self._retry_delay_s
        with self._changed:
            while not self._give_up and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)
            return not self._give_up

    def _call_back(self, results: Sequence[Result]) -> None:
        """Tell each batch's submitter; a callback's own fault stops at itself."""
        with self._changed:
            for (batch, _), error in results:
                self._waiting_messages -= batch.count
                self._waiting_octets -= batch.octets
                if error is not None:
                    self._failed_messages += batch.count
        for (_, callback), error in results:
            try:
                callback(error)
            except Exception:
                _logger.exception("a callback of the queue %s failed", self.directory)
