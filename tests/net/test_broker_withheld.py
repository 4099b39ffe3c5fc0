"""Who is not read while queues are full, and who is read because its acks make room (BK-03)."""

from __future__ import annotations

from twisted.internet.task import Clock

from twisted_msgproto.net import ReadControl
from twisted_msgproto.net.broker import SenderBackpressure

LIMIT = 100


class Wire:
    def __init__(self) -> None:
        self.paused = False

    def pauseProducing(self) -> None:
        self.paused = True

    def resumeProducing(self) -> None:
        self.paused = False


class Sender:
    def __init__(self, *, owing: bool = False) -> None:
        self.wire = Wire()
        self.control = ReadControl(self.wire)
        self.owes_settlements = owing
        self.ended = False

    def withheld_too_long(self) -> None:
        self.ended = True


def test_senders_above_the_limit_are_not_read_until_half_of_it_is_gone() -> None:
    withheld = SenderBackpressure(LIMIT, 30, Clock())
    first, second = Sender(), Sender()
    withheld.add(first, LIMIT)
    assert not first.wire.paused
    withheld.add(second, 1)
    assert (first.wire.paused, second.wire.paused) == (False, True)
    withheld.remove(first, LIMIT // 2 - 1)
    assert second.wire.paused
    withheld.remove(first, 2)
    assert not second.wire.paused
    assert not withheld.pressing


def test_a_sender_of_which_nothing_waits_is_read_though_others_wait() -> None:
    withheld = SenderBackpressure(LIMIT, 30, Clock())
    first, second = Sender(), Sender()
    withheld.add(first, LIMIT)
    withheld.add(second, 10)
    withheld.remove(second, 10)
    assert not second.wire.paused
    assert withheld.waiting == LIMIT


def test_a_sender_that_owes_acks_is_read_and_has_a_deadline() -> None:
    clock = Clock()
    withheld = SenderBackpressure(LIMIT, 30, clock)
    sender = Sender(owing=True)
    withheld.add(sender, LIMIT + 1)
    assert not sender.wire.paused
    clock.advance(29)
    withheld.settled(sender)
    clock.advance(29)
    assert not sender.ended
    clock.advance(2)
    assert sender.ended
    assert clock.getDelayedCalls() == []


def test_who_has_settled_all_waits_like_others() -> None:
    clock = Clock()
    withheld = SenderBackpressure(LIMIT, 30, clock)
    sender = Sender(owing=True)
    withheld.add(sender, LIMIT + 1)
    sender.owes_settlements = False
    withheld.settled(sender)
    assert sender.wire.paused
    sender.owes_settlements = True
    withheld.owing(sender)
    assert not sender.wire.paused
    withheld.forget(sender)
    assert clock.getDelayedCalls() == []


def test_four_times_the_limit_ends_who_brings_it() -> None:
    withheld = SenderBackpressure(LIMIT, 0, Clock())
    sender, other = Sender(owing=True), Sender(owing=True)
    withheld.add(sender, 4 * LIMIT)
    withheld.add(other, 1)
    assert (sender.ended, other.ended) == (False, True)
