"""A client sends nothing for ever and loses nothing silently (HO-23), and ends in order (HO-12)."""

from __future__ import annotations

import pytest
import zmq

from tests.mtl.cases import HeldSink, MtlCase, run, until
from tests.mtl.test_client_flow import Flowing, writer
from twisted_msgproto.core.errors import ConnectionClosed, LimitExceeded, TimedOut
from twisted_msgproto.mtl.terms.events import FlowGivenUp, FlowOpened, FlowSuspended
from twisted_msgproto.mtl.wire.data import Confirm, Response
from twisted_msgproto.mtl.wire.fields import EMPTY, encode_table

# ── the machine ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("confirm", [True, False])
def test_a_content_above_the_limit_is_not_sent(confirm: bool) -> None:
    """HO-23: neither a body nor the properties; what else is sent with it is not, either."""
    flowing = writer(confirm, content_octets=100)
    good = ("a", EMPTY, bytes(100))
    for bad in (("a", EMPTY, bytes(101)), ("a", encode_table({"k": "v" * 100}), b"")):
        with pytest.raises(LimitExceeded):
            flowing.flow.send([good, bad], flowing.now)
    assert flowing.sent == []
    flowing.flow.send([good], flowing.now)
    assert [len(command.body) for command in flowing.sent] == [100]  # type: ignore[union-attr]


def renewed(flowing: Flowing) -> list[object]:
    """Another lease is accepted, and then the connection ends: what the flow says of that."""
    flowing.flow.renew("lease", flowing.now)
    lease = flowing.sent[-1]
    assert flowing.get(Response(lease.sequence, 200))[0] == FlowOpened()  # type: ignore[union-attr]
    assert flowing.sent
    return flowing.flow.suspend("cut")


def test_what_is_sent_again_in_vain_is_given_up() -> None:
    """HO-23: a content above a limit of the server's, which nobody told us."""
    flowing = writer(renewals=4)
    flowing.write(1)
    assert [type(event) for event in flowing.flow.suspend("cut")] == [FlowSuspended]
    ends = [type(event) for _ in range(4) for event in renewed(flowing)]
    assert ends == [FlowSuspended] * 3 + [FlowGivenUp]


def test_whatever_is_confirmed_gives_a_flow_all_its_renewals_again() -> None:
    """HO-23: a network which is cut often is none of that."""
    flowing = writer(renewals=3, window=1)
    numbers = flowing.write(*range(20))
    flowing.flow.suspend("cut")
    for _ in numbers:
        flowing.flow.renew("lease", flowing.now)
        lease = flowing.sent[-1]
        flowing.get(Response(lease.sequence, 200))  # type: ignore[union-attr]
        sent = flowing.sent[-1]
        flowing.get(Confirm(sent.sequence))  # type: ignore[union-attr]
        assert [type(event) for event in flowing.flow.suspend("cut")] == [FlowSuspended]


def test_a_flow_with_nothing_to_send_is_renewed_as_often_as_it_takes() -> None:
    flowing = writer(renewals=2)
    for _ in range(10):
        flowing.flow.suspend("cut")
        flowing.open()


# ── real sockets ────────────────────────────────────────────────────────────────────────────────


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
