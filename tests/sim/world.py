"""One seeded world: clients, gateway, disk, consumer, faults; and what must hold in it.

``World(seed, protocol).run()`` is the same to the byte for the same seed.  Faults happen until
``fault_seconds``; after that everything must arrive (liveness).  What must hold always:

* what was acknowledged is durable, after every crash and at the end, and so is what the server has
  handed on to others (where an adapter has subscribers);
* the table is what the queue holds: each offset once, without a gap;
* everything sent is in the table at the end, at least once; nothing else is;
* the events of one session stand in the queue in the order of sending, without a gap;
* no more is in flight than the window allows; duplicates come only from lost connections;
* a connection of which too much is not safe is not read until enough of it is; at the end nothing
  waits;
* the ledger says what connections hold, byte by byte, and forgets those that are gone;
* nobody breaks the protocol, nothing logs an error, no timer and no connection is left over;
* recovery never finds that durable records were lost (none is counted).
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, Protocol

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionRefusedError
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.logger import LogLevel, globalLogPublisher
from zope.interface import implementer

from tests.sim.clock import HeapClock, Pipe, ProcessClock
from tests.sim.disk import SimulatedDisk
from tests.sim.gateway import DIRECTORY, Consumer, GatewayProcess, rows_of
from twisted_msgproto.core.errors import QueueError
from twisted_msgproto.net.memory import Ledger, SharedState
from twisted_msgproto.net.wires.stream import Output
from twisted_msgproto.queue import QueueReader

UNREAD_SECONDS = 4.0
"""A file cannot be read for at most this long."""
LIVENESS_SECONDS = 1000.0
"""After the last fault everything must have arrived within this time of the world; 190 s were the
most in 1,200 worlds."""

STEPS_MAX = 400_000
"""A world which takes more steps does not end."""

EVENTS = (1, 2, 3, 5, 8, 12, 20, 60)
EVENTS_WEIGHTS = (4, 4, 4, 6, 6, 5, 3, 1)
"""How many events are sent: most faults show with few of them, and few are soon sent."""


WALL_STEP = 0.05
"""In worlds with several clients the wall clock is set that often, of ten times a second."""

WEIGHT_BYTES = 64 << 10
"""A message weighs so much in front of the disk where clients are neighbours."""


class Violation(AssertionError):
    """Something which must hold does not."""


class Client(Protocol):
    """What an adapter starts: it sends the world's events and says which are acknowledged."""

    def start(self) -> None:
        """Begin to send."""

    def stop(self) -> None:
        """Everything is acknowledged: disconnect."""

    def check(self) -> None:
        """Raise Violation where the client's own rules do not hold (called after each step)."""


class Crowd:
    """Several clients, which begin and end together."""

    def __init__(self, clients: list[Client]) -> None:
        self._clients = clients

    def start(self) -> None:
        for client in self._clients:
            client.start()

    def stop(self) -> None:
        for client in self._clients:
            client.stop()

    def check(self) -> None:
        for client in self._clients:
            client.check()


class Adapter(Protocol):
    name: str

    def make_server(self, world: World, sink: Any, clock: ProcessClock) -> Any:
        """The real server factory."""

    def make_client(self, world: World, bodies: list[bytes]) -> Client:
        """The real client, which sends ``bodies`` in order and calls ``world.acknowledged``."""

    def duplicates_max(self, world: World) -> int:
        """How many rows may stand in the table more than once."""

    # An adapter may also have ``in_order(numbers) -> bool``, and ``handed_on() -> bool``: whether
    # subscribers of its own have got all which they must get before the world may end.


