"""Flows which survive their server, clients and servers which notice that the other has gone."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import zmq
from twisted.internet.threads import deferToThread

from tests.mtl.cases import (
    IMPATIENT,
    HeldSink,
    MtlCase,
    Recorded,
    later,
    run,
    taking,
    until,
)
from tests.tools.processes import launching
from twisted_msgproto.core.errors import TimedOut
from twisted_msgproto.queue import QueueReader


class Survival(MtlCase):
    @run
    async def test_a_server_which_does_not_answer_fails_the_request(self) -> None:
        """MT-28: three sockets of 0.2 s here; a plain ROUTER sees what a plain REQ sends."""
        context = zmq.Context()
        router = context.socket(zmq.ROUTER)
        router.linger = 0
        self.addCleanup(context.destroy, 0)
        port = router.bind_to_random_port("tcp://127.0.0.1")
        client = self.client(f"tcp://127.0.0.1:{port}", limits=IMPATIENT)
        await self.assertFailure(client.open("host"), TimedOut)
        requests = []
        while router.poll(100):
            requests.append(router.recv_multipart())
        self.assertEqual(len(requests), 3)
        self.assertEqual(len({identity for identity, *_ in requests}), 3)
        for _, empty, command, body in requests:
            self.assertEqual((empty, command), (b"", b"Connection.Open"))
            self.assertEqual(json.loads(body)["virtual-host"], "host")

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

    @run
    async def test_flows_survive_a_server_which_stands_still(self) -> None:
        """MT-21, MT-28: its process is stopped; both sides take each other for dead, then go on."""
        path = Path(self.mktemp())
        path.mkdir(parents=True)
        with launching(path) as launch:
            server = launch(
                *("mtl", "-e", "tcp://127.0.0.1:*", "--queue", "queue"),
                *("--limit", "heartbeat=0.1", "--limit", "liveness=0.6"),
                module="twisted",
            )
            address = await deferToThread(server.address, "mtl")
            client = self.client(address, limits={**IMPATIENT, "window": 10})
            await client.open("host")
            await client.profile("ingest")
            writer = await client.writer(["a"])
            await writer.sendMany("a", [b"%d" % n for n in range(20)])
            server.signal(signal.SIGSTOP)
            sent = writer.sendMany("a", [b"%d" % n for n in range(20, 40)])
            await until(lambda: writer.machine.state.name == "LOST")
            self.assertNoResult(sent)
            server.signal(signal.SIGCONT)
            await sent
            await writer.send("a", b"40")
            await client.close()
        reader = QueueReader(path / "queue")
        rows = [r for batch in reader.read(0, reader.end()) for r in batch.to_pylist()]
        sessions: dict[str, list[int]] = {}
        for row in rows:
            sessions.setdefault(row["session"], []).append(int(row["body"]))
        self.assertEqual({n for numbers in sessions.values() for n in numbers}, set(range(41)))
        for numbers in sessions.values():
            for place, number in enumerate(numbers[1:]):
                self.assertLessEqual(number, max(numbers[: place + 1]) + 1)

    @run
    async def test_a_client_which_is_not_persistent_gives_up(self) -> None:
        """MT-28"""
        factory = self.server()
        client = await self.ready(factory, "ingest", limits=IMPATIENT, persistent=False)
        writer = await client.writer(["a"])
        lost: list[Exception] = []
        writer.lost = lost.append
        idle = await client.writer(["b"])
        await factory.drain()
        await self.assertFailure(writer.send("a", b"x"), TimedOut)
        await until(lambda: not client.flows)
        self.assertEqual([type(error) for error in lost], [TimedOut])
        self.assertIs(idle.machine.state.name, "CLOSED")

    @run
    async def test_a_peer_which_left_is_noticed_at_once(self) -> None:
        """MT-30, HO-24: neither its flows nor its session stay."""
        factory = self.server(limits={"heartbeat": 1000, "liveness": 2000})
        client = await self.ready(factory, "ingest")
        await client.writer(["a"])
        await client.close()
        await until(lambda: factory.snapshot()["sessions"] == 0)
        self.assertEqual(factory.snapshot()["writers"], 0)

    @run
    async def test_a_reader_which_takes_nothing_loses_its_place(self) -> None:
        """MT-27, MT-29: what waits for it is bounded in octets and in time."""
        recorded = Recorded()
        limits: dict[str, object] = {"unread-seconds": 1.0, "liveness": 1000}
        factory = self.server(limits=limits, sockets=recorded)
        context = zmq.Context()
        self.addCleanup(context.destroy, 0)
        req = context.socket(zmq.REQ)
        req.connect(factory.addresses[0])

        async def ask(command: str, body: object) -> Any:
            req.send_multipart([f"Connection.{command}".encode(), json.dumps(body).encode()])
            await until(lambda: req.poll(0))
            return json.loads(req.recv_multipart()[1])

        mtl = {"name": "MTL", "version": 1}
        await ask("Open", {"protocol": mtl, "virtual-host": "host"})
        await ask("Profile", {"profile": "test"})
        lease = (await ask("Reader", {"resources": [], "confirm": "none"}))["lease"].encode()
        deaf = context.socket(zmq.DEALER)
        deaf.set(zmq.RCVHWM, 1)
        deaf.set(zmq.RCVBUF, 4096)
        deaf.connect(factory.addresses[1])
        deaf.send_multipart([b"\1" + bytes(8) + bytes([len(lease)]) + lease, b""])
        deaf.send_multipart([b"\3" + bytes(8) + b"\x08resource", b""])
        await until(lambda: factory.counters["responses:200"] == 2)
        client = await self.ready(factory, "test")
        writer = await client.writer(["resource"], "none")
        body = bytes(200_000)
        while factory.snapshot()["readers"]:
            await writer.send("resource", body)
            await later(0.001)
        self.assertGreater(factory.snapshot()["profiles"]["test"]["missed"], 0)
        await until(lambda: recorded.routers[1].unread == 0)  # a Ping may have come between
