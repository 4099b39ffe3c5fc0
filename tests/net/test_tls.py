"""Byte streams on real TLS: what ends them, and what does not."""

from __future__ import annotations

import socket
import ssl as standard_ssl
from typing import Any

from twisted.internet import reactor, ssl
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import SSL4ClientEndpoint, serverFromString
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import Clock, deferLater
from twisted.internet.threads import deferToThread
from twisted.trial.unittest import TestCase

from tests.tools.certificates import Authority
from tests.tools.directories import temporary
from tests.tools.sinks import SafeSink
from twisted_msgproto.lumberjack import LumberjackServer, LumberjackServerFactory
from twisted_msgproto.lumberjack.wire import encode_json, encode_window
from twisted_msgproto.micromsg2 import MicroMsg2ClientFactory, MicroMsg2ServerFactory
from twisted_msgproto.net.reloading import ServedEndpoint

RECORD_OCTETS = 16 << 10


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

    async def ended(self, end: Any, clock: Any = reactor) -> bytes:
        """What a client receives of a server whose hook calls ``end(server)``."""
        lost: Deferred[None] = Deferred()

        class Server(LumberjackServer):
            def messageReceived(self, message: Any) -> None:
                end(self)

            def sessionLost(self, reason: Any) -> None:
                lost.callback(None)

        server = Authority(temporary(self)).server()
        factory = LumberjackServerFactory(SafeSink(), clock=clock)
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

    async def test_what_a_hook_closes_ends_in_the_next_turn(self) -> None:
        clock = Clock()

        def end(server: Any) -> None:
            server.transport.loseConnection()
            reactor.callLater(0, clock.advance, 0)

        self.assertEqual(await self.ended(end, clock), b"2A\0\0\0\1")

    async def test_a_server_that_drains_ends_with_its_peer_and_not_with_its_limit(self) -> None:
        """It reads no events any more, but what ends TLS: the clock of the limit stands still."""
        came = await self.ended(lambda server: server.factory.drain(), Clock())
        self.assertEqual(came, b"2A\0\0\0\1")

    async def test_who_pauses_a_connection_that_ends_does_not_keep_it_from_ending(self) -> None:
        def end(server: Any) -> None:
            server.link.wire.close(False)
            server.link.wire.pauseProducing()

        await self.ended(end, Clock())

    async def test_a_client_that_closes_ends_with_its_server_and_not_with_its_limit(self) -> None:
        server = Authority(temporary(self)).server()
        where = f"ssl:0:interface=127.0.0.1:privateKey={server.key}:certKey={server.cert}"
        served = MicroMsg2ServerFactory(SafeSink(), clock=reactor)
        port = await serverFromString(reactor, where).listen(served)
        self.addCleanup(port.stopListening)
        options = ssl.CertificateOptions(verify=False)
        endpoint = SSL4ClientEndpoint(reactor, "127.0.0.1", port.getHost().port, options)
        client: Any = await endpoint.connect(MicroMsg2ClientFactory(clock=Clock()))
        await client.whenEstablished()
        await client.close()
        await served.drain()


