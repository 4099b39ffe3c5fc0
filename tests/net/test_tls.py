"""Byte streams on real TLS: what ends them, and what does not."""

from __future__ import annotations

from typing import Any

from twisted.internet import reactor, ssl
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import SSL4ClientEndpoint, serverFromString
from twisted.internet.protocol import Factory, Protocol
from twisted.trial.unittest import TestCase

from tests.tools.certificates import Authority
from tests.tools.directories import temporary
from tests.tools.sinks import SafeSink
from twisted_msgproto.lumberjack import LumberjackServer, LumberjackServerFactory
from twisted_msgproto.lumberjack.wire import encode_json, encode_window


class Writer(Protocol):
    """A client which sends one event, and tells what came back when the connection ends."""

    def __init__(self) -> None:
        self.came = b""
        self.ended: Deferred[bytes] = Deferred()

    def connectionMade(self) -> None:
        self.transport.write(encode_window(1) + encode_json([1], [b"{}"]))

    def dataReceived(self, data: bytes) -> None:
        self.came += data

    def connectionLost(self, reason: Any) -> None:
        self.ended.callback(self.came)


class Ends(TestCase):
    timeout = 60

    async def ended(self, end: Any) -> bytes:
        """What a client receives of a server whose hook calls ``end(server)``."""

        lost: Deferred[None] = Deferred()

        class Server(LumberjackServer):
            def messageReceived(self, message: Any) -> None:
                end(self)

            def sessionLost(self, reason: Any) -> None:
                lost.callback(None)

        server = Authority(temporary(self)).server()
        factory = LumberjackServerFactory(SafeSink(), clock=reactor)
        factory.protocol = Server
        where = f"ssl:0:interface=127.0.0.1:privateKey={server.key}:certKey={server.cert}"
        port = await serverFromString(reactor, where).listen(factory)
        self.addCleanup(port.stopListening)
        options = ssl.CertificateOptions(verify=False)
        client = SSL4ClientEndpoint(reactor, "127.0.0.1", port.getHost().port, options)
        writer: Any = await client.connect(Factory.forProtocol(Writer))
        came: bytes = await writer.ended
        await lost
        self.assertEqual(len(factory.liveConnections), 0)
        return came

    async def test_a_hook_may_close_the_transport(self) -> None:
        came = await self.ended(lambda server: server.transport.loseConnection())
        self.assertEqual(came, b"2A\0\0\0\1", "what was owed is written first")

    async def test_a_hook_may_abort_the_transport(self) -> None:
        await self.ended(lambda server: server.transport.abortConnection())

    async def test_a_hook_may_drain_the_server(self) -> None:
        came = await self.ended(lambda server: server.factory.drain())
        self.assertEqual(came, b"2A\0\0\0\1")
