"""Requests, answers, bodies in parts; with a sink what is answered means safe."""

from itertools import count

from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.error import ConnectionDone

from twisted_msgproto.core.errors import ConnectionClosed, LimitExceeded, Refused
from twisted_msgproto.sabc import Response, SabcClient, SabcServer

from .pairs import Case, Echo, HeldCase
from .sides import CONNECT, msg


class Answers(Case):
    server_class = Echo

    def ask(self, body, **options):
        asked = self.client.request(body, **options)
        self.pump()
        return asked

    def test_a_request_is_answered_with_what_the_hook_returns(self):
        """SA-16."""
        self.pair()
        for body, expected in (
            (b"Hola", b"Hola"),
            (b"none", b""),
            (b"text", "täxt".encode()),
            (b"done", b"done"),
            (b"coroutine", b"from a coroutine"),
            ("ünicode", "ünicode".encode()),
            (b"", b""),
            (bytearray(b"array"), b"array"),
        ):
            self.assertEqual(self.successResultOf(self.ask(body)).body, expected)
        response = self.successResultOf(self.ask(b"response", headers={"x": "y"}))
        self.assertEqual(response, Response(b"body", {"colour": "red"}))
        self.assertEqual(response.text, "body")
        self.assertEqual(self.server.notes[-1].fields, {"x": "y"})

    def test_an_answer_leaves_when_it_is_there_whatever_it_waited_for(self):
        """SA-16: a Deferred that has fired may wait for another, which its callback returned."""
        inner: list[Deferred[bytes]] = []

        class Chained(SabcServer):
            def requestReceived(self, message):
                inner.append(Deferred())
                return succeed(None).addCallback(lambda _: inner[-1])

        self.pair(server_class=Chained)
        asked = [self.ask(b"good"), self.ask(b"bad")]
        inner[0].callback(b"late")
        self.pump()
        self.assertEqual(self.successResultOf(asked[0]).body, b"late")
        inner[1].errback(Refused("no"))
        self.pump()
        self.failureResultOf(asked[1], Refused)

    def test_an_answer_at_which_the_client_would_close_is_refused_alone(self):
        """SA-22: the client has said how much it takes; it cuts what is a little larger."""

        class Growing(SabcServer):
            def requestReceived(self, message):
                return b"x" * int(message.body)

        self.pair(server_class=Growing)
        cut = self.successResultOf(self.ask(b"%d" % (1 << 20)))
        self.assertTrue(cut.truncated)
        refused = self.failureResultOf(self.ask(b"%d" % (2 << 20)), Refused)
        self.assertEqual(refused.value.code, "500")
        self.assertEqual(len(self.flushLoggedErrors(LimitExceeded)), 1)
        self.assertEqual(self.successResultOf(self.ask(b"3")).body, b"xxx")

    def test_what_a_hook_sees_of_a_request(self):
        """SA-06, SA-09: public names, no session id."""
        self.pair()
        self.ask(b"Hola", headers={"x": "y"})
        message = self.server.notes[-1]
        self.assertEqual(
            (message.protocol, message.kind, message.client_id, message.message_id, message.peer),
            ("sabc", "request", "me", "1", "192.0.2.7:54321"),
        )
        self.assertEqual(message.session, "sabc-20231114T221320.250000Z-1")
        self.assertEqual((message.fields, message.truncated), ({"x": "y"}, False))
        self.assertEqual(message.received_at, 1_700_000_000_250_000)

    def test_a_failure_is_answered_with_an_error_which_tells_nothing_but_a_refusal(self):
        """SA-16, SA-23."""
        self.pair()
        for body in (b"raise", b"odd", b"promise", b"inject", b"odd refusal"):
            error = self.failureResultOf(self.ask(body), Refused).value
            self.assertEqual((str(error), error.code), ("request failed", "500"))
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)
        self.assertEqual(len(self.flushLoggedErrors(TypeError)), 2)
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 2)
        asked = self.ask(b"later")
        self.server.later.errback(RuntimeError("secret detail"))
        self.pump()
        self.failureResultOf(asked, Refused)
        self.flushLoggedErrors(RuntimeError)
        error = self.failureResultOf(self.ask(b"refuse"), Refused).value
        self.assertEqual((str(error), error.code), ("not today", "409"))

    def test_what_is_no_body_is_the_callers_error(self):
        self.pair()
        for wrong in (5, None, {"a": 1}):
            self.assertRaises(TypeError, self.client.request, wrong)
            self.assertRaises(TypeError, self.client.sendOnly, wrong)

    def test_send_only_messages_reach_their_hook(self):
        """SA-17."""
        self.pair()
        self.successResultOf(self.client.sendOnly("Hola", headers={"x": "y"}))
        self.successResultOf(self.client.sendOnly(b"raise"))
        self.pump()
        self.assertEqual([note.kind for note in self.server.notes[1:]], ["send-only"] * 2)
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)
        self.client.sendOnly(b"later")
        self.pump()
        self.server.later.errback(RuntimeError("no"))
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)

    def test_errors_reach_their_hook(self):
        """SA-24."""
        self.pair()
        self.client.sendError("E1", "it rains", headers={"x": "y"})
        self.pump()
        error = self.server.notes[-1]
        self.assertNotIn("session-id", error.headers)
        self.assertEqual((error.code, error.body, error.headers["x"]), ("E1", b"it rains", "y"))
        self.assertTrue(self.server.established)

    def test_the_server_asks_too(self):
        """SA-16: a hook which asks back before it answers."""

        class Asking(SabcServer):
            async def requestReceived(self, message):
                answer = await self.request(b"who?")
                return b"hello " + answer.body

        class Named(SabcClient):
            def requestReceived(self, message):
                return b"Bob"

        self.server = self.serve(server_class=Asking)
        self.client = self.join(client_class=Named)
        self.pump()
        self.assertEqual(self.successResultOf(self.ask(b"x")).body, b"hello Bob")
        # also while the session drains
        asked = self.client.request(b"x")
        left = self.client.disconnect()
        self.pump()
        self.assertEqual(self.successResultOf(asked).body, b"hello Bob")
        self.successResultOf(left)


