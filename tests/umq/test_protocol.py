"""UMQ's adapter: Deferreds, hooks, back-pressure, authorisation, the sink; both sides ours."""

from twisted.cred.checkers import AllowAnonymousAccess, InMemoryUsernamePasswordDatabaseDontUse
from twisted.cred.portal import Portal
from twisted.internet.defer import CancelledError, Deferred, fail, inlineCallbacks, succeed
from twisted.internet.task import Clock
from twisted.logger import LogLevel, formatEvent, globalLogPublisher
from twisted.trial.unittest import TestCase
from zope.interface import implementer

from tests.umq.pair import Pair
from twisted_msgproto.core.errors import (
    ConfigurationError,
    ConnectionClosed,
    LimitExceeded,
    Refused,
    TimedOut,
)
from twisted_msgproto.net.sink import IMessageSink
from twisted_msgproto.umq import (
    AttachmentLost,
    CallFailed,
    MethodRegistry,
    Reply,
    SessionRefused,
    UmqClient,
    UmqClientFactory,
    UmqClientService,
    UmqRealm,
    UmqServer,
    UmqServerFactory,
    refusal,
)
from twisted_msgproto.umq.events import AttachmentFailure


class Echo(UmqServer):
    """Answers what it is told to; keeps what it saw."""

    def __init__(self):
        super().__init__()
        self.seen = []
        self.later = []

    def sessionEstablished(self):
        self.seen.append("established")

    def sessionLost(self, reason):
        self.seen.append("lost")

    def attributeChanged(self, name, value):
        self.seen.append((name, value))

    def callReceived(self, request):
        word, _, rest = request.payload.partition(" ")
        known = getattr(self, f"do_{word}", None)
        return super().callReceived(request) if known is None else known(request, rest)

    def requestReceived(self, message):
        self.seen.append(message)
        return message.body

    def do_none(self, request, rest):
        return None

    def do_later(self, request, rest):
        self.later.append(Deferred())
        return self.later[-1]

    async def do_coroutine(self, request, rest):
        return f"awaited {rest}"

    def do_raise(self, request, rest):
        raise RuntimeError("a secret")

    def do_refuse(self, request, rest):
        raise Refused("I'm teapot", 418)

    def do_fail(self, request, rest):
        return fail(refusal(7, "no route"))

    def do_attach(self, request, rest):
        return Reply("attached", [b"1", succeed(b"2"), fail(RuntimeError("x"))])

    def do_number(self, request, rest):
        return 42

    def do_huge(self, request, rest):
        return "x" * (2 << 20)

    def do_count(self, request, rest):
        return Reply(repr(request.attachments))

    def do_stream(self, request, rest):
        self.stream = request.stream
        return "streaming"

    def streams(self, message):
        return getattr(message, "payload", "").startswith("stream") or super().streams(message)

    def do_topic(self, request, rest):
        self.topic = self.openTopic(rest)
        self.reason = []
        self.topic.whenClosed().addCallback(self.reason.append)
        return "accepted"

    def do_badtopic(self, request, rest):
        self.openTopic(rest)


def pair(
    protocol=Echo,
    client=None,
    sink=None,
    full=65536,
    methods=None,
    portal=None,
    hello="",
    connect=True,
    limits=None,
    client_limits=None,
    client_methods=None,
    client_sink=None,
):
    clock = Clock()
    clock.advance(1000)
    server_factory = UmqServerFactory(
        sink, clock=clock, limits=limits, methods=methods, portal=portal, wallClock=clock.seconds
    )
    server_factory.protocol = protocol
    client_factory = UmqClientFactory(
        "ws://server:5048/",
        client_sink,
        clock=clock,
        limits=client_limits,
        hello=hello,
        methods=client_methods,
        wallClock=clock.seconds,
    )
    client_factory.protocol = client or UmqClient
    return Pair(server_factory, client_factory, clock=clock, connect=connect, full=full)


