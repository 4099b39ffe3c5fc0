"""What is bounded, and what happens at the bound."""

from __future__ import annotations

import random

import pytest

from tests.core.broker.world import NOW, ORDERS, OTHERS, broker, queued_all, subscribed
from tests.doubles import bytes_of, lines_run
from twisted_msgproto.core.broker import (
    QUEUED_MESSAGE_BYTES,
    Broker,
    Declared,
    Forgotten,
    Moved,
    QueueFull,
    QueueName,
    Settled,
    TooManyQueues,
    Wanted,
)
from twisted_msgproto.core.broker.message_table import LARGE, SMALL, MessageTable
from twisted_msgproto.core.broker.terms import TRIES_COUNTED


def waiting(one: Broker, name: QueueName = ORDERS) -> list[int]:
    return [row.message_id for row in one.store.peek(name, 10_000)]


def of_type(one: Broker, *types: type) -> list[object]:
    return [event for event in one.store.take_events() if isinstance(event, types)]


def test_senders_to_a_full_queue_wait_and_those_to_others_do_not__BK_04() -> None:
    one = broker(queue_messages=3)
    called: list[str] = []
    one.publish(ORDERS, queued_all(range(3)), NOW)
    one.store.when_room(ORDERS, lambda: called.append("at once"))
    one.publish(ORDERS, queued_all(range(3, 5)), NOW)
    assert (one.store.full(ORDERS), one.store.full(OTHERS), called) == (True, False, ["at once"])
    one.store.when_room(ORDERS, lambda: called.append("later"))
    one.store.when_room(OTHERS, lambda: called.append("others"))
    assert of_type(one, QueueFull) == [QueueFull(ORDERS, "queue-messages")]
    reader = subscribed(one, window=2)
    reader.settle(one, 0)
    assert called == ["at once", "others"], "4 messages are one too many, in flight or not"
    reader.settle(one, 1)
    assert called == ["at once", "others", "later"]


def test_small_messages_weigh_what_their_objects_cost() -> None:
    """BK-04: bytes were bounded, and messages were not."""
    one = broker(queue_bytes=10 * QUEUED_MESSAGE_BYTES)
    one.publish(ORDERS, queued_all(range(10), body=b""), NOW)
    assert not one.store.full(ORDERS)
    one.publish(ORDERS, queued_all([10], body=b""), NOW)
    assert one.store.full(ORDERS)


def test_a_queue_whose_senders_wait_is_not_forgotten() -> None:
    one = broker(broker_memory_bytes=10 * QUEUED_MESSAGE_BYTES, queue_idle=100)
    called: list[str] = []
    one.publish(OTHERS, queued_all(range(10)), NOW)
    one.store.declare(ORDERS, NOW)
    one.store.when_room(ORDERS, lambda: called.append("room"))
    one.store.advance(NOW + 100)
    assert one.store.knows(ORDERS) and not one.store.forget(ORDERS)
    one.store.purge(OTHERS, 10)
    assert called == ["room"]
    one.store.advance(NOW + 200)
    assert not one.store.knows(ORDERS)


def test_what_comes_counts_before_it_is_there_and_twice_the_limit_is_not_too_much() -> None:
    one = broker(queue_messages=3, queue_bytes=10_000)
    one.store.declare(ORDERS, NOW)
    assert not one.store.overfull(ORDERS, 6, 20_000)
    assert one.store.overfull(ORDERS, 7, 0) and one.store.overfull(ORDERS, 0, 20_001)
    one.publish(ORDERS, queued_all(range(2), body=bytes(5000 - QUEUED_MESSAGE_BYTES)), NOW)
    assert not one.store.full(ORDERS), "it has just what it may have"
    assert not one.store.overfull(ORDERS, 4, 10_000)
    assert one.store.overfull(ORDERS, 5, 0) and one.store.overfull(ORDERS, 0, 10_001)
    one.publish(ORDERS, queued_all([2], body=b""), NOW)
    assert one.store.full(ORDERS), "its bytes are too many"


