"""Who sends a message that never ends is cut off, and nobody else is (NB-02)."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
import threading
from collections.abc import Callable
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
from tests.mtl.endless import HELLO, frame, until_cut_off
from tests.mtl.plain import Plain
from tests.mtl.test_door import accepted, closed, disconnected
from tests.tools.processes import Launcher
from twisted_msgproto.mtl.zeromq import unfinished
from twisted_msgproto.mtl.zeromq.bounded import Bounds
from twisted_msgproto.mtl.zeromq.curve import CurveClient, CurveServer
from twisted_msgproto.mtl.zeromq.unfinished import (
    ACTIVATION_READS,
    HEARTBEAT_RATE,
    LOOK_SECONDS,
    LOOKS_PER_TURN,
    Octets,
    Unfinished,
    octets_of,
    waiting_in,
)

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="TCP_INFO tells what came: Linux")

FRAME = 100_000
LARGEST = 2 * FRAME + 65_536
MESSAGES = 32


class World:
    """Real connections under a clock; what the system says of them is set by the test."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.told: list[tuple[str, int]] = []
        self.reads = 0
        self.octets: dict[int, Octets | None] = {}
        self.waiting: dict[int, int | None] = {}
        self.looked: list[int] = []
        self.unfinished = Unfinished(
            self.clock,
            Bounds(FRAME, MESSAGES),
            lambda host, octets: self.told.append((host, octets)),
            self._read_soon,
            self._octets,
            self.waiting.get,
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
    assert world.reads == 0
    world.came(descriptor, LARGEST + 1)
    world.look(3)
    assert (world.told, world.reads) == ([], 3)
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
    assert (world.told, world.reads) == ([], 0)


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
    # Nothing is kept of who is not watched.
    assert world.unfinished._heard == set()


def test_looks_go_round_and_end_with_the_last_connection(world: World) -> None:
    """NB-02: a turn looks at some, and at the same time at who is suspected."""
    every = [world.join() for _ in range(LOOKS_PER_TURN + 10)]
    world.look()
    assert world.looked == every[:LOOKS_PER_TURN]
    world.came(every[-1], 2 * LARGEST)
    world.unfinished.happened([disconnected(every[-2])])
    world.look()
    assert world.looked[LOOKS_PER_TURN:] == [*every[LOOKS_PER_TURN:-2], every[-1]]
    world.looked.clear()
    world.look(2)
    assert world.looked[:2] == [every[-1], every[-1]]
    assert world.looked[2:] == every[: LOOKS_PER_TURN - 0]
    world.unfinished.happened([disconnected(descriptor) for descriptor in every])
    world.look()
    assert world.clock.getDelayedCalls() == []


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
    look = unfinished.Unfinished._look_at

    def look_at(self: Unfinished, descriptor: int, seen: Any) -> None:
        looked.append(descriptor)
        look(self, descriptor, seen)

    case.patch(unfinished.Unfinished, "_look_at", look_at)
    return looked


@needs_linux
class Honest(MtlCase):
    """All that honest clients do, on real sockets."""

    async def serves(self, limits: dict[str, object] | None = None, **options: Any) -> None:
        """A client writes far more than may come of one message, with looks all the time."""
        sink = HeldSink()
        looked = counting_looks(self)
        curve = options.pop("keys", None)
        factory = self.server(sink, limits={**LIMITS, **(limits or {})}, **options)
        client = await self.ready(factory, "ingest", curve=curve)
        writer = await client.writer(["a"])
        sent = 0
        while len(looked) < 30:
            await writer.sendMany("a", [bytes(SMALL - 100)] * 20 + [b"x"] * 500)
            sent += 520
        self.assertEqual(len(sink.bodies), sent)
        self.assertEqual(factory.counters["faults"], 0)
        self.assertEqual(factory.snapshot()["connections"], 1 if options.get("data", 0) is None else 2)

    @run
    async def test_who_writes_at_full_rate_on_two_sockets_is_served(self) -> None:
        """NB-02"""
        await self.serves()

    @run
    async def test_who_writes_at_full_rate_on_one_socket_is_served(self) -> None:
        """NB-02"""
        await self.serves(data=None)