class Calls(TestCase):
    def setUp(self):
        self.pair = pair()
        self.addCleanup(self.pair.close)

    def answer(self, payload, *arguments, **options):
        answered = self.pair.client.call(payload, *arguments, **options)
        self.pair.pump()
        return answered

    def result(self, payload, *arguments, **options):
        return self.successResultOf(self.answer(payload, *arguments, **options))

    def refusal(self, payload, *arguments, **options):
        failure = self.failureResultOf(self.answer(payload, *arguments, **options), CallFailed)
        return failure.value

    def test_a_call_is_answered_with_what_the_hook_returns(self):
        """UM-09, UM-10: text, octets, None, Deferreds, coroutines."""
        self.assertEqual(self.result("héllo").payload, "héllo")
        self.assertEqual(self.result("none").payload, "")
        self.assertEqual(self.result("coroutine x").payload, "awaited x")
        later = self.answer("later")
        self.assertNoResult(later)
        self.pair.server.later[0].callback(b"now")
        self.pair.pump()
        self.assertEqual(self.successResultOf(later).payload, "now")

    def test_a_message_has_the_columns_of_the_table(self):
        """UM-17: what requestReceived gets."""
        self.result("hi", [b"a"])
        message = self.pair.server.seen[-1]
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
        self.assertEqual(self.pair.server_factory.counters["calls_failed"], 2)

    def test_without_an_application_calls_are_refused_with_6(self):
        """UM-09."""
        other = pair(UmqServer)
        answered = other.client.call("x")
        other.pump()
        self.assertEqual(self.failureResultOf(answered, CallFailed).value.code, 6)
        other.close()

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
        self.pair.pump()
        self.assertNoResult(answered)
        first.errback(RuntimeError("lost"))
        self.pair.pump()
        self.assertEqual(
            self.successResultOf(answered).payload,
            repr([AttachmentFailure("the attachment is not available"), b"2", b"3"]),
        )

    def test_an_attachment_which_never_comes_is_replaced_before_the_peer_gives_up(self):
        """UM-04, UM-19."""
        answered = self.answer("count", [Deferred()])
        self.pair.advance(45.1)
        self.assertIn("not there in time", self.successResultOf(answered).payload)

    def test_a_late_attachment_which_is_too_large_is_replaced(self):
        """UM-19."""
        late = Deferred()
        answered = self.answer("count", [late])
        late.callback(b"x" * (17 << 20))
        self.pair.pump()
        self.assertIn("too large", self.successResultOf(answered).payload)
        self.assertEqual(len(self.flushLoggedErrors(LimitExceeded)), 1)

    def test_a_call_times_out_and_its_late_answer_is_ignored(self):
        """UM-20: call time-out."""
        short, default = self.answer("later", timeout=5), self.answer("later")
        self.pair.advance(5.1)
        self.failureResultOf(short, TimedOut)
        self.pair.advance(50)
        self.assertNoResult(default)
        self.pair.advance(5)
        self.failureResultOf(default, TimedOut)
        for later in self.pair.server.later:
            later.callback("late")
        self.pair.pump()
        self.assertEqual(self.pair.client.machine.counters.unknown_answers, 2)
        self.assertEqual(self.result("fine").payload, "fine")

    def test_a_call_may_be_cancelled(self):
        """UM-20."""
        answered = self.answer("later")
        answered.cancel()
        self.failureResultOf(answered, CancelledError)
        self.pair.server.later[0].callback("late")
        self.pair.pump()
        self.assertEqual(self.pair.client.machine.calls_pending, 0)

    def test_verbs_above_our_own_limits_raise_and_send_nothing(self):
        """UM-20."""
        self.assertRaises(LimitExceeded, self.pair.client.call, "x" * (1 << 21))
        self.assertRaises(LimitExceeded, self.pair.client.call, "x", [b""] * 33)
        self.assertEqual(self.pair.ends["client"].buffer, b"")

    def test_the_server_calls_the_client_as_well(self):
        """UM-09, UM-11: symmetric."""

        class Answering(UmqClient):
            def requestReceived(self, message):
                return b"client says " + message.body

        both = pair(client=Answering)
        answered = both.server.call("hi")
        both.pump()
        self.assertEqual(self.successResultOf(answered).payload, "client says hi")
        both.close()

    def test_one_read_is_answered_with_one_write(self):
        """A batch is the unit, also on the way out."""
        writes = []
        end = self.pair.ends["server"]
        end.write, write = lambda data: (writes.append(data), write(data)), end.write
        for number in range(50):
            self.pair.client.call(str(number))
        self.pair.pump()
        self.assertEqual(len(writes), 1)


class Callbacks(TestCase):
    def test_callbacks_live_until_they_are_unregistered(self):
        """UM-11."""
        both = pair()
        id = both.client.registerCallback(lambda request: f"{request.callback}:{request.payload}")
        for expected in ("1:a", "1:b"):
            answered = both.server.callback(id, expected[2:])
            both.pump()
            self.assertEqual(self.successResultOf(answered).payload, expected)
        both.client.unregisterCallback(id)
        answered = both.server.callback(id, "c")
        both.pump()
        self.assertEqual(self.failureResultOf(answered, CallFailed).value.code, 2)
        both.close()

    def test_a_callback_may_be_late_and_have_attachments(self):
        """UM-11."""
        both = pair()

        async def job(request):
            return Reply("done", request.attachments)

        id = both.client.registerCallback(job)
        answered = both.server.callback(id, "work", [b"tool"])
        both.pump()
        self.assertEqual(self.successResultOf(answered).attachments, [b"tool"])
        both.close()


class Streams(TestCase):
    """UM-19: attachments one by one, on request."""

    def test_an_answers_attachments(self):
        both = pair()
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
        both.close()

    def test_a_calls_attachments_and_an_error_before_it_is_asked_for(self):
        both = pair()
        first, second = Deferred(), Deferred()
        both.client.call("stream", [first, second, Deferred()])
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

    def test_what_was_not_asked_for_yet_is_lost_with_the_connection(self):
        both = pair()
        both.client.call("stream", [Deferred()]).addErrback(lambda failure: None)
        both.pump()
        both.cut()
        self.failureResultOf(both.server.stream.next(), ConnectionClosed)

    def test_what_nobody_takes_pauses_reading(self):
        """UM-19: octets which were streamed and not taken are bounded."""
        both = pair(limits={"attachments-octets": 4000})
        both.client.call("stream", [b"x" * 600] * 4)
        both.pump()
        self.assertFalse(both.ends["server"].reading)
        for _ in range(4):
            self.assertEqual(len(self.successResultOf(both.server.stream.next())), 600)
            both.pump()
        self.assertTrue(both.ends["server"].reading)
        both.close()


