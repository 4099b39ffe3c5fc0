"""The way of bytes to a peer, and what waits for its answers (HO-03)."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet import reactor
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.ssl import CertificateOptions, PrivateCertificate
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.internet.threads import deferToThread
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.trial.unittest import TestCase

from tests.tools.certificates import Authority
from twisted_msgproto.core.errors import ConnectionClosed, LimitExceeded
from twisted_msgproto.net.deferreds import Tickets
from twisted_msgproto.net.memory import SharedState
from twisted_msgproto.net.tls import tls_with
from twisted_msgproto.net.wires.stream import Output, flushing_write

LATE_SECONDS = 5.0
SLICE_BYTES = 64 << 10  # so much is with the transport at most


class Transport:
    """A transport which says that it is full as Twisted's do, and is read by hand."""

    def __init__(self) -> None:
        self.bufferSize = 65536
        self.buffer = b""
        self.arrived = b""
        self.producer: Any = None
        self.full = False
        self.closing = False
        self.largest = 0
        self.writes: list[int] = []

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        assert streaming
        self.producer = producer

    def unregisterProducer(self) -> None:
        self.producer = None

    def loseConnection(self) -> None:
        self.closing = True

    def write(self, nbytes: bytes) -> None:
        assert type(nbytes) is bytes
        self.writes.append(len(nbytes))
        self.buffer += nbytes
        self.largest = max(self.largest, len(self.buffer))
        if len(self.buffer) > self.bufferSize and self.producer and not self.full:
            self.full = True
            self.producer.pauseProducing()

    def take(self, count: int | None = None) -> None:
        """The peer reads; with nothing left the transport wants more."""
        count = len(self.buffer) if count is None else count
        self.arrived += self.buffer[:count]
        self.buffer = self.buffer[count:]
        if not self.buffer and self.full:
            self.full = False
            if self.producer:
                self.producer.resumeProducing()


class Way:
    """An output with its transport, its clock, and what it said."""

    def __init__(self, seconds: float = 30.0, most: int = 0, ledger: Any = None) -> None:
        self.clock = Clock()
        self.transport = Transport()
        self.stalled = 0
        self.changes: list[bool] = []
        self.drained = 0
        self.output = Output(
            self.transport,
            self.clock,
            seconds,
            self.stall,
            most=most,
            changed=self.changes.append,
            drained=self.drain,
            ledger=ledger,
        )
        self.output.watch()

    def stall(self) -> None:
        self.stalled += 1

    def drain(self) -> None:
        self.drained += 1


@given(st.lists(st.integers(0, 3 * SLICE_BYTES), max_size=6), st.data())
def test_whatever_is_written_arrives_whole_and_in_order_however_the_peer_reads(sizes, data):
    way = Way()
    written = b""
    for number, size in enumerate(sizes):
        octets = bytes([number]) * size
        written += octets
        way.output.write(octets)
        way.transport.take(data.draw(st.integers(0, SLICE_BYTES)))
    while way.transport.buffer:
        way.transport.take()
    assert way.transport.arrived == written
    assert way.output.nbytes == 0
    assert way.clock.getDelayedCalls() == []


def test_what_is_written_does_not_change_how_much_one_read_returns__NB_07():
    way = Way()
    way.output.readAtMost(2000)
    way.output.write(bytes(5000))
    assert (way.transport.full, way.transport.bufferSize) == (False, 2000)
    way.output.write(bytes(4 << 20))
    assert (way.transport.full, way.transport.bufferSize) == (True, 2000)
    way.transport.take()
    assert way.transport.bufferSize == 2000
    way.output.readAtMost(1 << 20)
    while way.transport.buffer:
        way.transport.take()
    assert way.transport.largest <= SLICE_BYTES * 2
    assert way.transport.bufferSize == 1 << 20


