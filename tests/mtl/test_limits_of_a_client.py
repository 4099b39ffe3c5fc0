"""A client sends nothing for ever and loses nothing silently (HO-23), and ends in order (HO-12)."""

from __future__ import annotations

import zmq

from tests.mtl.cases import HeldSink, MtlCase, run, until
from twisted_msgproto.core.errors import ConnectionClosed, LimitExceeded, TimedOut


class Limited(MtlCase):
    @run
    async def test_a_body_above_the_servers_limit_is_not_sent_for_ever(self) -> None:
        """HO-23: libzmq ends the connection each time, and says nothing."""
        factory = self.server(HeldSink(), limits={"content-octets": 1000})
        client = await self.ready(factory, "ingest", limits={"renewals": 3})
        flow = await client.writer(["a"])
        await flow.send("a", bytes(1000))
        sent = flow.send("a", bytes(1001))
        failed = await self.assertFailure(sent, TimedOut)
        self.assertIn("above the server's limits", str(failed))
        self.assertEqual(client.flows, {})
        another = await client.writer(["a"])
        await another.send("a", b"good")

    @run
    async def test_contents_without_confirm_are_sent_or_refused(self) -> None:
        """HO-23: 100,001 were thrown away together."""
        factory = self.server(limits={"heartbeat": 100, "liveness": 1000})
        client = await self.ready(factory, "test", limits={"heartbeat": 100, "liveness": 1000})
        flow = await client.writer(["resource"], "none")
        taken: list[object] = []
        refused: list[object] = []
        for number in range(100_001):
            sent = flow.send("resource", b"%d" % number)
            sent.addCallbacks(taken.append, lambda failure: refused.append(failure.type))
        self.assertEqual(set(refused), {LimitExceeded})
        self.assertEqual(len(taken), client.limits["waiting"])
        await until(lambda: factory.counters["contents"] == len(taken))
        await flow.send("resource", b"there is room again")

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

    @run
    async def test_a_client_ends_when_what_is_in_flight_is_answered(self) -> None:
        """HO-12: and meanwhile its verbs fail."""
        sink = HeldSink(at_once=False)
        # TCP throws away what it has to send if it leaves a Ping unread.
        factory = self.server(sink, limits={"heartbeat": 100, "liveness": 1000})
        client = await self.ready(factory, "ingest")
        flow, plain = await client.writer(["a"]), await client.writer(["a"], "none")
        sent = flow.send("a", b"x")
        await plain.sendMany("a", [b"y"] * 3000)
        closed, again = client.close(), client.close()
        await self.assertFailure(flow.send("a", b"z"), ConnectionClosed)
        await self.assertFailure(client.writer(["a"]), ConnectionClosed)
        await until(lambda: sink.held)
        self.assertNoResult(closed)
        sink.at_once = True
        for held in sink.held:
            held.callback(None)
        await sent
        await closed
        await again
        await until(lambda: len(sink.bodies) == 3001)
