"""The sink on Twisted: what is safe before it is answered, and what is not."""

from twisted.internet.defer import Deferred, fail
from twisted.internet.task import Clock
from twisted.trial.unittest import TestCase

from tests.umq.echo import Echo, Sink, pair
from tests.umq.pair import Pair
from twisted_msgproto.core.errors import ConnectionClosed, Refused
from twisted_msgproto.net.backpressure import OctetBudget
from twisted_msgproto.net.turns import TURN_SECONDS
from twisted_msgproto.umq import (
    CallFailed,
    MethodRegistry,
    UmqServer,
    UmqServerFactory,
)
from twisted_msgproto.umq.machine.attachments import SLOTS_OCTETS, WAITING_OCTETS


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
        self.assertEqual(both.client.ending.code, 8)
        both.close()

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
        self.assertEqual(both.ends["client"].protocol.remoteCloseCode, 1001)
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

    def test_a_hook_which_fails_ends_the_session_and_its_call_is_refused(self):
        def broken(session, message):
            raise RuntimeError("mine")

        both = pair(type("Broken", (Echo,), {"messageReceived": broken}))
        answered = both.client.call("hello")
        both.pump()
        self.assertEqual(self.failureResultOf(answered, CallFailed).value.code, 8)
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)
        self.assertTrue(both.ends["server"].gone)
        both.close()


class Held(TestCase):
    def test_who_holds_most_of_what_waits_for_attachments_is_cut_off(self):
        """NB-02: announced attachments and parts of messages count alike."""
        both = pair(limits={"process-held-octets": 10_000})
        late = Deferred()
        asked = both.client.call("x", [b"x" * 5_000, late, Deferred()])
        both.pump()
        self.assertEqual(
            both.server_factory.budget.held.held, 5_001 + SLOTS_OCTETS + WAITING_OCTETS
        )
        self.assertNoResult(asked)
        late.callback(b"y" * 6_000)
        both.pump()
        self.failureResultOf(asked, ConnectionClosed)
        self.assertEqual(both.server_factory.counters["fault:process-held-octets"], 1)
        self.assertEqual(both.server_factory.budget.held.held, 0)
        both.close()

    def test_what_was_held_is_free_when_the_attachments_are_there(self):
        """NB-02"""
        both = pair()
        late = Deferred()
        answered = both.client.call("count", [b"x" * 5_000, late])
        both.pump()
        late.callback(b"")
        both.pump()
        self.successResultOf(answered)
        self.assertEqual(both.server_factory.budget.held.held, 0)
        both.close()

    def test_announcements_without_a_text_are_held_as_what_they_take(self):
        """NB-02: a thousand of them are a mebi-octet and were 4,096; who sends gets its answer."""
        clock, budget, limit = Clock(), OctetBudget(), 1_000_000

        def joined():
            limits = {"process-held-octets": limit}
            factory = UmqServerFactory(clock=clock, budget=budget, limits=limits)
            factory.protocol = Echo
            return Pair(factory, clock=clock)

        hostile, good = [joined() for _ in range(6)], joined()
        late = Deferred()
        answer = good.client.call("count", [b"x" * 100_000, late])
        good.pump()
        for both in hostile:
            for start in range(0, 1000, 100):
                if not both.server._ended:
                    both.server.received([f"A1:S:{n:04d}=" for n in range(start, start + 100)])
                self.assertLessEqual(budget.held.held, limit)
            good.client.setAttribute("steady", "")
            good.pump()
        cut = [both for both in hostile if both.server._ended]
        self.assertGreaterEqual(len(cut), 5)
        late.callback(b"y")
        good.pump()
        self.assertIn("x" * 100, self.successResultOf(answer).payload)
        for both in (*hostile, good):
            both.cut()
        self.assertEqual(budget.held.held, 0)
        clock.advance(60)  # the sum of those that were cut off is told
        self.assertEqual(clock.getDelayedCalls(), [])


class Turns(TestCase):
    """Calls that are safe are served as long as a turn lasts, and the others after it."""

    def calls(self, count, seconds):
        """A pair, ``count`` calls whose method takes ``seconds`` each, and those served so far."""
        served, methods, sink = [], MethodRegistry(), Sink()

        def work(number):
            served.append(number)
            return number

        methods.register(work, name="work")
        turns = self.turns = []

        class Server(UmqServer):
            def _serveReady(self):
                turns.append(len(served))
                super()._serveReady()

        both = pair(Server, sink=sink, methods=methods)
        both.server_factory.spent = lambda: len(served) * seconds
        answers = [both.client.call(f'["work",{number}]') for number in range(count)]
        both.pump()
        self.assertEqual(served, [])
        return both, answers, served, sink

    def test_calls_that_are_safe_together_are_served_in_several_turns__NB_07(self):
        """NB-07: each may be sent on to a thousand subscribers, while all neighbours wait."""
        both, answers, served, sink = self.calls(100, TURN_SECONDS / 3.9)
        for waiting in sink.waiting:
            waiting.callback(None)
        both.clock.advance(0)
        self.assertEqual(self.turns, list(range(4, 100, 4)))
        both.pump()
        self.assertEqual(served, list(range(100)))
        payloads = [self.successResultOf(answer).payload for answer in answers]
        self.assertEqual(payloads, [str(number) for number in range(100)])
        both.close()

    def test_calls_that_are_safe_later_are_served_behind_those_before__NB_07(self):
        """NB-07"""
        both, answers, served, sink = self.calls(10, TURN_SECONDS * 0.6)
        answers += [both.client.call(f'["work",{number}]') for number in range(10, 20)]
        both.pump()
        for waiting in sink.waiting:
            waiting.callback(None)
        self.assertEqual(served, [0, 1])
        both.pump()
        for _ in range(20):
            both.clock.advance(0)
        both.pump()
        self.assertEqual(served, list(range(20)))
        for answer in answers:
            self.successResultOf(answer)
        both.close()

    def test_calls_that_wait_for_their_turn_end_with_the_connection__NB_07(self):
        """NB-07: nothing of them is served, and nothing is left on the clock."""
        both, answers, served, sink = self.calls(10, TURN_SECONDS * 0.6)
        for waiting in sink.waiting:
            waiting.callback(None)
        both.server.abort()
        both.pump()
        both.clock.advance(0)
        self.assertEqual(served, [0, 1])
        self.assertEqual(self.turns, [])
        for answer in answers:
            self.failureResultOf(answer, ConnectionClosed)
        both.close()