def test_who_writes_goes_on_when_half_of_the_bound_waits__UM_21():
    way = Way(most=4 * SLICE_BYTES)
    way.output.write(bytes(6 * SLICE_BYTES))
    for waiting, changes in ((5, [True]), (4, [True]), (3, [True]), (2, [True, False])):
        assert (way.output.nbytes // SLICE_BYTES, way.changes) == (waiting, changes)
        way.transport.take()


def test_an_end_lets_out_what_waits():
    way = Way()
    way.output.write(bytes(3 * SLICE_BYTES))
    way.output.close()
    assert not way.transport.closing
    way.transport.take()
    assert not way.transport.closing
    way.transport.take()
    assert way.transport.closing  # its last slice is with the transport
    way.transport.take()
    assert way.transport.producer is None
    assert way.transport.writes == [SLICE_BYTES] * 3
    way.output.stop()
    assert way.clock.getDelayedCalls() == []


class Reader(Protocol):
    """Notes what comes."""

    came = b""

    def dataReceived(self, data: bytes) -> None:
        self.came += data


@pytest.mark.parametrize("size", [10, 10_000, SLICE_BYTES])
@pytest.mark.parametrize("serves", [False, True])
def test_who_ends_over_tls_when_its_peer_is_slow_has_all_written_once(tmp_path, size, serves):
    files, clock = Authority(tmp_path).server(), Clock()
    pem = files.key.read_bytes() + files.cert.read_bytes()
    sessions = Factory.forProtocol(Reader)
    sides = [
        TLSMemoryBIOFactory(CertificateOptions(verify=False), True, sessions, clock),
        tls_with(PrivateCertificate.loadPEM(pem).options(), sessions),
    ]
    sides[1]._clock = clock
    writer, reader = (side.buildProtocol(None) for side in (reversed(sides) if serves else sides))
    ours, theirs = Transport(), StringTransport()
    writer.makeConnection(ours)
    reader.makeConnection(theirs)

    def carry() -> None:
        while ours.buffer or theirs.value():
            ours.take()
            data, ours.arrived = ours.arrived, b""
            if data:
                reader.dataReceived(data)
            data = theirs.value()
            theirs.clear()
            if data:
                writer.dataReceived(data)

    carry()
    output = Output(writer, clock, 30, (lambda: None), changed=lambda paused: output.close())
    output.watch()
    ours.bufferSize = 0
    octets = bytes(range(256)) * (size // 256) + bytes(size % 256)
    output.write(octets)
    clock.advance(0)
    carry()
    assert reader.wrappedProtocol.came == octets
    assert ours.closing
    output.stop()
    assert clock.getDelayedCalls() == []


def test_who_takes_nothing_has_its_whole_time_from_the_end_on__HO_04():
    way = Way(seconds=30)
    way.output.write(bytes(SLICE_BYTES))
    way.clock.advance(20)
    way.output.close()
    way.clock.advance(29)
    assert way.stalled == 0
    way.clock.advance(1)
    assert way.stalled == 1


def test_one_for_whom_too_much_waits_is_said_to_stall_once__NB_02():
    way = Way()
    way.output.most_waiting = 10
    way.output.write(bytes(SLICE_BYTES))
    way.output.write(bytes(10))
    assert way.stalled == 0
    way.output.write(bytes(1))
    way.output.write(bytes(1))
    assert way.stalled == 1
    way.output.stop()


def test_what_waits_is_held_until_it_is_taken_or_the_peer_is_gone__NB_02():
    ledger = SharedState().held
    way = Way(ledger=ledger)
    way.output.write(bytes(3 * SLICE_BYTES))
    assert ledger.held == 2 * SLICE_BYTES  # a slice is with the transport
    way.output.write(bytes(5))
    assert ledger.held == 2 * SLICE_BYTES + 5
    way.transport.take()
    assert ledger.held == SLICE_BYTES + 5
    way.output.stop()
    assert ledger.held == 0


def test_who_takes_nothing_while_memory_is_short_is_late_and_cut_off__NB_02():
    """A peer that takes a slice now and then is not late, however long all of it takes."""
    for takes in (False, True):
        ledger = SharedState().held
        ledger.bound(5 * SLICE_BYTES)
        way = Way(ledger=ledger)
        way.output.write(bytes(4 * SLICE_BYTES))  # three of them wait
        way.clock.advance(LATE_SECONDS - 1)
        if takes:
            way.transport.take()
        way.clock.advance(2)
        other = Way(ledger=ledger)
        ledger.hold(other.output, 2 * SLICE_BYTES, way.clock.seconds(), outward=True)
        assert (way.stalled, other.stalled) == (not takes, 0)


# ── what is written promptly has left when the call returns ─────────────────────────────────────


MUCH = bytes(range(256)) * (64 << 10)  # 16 MiB: more than all buffers on the way hold


class Server(Protocol):
    """Hands its connection to the test, and its end."""

    def __init__(self, made: Deferred[Any], lost: Deferred[Any]) -> None:
        self.made, self.lost = made, lost

    def connectionMade(self) -> None:
        self.made.callback(self.transport)

    def connectionLost(self, reason: Any = None) -> None:
        self.lost.callback(None)


class Loopback(TestCase):
    """A transport of Twisted's and a plain socket at its other end."""

    async def connected(self) -> tuple[Any, socket.socket]:
        made: Deferred[Any] = Deferred()
        self.lost: Deferred[Any] = Deferred()
        factory = Factory()
        factory.protocol = lambda: Server(made, self.lost)  # type: ignore[assignment,method-assign]
        port: Any = reactor.listenTCP(0, factory, interface="127.0.0.1")
        self.addCleanup(port.stopListening)
        peer = socket.create_connection(("127.0.0.1", port.getHost().port))
        self.addCleanup(peer.close)
        transport = await made
        return transport, peer

    async def test_bytes_have_left_when_the_call_returns(self) -> None:
        transport, peer = await self.connected()
        flushing_write(transport)(b"ack")
        # No turn of the reactor lies between.
        self.assertEqual(peer.recv(100, socket.MSG_DONTWAIT), b"ack")
        transport.loseConnection()
        await self.lost

    async def test_who_takes_what_the_system_holds_is_at_work(self) -> None:
        transport, peer = await self.connected()
        output = Output(transport, Clock(), 30.0, lambda: None)
        self.assertEqual(output.takenAt(1.0), 0.0)
        transport.getHandle().send(MUCH)
        self.assertEqual(output.takenAt(now := 2.0), 0.0)
        while output.takenAt(now := now + 1.0):
            """Its system is not full yet."""
        first = Output(transport, Clock(), 30.0, lambda: None)
        self.assertEqual(first.takenAt(now), now, "nobody has looked before")
        first.pauseProducing()
        self.assertEqual(first.takenAt(now + 1.0), now + 1.0, "something waits, and it has time")
        while not output.takenAt(now := now + 1.0):
            peer.recv(1 << 16)
        self.assertEqual(output.takenAt(now), now)
        left, right = socket.socketpair()  # where nobody can tell
        with left, right:
            there: Any = SimpleNamespace(socket=left, loseConnection=None)
            self.assertEqual(Output(there, Clock(), 30.0, lambda: None).takenAt(6.0), 0.0)

    async def test_nothing_overtakes_what_waits_when_there_is_room_again(self) -> None:
        transport, peer = await self.connected()
        write = flushing_write(transport)
        write(MUCH)
        # No turn of the reactor lies between: the rest of it waits, and the socket takes more.
        start = peer.recv(1 << 20)
        while len(start) < 1 << 20:
            start += peer.recv(1 << 20)
        write(b"last")
        transport.loseConnection()

        def all_of_it() -> bytes:
            with peer.makefile("rb") as file:
                return start + file.read()

        self.assertEqual(await deferToThread(all_of_it), MUCH + b"last")
        await self.lost

    async def test_what_is_written_between_the_wish_to_close_and_the_end_is_sent(self) -> None:
        """As Twisted's own ``write`` does."""
        transport, peer = await self.connected()
        write = flushing_write(transport)
        transport.loseConnection()
        write(b"ack")

        def all_of_it() -> bytes:
            with peer.makefile("rb") as file:
                return file.read()

        self.assertEqual(await deferToThread(all_of_it), b"ack")
        await self.lost

    async def test_a_peer_which_is_gone_ends_the_connection_as_ever(self) -> None:
        transport, peer = await self.connected()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        peer.close()  # with a reset
        write = flushing_write(transport)
        write(b"into the void")
        write(b"and again")
        await self.lost
        write(b"after the end")


# ── tickets ─────────────────────────────────────────────────────────────────────────────────────


def test_ten_thousand_may_wait_for_an_answer_and_each_hears_its_own() -> None:
    tickets: Tickets[str] = Tickets()
    waiting = []
    for number in range(10_000):
        tickets.check()
        waiting.append(tickets.issue(number))
    ends: list[Any] = [
        lambda: tickets.done(5, "five"),
        lambda: tickets.fail(6, ConnectionClosed("six")),
        waiting[7].cancel,
    ]
    for end in ends:
        with pytest.raises(LimitExceeded, match="10000 wait for an answer already"):
            tickets.check()
        end()
        tickets.check()
        waiting.append(tickets.issue(len(waiting)))
    assert waiting[5].result == "five"
    failed: list[Any] = [waiting[number].result for number in (6, 7)]
    assert [one.type for one in failed] == [ConnectionClosed, CancelledError]
    assert not tickets.fail(5, ConnectionClosed("again"))
    for one in waiting:
        one.addErrback(lambda failure: None)
