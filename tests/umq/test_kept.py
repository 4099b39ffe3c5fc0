"""What UMQ's sessions keep for their peers, and what a sink makes safe before it is answered."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.task import Clock
from twisted.logger import capturedLogs, formatEvent
from twisted.trial.unittest import TestCase
from zope.interface import implementer

from tests.umq.pairs import Echo, Pair, Pairs
from twisted_msgproto.core.errors import ConnectionClosed, QueueError, Refused
from twisted_msgproto.net import IMessageSink
from twisted_msgproto.net.memory import SharedState
from twisted_msgproto.testing import HeldSink, SafeSink
from twisted_msgproto.umq import (
    AttachmentLost,
    CallFailed,
    Hub,
    MethodRegistry,
    UmqServer,
    UmqServerFactory,
    call_method,
)

LIMIT = 100_000
REFUSED = "8 too many calls are pending: process-session-bytes"
WIDE = "x" * 9999 + "\U0001f600"
"""With its last character each character of this text takes four bytes."""

MESSAGES = st.sampled_from(
    [
        *('C1:["wait",1]', "C2:" + "x" * 20_000, 'A1:C3:["wait",1]', "A2:C4:", "B5:1:x", "C7:"),
        *("S:a=1", "S:a=" + "x" * 20_000, "A1:S:b=x", "X:a", "X:b", "U1:", "U2:"),
        *(b"", b"x" * 9000, "-:no", "D1:"),
    ]
)


class Sessions(TestCase):
    """NB-02: sessions of several servers of one process, with applications that answer late."""

    def setUp(self):
        self.clock, self.shared = Clock(), SharedState()
        self.pairs, self.late = [], []
        self.methods = MethodRegistry()
        self.methods.register(self.wait, name="wait")
        self.addCleanup(self.close)

    def wait(self, text):
        self.late.append(Deferred())
        return self.late[-1]

    def pair(self, methods=None, **changes):
        factory = UmqServerFactory(
            limits={"process-session-bytes": LIMIT, **changes},
            methods=methods or self.methods,
            shared=self.shared,
            clock=self.clock,
        )
        self.pairs.append(Pair(factory, clock=self.clock))
        return self.pairs[-1]

    def close(self):
        for both in self.pairs:
            both.cut()
        self.clock.advance(60)  # the sum of the refused ones is told
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def room(self):
        """About how many bytes more all sessions may keep, found by a newcomer's attributes."""
        both, count = self.pair(), 0
        while not both.ends["server"].gone:
            both.client.setAttribute(f"{count}", "x" * 2000)
            both.pump()
            count += 1
        return (count - 1) * 2000

    def all_is_free(self):
        """What is kept by nobody may be kept by a newcomer."""
        self.assertGreater(self.room(), LIMIT - 20_000)

    def call(self, both, *words):
        called = call_method(both.client, *words)
        both.pump()
        return called

    def test_the_caller_and_the_operator_are_told_and_a_neighbour_is_answered(self):
        """NB-02, NB-08: the line names the limit, and there is one a minute."""
        hog, good = self.pair(), self.pair()
        waiting = [self.call(hog, "wait", "x" * 30_000) for _ in range(3)]
        with capturedLogs() as logs:
            refused = [self.call(hog, "wait", "x" * 30_000) for _ in range(3)]
        answer = self.call(good, "wait", "y" * 30_000)
        for call in refused:
            error = self.failureResultOf(call, CallFailed).value
            self.assertEqual((error.code, str(error)), (8, REFUSED[2:]))
        lines = [formatEvent(event) for event in logs]
        self.assertEqual(
            lines,
            [
                "umq: a call was refused: process-session-bytes is 100000"
                " (--limit process-session-bytes=NUMBER changes it)"
            ],
        )
        counters = hog.server_factory.counters
        self.assertEqual(counters["turned_away:process-session-bytes"], 3)
        for late in self.late:
            late.callback("done")
        for both in (hog, good):
            both.pump()
        for call in (*waiting, answer):
            self.assertEqual(self.successResultOf(call), "done")

    def test_too_many_attributes_end_the_session_that_has_more_than_its_share(self):
        """NB-02, UM-15, UM-20: ``S`` has no answer that could refuse it."""
        for value in ("x" * 30_000, WIDE):
            hog, good = self.pair(), self.pair()
            good.client.setAttribute("a", "y" * 1000)
            good.pump()
            hog.raw(*(f"S:{number}={value}" for number in range(3)))
            self.assertFalse(hog.ends["server"].gone and value is not WIDE)
            hog.raw(*(f"S:{number}={value}" for number in range(3, 6)))
            self.assertTrue(hog.ends["server"].gone)
            counters = hog.server_factory.counters
            self.assertEqual(counters["turned_away:process-session-bytes"], 1, dict(counters))
            # A value in the place of another counts once, and one that is taken away does not.
            for _ in range(20):
                good.client.setAttribute("a", "y" * 20_000)
                good.client.unsetAttribute("a")
                good.pump()
            self.assertFalse(good.ends["server"].gone)
            self.all_is_free()

    def test_topics_of_all_sessions_have_one_bound(self):
        """NB-02, UM-12: a publisher is told in words that it knows, and has room again later."""
        hog, good = self.pair(), self.pair()
        ids = iter(f"{number}A" for number in range(1, 2000))
        topics = []
        with self.assertRaisesRegex(Refused, "process-session-bytes"):
            for id in ids:
                topics.append(hog.server.openTopic(id))
        self.assertGreater(len(topics), 20)
        good.server.openTopic("A").close()
        for topic in topics[:10]:
            topic.close()
        for _ in range(10):
            hog.server.openTopic(next(ids))

    def test_a_hello_is_kept_while_the_application_decides(self):
        """NB-02, UM-06: 10,000 of half a MiB are 5 GB, for up to ten seconds."""
        decisions = []

        class Slow(UmqServer):
            def authorise(self, hello):
                decisions.append(Deferred())
                return decisions[-1]

        factory = UmqServerFactory(
            limits={"process-session-bytes": LIMIT}, shared=self.shared, clock=self.clock
        )
        factory.protocol = Slow
        crowd = [Pair(factory, clock=self.clock, connect=False) for _ in range(4)]
        for both in crowd:
            both.mute()
            both.raw("A2:H1:" + WIDE, b"x" * 20_000, b"y")
        self.assertEqual(factory.counters["turned_away:process-session-bytes"], 3)
        states = [one["state"] for one in factory.sessions()]
        self.assertEqual(states, ["AUTHORISING", "CLOSED", "CLOSED", "CLOSED"])
        good = Pair(factory, clock=self.clock, connect=False)
        good.mute()
        good.raw("H1:user:password")
        self.assertEqual(len(decisions), 2)
        for decision in decisions:
            decision.callback("name")
        self.all_is_free()
        for both in (*crowd, good):
            both.cut()

    def test_attachments_of_calls_count_and_a_call_is_refused_if_they_are_too_large(self):
        """NB-02, UM-04, UM-19: also where it was let in while there was room."""
        hog, other = self.pair(), self.pair()
        first, second = Deferred(), Deferred()
        calls = [hog.client.call('["wait",1]', [body]) for body in (first, second)]
        hog.pump()
        first.callback(bytes(LIMIT - 5000))
        hog.pump()
        answered = self.call(other, "wait", "x" * 5000)
        second.callback(bytes(20_000))
        hog.pump()
        self.assertEqual(str(self.failureResultOf(calls[1], CallFailed).value), REFUSED[2:])
        self.finish(hog, other)
        for call in (calls[0], answered):
            self.successResultOf(call)

    def test_a_call_that_was_refused_for_its_attachments_weighs_nothing(self):
        """UM-20: its payload counted for its session from when it was let in."""
        both = self.pair(**{"calls-bytes": 1000})
        for _ in range(12):
            refused = both.client.call(json.dumps(["wait", "x" * 2000]), [bytes(LIMIT)])
            both.pump()
            self.assertEqual(str(self.failureResultOf(refused, CallFailed).value), REFUSED[2:])
        answered = self.call(both, "wait", "x" * 900)
        self.finish(both)
        self.assertEqual(self.successResultOf(answered), "done")

    @given(st.lists(st.tuples(st.integers(0, 2), MESSAGES), max_size=60))
    @settings(max_examples=40, deadline=None)
    def test_nothing_is_kept_of_calls_that_were_answered_and_sessions_that_are_gone(self, steps):
        """NB-02: whatever their peers do, in any order; nothing is counted twice or for ever."""
        pairs = [self.pair() for _ in range(3)]
        before = self.room()
        for number, message in steps:
            if not pairs[number].ends["server"].gone:
                pairs[number].raw(message)
        for late in self.late:
            if not late.called:
                late.callback("done")
        for both in pairs:
            both.cut()
        self.assertEqual(self.room(), before)
        for both in self.pairs:
            both.cut()

    def streaming(self):
        """Register methods that have attachments one by one; what they were given."""
        streams = []

        def take(request):
            streams.append(request.stream)
            return self.wait("")

        def fail(request):
            raise Refused("no")

        self.methods.register(take, name="take", with_request=True, streamed=True)
        self.methods.register(fail, name="fail", with_request=True, streamed=True)
        return streams

    def finish(self, *pairs):
        """Answer all calls."""
        for late in self.late:
            late.callback("done")
        for both in pairs:
            both.pump()
        self.all_is_free()

    def test_attachments_that_an_application_has_not_taken_are_kept(self):
        """NB-02, UM-19: what does not fit is as one that failed; a neighbour's small one is not."""
        streams = self.streaming()
        hog, good = self.pair(), self.pair()
        hog.client.call('["take"]', [bytes(30_000)] * 3)
        hog.pump()
        hog.client.call('["take"]', [bytes(30_000)])
        good.client.call('["take"]', [bytes(1000)])
        for both in (hog, good):
            both.pump()
        counters = hog.server_factory.counters
        self.assertEqual(counters["turned_away:process-session-bytes"], 1)
        hogs, refused, goods = streams
        self.failureResultOf(refused.next(), AttachmentLost)
        self.assertEqual(len(self.successResultOf(goods.next())), 1000)
        for _ in range(3):
            self.assertEqual(len(self.successResultOf(hogs.next())), 30_000)
        self.finish(hog, good)

    def test_attachments_that_nobody_will_take_are_not_kept(self):
        """NB-02: the call was refused; those that came count no more, others never do."""
        streams = self.streaming()
        both = self.pair()
        last = Deferred()
        answer = both.client.call('["fail"]', [bytes(3000), last])
        both.pump()
        self.failureResultOf(answer, CallFailed)
        self.all_is_free()
        last.callback(bytes(3000))
        both.pump()
        answer = both.client.call('["take"]', [bytes(3000), Deferred()])
        both.pump()
        self.late[0].errback(Refused("no"))
        both.pump()
        self.failureResultOf(answer, CallFailed)
        self.failureResultOf(streams[0].next(), ConnectionClosed)
        self.all_is_free()

    def held(self, canceller=None):
        """A pair whose server holds what came behind a call, until the Deferred fires."""
        both, done = self.pair(), Deferred(canceller)

        def hold(request):
            request.session.serveAfter(done)
            return done

        self.methods.register(hold, name="hold", with_request=True)
        self.methods.register(len, name="length")
        texts = ["x" * 4000] * 5
        answers = [call_method(both.client, "hold")]
        answers += [call_method(both.client, "length", text) for text in texts]
        both.pump()
        return both, done, answers

    def test_what_came_behind_a_call_that_is_held_is_kept(self):
        """NB-02: up to a whole read, for as long as the application holds it."""
        both, done, answers = self.held()
        self.assertEqual(both.server.snapshot()["calls"], 1)
        self.assertLess(self.room(), LIMIT - 20_000)
        good = self.pair()
        self.assertEqual(self.successResultOf(self.call(good, "length", "abc")), 3)
        done.callback("done")
        both.advance(0)
        self.assertEqual(
            [self.successResultOf(answer) for answer in answers], ["done", *[4000] * 5]
        )
        self.all_is_free()

    def test_a_call_that_waits_for_its_answer_is_owed_one(self):
        """NB-08: so a newcomer does not take the place of who waits for it in silence."""
        both = self.pair()
        self.assertFalse(both.server.link.owes)
        waiting = self.call(both, "wait", "x")
        self.assertTrue(both.server.link.owes)
        self.late[0].callback("done")
        both.pump()
        self.assertEqual(self.successResultOf(waiting), "done")
        self.assertFalse(both.server.link.owes)

    def test_a_subscriber_that_does_not_read_is_dropped_when_all_keep_too_much(self):
        """NB-02, UM-21: updates that wait in topics count; who reads gets all of them."""
        hub = Hub()
        deaf, reader = self.pair(hub.methods), self.pair(hub.methods)
        got = {deaf: [], reader: []}
        for both in (deaf, reader):
            for name in ("a", "b"):
                both.client.subscribe(
                    lambda id, name=name: json.dumps(["subscribe", name, id]),
                    lambda update, both=both: got[both].append(update.payload),
                )
                both.pump()
        deaf.deafen()
        for _ in range(20):
            for name in ("a", "b"):
                hub.publish(name, "x" * 10_000)
                reader.pump()
        self.assertGreater(deaf.server_factory.counters["topics_dropped"], 0)
        self.assertEqual(got[reader], ["x" * 10_000] * 40)
        deaf.listen()
        deaf.pump()
        self.all_is_free()


