"""Bugs planted on purpose: a world which does not catch them proves nothing.

Each is a context manager which changes one thing in the real code (or in the consumer, which
stands for Spark).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any
from unittest import mock

from twisted.internet.defer import succeed
from twisted.python.failure import Failure

from tests.sim.clock import End, ProcessClock
from tests.sim.disk import SimulatedFile
from tests.sim.gateway import DIRECTORY, Consumer
from twisted_msgproto.core.errors import QueueFull
from twisted_msgproto.core.frame_buffer import FrameBuffer
from twisted_msgproto.core.machine import ReceiveWindow
from twisted_msgproto.lumberjack.machine import receiving as lumberjack_machine
from twisted_msgproto.lumberjack.machine import sending as lumberjack_writer
from twisted_msgproto.lumberjack.wire import decoder as lumberjack_wire
from twisted_msgproto.net import DurableSink
from twisted_msgproto.net.memory import Ledger
from twisted_msgproto.net.session import SessionLink
from twisted_msgproto.queue import QueueReader, SegmentLog
from twisted_msgproto.queue.fair import FairQueue

Bug = Callable[[], AbstractContextManager[object]]


def ack_before_sync() -> AbstractContextManager[object]:
    put = DurableSink.put

    def early(self: DurableSink, batch: Any) -> Any:
        put(self, batch).addErrback(lambda failure: None)
        return succeed(None)

    return mock.patch.object(DurableSink, "put", early)


def no_sync() -> AbstractContextManager[object]:
    """Fdatasync is not called."""
    return mock.patch.object(SimulatedFile, "sync", lambda self: None)


def swallowed_no_room() -> AbstractContextManager[object]:
    append = SegmentLog.append

    def swallowing(self: SegmentLog, group: Any) -> int:
        try:
            return append(self, group)
        except QueueFull:
            return self.end

    return mock.patch.object(SegmentLog, "append", swallowing)


def swallowed_io_error() -> AbstractContextManager[object]:
    append = SegmentLog.append

    def swallowing(self: SegmentLog, group: Any) -> int:
        try:
            return append(self, group)
        except OSError:
            return self.end

    return mock.patch.object(SegmentLog, "append", swallowing)


def no_idempotent_batch() -> AbstractContextManager[object]:
    def write(self: Consumer, batch: int, rows: list[Any]) -> None:
        self.table.setdefault(batch, []).extend(rows)

    return mock.patch.object(Consumer, "write", write)


def dedupe_by_sequence() -> AbstractContextManager[object]:
    """The consumer takes equal sequence numbers of a session for duplicates."""
    read = Consumer.read

    def deduping(self: Consumer, *arguments: Any) -> list[Any]:
        seen = self.__dict__.setdefault("seen", set())
        rows = []
        for row in read(self, *arguments):
            if row["message_id"] not in seen:
                seen.add(row["message_id"])
                rows.append(row)
        return rows

    return mock.patch.object(Consumer, "read", deduping)


def trim_ahead() -> AbstractContextManager[object]:
    """The queue is trimmed up to what was written down, not what was committed."""
    run = Consumer.run

    def ahead(self: Consumer) -> None:
        run(self)
        batch = self.finished + 1
        if batch in self.intents and self._world.queue_exists():
            with suppress(OSError):
                reader = QueueReader(DIRECTORY, disk=self._world.disk)
                reader.commit("spark", self.intents[batch][1])
                self._world.gateway.log.trim(ending=True)

    return mock.patch.object(Consumer, "run", ahead)


def safe_means_all() -> AbstractContextManager[object]:
    """A slice which becomes safe makes everything that arrived safe."""

    def made_safe(self: ReceiveWindow[Any], place: int) -> list[Any]:
        self._open.clear()
        self.safe = self.received
        return self.due()

    def slice_(self: ReceiveWindow[Any]) -> int:
        return self.received

    @contextmanager
    def patched() -> Iterator[None]:
        with (
            mock.patch.object(ReceiveWindow, "made_safe", made_safe),
            mock.patch.object(ReceiveWindow, "slice", slice_),
        ):
            yield

    return patched()


def reads_on() -> AbstractContextManager[object]:
    """A connection of which too much is not safe is read all the same."""
    return mock.patch.object(End, "pauseProducing", lambda self: None)


def bytes_stay_counted() -> AbstractContextManager[object]:
    finished = SessionLink._delivered

    def keeping(self: SessionLink, result: Any, *counted: Any) -> None:
        if isinstance(result, Failure):
            self.factory.shared.waiting += 1
        finished(self, result, *counted)

    return mock.patch.object(SessionLink, "_delivered", keeping)


def first_come_first_served() -> AbstractContextManager[object]:
    """The queue writes what came first, whoever sent it (NB-01)."""
    add = FairQueue.add

    def in_line(self: FairQueue[Any], key: object, *entry: Any) -> None:
        add(self, "everybody", *entry)

    return mock.patch.object(FairQueue, "add", in_line)


def counts_by_the_wall() -> AbstractContextManager[object]:
    """The reactor counts by the time of day, as Twisted's does: set back, it waits (NB-06)."""

    def wall_stepped(self: ProcessClock, seconds: float) -> None:
        for call in self._calls:
            call.reset(max(call.time - self._clock.now - seconds, 0.0))

    return mock.patch.object(ProcessClock, "wall_stepped", wall_stepped)


