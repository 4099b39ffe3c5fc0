"""Topics on Twisted: subscribers which read, which do not, and what is unread on the way."""

from twisted.internet.defer import Deferred, succeed
from twisted.trial.unittest import TestCase

from tests.umq.echo import pair
from twisted_msgproto.core.errors import (
    ConnectionClosed,
    LimitExceeded,
)
from twisted_msgproto.umq import (
    CallFailed,
)


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

    def test_a_topic_which_ends_while_its_subscriber_is_slow_is_forgotten(self):
        """Whoever ends it: the session keeps nothing of it."""
        for end, reason in (
            (lambda both, subscription: both.server.topic.close(), "closed"),
            (lambda both, subscription: subscription.unsubscribe(), "unsubscribed"),
            (lambda both, subscription: both.cut(), "lost"),
        ):
            both, subscription, _ = self.subscribed(full=100)
            both.deaf.add("client")
            for _ in range(20):
                both.server.topic.publish("x" * 20)
            self.assertTrue(both.server.topic.paused)
            end(both, subscription)
            both.pump()
            self.assertEqual(both.server.reason, [reason])
            self.assertEqual(both.server.topics, {})
            self.assertFalse(both.server.topic.paused)
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

    def test_updates_which_nobody_takes_pause_reading_until_they_are_taken(self):
        """UM-20: the backlog of an iteration is bounded, by the network and then by us."""
        both, subscription, _ = self.subscribed(hook=None, client_limits={"backlog": 10})
        for number in range(30):
            both.server.topic.publish(str(number))
            both.pump()
        self.assertFalse(both.ends["client"].reading)

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

    def test_large_updates_which_nobody_takes_pause_reading_by_their_octets__NB_02(self):
        """UM-20: 1,000 updates of a mebi-octet are a gigabyte."""
        both, subscription, _ = self.subscribed(
            hook=None, client_limits={"backlog-octets": 100_000, "payload-characters": 1 << 20}
        )
        both.server.topic.publish("x" * 60_000)
        both.pump()
        self.assertTrue(both.ends["client"].reading)
        both.server.topic.publish("", [b"y" * 50_000])
        both.pump()
        self.assertFalse(both.ends["client"].reading)

        async def one():
            return await subscription.__anext__()

        self.successResultOf(Deferred.fromCoroutine(one()))
        self.assertFalse(both.ends["client"].reading)  # more than half of it waits
        self.successResultOf(Deferred.fromCoroutine(one()))
        self.assertTrue(both.ends["client"].reading)
        both.close()

    def test_large_updates_end_a_subscription_while_an_answer_is_awaited__NB_02(self):
        """A server that answers nothing could fill the memory until call-seconds were over."""
        both, subscription, _ = self.subscribed(hook=None, client_limits={"backlog-octets": 10_000})
        both.client.call("later").addErrback(lambda failure: None)
        both.pump()
        for _ in range(40):
            both.server.topic.publish("x" * 9_000)
            both.pump()
        self.assertEqual(subscription.reason, "slow")
        both.close()

    def test_who_takes_large_updates_at_once_is_never_slow__NB_02(self):
        both, subscription, _ = self.subscribed(hook=None, client_limits={"backlog-octets": 1_000})
        both.client.call("later").addErrback(lambda failure: None)
        got = []

        async def take():
            async for update in subscription:
                got.append(len(update.payload))

        taking = Deferred.fromCoroutine(take())
        for _ in range(40):
            both.server.topic.publish("x" * 9_000)
            both.pump()
        self.assertEqual(got, [9_000] * 40)
        self.assertIsNone(subscription.reason)
        both.close()
        self.failureResultOf(taking, ConnectionClosed)

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


class Unread(TestCase):
    def test_a_peer_which_calls_and_does_not_read_is_not_served_and_then_dropped(self):
        """UM-20, UM-21: what its answers may weigh is bounded."""
        both = pair(full=1000, limits={"unread-octets": 10_000, "calls": 100_000})
        both.deaf.add("client")
        for _ in range(200):
            both.client.call("x" * 500).addErrback(lambda failure: None)
            both.pump()
        self.assertLess(both.ends["server"].protocol.output.octets, 12_000)
        self.assertLess(len(both.server.seen), 40)
        both.advance(30.1)
        self.assertTrue(both.ends["server"].gone)
        both.close()

    def test_refusals_count_as_well(self):
        """A flood of what is refused makes output too: reading stops."""
        both = pair(full=1000, limits={"unread-octets": 1000, "calls": 1})
        both.deaf.add("client")
        both.client.call("later").addErrback(lambda failure: None)
        for _ in range(500):
            both.raw("T9:x", "C7:x")
        self.assertFalse(both.ends["server"].reading)
        self.assertLess(both.ends["server"].protocol.output.octets, 5000)
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