class Clients(Pairs):
    def test_a_client_keeps_no_more_than_its_limit_for_its_server(self):
        """NB-02: and counts what it refused for that."""
        both = self.pair(client_limits={"process-session-bytes": 100_000})
        both.client.callReceived = lambda request: Deferred()
        first, second = (both.server.call("x" * 60_000) for _ in range(2))
        both.pump()
        self.assertNoResult(first)
        self.assertEqual(self.failureResultOf(second, CallFailed).value.payload, REFUSED)
        self.assertEqual(both.client_factory.counters["limit:process-session-bytes"], 1)
        both.cut()
        self.failureResultOf(first, ConnectionClosed)


class Sinking(Pairs):
    def test_all_kinds_go_into_the_sink_in_order(self):
        """The issue, 5: call, callback, topic, attribute."""
        sink = SafeSink()
        both = self.pair(client_sink=sink)
        subscription = both.client.subscribe(lambda id: f"topic {id}", lambda update: None)
        both.pump()
        callback = both.client.registerCallback(lambda request: "done")
        both.server.topic.publish("update")
        both.server.call("call")
        both.server.callback(callback, "argument")
        both.server.setAttribute("name", "value", [b"x", fail(RuntimeError("gone"))])
        both.server.unsetAttribute("name")
        both.pump()
        rows = [
            (m.kind, m.message_id, m.destination, m.body, m.attachments)
            for batch in sink.batches
            for m in batch
        ]
        self.assertEqual(
            rows,
            [
                ("topic", None, subscription.id, b"update", []),
                ("call", "1", None, b"call", []),
                ("callback", "2", callback, b"argument", []),
                ("attribute", None, "name", b"value", [b"x", b""]),
                ("attribute", None, "name", None, []),
            ],
        )
        weight = sum(len(b"".join([body or b"", *more])) for *_, body, more in rows)
        self.assertEqual(sum(batch.nbytes for batch in sink.batches), weight)

    def test_a_method_may_answer_before_the_call_is_safe(self):
        """The issue, 5: if the method asks for it."""
        methods = MethodRegistry()
        methods.register(lambda: "now", name="now", durable=False)
        methods.register(lambda: "safe", name="safe")
        sink = HeldSink()
        both = self.pair(UmqServer, sink=sink, methods=methods)
        now, methods, safe = (
            both.client.call(f'["{name}"]') for name in ("now", "methods", "safe")
        )
        both.pump()
        self.successResultOf(methods)
        self.assertEqual(self.successResultOf(now).payload, '"now"')
        self.assertNoResult(safe)
        self.assertEqual(list(sink.batches[0].destination), ["now", "methods", "safe"])
        sink.release()
        both.pump()
        self.assertEqual(self.successResultOf(safe).payload, '"safe"')


