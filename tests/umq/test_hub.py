"""The hub sends an update to thousands in turns; calls are served as long as a turn lasts."""

import itertools
import json
from unittest.mock import patch

from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.task import Clock
from twisted.trial.unittest import TestCase

from tests.umq.pairs import Pair, base36, pair
from twisted_msgproto.core.errors import ConnectionClosed, LimitExceeded, Refused
from twisted_msgproto.testing import HeldSink, SafeSink
from twisted_msgproto.umq import (
    CallFailed,
    Hub,
    MethodRegistry,
    Topic,
    UmqServer,
    UmqServerFactory,
    call_method,
)

TURN_SECONDS = 0.008
"""A turn of the reactor takes about so long."""

EACH = TURN_SECONDS / 3.9
"""An update to one subscriber takes so many seconds here: four fit into a turn."""


class Turns(TestCase):
    """NB-07: one update to 5,000 subscribers was a turn of 221 ms."""

    def setUp(self):
        self.clock = Clock()
        self.hub = Hub()
        self.sent = []
        really = Topic.publish

        def publish(topic, payload, attachments=()):
            self.clock.rightNow += EACH
            self.sent.append(payload)
            return really(topic, payload, attachments)

        patching = patch.object(Topic, "publish", publish)
        patching.start()
        self.addCleanup(patching.stop)
        self.pairs = []
        self.addCleanup(self.close)

    def client(self, sink=None, protocol=UmqServer, limits=None):
        factory = UmqServerFactory(
            sink,
            clock=self.clock,
            methods=self.hub.methods,
            wallClock=self.clock.seconds,
            limits=limits,
        )
        factory.protocol = protocol
        self.pairs.append(Pair(factory, clock=self.clock))
        return self.pairs[-1]

    def close(self):
        """All end; a turn later nothing is left over."""
        for both in self.pairs:
            both.cut()
        self.clock.advance(0)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def subscribe(self, both, name, count=1):
        """``count`` topics of one client; the lists that their updates go to."""
        got = [[] for _ in range(count)]
        for updates in got:
            both.client.subscribe(
                lambda id: json.dumps(["subscribe", name, id]),
                lambda update, updates=updates: updates.append(update.payload),
            )
        both.pump()
        return got

    def call(self, both, *words):
        called = call_method(both.client, *words)
        both.pump()
        return called

    def turn(self, *both):
        """One turn of the reactor; how many got an update in it, and how long it took."""
        before, began = len(self.sent), self.clock.seconds()
        for call in [one for one in self.clock.getDelayedCalls() if one.getTime() <= began]:
            if call.active():  # what it leads to comes in a later turn
                self.clock.calls.remove(call)
                call.called = True
                call.func(*call.args, **call.kw)
        for one in both:
            one.pump()
        return len(self.sent) - before, self.clock.seconds() - began

    def finish(self, *both):
        while self.waits():
            self.assertLessEqual(self.turn(*both)[1], TURN_SECONDS + EACH)
        self.turn(*both)

    def waits(self):
        """Whether anything is to be done in the next turn."""
        now = self.clock.seconds()
        return [one for one in self.clock.getDelayedCalls() if one.getTime() <= now]

    def test_an_update_to_many_takes_as_many_turns_as_it_needs__NB_07(self):
        """NB-07: and its publisher hears when all got it."""
        readers, publisher = self.client(), self.client()
        got = self.subscribe(readers, "news", 10)
        answer = self.call(publisher, "publish", "news", "a")
        self.assertEqual(len(self.sent), 4)
        self.assertNoResult(answer)
        self.assertEqual(self.turn(readers, publisher)[0], 4)
        self.assertNoResult(answer)
        self.assertEqual(self.turn(readers, publisher)[0], 2)
        self.assertEqual(self.successResultOf(answer), 10)
        self.assertEqual(got, [["a"]] * 10)
        self.turn()

    def test_names_take_turns__NB_07(self):
        """NB-07: an update to few waits for one turn of the update to many, not for all."""
        readers, first, second = self.client(), self.client(), self.client()
        self.subscribe(readers, "many", 40)
        self.subscribe(readers, "few", 2)
        self.call(first, "publish", "many", "a")
        answer = self.call(second, "publish", "few", "b")
        self.turn(readers, first, second)
        self.turn(readers, first, second)
        self.assertEqual(self.successResultOf(answer), 2)
        self.assertLess(len(self.sent), 16)
        self.finish(readers, first, second)
        self.assertEqual(len(self.sent), 42)

    def test_a_publisher_s_next_calls_wait_until_all_got_the_update__NB_07(self):
        """NB-07, UM-17: so one update of each publisher waits at most, and calls stay in order.

        Where the sink has them all, what they ask for is done one after the other.
        """
        for sink in (None, HeldSink()):
            readers, publisher = self.client(), self.client(sink)
            got = self.subscribe(readers, "news", 6)
            texts = [f"{number}" for number in range(20)]
            answers = [call_method(publisher.client, "publish", "news", text) for text in texts]
            late = call_method(publisher.client, "publish", "nobody", "x")
            publisher.pump()
            if sink is not None:
                sink.release()
            self.assertFalse(publisher.ends["server"].reading)
            while not late.called:
                self.turn(readers, publisher)
            self.assertEqual([self.successResultOf(answer) for answer in answers], [6] * 20)
            self.assertEqual(self.successResultOf(late), 0)
            self.finish(readers, publisher)
            self.assertTrue(publisher.ends["server"].reading)
            self.assertEqual(got, [texts] * 6)
            readers.cut()

    def test_what_is_safe_later_waits_for_the_update_as_well__NB_07(self):
        """NB-07, UM-17: three reads, and so batches; all are stored before the first is done."""
        readers, sink = self.client(), HeldSink()
        publisher = self.client(sink)
        got = self.subscribe(readers, "news", 6)
        answers = [self.call(publisher, "publish", "news", text) for text in "abc"]
        self.assertEqual(len(sink.waiting), 3)
        sink.release()
        for _ in range(20):
            self.turn(readers, publisher)
        self.assertEqual([self.successResultOf(one) for one in answers], [6, 6, 6])
        self.assertEqual(got, [["a", "b", "c"]] * 6)

    def test_a_subscriber_that_goes_in_the_middle_is_not_counted(self):
        readers, leaving, publisher = self.client(), self.client(), self.client()
        self.subscribe(readers, "news", 4)
        self.subscribe(leaving, "news", 3)
        answer = self.call(publisher, "publish", "news", "a")
        leaving.client.abort()
        leaving.pump()
        self.finish(readers, publisher)
        self.assertEqual(self.successResultOf(answer), 4)

    def test_a_publisher_that_goes_before_its_turn_has_not_published__NB_02(self):
        """NB-02: who published and went, and came again, left as many updates as it liked."""
        readers = self.client()
        got = self.subscribe(readers, "news", 40)
        for number in range(20):
            going = self.client()
            going.client.call(json.dumps(["publish", "news", f"{number}"])).addErrback(
                lambda lost: None
            )
            going.pump()
            going.client.abort()
            going.pump()
        self.finish(readers)
        self.assertEqual(got, [["0"]] * 40)

    def test_large_updates_are_refused_while_too_much_waits__NB_02(self):
        """NB-02: small ones are not; and who withdraws one makes room."""
        readers = self.client()
        self.subscribe(readers, "news", 5)
        large, sent = "x" * (1 << 20), []
        with self.assertRaises(Refused):
            for _ in range(100):
                sent.append(self.hub.publish("news", large))
        self.assertEqual(len(sent), 64)
        with self.assertRaises(Refused):
            self.hub.publish("news", "x" * 4097)
        sent.append(self.hub.publish("news", "x" * 4096))
        withdrawn = sent.pop(-2)
        withdrawn.addErrback(lambda failure: failure.trap(CancelledError))
        withdrawn.cancel()
        sent.append(self.hub.publish("news", large))
        with self.assertRaises(Refused):
            self.hub.publish("news", large)
        readers.cut()
        self.finish()
        self.assertEqual([one.called for one in sent], [True] * len(sent))

    def test_there_are_so_many_names(self):
        """NB-02: further ones are refused until one is free again."""
        both = self.client(limits={"topics": 20_000, "calls": 20_000})
        ids = [base36(number) for number in range(1, 10_002)]
        both.raw(*(f'C{id}:["subscribe","{id}","{id}"]' for id in ids[:-1]))
        self.assertEqual(both.server.snapshot()["topics"], 10_000)
        refused = self.call(both, "subscribe", "new", ids[-1])
        self.assertEqual(self.failureResultOf(refused, CallFailed).value.code, 8)
        self.successResultOf(self.call(both, "subscribe", ids[0], ids[-1]))

    def test_an_update_that_some_have_got_goes_to_all_and_is_withdrawn_no_more(self):
        readers = self.client()
        got = self.subscribe(readers, "news", 6)
        sent = [self.hub.publish("news", text) for text in "abc"]
        for cancelled in sent[:2]:
            cancelled.addErrback(lambda failure: failure.trap(CancelledError))
            cancelled.cancel()
        self.finish(readers)
        self.assertEqual(got, [["a", "c"]] * 6)
        self.assertEqual(self.successResultOf(sent[2]), 6)

    def test_who_comes_in_the_middle_gets_the_next_update(self):
        readers, late = self.client(), self.client()
        self.subscribe(readers, "news", 6)
        sent = [self.hub.publish("news", text) for text in "ab"]
        [got] = self.subscribe(late, "news")
        self.finish(readers, late)
        self.assertEqual((got, [self.successResultOf(one) for one in sent]), (["b"], [6, 7]))

    def test_who_publishes_whenever_an_update_was_sent_has_one_turn_among_others__NB_07(self):
        """NB-07: such a name stood among those that wait once for each of its updates."""
        readers = self.client()
        got = [self.subscribe(readers, name, 5) for name in ("one", "other")]
        left = list(range(40))

        def again(count):
            self.assertEqual(count, 5)
            if left:
                for name in ("one", "other")[: 1 + len(left) % 3]:
                    self.hub.publish(name, f"{left[0]}").addCallback(again)
                del left[0]

        again(5)
        self.finish(readers)
        numbers = [f"{number}" for number in range(40)]
        self.assertEqual(got[0], [numbers] * 5)
        self.assertEqual(got[1], [[one for one in numbers if (40 - int(one)) % 3]] * 5)

    def test_a_subscriber_that_broke_the_protocol_keeps_no_update_from_the_others(self):
        """NB-07: its machine is closed already while what came before is followed."""
        hub, sent = self.hub, []

        class Telling(UmqServer):
            def attributeChanged(self, name, value):
                shown = self.snapshot()
                self.closed = shown["state"], shown["topics"]
                sent.append(hub.publish("news", name))

        first, last = self.client(), self.client()
        broken = self.client(protocol=Telling, limits={"attributes-bytes": 100})
        got = [self.subscribe(both, "news")[0] for both in (first, broken, last)]
        attachment = Deferred()
        broken.client.setAttribute("a", "", [attachment])
        broken.client.setAttribute("a", "x" * 200)  # it waits for the first, and is too much
        broken.pump()
        attachment.callback(b"x")
        broken.pump()
        self.assertEqual(broken.server.closed, ("CLOSED", 1))
        self.finish(first, last)
        self.assertEqual([self.successResultOf(one) for one in sent], [2])
        self.assertEqual(got, [["a"], [], ["a"]])

    def test_a_program_publishes_without_a_client(self):
        readers = self.client()
        got = self.subscribe(readers, "news", 6)
        self.assertEqual(self.successResultOf(self.hub.publish("nobody", "a")), 0)
        sent = [self.hub.publish("news", text) for text in "ab"]
        self.assertNoResult(sent[0])
        self.finish(readers)
        self.assertEqual([self.successResultOf(one) for one in sent], [6, 6])
        self.assertEqual(got, [["a", "b"]] * 6)
        self.failureResultOf(self.hub.publish("news", "x" * (2 << 20)), LimitExceeded)
        with self.assertRaises(Refused):
            self.hub.publish("news", b"a")


