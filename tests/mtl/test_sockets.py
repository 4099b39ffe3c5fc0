"""A server and its clients on real sockets: verbs, hooks, addresses, peers, slices."""

from __future__ import annotations

import contextlib
import re
import struct
import threading
from select import select
from socket import create_server
from typing import Any

import pytest
import zmq
from twisted.internet.threads import deferToThread

from tests.mtl.cases import (
    LOOPBACK,
    HeldSink,
    MtlCase,
    Recorded,
    curve_keys,
    later,
    reactor,
    run,
    until,
)
from tests.mtl.plain import Flow, Plain, dealer_from, let_in
from twisted_msgproto import Message
from twisted_msgproto.core.errors import (
    ConfigurationError,
    ConnectionClosed,
    LimitExceeded,
    Refused,
    TimedOut,
)
from twisted_msgproto.mtl import (
    MtlClient,
    MtlClientFactory,
    MtlServer,
    MtlServerFactory,
    connect,
    serve,
)
from twisted_msgproto.mtl.wire import data
from twisted_msgproto.mtl.zeromq import bounded
from twisted_msgproto.net.turns import TurnWatch


class Verbs(MtlCase):
    @run
    async def test_all_verbs_from_open_to_close(self) -> None:
        """MT-05, MT-06, MT-09, MT-10, MT-16, MT-17, MT-18, MT-19, MT-23"""
        sink = HeldSink()
        factory = self.server(sink)
        client = self.client(factory.addresses[0])
        self.assertEqual(await client.open("host"), ["test", "queue", "ingest"])
        await client.profile("QUEUE")
        got: list[Any] = []
        reader = await client.reader(["a", "b"], "full", got.append)
        await reader.summon("a")
        writer = await client.writer(["a"])
        await writer.send("a", b"one", {"n": 1, "s": "x"})
        await writer.sendMany("a", [b"two", b"three"])
        await until(lambda: len(got) == 3)
        self.assertEqual([c.body for c in got], [b"one", b"two", b"three"])
        self.assertEqual(got[0].properties, {"n": 1, "s": "x"})
        self.assertEqual((got[0].resource, got[0].sequence), ("a", 1))
        reader.confirm(2)
        reader.reject(3, True, recycle=True)
        await until(lambda: len(got) == 5)
        self.assertEqual([c.body for c in got[3:]], [b"one", b"three"])
        self.assertEqual(got[3].properties, {"n": 1, "s": "x", "mtl-redeliveries": 1})
        reader.reject(5)
        reader.confirm(4, multiple=True)
        reader.flush()
        await reader.dismiss("a")
        with self.assertRaises(Refused) as caught:
            await reader.dismiss("a")
        self.assertEqual(caught.exception.code, 400)
        figures = factory.machine.profiles["queue"].snapshot()
        settled = [figures[name] for name in ("confirmed", "rejected", "recycled")]
        self.assertEqual(settled, [2, 1, 2])
        self.assertEqual(writer.room, 1000)
        batch = sink.batches[0]
        self.assertEqual((batch.protocol, batch.kind, batch.client_id), ("mtl", "content", None))
        message = next(iter(batch))
        self.assertEqual(
            message.fields,
            {"n": "1", "s": "x", "mtl-virtual-host": "host", "mtl-profile": "queue"},
        )
        self.assertEqual((message.destination, message.body), ("a", b"one"))
        self.assertTrue(str(message.session).startswith("mtl-"))
        self.assertEqual(factory.snapshot()["sessions"], 1)
        await client.close()
        await client.close()
        with self.assertRaises(ConnectionClosed):
            await client.open("host")
        with self.assertRaises(ConnectionClosed):
            await client.writer(["a"])


class Hooks(MtlCase):
    @run
    async def test_hooks_of_a_session_in_order__MT_05__MT_18(self) -> None:
        called: list[str] = []

        class Telling(MtlServer):
            def connectionMade(self) -> None:
                called.append(f"made {self.virtualHost} {self.peer}")

            def sessionEstablished(self) -> None:
                called.append(f"established {self.clientId}")

            def messageReceived(self, message: Message) -> None:
                called.append(f"message {message.body!r}")

            def sessionLost(self, reason: Any) -> None:
                called.append(f"lost {reason.getErrorMessage()}")

        factory = self.server(protocol=Telling)
        client = await self.ready(factory, "ingest")
        writer = await client.writer(["a"])
        await writer.send("a", b"x")
        await client.open("other")
        self.assertEqual(
            called,
            ["made host 127.0.0.1", "established None", "message b'x'",
             "lost the session ended: reopened", "made other 127.0.0.1", "established None"],
        )  # fmt: skip
        self.assertEqual(len(factory.liveConnections), 1)

    @run
    async def test_turns_of_all_clients_together_are_measured(self) -> None:
        factory = MtlServerFactory(HeldSink())
        factory.watchTurns(-1.0)
        factory.listen([LOOPBACK])
        self.addCleanup(factory.drain)
        await self.client(factory.addresses[0]).open("host")
        self.assertGreater(factory.counters["slow_turns"], 0)


