"""Sessions on string transports and a clock: hooks, Deferreds, logins, drains, back-pressure."""

from twisted.cred.checkers import InMemoryUsernamePasswordDatabaseDontUse
from twisted.internet.defer import CancelledError, Deferred, succeed

from tests.tools.sinks import SafeSink
from twisted_msgproto.core.errors import (
    ConnectionClosed,
    LimitExceeded,
    ProtocolViolation,
    Refused,
    TimedOut,
)
from twisted_msgproto.net.authentication import portal_over
from twisted_msgproto.sabc import Response, SabcClient, SabcServer
from twisted_msgproto.sabc.exchange import octets_of

from .pairs import Case, HeldCase, Transport
from .vectors import crlf


class Echo(SabcServer):
    """Answers with what came; keeps what else happened."""

    def connectionMade(self):
        self.notes = []
        super().connectionMade()

    def sessionEstablished(self):
        self.notes.append("established")

    def sessionLost(self, reason):
        self.notes.append("lost")

    def requestReceived(self, message):
        self.notes.append(message)
        if message.body == b"none":
            return None
        if message.body == b"text":
            return "täxt"
        if message.body == b"later":
            self.later = Deferred()
            return self.later
        if message.body == b"done":
            return succeed(b"done")
        if message.body == b"coroutine":
            return self.coroutine()
        if message.body == b"response":
            return Response(b"body", {"colour": "red"})
        if message.body == b"raise":
            raise RuntimeError("secret detail")
        if message.body == b"refuse":
            raise Refused("not today", 409)
        if message.body == b"odd refusal":
            raise Refused("not today", "a::b")
        if message.body == b"odd":
            return 7
        if message.body == b"inject":
            return Response(b"", {"a": "b\r\nc::d"})
        return message.body

    async def coroutine(self):
        return b"from a coroutine"

    def messageReceived(self, message):
        self.notes.append(message)
        if message.body == b"raise":
            raise RuntimeError("secret detail")
        if message.body == b"later":
            self.later = Deferred()
            return self.later

    def errorReceived(self, error):
        self.notes.append(error)


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

    def test_an_answer_may_take_its_time(self):
        """SA-16."""
        self.pair()
        asked = self.ask(b"later")
        self.assertNoResult(asked)
        self.server.later.callback(b"at last")
        self.pump()
        self.assertEqual(self.successResultOf(asked).body, b"at last")

    def test_a_failure_is_answered_with_an_error_which_tells_nothing(self):
        """SA-16, SA-23."""
        self.pair()
        for body in (b"raise", b"odd", b"inject", b"odd refusal"):
            error = self.failureResultOf(self.ask(body), Refused).value
            self.assertEqual((str(error), error.code), ("request failed", "500"))
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)
        self.assertEqual(len(self.flushLoggedErrors(TypeError)), 1)
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 2)
        asked = self.ask(b"later")
        self.server.later.errback(RuntimeError("secret detail"))
        self.pump()
        self.failureResultOf(asked, Refused)
        self.flushLoggedErrors(RuntimeError)

    def test_a_hook_may_refuse_with_a_code(self):
        """SA-23."""
        self.pair()
        error = self.failureResultOf(self.ask(b"refuse"), Refused).value
        self.assertEqual((str(error), error.code), ("not today", "409"))

    def test_an_answer_after_the_end_is_nobodys(self):
        """SA-13."""
        self.pair()
        first, second = self.ask(b"later"), None
        later = self.server.later
        self.lose(self.server)
        later.callback(b"too late")
        self.lose(self.client)
        self.failureResultOf(first, ConnectionClosed)
        self.assertIs(second, None)
        self.pair()
        self.ask(b"later").addErrback(lambda failure: None)
        later = self.server.later
        self.lose(self.server)
        later.errback(RuntimeError("too late"))

    def test_requests_time_out(self):
        """SA-27."""
        self.pair()
        quick, slow = self.ask(b"later", timeout=5), self.ask(b"later")
        self.clock.advance(5)
        self.failureResultOf(quick, TimedOut)
        self.clock.advance(54)
        self.assertNoResult(slow)
        self.clock.advance(1)
        self.failureResultOf(slow, TimedOut)

    def test_a_cancelled_request_is_forgotten(self):
        """SA-16."""
        self.pair()
        asked = self.ask(b"later")
        asked.cancel()
        self.failureResultOf(asked, CancelledError)
        self.server.later.callback(b"too late")
        self.pump()
        self.assertEqual(self.client.machine.counters.unknown_responses, 1)

    def test_what_cannot_be_sent_fails_at_once(self):
        """SA-03, SA-06, SA-27."""
        self.pair()
        self.failureResultOf(self.client.request(b"", headers={"a": "b::c"}), ValueError)
        self.failureResultOf(self.client.sendOnly(b"", headers={"msg-id": "1"}), ValueError)
        self.failureResultOf(self.client.request(iter([]), headers={"a": "\n"}), ValueError)
        with self.assertRaises(ValueError):
            self.client.sendError(1, "", headers={"a": "\0"})
        self.assertEqual(self.client.transport.value(), b"")
        with self.assertRaises(TypeError):
            octets_of(5)

    def test_too_many_requests_are_the_callers_fault(self):
        """SA-27."""
        self.server = self.serve()
        self.client = self.join(outstanding_requests=2)
        self.pump()
        asked = [self.ask(b"later"), self.ask(b"later")]
        self.assertEqual(self.client.room, 0)
        self.failureResultOf(self.client.request(b"x"), LimitExceeded)
        for deferred in asked:
            deferred.cancel()
            self.failureResultOf(deferred, CancelledError)

    def test_without_a_session_nothing_is_sent(self):
        """SA-10."""
        self.server = self.serve()
        self.client = self.join()
        self.failureResultOf(self.client.request(b"x"), ConnectionClosed)
        self.failureResultOf(self.client.sendOnly(b"x"), ConnectionClosed)
        self.failureResultOf(self.client.sendOnly([b"x"]), ConnectionClosed)
        with self.assertRaises(ConnectionClosed):
            self.client.sendError(1)
        self.pump()
        self.client.disconnect()
        self.failureResultOf(self.client.request(b"x"), ConnectionClosed)
        with self.assertRaises(ConnectionClosed):
            self.client.sendError(1)

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

    def test_a_failing_error_hook_harms_nobody(self):
        """SA-24."""

        class Failing(SabcServer):
            def errorReceived(self, error):
                raise RuntimeError

        self.pair(server_class=Failing)
        self.client.sendError(1)
        self.pump()
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)
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


