"""Our writer against our reader: machines over a pipe, adapters on a clock, real sockets."""

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

from tests.doubles import unanswered
from tests.tools.directories import temporary
from tests.tools.events import splits
from tests.tools.sinks import HeldSink, SafeSink
from twisted_msgproto.core.errors import Fault
from twisted_msgproto.core.limits import Limits
from twisted_msgproto.lumberjack import (
    LumberjackClientFactory,
    LumberjackServerFactory,
    LumberjackShipper,
    Reader,
    Writer,
)
from twisted_msgproto.lumberjack.machine import Packer
from twisted_msgproto.lumberjack.terms import READER_LIMITS, WRITER_LIMITS, WindowAcknowledged
from twisted_msgproto.net.sink import DurableSink
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


def payloads(events):
    """What a reader's events hold, one by one."""
    received = []
    for event in events:
        assert not isinstance(event, Fault), event
        received += event.bodies if hasattr(event, "bodies") else event.pairs
    return received


def read_all(reader, octets):
    """All events of ``octets``, decoded to the end."""
    events = reader.receive(octets, 0.0)
    while reader.unfinished:
        events += reader.receive(b"", 0.0)
    return events


SHAPES = [
    (version, compress, pipelining)
    for version in (1, 2)
    for compress in (0, 3)
    for pipelining in (1, 3)
]


# ── Machines ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("version", "compress", "pipelining"), SHAPES)
def test_every_split_of_what_we_write_gives_the_same_events_and_acks(version, compress, pipelining):
    """LJ-20, LJ-21, LJ-18."""
    events = made_up(version, 7)
    writer = Writer(version=version, window=3, compress=compress, pipelining=pipelining)
    writer.send(events)
    writer.flush(0.0)
    octets = writer.outputs()
    expected = events[: 3 * pipelining]
    for pieces in splits(octets):
        reader = Reader()
        received, acks = [], b""
        for piece in pieces:
            for event in read_all(reader, piece):
                received += payloads([event])
                reader.made_safe(event.place, 0.0)
            acks += reader.outputs()
        assert received == expected
        assert acks == b"".join(
            b"%dA\0\0\0%c" % (version, min(3, len(expected) - start))
            for start in range(0, len(expected), 3)
        )
    acknowledged = writer.receive(acks, 0.0)
    assert [event.count for event in acknowledged] == [3] * (len(expected) // 3) + (
        [len(expected) % 3] if len(expected) % 3 else []
    )


class Pipe:
    """Both machines, and octets on their way which arrive in pieces."""

    def __init__(self, chance, version, pipelining):
        self.chance = chance
        self.window = chance.randint(1, 9)
        self.writer = Writer(
            version=version,
            window=self.window,
            compress=chance.choice([0, 3]),
            pipelining=pipelining,
        )
        self.pipelining = pipelining
        self.reader = Reader(
            Limits.of(READER_LIMITS).replace({"slice-octets": chance.choice([1 << 10, 4 << 20])})
        )
        self.there = self.back = b""
        self.unsafe = []  # (place, payloads) which the sink has and has not made safe

    def step(self, safe):
        """Something happens; ``safe`` takes what the sink makes safe.  The writer's events."""
        writer, reader, chance = self.writer, self.reader, self.chance
        writer.flush(0.0)
        assert writer.in_flight <= self.window * self.pipelining
        self.there += writer.outputs()
        what = chance.randrange(3)
        if what == 0:
            cut = chance.choice([1, 2, 5, 17, 1000, len(self.there)])
            for event in read_all(reader, self.there[:cut]):
                self.unsafe.append((event.place, payloads([event])))
            self.there = self.there[cut:]
        elif what == 1 and self.unsafe:
            place, received = self.unsafe.pop(chance.randrange(len(self.unsafe)))
            safe(place, received)
            reader.made_safe(place, 0.0)
        elif what == 2:
            cut = chance.choice([1, 3, 6, len(self.back)])
            octets, self.back = self.back[:cut], self.back[cut:]
            return writer.receive(octets, 0.0)
        self.back += reader.outputs()
        return []


@pytest.mark.parametrize("seed", range(60))
def test_over_any_pipe_every_event_arrives_once_in_order_and_is_acknowledged(seed):
    """LJ-06, LJ-09, LJ-10, LJ-11, LJ-13, LJ-18: and none is acknowledged before it is safe."""
    chance = random.Random(seed)
    version, pipelining = chance.choice([1, 2]), chance.choice([1, 1, 2, 4])
    pipe = Pipe(chance, version, pipelining)
    sent, received, acknowledged = [], {}, 0
    for _ in range(20_000):
        if len(sent) < 60 and chance.random() < 0.3:
            events = made_up(version, chance.randint(1, 12), len(sent), chance)
            sent += events
            pipe.writer.send(events)
        for event in pipe.step(lambda place, events_: received.update({place: events_})):
            assert not isinstance(event, Fault), event
            acknowledged += event.count
            safe = sum(len(received[place]) for place in sorted(received))
            assert acknowledged <= safe
        if len(sent) >= 60 and acknowledged == len(sent):
            break
    assert acknowledged == len(sent)
    assert [event for place in sorted(received) for event in received[place]] == sent
    assert pipe.writer.unacknowledged == 0
    assert pipe.reader.unacknowledged == 0


