"""MTL in the simulated world: our client writes to our server, above simulated ZeroMQ sockets.

What ZeroMQ does is done by :class:`Link`: whole messages, in order, late; a connection which breaks
takes what is on its way with it; a DEALER comes back by itself, with another identity.
"""

from __future__ import annotations

from collections import deque
from contextlib import AbstractContextManager
from itertools import accumulate
from typing import Any
from unittest import mock

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from tests.sim.clock import ProcessClock
from tests.sim.world import Violation, World
from tests.tools.memory_zeromq import Network, Router, Socket
from twisted_msgproto.core.errors import ConnectionClosed, Refused, TimedOut
from twisted_msgproto.mtl import MtlClient, MtlClientFactory, MtlServer, MtlServerFactory
from twisted_msgproto.mtl.machine import ClientFlow, Server
from twisted_msgproto.mtl.machine.flows import connection_name
from twisted_msgproto.mtl.wire.data import Reject

CONTROL, DATA = "tcp://127.0.0.1:5049", "tcp://127.0.0.1:5050"
HOST = "192.0.2.1"
RECONNECT_SECONDS = 0.1


class Link:
    def __init__(self, world: World, dealer: SimulatedDealer, router: SimulatedRouter) -> None:
        self._world = world
        serial = len(world.pipes) + 1
        self.name = connection_name(b"\0" + serial.to_bytes(4, "big"), serial)
        self.dealer: SimulatedDealer | None = dealer
        self.router: SimulatedRouter | None = router
        self.broken = False
        self._arrivals = {"up": 0.0, "down": 0.0}
        world.pipes.append(self)  # type: ignore[arg-type]

    @property
    def live(self) -> bool:
        return self.dealer is not None or self.router is not None

    def arrive(self, frames: list[bytes], host: str) -> None:
        """The router sends this."""
        self.carry("down", frames)

    def carry(self, way: str, frames: list[bytes]) -> None:
        clock, source = self._world.clock, self._world.source
        delay = source.random() * self._world.options["delay"]
        self._arrivals[way] = arrival = max(self._arrivals[way], clock.now + delay)
        clock.callLater(arrival - clock.now, self._arrive, way, frames)

    def _arrive(self, way: str, frames: list[bytes] | None) -> None:
        if self.broken:
            return
        if frames is None:
            self._lose_dealer()
        elif way == "up" and self.router is not None:
            self.router.arrive([self.name, *frames], HOST)
        elif way == "down" and self.dealer is not None:
            self.dealer.arrive(frames, "")

    def cut(self) -> None:
        self.broken = True
        for lose in (self._lose_dealer, self._lose_router):
            seconds = self._world.source.random() * self._world.options["half_open"]
            self._world.clock.callLater(seconds, lose)

    def kill_server(self) -> None:
        self.router, self.broken = None, True
        seconds = self._world.source.random() * self._world.options["half_open"]
        self._world.clock.callLater(seconds, self._lose_dealer)

    def close_router(self) -> None:
        """The server closes its socket: what it has sent still arrives."""
        self.router = None
        self.carry("down", None)  # type: ignore[arg-type]

    def close_dealer(self) -> None:
        self.dealer = None
        self._lose_router()

    def _lose_router(self) -> None:
        router, self.router = self.router, None
        if router is not None:
            router.leave(self.name)

    def _lose_dealer(self) -> None:
        dealer, self.dealer = self.dealer, None
        self.broken = True
        if dealer is not None:
            dealer.lost()


class SimulatedRouter(Router):
    """A router in memory, whose dealers are links."""

    def __init__(
        self, world: World, clock: ProcessClock, received: Any, leaving: Any, left: Any
    ) -> None:
        super().__init__(Network(clock), received, None, leaving, left)
        self.world = world
        self.clock = clock

    def bind(self, address: str) -> str:
        listening(self.world)[address] = self
        return address

    def shutdown(self) -> None:
        super().shutdown()
        for link in list(self.dealers.values()):
            link.close_router()  # type: ignore[attr-defined]
        self.dealers.clear()


