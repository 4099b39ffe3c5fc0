"""The server on a clock, and our writer against it, also on sockets: sink, timers, pressure."""

import random
import struct

import pytest
from twisted.internet import reactor
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred, gatherResults, maybeDeferred, succeed
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.error import ConnectionDone, ConnectionRefusedError
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.logger import globalLogPublisher
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase, TestCase
from zope.interface import implementer

from tests.doubles import HeldSink, temporary
from tests.lumberjack.frames import (
    encode_ack,
    encode_compressed,
    encode_data,
    encode_json,
    encode_window,
)
from twisted_msgproto.lumberjack import (
    LumberjackClientFactory,
    LumberjackServer,
    LumberjackServerFactory,
    LumberjackShipper,
)
from twisted_msgproto.lumberjack.machine import Reader, Writer
from twisted_msgproto.net import DurableSink
from twisted_msgproto.queue import QueueReader
from twisted_msgproto.testing import SafeSink

PEER = IPv4Address("TCP", "192.0.2.7", 54321)


class Case(SynchronousTestCase):
    """A connected server protocol with a sink, a clock and a transport which only notes."""

    sink_class = HeldSink
    protocol = LumberjackServer

    def setUp(self):
        self.clock = Clock()
        self.sink = self.sink_class()
        self.lines = []
        globalLogPublisher.addObserver(self._observe)
        self.addCleanup(globalLogPublisher.removeObserver, self._observe)

    def _observe(self, event):
        if str(event.get("log_namespace", "")).startswith("twisted_msgproto"):
            self.lines.append(event["log_format"].format(**event))

    def connect(self, **limits):
        self.factory = LumberjackServerFactory(
            self.sink,
            limits={name.replace("_", "-"): value for name, value in limits.items()},
            clock=self.clock,
            wallClock=lambda: 1_700_000_000.25,
        )
        self.factory.protocol = self.protocol
        return self.another()

    def another(self):
        server = self.factory.buildProtocol(PEER)
        server.transport = None
        transport = StringTransport(peerAddress=PEER)
        transport.protocol = server
        server.makeConnection(transport)
        return server, transport

    def lose(self, server):
        server.connectionLost(Failure(ConnectionDone()))
        self.assertEqual(self.clock.getDelayedCalls(), [])


class Ingest(Case):
    def test_events_reach_the_sink_as_columns_and_are_acked_when_it_says_safe(self):
        """LJ-04, LJ-13: one batch a read, with what all of it shares."""
        server, transport = self.connect()
        server.dataReceived(encode_window(2) + encode_json([1, 2], [b"{}", b"[]"]))
        (batch,) = self.sink.batches
        self.assertEqual(
            (batch.protocol, batch.kind, batch.peer, batch.client_id, batch.count),
            ("lumberjack", "json", "192.0.2.7:54321", None, 2),
        )
        self.assertEqual(batch.received_at, 1_700_000_000_250_000)
        self.assertEqual(batch.session, "lumberjack-20231114T221320.250000Z-1")
        self.assertEqual((batch.message_id, batch.body), ([1, 2], [b"{}", b"[]"]))
        self.assertEqual(transport.value(), b"")
        self.sink.safe()
        self.assertEqual(transport.value(), encode_ack(2))
        self.lose(server)


class Faults(Case):
    def test_a_fault_closes_with_one_line_a_counter_and_no_ack(self):
        """LJ-16: peer address, reason, first bytes in hex."""
        server, transport = self.connect()
        server.dataReceived(b"GET / HTTP/1.1\r\n\r\n")
        self.assertTrue(transport.disconnecting)
        self.assertEqual(transport.value(), b"")
        self.assertEqual(
            self.lines,
            [
                "192.0.2.7:54321: closed without ack: version byte 0x47, not '1' or '2' "
                "(starts with 47 45 54 20 2f 20 48 54 54 50 2f 31 2e 31 0d 0a)"
            ],
        )
        self.assertEqual(self.factory.counters["fault:version"], 1)
        server.dataReceived(encode_json([1], [b"{}"]))
        self.assertEqual(self.sink.batches, [])
        self.lose(server)


