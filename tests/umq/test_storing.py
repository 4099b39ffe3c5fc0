"""The sink on Twisted: what is safe before it is answered, and what is not."""

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.task import Clock
from twisted.trial.unittest import TestCase
from zope.interface import implementer

from tests.umq.echo import Echo, Sink, pair
from tests.umq.pair import Pair
from twisted_msgproto.core.errors import ConnectionClosed, QueueError
from twisted_msgproto.net import IMessageSink
from twisted_msgproto.umq import (
    CallFailed,
    MethodRegistry,
    UmqServer,
    UmqServerFactory,
)


class Sinking(TestCase):
    def test_a_call_is_answered_when_it_is_safe(self):
        """The issue, 5: an R says that the call is on disk."""
        sink = Sink()
        both = pair(UmqServer, sink=sink)
        answers = [both.client.call(str(number), [b"%d" % number]) for number in range(3)]
        both.pump()
        (batch,) = sink.batches
        self.assertEqual(
            [(m.kind, m.message_id, m.destination, m.body, m.attachments) for m in batch],
            [("call", str(n + 1), None, b"%d" % n, [b"%d" % n]) for n in range(3)],
        )
        self.assertEqual((batch.octets, batch.session), (6, both.server.session))
        for answer in answers:
            self.assertNoResult(answer)
        sink.waiting[0].callback(None)
        both.pump()
        self.assertEqual([self.successResultOf(answer).payload for answer in answers], [""] * 3)
        both.close()

    def test_all_kinds_go_into_the_sink_in_order(self):
        """The issue, 5: call, callback, topic, attribute."""
        sink = Sink(at_once=True)
        both = pair(client_sink=sink)
        subscription = both.client.subscribe(lambda id: f"topic {id}", lambda update: None)
        both.pump()
        callback = both.client.registerCallback(lambda request: "done")
        both.server.topic.publish("update")
        both.server.call("call")
        both.server.callback(callback, "argument")
        both.server.setAttribute("name", "value", [b"x"])
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
                ("attribute", None, "name", b"value", [b"x"]),
                ("attribute", None, "name", None, []),
            ],
        )
        both.close()

    def test_a_method_may_answer_before_the_call_is_safe(self):
        """The issue, 5: if the method asks for it."""
        methods = MethodRegistry()
        methods.register(lambda: "now", name="now", durable=False)
        methods.register(lambda: "safe", name="safe")
        sink = Sink()
        both = pair(UmqServer, sink=sink, methods=methods)
        now, safe = both.client.call('["now"]'), both.client.call('["safe"]')
        both.pump()
        self.assertEqual(self.successResultOf(now).payload, '"now"')
        self.assertNoResult(safe)
        self.assertEqual(list(sink.batches[0].destination), ["now", "safe"])
        sink.waiting[0].callback(None)
        both.pump()
        self.assertEqual(self.successResultOf(safe).payload, '"safe"')
        both.close()

    def test_a_failed_attachment_is_empty_in_the_table(self):
        sink = Sink(at_once=True)
        both = pair(UmqServer, sink=sink)
        both.client.call("x", [fail(RuntimeError("gone")), b"there"])
        both.pump()
        self.assertEqual(list(sink.batches[0].attachments), [[b"", b"there"]])
        both.close()

    def test_a_server_which_stops_answers_what_came_and_refuses_the_rest(self):
        """SIGTERM under load loses nothing that was acknowledged."""
        sink = Sink()
        both = pair(UmqServer, sink=sink)
        answered = both.client.call("before")
        both.pump()
        drained = both.server_factory.drain()
        late = both.client.call("after")
        both.pump()
        self.assertEqual(self.failureResultOf(late, CallFailed).value.code, 8)
        self.assertNoResult(drained)
        sink.waiting[0].callback(None)
        both.pump()
        self.assertEqual(self.successResultOf(answered).payload, "")
        self.successResultOf(drained)
        self.assertEqual(both.ends["client"].protocol.remoteCloseCode, 1001)
        both.close()


@implementer(IMessageSink)
class FailsFirst:
    """The first batch is not stored, and that is known at once; the others would be."""

    def __init__(self):
        self.kinds = []

    def put(self, batch):
        self.kinds.append(batch.kind)
        return fail(QueueError("no space left")) if len(self.kinds) == 1 else succeed(None)


class Gaps(TestCase):
    def test_nothing_of_a_read_is_stored_behind_what_was_not(self):
        both = pair(UmqServer, sink=(sink := FailsFirst()))
        answered = both.client.call("one")
        both.client.setAttribute("name", "value")
        both.pump()
        self.assertEqual(self.failureResultOf(answered, CallFailed).value.code, 8)
        self.assertEqual(sink.kinds, ["call"])
        self.flushLoggedErrors(QueueError)
        both.close()


class Hooked(TestCase):
    """The hooks which every session has stand in front of the sink here as well."""

    def test_a_call_is_answered_when_the_hook_for_its_message_is_done(self):
        for hook in ("messageReceived", "batchReceived"):
            seen, done = [], Deferred()

            def looked(session, what, seen=seen, done=done):
                seen.append(what)
                return done

            both = pair(type("Looking", (Echo,), {hook: looked}))
            answered = both.client.call("hello", [b"1"])
            both.pump()
            self.assertNoResult(answered)
            done.callback(None)
            both.pump()
            self.assertEqual(self.successResultOf(answered).payload, "hello")
            (what,) = seen
            (message,) = what if hook == "batchReceived" else seen
            self.assertEqual((message.kind, message.body), ("call", b"hello"))
            self.assertEqual(both.server_factory.counters["events"], 1)
            both.close()


class Held(TestCase):
    def test_who_holds_most_of_what_waits_for_attachments_is_cut_off(self):
        """NB-02: announced attachments and parts of messages count alike."""
        both = pair(limits={"process-held-octets": 10_000})
        late = Deferred()
        asked = both.client.call("x", [b"x" * 5_000, late, Deferred()])
        both.pump()
        self.assertNoResult(asked)
        late.callback(b"y" * 6_000)
        both.pump()
        self.failureResultOf(asked, ConnectionClosed)
        self.assertEqual(both.server_factory.counters["fault:process-held-octets"], 1)
        both.close()

    def test_what_was_held_is_free_when_the_attachments_are_there(self):
        """NB-02"""
        both = pair(limits={"process-held-octets": 10_000})
        for _ in range(5):
            late = Deferred()
            answered = both.client.call("count", [b"x" * 5_000, late])
            both.pump()
            late.callback(b"")
            both.pump()
            self.successResultOf(answered)
        both.close()

    def test_who_announces_without_a_text_is_cut_off_and_a_neighbour_is_answered(self):
        """NB-02: a thousand announcements are a mebi-octet and were 4,096."""
        clock = Clock()
        factory = UmqServerFactory(clock=clock, limits={"process-held-octets": 1_000_000})
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
