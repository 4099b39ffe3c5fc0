"""What is under the server: who sent a message, and from where; what a socket may hold."""

from __future__ import annotations

from select import select
from typing import Any

import pytest
import zmq
from twisted.internet.task import Clock
from twisted.internet.threads import deferToThread

from tests.mtl.broker import Peer, connection_name
from tests.mtl.cases import LOOPBACK, HeldSink, MtlCase, later, reactor, run, until
from tests.mtl.plain import REJECT, Flow, Plain, let_in
from twisted_msgproto.mtl.zeromq import port_of
from twisted_msgproto.mtl.zeromq.bounded import (
    READ_OCTETS_PER_TURN,
    READS_PER_TURN,
    RETRIES_PER_TURN,
    RETRY_SECONDS,
    Bounded,
    Bounds,
)
from twisted_msgproto.mtl.zeromq.connections import Connections
from twisted_msgproto.mtl.zeromq.routing import LAST_WORDS_SECONDS, Routing
from twisted_msgproto.mtl.zeromq.unfinished import EveryUnfinished, Unfinished
from twisted_msgproto.mtl.zeromq.unread import EveryUnread
from twisted_msgproto.net import OctetBudget


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
        factory = self.server()
        control, read = factory._control, []

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
        factory = self.server(
            sink, limits={"unsafe-octets": 1000, "heartbeat": 100, "liveness": 1000}
        )
        client = await self.ready(factory, "ingest")
        writer = await client.writer(["a"])
        first = writer.send("a", bytes(2000))
        await until(lambda: sink.held)
        data, looked = factory._data, []

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
        self.assertEqual([port_of(address) for address in data], [factory.machine.data_port] * 2)
        for address, body in ((one, b"one"), (two, b"two")):
            client = self.client(address)
            await client.open("host")
            await client.profile("ingest")
            writer = await client.writer(["a"])
            await writer.send("a", body)
        self.assertEqual(sink.bodies, [b"one", b"two"])