class Streams(Case):
    server_class = Echo

    def test_a_large_body_is_sent_in_parts_and_arrives_whole(self):
        """SA-18, SA-19."""
        self.pair()
        body = bytes(range(256)) * 800
        asked = self.client.request(body)
        self.assertGreater(self.client.transport.value().count(b"msg-more::yes"), 2)
        self.pump()
        self.assertEqual(self.successResultOf(asked).body, body)

    def test_a_body_which_comes_piece_by_piece(self):
        """SA-18."""
        self.pair(part_octets=10)

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
        sent = self.client.sendOnly([b"a", b"b"])
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
        self.pair(part_octets=4)

        def pieces():
            yield b"a" * 100_000
            raise OSError("disk")

        for verb in (self.client.request, self.client.sendOnly):
            self.failureResultOf(verb(pieces()), OSError)
        self.failureResultOf(self.client.request([5]), TypeError)
        asked = self.client.request(b"next")
        self.pump()
        self.assertEqual(self.successResultOf(asked).body, b"next")
        self.assertEqual(self.server.machine.counters.discarded_frames, 2)

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
        self.assertEqual(self.server.machine.counters.discarded_frames, 1)
        self.assertEqual(self.client.machine.outstanding, 0)
        asked = self.client.request([b"later"])
        self.clock.advance(0)
        self.pump()
        asked.cancel()
        self.failureResultOf(asked, CancelledError)
        self.assertEqual(self.client.machine.outstanding, 0)

    def test_a_streamed_request_times_out(self):
        """SA-27."""
        self.pair()
        self.client.transport.producer.pauseProducing()
        asked = self.client.request([b"x"], timeout=5)
        self.clock.advance(5)
        self.failureResultOf(asked, TimedOut)
        self.client.transport.producer.resumeProducing()

    def test_streams_end_with_the_session(self):
        """SA-18."""
        self.pair()

        def endless():
            while True:
                yield b"x"

        asked, sent = self.client.request(endless()), self.client.sendOnly(endless())
        self.lose(self.client)
        self.failureResultOf(asked, ConnectionClosed)
        self.failureResultOf(sent, ConnectionClosed)


