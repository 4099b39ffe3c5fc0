"""What hostile peers make libzmq hold, on real sockets: they are cut off, and nobody else is."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from pathlib import Path
from typing import Any

import zmq
from twisted.internet.threads import deferToThread
from twisted.logger import capturedLogs, formatEvent

from tests.chaos.clients import GoodClients
from tests.chaos.gateways import Five, most_resident, needs_proc
from tests.mtl.cases import (
    GREETING,
    HeldSink,
    MtlCase,
    curve_keys,
    frame,
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
    async def test_who_is_written_to_at_full_rate_cuts_nobody_off__NB_02(self) -> None:
        looked, got = counting_looks(self), list[Any]()
        factory = self.server(HeldSink(), limits=LIMITS)
        client = await self.ready(factory, "test", limits=LIMITS)
        reader = await client.reader(["resource"], "none", got.append)
        await reader.summon("resource")
        writer = await client.writer(["resource"], "none")
        while len(looked) < 40 or len(got) < 400:
            got.clear()
            for _ in range(20):
                await writer.sendMany("resource", [bytes(SMALL - 100)] * 20)
            await until(lambda: len(got) == 400)
        self.assertEqual(factory.counters["flows_total"], 2)


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
