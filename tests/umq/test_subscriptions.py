"""HO-08: subscriptions say that they ended, and why; nothing of them is lost by a time-out."""

from io import BytesIO

from twisted.internet.defer import CancelledError, Deferred, TimeoutError, succeed
from twisted.internet.interfaces import IConsumer
from twisted.internet.task import Clock
from twisted.protocols.basic import FileSender
from twisted.trial.unittest import TestCase
from zope.interface.verify import verifyObject

from tests.umq.echo import Echo, pair
from tests.umq.pair import Pair
from twisted_msgproto.core.errors import ConnectionClosed, LimitExceeded, Refused
from twisted_msgproto.umq import (
    CallFailed,
    UmqClient,
    UmqClientFactory,
    UmqClientService,
    UmqServerFactory,
)


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


class Ends(TestCase):
    def subscribed(self, hook=None, payload="topic", **options):
        both = pair(client=Telling, **options)
        subscription = both.client.subscribe(lambda id: f"{payload} {id}", hook)
        both.pump()
        return both, subscription, subscription.whenEnded()

    def check(self, both, subscription, ended, reason):
        self.assertEqual(self.successResultOf(ended), reason)
        self.assertEqual(self.successResultOf(subscription.whenEnded()), reason)
        self.assertEqual(subscription.reason, reason)
        self.assertTrue(subscription.ended)
        self.assertEqual(both.client.told, [(subscription.id, reason)])
        self.assertEqual(both.client.subscriptions, {})

    def test_the_publisher_ends_it__HO_08(self):
        updates = []
        both, subscription, ended = self.subscribed(lambda update: updates.append(update.payload))
        both.server.topic.publish("a")
        both.pump()
        self.assertNoResult(ended)
        self.assertIsNone(subscription.reason)
        both.server.topic.close()
        both.pump()
        self.check(both, subscription, ended, "closed")
        self.assertEqual(updates, ["a"])
        self.assertIsNone(subscription.failure)
        both.close()

    def test_the_publisher_drops_a_slow_one__HO_08(self):
        both, subscription, ended = self.subscribed(
            lambda update: None, full=100, limits={"topic-queue-messages": 10}
        )
        both.deaf.add("client")
        while both.server.topic.publish("x" * 50):
            pass
        both.deaf.clear()
        both.pump()
        self.check(both, subscription, ended, "closed")
        both.close()

    def test_we_end_it__HO_08(self):
        both, subscription, ended = self.subscribed()
        subscription.unsubscribe()
        self.check(both, subscription, ended, "unsubscribed")
        both.close()

    def test_it_is_refused__HO_08(self):
        both, subscription, ended = self.subscribed(payload="refuse")
        self.check(both, subscription, ended, "refused")
        self.assertIsInstance(subscription.failure, CallFailed)
        both.close()

    def test_we_take_it_too_slowly__HO_08(self):
        both, subscription, ended = self.subscribed(client_limits={"backlog": 2})
        pending = both.client.call("later")  # so that it is read all the time
        for number in range(8):
            both.server.topic.publish(str(number))
            both.pump()
        self.check(both, subscription, ended, "slow")
        taken, end = taking(subscription)
        self.failureResultOf(end, LimitExceeded)
        self.assertEqual(taken, [str(number) for number in range(8)])
        both.close()
        self.failureResultOf(pending, ConnectionClosed)

    def test_the_connection_ends__HO_08(self):
        both, subscription, ended = self.subscribed()
        both.cut()
        self.check(both, subscription, ended, "lost")
        self.assertIsInstance(subscription.failure, ConnectionClosed)

    def test_who_no_longer_waits_for_the_end_or_the_beginning_disturbs_nobody__HO_08(self):
        both, subscription, ended = self.subscribed(payload="later")
        first, second = subscription.whenEnded(), subscription.whenStarted()
        third = subscription.whenStarted()
        second.addErrback(lambda failure: third.cancel())
        first.cancel()
        self.failureResultOf(first, CancelledError)
        both.server.later[0].errback(Refused("no"))
        both.pump()
        self.failureResultOf(third, CancelledError)
        self.check(both, subscription, ended, "refused")
        both.close()

    def test_a_hook_which_fails_harms_nobody__HO_08(self):
        both, _, ended = self.subscribed()
        both.client.subscriptionEnded = lambda subscription, reason: 1 / 0
        both.server.topic.close()
        both.pump()
        self.assertEqual(self.successResultOf(ended), "closed")
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        both.close()


class Iteration(TestCase):
    def subscribed(self, **options):
        both = pair(**options)
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
        both.close()

    def test_several_consumers_share_what_comes__HO_08(self):
        both, subscription = self.subscribed()
        consumers = [taking(subscription) for _ in range(3)]
        self.publish(both, *"abcdef")
        self.assertEqual([taken for taken, _ in consumers], [["a", "d"], ["b", "e"], ["c", "f"]])
        both.server.topic.close()
        both.pump()
        for _, end in consumers:
            self.assertIsNone(self.successResultOf(end))
        both.close()

    def test_every_consumer_hears_of_a_loss_also_one_which_comes_later__HO_08(self):
        both, subscription = self.subscribed()
        consumers = [taking(subscription) for _ in range(2)]
        both.cut()
        consumers.append(taking(subscription))
        for _, end in consumers:
            self.failureResultOf(end, ConnectionClosed)


