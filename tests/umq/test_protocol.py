"""UMQ's adapter: Deferreds, hooks, attachments one by one, attributes; both sides ours."""

from twisted.internet.defer import CancelledError, Deferred, succeed

from tests.umq.pairs import Pairs, streaming
from twisted_msgproto.core.errors import (
    ConnectionClosed,
    LimitExceeded,
    TimedOut,
)
from twisted_msgproto.testing import HeldSink
from twisted_msgproto.umq import (
    AttachmentFailure,
    AttachmentLost,
    CallFailed,
    Reply,
    UmqServer,
)


class Calls(Pairs):
    def setUp(self):
        self.both = self.pair()

    def answer(self, payload, *arguments, **options):
        answered = self.both.client.call(payload, *arguments, **options)
        self.both.pump()
        return answered

    def result(self, payload, *arguments, **options):
        return self.successResultOf(self.answer(payload, *arguments, **options))

    def refusal(self, payload, *arguments, **options):
        failure = self.failureResultOf(self.answer(payload, *arguments, **options), CallFailed)
        return failure.value

    def test_a_call_is_answered_with_what_the_hook_returns(self):
        """UM-09, UM-10: text, bytes, None, Deferreds, coroutines."""
        self.assertEqual(self.result("héllo").payload, "héllo")
        self.assertEqual(self.result("none").payload, "")
        self.assertEqual(self.result("coroutine x").payload, "awaited x")
        later = self.answer("later")
        self.assertNoResult(later)
        self.both.server.later[0].callback(b"now")
        self.both.pump()
        self.assertEqual(self.successResultOf(later).payload, "now")

    def test_a_message_has_the_columns_of_the_table(self):
        """UM-17: what requestReceived gets."""
        self.result("hi", [b"a"])
        message = self.both.server.seen[-1]
        self.assertEqual(
            (message.protocol, message.kind, message.message_id, message.body, message.attachments),
            ("umq", "call", "1", b"hi", [b"a"]),
        )
        self.assertEqual((message.peer, message.client_id), ("127.0.0.1:40000", None))
        self.assertEqual(message.received_at, 1_000_000_000)
        self.assertTrue(message.session.startswith("umq-"))

    def test_a_refusal_is_told_and_an_error_is_not(self):
        """UM-09: ``E``; what went wrong inside is nobody's business but ours."""
        teapot = self.refusal("refuse")
        self.assertEqual(
            (teapot.code, str(teapot), teapot.payload), (418, "I'm teapot", "418 I'm teapot")
        )
        self.assertEqual(self.refusal("fail").code, 7)
        self.assertEqual(self.refusal("raise").payload, "internal error")
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)
        self.assertEqual(self.refusal("number").payload, "internal error")
        self.assertEqual(len(self.flushLoggedErrors(TypeError)), 1)
        self.assertEqual(self.refusal("huge").code, 8)
        self.assertEqual(len(self.flushLoggedErrors(LimitExceeded)), 1)
        self.assertEqual(self.both.server_factory.counters["calls_failed"], 2)

    def test_without_an_application_calls_are_refused_with_6(self):
        """UM-09."""
        other = self.pair(UmqServer)
        answered = other.client.call("x")
        other.pump()
        refused = self.failureResultOf(answered, CallFailed).value
        self.assertEqual((refused.code, str(refused)), (6, "not an RPC server"))

    def test_attachments_of_answers_come_complete_with_the_error_in_its_slot(self):
        """UM-04, UM-10, UM-19."""
        reply = self.result("attach")
        self.assertEqual(
            reply.attachments,
            [b"1", b"2", AttachmentFailure("the attachment is not available")],
        )

    def test_attachments_of_calls_may_come_later(self):
        """UM-04: Deferreds are attachments; texts overtake them."""
        first, second = Deferred(), Deferred()
        answered = self.answer("count", [first, second, b"3"])
        self.assertEqual(self.result("meanwhile").payload, "meanwhile")
        second.callback(b"2")
        self.both.pump()
        self.assertNoResult(answered)
        first.errback(RuntimeError("lost"))
        self.both.pump()
        self.assertEqual(
            self.successResultOf(answered).payload,
            "[AttachmentFailure(text='the attachment is not available'), b'2', b'3']",
        )

    def test_the_usual_time_does_not_run_while_the_call_is_on_its_way__HO_04(self):
        both = self.pair(full=1000, client_limits={"call-seconds": 5})
        both.deafen("server")
        usual = both.client.call("x" * 100_000)
        own = both.client.call("y", timeout=5)
        both.clock.advance(8)
        self.failureResultOf(own, TimedOut)
        both.listen()
        both.pump()
        self.assertEqual(len(self.successResultOf(usual).payload), 100_000)

    def test_attachments_may_be_any_iterable(self):
        """It was exhausted when it was weighed, and the message went without attachments."""
        self.assertEqual(self.result("count", iter([b"1", b"2"])).payload, "[b'1', b'2']")
        self.both.client.setAttribute("name", "value", iter([b"3"]))
        self.both.pump()
        self.assertEqual(self.both.server.attributes.attachments("name"), [b"3"])

    def test_one_deferred_may_be_in_several_messages(self):
        """As that of an H is in each session."""
        late = Deferred()
        answers = [self.answer("count", [late]) for _ in range(2)]
        late.callback(b"1")
        self.both.pump()
        for answer in answers:
            self.assertEqual(self.successResultOf(answer).payload, "[b'1']")

    def test_a_late_attachment_has_its_whole_time__UM_04(self):
        """However long nothing was said before, or since the one before it came."""
        answered = self.answer("later", timeout=500)
        self.both.advance(40)
        bodies = [Deferred(), Deferred(), Deferred()]
        self.both.server.later[0].callback(Reply("", bodies))
        for come in (lambda: bodies[0].callback(b"1"), lambda: bodies[1].errback(OSError())):
            self.both.advance(0.2)  # a timer that was set before has its turn
            self.both.advance(44.6)
            come()
        self.both.advance(0.2)
        self.both.advance(44.6)
        self.assertNoResult(answered)
        self.both.advance(0.2)
        first, given_up, late = self.successResultOf(answered).attachments
        self.assertEqual(first, b"1")
        self.assertIn("not available", given_up.text)
        self.assertIn("not there in time", late.text)

    def test_a_late_attachment_that_cannot_be_sent_is_replaced(self):
        """UM-01, UM-04, UM-19: a text would be a command, and the peer would follow it."""
        for wrong in (bytes(17 << 20), "C7:later", None, 7, bytearray(b"x")):
            late = Deferred()
            answered = self.answer("count", [late])
            late.callback(wrong)
            self.both.pump()
            why = "too large" if isinstance(wrong, bytes) else "not available"
            self.assertIn(why, self.successResultOf(answered).payload)
        self.assertEqual(len(self.flushLoggedErrors(LimitExceeded, TypeError)), 5)
        self.assertEqual(self.both.server.later, [])