class Addresses(MtlCase):
    @run
    async def test_ipc_takes_control_and_data_and_its_peer_is_the_process__MT_12__MT_31(
        self,
    ) -> None:
        path, sink = f"{self.mktemp()}\udcff:5", HeldSink()
        factory = self.server(sink, listen=[f"ipc://{path}"], data=None)
        self.assertEqual(factory.machine.data_port, 0)
        self.assertEqual(factory.addresses, [f"ipc://{path}"])
        client = await self.ready(factory, "ingest")
        writer = await client.writer(["a"])
        await writer.send("a", b"x")
        self.assertRegex(str(sink.batches[0].peer), r"^localhost:\d+:\d+:\d+$")
        self.assertEqual(factory.snapshot()["connections"], 2)

    def test_an_address_in_use_is_the_operators_trouble__MT_24(self) -> None:
        factory = self.server()
        other = MtlServerFactory()
        self.addCleanup(other.drain)
        with self.assertRaisesRegex(ConfigurationError, "cannot listen on"):
            other.listen([factory.addresses[0]])
        other.listen([LOOPBACK])
        with self.assertRaisesRegex(ConfigurationError, "listens already"):
            other.listen([LOOPBACK])

    def test_a_start_that_failed_keeps_no_address__MT_24(self) -> None:
        """It can be tried again at once, before the reactor goes on."""
        taken = self.server().addresses[0]
        other = MtlServerFactory()
        self.addCleanup(other.drain)
        with create_server(("127.0.0.1", 0)) as free:
            address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        for _ in range(30):
            with self.assertRaisesRegex(ConfigurationError, f"cannot listen on {taken}: "):
                other.listen([address], data=taken)
        self.assertEqual(other.listen([address]), [address])

    def test_what_is_no_address_is_said_at_once__MT_24(self) -> None:
        for address in ("tcp:5049", "tcp://127.0.0.1", "tcp://:1", "tcp://h:99999", "udp://h:1",
                        "ipc://", "", "inproc://x", "tcp://127.0.0.1:x", "tcp://h:65536", "tcp://h:",
                        "tcp://h:٣", "tcp://[::1:5", "tcp://::1]:5", "ipc://a\0b"):  # fmt: skip
            with self.assertRaises(ConfigurationError):
                MtlServerFactory().listen([address])
            with self.assertRaises(ConfigurationError):
                MtlClient(address)
        with self.assertRaisesRegex(ConfigurationError, "cannot connect to tcp://not a host:5: "):
            MtlClient("tcp://not a host:5")


def lease(client: Plain) -> tuple[str, str]:
    """The data address and the token of a writer's lease."""
    status, reply = client.ask("Connection.Writer", resources=["a"], confirm="full")
    assert status == "202"
    return f"127.0.0.1:{reply['port']}", reply["lease"]


def woken(connection: Any) -> bool:
    """The reactor would read this socket now, if it may."""
    return bool(select([connection.fd], [], [], 0)[0])


def test_no_endpoint_of_twisteds_takes_a_factory_and_the_error_says_what_does__RD_26() -> None:
    for factory, advice in (
        (MtlServerFactory(HeldSink()), "mtl.serve('tcp://HOST:PORT', …)"),
        (MtlClientFactory(), "mtl.connect('tcp://HOST:PORT', …)"),
    ):
        for use in (factory.doStart, lambda factory=factory: factory.buildProtocol(None)):
            with pytest.raises(ConfigurationError, match=re.escape(advice)):
                use()


