"""Who sends a message that never ends is cut off, and nobody else is (NB-02)."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import zmq
from twisted.internet.task import Clock
from twisted.internet.threads import deferToThread
from twisted.logger import capturedLogs, formatEvent

from tests.chaos.clients import GoodClients
from tests.chaos.gateways import Five, most_resident, needs_proc
from tests.mtl.cases import HeldSink, MtlCase, run, until
from tests.mtl.endless import Endless, Leased, join, until_cut_off
from tests.mtl.plain import Plain
from tests.mtl.test_door import accepted, closed, disconnected
from tests.tools.processes import Launcher
from twisted_msgproto.mtl.zeromq import unfinished
from twisted_msgproto.mtl.zeromq.bounded import Bounds
from twisted_msgproto.mtl.zeromq.curve import CurveClient, CurveServer
from twisted_msgproto.mtl.zeromq.unfinished import (
    ACTIVATION_READS,
    BUFFER_OCTETS,
    FRAME_TIMES,
    HEARTBEAT_RATE,
    IDLE_LOOKS_PER_TURN,
    LOOK_SECONDS,
    LOOKS_PER_TURN,
    EveryUnfinished,
    Octets,
    Unfinished,
    octets_of,
    waiting_in,
)
from twisted_msgproto.net.memory import OctetBudget

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="TCP_INFO tells what came: Linux")

FRAME = 100_000
LARGEST = 2 * FRAME + 65_536
MESSAGES = 32


class World:
    """Real connections under a clock; what the system says of them is set by the test."""

    def __init__(self, every: EveryUnfinished | None = None, clock: Clock | None = None) -> None:
        self.clock = clock or Clock()
        self.told: list[tuple[str, int]] = []
        self.reads = 0
        self.octets: dict[int, Octets | None] = {}
        self.waiting: dict[int, int | None] = {}
        self.looked: list[int] = []
        self.flows: set[bytes] = set()
        self.made_room: list[tuple[str, int]] = []
        self.unfinished = Unfinished(
            every or EveryUnfinished(self.clock),
            Bounds(FRAME, MESSAGES),
            lambda host, octets: self.told.append((host, octets)),
            self._read_soon,
            self._octets,
            self.waiting.get,
            made_room=lambda host, octets: self.made_room.append((host, octets)),
            trusted=lambda name: name in self.flows,
        )
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=1000)
        self.endpoint = f"tcp://127.0.0.1:{self.listener.getsockname()[1]}"
        self.near: list[socket.socket] = []
        self.far: list[socket.socket] = []

    def _read_soon(self) -> None:
        self.reads += 1

    def _octets(self, descriptor: int) -> Octets | None:
        self.looked.append(descriptor)
        return self.octets.get(descriptor, Octets(0, 0, 0))

    def join(self) -> int:
        """A further connection: its descriptor."""
        self.near.append(socket.create_connection(self.listener.getsockname()))
        self.far.append(self.listener.accept()[0])
        descriptor = self.far[-1].fileno()
        self.unfinished.happened([accepted(descriptor, self.endpoint)])
        return descriptor

    def came(self, descriptor: int, octets: int, answered: int = 0, segments: int = 0) -> None:
        """So much has come until now, and so much of ours was acknowledged."""
        self.octets[descriptor] = Octets(octets, answered, segments)

    def look(self, times: int = 1) -> None:
        self.clock.pump([LOOK_SECONDS] * times)

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
    world.came(descriptor, LARGEST)
    world.look()
    assert world.reads == 1
    world.came(descriptor, LARGEST + 1)
    world.look(3)
    assert (world.told, world.reads) == ([], 4)
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
    assert world.told == []
    # Then it begins a message without an end.
    world.came(descriptor, 1000 * LARGEST)
    world.look()
    world.unfinished.read_to_end()
    world.look()
    assert world.told == [("127.0.0.1", 10 * LARGEST)]


def test_a_slow_sender_of_a_large_content_is_left_alone(world: World) -> None:
    """NB-02: an octet a look, up to the largest message."""
    descriptor = world.join()
    for octets in range(0, LARGEST + 1, 100):
        world.came(descriptor, octets)
        world.unfinished.read_to_end()
        world.look()
    assert world.told == []


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
    world.waiting[descriptor] = None
    world.look(2)
    assert len(world.told) == 0
    for _ in range(2):
        world.unfinished.read_to_end()
        world.look()
    assert len(world.told) == 1


def test_heartbeats_of_months_cut_nobody_off(world: World) -> None:
    """NB-02: one of ZMTP's is 9 octets and answered with 7, 42 and 40 with CURVE."""
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
    """NB-02: nobody hides an endless message behind octets that we send him."""
    silent, quick = world.join(), world.join()
    seconds = 10 * LARGEST / HEARTBEAT_RATE
    world.came(silent, 5 * LARGEST)
    world.came(quick, 20 * LARGEST, 20 * LARGEST, 10)
    world.clock.advance(seconds)
    world.unfinished.read_to_end()
    world.look(2)
    assert sorted(told[1] // LARGEST for told in world.told) == [5, 9]


def test_while_reading_is_paused_whole_messages_may_wait(world: World) -> None:
    """NB-02: as many as libzmq holds for a peer; above that nobody is honest."""
    descriptor = world.join()
    held = world.unfinished.held
    assert held >= MESSAGES * 2 * FRAME
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
    world.came(endless, 2 * LARGEST)
    world.look()
    world.unfinished.happened([disconnected(gone)])
    for _ in range(ACTIVATION_READS + 6):
        world.read(b"busy")
        assert world.told == []
    world.look()
    assert world.told == []
    world.read(b"busy")
    world.look()
    assert len(world.told) == 1


def test_who_has_a_descriptor_next_begins_anew(world: World) -> None:
    """NB-02, MT-30"""
    descriptor = world.join()
    world.unfinished.named(b"a", descriptor)
    world.came(descriptor, 2 * LARGEST)
    world.look()
    world.unfinished.ended(b"a")
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


def test_what_the_system_does_not_tell_cuts_nobody_off(world: World, tmp_path: Path) -> None:
    """NB-02: connections of ipc, other systems, and descriptors that are gone or another's."""
    descriptor = world.join()
    world.octets[descriptor] = None
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


def test_looks_go_round_and_end_with_the_last_connection(world: World) -> None:
    """NB-02: where nothing comes, fewer connections are looked at."""
    every = [world.join() for _ in range(LOOKS_PER_TURN + 10)]
    world.look()
    assert world.looked == every[:LOOKS_PER_TURN]
    world.unfinished.happened([disconnected(every.pop())])
    world.look()
    assert world.looked[LOOKS_PER_TURN:] == every[LOOKS_PER_TURN:]
    world.came(every[0], 10)
    world.looked.clear()
    for looks in (IDLE_LOOKS_PER_TURN, LOOKS_PER_TURN):
        world.look()
        assert world.looked == every[:looks]
        world.look(len(every) // looks)
        assert world.looked == every
        world.looked.clear()
    world.unfinished.happened([disconnected(descriptor) for descriptor in every])
    assert world.clock.getDelayedCalls() == []


LIMIT = 1_000_000
"""Half of what all may hold."""


@pytest.fixture
def worlds() -> Iterator[tuple[World, World]]:
    """Two ROUTERs of one process."""
    clock, budget = Clock(), OctetBudget()
    budget.held.bound(2 * LIMIT)
    every = EveryUnfinished.of(budget, clock)
    assert EveryUnfinished.of(budget, clock) is every
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
    each = 100_000 if flow else 100_000 // FRAME_TIMES
    every = [joined(worlds[number % 2], number, flow=flow) for number in range(10)]
    worlds[0].look()
    for number, descriptor in enumerate(every):
        worlds[number % 2].came(descriptor, each)
    for _ in range(3):
        for world in worlds:
            world.unfinished.read_to_end()
        worlds[0].look()
    assert not any(world.told or world.made_room for world in worlds)
    worlds[1].came(every[5], each + 10_000)
    worlds[1].unfinished.read_to_end()
    worlds[0].look()
    assert len(worlds[1].made_room) == 1
    assert not any((*worlds[0].made_room, *worlds[0].told, *worlds[1].told))
    assert closed(worlds[1].near[2])


def test_who_has_no_flow_is_cut_off_first__NB_02(worlds: tuple[World, World]) -> None:
    """Nothing that it sends is large, so its octets weigh what the smallest frames of so many take;
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
    assert not world.made_room
    world.octets[hostile] = Octets(1000, 0, 0, 5)
    world.look()
    assert world.made_room == [("127.0.0.1", FRAME_TIMES * 1000 + 5 * BUFFER_OCTETS)]
    assert list(world.unfinished.descriptors) == good


def test_what_may_be_whole_messages_of_a_flow_weighs_nothing__NB_02(
    worlds: tuple[World, World],
) -> None:
    """While the ROUTER is not read, because the sink is full, nobody is cut off for what waits."""
    world, _ = worlds
    descriptor = joined(world, 1, flow=True)
    world.look()
    world.came(descriptor, world.unfinished.held)
    world.look(10)
    assert not world.made_room
    world.read(b"1")
    world.unfinished.read_to_end()
    world.look(3)
    assert not (world.made_room or world.told)


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
    assert len(world.made_room) == 1


@needs_linux
def test_the_system_says_what_came() -> None:
    """NB-02"""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far = listener.accept()[0]
        with near, far:
            before = octets_of(far.fileno())
            assert before is not None
            near.sendall(bytes(1000))
            assert far.recv(1, socket.MSG_PEEK) == b"\0"
            far.sendall(bytes(70))
            assert near.recv(1, socket.MSG_PEEK) == b"\0"
            assert waiting_in(far.fileno()) == 1000
            after = octets_of(far.fileno())
            assert after is not None
            assert after.received - before.received == 1000
            assert after.segments - before.segments == 1
            # It is acknowledged when the other end says something, at the latest.
            near.sendall(b"x")
            assert len(far.recv(1001, socket.MSG_WAITALL)) == 1001
            last = octets_of(far.fileno())
            assert last is not None
            assert last.acknowledged - before.acknowledged == 70
            assert waiting_in(far.fileno()) == 0
            assert far.fileno() >= 0
    with socket.socket(socket.AF_UNIX) as other:
        assert octets_of(other.fileno()) is None
    assert octets_of(99_999) is None
    assert waiting_in(99_999) is None


SMALL = 10_000
LIMITS: dict[str, object] = {"content-octets": SMALL, "json-octets": 1000, "liveness": 20}
"""With these a connection is suspected from 86 KB on, so that honest ones pass that often."""


def counting_looks(case: MtlCase) -> list[int]:
    """Descriptors that are looked at from now on."""
    looked: list[int] = []
    look = unfinished.Unfinished.look_at

    def look_at(self: Unfinished, descriptor: int) -> None:
        looked.append(descriptor)
        look(self, descriptor)

    case.patch(unfinished.Unfinished, "look_at", look_at)
    return looked


@needs_linux
class Honest(MtlCase):
    """All that honest clients do, on real sockets."""

    timeout = 30

    async def serves(
        self, *, keys: CurveClient | None = None, connections: int = 2, **options: Any
    ) -> None:
        """A client writes far more than may come of one message, with looks all the time."""
        sink = HeldSink()
        looked = counting_looks(self)
        factory = self.server(sink, limits=LIMITS, **options)
        client = await self.ready(factory, "ingest", curve=keys)
        writer = await client.writer(["a"])
        sent = 0
        while len(looked) < 20 or sent < 2000:
            await writer.sendMany("a", [bytes(SMALL - 100)] * 20 + [b"x"] * 500)
            sent += 520
        self.assertEqual(len(sink.bodies), sent)
        self.assertEqual(factory.counters["faults"], 0)
        self.assertEqual(factory.snapshot()["connections"], connections)

    @run
    async def test_who_writes_at_full_rate_on_two_sockets_is_served(self) -> None:
        """NB-02"""
        await self.serves()

    @run
    async def test_who_writes_at_full_rate_on_one_socket_is_served(self) -> None:
        """NB-02"""
        await self.serves(data=None)

    @run
    async def test_who_writes_behind_curve_is_served(self) -> None:
        """NB-02, MT-31: where each frame is longer."""
        public, secret = zmq.curve_keypair()
        mine, hidden = zmq.curve_keypair()
        server = CurveServer(secret, {mine: "robot"})
        await self.serves(keys=CurveClient(public, mine, hidden), curve=server)

    @run
    async def test_who_writes_through_ipc_is_served_and_not_watched(self) -> None:
        """NB-02"""
        looks: list[int] = []
        self.patch(unfinished.EveryUnfinished, "_look", lambda self: looks.append(1))
        sink = HeldSink()
        path = Path(tempfile.mkdtemp(), "socket")
        self.addCleanup(shutil.rmtree, path.parent)
        factory = self.server(sink, listen=[f"ipc://{path}"], data=None, limits=LIMITS)
        client = await self.ready(factory, "ingest")
        writer = await client.writer(["a"])
        await writer.sendMany("a", [bytes(SMALL - 100)] * 100)
        self.assertEqual(len(sink.bodies), 100)
        self.assertEqual((factory.counters["faults"], looks), (0, []))

    @run
    async def test_who_waits_while_the_disk_is_full_is_served_afterwards(self) -> None:
        """NB-02, MT-27: what it has sent lies in libzmq, and is far more than one message."""
        looked = counting_looks(self)
        sink = HeldSink(at_once=False)
        factory = self.server(sink, limits={**LIMITS, "unsafe-octets": SMALL})
        patient: dict[str, object] = {"window": 1000, "liveness": 100, "heartbeat": 50}
        client = await self.ready(factory, "ingest", limits=patient)
        writer = await client.writer(["a"])
        first = writer.sendMany("a", [bytes(SMALL - 100)] * 10)
        await until(lambda: factory._data._paused)
        before = len(looked)
        await until(lambda: len(looked) > before + 4)
        done = writer.sendMany("a", [bytes(SMALL - 100)] * 490)
        before = len(looked)
        await until(lambda: len(looked) > before + 20)
        sink.at_once = True
        while sink.held:
            sink.held.pop(0).callback(None)
        await first
        await done
        self.assertEqual(len(sink.bodies), 500)
        self.assertEqual(factory.counters["faults"], 0)
        self.assertEqual(factory.snapshot()["connections"], 2)

    async def beats(self, prepare: Callable[[Any], object], **options: Any) -> None:
        factory = self.server(HeldSink(), **options)
        with Plain(factory.addresses[0], prepare=prepare) as plain:
            dealer = plain._socket(zmq.DEALER)
            dealer.set(zmq.HEARTBEAT_IVL, 1)
            # By itself it would give up where the machine is busy for so long.
            dealer.set(zmq.HEARTBEAT_TIMEOUT, 60_000)
            dealer.connect(factory.addresses[1])
            watching = factory._data.unfinished
            await until(lambda: watching.descriptors)
            (descriptor,) = watching.descriptors
            await until(lambda: octets_of(descriptor).received > 2000)  # type: ignore[union-attr]
            begin = octets_of(descriptor)
            assert begin is not None
            far = begin.received + 4200
            await until(lambda: octets_of(descriptor).received > far)  # type: ignore[union-attr]
            # Those of the last moment are not acknowledged yet.
            most = octets_of(descriptor).received - begin.received  # type: ignore[union-attr]

            def heartbeats() -> int:
                now = octets_of(descriptor)
                assert now is not None
                told = now.acknowledged - begin.acknowledged
                return told + 2 * (now.segments - begin.segments)

            await until(lambda: heartbeats() >= most)
        self.assertEqual(factory.counters["faults"], 0)

    @run
    async def test_heartbeats_of_libzmq_are_what_is_taken_for_heartbeats(self) -> None:
        """NB-02: what is acknowledged of their answers weighs as much as they do."""
        await self.beats(lambda socket: None)

    @run
    async def test_heartbeats_behind_curve_are_what_is_taken_for_heartbeats(self) -> None:
        """NB-02, MT-31"""
        public, secret = zmq.curve_keypair()
        mine, hidden = zmq.curve_keypair()

        def prepare(socket: Any) -> None:
            socket.curve_serverkey, socket.curve_publickey = public, mine
            socket.curve_secretkey = hidden

        await self.beats(prepare, curve=CurveServer(secret, {mine: "robot"}))


@needs_linux
class Hostile(MtlCase):
    async def cut_off(self, number: int, limit: str, **options: Any) -> None:
        """Who sends a message without an end to an address is cut off, in a line; nobody else."""
        sink = HeldSink()
        factory = self.server(sink, limits=LIMITS, **options)
        client = await self.ready(factory, "ingest")
        writer = await client.writer(["a"])
        port = int(factory.addresses[number].rpartition(":")[2])
        with capturedLogs() as logged:
            for octets in (0, 1, 900):
                endless = deferToThread(until_cut_off, "127.0.0.1", port, octets)
                while not endless.called:
                    await writer.send("a", b"x")
                self.assertGreater(await endless, 64_000)
            # In tiny frames more than all may have comes sooner than anybody looks.
            met = [f"limit:{name}" for name in (limit, "process-held-octets")]
            await until(lambda: factory.counters["faults"] >= 3)
            self.assertEqual(factory.counters["fault:endless-message"], 3)
            self.assertEqual(sum(factory.counters[name] for name in met), 3)
        said = [formatEvent(event) for event in logged]
        lines = [line for line in said if "127.0.0.1: cut off: " in line]
        self.assertEqual(len(lines), 3)
        ends = f"({limit} is {LIMITS[limit]})", f"(process-held-octets is {256 << 20})"
        self.assertTrue(all(line.endswith(ends) for line in lines), lines)
        await until(lambda: factory.snapshot()["connections"] == 2)
        await writer.send("a", b"y")

    @run
    async def test_on_the_control_socket(self) -> None:
        """NB-02"""
        await self.cut_off(0, "json-octets")

    @run
    async def test_on_the_data_socket(self) -> None:
        """NB-02"""
        await self.cut_off(1, "content-octets")

    @run
    async def test_on_one_socket_for_both(self) -> None:
        """NB-02"""
        await self.cut_off(0, "content-octets", data=None)


@needs_linux
@needs_proc
def test_clients_of_other_protocols_are_served_beside_messages_without_an_end(
    launch: Launcher, tmp_path: Path
) -> None:
    """NB-02: a good neighbour is never cut off, its messages are acknowledged and stored."""
    five = Five(launch, options=["--limit", f"content-octets={1 << 20}"])
    over = threading.Event()
    cut: list[int] = []

    def hostile(octets: int) -> None:
        while not over.is_set():
            sent = until_cut_off("127.0.0.1", five.ports["mtl"], octets, lambda: not over.is_set())
            cut.append(sent)

    threads = [
        threading.Thread(target=hostile, args=[octets]) for octets in (1, 1, 1, 65_536, 65_536)
    ]
    with contextlib.closing(GoodClients(tmp_path)) as clients:
        for name in ("lumberjack", "mtl"):
            clients.stand(name, five.ports[name])
        connections = clients.connections("lumberjack")
        before = most_resident(five.server)
        for thread in threads:
            thread.start()
        try:
            while len(cut) < 20:
                for name in ("lumberjack", "mtl"):
                    clients.send(name, 5)
        finally:
            over.set()
            for thread in threads:
                thread.join()
        assert clients.connections("lumberjack") == connections
        told = clients.told()
        assert five.lost(told) == set()
        assert {b"lumberjack", b"mtl"} <= {body.split(b'"')[3] for body in told}
    assert most_resident(five.server) - before < RISE_MOST
    assert "Traceback" not in five.server.output


@pytest.mark.slow
@needs_linux
@needs_proc
@pytest.mark.parametrize(
    ("count", "octets", "flows"), [(10, 1, False), (100, 1, False), (100, 60_000, True)]
)
def test_endless_peers_take_no_more_than_twice_what_the_process_may_hold(
    launch: Launcher, tmp_path: Path, count: int, octets: int, flows: bool
) -> None:
    """NB-02: beside good neighbours; where a message may have 21 times its octets in memory."""
    five = Five(launch, options=["--limit", f"process-held-octets={HELD}"])
    port = five.ports["mtl"]
    with contextlib.closing(GoodClients(tmp_path)) as clients, contextlib.ExitStack() as stack:
        for name in ("lumberjack", "mtl"):
            clients.stand(name, five.ports[name])
        connections = [clients.connections(name) for name in ("lumberjack", "mtl")]
        come = stack.enter_context(contextlib.closing(Leased(port))) if flows else None
        endless = Endless(come or partial(join, "127.0.0.1", port), count, octets)
        stack.enter_context(contextlib.closing(endless))
        while endless.cut < 2 * count + 100:
            for name in ("lumberjack", "mtl"):
                clients.send(name, 5)
        assert [clients.connections(name) for name in ("lumberjack", "mtl")] == connections
        assert five.lost(clients.told()) == set()
        assert most_resident(five.server) <= 2 * HELD + (256 << 20)
    assert "process-held-octets is" in five.server.output
    assert "Traceback" not in five.server.output


HELD = 128 << 20

RISE_MOST = 1 << 30
"""Without an end to what is held it is the machine's memory."""