class InParts(Case):
    """RD-25, SA-18: an answer has the bodies that a request has."""

    class server_class(SabcServer):
        def requestReceived(self, message):
            return self.factory.answers(message)

    def answering(self, answers, **limits):
        self.pair(**limits)
        self.factory.answers = answers

    def turns(self, count=20):
        for _ in range(count):
            self.pump()
            self.clock.advance(0)

    def test_an_answer_is_sent_in_parts__RD_25(self):
        parts = [b"part %d " % number * 1000 for number in range(90, 100)]

        async def later():
            return Response(iter(parts), {"colour": "red"})

        for answers in (
            lambda message: iter(parts),
            lambda message: parts,
            lambda message: succeed(part for part in parts),
            lambda message: later(),
        ):
            self.answering(answers, part_bytes=4096)
            asked = self.client.request(b"x")
            self.turns()
            self.assertEqual(self.successResultOf(asked).body, b"".join(parts))
            peer = self.accept()  # whose framing has no lengths
            peer.dataReceived(CONNECT)
            peer.dataReceived(msg(b"x", session="secret-2", msg_id="1"))
            self.clock.advance(1)
            sent = peer.transport.value()
            self.assertGreater(sent.count(b"msg-more::yes"), 10)
            self.assertEqual(sent.count(b"part 99 "), 1000)
            self.lose(peer)
            self._ids = count(1)

    def test_no_more_is_made_than_the_peer_reads__RD_25(self):
        made = []
        parts = (made.append(number) or b"x" * 10_000 for number in range(1000))
        self.answering(lambda message: parts, message_bytes=20 << 20)
        asked = self.client.request(b"x")
        self.server.dataReceived(self.client.transport.value())
        self.client.transport.clear()
        self.server.link.outputChanged(True)
        self.clock.advance(1)
        self.assertLess(len(made), 40)
        self.assertNoResult(asked)
        left = self.server.close()
        asked.addErrback(lambda failure: None)
        self.lose(self.server)
        self.successResultOf(left)
        self.assertLess(len(made), 40)
        self.assertIsNone(next(parts, None))  # it was closed

    def test_parts_that_fail_fail_the_request_alone__RD_25(self):
        def broken():
            yield b"x" * 100_000
            raise RuntimeError("no more")

        for bad in (broken, lambda: iter([b"x", 7]), lambda: Response(iter([b""]), {"a": "\n"})):
            self.answering(lambda message, bad=bad: bad() if message.body == b"bad" else b"good")
            asked = self.client.request(b"bad")
            self.turns()
            self.assertEqual(self.failureResultOf(asked, Refused).value.code, "500")
            self.assertEqual(len(self.flushLoggedErrors()), 1)
            asked = self.client.request(b"x")
            self.turns()
            self.assertEqual(self.successResultOf(asked).body, b"good")

    def test_many_are_sent_as_the_peer_takes_them__RD_25(self):
        self.answering(lambda message: iter([message.body, b" part"]))
        asked = [self.client.request(b"%d" % number) for number in range(200)]
        self.turns(100)
        bodies = [self.successResultOf(one).body for one in asked]
        self.assertEqual(bodies, [b"%d part" % number for number in range(200)])
        self.assertEqual(self.server.snapshot()["unanswered"], 0)

    def test_an_orderly_end_waits_for_the_last_part__RD_25(self):
        self.answering(lambda message: iter([b"x" * 1000] * 100))
        asked = self.client.request(b"x")
        left = self.client.disconnect()
        self.turns()
        self.assertEqual(len(self.successResultOf(asked).body), 100_000)
        self.successResultOf(left)


