"""What every machine gets from its base: deadlines which call methods, and the older names."""

from __future__ import annotations

from typing import ClassVar

import pytest

from tests.doubles import due, unanswered
from twisted_msgproto.core.connection import Connection, WorkLost
from twisted_msgproto.core.deadlines import Deadlines
from twisted_msgproto.core.errors import Fault, Overtaken


class Echo(Connection[bytes, bytes, object]):
    """Says again what it hears; ends after 10 s, and says so 1 s before."""

    def __init__(self):
        self.deadlines = Deadlines()
        self.deadlines.set("warn", 9.0)
        self.deadlines.set("end", 10.0)
        self.counters = None
        self.fault = None
        self.over = False
        self._out = b""

    def receive(self, inputs, now):
        self._out += inputs
        return [inputs]

    def drain(self, now):
        self.over = True
        return []

    def lost(self, now):
        self.lost_at = now
        self.deadlines.clear_all()
        return [] if self.state else [WorkLost([1, 2])]

    def outputs(self):
        out, self._out = self._out, b""
        return out

    @property
    def finished(self):
        return self.over or self.fault is not None

    @property
    def state(self):
        return self.over

    def snapshot(self):
        return {"over": self.over}

    def _warn(self, now, events):
        events.append(("warned", now))

    def _end(self, now, events):
        self.fault = Fault("end", "it is over")
        self.deadlines.set("warn", now + 1)
        events.append(self.fault)

    timely: ClassVar = {"warn": _warn, "end": _end}


def test_each_deadline_calls_its_method_when_it_has_come():
    echo = Echo()
    assert echo.deadline == 9.0
    assert echo.advance(8.9) == []
    assert echo.advance(9.0) == [("warned", 9.0)]
    assert echo.deadline == 10.0
    assert echo.advance(9.5) == []
    assert echo.advance(10.0) == [echo.fault]


def test_all_deadlines_which_have_passed_are_dealt_with_at_once_and_in_order():
    echo = Echo()
    assert echo.advance(20.0) == [("warned", 20.0), echo.fault]


def test_nothing_is_due_any_more_once_a_deadline_has_ended_the_connection():
    echo = Echo()
    echo.deadlines.set("warn", 10.0)  # with the end, but it was set first
    assert echo.advance(10.0) == [("warned", 10.0), echo.fault]
    assert echo.advance(99.0) == []
    echo = Echo()
    echo.deadlines.set("end", 8.0)
    assert echo.advance(20.0) == [echo.fault]


def test_what_is_due_and_what_nobody_answered_are_told_once():
    echo = Echo()
    assert echo.receive(b"abc", 1.0) == [b"abc"]
    assert echo.outputs() == b"abc"
    assert echo.outputs() == b""
    assert due(echo, 1.0) == ([], 9.0)
    assert due(echo, 9.0) == ([("warned", 9.0)], 10.0)
    assert echo.advance(10.0) == [echo.fault]
    assert unanswered(echo) == [1, 2]
    assert (echo.deadline, echo.lost_at) == (None, 0.0)


def test_nothing_is_due_where_there_is_no_deadline():
    echo = Echo()
    echo.deadlines.clear_all()
    assert echo.advance(99.0) == []


@pytest.mark.parametrize("name", ["deadline", "unfinished", "finished", "held", "whole", "state"])
def test_what_a_caller_may_look_at_is_a_value(name):
    assert isinstance(vars(Connection)[name], property)


def test_what_a_machine_does_not_need_has_a_plain_answer():
    echo = Echo()
    assert (echo.paused(1.0), echo.resumed(2.0), echo.held, echo.unfinished) == ([], [], 0, False)
    assert echo.objects == 0
    for answer in (echo.made_safe, echo.not_safe):
        with pytest.raises(ValueError, match="no event had the place 7"):
            answer(7, 1.0)
    assert not echo.finished
    assert echo.ended(3.0) == []
    assert echo.finished
    assert Echo().connection_made(0.0) == []


@pytest.mark.parametrize("unread", [{"held": 1}, {"unfinished": True}])
def test_a_machine_is_whole_when_it_holds_nothing_and_has_read_everything(unread):
    assert Echo().whole
    assert not type("Reading", (Echo,), unread)().whole


@pytest.mark.parametrize(
    "name", ["receive", "drain", "lost", "outputs", "finished", "state", "snapshot"]
)
def test_a_machine_that_leaves_out_a_part_of_the_contract_cannot_be_made(name):
    left_out = getattr(Connection, name)
    with pytest.raises(TypeError, match=f"abstract method '?{name}'?"):
        type("Partial", (Echo,), {name: left_out})()


def test_who_was_overtaken_by_a_stranger_knows_no_name_of_it():
    by = Overtaken("text", host="h", pid=7, run="r")
    assert (str(by), by.host, by.pid, by.run) == ("text", "h", 7, "r")
    stranger = Overtaken("text")
    assert (stranger.host, stranger.pid, stranger.run) == ("", 0, "")