class KeepAlives(Case):
    def test_a_slow_sink_is_bridged_with_them_while_the_server_stops(self):
        """LJ-14."""
        server, transport = self.connect(unsafe_bytes=1, drain=100)
        server.dataReceived(encode_window(1) + encode_json([1], [b"{}"]))
        self.factory.drain()
        self.clock.pump([0.5] * 13)
        self.assertEqual(transport.value(), encode_ack(0) * 2)
        self.sink.safe()
        self.assertEqual(transport.value(), encode_ack(0) * 2 + encode_ack(1))
        server.connectionLost(Failure(ConnectionDone()))
        self.assertEqual(self.clock.getDelayedCalls(), [])


class BackPressure(Case):
    def test_reading_pauses_above_the_unsafe_bytes_of_a_connection(self):
        """LJ-17: then goes on when the sink has caught up; safe bytes no longer count."""
        server, transport = self.connect(unsafe_bytes=10_000)
        server.dataReceived(encode_window(1000) + encode_json([1], [b"x" * 6000]))
        self.assertEqual(transport.producerState, "producing")
        server.dataReceived(encode_json([2], [b"x" * 6000]))
        self.assertEqual(transport.producerState, "paused")
        self.clock.advance(500)
        self.assertEqual(transport.value(), b"")
        self.sink.safe(1)
        self.assertEqual(transport.producerState, "paused")
        self.sink.safe(1)
        self.assertEqual(transport.producerState, "producing")
        self.clock.advance(1.1)
        self.assertEqual(transport.value(), encode_ack(2))
        self.lose(server)

    def test_batches_weigh_however_little_is_in_them(self):
        """LJ-17: each is objects in memory, and a peer chooses how many it makes of its bytes."""
        server, transport = self.connect(unsafe_bytes=10_000)
        tiny = encode_json([1], [b""]) + encode_data([2], [{}])
        server.dataReceived(encode_window(1000) + tiny * 2)
        self.assertEqual(transport.producerState, "producing")
        server.dataReceived(tiny)
        self.assertEqual(transport.producerState, "paused")
        self.sink.safe()
        self.assertEqual(transport.producerState, "producing")
        self.assertEqual(self.factory.budget.waiting, 0)
        self.lose(server)

    def test_a_large_compressed_frame_is_decoded_over_several_turns(self):
        """LJ-13: and what waits for the sink holds the decoding back too."""
        server, transport = self.connect(slice_bytes=10_000, unsafe_bytes=20_000)
        body = b"x" * 900
        frame = encode_compressed(encode_window(60) + encode_json(range(1, 61), [body] * 60))
        server.dataReceived(frame)
        self.assertEqual(transport.producerState, "paused")
        for _ in range(50):
            self.clock.advance(0)
        decoded = len(self.sink.messages)
        self.assertTrue(0 < decoded < 60, decoded)
        for _ in range(50):
            self.sink.safe()
            self.clock.advance(0)
        self.assertEqual(len(self.sink.messages), 60)
        self.assertEqual(transport.value(), encode_ack(60))
        self.assertEqual(transport.producerState, "producing")
        self.lose(server)


class Unfinished(Case):
    """FAULTS: what all connections hold of unfinished frames is bounded in all."""

    def test_pairs_without_end_are_cut_off_and_a_good_writer_is_acknowledged__NB_02(self):
        """NB-02: a thousand pairs of a D frame take ten times the bytes that have come."""
        good, transport = self.connect(process_held_bytes=300_000)
        pairs = b"".join(struct.pack(">I", 2) + b"%02x" % (n % 256) for n in range(2046))
        begun = b"2D" + struct.pack(">II", 1, 1024) + pairs
        crowd = [self.another() for _ in range(5)]
        for server, _ in crowd:
            server.dataReceived(begun)
        self.assertTrue(any(theirs.disconnected for _, theirs in crowd))
        good.dataReceived(encode_window(1) + encode_json([1], [b"{}"]))
        self.sink.safe()
        self.assertEqual(transport.value(), encode_ack(1))
        for server, _ in crowd:
            server.connectionLost(Failure(ConnectionDone()))
        self.lose(good)