class Streams(Pairs):
    """UM-19: attachments one by one, on request."""

    def test_an_answers_attachments(self):
        both = self.pair()
        late = Deferred()
        both.server.do_attach = lambda request, rest: Reply("first", [b"1", late, b"3"])
        answered = both.client.call("attach", streamed=True)
        both.pump()
        stream = self.successResultOf(answered).stream
        self.assertEqual(stream.count, 3)
        self.assertEqual(self.successResultOf(stream.next()), b"1")
        second = stream.next()
        self.assertNoResult(second)
        late.errback(RuntimeError("gone"))
        both.pump()
        self.failureResultOf(second, AttachmentLost)
        self.assertEqual(self.successResultOf(stream.next()), b"3")
        self.assertRaises(IndexError, stream.next)

    def test_a_calls_attachments_and_an_error_before_it_is_asked_for(self):
        both = self.pair(methods=streaming())
        first, second = Deferred(), Deferred()
        both.client.call('["stream"]', [first, second, Deferred()])
        both.pump()
        stream = both.server.stream
        waiting = stream.next()
        first.callback(b"1")
        second.errback(RuntimeError())
        both.pump()
        self.assertEqual(self.successResultOf(waiting), b"1")
        self.failureResultOf(stream.next(), AttachmentLost)
        pending = stream.next()
        both.cut()
        self.failureResultOf(pending, ConnectionClosed)

    def test_attachments_which_came_before_the_call_was_safe_are_kept(self):
        """UM-19, in one read and in several: whoever answers the call gets all of them."""
        for late in (False, True):
            sink = HeldSink()
            both = self.pair(sink=sink, methods=streaming())
            third = Deferred()
            both.client.call('["stream"]', [b"1", b"2", third])
            if late:
                both.pump()
            third.callback(b"3")
            both.pump()
            sink.release()
            both.pump()
            stream = both.server.stream
            bodies = [self.successResultOf(stream.next()) for _ in range(3)]
            self.assertEqual(bodies, [b"1", b"2", b"3"])

    def test_a_wait_that_is_cancelled_loses_no_attachment(self):
        """As a time-out does; those who still wait get them in their order."""
        both = self.pair(methods=streaming())
        bodies = [Deferred() for _ in range(3)]
        both.client.call('["stream"]', bodies)
        both.pump()
        waiting = [both.server.stream.next() for _ in range(3)]
        self.assertRaises(IndexError, both.server.stream.next)
        waiting[1].cancel()
        self.failureResultOf(waiting[1], CancelledError)
        for number, body in enumerate(bodies):
            body.callback(b"%d" % number)
        both.pump()
        got = [waiting[0], waiting[2], both.server.stream.next()]
        self.assertEqual([self.successResultOf(one) for one in got], [b"0", b"1", b"2"])

    def test_what_nobody_takes_pauses_reading(self):
        """UM-19: bytes which were streamed and not taken are bounded."""
        both = self.pair(methods=streaming(), limits={"attachments-bytes": 4000})
        both.client.call('["stream"]', [b"x" * 600] * 4)
        both.pump()
        self.assertFalse(both.ends["server"].reading)
        for _ in range(4):
            self.assertEqual(len(self.successResultOf(both.server.stream.next())), 600)
            both.pump()
        self.assertTrue(both.ends["server"].reading)


