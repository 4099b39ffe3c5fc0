"""Sessions and flows end with their connections, nobody inherits them, and they have a limit."""

from __future__ import annotations

import contextlib
import errno
import gc
import itertools
import json
import os
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest
import zmq
from twisted.internet.threads import deferToThread
from twisted.logger import capturedLogs, formatEvent

from tests import doubles
from tests.contract.cases import Mtl
from tests.contract.world import ContractCase
from tests.mtl.broker import (
    NONE,
    OPEN,
    Broker,
    Peer,
    bodies,
    connection_name,
    contents,
    control_peer,
    data_peer,
)
from tests.mtl.cases import (
    IMPATIENT,
    LOOPBACK,
    HeldSink,
    MtlCase,
    Recorded,
    curve_keys,
    keyed,
    later,
    run,
    until,
)
from tests.mtl.plain import CONTENT, RESPONSE, Plain, dealer_from, short
from twisted_msgproto.core.errors import Refused, TimedOut
from twisted_msgproto.mtl import IngestProfile, machine, zeromq
from twisted_msgproto.mtl.protocol import server
from twisted_msgproto.mtl.wire import data
from twisted_msgproto.mtl.zeromq import sockets
from twisted_msgproto.net import peers

LEASE = {"resources": ["a"], "confirm": "full"}

SIGNATURE = b"\xff" + bytes(8) + b"\x7f"

STRANGERS: dict[str, bytes | None] = {
    "ZMTP 1.0": b"\x01\0",
    "ZMTP 1.0 with an identity": b"\x05\0abcd\x02\0x",
    "ZMTP 1.0 of a ZeroMQ 3": SIGNATURE + b"\0\x05",
    "ZMTP 2.0": SIGNATURE + b"\x01\x05\0\0",
    "ZMTP 2.0 with an identity": SIGNATURE + b"\x01\x05\0\x05hello",
    "rubbish": b"ABCDEFGH" * 10,
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" + bytes(500),
    "nothing, and then closed": None,
    "nothing": b"",
    "half a greeting": SIGNATURE + b"\x03",
}
"""What comes that is no ZMTP 3; who closes at once only looks whether somebody listens."""


def reasons(broker: Broker) -> list[str]:
    return [event.reason for event in broker.events if isinstance(event, machine.SessionEnded)]


# ── the machine ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("end", ["leaves", "is silent", "loses what it wrote"])
def test_a_session_lives_as_long_as_any_of_its_connections(end: str) -> None:
    """MT-30: its client may close its REQ and go on with its data flows."""
    broker = Broker()
    peer = broker.session("ingest")
    flows = [broker.connect(broker.lease(peer, "Writer")) for _ in range(2)]
    unused = broker.lease(peer, "Writer")
    broker.leave(peer)
    broker.command(flows[0], *contents(2))
    broker.safe(broker.events[-1])
    assert broker.got(flows[0]) == [data.Confirm(2, True)]
    broker.leave(flows[0])
    assert reasons(broker) == []
    match end:
        case "leaves":
            broker.leave(flows[1])
        case "is silent":
            broker.wait(broker.limits["liveness"] + 1)
        case "loses what it wrote":
            broker.command(flows[1], *contents(2))
            broker.safe(broker.events[-1], False)
    assert (reasons(broker), broker.server.deadline) == (["left"], None)
    late = data_peer(99)
    assert broker.command(late, data.Lease(1, unused)) == [data.Response(1, 403)]
    assert broker.wait(1000) is None


@pytest.mark.parametrize("idle", [1, 1000])
def test_what_is_due_together_ends_once(idle: int) -> None:
    broker = Broker(limits={"session-idle": idle})
    peer = broker.session("ingest")
    broker.connect(broker.lease(peer, "Writer"))
    broker.lease(peer, "Writer")
    broker.leave(peer)
    broker.now += 2000
    broker.collect(broker.server.advance(broker.now))
    assert (len(reasons(broker)), broker.server.deadline) == (1, None)


