"""Topics on Twisted: those who read them, those who do not, their ends, and their coming back."""

from twisted.internet.defer import CancelledError, Deferred, TimeoutError, succeed
from twisted.internet.task import Clock

from tests.umq.pairs import Echo, Pairs, coming_back
from twisted_msgproto.core.errors import (
    ConnectionClosed,
    LimitExceeded,
    Refused,
)
from twisted_msgproto.umq import (
    CallFailed,
    SessionRefused,
    UmqClient,
)

UPDATE = 257
"""An update of one character weighs this many bytes."""

TEN = {"backlog-bytes": 10 * UPDATE}


class Topics(Pairs):
    def subscribed(self, **options):
        both = self.pair(
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

    def test_a_hook_which_fails_is_logged_and_ends_nothing(self):
        """It may be a coroutine function."""
        heard = []

        def hook(update):
            heard.append(update.payload)
            raise RuntimeError("mine")

        async def coroutine(update):
            hook(update)

        for one in (hook, coroutine):
            both, subscription, _ = self.subscribed(hook=one)
            both.server.topic.publish("a")
            both.pump()
            self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)
            self.assertFalse(subscription.ended)
        self.assertEqual(heard, ["a", "a"])

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
        both.deafen()
        for number in range(100):
            self.assertTrue(topic.publish(f"update {number}"))
        self.assertTrue(topic.paused)
        self.assertEqual(producer.seen, ("pause",))
        both.listen()
        both.pump()
        self.assertEqual([u.payload for u in updates], [f"update {n}" for n in range(100)])
        self.assertEqual(producer.seen, ("pause", "resume"))
        topic.close()
        self.assertEqual(producer.seen, ("pause", "resume", "stop"))
        both.pump()

    def test_times_run_from_when_something_was_said__UM_04__UM_14(self):
        """However long it waited, or nothing was said before."""
        both, subscription, updates = self.subscribed(full=100)
        both.deafen()
        while not both.server.topic.paused:
            both.server.topic.publish("x" * 20)
        both.server.topic.publish("last", [Deferred()])
        both.advance(20)
        both.listen()
        both.pump()
        both.advance(44.9)
        self.assertNotIn("last", [update.payload for update in updates])
        both.advance(0.1)
        self.assertEqual(updates[-1].payload, "last")
        for _ in range(2):  # after the first one no timer is left that could tell the time
            both.advance(50)
        both.deafen("server")
        subscription.unsubscribe()
        both.advance(25)
        self.assertEqual(both.client.snapshot()["closing"], 1)
        held, done = self.pair(), Deferred()
        held.server.callReceived = lambda request: held.server.serveAfter(done)
        held.raw("C1:hold", "TZ:of no topic")
        held.advance(50)
        done.callback(None)
        held.advance(0)
        held.advance(25)
        self.assertEqual(held.server.snapshot()["closing"], 1)

    def test_who_publishes_or_closes_when_paused_does_so_behind_what_waits(self):
        """UM-21"""
        for last in ("publish", "close"):
            both, subscription, updates = self.subscribed(full=100)
            topic = both.server.topic

            class Producer:
                def pauseProducing(self, topic=topic, last=last):
                    topic.publish("last") if last == "publish" else topic.close()

                def resumeProducing(self): ...

                def stopProducing(self): ...

            topic.registerProducer(Producer(), True)
            both.deafen()
            published = 0
            while not topic.paused and topic.closed is None:
                topic.publish(f"update {published}")
                published += 1
            both.listen()
            both.pump()
            expected = [f"update {number}" for number in range(published)]
            self.assertEqual(
                [update.payload for update in updates],
                [*expected, "last"] if last == "publish" else expected,
            )
            self.assertEqual(subscription.ended, last == "close")
            both.cut()
            self.assertEqual(both.server_factory.shared.session_memory.nbytes, 0)

    def test_what_waits_weighs_its_attachments_too(self):
        """UM-21: as much may wait as the limit says."""
        for attachments, nbytes in ([], 0), ([b"x" * 100, b"", Deferred()], 100 + 3 * 48):
            for less in (0, 1):
                limits = {"topic-queue-bytes": 2 * (UPDATE + nbytes) - less}
                both, _, _ = self.subscribed(full=100, limits=limits)
                both.deafen()
                while not both.server.topic.paused:
                    self.assertTrue(both.server.topic.publish("x", attachments))
                self.assertEqual(both.server.topic.publish("x", attachments), not less)
                self.assertFalse(both.server.topic.publish("x", attachments))

    def test_a_subscriber_which_does_not_read_is_dropped_with_d(self):
        """UM-21: also where updates are empty; others are not disturbed."""
        for text in ("", "x" * 100):
            limits = {"topic-queue-bytes": 1000}
            both, subscription, updates = self.subscribed(full=100, limits=limits)
            both.deafen()
            published = 0
            while both.server.topic.publish(text):
                published += 1
                self.assertLess(published, 500)
            self.assertEqual(both.server.reason, ["slow"])
            self.assertEqual(both.server_factory.counters["topics_dropped"], 1)
            both.listen()
            both.pump()
            self.assertTrue(subscription.ended)
            self.assertLess(len(updates), published)
            answered = both.client.call("still here")
            both.pump()
            self.successResultOf(answered)

    def test_a_topic_which_ends_while_its_subscriber_is_slow_is_forgotten(self):
        """Whoever ends it: the session keeps nothing of it."""
        for end, reason in (
            (lambda both, subscription: both.server.topic.close(), "closed"),
            (lambda both, subscription: subscription.unsubscribe(), "unsubscribed"),
            (lambda both, subscription: both.cut(), "lost"),
        ):
            both, subscription, _ = self.subscribed(full=100)
            both.deafen()
            for _ in range(20):
                both.server.topic.publish("x" * 20)
            self.assertTrue(both.server.topic.paused)
            end(both, subscription)
            both.pump()
            self.assertEqual(both.server.reason, [reason])
            self.assertEqual(both.server.link.topics.published, {})
            self.assertFalse(both.server.topic.paused)

    def test_an_update_above_the_limits_raises_at_once_also_when_it_would_wait(self):
        """UM-20: nothing is left in the queue which could not be sent."""
        both, _, updates = self.subscribed(full=100)
        both.deafen()
        for number in range(20):
            both.server.topic.publish(str(number) * 10)
        self.assertTrue(both.server.topic.paused)
        self.assertRaises(LimitExceeded, both.server.topic.publish, "x", [b""] * 33)
        self.assertRaises(UnicodeEncodeError, both.server.topic.publish, "\ud800")
        both.listen()
        both.pump()
        self.assertEqual(len(updates), 20)

    def test_producers_of_topics_which_have_ended_are_stopped(self):
        both, _, _ = self.subscribed()
        topic = both.server.topic
        both.cut()
        self.assertEqual(both.server.reason, ["lost"])
        self.assertRaises(ValueError, topic.registerProducer, None, False)
        stopped = []
        topic.registerProducer(
            type("P", (), {"stopProducing": lambda self: stopped.append(1)})(), True
        )
        self.assertEqual(stopped, [1])

    def test_a_call_is_answered_also_while_the_backlog_is_full(self):
        """Whoever awaits an answer between two updates does not wait for ever."""
        both, subscription, _ = self.subscribed(hook=None, client_limits=TEN)
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

    def test_updates_that_waited_and_were_sent_count_no_more__NB_02(self):
        limits = {"process-session-bytes": 20_000, "topic-queue-bytes": 20_000}
        both, _, updates = self.subscribed(full=1000, limits=limits)
        for number in range(60):
            for _ in range(3):
                self.assertTrue(both.server.topic.publish(f"{number} ".ljust(900)))
            self.assertTrue(both.server.topic.paused)
            both.pump()
        self.assertEqual(len(updates), 180)

    def test_large_updates_which_nobody_takes_pause_reading_by_their_bytes__NB_02(self):
        """UM-20: 1,000 updates of a MiB are a gigabyte."""
        both, subscription, _ = self.subscribed(
            hook=None, client_limits={"backlog-bytes": 100_000, "payload-characters": 1 << 20}
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

    def test_who_takes_large_updates_at_once_is_never_slow__NB_02(self):
        both, subscription, _ = self.subscribed(hook=None, client_limits={"backlog-bytes": 1_000})
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
        taking.cancel()
        self.failureResultOf(taking, CancelledError)
        for reason in (None, "slow"):  # one may wait, however large it is
            both.server.topic.publish("x" * 9_000)
            both.pump()
            self.assertEqual(subscription.reason, reason)


class Unread(Pairs):
    def test_a_peer_which_calls_and_does_not_read_is_not_served_and_then_dropped(self):
        """UM-20, UM-21: what its answers may weigh is bounded."""
        both = self.pair(full=1000, limits={"unread-bytes": 10_000, "calls": 100_000})
        both.deafen()
        for _ in range(200):
            both.client.call("x" * 500).addErrback(lambda failure: None)
            both.pump()
        self.assertLess(both.ends["server"].protocol.output.nbytes, 12_000)
        self.assertLess(len(both.server.seen), 40)
        both.advance(30.1)
        self.assertTrue(both.ends["server"].gone)

    def test_refusals_count_as_well(self):
        """A flood of what is refused makes output too: reading stops."""
        both = self.pair(full=1000, limits={"unread-bytes": 1000, "calls": 1})
        both.deafen()
        both.client.call("later").addErrback(lambda failure: None)
        for _ in range(500):
            both.raw("T9:x", "C7:x")
        self.assertFalse(both.ends["server"].reading)
        self.assertLess(both.ends["server"].protocol.output.nbytes, 5000)


class Telling(UmqClient):
    """Keeps what its hook is told."""

    def __init__(self):
        super().__init__()
        self.told = []

    def subscriptionEnded(self, subscription, reason):
        self.told.append((subscription.id, reason))


def taking(subscription):
    """All updates of a subscription, as a list which grows, and the end of the iteration."""
    taken = []

    async def take():
        async for update in subscription:
            taken.append(update.payload)

    return taken, Deferred.fromCoroutine(take())


class Ends(Pairs):
    def subscribed(self, payload="topic"):
        both = self.pair(client=Telling, client_limits={"backlog-bytes": 2 * UPDATE})
        subscription = both.client.subscribe(lambda id: f"{payload} {id}")
        both.pump()
        return both, subscription, subscription.whenEnded()

    def check(self, both, subscription, ended, reason):
        subscription.unsubscribe()  # what has ended does not end again
        self.assertEqual(self.successResultOf(ended), reason)
        self.assertEqual(self.successResultOf(subscription.whenEnded()), reason)
        self.assertEqual(subscription.reason, reason)
        self.assertTrue(subscription.ended)
        self.assertEqual(both.client.told, [(subscription.id, reason)])
        self.assertEqual(both.client.link.topics.subscribed, {})

    def flood(self, both, subscription):
        both.client.call("later").addErrback(lambda lost: None)  # so that it is read all the time
        for number in range(7):
            both.server.topic.publish(str(number))
            both.pump()

    def test_it_ends_for_one_of_five_reasons_and_what_came_can_be_taken__HO_08(self):
        for reason, end, failure in (
            ("closed", lambda both, subscription: both.server.topic.close(), None),
            ("unsubscribed", lambda both, subscription: subscription.unsubscribe(), None),
            ("slow", self.flood, LimitExceeded),
            ("lost", lambda both, subscription: both.cut(), ConnectionClosed),
            ("lost", lambda both, subscription: both.server.closeSession(8, "x"), SessionRefused),
            ("refused", lambda both, subscription: None, CallFailed),
        ):
            asked = {CallFailed: "refuse", SessionRefused: "later"}.get(failure, "topic")
            both, subscription, ended = self.subscribed(asked)
            if asked == "topic":
                self.assertIsNone(subscription.reason)
                both.server.topic.publish("first")
                both.pump()
            end(both, subscription)
            both.pump()
            self.check(both, subscription, ended, reason)
            taken, over = taking(subscription)
            if failure is None:
                self.successResultOf(over)
            else:
                self.failureResultOf(over, failure)
            came = ["first"] if asked == "topic" else []
            self.assertEqual(taken, came + [str(n) for n in range(7) if reason == "slow"])

    def test_who_no_longer_waits_for_the_end_or_the_beginning_disturbs_nobody__HO_08(self):
        both, subscription, ended = self.subscribed("later")
        first, second = subscription.whenEnded(), subscription.whenStarted()
        third = subscription.whenStarted()
        second.addErrback(lambda failure: third.cancel())
        first.cancel()
        self.failureResultOf(first, CancelledError)
        both.server.later[0].errback(Refused("no"))
        both.pump()
        self.failureResultOf(third, CancelledError)
        self.check(both, subscription, ended, "refused")


class Iteration(Pairs):
    def subscribed(self, **options):
        both = self.pair(**options)
        subscription = both.client.subscribe(lambda id: f"topic {id}")
        both.pump()
        return both, subscription

    def publish(self, both, *payloads):
        for payload in payloads:
            both.server.topic.publish(payload)
        both.pump()

    def test_a_time_out_loses_no_update__HO_08(self):
        both, subscription = self.subscribed()
        taken, end = taking(subscription)
        end.addTimeout(5, both.clock)
        self.publish(both, "a")
        both.advance(5)
        self.failureResultOf(end, TimeoutError)
        self.publish(both, "b", "c")
        again, end = taking(subscription)
        self.publish(both, "d")
        both.server.topic.close()
        both.pump()
        self.assertIsNone(self.successResultOf(end))
        self.assertEqual((taken, again), (["a"], ["b", "c", "d"]))

    def test_several_consumers_share_what_comes__HO_08(self):
        both, subscription = self.subscribed()
        consumers = [taking(subscription) for _ in range(3)]
        self.publish(both, *"abcdef")
        self.assertEqual([taken for taken, _ in consumers], [["a", "d"], ["b", "e"], ["c", "f"]])
        both.server.topic.close()
        both.pump()
        for _, end in consumers:
            self.assertIsNone(self.successResultOf(end))


class AlwaysRefusing(Echo):
    def do_topic(self, request, rest):
        raise Refused("too many topics", 8)


class Renewal(Pairs):
    def setUp(self):
        self.clock, self.pairs = Clock(), []
        self.server_factory, self.service = coming_back(
            self.clock, self.pairs, **{"backlog-bytes": 2 * UPDATE}
        )
        self.service.startService()
        self.pairs[0].pump()
        self.updates = []
        self.renewed = self.service.subscribe(
            lambda id: f"topic {id}", lambda update: self.updates.append(update.payload)
        )
        self.pump()

    def tearDown(self):
        stopped = self.service.stopService()
        self.pump()
        self.successResultOf(stopped)
        self.pairs[-1].close()

    def pump(self):
        self.pairs[-1].pump()

    def publish(self, payload):
        self.pairs[-1].server.topic.publish(payload)
        self.pump()

    def come_back(self):
        self.pairs[-1].cut()
        self.clock.advance(1.1)
        self.pump()

    def test_an_end_is_told_and_the_next_session_begins_anew__HO_08(self):
        ended = self.renewed.whenEnded()
        self.come_back()
        self.publish("a")
        self.assertNoResult(ended)
        self.pairs[-1].server.topic.close()
        self.pump()
        self.assertEqual(self.successResultOf(ended), "closed")
        self.assertEqual(self.successResultOf(self.renewed.whenEnded()), "closed")
        self.come_back()
        self.assertIsNone(self.renewed.reason)
        self.publish("b")
        self.assertEqual(self.updates, ["a", "b"])

    def test_a_refusal_is_told_whenever_it_comes__HO_08(self):
        ended = self.renewed.whenEnded()
        self.server_factory.protocol = AlwaysRefusing
        self.come_back()
        self.assertEqual(self.successResultOf(ended), "refused")
        self.assertEqual(str(self.renewed.failure), "too many topics")
        self.server_factory.protocol = Echo
        self.come_back()
        self.publish("a")
        self.assertEqual(self.updates, ["a"])

    def test_our_own_end_is_an_end__HO_08(self):
        ended, given_up = self.renewed.whenEnded(), self.renewed.whenEnded()
        given_up.cancel()
        self.failureResultOf(given_up, CancelledError)
        self.renewed.end()
        self.assertEqual(self.successResultOf(ended), "unsubscribed")
        before = self.server_factory.counters["calls"]
        self.come_back()
        self.assertEqual(self.server_factory.counters["calls"], before)

    def test_sessions_bring_no_more_while_nobody_takes_what_came__NB_02(self):
        """RD-25"""
        for stands in (True, False):  # a session, when it is taken
            renewed = self.service.subscribe(lambda id: f"topic {id}")
            self.pump()
            for number in range(20):
                for _ in range(3):
                    self.publish(str(number))
                self.come_back()
            if not stands:
                self.pairs[-1].cut()
            taken, end = taking(renewed)
            self.assertTrue(2 <= len(taken) <= 8, taken)
            self.clock.advance(1.1)
            self.pump()
            self.publish("new")
            self.assertEqual(taken[-1], "new")
            end.cancel()
            self.failureResultOf(end, CancelledError)