class Topics(TestCase):
    def subscribed(self, **options):
        both = pair(
            **{k: v for k, v in options.items() if k in ("full", "limits", "client_limits")}
        )
        updates = []
        hook = options.get("hook", updates.append)
        subscription = both.client.subscribe(lambda id: f"topic {id}", hook)
        both.pump()
        self.assertEqual(self.successResultOf(subscription.whenStarted()).payload, "accepted")
        return both, subscription, updates

    def test_updates_go_to_the_hook_until_the_publisher_closes(self):
        """UM-12, UM-13."""
        both, subscription, updates = self.subscribed()
        self.assertTrue(both.server.topic.publish("a"))
        both.server.topic.publish("b", [b"1", succeed(b"2")])
        both.server.topic.write("ç".encode())
        both.server.topic.close()
        both.server.topic.close()
        both.pump()
        self.assertEqual(
            [(u.payload, u.attachments) for u in updates],
            [("a", []), ("b", [b"1", b"2"]), ("ç", [])],
        )
        self.assertTrue(subscription.ended)
        self.assertEqual(both.server.reason, ["closed"])
        self.assertFalse(both.server.topic.publish("late"))
        self.assertEqual(self.successResultOf(both.server.topic.whenClosed()), "closed")
        both.close()

    def test_updates_may_be_iterated(self):
        """UM-12: async iteration, to the end of the topic."""
        both, subscription, _ = self.subscribed(hook=None)
        both.server.topic.publish("a")
        both.pump()

        async def all_of_it():
            return [update.payload async for update in subscription]

        collected = Deferred.fromCoroutine(all_of_it())
        both.server.topic.publish("b")
        both.pump()
        self.assertNoResult(collected)
        both.server.topic.publish("c")
        both.server.topic.close()
        both.pump()
        self.assertEqual(self.successResultOf(collected), ["a", "b", "c"])
        both.close()

    def test_iteration_ends_with_the_connection_by_an_error(self):
        both, subscription, _ = self.subscribed(hook=None)
        waiting = Deferred.fromCoroutine(subscription.__anext__())
        both.cut()
        self.failureResultOf(waiting, ConnectionClosed)

    def test_unsubscribing_tells_the_publisher_and_ends_delivery(self):
        """UM-14."""
        both, subscription, updates = self.subscribed()
        subscription.unsubscribe()
        both.server.topic.publish("on its way")
        both.pump()
        self.assertEqual(updates, [])
        self.assertEqual(both.server.reason, ["unsubscribed"])
        subscription.unsubscribe()
        self.assertEqual(both.server.topics, {})
        both.close()

    def test_a_refused_subscription_ends_and_says_why(self):
        """UM-12."""
        both = pair()
        subscription = both.client.subscribe(lambda id: "refuse")
        both.pump()
        self.failureResultOf(subscription.whenStarted(), CallFailed)
        self.failureResultOf(Deferred.fromCoroutine(subscription.__anext__()), CallFailed)
        self.assertTrue(subscription.ended)
        self.failureResultOf(Deferred.fromCoroutine(subscription.__anext__()), StopAsyncIteration)
        both.close()

    def test_a_request_which_cannot_be_sent_leaves_no_subscription(self):
        both = pair()
        self.assertRaises(LimitExceeded, both.client.subscribe, lambda id: "x" * (1 << 21))
        self.assertEqual(both.client.subscriptions, {})
        both.close()

    def test_a_hook_which_fails_is_logged_and_ends_nothing(self):
        def hook(update):
            raise RuntimeError("mine")

        both, subscription, _ = self.subscribed(hook=hook)
        both.server.topic.publish("a")
        both.pump()
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)
        self.assertFalse(subscription.ended)
        both.close()

    def test_streamed_updates(self):
        """UM-19."""
        both = pair()
        updates = []
        both.client.subscribe(lambda id: f"topic {id}", updates.append, streamed=True)
        both.pump()
        late = Deferred()
        both.server.topic.publish("a", [late])
        both.server.topic.publish("b")
        both.pump()
        self.assertEqual([update.payload for update in updates], ["a", "b"])
        late.callback(b"1")
        both.pump()
        self.assertEqual(self.successResultOf(updates[0].stream.next()), b"1")
        both.close()

    def test_a_slow_subscriber_is_paused_then_goes_on_in_order(self):
        """UM-21: the producer feels it."""
        both, _, updates = self.subscribed(full=100)

        class Producer:
            seen = ()

            def pauseProducing(self):
                self.seen += ("pause",)

            def resumeProducing(self):
                self.seen += ("resume",)

            def stopProducing(self):
                self.seen += ("stop",)

        topic, producer = both.server.topic, Producer()
        topic.registerProducer(producer, True)
        self.assertRaises(RuntimeError, topic.registerProducer, producer, True)
        both.deaf.add("client")
        for number in range(100):
            self.assertTrue(topic.publish(f"update {number}"))
        self.assertTrue(topic.paused)
        self.assertEqual(producer.seen, ("pause",))
        both.deaf.clear()
        both.pump()
        self.assertEqual([u.payload for u in updates], [f"update {n}" for n in range(100)])
        self.assertEqual(producer.seen, ("pause", "resume"))
        topic.close()
        self.assertEqual(producer.seen, ("pause", "resume", "stop"))
        both.pump()
        both.close()

    def test_closing_sends_what_waits_first(self):
        """UM-13, UM-21."""
        both, subscription, updates = self.subscribed(full=100)
        both.deaf.add("client")
        for number in range(20):
            both.server.topic.publish(f"update {number}")
        both.server.topic.close()
        both.deaf.clear()
        both.pump()
        self.assertEqual(len(updates), 20)
        self.assertTrue(subscription.ended)
        both.close()

    def test_a_subscriber_which_does_not_read_is_dropped_with_d(self):
        """UM-21: by messages and by octets; others are not disturbed."""
        for limits, text in (
            ({"topic-queue-messages": 10}, "x"),
            ({"topic-queue-octets": 1000}, "x" * 100),
        ):
            both, subscription, updates = self.subscribed(full=100, limits=limits)
            both.deaf.add("client")
            published = 0
            while both.server.topic.publish(text):
                published += 1
                self.assertLess(published, 500)
            self.assertEqual(both.server.reason, ["slow"])
            self.assertEqual(both.server_factory.counters["topics_dropped"], 1)
            both.deaf.clear()
            both.pump()
            self.assertTrue(subscription.ended)
            self.assertLess(len(updates), published)
            answered = both.client.call("still here")
            both.pump()
            self.successResultOf(answered)
            both.close()

    def test_an_update_above_the_limits_raises_at_once_also_when_it_would_wait(self):
        """UM-20: nothing is left in the queue which could not be sent."""
        both, _, updates = self.subscribed(full=100)
        both.deaf.add("client")
        for number in range(20):
            both.server.topic.publish(str(number) * 10)
        self.assertTrue(both.server.topic.paused)
        self.assertRaises(LimitExceeded, both.server.topic.publish, "x", [b""] * 33)
        self.assertRaises(UnicodeEncodeError, both.server.topic.publish, "\ud800")
        both.deaf.clear()
        both.pump()
        self.assertEqual(len(updates), 20)
        both.close()

    def test_producers_of_topics_which_have_ended_are_stopped(self):
        both, _, _ = self.subscribed()
        topic = both.server.topic
        both.cut()
        self.assertEqual(both.server.reason, ["lost"])
        stopped = []
        topic.registerProducer(
            type("P", (), {"stopProducing": lambda self: stopped.append(1)})(), True
        )
        self.assertEqual(stopped, [1])

    def test_a_pull_producer_is_asked_for_more(self):
        both, _, _ = self.subscribed()
        asked = []
        producer = type(
            "P",
            (),
            {"resumeProducing": lambda self: asked.append(1), "stopProducing": lambda self: None},
        )()
        both.server.topic.registerProducer(producer, False)
        self.assertEqual(asked, [1])
        both.server.topic.unregisterProducer()
        both.close()

    def test_updates_which_nobody_takes_pause_reading_until_they_are_taken(self):
        """UM-20: the backlog of an iteration is bounded, by the network and then by us."""
        both, subscription, _ = self.subscribed(hook=None, client_limits={"backlog": 10})
        for number in range(30):
            both.server.topic.publish(str(number))
            both.pump()
        self.assertFalse(both.ends["client"].reading)
        self.assertEqual(len(subscription._backlog), 10)

        async def some(count):
            return [(await subscription.__anext__()).payload for _ in range(count)]

        taken = self.successResultOf(Deferred.fromCoroutine(some(8)))
        both.pump()
        taken += self.successResultOf(Deferred.fromCoroutine(some(10)))
        both.pump()
        taken += self.successResultOf(Deferred.fromCoroutine(some(12)))
        self.assertEqual(taken, [str(number) for number in range(30)])
        both.close()

    def test_a_call_is_answered_also_while_the_backlog_is_full(self):
        """Whoever awaits an answer between two updates does not wait for ever."""
        both, subscription, _ = self.subscribed(hook=None, client_limits={"backlog": 10})
        for number in range(20):
            both.server.topic.publish(str(number))
            both.pump()
        answered = both.client.call("hi")
        both.pump()
        self.assertEqual(self.successResultOf(answered).payload, "hi")
        both.client.call("later").addErrback(lambda failure: None)
        both.pump()
        for number in range(40):
            both.server.topic.publish(str(number))
            both.pump()
        self.assertTrue(subscription.ended)  # four times the backlog is too much

        async def to_the_end():
            return [update async for update in subscription]

        self.failureResultOf(Deferred.fromCoroutine(to_the_end()), LimitExceeded)
        both.close()

    def test_a_flood_of_subscriptions_is_refused_by_the_application_limit(self):
        """UM-20: floods of topics."""
        both = pair(limits={"topics": 1})
        for expected in (True, False):
            subscription = both.client.subscribe(lambda id: f"topic {id}")
            both.pump()
            started = subscription.whenStarted()
            if expected:
                self.successResultOf(started)
            else:
                self.failureResultOf(started, CallFailed)
        self.assertEqual(len(self.flushLoggedErrors(LimitExceeded)), 1)
        both.close()


