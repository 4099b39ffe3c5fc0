"""Byte streams on real TLS: what ends them, and what a turn processes."""

from __future__ import annotations

import re
import socket
import ssl as standard_ssl
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from twisted.internet import reactor as installed
from twisted.internet import ssl
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import (
    SSL4ClientEndpoint,
    TCP4ClientEndpoint,
    TCP4ServerEndpoint,
    serverFromString,
)
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import Clock, deferLater
from twisted.internet.threads import deferToThread
from twisted.trial.unittest import TestCase

from tests.doubles import temporary
from tests.tools.certificates import Authority
from twisted_msgproto import lumberjack, micromsg2, sabc, umq
from twisted_msgproto.lumberjack import LumberjackServer, LumberjackServerFactory
from twisted_msgproto.lumberjack.wire import encode_ack, encode_json, encode_window
from twisted_msgproto.micromsg2 import MicroMsg2ClientFactory, MicroMsg2ServerFactory
from twisted_msgproto.net import tls
from twisted_msgproto.net.endpoints import ServedEndpoint
from twisted_msgproto.net.turns import TurnWatch
from twisted_msgproto.sabc import SabcServer, SabcServerFactory
from twisted_msgproto.testing import SafeSink

reactor: Any = installed
RECORD_BYTES = 16 << 10


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


# ── records of tls ──────────────────────────────────────────────────────────────────────────────


RECORDS, TURN_SECONDS = 16, 0.008


RECORD_SECONDS = TURN_SECONDS / RECORDS
"""Each record is said to take so long; so two pieces and one record more fit into a turn."""

A_TURN = 3 * RECORDS
"""At most this many records of one byte are processed in a turn then."""

EVENT = b'{"message":"%s"}' % (b"x" * 3000)


class Neighbour(Protocol):
    """A good client of another protocol: one event at a time, as soon as the last is safe."""

    def __init__(self, processed: Callable[[], int]) -> None:
        self.processed = processed
        self.waited: list[int] = []
        self.sequence = 0

    def connectionMade(self) -> None:
        self.send()

    def send(self) -> None:
        self.sequence += 1
        self.came = b""
        self.sent_at = self.processed()
        self.transport.write(encode_window(1) + encode_json([self.sequence], [b"{}"]))

    def dataReceived(self, data: bytes) -> None:
        self.came += data
        if self.came == encode_ack(self.sequence):
            self.waited.append(self.processed() - self.sent_at)
            self.send()