class SimulatedDealer(Socket):
    def __init__(self, world: World, clock: ProcessClock, received: Any) -> None:
        super().__init__(Network(clock), received)
        self.world = world
        self.clock = clock
        self._link: Link | None = None
        self._waiting: deque[list[bytes]] = deque()
        self._attempt: Any = None

    def takenAt(self, now: float) -> float:
        return 0.0

    def connect(self, address: str) -> None:
        self._address = address
        self._attempt = self.clock.callLater(0, self._connect)

    def _connect(self) -> None:
        self._attempt = None
        router = listening(self.world).get(self._address)
        if router is None or router.closed or router.clock.dead:
            self.lost()
            return
        self._link = link = Link(self.world, self, router)
        router.dealers[link.name] = link  # type: ignore[assignment]
        while self._waiting:
            link.carry("up", self._waiting.popleft())

    def lost(self) -> None:
        self._link = None
        if not self.closed:
            self._attempt = self.clock.callLater(RECONNECT_SECONDS, self._connect)

    def sendAll(self, messages: list[list[bytes]]) -> None:
        for frames in messages:
            if self._link is None:
                self._waiting.append(frames)
            else:
                self._link.carry("up", frames)

    def shutdown(self) -> None:
        self.closed = True
        if self._attempt is not None:
            self._attempt.cancel()
            self._attempt = None
        if self._link is not None:
            self._link.close_dealer()
            self._link = None


class SimulatedSockets:
    def __init__(self, world: World, clock: ProcessClock) -> None:
        self._world = world
        self._clock = clock
        self._made: list[Any] = []

    def router(self, received: Any, bounds: Any, *, leaving: Any, left: Any, **options: Any) -> Any:
        self._made.append(SimulatedRouter(self._world, self._clock, received, leaving, left))
        return self._made[-1]

    def admit(self, door: Any, curve: Any, keys: Any) -> None:
        """Whoever comes may connect."""

    def dealer(self, received: Any, bounds: Any, curve: Any) -> Any:
        self._made.append(SimulatedDealer(self._world, self._clock, received))
        return self._made[-1]

    def shutdown(self) -> None:
        for socket in self._made:
            if not socket.closed:
                socket.shutdown()


def listening(world: World) -> dict[str, SimulatedRouter]:
    found: dict[str, SimulatedRouter] = world.__dict__.setdefault("listening", {})
    return found


class WritingClient:
    """Writes every event with confirm full; what was not taken goes on another flow.

    That one is of the same session or of a new one.
    """

    def __init__(self, world: World, bodies: list[bytes]) -> None:
        self._world = world
        self.window = world.source.choice((1, 2, 5, 50))
        self._unsettled = {body: None for body in bodies}
        self._stopped = False
        self._client: MtlClient | None = None
        self._again: Any = None
        self._writer: Any = None
        self._stays = world.source.random() < 0.5

    def start(self) -> None:
        self._again = self._writer = None
        clock = self._world.client_clock
        factory = MtlClientFactory(
            clock=clock,
            limits={"window": self.window},
            sockets=lambda clock: SimulatedSockets(self._world, clock),
        )
        self._client = factory.buildClient(CONTROL)
        ready: Deferred[Any] = self._client.open("world")
        ready.addCallback(lambda profiles: self._of().profile("ingest"))
        ready.addCallback(lambda _: self._of().writer(["events"]))
        ready.addCallbacks(self._write, self._failed)

    def _of(self) -> MtlClient:
        assert self._client is not None
        return self._client

    def _write(self, writer: Any) -> None:
        self._writer = writer
        writer.lost = lambda error: self._go_on()
        for body in self._unsettled:
            sent = writer.send("events", body)
            sent.addCallbacks(self._settled, self._failed, callbackArgs=(body,))

    def _settled(self, _: None, body: bytes) -> None:
        del self._unsettled[body]
        self._world.acknowledged(body)

    def _failed(self, failure: Failure) -> None:
        """Once the flow has ended as well, ``lost`` goes on; who does not wait begins anew."""
        failure.trap(Refused, TimedOut, ConnectionClosed)
        if self._writer is None or not self._stays:
            self._anew()

    def _go_on(self) -> None:
        """The flow is over: lease another one, in this session or another."""
        self._writer = None
        if self._stays and not self._stopped and self._again is None:
            self._of().writer(["events"]).addCallbacks(self._write, self._failed)
        else:
            self._anew()

    def _anew(self) -> None:
        if not self._stopped and self._again is None:
            self._again = self._world.client_clock.callLater(0.5, self.start)
            self._of().abort()

    def stop(self) -> None:
        self._stopped = True
        if self._again is not None:
            self._again.cancel()
        self._of().abort()

    def check(self) -> None:
        for flow in self._of().flows.values():
            in_flight = flow.link.machine.snapshot()["in_flight"]
            if in_flight > self.window:  # type: ignore[operator]
                raise Violation(f"{in_flight} in flight, window {self.window}")