class Hooks(TestCase):
    def test_the_hooks_of_a_plain_session_do_nothing(self):
        """UM-09, UM-15: everything works without a subclass; calls are refused with 6."""
        both = pair(UmqServer)
        both.client.setAttribute("a", "b")
        both.client.unsetAttribute("a")
        answered = both.client.call("x")
        both.pump()
        self.assertEqual(self.failureResultOf(answered, CallFailed).value.code, 6)
        self.assertRaises(Refused, both.server.requestReceived, None)
        both.close()

    def test_a_message_in_two_reads_of_one_hold_keeps_its_place(self):
        """UM-07: what the server says while the client still decides, in several reads."""

        class Wary(UmqClient):
            seen = ()

            def welcomed(self, welcome):
                self.decision = Deferred()
                return self.decision

            def attributeChanged(self, name, value):
                self.seen += ((name, value),)

        class Talking(Echo):
            def sessionEstablished(self):
                self.setAttribute("a", "1")
                self.setAttribute("a", "2")

        both = pair(Talking, client=Wary)
        self.assertEqual(both.client.seen, ())
        both.client.decision.callback(None)
        both.pump()
        self.assertEqual(both.client.seen, (("a", "1"), ("a", "2")))
        both.close()

    def test_a_subscription_which_was_ended_before_it_was_refused(self):
        both = pair()
        subscription = both.client.subscribe(lambda id: "refuse")
        subscription.unsubscribe()
        both.pump()
        self.failureResultOf(subscription.whenStarted(), CallFailed)
        both.close()

    def test_a_producer_which_comes_when_the_subscriber_is_slow_is_paused_at_once(self):
        """UM-21."""
        both = pair(full=100)
        both.client.subscribe(lambda id: f"topic {id}", lambda update: None)
        both.pump()
        both.deaf.add("client")
        for number in range(20):
            both.server.topic.publish(f"update {number}")
        seen = []
        producer = type(
            "P",
            (),
            {
                name: lambda self, name=name: seen.append(name)
                for name in ("pauseProducing", "resumeProducing", "stopProducing")
            },
        )()
        both.server.topic.registerProducer(producer, True)
        self.assertEqual(seen, ["pauseProducing"])
        both.deaf.clear()
        both.pump()
        self.assertEqual(seen, ["pauseProducing", "resumeProducing"])
        both.close()