class ServeAfter(TestCase):
    """NB-07: a session waits with the next calls until what an application does is done."""

    def setUp(self):
        self.clock, self.served, hub = Clock(), [], Hub()
        self.first = lambda session: None

        def work(request, number):
            self.served.append(number)
            if number == 0:
                self.first(request.session)
            return number

        hub.methods.register(work, with_request=True)
        self.methods = hub.methods

    def join(self, sink=None, **options):
        factory = UmqServerFactory(
            sink,
            clock=self.clock,
            methods=self.methods,
            wallClock=self.clock.seconds,
            limits={"unread-bytes": 2000},
        )
        self.both = Pair(factory, clock=self.clock, **options)
        self.addCleanup(self.both.close)

    def calls(self, *dones):
        """Three calls, of which the first has the others wait for ``dones``."""
        self.first = lambda session: [session.serveAfter(done) for done in dones]
        for number in range(3):
            self.both.client.call(json.dumps(["work", number])).addErrback(lambda lost: None)
        self.both.pump()

    def all_served(self):
        self.clock.advance(0)
        self.both.advance(0)
        self.assertEqual(self.served, [0, 1, 2])
        self.assertTrue(self.both.ends["server"].reading)

    def test_calls_wait_for_all_that_the_application_named(self):
        self.join()
        dones = [Deferred(), Deferred()]
        self.calls(*dones)
        self.assertEqual(self.served, [0])
        dones[0].callback("kept")
        self.clock.advance(0)
        self.assertEqual((self.served, self.successResultOf(dones[0])), ([0], "kept"))
        dones[1].callback(None)
        self.all_served()

    def test_calls_that_are_stored_wait_as_well(self):
        """UM-17: they are safe together, and are served one after the other."""
        self.join(SafeSink())
        done = Deferred()
        self.calls(done)
        self.assertEqual(self.served, [0])
        done.callback(None)
        self.all_served()
        last = Deferred()
        self.first = lambda session: session.serveAfter(last)
        for number in (1, 0):  # the last one of a batch has the next one wait
            self.both.client.call(json.dumps(["work", number]))
        self.both.pump()
        last.callback(None)
        self.both.advance(0)
        self.both.client.call('["work",2]')
        self.both.pump()
        self.assertEqual(self.served, [0, 1, 2, 1, 0, 2])

    def test_calls_that_waited_for_a_slow_reader_wait_as_well(self):
        """UM-21: they came before it was said that they have to wait for something."""
        self.join(full=1000)
        self.both.deafen()
        for value in ("a" * 4000, "b" * 4000):
            self.both.server.setAttribute("of ours", value)
        self.calls()
        self.assertEqual(self.served, [])
        done = Deferred()
        self.both.server.serveAfter(done)
        self.both.listen()
        self.both.pump()
        self.assertEqual(self.served, [])
        done.callback(None)
        self.all_served()

    def test_what_has_fired_already_or_fails_holds_up_nothing(self):
        self.join()
        failing = Deferred()
        self.calls(succeed(None), failing)
        failing.errback(RuntimeError())
        self.failureResultOf(failing, RuntimeError)
        self.all_served()

    def test_calls_wait_too_if_it_is_said_between_two_turns(self):
        """One more call was served: the turn in which it was had been asked for already."""
        self.join()
        done, later = Deferred(), Deferred()
        self.calls(done)
        done.addCallback(lambda result: self.both.server.serveAfter(later))
        done.callback(None)
        self.clock.advance(0)
        self.assertEqual(self.served, [0])
        later.callback(None)
        self.all_served()

    def test_what_a_session_waited_for_is_cancelled_with_it(self):
        self.join()
        done = Deferred()
        self.calls(done)
        self.both.client.abort()
        self.both.pump()
        self.failureResultOf(done, CancelledError)
        self.assertEqual((self.served, self.clock.getDelayedCalls()), ([0], []))


