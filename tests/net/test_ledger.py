"""What peers make the process hold: who is held back, who is cut off, and who never is."""

from __future__ import annotations

import random
from typing import Any

import pytest
from twisted.internet.task import Clock

from twisted_msgproto.net import OctetBudget

LATE_SECONDS, LOOK_SECONDS = 5.0, 1.0
MIN_RATE = 16 << 10  # octets a second that a peer must bring at least
READ_OCTETS = 256 << 10


LIMIT = 4_000_000
SOFT = 3_000_000


class World:
    """A ledger and its connections."""

    def __init__(self, limit: float = LIMIT) -> None:
        self.clock = Clock()
        self.ledger = OctetBudget().held
        self.ledger.clock = self.clock
        self.ledger.limit = limit
        self.peers: list[Peer] = []

    def peer(self, address: str = "") -> Peer:
        self.peers.append(Peer(self, address))
        return self.peers[-1]

    @property
    def held(self) -> int:
        return sum(peer.octets for peer in self.peers)


class Peer:
    """A connection as the ledger sees it."""

    def __init__(self, world: World, address: str) -> None:
        self.world = world
        self.address = address
        self.octets = 0
        self.held_back = False
        self.disk_full = False
        self.cut = 0

    @property
    def reading(self) -> bool:
        return not (self.held_back or self.disk_full)

    def holdBack(self, held_back: bool) -> None:
        assert held_back is not self.held_back
        self.held_back = held_back

    def cutOff(self, octets: int, limit: float) -> None:
        assert (octets, limit) == (self.octets, self.world.ledger.limit)
        self.cut += 1
        self.octets = 0

    def hold(self, octets: int, **options: Any) -> None:
        self.octets = octets
        self.world.ledger.hold(self, octets, self.world.clock.seconds(), **options)

    def grow(self, octets: int) -> None:
        self.hold(self.octets + octets)


def test_below_the_limit_nobody_is_disturbed() -> None:
    world = World()
    peers = [world.peer() for _ in range(30)]
    for peer in peers:
        peer.hold(100_000)
    world.clock.advance(1000)
    assert world.ledger.held == SOFT
    assert not any(peer.cut or peer.held_back for peer in peers)
    for peer in peers:
        peer.hold(0)
    assert world.ledger.held == 0
    assert not world.clock.getDelayedCalls()


def test_above_most_of_it_the_eldest_goes_on_and_the_others_wait() -> None:
    world = World()
    first, second, third = world.peer(), world.peer(), world.peer()
    first.hold(1_500_000)
    second.hold(1_500_000)
    third.hold(1)
    assert third.held_back
    second.grow(1)
    assert second.held_back
    first.grow(800_000)
    assert not first.held_back
    first.hold(0)
    assert not second.held_back
    assert not third.held_back
    second.hold(0)
    third.hold(0)
    assert not world.clock.getDelayedCalls()
    assert not any(peer.cut for peer in world.peers)


def test_what_a_peer_did_not_send_is_no_progress__NB_02() -> None:
    """NB-02: a hundred octets that make us hold thousands of objects are a hundred octets."""
    world = World()
    heavy, sender = world.peer(), world.peer()
    heavy.hold(1_000_000, objects=999_900)
    heavy.hold(2_900_000, objects=2_899_900)
    sender.hold(100_000)
    sender.hold(1_200_000)
    assert (heavy.cut, sender.cut) == (1, 0)


def test_an_honest_sender_survives_any_number_who_stand_still__NB_03() -> None:
    """300 connections with 0.9 MB each stood still and stayed, and an honest one was reset."""
    world = World(256 << 20)
    still = [world.peer(f"192.0.2.{number % 250}") for number in range(300)]
    for peer in still:
        peer.hold(900_000)
        world.clock.advance(0.01)
    world.clock.advance(900_000 / MIN_RATE + LATE_SECONDS)
    honest = world.peer("198.51.100.1")
    for _ in range(47):
        honest.grow(64 << 10)
        world.clock.advance(0.05)
    assert honest.octets == 47 << 16
    assert not honest.cut
    assert not honest.held_back


