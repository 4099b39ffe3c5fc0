"""A callback may cancel, call and close: every Deferred fires once, and the session goes on."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import CancelledError

from tests.contract.cases import CONNECTED
from tests.contract.world import only, over_all
from tests.tools.sinks import HeldSink

FIRST, SECOND = 0, 1


class Callbacks:
    """What stands on the Deferred of one message does something to another."""

    def waiting(self: Any, count: int = 2) -> Any:
        """A world, its client, and so many messages which wait for the sink."""
        sink = HeldSink()
        world = self.world(sink)
        peer = world.join()
        sent = [peer.send(b"%d" % number) for number in range(count)]
        world.pump()
        return world, sink, peer, sent

    def answered(self: Any, world: Any, sink: HeldSink) -> None:
        while sink.waiting:
            sink.safe()
            world.pump()
        world.wait(1)

    def goes_on(self: Any, world: Any, sink: HeldSink, peer: Any) -> None:
        sent = peer.send(b"after")
        world.pump()
        self.answered(world, sink)
        self.successResultOf(sent)

    def fired(self: Any, sent: list[Any]) -> list[int]:
        times = [0] * len(sent)
        for number, one in enumerate(sent):

            def count(result: Any, number: int = number) -> None:
                times[number] += 1

            one.addBoth(count)
        return times

    def test_an_answer_may_cancel_the_next(self: Any) -> None:
        """HO-03"""
        world, sink, peer, sent = self.waiting()
        sent[FIRST].addCallback(lambda result: sent[SECOND].cancel())
        sent[SECOND].addErrback(lambda failure: failure.trap(CancelledError))
        times = self.fired(sent)
        self.answered(world, sink)
        self.assertEqual(times, [1, 1])
        self.goes_on(world, sink, peer)

    def test_a_cancellation_may_cancel_the_next(self: Any) -> None:
        """HO-03"""
        world, sink, peer, sent = self.waiting()
        for one in sent:
            one.addErrback(lambda failure: failure.trap(CancelledError))
        sent[FIRST].addBoth(lambda result: sent[SECOND].cancel())
        times = self.fired(sent)
        sent[FIRST].cancel()
        self.assertEqual(times, [1, 1])
        self.answered(world, sink)
        self.goes_on(world, sink, peer)

    def test_a_failure_at_the_loss_may_cancel_the_next(self: Any) -> None:
        """HO-03"""
        world, _, peer, sent = self.waiting()
        sent[FIRST].addErrback(lambda failure: sent[SECOND].cancel())
        sent[SECOND].addErrback(lambda failure: None)
        times = self.fired(sent)
        peer.cut()
        world.wait(1)
        self.assertEqual(times, [1, 1])

    @only("sabc", "sabc-ws", "umq")
    def test_a_time_out_may_cancel_the_next(self: Any) -> None:
        """HO-03"""
        world, _, peer, sent = self.waiting()
        sent[FIRST].addErrback(lambda failure: sent[SECOND].cancel())
        sent[SECOND].addErrback(lambda failure: None)
        times = self.fired(sent)
        world.wait(62)
        self.assertEqual(times, [1, 1])
        self.assertFalse(peer.gone)

    def test_a_failure_at_the_loss_may_call_again(self: Any) -> None:
        world, _, peer, sent = self.waiting()
        again: list[Any] = []
        sent[FIRST].addErrback(lambda failure: again.append(peer.send(b"again")))
        sent[SECOND].addErrback(lambda failure: None)
        times = self.fired(sent)
        peer.cut()
        world.wait(1)
        self.assertEqual(times, [1, 1])
        self.failureResultOf(again[0])

    def test_an_answer_may_call_again(self: Any) -> None:
        world, sink, peer, sent = self.waiting()
        again: list[Any] = []
        sent[FIRST].addCallback(lambda result: again.append(peer.send(b"again")))
        times = self.fired(sent)
        self.answered(world, sink)
        self.assertEqual(times, [1, 1])
        self.successResultOf(again[0])

    @only(*CONNECTED)
    def test_an_answer_may_close_the_connection(self: Any) -> None:
        world, sink, peer, sent = self.waiting()
        sent[FIRST].addCallback(lambda result: peer.client.transport.loseConnection())
        sent[SECOND].addErrback(lambda failure: None)
        times = self.fired(sent)
        self.answered(world, sink)
        world.wait(20)
        self.assertEqual(times, [1, 1])
        self.assertTrue(peer.gone)
        self.assertEqual(world.tracebacks, [])

    def test_an_answer_may_end_the_session_in_order(self: Any) -> None:
        world, sink, peer, sent = self.waiting()
        ended: list[Any] = []
        sent[FIRST].addCallback(lambda result: ended.append(self.case.end(peer.client)))
        sent[SECOND].addErrback(lambda failure: None)
        times = self.fired(sent)
        self.answered(world, sink)
        world.wait(20)
        self.assertEqual(times, [1, 1])
        self.successResultOf(ended[0])
        self.assertEqual(world.tracebacks, [])

    def test_a_cancelled_message_harms_no_other(self: Any) -> None:
        world, sink, peer, sent = self.waiting(3)
        sent[SECOND].cancel()
        self.failureResultOf(sent[SECOND], CancelledError)
        self.answered(world, sink)
        self.successResultOf(sent[FIRST])
        self.successResultOf(sent[2])
        self.goes_on(world, sink, peer)


over_all(globals(), Callbacks)