class OneRead(Pairs):
    """Messages which came in one read are answered as if each had come alone."""

    def test_calls_which_are_answered_at_once_are_never_too_many(self):
        """UM-20"""
        both = self.pair(limits={"calls": 10})
        answers = [both.client.call(str(number)) for number in range(100)]
        both.pump()
        payloads = [self.successResultOf(answer).payload for answer in answers]
        self.assertEqual(payloads, [str(number) for number in range(100)])

    def test_calls_that_were_answered_late_weigh_nothing_any_more__NB_02(self):
        """UM-20, NB-02: nor what the application waited with."""
        both = self.pair(limits={"calls-bytes": 20})
        for number in range(50):
            answer = both.client.call("later")
            both.pump()
            both.server.later[number].callback("done")
            both.pump()
            self.assertEqual(self.successResultOf(answer).payload, "done")

    def test_as_many_bytes_of_calls_may_wait_as_the_limit_says(self):
        """UM-20: the next call is served as long as they are not more."""
        weight = 256 + 1024 + len("later")
        for limit, served in ((weight - 1, 1), (weight, 2)):
            both = self.pair(limits={"calls-bytes": limit})
            for _ in range(2):
                both.client.call("later").addErrback(lambda failure: None)
                both.pump()
            self.assertEqual(len(both.server.later), served)

    def test_a_topic_which_is_subscribed_and_unsubscribed_is_closed(self):
        """UM-14"""
        both = self.pair()
        both.raw("C1:topic 9", "U9:")
        self.assertEqual(both.server.reason, ["unsubscribed"])
        self.assertEqual(both.server.snapshot()["topics"], 0)

    def test_a_callback_which_is_unregistered_while_its_call_waits_is_refused_with_2(self):
        """UM-11"""
        sink = HeldSink()
        both = self.pair(sink=sink)
        callback = both.server.registerCallback(lambda request: "never")
        answered = both.client.callback(callback, "x")
        both.pump()
        both.server.unregisterCallback(callback)
        sink.release()
        both.pump()
        self.assertEqual(self.failureResultOf(answered, CallFailed).value.code, 2)


class Attributes(Pairs):
    def test_attributes_of_the_peer_are_a_mapping_with_a_hook(self):
        """UM-15, UM-16."""
        both = self.pair()
        both.client.setAttribute("key", "va=lue")
        both.client.setAttribute(" k ", " v ", [b"a", succeed(b"b")])
        both.pump()
        attributes = both.server.attributes
        self.assertEqual(dict(attributes), {"key": "va=lue", " k ": " v "})
        self.assertEqual(attributes.attachments(" k "), [b"a", b"b"])
        both.client.unsetAttribute("key")
        both.client.unsetAttribute("never")
        both.pump()
        self.assertEqual((dict(attributes), len(attributes)), ({" k ": " v "}, 1))
        self.assertEqual(
            both.server.seen,
            ["established", ("key", "va=lue"), (" k ", " v "), ("key", None), ("never", None)],
        )
        self.failureResultOf(both.client.setAttribute("a=b", "c"), ValueError)
