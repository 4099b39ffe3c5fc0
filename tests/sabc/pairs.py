"""A server and a client protocol in memory, with a clock and bytes which move when told to."""

from __future__ import annotations

from itertools import count

from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred, succeed
from twisted.internet.error import ConnectionDone
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

from tests.doubles import HeldSink, LoggedCase
from twisted_msgproto.core.errors import Refused
from twisted_msgproto.sabc import (
    Response,
    SabcClient,
    SabcClientFactory,
    SabcServer,
    SabcServerFactory,
)

PEER = IPv4Address("TCP", "192.0.2.7", 54321)


class Promise:
    """What can be awaited, and is neither a Deferred nor a coroutine, as asyncio's tasks."""

    def __await__(self):
        yield


class Transport(StringTransport):
    def abortConnection(self):
        self.disconnecting = True


class Case(LoggedCase):
    """``self.server`` and ``self.client`` with transports; ``pump`` moves their bytes."""

    sink = None
    server_class = SabcServer
    client_class = SabcClient

    def setUp(self):
        super().setUp()
        self.clock.advance(1_700_000_000)
        self._sides = []
        self._ids = count(1)

    def serve(self, *, server_class=None, portal=None, lenient=False, refuse=False, **limits):
        self.factory = SabcServerFactory(
            self.sink,
            limits={name.replace("_", "-"): value for name, value in limits.items()},
            clock=self.clock,
            wallClock=lambda: 1_700_000_000.25,
            portal=portal,
            lenient=lenient,
            refuseOversize=refuse,
            newSessionId=lambda: f"secret-{next(self._ids)}",
        )
        self.factory.protocol = server_class or self.server_class
        return self.accept()

    def accept(self):
        server = self.factory.buildProtocol(PEER)
        transport = Transport(peerAddress=PEER)
        transport.protocol = server
        self._sides.append(server)
        server.makeConnection(transport)
        return server

    def join(self, *, client_class=None, clientId="me", passcode=None, **limits):
        factory = SabcClientFactory(
            clientId,
            passcode,
            limits={name.replace("_", "-"): value for name, value in limits.items()},
            clock=self.clock,
        )
        factory.protocol = client_class or self.client_class
        client = factory.buildProtocol(PEER)
        self._sides.append(client)
        client.makeConnection(Transport(peerAddress=PEER))
        return client

    def pair(self, **options):
        self.server = self.serve(**options)
        self.client = self.join()
        self.pump()
        return self.server, self.client

    def pump(self, server=None, client=None):
        """Move bytes until neither side has any; close what was asked to be closed."""
        server, client = server or self.server, client or self.client
        sides = [(server, client), (client, server)]
        while any(a.transport.value() and b.transport.connected for a, b in sides):
            for sender, receiver in sides:
                octets = sender.transport.value()
                sender.transport.clear()
                if octets and receiver.transport.connected:
                    receiver.dataReceived(octets)
        for side, other in sides:
            if side.transport.disconnecting and side.transport.connected:
                self.lose(side)
                if other.transport.connected:
                    self.lose(other)

    def lose(self, side):
        if side.transport.connected:
            side.transport.connected = False
            side.connectionLost(Failure(ConnectionDone()))

    def tearDown(self):
        for side in self._sides:
            self.lose(side)
        self.assertEqual(self.clock.getDelayedCalls(), [])


class HeldCase(Case):
    """With a sink which says safe when the test does."""

    def setUp(self):
        super().setUp()
        self.sink = HeldSink()


class Echo(SabcServer):
    """Answers with what came; keeps what else happened."""

    def connectionMade(self):
        self.notes = []
        super().connectionMade()

    def sessionEstablished(self):
        self.notes.append("established")

    def sessionLost(self, reason):
        self.notes.append("lost")

    def requestReceived(self, message):
        self.notes.append(message)
        if message.body == b"none":
            return None
        if message.body == b"text":
            return "täxt"
        if message.body == b"later":
            self.later = Deferred()
            return self.later
        if message.body == b"done":
            return succeed(b"done")
        if message.body == b"coroutine":
            return self.coroutine()
        if message.body == b"response":
            return Response(b"body", {"colour": "red"})
        if message.body == b"raise":
            raise RuntimeError("secret detail")
        if message.body == b"refuse":
            raise Refused("not today", 409)
        if message.body == b"odd refusal":
            raise Refused("not today", "a::b")
        if message.body == b"odd":
            return 7
        if message.body == b"promise":
            return Promise()
        if message.body == b"inject":
            return Response(b"", {"a": "b\r\nc::d"})
        return message.body

    async def coroutine(self):
        return b"from a coroutine"

    def messageReceived(self, message):
        self.notes.append(message)
        if message.body == b"raise":
            raise RuntimeError("secret detail")
        if message.body == b"later":
            self.later = Deferred()
            return self.later
        return 7 if message.body == b"odd" else None

    def errorReceived(self, error):
        self.notes.append(error)
