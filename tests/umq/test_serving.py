"""Calls are served as long as a turn lasts; what came behind them waits for the next turn."""

import itertools

from twisted.internet.defer import Deferred
from twisted.trial.unittest import TestCase

from tests.umq.echo import Sink, pair
from twisted_msgproto.core.errors import ConnectionClosed
from twisted_msgproto.net.turns import TURN_SECONDS
from twisted_msgproto.umq import MethodRegistry, UmqServer


class Turns(TestCase):
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
        sink = Sink()
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
        for waiting in sink.waiting:
            waiting.callback(None)

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
        both = self.pair(TURN_SECONDS * 2, limits={"attributes-octets": 100})
        case, attachment = self, Deferred()
        type(both.server).attributeChanged = lambda server, name, value: case.work(name)
        both.client.setAttribute("a", "", [attachment])
        both.client.setAttribute("a", "x" * 200)  # it waits for the first, and is too much
        both.pump()
        attachment.callback(b"x")
        both.client.setAttribute("b", "")  # so that one read brings two messages
        both.pump()
        self.assertEqual(self.served, ["a"])
        self.assertEqual(both.server_factory.counters["fault:attributes"], 1)

    def test_calls_that_waited_for_a_slow_reader_are_served_in_several_turns__NB_07(self):
        """NB-07, UM-21: and before what came behind them."""
        both = self.pair(TURN_SECONDS * 0.6, full=1000, limits={"unread-octets": 2000})
        both.deaf.add("client")
        for value in ("a" * 4000, "b" * 4000):
            both.server.setAttribute("of ours", value)
        answers = self.calls(both, 10)
        both.pump()
        self.assertEqual(self.served, [])
        both.deaf.clear()
        while not self.served:
            self.assertTrue(both.step("client", 500))
        self.assertEqual(self.served, [0, 1])
        self.finish(both)
        self.assertEqual(self.served, list(range(10)))
        for answer in answers:
            self.successResultOf(answer)
