"""What is under the server: who sent a message, and from where; what a socket may hold."""

from __future__ import annotations

from select import select
from typing import Any

import zmq
from twisted.internet.threads import deferToThread

from tests.mtl.cases import HeldSink, MtlCase, Recorded, later, reactor, run, until
from tests.mtl.plain import REJECT, Flow, Plain, let_in


def lease(client: Plain) -> tuple[str, str]:
    """The data address and the token of a writer's lease."""
    status, reply = client.ask("Connection.Writer", resources=["a"], confirm="full")
    assert status == "202"
    return f"127.0.0.1:{reply['port']}", reply["lease"]


def dealer_from(client: Plain, source: str, address: str, identity: bytes = b"") -> Any:
    """A socket which connects from this address of this machine."""
    dealer = client.context.socket(zmq.DEALER)
    dealer.set(zmq.RCVTIMEO, 20_000)
    if identity:
        dealer.set(zmq.IDENTITY, identity)
    dealer.connect(f"tcp://{source}:0;{address}")
    return dealer


def woken(connection: Any) -> bool:
    """The reactor would read this socket now, if it may."""
    return bool(select([connection.fd], [], [], 0)[0])


class Peers(MtlCase):
    @run
    async def test_rows_have_the_address_which_their_content_came_from(self) -> None:
        """MT-30: that of the data connection, whatever that of the control flow is."""
        sink = HeldSink()
        factory = self.server(sink)
        sources = ["127.0.0.2", "127.0.0.3"]

        def write() -> None:
            with Plain(factory.addresses[0]) as client:
                client.ready("ingest")
                flows = []
                for source in sources:
                    address, token = lease(client)
                    flows.append(Flow(dealer_from(client, source, address), token))
                    assert flows[-1].lease() == b"200"
                for _ in range(3):
                    for flow, source in zip(flows, sources, strict=True):
                        flow.confirmed(flow.content("a", source.encode()))

        await deferToThread(write)
        rows = [message for batch in sink.batches for message in batch]
        self.assertEqual([row.body for row in rows], [s.encode() for s in sources * 3])
        self.assertEqual([row.peer for row in rows], sources * 3)

    @run
    async def test_what_has_arrived_is_read_before_a_newcomer_is_let_in(self) -> None:
        """MT-24, MT-30: the end of an identity's owner, too, or who comes with it is ignored."""
        recorded = Recorded()
        factory = self.server(sockets=recorded)
        (control, _), read = recorded.routers, []

        def look() -> None:
            read.append(control)
            type(control).doRead(control)

        control.doRead = look
        reactor.removeReader(control)
        self.assertTrue(await deferToThread(let_in, factory.addresses[0]))
        self.assertEqual(read, [control])

    @run
    async def test_a_server_which_may_not_read_is_not_woken(self) -> None:
        """MT-24, MT-27: what arrives meanwhile costs no time of the processor."""
        sink = HeldSink(at_once=False)
        recorded = Recorded()
        limits: dict[str, object] = {"unsafe-octets": 1000, "heartbeat": 100, "liveness": 1000}
        factory = self.server(sink, limits=limits, sockets=recorded)
        client = await self.ready(factory, "ingest")
        writer = await client.writer(["a"])
        first = writer.send("a", bytes(2000))
        await until(lambda: sink.held)
        (_, data), looked = recorded.routers, []

        def look() -> None:
            looked.append(1)
            type(data).doRead(data)

        data.doRead = look
        second = writer.send("a", b"x")
        await until(lambda: woken(data))
        looked.clear()
        for _ in range(100):
            await later(0)
        self.assertEqual(looked, [])
        sink.at_once = True
        sink.held[0].callback(None)
        await first
        await second

    @run
    async def test_on_ipc_the_peer_is_the_process(self) -> None:
        """MT-31"""
        sink = HeldSink()
        factory = self.server(sink, listen=[f"ipc://{self.mktemp()}"], data=None)
        client = await self.ready(factory, "ingest")
        writer = await client.writer(["a"])
        await writer.send("a", b"x")
        self.assertRegex(str(sink.batches[0].peer), r"^localhost:\d+:\d+:\d+$")


class Broken(MtlCase):
    @run
    async def test_a_client_of_the_text_learns_that_its_content_was_lost(self) -> None:
        """MT-14, MT-19, MT-30: a Reject for all that arrived, then 403, but not on another flow."""
        sink = HeldSink(at_once=False)
        factory = self.server(sink, limits={"liveness": 1000})
        client = Plain(factory.addresses[0])
        self.addCleanup(client.__exit__)

        def write() -> tuple[Flow, int]:
            flow = client.ready("ingest").flow("Writer", ["a"])
            for number in range(5):
                last = flow.content("a", b"%d" % number)
            return flow, last

        flow, last = await deferToThread(write)
        await until(lambda: sum(batch.count for batch in sink.batches) == 5)
        for held in sink.held:
            held.errback(OSError("disk"))
        sink.at_once, sink.batches = True, []

        def go_on() -> None:
            assert flow.receive() == [bytes([REJECT]) + last.to_bytes(8, "big") + b"\1\0", b""]
            assert flow.response(flow.content("a", b"5")) == b"403"
            assert flow.pong()
            again = client.flow("Writer", ["a"])
            for number in range(6):
                last_one = again.content("a", b"%d" % number)
            again.confirmed(last_one)

        await deferToThread(go_on)
        self.assertEqual(sink.bodies, [b"%d" % number for number in range(6)])
        self.assertTrue(self.flushLoggedErrors(OSError))


class Endpoints(MtlCase):
    @run
    async def test_data_listens_beside_each_control_endpoint(self) -> None:
        """HO-25, MT-12: the port of a 202 is there at every host."""
        sink = HeldSink()
        factory = self.server(sink, listen=["tcp://127.0.0.1:*", "tcp://127.0.0.2:*"])
        one, two, *data = factory.addresses
        ports = {address.rpartition(":")[2] for address in data}
        self.assertEqual((len(data), len(ports)), (2, 1))
        for address, body in ((one, b"one"), (two, b"two")):
            client = self.client(address)
            await client.open("host")
            await client.profile("ingest")
            writer = await client.writer(["a"])
            await writer.send("a", body)
        self.assertEqual(sink.bodies, [b"one", b"two"])


class Held(MtlCase):
    @run
    async def test_more_contents_than_libzmq_holds_for_a_reader_reach_it(self) -> None:
        """MT-25, MT-27: what waits for it beside is sent as soon as it has room."""
        factory = self.server(limits={"peer-octets": 16 << 20, "unread-seconds": 1000})
        client = await self.ready(factory, "test")
        got: list[bytes] = []
        reader = await client.reader(["resource"], "none", lambda content: got.append(content.body))
        await reader.summon("resource")
        writer = await client.writer(["resource"], "none")
        sent = [b"%d" % number + bytes(20_000) for number in range(300)]
        await writer.sendMany("resource", sent)
        await until(lambda: len(got) == len(sent))
        self.assertEqual(got, sent)
        self.assertEqual(factory.snapshot()["profiles"]["test"], {})  # nothing was missed