def test_of_what_a_connection_sent_before_it_ended_only_contents_are_taken__MT_30() -> None:
    broker = Broker()
    writer = broker.flow("Writer", profile="ingest")
    token = broker.lease(broker.session("ingest"), "Writer")
    opening, leasing = control_peer(77), data_peer(78)
    for peer in (writer, opening, leasing):
        broker.server.leaving(peer)
    assert broker.ask_raw(opening, b"", b"Connection.Open", b"{}") == []
    assert broker.command(leasing, data.Lease(1, token), data.Ping()) == []
    assert broker.command(writer, data.Ping()) == []
    broker.command(writer, *contents(2, 3))
    assert broker.events[-1].bodies == [b"2", b"3"]  # type: ignore[union-attr]
    assert broker.dropped == {"left": 4}
    broker.collect(broker.server.left([writer, opening, leasing], broker.now))
    broker.safe(broker.events[-1])
    assert broker.got(writer) == []


def test_a_reader_which_leaves_gets_nothing_more_and_what_it_held_is_recycled() -> None:
    """MT-30: but what it had confirmed before is done with."""
    broker = Broker()
    reader = broker.reader()
    writer = broker.flow("Writer")
    broker.command(writer, *contents(1, 2))
    broker.safe(broker.events[-1])
    sent = [command for command in broker.got(reader) if isinstance(command, data.Content)]
    broker.server.leaving(reader)
    broker.command(writer, *contents(3))
    broker.safe(broker.events[-1])
    assert broker.got(reader) == []
    assert broker.command(reader, data.Confirm(sent[0].sequence)) == []
    broker.collect(broker.server.left([reader], broker.now))
    assert bodies(broker.got(broker.reader())) == []
    other = broker.flow("Reader")
    assert bodies(broker.command(other, data.Summon(2, "a"))) == []


def test_a_newcomer_with_the_same_identity_inherits_nothing() -> None:
    """MT-30, HO-24: with a key, and without; while its owner is there, and afterwards."""
    for key in (b"", b"key"):
        broker = Broker()
        mine, newcomer = (connection_name(b"\0abcd", serial) for serial in (1, 2))
        flow, claimed = (connection_name(b"\0abce", serial) for serial in (3, 4))
        for peer in (mine, newcomer, flow, claimed):
            broker.known[peer] = Peer("192.0.2.1", key)
        assert broker.ask(mine, "Open", OPEN)[0] == 201
        assert broker.ask(mine, "Profile", {"profile": "ingest"})[0] == 200
        token = broker.lease(mine, "Writer")
        assert broker.command(flow, data.Lease(1, token)) == [data.Response(1, 200)]
        for _ in range(2):
            assert broker.ask(newcomer, "Writer", LEASE)[0] == 401
            assert broker.command(claimed, *contents(5)) == [data.Response(5, 403)]
            broker.leave(mine, flow)
        assert broker.server.snapshot()["sessions"] == 0


def reachable(root: object) -> int:
    """How many objects a machine holds, without code and without counts."""
    seen: set[int] = set()
    found, kinds = [root], (type, ModuleType, FunctionType, CodeType, Counter)
    while found:
        one = found.pop()
        if id(one) not in seen and not isinstance(one, kinds):
            seen.add(id(one))
            found += gc.get_referents(one)
    return len(seen)


