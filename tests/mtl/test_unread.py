"""What peers do not read has one bound, though libzmq does not say what it holds for them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from twisted.internet.task import Clock

from tests.chaos.clients import GoodClients
from tests.chaos.gateways import Five, most_resident, needs_proc
from tests.mtl.plain import Plain
from tests.mtl.test_unfinished import needs_linux
from tests.tools.processes import Launcher
from twisted_msgproto.mtl.zeromq import bounded, unfinished, unread
from twisted_msgproto.net import OctetBudget

MIB = 1 << 20
STEP, CHECK_SECONDS = unread.STEP_OCTETS, unread.CHECK_SECONDS
LATE_SECONDS = 5


class World:
    """Peers under a clock; what the system says of them is set by the test."""

    def __init__(self, limit: float = 64 * MIB) -> None:
        self.clock = Clock()
        self.budget = OctetBudget()
        self.ledger = self.budget.held
        self.ledger.bound(limit)
        self.backlogs: dict[bytes, bounded.Backlog] = {}
        self.acknowledged: dict[int, int] = {}
        self.cut: list[bytes] = []
        self.every = unread.EveryUnread(
            self.clock, self.budget, self.backlogs, self._cut, self._octets
        )
        self._number = 100

    def _octets(self, descriptor: int) -> unfinished.Octets | None:
        acknowledged = self.acknowledged.get(descriptor)
        return None if acknowledged is None else unfinished.Octets(0, acknowledged, 0)

    def _cut(self, peer: unread.Unread, octets: int) -> None:
        self.cut.append(peer.name)
        self.every.forget(peer)

    def join(self, name: bytes, told: bool = True) -> unread.Unread:
        self._number += 1
        if told:
            self.acknowledged[self._number] = 5000  # the hand-shake
        return unread.Unread(self.every, name, self._number)

    def give(self, peer: unread.Unread, octets: int, piece: int = MIB) -> bool:
        """Give libzmq so much for this peer, in pieces, as a ROUTER does; False: it was full."""
        for _ in range(0, octets, piece):
            if peer.passed >= peer.check_at and not peer.has_room():
                return False
            peer.passed += piece
        return peer.has_room()

    def read(self, peer: unread.Unread, octets: int) -> None:
        self.acknowledged[peer.descriptor] += octets

    def wait(self, seconds: float) -> None:
        for _ in range(round(seconds / CHECK_SECONDS)):
            self.clock.advance(CHECK_SECONDS)


@pytest.fixture
def world() -> World:
    return World()


def test_what_is_given_and_not_acknowledged_is_in_the_ledger__NB_02(world: World) -> None:
    """NB-02: until the peer reads it."""
    peer = world.join(b"a")
    assert world.give(peer, 3 * MIB)
    assert world.ledger.held == peer.entered == 3 * MIB
    world.read(peer, 2 * MIB)
    world.wait(CHECK_SECONDS)
    assert world.ledger.held == MIB
    world.read(peer, MIB)
    world.wait(CHECK_SECONDS)
    assert world.ledger.held == peer.passed == 0
    assert world.clock.getDelayedCalls() == []


def test_who_reads_nothing_loses_its_place_first__NB_02() -> None:
    """NB-02: however little the good one reads, if it is a step now and then."""
    world = World(40 * MIB)
    good, *deaf = (world.join(name) for name in (b"good", b"one", b"two", b"three"))
    for second in range(40):
        for peer in (good, *deaf):
            world.give(peer, MIB)
        if second % 3 == 0:
            world.read(good, STEP)
        world.wait(CHECK_SECONDS)
        if second == LATE_SECONDS:
            assert world.cut == []
    assert set(world.cut) == {b"one", b"two", b"three"}
    assert good.entered and world.ledger.held <= world.ledger.limit


def test_a_trickle_is_no_progress__NB_02() -> None:
    """NB-02: who reads some octets each second is as late as who reads none."""
    world = World(20 * MIB)
    good, sly = world.join(b"good"), world.join(b"sly")
    for _ in range(60):
        world.give(good, MIB)
        if not world.cut:
            world.give(sly, MIB)
        world.read(sly, 1000)
        world.read(good, STEP)
        world.wait(CHECK_SECONDS)
    assert world.cut == [b"sly"] and good.entered


def test_libzmq_is_given_little_for_each_while_all_hold_much__NB_02(world: World) -> None:
    """NB-02: one alone may leave half of what all may hold unread; the next ones have a content."""
    first, second = world.join(b"first"), world.join(b"second")
    assert not world.give(first, 100 * MIB)
    assert first.passed == 32 * MIB
    assert not world.give(second, 100 * MIB)
    assert second.passed == unread.PASSED_OCTETS
    world.read(second, MIB)
    assert world.give(second, MIB // 2, MIB // 2)
    assert not world.give(second, MIB)
    world.read(first, 31 * MIB)
    assert first.has_room() and second.has_room()
    assert world.cut == []


def test_what_waits_outside_libzmq_counts__NB_02(world: World) -> None:
    """NB-02: with what its messages weigh beside their octets."""
    peer = world.join(b"a")
    backlog = world.backlogs[b"a"] = bounded.Backlog(0.0)
    small = STEP // unread.MESSAGE_OCTETS
    for number in range(1, 3 * small + 1):
        backlog.messages.append([b"a", b"", b""])
        world.every.waits(peer, backlog)
        assert world.ledger.held == number // small * STEP
    del world.backlogs[b"a"]
    world.wait(CHECK_SECONDS)
    assert world.ledger.held == 0


def test_who_reads_is_not_given_up_for_what_waits__NB_02(world: World) -> None:
    """NB-02, MT-24: what waits outside libzmq is behind what the peer reads."""
    peer = world.join(b"a")
    backlog = world.backlogs[b"a"] = bounded.Backlog(0.0)
    world.give(peer, 10 * MIB)
    world.wait(5)
    assert backlog.since == 0.0
    world.read(peer, STEP)
    world.wait(CHECK_SECONDS)
    assert backlog.since == world.clock.seconds()


def test_heartbeats_that_are_acknowledged_are_no_credit__NB_02(world: World) -> None:
    """NB-02: ZeroMQ's own answers are not given by anybody."""
    peer = world.join(b"a")
    world.give(peer, MIB)
    world.read(peer, 10 * MIB)
    assert peer.has_room() and peer.passed == 0
    world.give(peer, 2 * MIB)
    assert world.ledger.held == 2 * MIB


