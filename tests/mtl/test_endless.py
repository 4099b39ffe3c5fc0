"""What hostile peers make libzmq hold, on real sockets: they are cut off, and nobody else is."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from twisted.internet.threads import deferToThread
from twisted.logger import capturedLogs, formatEvent

from tests.chaos.clients import GoodClients
from tests.chaos.gateways import Five, most_resident, needs_proc
from tests.mtl.cases import (
    GREETING,
    HeldSink,
    MtlCase,
    Recorded,
    curve_keys,
    frame,
    keyed,
    needs_linux,
    run,
    until,
    until_cut_off,
)
from tests.mtl.plain import PATIENCE_MS, Plain
from tests.tools.processes import Launcher
from twisted_msgproto.core.errors import ConnectionClosed
from twisted_msgproto.mtl import MtlClientFactory, zeromq
from twisted_msgproto.mtl.zeromq import unfinished

SMALL = 10_000
LIMITS: dict[str, object] = {"content-bytes": SMALL, "control-bytes": 1000, "liveness": 20}
"""With these a connection is suspected from 86 KB on, so that honest ones pass that often."""


def counting_looks(case: MtlCase) -> list[int]:
    """Descriptors that are looked at from now on."""
    looked: list[int] = []
    look = unfinished.Unfinished.look_at

    def look_at(self: unfinished.Unfinished, descriptor: int) -> None:
        looked.append(descriptor)
        look(self, descriptor)

    case.patch(unfinished.Unfinished, "look_at", look_at)
    return looked


@needs_linux
class Honest(MtlCase):
    """All that honest clients do, on real sockets."""

    timeout = 30

    async def serves(
        self, *, keys: zeromq.CurveClient | None = None, connections: int = 2, **options: Any
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
    async def test_who_writes_at_full_rate_on_two_sockets_is_served__NB_02(self) -> None:
        await self.serves()

    @run
    async def test_who_writes_behind_curve_is_served(self) -> None:
        """NB-02, MT-31: where each frame is longer."""
        curve, keys = curve_keys()
        await self.serves(keys=keys, curve=curve)

    @run
    async def test_heartbeats_of_libzmq_are_what_is_taken_for_heartbeats(self) -> None:
        """NB-02, MT-31: what is acknowledged of their answers weighs as much as they do."""
        recorded = Recorded()
        curve, keys = curve_keys()
        factory = self.server(HeldSink(), sockets=recorded, curve=curve)
        with Plain(factory.addresses[0], prepare=keyed(keys)) as plain:
            _beats = plain.dealer(factory.addresses[1], heartbeats=1)
            watching = recorded.routers[1].unfinished
            await until(lambda: watching.descriptors)
            (descriptor,) = watching.descriptors
            await until(lambda: unfinished.bytes_of(descriptor).received > 2000)  # type: ignore[union-attr]
            begin = unfinished.bytes_of(descriptor)
            assert begin is not None
            far = begin.received + 4200
            await until(lambda: unfinished.bytes_of(descriptor).received > far)  # type: ignore[union-attr]
            # Those of the last moment are not acknowledged yet.
            most = unfinished.bytes_of(descriptor).received - begin.received  # type: ignore[union-attr]

            def heartbeats() -> int:
                now = unfinished.bytes_of(descriptor)
                assert now is not None
                told = now.acknowledged - begin.acknowledged
                return told + 2 * (now.segments - begin.segments)

            await until(lambda: heartbeats() >= most)
        self.assertEqual(factory.counters["faults"], 0)


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
            met = [f"limit:{name}" for name in (limit, "process-held-bytes")]
            await until(lambda: factory.counters["faults"] >= 3)
            self.assertEqual(factory.counters["fault:endless-message"], 3)
            self.assertEqual(sum(factory.counters[name] for name in met), 3)
        said = [formatEvent(event) for event in logged]
        lines = [line for line in said if "127.0.0.1: cut off: " in line]
        self.assertEqual(len(lines), 3)
        ends = f"({limit} is {LIMITS[limit]})", f"(process-held-bytes is {256 << 20})"
        self.assertTrue(all(line.endswith(ends) for line in lines), lines)
        await until(lambda: factory.snapshot()["connections"] == 2)
        await writer.send("a", b"y")

    @run
    async def test_on_the_control_socket__NB_02(self) -> None:
        await self.cut_off(0, "control-bytes")

    @run
    async def test_on_the_data_socket__NB_02(self) -> None:
        await self.cut_off(1, "content-bytes")

    @run
    async def test_on_one_socket_for_both__NB_02(self) -> None:
        await self.cut_off(0, "content-bytes", data=None)


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
            told: Any = unfinished.bytes_of(descriptor)
            return int(told.acknowledged)

        more = unfinished.FRAME_BYTES + (unfinished.CURVE_BYTES if curve else 0)
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


MIB = 1 << 20
DEAF, CONTENTS, UNREAD_HELD = 8, 60, 32 * MIB


@needs_linux
@needs_proc
def test_deaf_readers_cannot_fill_a_gateway_and_others_are_served__NB_02(
    launch: Launcher, tmp_path: Path
) -> None:
    """NB-02, MT-24: one writer, and readers that take nothing: without a bound a GiB is held."""
    limits = [f"process-held-bytes={UNREAD_HELD}", f"content-bytes={2 * MIB}", "liveness=600"]
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
    assert rise < UNREAD_RISE_MOST
    assert "bytes that it has not read" in five.server.output
    assert "Traceback" not in five.server.output


UNREAD_RISE_MOST = 256 * MIB
"""What is held, what is free again and not returned yet, and what a turn has in its hands."""


READY = b"\x05READY" + b"\x0bSocket-Type" + struct.pack(">I", 6) + b"ROUTER"
HELLO = GREETING + b"\x04" + bytes([len(READY)]) + READY

SENT_BYTES_MAX = 1 << 30
"""A client that takes all this has no bound."""


class EndlessServer:
    """Sends every client one message that never ends.

    Attributes:
        sent: bytes to the client that took most of them.
        ended: clients that have ended the connection.
    """

    def __init__(self) -> None:
        self.sent = self.ended = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                connection.settimeout(PATIENCE_MS / 1000)
                self._send_to(connection)

    def _send_to(self, connection: socket.socket) -> None:
        octets, sent = frame(60_000), 0
        with connection:
            try:
                connection.sendall(HELLO)
                heard = b""
                while b"DEALER" not in heard and (more := connection.recv(1000)):
                    heard += more
                while sent < SENT_BYTES_MAX:
                    connection.sendall(octets)
                    sent += len(octets)
                    self.sent = max(self.sent, sent)
            except OSError:
                self.ended += 1

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(PATIENCE_MS / 1000)


class Servers(MtlCase):
    @needs_linux
    @run
    async def test_a_server_whose_message_never_ends_is_cut_off__NB_02(self) -> None:
        """Libzmq kept all of it: a gigabyte until the client lost its patience, and again."""
        server = EndlessServer()
        self.addCleanup(server.close)
        limits = {"content-bytes": 100_000, "request-timeout": 50.0, "request-tries": 1}
        client = MtlClientFactory(limits=limits).buildClient(server.endpoint)
        opened = client.open("host")
        await until(lambda: server.ended)
        self.assertEqual(client.link.wire.trouble, "it sends a message that does not end")
        client.abort()
        self.failureResultOf(opened, ConnectionClosed)
        self.assertLess(server.sent, SENT_BYTES_MAX)
