"""MicroMsg2 in the simulated world: our client, or one which repeats itself; our server.

In some worlds the destination is a queue of the broker with consumers, and in some the numbers of
both directions begin shortly before 65535, so that they wrap within the world.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest import mock

from twisted.internet.defer import Deferred
from twisted.internet.protocol import Factory, Protocol

from tests.micromsg2.streams import message
from tests.sim.bugs import Bug
from tests.sim.clock import ProcessClock
from tests.sim.world import Crowd, Violation, World
from twisted_msgproto.core.limits import Limits
from twisted_msgproto.core.machine import ReceiveWindow, SendWindow
from twisted_msgproto.micromsg2 import (
    Broker,
    MicroMsg2Client,
    MicroMsg2ClientFactory,
    MicroMsg2Server,
    MicroMsg2ServerFactory,
    Offer,
    Proposal,
)
from twisted_msgproto.micromsg2.machine import receiving
from twisted_msgproto.micromsg2.machine.sides import Session
from twisted_msgproto.micromsg2.wire.frames import (
    LIMITS,
    Decoder,
    Error,
    ExtensionFrame,
    Handshake,
    after,
    encode_handshake,
    steps_between,
)
from twisted_msgproto.net import DurableSink
from twisted_msgproto.net.broker.persistence import BrokerPersistence, KeptBroker
from twisted_msgproto.queue import format as segments

AGAIN_SECONDS = 0.5
"""How long a client waits before it connects again."""


STARTS = (0, 0, 65_520, 65_533, 65_535)
"""So many messages went before the first of a connection, in each direction."""


def begun(machine: Any, before: int) -> None:
    """Let a machine have sent and received, and settled, ``before`` messages."""
    machine._last_sent = machine._inbox._last = machine._inbox._sliced = before
    window = machine._inbox.window
    window.received = window.safe = window.acknowledged = window.marked = before


class Server(MicroMsg2Server):
    """Our server; its factory says where numbers begin."""

    def connectionMade(self) -> None:
        begun(self.link.machine, self.factory.before)  # type: ignore[attr-defined]


class Sender(MicroMsg2Client):
    """Our client; its factory's owner says what to send."""

    def connectionMade(self) -> None:
        begun(self.link.machine, self.factory.owner.before)  # type: ignore[attr-defined]

    def sessionEstablished(self) -> None:
        self.factory.owner.established(self)  # type: ignore[attr-defined]

    def connectionLost(self, reason: Any = None) -> None:
        super().connectionLost(reason)
        self.factory.owner.lost(self)  # type: ignore[attr-defined]


