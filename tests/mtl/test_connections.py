"""Sessions and flows end with their connections, and nobody inherits them (MT-30, HO-24)."""

from __future__ import annotations

import gc
from collections import Counter
from types import CodeType, FunctionType, ModuleType
from typing import Any

import zmq
from twisted.internet.threads import deferToThread

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
    write,
)
from tests.mtl.cases import HeldSink, MtlCase, run, until
from tests.mtl.plain import CONTENT, RESPONSE, Plain, short
from twisted_msgproto.mtl.terms import events
from twisted_msgproto.mtl.wire import data
from twisted_msgproto.mtl.zeromq import CurveServer

LEASE = {"resources": ["a"], "confirm": "full"}

CLIENTS = 10_000
"""As many as there may be sessions."""


def reasons(broker: Broker) -> list[str]:
    return [event.reason for event in broker.events if isinstance(event, events.SessionEnded)]


# ── the machine ─────────────────────────────────────────────────────────────────────────────────


def test_sessions_of_clients_which_left_lock_nobody_out() -> None:
    """HO-24: with the time of the first client still running."""
    broker = Broker()
    assert broker.limits["sessions"] == CLIENTS
    for number in range(CLIENTS):
        peer = control_peer(number)
        assert broker.ask(peer, "Open", OPEN)[0] == 201
        broker.leave(peer)
    assert broker.server.snapshot()["sessions"] == 0
    assert broker.ask(control_peer(CLIENTS), "Open", OPEN)[0] == 201
    assert reasons(broker) == ["left"] * CLIENTS


def test_a_session_lives_as_long_as_any_of_its_connections() -> None:
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
    broker.leave(flows[1])
    assert reasons(broker) == ["left"]
    late = data_peer(99)
    assert broker.command(late, data.Lease(1, unused)) == [data.Response(1, 403)]
    assert broker.wait(1000) is None


def test_a_session_whose_flows_ended_otherwise_ends_too() -> None:
    """MT-30: by silence, or because what it wrote was lost."""
    for lost in (False, True):
        broker = Broker()
        peer = broker.session("ingest")
        flow = broker.connect(broker.lease(peer, "Writer"))
        broker.leave(peer)
        if lost:
            broker.command(flow, *contents(2))
            broker.safe(broker.events[-1], False)
        else:
            broker.wait(broker.limits["liveness"] + 1)
        assert reasons(broker) == ["left"]


def test_of_what_a_connection_sent_before_it_ended_only_contents_are_taken() -> None:
    """MT-30"""
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
    broker = Broker(limits={"queue-contents": 500})
    held = []
    for number in range(4):
        comes_and_goes(broker, number)
        assert broker.server.snapshot()["sessions"] == 0
        held.append(reachable(broker.server))
    assert held[3] == held[2], held


def test_a_content_keeps_the_session_although_its_flow_has_ended__MT_30() -> None:
    broker = Broker()
    peer = write(broker, 1)
    for _ in range(40):
        broker.wait(5)
        broker.command(peer, data.Pong())
    broker.command(peer, *contents(2))
    broker.collect(broker.server.peer_lost(peer, broker.now))
    broker.wait(broker.limits["session-idle"] - 1)
    assert len(broker.server.sessions()) == 1
    broker.wait(2)
    assert broker.server.sessions() == []


# ── real sockets ────────────────────────────────────────────────────────────────────────────────


class Real(MtlCase):
    """libzmq over loopback, with CURVE and without."""

    timeout = 100

    def keyed(self, **options: Any) -> tuple[Any, Any]:
        """A server, and what prepares a client's socket; without CURVE."""
        return self.server(HeldSink(), **options), lambda socket: None

    @run
    async def test_clients_which_come_and_go_lock_nobody_out(self) -> None:
        """HO-24: more than there may be sessions, in the time of one which is idle."""
        factory, prepare = self.keyed(limits={"sessions": 20, "session-idle": 1000.0})
        address = factory.addresses[0]

        def come_and_go() -> None:
            for number in range(150):
                with Plain(address, prepare=prepare) as client:
                    # Who is early may meet those whose end was not told yet.
                    while (code := client.open()[0]) != "201":
                        assert code == "403"
                    if number % 10 == 0:
                        client.ready("ingest").flow("Writer", ["a"])

        await deferToThread(come_and_go)
        await until(lambda: not factory.snapshot()["sessions"])
        self.assertEqual(factory.snapshot()["writers"], 0)

    @run
    async def test_nobody_is_taken_for_somebody_else(self) -> None:
        """HO-24: descriptors are used again at once, and each end is that of its connection."""
        factory, prepare = self.keyed(limits={"session-idle": 1000.0, "liveness": 1000.0})
        address = factory.addresses[0]
        ROUNDS, EACH = 25, 6

        def churn() -> None:
            with Plain(address, prepare=prepare) as stays:
                flow = stays.ready("ingest").flow("Writer", ["stays"])
                for number in range(ROUNDS):
                    clients = [Plain(address, prepare=prepare) for _ in range(EACH)]
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

    @run
    async def test_what_was_sent_before_the_end_is_stored(self) -> None:
        """MT-30: whoever writes and leaves at once."""
        factory, prepare = self.keyed(limits={"heartbeat": 100, "liveness": 1000})

        def write() -> None:
            with Plain(factory.addresses[0], prepare=prepare) as client:
                # TCP throws away what it has to send if it leaves a Confirm or a Ping unread.
                flow = client.ready("ingest").flow("Writer", ["a"], "none")
                for number in range(1000):
                    flow.content("a", b"%d" % number)
                flow.socket.close(linger=20_000)

        await deferToThread(write)
        await until(lambda: len(factory.sink.bodies) == 1000)
        await until(lambda: not factory.snapshot()["sessions"])


class RealWithCurve(Real):
    """The same, with keys: identities may be one's own then."""

    def keyed(self, **options: Any) -> tuple[Any, Any]:
        public, secret = zmq.curve_keypair()
        client_public, client_secret = zmq.curve_keypair()
        curve = CurveServer(secret, {client_public: "robot"})

        def prepare(socket: Any) -> None:
            socket.curve_serverkey = public
            socket.curve_publickey = client_public
            socket.curve_secretkey = client_secret

        return self.server(HeldSink(), curve=curve, **options), prepare

    @run
    async def test_who_comes_with_an_identity_which_is_free_again_is_a_newcomer(self) -> None:
        """MT-30, HO-24: its owner has just left, and had its time still."""
        factory, prepare = self.keyed(limits={"heartbeat": 100, "liveness": 1000})

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