def options_of(source: random.Random) -> dict[str, Any]:
    """The options of a world: how the pipe, the disk and the processes behave."""
    choice = source.choice
    (events,) = source.choices(EVENTS, EVENTS_WEIGHTS)
    return {
        "events": events,
        "whole": choice((0.0, 0.5, 0.9, 1.0)),
        "fragment": choice((1, 7, 64, 4096)),
        "delay": choice((0.0, 0.01, 0.5)),
        "half_open": choice((0.0, 1.0, 60.0)),
        "fsync": choice((0.0, 0.02, 0.5, 5.0)),
        "cut": choice((0.0, 0.0, 0.05, 0.3)),
        "crash": choice((0.0, 0.03, 0.1)),
        "power": choice((0.0, 0.5, 1.0)),
        "no_room": choice((0.0, 0.0, 0.1)),
        "io_error": choice((0.0, 0.0, 0.05)),
        "read_error": 0.0,
        "consumer_crash": choice((0.0, 0.1, 0.4)),
        "trigger": choice((0.5, 2.0)),
        "batch": max(choice((1, 7, 1000)), events // 8),
        "fault_seconds": choice((0.0, 3.0, 8.0)),
    }


@implementer(IStreamClientEndpoint)
class Way:
    """The client endpoint into the world: a pipe to the gateway, if it is up."""

    def __init__(self, world: World, clock: ProcessClock) -> None:
        self._world = world
        self._clock = clock

    def connect(self, factory: Any) -> Deferred[Any]:
        """Fires with the protocol after a while, as a connection takes its time."""
        connected: Deferred[Any] = Deferred(lambda deferred: attempt.cancel())
        seconds = self._world.source.random() * self._world.options["delay"]
        attempt = self._clock.callLater(seconds, self._arrive, factory, connected)
        return connected

    def _arrive(self, factory: Any, connected: Deferred[Any]) -> None:
        world = self._world
        server = client = None
        listening = world.listening_factory()
        if listening is not None:
            assert world.gateway is not None
            pipe = Pipe(world, self._clock, world.gateway.clock, len(world.pipes))
            server = listening.buildProtocol(pipe.server.getPeer())
            client = factory.buildProtocol(pipe.client.getPeer())
        if server is None or client is None:
            connected.errback(ConnectionRefusedError())
            return
        world.pipes.append(pipe)
        pipe.server.protocol, pipe.client.protocol = server, client
        server.makeConnection(pipe.server)
        client.makeConnection(pipe.client)
        connected.callback(client)


def in_order(numbers: list[int]) -> bool:
    """The events of a session follow each other; an adapter may have an ``in_order`` of its own."""
    return all(later == earlier + 1 for earlier, later in pairwise(numbers))


class World:
    """See the module.  ``changes`` take the place of options drawn from the seed."""

    def __init__(self, seed: int, adapter: Adapter, **changes: Any) -> None:
        self.seed = seed
        self.adapter = adapter
        self.source = random.Random(f"{adapter.name}-{seed}")
        self.options = {**options_of(self.source), **changes}
        self._crowd: int = getattr(adapter, "clients", 1)
        self.faults = dict(self.options)
        self.clock = HeapClock()
        self.disk = SimulatedDisk()
        self.gateway: GatewayProcess | None = None
        self.shared: SharedState | None = None  # one for each server
        self.client_clock = ProcessClock(self.clock)
        self.pipes: list[Pipe] = []
        self.crashes = 0
        self.bodies = [
            b'{"event":%d,"text":"%s"}' % (number, b"x" * (number % 50))
            for number in range(self.options["events"] * self._crowd)
        ]
        self.sent = set(self.bodies)
        self.acks: set[bytes] = set()
        self.handed_on: set[bytes] = set()
        self.errors: list[str] = []
        self.expected_errors = 0
        self.consumer = Consumer(self)
        self._on_acknowledged: Callable[[bytes], None] | None = getattr(
            adapter, "acknowledged", None
        )

    # ── what adapters use ───────────────────────────────────────────────────────────────────────

    def endpoint(self, clock: ProcessClock) -> Way:
        return Way(self, clock)

    def listening_factory(self) -> Any:
        """The factory which answers, or None if the gateway is down."""
        return None if self.gateway is None else self.gateway.factory

    def weigh(self, batch: Any) -> int:
        """How many bytes a batch counts as in front of the disk."""
        return int(batch.nbytes) if self._crowd == 1 else int(batch.count) * WEIGHT_BYTES

    def acknowledged(self, body: bytes) -> None:
        if body in self.acks:
            raise Violation(f"{body!r} was acknowledged twice")
        self.acks.add(body)
        if self._on_acknowledged is not None:
            self._on_acknowledged(body)

    def handed_over(self, body: bytes) -> None:
        if body not in self.sent:
            raise Violation(f"{body!r} was never sent")
        self.handed_on.add(body)

    def queue_exists(self) -> bool:
        return self.gateway is not None

    # ── the run ─────────────────────────────────────────────────────────────────────────────────

    def run(self) -> World:
        """Live until everything has arrived; raises Violation."""
        globalLogPublisher.addObserver(self._observe)
        try:
            self._live()
        except QueueError as error:
            raise Violation(f"the queue: {error}") from error
        finally:
            globalLogPublisher.removeObserver(self._observe)
        return self

    def _live(self) -> None:
        self._start_gateway()
        client_clock = self.client_clock
        client = self.adapter.make_client(self, self.bodies)
        client.start()
        self._fault()
        self.consumer.run()
        steps = 0
        while not self._arrived():
            if not self.clock.step():
                raise Violation("nothing happens any more")
            client.check()
            self._check()
            steps += 1
            end = self.options["fault_seconds"] + LIVENESS_SECONDS
            if self.clock.now > end or steps > STEPS_MAX:
                raise Violation(
                    f"not all arrived: {len(self.acks)} of {len(self.bodies)} acknowledged, "
                    f"{self.consumer.landed} rows landed"
                )
        client.stop()
        self._end(client_clock)

    def _arrived(self) -> bool:
        return (
            len(self.acks) == len(self.bodies)
            and self.clock.now >= self.options["fault_seconds"]
            and self.gateway is not None
            and self.consumer.landed >= self.gateway.log.end
            and self._handed_on()
        )

    def _handed_on(self) -> bool:
        """Whether an adapter's subscribers have got what they must get."""
        complete: Callable[[], bool] | None = getattr(self.adapter, "handed_on", None)
        return complete is None or complete()

    def _end(self, client_clock: ProcessClock) -> None:
        assert self.gateway is not None
        self.consumer.stopped = True
        drained = self.gateway.end()
        until = self.clock.now + 200
        while self.clock.now < until and self.clock.step():
            self._check()
        if not drained.called or self.gateway.factory.liveConnections:
            raise Violation("connections are left over")
        if self.gateway.factory.shared.waiting:
            raise Violation(f"{self.gateway.factory.shared.waiting} bytes wait for the sink still")
        left = client_clock.waiting() + self.gateway.clock.waiting()
        if left:
            raise Violation(f"timers are left over: {[call.call for call in left]}")
        self._check_table()

    # ── processes and faults ────────────────────────────────────────────────────────────────────

    def _start_gateway(self) -> None:
        make: Callable[[Any, ProcessClock], Any] = lambda sink, clock: self.adapter.make_server(  # noqa: E731
            self, sink, clock
        )
        try:
            self.gateway = GatewayProcess(
                self.clock,
                self.disk,
                self.source,
                self.options["fsync"],
                make,
                self.weigh,
                self.errors.append,
            )
        except (QueueError, OSError):
            # The disk is full or breaks: the process ends with a line and is started again.
            self.disk.crash()
            self.clock.callLater(1.0, self._start_gateway)
            return
        if self.gateway.log.losses:
            raise Violation("recovery found durable records lost")
        self._check_acknowledged()

    def _crash(self) -> None:
        assert self.gateway is not None
        self.crashes += 1
        self.gateway.kill()
        for pipe in self.pipes:
            if pipe.live:
                pipe.kill_server()
        self.gateway = None
        if self.source.random() < self.options["power"]:
            self.disk.lose_power(self.source)
        else:
            self.disk.crash()
        self.clock.callLater(self.source.random() * 3, self._start_gateway)

    def _fault(self) -> None:
        """Ten times a second something may go wrong, until the faults stop."""
        if self.clock.now >= self.options["fault_seconds"]:
            self.faults.update(dict.fromkeys(("cut", "crash", "consumer_crash"), 0.0))
            self.disk.mend()
            return
        source = self.source
        live = [pipe for pipe in self.pipes if pipe.live and not pipe.broken]
        if live and source.random() < self.faults["cut"]:
            source.choice(live).cut()
        if self.gateway is not None and source.random() < self.faults["crash"]:
            self._crash()
        if source.random() < self.faults["no_room"]:
            self.disk.capacity = self.disk.used() + source.randint(0, 2000)
        elif source.random() < 0.3:
            self.disk.capacity = None
        if source.random() < self.faults["io_error"]:
            operation = source.choice(("write", "sync"))
            self.disk.fail_next(operation, errno.EIO, ".segment")
            self.expected_errors += 1
        if self.faults["read_error"] and source.random() < self.faults["read_error"]:
            self.disk.cannot_read(source.choice(self.disk.paths()))
            self.clock.callLater(source.random() * UNREAD_SECONDS, self.disk.can_read)
        if self._crowd > 1 and source.random() < WALL_STEP:
            self.clock.step_wall(source.choice((-3600.0, 3600.0, -86_400.0)))
        self.clock.callLater(0.1, self._fault)

    # ── what must hold ──────────────────────────────────────────────────────────────────────────

    def _observe(self, event: Any) -> None:
        level = event.get("log_level")
        if level is not None and level >= LogLevel.error:
            failure = event.get("log_failure")
            text = str(failure.value) if failure else str(event.get("log_format"))
            if failure is not None and failure.check(OSError) and self.expected_errors:
                return  # the disk broke because we broke it; nothing was acknowledged
            self.errors.append(f"{text} {failure.getTraceback() if failure else ''}")

    def _check(self) -> None:
        if self.errors:
            raise Violation(f"logged: {self.errors[0]}")
        if self.gateway is not None:
            faults = self.gateway.factory.counters["faults"]
            if faults:
                raise Violation(f"the server reports faults: {self.gateway.factory.counters}")
            connections = self.gateway.factory.liveConnections
            check_accounts(self.gateway.factory.shared.held, connections, self._wrong)
            for connection in connections:
                link = getattr(connection, "link", None)  # MTL's sessions share one
                if link is not None and link._unsafeBytes > link.factory.unsafe_bytes_max:
                    self._check_paused(link)

    def _wrong(self, text: str) -> None:
        raise Violation(text)

    def _check_paused(self, link: Any) -> None:
        """Too much of this connection is not safe: it must not be read."""
        end = link.transport
        paused = getattr(end, "paused", None)
        if "connection-bytes" not in link.snapshot()["not_read_because"] or paused is False:
            raise Violation(f"{link._unsafeBytes} bytes wait, and it is read")

    def durable(self) -> list[dict[str, Any]]:
        with self.disk.seen_whole():
            return self._durable()

    def _durable(self) -> list[dict[str, Any]]:
        rows = self.consumer.rows()
        reader = QueueReader(DIRECTORY, disk=self.disk)
        landed = self.consumer.landed
        start = max(landed, reader.begin())
        if start > landed:
            raise Violation(f"trimmed up to {start}, landed only up to {landed}")
        rows = [row for row in rows if row["offset"] < landed]
        return rows + rows_of(reader, start, reader.end())

    def _check_acknowledged(self) -> None:
        lost = (self.acks | self.handed_on) - {row["body"] for row in self.durable()}
        if lost:
            raise Violation(f"acknowledged and not durable: {sorted(lost)[:3]}")

    def _check_table(self) -> None:
        rows = self.consumer.rows()
        offsets = [row["offset"] for row in rows]
        if offsets != list(range(len(offsets))):
            raise Violation(f"the table's offsets are not 0, 1, 2 …: {offsets[:20]}")
        landed = [row["body"] for row in rows]
        if set(landed) != set(self.bodies):
            missing = set(self.bodies) - set(landed)
            raise Violation(f"sent and landed differ; missing {sorted(missing)[:3]}")
        duplicates = len(landed) - len(self.bodies)
        if duplicates > self.adapter.duplicates_max(self):
            raise Violation(f"{duplicates} duplicates in {len(self.pipes)} connections")
        place = {body: number for number, body in enumerate(self.bodies)}
        sessions: dict[str, list[int]] = {}
        for row in rows:
            sessions.setdefault(row["session"], []).append(place[row["body"]])
        holds: Callable[[list[int]], bool] = getattr(self.adapter, "in_order", in_order)
        for session, numbers in sessions.items():
            if not holds(numbers):
                raise Violation(f"session {session} is out of order: {numbers}")


# ── The ledger of memory in the simulated world: what it says is what connections ho ──


def count_each_byte(ledger: Ledger) -> None:
    """Let the ledger count what it would leave out: the events of the world are small."""
    ledger.uncounted = 0


def check_accounts(
    ledger: Ledger, connections: Iterable[Any], wrong: Callable[[str], None]
) -> None:
    """Call ``wrong`` with a line if the ledger and the connections differ.

    Each connection that can be used has an account of what it holds, nobody who is gone has one,
    and the sum of all accounts is what the process is said to hold.
    """
    accounts = ledger._accounts
    entered: dict[Any, int] = {holder: account.nbytes for holder, account in accounts.items()}
    if ledger.held != sum(entered.values()):
        wrong(f"the ledger says {ledger.held} bytes, its accounts {sum(entered.values())}")
    for connection in connections:
        link = getattr(connection, "link", None)  # MTL's sessions share one
        octets = entered.pop(link, 0)
        if link is not None and not link._ended:
            held = link.machine.input_weight + link.wire.held
            if octets != (held if held > ledger.uncounted else 0):
                wrong(f"{link.session} holds {held} bytes, the ledger says {octets}")
    for holder, octets in entered.items():
        if not isinstance(holder, Output) or holder.nbytes != octets:
            wrong(f"the ledger says {octets} bytes of {holder}, which is gone")