def test_all_queues_in_memory_share_its_limit() -> None:
    one = broker(broker_memory_bytes=10 * QUEUED_MESSAGE_BYTES)
    called: list[str] = []
    one.publish(ORDERS, queued_all(range(8), body=b""), NOW)
    one.publish(OTHERS, queued_all(range(8, 12), body=b""), NOW)
    assert one.store.full(ORDERS) and one.store.full(OTHERS)
    one.store.when_room(OTHERS, lambda: called.append("others"))
    reader = subscribed(one)
    reader.settle(one, 0)
    assert called == []
    reader.settle(one, 1)
    assert called == ["others"]


def test_a_queue_on_disk_is_not_full_because_of_the_memory_of_others() -> None:
    one = broker(durable=True, broker_memory_bytes=10 * QUEUED_MESSAGE_BYTES)
    one.publish(ORDERS, queued_all(range(100)), NOW)
    assert not one.store.full(ORDERS) and not one.store.full(OTHERS)


def test_the_oldest_of_a_full_queue_are_dead_letters_by_option() -> None:
    one = broker(when_full="dead-letter", queue_messages=3)
    one.publish(ORDERS, queued_all(range(5)), NOW)
    assert (waiting(one), waiting(one, ORDERS.dead)) == ([2, 3, 4], [0, 1])
    assert not one.store.full(ORDERS) and not one.store.overfull(ORDERS, 0, 0)
    assert Moved(ORDERS, ORDERS.dead, [0, 1], True) in one.store.take_events()


def test_a_message_in_flight_that_fills_a_queue_alone_is_waited_for() -> None:
    one = broker(when_full="dead-letter", queue_bytes=2 * QUEUED_MESSAGE_BYTES)
    reader = subscribed(one, window=1)
    one.publish(ORDERS, queued_all([0], body=bytes(3 * QUEUED_MESSAGE_BYTES)), NOW)
    one.publish(ORDERS, queued_all([1]), NOW)
    assert (reader.message_ids, waiting(one), waiting(one, ORDERS.dead)) == ([0], [], [1])


def test_another_choice_for_full_queues_is_the_callers_fault() -> None:
    with pytest.raises(ValueError, match="wait, dead-letter, not 'drop'"):
        broker(when_full="drop")


def test_dead_letters_are_bounded_and_the_oldest_are_dropped_and_counted() -> None:
    one = broker(when_full="dead-letter", queue_messages=1, dead_letters=2)
    one.publish(ORDERS, queued_all(range(6)), NOW)
    assert (waiting(one), waiting(one, ORDERS.dead)) == ([5], [3, 4])
    assert one.store.snapshot()["broker_dead_dropped"] == 3
    dropped = [Settled(ORDERS.dead, [message_id]) for message_id in range(3)]
    assert of_type(one, Settled) == dropped


def test_a_queue_of_dead_letters_has_none_of_its_own() -> None:
    one = broker(tries=1)
    one.publish(ORDERS, queued_all([0]), NOW)
    one.gone(subscribed(one), NOW)
    for _ in range(3):
        one.gone(subscribed(one, ORDERS.dead), NOW)
    assert [(row.message_id, row.tries) for row in one.store.peek(ORDERS.dead, 9)] == [(0, 4)]
    assert ORDERS.dead.dead == ORDERS.dead
    assert not one.store.knows(QueueName("tests", "orders.dead.dead"))


def test_a_queue_of_dead_letters_needs_no_room_among_the_queues() -> None:
    one = broker(tries=1, broker_queues=2)
    one.publish(ORDERS, queued_all([0]), NOW)
    one.gone(subscribed(one), NOW)
    one.store.declare(OTHERS, NOW)
    with pytest.raises(TooManyQueues):
        one.store.declare(QueueName("tests", "more"), NOW)
    assert waiting(one, ORDERS.dead) == [0]


