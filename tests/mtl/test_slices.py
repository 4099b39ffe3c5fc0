"""No input keeps the reactor for long (NB-07): what one turn reads is bounded in every way."""

from __future__ import annotations

from typing import Any

import pytest
import zmq

from tests.mtl.cases import HeldSink, MtlCase, Recorded, later, run, until
from tests.mtl.plain import Plain
from twisted_msgproto.mtl.wire import data, fields

pytestmark = pytest.mark.usefixtures("short_turns")


class Slices(MtlCase):
    def counting(self, connection: Any) -> list[int]:
        """Frames which each turn of this socket reads, from now on."""
        turns: list[int] = []
        read, count = connection.doRead, connection.socket.recv

        def recv(*arguments: Any) -> Any:
            taken = count(*arguments)
            turns[-1] += 1
            return taken

        def turn() -> None:
            turns.append(0)
            socket.recv = recv
            read()

        class Counted:
            """The socket, whose ``recv`` is counted."""

            def __getattr__(self, name: str) -> Any:
                return getattr(original, name)

        original, socket = connection.socket, Counted()
        connection.socket = socket
        connection.doRead = turn
        return turns

    @run
    async def test_a_message_of_very_many_frames_is_thrown_away_in_slices(self) -> None:
        """NB-07, MT-13, MT-24: on all three sockets; each turn reads a few thousand frames."""
        recorded = Recorded()
        factory = self.server(
            HeldSink(), limits={"heartbeat": 100, "liveness": 1000}, sockets=recorded
        )
        client = await self.ready(factory, "ingest", limits={"heartbeat": 100, "liveness": 1000})
        good = await client.writer(["a"])
        for socket, address in zip(recorded.routers, factory.addresses, strict=True):
            turns = self.counting(socket)
            with zmq.Context() as context, context.socket(zmq.DEALER) as hostile:
                hostile.set(zmq.LINGER, 0)
                hostile.connect(address)
                hostile.send_multipart([b"x"] * 50_000)
                await until(lambda turns=turns: sum(turns) > 50_000)
                self.assertLess(max(turns), 20_000)
                await good.send("a", b"x")
        self.assertEqual(factory.counters["dropped:frames"], 2)

    @run
    async def test_a_client_throws_them_away_likewise(self) -> None:
        """NB-07"""
        with zmq.Context() as context, context.socket(zmq.ROUTER) as server:
            port = server.bind_to_random_port("tcp://127.0.0.1")
            client = self.client(f"tcp://127.0.0.1:{port}", limits={"request-timeout": 60})
            opened = client.open("host")
            await until(lambda: server.poll(0))
            peer, *_ = server.recv_multipart()
            turns = self.counting(client.wire.socket)
            server.send_multipart([peer, *[b"x"] * 50_000])
            server.send_multipart([peer, b"", b"201", b'{"profiles": ["late"]}'])
            self.assertEqual(await opened, ["late"])
            self.assertLess(max(turns), 20_000)
            self.assertEqual(client.machine.counters["dropped:frames"], 1)

    @run
    async def test_what_is_costly_to_parse_is_read_in_smaller_turns(self) -> None:
        """NB-07: 256 field tables of 127 values each took 120 ms."""
        recorded = Recorded()
        factory = self.server(
            HeldSink(), limits={"heartbeat": 100, "liveness": 1000}, sockets=recorded
        )
        client = await self.ready(factory, "ingest", limits={"heartbeat": 100, "liveness": 1000})
        flow = await client.writer(["a"])
        table = fields.encode_table({str(number): None for number in range(127)})
        name = data.encode_name("a")
        flow.wire.write(
            [data.encode_content(number, name, table, b"") for number in range(10, 2010)]
        )
        await until(lambda: factory.counters["contents"] == 2000)
        headers = [sum(len(parts[1]) for parts in read) for read in recorded.reads[1]]
        self.assertLess(max(headers), (64 << 10) + 1000)

    @run
    async def test_requests_are_read_in_smaller_turns(self) -> None:
        """NB-07, MT-02: JSON of 64 KiB takes up to 9 ms."""
        recorded = Recorded()
        factory = self.server(sockets=recorded)
        body = b'{"a":[' + b"[]," * 20_000 + b"[]]}"
        with Plain(factory.addresses[0]) as plain:
            dealer = plain.dealer(factory.addresses[0])
            for _ in range(40):
                dealer.send_multipart([b"", b"Connection.Open", body])
            answers = 0
            while answers < 40:
                if dealer.poll(0):
                    self.assertIn(dealer.recv_multipart()[1], (b"400", b"401"))
                    answers += 1
                await later(0)
        reads = [len(read) for read in recorded.reads[0]]
        self.assertLessEqual(max(reads), 5)
        self.assertEqual(sum(reads), 40)
