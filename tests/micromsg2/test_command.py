"""``msgproto send|recv micromsg2`` with servers of others, which know ``ack`` only (HO-16).

The foreign server is made after a recorded session of the reference implementation.
"""

from __future__ import annotations

import socket
import sys
from functools import partial
from typing import Any

import pytest
from twisted.internet.defer import Deferred, fail
from twisted.internet.protocol import Protocol

from tests.chaos.gateways import until
from tests.contract.cases import CASES
from tests.contract.sending import Peer, Sent, Typed
from tests.contract.world import ContractCase
from tests.micromsg2.streams import Handshake, ack, decode, encode_error, handshake
from tests.tools.processes import PATIENCE_SECONDS, PROJECT, Launcher
from twisted_msgproto import Message
from twisted_msgproto.core.errors import ConfigurationError, Refused
from twisted_msgproto.micromsg2 import command
from twisted_msgproto.net.clients.command_types import RecvOptions, SendOptions
from twisted_msgproto.registry import load
from twisted_msgproto.testing import SafeSink


class Foreign(Protocol):
    """The reference server, as far as a sender notices.

    ``knows`` are the extensions which it has; a client which requires another one is told so with
    an ERROR, or, if it is ``rude``, finds the connection closed.  Each message is acknowledged as
    soon as it came, if ``ack`` was agreed.

    Attributes:
        openings: what each connection required.
        bodies: payloads in the order in which they came.
    """

    def __init__(self, knows: set[str], rude: bool, openings: list[str], bodies: list[bytes]):
        self.knows, self.rude = knows, rude
        self.openings, self.bodies = openings, bodies
        self.nbytes, self.taken, self.required = b"", 0, set[str]()

    def dataReceived(self, data: bytes) -> None:
        self.nbytes += data
        for frame in decode(self.nbytes, 2)[self.taken :]:
            self.taken += 1
            if isinstance(frame, Handshake):
                self.shake_hands(frame)
            else:
                self.take(frame)

    def shake_hands(self, said: Handshake) -> None:
        self.required = {offer.name for offer in said.required}
        text = ";".join(map(str, said.required))
        if self.taken == 2:
            return
        self.openings.append(text)
        if self.required <= self.knows:
            # It lists what the client requires as required, too.
            self.transport.write(handshake(text, minor=1, identity="FastSocket v1.1"))
            return
        if not self.rude:
            self.transport.write(encode_error("unsupported extension"))
        self.transport.loseConnection()

    def take(self, message: Any) -> None:
        self.bodies.append(message[3])
        if "ack" in self.required:
            self.transport.write(ack(message[0]))


class Objecting(Foreign):
    """Acknowledges nothing, and says which message it does not take."""

    def take(self, message: Any) -> None:
        super().take(message)
        if len(self.bodies) == 2:
            self.transport.write(encode_error("bad-payload: 2: not JSON"))


class Mute(Foreign):
    """Agrees to a session, and does nothing in it."""

    def take(self, message: object) -> None:
        """Nothing."""


class Closed(Protocol):
    """Refuses every session."""

    def dataReceived(self, data: bytes) -> None:
        self.transport.write(encode_error("busy"))
        self.transport.loseConnection()


