"""Our writer against our reader, on a clock and on real sockets.

``tests/states`` and ``tests/sim`` let them meet over pipes and connections which break.
"""

import random

import pytest
from twisted.internet import reactor
from twisted.internet.defer import Deferred, gatherResults, maybeDeferred, succeed
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.error import ConnectionDone, ConnectionRefusedError
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase, TestCase
from zope.interface import implementer

from tests.tools.directories import temporary
from tests.tools.sinks import HeldSink, SafeSink
from twisted_msgproto.lumberjack import (
    LumberjackClientFactory,
    LumberjackServerFactory,
    LumberjackShipper,
    Reader,
    Writer,
)
from twisted_msgproto.net import DurableSink
from twisted_msgproto.queue import QueueReader


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
    reader.made_safe(event_.place, 0.0)
    writer.receive(reader.outputs(), 0.0)
    assert writer.unacknowledged == 0


# ── Adapters on a clock ─────────────────────────────────────────────────────────────────────────


@implementer(IStreamClientEndpoint)
class Wire:
    """An endpoint which joins a client to a server of ours; the test moves the octets."""

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
        """Carry up to ``cut`` octets each way; True if there were any."""
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

    def test_a_reader_which_is_dead_is_left_for_another(self):
        """LJ-15: half open: nothing comes, nothing breaks."""
        dead, alive = self.wire(HeldSink()), self.wire(SafeSink())
        shipper = LumberjackShipper(
            self.clock, [dead, alive], limits={"timeout": 5}, random=lambda: 0.0
        )
        shipper.startService()
        sent = shipper.send(b"{}")
        self.clock.advance(5)  # nothing is moved on the first wire
        self.clock.advance(1)
        alive.move()
        alive.move()
        self.successResultOf(sent)
        stopped = shipper.stopService()
        alive.move()
        self.successResultOf(stopped)


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

    async def test_version_1_compressed(self):
        """LJ-03, LJ-08, LJ-21."""
        await self.check(1, 9, 2)

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

    async def test_load_balance_uses_both(self):
        """LJ-15."""
        sinks = [SafeSink(), SafeSink()]
        ports = [await self.listen(sink) for sink in sinks]
        shipper = self.shipper(
            [self.address(port) for port, _ in ports], loadBalance=True, window=10
        )
        await shipper.send(b"first")
        events = made_up(2, 1000)
        await shipper.sendBatch(events)
        counts = [len(sink.messages) for sink in sinks]
        self.assertEqual(sum(counts), 1001)
        self.assertTrue(all(counts), counts)
