"""What is known of messages that have not ended and of bytes that nobody read, under a clock."""

from __future__ import annotations

import os
import socket
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.task import Clock

from tests.mtl.cases import needs_linux
from tests.mtl.test_connections import accepted, closed, disconnected
from twisted_msgproto.mtl import zeromq
from twisted_msgproto.mtl.zeromq import unfinished
from twisted_msgproto.net.memory import SharedState

FRAME = 100_000
LARGEST = 2 * FRAME + 65_536
MESSAGES = 32


class World:
    """Real connections under a clock; what the system says of them is set by the test."""

    def __init__(
        self, every: unfinished.EveryUnfinished | None = None, clock: Clock | None = None
    ) -> None:
        self.clock = clock or Clock()
        self.told: list[tuple[str, int]] = []
        self.reads = 0
        self.nbytes: dict[int, zeromq.TcpInfo | None] = {}
        self.waiting: defaultdict[int, int] = defaultdict(int)
        self.looked: list[int] = []
        self.flows: set[bytes] = set()
        self.evicted: list[tuple[str, int]] = []
        self.every = every or unfinished.EveryUnfinished(self.clock)
        self.unfinished = unfinished.Unfinished(
            self.every,
            zeromq.Bounds(FRAME, MESSAGES),
            lambda host, octets: self.told.append((host, octets)),
            self._read_soon,
            self._bytes,
            self.waiting.__getitem__,
            evicted=lambda host, octets: self.evicted.append((host, octets)),
            trusted=lambda name: name in self.flows,
        )
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=1000)
        self.endpoint = f"tcp://127.0.0.1:{self.listener.getsockname()[1]}"
        self.near: list[socket.socket] = []
        self.far: list[socket.socket] = []

    def _read_soon(self) -> None:
        self.reads += 1

    def _bytes(self, descriptor: int) -> zeromq.TcpInfo | None:
        self.looked.append(descriptor)
        return self.nbytes.get(descriptor, zeromq.TcpInfo())

    def join(self) -> int:
        """A further connection: its descriptor."""
        self.near.append(socket.create_connection(self.listener.getsockname()))
        self.far.append(self.listener.accept()[0])
        descriptor = self.far[-1].fileno()
        self.unfinished.happened([accepted(descriptor, self.endpoint)])
        return descriptor

    def came(self, descriptor: int, nbytes: int, answered: int = 0, segments: int = 0) -> None:
        """So much has come until now, and so much of ours was acknowledged."""
        self.nbytes[descriptor] = zeromq.TcpInfo(0, 0, answered, nbytes, 0, segments)

    def look(self, times: int = 1) -> None:
        self.clock.pump([0.05] * times)

    def read(self, *names: bytes) -> None:
        """The ROUTER read a message of each of these."""
        self.unfinished.read([[name, b""] for name in names])

    def close(self) -> None:
        self.unfinished.shutdown()
        assert self.clock.getDelayedCalls() == []
        for connection in [self.listener, *self.near, *self.far]:
            connection.close()


@pytest.fixture
def world() -> Any:
    made = World()
    yield made
    made.close()


def test_a_message_that_never_ends_is_cut_off_once_the_router_was_read_to_its_end(
    world: World,
) -> None:
    """NB-02: and not before; the ROUTER is asked to read, as nothing else may wake it."""
    descriptor = world.join()
    for came, reads in ((512, 0), (513, 1), (LARGEST, 2)):  # an idle one needs as much as a few
        world.came(descriptor, came)
        world.look()
        assert world.reads == reads
    world.came(descriptor, LARGEST + 1)
    world.look(3)
    assert (world.told, world.reads) == ([], 5)
    # By then this much is known not to be a whole message, and more of it is asked about.
    world.unfinished.read_to_end()
    world.look()
    assert world.told == []
    world.unfinished.read_to_end()
    world.look()
    assert world.told == [("127.0.0.1", LARGEST + 1)]
    assert closed(world.near[0])
    assert world.clock.getDelayedCalls() == []


def test_a_whole_message_makes_a_connection_innocent(world: World) -> None:
    """NB-02: also when it was suspected; many small messages at full rate are many such ones."""
    descriptor = world.join()
    for number in range(1, 100):
        world.came(descriptor, number * 10 * LARGEST)
        world.look()
        if number == 1:
            world.unfinished.named(b"a", descriptor)
        world.read(b"a", b"b")
        world.unfinished.read_to_end()
        world.look()
    assert (world.told, world.every.weight) == ([], 0)
    # Then it begins a message without an end.
    world.came(descriptor, 1000 * LARGEST)
    world.look()
    world.unfinished.read_to_end()
    world.look()
    assert world.told == [("127.0.0.1", 10 * LARGEST)]