class ForeignServers(ContractCase):
    case = next(case for case in CASES if case.name == "micromsg2")

    def send(self, knows: set[str], rude: bool = False, **options: Any) -> Sent:
        world = self.world()
        self.openings: list[str] = []
        self.bodies: list[bytes] = []
        endpoint = Peer(world, lambda _: Foreign(knows, rude, self.openings, self.bodies))
        return Sent(self, world, endpoint, **options).settle()

    def test_one_which_knows_ack_only_is_sent_to_with_ack__HO_16(self) -> None:
        for rude in (False, True):
            sent = self.send({"ack"}, rude)
            self.assertIsNone(sent.line)
            self.assertEqual(sent.acknowledged, 6)
            self.assertEqual(self.bodies, [b'{"n":%d}' % n for n in range(6)])
            self.assertEqual(self.openings, ["batch-ack:max-count=2", "ack"])

    def test_the_operator_can_say_which__HO_16(self) -> None:
        sent = self.send({"ack"}, extensions=("ack:max-count=2",))
        self.assertEqual((sent.line, sent.acknowledged), (None, 6))
        self.assertEqual(self.openings, ["ack:max-count=2"])
        sent = self.send({"ack"}, extensions=("batch-ack",))
        self.assertIn("unsupported extension", sent.missing(0))
        self.assertEqual(self.openings, ["batch-ack"])

    def test_one_without_acknowledgements_is_written_to_and_that_is_said__HO_16__RD_45(
        self,
    ) -> None:
        for rude, asked in ((False, ()), (True, ()), (False, ("none",))):
            sent = self.send(set(), rude, extensions=asked)
            self.assertIsNone(sent.line)
            self.assertEqual((sent.acknowledged, sent.progress.messages_written), (0, 6))
            self.assertEqual(self.bodies, [b'{"n":%d}' % n for n in range(6)])
            tried = [""] if asked else ["batch-ack:max-count=2", "ack", ""]
            self.assertEqual(self.openings, tried)

    def test_one_without_acknowledgements_that_objects_is_heard(self) -> None:
        """It ended with 0, and nobody was told; nor does it go on after an objection."""
        for ended in (True, False):
            typed, world = Typed(), self.world()
            endpoint = Peer(world, lambda _: Objecting(set(), False, [], []))
            sent = Sent(self, world, endpoint, source=typed)
            world.wait(1)
            typed.give(b"1", b"2")
            world.pump()
            typed.end() if ended else typed.give(b"more")
            line = "2 of 2 messages were written: the server said 'bad-payload: 2: not JSON'"
            self.assertEqual(sent.settle().line, line)

    def test_one_which_takes_no_session_at_all_is_sent_nothing__RD_45(self) -> None:
        world = self.world()
        endpoint = Peer(world, lambda _: Closed())
        sent = Sent(self, world, endpoint).settle()
        line = sent.missing(0)
        self.assertIn("nothing was sent: the server takes neither batch-ack nor ack nor a", line)
        self.assertIn("(busy); see --extension", line)

    def test_one_whose_certificate_is_not_trusted_is_tried_once(self) -> None:
        world, tried = self.world(), []

        class Distrusted:
            def connect(self, factory: object) -> Deferred[Any]:
                tried.append(factory)
                return fail(Refused("TLS: certificate verify failed"))

        line = Sent(self, world, Distrusted()).settle().missing(0)
        self.assertIn("nothing was sent: TLS: the server's certificate is not one to trust", line)
        self.assertEqual(len(tried), 1)

    def receive(self, world: Any, endpoint: Any, **options: Any) -> tuple[list[Message], Any]:
        self.patch(command, "client_endpoint", lambda reactor, options: endpoint)
        shown: list[Message] = []
        asked = RecvOptions(endpoint="tcp:server:5045", **options)
        receiving = Deferred.fromCoroutine(command.recv(world.clock, asked, shown.append))
        world.pump()
        return shown, receiving

    def test_recv_goes_on_to_the_next_choice_when_the_first_is_refused__HO_16(self) -> None:
        for rude in (False, True):
            world, openings = self.world(), list[str]()
            knows = {"ack", "pub-sub"}
            endpoint = Peer(world, partial(self.foreign, knows, rude, openings))
            _, receiving = self.receive(world, endpoint)
            world.wait(1)
            self.assertNoResult(receiving)
            self.assertEqual(openings, ["batch-ack:max-count=100;pub-sub", "ack;pub-sub"])
            receiving.cancel()
            world.wait(9)
            self.failureResultOf(receiving)

    @staticmethod
    def foreign(knows: set[str], rude: bool, openings: list[str], address: Any) -> Foreign:
        return Mute(knows, rude, openings, [])

    def test_recv_takes_what_matches_the_filter(self) -> None:
        world = self.world(SafeSink())
        endpoint = Peer(world, world.factory.buildProtocol)
        shown, receiving = self.receive(
            world, endpoint, destination="topic/prices", filter="amount>=N100"
        )
        publisher = world.join()
        for amount in (99, 100, 101):
            publisher.client.send("topic/prices", b"%d" % amount, {"amount": amount})
        world.wait(2)
        self.assertEqual([message.body for message in shown], [b"100", b"101"])
        receiving.cancel()
        world.wait(1)
        self.failureResultOf(receiving)

    def test_recv_with_a_count_takes_no_more_however_many_come_at_a_time(self) -> None:
        """It showed nothing, waited for ever, and without acknowledgements the queue was empty."""
        for acks, left in (
            ((), []),
            (("batch-ack:max-count=100",), [b"2", b"3", b"4"]),
            (("ack:max-count=100",), [b"2", b"3", b"4"]),
        ):
            world = self.world(SafeSink())
            endpoint = Peer(world, world.factory.buildProtocol)
            asked: dict[str, Any] = {"destination": "jobs", "extensions": ("pub-sub", *acks)}
            shown, receiving = self.receive(world, endpoint, count=2, **asked)
            world.join().client.sendMany("jobs", [b"%d" % number for number in range(5)])
            world.pump()
            self.assertEqual([message.body for message in shown], [b"0", b"1"])
            receiving.cancel()
            world.wait(1)
            self.failureResultOf(receiving)
            shown, receiving = self.receive(world, endpoint, **asked)
            self.assertEqual([message.body for message in shown], left)
            receiving.cancel()
            world.wait(1)
            self.failureResultOf(receiving)


