"""Tickets, waiters and producers: whatever a callback does, each Deferred fires once (HO-03)."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import CancelledError
from twisted.trial.unittest import SynchronousTestCase

from twisted_msgproto.core.errors import ConnectionClosed, LimitExceeded
from twisted_msgproto.net.outbox import ProducerControl, Ticket, Tickets, Waiters


class Counting(SynchronousTestCase):
    def counted(self, deferreds: list[Any]) -> list[int]:
        """How often each of them fires."""
        times = [0] * len(deferreds)
        for number, one in enumerate(deferreds):

            def count(result: Any, number: int = number) -> None:
                times[number] += 1

            one.addBoth(count)
        return times


class ManyTickets(Counting):
    def test_each_hears_of_its_own_number(self) -> None:
        tickets: Tickets[str] = Tickets()
        one, two = tickets.issue(1), tickets.issue(2)
        self.assertEqual(two.number, 2)
        self.assertIn(1, tickets)
        self.assertTrue(tickets.done(2, "two"))
        self.assertFalse(tickets.done(2, "again"))
        self.assertTrue(tickets.fail(1, ConnectionClosed("one")))
        self.assertFalse(tickets.fail(1, ConnectionClosed("again")))
        self.assertEqual(self.successResultOf(two), "two")
        self.failureResultOf(one, ConnectionClosed)
        self.assertEqual(len(tickets), 0)

    def test_a_cancelled_one_is_withdrawn(self) -> None:
        withdrawn: list[int] = []
        tickets: Tickets[None] = Tickets(withdrawn.append)
        tickets.issue(7).addErrback(lambda failure: failure.trap(CancelledError)).cancel()
        self.assertEqual(withdrawn, [7])
        self.assertFalse(tickets.done(7, None))

    def test_all_fail_and_what_is_issued_meanwhile_does_not(self) -> None:
        tickets: Tickets[None] = Tickets()
        every = [tickets.issue(number) for number in range(3)]
        later: list[Ticket[None]] = []
        every[0].addErrback(lambda failure: every[1].cancel())
        every[1].addErrback(lambda failure: later.append(tickets.issue(9)))
        times = self.counted(every)
        tickets.failAll(ConnectionClosed("gone"))
        self.assertEqual(times, [1, 1, 1])
        self.assertNoResult(later[0])
        self.assertEqual(len(tickets), 1)


class Waiting(Counting):
    def test_all_hear_the_same_and_each_once(self) -> None:
        waiters: Waiters[int] = Waiters()
        waiting = [waiters.wait() for _ in range(3)]
        again: list[Any] = []
        waiting[0].addCallback(lambda result: waiting[1].cancel())
        waiting[0].addCallback(lambda _: again.append(waiters.wait()))
        waiting[1].addErrback(lambda failure: failure.trap(CancelledError))
        times = self.counted(waiting)
        waiters.fire(5)
        self.assertEqual(times, [1, 1, 1])
        self.assertNoResult(again[0])
        waiters.fail(ConnectionClosed("gone"))
        self.failureResultOf(again[0], ConnectionClosed)
        self.assertEqual(len(waiters), 0)

    def test_a_cancelled_one_waits_no_more(self) -> None:
        waiters: Waiters[None] = Waiters()
        waiting = waiters.wait()
        waiting.cancel()
        self.failureResultOf(waiting, CancelledError)
        self.assertEqual(len(waiters), 0)


class Producer:
    def __init__(self) -> None:
        self.told: list[str] = []

    def pauseProducing(self) -> None:
        self.told.append("pause")

    def resumeProducing(self) -> None:
        self.told.append("resume")

    def stopProducing(self) -> None:
        self.told.append("stop")


class Producing(SynchronousTestCase):
    def test_it_is_told_of_changes_only(self) -> None:
        control, producer = ProducerControl(), Producer()
        control.look(True)
        control.register(producer, True)
        for full in (False, True, True, False):
            control.look(full)
        control.stop()
        control.stop()
        control.look(True)
        self.assertEqual(producer.told, ["pause", "resume", "stop"])

    def test_there_is_one_and_it_pushes(self) -> None:
        control = ProducerControl()
        with self.assertRaises(ValueError):
            control.register(Producer(), False)
        control.register(Producer(), True)
        with self.assertRaises(RuntimeError):
            control.register(Producer(), True)
        control.unregister()
        control.register(Producer(), True)

    def test_a_new_producer_is_paused_though_the_one_before_it_was(self) -> None:
        control, producer = ProducerControl(), Producer()
        control.register(Producer(), True)
        control.look(True)
        control.unregister()
        control.register(producer, True)
        control.look(True)
        self.assertEqual(producer.told, ["pause"])


def test_a_connection_has_ten_thousand_tickets_unless_its_protocol_has_fewer() -> None:
    Tickets[None]().check(10_000)
    Tickets[None](limit=3).check(3)
    for tickets, count in ((Tickets[None](), 10_001), (Tickets[None](limit=3), 4)):
        with pytest.raises(LimitExceeded, match="0 wait for an answer already"):
            tickets.check(count)