def test_messages_that_are_too_old_are_dead_letters() -> None:
    one = broker(queue_age=60)
    one.publish(ORDERS, queued_all([0, 1], arrived=NOW), NOW)
    one.publish(ORDERS, queued_all([2], arrived=NOW + 5), NOW + 5)
    assert one.store.deadline == NOW + 60
    one.store.advance(NOW + 59.5)
    assert waiting(one) == [0, 1, 2]
    one.store.advance(NOW + 60)
    assert (waiting(one), waiting(one, ORDERS.dead)) == ([2], [0, 1])
    assert one.store.deadline == NOW + 65
    assert Moved(ORDERS, ORDERS.dead, [0, 1], True) in one.store.take_events()


@pytest.mark.parametrize("now", [1_700_000_000, 1000], ids=["clock is set", "not yet"])
def test_messages_of_a_time_without_a_clock_are_as_old_as_this_start__RD_31(now: int) -> None:
    one = broker(queue_age=60)
    one.store.restore(ORDERS, [0, 1], [400] * 2, [40, 990], now)
    one.store.advance(now + 5)
    assert waiting(one) == ([0, 1] if now > 1000 else [1])
    one.store.advance(now + 60)
    assert waiting(one) == []


def test_a_message_in_flight_is_not_too_old_until_it_comes_back() -> None:
    one = broker(queue_age=60)
    one.publish(ORDERS, queued_all([0]), NOW)
    reader = subscribed(one)
    one.store.advance(NOW + 100)
    assert not one.store.knows(ORDERS.dead)
    one.gone(reader, NOW + 100, orderly=True)
    assert one.store.deadline is not None and one.store.deadline <= NOW + 100
    one.store.advance(NOW + 100)
    assert waiting(one, ORDERS.dead) == [0]


def test_many_old_messages_take_several_calls_NB_07() -> None:
    one = broker(queue_age=60, dead_letters=10_000)
    one.publish(ORDERS, queued_all(range(2500)), NOW)
    calls = 0
    while one.store.deadline is not None and one.store.deadline <= NOW + 60:
        one.store.advance(NOW + 60)
        calls += 1
    assert (calls, len(waiting(one, ORDERS.dead))) == (3, 2500)


def test_an_empty_queue_that_nobody_uses_is_forgotten() -> None:
    one = broker(queue_idle=100)
    one.store.declare(ORDERS, NOW)
    one.store.declare(OTHERS, NOW, kept=True)
    reader = subscribed(one)
    assert one.store.deadline == NOW + 100
    one.store.advance(NOW + 100)
    assert one.store.knows(ORDERS)
    one.gone(reader, NOW + 150)
    assert one.store.deadline == NOW + 250
    one.store.advance(NOW + 249)
    assert one.store.knows(ORDERS)
    one.store.take_events()
    one.store.advance(NOW + 250)
    assert (one.store.knows(ORDERS), one.store.knows(OTHERS)) == (False, True)
    assert one.store.take_events() == [Forgotten(ORDERS)]
    assert one.store.deadline is None


def test_a_queue_with_messages_is_not_forgotten_and_its_time_begins_when_it_is_empty() -> None:
    one = broker(queue_idle=100)
    one.publish(ORDERS, queued_all([0]), NOW)
    one.store.advance(NOW + 100)
    assert one.store.knows(ORDERS) and not one.store.forget(ORDERS)
    one.publish(ORDERS, queued_all([1]), NOW + 90)
    while one.store.purge(ORDERS, 10):
        pass
    one.store.advance(NOW + 189)
    assert one.store.knows(ORDERS)
    one.store.advance(NOW + 190)
    assert not one.store.knows(ORDERS)


def test_a_queue_that_was_forgotten_meanwhile_is_made_again() -> None:
    one = broker(broker_queues=1)
    one.store.declare(ORDERS, NOW)
    assert one.store.forget(ORDERS)
    one.store.declare(OTHERS, NOW)
    one.store.take_events()
    one.publish(ORDERS, queued_all([0]), NOW)
    assert (waiting(one), one.store.take_events()) == ([0], [Declared(ORDERS)])