class OurClient:
    """Sends what is not acknowledged, in order, on each new connection."""

    def __init__(self, world: World, bodies: list[bytes], before: int) -> None:
        source = world.source
        self._world = world
        self._bodies = bodies
        self.before = before
        self._done = 0
        self._stopped = False
        self._live: Sender | None = None
        self.window = source.choice((1, 2, 5, 50))
        name = "batch-ack" if self.window > 1 else source.choice(("ack", "batch-ack"))
        offers = [Offer(name, {"max-count": str(self.window)})]
        if source.random() < 0.3:
            offers.append(Offer("json"))
        if source.random() < 0.3:
            offers.insert(0, Offer("dotnet"))
        self._typed = offers[0].name == "dotnet"
        self._many = source.random() < 0.5
        self.factory = MicroMsg2ClientFactory(
            proposal=Proposal(required=tuple(offers)),
            limits={"handshake": 1000.0, "ack-wait": 100.0},
            clock=world.client_clock,
            wallClock=lambda: 0.0,
        )
        self.factory.protocol = Sender  # type: ignore[assignment]
        self.factory.owner = self  # type: ignore[attr-defined]

    def start(self) -> None:
        way = self._world.endpoint(self._world.client_clock)
        way.connect(self.factory).addErrback(lambda failure: self._again())

    def _again(self) -> None:
        if not self._stopped:
            self._world.client_clock.callLater(AGAIN_SECONDS, self.start)

    def established(self, client: Sender) -> None:
        self._live = client
        kind = "A.Type" if self._typed else None
        rest = list(range(self._done, len(self._bodies)))
        step = 3 if self._many else 1
        for start in range(0, len(rest), step):
            numbers = rest[start : start + step]
            bodies = [self._bodies[number] for number in numbers]
            sent = client.sendMany("orders", bodies, {"n": numbers[0]}, kind)
            sent.addCallbacks(self._acknowledged, lambda failure: None, callbackArgs=(numbers,))

    def _acknowledged(self, result: object, numbers: list[int]) -> None:
        if numbers[0] != self._done:
            raise Violation(f"{numbers} acknowledged, {self._done} was the next")
        self._done = numbers[-1] + 1
        for number in numbers:
            self._world.acknowledged(self._bodies[number])

    def lost(self, client: Sender) -> None:
        self._live = None
        self._again()

    def stop(self) -> None:
        self._stopped = True
        if self._live is not None:
            self._live.close()

    def check(self) -> None:
        if self._live is not None and self._live.link.machine.in_flight > self.window:
            raise Violation(f"{self._live.link.machine.in_flight} in flight, window {self.window}")
        counters = self.factory.counters
        if counters["faults"] > counters["fault:ack-timeout"] + counters["fault:refused-by-peer"]:
            raise Violation(f"the client reports faults: {counters}")
        if self._live is not None and self._live.link.machine.counters.stray_acks:
            raise Violation("an ack for what is not in flight")

    @property
    def repeats(self) -> int:
        return 3  # a sendMany of three is sent again as a whole


class Repeating(Protocol):
    """A foreign client: sends again whatever is not acknowledged, on the same connection."""

    def connectionMade(self) -> None:
        self._decoder = Decoder(Limits.of(LIMITS), 1)
        self.factory.owner.connected(self)  # type: ignore[union-attr]

    def dataReceived(self, data: bytes) -> None:
        for frame in self._decoder.feed(data):
            self.factory.owner.heard(frame)  # type: ignore[union-attr]

    def connectionLost(self, reason: Any = None) -> None:
        self.factory.owner.lost(self)  # type: ignore[union-attr]


class ForeignClient:
    """As the reference implementation: one window, repeated on a timer and on partial acks."""

    def __init__(self, world: World, bodies: list[bytes], before: int) -> None:
        source = world.source
        self._world = world
        self._bodies = bodies
        self._before = before
        self._done = 0
        self._first = 0  # index of the first message on this connection
        self._sent = 0
        self._line: Repeating | None = None
        self._timer: Any = None
        self._stopped = False
        self.window = source.choice((1, 2, 5, 50))
        self._patience = source.choice((0.7, 3.0, 20.0))
        self._bytes = encode_handshake(
            Proposal(
                identity="hulk", required=(Offer("ack", {"messagesperack": str(self.window)}),)
            ).opening()
        )
        self._factory = Factory.forProtocol(Repeating)
        self._factory.noisy = False
        self._factory.owner = self  # type: ignore[attr-defined]

    def start(self) -> None:
        way = self._world.endpoint(self._world.client_clock)
        way.connect(self._factory).addErrback(lambda failure: self._again())

    def _again(self) -> None:
        if not self._stopped:
            self._world.client_clock.callLater(AGAIN_SECONDS, self.start)

    def connected(self, line: Repeating) -> None:
        self._line = line
        self._first = self._sent = self._done
        self._write(self._bytes)

    def _write(self, nbytes: bytes) -> None:
        assert self._line is not None and self._line.transport is not None
        self._line.transport.write(nbytes)

    def heard(self, frame: object) -> None:
        if isinstance(frame, Handshake):
            self._write(self._bytes)
            self._send()
        elif isinstance(frame, ExtensionFrame):
            sequence = int.from_bytes(frame.payload, "big")
            newest = self._first + steps_between(self._before, sequence)
            if not self._first < newest <= self._sent:
                raise Violation(f"an ack of {sequence}, sent {self._sent - self._first}")
            if newest <= self._done:
                return  # said again, because we said it again
            for index in range(self._done, newest):
                self._done = index + 1
                self._world.acknowledged(self._bodies[index])
            self._send()
        elif not (isinstance(frame, Error) and frame.code == "failed"):
            raise Violation(f"the server said {frame}")

    def _send(self) -> None:
        """Everything which is not acknowledged, old and new."""
        self._cancel()
        end = min(len(self._bodies), self._done + self.window)
        self._sent = max(self._sent, end)
        for index in range(self._done, end):
            number = after(self._before, index - self._first + 1)
            self._write(message(number, self._bodies[index], "orders"))
        if end > self._done:
            self._timer = self._world.client_clock.callLater(self._patience, self._repeat)

    def _repeat(self) -> None:
        self._timer = None
        self._send()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def lost(self, line: Repeating) -> None:
        if line is self._line:
            self._line = None
            self._cancel()
            self._again()

    def stop(self) -> None:
        self._stopped = True
        self._cancel()
        if self._line is not None and self._line.transport is not None:
            self._line.transport.loseConnection()

    def check(self) -> None:
        pass

    repeats = 1


