"""What the contract's tests must know of each protocol, and no more.

A *message* is whatever the protocol acknowledges or answers: an event, a message, a request, a
call, a content.  ``send`` fires when that has happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from OpenSSL.SSL import Error as TLSError
from twisted.internet.defer import Deferred, ensureDeferred, fail, maybeDeferred, succeed
from twisted.internet.error import ConnectionRefusedError as NobodyListens

from twisted_msgproto.lumberjack import (
    LumberjackClient,
    LumberjackClientFactory,
    LumberjackClientService,
    LumberjackServer,
    LumberjackServerFactory,
)
from twisted_msgproto.micromsg2 import (
    STANDARD,
    Extension,
    MicroMsg2Client,
    MicroMsg2ClientFactory,
    MicroMsg2ClientService,
    MicroMsg2Server,
    MicroMsg2ServerFactory,
    Offer,
    Proposal,
)
from twisted_msgproto.mtl import (
    MtlClient,
    MtlClientFactory,
    MtlClientService,
    MtlServer,
    MtlServerFactory,
)
from twisted_msgproto.net.authentication import portal_over
from twisted_msgproto.net.authentication.sasl import PlainClient
from twisted_msgproto.sabc import (
    SabcClient,
    SabcClientFactory,
    SabcClientService,
    SabcServer,
    SabcServerFactory,
)
from twisted_msgproto.testing import Pair as Line
from twisted_msgproto.testing.pairs import FULL_BYTES
from twisted_msgproto.umq import (
    UmqClient,
    UmqClientFactory,
    UmqClientService,
    UmqServer,
    UmqServerFactory,
)

CONTROL, DATA = "tcp://127.0.0.1:5049", "tcp://127.0.0.1:5050"


def no_chance() -> float:
    """What chance gives in a world: a wait between two attempts is always the same."""
    return 0.5


class Peer:
    """One client of ours and its server's side.

    Attributes:
        client: the client's protocol (MTL: the client).
        server: the server's side of the session.
        line: the two transports between them; None where there are none (MTL).
    """

    def __init__(self, case: Case, client: Any, server: Any, line: Line | None) -> None:
        self.case = case
        self.client = client
        self.server = server
        self.line = line
        self.sent: list[Deferred[Any]] = []

    @property
    def stands(self) -> bool:
        return bool(self.case.stands(self))

    @property
    def gone(self) -> bool:
        return self.line is not None and self.line.server.gone

    @property
    def bytes_written(self) -> int:
        assert self.line is not None
        return self.line.client.written

    def send(self, body: bytes = b"x") -> Deferred[Any]:
        """One message of the client; fires when it is acknowledged or answered."""
        self.sent.append(maybeDeferred(self.case.send, self.client, body))
        return self.sent[-1]

    def push(self, body: bytes) -> Deferred[Any]:
        self.sent.append(maybeDeferred(self.case.send, self.server, body))
        return self.sent[-1]

    def pump(self) -> bool:
        return self.line is not None and self.line.pump()

    def cut(self) -> None:
        if self.line is not None:
            self.line.cut()


class Case:
    """One protocol; the server and client classes, and how they are asked for a message."""

    name: str
    title: str
    server_class: Any
    client_class: Any
    service_class: Any
    hook: str = "messageReceived"
    shakes_hands = True
    """A client which begins with a TLS hand-shake does so in memory, too."""

    def serve(self, world: Any, sink: Any, hooks: Any, portal: Any, limits: Any) -> Any:
        factory = self.make_server(world, sink, portal, limits)
        factory.protocol = self.subclass(self.server_class, hooks)
        return factory

    def subclass(self, base: Any, hooks: dict[str, Any]) -> Any:
        """``base`` with these hooks; ``"message"`` is the hook for a message."""
        named = {self.hook if name == "message" else name: hook for name, hook in hooks.items()}
        return type(base.__name__, (base,), named) if named else base

    def join(
        self, world: Any, hooks: Any, limits: Any, full: int = FULL_BYTES, host: str = "127.0.0.1"
    ) -> Peer:
        factory = self.make_client(world, limits)
        factory.protocol = self.subclass(self.client_class, hooks)
        return self.connected(world, factory, full, host)

    def meeting(self, world: Any, sink: Any = None) -> Peer:
        """A client which has begun, of which the server has read nothing yet."""
        factory = self.make_client(world, {})
        factory.protocol = self.client_class
        factory.sink = sink
        peer = self.connected(world, factory, FULL_BYTES, "127.0.0.1")
        world.peers.append(peer)
        return peer

    def connected(self, world: Any, factory: Any, full: int, host: str) -> Peer:
        line = Line(
            self.listening(world).buildProtocol,
            factory.buildProtocol,
            full=full,
            host=host,
            tls=world.turned_away is not None and self.shakes_hands,
        )
        server, client = line.server.protocol, line.client.protocol
        return Peer(self, self.session_in(client), self.session_in(server), line)

    def listening(self, world: Any) -> Any:
        return world.factory

    def session_in(self, protocol: Any) -> Any:
        return protocol

    def log_in(self, world: Any, name: str, password: str, host: str) -> Deferred[Any]:
        factory = self.make_login(world, name, password)
        peer = self.connected(world, factory, FULL_BYTES, host)
        world.peers.append(peer)
        return peer.client.whenEstablished()  # type: ignore[no-any-return]

    def service(self, world: Any, name: str = "me", password: str = "right", **options: Any) -> Any:
        factory = self.make_login(world, name, password)
        return self.service_class(
            Endpoint(self, world), factory, **{"random": no_chance, **options}
        )

    def away(self, world: Any) -> None:
        """The server is gone, with all connections, and nobody listens."""
        world.away = True
        for peer in world.peers:
            peer.cut()

    def back(self, world: Any) -> None:
        world.away = False

    def deafen(self, world: Any) -> None:
        """The server reads nothing any more, and the network does not say so."""
        for peer in world.peers:
            peer.line.server.deaf = True

    def refuse(self, world: Any) -> None:
        """From now on the server refuses whoever comes: by default it knows another password."""
        world.checker.addUser(b"me", b"another")

    def relent(self, world: Any) -> None:
        world.checker.addUser(b"me", b"right")

    def attempts(self, world: Any) -> int:
        return len(world.peers)

    def portal(self, checkers: Sequence[Any]) -> Any:
        return portal_over(checkers)

    def stands(self, peer: Peer) -> Any:
        return peer.server.established

    def make_server(self, world: Any, sink: Any, portal: Any, limits: Any) -> Any:
        raise NotImplementedError

    def make_client(self, world: Any, limits: Any) -> Any:
        raise NotImplementedError

    def make_login(self, world: Any, name: str, password: str) -> Any:
        return self.make_client(world, {})

    def send(self, side: Any, body: bytes) -> Deferred[Any]:
        raise NotImplementedError

    def wide(self) -> Case:
        """The same with many messages in flight, where that is not so from the beginning."""
        return self

    def read(self, world: Any, peer: Peer) -> bool:
        """Let the server read what the client has written; whether there was any."""
        assert peer.line is not None
        return peer.line.server.read()


class Endpoint:
    """A client endpoint: each connection is one more line of the world."""

    def __init__(self, case: Case, world: Any) -> None:
        self._case = case
        self._world = world

    def connect(self, factory: Any) -> Deferred[Any]:
        if self._world.away:
            return fail(NobodyListens())
        peer = Case.connected(self._case, self._world, factory, FULL_BYTES, "192.0.2.7")
        self._world.peers.append(peer)
        assert peer.line is not None
        if self._world.turned_away is not None:
            self._world.clock.callLater(0, peer.line.client.lost, self._world.turned_away)
        return succeed(peer.line.client.protocol)


class Lumberjack(Case):
    name, title = "lumberjack", "Lumberjack"
    server_class, client_class = LumberjackServer, LumberjackClient
    service_class = LumberjackClientService

    def refuse(self, world: Any) -> None:
        world.turned_away = TLSError([("SSL routines", "", "tlsv1 alert unknown ca")])

    def relent(self, world: Any) -> None:
        world.turned_away = None

    def make_server(self, world: Any, sink: Any, portal: Any, limits: Any) -> Any:
        return LumberjackServerFactory(
            sink, limits={"keepalive": 0, **limits}, clock=world.clock, wallClock=lambda: 1.7e9
        )

    def make_client(self, world: Any, limits: Any) -> Any:
        return LumberjackClientFactory(
            window=1, pipelining=100, compress=0, limits=limits, clock=world.clock
        )

    def send(self, side: Any, body: bytes) -> Deferred[Any]:
        return side.send(b'{"m":"%s"}' % body)  # type: ignore[no-any-return]


class UnheardOf(Extension):
    name = "x-unheard-of"


class MicroMsg2(Case):
    name, title = "micromsg2", "MicroMsg2"
    server_class, client_class = MicroMsg2Server, MicroMsg2Client
    service_class = MicroMsg2ClientService

    def refuse(self, world: Any) -> None:
        """It wants an extension which the client does not know: here the client says no."""
        world.factory.proposal = Proposal(
            required=(Offer("x-unheard-of"),), known=STANDARD.plus(UnheardOf)
        )

    def relent(self, world: Any) -> None:
        world.factory.proposal = Proposal()

    def make_server(self, world: Any, sink: Any, portal: Any, limits: Any) -> Any:
        return MicroMsg2ServerFactory(
            sink, limits=limits, clock=world.clock, wallClock=lambda: 1.7e9
        )

    window = 1

    def wide(self) -> Case:
        return WideMicroMsg2()

    def make_client(self, world: Any, limits: Any) -> Any:
        offered = (Offer("ack", {"max-count": str(self.window)}), Offer("pub-sub"))
        return MicroMsg2ClientFactory(
            proposal=Proposal(optional=offered), limits=limits, clock=world.clock
        )

    def send(self, side: Any, body: bytes) -> Deferred[Any]:
        return side.send("orders", body)  # type: ignore[no-any-return]


class WideMicroMsg2(MicroMsg2):
    window = 100


class Sabc(Case):
    name, title = "sabc", "Sabc"
    server_class, client_class = SabcServer, SabcClient
    service_class = SabcClientService
    hook = "requestReceived"

    def make_server(self, world: Any, sink: Any, portal: Any, limits: Any) -> Any:
        return SabcServerFactory(
            sink, limits=limits, clock=world.clock, wallClock=lambda: 1.7e9, portal=portal
        )

    def make_client(self, world: Any, limits: Any) -> Any:
        return SabcClientFactory("me", limits=limits, clock=world.clock)

    def make_login(self, world: Any, name: str, password: str) -> Any:
        factory = SabcClientFactory(name, password, limits=PATIENT, clock=world.clock)
        factory.protocol = self.client_class
        return factory

    def send(self, side: Any, body: bytes) -> Deferred[Any]:
        return side.request(body)  # type: ignore[no-any-return]


class SabcOnWebSocket(Sabc):
    name, title = "sabc-ws", "SabcOnWebSocket"
    shakes_hands = False

    def service(self, world: Any, name: str = "me", password: str = "right", **options: Any) -> Any:
        return super().service(world, name, password, url="ws://server:5047/", **options)

    def connected(self, world: Any, factory: Any, full: int, host: str) -> Peer:
        return super().connected(world, factory.webSocketFactory("ws://server:5047/"), full, host)

    def listening(self, world: Any) -> Any:
        if not hasattr(world, "websocket"):
            world.websocket = world.factory.webSocketFactory()
        return world.websocket

    def session_in(self, protocol: Any) -> Any:
        return None if protocol is None else protocol.session

    def stands(self, peer: Peer) -> Any:
        return peer.client.transport is not None and peer.server.established


class Umq(Case):
    name, title = "umq", "Umq"
    shakes_hands = False
    server_class, client_class = UmqServer, UmqClient
    service_class = UmqClientService
    hook = "requestReceived"

    def make_server(self, world: Any, sink: Any, portal: Any, limits: Any) -> Any:
        return UmqServerFactory(
            sink, limits=limits, clock=world.clock, wallClock=lambda: 1.7e9, portal=portal
        )

    def make_client(self, world: Any, limits: Any) -> Any:
        return UmqClientFactory("ws://server:5048/", limits=limits, clock=world.clock)

    def make_login(self, world: Any, name: str, password: str) -> Any:
        hello = f"{name}:{password}"
        factory = UmqClientFactory(
            "ws://server:5048/", hello=hello, limits={"hello-seconds": 100.0}, clock=world.clock
        )
        factory.protocol = self.client_class
        return factory

    def session_in(self, protocol: Any) -> Any:
        return None if protocol is None else protocol.session

    def portal(self, checkers: Sequence[Any]) -> Any:
        return portal_over(checkers)

    def send(self, side: Any, body: bytes) -> Deferred[Any]:
        return side.call(body.decode())  # type: ignore[no-any-return]


class MtlPeer(Peer):
    writer: Any = None
    control: Any = None
    ended = False

    def send(self, body: bytes = b"x") -> Deferred[Any]:
        self.sent.append(maybeDeferred(self.writer.send, "events", body))
        return self.sent[-1]

    @property
    def gone(self) -> bool:
        return self.ended

    @property
    def bytes_written(self) -> int:
        return sum(socket.sent_bytes for socket in self.client.link._sockets.made)

    def cut(self) -> None:
        self.client.abort()


class Mtl(Case):
    name, title = "mtl", "Mtl"
    server_class, client_class = MtlServer, MtlClient
    service_class = MtlClientService

    def make_server(self, world: Any, sink: Any, portal: Any, limits: Any) -> Any:
        factory = MtlServerFactory(
            sink,
            limits=limits,
            clock=world.clock,
            wallClock=lambda: 1.7e9,
            portal=portal,
            sockets=world.network.sockets(),
        )
        factory.listen([CONTROL], DATA)
        return factory

    def join(
        self, world: Any, hooks: Any, limits: Any, full: int = FULL_BYTES, host: str = "192.0.2.1"
    ) -> Peer:
        peer = self._peer(world, limits, host)
        self.ready(peer)
        return peer

    def meeting(self, world: Any, sink: Any = None) -> MtlPeer:
        """A client which has not asked for a session."""
        world.network.away = True
        peer = self._peer(world, {}, "192.0.2.1")
        world.peers.append(peer)
        return peer

    def _peer(self, world: Any, limits: Any, host: str) -> MtlPeer:
        limits = dict(limits)
        persistent = limits.pop("persistent", True)
        sockets = world.network.sockets(host)
        factory = MtlClientFactory(limits=limits, clock=world.clock, sockets=sockets)
        client = MtlClient(CONTROL, factory, persistent=persistent)
        return MtlPeer(self, client, None, None)

    def ready(self, peer: MtlPeer) -> None:
        async def begin() -> None:
            await peer.client.open("host")
            await peer.client.profile("ingest")
            peer.writer = await peer.client.writer(["events"])

        ensureDeferred(begin()).addErrback(lambda failure: None)

    def stands(self, peer: Any) -> bool:
        return peer.writer is not None

    def log_in(self, world: Any, name: str, password: str, host: str) -> Deferred[Any]:
        peer = self._peer(world, {"request-timeout": 20.0, "request-tries": 1}, host)
        world.peers.append(peer)

        async def enter() -> Any:
            await peer.client.open("host")
            return await peer.client.authorize(lambda names: PlainClient(name, password))

        return ensureDeferred(enter())

    def service(self, world: Any, name: str = "me", password: str = "right", **options: Any) -> Any:
        factory = MtlClientFactory(
            "host",
            "ingest",
            credentials=lambda names: PlainClient(name, password),
            limits={"request-timeout": 3.0, "request-tries": 5},
            clock=world.clock,
            sockets=world.network.sockets("192.0.2.7"),
        )
        return self.service_class(CONTROL, factory, **{"random": no_chance, **options})

    def away(self, world: Any) -> None:
        world.network.away = True

    def back(self, world: Any) -> None:
        world.network.away = False

    def deafen(self, world: Any) -> None:
        world.network.away = True

    def attempts(self, world: Any) -> int:
        return world.network.identities  # type: ignore[no-any-return]

    def send(self, side: Any, body: bytes) -> Deferred[Any]:
        return side.send("events", body)  # type: ignore[no-any-return]

    def read(self, world: Any, peer: Any) -> bool:
        peer.writer.flush()
        router = world.network.routers[DATA]
        some = bool(router.inbox)
        router.doRead()
        return some


PATIENT = {"connect-seconds": 100.0}
"""A client which waits for the answer to its log-in as long as it takes."""

CASES: tuple[Case, ...] = (
    Lumberjack(),
    MicroMsg2(),
    Sabc(),
    SabcOnWebSocket(),
    Umq(),
    Mtl(),
)
STREAMS = ("lumberjack", "micromsg2", "sabc")
"""On a byte stream."""
CONNECTED = (*STREAMS, "sabc-ws", "umq")
"""On a transport of Twisted's."""
BOTH_WAYS = ("micromsg2", "sabc", "sabc-ws", "umq")
"""Both sides send messages."""
LOG_IN = ("sabc", "sabc-ws", "umq", "mtl")
"""Those which authenticate."""
