"""The one place which arms a timer from a machine's deadlines."""

from __future__ import annotations

import pytest
from twisted.internet.task import Clock

from twisted_msgproto.core.deadlines import Deadlines, ManyDeadlines
from twisted_msgproto.net import MachineTimer


class Machine:
    """Does what is due, and remembers when it was asked to."""

    def __init__(self, kind):
        self.deadlines = kind()
        self.calls = []
        self.clock = Clock()
        self.follow = self.calls.extend
        self.timer = MachineTimer(self.clock, self, lambda events: self.follow(events))

    def advance(self, now):
        return [(now, self.deadlines.due(now))]

    def armed(self):
        return [call.getTime() for call in self.clock.getDelayedCalls()]


@pytest.fixture(params=[Deadlines, ManyDeadlines])
def machine(request):
    return Machine(request.param)


def test_a_machine_without_a_deadline_has_no_timer(machine):
    machine.timer.look()
    assert machine.armed() == []


def test_the_machine_is_asked_at_its_deadline_and_not_at_each_look(machine):
    machine.deadlines.set("a", 5.0)
    machine.timer.look()
    machine.timer.look()
    assert machine.armed() == [5.0]
    machine.clock.advance(4)
    machine.timer.look()
    assert machine.calls == []
    machine.clock.advance(1)
    assert machine.calls == [(5.0, ["a"])]
    assert machine.armed() == []


def test_an_earlier_deadline_moves_the_timer_and_a_later_one_leaves_it(machine):
    machine.deadlines.set("a", 5.0)
    machine.timer.look()
    machine.deadlines.set("a", 3.0)
    machine.timer.look()
    assert machine.armed() == [3.0]
    machine.deadlines.set("a", 9.0)
    machine.timer.look()
    assert machine.armed() == [3.0]
    machine.clock.advance(3)  # in vain: the machine is not asked
    assert machine.calls == []
    assert machine.armed() == [9.0]


def test_a_deadline_which_has_passed_is_due_in_the_next_turn(machine):
    machine.clock.advance(7)
    machine.deadlines.set("a", 5.0)
    machine.timer.look()
    assert machine.calls == []
    machine.clock.advance(0)
    assert machine.calls == [(7.0, ["a"])]


def test_what_is_set_while_the_machine_works_is_armed_after_it(machine):
    def follow(events):
        machine.deadlines.set("b", 3.0)
        machine.timer.look()
        machine.deadlines.set("a", 2.0)

    machine.follow = follow
    machine.deadlines.set("a", 1.0)
    machine.timer.look()
    machine.clock.advance(1)
    assert machine.armed() == [2.0]


def test_a_stopped_timer_never_runs_again(machine):
    machine.deadlines.set("a", 5.0)
    machine.timer.look()
    machine.timer.stop()
    machine.timer.stop()
    machine.timer.look()
    assert machine.armed() == []


def test_a_timer_which_is_stopped_from_what_it_calls_stays_stopped(machine):
    def follow(events):
        machine.timer.stop()
        machine.deadlines.set("a", 6.0)

    machine.follow = follow
    machine.deadlines.set("a", 5.0)
    machine.timer.look()
    machine.clock.advance(5)
    assert machine.armed() == []


def test_the_machine_advances_though_nobody_follows_it_any_more(machine):
    """A deadline which stayed would be due again at once, for ever."""
    machine.follow = lambda events: None
    machine.deadlines.set("a", 5.0)
    machine.timer.look()
    machine.clock.advance(5)
    assert machine.armed() == []
    assert machine.deadlines.next is None