def test_declaring_a_queue_twice_may_keep_it() -> None:
    one = broker(queue_idle=10)
    one.store.declare(ORDERS, NOW)
    one.store.declare(ORDERS, NOW, kept=True)
    one.store.declare(ORDERS, NOW)
    assert one.store.take_events() == [Declared(ORDERS)]
    one.store.advance(NOW + 10)
    assert one.store.knows(ORDERS)


def test_dead_letters_come_back_to_their_ids_without_tries() -> None:
    one = broker(tries=1)
    one.publish(ORDERS, queued_all(range(3)), NOW)
    reader = subscribed(one, window=3)
    reader.reject(one, 0, 1)
    assert waiting(one, ORDERS.dead) == [0, 1]
    reader.window = 0
    assert [one.store.requeue(ORDERS.dead, ORDERS, 1, NOW) for _ in range(3)] == [1, 1, 0]
    assert [(row.message_id, row.tries) for row in one.store.peek(ORDERS, 9)] == [(0, 0), (1, 0)]
    assert (
        one.store.requeue(ORDERS, ORDERS, 9, NOW) == one.store.requeue(OTHERS, ORDERS, 9, NOW) == 0
    )
    heir = subscribed(one)
    assert heir.message_ids == [0, 1]
    assert [message.tries for _, message in heir.got] == [0, 0]


def test_people_see_every_queue() -> None:
    one = broker()
    one.store.declare(OTHERS, NOW, kept=True)
    reader = subscribed(one, window=1)
    one.publish(ORDERS, queued_all(range(3), arrived=NOW + 0.5), NOW)
    orders, others = one.store.queues()
    assert (orders.name, orders.waiting, orders.in_flight) == (ORDERS, 2, 1)
    assert (orders.consumers, orders.oldest) == (1, NOW)
    assert (others.name, others.waiting, others.oldest) == (OTHERS, 0, None)
    assert [row.message is not None for row in one.store.peek(ORDERS, 1)] == [True]
    assert reader.message_ids == [0]


def test_what_asking_for_queues_costs_does_not_grow_with_those_that_are_there_NB_07() -> None:
    """A peer may ask for one after the other in vain, and have unused ones searched for."""
    costs = []
    for count in (3, 300):
        one = broker(broker_queues=count)
        for number in range(count):
            one.store.declare(QueueName("s", f"{number}"), NOW)
        assert not one.store.reclaim("", NOW)  # the next search is a second later

        def ask(one: Broker = one) -> None:
            for number in range(100):
                with pytest.raises(TooManyQueues):
                    one.store.declare(QueueName("s", f"more {number}"), NOW)
                assert not one.store.reclaim("", NOW)

        costs.append(lines_run(ask))
        assert one.store.forget(QueueName("s", "1"))
        one.store.declare(ORDERS, NOW)
        with pytest.raises(TooManyQueues):
            one.store.declare(OTHERS, NOW)
        assert one.store.reclaim("", NOW + 60)
    assert costs[1] < costs[0] * 1.1


def test_the_figures_of_a_queue_name_the_most_tries_of_a_message() -> None:
    one = broker(tries=5)
    one.publish(ORDERS, queued_all(range(2)), NOW)
    reader = subscribed(one)
    for _ in range(2):
        one.reject(reader, [0], requeue=True)
    assert [(row.name, row.tries) for row in one.store.queues()] == [(ORDERS, 2)]
    one.settle(reader, [0, 1])
    assert [row.tries for row in one.store.queues()] == [0]


