"""What UMQ's sessions keep for their peers has one bound for the process, over all of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.task import Clock
from twisted.logger import capturedLogs, formatEvent
from twisted.python.failure import Failure
from twisted.trial.unittest import TestCase

from tests.umq.pair import Pair
from tests.umq.sides import feed, limits
from twisted_msgproto.core.errors import ConnectionClosed, LimitExceeded, Refused
from twisted_msgproto.core.kept import KEPT_WEIGHT_OCTETS, SMALL_OCTETS, Kept
from twisted_msgproto.net.backpressure import OctetBudget
from twisted_msgproto.umq import CallFailed, Hub, MethodRegistry, UmqServerFactory
from twisted_msgproto.umq.application.hub import NAME_CHARACTERS
from twisted_msgproto.umq.application.methods import call_method, dump
from twisted_msgproto.umq.machine.sending import LATE_OCTETS, TOPIC_WEIGHT_OCTETS
from twisted_msgproto.umq.machine.sides import Client, Server
from twisted_msgproto.umq.machine.weights import ATTACHMENT_OCTETS
from twisted_msgproto.umq.protocol.exchange import AttachmentLost
from twisted_msgproto.umq.terms.events import CallReceived, HelloReceived, KeptTooMuch
from twisted_msgproto.umq.wire import UmqFault

LIMIT = 100_000
REFUSED = "8 too many calls are pending: process-kept-octets"


def opened(every, **changes):
    """A server whose session stands, one of those that ``every`` counts."""
    machine = Server(limits(**changes), 0.0, every=every)
    machine.receive_text("H1:", 0.0)
    machine.welcome()
    machine.outputs()
    return machine


def counted(machine):
    """What this machine keeps, counted anew."""
    assert machine._serving_octets == sum(each for _, each in machine._serving.values())
    octets = sum(each + KEPT_WEIGHT_OCTETS for _, each in machine._serving.values())
    octets += sum(each.weight for each in machine.attributes.values())
    return octets + TOPIC_WEIGHT_OCTETS * len(machine._published)


def test_calls_of_all_sessions_have_one_bound_and_a_good_one_is_served__NB_02():
    """NB-02, UM-20: who keeps more than its share is refused by name; nobody else is."""
    every = Kept(LIMIT)
    hog, good = opened(every), opened(every)
    assert len(feed(hog, *(f"C{number}:{'x' * 30_000}" for number in range(1, 4)))) == 3
    assert feed(hog, "C4:" + "x" * 30_000, "C5:x" + "x" * 9000) == [KeptTooMuch("call")] * 2
    assert hog.outputs() == [f"E4:{REFUSED}", f"E5:{REFUSED}"]
    assert hog.counters.calls_refused == 2
    assert [type(event) for event in feed(good, "C1:" + "y" * 20_000)] == [CallReceived]
    assert every.octets == 110_000 + 4 * KEPT_WEIGHT_OCTETS
    for id in "123":
        hog.result(id, "")
    assert len(feed(hog, "C6:" + "x" * 30_000)) == 1


def test_attributes_and_log_ins_count_with_all_that_they_hold__NB_02():
    every = Kept(LIMIT)
    machine = Server(limits(), 0.0, every=every)
    feed(machine, "A1:H1:hello", b"x" * 1000)
    assert every.octets == 5 + 1000 + KEPT_WEIGHT_OCTETS
    machine.welcome()
    assert every.octets == 0
    feed(machine, "A1:S:name=value", b"x" * 1000)
    assert every.octets == 4 + 5 + 1000 + KEPT_WEIGHT_OCTETS + ATTACHMENT_OCTETS
    feed(machine, "X:name")
    assert every.octets == 0


def test_of_a_refused_call_and_its_attachments_nothing_is_held__UM_04_NB_02():
    machine = opened(Kept(LIMIT), calls=1)
    feed(machine, "C1:x", "A2:C2:y", b"1", b"2")
    assert machine.counters.calls_refused == 1
    assert machine._incoming.octets == 0


def test_a_call_without_an_id_is_answered_without_one__UM_02():
    machine = opened(Kept(LIMIT))
    assert feed(machine, "C:x") == [CallReceived("", "x")]
    machine.result("", "y")
    assert machine.outputs() == ["R:y"]


def test_of_a_lost_session_nothing_is_sent__UM_05():
    machine = opened(Kept(LIMIT))
    machine.call("x")
    machine.lost(1.0)
    assert machine.outputs() == []


def test_attachments_of_a_call_count_and_it_is_refused_if_they_are_too_large__NB_02():
    """NB-02, UM-19: also where it was let in while there was room."""
    every = Kept(LIMIT)
    one, other = opened(every), opened(every)
    feed(one, "A1:C1:x", "A1:C2:x")
    assert [type(event) for event in feed(one, bytes(LIMIT - 2000))] == [CallReceived]
    assert feed(other, "C1:" + "x" * 5000)
    assert feed(one, bytes(3000)) == [KeptTooMuch("call")]
    assert one.outputs() == [f"E2:{REFUSED}"]
    assert one.calls_serving == 1
    assert every.octets == counted(one) + counted(other)


def test_the_attachments_of_a_refused_call_are_discarded__NB_02():
    """NB-02, UM-04."""
    every = Kept(LIMIT)
    one = opened(every)
    feed(one, "C1:" + "x" * (LIMIT - 300))
    assert feed(one, "A1:C2:x") == [KeptTooMuch("call")]
    assert feed(one, b"gone", "C1:") and one.fault is not None  # C1 is pending: a fault
    assert one.fault.reason == "duplicate"


def test_too_many_attributes_end_the_session_that_has_more_than_its_share__NB_02():
    """NB-02, UM-15, UM-20: ``S`` has no answer that could refuse it."""
    every = Kept(LIMIT)
    hog, good = opened(every), opened(every)
    assert feed(hog, "S:a=" + "x" * (LIMIT - KEPT_WEIGHT_OCTETS - 1))
    assert len(feed(good, "S:a=" + "x" * 1000)) == 1
    told, fault = feed(hog, "S:b=" + "x" * 1000)
    assert told == KeptTooMuch("new attribute")
    assert type(fault) is UmqFault and fault.text == "too many attributes: process-kept-octets"
    assert hog.outputs()[-1].startswith("F0:8 ")
    assert every.octets == counted(good) + counted(hog)  # until its connection has gone
    hog.kept.clear()
    # A value in the place of another counts once, and one that is taken away does not.
    feed(good, "S:a=" + "x" * 2000)
    assert every.octets == counted(good) == 2001 + KEPT_WEIGHT_OCTETS
    feed(good, "X:a", "X:a")
    assert every.octets == 0


def test_topics_of_all_sessions_have_one_bound__NB_02():
    """NB-02, UM-12: a publisher is told in the words that it knows."""
    every = Kept(LIMIT)
    hog, good = opened(every), opened(every)
    ids = [f"{number}A" for number in range(1, 10 + LIMIT // TOPIC_WEIGHT_OCTETS)]
    fit = LIMIT // TOPIC_WEIGHT_OCTETS
    for id in ids[:fit]:
        hog.open_topic(id)
    with pytest.raises(LimitExceeded, match="process-kept-octets"):
        hog.open_topic(ids[fit])
    topic = good.open_topic("A")
    feed(hog, *(f"U{id}:" for id in ids[: fit // 2 + 5]))
    assert every.octets == counted(hog) + counted(good)
    hog.open_topic(ids[0])
    good.close_topic(topic)
    assert every.octets == counted(hog)


WIDE = "x" * 9999 + "\U0001f600"
"""With its last character each character of this text takes four octets."""


def test_a_text_counts_as_the_octets_that_it_takes__NB_02():
    """NB-02: calls, attributes, and what waits for attachments counted characters."""
    every = Kept()
    machine = opened(every)
    feed(machine, "C1:" + WIDE)
    assert every.octets >= 40_000
    feed(machine, f"S:{WIDE}={WIDE}")
    assert every.octets >= 120_000
    machine.result("1", "")
    feed(machine, f"X:{WIDE}")
    assert every.octets == 0
    feed(machine, "A1:C1:" + WIDE, f"A1:S:{WIDE}={WIDE}", f"X:{WIDE}")
    assert machine.held >= 160_000
    # The limit of a session's attributes is told in octets of UTF-8, and is as it was.
    assert len(feed(opened(Kept()), "S:a=" + "x" * ((1 << 20) - 5) + "\U0001f600")) == 1


def test_many_small_attachments_count_as_what_they_take__NB_02():
    """NB-02: 32 that failed without a text, or of an octet, take a kibi-octet and a half."""
    every = Kept()
    machine = opened(every)
    feed(machine, "AW:C1:", *["-:"] * 32, "AW:S:a=", *[b""] * 32)
    assert every.octets == 2 * (KEPT_WEIGHT_OCTETS + 32 * ATTACHMENT_OCTETS) + len("a")
    machine.result("1", "")
    feed(machine, "X:a")
    assert every.octets == 0


MESSAGES = st.sampled_from(
    [
        *("C1:x", "C2:" + "x" * 20_000, "A1:C3:x", "A2:C4:", "B5:1:x", "B6:9:x", "C7:"),
        *("S:a=1", "S:a=" + "x" * 20_000, "A1:S:b=x", "X:a", "X:b", "U1:", "U2:"),
        *(b"", b"x" * 9000, "-:no", "open 1", "open 2", "close 1", "result", "error", "D1:"),
    ]
)


@given(st.lists(st.tuples(st.integers(0, 3), MESSAGES), max_size=80))
def test_it_is_always_known_what_all_sessions_keep__NB_02(steps):
    """NB-02: whatever their peers and we do, in any order."""
    every = Kept(LIMIT)
    machines = [opened(every) for _ in range(4)]
    callbacks = [machine.register_callback() for machine in machines]
    assert callbacks == [1] * 4
    for number, step in steps:
        machine = machines[number]
        if isinstance(step, str) and step.startswith(("open", "close")):
            verb, id = step.split()
            if machine.opened and (int(id) in machine._published) == (verb == "close"):
                machine.close_topic(int(id)) if verb == "close" else machine.open_topic(id)
        elif step in ("result", "error"):
            if machine.opened and machine._serving:
                getattr(machine, step)(next(iter(machine._serving.values()))[0], "")
        elif not machine.closed:
            feed(machine, step)
        assert every.octets == sum(counted(one) for one in machines)
        assert every.octets <= 2 * LIMIT + SMALL_OCTETS * len(machines)
    for machine in machines:
        machine.kept.clear()
    assert (every.octets, every.sessions) == (0, 0)


def hello(every, *messages):
    """A server that was said ``H``, with attachments."""
    machine = Server(limits(), 0.0, every=every)
    return machine, feed(machine, *messages)


def test_a_hello_is_kept_while_the_application_decides__NB_02():
    """NB-02: 10,000 of half a mebi-octet are 5 GB, for up to ten seconds."""
    every = Kept(LIMIT)
    big = ["A2:H1:" + WIDE, b"x" * 20_000, b"y"]
    hogs = [hello(every, *big) for _ in range(3)]
    assert [len(events) for _, events in hogs[:2]] == [1, 2]
    machine, (told, fault) = hogs[1]
    assert told == KeptTooMuch("log-in") and fault.reason == "process-kept-octets"
    assert machine.outputs() == ["F0:8 too many log-ins wait: process-kept-octets"]
    good, events = hello(every, "H1:user:password")
    assert events == [HelloReceived(1, "user:password")]
    assert 60_000 < every.octets < LIMIT
    for machine in (hogs[0][0], good):
        machine.welcome()
    assert (every.octets, every.sessions) == (0, 0)
    # One that is refused is kept until its connection has gone.
    machine, events = hello(every, *big)
    machine.fatal(1, "rejected")
    assert every.octets > 60_000
    machine.kept.clear()
    assert every.octets == 0


def test_a_client_keeps_within_the_same_bound__NB_02():
    """NB-02: servers call, too."""
    machine = Client(limits(), 0.0, every=Kept(1000))
    machine.hello()
    feed(machine, "W1:")
    assert len(feed(machine, "C1:x")) == 1
    assert feed(machine, "C2:" + "x" * SMALL_OCTETS) == [KeptTooMuch("call")]


class Sessions(TestCase):
    """NB-02: sessions of several servers of one process, with applications that answer late."""

    def setUp(self):
        self.clock, self.budget = Clock(), OctetBudget()
        self.pairs, self.late = [], []
        self.methods = MethodRegistry()
        self.methods.register(self.wait, name="wait")
        self.addCleanup(self.close)

    def wait(self, text):
        self.late.append(Deferred())
        return self.late[-1]

    def pair(self, methods=None):
        factory = UmqServerFactory(
            limits={"process-kept-octets": LIMIT},
            methods=methods or self.methods,
            budget=self.budget,
            clock=self.clock,
        )
        self.pairs.append(Pair(factory, clock=self.clock))
        return self.pairs[-1]

    def close(self):
        for both in self.pairs:
            both.cut()
        self.assertEqual((self.budget.kept.octets, self.budget.kept.sessions), (0, 0))
        self.clock.advance(60)  # the sum of the refused ones is told
        self.assertEqual(self.clock.getDelayedCalls(), [])

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
                "umq: a call was refused: process-kept-octets is 100000"
                " (--limit process-kept-octets=NUMBER changes it)"
            ],
        )
        counters = hog.server_factory.counters
        self.assertEqual(counters["turned_away:process-kept-octets"], 3)
        for late in self.late:
            late.callback("done")
        for both in (hog, good):
            both.pump()
        for call in (*waiting, answer):
            self.assertEqual(self.successResultOf(call), "done")
        self.assertEqual(self.budget.kept.octets, 0)

    def test_what_a_session_keeps_counts_until_its_connection_has_gone(self):
        """NB-02: after a fault the peer may let the connection stand for a while."""
        both = self.pair()
        for name in ("a", "b"):
            both.client.setAttribute(name, "x" * 10_000)
        waiting = self.call(both, "wait", "x")
        before = self.budget.kept.octets
        self.assertGreater(before, 20_000)
        both.deaf.add("client")
        both.server.closeSession()
        both.pump()
        self.assertEqual(self.budget.kept.octets, before)
        self.assertFalse(both.ends["server"].gone)
        both.cut()
        self.assertEqual(self.budget.kept.octets, 0)
        self.failureResultOf(waiting, ConnectionClosed)

    def test_nothing_is_kept_of_a_session_whose_application_raises_at_its_end(self):
        """NB-02: it would count for ever."""

        class Producer:
            def stopProducing(self):
                raise ZeroDivisionError

        both = self.pair(Hub().methods)
        self.call(both, "subscribe", "a", "A")
        both.client.setAttribute("a", "x" * 1000)
        both.pump()
        [topic] = both.server.topics.values()
        topic.registerProducer(Producer(), True)
        with self.assertRaises(ZeroDivisionError):
            both.server.sessionEnding(Failure(ConnectionClosed("gone")))
        self.assertEqual(self.budget.kept.octets, 0)

    def test_a_call_with_a_late_answer_counts_with_what_the_application_waits_with(self):
        """NB-02: a Deferred and a request are a kibi-octet; a million calls counted as 264 MB."""
        self.methods.register(lambda: succeed("at once"), name="now")
        both = self.pair()
        self.assertEqual(self.successResultOf(self.call(both, "now")), "at once")
        self.assertEqual(self.budget.kept.octets, 0)
        calls = [self.call(both, "wait", "x") for _ in range(10)]
        self.assertGreater(self.budget.kept.octets, 10 * (LATE_OCTETS + KEPT_WEIGHT_OCTETS))
        for late in self.late:
            late.callback("done")
        both.pump()
        for call in calls:
            self.assertEqual(self.successResultOf(call), "done")
        self.assertEqual(self.budget.kept.octets, 0)
        self.assertEqual(both.server.machine._serving_octets, 0)

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
        self.assertEqual(self.budget.kept.octets, 0)

    def test_attachments_that_an_application_has_not_taken_are_kept(self):
        """NB-02, UM-19: what does not fit is as one that failed; a neighbour's small one is not."""
        streams = self.streaming()
        hog, good = self.pair(), self.pair()
        hog.client.call('["take"]', [bytes(30_000)] * 3)
        hog.pump()
        self.assertGreater(self.budget.kept.octets, 90_000)
        hog.client.call('["take"]', [bytes(30_000)])
        good.client.call('["take"]', [bytes(1000)])
        for both in (hog, good):
            both.pump()
        counters = hog.server_factory.counters
        self.assertEqual(counters["turned_away:process-kept-octets"], 1)
        hogs, refused, goods = streams
        self.failureResultOf(refused.next(), AttachmentLost)
        self.assertEqual(len(self.successResultOf(goods.next())), 1000)
        for _ in range(3):
            self.assertEqual(len(self.successResultOf(hogs.next())), 30_000)
        self.assertLess(self.budget.kept.octets, 3 * (LATE_OCTETS + KEPT_WEIGHT_OCTETS) + 100)
        self.finish(hog, good)

    def test_who_waits_for_an_attachment_gets_it_whatever_is_kept(self):
        """NB-02, UM-19: it is not kept."""
        streams = self.streaming()
        both, late = self.pair(), Deferred()
        both.client.call('["take"]', [late])
        both.pump()
        self.budget.kept.bound(1000)
        waiting = streams[0].next()
        late.callback(bytes(30_000))
        both.pump()
        self.assertEqual(len(self.successResultOf(waiting)), 30_000)
        self.finish(both)

    def test_attachments_that_nobody_will_take_are_not_kept(self):
        """NB-02: the call was refused; those that came count no more, others never do."""
        self.streaming()
        both = self.pair()
        last = Deferred()
        answer = both.client.call('["fail"]', [bytes(3000), last])
        both.pump()
        self.failureResultOf(answer, CallFailed)
        self.assertEqual(self.budget.kept.octets, 0)
        last.callback(bytes(3000))
        both.pump()
        self.assertEqual((self.budget.kept.octets, both.server._streams), (0, {}))
        self.assertEqual(both.server._streamOctets, 0)

    def test_what_an_application_takes_after_the_end_counts_nowhere(self):
        """NB-02."""
        streams = self.streaming()
        both = self.pair()
        answer = both.client.call('["take"]', [bytes(3000), Deferred()])
        both.pump()
        both.cut()
        self.failureResultOf(answer, ConnectionClosed)
        self.assertEqual(len(self.successResultOf(streams[0].next())), 3000)
        self.assertEqual((self.budget.kept.octets, self.budget.kept.sessions), (0, 0))

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
        self.assertEqual(both.server.machine.calls_serving, 1)
        self.assertGreater(self.budget.kept.octets, 20_000)
        self.assertLess(self.budget.kept.octets, 23_000)
        good = self.pair()
        self.assertEqual(self.successResultOf(self.call(good, "length", "abc")), 3)
        done.callback("done")
        both.advance(0)
        self.assertEqual(
            [self.successResultOf(answer) for answer in answers], ["done", *[4000] * 5]
        )
        self.assertEqual(self.budget.kept.octets, 0)

    def test_what_is_held_twice_is_kept_once_and_until_the_end_at_most(self):
        """NB-02: the second holds what the first has left; nothing of it is kept at the end."""
        both, done, answers = self.held(lambda cancelled: None)
        before = self.budget.kept.octets
        second = Deferred()
        both.server.serveAfter(second)
        self.assertEqual(self.budget.kept.octets, before)
        done.callback("done")
        both.advance(0)
        self.assertGreater(self.budget.kept.octets, 20_000)
        both.deaf.add("client")
        both.server.closeSession()
        self.failureResultOf(second, CancelledError)
        self.assertEqual(self.budget.kept.octets, 0)
        for answer in answers[1:]:
            both.cut()
            self.failureResultOf(answer, ConnectionClosed)

    def test_a_call_that_waits_for_its_answer_is_owed_one(self):
        """NB-08: so a newcomer does not take the place of who waits for it in silence."""
        both = self.pair()
        self.assertFalse(both.server.owes)
        waiting = self.call(both, "wait", "x")
        self.assertTrue(both.server.owes)
        self.late[0].callback("done")
        both.pump()
        self.assertEqual(self.successResultOf(waiting), "done")
        self.assertFalse(both.server.owes)

    def test_a_client_counts_what_it_refuses(self):
        """NB-02."""
        both = self.pair()
        both.client_factory.budget.kept.bound(1000)
        both.client.machine.kept.add(900)
        call = both.server.call("x" * 10_000)
        both.pump()
        self.failureResultOf(call, CallFailed)
        counters = both.client_factory.counters
        self.assertEqual(counters["limit:process-kept-octets"], 1)

    def test_a_subscriber_that_does_not_read_is_dropped_when_all_keep_too_much(self):
        """NB-02, UM-21: updates that wait in topics count; who reads gets all of them."""
        hub = Hub()
        deaf, reader = self.pair(hub.methods), self.pair(hub.methods)
        got = {deaf: [], reader: []}
        for both in (deaf, reader):
            for name in ("a", "b"):
                both.client.subscribe(
                    lambda id, name=name: dump(["subscribe", name, id]),
                    lambda update, both=both: got[both].append(update.payload),
                )
                both.pump()
        topics = list(deaf.server.topics.values())
        before = self.budget.kept.octets
        deaf.deaf.add("client")
        for _ in range(20):
            for name in ("a", "b"):
                hub.publish(name, "x" * 10_000)
                reader.pump()
            self.assertLessEqual(self.budget.kept.octets, before + LIMIT)
        self.assertIn("slow", [topic.closed for topic in topics])
        self.assertEqual(got[reader], ["x" * 10_000] * 40)
        deaf.deaf.clear()
        deaf.pump()
        # What waited was sent or thrown away; a topic that has ended is kept no more.
        left = 2 * TOPIC_WEIGHT_OCTETS + len(deaf.server.topics) * TOPIC_WEIGHT_OCTETS
        self.assertEqual(self.budget.kept.octets, left)

    def test_an_update_that_waits_counts_as_the_octets_that_it_takes(self):
        """NB-02: and all of it is free when it was sent, or when the topic ends."""
        hub = Hub()
        both = self.pair(hub.methods)
        both.client.subscribe(lambda id: dump(["subscribe", "a", id]), lambda update: None)
        both.pump()
        before = self.budget.kept.octets
        both.deaf.add("client")
        while not both.server.wire.unread:
            hub.publish("a", "x" * 10_000)
        hub.publish("a", WIDE)
        self.assertGreaterEqual(self.budget.kept.octets, before + 40_000)
        both.deaf.clear()
        both.pump()
        self.assertEqual(self.budget.kept.octets, before)

    def test_a_name_of_the_hub_has_a_bound(self):
        """NB-02: ten thousand names of any length would be kept for ever."""
        hub = Hub()
        both = self.pair(hub.methods)
        self.call(both, "subscribe", "n" * NAME_CHARACTERS, "A")
        refused = self.call(both, "subscribe", "n" * (NAME_CHARACTERS + 1), "B")
        self.assertIn("at most 1024 characters", str(self.failureResultOf(refused).value))
        self.assertEqual(len(both.server.topics), 1)