class Safety(HeldCase):
    server_class = Echo

    def test_an_answer_means_safe(self):
        """SA-16: with a sink the hook and the answer come after it."""
        self.pair()
        asked = self.client.request(b"Hola", headers={"x": "y"})
        self.client.sendOnly(b"quiet")
        self.pump()
        self.assertEqual(self.server.notes, ["established"])
        first, second = self.sink.batches
        self.assertEqual((first.kind, second.kind), ("request", "send-only"))
        self.assertEqual(
            (first.message_id, first.body, first.fields), (["1"], [b"Hola"], [{"x": "y"}])
        )
        self.assertEqual((first.client_id, first.octets, first.truncated), ("me", 4, None))
        self.sink.safe()
        self.pump()
        self.assertEqual(self.successResultOf(asked).body, b"Hola")
        self.assertEqual(len(self.server.notes), 3)

    def test_without_a_hook_a_safe_request_is_acknowledged(self):
        """SA-16."""
        self.pair(server_class=SabcServer)
        asked = [self.client.request(b"x") for _ in range(3)]
        self.client.sendOnly(b"x")
        self.pump()
        for deferred in asked:
            self.assertNoResult(deferred)
        self.sink.safe()
        self.pump()
        self.assertEqual([self.successResultOf(d).body for d in asked], [b""] * 3)

    def test_what_cannot_be_stored_is_answered_with_an_error(self):
        """SA-16."""
        self.pair()
        asked = self.client.request(b"x")
        self.pump()
        self.sink.fail(OSError("disk"))
        self.pump()
        error = self.failureResultOf(asked, Refused).value
        self.assertEqual((error.code, str(error)), ("503", "not stored"))
        self.assertFalse(self.client.established)  # or what is stored of it would have a gap
        self.server, self.client = self.accept(), self.join()
        self.pump()
        self.client.sendOnly(b"x")
        self.pump()
        self.sink.fail(OSError("disk"))
        self.pump()
        self.assertFalse(self.client.established)
        self.assertEqual(len(self.flushLoggedErrors(OSError)), 2)
        self.assertEqual(self.server.notes, ["established", "lost"])
        self.assertEqual(self.factory.counters["unsafe_batches"], 2)

    def test_disconnect_waits_for_the_sink(self):
        """SA-12: what was sent before is stored and answered before the end."""
        self.pair()
        asked = self.client.request(b"x")
        self.client.sendOnly(b"y")
        left = self.client.disconnect()
        self.pump()
        self.assertNoResult(left)
        self.sink.safe(1)
        self.pump()
        self.successResultOf(asked)
        self.assertNoResult(left)
        self.sink.safe(1)
        self.pump()
        self.successResultOf(left)
        self.assertEqual(self.server.notes[-1], "lost")

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

    def test_reading_pauses_while_too_much_waits(self):
        """Back-pressure: octets which are not safe are bounded."""
        self.pair(unsafe_octets=1000)
        self.client.request(b"x" * 2000).addErrback(lambda failure: None)
        self.pump()
        self.assertEqual(self.server.transport.producerState, "paused")
        self.sink.safe()
        self.assertEqual(self.server.transport.producerState, "producing")

    def test_a_cut_message_is_stored_as_cut_and_its_answer_says_so(self):
        """SA-22."""
        self.pair(message_octets=300)
        asked = self.client.request(b"x" * 400)
        self.pump()
        self.assertEqual(self.sink.batches[0].truncated, [True])
        self.sink.safe()
        self.pump()
        response = self.successResultOf(asked)
        self.assertEqual(response.headers["truncated"], "yes")
        self.assertFalse(response.truncated)
        self.assertEqual(self.factory.counters["truncated_messages"], 0)
        self.lose(self.server)
        self.assertEqual(self.factory.counters["truncated_messages"], 1)

    def test_or_it_is_refused(self):
        """SA-22."""
        self.pair(message_octets=300, refuse=True)
        asked = self.client.request(b"x" * 400)
        self.pump()
        self.assertEqual(self.failureResultOf(asked, Refused).value.code, "413")