class Attributes(TestCase):
    def test_attributes_of_the_peer_are_a_mapping_with_a_hook(self):
        """UM-15, UM-16."""
        both = pair()
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
        self.assertRaises(ValueError, both.client.setAttribute, "a=b", "c")
        both.close()

    def test_a_hook_which_fails_is_logged_and_ends_nothing(self):
        both = pair()
        both.server.attributeChanged = lambda name, value: 1 / 0
        both.client.setAttribute("a", "b")
        both.pump()
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.assertEqual(dict(both.server.attributes), {"a": "b"})
        both.close()


class HandShake(TestCase):
    def established(self, both):
        return both.client.whenEstablished()

    def test_without_a_portal_everybody_may_come_in(self):
        """UM-06, UM-07."""
        both = pair(hello="whatever")
        self.assertIs(self.successResultOf(self.established(both)), both.client)
        self.assertEqual(both.server.seen, ["established"])
        self.assertIsNone(both.server.clientId)
        both.close()

    def test_a_portal_decides_and_names_the_client(self):
        """UM-06: twisted.cred; the identity is the client id of everything that follows."""
        checker = InMemoryUsernamePasswordDatabaseDontUse(alice=b"se:cret")
        portal = Portal(UmqRealm(), [checker])
        both = pair(portal=portal, hello="alice:se:cret")
        self.successResultOf(self.established(both))
        both.client.call("x")
        both.pump()
        self.assertEqual(both.server.seen[-1].client_id, "alice")
        both.close()
        for hello in ("alice:wrong", "bob:secret", "alice", ""):
            both = pair(portal=portal, hello=hello)
            failure = self.failureResultOf(self.established(both), SessionRefused)
            self.assertEqual(failure.value.code, 1)
            self.assertEqual(both.server_factory.counters["rejected"], 1)
            self.assertEqual(both.server.seen, [])
            self.assertTrue(both.ends["server"].gone)
            both.close()

    def test_anonymous_clients_have_no_name(self):
        """UM-06."""
        both = pair(portal=Portal(UmqRealm(), [AllowAnonymousAccess()]))
        self.successResultOf(self.established(both))
        self.assertIsNone(both.server.clientId)
        both.close()

    def test_the_realm_knows_identities_only(self):
        self.assertRaises(NotImplementedError, UmqRealm().requestAvatar, b"a", None, object)

    def test_authorisation_may_take_its_time_and_nothing_comes_before_it(self):
        """UM-07; the lesson of frames before authentication."""

        class Slow(Echo):
            def authorise(self, hello):
                self.decision = Deferred()
                return self.decision

            def welcome(self, hello):
                return f"welcome, {hello.payload}"

        class Eager(UmqClient):
            def welcomed(self, welcome):
                self.heard = welcome.payload

        both = pair(Slow, client=Eager, hello="me")
        self.assertRaises(ConnectionClosed, both.client.call, "early")
        self.assertNoResult(self.established(both))
        both.server.decision.callback("me myself")
        both.pump()
        self.successResultOf(self.established(both))
        self.assertEqual((both.client.heard, both.server.clientId), ("welcome, me", "me myself"))
        both.close()

    def test_refusals_carry_their_code_and_errors_say_nothing(self):
        """UM-08."""
        for error, code, text in (
            (Refused("try later", 8), 8, "8 try later"),
            (Refused("no"), 1, "1 no"),
            (RuntimeError("a secret"), 8, "8 temporarily unavailable"),
        ):

            def authorise(self, hello, error=error):
                raise error

            both = pair(type("Refusing", (Echo,), {"authorise": authorise}))
            failure = self.failureResultOf(self.established(both), SessionRefused)
            self.assertEqual((failure.value.code, str(failure.value)), (code, text))
            both.close()
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)

    def test_a_welcome_which_fails_is_said_to_the_client(self):
        """UM-08: a bug of ours leaves nobody waiting."""

        def welcome(self, hello):
            raise RuntimeError("a bug")

        both = pair(type("Broken", (Echo,), {"welcome": welcome}))
        failure = self.failureResultOf(self.established(both), SessionRefused)
        self.assertEqual(failure.value.code, 8)
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)
        both.close()

    def test_what_stands_before_the_session_is_not_logged(self):
        """A mistyped hello may hold a password."""
        lines = []
        globalLogPublisher.addObserver(lines.append)
        self.addCleanup(globalLogPublisher.removeObserver, lines.append)

        def begin(self):
            self.sendMessages([(b"h1:alice:secret", False)])

        both = pair(client=type("Typo", (UmqClient,), {"_begin": begin}))
        self.failureResultOf(self.established(both), SessionRefused)
        told = [formatEvent(line) for line in lines if line["log_level"] >= LogLevel.warn]
        self.assertIn("closed with F 3: ", told[0])
        self.assertNotIn("secret", " ".join(told))
        self.assertNotIn("73 65 63 72 65 74", " ".join(told))
        both.close()

    def test_a_client_which_is_gone_before_it_was_authorised_is_let_go(self):
        class Slow(Echo):
            def authorise(self, hello):
                self.decision = Deferred()
                return self.decision

        for end in ("callback", "errback"):
            both = pair(Slow)
            both.cut()
            getattr(both.server.decision, end)(None if end == "callback" else Refused("x"))
            self.failureResultOf(self.established(both), ConnectionClosed)
            self.assertEqual(both.server.seen, [])
            both.close()

    def test_the_client_may_refuse_the_server(self):
        """UM-07: authorisation of W; nothing of the server counts before."""

        class Wary(UmqClient):
            answered = 0

            def welcomed(self, welcome):
                self.decision = Deferred()
                return self.decision

            def requestReceived(self, message):
                self.answered += 1

        class Calling(Echo):
            def sessionEstablished(self):
                self.answer = self.call("who are you?")

        both = pair(Calling, client=Wary)
        self.assertNoResult(self.established(both))
        self.assertEqual(both.client.answered, 0)
        both.client.decision.callback(None)
        both.pump()
        self.successResultOf(self.established(both))
        self.successResultOf(both.server.answer)
        both.close()
        both = pair(Calling, client=Wary)
        both.client.decision.errback(Refused("not you"))
        both.pump()
        self.failureResultOf(self.established(both), Refused)
        self.failureResultOf(both.server.answer, SessionRefused)
        self.assertEqual(both.client.answered, 0)
        both.close()
        both = pair(Calling, client=Wary)
        both.server.answer.addErrback(lambda failure: None)
        both.client.decision.errback(RuntimeError("a bug"))
        both.pump()
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)
        both.close()
        both = pair(Calling, client=Wary)
        both.server.answer.addErrback(lambda failure: None)
        both.cut()
        both.client.decision.callback(None)
        self.failureResultOf(self.established(both), ConnectionClosed)

    def test_no_hello_in_time(self):
        """UM-20: hello time-out, F and close."""
        mute = type("Mute", (UmqClient,), {"_begin": lambda self: None})
        both = pair(connect=False, client=mute, client_limits={"hello-seconds": 60})
        both.pump()
        both.advance(10.1)
        self.failureResultOf(self.established(both), SessionRefused)
        self.assertEqual(both.server_factory.counters["fault:hello-seconds"], 1)
        both.close()

    def test_before_hello_a_message_is_as_large_as_hello_may_be(self):
        """The issue: an H of 64 KiB; more is not even buffered."""
        both = pair(connect=False, hello="x" * 70_000)
        both.pump()
        self.failureResultOf(self.established(both), ConnectionClosed)
        self.assertEqual(both.server.seen, [])
        both.close()
        both = pair(hello="x" * 60_000, limits={"hello-attachments": 1})
        self.successResultOf(self.established(both))
        both.client.call("x" * 100_000)
        both.pump()
        self.assertEqual(len(both.server.seen[-1].body), 100_000)
        both.close()

    def test_a_session_which_stands_already_is_told_at_once_and_one_lost_as_well(self):
        both = pair()
        self.successResultOf(self.established(both))
        both.cut()
        self.failureResultOf(self.established(both), ConnectionClosed)