class Taking(MicroMsg2Client):
    def connectionMade(self) -> None:
        begun(self.link.machine, self.factory.owner.before)  # type: ignore[attr-defined]

    def sessionEstablished(self) -> None:
        self.subscribe("orders")

    def messageReceived(self, message: Any) -> Any:
        return self.factory.owner.took(message.body)  # type: ignore[attr-defined]

    def connectionLost(self, reason: Any = None) -> None:
        super().connectionLost(reason)
        self.factory.owner.lost()  # type: ignore[attr-defined]


class ConsumingClient:
    """Consumes the queue ``orders``: takes a while for each message, and connects again."""

    def __init__(self, world: World, before: int, seconds: tuple[float, ...]) -> None:
        source = world.source
        self._world = world
        self.before = before
        self._stopped = False
        self._live: Any = None
        self._seconds = source.choice(seconds)
        offers = (
            Offer("batch-ack", {"max-count": str(source.choice((1, 3, 20)))}),
            Offer("pub-sub"),
        )
        self.factory = MicroMsg2ClientFactory(
            proposal=Proposal(required=offers),
            limits={"handshake": 1000.0, "idle-close": 1000.0},
            clock=world.client_clock,
            wallClock=lambda: 0.0,
        )
        self.factory.protocol = Taking  # type: ignore[assignment]
        self.factory.owner = self  # type: ignore[attr-defined]

    def start(self) -> None:
        way = self._world.endpoint(self._world.client_clock)
        way.connect(self.factory).addCallbacks(self._connected, lambda failure: self.lost())

    def _connected(self, client: Any) -> None:
        self._live = client
        if self._stopped:
            client.close()

    def lost(self) -> None:
        self._live = None
        if not self._stopped:
            self._world.client_clock.callLater(AGAIN_SECONDS, self.start)

    def took(self, body: bytes) -> Deferred[None] | None:
        self._world.handed_over(body)
        if not self._seconds:
            return None
        done: Deferred[None] = Deferred()
        self._world.client_clock.callLater(
            self._world.source.random() * self._seconds, done.callback, None
        )
        return done

    def stop(self) -> None:
        self._stopped = True
        if self._live is not None:
            self._live.close()

    def check(self) -> None:
        counters = self.factory.counters
        if counters["faults"]:
            raise Violation(f"a consumer reports faults: {counters}")