class Login(Case):
    def portal(self):
        return portal_over([InMemoryUsernamePasswordDatabaseDontUse(me=b"right")])

    def connect(self, passcode, **options):
        self.server = self.serve(portal=self.portal(), **options)
        self.client = self.join(passcode=passcode)
        standing = self.client.whenEstablished()
        self.pump()
        return standing

    def test_who_knows_the_passcode_gets_a_session(self):
        """SA-08."""
        self.assertIs(self.successResultOf(self.connect("right")), self.client)
        self.assertIs(self.successResultOf(self.client.whenEstablished()), self.client)
        self.assertEqual(self.server.clientId, "me")
        self.assertEqual(self.server.avatar.name, "me")
        self.assertNotIn("right", "\n".join(self.lines))

    def test_who_does_not_is_refused_after_a_second(self):
        """SA-08, SA-27."""
        standing = self.connect("wrong")
        self.clock.advance(0.9)
        self.pump()
        self.assertNoResult(standing)
        self.clock.advance(0.1)
        self.pump()
        error = self.failureResultOf(standing, Refused).value
        self.assertEqual(error.code, "403")
        self.assertEqual(self.factory.counters["rejected"], 1)
        self.failureResultOf(self.client.whenEstablished(), Refused)
        self.assertNotIn("wrong", "\n".join(self.lines))

    def test_five_attempts_are_enough(self):
        """SA-27."""
        self.server = self.serve(portal=self.portal())
        for attempt in range(5):
            self.assertFalse(self.server.transport.closing)
            self.server.dataReceived(crlf("CONNECT\nclient-id::me\nclient-passcode::x\n\n"))
            self.assertEqual(self.server.transport.value(), b"")
            self.clock.advance(1)
            self.assertEqual(
                self.server.transport.value(),
                crlf("ERROR\nerror-code::403\n\nAccess Forbidden\n\n^@"),
                attempt,
            )
            self.server.transport.clear()
        self.assertTrue(self.server.transport.closing)

    def test_a_client_id_is_needed(self):
        """SA-07."""
        self.server = self.serve(portal=self.portal())
        self.server.dataReceived(crlf("CONNECT\nx::y\n\n"))
        self.clock.advance(1)
        self.assertIn(b"403", self.server.transport.value())

    def test_a_second_connect_while_one_is_looked_at(self):
        """SA-27."""
        self.server = self.serve(portal=self.portal())
        octets = crlf("CONNECT\nclient-id::me\nclient-passcode::x\n\n")
        self.server.dataReceived(octets + octets)
        self.assertIn(b"error-code::400", self.server.transport.value())
        self.assertTrue(self.server.transport.closing)
        self.lose(self.server)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_a_client_which_leaves_meanwhile(self):
        """SA-08: no timer and no avatar remain."""
        standing = self.connect("wrong")
        self.lose(self.client)
        self.lose(self.server)
        self.failureResultOf(standing, ConnectionClosed)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_the_avatar_is_logged_out(self):
        """SA-08."""
        out = []
        self.connect("right")
        self.server._logout = lambda: out.append("me")
        self.lose(self.server)
        self.assertEqual(out, ["me"])
        self.connect("right")

        def failing():
            raise RuntimeError

        self.server._logout = failing
        self.lose(self.server)
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)

    def test_an_application_decides_by_itself(self):
        """SA-08, SA-06: its own headers both ways."""

        class Strict(SabcServer):
            def authorise(self, request):
                if request.client_id != "me":
                    raise Refused("who are you?", 499)
                if request.headers.get("fail"):
                    raise RuntimeError("secret detail")
                return "somebody"

            def connectedHeaders(self):
                return {"motd": "hi"}

        self.pair(server_class=Strict)
        self.assertEqual(self.server.clientId, "somebody")
        self.assertEqual(self.client.connectedHeaders, {"motd": "hi"})
        self.client = self.join(clientId="eve")
        standing = self.client.whenEstablished()
        self.server = self.accept()
        self.pump()
        error = self.failureResultOf(standing, Refused).value
        self.assertEqual(
            (error.code, str(error)), ("499", "the server refused the session: who are you?")
        )
        self.server = self.accept()
        self.server.dataReceived(crlf("CONNECT\nclient-id::me\nfail::1\n\n"))
        self.assertIn(b"403", self.server.transport.value())
        self.assertNotIn(b"secret detail", self.server.transport.value())
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)

    def test_headers_which_cannot_be_sent_refuse_the_session(self):
        """SA-03."""

        class Bad(SabcServer):
            def connectedHeaders(self):
                return {"a": "b::c"}

        self.server = self.serve(server_class=Bad)
        self.server.dataReceived(crlf("CONNECT\nclient-id::me\n\n"))
        self.assertIn(b"403", self.server.transport.value())
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)

    def test_an_authorisation_which_comes_too_late(self):
        """SA-27."""

        class Slow(SabcServer):
            def authorise(self, request):
                self.asked = Deferred(lambda _: None)
                return self.asked

        self.server = self.serve(server_class=Slow)
        self.server.dataReceived(crlf("CONNECT\nclient-id::me\n\n"))
        self.clock.advance(10)
        self.assertIn(b"408", self.server.transport.value())
        asked = self.server.asked
        asked.callback("me")
        self.assertFalse(self.server.established)
        self.server = self.serve(server_class=Slow)
        self.server.dataReceived(crlf("CONNECT\nclient-id::me\n\n"))
        self.clock.advance(10)
        self.server.asked.errback(Refused("no"))

    def test_a_hook_which_fails_when_the_session_stands(self):
        class Failing(SabcServer):
            def sessionEstablished(self):
                raise RuntimeError

        self.pair(server_class=Failing)
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)
        self.assertTrue(self.server.established)


