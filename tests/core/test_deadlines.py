"""Named deadlines and many deadlines, each against a plain dictionary."""

from __future__ import annotations

import itertools
import random

import pytest

from tests.doubles import octets_of
from twisted_msgproto.core.deadlines import Deadlines, ManyDeadlines

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


@pytest.mark.parametrize("kind", [Deadlines, ManyDeadlines])
def test_what_is_due_may_be_set_again_at_once(kind):
    deadlines = kind()
    deadlines.set("a", 1.0)
    assert deadlines.due(1.0) == ["a"]
    deadlines.set("a", 1.0)  # whoever sets what is due already is called once more, not for ever
    assert deadlines.due(1.0) == ["a"]
    assert deadlines.next is None


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

    assert octets_of(lambda: move(range(10_000))) < 30_000
    assert (deadlines.next, len(deadlines)) == (9999.0, 3)
    # The nearest is the row in force then, so none leaves from the top.
    assert octets_of(lambda: move(range(9999, 0, -1))) < 30_000
    assert (deadlines.next, len(deadlines)) == (1.0, 3)


def test_keys_with_equal_deadlines_need_no_order_of_their_own():
    deadlines = ManyDeadlines()
    keys = [object() for _ in range(50)]
    for key in keys:
        deadlines.set(key, 1.0)
    assert deadlines.due(1.0) == keys