@pytest.mark.parametrize("seed", range(40))
def test_over_connections_which_break_every_event_arrives_at_least_once(seed):
    """LJ-15, LJ-13: duplicates are at most what was in flight; nothing acknowledged is missing."""
    chance = random.Random(seed)
    version, pipelining = chance.choice([1, 2]), chance.choice([1, 3])
    sent, safe, acknowledged = [], [], 0
    parcels = []
    packer = Packer(Limits.of(WRITER_LIMITS), version)
    while len(sent) < 80:
        events = made_up(version, chance.randint(1, 10), len(sent), chance)
        parcels.append(packer.pack(events))
        sent += events
    duplicates_most = 0
    for _ in range(300):
        pipe = Pipe(chance, version, pipelining)
        for parcel in parcels:
            pipe.writer.submit(parcel)
        came = {}
        for _ in range(chance.randint(1, 400)):
            for event in pipe.step(lambda place, events_, came=came: came.update({place: events_})):
                acknowledged += event.count
        for place, events in pipe.unsafe:  # whole frames are kept, although never acknowledged
            came[place] = events
        safe += [event for place in sorted(came) for event in came[place]]
        duplicates_most += pipe.writer.in_flight
        parcels = unanswered(pipe.writer)
        if not parcels:
            break
    assert not parcels
    assert acknowledged == len(sent)
    firsts = []
    for event in safe:
        if event not in firsts:
            firsts.append(event)
    assert firsts == sent
    assert len(safe) - len(sent) <= duplicates_most


def test_the_largest_document_passes_in_either_way():
    """LJ-17: 16 MiB of noise, which compression does not make smaller, and of nothing."""
    for body in (random.Random(5).randbytes(16 << 20), b" " * (16 << 20)):
        writer, reader = Writer(), Reader()
        writer.send([body])
        writer.flush(0.0)
        (event,) = read_all(reader, writer.outputs())
        assert event.bodies == [body]
        reader.made_safe(event.place, 0.0)
        (done,) = writer.receive(reader.outputs(), 0.0)
        assert isinstance(done, WindowAcknowledged)


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

    def world(self, seed):
        """A shipper, two readers, connections which break; all arrives and is acknowledged."""
        chance = random.Random(seed)
        sinks = [HeldSink(), HeldSink()]
        wires = [self.wire(sink) for sink in sinks]
        shipper = LumberjackShipper(
            self.clock,
            wires,
            loadBalance=chance.random() < 0.5,
            window=chance.randint(1, 8),
            compress=chance.choice([0, 3]),
            pipelining=chance.choice([1, 2]),
            random=chance.random,
            limits={"drain": 1e9, "unsent-events": 10**6},
        )
        shipper.startService()
        sent, waiting, safe_when_acked = [], [], []

        def check(_, events):
            safe_when_acked.append(set(events) <= self.safe_bodies(sinks))

        for _ in range(300):
            if chance.random() < 0.3:
                events = made_up(2, chance.randint(1, 6), len(sent))
                sent += events
                waiting.append(shipper.sendBatch(events).addCallback(check, events))
            for wire in wires:
                wire.move(chance.choice([1, 7, 50, None]))
                if chance.random() < 0.02:
                    wire.cut()
                wire.up = chance.random() < 0.9
            for sink in sinks:
                if chance.random() < 0.5:
                    sink.safe(min(len(sink.waiting), chance.randint(0, 3)))
            self.clock.advance(chance.choice([0, 0.1, 1]))
        stopped = shipper.stopService()
        for _ in range(3000):
            for wire in wires:
                wire.up = True
                wire.move()
            for sink in sinks:
                sink.safe()
            self.clock.advance(0.5)
            if stopped.called:
                break
        self.successResultOf(stopped)
        for deferred in waiting:
            self.successResultOf(deferred)
        self.assertEqual(safe_when_acked, [True] * len(waiting))
        self.assertEqual(self.safe_bodies(sinks), set(sent))
        for wire in wires:
            wire.cut()
        self.clock.advance(200)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    @staticmethod
    def safe_bodies(sinks):
        return {
            body
            for sink in sinks
            for batch in sink.batches[: len(sink.batches) - len(sink.waiting)]
            for body in batch.body
        }

    def test_whatever_breaks_every_event_arrives_and_is_acknowledged_when_safe(self):
        """LJ-15, LJ-13, LJ-09: with failover and with load balance; nothing is left over."""
        for seed in range(25):
            self.world(seed)

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
        self.assertGreater(wire.ends[0].machine.counters.keepalives, 30)
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

    async def test_version_2_plain(self):
        """LJ-10, LJ-21, LJ-12."""
        await self.check(2, 0, 1)

    async def test_version_2_compressed(self):
        """LJ-08, LJ-18."""
        await self.check(2, 3, 1)

    async def test_version_2_pipelined(self):
        """LJ-18."""
        await self.check(2, 3, 4)

    async def test_version_1_plain(self):
        """LJ-03, LJ-21."""
        await self.check(1, 0, 1)

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