class Ends(Case):
    server_class = Echo

    def test_a_client_leaves_in_order(self):
        """SA-12."""
        self.pair()
        asked = self.client.request(b"later")
        left = self.client.disconnect()
        again = self.client.disconnect()
        self.pump()
        self.assertNoResult(left)
        self.server.later.callback(b"answered")
        self.pump()
        self.assertEqual(self.successResultOf(asked).body, b"answered")
        self.successResultOf(left)
        self.successResultOf(again)
        self.successResultOf(self.client.disconnect())
        self.assertEqual(self.server.notes[-1], "lost")

    def test_the_drain_is_bounded(self):
        """SA-12."""
        self.pair()
        asked = self.client.request(b"later")
        self.client.disconnect()
        self.pump()
        self.clock.advance(30)
        self.pump()
        self.failureResultOf(asked, ConnectionClosed)
        self.assertEqual(self.factory.counters["ended:DrainTimedOut"], 1)

    def test_leaving_before_the_session_stands(self):
        self.server = self.serve()
        self.client = self.join()
        left = self.client.disconnect()
        self.pump()
        self.successResultOf(left)

    def test_a_client_leaves_at_once(self):
        """SA-13."""
        self.pair()
        asked = self.client.request(b"later")
        self.client.loseSession()
        self.pump()
        self.failureResultOf(asked, ConnectionClosed)
        self.assertEqual(self.server.notes[-1], "lost")
        self.assertEqual(self.factory.counters["ended:DisconnectingReceived"], 1)
        self.client.loseSession()

    def test_a_session_expires(self):
        """SA-11."""
        self.pair(session_seconds=100)
        self.assertEqual(self.client.expires, 1_700_000_100)
        self.assertEqual(self.server.expires, 1_700_000_100)
        self.clock.advance(100)
        self.pump()
        self.assertFalse(self.client.established)
        self.assertEqual(self.factory.counters["ended:SessionExpired"], 1)

    def test_a_server_stops_and_answers_what_is_in_work(self):
        """SA-12."""
        self.pair()
        asked = self.client.request(b"later")
        self.pump()
        drained = self.factory.drain()
        self.pump()
        refused = self.client.request(b"x")
        self.pump()
        self.assertEqual(self.failureResultOf(refused, Refused).value.code, "503")
        self.assertNoResult(drained)
        self.server.later.callback(b"answered")
        self.pump()
        self.assertEqual(self.successResultOf(asked).body, b"answered")
        self.successResultOf(drained)
        self.assertIs(self.factory.buildProtocol(None), None)
        self.server.drain()

    def test_a_connection_which_comes_about_while_the_server_stops(self):
        """SA-12: a WebSocket upgrade takes its time."""
        self.serve()
        late = self.factory.buildProtocol(None)
        self.factory.drain()
        late.makeConnection(Transport())
        self.assertTrue(late.transport.closing)
        self.lose(late)

    def test_no_connect_in_time(self):
        """SA-27."""
        self.server = self.serve()
        self.clock.advance(10)
        self.assertIn(b"error-code::408", self.server.transport.value())
        self.assertTrue(self.server.transport.closing)
        self.assertEqual(self.factory.counters["fault:connect-seconds"], 1)

    def test_no_answer_to_connect_in_time(self):
        """SA-27."""
        self.client = self.join()
        standing = self.client.whenEstablished()
        self.clock.advance(10)
        self.assertTrue(self.client.transport.closing)
        self.lose(self.client)
        self.failureResultOf(standing, TimedOut)
        self.assertEqual(self.client.factory.counters["faults"], 1)

    def test_a_peer_which_breaks_the_protocol(self):
        """SA-05, SA-06: a line in the log, a counter, no secrets, and no more reading."""
        self.pair()
        asked = self.client.request(b"later")
        self.pump()
        self.server.dataReceived(b"HELLO secret-1\r\n")
        self.server.dataReceived(b"HELLO\r\n")
        self.assertIn(b"error-code::400", self.server.transport.value())
        self.assertEqual(self.factory.counters["fault:command"], 1)
        (line,) = [line for line in self.lines if "closed" in line]
        self.assertNotIn("secret-1", line)
        self.pump()
        self.failureResultOf(asked, ConnectionClosed)
        self.server = self.serve()
        self.client = self.join()
        standing = self.client.whenEstablished()
        self.client.dataReceived(b"HELLO\r\n")
        self.lose(self.client)
        self.failureResultOf(standing, ProtocolViolation)

    def test_small_faults_are_told_to_the_operator(self):
        """SA-06, SA-20, SA-27."""
        self.pair()
        head = b"MESSAGE\r\nsession-id::secret-1\r\ncontent-length::1\r\n"
        self.server.dataReceived(head + b"a::b\r\n\r\nx\r\n\r\n\0")
        self.server.dataReceived(
            head + b"msg-id::1\r\n\r\nx" + head + b"msg-id::2\r\nmsg-more::yes\r\n\r\ny"
        )
        self.clock.advance(60)
        text = "\n".join(self.lines)
        for words in ("a frame was refused", "was discarded", "was given up"):
            self.assertIn(words, text)
        self.assertNotIn("secret-1", text)

    def test_a_peer_which_does_not_read(self):
        """FAULTS: unread output pauses reading, then the connection is cut off."""
        self.pair()
        self.server.transport.producer.pauseProducing()
        self.assertEqual(self.server.transport.producerState, "paused")
        self.clock.advance(30)
        self.assertTrue(self.server.transport.aborted)

    def test_nothing_is_taken_in_after_the_end(self):
        """SA-13."""
        self.pair()
        self.server.loseSession()
        notes = list(self.server.notes)
        self.client.request(b"x").addErrback(lambda failure: None)
        self.server.dataReceived(self.client.transport.value())
        self.server.framesReceived([self.client.transport.value()])
        self.assertEqual(self.server.notes, notes)

    def test_a_snapshot_has_no_secrets(self):
        """SA-09, SA-10."""
        self.pair()
        (state,) = self.factory.sessions()
        self.assertEqual((state["client_id"], state["state"]), ("me", "OPEN"))
        self.assertNotIn("secret-1", repr(state))