class Ends(MtlCase):
    @run
    async def test_nobody_waits_for_what_cannot_be_sent(self) -> None:
        """RD-22: libzmq's end waits for a closed socket's messages, and the reactor with it."""
        lingers: list[int] = []
        close = zmq.Socket.close

        def noted(socket: Any, *words: Any) -> None:
            if socket.get(zmq.TYPE) == zmq.DEALER:
                lingers.append(socket.get(zmq.LINGER))
            close(socket, *words)

        self.patch(zmq.Socket, "close", noted)
        with create_server(("127.0.0.1", 0)) as silent, create_server(("127.0.0.1", 0)) as gone:
            ports = [one.getsockname()[1] for one in (silent, gone)]
            gone.close()
            for port in ports:
                with self.assertRaises(TimedOut):
                    await connect(f"tcp://127.0.0.1:{port}", profile="queue", timeout=0.1)
        self.assertEqual(lingers, [0, 0])

        async with (
            serve("tcp://127.0.0.1:0") as server,
            connect(server.addresses[0], profile="queue") as client,
        ):
            await client.writer(["a"])
            del lingers[:]
        self.assertTrue(lingers and all(lingers), "what a peer can still have is sent")

    @run
    async def test_of_a_server_that_cannot_be_reached_the_cause_is_told__HO_23(self) -> None:
        """And not what follows: libzmq ends the connection, and tries again."""
        fails, ends = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL, zmq.EVENT_DISCONNECTED
        again, stands = zmq.EVENT_CONNECT_RETRIED, zmq.EVENT_HANDSHAKE_SUCCEEDED
        others, forbids = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, zmq.EVENT_HANDSHAKE_FAILED_AUTH
        mismatch, curve = zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH, curve_keys()[1]
        for value, keys, kinds, text in (
            (0, None, [others, ends], "the hand-shake fails: other keys, or another protocol"),
            (mismatch, None, [others], "it wants CURVE keys"),
            (mismatch, curve, [others], "it has no CURVE, and we have keys"),
            (mismatch, None, [forbids], "it does not let us in"),
            (0, curve, [forbids], "it does not know our CURVE key"),
        ):
            socket = self.client("tcp://127.0.0.1:1", curve=keys).link.wire.socket
            told: list[str] = []
            socket.refused = told.append
            for kind in kinds:
                socket.happened([[struct.pack("=Hi", kind, value), b""]])
            self.assertEqual(socket.trouble, text)
            self.assertEqual(told, [text] if value or keys else [])
        for kinds, text in (
            ([again], "no connection can be made"),
            ([zmq.EVENT_CONNECTED, again], "it has accepted the connection, and says nothing"),
            ([ends, again], "it ends the connection"),
            ([fails, ends, again], "the hand-shake fails: it may have another CURVE key"),
            ([fails, stands], "it has accepted the connection, and says nothing"),
            ([fails, stands, ends, again], "it ends the connection"),
        ):
            socket = self.client("tcp://127.0.0.1:1").link.wire.socket
            socket.happened([[struct.pack("=Hi", kind, 0), b""] for kind in kinds])
            self.assertEqual(socket.trouble, text)

    @run
    async def test_no_end_waits_in_the_reactor(self) -> None:
        """RD-22, MT-28: it waits for what a peer has not read, at most half a second."""
        elsewhere: list[Any] = []  # what ended in other threads; others' ends come meanwhile
        term = zmq.Context.term

        def noted(context: Any) -> None:
            term(context)
            if threading.current_thread() is not threading.main_thread():
                elsewhere.append(context)

        self.patch(zmq.Context, "term", noted)
        async with (
            serve("tcp://127.0.0.1:0") as server,
            connect(server.addresses[0], profile="queue") as client,
        ):
            await client.writer(["a"])
        (address,) = server.addresses
        async with serve(address, data=address):
            pass  # its port was free as soon as it had ended; the next one may be anybody's
        await until(lambda: len(elsewhere) >= 3)


class Kept(MtlCase):
    @run
    async def test_what_is_in_a_queue_outlives_its_server__MT_26(self) -> None:
        directory, bodies = self.mktemp(), [b"first", b"second"]
        for body in bodies:
            async with (
                serve("tcp://127.0.0.1:0", queue=directory) as server,
                connect(server.addresses[0], profile="queue") as client,
            ):
                writer = await client.writer(["a"])
                await writer.send("a", body, {"k": 1})
        async with (
            serve("tcp://127.0.0.1:0", queue=directory) as server,
            connect(server.addresses[0], profile="queue") as client,
        ):
            reader = await client.reader(["a"])
            await reader.summon("a")
            got = [await reader.__anext__() for _ in bodies]
            self.assertEqual([one.body for one in got], bodies)
            self.assertEqual([one.properties["k"] for one in got], [1, 1])


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
    async def test_a_server_which_may_not_read_is_not_woken(self) -> None:
        """MT-24, MT-27: what arrives meanwhile costs no time of the processor."""
        sink = HeldSink(at_once=False)
        recorded = Recorded()
        limits: dict[str, object] = {"unsafe-bytes": 1000, "heartbeat": 100, "liveness": 1000}
        factory = self.server(sink, limits=limits, sockets=recorded)
        client = await self.ready(factory, "ingest")
        writer = await client.writer(["a"])
        first = writer.send("a", bytes(2000))
        await until(lambda: sink.waiting)
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
        sink.release_all()
        await first
        await second
        for _ in range(100):
            await later(0)
        await writer.send("a", b"y")
        sink.at_once = False
        third = writer.send("a", bytes(2000))
        await until(lambda: sink.waiting)
        factory.abort()
        await later(0)
        sink.release_all()  # there is no socket any more that could be read again
        client.abort()
        await self.assertFailure(third, ConnectionClosed)


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
        async with serve("tcp://127.0.0.1:0", data="tcp://127.0.0.1:*") as server:
            self.assertEqual((len(server.addresses), len(server.factory.addresses)), (1, 2))


