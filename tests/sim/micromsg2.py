"""MicroMsg2 in the simulated world: our client, or one which repeats itself; our server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest import mock

from twisted.internet.protocol import Factory, Protocol

from tests.sim.bugs import Bug
from tests.sim.clock import ProcessClock
from tests.sim.world import Violation, World
from twisted_msgproto.core.limits import Limits
from twisted_msgproto.core.window import ReceiveWindow, SendWindow
from twisted_msgproto.micromsg2 import (
    MicroMsg2Client,
    MicroMsg2ClientFactory,
    MicroMsg2ServerFactory,
    Offer,
    Proposal,
)
from twisted_msgproto.micromsg2.machine import inbox, session
from twisted_msgproto.micromsg2.wire import (
    LIMITS,
    Decoder,
    Error,
    ExtensionFrame,
    Handshake,
    encode_address,
    encode_handshake,
    encode_message,
)

AGAIN_SECONDS = 0.5
"""How long a client waits before it connects again."""


class Sender(MicroMsg2Client):
    """Our client; its factory's owner says what to send."""

    def sessionEstablished(self) -> None:
        self.factory.owner.established(self)  # type: ignore[attr-defined]

    def connectionLost(self, reason: Any = None) -> None:
        super().connectionLost(reason)
        self.factory.owner.lost(self)  # type: ignore[attr-defined]


class OurClient:
    """Sends what is not acknowledged, in order, on each new connection."""

    def __init__(self, world: World, bodies: list[bytes]) -> None:
        source = world.source
        self._world = world
        self._bodies = bodies
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
        if self._live is not None and self._live.machine.in_flight > self.window:
            raise Violation(f"{self._live.machine.in_flight} in flight, window {self.window}")
        counters = self.factory.counters
        if counters["faults"] > counters["fault:ack-timeout"] + counters["fault:refused-by-peer"]:
            raise Violation(f"the client reports faults: {counters}")
        if self._live is not None and self._live.machine.counters.stray_acks:
            raise Violation("an ack for what is not in flight")

    @property
    def repeats(self) -> int:
        """How often one message may come again on one connection."""
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

    def __init__(self, world: World, bodies: list[bytes]) -> None:
        source = world.source
        self._world = world
        self._bodies = bodies
        self._done = 0
        self._first = 0  # index of the message with number 1 on this connection
        self._sent = 0
        self._line: Repeating | None = None
        self._timer: Any = None
        self._stopped = False
        self.window = source.choice((1, 2, 5, 50))
        self._patience = source.choice((0.7, 3.0, 20.0))
        self._octets = encode_handshake(
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
        self._write(self._octets)

    def _write(self, octets: bytes) -> None:
        assert self._line is not None and self._line.transport is not None
        self._line.transport.write(octets)

    def heard(self, frame: object) -> None:
        if isinstance(frame, Handshake):
            self._write(self._octets)
            self._send()
        elif isinstance(frame, ExtensionFrame):
            sequence = int.from_bytes(frame.payload, "big")
            newest = self._first + sequence
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
        address = encode_address("orders")
        for index in range(self._done, end):
            (frame,) = encode_message(index - self._first + 1, address, self._bodies[index])
            self._write(frame)
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


class MicroMsg2:
    """The adapter."""

    name = "micromsg2"

    def __init__(self) -> None:
        self._kind: Any = None

    def make_server(self, world: World, sink: Any, clock: ProcessClock) -> Any:
        source = world.source
        if self._kind is None:
            self._kind = OurClient if source.random() < 0.6 else ForeignClient
        return MicroMsg2ServerFactory(
            sink,
            limits={
                "unsafe-octets": source.choice((500, 64 << 20)),
                "drain": 100.0,
                "handshake": 1000.0,  # a connection which breaks in it is nobody's fault here
                "idle-close": 1000.0,
            },
            clock=clock,
            wallClock=lambda: 1_700_000_000.0 + clock.seconds(),
        )

    def make_client(self, world: World, bodies: list[bytes]) -> Any:
        self.client = self._kind(world, bodies)
        return self.client

    def duplicates_max(self, world: World) -> int:
        return len(world.pipes) * (self.client.window + self.client.repeats)


# ── Planted bugs ────────────────────────────────────────────────────────────────────────────────


def ack_off_by_one() -> AbstractContextManager[object]:
    """The server acknowledges the message after the last safe one."""
    write = session.Session._write_ack

    def ahead(self: Any) -> None:
        self._window.safe += 1
        write(self)
        self._window.safe -= 1

    return mock.patch.object(session.Session, "_write_ack", ahead)


def ack_what_arrived() -> AbstractContextManager[object]:
    """The server acknowledges what has arrived, safe or not."""
    receive = session.Session.receive_data

    def early(self: Any, octets: bytes, now: float) -> Any:
        events = receive(self, octets, now)
        if self.established and self._acks is not None:
            safe, self._window.safe = self._window.safe, self._window.received
            self._write_ack()
            self._window.safe = safe
        return events

    return mock.patch.object(session.Session, "receive_data", early)


def no_idle_ack() -> AbstractContextManager[object]:
    """What does not fill a window is never acknowledged."""
    tick = session.Session.tick

    def never(self: Any, now: float) -> Any:
        self._ack_due_at = None
        return tick(self, now)

    return mock.patch.object(session.Session, "tick", never)


def repeats_delivered() -> AbstractContextManager[object]:
    """A repeated message is taken for a new one."""

    def new(self: Any, sequence: int) -> bool:
        return False

    return mock.patch.object(inbox.Inbox, "_is_repeat", new)


def window_plus_one() -> AbstractContextManager[object]:
    """The sender has one message more in flight than agreed."""
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
                self._open.popleft()
            self.safe = max(self.safe, self.received)
            return []

        with mock.patch.object(ReceiveWindow, "made_safe", made_safe):
            yield

    return patched()


MICROMSG2_BUGS: dict[str, Bug] = {
    "micromsg2-ack-off-by-one": ack_off_by_one,
    "micromsg2-ack-what-arrived": ack_what_arrived,
    "micromsg2-no-idle-ack": no_idle_ack,
    "micromsg2-repeats-delivered": repeats_delivered,
    "micromsg2-window-plus-one": window_plus_one,
    "micromsg2-later-slice-acks-all": later_slice_acks_all,
}
