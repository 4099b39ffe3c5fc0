"""A client's session and its verbs: Deferreds, refusals, bounds, back-pressure."""

from __future__ import annotations

from typing import Any

from twisted.internet.testing import StringTransport

from tests.micromsg2.cases import Case
from tests.micromsg2.streams import (
    ExtensionFrame,
    ack,
    decode,
    encode_error,
    handshake,
)
from twisted_msgproto.core.errors import (
    ConnectionClosed,
    LimitExceeded,
    ProtocolViolation,
    Refused,
)
from twisted_msgproto.micromsg2 import (
    STANDARD,
    Extension,
    MicroMsg2Client,
    MicroMsg2ClientFactory,
)


class ClientLife(Case):
    def test_a_client_opens_the_handshake_and_says_when_it_is_through(self) -> None:
        """MM-02, MM-04"""
        factory = MicroMsg2ClientFactory(clock=self.clock)
        client = factory.buildProtocol(None)
        transport = StringTransport()
        client.makeConnection(transport)
        (opening,) = decode(transport.value(), 1)
        self.assertEqual(
            [str(offer) for offer in opening.optional],
            ["batch-ack:max-count=100", "pub-sub"],
        )
        waiting = client.whenEstablished()
        dropped = client.whenEstablished()
        dropped.addErrback(lambda failure: None)
        dropped.cancel()
        self.assertNoResult(waiting)
        client.dataReceived(handshake("", "batch-ack:max-count=50;pub-sub"))
        self.assertIs(self.successResultOf(waiting), client)
        self.assertIs(self.successResultOf(client.whenEstablished()), client)
        self.assertEqual(client.snapshot()["count"], 50)
        self.lose(client)
        self.failureResultOf(client.whenEstablished(), ConnectionClosed)

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