class Held(MtlCase):
    @run
    async def test_more_contents_than_libzmq_holds_for_a_reader_reach_it(self) -> None:
        """MT-25, MT-27: what waits beside is sent as soon as it has room; a queue in bursts."""
        factory = self.server(limits={"peer-bytes": 16 << 20, "unread-seconds": 1000})
        got: list[bytes] = []
        for profile, size in (("test", 20_000), ("queue", 40_000)):
            sent = [b"%d" % number + bytes(size) for number in range(300)]
            if profile == "queue":  # it is tried whenever there was something to read, too
                self.patch(bounded, "RETRY_SECONDS", 1000.0)
            got.clear()
            client = await self.ready(factory, profile)
            reader = await client.reader(["resource"], "none", lambda one: got.append(one.body))
            writer = await client.writer(["resource"], "none")
            if profile == "queue":
                await writer.sendMany("resource", sent)
            await reader.summon("resource")
            if profile == "test":
                await writer.sendMany("resource", sent)
            await until(lambda: len(got) == 300)
            self.assertEqual(got, sent)
        self.assertEqual(factory.snapshot()["profiles"]["test"], {})  # nothing was missed


MIB = 1 << 20


class BackPressure(MtlCase):
    @run
    async def test_a_writer_of_large_contents_waits_where_nobody_reads(self) -> None:
        """MT-24, MT-29: libzmq holds at most ``peer-bytes``; nothing is lost, others are served."""
        sink = HeldSink(at_once=False)
        limits: dict[str, object] = {"content-bytes": MIB + 1024, "peer-bytes": 8 * MIB}
        limits |= {"unsafe-bytes": 2 * MIB, "heartbeat": 100, "liveness": 1000}
        factory = self.server(sink, limits=limits)
        address = factory.addresses[0]

        def fill() -> int:
            with (
                Plain(address, prepare=lambda socket: socket.set(zmq.SNDHWM, 1)) as hostile,
                Plain(address) as other,
            ):
                writer = hostile.ready("ingest").flow("Writer", ["a"])
                sent = 0
                while sent < 64 and writer.socket.poll(2000, zmq.POLLOUT):
                    last = writer.content("a", bytes(MIB))
                    sent += 1
                other.ready("ingest").flow("Writer", ["b"], lease=False)
                reactor.callFromThread(sink.release_all)
                writer.confirmed(last)
                return sent

        sent = await deferToThread(fill)
        self.assertTrue(2 <= sent <= 24, sent)  # with what each kernel holds, and a turn
        self.assertEqual(len(sink.bodies), sent)

    @run
    async def test_a_writer_without_confirm_holds_no_more_than_it_may__MT_27__MT_29(self) -> None:
        """Libzmq held a thousand contents for it, whatever they weighed, before any limit."""
        sink = HeldSink(at_once=False)
        limits: dict[str, object] = {"content-bytes": MIB + 1024, "peer-bytes": 8 * MIB}
        limits |= {"heartbeat": 100, "liveness": 1000}
        factory = self.server(sink, limits=limits | {"unsafe-bytes": 2 * MIB})
        client = await self.ready(factory, "ingest", limits=limits | {"unsent-bytes": 4 * MIB})
        writer, sent = await client.writer(["a"], "none"), 0
        with contextlib.suppress(LimitExceeded):
            while sent < 64:
                await writer.send("a", bytes(MIB))
                sent += 1
                await later(0.01)
        self.assertLess(sent, 48)  # with what the server and each kernel hold
        sink.release_all()
        await until(lambda: len(sink.bodies) == sent)

    @run
    async def test_a_turn_reads_no_more_than_some_bytes(self) -> None:
        """MT-24, MT-29: large contents come in small batches; and what it costs is measured."""
        sink, turns = HeldSink(), set[str]()
        watch = TurnWatch(-1.0, lambda peer, *spent: turns.add(peer))
        self.patch(MtlServerFactory, "turnWatch", watch)
        factory = self.server(sink, limits={"peer-bytes": 160 << 20})
        client = await self.ready(factory, "ingest")
        writer = await client.writer(["a"])
        await writer.sendMany("a", [bytes(1 << 20)] * 30)
        self.assertEqual(len(sink.bodies), 30)
        self.assertLessEqual(max(len(batch) for batch in sink.batches), 4)
        self.assertIn("all clients", turns)

    @run
    async def test_what_is_costly_to_parse_is_read_in_smaller_turns(self) -> None:
        """NB-07: 256 field tables of 127 values each took 120 ms."""
        recorded = Recorded()
        factory = self.server(
            HeldSink(), limits={"heartbeat": 100, "liveness": 1000}, sockets=recorded
        )
        client = await self.ready(factory, "ingest", limits={"heartbeat": 100, "liveness": 1000})
        flow = await client.writer(["a"])
        table = data.encode_table({str(number): None for number in range(127)})
        name = data.encode_name("a")
        flow.link.wire.write(
            [data.encode_content(number, name, table, b"") for number in range(10, 2010)]
        )
        await until(lambda: factory.counters["contents"] == 2000)
        headers = [sum(len(parts[1]) for parts in read) for read in recorded.reads[1]]
        self.assertLess(max(headers), (64 << 10) + 1000)

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
    async def test_a_client_that_does_not_read_is_sent_no_more_than_it_may_hold__MT_29(
        self,
    ) -> None:
        with zmq.Context() as context, context.socket(zmq.ROUTER) as server:
            for option, value in (
                (zmq.SNDHWM, 1), (zmq.SNDTIMEO, 2000), (zmq.LINGER, 0), (zmq.ROUTER_MANDATORY, 1),
            ):  # fmt: skip
                server.set(option, value)
            port = server.bind_to_random_port("tcp://127.0.0.1")
            limits: dict[str, object] = {"content-bytes": MIB, "peer-bytes": 8 * MIB}
            client = self.client(f"tcp://127.0.0.1:{port}", limits | {"request-timeout": 60})
            opened = client.open("host")
            await until(lambda: server.poll(0))
            peer, *_ = server.recv_multipart()
            client.link.wire.pauseProducing()

            def fill() -> int:
                sent = 0
                with contextlib.suppress(zmq.Again):
                    while sent < 64:
                        server.send_multipart([peer, bytes(MIB)])
                        sent += 1
                return sent

            self.assertLess(await deferToThread(fill), 24)
            client.abort()
            await self.assertFailure(opened, ConnectionClosed)

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