class MicroMsg2:
    name = "micromsg2"
    consumers = (0, 0, 1, 2)
    """A world has one of these numbers of consumers."""
    seconds = (0.0, 0.0, 0.3)
    """Each takes at most one of these times for a message."""

    def __init__(self) -> None:
        self._kind: Any = None
        self._consumers = 0
        self._acknowledged: set[bytes] = set()

    def make_server(self, world: World, sink: Any, clock: ProcessClock) -> Any:
        source = world.source
        if self._kind is None:
            self._kind = OurClient if source.random() < 0.6 else ForeignClient
            self._before = source.choice(STARTS)
            self._consumers = source.choice(self.consumers)
        factory = MicroMsg2ServerFactory(
            sink,
            brokerQueues=["orders"] if self._consumers else [],
            limits={
                "unsafe-bytes": source.choice((500, 64 << 20)),
                "drain": 100.0,
                "handshake": 1000.0,  # a connection which breaks in it is nobody's fault here
                "idle-close": 1000.0,
            },
            clock=clock,
            wallClock=clock.wall,
            shared=world.shared,
        )
        factory.protocol = Server  # type: ignore[assignment]
        factory.before = self._before  # type: ignore[attr-defined]
        factory.startFactory()
        self._check_found(factory)
        return factory

    def _check_found(self, factory: Any) -> None:
        """What was acknowledged, and no consumer has had, is in the queue again."""
        if self._consumers and self._acknowledged:
            missing = len(self._acknowledged - self._world.handed_on)
            waiting = sum(figures.waiting for figures in factory.queues.store.queues())
            if waiting < missing:
                raise Violation(f"{waiting} messages wait after a start, {missing} must")

    def make_client(self, world: World, bodies: list[bytes]) -> Any:
        self._world = world
        consumers = [
            ConsumingClient(world, self._before, self.seconds) for _ in range(self._consumers)
        ]
        self.client = self._kind(world, bodies, self._before)
        return Crowd([*consumers, self.client])

    def acknowledged(self, body: bytes) -> None:
        self._acknowledged.add(body)

    def handed_on(self) -> bool:
        return not self._consumers or self._acknowledged <= self._world.handed_on

    def duplicates_max(self, world: World) -> int:
        return len(world.pipes) * (self.client.window + self.client.repeats)


# ── Planted bugs ────────────────────────────────────────────────────────────────────────────────


def ack_off_by_one() -> AbstractContextManager[object]:
    """The server acknowledges the message after the last safe one."""
    write = Session._write_ack

    def ahead(self: Any) -> None:
        self._window.safe += 1
        write(self)
        self._window.safe -= 1

    return mock.patch.object(Session, "_write_ack", ahead)


def ack_what_arrived() -> AbstractContextManager[object]:
    receive = Session.receive

    def early(self: Any, nbytes: bytes, now: float) -> Any:
        events = receive(self, nbytes, now)
        if self.established and self._acks is not None:
            safe, self._window.safe = self._window.safe, self._window.received
            self._write_ack()
            self._window.safe = safe
        return events

    return mock.patch.object(Session, "receive", early)


def no_idle_ack() -> AbstractContextManager[object]:
    """What does not fill a window is never acknowledged."""
    never = {"ack": lambda self, now, events: None}
    return mock.patch.dict(Session.timely, never)


def repeats_delivered() -> AbstractContextManager[object]:
    def new(self: Any, sequence: int) -> bool:
        return False

    return mock.patch.object(receiving.Inbox, "_is_repeat", new)


def window_plus_one() -> AbstractContextManager[object]:
    init = SendWindow.__init__

    def wider(self: Any, limit: int) -> None:
        init(self, limit + 1)

    return mock.patch.object(SendWindow, "__init__", wider)


def later_slice_acks_all() -> AbstractContextManager[object]:
    """A slice which becomes safe makes those before it safe, too."""

    @contextmanager
    def patched() -> Iterator[None]:
        def made_safe(self: Any, place: int) -> list[Any]:
            while self._open and self._open[0] <= place:
                self._open.pop(0)
            self.safe = max(self.safe, self.received)
            return []

        with mock.patch.object(ReceiveWindow, "made_safe", made_safe):
            yield

    return patched()