class Sending(Case):
    """The client's verbs (and the server's: they are the same)."""

    def test_a_sent_message_fires_on_its_ack(self) -> None:
        """MM-12, MM-19"""
        client, transport = self.client(extensions="batch-ack:max-count=2")
        sent = [client.send("q", b"%d" % n, {"k": n}) for n in range(3)]
        self.assertEqual(
            self.frames(transport), [(1, "q", b"k:N0;", b"0"), (2, "q", b"k:N1;", b"1")]
        )
        for deferred in sent:
            self.assertNoResult(deferred)
        client.dataReceived(ack(2))
        self.assertEqual([self.successResultOf(d) for d in sent[:2]], [None, None])
        self.assertEqual(self.frames(transport), [(3, "q", b"k:N2;", b"2")])
        client.dataReceived(ack(3))
        self.successResultOf(sent[2])
        self.lose(client)

    def test_what_is_above_a_limit_fails_alone_and_writes_nothing(self) -> None:
        """HO-13: also while other messages wait for the window"""
        client, transport = self.client(extensions="batch-ack:max-count=1;dotnet")
        sent = client.send("q", b"1", typeName="A")
        waiting = client.send("q", b"2")
        transport.clear()
        for refused in (
            client.send("q", b"x", typeName="x" * 513),
            client.send("q", b"x", {"a": "x" * 8192}),
            client.send("q" * 256, b"x"),
            client.send("q", bytes((16 << 20) + 1)),
        ):
            self.failureResultOf(refused, LimitExceeded)
        self.failureResultOf(client.sendCommand("a", b="x" * 65536), LimitExceeded)
        self.failureResultOf(client.sendExtension("dotnet", bytes(65537)), LimitExceeded)
        self.failureResultOf(client.sendExtension("json", b""), ValueError)  # was not agreed
        self.assertEqual(transport.value(), b"")
        client.dataReceived(ack(1))
        self.successResultOf(sent)
        self.assertEqual(self.bodies(transport), [b"2"])
        client.dataReceived(ack(2))
        self.successResultOf(waiting)
        self.lose(client)

    def test_a_note_which_an_extension_cannot_say_fails_alone(self) -> None:
        """HO-13: found only when the message's turn comes"""

        class Moody(Extension):
            name = "x-moody"
            annotates = True

            def frame_before(self, note: str | None) -> bytes | None:
                if note == "bad":
                    raise ValueError("not today")
                return None if note is None else note.encode()

        known = {"known": STANDARD.plus(Moody)}
        client, transport = self.client(extensions="ack;x-moody", proposal=known)
        sent = client.send("q", b"1", notes={"x-moody": "good"})
        bad = client.send("q", b"2", notes={"x-moody": "bad"})
        last = client.send("q", b"3")
        client.dataReceived(ack(1))
        self.successResultOf(sent)
        self.failureResultOf(bad, ValueError)
        self.assertEqual(self.bodies(transport), [b"1", b"3"])
        client.dataReceived(ack(2))
        self.successResultOf(last)
        self.lose(client)

    def test_without_acks_a_server_which_does_not_read_fills_nothing(self) -> None:
        """MM-32: what waits for the transport is bounded, and an orderly end waits for it"""
        client, transport = self.client(limits={"unsent_bytes": 10})
        transport.producer.pauseProducing()
        sent = client.send("q", b"1" * 10)
        self.failureResultOf(client.send("q", b"2"), LimitExceeded)
        self.assertNoResult(sent)
        client.close()
        self.assertFalse(transport.disconnecting)
        transport.producer.resumeProducing()
        self.successResultOf(sent)
        self.assertEqual(self.bodies(transport), [b"1" * 10])
        self.assertTrue(transport.disconnecting)
        self.lose(client)

    def test_what_waited_for_the_transport_goes_out_when_there_is_room(self) -> None:
        client, transport = self.client(extensions="batch-ack:max-count=2")
        transport.producer.pauseProducing()
        client.send("q", b"1").addErrback(lambda failure: None)
        self.assertEqual(self.bodies(transport), [])
        transport.producer.resumeProducing()
        self.assertEqual(self.bodies(transport), [b"1"])
        self.lose(client)

    def test_many_messages_fire_once(self) -> None:
        """MM-19"""
        client, transport = self.client(extensions="batch-ack:max-count=3")
        sent = client.sendMany("q", [b"%d" % n for n in range(5)])
        client.dataReceived(ack(3))
        self.assertNoResult(sent)
        client.dataReceived(ack(5))
        self.successResultOf(sent)
        self.assertEqual(len(self.bodies(transport)), 5)
        self.lose(client)

    def test_json_is_encoded_when_it_was_agreed(self) -> None:
        """MM-28: bytes pass as they are"""
        client, transport = self.client(extensions="json")
        client.send("q", {"a": 1})
        client.send("q", b"[]")
        self.assertEqual(self.bodies(transport), [b'{"a":1}', b"[]"])
        self.assertEqual(client.decoded(b'{"a":1}'), {"a": 1})
        self.failureResultOf(client.send("q", float("nan")), ValueError)
        plain, _ = self.client()
        self.failureResultOf(plain.send("q", {"a": 1}), TypeError)
        self.assertEqual(plain.decoded(b"{}"), b"{}")
        self.lose(client, plain)

    def test_a_type_stands_before_its_message(self) -> None:
        """MM-29"""
        client, transport = self.client(extensions="dotnet")
        client.send("q", b"1", typeName="A.B")
        client.send("q", b"2", typeName="A.B")
        found = self.frames(transport)
        self.assertEqual(found[0], ExtensionFrame(1, b"A.B"))
        self.assertEqual([row[3] for row in found[1:]], [b"1", b"2"])
        self.lose(client)

    def test_a_refusal_of_the_peer_fails_that_message_alone(self) -> None:
        """MM-19, MM-28"""

        class Quiet(MicroMsg2Client):
            def errorReceived(self, code: str, text: str) -> None:
                """Not logged."""

        client, transport = self.client(Quiet, extensions="batch-ack:max-count=4")
        sent = [client.send("q", b"") for _ in range(3)]
        many = client.sendMany("q", [b"", b""])
        client.dataReceived(
            encode_error("refused: 2: not today")
            + encode_error("bad-payload: 3: not JSON")
            + encode_error("refused: 4")
            + encode_error("refused: 77")
            + encode_error("refused: x")
        )
        refusal = self.failureResultOf(sent[1], Refused)
        self.assertEqual(refusal.value.code, "refused")
        self.failureResultOf(sent[2], Refused)
        self.failureResultOf(many, Refused)
        self.assertNoResult(sent[0])
        client.dataReceived(ack(4))
        self.successResultOf(sent[0])
        self.assertEqual(len(self.frames(transport)), 5)
        client.dataReceived(ack(5))
        self.assertEqual(client.snapshot()["in_flight"], 0)
        self.lose(client)

    def test_the_reason_of_the_end_is_what_the_peer_said_last__RD_25(self) -> None:
        """MM-33: each ERROR that may stand in a session, both sides; not what it said long ago"""

        def ended(side: Any, nbytes: bytes) -> str:
            side.sessionLost = lambda reason: lost.append(reason.getErrorMessage())
            lost: list[str] = []
            sent = side.send("q", b"")
            for read in (nbytes, *([ack(1)] if nbytes == old else [])):
                side.dataReceived(read)
                self.clock.advance(1)
            self.lose(side)
            if nbytes != old:
                failure = self.failureResultOf(sent, ConnectionClosed, Refused)
                self.assertIn(text[:150], str(failure.value))
            return lost[0]

        codes = ("failed: 1", "refused: 1", "bad-payload: 1", "slow-consumer: x", "a\ufffd", "")
        old = encode_error("unknown-command: x")
        for text in (*codes, "protocol-error: x", "limit-exceeded: x", "y" * 300):
            for join in (self.client, self.joined):
                self.assertIn(text[:150], ended(join(extensions="ack")[0], encode_error(text)))
        for join in (self.client, self.joined):
            self.assertEqual(
                ended(join(extensions="ack")[0], old), "Connection was closed cleanly."
            )
        broken, _ = self.client(extensions="ack")
        sent = broken.send("q", b"")
        broken.dataReceived(encode_error("oops: no end") + b"\xff")
        self.lose(broken)
        self.assertIn("unknown flags", str(self.failureResultOf(sent, ProtocolViolation).value))

    def joined(self, extensions: str) -> Any:
        return self.connect(self.server_factory(), extensions)

    def test_a_refused_session_has_the_words_of_the_server__RD_25(self) -> None:
        """MM-06, MM-17: also those of one that says no more than ERROR"""
        for text in ("unsupported-extension: x", "no, thanks", ""):
            client, _ = self.client(extensions=None)
            client.dataReceived(encode_error(text))
            self.lose(client)
            refused = self.failureResultOf(client.whenEstablished(), Refused)
            self.assertIn(text or "ERROR", str(refused.value))

    def test_a_cancelled_send_is_not_sent_if_it_waits(self) -> None:
        client, transport = self.client(extensions="ack", limits={"unsent_messages": 1})
        flying, waiting = (client.send("q", b"%d" % n) for n in range(2))
        for deferred in (flying, waiting):
            deferred.addErrback(lambda failure: None)
            deferred.cancel()
        last = client.send("q", b"2")  # there is room again
        client.dataReceived(ack(1))
        self.assertEqual(self.bodies(transport), [b"0", b"2"])
        client.dataReceived(ack(2))
        self.successResultOf(last)
        self.lose(client)

    def test_a_producer_is_paused_while_its_messages_wait(self) -> None:
        """MM-19: while the window is full"""

        class Producer:
            state = "producing"

            def pauseProducing(self) -> None:
                self.state = "paused"

            def resumeProducing(self) -> None:
                self.state = "producing"

        client, transport = self.client(extensions="batch-ack:max-count=2")
        producer = Producer()
        client.registerProducer(producer)
        with self.assertRaises(RuntimeError):
            client.registerProducer(Producer())
        first = client.send("q", b"")
        self.assertEqual(producer.state, "producing")
        second = client.send("q", b"")
        self.assertEqual(producer.state, "paused")
        client.dataReceived(ack(1))
        self.assertEqual(producer.state, "producing")
        transport.producer.pauseProducing()
        self.assertEqual(producer.state, "paused")
        transport.producer.resumeProducing()
        self.assertEqual(producer.state, "producing")
        client.dataReceived(ack(2))
        self.successResultOf(first)
        self.successResultOf(second)
        client.unregisterProducer()
        with self.assertRaises(ValueError):
            client.registerProducer(producer, streaming=False)
        self.lose(client)