class Refused(Case):
    def test_a_batch_which_comes_again_is_told_with_how_often_it_was_refused(self):
        """NB-10: a refused batch comes again for ever; the line names the option and the count."""
        server, _ = self.connect(json_bytes=100)
        frame = encode_json([1], [b"x" * 200])
        server.dataReceived(frame)
        self.assertIn("a document of 200 bytes; json-bytes is 100 (", self.lines[-1])
        self.lose(server)
        for times in (2, 3):
            server, _ = self.another()
            server.dataReceived(frame)
            self.assertIn(f"is 100; refused {times} times, it comes again (", self.lines[-1])
            server.connectionLost(Failure(ConnectionDone()))
        server, _ = self.another()
        server.dataReceived(encode_json([2], [b"x" * 200]))  # another one
        self.assertIn("json-bytes is 100 (", self.lines[-1])
        server.connectionLost(Failure(ConnectionDone()))


class TheEnd(Case):
    def test_a_half_closed_writer_gets_its_acks_then_the_close(self):
        """LJ-19: no idle wait; an incomplete frame is dropped."""
        server, transport = self.connect()
        server.dataReceived(encode_window(5) + encode_json([1, 2], [b"{}", b"{}"]) + b"2J")
        server.readConnectionLost()
        self.assertEqual(transport.value(), b"")
        self.assertFalse(transport.disconnecting)
        self.sink.safe()
        self.assertEqual(transport.value(), encode_ack(2))
        self.assertTrue(transport.disconnecting)
        self.lose(server)

    def test_a_half_close_behind_a_large_compressed_frame_waits_for_all_of_it(self):
        """LJ-19."""
        server, transport = self.connect(slice_bytes=1000)
        count = 60
        server.dataReceived(
            encode_compressed(encode_json(range(count), [b"x" * 900] * count) + encode_window(9))
        )
        server.readConnectionLost()
        for _ in range(200):
            self.sink.safe()
            self.clock.advance(0)
        self.assertEqual(len(self.sink.messages), count)
        self.assertTrue(transport.value().endswith(encode_ack(count - 1)))
        self.assertTrue(transport.disconnecting)
        self.lose(server)

    def test_draining_reads_no_more_acks_whole_windows_and_closes(self):
        """ECOSYSTEM: stopService stops reading, flushes and acks, then drops."""
        server, transport = self.connect()
        server.dataReceived(encode_window(2) + encode_json([1, 2, 1], [b"{}", b"{}", b"{}"]))
        drained = self.factory.drain()
        self.assertNoResult(drained)
        self.assertEqual(transport.producerState, "paused")
        self.assertFalse(transport.disconnecting)
        self.sink.safe()
        self.assertEqual(transport.value(), encode_ack(2))
        self.assertTrue(transport.disconnecting)
        server.connectionLost(Failure(ConnectionDone()))
        self.successResultOf(drained)
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.assertIsNone(self.factory.buildProtocol(PEER))

    def test_draining_acks_nothing_of_a_compressed_frame_which_was_not_read_to_its_end(self):
        """LJ-08: nobody knows yet whether it ends well; this one ends with a partial frame."""
        server, transport = self.connect(slice_bytes=500)
        body = b"x" * 200
        windows = b"".join(encode_window(1) + encode_json([n], [body]) for n in range(1, 20))
        server.dataReceived(encode_window(1) + encode_json([77], [body]))
        server.dataReceived(encode_compressed(windows + b"2J\0"))
        self.assertEqual(transport.producerState, "paused")
        self.factory.drain()
        self.clock.pump([0.1] * 20)
        self.sink.safe()
        self.assertEqual(transport.value(), encode_ack(77))
        self.assertTrue(transport.disconnecting)
        server.connectionLost(Failure(ConnectionDone()))