def test_where_nobody_tells_only_what_waits_outside_counts__NB_02(world: World) -> None:
    """NB-02: connections of ipc, and other systems."""
    peer = world.join(b"a", told=False)
    assert world.give(peer, 100 * MIB)
    assert world.ledger.held == 0
    backlog = world.backlogs[b"a"] = bounded.Backlog(0.0)
    backlog.octets = MIB
    world.every.waits(peer, backlog)
    assert world.ledger.held == MIB
    world.every.shutdown()
    assert world.ledger.held == 0 and world.clock.getDelayedCalls() == []


def frames_of(sizes: list[int]) -> Iterator[list[bytes]]:
    for size in sizes:
        yield [b"h" * (size % 300), b"x" * size]


@needs_linux
@pytest.mark.parametrize("curve", [False, True])
def test_what_a_message_becomes_on_the_wire__NB_02(curve: bool) -> None:
    """NB-02: no less, or libzmq would seem to hold what was read long ago."""
    context = zmq.Context()
    try:
        router, dealer = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
        for socket in (router, dealer):
            socket.set(zmq.RCVTIMEO, 20_000)
        if curve:
            public, secret = zmq.curve_keypair()
            router.curve_server = True
            router.curve_secretkey = secret
            dealer.curve_serverkey = public
            dealer.curve_publickey, dealer.curve_secretkey = zmq.curve_keypair()
        port = router.bind_to_random_port("tcp://127.0.0.1")
        dealer.connect(f"tcp://127.0.0.1:{port}")
        dealer.send(b"hello")
        identity = router.recv()
        frame = router.recv(copy=False)
        descriptor = int(frame.get("__fd"))

        def settled() -> int:
            """What is acknowledged once the peer has answered."""
            router.send_multipart([identity, b"ping"])
            assert dealer.recv_multipart() == [b"ping"]
            dealer.send(b"pong")
            assert router.recv_multipart() == [identity, b"pong"]
            told: Any = unfinished.octets_of(descriptor)
            return int(told.acknowledged)

        more = unread.FRAME_OCTETS + (unread.CURVE_OCTETS if curve else 0)
        before = settled()
        expected, frames_sent = 4 + more, 1
        for frames in frames_of([0, 1, 221, 222, 223, 254, 255, 256, 8192, 70_000, 3 * MIB]):
            router.send_multipart([identity, *frames])
            assert dealer.recv_multipart() == frames
            expected += sum(map(len, frames)) + len(frames) * more
            frames_sent += len(frames)
        longer = settled() - before - expected
        assert 0 < longer < 7 * frames_sent and longer % 7 == 0
    finally:
        context.destroy(linger=0)


DEAF, CONTENTS, HELD = 8, 120, 32 * MIB


@needs_linux
@needs_proc
def test_deaf_readers_cannot_fill_a_gateway_and_others_are_served__NB_02(
    launch: Launcher, tmp_path: Path
) -> None:
    """NB-02, MT-24: one writer, and readers that take nothing: without a bound a GiB is held."""
    limits = [f"process-held-octets={HELD}", f"content-octets={2 * MIB}", "liveness=600"]
    five = Five(launch, options=[word for limit in limits for word in ("--limit", limit)])
    address = f"tcp://127.0.0.1:{five.ports['mtl']}"

    def takes_little(socket: Any) -> None:
        socket.set(zmq.RCVHWM, 1)
        socket.set(zmq.RCVBUF, 65_536)

    with contextlib.ExitStack() as stack:
        clients = stack.enter_context(contextlib.closing(GoodClients(tmp_path)))
        for name in ("lumberjack", "mtl"):
            clients.stand(name, five.ports[name])
        connections = clients.connections("lumberjack")

        def flow(way: str, prepare: Any = lambda socket: None) -> Any:
            client = stack.enter_context(Plain(address, prepare=prepare))
            return client.ready("test").flow(way, ["resource"], "none")

        deaf = [flow("Reader", takes_little) for _ in range(DEAF)]
        good, writer = flow("Reader"), flow("Writer")
        for reader in (*deaf, good):
            assert reader.summon("resource") == b"200"
        before = most_resident(five.server)
        body = bytes(MIB)
        for number in range(CONTENTS):
            writer.content("resource", body)
            assert good.get()[2] == body
            if number % 10 == 0:
                for name in ("lumberjack", "mtl"):
                    clients.send(name, 5)
        assert clients.connections("lumberjack") == connections
        assert five.lost(clients.told()) == set()
    rise = most_resident(five.server) - before
    print("rise", rise / MIB)
    assert rise < RISE_MOST
    assert "octets that it has not read" in five.server.output
    assert "Traceback" not in five.server.output


RISE_MOST = 256 * MIB
"""What is held, what is free again and not returned yet, and what a turn has in its hands."""