class Mtl:
    name = "mtl"

    def make_server(self, world: World, sink: Any, clock: ProcessClock) -> Any:
        factory = MtlServerFactory(
            sink,
            clock=clock,
            limits={"unsafe-bytes": world.source.choice((500, 64 << 20)), "drain": 100.0},
            wallClock=clock.wall,
            shared=world.shared,
            random=world.source.randbytes,
            sockets=lambda clock: SimulatedSockets(world, clock),
        )
        factory.listen([CONTROL], DATA)
        return factory

    def make_client(self, world: World, bodies: list[bytes]) -> Any:
        self.client = WritingClient(world, bodies)
        return self.client

    def duplicates_max(self, world: World) -> int:
        return len(world.pipes) * self.client.window

    def in_order(self, numbers: list[int]) -> bool:
        """Another flow of the session sends again what was not confirmed: without a gap."""
        highest = accumulate(numbers, max)
        return all(number <= most + 1 for most, number in zip(highest, numbers[1:], strict=False))


# ── Planted bugs ────────────────────────────────────────────────────────────────────────────────


def confirm_before_safe() -> AbstractContextManager[object]:
    """Content is confirmed when it has come, not when it is on disk."""

    def careless(self: MtlServer, batch: Any) -> None:
        assert self.factory.sink is not None
        self.factory.sink.put(batch).addErrback(lambda failure: None)

    return mock.patch.object(MtlServer, "batchReceived", careless)


def not_safe_is_confirmed() -> AbstractContextManager[object]:
    return mock.patch.object(Server, "not_safe", Server.made_safe)


def what_follows_lost_content_is_taken() -> AbstractContextManager[object]:
    """A broken disk ends no flow: what was lost is rejected by itself."""

    def careless(self: Server, place: Any, now: float) -> list[Any]:
        flow, end = place
        for settled in flow.window.made_safe(end):
            self._confirm_or_reject(flow, Reject(settled.sequences[-1], True))
        return []

    return mock.patch.object(Server, "not_safe", careless)


def what_was_behind_a_reject_is_sent_again() -> AbstractContextManager[object]:
    """A flow which ended with a Reject gets another lease and goes on."""

    def untroubled(self: ClientFlow, *arguments: Any) -> None:
        self.doubted = False
        lose(self, *arguments)

    lose = ClientFlow._lose
    return mock.patch.object(ClientFlow, "_lose", untroubled)


def nothing_is_sent_again() -> AbstractContextManager[object]:
    """A flow which gets another lease forgets what was in flight."""
    renew = ClientFlow.renew

    def forgetful(self: ClientFlow, *arguments: Any) -> Any:
        self._window.drain()
        return renew(self, *arguments)

    return mock.patch.object(ClientFlow, "renew", forgetful)


def window_and_one() -> AbstractContextManager[object]:
    made = ClientFlow.__init__

    def wider(self: ClientFlow, **options: Any) -> None:
        made(self, **options)
        self._window.limit += 1

    return mock.patch.object(ClientFlow, "__init__", wider)


MTL_BUGS = {
    "mtl-confirm-before-safe": confirm_before_safe,
    "mtl-not-safe-is-confirmed": not_safe_is_confirmed,
    "mtl-what-follows-lost-content-is-taken": what_follows_lost_content_is_taken,
    "mtl-what-was-behind-a-reject-is-sent-again": what_was_behind_a_reject_is_sent_again,
    "mtl-nothing-is-sent-again": nothing_is_sent_again,
    "mtl-window-and-one": window_and_one,
}