def comes_and_goes(broker: Broker, number: int) -> None:
    """Flows that end in every way, with something that waits for them in every place."""
    control = broker.session()
    broker.lease(control, "Reader")
    asked = control_peer(1000 + number)
    broker.ask(asked, "Open", OPEN)
    broker.leave(asked, control)
    writer, lossy, gone = (broker.flow("Writer") for _ in range(3))
    burst, held = broker.reader(confirm=NONE), broker.reader()
    broker.command(held, data.Dismiss(3, "a"), data.Summon(4, "a"), data.Summon(5, "b"))
    for peer in (writer, lossy, gone):
        broker.command(peer, *contents(*range(1, 300)))
        place = broker.events[-1]
        if peer == gone:
            broker.leave(gone)
        broker.safe(place, peer != lossy)
    broker.collect(broker.server.peer_lost(burst, broker.now))
    broker.leave(held)
    broker.server.blocked(writer)
    stuck = broker.flow("Writer", ["c"])
    broker.command(stuck, *contents(*range(1, 600), resource="c"))
    broker.safe(broker.events[-1])
    assert broker.got(stuck) == [], "its Confirm waits until the queue is shorter"
    for peer in (writer, stuck):
        broker.collect(broker.server.peer_lost(peer, broker.now))
    last = broker.flow("Reader", [], NONE)
    broker.command(last, data.Summon(2, "a"), data.Summon(3, "c"))
    while broker.server.profiles["queue"].snapshot()["broker_waiting"]:
        broker.server.refill(broker.now)
        broker.collect()
    broker.leave(last)
    broker.wait(1000)
    broker.events.clear()
    broker.sent.clear()


def test_of_who_has_left_nothing_is_kept__MT_30__NB_02() -> None:
    """HO-24: whatever it did, and however it ended."""
    broker = Broker(limits={"queue-messages": 500})
    held = []
    for number in range(4):
        comes_and_goes(broker, number)
        assert broker.server.snapshot()["sessions"] == 0
        held.append(reachable(broker.server))
    assert held[3] == held[2], held


# ── real sockets ────────────────────────────────────────────────────────────────────────────────


