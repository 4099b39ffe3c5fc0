"""Records of TLS: one turn of the reactor processes only so many, however tiny they are."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from twisted.internet import reactor as installed
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ClientEndpoint, TCP4ServerEndpoint
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.threads import deferToThread
from twisted.trial.unittest import TestCase

from tests.tools.certificates import Authority
from tests.tools.directories import temporary
from tests.tools.sinks import SafeSink
from twisted_msgproto.lumberjack import LumberjackServer, LumberjackServerFactory
from twisted_msgproto.lumberjack.wire import encode_ack, encode_json, encode_window
from twisted_msgproto.net import tls
from twisted_msgproto.net.reloading import ServedEndpoint
from twisted_msgproto.net.turns import TurnWatch
from twisted_msgproto.sabc import SabcServer, SabcServerFactory

RECORDS, TURN_SECONDS = 16, 0.008


reactor: Any = installed

RECORD_SECONDS = TURN_SECONDS / RECORDS
"""Each record is said to take so long; so two pieces and one record more fit into a turn."""

A_TURN = 3 * RECORDS
"""At most this many records of one octet are processed in a turn then."""

EVENT = b'{"message":"%s"}' % (b"x" * 3000)

UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


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
    """One octet in each record of TLS: 2,800 of them come with one read."""

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
        """A connection, and what encrypts octets for it: each in a record of its own."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        engine = context.wrap_bio(incoming, outgoing)
        line = socket.create_connection(("127.0.0.1", port), timeout=60)
        while True:
            try:
                engine.do_handshake()
                line.sendall(outgoing.read())  # the server waits for these, and not for long
                break
            except ssl.SSLWantReadError:
                line.sendall(outgoing.read())
                incoming.write(line.recv(1 << 16))

        def records(octets: bytes) -> bytes:
            for octet in octets:
                engine.write(bytes([octet]))
            return outgoing.read()

        def decrypted(count: int) -> bytes:
            came = b""
            while len(came) < count:
                try:
                    came += engine.read(1 << 16)
                except ssl.SSLWantReadError:
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

    async def test_the_watch_sees_turns_of_websocket_over_tls__NB_07(self) -> None:
        """NB-07: a turn delivers many records of the upgrade, and is told of as one."""
        factory = SabcServerFactory(SafeSink(), clock=reactor)
        taken: list[tuple[str, float]] = []
        factory.turnWatch = TurnWatch(
            -1.0, lambda peer, host, spent: taken.append((host, spent)), lambda: self.processed
        )
        websocket = factory.webSocketFactory()
        websocket.protocol = self.counted(websocket.protocol)
        port = await self.behind_tls(websocket)

        def upgrade() -> bytes:
            line, records = self.encrypted(port)
            with line:
                line.sendall(records(UPGRADE))
                came: bytes = self.decrypted(12)
                return came

        self.assertEqual((await deferToThread(upgrade))[:12], b"HTTP/1.1 101")
        while factory.liveConnections:
            await self.turn()
        self.assertEqual({host for host, _ in taken}, {"127.0.0.1"})
        self.assertEqual(sum(spent for _, spent in taken), len(UPGRADE))
        self.assertGreater(max(spent for _, spent in taken), 1)

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