class Gathered(TestCase):
    """What is written over TLS leaves with the next turn, together, and is never more than fits."""

    timeout = 60

    async def client_of(self, protocol: type[Protocol]) -> Any:
        """The socket of a client over TLS of a server with this protocol."""
        files = Authority(temporary(self)).server()
        where = f"ssl:0:interface=127.0.0.1:privateKey={files.key}:certKey={files.cert}"
        port: Any = await ServedEndpoint(reactor, where).listen(Factory.forProtocol(protocol))
        self.addCleanup(port.stopListening)
        context = standard_ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, standard_ssl.CERT_NONE
        line = socket.create_connection(("127.0.0.1", port.getHost().port), timeout=60)
        client = await deferToThread(context.wrap_socket, line)
        self.addCleanup(client.close)
        return client

    async def connected(self) -> tuple[Any, Any]:
        """A server's end over TLS, and the socket of its client."""
        made: Deferred[Any] = Deferred()

        class Server(Protocol):
            def connectionMade(self) -> None:
                made.callback(self)

            def connectionLost(self, reason: Any = None) -> None:
                test.lost.callback(None)

        test, self.lost = self, Deferred[None]()
        client = await self.client_of(Server)
        await deferToThread(client.send, b"hello")
        return (await made).transport, client

    async def test_small_writes_of_a_turn_are_one_record_which_the_system_has_at_once__NB_11(
        self,
    ) -> None:
        transport, client = await self.connected()
        sent: list[int] = []
        raw = transport.transport
        write = raw.write
        raw.write = lambda octets: (sent.append(len(octets)), write(octets))
        started: list[object] = []
        raw.startWriting = lambda: started.append(None)  # the reactor would be asked
        for piece in (b"ping", b" and", b" pong"):
            transport.write(piece)
        self.assertEqual(sent, [])
        await deferLater(reactor, 0)
        self.assertEqual(len(sent), 1)
        self.assertEqual(started, [])
        self.assertEqual(await deferToThread(client.recv, 100), b"ping and pong")
        transport.abortConnection()
        await self.lost

    async def test_what_is_written_in_the_handshake_keeps_its_order__NB_11(self) -> None:
        sizes = (1, RECORD_OCTETS - 1, RECORD_OCTETS, 1, RECORD_OCTETS + 1, 5)

        class Early(Protocol):
            def connectionMade(self) -> None:
                self.dataReceived(b"")

            def dataReceived(self, data: bytes) -> None:
                for number, size in enumerate(sizes):
                    self.transport.write(bytes([number]) * size)
                    self.transport.flush()

        client = await self.client_of(Early)
        whole = b"".join(bytes([number]) * size for number, size in enumerate(sizes)) * 2
        await deferToThread(client.send, b"once more")
        came = b""
        while len(came) < len(whole):
            came += await deferToThread(client.recv, 1 << 20)
        self.assertTrue(came == whole)
        await deferToThread(client.close)

    async def test_a_peer_that_reads_nothing_pauses_its_producer_and_gets_all_in_order(
        self,
    ) -> None:
        transport, client = await self.connected()
        paused: Deferred[None] = Deferred()
        told: list[str] = []

        class Producer:
            def pauseProducing(self) -> None:
                told.append("pause")
                if not paused.called:
                    paused.callback(None)

            def resumeProducing(self) -> None:
                told.append("resume")

            def stopProducing(self) -> None:
                pass

        transport.registerProducer(Producer(), True)
        piece, count = bytes(range(256)) * 200, 0
        while not told and count < 2000:
            transport.write(piece)
            count += 1
            await deferLater(reactor, 0)
        self.assertEqual(told, ["pause"])
        self.assertLess(count, 2000)
        transport.write(b"last")
        transport.unregisterProducer()
        transport.loseConnection()

        def all_of_it() -> bytes:
            came = b""
            while octets := client.recv(1 << 20):  # an end without close_notify would be an error
                came += octets
            client.unwrap()
            return came

        self.assertEqual(await deferToThread(all_of_it), piece * count + b"last")
        await self.lost

    async def test_close_notify_follows_what_was_written_in_the_same_turn(self) -> None:
        transport, client = await self.connected()
        raw = transport.transport
        transport.write(b"the last words")
        transport.loseConnection()
        self.assertEqual(await deferToThread(client.recv, 100), b"the last words")
        # An end without close_notify would be an SSLEOFError.
        self.assertEqual(await deferToThread(client.recv, 100), b"")
        await deferToThread(client.unwrap)
        await self.lost
        transport.write(b"too late")
        await deferLater(reactor, 0)
        self.assertNotIn("write", vars(raw))

    async def test_what_is_written_before_an_abort_is_dropped(self) -> None:
        transport, _ = await self.connected()
        transport.write(b"no")
        transport.abortConnection()
        await self.lost
