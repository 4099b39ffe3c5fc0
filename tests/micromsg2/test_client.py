"""A client's session from its handshake to its end, and a client against a server."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import CancelledError
from twisted.internet.error import ConnectionDone
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

from tests.micromsg2.cases import PEER, Case
from tests.micromsg2.layouts import encode_error
from tests.micromsg2.streams import ack, decode, handshake, message, offers
from tests.tools.sinks import HeldSink, SafeSink
from twisted_msgproto.core.errors import ConnectionClosed, Refused, TimedOut
from twisted_msgproto.micromsg2 import MicroMsg2ClientFactory, Proposal


class ClientLife(Case):
    def test_a_client_opens_the_handshake_and_says_when_it_is_through(self) -> None:
        """MM-02, MM-04"""
        factory = MicroMsg2ClientFactory(clock=self.clock)
        client = factory.buildProtocol(None)
        transport = StringTransport()
        client.makeConnection(transport)  # type: ignore[union-attr]
        (opening,) = decode([transport.value()], 1)
        self.assertEqual(
            [str(offer) for offer in opening.optional],  # type: ignore[attr-defined]
            ["batch-ack:max-count=100", "pub-sub"],
        )
        waiting = client.whenEstablished()  # type: ignore[union-attr]
        dropped = client.whenEstablished()  # type: ignore[union-attr]
        dropped.addErrback(lambda failure: None)
        dropped.cancel()
        self.assertNoResult(waiting)
        client.dataReceived(handshake("", "batch-ack:max-count=50;pub-sub"))  # type: ignore[union-attr]
        self.assertIs(self.successResultOf(waiting), client)
        self.assertIs(self.successResultOf(client.whenEstablished()), client)  # type: ignore[union-attr]
        self.assertEqual(client.machine.room, 50)  # type: ignore[union-attr]
        self.lose(client)
        self.failureResultOf(client.whenEstablished(), ConnectionClosed)  # type: ignore[union-attr]

    def test_a_refused_client_says_why(self) -> None:
        """MM-06"""
        client, transport = self.client(extensions=None)
        waiting = client.whenEstablished()
        client.dataReceived(encode_error("unsupported-extension: json"))
        self.assertTrue(transport.disconnecting)
        self.lose(client)
        failure = self.failureResultOf(waiting, Refused)
        self.assertEqual(failure.value.code, "unsupported-extension")
        self.failureResultOf(client.whenEstablished(), Refused)

    def test_a_client_which_refuses_or_is_left_says_so(self) -> None:
        """MM-05, MM-32"""
        for octets, error in ((handshake(major=2), Refused), (b"", TimedOut)):
            client, transport = self.client(extensions=None)
            waiting = client.whenEstablished()
            client.dataReceived(octets)
            self.clock.advance(0 if octets else 11)
            self.assertTrue(transport.disconnecting)
            self.lose(client)
            self.failureResultOf(waiting, error)

    def test_a_client_receives_and_acknowledges(self) -> None:
        """MM-18: the same hooks and sinks as on a server"""
        sink = HeldSink()
        client, transport = self.client(extensions="ack", sink=sink)
        client.dataReceived(message(1, b"x", "topic/a"))
        self.assertEqual(sink.messages[0].destination, "topic/a")
        self.assertEqual(transport.value(), b"")
        sink.safe()
        self.assertEqual(transport.value(), ack(1))
        self.lose(client)

    def test_subscriptions_are_commands(self) -> None:
        """MM-25: a filter which cannot be is the caller's fault"""
        client, transport = self.client(extensions="pub-sub")
        client.subscribe("topic/a", "n>=N2 ; name=Jonas")
        client.subscribe("q")
        client.unsubscribe("q")
        found = [(f.name, f.parameters) for f in self.frames(transport)]
        self.assertEqual(
            found,
            [
                ("subscribe", {"destination": "topic/a", "filter": "n>=N2;name=TJonas"}),
                ("subscribe", {"destination": "q"}),
                ("unsubscribe", {"destination": "q"}),
            ],
        )
        self.failureResultOf(client.subscribe("a", "n<=Tx"), ValueError)
        self.lose(client)
        other, _ = self.client()
        self.failureResultOf(other.subscribe("a"), ValueError)
        self.lose(other)

    def test_closing_waits_for_what_is_not_safe_and_leaving_does_not(self) -> None:
        """MM-19"""
        for verb, waits in (("close", True), ("leave", False)):
            sink = HeldSink()
            client, transport = self.client(extensions="ack", sink=sink)
            client.dataReceived(message(1))
            gone = getattr(client, verb)()
            self.assertEqual(transport.disconnecting, not waits)
            sink.safe()
            self.assertEqual(transport.value(), ack(1) if waits else b"")
            self.assertTrue(transport.disconnecting)
            self.assertNoResult(gone)
            self.lose(client)
            self.successResultOf(gone)
            self.successResultOf(getattr(client, verb)())

    def test_closing_finishes_what_is_in_flight_and_what_waits(self) -> None:
        """HO-12"""
        client, transport = self.client(extensions="batch-ack:max-count=1")
        sent = [client.send("q", b"%d" % number) for number in range(3)]
        sent[2].addCallback(lambda _: client.send("q", b"too late"))
        closed = client.close()
        for number in range(3):
            self.assertFalse(transport.disconnecting)
            self.assertEqual(self.bodies(transport), [b"%d" % number])
            client.dataReceived(ack(number + 1))
        self.successResultOf(sent[0])
        self.successResultOf(sent[1])
        self.failureResultOf(sent[2], ConnectionClosed)
        self.failureResultOf(client.send("q", b"x"), ConnectionClosed)
        self.assertTrue(transport.disconnecting)
        self.assertEqual(self.bodies(transport), [])
        self.lose(client)
        self.successResultOf(closed)

    def test_a_cancelled_message_holds_up_no_end(self) -> None:
        """HO-12: one which waits for the window is not sent"""
        client, transport = self.client(extensions="ack")
        first, waiting = client.send("q", b"1"), client.send("q", b"2")
        client.close()
        waiting.cancel()
        self.failureResultOf(waiting, CancelledError)
        client.dataReceived(ack(1))
        self.successResultOf(first)
        self.assertTrue(transport.disconnecting)
        self.lose(client)


