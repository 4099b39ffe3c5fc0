"""A client's session and its verbs: Deferreds, refusals, bounds, back-pressure."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.testing import StringTransport

from tests.doubles import HeldSink
from tests.micromsg2.cases import Case
from tests.micromsg2.streams import (
    ack,
    decode,
    encode_error,
    handshake,
    message,
    messages,
    parts,
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
    MessageRefused,
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
        client.dataReceived(handshake("", "batch-ack:max-count=50;pub-sub"))
        self.assertIs(self.successResultOf(client.whenEstablished()), client)
        self.assertEqual(client.snapshot()["count"], 50)
        self.lose(client)

    def test_subscriptions_are_commands(self) -> None:
        """MM-25"""
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
        for name in ("", "x" * 256, "\udcff"):  # no objection of the server could end it
            self.failureResultOf(client.subscribe(name), ValueError)
        self.assertEqual(transport.value(), b"")
        self.lose(client)
        other, _ = self.client()
        self.failureResultOf(other.subscribe("a"), ValueError)


class Sending(Case):
    """The client's verbs (and the server's: they are the same)."""

    def test_what_is_above_a_limit_fails_alone_and_writes_nothing(self) -> None:
        """HO-13: also while other messages wait for the window"""
        client, transport = self.client(extensions="batch-ack:max-count=1;dotnet")
        sent = client.send("q", b"1", typeName="A")
        waiting = client.send("q", b"2")
        transport.clear()
        for destination, kind in (("q", "x" * 513), ("q" * 256, "A")):
            refused = client.send(destination, b"x", typeName=kind)
            self.failureResultOf(refused, LimitExceeded)
        self.assertEqual(transport.value(), b"")
        client.dataReceived(ack(1))
        self.successResultOf(sent)
        self.assertEqual(self.bodies(transport), [b"2"])
        client.dataReceived(ack(2))
        self.successResultOf(waiting)

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

    def test_many_messages_fire_once(self) -> None:
        """MM-19"""
        client, transport = self.client(extensions="batch-ack:max-count=3")
        sent = client.sendMany("q", [b"%d" % n for n in range(5)])
        client.dataReceived(ack(3))
        self.assertNoResult(sent)
        client.dataReceived(ack(5))
        self.successResultOf(sent)
        self.assertEqual(len(self.bodies(transport)), 5)

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

    def test_a_refusal_of_the_peer_fails_that_message_alone(self) -> None:
        """MM-19, MM-28"""

        class Quiet(MicroMsg2Client):
            def errorReceived(self, code: str, text: str) -> None:
                """Not logged."""

        client, transport = self.client(Quiet, extensions="batch-ack:max-count=4")
        sent = [client.send("q", b"") for _ in range(3)]
        many = client.sendMany("q", [b"", b""])
        told = ["refused: 2: not today", "bad-payload:\t3 : not JSON", "refused:4"]
        others = ["refused: 77", "refused: x", "refused: 000001", "refused: ¹", "refused: 1 x"]
        others += ["refused", "failed: 1", "unrefused: 1", "refused: " + "1" * 5000]
        client.dataReceived(b"".join(map(encode_error, told + others)))
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
        self.failureResultOf(client.send("q", b"x"), LimitExceeded)
        for deferred in (flying, waiting):
            deferred.addErrback(lambda failure: None)
            deferred.cancel()
        last = client.send("q", b"2")  # there is room again
        client.dataReceived(ack(1))
        self.assertEqual(self.bodies(transport), [b"0", b"2"])
        client.dataReceived(ack(2))
        self.successResultOf(last)


class Answering(Case):
    """A client takes its time with what the server pushes."""

    def test_what_was_dealt_with_is_acknowledged_before_the_rest_of_its_read(self) -> None:
        """MM-19, MM-31: as far as there is no gap; parts with numbers of their own count each"""
        waiting: dict[bytes, Deferred[None]] = {}

        class Slow(MicroMsg2Client):
            def messageReceived(self, message: Any) -> Deferred[None]:
                return waiting.setdefault(message.body, Deferred())

        client, transport = self.client(Slow, extensions="json;batch-ack:max-count=9")
        big = parts((2, b"[2"), (3, b"]"))
        client.dataReceived(message(1, b"1") + big + message(4, b"{") + messages(5, 1, b"5"))
        client.dataReceived(message(6, b"6") + message(7, b"7"))
        transport.clear()
        for body, number in ((b"6", 0), (b"[2]", 0), (b"1", 4), (b"5", 5), (b"7", 7)):
            waiting[body].callback(None)
            self.clock.advance(0)
            self.assertEqual(transport.value(), ack(number, 2) if number else b"", body)
            transport.clear()

    def test_who_leaves_has_acknowledged_what_is_safe(self) -> None:
        """MM-19: with ``ack`` fewer than N wait for half a second, and the queue had them again."""
        client, transport = self.client(extensions="ack:max-count=9")
        client.dataReceived(message(1))
        self.assertEqual(transport.value(), b"")
        client.leave()
        self.assertEqual(transport.value(), ack(1))
        self.assertTrue(transport.disconnecting)

    def test_nothing_is_acknowledged_before_the_last_word_of_a_batch(self) -> None:
        """MM-19: that of the sink, or of a hook for batches; a refusal and a failure are one too"""
        first, second, last = Deferred[None](), Deferred[None](), Deferred[None]()

        class Hooked(MicroMsg2Client):
            def messageReceived(self, message: Any) -> Deferred[None]:
                return first if message.body == b"1" else second

        class Committing(Hooked):
            def batchReceived(self, batch: Any) -> Any:
                return super().batchReceived(batch).addCallback(lambda _: last)

        for kind, sink in ((Committing, None), (Hooked, HeldSink()), (Hooked, None)):
            first, second = Deferred(), Deferred()
            client, transport = self.client(kind, extensions="batch-ack", sink=sink)
            client.dataReceived(message(1, b"1") + message(2, b"2"))
            if kind is Hooked and sink is None:
                first.errback(MessageRefused("no"))
            else:
                first.callback(None)
            self.clock.advance(0)
            self.assertEqual(transport.value(), b"")
            second.callback(None)
            refused = ["refused: 1: no"] if kind is Hooked and sink is None else []
            self.assertEqual(self.errors(transport), refused)
            self.lose(client)