class Held(MtlCase):
    def test_what_libzmq_holds_of_a_peer_follows_from_octets(self) -> None:
        """MT-24, MT-29: both ways; one message at least, and no default of libzmq's is left."""
        mib = 1 << 20
        for limits, messages in (
            ({}, 32),
            ({"content-octets": mib}, 256),
            ({"content-octets": 1000}, 1000),
            ({"content-octets": 300 * mib}, 1),
            ({"peer-octets": 8 * mib, "content-octets": mib // 4}, 32),
        ):
            for data in (LOOPBACK, None):
                factory = self.server(limits=limits, data=data)
                options = {
                    name: factory._data.socket.get(getattr(zmq, name))
                    for name in ("RCVHWM", "SNDHWM", "MAXMSGSIZE", "RCVBUF", "SNDBUF")
                }
                octets = factory.limits.integer("content-octets")
                if data is None:
                    octets = max(octets, factory.limits.integer("json-octets") + 1024)
                    messages = max(
                        1, min(messages, factory.limits.integer("peer-octets") // octets)
                    )
                self.assertEqual(
                    options,
                    {"RCVHWM": messages, "SNDHWM": messages, "MAXMSGSIZE": octets,
                     "RCVBUF": mib // 4, "SNDBUF": mib // 4},
                )  # fmt: skip
                if data is not None:
                    self.assertEqual(factory._control.socket.get(zmq.RCVHWM), 16)
                    self.assertEqual(factory._control.socket.get(zmq.SNDHWM), 16)

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
        self.assertEqual(factory.machine.profiles["test"].counters["missed"], 0)


Whence = tuple[int, int, str]
"""The serial of a connection, its descriptor, its address; a serial of 0: there is none."""


class Frame:
    """A frame of a message from this connection."""

    def __init__(self, octets: bytes, more: bool, whence: Whence) -> None:
        self.bytes = octets
        self.more = more
        serial, descriptor, address = whence
        self.metadata = {
            "X-Connection": str(serial), "__fd": str(descriptor), "Peer-Address": address,
            "User-Id": "",
        }  # fmt: skip
        if not serial:
            self.metadata = {}

    def get(self, name: str) -> str:
        if name not in self.metadata:
            raise zmq.ZMQError(zmq.EINVAL)
        return self.metadata[name]


class Reading(Routing, Bounded):
    """A ROUTER above a list of messages: their connection, and their frames."""

    socketType = zmq.ROUTER

    def __init__(self, *messages: tuple[Whence, list[bytes]]) -> None:
        self.frames: list[Frame] = []
        self.socket = self.factory = self
        self.reactor = self.clock = Clock()
        self.read_scheduled = None
        self._paused = False
        self._bounds = Bounds(1000)
        self._backlogs: dict[bytes, Any] = {}
        self._retry = None
        self._connections = Connections()
        self._names, self._identities, self._peers = {}, {}, {}
        self._ended, self._silent, self._waiting = {}, {}, None
        every = EveryUnfinished(self.clock)
        self.unfinished = Unfinished(every, self._bounds, lambda *told: None, self._readSoon)
        self._unread: dict[bytes, Any] = {}
        self._frame_octets = 0
        self._everyUnread = EveryUnread(
            self.clock, OctetBudget(), self._backlogs, lambda *cut: None, lambda descriptor: None
        )
        self.got: list[tuple[list[list[bytes]], dict[bytes, Peer]]] = []
        self.told: list[Any] = []
        self.sent: list[list[bytes]] = []
        self._received = lambda messages, peers: self.got.append((messages, dict(peers)))
        self._leaving = lambda name: self.told.append(("leaving", name))
        self._left = lambda names: self.told.append(("left", names))
        self._lost = lambda name: self.told.append(("lost", name))
        self.arrive(*messages)

    def arrive(self, *messages: tuple[Whence, list[bytes]]) -> None:
        self.frames += [
            Frame(octets, number < len(frames), whence)
            for whence, frames in messages
            for number, octets in enumerate(frames, 1)
        ]

    def recv(self, flags: int, copy: bool = True) -> Any:
        if not self.frames:
            raise zmq.Again
        self.last = self.frames.pop(0)
        return self.last.bytes if copy else self.last

    def getsockopt(self, option: int) -> bool:
        assert option == zmq.RCVMORE
        return self.last.more

    def send_multipart(self, parts: list[bytes], flags: int) -> None:
        self.sent.append(parts)

    def read(self) -> list[list[bytes]]:
        """Read on, when what is said last has come: the messages."""
        self.got.clear()
        self.doRead()
        self.clock.advance(LAST_WORDS_SECONDS)
        self.clock.advance(0)
        return [parts for messages, _ in self.got for parts in messages]

    def turn(self) -> int:
        """One turn: how many messages."""
        self.got.clear()
        self.doRead()
        return sum(len(messages) for messages, _ in self.got)

    def admitted(self, descriptor: int, address: str = "192.0.2.1") -> Whence:
        """A new connection."""
        return self._connections.admit(), descriptor, address


def test_a_connection_goes_by_its_serial_whatever_its_identity() -> None:
    """MT-30, HO-24"""
    reading = Reading()
    one = reading.admitted(7, "::ffff:192.0.2.9")
    reading.arrive((one, [b"a", b"1", b""]), (one, [b"a", b"2", b"", b"x", b"y"]))
    first = connection_name(b"a", 1)
    assert reading.read() == [[first, b"1", b""], [first, b"2", b"", b"x", b"y"]]
    assert reading.got[0][1] == {first: Peer("192.0.2.9")}
    reading.sendAll([[first, b"3"]])
    assert reading.sent == [[b"a", b"3"]]
    reading._connections.disconnected(7)
    # The same identity and the same descriptor, at once.
    two = reading.admitted(7)
    second = connection_name(b"a", 2)
    reading.arrive((two, [b"a", b"4"]))
    reading.sendAll([[first, b"5"]])
    assert reading.read() == [[second, b"4"]]
    reading.sendAll([[first, b"6"], [second, b"7"]])
    assert reading.sent == [[b"a", b"3"], [b"a", b"7"]]
    assert reading.told == [("leaving", first), ("left", [first])]
    reading.clock.advance(1)
    assert reading.clock.getDelayedCalls() == []


def test_what_a_connection_sent_before_it_ended_is_read_before_it_has_left() -> None:
    """MT-30, HO-24: also where nothing of it was read before its end was told."""
    reading = Reading()
    one, two = reading.admitted(7), reading.admitted(8)
    reading._connections.disconnected(8)
    reading.arrive(
        (one, [b"a", b"1"]), *[(two, [b"b", b"x"])] * READS_PER_TURN, (two, [b"b", b"y"])
    )
    gone = connection_name(b"b", 2)
    reading.doRead()
    assert reading.told == [("leaving", gone)]
    reading.doRead()
    assert reading.got[-1][0] == [[gone, b"x"], [gone, b"y"]]
    assert reading.told == [("leaving", gone)]
    reading.arrive((two, [b"b", b"last"]))
    assert reading.read() == [[gone, b"last"]]
    assert reading.told == [("leaving", gone), ("left", [gone])]
    assert not reading._peers.keys() - {connection_name(b"a", 1)}
    # Whoever gets the descriptor next is somebody else, and stands.
    reading.arrive((reading.admitted(8), [b"b", b"z"]))
    assert reading.read() == [[connection_name(b"b", 3), b"z"]]
    assert len(reading.told) == 2


def test_who_has_no_serial_goes_by_its_identity() -> None:
    """MT-30: on inproc nobody admits, and nobody tells of an end."""
    inproc = (0, 0, "")
    reading = Reading((inproc, [b"a", b"1"]), (inproc, [b"b", b"2"]))
    names = connection_name(b"a", 0), connection_name(b"b", 0)
    assert reading.read() == [[names[0], b"1"], [names[1], b"2"]]
    assert reading.got[0][1] == {}
    reading.sendAll([[names[1], b"x"]])
    assert reading.sent == [[b"b", b"x"]]


def test_a_read_ends_after_some_messages_or_octets() -> None:
    """MT-24, MT-29: whichever frames they are in."""
    whence = (1, 7, "192.0.2.1")
    reading = Reading(*[(whence, [b"a", b"", b""])] * (2 * READS_PER_TURN + 1))
    assert [reading.turn() for _ in range(3)] == [READS_PER_TURN, READS_PER_TURN, 1]
    half = b"x" * (READ_OCTETS_PER_TURN // 2)
    for frames in ([half, half], [b"", half, half, b""], [half, b"", half]):
        reading = Reading(*[(whence, [b"a", *frames])] * 3)
        assert [reading.turn() for _ in range(4)] == [1, 1, 1, 0]


class Full(Bounded):
    """A ROUTER whose peers have room for as many messages as ``room`` says, or are not there."""

    socketType = zmq.ROUTER

    def __init__(self, **bounds: Any) -> None:
        self.socket = self.factory = self
        self.reactor = self.clock = Clock()
        self.room: dict[bytes, int] = {}
        self.sent: list[list[bytes]] = []
        self.told: list[Any] = []
        self.tried: list[bytes] = []
        self.read_scheduled = None
        self._bounds = Bounds(1000, **bounds)
        self._lost = self.told.append
        self._blocked = lambda peer, full: self.told.append((peer, full))
        self._with_keys = self._paused = False
        self._backlogs, self._retry = {}, None

    def send_multipart(self, parts: list[bytes], flags: int) -> None:
        peer = parts[0]
        self.tried.append(peer)
        if peer not in self.room:
            raise zmq.ZMQError(zmq.EHOSTUNREACH)
        if not self.room[peer]:
            raise zmq.Again
        self.room[peer] -= 1
        self.sent.append(parts)

    def recv(self, flags: int) -> bytes:
        raise zmq.Again

    def getsockopt(self, option: int) -> int:
        return 0

    def send(self, peer: bytes, *bodies: bytes) -> None:
        self.sendAll([[peer, body] for body in bodies])

    @property
    def bodies(self) -> list[bytes]:
        return [body for _, body in self.sent]


def test_what_a_peer_cannot_take_waits_in_its_order_and_is_no_trouble_for_others() -> None:
    """MT-24, MT-27"""
    socket = Full()
    socket.room = {b"a": 1, b"b": 9}
    socket.sendAll([[b"a", b"1"], [b"a", b"2"], [b"b", b"x"], [b"a", b"3"], [b"c", b"-"]])
    assert (socket.bodies, socket.unread, socket.told) == ([b"1", b"x"], 2, [b"c"])
    # A peer is not tried with something new while anything waits for it.
    socket.room[b"a"] = 1
    socket.send(b"a", b"4")
    assert socket.bodies == [b"1", b"x"]
    socket.doRead()
    assert socket.bodies == [b"1", b"x", b"2"]
    socket.room[b"a"] = 9
    socket.clock.advance(RETRY_SECONDS)
    assert socket.bodies == [b"1", b"x", b"2", b"3", b"4"]
    assert (socket.unread, socket.told) == (0, [b"c"])
    socket.clock.advance(1)
    assert socket.clock.getDelayedCalls() == []


@pytest.mark.parametrize("body", [b"", bytes(100)])
def test_who_has_much_waiting_is_blocked_and_then_given_up(body: bytes) -> None:
    """MT-24, MT-27, MT-29: by the number of messages or by their octets."""
    # A message has 101 octets; as many may wait as messages of nothing.
    bounds: dict[str, Any] = {"unread_messages": 40} if not body else {"unread_octets": 40 * 101}
    blocked_at, given_up_at = (5, 41) if not body else (21, 41)
    socket = Full(**bounds)
    socket.room = {b"a": 0}
    for number in range(1, blocked_at + 1):
        assert socket.told == []
        socket.send(b"a", body)
        assert socket.unread == number
    assert socket.told == [(b"a", True)]
    socket.room[b"a"] = blocked_at - 1
    socket.doRead()
    assert socket.told == [(b"a", True)]
    socket.room[b"a"] = 1
    socket.doRead()
    assert socket.told == [(b"a", True), (b"a", False)]
    socket.room[b"a"] = 0
    for _ in range(given_up_at):
        socket.send(b"a", body)
    assert socket.told[2:] == [(b"a", True), b"a"]
    assert socket.unread == 0


def test_who_takes_nothing_for_too_long_is_given_up() -> None:
    """MT-27, MT-29: any message which it takes gives it time."""
    socket = Full(unread_seconds=1.0)
    socket.room = {b"a": 0}
    socket.send(b"a", b"1", b"2")
    socket.clock.pump([0.1] * 9)
    socket.room[b"a"] = 1
    socket.clock.pump([0.1] * 9)
    assert (socket.bodies, socket.told) == ([b"1"], [])
    socket.clock.pump([0.1] * 3)
    assert (socket.told, socket.unread) == ([b"a"], 0)
    socket.clock.advance(1)
    assert socket.clock.getDelayedCalls() == []


def test_many_who_are_full_take_turns() -> None:
    """MT-24: a turn of the reactor tries some of them, the next one others."""
    socket = Full()
    peers = [b"%03d" % number for number in range(RETRIES_PER_TURN + 10)]
    socket.room = dict.fromkeys(peers, 0)
    for peer in peers:
        socket.send(peer, b"x")
    socket.tried.clear()
    socket.doRead()
    assert socket.tried == peers[:RETRIES_PER_TURN]
    socket.doRead()
    assert set(socket.tried) == set(peers)


def test_an_error_of_the_socket_is_not_hidden() -> None:
    """MT-24"""

    class Closed(Full):
        def send_multipart(self, parts: list[bytes], flags: int) -> None:
            raise zmq.ZMQError(zmq.ENOTSOCK)

    with pytest.raises(zmq.ZMQError):
        Closed().send(b"a", b"x")