class Push(Case):
    """The server's side speaks first."""

    def test_the_application_sends_to_a_client_by_its_id(self):
        """SA-16: to the newest of its sessions."""

        class Listening(SabcClient):
            def requestReceived(self, message):
                return b"got " + message.body

        self.client_class = Listening
        self.pair()
        pushed = self.factory.push("me", b"news")
        self.pump()
        self.assertEqual(self.successResultOf(pushed).body, b"got news")
        first = self.server
        second, client = self.accept(), self.join()
        self.pump(second, client)
        self.assertEqual(self.factory.sessionsOf("me"), [first, second])
        self.factory.push("me", b"more", timeout=5).addErrback(lambda failure: None)
        self.assertEqual(first.transport.value(), b"")
        self.assertIn(b"more", second.transport.value())
        self.lose(second)
        self.lose(client)
        self.failureResultOf(self.factory.push("nobody"), ConnectionClosed)

    def test_a_client_puts_what_comes_into_its_own_sink(self):
        """SA-16."""
        self.pair()
        self.client.factory.sink = SafeSink()
        pushed = self.factory.push("me", b"news")
        self.pump()
        self.assertEqual(self.successResultOf(pushed).body, b"")
        self.assertEqual(self.client.factory.sink.messages[0].body, b"news")


class ByHand(Case):
    """What a person types."""

    server_class = Echo

    def test_a_session_typed_with_bare_line_feeds(self):
        """SA-28."""
        self.server = self.serve(lenient=True)
        self.server.dataReceived(b"CONNECT\nclient-id::me\n\n\0\n")
        self.assertIn(b"CONNECTED\r\nsession-id::secret-1\r\n", self.server.transport.value())
        self.server.transport.clear()
        self.server.dataReceived(b"MESSAGE\nsession-id::secret-1\nmsg-id::1\n\nHola\n\n\0\n")
        self.assertEqual(
            self.server.transport.value(),
            crlf("MESSAGE\nsession-id::secret-1\nref-msg-id::1\n\nHola\n\n^@"),
        )
        self.server.transport.clear()
        self.server.dataReceived(b"DISCONNECT\nsession-id::secret-1\n\n")
        self.assertEqual(
            self.server.transport.value(), crlf("DISCONNECTING\nsession-id::secret-1\n\n^@")
        )
        self.assertTrue(self.server.transport.closing)

    def test_tcp_goes_without_delay_and_is_kept_alive(self):
        from twisted.internet.interfaces import ITCPTransport
        from zope.interface import directlyProvides

        calls = []
        self.serve()
        server = self.factory.buildProtocol(None)
        transport = Transport()
        directlyProvides(transport, ITCPTransport)
        transport.setTcpNoDelay = lambda on: calls.append(("no delay", on))
        transport.setTcpKeepAlive = lambda on: calls.append(("keep alive", on))
        server.makeConnection(transport)
        self.assertEqual(sorted(calls), [("keep alive", True), ("no delay", True)])
        self.lose(server)
        for connection in list(self.factory.liveConnections):
            self.lose(connection)
