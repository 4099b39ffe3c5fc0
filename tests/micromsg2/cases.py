"""Servers and clients on string transports and a clock."""

from __future__ import annotations

from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionDone
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

from tests.doubles import HeldSink, LoggedCase
from tests.micromsg2.streams import (
    Error,
    ExtensionFrame,
    ack,
    decode,
    encode_command,
    handshake,
    message,
    offers,
)
from twisted_msgproto.micromsg2 import (
    MicroMsg2Client,
    MicroMsg2ClientFactory,
    MicroMsg2Server,
    MicroMsg2ServerFactory,
    Proposal,
)
from twisted_msgproto.testing import SafeSink

PEER = IPv4Address("TCP", "192.0.2.7", 54321)
WALL = 1_700_000_000.25


class Case(LoggedCase):
    """Connected protocols with a sink, a clock and transports which only note."""

    def setUp(self) -> None:
        super().setUp()
        self.sink: Any = HeldSink()
        self.factories: list[Any] = []
        self.connected: list[Any] = []
        self.addCleanup(self.lose_all)

    def server_factory(self, protocol: type = MicroMsg2Server, **options: Any) -> Any:
        limits = {key.replace("_", "-"): v for key, v in options.pop("limits", {}).items()}
        factory = MicroMsg2ServerFactory(
            options.pop("sink", self.sink),
            limits=limits,
            clock=self.clock,
            wallClock=lambda: WALL,
            **options,
        )
        factory.protocol = protocol
        self.factories.append(factory)
        return factory

    def connect(self, factory: Any, extensions: str | None = None) -> tuple[Any, Any]:
        """A server protocol; in a session with ``extensions`` unless they are None."""
        server = factory.buildProtocol(PEER)
        transport = StringTransport(peerAddress=PEER)
        transport.protocol = server
        server.makeConnection(transport)
        self.connected.append(server)
        if extensions is not None:
            server.dataReceived(handshake(extensions))
            server.dataReceived(handshake(extensions))
            transport.clear()
        return server, transport

    def client(
        self, protocol: type = MicroMsg2Client, extensions: str | None = "", **options: Any
    ) -> tuple[Any, Any]:
        """A client protocol; in a session with ``extensions`` unless they are None."""
        factory = MicroMsg2ClientFactory(
            options.pop("sink", None),
            proposal=Proposal(required=offers(extensions or ""), **options.pop("proposal", {})),
            limits={key.replace("_", "-"): v for key, v in options.pop("limits", {}).items()},
            clock=self.clock,
            wallClock=lambda: WALL,
        )
        factory.protocol = protocol
        client = factory.buildProtocol(PEER)
        transport = StringTransport(peerAddress=PEER)
        client.makeConnection(transport)
        self.connected.append(client)
        if extensions is not None:
            client.dataReceived(handshake())
            transport.clear()
        return client, transport

    def lose(self, *protocols: Any) -> None:
        for protocol in protocols:
            if protocol in self.connected:
                self.connected.remove(protocol)
            protocol.connectionLost(Failure(ConnectionDone()))
        # The broker looks for queues that nobody has used for an hour.
        soon = self.clock.seconds() + 3000.0
        self.assertEqual([c for c in self.clock.getDelayedCalls() if c.getTime() < soon], [])

    def lose_all(self) -> None:
        if self.connected:
            self.lose(*self.connected)

    def frames(self, transport: Any) -> list[Any]:
        octets = transport.value()
        transport.clear()
        return decode(octets)

    def bodies(self, transport: Any) -> list[bytes]:
        return [row[3] for row in self.frames(transport) if isinstance(row, tuple)]

    def errors(self, transport: Any) -> list[str]:
        return [frame.text for frame in self.frames(transport) if isinstance(frame, Error)]