class Faults(TestCase):
    def raw(self, both, *messages):
        both.client.sendMessages(
            [(m.encode(), False) if isinstance(m, str) else (m, True) for m in messages]
        )
        both.pump()

    def test_a_fault_fails_everything_on_both_sides_and_closes(self):
        """UM-08, UM-18, UM-19: F with its code, close 1002, and all that was pending fails."""
        both = pair()
        ours = both.client.call("later")
        theirs = both.server.call("x", [Deferred()])
        topic = both.client.subscribe(lambda id: f"topic {id}")
        both.pump()
        stream = both.client.call("stream", [Deferred()])
        both.pump()
        waiting = both.server.stream.next()
        self.successResultOf(stream)
        self.raw(both, "nonsense")
        self.assertEqual(self.failureResultOf(ours, SessionRefused).value.code, 3)
        self.failureResultOf(theirs, ConnectionClosed)
        self.failureResultOf(waiting, ConnectionClosed)
        self.assertTrue(topic.ended)
        self.assertEqual(both.server.reason, ["lost"])
        self.assertTrue(both.ends["server"].gone and both.ends["client"].gone)
        self.assertEqual(both.client.remoteCloseCode, 1002)
        self.assertEqual(both.server.seen[-1], "lost")
        self.assertEqual(both.server_factory.counters["fault:id"], 1)
        both.server.later[0].callback("too late")
        both.close()

    def test_every_kind_of_fault_ends_with_its_code(self):
        """UM-18: over the wire, as a peer sees it."""
        for messages, code, close in (
            (["C1:later", "C1:later"], 3, 1002),
            (["Z1:"], 4, 1002),
            ([b"stray"], 3, 1002),
            (["-:stray"], 3, 1002),
            (["H1:again"], 3, 1002),
            (["A9999:C1:"], 3, 1002),
            (["C" + "1" * 8000 + ":"], 3, 1002),
            ([f"S:{n}=" for n in range(300)], 1, 1000),
        ):
            both = pair()
            pending = both.client.call("later")
            both.pump()
            self.raw(both, *messages)
            self.assertEqual(self.failureResultOf(pending, SessionRefused).value.code, code)
            self.assertEqual(both.client.remoteCloseCode, close)
            both.close()

    def test_text_before_hello_is_fatal(self):
        """UM-07, the issue: text before H."""
        both = pair(connect=False, client=type("Rude", (UmqClient,), {"_begin": lambda self: None}))
        both.pump()
        self.raw(both, "C1:x")
        failure = self.failureResultOf(both.client.whenEstablished(), SessionRefused)
        self.assertEqual(failure.value.code, 3)
        both.close()

    def test_fatal_of_ours_ends_it_for_both(self):
        """UM-08: at any time."""
        both = pair()
        pending = both.client.call("later")
        both.pump()
        both.server.closeSession(8, "maintenance")
        both.pump()
        error = self.failureResultOf(pending, SessionRefused).value
        self.assertEqual((error.code, str(error)), (8, "8 maintenance"))
        self.assertEqual(both.server.seen, ["established", "lost"])
        both.close()

    def test_closing_without_a_word_fails_what_is_pending(self):
        both = pair()
        pending = both.client.call("later")
        both.pump()
        both.client.closeSession()
        both.pump()
        self.failureResultOf(pending, ConnectionClosed)
        self.assertRaises(ConnectionClosed, both.client.call, "x")
        self.assertRaises(ConnectionClosed, both.client.subscribe, str)
        self.assertEqual(both.server.seen[-1], "lost")
        both.close()

    def test_closing_before_the_upgrade_aborts(self):
        both = pair(connect=False)
        both.client.closeSession(1, "never mind")
        both.pump()
        self.failureResultOf(both.client.whenEstablished(), ConnectionClosed)
        both.close()

    def test_a_connection_which_is_cut_fails_everything(self):
        """UM-19."""
        both = pair()
        pending = both.client.call("later", [Deferred()])
        both.pump()
        both.cut()
        self.failureResultOf(pending, ConnectionClosed)
        self.assertEqual(both.clock.getDelayedCalls(), [])
        self.assertEqual(both.client.snapshot()["state"], "CLOSED")

    def test_a_session_without_a_machine_has_an_empty_snapshot(self):
        both = pair(connect=False)
        self.assertEqual(both.server.snapshot(), {})
        both.close()


