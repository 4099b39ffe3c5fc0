"""The way of octets to a peer which reads slowly, or not at all."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import Clock

from twisted_msgproto.net import OctetBudget
from twisted_msgproto.net.wires.output import Output

LATE_SECONDS = 5.0
SLICE_OCTETS = 64 << 10  # so much is with the transport at most


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

    def write(self, octets: bytes) -> None:
        assert type(octets) is bytes
        self.writes.append(len(octets))
        self.buffer += octets
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


@given(st.lists(st.integers(0, 3 * SLICE_OCTETS), max_size=6), st.data())
def test_whatever_is_written_arrives_whole_and_in_order_however_the_peer_reads(sizes, data):
    way = Way()
    written = b""
    for number, size in enumerate(sizes):
        octets = bytes([number]) * size
        written += octets
        way.output.write(octets)
        way.transport.take(data.draw(st.integers(0, SLICE_OCTETS)))
    while way.transport.buffer:
        way.transport.take()
    assert way.transport.arrived == written
    assert way.output.octets == 0
    assert way.clock.getDelayedCalls() == []


def test_a_transport_holds_a_slice_however_much_is_written():
    way = Way()
    way.output.write(bytes(4 << 20))
    while way.transport.buffer:
        way.transport.take()
    assert way.transport.largest == SLICE_OCTETS


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
    assert way.transport.largest <= SLICE_OCTETS * 2
    assert way.transport.bufferSize == 1 << 20


def test_who_takes_a_slice_now_and_then_is_served_for_as_long_as_it_takes():
    """HO-04: progress, not emptiness."""
    way = Way(seconds=30)
    way.output.write(bytes(40 * SLICE_OCTETS))
    while way.transport.buffer:
        way.clock.advance(29)
        way.transport.take()
    assert way.stalled == 0
    assert len(way.transport.arrived) == 40 * SLICE_OCTETS
    assert way.clock.getDelayedCalls() == []


def test_who_stops_is_cut_off_after_the_time_and_not_after_twice_of_it():
    """HO-04: the time runs from the last slice."""
    way = Way(seconds=30)
    way.output.write(bytes(4 * SLICE_OCTETS))
    way.clock.advance(20)
    way.transport.take()
    way.clock.advance(29)
    assert way.stalled == 0
    way.clock.advance(1)
    assert way.stalled == 1


def test_who_writes_goes_on_when_half_of_the_bound_waits__UM_21():
    way = Way(most=4 * SLICE_OCTETS)
    way.output.write(bytes(6 * SLICE_OCTETS))
    for waiting, changes in ((5, [True]), (4, [True]), (3, [True]), (2, [True, False])):
        assert (way.output.octets // SLICE_OCTETS, way.changes) == (waiting, changes)
        way.transport.take()


def test_without_a_bound_it_says_so_as_soon_as_the_transport_is_full():
    way = Way()
    way.output.write(bytes(SLICE_OCTETS))
    assert way.changes == [True]
    way.transport.take()
    assert way.changes == [True, False]


def test_an_end_lets_out_what_waits():
    way = Way()
    way.output.write(bytes(3 * SLICE_OCTETS))
    way.output.close()
    assert not way.transport.closing
    way.transport.take()
    assert not way.transport.closing
    way.transport.take()
    assert way.transport.closing  # its last slice is with the transport
    way.transport.take()
    assert way.transport.producer is None
    assert way.transport.writes == [SLICE_OCTETS] * 3
    way.output.stop()
    assert way.clock.getDelayedCalls() == []


def test_the_last_slice_of_an_end_has_its_time_too():
    way = Way(seconds=30)
    way.output.write(b"x")
    way.output.close()
    assert way.transport.closing
    way.clock.advance(29)
    assert way.stalled == 0
    way.clock.advance(1)
    assert way.stalled == 1


def test_who_takes_nothing_has_its_whole_time_from_the_end_on__HO_04():
    way = Way(seconds=30)
    way.output.write(bytes(SLICE_OCTETS))
    way.clock.advance(20)
    way.output.close()
    way.clock.advance(29)
    assert way.stalled == 0
    way.clock.advance(1)
    assert way.stalled == 1


def test_one_for_whom_too_much_waits_is_said_to_stall_once__NB_02():
    way = Way()
    way.output.most_waiting = 10
    way.output.write(bytes(SLICE_OCTETS))
    way.output.write(bytes(10))
    assert way.stalled == 0
    way.output.write(bytes(1))
    way.output.write(bytes(1))
    assert way.stalled == 1
    way.output.stop()


def test_what_waits_is_held_until_it_is_taken_or_the_peer_is_gone__NB_02():
    ledger = OctetBudget().held
    way = Way(ledger=ledger)
    way.output.write(bytes(3 * SLICE_OCTETS))
    assert ledger.held == 2 * SLICE_OCTETS  # a slice is with the transport
    way.output.write(bytes(5))
    assert ledger.held == 2 * SLICE_OCTETS + 5
    way.transport.take()
    assert ledger.held == SLICE_OCTETS + 5
    way.output.stop()
    assert ledger.held == 0


def test_who_takes_nothing_while_memory_is_short_is_late_and_cut_off__NB_02():
    """A peer that takes a slice now and then is not late, however long all of it takes."""
    for takes in (False, True):
        ledger = OctetBudget().held
        ledger.bound(5 * SLICE_OCTETS)
        way = Way(ledger=ledger)
        way.output.write(bytes(4 * SLICE_OCTETS))  # three of them wait
        way.clock.advance(LATE_SECONDS - 1)
        if takes:
            way.transport.take()
        way.clock.advance(2)
        other = Way(ledger=ledger)
        ledger.hold(other.output, 2 * SLICE_OCTETS, way.clock.seconds(), outward=True)
        assert (way.stalled, other.stalled) == (not takes, 0)