class Real(MtlCase):
    """libzmq over loopback."""

    timeout = 100

    @run
    async def test_nobody_is_taken_for_somebody_else(self) -> None:
        """HO-24: descriptors are used again at once, and each end is that of its connection."""
        factory = self.server(HeldSink(), limits={"session-idle": 1000.0, "liveness": 1000.0})
        address = factory.addresses[0]
        ROUNDS, EACH = 25, 6

        def churn() -> None:
            with Plain(address) as stays:
                flow = stays.ready("ingest").flow("Writer", ["stays"])
                for number in range(ROUNDS):
                    clients = [Plain(address) for _ in range(EACH)]
                    for client in clients:
                        client.open(f"round-{number}")
                    for client in clients[::2]:
                        client.__exit__()
                    for client in clients[1::2]:
                        # Whoever stays beside those who left is who it was.
                        assert client.ask("Connection.Profile", profile="ingest")[0] == "200"
                        one = client.flow("Writer", ["a"])
                        one.confirmed(one.content("a", b"%d" % number))
                        client.__exit__()
                    flow.confirmed(flow.content("stays", b"%d" % number))
                assert stays.ask("Connection.Profile", profile="ingest")[0] == "200"

        await deferToThread(churn)
        await until(lambda: not factory.snapshot()["sessions"])
        sink = factory.sink
        rows = [message for batch in sink.batches for message in batch]
        self.assertEqual(len(rows), ROUNDS * (EACH // 2 + 1))
        for row in rows:
            host = row.fields["mtl-virtual-host"]
            stays = row.destination == "stays"
            self.assertEqual(host, "test-env" if stays else f"round-{row.body.decode()}")
        self.assertEqual(factory.counters["sessions_total"], ROUNDS * EACH + 1)
        self.assertEqual(factory.counters["fault:hand-shake"], 0)  # all of them had one

    @run
    async def test_who_does_not_shake_hands_is_told_and_counted__RD_31(self) -> None:
        """MT-31: on each socket, beside clients that are served; who only looks is no fault."""
        for beside in (LOOPBACK, None):
            factory = self.server(limits={"handshake": 0.2}, data=beside)
            ports = {int(address.rpartition(":")[2]) for address in factory.addresses}
            counters, expected = factory.counters, 0

            def come(port: int, greeting: bytes | None) -> None:
                with socket.create_connection(("127.0.0.1", port), 20) as peer:
                    if greeting is None:
                        return
                    peer.sendall(greeting)
                    with contextlib.suppress(ConnectionError):
                        while peer.recv(1000):
                            pass

            with capturedLogs() as lines, Plain(factory.addresses[0]) as client:
                for port, (name, greeting) in itertools.product(ports, STRANGERS.items()):
                    await deferToThread(client.open)
                    await deferToThread(come, port, greeting)
                    expected += greeting is not None
                    while counters["fault:hand-shake"] < expected:
                        await later(0.005)
                    self.assertEqual(counters["fault:hand-shake"], expected, name)
            texts = [formatEvent(line) for line in lines if line.get("reason") == "hand-shake"]
            for text in (sockets.OTHER_PROTOCOL, sockets.TOO_SLOW):
                self.assertTrue(any(text in line for line in texts), texts)

    @run
    async def test_what_was_sent_before_the_end_is_stored(self) -> None:
        """MT-30: whoever writes and leaves at once."""
        factory = self.server(HeldSink(), limits={"heartbeat": 100, "liveness": 1000})

        def write() -> None:
            with Plain(factory.addresses[0]) as client:
                # TCP throws away what it has to send if it leaves a Confirm or a Ping unread.
                flow = client.ready("ingest").flow("Writer", ["a"], "none")
                for number in range(1000):
                    flow.content("a", b"%d" % number)
                flow.socket.close(linger=20_000)

        await deferToThread(write)
        await until(lambda: len(factory.sink.bodies) == 1000)
        await until(lambda: not factory.snapshot()["sessions"])

    @run
    async def test_nothing_is_sent_to_a_reader_that_has_just_left__MT_30(self) -> None:
        """It would be lost with confirm none, while what it sent before may still come."""
        factory, got = self.server(HeldSink()), list[Any]()
        client = await self.ready(factory, "queue")
        writer, gone = await client.writer(["a"]), await client.reader(["a"], "none", got.append)
        await gone.summon("a")
        gone.close()
        await until(lambda: factory.snapshot()["connections"] == 2)
        await writer.send("a", b"first")
        reader = await client.reader(["a"], "none", got.append)
        await reader.summon("a")
        await until(lambda: factory.snapshot()["readers"] == 1)
        await writer.send("a", b"second")
        await until(lambda: got)
        self.assertEqual(got[0].body, b"first")

    @run
    async def test_who_cannot_be_sent_anything_any_more_has_left__MT_30(self) -> None:
        """Also where libzmq has not told yet that its connection has ended."""
        recorded = Recorded()
        limits: dict[str, object] = {"heartbeat": 0.05, "liveness": 1000}
        factory = self.server(HeldSink(), sockets=recorded, limits=limits)
        client = await self.ready(factory, "queue")
        reader = await client.reader(["a"])
        await reader.summon("a")
        recorded.routers[1].monitor.pauseProducing()
        reader.close()
        await until(lambda: not factory.snapshot()["readers"])  # it was pinged
        self.assertEqual(factory.snapshot()["connections"], 2)

    @run
    async def test_who_has_left_before_it_is_heard_opens_nothing__MT_30(self) -> None:
        recorded = Recorded()
        factory = self.server(sockets=recorded)
        recorded.routers[0].pauseProducing()
        with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
            dealer.connect(factory.addresses[0])
            dealer.send_multipart([b"", b"Connection.Open", json.dumps(OPEN).encode()])
            dealer.close(linger=20_000)
            await deferToThread(context.term)
        await until(lambda: not factory.snapshot()["connections"])
        recorded.routers[0].resumeProducing()
        await until(lambda: factory.counters["dropped:left"])
        self.assertEqual(factory.counters["sessions_total"], 0)

    @run
    async def test_a_client_that_reads_no_answers_is_given_up__MT_24__MT_29(self) -> None:
        class Long(IngestProfile):
            name = "x" * 10_000

        factory = self.server(profiles=[Long()])
        client = self.client(factory.addresses[0])
        ask = [b"", b"Connection.Open", json.dumps(OPEN).encode()]

        def be_deaf() -> None:
            with Plain(factory.addresses[0]) as deaf:
                socket = deaf.socket(zmq.DEALER)
                socket.set(zmq.RCVHWM, 1)
                socket.connect(factory.addresses[0])
                while not factory.counters["peers_lost"]:
                    socket.send_multipart(ask)

        await deferToThread(be_deaf)
        await client.open("host")
        await until(lambda: factory.snapshot()["sessions"] == 1)

    @run
    async def test_who_comes_with_an_identity_which_is_free_again_is_a_newcomer(self) -> None:
        """MT-30, HO-24: with keys; its owner has just left, and had its time still."""
        curve, keys = curve_keys()
        limits: dict[str, object] = {"heartbeat": 100, "liveness": 1000}
        factory = self.server(HeldSink(), curve=curve, limits=limits)
        prepare = keyed(keys)

        def named(socket: Any) -> None:
            prepare(socket)
            socket.set(zmq.IDENTITY, b"mine")

        def write_and_claim() -> list[bytes]:
            with (
                Plain(factory.addresses[0], prepare=prepare) as stays,
                Plain(factory.addresses[0], prepare=prepare) as client,
            ):
                client.ready("ingest")
                client.prepare = named
                flow = client.flow("Writer", ["a"])
                flow.confirmed(flow.content("a", b"mine"))
                flow.socket.close(linger=0)
                while stays.open() and factory.snapshot()["writers"]:
                    pass
                newcomer = client.dealer(factory.addresses[1])
                header = bytes([CONTENT]) + (9).to_bytes(8, "big") + short("a") + bytes(4)
                newcomer.send_multipart([header, b"not mine"])
                found: list[bytes] = newcomer.recv_multipart()
                return found

        answer = await deferToThread(write_and_claim)
        self.assertEqual(answer, [bytes([RESPONSE]) + (9).to_bytes(8, "big"), b"403"])
        self.assertEqual(factory.sink.bodies, [b"mine"])


class Ending(ContractCase):
    case = Mtl()

    def test_a_server_that_ends_answers_no_further_request__MT_24(self) -> None:
        """Who came now would be cut off at once."""
        sink = doubles.HeldSink()
        world = self.world(sink)
        sent = world.join().send()
        world.pump()
        world.factory.drain()
        newcomer = world.meet()
        world.pump()
        self.assertEqual(world.factory.counters["sessions_total"], 1)
        sink.safe()
        world.pump()
        self.successResultOf(sent)
        self.assertFalse(newcomer.stands)


class Limited(MtlCase):
    @run
    async def test_above_the_limit_nobody_gets_in_until_somebody_leaves(self) -> None:
        """MT-24, MT-29: control and data connections count together."""
        sink = HeldSink()
        factory = self.server(sink, limits={"connections": 3})
        client = await self.ready(factory, "queue")
        writer, reader = await client.writer(["a"]), await client.reader(["a"])
        self.assertEqual(factory.snapshot()["connections"], 3)
        other = self.client(factory.addresses[0], limits=IMPATIENT)
        await self.assertFailure(other.open("host"), TimedOut)
        self.assertGreaterEqual(factory.counters["turned_away:connections"], 1)
        await writer.send("a", b"x")
        reader.close()
        await until(lambda: not factory.snapshot()["readers"])  # perhaps the other has its place
        await other.open("host")
        self.assertEqual(factory.snapshot()["connections"], 3)

    @run
    async def test_a_session_above_the_limit_is_said_with_its_option__NB_08(self) -> None:
        factory = self.server(limits={"sessions": 1})
        await self.client(factory.addresses[0]).open("host")
        with capturedLogs() as logged:
            for _ in range(3):
                client = self.client(factory.addresses[0])
                await self.assertFailure(client.open("host"), Refused)
                client.abort()
        self.assertEqual(factory.counters["turned_away:sessions"], 3)
        said = [line for event in logged if "sessions" in (line := formatEvent(event))]
        text = "mtl: a session was refused: sessions is 1 (--limit sessions=NUMBER changes it)"
        self.assertEqual(said, [text])

    @run
    async def test_one_address_may_have_fewer__MT_29(self) -> None:
        factory = self.server(limits={"connections-per-address": 1})
        address = factory.addresses[0].removeprefix("tcp://")
        request = [b"", b"Connection.Profile", b"{}"]

        def knock() -> None:
            with Plain(factory.addresses[0]) as client:
                assert client.open()[0] == "201"
                dealers = [
                    dealer_from(client, source, address)
                    for source in ("127.0.0.1", "127.0.0.2", "127.0.0.2")
                ]
                poller = zmq.Poller()
                for dealer in dealers:
                    dealer.send_multipart(request)
                    poller.register(dealer, zmq.POLLIN)
                ((served, _),) = poller.poll(20_000)
                assert served in dealers[1:]
                poller.unregister(served)
                assert poller.poll(300) == []

        await deferToThread(knock)
        self.assertGreaterEqual(factory.counters["turned_away:connections-per-address"], 2)
        await until(lambda: not factory.snapshot()["connections"])

    @run
    async def test_silent_connections_do_not_lock_others_out__NB_08(self) -> None:
        """NB-08: the longest silent one of the largest group is closed for who comes from another.

        Loopback is no group, and nobody waits a minute here: both are said to be otherwise.
        """
        self.patch(peers, "network_of", lambda address: address)
        self.patch(server, "silent_seconds", silent_for(61.0))
        factory = self.server(HeldSink(), limits={"connections": 10})
        address = factory.addresses[0].removeprefix("tcp://").split(":")
        with contextlib.ExitStack() as stack:
            silent = []
            for number in range(10):
                silent.append(socket.create_connection(address, 10, ("127.0.0.2", 0)))
                stack.enter_context(silent[-1])
                await until(lambda number=number: factory.snapshot()["connections"] == number + 1)
            client = self.client(factory.addresses[0], limits=IMPATIENT)
            await client.open("host")
            gone = [line for line in silent if closed(line)]
        self.assertEqual(len(gone), factory.counters["displaced"])
        self.assertGreaterEqual(len(gone), 1)
        self.assertEqual(factory.counters["turned_away:connections"], 0)


def silent_for(seconds: float) -> Callable[[int], float | None]:
    """What takes the system's place: everybody was silent for so long."""
    return lambda descriptor: seconds


def closed(line: socket.socket) -> bool:
    """Whether the other side has closed a connection; what it has said is read."""
    line.setblocking(False)
    try:
        while line.recv(4096):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        pass
    return True


def test_the_system_says_how_long_a_connection_is_silent() -> None:
    """NB-08: from the last bytes that came."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far = listener.accept()[0]
        with near, far:
            near.sendall(b"x")
            assert far.recv(1) == b"x"
            before = zeromq.silent_seconds(far.fileno())
            assert before is not None
            deadline = time.monotonic() + 60
            while (longest := zeromq.silent_seconds(far.fileno()) or 0.0) < before + 0.05:
                assert time.monotonic() < deadline
            # Again, as long as this process itself comes too late to see that it is short.
            while (zeromq.silent_seconds(far.fileno()) or 0.0) >= longest:
                near.sendall(b"x")
                assert far.recv(1) == b"x"
                assert time.monotonic() < deadline
        with socket.socket(socket.AF_UNIX) as other:
            assert zeromq.silent_seconds(other.fileno()) is None


def accepted(descriptor: int, endpoint: str) -> list[bytes]:
    return [struct.pack("=Hi", zmq.EVENT_ACCEPTED, descriptor), endpoint.encode()]


def disconnected(descriptor: int) -> list[bytes]:
    return [struct.pack("=Hi", zmq.EVENT_DISCONNECTED, descriptor), b""]


def failed(error: int) -> list[bytes]:
    return [struct.pack("=Hi", zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL, error), b""]


def test_an_end_that_is_told_late_is_that_of_the_former_connection__MT_29() -> None:
    """Listeners are asked one after the other, and descriptors are used again at once."""
    admission = sockets.ConnectionAdmission(9, 1, pytest.fail)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        with socket.create_connection(listener.getsockname()), listener.accept()[0] as far:
            one = far.fileno()
            admission.happened([accepted(one, endpoint)], "data")
            admission.happened([accepted(one, endpoint)], "control")
            admission.happened([disconnected(one)], "data")
            assert list(admission.connections) == [one]
            elsewhere = "tcp://127.0.0.1:1"
            admission.happened([accepted(one, elsewhere), disconnected(one)], "data")
            admission.happened([accepted(one, elsewhere)], "data")
            assert list(admission.connections) == [one]
            admission.happened([disconnected(one)], "control")
            assert not admission.connections
            admission.happened([accepted(one, endpoint), disconnected(one)], "control")
            assert not admission.connections


def test_ends_without_a_reason_are_told_but_for_those_of_whom_libzmq_has_asked__RD_31() -> None:
    """Nobody knows which of an address that was: as many are not told as it has asked about."""
    told: list[str] = []
    admission = sockets.ConnectionAdmission(
        9, 9, pytest.fail, lambda address, text: told.append(address)
    )
    strangers = admission.strangers
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        endpoint = f"tcp://127.0.0.1:{listener.getsockname()[1]}"

        def join() -> int:
            stack.enter_context(socket.create_connection(listener.getsockname()))
            descriptor = stack.enter_context(listener.accept()[0]).fileno()
            admission.happened([accepted(descriptor, endpoint)], "data")
            return descriptor

        for _ in range(2):
            told.clear()
            strangers.asked("127.0.0.1")  # before any is known to be there
            *gone, stays, left, last = [join() for _ in range(6)]
            strangers.asked("127.0.0.1")
            for number, descriptor in enumerate(gone):
                admission.happened([disconnected(descriptor)], "data")
                assert told == ["127.0.0.1"] * number
            strangers.heard(stays)  # it was the one: the others were strangers
            assert told == ["127.0.0.1"] * 3
            for descriptor in (left, last):
                admission.happened([failed(errno.ECONNRESET), disconnected(descriptor)], "data")
                assert len(told) == 3
                strangers.asked("127.0.0.1")


def test_without_descriptors_nobody_is_said_to_speak_another_protocol(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """MT-31: each client was, whose connection could not be looked at."""
    told: list[str] = []
    admission = sockets.ConnectionAdmission(
        9, 9, pytest.fail, lambda address, text: told.append(text)
    )
    gone: list[OSError] = [OSError(errno.EMFILE, "no more"), OSError(errno.EBADF, "closed")]

    def dup(descriptor: int) -> int:
        raise gone.pop(0)

    monkeypatch.setattr(os, "dup", dup)
    for expected in ([], [sockets.OTHER_PROTOCOL]):
        admission.happened([accepted(99, "tcp://127.0.0.1:1")], "data")
        admission.happened([disconnected(99)], "data")
        assert told == expected


@pytest.mark.parametrize("abstract", [False, True])
def test_what_is_not_ours_is_left_alone(tmp_path: Path, abstract: bool) -> None:
    """MT-29: a descriptor may be another one's by the time the server hears of it."""
    turned_away: list[str] = []
    admission = sockets.ConnectionAdmission(0, 0, turned_away.append)
    path = "\0" + tmp_path.name if abstract else str(tmp_path / "socket")
    endpoint = f"ipc://{path}".replace("\0", "@")
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as near:
        listener.bind(path)
        listener.listen()
        near.connect(path)
        far, _ = listener.accept()
        reading, writing = os.pipe()
        gone = os.dup(reading)
        os.close(gone)
        admission.happened([accepted(far.fileno(), endpoint + "x")])
        admission.happened([accepted(far.fileno(), "tcp://127.0.0.1:1")])
        admission.happened([accepted(reading, endpoint), accepted(gone, endpoint)])
        assert (admission.connections, turned_away) == ({}, [])
        near.sendall(b"x")
        assert far.recv(1) == b"x"
        admission.happened([accepted(far.fileno(), endpoint)])
        assert turned_away == ["connections"]
        assert near.recv(1) == b""
        for descriptor in (reading, writing):
            os.close(descriptor)
        far.close()