def made_up(version, count, start=0, chance=None):
    """``count`` different events of a version; their sizes are up to ``chance``."""
    sizes = [chance.choice([0, 1, 30, 300]) if chance else 20 for _ in range(count)]
    if version == 1:
        return [
            {"n": str(start + at), "text": "ü" * size} if size else {"n": str(start + at)}
            for at, size in enumerate(sizes)
        ]
    return [b'{"n": %d, "text": "%s"}' % (start + at, b"x" * size) for at, size in enumerate(sizes)]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("body", ["x" * (1 << 20), random.Random(5).randbytes(1 << 19).hex()])
def test_a_large_event_passes_in_either_way(version, body):
    """LJ-17, LJ-21: one which compression makes smaller, and noise."""
    event = {"text": body} if version == 1 else body.encode()
    reader, writer = Reader(), Writer(version=version)
    writer.send([event])
    writer.flush(0.0)
    events = reader.receive(writer.outputs(), 0.0)
    while reader.unfinished:
        events += reader.receive(b"", 0.0)
    (event_,) = events
    assert [*(event_.bodies if version == 2 else event_.pairs)] == [event]
    reader.made_safe(event_.position, 0.0)
    writer.receive(reader.outputs(), 0.0)
    assert writer.unacknowledged == 0


# ── Adapters on a clock ─────────────────────────────────────────────────────────────────────────


@implementer(IStreamClientEndpoint)
class Wire:
    """An endpoint which joins a client to a server of ours; the test moves the bytes."""

    def __init__(self, server_factory):
        self.server_factory = server_factory
        self.up = True
        self.ends = []  # [client, its transport, server, its transport]

    def connect(self, factory):
        if not self.up:
            return self.refuse()
        server = self.server_factory.buildProtocol(None)
        client = factory.buildProtocol(None)
        server_transport, client_transport = StringTransport(), StringTransport()
        server_transport.abortConnection = client_transport.abortConnection = self.cut
        server.makeConnection(server_transport)
        client.makeConnection(client_transport)
        self.ends = [client, client_transport, server, server_transport]
        return succeed(client)

    @staticmethod
    def refuse():
        refused = Deferred()
        refused.errback(ConnectionRefusedError())
        return refused

    def move(self, cut=None):
        """Carry up to ``cut`` bytes each way; True if there were any."""
        moved = False
        for sender, receiver in ((1, 2), (3, 0)):
            if not self.ends:
                break
            transport = self.ends[sender]
            octets = transport.value()[:cut]
            if octets and self.ends[receiver].transport.producerState == "producing":
                rest = transport.value()[len(octets) :]
                transport.clear()
                transport.write(rest)
                self.ends[receiver].dataReceived(octets)
                moved = True
        if self.ends and self.ends[1].disconnecting and not self.ends[1].value():
            self.cut()
        return moved

    def cut(self):
        """Both ends lose the connection; what was on its way is lost."""
        ends, self.ends = self.ends, []
        for end in (0, 2):
            if ends:
                ends[end].connectionLost(Failure(ConnectionDone()))


class OnAClock(SynchronousTestCase):
    def setUp(self):
        self.clock = Clock()

    def wire(self, sink, **limits):
        factory = LumberjackServerFactory(
            sink, limits=limits, clock=self.clock, wallClock=lambda: 0.0
        )
        return Wire(factory)

    def test_a_slow_reader_keeps_its_writer_waiting(self):
        """LJ-14, LJ-15: keep-alives outlast every timeout; the ack comes when all is safe."""
        sink = HeldSink()
        wire = self.wire(sink)
        shipper = LumberjackShipper(self.clock, [wire], limits={"timeout": 5})
        shipper.startService()
        sent = shipper.send(b"{}")
        for _ in range(200):
            wire.move()
            self.clock.advance(0.5)
        self.assertEqual(shipper.factory.counters["connections_total"], 1)
        self.assertGreater(shipper.factory.counters["keepalives"], 30)
        self.assertNoResult(sent)
        sink.safe()
        wire.move()
        self.successResultOf(sent)
        stopped = shipper.stopService()
        wire.move()
        self.successResultOf(stopped)
        self.assertEqual(self.clock.getDelayedCalls(), [])