@implementer(IMessageSink)
class FailsFirst:
    """The first batch is not stored, and that is known at once; the others would be."""

    def __init__(self):
        self.kinds = []

    def put(self, batch):
        self.kinds.append(batch.kind)
        return fail(QueueError("no space left")) if len(self.kinds) == 1 else succeed(None)


class Gaps(Pairs):
    def test_nothing_of_a_read_is_stored_behind_what_was_not(self):
        both = self.pair(UmqServer, sink=(sink := FailsFirst()))
        answered = both.client.call("one")
        both.client.setAttribute("name", "value")
        both.pump()
        self.assertEqual(self.failureResultOf(answered, CallFailed).value.code, 8)
        self.assertEqual(sink.kinds, ["call"])
        self.flushLoggedErrors(QueueError)


class Held(TestCase):
    def test_who_announces_without_a_text_is_cut_off_and_a_neighbour_is_answered(self):
        """NB-02: a thousand announcements are a MiB and were 4,096."""
        clock = Clock()
        factory = UmqServerFactory(clock=clock, limits={"process-held-bytes": 1_000_000})
        factory.protocol = Echo
        hostile, good = [Pair(factory, clock=clock) for _ in range(6)], Pair(factory, clock=clock)
        late = Deferred()
        answer = good.client.call("count", [b"x" * 100_000, late])
        good.pump()
        for both in hostile:
            both.raw(*[f"A1:S:{number:04d}=" for number in range(1000)])
            good.client.setAttribute("steady", "")
            good.pump()
        self.assertGreaterEqual(sum(both.ends["server"].gone for both in hostile), 5)
        late.callback(b"y")
        good.pump()
        self.assertIn("x" * 100, self.successResultOf(answer).payload)
        for both in (*hostile, good):
            both.cut()
        clock.advance(60)  # the sum of those that were cut off is told
        self.assertEqual(clock.getDelayedCalls(), [])