def test_of_unused_queues_the_one_that_was_used_longest_ago_is_forgotten_NB_07() -> None:
    one = broker()
    mine = [QueueName("mine", f"{number}") for number in range(3)]
    for number, name in enumerate(mine):
        one.store.declare(name, NOW + (5, 1, 3)[number])
    one.store.declare(QueueName("theirs", "0"), NOW)
    assert not one.store.reclaim("mine", NOW + 60.5), "nobody has been idle for a minute"
    assert not one.store.reclaim("mine", NOW + 61.4), "it is searched once a second"
    assert one.store.reclaim("mine", NOW + 61.5)
    assert [one.store.knows(name) for name in mine] == [True, False, True]
    assert one.store.reclaim("mine", NOW + 63), "a minute is enough"
    assert [one.store.knows(name) for name in mine] == [True, False, False]
    assert not one.store.reclaim("mine", NOW + 64)
    assert one.store.knows(QueueName("theirs", "0"))
    assert one.store.reclaim("theirs", NOW + 64), "another search is another one's"


def test_kept_queues_and_those_of_dead_letters_are_not_reclaimed_NB_07() -> None:
    one = broker()
    one.store.declare(ORDERS, NOW, kept=True)
    one.store.declare(OTHERS.dead, NOW)
    assert not one.store.reclaim("", NOW + 1000)
    one.store.declare(OTHERS, NOW)
    assert one.store.reclaim("", NOW + 1001)
    assert [row.name for row in one.store.queues()] == [ORDERS, OTHERS.dead]


def test_more_tries_than_can_be_counted_are_the_most_that_can() -> None:
    one = broker(durable=True, tries=10**9)
    told = MessageTable(SMALL)
    told.insert(0, TRIES_COUNTED - 1)
    one.store.restore(ORDERS, [0], [400], [int(NOW)], NOW, tries=told)
    assert [row.tries for row in one.store.peek(ORDERS, 1)] == [TRIES_COUNTED - 1]
    reader = subscribed(one, window=1)
    one.store.loaded(ORDERS, queued_all([0]))
    reader.reject(one, 0)
    for _ in range(2):  # as a dead letter it may come back for ever
        assert [(row.message_id, row.tries) for row in one.store.peek(ORDERS.dead, 1)] == [
            (0, TRIES_COUNTED)
        ]
        one.gone(subscribed(one, ORDERS.dead), NOW)


@pytest.mark.parametrize("stride", [1, 1_000_003])
@pytest.mark.parametrize("order", ["ascending", "descending", "any"])
@pytest.mark.parametrize(("typecode", "octets"), [(SMALL, 9), (LARGE, 11)])
def test_a_tried_message_costs_little_wherever_it_is(
    stride: int, order: str, typecode: str, octets: int
) -> None:
    """NB-02: in a dictionary it takes more than 70 bytes."""
    count = 5000
    ids = list(range(10**12, 10**12 + count * stride, stride))
    if order == "descending":
        ids.reverse()
    elif order == "any":
        random.Random(5).shuffle(ids)

    def build() -> MessageTable:
        tried = MessageTable(typecode)
        for message_id in ids:
            tried.insert(message_id, 3)
        return tried

    assert bytes_of(build) <= octets * count + 10_000


def test_messages_that_are_rejected_one_by_one_cost_a_broker_little() -> None:
    """NB-02: all wait on disk, and all were tried."""
    count = 1000
    one = broker(durable=True, broker_memory_bytes=1, queue_messages=count)
    one.store.restore(ORDERS, range(count), [400] * count, [int(NOW)] * count, NOW)
    reader = subscribed(one, window=count)
    while len(reader.got) < count:
        for event in one.store.take_events():
            if isinstance(event, Wanted):
                one.store.loaded(ORDERS, queued_all(event.message_ids))

    def reject() -> Broker:
        for message_id in range(count):
            reader.reject(one, message_id)
        reader.got.clear()
        one.store.take_events()
        return one

    assert bytes_of(reject) <= 40 * count
    figures = one.store.queues()[0]
    assert (figures.waiting, figures.in_flight, figures.tries) == (count, 0, 1)