class Both(Case):
    """Our client against our server, octets carried by hand."""

    def carry(self, *pairs: tuple[Any, Any, Any, Any]) -> None:
        moved = True
        while moved:
            moved = False
            for client, one, server, two in pairs:
                up, down = one.value(), two.value()
                one.clear()
                two.clear()
                if up:
                    server.dataReceived(up)
                if down:
                    client.dataReceived(down)
                moved |= bool(up or down)

    def test_a_message_travels_from_client_to_client(self) -> None:
        """MM-12, MM-19, MM-25, MM-26, MM-28"""
        factory = self.server_factory(sink=SafeSink())
        sides = []
        for extensions in ("json;batch-ack", "json;pub-sub;ack"):
            ours = Proposal(required=offers(extensions))
            client: Any = MicroMsg2ClientFactory(proposal=ours, clock=self.clock).buildProtocol(
                PEER
            )
            one = StringTransport(peerAddress=PEER)
            client.makeConnection(one)
            server, two = self.connect(factory)
            sides.append((client, one, server, two))
        self.carry(*sides)
        (sender, *_), (watcher, *_) = sides
        got: list[Any] = []
        watcher.factory.sink = SafeSink()
        watcher.subscribe("topic/a", "n>N1")
        self.carry(*sides)
        sent = [sender.send("topic/a", {"n": n}, {"n": n}) for n in range(4)]
        self.carry(*sides)
        self.clock.advance(0.6)
        self.carry(*sides)
        for deferred in sent:
            self.successResultOf(deferred)
        got = [watcher.decoded(m.body) for m in watcher.factory.sink.messages]
        self.assertEqual(got, [{"n": 2}, {"n": 3}])
        self.assertEqual(factory.broker.snapshot()["topics_acknowledged"], 2)
        for client, _, server, _ in sides:
            client.connectionLost(Failure(ConnectionDone()))
            server.connectionLost(Failure(ConnectionDone()))
        self.assertEqual(self.clock.getDelayedCalls(), [])
