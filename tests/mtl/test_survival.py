"""Flows that survive their server, and what a client says when they cannot."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import zmq
from twisted.logger import capturedLogs, formatEvent

from tests.mtl.cases import (
    IMPATIENT,
    LOOPBACK,
    HeldSink,
    MtlCase,
    Recorded,
    curve_keys,
    later,
    needs_linux,
    run,
    taking,
    until,
)
from twisted_msgproto.core.errors import TimedOut

LARGE = b"x" * 1_600_000


@contextlib.contextmanager
def slow_road(*ports: int) -> Iterator[str]:
    """Carry what comes to these ports of 127.0.0.2 to those of 127.0.0.1, 8 KiB in 10 ms."""
    ends: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def start(work: Any, *arguments: Any) -> None:
        threads.append(threading.Thread(target=work, args=arguments))
        threads[-1].start()

    def carry(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while some := source.recv(8 << 10):
                target.sendall(some)
                time.sleep(0.01)
            target.shutdown(socket.SHUT_WR)

    def accept(door: socket.socket, port: int) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = door.accept()
                ends.append(near)
                far = socket.socket()
                ends.append(far)
                far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 << 10)
                far.connect(("127.0.0.1", port))
                start(carry, near, far)
                start(carry, far, near)

    try:
        for port in ports:
            door = socket.socket()
            ends.append(door)
            door.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 << 10)  # of all it accepts
            door.bind(("127.0.0.2", port))
            door.listen()
            start(accept, door, port)
        yield f"tcp://127.0.0.2:{ports[0]}"
    finally:
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        for thread in threads:
            thread.join()


@needs_linux
class SlowRoads(MtlCase):
    """A large content on a slow line is no silence of either side: RD-43, HO-04."""

    @run
    async def test_a_large_content_has_its_time_both_ways__RD_43(self) -> None:
        factory = self.server(HeldSink())
        ports = [int(address.rpartition(":")[2]) for address in factory.addresses]
        with slow_road(*ports) as address:  # which takes two seconds for it, each way
            client = self.client(address, limits=IMPATIENT | {"liveness": 1.0})
            await client.open("host")
            await client.profile("queue")
            got: list[bytes] = []
            reader = await client.reader(["a"], "full", taking(got, lambda: reader))
            writer = await client.writer(["a"])
            await writer.send("a", LARGE)
            await reader.summon("a")
            await until(lambda: got)
            self.assertEqual(got, [LARGE])
            self.assertEqual(factory.counters["flows_silent"], 0)
            await client.close()


class Survival(MtlCase):
    @run
    async def test_flows_survive_a_server_which_is_started_again(self) -> None:
        """MT-21, MT-28: contents arrive at least once, the reader summons again."""
        sink = HeldSink()
        first = self.server(sink)
        control, data = first.addresses
        client = await self.ready(first, "queue", limits=IMPATIENT)
        got: list[bytes] = []
        reader = await client.reader(["a"], "full", taking(got, lambda: reader))
        await reader.summon("a")
        writer = await client.writer(["a"])
        await writer.send("a", b"before")
        await until(lambda: got == [b"before"])
        await first.drain()
        sent = writer.send("a", b"between")
        await until(lambda: writer.snapshot()["state"] == "LOST")
        second = self.server(sink, listen=[control], data=data)
        await sent
        await writer.send("a", b"after")
        await until(lambda: {b"between", b"after"} <= set(got))
        # Each was renewed once. A busy machine may take one that stands for silent after 0.4 s:
        # then its predecessor is here until the end of that connection was told.
        await until(lambda: second.machine.snapshot()["readers"] == 1)

    async def deaf_reader(self, factory: Any) -> Any:
        """A socket to which the contents of the profile ``test`` go, and which reads none."""
        context = zmq.Context()
        self.addCleanup(context.destroy, 0)
        req, deaf = context.socket(zmq.REQ), context.socket(zmq.DEALER)
        for one in (req, deaf):
            self.addCleanup(one.close, 0)  # and it is kept until then
        req.connect(factory.addresses[0])

        async def ask(command: str, body: object) -> Any:
            req.send_multipart([f"Connection.{command}".encode(), json.dumps(body).encode()])
            await until(lambda: req.poll(0))
            return json.loads(req.recv_multipart()[1])

        mtl = {"name": "MTL", "version": 1}
        await ask("Open", {"protocol": mtl, "virtual-host": "host"})
        await ask("Profile", {"profile": "test"})
        lease = (await ask("Reader", {"resources": [], "confirm": "none"}))["lease"].encode()
        deaf.set(zmq.RCVHWM, 1)
        deaf.set(zmq.RCVBUF, 4096)
        deaf.connect(factory.addresses[1])
        deaf.send_multipart([b"\1" + bytes(8) + bytes([len(lease)]) + lease, b""])
        deaf.send_multipart([b"\3" + bytes(8) + b"\x08resource", b""])
        await until(lambda: factory.counters["responses:200"] == 2)
        return deaf

    @run
    async def test_a_reader_which_takes_nothing_loses_its_place(self) -> None:
        """MT-27, MT-29: what waits for it is bounded in bytes and in time."""
        recorded = Recorded()
        limits: dict[str, object] = {"unread-seconds": 5.0, "liveness": 1000}
        factory = self.server(limits=limits, sockets=recorded)
        await self.deaf_reader(factory)
        client = await self.ready(factory, "test")
        writer = await client.writer(["resource"], "none")
        for _ in range(5):
            await writer.send("resource", bytes(1 << 20))
        await until(lambda: factory.shared.held.held > 2 << 20)  # without what a kernel holds
        body, most = bytes(200_000), 0
        while factory.snapshot()["readers"]:
            await writer.send("resource", body)
            await later(0.001)
            most = max(most, recorded.routers[1].unreadBytes)
        self.assertTrue(1 << 20 < most < 9 << 20, most)
        self.assertEqual(factory.counters["peers_lost"], 1)
        self.assertGreater(factory.snapshot()["profiles"]["test"]["missed"], 0)
        await until(lambda: recorded.routers[1].unread == 0)  # a Ping may have come between

    @run
    async def test_a_reader_loses_its_place_where_nothing_else_happens(self) -> None:
        """MT-27: nobody writes any more, so nothing but the time wakes the server."""
        still: dict[str, object] = {"heartbeat": 400.0, "liveness": 1000.0}
        held = 40 << 20  # with half of it libzmq takes no more for this peer
        factory = self.server(limits={"unread-seconds": 0.5, "process-held-bytes": held, **still})
        await self.deaf_reader(factory)
        writer = await (await self.ready(factory, "test", limits=still)).writer(
            ["resource"], "none"
        )
        for _ in range(27):
            await writer.send("resource", bytes(1 << 20))
        await until(lambda: factory.snapshot()["readers"] == 0)
        self.assertEqual(factory.counters["peers_lost"], 1)


class Limited(MtlCase):
    @run
    async def test_what_a_reader_cannot_take_is_a_dead_letter_soon_and_a_line__RD_44(self) -> None:
        """MT-26, MT-29: it has a smaller limit than the server, and what is behind comes."""
        factory = self.server(HeldSink())
        writing = await self.ready(factory, "queue")
        slow = {"content-bytes": 1000, "heartbeat": 30.0, "liveness": 90.0}
        reading = await self.ready(factory, "queue", limits=slow)
        writer, reader = await writing.writer(["a"]), await reading.reader(["a"])
        with capturedLogs() as lines:
            await reader.summon("a")
            await writer.sendMany("a", [bytes(1001), b"behind"])
            content = await reader.__anext__()
            reader.confirm(content.sequence)
        self.assertEqual(content.body, b"behind")
        figures: Any = factory.snapshot()["profiles"]
        self.assertEqual(figures["queue"]["broker_dead_letters"], 1)
        texts = [formatEvent(line) or "" for line in lines]
        self.assertTrue(any("above our content-bytes, 1000" in text for text in texts), texts)

    @run
    async def test_a_content_of_just_the_limit_is_taken_with_keys_too__RD_44(self) -> None:
        """MT-29, MT-31: CURVE needs bytes of its own in each frame, both ways."""
        curve, keys = curve_keys()
        for data in (LOOPBACK, None):
            sink = HeldSink()
            factory = self.server(sink, curve=curve, limits={"content-bytes": 70_000}, data=data)
            client = await self.ready(
                factory, "queue", curve=keys, limits={"content-bytes": 70_000}
            )
            writer, reader = await client.writer(["a"]), await client.reader(["a"])
            await writer.send("a", bytes(70_000))
            self.assertEqual(sink.batches[0].client_id, "robot")
            await reader.summon("a")
            self.assertEqual((await reader.__anext__()).body, bytes(70_000))

    @run
    async def test_a_data_port_which_cannot_be_reached_fails_the_verb(self) -> None:
        """HO-23: with what libzmq knows of it."""
        factory = self.server()
        with zmq.Context() as context, context.socket(zmq.DEALER) as nobody:
            port = nobody.bind_to_random_port("tcp://127.0.0.1")
        factory.machine.data_port = port
        client = await self.ready(factory, "ingest", limits={"request-timeout": 0.1})
        failed = await self.assertFailure(client.writer(["a"]), TimedOut)
        self.assertRegex(str(failed), rf"data port {port} does not answer: no connection")
        self.assertEqual(client.flows, {})

    @run
    async def test_a_server_which_is_not_there_is_told_from_one_which_is_silent(self) -> None:
        """HO-23"""
        impatient: dict[str, object] = {"request-timeout": 1.0, "request-tries": 1}
        with zmq.Context() as context, context.socket(zmq.DEALER) as silent:
            port = silent.bind_to_random_port("tcp://127.0.0.1")
            address = f"tcp://127.0.0.1:{port}"
            failed = await self.assertFailure(
                self.client(address, limits=impatient).open("host"), TimedOut
            )
            self.assertIn("it has accepted the connection, and says nothing", str(failed))
        failed = await self.assertFailure(
            self.client(address, limits=impatient).open("host"), TimedOut
        )
        self.assertIn("no connection can be made", str(failed))
