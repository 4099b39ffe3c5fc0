"""Servers and clients on string transports and a clock."""

from __future__ import annotations

from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionDone
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.logger import globalLogPublisher
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from tests.micromsg2.layouts import Error
from tests.micromsg2.streams import decode, handshake, offers
from tests.tools.sinks import HeldSink
from twisted_msgproto.micromsg2 import (
    MicroMsg2Client,
    MicroMsg2ClientFactory,
    MicroMsg2Server,
    MicroMsg2ServerFactory,
    Proposal,
)

PEER = IPv4Address("TCP", "192.0.2.7", 54321)
WALL = 1_700_000_000.25


class Case(SynchronousTestCase):
    """Connected protocols with a sink, a clock and transports which only note."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.sink: Any = HeldSink()
        self.lines: list[str] = []
        self.factories: list[Any] = []
        globalLogPublisher.addObserver(self._observe)
        self.addCleanup(globalLogPublisher.removeObserver, self._observe)

    def _observe(self, event: dict[str, Any]) -> None:
        if str(event.get("log_namespace", "")).startswith("twisted_msgproto"):
            self.lines.append(event["log_format"].format(**event))

    def server_factory(self, protocol: type = MicroMsg2Server, **options: Any) -> Any:
        limits = {key.replace("_", "-"): v for key, v in options.pop("limits", {}).items()}
        factory = MicroMsg2ServerFactory(
            options.pop("sink", self.sink),
            limits=limits,
            clock=self.clock,
            wallClock=lambda: WALL,
            **options,
        )
        factory.protocol = protocol  # type: ignore[assignment]
        self.factories.append(factory)
        return factory

    def waiting(self, factory: Any, queue: str) -> int:
        """How many messages wait in a queue of a server's broker, or are with consumers."""
        return sum(
            each.waiting + each.in_flight
            for each in factory.queues.queues()
            if each.name.name == queue
        )

    def connect(self, factory: Any, extensions: str | None = None) -> tuple[Any, Any]:
        """A server protocol; in a session with ``extensions`` unless they are None."""
        server = factory.buildProtocol(PEER)
        transport = StringTransport(peerAddress=PEER)
        transport.protocol = server  # type: ignore[attr-defined]
        server.makeConnection(transport)
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
        factory.protocol = protocol  # type: ignore[assignment]
        client = factory.buildProtocol(PEER)
        transport = StringTransport(peerAddress=PEER)
        client.makeConnection(transport)  # type: ignore[union-attr]
        if extensions is not None:
            client.dataReceived(handshake())  # type: ignore[union-attr]
            transport.clear()
        return client, transport

    def lose(self, *protocols: Any) -> None:
        for protocol in protocols:
            protocol.connectionLost(Failure(ConnectionDone()))
        # The broker looks for queues that nobody has used for an hour.
        soon = self.clock.seconds() + 3000.0
        self.assertEqual([c for c in self.clock.getDelayedCalls() if c.getTime() < soon], [])

    def frames(self, transport: Any) -> list[Any]:
        octets = transport.value()
        transport.clear()
        return decode([octets])

    def bodies(self, transport: Any) -> list[bytes]:
        return [row[3] for row in self.frames(transport) if isinstance(row, tuple)]

    def errors(self, transport: Any) -> list[str]:
        return [frame.text for frame in self.frames(transport) if isinstance(frame, Error)]


class Noting(MicroMsg2Server):
    """Notes what its hooks see; answers messages as it is told to."""

    def connectionMade(self) -> None:
        self.seen: list[Any] = []
        self.answers: dict[bytes, Any] = {}
        super().connectionMade()

    def sessionEstablished(self) -> None:
        self.seen.append("established")

    def sessionLost(self, reason: Failure) -> None:
        self.seen.append(reason.type.__name__)  # type: ignore[union-attr]

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
