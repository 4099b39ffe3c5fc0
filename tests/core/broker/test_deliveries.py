"""Who gets which message, and what becomes of it.

Who gets what in one turn, and how many steps it is, as a table (NB-07).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

import pytest

from tests.core.broker.world import (
    NOW,
    ORDERS,
    OTHERS,
    Reader,
    broker,
    queued,
    queued_all,
    subscribed,
)
from tests.doubles import lines_run
from twisted_msgproto.core.broker import QueuedMessage, TooManyQueues


def test_each_message_goes_to_one_consumer_in_turn() -> None:
    one = broker()
    first, second, third = (subscribed(one) for _ in range(3))
    one.publish(ORDERS, queued_all(range(4)), NOW)
    one.publish(ORDERS, queued_all(range(4, 8)), NOW)
    assert (first.message_ids, second.message_ids, third.message_ids) == (
        [0, 3, 6],
        [1, 4, 7],
        [2, 5],
    )


def test_a_consumer_without_acknowledgements_gets_everything_BK_01() -> None:
    one = broker()
    one.publish(ORDERS, queued_all(range(5000)), NOW)
    reader = subscribed(one, window=256, acknowledges=False)
    while one.unfinished:
        one.go_on()
    assert reader.message_ids == list(range(5000))
    assert one.store.snapshot()["broker_bytes"] == 0


def test_a_message_that_no_push_can_write_is_found_and_is_dead_BK_02() -> None:
    one = broker(tries=3)
    one.publish(ORDERS, queued_all(range(10)), NOW)
    readers = []
    while 4 not in [row.message_id for row in one.store.peek(ORDERS.dead, 10)]:
        reader = Reader()
        reader.raises = lambda given: 4 in [message.message_id for message in given]
        one.subscribe(reader, ORDERS, NOW)
        one.go_on()
        readers.append(reader)
        assert len(readers) < 10
    assert readers[-1].failures and len(readers) == 4
    one.gone(readers[-1], NOW)
    assert [row.message_id for row in one.store.peek(ORDERS.dead, 10)] == [4]
    assert subscribed(one).message_ids == [0, 1, 2, 3, 5, 6, 7, 8, 9]


def test_queues_of_one_consumer_have_their_turns_BK_06() -> None:
    one = broker()
    one.publish(ORDERS, queued_all(range(1000)), NOW)
    one.publish(OTHERS, queued_all([1000]), NOW)
    reader = subscribed(one, ORDERS, OTHERS, window=100)
    assert 1000 in reader.message_ids[:20]
    slow = subscribed(one, ORDERS, OTHERS, window=1)
    one.publish(OTHERS, queued_all([1001]), NOW)
    slow.settle(one)
    assert {name for name, _ in slow.got} == {ORDERS, OTHERS}


def test_the_message_behind_the_last_acknowledged_one_was_looked_at_BK_07() -> None:
    one = broker(tries=5, durable=True)
    reader = subscribed(one)
    one.publish(ORDERS, queued_all(range(6)), NOW)
    reader.settle(one, 1, 3)
    reader.settle(one, 0)
    one.gone(reader, NOW)
    assert [(row.message_id, row.tries) for row in one.store.peek(ORDERS, 10)] == [
        (2, 1),
        (4, 1),
        (5, 0),
    ]
    gone = weakref.ref(reader)
    del reader
    assert gone() is None, "those that come and go are not kept"


def test_ids_that_a_consumer_does_not_hold_are_counted_and_change_nothing() -> None:
    one = broker()
    one.publish(ORDERS, queued_all(range(4)), NOW)
    holder, other = subscribed(one, window=2), subscribed(one, window=2)
    one.settle(other, [0, 1, 77])
    one.reject(other, [0], requeue=True)
    stranger = Reader()
    one.ready(stranger)
    one.settle(stranger, [0])
    one.reject(stranger, [0, 1], requeue=True)
    one.reject(stranger, [2], requeue=False)
    holder.settle(one, 0)
    one.settle(holder, [0])
    one.reject(holder, [0], requeue=False)
    assert one.store.snapshot()["broker_strays"] == 10
    one.gone(holder, NOW)
    one.gone(other, NOW)
    assert [row.message_id for row in one.store.peek(ORDERS, 9)] == [1, 2, 3]


def test_one_queue_too_many_is_refused() -> None:
    one = broker(broker_queues=1)
    one.store.declare(ORDERS, NOW)
    one.store.declare(ORDERS, NOW)
    with pytest.raises(TooManyQueues, match="others: broker-queues allows 1"):
        one.store.declare(OTHERS, NOW)
    with pytest.raises(TooManyQueues):
        one.subscribe(Reader(), OTHERS, NOW)
    assert not one.store.knows(OTHERS)


def test_of_two_deliveries_the_later_one_is_later_whatever_its_ids_are_BK_07() -> None:
    """Messages that have come back stand before those that a consumer has got already."""
    one = broker(tries=5)
    one.publish(ORDERS, queued_all(range(5)), NOW)
    first, second = subscribed(one, window=2), subscribed(one, window=3)
    assert (first.message_ids, second.message_ids) == ([0, 1], [2, 3, 4])
    second.settle(one)
    one.gone(first, NOW)
    assert second.message_ids == [2, 3, 4, 0, 1]
    one.gone(second, NOW)
    assert [(row.message_id, row.tries) for row in one.store.peek(ORDERS, 10)] == [(0, 2), (1, 0)]


Wants = Callable[[QueuedMessage], bool] | None


def even(message: QueuedMessage) -> bool:
    return message.message_id % 2 == 0


def never(message: QueuedMessage) -> bool:
    return False


CASES: dict[str, tuple[list[tuple[int, Wants]], int, list[list[int]]]] = {
    # who: room and filter; messages; what each gets
    "one": ([(9, None)], 3, [[0, 1, 2]]),
    "one with room for two": ([(2, None)], 3, [[0, 1]]),
    "one without room": ([(0, None)], 3, [[]]),
    "two": ([(9, None)] * 2, 3, [[0, 2], [1]]),
    "two, one full": ([(0, None), (9, None)], 2, [[], [0, 1]]),
    "two, both full": ([(0, None)] * 2, 2, [[], []]),
    "three for two": ([(9, None)] * 3, 2, [[0], [1], []]),
    "rooms of 1 and 3": ([(1, None), (3, None)], 9, [[0], [1, 2, 3]]),
    "a filter": ([(9, even)], 3, [[0, 2]]),
    "a filter, full": ([(1, even)], 3, [[0]]),
    "a filter, two": ([(9, even)] * 2, 5, [[0, 4], [2]]),
    "nobody": ([(9, never)], 2, [[]]),
    "even, all": ([(9, even), (9, None)], 3, [[0, 2], [1]]),
    "even full, all": ([(0, even), (9, None)], 3, [[], [0, 1, 2]]),
}


@pytest.mark.parametrize(("who", "count", "got"), CASES.values(), ids=CASES)
def test_messages_are_given_in_turn__NB_07(
    who: list[tuple[int, Wants]], count: int, got: list[list[int]]
) -> None:
    one = broker()
    readers = [Reader(room) for room, _ in who]
    for reader, (_, wants) in zip(readers, who, strict=True):
        one.subscribe(reader, ORDERS, NOW, wants)
    one.publish(ORDERS, queued_all(range(count)), NOW)
    assert [reader.message_ids for reader in readers] == got
    waiting = count - sum(map(len, got))
    assert one.store.snapshot()["broker_waiting"] == waiting
    # Whoever had no room gets the rest when it says that it has.
    for reader, (room, _) in zip(readers, who, strict=True):
        if room == 0:
            reader.window = 9
            one.ready(reader)
    one.go_on()
    assert sorted(message_id for reader in readers for message_id in reader.message_ids) == [
        message_id
        for message_id in range(count)
        if any(message_id in some for some in got)
        or any(room == 0 and (wants is None or wants(queued(message_id))) for room, wants in who)
    ]


def test_what_one_message_costs_does_not_grow_with_those_that_wait__NB_07() -> None:
    costs = []
    for count in (10, 500):
        one = broker()
        one.publish(ORDERS, queued_all(range(count)), NOW)
        reader = subscribed(one, window=1)
        costs.append(lines_run(lambda one=one, reader=reader: reader.settle(one)))  # type: ignore[misc]
        assert reader.message_ids == [0, 1]
    assert costs[1] <= costs[0] + 10


def test_who_may_take_no_step_takes_none__NB_07() -> None:
    one = broker()
    reader = Reader()
    one.publish(ORDERS, queued_all(range(1)), NOW)
    one.subscribe(reader, ORDERS, NOW, even, lambda message: 10**9)
    one.publish(ORDERS, queued_all(range(1, 3)), NOW)
    one.go_on(0)
    before = list(reader.message_ids)
    assert one.unfinished
    for _ in range(10):
        one.go_on(10)
    assert reader.message_ids == [0, 2] != before


def test_however_many_messages_are_published_at_once_a_turn_has_its_most__NB_07() -> None:
    one = broker()
    readers = [subscribed(one) for _ in range(3)]
    one.publish(ORDERS, queued_all(range(2000)), NOW)
    assert sorted(message_id for reader in readers for message_id in reader.message_ids) == list(
        range(2000)
    )
    assert max(push for reader in readers for push in reader.pushes) <= 500
