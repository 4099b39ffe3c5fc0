"""The gateway's process in the simulated world: real servers, sink and log over a simulated disk.

Only threads are replaced: a commit, and what a broker writes and reads, takes time on the simulated
clock instead.
"""

from __future__ import annotations

import contextlib
import random
from collections import deque
from collections.abc import Callable
from typing import Any
from unittest import mock

from twisted.internet.defer import Deferred

from tests.sim.clock import ProcessClock
from tests.sim.disk import SimulatedDisk
from twisted_msgproto import MessageBatch
from twisted_msgproto.core.errors import QueueFull
from twisted_msgproto.net import DurableSink
from twisted_msgproto.queue import Disk, QueueReader, SegmentLog, recovery, segment_log
from twisted_msgproto.queue.broker_files import BrokerState
from twisted_msgproto.queue.fair import QUANTUM_BYTES, FairQueue
from twisted_msgproto.queue.format import Identity
from twisted_msgproto.queue.payload import encode
from twisted_msgproto.queue.writer import Callback

DIRECTORY = "/queue"
RETRY_SECONDS = 0.25


def make_identity() -> Identity:
    """The same queue id and seed in every world: a seed replays to the byte."""
    return Identity("0" * 32, b"\0" * 8)


def a_log(disk: Disk, incarnation: Callable[[], int], **options: int) -> SegmentLog:
    """A log whose names and numbers are not drawn."""
    with (
        mock.patch.object(recovery, "new_identity", make_identity),
        mock.patch.object(segment_log, "new_incarnation", incarnation),
    ):
        return SegmentLog(DIRECTORY, disk=disk, **options)


Entry = tuple[MessageBatch, Callback]

GROUP_MESSAGES = 16_384
GROUP_BYTES = 4 * QUANTUM_BYTES


class Turns:
    """Watches that a newcomer comes before those who write all the time (NB-01).

    The first batch of a session, of at most a quantum, is in the next group that is taken.  A
    session that was idle is served like a newcomer, with a whole quantum, so this must hold only
    while the quanta of all that have written lately fit into a group.
    """

    def __init__(self, unfair: Callable[[str], None]) -> None:
        self._unfair = unfair
        self._known: set[str] = set()
        self._new: list[MessageBatch] = []
        # Who wrote before the next group, and before each of the two groups that were taken last.
        self._wrote: deque[set[str]] = deque([set()], maxlen=3)

    def submitted(self, batch: MessageBatch, nbytes: int) -> None:
        session = str(batch.session)
        self._wrote[-1].add(session)
        if session not in self._known:
            self._known.add(session)
            if nbytes <= QUANTUM_BYTES:
                self._new.append(batch)

    def taken(self, batches: list[MessageBatch]) -> None:
        if (len(set().union(*self._wrote)) + 1) * QUANTUM_BYTES <= GROUP_BYTES:
            taken = set(map(id, batches))
            if any(id(batch) not in taken for batch in self._new):
                self._unfair("the first batch of a session waits behind others' bulk")
        self._new.clear()
        self._wrote.append(set())


class SimulatedWriter:
    """What QueueWriter is, with a commit which takes simulated time.

    Groups are taken from the real queue in front of the disk.  ``weigh`` says how many bytes a
    batch counts as, and ``unfair`` is called with a line if somebody waits longer than his turn.
    """

    def __init__(
        self,
        log: SegmentLog,
        clock: ProcessClock,
        seconds: Callable[[], float],
        weigh: Callable[[MessageBatch], int],
        unfair: Callable[[str], None],
    ) -> None:
        self._log = log
        self._clock = clock
        self._seconds = seconds
        self._weigh = weigh
        self._waiting: FairQueue[Entry] = FairQueue()
        self._turns = Turns(unfair)
        self._busy = False
        self._failing: OSError | None = None  # what has failed and was not told yet

    def broker(self, **options: Any) -> BrokerState:
        """As the real one: what brokers keep is on the simulated disk, too."""
        return BrokerState(self._log, report=lambda line: None, **options)

    def submit(self, batch: MessageBatch, callback: Callback) -> None:
        if self._failing is not None:  # a session has no gaps
            callback(self._failing, None)
            return
        entry, octets = (batch, callback), self._weigh(batch)
        self._turns.submitted(batch, octets)
        self._waiting.add(batch.session, entry, batch.count, octets)
        self._look()

    def _look(self) -> None:
        if self._waiting.entries and not self._busy:
            self._busy = True
            group = self._waiting.take(GROUP_MESSAGES, GROUP_BYTES)
            self._turns.taken([batch for batch, _ in group])
            self._clock.callLater(self._seconds(), self._commit, group)

    def _commit(self, group: list[Any]) -> None:
        error: BaseException | None = None
        try:
            self._log.append([encode([batch for batch, _ in group])])
        except QueueFull:
            self._clock.callLater(RETRY_SECONDS, self._commit, group)
            return
        except OSError as failure:
            if self._log.disk.is_unreadable(failure.filename):  # it is tried again
                self._clock.callLater(RETRY_SECONDS, self._commit, group)
                return
            # As a sink of a user's may.  What was submitted behind it goes with it.
            self._failing = error = failure
            self._clock.callLater(0.0, self._told)
            behind = self._waiting.clear()
            self._turns.taken([batch for batch, _ in behind])
            group += behind
        first = self._log.end - sum(batch.count for batch, _ in group)
        for batch, callback in group:
            callback(error, None if error is not None else first)
            first += batch.count
        self._busy = False
        self._look()

    def _told(self) -> None:
        self._failing = None


