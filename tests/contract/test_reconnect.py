"""A client which keeps its session for as long as it runs: one shape for all protocols."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

from OpenSSL.SSL import Error as TLSError
from twisted.cred.checkers import InMemoryUsernamePasswordDatabaseDontUse
from twisted.internet.defer import CancelledError

from tests.contract.cases import CONNECTED
from tests.contract.world import only, over_all
from tests.doubles import HeldSink
from twisted_msgproto.core.errors import ConnectionClosed, Refused
from twisted_msgproto.testing import SafeSink

FIRST, SECOND = 0, 1


class Parts:
    def serving(self: Any, sink: Any = None, **options: Any) -> Any:
        checker = InMemoryUsernamePasswordDatabaseDontUse(me=b"right")
        world = self.world(sink or SafeSink(), portal=self.case.portal([checker]), **options)
        world.checker = checker
        return world

    def client(self: Any, world: Any, **options: Any) -> Any:
        """A client of this world which comes back, and ends with the test."""
        service = self.case.service(world, **options)
        self.addCleanup(self.end, world, service)
        return service

    def end(self: Any, world: Any, service: Any) -> None:
        self.soon(world, service.stopService(), 40)
        self.assertEqual(service.state, "down")

    def refused(self: Any, **options: Any) -> tuple[Any, Any]:
        world = self.serving()
        self.case.refuse(world)
        return world, self.client(world, **options)

    def send(self: Any, service: Any, body: bytes = b"x") -> Any:
        return self.case.send(service, body)

    def standing(self: Any, sink: Any = None) -> tuple[Any, Any]:
        world = self.serving(sink)
        service = self.client(world)
        service.startService()
        world.wait(1)
        return world, service


class ComingBack(Parts):
    def test_it_comes_back_after_a_loss(self: Any) -> None:
        """HO-12"""
        world, service = self.standing()
        self.successResultOf(service.whenEstablished())
        self.soon(world, self.send(service), 1)
        self.case.away(world)
        world.wait(60)
        self.case.back(world)
        world.wait(70)
        self.successResultOf(service.whenEstablished())
        self.soon(world, self.send(service, b"y"), 1)

    @only(*CONNECTED)
    def test_nothing_of_a_lost_session_stays_in_memory(self: Any) -> None:
        world, service = self.standing()
        session = weakref.ref(self.successResultOf(service.whenEstablished()))
        self.soon(world, self.send(service), 1)
        self.case.away(world)
        world.wait(60)
        del world.peers[:]
        gc.collect()
        self.assertIsNone(session())

    def test_its_state_can_be_watched(self: Any) -> None:
        """HO-11"""
        world = self.serving()
        service = self.client(world)
        states: list[Any] = []
        unheard: list[Any] = []
        service.watch(states.append)
        service.watch(lambda state: 1 / 0)

        async def coroutine(state: object) -> None:
            raise ZeroDivisionError

        service.watch(coroutine)
        forget = service.watch(unheard.append)
        forget()
        forget()
        self.assertEqual(service.state, "down")
        service.startService()
        world.wait(1)
        self.assertEqual(states, ["connecting", "up"])
        self.ignore(self.send(service))
        world.wait(1)
        self.case.away(world)
        world.wait(120)
        self.assertIn("down", states)
        self.case.back(world)
        world.wait(70)
        self.assertEqual(states[-1], "up")
        self.soon(world, service.stopService(), 5)
        self.assertEqual(states[-1], "down")
        self.assertEqual(unheard, [])
        failed = self.flushLoggedErrors(ZeroDivisionError)
        self.assertEqual(len(failed), 2 * len(states), "hooks which fail harm nobody")

    def test_who_gives_up_waiting_for_a_session_is_forgotten(self: Any) -> None:
        world = self.serving()
        self.case.away(world)
        service = self.client(world)
        service.startService()
        waiting = service.whenEstablished().addErrback(lambda _: None)
        waiting.cancel()
        there = weakref.ref(waiting)
        del waiting
        gc.collect()
        self.assertIsNone(there())

    def test_it_can_be_started_again(self: Any) -> None:
        world, service = self.standing()
        self.soon(world, service.stopService(), 5)
        self.failureResultOf(self.send(service), ConnectionClosed)
        self.failureResultOf(service.whenEstablished(), ConnectionClosed)
        service.startService()
        world.wait(3)
        self.soon(world, self.send(service), 1)


class BeingRefused(Parts):
    def test_it_says_when_it_is_refused_and_tries_less_and_less_often(self: Any) -> None:
        """HO-11"""
        world, service = self.refused()
        waiting, sent = service.whenEstablished(), self.send(service)
        service.startService()
        world.wait(20)
        self.failureResultOf(waiting, Refused)
        self.failureResultOf(sent, Refused)
        self.assertEqual(service.state, "refused")
        self.failureResultOf(self.send(service), Refused)
        self.failureResultOf(service.whenEstablished(), Refused)
        told = [line for line in world.lines() if "refuses" in line]
        self.assertEqual(len(told), self.case.attempts(world))
        world.wait(600)
        self.assertLessEqual(self.case.attempts(world), 12)
        self.assertGreater(self.case.attempts(world), 5)

    @only(*CONNECTED)
    def test_tls_which_says_no_is_a_refusal(self: Any) -> None:
        """HO-11: a certificate which is not known, a port which speaks no TLS."""
        world = self.serving()
        world.turned_away = TLSError([("SSL routines", "", "certificate verify failed")])
        service = self.client(world)
        waiting = service.whenEstablished()
        service.startService()
        world.wait(2)
        refusal = self.failureResultOf(waiting, Refused)
        self.assertEqual(str(refusal.value), "TLS: certificate verify failed")
        self.assertEqual(service.state, "refused")
        world.turned_away = None
        world.wait(10)
        self.assertEqual(service.state, "up")

    def test_it_gives_up_if_it_is_to(self: Any) -> None:
        """HO-11: ``stopWhenRefused``"""
        world, service = self.refused(stopWhenRefused=True)
        service.startService()
        world.wait(1000)
        self.assertEqual(self.case.attempts(world), 1)
        self.assertEqual(service.state, "refused")
        self.failureResultOf(self.send(service), Refused)

    def test_a_server_which_changes_its_mind_is_found(self: Any) -> None:
        """HO-11"""
        world = self.serving()
        service = self.client(world)
        self.case.refuse(world)
        service.startService()
        world.wait(20)
        self.assertEqual(service.state, "refused")
        self.case.relent(world)
        world.wait(300)
        self.assertEqual(service.state, "up")
        self.assertIsNone(service.refusal)
        self.soon(world, self.send(service), 1)

    def test_a_refusal_after_a_loss_is_told(self: Any) -> None:
        """HO-11: passwords and certificates change while clients run."""
        world, service = self.standing()
        self.soon(world, self.send(service), 1)
        self.case.away(world)
        world.wait(60)
        self.case.refuse(world)
        waiting = self.send(service, b"y"), service.whenEstablished()
        self.case.back(world)
        world.wait(70)
        for one in waiting:
            self.failureResultOf(one, Refused)
        self.assertEqual(service.state, "refused")
        self.assertIsNone(service.session)
        self.case.relent(world)
        world.wait(300)
        self.assertEqual(service.state, "up")
        self.soon(world, self.send(service, b"z"), 1)


class EndingInOrder(Parts):
    @only(*CONNECTED)  # MTL does not hear of it
    def test_it_is_stopped_by_a_hook_that_hears_of_a_loss__stopped_within(self: Any) -> None:
        """HO-12: the hook is called from within the policy that sets the next attempt."""
        world, service = self.standing()
        stopped: list[Any] = []
        service.watch(
            lambda state: None if state == "up" or stopped else stopped.append(service.close())
        )
        self.case.away(world)
        world.wait(60)
        self.case.back(world)
        world.wait(1)
        attempts = self.case.attempts(world)
        world.wait(100)
        self.assertEqual(service.state, "down")
        self.assertEqual(self.case.attempts(world), attempts)
        for one in stopped:
            self.successResultOf(one)
        self.assertEqual(world.clock.getDelayedCalls(), [])

    def test_it_is_stopped_by_a_hook_that_hears_of_an_attempt__stopped_within(self: Any) -> None:
        """HO-12: and may be started again."""
        world = self.serving()
        service = self.client(world)
        stopped: list[Any] = []
        unwatch = service.watch(
            lambda state: stopped.append(service.stopService()) if state == "connecting" else None
        )
        service.startService()
        world.wait(100)
        self.assertEqual(service.state, "down")
        self.assertLessEqual(self.case.attempts(world), 1)
        self.assertEqual(len(stopped), 1)
        self.successResultOf(stopped[0])
        unwatch()
        service.startService()
        world.wait(2)
        self.assertEqual(service.state, "up")

    def test_what_is_in_flight_is_finished(self: Any) -> None:
        """HO-05, HO-12"""
        sink = HeldSink()
        world, service = self.standing(sink)
        sent = self.send(service)
        world.wait(1)
        closed = service.close()
        self.failureResultOf(self.send(service), ConnectionClosed)
        world.pump()
        sink.safe()
        world.wait(3)
        self.successResultOf(sent)
        self.successResultOf(closed)

    def test_a_callback_of_its_beginning_may_end_it(self: Any) -> None:
        for how in ("whenEstablished", "watch"):
            world = self.serving()
            service = self.client(world)
            closed: list[Any] = []

            def end(state: Any = "up", closed: list[Any] = closed, service: Any = service) -> None:
                if state == "up":
                    closed.append(service.close())

            if how == "watch":
                service.watch(end)
            else:
                service.whenEstablished().addCallback(lambda _, end=end: end())
            service.startService()
            world.wait(10)
            self.successResultOf(closed[0])
            self.assertEqual(service.state, "down")
            self.assertEqual(self.flushLoggedErrors(), [])
            self.assertEqual(world.tracebacks, [])

    def test_it_ends_in_time_whatever_the_server_does(self: Any) -> None:
        """HO-05"""
        world, service = self.standing(HeldSink())
        sent = self.send(service)
        world.wait(1)
        self.case.deafen(world)
        closed, again = service.close(), service.stopService()
        world.wait(40)
        self.successResultOf(closed)
        self.successResultOf(again)
        self.failureResultOf(sent)

    def test_it_is_cut_off_at_once__RD_25(self: Any) -> None:
        world, service = self.standing(HeldSink())
        sent = self.send(service)
        world.wait(1)
        service.abort()
        self.soon(world, service.stopService(), 1)
        self.failureResultOf(sent)
        world, service = self.standing()
        self.send(service).addCallback(lambda _: service.abort())
        world.wait(1)
        self.soon(world, service.stopService(), 1)

    def test_whoever_waits_hears_of_it(self: Any) -> None:
        world = self.serving()
        self.case.away(world)
        service = self.client(world)
        service.startService()
        waiting, forgotten, sent = (
            service.whenEstablished(),
            service.whenEstablished(),
            self.send(service),
        )
        forgotten.cancel()
        self.failureResultOf(forgotten, CancelledError)
        self.soon(world, service.close(), 15)
        self.failureResultOf(waiting, ConnectionClosed)
        self.failureResultOf(sent, ConnectionClosed)
        service = self.client(world)  # one that was never started
        sent = self.send(service)
        self.soon(world, service.close(), 1)
        self.failureResultOf(sent, ConnectionClosed)


def cancel_the_next(test: Any, world: Any, service: Any, waiting: list[Any]) -> None:
    waiting[SECOND].cancel()


def call_again(test: Any, world: Any, service: Any, waiting: list[Any]) -> None:
    test.ignore(test.send(service, b"again"))
    test.ignore(service.whenEstablished())


def close(test: Any, world: Any, service: Any, waiting: list[Any]) -> None:
    service.close()


DOINGS: tuple[Callable[..., None], ...] = (cancel_the_next, call_again, close)


class InCallbacks(Parts):
    """A callback may cancel, call and close: every Deferred fires once (HO-03)."""

    def fires(self: Any, world: Any, service: Any, happen: Callable[[], object]) -> None:
        for doing in DOINGS:
            for kind in (lambda number: self.send(service, b"%d" % number), self.stands(service)):
                waiting = [kind(number) for number in range(3)]
                waiting[FIRST].addErrback(
                    lambda failure, doing=doing, waiting=waiting: doing(
                        self, world, service, waiting
                    )
                )
                times = self.times(waiting)
                happen()
                self.assertEqual(times, [1, 1, 1], doing.__name__)
                if doing is close:
                    world.wait(20)
                    service.startService()

    def stands(self: Any, service: Any) -> Callable[[int], Any]:
        return lambda number: service.whenEstablished()

    def test_when_it_is_refused(self: Any) -> None:
        """HO-03"""
        world, service = self.refused()
        service.startService()

        def refused() -> None:
            world.wait(20)

        self.fires(world, service, refused)
        self.assertEqual(world.tracebacks, [])

    def test_when_it_is_stopped(self: Any) -> None:
        """HO-03"""
        world = self.serving()
        self.case.away(world)
        service = self.client(world)
        service.startService()

        def stopped() -> None:
            service.stopService()
            world.wait(20)
            service.startService()

        self.fires(world, service, stopped)
        self.assertEqual(world.tracebacks, [])

    def test_when_it_is_cancelled(self: Any) -> None:
        """HO-03"""
        world = self.serving()
        self.case.away(world)
        service = self.client(world)
        service.startService()
        for kind in (lambda number: self.send(service, b"%d" % number), self.stands(service)):
            waiting = [kind(number) for number in range(3)]
            waiting[FIRST].addErrback(lambda failure, waiting=waiting: waiting[SECOND].cancel())
            times = self.times(waiting)
            waiting[FIRST].cancel()
            self.assertEqual(times, [1, 1, 0])
            waiting[2].cancel()
            self.assertEqual(times, [1, 1, 1])
        self.case.back(world)
        world.wait(40)
        self.assertEqual(world.factory.counters["events"], 0, "nothing of it was sent")

    def test_when_the_session_stands(self: Any) -> None:
        """HO-03"""
        world = self.serving()
        service = self.client(world)
        waiting = [service.whenEstablished() for _ in range(3)]
        sent = [self.send(service, b"%d" % number) for number in range(2)]
        waiting[FIRST].addCallback(lambda session: waiting[SECOND].cancel())
        waiting[FIRST].addCallback(lambda _: sent[SECOND].cancel())
        waiting[FIRST].addCallback(lambda _: self.ignore(self.send(service)))
        times = self.times(waiting + sent)
        service.startService()
        world.wait(3)
        self.assertEqual(times, [1] * 5)
        closed: list[Any] = []
        again = service.whenEstablished()
        again.addCallback(lambda session: closed.append(service.close()))
        world.wait(5)
        self.successResultOf(closed[0])


over_all(globals(), ComingBack, BeingRefused, EndingInOrder, InCallbacks)
