"""How a connection ends: drained, half-closed, in order, refused, with TLS that failed."""

from __future__ import annotations

from typing import Any

from OpenSSL.SSL import Error as TLSError
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.protocol import Protocol
from twisted.logger import LogLevel
from twisted.protocols.policies import WrappingFactory

from tests.contract.cases import CONNECTED
from tests.contract.world import only, over_all
from tests.doubles import HeldSink
from twisted_msgproto.testing import Pair as Line
from twisted_msgproto.testing import SafeSink


class Draining:
    """The server stops (SIGTERM): what arrived is made safe and acknowledged, within ``drain``."""

    def test_what_arrived_is_acknowledged_before_the_server_is_gone(self: Any) -> None:
        sink = HeldSink()
        world = self.world(sink)
        peer = world.join()
        sent = peer.send()
        world.pump()
        drained = world.factory.drain()
        world.pump()
        self.assertNoResult(drained)
        sink.safe()
        world.wait(1)
        self.successResultOf(sent)
        world.wait(10)
        self.successResultOf(drained)

    def test_the_end_waits_for_drain_seconds_and_no_longer(self: Any) -> None:
        never = {"message": lambda server, message: Deferred()}
        for sink, hooks, messages in (
            (HeldSink(), {}, 1),
            (SafeSink(), never, 1),
            (SafeSink(), {}, 0),
        ):
            world = self.world(sink, hooks=hooks, drain=3.0)
            peer = world.join()
            for _ in range(messages):
                self.ignore(peer.send())
            world.pump()
            drained = world.factory.drain()
            world.wait(2)
            if messages:
                self.assertNoResult(drained)
            world.wait(2)
            self.successResultOf(drained)

    def test_who_waits_for_the_end_no_longer_changes_nothing_of_it(self: Any) -> None:
        """The others were told at once, and nothing was cut off any more."""
        world = self.world(HeldSink(), drain=3.0)
        peer = world.join()
        self.ignore(peer.send())
        world.pump()
        given_up, drained = world.factory.drain(), world.factory.drain()
        given_up.cancel()
        self.failureResultOf(given_up, CancelledError)
        world.wait(2)
        self.assertNoResult(drained)
        self.assertNoResult(world.factory.drain())
        world.wait(2)
        self.successResultOf(drained)


class Ending:
    def test_an_orderly_end_finishes_what_is_in_flight(self: Any) -> None:
        """HO-12"""
        sink = HeldSink()
        world = self.world(sink)
        peer = world.join()
        sent = peer.send()
        world.pump()
        ended = peer.client.close()
        world.pump()
        sink.safe()
        world.wait(5)
        self.successResultOf(sent)
        self.successResultOf(ended)

    @only(*CONNECTED)
    def test_a_server_ends_one_session_in_order(self: Any) -> None:
        sink = HeldSink()
        world = self.world(sink)
        other, peer = world.join(), world.join()
        sent = peer.send()
        world.pump()
        closed = peer.server.close()
        world.pump()
        self.assertNoResult(closed)
        sink.safe()
        world.wait(5)
        self.successResultOf(sent)
        self.successResultOf(closed)
        self.assertTrue(peer.gone)
        self.assertFalse(other.gone)
        self.assertEqual(world.tracebacks, [])

    @only("sabc-ws", "umq")
    def test_a_websocket_close_of_either_side_is_no_reset(self: Any) -> None:
        """HO-18"""
        for of_server in (True, False):
            world = self.world(SafeSink())
            peer = world.join()
            self.soon(world, world.factory.drain() if of_server else peer.client.close(), 1)
            self.assertTrue(peer.line.server.gone)
            self.assertFalse(peer.line.server.aborted or peer.line.client.aborted)

    @only("micromsg2", "sabc", "sabc-ws", "umq")
    def test_a_peer_that_says_nothing_is_closed(self: Any) -> None:
        world = self.world(SafeSink())
        line = Line(self.case.listening(world).buildProtocol, lambda address: Protocol())
        for _ in range(40):
            world.clock.advance(1)
            line.pump()
        self.assertTrue(line.server.gone)
        self.assertEqual(len(world.factory.liveConnections), 0)

    @only(*CONNECTED)
    def test_who_is_turned_away_is_gone_behind_a_wrapper_of_twisteds(self: Any) -> None:
        """An endpoint ``ssl:`` of a program's own left it open, and had two tracebacks."""
        world = self.world(SafeSink(), connections=1)
        build = WrappingFactory(self.case.listening(world)).buildProtocol
        first, second = (Line(build, lambda address: Protocol()) for _ in range(2))
        second.pump()
        self.assertEqual((first.server.gone, second.server.gone), (False, True))
        self.assertEqual(world.factory.counters["turned_away:connections"], 1)
        first.cut()

    @only(*CONNECTED)
    def test_tls_that_fails_is_a_line_and_a_counter(self: Any) -> None:
        world = self.world(SafeSink())
        good = world.join()
        line = Line(self.case.listening(world).buildProtocol, lambda address: Protocol())
        line.server.lost(TLSError([("SSL routines", "", "http request")]))
        self.assertEqual(world.factory.counters["fault:tls"], 1)
        told = [text for text in world.lines(LogLevel.warn) if "TLS" in text]
        self.assertEqual(len(told), 1, world.lines())
        self.assertIn("http request", told[0])
        self.soon(world, good.send(), 1)

    def test_the_counters_can_be_seen_while_the_connection_lives(self: Any) -> None:
        """FC-03: one message in and acknowledged shows in more than its bytes, on both sides."""
        world = self.world(SafeSink())
        peer = world.join()
        self.successResultOf(self.sent(world, peer))
        for counters in (world.factory.counters, peer.client.factory.counters):
            counted = {name for name, count in counters.items() if count}
            self.assertTrue(counted - {"connections_total", "sessions", "events", "bytes"})
        before = {name: count for name, count in world.factory.counters.items() if count}
        after = self.counted_at_the_end(world, peer)
        self.assertEqual(set(after) - set(before), set())

    def sent(self: Any, world: Any, peer: Any) -> Any:
        sent = peer.send()
        world.pump()
        return sent

    def counted_at_the_end(self: Any, world: Any, peer: Any) -> dict[str, int]:
        peer.cut()
        return {name: count for name, count in world.factory.counters.items() if count}


over_all(globals(), Draining, Ending)


# ── A callback may cancel, call and close: every Deferred fires once, and the sessio ──

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

    def test_an_answer_may_cancel_the_next_and_call_again(self: Any) -> None:
        """HO-03"""
        world, sink, peer, sent = self.waiting()
        again: list[Any] = []
        sent[FIRST].addCallback(lambda result: sent[SECOND].cancel())
        sent[FIRST].addCallback(lambda result: again.append(peer.send(b"again")))
        sent[SECOND].addErrback(lambda failure: failure.trap(CancelledError))
        times = self.times(sent)
        self.answered(world, sink)
        self.assertEqual(times, [1, 1])
        self.successResultOf(again[0])
        self.goes_on(world, sink, peer)

    def test_a_cancelled_message_may_cancel_the_next_and_harms_no_other(self: Any) -> None:
        """HO-03"""
        world, sink, peer, sent = self.waiting(3)
        sent[FIRST].addErrback(lambda failure: sent[SECOND].cancel())
        times = self.times(sent[:2])
        sent[FIRST].cancel()
        self.assertEqual(times, [1, 1])
        self.answered(world, sink)
        self.assertEqual(times, [1, 1])
        self.successResultOf(sent[2])
        self.goes_on(world, sink, peer)


over_all(globals(), Callbacks)