class PullProducers(TestCase):
    def topic(self, **options):
        both = pair(**options)
        updates = []
        both.client.subscribe(lambda id: f"topic {id}", lambda u: updates.append(u.payload))
        both.pump()
        return both, both.server.topic, updates

    def test_one_is_asked_until_it_has_no_more__HO_08(self):
        both, topic, updates = self.topic()
        self.assertTrue(verifyObject(IConsumer, topic))
        sender = FileSender()
        sender.CHUNK_SIZE = 2
        sent = sender.beginFileTransfer(BytesIO(b"abcdefghi"), topic)
        for _ in range(5):
            both.advance(0)
        self.assertEqual(self.successResultOf(sent), b"i")
        self.assertEqual(updates, ["ab", "cd", "ef", "gh", "i"])
        both.close()

    def test_one_is_not_asked_while_the_subscriber_does_not_read__HO_08(self):
        both, topic, updates = self.topic(full=100)
        octets = b"0123456789" * 100
        sender = FileSender()
        sender.CHUNK_SIZE = 10
        both.deaf.add("client")
        sent = sender.beginFileTransfer(BytesIO(octets), topic)
        for _ in range(200):
            both.advance(0)
        self.assertTrue(topic.paused)
        self.assertNoResult(sent)
        self.assertEqual(updates, [])
        both.deaf.clear()
        for _ in range(200):
            both.advance(0)
        self.successResultOf(sent)
        self.assertEqual("".join(updates), octets.decode())
        both.close()

    def test_one_which_comes_while_the_subscriber_does_not_read_is_asked_later__HO_08(self):
        both, topic, updates = self.topic(full=100)
        both.deaf.add("client")
        while not topic.paused:
            topic.publish("x" * 50)
        sent = FileSender().beginFileTransfer(BytesIO(b"abc"), topic)
        both.advance(0)
        both.deaf.clear()
        both.advance(0)
        both.advance(0)
        self.successResultOf(sent)
        self.assertEqual(updates[-1], "abc")
        both.close()

    def test_the_end_of_the_topic_ends_the_asking__HO_08(self):
        both, topic, updates = self.topic()
        sent = FileSender().beginFileTransfer(BytesIO(b"abc"), topic)
        topic.close()
        both.advance(0)
        self.failureResultOf(sent, Exception)
        self.assertEqual(updates, ["abc"])
        both.close()  # which finds any call that is left


class AlwaysRefusing(Echo):
    def do_topic(self, request, rest):
        raise Refused("too many topics", 8)


class Renewal(TestCase):
    def setUp(self):
        self.clock = Clock()
        self.server_factory = UmqServerFactory(clock=self.clock)
        self.server_factory.protocol = Echo
        self.pairs = []
        test = self

        class Endpoint:
            def connect(self, factory):
                both = Pair(test.server_factory, factory, clock=test.clock, connect=False)
                test.pairs.append(both)
                return succeed(both.ends["client"].protocol)

        factory = UmqClientFactory("ws://server/", limits={"backlog": 2}, clock=self.clock)
        self.service = UmqClientService(Endpoint(), factory, retryPolicy=lambda attempt: 1.0)
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

    def test_it_may_be_asked_for_again_in_the_same_session__HO_08(self):
        self.pairs[-1].server.topic.close()
        self.pump()
        self.assertEqual(self.renewed.reason, "closed")
        self.renewed.renew()
        self.pump()
        self.renewed.renew()  # it lives: nothing happens
        self.pump()
        self.publish("a")
        self.assertEqual(self.updates, ["a"])
        self.assertIsNone(self.renewed.reason)
        self.assertEqual(len(self.service.session.subscriptions), 1)

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

    def test_what_cannot_even_be_asked_for_is_told__HO_08(self):
        refused = self.service.subscribe(lambda id: "x" * (2 << 20), self.updates.append)
        self.assertEqual(self.successResultOf(refused.whenEnded()), "refused")
        self.assertIsInstance(refused.failure, LimitExceeded)

    def test_our_own_end_is_an_end__HO_08(self):
        ended, given_up = self.renewed.whenEnded(), self.renewed.whenEnded()
        given_up.cancel()
        self.failureResultOf(given_up, CancelledError)
        self.renewed.end()
        self.assertEqual(self.successResultOf(ended), "unsubscribed")
        self.come_back()
        self.assertEqual(self.pairs[-1].server.machine.counters.calls, 0)

    def test_sessions_bring_no_more_while_nobody_takes_what_came__NB_02(self):
        """RD-25"""
        renewed = self.service.subscribe(lambda id: f"topic {id}")
        self.pump()
        for number in range(20):
            for _ in range(3):
                self.publish(str(number))
            self.come_back()
        taken, end = taking(renewed)
        self.assertTrue(2 <= len(taken) <= 8, taken)
        self.pump()
        self.publish("new")
        self.assertEqual(taken[-1], "new")
        end.cancel()
        self.failureResultOf(end, CancelledError)