class Serving(TestCase):
    """NB-07: one read may bring hundreds of calls, each sent on to a thousand subscribers."""

    def setUp(self):
        self.served, self.turns = [], []
        self.methods = MethodRegistry()
        self.methods.register(self.work, name="work", durable=False)

    def work(self, number):
        self.served.append(number)
        self.clock.rightNow += self.seconds
        return number

    def pair(self, seconds, sink=None, **options):
        """A pair whose server needs so many seconds for a call."""
        case = self

        class Server(UmqServer):
            def attributeChanged(self, name, value):
                case.served.append(name)

        both = pair(Server, sink=sink, methods=self.methods, **options)
        self.clock, self.seconds = both.clock, seconds
        self.addCleanup(both.close)
        return both

    def calls(self, both, count, begin=0):
        """``count`` calls that come in one read."""
        return [both.client.call(f'["work",{begin + number}]') for number in range(count)]

    def tick(self):
        """Somebody else, who has his turn between those of the calls."""
        self.turns.append(len(self.served))
        if len(self.served) < self.expected:
            self.clock.callLater(0, self.tick)

    def finish(self, both, expected=0):
        """Let turns go by until nothing is left to serve."""
        self.expected = expected
        both.clock.callLater(0, self.tick)
        both.clock.advance(0)
        both.pump()

    def test_calls_of_one_read_are_served_in_several_turns__NB_07(self):
        """NB-07: without a sink."""
        both = self.pair(TURN_SECONDS / 3.9)
        answers = self.calls(both, 100)
        both.pump()
        self.assertEqual(self.served, list(range(4)))
        self.assertFalse(both.ends["server"].reading)
        self.finish(both, 100)
        served = [0, *self.turns]
        self.assertLessEqual(max(b - a for a, b in itertools.pairwise(served)), 8)
        self.assertEqual(self.served, list(range(100)))
        self.assertTrue(both.ends["server"].reading)
        payloads = [self.successResultOf(answer).payload for answer in answers]
        self.assertEqual(payloads, [str(number) for number in range(100)])

    def test_calls_that_need_not_be_safe_are_served_in_several_turns__NB_07(self):
        """NB-07: with a sink they are stored, in their order, and answered before that."""
        sink = HeldSink()
        both = self.pair(TURN_SECONDS * 0.6, sink)
        answers = self.calls(both, 10)
        both.pump()
        self.assertEqual(self.served, [0, 1])
        self.finish(both)
        self.assertEqual(self.served, list(range(10)))
        stored = [body for batch in sink.batches for body in batch.body]
        self.assertEqual(stored, [b'["work",%d]' % number for number in range(10)])
        for answer in answers:
            self.successResultOf(answer)
        sink.release()

    def test_nothing_overtakes_the_calls_that_wait_for_their_turn__NB_07(self):
        """NB-07: neither what came with them nor what came later."""
        both = self.pair(TURN_SECONDS * 0.6)
        self.calls(both, 3)
        both.client.setAttribute("with them", "")
        both.pump()
        both.client.setAttribute("later", "")
        self.calls(both, 3, 3)
        both.pump()
        self.assertEqual(self.served, [0, 1])
        self.finish(both)
        self.finish(both)
        self.assertEqual(self.served, [0, 1, 2, "with them", "later", 3, 4, 5])

    def test_calls_that_wait_for_their_turn_end_with_the_connection__NB_07(self):
        """NB-07: nothing of them is served, and nothing is left on the clock."""
        both = self.pair(TURN_SECONDS * 0.6)
        answers = self.calls(both, 10)
        both.pump()
        both.server.abort()
        both.pump()
        both.clock.advance(0)
        self.assertEqual(self.served, [0, 1])
        for answer in answers[:2]:
            self.successResultOf(answer)
        for answer in answers[2:]:
            self.failureResultOf(answer, ConnectionClosed)

    def test_a_fault_at_the_end_of_a_turn_is_told(self):
        """NB-09: it was to wait for the next turn, and there was none for a closed machine."""
        both = self.pair(TURN_SECONDS * 2, limits={"attributes-bytes": 100})
        case, attachment = self, Deferred()
        type(both.server).attributeChanged = lambda server, name, value: case.work(name)
        both.client.setAttribute("a", "x" * 98, [attachment])
        both.client.setAttribute("a", "x" * 100)  # it waits for the first, and is too much
        both.pump()
        attachment.callback(b"x")
        both.client.setAttribute("b", "")  # so that one read brings two messages
        both.pump()
        self.assertEqual(self.served, ["a"])
        self.assertEqual(both.server_factory.counters["fault:attributes"], 1)

    def test_calls_that_waited_for_a_slow_reader_are_served_in_several_turns__NB_07(self):
        """NB-07, UM-21: and before what came behind them."""
        both = self.pair(TURN_SECONDS * 0.6, full=1000, limits={"unread-bytes": 2000})
        both.deafen()
        for value in ("a" * 4000, "b" * 4000):
            both.server.setAttribute("of ours", value)
        answers = self.calls(both, 10)
        both.pump()
        self.assertEqual(self.served, [])
        both.listen()
        while not self.served:
            self.assertTrue(both.ends["client"].read(500))
        self.assertEqual(self.served, [0, 1])
        self.finish(both)
        self.assertEqual(self.served, list(range(10)))
        for answer in answers:
            self.successResultOf(answer)
