"""Waiters by correlation id, with limit and deadlines."""

import pytest

from tests.doubles import octets_of
from twisted_msgproto.core.errors import LimitExceeded
from twisted_msgproto.core.pending import Pending


def test_an_answer_takes_its_waiter_once():
    pending = Pending(2)
    pending.add("a", 1)
    assert "a" in pending
    assert pending.get("a") == 1
    assert pending.resolve("a") == 1
    assert pending.resolve("a") is None
    assert pending.get("a") is None
    assert len(pending) == 0


def test_no_more_than_the_limit_wait():
    pending = Pending(1)
    pending.add("a", 1)
    assert pending.full
    with pytest.raises(LimitExceeded, match="1 are pending"):
        pending.add("b", 2)
    with pytest.raises(ValueError, match="at least 1"):
        Pending(0)


def test_a_key_is_waited_for_once_at_a_time():
    pending = Pending(2)
    pending.add("a", 1)
    with pytest.raises(ValueError, match="pending already"):
        pending.add("a", 2)


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


def test_an_answered_waiter_does_not_expire_nor_its_successor_under_the_same_key_early():
    pending = Pending(10)
    pending.add("a", 1, 3.0)
    pending.resolve("a")
    assert pending.next_deadline() is None
    pending.add("a", 2, 9.0)
    assert pending.expire(3.0) == []
    assert pending.expire(9.0) == [("a", 2)]


def test_deadlines_of_the_answered_do_not_pile_up():
    pending = Pending(100)
    for number in range(3):
        pending.add(f"keeps {number}", number, 99.0)

    def answer():
        for number in range(10_000):
            pending.add(number, number, 50.0)
            pending.resolve(number)
        return pending

    assert octets_of(answer) < 30_000
    assert pending.next_deadline() == 99.0
    assert pending.expire(98.9) == []
    assert [key for key, _ in pending.expire(99.0)] == ["keeps 0", "keeps 1", "keeps 2"]


def test_draining_gives_every_waiter_back_in_order():
    pending = Pending(10)
    pending.add("b", 1, 5.0)
    pending.add("a", 2)
    assert pending.drain() == [("b", 1), ("a", 2)]
    assert len(pending) == 0
    assert pending.next_deadline() is None