def test_at_the_limit_itself_the_latest_is_cut_off_at_once() -> None:
    world = World()
    slow, fast = world.peer(), world.peer()
    slow.hold(100)
    world.clock.advance(1)
    fast.hold(LIMIT)
    assert slow.cut == 1
    assert not fast.cut
    fast.grow(1)
    assert fast.cut == 1  # a single one can be too much
    assert world.ledger.held == 0


def test_who_is_not_read_cannot_be_late() -> None:
    """The disk, not the peer, makes it wait."""
    world = World()
    waiting, late = world.peer(), world.peer()
    waiting.hold(1_000_000)
    late.hold(1_000_000)
    waiting.disk_full = True
    world.ledger.paused(waiting, world.clock.seconds())
    world.clock.advance(1_000_000 / MIN_RATE + LATE_SECONDS + 1)
    new = world.peer()
    new.hold(1_200_000)
    assert (waiting.cut, late.cut, new.cut) == (0, 1, 0)
    waiting.disk_full = False
    world.ledger.resumed(waiting, world.clock.seconds())
    world.clock.advance(LATE_SECONDS + 1)
    new.grow(900_000)
    assert not waiting.cut


def test_who_is_held_back_is_not_late_when_it_may_go_on() -> None:
    world = World()
    first, second = world.peer(), world.peer()
    first.hold(2_900_000)
    second.hold(200_000)
    assert second.held_back
    for _ in range(30):  # the first one sends just fast enough
        world.clock.advance(1)
        first.grow(MIN_RATE)
    assert second.held_back
    first.hold(0)
    assert not second.held_back
    third = world.peer()
    third.hold(2_900_000)
    assert not second.cut


@pytest.mark.parametrize("disk_full", [False, True])
def test_who_may_go_on_is_late_only_if_nothing_else_stands_in_its_way(disk_full: bool) -> None:
    """NB-02: the disk may be in its way when there is room in memory again."""
    world = World()
    first, second = world.peer(), world.peer()
    first.hold(2_900_000)
    second.hold(200_000)
    second.disk_full = disk_full
    first.hold(0)
    assert not second.held_back
    world.clock.advance(200_000 / MIN_RATE + LATE_SECONDS + 1)
    third = world.peer()
    third.hold(2_900_000)
    assert (second.cut, third.cut) == (0 if disk_full else 1, 0)


def test_when_the_eldest_stops_the_next_one_is_read_in_a_while() -> None:
    """Held back for ever would be a way to lock everybody out."""
    world = World()
    first, second = world.peer(), world.peer()
    first.hold(2_900_000)
    second.hold(200_000)
    assert second.held_back
    first.disk_full = True
    world.ledger.paused(first, world.clock.seconds())
    world.clock.advance(LOOK_SECONDS)
    assert not second.held_back
    second.grow(10)
    assert not second.held_back


def test_who_stands_still_is_cut_off_while_others_are_held_back() -> None:
    """Nobody has to grow for that: the ledger looks by itself."""
    world = World()
    still, waiting = world.peer(), world.peer()
    still.hold(2_999_999)
    waiting.hold(100)
    assert waiting.held_back
    steps = 0
    while not still.cut:
        world.clock.advance(LOOK_SECONDS)
        steps += 1
        assert steps < 1000
    assert not waiting.held_back
    assert not world.clock.getDelayedCalls()


def test_addresses_take_turns_when_there_is_room_again() -> None:
    world = World()
    eldest = world.peer("elsewhere")
    eldest.hold(SOFT)
    many = [world.peer("many") for _ in range(5)]
    for peer in many:
        peer.hold(1)
    one = world.peer("one")
    one.hold(1)
    assert all(peer.held_back for peer in [*many, one])
    eldest.hold(SOFT - READ_OCTETS - 10)  # finished one message: room for two, and it goes on
    assert [peer.held_back for peer in [*many, one]] == [False, True, True, True, True, False]