class TinyRecords(TestCase):
    """One byte in each record of TLS: 2,800 of them come with one read."""

    timeout = 60

    def setUp(self) -> None:
        self.processed = 0
        self.by_turn = [0]
        self.tick()

    def tick(self) -> None:
        """Count turns of the reactor."""
        self.by_turn.append(0)
        self.ticking = reactor.callLater(0, self.tick)

    def tearDown(self) -> None:
        self.ticking.cancel()

    def counted(self, server: type[Any]) -> type[Any]:
        """A server that counts what it is given."""
        test = self

        class Counted(server):  # type: ignore[misc]  # whichever class it is
            def connectionMade(self) -> None:
                super().connectionMade()
                received = self.dataReceived

                def counted(data: bytes) -> None:
                    test.processed += 1
                    test.by_turn[-1] += 1
                    received(data)

                self.dataReceived = counted

        return Counted

    async def behind_tls(self, factory: Any) -> int:
        """Serve ``factory``, and say that each record takes a while."""
        files = Authority(temporary(self)).server()
        where = f"ssl:0:interface=127.0.0.1:privateKey={files.key}:certKey={files.cert}"
        spent = SimpleNamespace(thread_time=lambda: self.processed * RECORD_SECONDS)
        self.patch(tls, "time", spent)
        port: Any = await ServedEndpoint(reactor, where).listen(factory)
        self.addCleanup(port.stopListening)
        number: int = port.getHost().port
        return number

    def encrypted(self, port: int) -> tuple[socket.socket, Callable[[bytes], bytes]]:
        """A connection, and what encrypts bytes for it: each in a record of its own."""
        context = standard_ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, standard_ssl.CERT_NONE
        incoming, outgoing = standard_ssl.MemoryBIO(), standard_ssl.MemoryBIO()
        engine = context.wrap_bio(incoming, outgoing)
        line = socket.create_connection(("127.0.0.1", port), timeout=60)
        while True:
            try:
                engine.do_handshake()
                line.sendall(outgoing.read())  # the server waits for these, and not for long
                break
            except standard_ssl.SSLWantReadError:
                line.sendall(outgoing.read())
                incoming.write(line.recv(1 << 16))

        def records(nbytes: bytes) -> bytes:
            for byte in nbytes:
                engine.write(bytes([byte]))
            return outgoing.read()

        def decrypted(count: int) -> bytes:
            came = b""
            while len(came) < count:
                try:
                    came += engine.read(1 << 16)
                except standard_ssl.SSLWantReadError:
                    incoming.write(line.recv(1 << 16))
            return came

        self.decrypted = decrypted
        return line, records

    async def test_tiny_tls_records_keep_no_neighbour_waiting__NB_07(self) -> None:
        """NB-07: between a good client's event and its ack few of them are processed."""
        hostile = SabcServerFactory(SafeSink(), clock=reactor)
        hostile.protocol = self.counted(SabcServer)
        good = LumberjackServerFactory(SafeSink(), clock=reactor)
        plain: Any = await TCP4ServerEndpoint(reactor, 0, interface="127.0.0.1").listen(good)
        self.addCleanup(plain.stopListening)
        port = await self.behind_tls(hostile)
        line, records = await deferToThread(self.encrypted, port)
        self.addCleanup(line.close)
        flood = await deferToThread(records, b"MESSAGE\r\nmsg-id::1\r\n\r\n" + bytes(20_000))
        connecting = TCP4ClientEndpoint(reactor, "127.0.0.1", plain.getHost().port)
        maker = Factory.forProtocol(Neighbour)
        maker.buildProtocol = lambda address: Neighbour(lambda: self.processed)  # type: ignore[method-assign]
        neighbour: Any = await connecting.connect(maker)
        await deferToThread(line.sendall, flood)
        while self.processed < 20_000:
            await self.turn()
        neighbour.transport.abortConnection()
        # The rest of one read, and the next read.
        self.assertLessEqual(max(self.by_turn), 2 * A_TURN)
        self.assertGreater(len(neighbour.waited), 100)
        self.assertLessEqual(max(neighbour.waited), 8 * A_TURN)
        line.close()
        while hostile.liveConnections or good.liveConnections:
            await self.turn()

    async def turn(self) -> None:
        waiting: Deferred[None] = Deferred()
        reactor.callLater(0, waiting.callback, None)
        await waiting

    async def test_what_comes_in_tiny_records_arrives_whole__NB_07(self) -> None:
        """NB-07: also where the sending side has closed, and the watch sees turns, not records."""
        sink = SafeSink()
        factory = LumberjackServerFactory(sink, clock=reactor)
        factory.protocol = self.counted(LumberjackServer)
        taken: list[float] = []
        factory.turnWatch = TurnWatch(
            -1.0, lambda peer, host, spent: taken.append(spent), lambda: self.processed
        )
        port = await self.behind_tls(factory)

        def ship() -> bytes:
            line, records = self.encrypted(port)
            with line:
                line.sendall(records(encode_window(1) + encode_json([1], [EVENT])))
                came: bytes = self.decrypted(6)
                return came

        self.assertEqual(await deferToThread(ship), encode_ack(1))
        self.assertEqual([bytes(row) for batch in sink.batches for row in batch.body], [EVENT])
        self.assertGreater(max(taken), 1)
        self.assertLessEqual(max(taken), A_TURN)
        while factory.liveConnections:
            await self.turn()

    async def test_what_is_paused_is_delivered_no_further_record__NB_07(self) -> None:
        """NB-07: the others of the same read wait until it is resumed."""

        class Pausing(Protocol):
            def connectionMade(self) -> None:
                test.server = self

            def dataReceived(self, data: bytes) -> None:
                test.came += data
                if data == b"|":
                    self.transport.pauseProducing()
                    test.paused.callback(None)

            def connectionLost(self, reason: Any = None) -> None:
                test.lost.callback(None)

        test: Any = self
        self.came, self.lost, test.paused = b"", Deferred[None](), Deferred()
        port = await self.behind_tls(Factory.forProtocol(Pausing))
        line, records = await deferToThread(self.encrypted, port)
        await deferToThread(line.sendall, records(b"a" * 50 + b"|" + b"b" * 50 + b"|" + b"c"))
        for expected in (b"a" * 50 + b"|", b"a" * 50 + b"|" + b"b" * 50 + b"|"):
            await test.paused
            for _ in range(5):
                await self.turn()
            self.assertNotIn(test.server.transport.transport, reactor.getReaders())
            held = len(self.came)
            self.assertLessEqual(held, len(expected) + RECORDS)
            self.assertGreaterEqual(held, len(expected))
            test.paused = Deferred()
            test.server.transport.resumeProducing()
        while len(self.came) < 103:
            await self.turn()
        self.assertEqual(self.came, b"a" * 50 + b"|" + b"b" * 50 + b"|" + b"c")
        line.close()
        await self.lost


class Offers(TestCase):
    """Clients that offer names of protocols in the hand-shake (ALPN), as each browser does."""

    timeout = 60

    def described(self) -> list[str]:
        """An endpoint of each kind that speaks TLS."""
        home = temporary(self)
        files = Authority(home).server()
        directory = home / "names"
        directory.mkdir()
        both = files.key.read_bytes() + files.cert.read_bytes()
        (directory / "localhost.pem").write_bytes(both)
        (directory / "localhost.pem").chmod(0o600)
        rest = f"privateKey={files.key}:certKey={files.cert}"
        where = "0:interface=127.0.0.1"
        return [
            f"ssl:{where}:{rest}",
            f"tls:{directory}:{where}",
            f"mtls:{where}:{rest}:verify=none",
        ]

    def agreed(self, address: str, offered: list[str]) -> str | None:
        context = standard_ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, standard_ssl.CERT_NONE
        context.set_alpn_protocols(offered)
        port = int(re.findall(r":(\d+)", address)[-1])
        with (
            socket.create_connection(("127.0.0.1", port), timeout=60) as line,
            context.wrap_socket(line, server_hostname="localhost") as client,
        ):
            return client.selected_alpn_protocol()

    async def test_a_client_is_served_whatever_it_offers(self) -> None:
        """WebSocket is HTTP/1.1; the other protocols have no name to agree on."""
        for endpoint in self.described():
            plain = lumberjack.serve(endpoint), micromsg2.serve(endpoint), sabc.serve(endpoint)
            web = umq.serve(endpoint), sabc.serve((), websocket=endpoint)
            for serving in (*plain, *web):
                async with serving as server:
                    (address,) = server.addresses
                    for offered in (["http/1.1"], ["h2", "http/1.1"], ["h2"], ["spdy/3"]):
                        agreed = await deferToThread(self.agreed, address, offered)
                        common = serving in web and "http/1.1" in offered
                        self.assertEqual(agreed, "http/1.1" if common else None, address)