@pytest.mark.parametrize(
    ("option", "complaint"),
    [
        ({"extensions": ("flying",)}, "--extension: extension flying is offered but not known"),
        ({"extensions": ("batch-ack:max-count=0",)}, "--extension: max-count=0 is not between"),
        ({"extensions": ("ack:max-count",)}, "--extension ack:max-count: 'max-count' has no value"),
        ({"extensions": ("ack", "ack")}, "--extension: extension ack is offered twice"),
        ({"window": 40_000}, "--window is at most 32767, not 40000"),
        ({"destination": "ü" * 200}, "--destination: "),
        ({"properties": {"Ü": "1"}}, "--property: "),
        ({"extensions": ("a\udcff",)}, "--extension a\udcff: extension list is not ASCII"),
        ({"destination": "a\udcff"}, "--destination: a destination is UTF-8"),
        ({"properties": {"a": "\udcff"}}, "--property: .* is not UTF-8"),
    ],
)
def test_what_the_operator_got_wrong_is_told(option: dict[str, Any], complaint: str) -> None:
    options = SendOptions(endpoint="tcp:h:1", **option)
    with pytest.raises(ConfigurationError, match=complaint):
        command.send(None, options, None, None).send(None)


@pytest.mark.parametrize("name", ["", "topic/a", "ü" * 200, "a\udcff"])
def test_a_name_that_no_queue_can_have_is_told__MM_32(name: str) -> None:
    with pytest.raises(SystemExit, match="--broker-queue"):
        load("micromsg2", "service").Options().parseOptions([f"--broker-queue={name}"])


def test_a_server_that_served_and_ends_is_not_thought_to_speak_tls(launch: Launcher) -> None:
    """RD-25: it was told so whenever the server ended before the first message."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        where = f"tcp:127.0.0.1:{server.getsockname()[1]}"
        receiver = launch("recv", "micromsg2", where, "--destination=a")
        server.settimeout(PATIENCE_SECONDS)
        line, _ = server.accept()
        with line:
            until(line, b"pub-sub")
            line.sendall(handshake("batch-ack:max-count=100;pub-sub"))
            until(line, b"subscribe;destination=a")
    assert receiver.wait() == 1
    assert receiver.output == "msgproto recv: the server closed the connection"


@pytest.mark.slow
def test_a_vendors_extension_needs_nothing_from_inside_the_package(launch: Launcher) -> None:
    """MM-10: frames, fields, a command and an answer, over a real socket"""
    example = PROJECT / "examples" / "micromsg2" / "traced.py"
    ended = launch.command([sys.executable, str(example)])
    assert ended.wait() == 0, ended.output
    assert ended.lines == [
        "orders: b'first' asked for by ann",
        "orders: b'second' asked for by ben",
        "orders: b'third' asked for by None",
        "traces seen by the server: 2",
    ]