def test_unread_output_counts_and_only_reading_it_is_progress() -> None:
    """NB-02: what waits for peers to read it has the same bound."""
    world = World()
    deaf, reader = world.peer(), world.peer()
    deaf.hold(1_000_000, outward=True)
    reader.hold(1_000_000, outward=True)
    for _ in range(10):
        world.clock.advance(LATE_SECONDS / 2)
        deaf.hold(deaf.octets + 10_000, outward=True)
        reader.hold(reader.octets - 10_000, outward=True)
    other = world.peer()
    other.hold(1_500_000)
    assert (deaf.cut, reader.cut, other.cut) == (1, 0, 0)


def test_who_reads_our_output_steadily_locks_no_sender_out__NB_03() -> None:
    """NB-03: while it read, all who were held back waited for it, and none of them was late."""
    world = World()
    reader, first, second = world.peer(), world.peer(), world.peer()
    reader.hold(70_000, outward=True)
    first.hold(2_000_000)
    second.hold(950_000)
    first.grow(10_000)
    assert not first.held_back, "the eldest can always finish"
    for _ in range(10):
        world.clock.advance(LOOK_SECONDS)
        reader.hold(60_000, outward=True)
        reader.hold(70_000, outward=True)
        first.grow(20_000)
    assert (first.held_back, second.held_back) == (False, True)
    first.hold(0)
    assert not second.held_back
    assert [peer.cut for peer in world.peers] == [0, 0, 0]


@pytest.mark.parametrize("seed", range(8))
def test_whatever_peers_do_the_limit_holds_and_who_moves_gets_through(seed: int) -> None:
    chance = random.Random(seed)
    world = World()
    peers = [world.peer(str(number % 3)) for number in range(8)]
    finished = dict.fromkeys(range(8), 0)
    for _ in range(3000):
        number = chance.randrange(8)
        peer = peers[number]
        if peer.cut:
            assert number < 4, "who moves was cut off"
            peers[number] = world.peer(str(number % 3))
            continue
        if peer.reading:
            if peer.octets > 400_000:
                peer.hold(0)
                finished[number] += 1
            elif number >= 4:
                peer.grow(chance.choice((4_096, 65_536, 100_000)))
            elif chance.random() < 0.1:
                peer.grow(chance.choice((1, 100_000)))
        world.clock.advance(chance.choice((0, 0, 0.1, 0.5)))
        assert world.ledger.held == sum(p.octets for p in peers if not p.cut) <= LIMIT
    assert all(finished[number] for number in range(4, 8)), finished
    for peer in peers:
        if not peer.cut:
            peer.hold(0)
    assert world.ledger.held == 0
    assert not world.clock.getDelayedCalls()


class Asked(Peer):
    """A peer that counts how often all of them are asked for their addresses."""

    asked = 0

    @property
    def address(self) -> str:
        Asked.asked += 1
        return self._address

    @address.setter
    def address(self, address: str) -> None:
        self._address = address


def test_a_crowd_that_holds_all_memory_costs_each_read_next_to_nothing__NB_07() -> None:
    """NB-07: with 9,000 connections a turn took seconds, since each look was at all of them."""
    world, crowd = World(), 1000
    peers = [Asked(world, f"192.0.2.{number % 5}") for number in range(crowd)]
    world.peers += peers
    for peer in peers:
        peer.hold(SOFT // crowd + 100)
    assert 0 < sum(peer.held_back for peer in peers) < crowd
    assert Asked.asked <= 3 * crowd
    for peer in peers:
        if not peer.held_back:
            peer.grow(1)
    assert Asked.asked <= 4 * crowd
    Asked.asked = 0
    world.clock.advance(4 * LATE_SECONDS)
    cut = sum(peer.cut for peer in peers)
    assert 0 < cut < crowd
    assert Asked.asked <= 3 * crowd