@implementer(IMessageSink)
class Sink:
    """Keeps batches; they are safe when the test says so."""

    def __init__(self, at_once=False):
        self.batches = []
        self.waiting = []
        self.at_once = at_once

    def put(self, batch):
        self.batches.append(batch)
        safe = Deferred()
        self.waiting.append(safe)
        if self.at_once:
            safe.callback(None)
        return safe


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

    def test_a_call_which_cannot_be_stored_is_refused_and_ends_the_session(self):
        """The issue, 5: no R for what is not on disk; what follows would leave a gap."""
        sink = Sink()
        both = pair(UmqServer, sink=sink)
        answered = both.client.call("x")
        both.pump()
        sink.waiting[0].errback(RuntimeError("no disk"))
        both.pump()
        self.assertEqual(self.failureResultOf(answered, CallFailed).value.code, 8)
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)
        self.assertEqual(both.server_factory.counters["unsafe_batches"], 1)
        self.assertTrue(both.ends["server"].gone)
        self.assertEqual(both.client._reason.code, 8)
        both.close()

    def test_what_becomes_safe_after_the_session_is_answered_to_nobody(self):
        sink = Sink()
        both = pair(UmqServer, sink=sink)
        both.client.call("x").addErrback(lambda failure: None)
        both.client.call("y").addErrback(lambda failure: None)
        both.pump()
        both.cut()
        for safe in sink.waiting:
            safe.callback(None)
        sink = Sink()
        both = pair(UmqServer, sink=sink)
        both.client.call("x").addErrback(lambda failure: None)
        both.pump()
        both.cut()
        sink.waiting[0].errback(RuntimeError("no disk"))
        self.flushLoggedErrors(RuntimeError)

    def test_a_failed_attachment_is_empty_in_the_table(self):
        sink = Sink(at_once=True)
        both = pair(UmqServer, sink=sink)
        both.client.call("x", [fail(RuntimeError("gone")), b"there"])
        both.pump()
        self.assertEqual(list(sink.batches[0].attachments), [[b"", b"there"]])
        both.close()

    def test_too_much_which_is_not_safe_pauses_reading(self):
        """The common limit: octets which wait for the queue."""
        sink = Sink()
        both = pair(UmqServer, sink=sink, limits={"unsafe-octets": 1000})
        answers = [both.client.call("x" * 600) for _ in range(2)]
        both.pump(2000)
        self.assertFalse(both.ends["server"].reading)
        answers.append(both.client.call("later"))
        both.pump()
        self.assertEqual(sum(len(batch) for batch in sink.batches), 2)
        while sink.waiting:
            sink.waiting.pop(0).callback(None)
            both.pump()
        for answer in answers:
            self.successResultOf(answer)
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
        self.assertEqual(both.client.remoteCloseCode, 1001)
        both.close()

    def test_a_server_which_stops_waits_for_late_answers(self):
        for end in ("callback", "errback"):
            both = pair()
            answered = both.client.call("later")
            both.pump()
            drained = both.server_factory.drain()
            both.pump()
            self.assertNoResult(drained)
            getattr(both.server.later[0], end)("done" if end == "callback" else Refused("no"))
            both.pump()
            self.successResultOf(drained)
            if end == "callback":
                self.successResultOf(answered)
            else:
                self.failureResultOf(answered, CallFailed)
            both.close()
        both = pair(connect=False)
        drained = both.server_factory.drain()
        both.pump()
        self.successResultOf(drained)
        both.client.whenEstablished().addErrback(lambda failure: None)
        both.close()


