"""What every machine gets: a base, deadlines which call methods, and waiters by correlation id."""

from __future__ import annotations

import itertools
import random
from typing import ClassVar

import pytest

from tests.doubles import bytes_of
from twisted_msgproto.core.connection import Connection, WorkLost
from twisted_msgproto.core.deadlines import Deadlines, ManyDeadlines, Pending
from twisted_msgproto.core.errors import Fault, LimitExceeded


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
    late = Echo()
    assert late.advance(20.0) == [("warned", 20.0), late.fault]


def test_nothing_is_due_any_more_once_a_deadline_has_ended_the_connection():
    echo = Echo()
    echo.deadlines.set("warn", 10.0)  # with the end, but it was set first
    assert echo.advance(10.0) == [("warned", 10.0), echo.fault]
    assert echo.advance(99.0) == []
    echo = Echo()
    echo.deadlines.set("end", 8.0)
    assert echo.advance(20.0) == [echo.fault]


def test_what_a_machine_does_not_need_has_a_plain_answer():
    echo = Echo()
    assert (echo.paused(1.0), echo.resumed(2.0), echo.input_weight, echo.unfinished) == (
        [],
        [],
        0,
        False,
    )
    assert echo.objects == 0
    for answer in (echo.made_safe, echo.not_safe):
        with pytest.raises(ValueError, match="no event had the position 7"):
            answer(7, 1.0)
    assert not echo.finished
    assert echo.ended(3.0) == []
    assert echo.finished
    assert Echo().connection_made(0.0) == []


@pytest.mark.parametrize("unread", [{"input_weight": 1}, {"unfinished": True}])
def test_a_machine_is_whole_when_it_holds_nothing_and_has_read_everything(unread):
    assert Echo().no_partial_input
    assert not type("Reading", (Echo,), unread)().no_partial_input


# ── named deadlines and many deadlines ──────────────────────────────────────────────────────────


STEPS = [
    *[("set", name, at) for name in "ab" for at in (1.0, 2.0, 3.0)],
    ("clear", "a", 0.0),
    ("clear", "b", 0.0),
    ("due", "", 1.0),
    ("due", "", 2.0),
    ("clear_all", "", 0.0),
]


def follow(deadlines, steps):
    """Do ``steps`` on both, and compare after each: ``order`` knows who was set first."""
    times, order, ticks = {}, {}, itertools.count()
    for what, name, at in steps:
        if what == "set":
            deadlines.set(name, at)
            if isinstance(deadlines, ManyDeadlines) or name not in times:
                order[name] = next(ticks)
            times[name] = at
        elif what == "clear":
            deadlines.clear(name)
            times.pop(name, None)
        elif what == "clear_all":
            deadlines.clear_all()
            times.clear()
        else:
            expected = sorted(
                (key for key, time in times.items() if time <= at),
                key=lambda key: (times[key], order[key]),
            )
            assert deadlines.due(at) == expected
            for key in expected:
                del times[key]
        assert deadlines.next == min(times.values(), default=None)
        for key in "ab":
            assert (key in deadlines) == (key in times)
        if isinstance(deadlines, ManyDeadlines):
            assert len(deadlines) == len(times)


@pytest.mark.parametrize("kind", [Deadlines, ManyDeadlines])
def test_the_nearest_is_known_after_every_sequence_of_four_steps(kind):
    for steps in itertools.product(STEPS, repeat=4):
        follow(kind(), steps)


@pytest.mark.parametrize("kind", [Deadlines, ManyDeadlines])
@pytest.mark.parametrize("seed", range(20))
def test_long_random_lives_agree_with_a_dictionary(kind, seed):
    source = random.Random(seed)
    names = [*"abcdefgh"]
    steps = []
    for _ in range(400):
        what = source.choice(["set"] * 6 + ["clear", "clear", "due"])
        at = source.randrange(100)
        steps.append((what, source.choice(names), float(at // 4 if what == "due" else at)))
    follow(kind(), steps)


def test_a_deadline_can_be_brought_nearer_without_being_put_off():
    deadlines = Deadlines()
    for at, kept in ((5.0, 5.0), (7.0, 5.0), (3.0, 3.0), (4.0, 3.0)):
        deadlines.no_later("a", at)
        assert deadlines.next == kept
    deadlines.clear("a")
    deadlines.no_later("a", 9.0)
    assert deadlines.next == 9.0


def test_rows_in_vain_are_dropped_before_they_outnumber_the_others():
    deadlines = ManyDeadlines()
    for key in ("far", "farther"):
        deadlines.set(key, 1e9)

    def move(times):
        for at in times:
            deadlines.set("moving", float(at))
        return deadlines

    assert bytes_of(lambda: move(range(10_000))) < 30_000
    assert (deadlines.next, len(deadlines)) == (9999.0, 3)
    # The nearest is the row in force then, so none leaves from the top.
    assert bytes_of(lambda: move(range(9999, 0, -1))) < 30_000
    assert (deadlines.next, len(deadlines)) == (1.0, 3)


# ── waiters by correlation id ───────────────────────────────────────────────────────────────────


def test_a_waiter_is_answered_or_given_back_once():
    pending = Pending(3)
    for key, what, at in (("b", 1, 5.0), ("a", 2, None), ("c", 3, 4.0)):
        pending.add(key, what, at)
    with pytest.raises(ValueError, match="pending already"):
        pending.add("a", 4)
    assert "c" in pending
    assert (pending.get("c"), pending.resolve("c")) == (3, 3)
    assert (pending.get("c"), pending.resolve("c")) == (None, None)
    assert pending.drain() == [("b", 1), ("a", 2)]
    assert (len(pending), pending.next_deadline()) == (0, None)


def test_no_more_than_the_limit_wait():
    pending = Pending(1)
    pending.add("a", 1)
    assert pending.full
    with pytest.raises(LimitExceeded, match="1 are pending"):
        pending.add("b", 2)
    with pytest.raises(ValueError, match="at least 1"):
        Pending(0)


def test_a_deadline_of_ones_own_is_not_moved_and_forgotten_with_its_waiter():
    pending = Pending(10)
    pending.add("own", 1, 5.0, own=True)
    pending.add("other", 2, 5.0)
    pending.add("again", 3, 1.0, own=True)
    pending.resolve("again")
    pending.add("again", 4, 5.0)
    assert pending.expire(5.0, 7.0) == [("own", 1)]
    assert pending.next_deadline() == 7.0
    assert pending.expire(7.0, 7.0) == [("other", 2), ("again", 4)]


def test_waiters_expire_at_their_deadlines_earliest_first():
    pending = Pending(10)
    pending.add("late", "one", 5.0)
    pending.add("soon", "two", 3.0)
    pending.add("never", "three")
    assert pending.next_deadline() == 3.0
    assert pending.expire(2.9) == []
    assert pending.expire(5.0) == [("soon", "two"), ("late", "one")]
    assert pending.next_deadline() is None
    assert pending.keys() == ["never"]
