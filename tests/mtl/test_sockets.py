"""What is under the server: who sent a message, and from where; what a socket may hold."""

from __future__ import annotations

from typing import Any

import zmq
from twisted.internet.threads import deferToThread

from tests.mtl.cases import HeldSink, MtlCase, run, until
from tests.mtl.plain import CONTENT, RESPONSE, Flow, Plain, short
from twisted_msgproto.mtl.wire.data import PONG
from twisted_msgproto.mtl.zeromq import _Routing


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
    async def test_who_claims_an_identity_from_elsewhere_writes_in_nobodys_name(self) -> None:
        """MT-30: its owner has left, which the server has not noticed yet."""
        sink = HeldSink()
        factory = self.server(sink, limits={"heartbeat": 100, "liveness": 1000})
        client = Plain(factory.addresses[0])
        self.addCleanup(client.__exit__)

        def write() -> tuple[str, Any]:
            address, token = lease(client.ready("ingest"))
            flow = Flow(dealer_from(client, "127.0.0.2", address), token)
            assert flow.lease() == b"200"
            flow.confirmed(flow.content("a", b"mine"))
            return address, flow.socket

        address, owner = await deferToThread(write)
        (identity,) = factory.machine._flows
        owner.close(linger=0)
        socket = factory._data.socket

        def gone() -> bool:
            try:
                socket.send_multipart([identity, *PONG], zmq.NOBLOCK)
            except zmq.ZMQError as error:
                return error.errno == zmq.EHOSTUNREACH
            return False

        await until(gone)

        def claim() -> list[bytes]:
            newcomer = dealer_from(client, "127.0.0.3", address, identity)
            newcomer.send_multipart(
                [bytes([CONTENT]) + (9).to_bytes(8, "big") + short("a") + bytes(4), b"not mine"]
            )
            found: list[bytes] = newcomer.recv_multipart()
            return found

        answer = await deferToThread(claim)
        self.assertEqual(answer, [bytes([RESPONSE]) + (9).to_bytes(8, "big"), b"403"])
        self.assertEqual(sink.bodies, [b"mine"])
        self.assertEqual(factory.counters["identities_claimed"], 1)
        self.assertEqual(factory.machine.snapshot()["writers"], 0)

    @run
    async def test_on_ipc_the_peer_is_the_process(self) -> None:
        """MT-31"""
        sink = HeldSink()
        factory = self.server(sink, listen=[f"ipc://{self.mktemp()}"], data=None)
        client = await self.ready(factory, "ingest")
        writer = await client.writer(["a"])
        await writer.send("a", b"x")
        self.assertRegex(str(sink.batches[0].peer), r"^localhost:\d+:\d+:\d+$")


class Frame:
    def __init__(self, octets: bytes, address: str | None) -> None:
        self.bytes = octets
        self.address = address

    def get(self, name: str) -> str:
        assert name == "Peer-Address"
        if self.address is None:
            raise zmq.ZMQError(zmq.EINVAL)
        return self.address


class Reading(_Routing):
    """A ROUTER above a list of messages: identity, address, body."""

    def __init__(self, *messages: tuple[bytes, str | None, bytes]) -> None:
        self.frames = [
            frame
            for identity, address, body in messages
            for frame in ((Frame(identity, address), True), (body, False))
        ]
        self.socket = self
        self.more = False
        self._with_keys = False
        self._addresses, self._held = {}, None

    def recv(self, flags: int, copy: bool = True) -> Any:
        if not self.frames:
            raise zmq.Again
        frame, self.more = self.frames.pop(0)
        return frame

    def getsockopt(self, option: int) -> bool:
        assert option == zmq.RCVMORE
        return self.more

    def slices(self) -> list[tuple[list[bytes], dict[bytes, str]]]:
        """All reads: their bodies, and the addresses."""
        found = []
        while True:
            bodies: list[bytes] = []
            try:
                while (parts := self._receive(zmq.NOBLOCK)) is not None:
                    bodies.append(parts[1])
            except zmq.Again:
                found.append((bodies, self._addresses))
                return found
            found.append((bodies, self._addresses))
            self._addresses = {}


def test_an_identity_which_changes_hands_within_a_read_ends_it() -> None:
    """MT-30: each read has one address for an identity; nothing is lost or out of order."""
    reading = Reading(
        (b"a", "192.0.2.1", b"1"),
        (b"b", "::ffff:192.0.2.9", b"2"),
        (b"a", "192.0.2.1", b"3"),
        (b"a", "192.0.2.2", b"4"),
        (b"b", "::ffff:192.0.2.9", b"5"),
        (b"a", "192.0.2.1", b"6"),
        (b"c", None, b"7"),
    )
    assert reading.slices() == [
        ([b"1", b"2", b"3"], {b"a": "192.0.2.1", b"b": "192.0.2.9"}),
        ([b"4", b"5"], {b"a": "192.0.2.2", b"b": "192.0.2.9"}),
        ([b"6", b"7"], {b"a": "192.0.2.1", b"c": ""}),
    ]