class GatewayProcess:
    def __init__(
        self,
        clock: Any,
        disk: SimulatedDisk,
        source: random.Random,
        fsync_seconds: float,
        make_factory: Callable[[DurableSink, ProcessClock], Any],
        weigh: Callable[[MessageBatch], int],
        unfair: Callable[[str], None],
    ) -> None:
        self.clock = ProcessClock(clock)
        self.log = a_log(disk, lambda: disk.life + 1, segment_bytes=20_000)
        seconds = lambda: source.random() * fsync_seconds  # noqa: E731
        self.writer = SimulatedWriter(self.log, self.clock, seconds, weigh, unfair)
        self.sink = DurableSink.over(self.writer, self.clock)  # type: ignore[arg-type]
        try:
            self.factory = make_factory(self.sink, self.clock)
        except BaseException:
            self.kill()
            raise

    def end(self) -> Deferred[Any]:
        persistence = self.sink.brokerPersistence
        drained: Deferred[Any] = self.factory.drain()
        return (
            drained if persistence is None else drained.addCallback(lambda _: persistence.close())
        )

    def kill(self) -> None:
        self.clock.kill()


# ── A Spark-like consumer: intent log, write, commit, and crashes between any two of ──

NAME = "spark"

COLUMNS = ["offset", "session", "message_id", "body", "attachments"]
"""What a world looks at; the other columns have tests of their own, and take their time."""


def rows_of(reader: QueueReader, start: int, end: int) -> list[dict[str, Any]]:
    """The rows start ≤ offset < end, as far as a world looks at them."""
    return [row for batch in reader.read(start, end) for row in batch.select(COLUMNS).to_pylist()]


class Consumer:
    """Micro-batches: what a batch holds is written down before it is written to the table.

    ``table`` maps a batch to its rows, as a sink does which replaces a batch that comes again.
    ``committed`` is what the last commit said; the queue may trim up to there.
    """

    def __init__(self, world: Any) -> None:
        self._world = world
        self.intents: dict[int, tuple[int, int]] = {}
        self.table: dict[int, list[dict[str, Any]]] = {}
        self.finished = -1  # the last batch whose commit is in the log
        self.registered = False
        self.stopped = False

    @property
    def landed(self) -> int:
        return self.intents[self.finished][1] if self.finished >= 0 else 0

    def rows(self) -> list[dict[str, Any]]:
        return [row for batch in sorted(self.table) for row in self.table[batch]]

    def run(self) -> None:
        """One micro-batch; comes back by itself."""
        world = self._world
        if self.stopped:
            return
        world.clock.callLater(world.options["trigger"], self.run)
        if world.queue_exists() and (
            not self.registered or self.finished + 1 in self.intents or self._news()
        ):
            # What it cannot tell the queue on a full disk it tells it the next time.
            with contextlib.suppress(OSError):
                self.batch()

    def batch(self) -> None:
        world = self._world
        reader = QueueReader(DIRECTORY, disk=world.disk)
        if not self.registered:
            reader.register(NAME)
            self.registered = True
        batch = self.finished + 1
        if batch not in self.intents:
            start = self.landed
            end = min(reader.end(), start + world.options["batch"])
            if end <= start:
                return
            self.intents[batch] = (start, end)
        if self._crashes():
            return
        self.write(batch, self.read(reader, *self.intents[batch]))
        if self._crashes():
            return
        self.finished = batch
        if not self._crashes():  # commit() of a batch may never come; the next one covers it
            reader.commit(NAME, self.landed)

    def _news(self) -> bool:
        """Whether there is something to read: asked first, for most of the time there is not."""
        end: int = self._world.gateway.log.end
        return end > self.landed

    def read(self, reader: QueueReader, start: int, end: int) -> list[dict[str, Any]]:
        return rows_of(reader, start, end)

    def write(self, batch: int, rows: list[dict[str, Any]]) -> None:
        """Put a batch into the table; a batch which comes again changes nothing."""
        self.table[batch] = rows

    def _crashes(self) -> bool:
        world = self._world
        return bool(world.source.random() < world.faults["consumer_crash"])