class Unread(TestCase):
    def test_a_peer_which_calls_and_does_not_read_is_not_served_and_then_dropped(self):
        """UM-20, UM-21: what its answers may weigh is bounded."""
        both = pair(full=1000, limits={"unread-octets": 10_000, "calls": 100_000})
        both.deaf.add("client")
        for _ in range(200):
            both.client.call("x" * 500).addErrback(lambda failure: None)
            both.pump()
        self.assertLess(both.server.unread_octets, 12_000)
        self.assertLess(len(both.server.seen), 40)
        both.advance(30.1)
        self.assertTrue(both.ends["server"].gone)
        both.close()

    def test_calls_which_waited_are_served_when_the_peer_reads_again(self):
        """UM-21."""
        both = pair(full=1000, limits={"unread-octets": 10_000})
        both.deaf.add("client")
        answers = []
        for _ in range(100):
            answers.append(both.client.call("x" * 500))
            both.pump()
        both.deaf.clear()
        both.pump()
        for answer in answers:
            self.assertEqual(len(self.successResultOf(answer).payload), 500)
        both.close()

    def test_refusals_count_as_well(self):
        """A flood of what is refused makes output too: reading stops."""
        both = pair(full=1000, limits={"unread-octets": 1000, "calls": 1})
        both.deaf.add("client")
        both.client.call("later").addErrback(lambda failure: None)
        for _ in range(500):
            both.client.sendMessages([(b"T9:x", False), (b"C7:x", False)])
            both.pump()
        self.assertFalse(both.ends["server"].reading)
        self.assertLess(both.server.unread_octets, 5000)
        both.close()

    def test_two_sides_which_send_much_at_once_do_not_lock_each_other(self):
        """UM-19: both have more than unread-octets to send, and both go on reading."""
        both = pair(
            full=1000, limits={"unread-octets": 1000}, client_limits={"unread-octets": 1000}
        )
        body = b"x" * 300_000
        ours = both.client.call("count", [body] * 3)
        theirs = both.server.call("x", [body] * 3)
        both.pump(4096)
        self.successResultOf(ours)
        self.failureResultOf(theirs, CallFailed)
        both.close()


class Reconnecting(TestCase):
    def build(self):
        clock = Clock()
        server_factory = UmqServerFactory(clock=clock)
        server_factory.protocol = Echo
        pairs = []

        class Endpoint:
            def connect(self, factory):
                both = Pair(server_factory, factory, clock=clock, connect=False)
                pairs.append(both)
                return succeed(both.client)

        factory = UmqClientFactory("ws://server/", clock=clock)
        service = UmqClientService(Endpoint(), factory, retryPolicy=lambda attempt: 1.0)
        return clock, pairs, service

    @inlineCallbacks
    def test_calls_fail_and_subscriptions_and_attributes_come_back(self):
        """The issue, 4."""
        clock, pairs, service = self.build()
        self.assertRaises(ConnectionClosed, service.call, "x")
        service.startService()
        standing = service.whenEstablished()
        updates = []
        renewed = service.subscribe(lambda id: f"topic {id}", lambda u: updates.append(u.payload))
        refused = service.subscribe(lambda id: "refuse", updates.append)
        service.setAttribute("a", "1")
        service.setAttribute("b", "2")
        self.assertRaises(ValueError, service.setAttribute, "x=", "")
        self.assertNoResult(standing)
        pairs[0].pump()
        self.assertIs((yield standing), service.session)
        service.unsetAttribute("b")
        service.setAttribute("c", "3")
        pairs[0].pump()
        self.assertEqual(dict(pairs[0].server.attributes), {"a": "1", "c": "3"})
        pairs[0].server.topic.publish("first")
        pending = service.call("later")
        pairs[0].pump()
        pairs[0].cut()
        self.failureResultOf(pending, ConnectionClosed)
        self.assertIsNone(service.session)
        self.assertRaises(ConnectionClosed, service.call, "x")
        clock.advance(1.1)
        pairs[1].pump()
        self.assertIs(self.successResultOf(service.whenEstablished()), service.session)
        self.assertEqual(dict(pairs[1].server.attributes), {"a": "1", "c": "3"})
        pairs[1].server.topic.publish("second")
        pairs[1].pump()
        self.assertEqual(updates, ["first", "second"])
        answered = service.call("hi")
        pairs[1].pump()
        self.assertEqual(self.successResultOf(answered).payload, "hi")
        renewed.end()
        refused.end()
        pairs[1].pump()
        self.assertEqual(pairs[1].server.reason, ["unsubscribed"])
        stopped = service.stopService()
        pairs[1].pump()
        self.successResultOf(stopped)
        pairs[1].close()

    def test_those_who_wait_for_a_session_hear_that_there_will_be_none(self):
        _, pairs, service = self.build()
        service.startService()
        standing = service.whenEstablished()
        service.stopService()
        self.failureResultOf(standing, ConnectionClosed)
        pairs[0].cut()

    def test_a_subscription_may_end_before_there_was_a_session(self):
        _, pairs, service = self.build()
        service.subscribe(lambda id: id, lambda update: None).end()
        service.setAttribute("a", "1")
        service.unsetAttribute("a")
        service.startService()
        pairs[0].pump()
        self.assertEqual(pairs[0].server.machine.counters.calls, 0)
        service.stopService()
        pairs[0].pump()
        pairs[0].close()


class Making(TestCase):
    def test_factories_refuse_what_is_no_address_origin_or_limit(self):
        self.assertRaises(ConfigurationError, UmqClientFactory, "http://x/", clock=Clock())
        self.assertRaises(
            ConfigurationError, UmqServerFactory, clock=Clock(), origins=["not an origin"]
        )
        self.assertRaises(
            ConfigurationError, UmqServerFactory, clock=Clock(), limits={"no-such": 1}
        )

    def test_connections_above_the_limit_are_turned_away(self):
        """UM-20."""
        both = pair(limits={"connections": 1})
        self.assertIsNone(both.server_factory.buildProtocol(both.ends["client"].address))
        both.close()

    def test_sub_protocols_are_agreed(self):
        both = pair()
        self.assertEqual(both.client.websocket_protocol_in_use, "umq")
        both.close()