class Remote:
    """A peer of a server: all that it writes and reads is bytes."""

    def __init__(self, case: Case, factory: Any, extensions: str = "pub-sub") -> None:
        self.case, self.factory = case, factory
        self.server, self.transport = case.connect(factory, extensions)
        case.connected.remove(self.server)
        names = [name.partition(":")[0] for name in extensions.split(";")]
        acks = [at for at, name in enumerate(names, 1) if name in ("ack", "batch-ack")]
        self.index = acks[-1] if acks else 0
        self.came: list[Any] = []
        self.sent = self.settled = 0

    def write(self, nbytes: bytes) -> None:
        self.server.dataReceived(nbytes)

    def send(self, destination: str, *bodies: bytes, properties: bytes = b"") -> None:
        first, self.sent = self.sent + 1, self.sent + len(bodies)
        rows = enumerate(bodies, first)
        self.write(b"".join(message(n, body, destination, properties) for n, body in rows))

    def subscribe(self, destination: str, expression: str = "") -> None:
        parameters = {"destination": destination, **({"filter": expression} if expression else {})}
        self.write(encode_command("subscribe", parameters))

    def unsubscribe(self, destination: str) -> None:
        self.write(encode_command("unsubscribe", {"destination": destination}))

    def ack(self, count: int | None = None) -> None:
        """Acknowledge so many more (None: all that came)."""
        self.settled = len(self.bodies) if count is None else self.settled + count
        self.write(ack(self.settled, self.index))

    def stop_reading(self) -> None:
        self.transport.producer.pauseProducing()

    def read_on(self) -> None:
        self.transport.producer.resumeProducing()

    def lose(self) -> None:
        self.server.connectionLost(Failure(ConnectionDone()))

    @property
    def frames(self) -> list[Any]:
        """All that came."""
        self.came += self.case.frames(self.transport)
        return self.came

    @property
    def bodies(self) -> list[bytes]:
        return [row[3] for row in self.frames if isinstance(row, tuple)]

    @property
    def errors(self) -> list[str]:
        return [frame.text for frame in self.frames if isinstance(frame, Error)]

    @property
    def acknowledged(self) -> int:
        """How many of its messages the server has acknowledged."""
        acks = [f.payload for f in self.frames if isinstance(f, ExtensionFrame)]
        return int.from_bytes(acks[-1]) if acks else 0

    @property
    def is_read(self) -> bool:
        return bool(self.transport.producerState == "producing")

    @property
    def closed(self) -> bool:
        return bool(self.transport.disconnecting or self.server.link.machine.fault)


class Peers(Case):
    """Peers of one server whose sink is safe at once."""

    def setUp(self) -> None:
        super().setUp()
        self.sink = SafeSink()
        self.peers: list[Remote] = []

    def tearDown(self) -> None:
        for peer in self.peers:
            peer.lose()
        self.clock.advance(60)  # lines that are said once a minute
        self.lose()

    def serve(self, *queues: str, **options: Any) -> Any:
        self.factory = self.server_factory(brokerQueues=queues, **options)
        return self.factory

    def peer(self, extensions: str = "pub-sub") -> Remote:
        self.peers.append(Remote(self, self.factory, extensions))
        return self.peers[-1]

    def window(self, count: int) -> Remote:
        """A peer that subscribes, and acknowledges when it is told to."""
        return self.peer(f"pub-sub;batch-ack:max-count={count}")

    def sender(self, extensions: str = "batch-ack:max-count=1000") -> Remote:
        return self.peer(extensions)

    def consumer(self, extensions: str = "pub-sub", queue: str = "q", filter: str = "") -> Remote:
        peer = self.peer(extensions)
        peer.subscribe(queue, filter)
        return peer

    def counted(self, count: int, filter: str = "", queue: str = "q") -> Remote:
        return self.consumer(f"pub-sub;batch-ack:max-count={count}", queue, filter)

    def gone(self, peer: Remote) -> None:
        self.peers.remove(peer)
        peer.lose()

    def turns(self, seconds: float = 0) -> int:
        """Let time pass, and the turns in which the broker goes on; return how many of these."""
        turns = 0

        def tick() -> None:
            nonlocal turns
            if self.factory.broker.unfinished or self.factory.queues.unfinished:
                turns += 1
                self.clock.callLater(0, tick)

        self.clock.callLater(0, tick)
        self.clock.advance(seconds)
        return turns

    def waiting(self, queue: str) -> int:
        """How many messages wait in a queue, or are with consumers."""
        queues = self.factory.queues.store.queues()
        return sum(q.waiting + q.in_flight for q in queues if q.name.name == queue)


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


class Noting(MicroMsg2Server):
    """Notes what its hooks see; answers messages as it is told to."""

    def connectionMade(self) -> None:
        self.seen: list[Any] = []
        self.answers: dict[bytes, Any] = {}

    def sessionEstablished(self) -> None:
        self.seen.append("established")

    def sessionLost(self, reason: Failure) -> None:
        self.seen.append(reason.type.__name__)

    def messageReceived(self, message: Any) -> Any:
        self.seen.append(message.body)
        answer = self.answers.get(message.body)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def errorReceived(self, code: str, text: str) -> None:
        self.seen.append((code, text))

    def commandReceived(self, name: str, parameters: Any) -> None:
        self.seen.append((name, dict(parameters)))

    def extensionReceived(self, name: str, content: Any) -> None:
        self.seen.append((name, content))