@pytest.mark.usefixtures("short_turns")
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
                await later(0)  # our own sending is none of the client's turn
                hostile.send_multipart([b"x"] * 50_000)
                await until(lambda turns=turns: sum(turns) > 50_000)
                self.assertLess(max(turns), 20_000)
                await good.send("a", b"x")
        self.assertEqual(factory.counters["dropped:frames"], 2)

    @run
    async def test_a_client_throws_such_a_message_away_in_slices_too__NB_07(self) -> None:
        """MT-02: and reads the answer behind it."""
        with zmq.Context() as context, context.socket(zmq.ROUTER) as server:
            server.set(zmq.LINGER, 0)
            port = server.bind_to_random_port("tcp://127.0.0.1")
            client = self.client(f"tcp://127.0.0.1:{port}", {"request-timeout": 60})
            turns = self.counting(client.link.wire.socket)
            opened = client.open("host")
            await until(lambda: server.poll(0))
            peer, *_ = server.recv_multipart()
            server.send_multipart([peer, *[b""] * 50_000])
            for _ in range(600):  # they are there when the first one was thrown away
                server.send_multipart([peer, b"x"])
            server.send_multipart([peer, b"", b"201", b'{"profiles": ["a"]}'])
            self.assertEqual(await opened, ["a"])
            self.assertGreater(sum(turns), 50_000)
            self.assertLess(max(turns), 20_000)
            self.assertLess(sorted(turns)[-5], 300)  # behind its four
            self.assertEqual(client.factory.counters["dropped:frames"], 601)