def memory_stays_entered() -> AbstractContextManager[object]:
    """The ledger forgets to release what a connection held that is lost (NB-02)."""
    hold = Ledger.hold

    def keeping(self: Ledger, holder: Any, nbytes: int, now: float, **named: Any) -> None:
        if nbytes or not getattr(holder, "_gone", False):
            hold(self, holder, nbytes, now, **named)

    return mock.patch.object(Ledger, "hold", keeping)


def memory_entered_once() -> AbstractContextManager[object]:
    """The ledger forgets to count what a message has grown by since it began (NB-02)."""
    hold = Ledger.hold

    def counting_once(self: Ledger, holder: Any, nbytes: int, now: float, **named: Any) -> None:
        account = self._accounts.get(holder)
        if account is None or nbytes <= account.nbytes:
            hold(self, holder, nbytes, now, **named)

    return mock.patch.object(Ledger, "hold", counting_once)


def memory_sum_drifts() -> AbstractContextManager[object]:
    """The ledger does not take what was finished off its sum (NB-02)."""
    hold = Ledger.hold

    def drifting(self: Ledger, holder: Any, nbytes: int, now: float, **named: Any) -> None:
        before = self.held
        hold(self, holder, nbytes, now, **named)
        self.held = max(before, self.held)

    return mock.patch.object(Ledger, "hold", drifting)


MIXED_BUGS: dict[str, Bug] = {
    "memory-stays-entered": memory_stays_entered,
    "memory-entered-once": memory_entered_once,
    "memory-sum-drifts": memory_sum_drifts,
    "first-come-first-served": first_come_first_served,
    "counts-by-the-wall": counts_by_the_wall,
}

SHARED_BUGS: dict[str, Bug] = {
    "reads-on": reads_on,
    "bytes-stay-counted": bytes_stay_counted,
    "ack-before-sync": ack_before_sync,
    "no-sync": no_sync,
    "swallowed-no-room": swallowed_no_room,
    "swallowed-io-error": swallowed_io_error,
    "no-idempotent-batch": no_idempotent_batch,
    "dedupe-by-sequence": dedupe_by_sequence,
    "trim-ahead": trim_ahead,
    "safe-means-all": safe_means_all,
}


# ── Lumberjack ──────────────────────────────────────────────────────────────────────────────────


def window_plus_one() -> AbstractContextManager[object]:
    init = lumberjack_writer.Writer.__init__

    def wider(self: Any, *arguments: Any, **named: Any) -> None:
        init(self, *arguments, **named)
        self._window += 1

    return mock.patch.object(lumberjack_writer.Writer, "__init__", wider)


def ack_off_by_one() -> AbstractContextManager[object]:
    encode = lumberjack_machine.encode_ack
    return mock.patch.object(
        lumberjack_machine,
        "encode_ack",
        lambda sequence, version: encode((sequence + 1) % 2**32 if sequence else 0, version),
    )


def ack_is_a_count() -> AbstractContextManager[object]:
    """The reader acknowledges how many came, not the last number."""
    receive = lumberjack_machine.Reader._receive

    def counting(self: Any, run: Any, kind: type) -> None:
        receive(self, run, kind)
        window, encode_ack = self._window, lumberjack_machine.encode_ack
        window.waiting = type(window.waiting)(
            (place, encode_ack(self._size, ack[0])) for place, ack in window.waiting
        )

    return mock.patch.object(lumberjack_machine.Reader, "_receive", counting)


def no_idle_ack() -> AbstractContextManager[object]:
    return mock.patch.object(
        lumberjack_machine.Reader, "_look_at_silence", lambda self, now, events: None
    )


def shared_buffer() -> AbstractContextManager[object]:
    shared: dict[str, FrameBuffer] = {}
    init = lumberjack_wire.Decoder.__init__

    def sharing(self: Any, *arguments: Any) -> None:
        init(self, *arguments)
        self._gathered = shared.setdefault("buffer", self._gathered)
        self._begins, self._needed = b"", 0  # the bytes of another may stand in it already

    def incomplete(self: Any, level: Any, needed: int) -> bool:
        shared["buffer"].taken()
        rest = level.nbytes[level.position :]
        shared["buffer"].add(rest)
        self._gathered = shared["buffer"]
        self._begins, self._needed = rest[:2], needed
        level.nbytes, level.position = b"", 0
        return False

    @contextmanager
    def patched() -> Iterator[None]:
        with (
            mock.patch.object(lumberjack_wire.Decoder, "__init__", sharing),
            mock.patch.object(lumberjack_wire.Decoder, "_incomplete", incomplete),
        ):
            yield

    return patched()


def no_resend() -> AbstractContextManager[object]:
    return mock.patch.object(lumberjack_writer.Writer, "lost", lambda self, now: [])


LUMBERJACK_BUGS: dict[str, Bug] = {
    "window-plus-one": window_plus_one,
    "ack-off-by-one": ack_off_by_one,
    "ack-is-a-count": ack_is_a_count,
    "no-idle-ack": no_idle_ack,
    "shared-buffer": shared_buffer,
    "no-resend": no_resend,
}