def compared_by_size() -> AbstractContextManager[object]:
    """A number which is not larger than the last one is a repeat."""

    def smaller(self: Any, sequence: int) -> bool:
        if sequence > self._last:
            return False
        self.repeat_seen = True
        return True

    return mock.patch.object(receiving.Inbox, "_is_repeat", smaller)


def published_before_stored() -> AbstractContextManager[object]:
    """Consumers get what is not safe yet."""
    put, publish, guessed = DurableSink.put, BrokerPersistence._publish, 0

    def early(self: Any, batch: Any) -> Any:
        nonlocal guessed
        if batch.envelope is not None and self.brokerPersistence is not None:
            guessed = max(guessed, self.writer._log.end)
            publish(self.brokerPersistence, batch, guessed)
            guessed += batch.count
        return put(self, batch)

    @contextmanager
    def patched() -> Iterator[None]:
        with (
            mock.patch.object(DurableSink, "put", early),
            mock.patch.object(BrokerPersistence, "stored", lambda self, batch, first: None),
        ):
            yield

    return patched()


def lost_with_their_consumer() -> AbstractContextManager[object]:
    """What a consumer had and did not acknowledge is gone when it is gone."""
    lost = Broker.lost

    def forgetting(self: Broker, consumer: Any, **how: bool) -> None:
        subscriber = self._subscribers.get(consumer)
        if subscriber is not None:
            places = [place for place in subscriber.in_flight.values() if place is not None]
            self._served.machine.settle(subscriber, places)
        lost(self, consumer, **how)

    return mock.patch.object(Broker, "lost", forgetting)


def queues_end_with_the_process() -> AbstractContextManager[object]:
    """What waits in a queue is not found again after a crash."""
    return mock.patch.object(KeptBroker, "restore", lambda self: self._persistence.open())


def settled_when_published() -> AbstractContextManager[object]:
    """A message is noted as settled before a consumer has acknowledged it."""
    came = KeptBroker.came

    def settling(self: Any, messages: Any) -> None:
        came(self, messages)
        self._persistence.state.settle([message.message_id for _, message in messages])

    return mock.patch.object(KeptBroker, "came", settling)


def unreadable_taken_for_absent() -> AbstractContextManager[object]:
    """Zeros stand for what the disk cannot read now, and damage is what does not fit (RD-50)."""

    def blank(file: Any, position: int, nbytes: int, most: int) -> bytes:
        try:
            return bytes(file.read(position, most))
        except OSError:
            return bytes(min(most, file.size() - position))

    return mock.patch.object(segments, "read_readable", blank)


class SlowConsumer(MicroMsg2):
    """Messages wait for their consumer while the gateway crashes."""

    consumers = (1, 1, 2, 2)
    seconds = (3.0, 3.0, 3.0)


DURABLE_BUGS: dict[str, Bug] = {
    "queues-end-with-the-process": queues_end_with_the_process,
    "settled-when-published": settled_when_published,
    "unreadable-taken-for-absent": unreadable_taken_for_absent,
}
"""They show where a message waits while the gateway crashes."""

MICROMSG2_BUGS: dict[str, Bug] = {
    "micromsg2-compared-by-size": compared_by_size,
    "micromsg2-published-before-stored": published_before_stored,
    "micromsg2-lost-with-their-consumer": lost_with_their_consumer,
    "micromsg2-ack-off-by-one": ack_off_by_one,
    "micromsg2-ack-what-arrived": ack_what_arrived,
    "micromsg2-no-idle-ack": no_idle_ack,
    "micromsg2-repeats-delivered": repeats_delivered,
    "micromsg2-window-plus-one": window_plus_one,
    "micromsg2-later-slice-acks-all": later_slice_acks_all,
}