def test_what_libzmq_has_not_taken_from_the_kernel_does_not_count(world: World) -> None:
    """NB-02: so the size of the kernel's buffers does not matter."""
    descriptor = world.join()
    world.came(descriptor, 10 * LARGEST)
    for waiting in (9 * LARGEST, 9 * LARGEST - 1, 9 * LARGEST):
        world.waiting[descriptor] = waiting
        world.look()
        world.unfinished.read_to_end()
    world.look()
    assert world.told == []
    world.waiting[descriptor] = 0
    world.look(2)
    assert len(world.told) == 0
    for _ in range(2):
        world.unfinished.read_to_end()
        world.look()
    assert len(world.told) == 1


def test_heartbeats_of_months_cut_nobody_off(world: World) -> None:
    """NB-02: one of ZMTP's is 9 bytes and answered with 7, 42 and 40 with CURVE."""
    plain, curve = world.join(), world.join()
    for number in range(1, 2001):
        for descriptor, ping in ((plain, 9), (curve, 42)):
            # 10,000 s with a heartbeat a second.
            count = number * 10_000
            world.came(descriptor, 500 + count * ping, count * (ping - 2), count)
        world.clock.advance(10_000)
        world.unfinished.read_to_end()
    assert world.told == []


def test_what_is_not_answered_or_too_much_is_no_heartbeat(world: World) -> None:
    """NB-02: nobody hides an endless message behind bytes that we send him."""
    silent, quick = world.join(), world.join()
    seconds = 10 * LARGEST / 512
    world.came(silent, 5 * LARGEST)
    world.came(quick, 20 * LARGEST, 20 * LARGEST, 10)
    world.clock.advance(seconds)
    world.unfinished.read_to_end()
    world.look(2)
    assert sorted(told[1] // LARGEST for told in world.told) == [5, 9]


@needs_linux
def test_of_who_is_cut_off_nothing_more_is_read__NB_02(world: World) -> None:
    """Libzmq would read what the kernel has of it still, up to 2 MiB."""
    descriptor = world.join()
    world.near[0].sendall(bytes(1000))
    assert world.far[0].recv(1000, socket.MSG_PEEK)
    world.came(descriptor, world.unfinished.buffered_max + 1)
    world.look()
    assert world.told
    assert world.far[0].recv(1000) == b""


def test_while_reading_is_paused_whole_messages_may_wait(world: World) -> None:
    """NB-02: as many as libzmq holds for a peer; above that nobody is honest."""
    descriptor = world.join()
    held = world.unfinished.buffered_max
    assert held == (MESSAGES + 2) * LARGEST
    world.came(descriptor, held)
    world.look(1000)
    assert world.told == []
    world.came(descriptor, held + 1)
    world.look()
    assert world.told == [("127.0.0.1", held + 1)]


def test_a_router_that_never_comes_to_its_end_has_read_from_everybody_at_some_time(
    world: World,
) -> None:
    """NB-02: one who sends for ever cannot hide another one; connections that ended count."""
    endless, busy, gone = (world.join() for _ in range(3))
    world.unfinished.named(b"busy", busy)
    world.read(b"busy", b"busy", b"busy")
    world.came(endless, 2 * LARGEST)
    world.look()
    world.unfinished.happened([disconnected(gone)])
    for _ in range(1006):
        world.read(b"busy")
        assert world.told == []
    world.look()
    assert world.told == []
    world.read(b"busy")
    world.look()
    assert len(world.told) == 1


def test_who_has_a_descriptor_next_begins_anew__NB_02__MT_30(world: World) -> None:
    descriptor = world.join()
    world.unfinished.named(b"a", descriptor)
    world.came(descriptor, 2 * LARGEST)
    world.look()
    world.unfinished.happened(
        [disconnected(descriptor), accepted(descriptor, world.endpoint), disconnected(99_999)]
    )
    world.came(descriptor, LARGEST)
    world.unfinished.read_to_end()
    # What the one before had sent is no message of this one.
    world.read(b"a")
    world.look(2)
    world.came(descriptor, LARGEST + 1)
    world.look()
    for _ in range(2):
        world.unfinished.read_to_end()
        assert world.told == []
        world.look()
    assert len(world.told) == 1


def test_a_descriptor_that_somebody_else_has_by_now_is_not_shut(world: World) -> None:
    """NB-02: libzmq's thread was faster than we."""
    descriptor = world.join()
    world.came(descriptor, 2 * LARGEST)
    world.look()
    near = socket.create_connection(world.listener.getsockname())
    far, _ = world.listener.accept()
    os.dup2(far.fileno(), descriptor)
    world.unfinished.read_to_end()
    world.look()
    assert world.told == []
    near.sendall(b"x")
    assert far.recv(1) == b"x"
    for connection in (near, far):
        connection.close()
    assert world.clock.getDelayedCalls() == []


def test_more_than_heartbeats_is_movement_in_either_direction__RD_43(world: World) -> None:
    descriptor, moved_at = world.join(), world.unfinished.moved_at
    world.unfinished.named(b"a", descriptor)
    assert moved_at(b"a") == moved_at(b"b") == 0.0
    for came, answered in ((4000, 4191), (4000, 4192), (12_191, 4192), (12_191, 4193)):
        before = moved_at(b"a")
        world.came(descriptor, came, answered)
        world.look(3)
        moved = (came + answered) % 8192 == 0
        assert moved_at(b"a") == pytest.approx(world.clock.seconds() - 0.1 if moved else before)
    world.unfinished.happened([disconnected(descriptor)])
    assert moved_at(b"a") == 0.0


def test_where_nothing_comes_few_connections_are_looked_at_in_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """NB-07: all in turn; more of them as soon as anything comes."""
    monkeypatch.setattr(unfinished, "LOOKS_PER_TURN", 5)
    monkeypatch.setattr(unfinished, "IDLE_LOOKS_PER_TURN", 2)
    world = World()
    six = [world.join() for _ in range(6)]

    def looked(turns: int) -> list[int]:
        found: list[int] = []
        for _ in range(turns):
            world.looked.clear()
            world.look()
            found.append(len(world.looked))
        return found

    assert looked(5) == [5, 1, 2, 2, 2]
    world.came(six[0], 1)
    assert looked(8) == [2, 2, 2, 5, 1, 2, 2, 2]
    world.unfinished.named(b"a", six[5])
    world.read(b"a")
    assert looked(8) == [2, 2, 2, 5, 1, 2, 2, 2]
    world.close()


def test_what_the_system_does_not_tell_cuts_nobody_off(world: World, tmp_path: Path) -> None:
    """NB-02: connections of ipc, other systems, and descriptors that are gone or another's."""
    descriptor = world.join()
    world.nbytes[descriptor] = None
    world.look()
    world.unfinished.read_to_end()
    world.look()
    assert (world.told, world.looked) == ([], [descriptor] * 2)
    world.unfinished.happened([disconnected(descriptor)])
    world.unfinished.happened([accepted(descriptor, "tcp://127.0.0.1:1"), accepted(99_999, "x")])
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as near:
        listener.bind(path)
        listener.listen()
        near.connect(path)
        with listener.accept()[0] as far:
            world.unfinished.happened([accepted(far.fileno(), f"ipc://{path}")])
    world.read(b"a")
    world.look(2)
    assert world.clock.getDelayedCalls() == []


LIMIT = 1_000_000
"""Half of what all may hold."""


@pytest.fixture
def worlds() -> Iterator[tuple[World, World]]:
    """Two ROUTERs of one process."""
    clock, shared = Clock(), SharedState()
    shared.held.bound(2 * LIMIT)
    every = unfinished.EveryUnfinished.of(shared, clock)
    assert unfinished.EveryUnfinished.of(shared, clock) is every
    both = World(every, clock), World(every, clock)
    yield both
    both[0].unfinished.shutdown()
    both[1].close()
    both[0].close()
    assert every.weight == 0


def joined(world: World, number: int, *, flow: bool) -> int:
    """A connection that has sent a whole message."""
    descriptor, name = world.join(), b"%d" % number
    world.unfinished.named(name, descriptor)
    world.read(name)
    if flow:
        world.flows.add(name)
    return descriptor


@pytest.mark.parametrize("flow", [False, True])
def test_of_all_unfinished_messages_the_largest_is_cut_off__NB_02(
    worlds: tuple[World, World], flow: bool
) -> None:
    """As soon as they weigh more than half of the bound, in whichever ROUTER they are."""
    each = 100_000 if flow else 100_000 // 32
    every = [joined(worlds[number % 2], number, flow=flow) for number in range(10)]
    worlds[0].look()
    for number, descriptor in enumerate(every):
        worlds[number % 2].came(descriptor, each)
    for _ in range(3):
        for world in worlds:
            world.unfinished.read_to_end()
        worlds[0].look()
    assert not any(world.told or world.evicted for world in worlds)
    worlds[1].came(every[5], each + 10_000)
    worlds[1].unfinished.read_to_end()
    worlds[0].look()
    assert len(worlds[1].evicted) == 1
    assert not any((*worlds[0].evicted, *worlds[0].told, *worlds[1].told))
    assert closed(worlds[1].near[2])


def test_who_has_no_flow_is_cut_off_first__NB_02(worlds: tuple[World, World]) -> None:
    """Nothing that it sends is large, so its bytes weigh what the smallest frames of so many take;
    small pieces that come alone take a buffer each.
    """
    world, _ = worlds
    *good, hostile = [joined(world, number, flow=number < 4) for number in range(5)]
    world.look()
    for descriptor in good:
        world.came(descriptor, LIMIT // 4 - 10_000)
    for _ in range(3):
        world.unfinished.read_to_end()
        world.look()
    assert not world.evicted
    world.nbytes[hostile] = zeromq.TcpInfo(received=1000, pieces=5)
    world.look()
    assert world.evicted == [("127.0.0.1", 32 * 1000 + 5 * 20_480)]
    assert list(world.unfinished.descriptors) == good


def test_what_may_be_whole_messages_of_a_flow_weighs_nothing__NB_02(
    worlds: tuple[World, World],
) -> None:
    """While the ROUTER is not read, because the sink is full, nobody is cut off for what waits."""
    world, _ = worlds
    descriptor = joined(world, 1, flow=True)
    world.look()
    world.came(descriptor, world.unfinished.buffered_max)
    world.look(10)
    assert not world.evicted
    world.read(b"1")
    world.unfinished.read_to_end()
    world.look(3)
    assert not (world.evicted or world.told)


def test_who_sends_more_frames_than_any_of_ours_is_taken_at_its_word_no_more__NB_02(
    worlds: tuple[World, World],
) -> None:
    """Also where its messages end: nobody knows which of them were thrown away."""
    world, _ = worlds
    descriptor = joined(world, 1, flow=True)
    world.look()
    for number in range(1, 5):
        world.came(descriptor, number * 10_000)
        world.read(b"1")
        world.unfinished.too_many_frames(b"1")
        world.unfinished.read_to_end()
        world.look()
    assert len(world.evicted) == 1


MIB = 1 << 20
STEP, CHECK_SECONDS = 65_536, 1.0
LATE_SECONDS = 5


class Given:
    """Peers under a clock; what the system says of them is set by the test."""

    def __init__(self, limit: float = 64 * MIB) -> None:
        self.clock = Clock()
        self.shared = SharedState()
        self.ledger = self.shared.held
        self.ledger.bound(limit)
        self.backlogs: dict[bytes, unfinished.Backlog] = {}
        self.acknowledged: dict[int, int] = {}
        self.cut: list[bytes] = []
        self.every = unfinished.SendBacklogs(
            self.clock, self.shared, self.backlogs, self._cut, self._bytes
        )
        self._number = 100
        self.asked = 0  # how often the system was

    def _bytes(self, descriptor: int) -> zeromq.TcpInfo | None:
        self.asked += 1
        acknowledged = self.acknowledged.get(descriptor)
        return None if acknowledged is None else zeromq.TcpInfo(acknowledged=acknowledged)

    def _cut(self, peer: unfinished.SendBacklog, nbytes: int) -> None:
        self.cut.append(peer.name)
        self.every.forget(peer)

    def join(self, name: bytes, told: bool = True) -> unfinished.SendBacklog:
        self._number += 1
        if told:
            self.acknowledged[self._number] = 5000  # the hand-shake
        return unfinished.SendBacklog(self.every, name, self._number)

    def give(self, peer: unfinished.SendBacklog, nbytes: int, piece: int = MIB) -> bool:
        """Give libzmq so much for this peer, in pieces, as a ROUTER does; False: it was full."""
        for _ in range(0, nbytes, piece):
            if peer.passed >= peer.check_at and not peer.has_room():
                return False
            peer.passed += piece
        return peer.has_room()

    def read(self, peer: unfinished.SendBacklog, nbytes: int) -> None:
        self.acknowledged[peer.descriptor] += nbytes

    def wait(self, seconds: float) -> None:
        for _ in range(round(seconds / CHECK_SECONDS)):
            self.clock.advance(CHECK_SECONDS)


@pytest.fixture
def given() -> Given:
    return Given()


def test_what_is_given_and_not_acknowledged_is_in_the_ledger__NB_02(given: Given) -> None:
    """NB-02: until the peer reads it."""
    peer = given.join(b"a")
    assert given.give(peer, 3 * MIB, 1024)
    assert given.ledger.held == peer.entered == 3 * MIB
    assert given.asked == 3 * MIB // STEP + 1, "once for each step"
    given.read(peer, 2 * MIB)
    given.wait(CHECK_SECONDS)
    assert given.ledger.held == MIB
    given.read(peer, MIB)
    given.wait(CHECK_SECONDS)
    assert given.ledger.held == peer.passed == 0
    assert given.clock.getDelayedCalls() == []


def test_a_trickle_is_no_progress__NB_02() -> None:
    """NB-02: who reads some bytes each second is as late as who reads none."""
    given = Given(10 * MIB)
    good, sly = given.join(b"good"), given.join(b"sly")
    for second in range(60):
        given.read(good, STEP)
        given.give(good, 2 * STEP, STEP)  # it is sent more than it reads
        if second > 20 and not given.cut:  # and it has begun later
            given.give(sly, MIB)
            given.read(sly, STEP if second == 21 else 1000)
        given.wait(CHECK_SECONDS)
    assert given.cut == [b"sly"] and good.entered


def test_who_has_read_everything_since_the_last_check_stays__NB_02() -> None:
    given = Given(2 * MIB)
    first, second = given.join(b"first"), given.join(b"second")
    given.give(first, MIB)
    given.wait(60)
    given.read(first, MIB)
    given.give(second, 3 * STEP * 8, STEP * 8)
    assert (given.cut, given.ledger.held) == ([], 24 * STEP)


def test_libzmq_is_given_little_for_each_while_all_hold_much__NB_02(given: Given) -> None:
    """NB-02: one alone may leave half of what all may hold unread; the next ones have a content."""
    first, second = given.join(b"first"), given.join(b"second")
    assert not given.give(first, 100 * MIB)
    assert first.passed == 32 * MIB
    assert not given.give(second, 100 * MIB)
    assert second.passed == 8 * MIB
    given.read(second, MIB)
    assert given.give(second, MIB // 2, MIB // 2)
    assert not given.give(second, MIB)
    given.read(first, 31 * MIB)
    assert first.has_room() and second.has_room()
    assert given.cut == []


def test_what_waits_outside_libzmq_counts__NB_02(given: Given) -> None:
    """NB-02: with what its messages weigh beside their bytes."""
    peer = given.join(b"a")
    backlog = given.backlogs[b"a"] = unfinished.Backlog(0.0)
    small = STEP // 256
    for number in range(1, 3 * small + 1):
        backlog.put([b"", b"", b""])
        given.every.waits(peer, backlog)
        assert given.ledger.held == number // small * STEP
    del given.backlogs[b"a"]
    given.wait(CHECK_SECONDS)
    assert given.ledger.held == 0


def test_who_reads_is_not_given_up_for_what_waits__NB_02(given: Given) -> None:
    """NB-02, MT-24: what waits outside libzmq is behind what the peer reads."""
    peer = given.join(b"a")
    backlog = given.backlogs[b"a"] = unfinished.Backlog(0.0)
    given.give(peer, 10 * MIB)
    given.wait(5)
    assert backlog.since == 0.0
    given.read(peer, STEP)
    given.wait(CHECK_SECONDS)
    assert backlog.since == given.clock.seconds()
    given.every.shutdown()
    assert given.ledger.held == 0


def test_heartbeats_that_are_acknowledged_are_no_credit__NB_02(given: Given) -> None:
    """NB-02: ZeroMQ's own answers are not given by anybody."""
    peer = given.join(b"a")
    given.give(peer, MIB)
    given.read(peer, 10 * MIB)
    assert peer.has_room() and peer.passed == 0
    given.give(peer, 2 * MIB)
    assert given.ledger.held == 2 * MIB
    given.every.forget(peer)
    given.wait(2)
    assert given.ledger.held == 0 and given.clock.getDelayedCalls() == []


def test_where_nobody_tells_only_what_waits_outside_counts__NB_02(given: Given) -> None:
    """NB-02: connections of ipc, and other systems."""
    peer = given.join(b"a", told=False)
    assert given.give(peer, 100 * MIB)
    assert given.ledger.held == 0
    backlog = given.backlogs[b"a"] = unfinished.Backlog(0.0)
    backlog.put([bytes(MIB - 256)])
    given.every.waits(peer, backlog)
    assert given.ledger.held == MIB
    given.ledger.bound(MIB)
    given.wait(60)
    backlog.put([bytes(MIB - 256)])
    given.every.waits(peer, backlog)
    assert given.cut == [b"a"]
    given.every.shutdown()
    assert given.ledger.held == 0 and given.clock.getDelayedCalls() == []