class Ends(Case):
    class client_class(SabcClient):
        def sessionLost(self, reason):
            self.reason = reason

        def requestReceived(self, message):
            return Deferred()

    def test_an_expired_session_is_no_lost_connection__RD_25(self):
        """SA-11, SA-13: what the peer said is the reason."""

        class Never(SabcServer):
            def requestReceived(self, message):
                return Deferred()

        self.pair(server_class=Never, session_seconds=20)
        asked, pushed = self.client.request(b"x"), self.server.request(b"y")
        self.pump()
        self.clock.advance(21)
        self.pump()
        error = self.failureResultOf(asked, ConnectionClosed).value
        self.assertEqual(str(error), "the session has expired: the peer said DISCONNECTING")
        self.assertIs(self.client.reason.value, error)
        self.assertIn("expired", str(self.failureResultOf(pushed, ConnectionClosed).value))

    def test_a_server_that_ends_the_session_is_the_reason__RD_25(self):
        self.pair()
        self.server.loseSession()
        self.pump()
        self.assertIn("the peer said DISCONNECTING", str(self.client.reason.value))
        self.pair()
        left = self.client.disconnect()
        self.pump()
        self.successResultOf(left)
        self.client.reason.trap(ConnectionDone)


class Streams(Case):
    server_class = Echo

    def test_a_body_which_comes_piece_by_piece(self):
        """SA-18."""
        self.pair(part_bytes=10)

        def pieces():
            for number in range(40):
                yield b"%d " % number

        asked = self.client.request(pieces(), headers={"x": "y"})
        self.assertNoResult(asked)
        for _ in range(4):
            self.clock.advance(0)
        self.pump()
        expected = b"".join(b"%d " % number for number in range(40))
        self.assertEqual(self.successResultOf(asked).body, expected)
        self.assertEqual(self.server.notes[-1].fields, {"x": "y"})
        sent = self.client.sendOnly([b"a", None, "b"])  # None is a piece like others, and empty
        self.successResultOf(sent)
        self.pump()
        self.assertEqual(self.server.notes[-1].body, b"ab")

    def test_a_streamed_body_waits_for_a_slow_reader(self):
        """SA-18: no more is taken from the source than the peer reads."""
        self.pair()
        taken = []

        def pieces():
            for number in range(100):
                taken.append(number)
                yield b"x" * 1000

        self.client.transport.producer.pauseProducing()
        asked = self.client.request(pieces())
        self.assertEqual(taken, [])
        self.client.transport.producer.resumeProducing()
        self.assertEqual(len(taken), 16)
        self.client.transport.producer.pauseProducing()
        self.clock.advance(0)
        self.assertEqual(len(taken), 16)
        self.client.transport.producer.resumeProducing()
        self.client.transport.producer.resumeProducing()
        while self.clock.getDelayedCalls()[0].getTime() <= self.clock.seconds():
            self.clock.advance(0)
        self.pump()
        self.assertEqual(len(self.successResultOf(asked).body), 100_000)

    def test_a_source_which_fails_ends_its_message_alone(self):
        """SA-18, SA-20."""
        self.pair(part_bytes=4)

        def pieces():
            yield b"a" * 100_000
            raise OSError("disk")

        for verb in (self.client.request, self.client.sendOnly):
            self.failureResultOf(verb(pieces()), OSError)
        self.failureResultOf(self.client.request([5]), TypeError)
        asked = self.client.request(b"next")
        self.pump()
        self.assertEqual(self.successResultOf(asked).body, b"next")
        self.assertEqual(self.factory.counters["discarded_frames"], 2)

    def test_a_streamed_request_can_be_cancelled(self):
        """SA-18, SA-20."""
        self.pair()

        def endless():
            while True:
                yield b"x" * 10_000

        asked = self.client.request(endless())
        asked.cancel()
        self.failureResultOf(asked, CancelledError)
        self.client.sendError(1)  # with lengths a frame ends where the next one begins
        self.pump()
        self.assertEqual(self.factory.counters["discarded_frames"], 1)
        self.assertEqual(self.client.snapshot()["outstanding"], 0)
        asked = self.client.request([b"later"])
        self.clock.advance(0)
        self.pump()
        asked.cancel()
        self.failureResultOf(asked, CancelledError)
        self.assertEqual(self.client.snapshot()["outstanding"], 0)


class Safety(HeldCase):
    server_class = Echo

    def test_messages_before_disconnecting_are_kept(self):
        """SA-13: what came, came."""
        self.pair()
        self.client.request(b"x").addErrback(lambda failure: None)
        self.client.sendOnly(b"y")
        self.client.loseSession()
        self.pump()
        self.assertEqual(len(self.sink.messages), 2)
        self.sink.safe()
        self.assertEqual([getattr(note, "body", note) for note in self.server.notes[-1:]], [b"y"])

    def test_a_cut_message_is_stored_as_cut_and_its_request_fails(self):
        """SA-22, HO-01: acknowledged means whole."""
        for refuse in (False, True):
            self.server = self.serve(message_bytes=300, refuse=refuse)
            self.server.dataReceived(CONNECT)  # a client which does not ask how much it takes
            session = f"secret-{1 + refuse}"
            self.server.dataReceived(msg(b"x" * 400, session=session, msg_id="1"))
            cut = [batch.truncated for batch in self.sink.batches]
            self.assertEqual(cut, [[True]])
            self.sink.safe()
            answer = self.server.transport.value()
            self.assertIn(b"error-code::413" if refuse else b"truncated::yes", answer)
            counted = "refused_frames" if refuse else "truncated_messages"
            self.assertEqual(self.factory.counters[counted], 1)