# ── Real sockets ────────────────────────────────────────────────────────────────────────────────


class OnSockets(TestCase):
    timeout = 90

    async def listen(self, sink, description="tcp:0:interface=127.0.0.1"):
        factory = LumberjackServerFactory(sink, clock=reactor)
        port = await serverFromString(reactor, description).listen(factory)

        async def end():
            await maybeDeferred(port.stopListening)
            await factory.drain()

        self.addCleanup(lambda: Deferred.fromCoroutine(end()))
        return port, factory

    def shipper(self, endpoints, **settings):
        shipper = LumberjackShipper(reactor, endpoints, **settings)
        shipper.startService()
        self.addCleanup(shipper.stopService)
        return shipper

    @staticmethod
    def address(port):
        return f"tcp:127.0.0.1:{port.getHost().port}"

    async def check(self, version, compress, pipelining):
        sink = SafeSink()
        port, _ = await self.listen(sink)
        shipper = self.shipper(
            [self.address(port)],
            version=version,
            compress=compress,
            pipelining=pipelining,
            window=100,
        )
        events = made_up(version, 5000, chance=random.Random(1))
        await gatherResults(
            [shipper.sendBatch(events[at : at + 700]) for at in range(0, 5000, 700)]
        )
        messages = sink.messages
        got = [m.fields if version == 1 else m.body for m in messages]
        self.assertEqual(got, events)
        self.assertEqual({m.kind for m in messages}, {"data" if version == 1 else "json"})
        self.assertLessEqual(max(m.message_id for m in messages), 100)

    async def test_version_2_compressed(self):
        """LJ-08, LJ-10, LJ-12, LJ-18, LJ-21."""
        await self.check(2, 3, 4)

    async def test_a_unix_socket(self):
        """LJ-01."""
        path = temporary(self) / "s"
        sink = SafeSink()
        await self.listen(sink, f"unix:{path}")
        client = await clientFromString(reactor, f"unix:{path}").connect(
            LumberjackClientFactory(clock=reactor)
        )
        await client.sendBatch([b"1", b"2"])
        self.assertEqual([message.body for message in sink.messages], [b"1", b"2"])
        await client.close()

    async def test_acknowledged_means_on_disk(self):
        """LJ-13: through the durable queue, read back while it is open."""
        directory = temporary(self) / "spool"
        sink = DurableSink(directory, reactor)
        self.addCleanup(sink.close)
        port, _ = await self.listen(sink)
        shipper = self.shipper([self.address(port)])
        events = made_up(2, 3000)
        await shipper.sendBatch(events)
        reader = QueueReader(directory)
        batches = reader.read(reader.begin(), reader.end())
        bodies = [body for batch in batches for body in batch.column("body").to_pylist()]
        self.assertEqual(bodies, events)

    async def test_a_reader_which_stops_hands_over_to_the_next(self):
        """LJ-15: while events flow; each is in one of the two at least once."""
        sinks = [SafeSink(), SafeSink()]
        ports = [await self.listen(sink) for sink in sinks]
        shipper = self.shipper(
            [self.address(port) for port, _ in ports], window=10, limits={"backoff-first": 0.01}
        )
        events = made_up(2, 400)
        waiting = []
        for at in range(0, 400, 4):
            waiting.append(shipper.sendBatch(events[at : at + 4]))
            if at == 200:
                await waiting[0]
                await maybeDeferred(ports[0][0].stopListening)
                await ports[0][1].drain()
        await gatherResults(waiting)
        first, second = ([message.body for message in sink.messages] for sink in sinks)
        self.assertTrue(first)
        self.assertTrue(second)
        self.assertEqual(set(first) | set(second), set(events))
