"""What the broker does with what is not there: consumers that are gone, empty lists, one room.

Rows of numbers in chunks of arrays are the same as a dictionary.
"""

from __future__ import annotations

import tracemalloc
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.broker.world import (
    NOW,
    ORDERS,
    OTHERS,
    Reader,
    broker,
    queued_all,
    subscribed,
    tries,
)
from twisted_msgproto.core.broker import (
    QUEUED_MESSAGE_BYTES,
    Broker,
    Declared,
    Forgotten,
    Moved,
    QueuedMessage,
    QueueFull,
    QueueName,
    Settled,
    Tried,
)
from twisted_msgproto.core.broker import message_table as module
from twisted_msgproto.core.broker.message_table import LARGE, SMALL, MessageTable


def test_no_messages_make_no_queue() -> None:
    one = broker()
    one.publish(ORDERS, [], NOW)
    assert (one.store.take_events(), list(one.store.peek(ORDERS, 10))) == ([], [])


def test_who_has_not_subscribed_to_a_queue_cannot_unsubscribe_from_it() -> None:
    one = broker()
    reader = subscribed(one, OTHERS)
    one.store.declare(ORDERS, NOW)
    one.store.take_events()
    for consumer, name in ((Reader(), ORDERS), (reader, ORDERS), (reader, ORDERS.dead)):
        assert not one.unsubscribe(consumer, name, NOW)
    assert not one.unsubscribe(Reader(), QueueName("tests", "none"), NOW)
    assert one.store.take_events() == []
    assert one.unsubscribe(reader, OTHERS, NOW)
    assert not one.unsubscribe(reader, OTHERS, NOW)


def test_a_consumer_that_goes_while_it_fails_is_lost_once() -> None:
    class Leaving(Reader):
        one: Broker

        def push(self, queue: QueueName, messages: Sequence[QueuedMessage]) -> bool:
            self.one.gone(self, NOW)
            raise RuntimeError("gone")

    one = broker()
    reader = Leaving()
    reader.one = one
    one.publish(ORDERS, queued_all(range(3)), NOW)
    one.subscribe(reader, ORDERS, NOW)
    one.go_on()
    assert (one.store.counters.failed_consumers, len(reader.failures)) == (1, 1)
    assert [row.message_id for row in one.store.peek(ORDERS, 10)] == [0, 1, 2]


def test_the_oldest_is_purged_first_whether_somebody_may_want_it_or_not() -> None:
    one = broker()
    one.publish(ORDERS, queued_all(range(5)), NOW)
    reader = Reader(window=1)
    one.subscribe(reader, ORDERS, NOW, lambda message: message.message_id % 2 == 1)
    one.go_on()
    assert reader.message_ids == [1]
    left = []
    while one.store.purge(ORDERS, 1):
        left.append([row.message_id for row in one.store.peek(ORDERS, 10)])
    assert left == [[2, 3, 4], [3, 4], [4], []]


def test_a_queue_is_restored_in_parts() -> None:
    one = broker(durable=True)
    one.store.restore(
        ORDERS, [0, 1], [QUEUED_MESSAGE_BYTES] * 2, [int(NOW)] * 2, NOW, tries=tries({1: 2})
    )
    one.store.restore(ORDERS, [5], [QUEUED_MESSAGE_BYTES], [int(NOW)], NOW)
    assert [(row.message_id, row.tries) for row in one.store.peek(ORDERS, 10)] == [
        (0, 0),
        (1, 2),
        (5, 0),
    ]
    assert one.store.snapshot()["broker_queues"] == 1


def test_memory_has_twice_its_limit_before_anything_is_refused() -> None:
    one = broker(broker_memory_bytes=10 * QUEUED_MESSAGE_BYTES)
    assert not one.store.overfull(ORDERS, 1, 20 * QUEUED_MESSAGE_BYTES)
    assert one.store.overfull(ORDERS, 1, 20 * QUEUED_MESSAGE_BYTES + 1)
    assert not broker(durable=True).store.overfull(ORDERS, 1, 1 << 40)


def test_a_second_sender_waits_for_room_without_another_event() -> None:
    one = broker(queue_messages=1)
    one.publish(ORDERS, queued_all(range(2)), NOW)
    called: list[int] = []
    first, second = (lambda: called.append(1)), (lambda: called.append(2))
    one.store.when_room(ORDERS, first)
    one.store.when_room(ORDERS, second)
    assert [event for event in one.store.take_events() if isinstance(event, QueueFull)] == [
        QueueFull(ORDERS, "queue-messages")
    ]
    reader = subscribed(one)
    reader.settle(one)
    assert called == [1, 2]


def test_messages_that_were_pushed_alone_are_pushed_together_once_they_are_done_with() -> None:
    one = broker()
    one.publish(ORDERS, queued_all(range(3)), NOW)
    failing = Reader()
    failing.raises = lambda messages: True
    one.subscribe(failing, ORDERS, NOW)
    one.go_on()
    reader = subscribed(one)
    assert reader.pushes == [1, 1, 1]
    reader.settle(one)
    settled = [event.message_ids for event in one.store.take_events() if isinstance(event, Settled)]
    assert sorted(message_id for ids in settled for message_id in ids) == [0, 1, 2]
    one.publish(ORDERS, queued_all(range(3, 6)), NOW)
    one.go_on()
    assert reader.pushes == [1, 1, 1, 3]


def test_an_id_which_left_while_it_was_read_cannot_be_unreadable() -> None:
    one = broker(durable=True)
    one.store.restore(ORDERS, range(2), [QUEUED_MESSAGE_BYTES] * 2, [int(NOW)] * 2, NOW)
    subscribed(one)
    one.store.loaded(ORDERS, [], [7])
    assert one.store.counters.unreadable == 0
    one.store.loaded(ORDERS, [], [0])
    assert one.store.counters.unreadable == 1
    assert [row.message_id for row in one.store.peek(ORDERS, 10)] == [1]


def test_a_message_whose_body_is_being_read_may_become_a_dead_one() -> None:
    one = broker(durable=True, when_full="dead-letter", queue_messages=3)
    one.store.restore(ORDERS, [0, 1, 2], [QUEUED_MESSAGE_BYTES] * 3, [int(NOW)] * 3, NOW)
    reader = subscribed(one)  # the three are asked for
    one.publish(ORDERS, queued_all([3]), NOW)
    assert [row.message_id for row in one.store.peek(ORDERS.dead, 9)] == [0]
    one.store.loaded(ORDERS, queued_all(range(3)))
    assert reader.message_ids == [1, 2, 3]


def test_a_dead_letter_stays_in_memory_only_where_there_is_room() -> None:
    one = broker(
        durable=True,
        when_full="dead-letter",
        queue_messages=3,
        broker_memory_bytes=4 * QUEUED_MESSAGE_BYTES,
    )
    for message_id in range(12):
        one.publish(ORDERS, queued_all([message_id], body=b""), NOW)
    dead = list(one.store.peek(ORDERS.dead, 99))
    assert [row.message_id for row in dead] == list(range(9))
    assert 0 < sum(row.message is not None for row in dead) < 9


def test_every_verb_tells_what_happened_and_nothing_else() -> None:
    """The durable half writes these events: one too few is lost after a crash."""
    told: list[int] = []
    one = broker(lambda: told.append(1), durable=True, tries=2)
    reader = Reader(window=4)
    dead = ORDERS.dead
    steps: list[tuple[Callable[[], object], list[Any]]] = [
        (lambda: one.subscribe(reader, ORDERS, NOW), [Declared(ORDERS)]),
        (one.go_on, []),
        (lambda: one.publish(ORDERS, queued_all(range(6)), NOW), []),
        (lambda: reader.settle(one, 0), [Settled(ORDERS, [0])]),
        (lambda: reader.reject(one, 1, requeue=False), [Settled(ORDERS, [1])]),
        (lambda: reader.reject(one, 2), [Tried(ORDERS, {2: 1})]),
        (lambda: reader.reject(one, 77), []),
        (
            lambda: reader.reject(one, 2),
            [Tried(ORDERS, {2: 2}), Declared(dead), Moved(ORDERS, dead, [2], True)],
        ),
        (lambda: one.store.requeue(dead, OTHERS, 0, NOW), [Declared(OTHERS)]),
        (lambda: one.store.requeue(dead, OTHERS, 5, NOW), [Moved(dead, OTHERS, [2], False)]),
        (lambda: one.store.purge(OTHERS, 5), [Settled(OTHERS, [2])]),
        (lambda: one.store.forget(OTHERS), [Forgotten(OTHERS)]),
        (lambda: one.gone(reader, NOW, orderly=True), []),
        (lambda: one.store.purge(ORDERS, 2), [Settled(ORDERS, [3, 4])]),
        (lambda: one.store.declare(OTHERS, NOW), [Declared(OTHERS)]),
    ]
    for number, (verb, events) in enumerate(steps):
        told.clear()
        verb()
        assert one.store.take_events() == events, f"step {number}"
        assert told or verb == one.go_on, f"step {number}"
    figures = {name.removeprefix("broker_"): count for name, count in one.store.snapshot().items()}
    assert {name: count for name, count in figures.items() if count} == {
        "published": 6,
        "delivered": 7,
        "acknowledged": 1,
        "rejected": 1,
        "returned": 5,
        "strays": 1,
        "dead_letters": 1,
        "purged": 3,
        "requeued": 1,
        "queues": 3,
        "waiting": 1,
        "bytes": QUEUED_MESSAGE_BYTES + 4,
        "memory_bytes": QUEUED_MESSAGE_BYTES + 4,
    }


@pytest.mark.parametrize(
    "leave",
    [
        lambda one, odds: one.store.requeue(ORDERS, OTHERS, 1, NOW),
        lambda one, odds: one.store.purge(ORDERS, 1),
        lambda one, odds: one.unsubscribe(odds, ORDERS, NOW),
    ],
    ids=["moved", "purged", "wanted no more"],
)
def test_what_waited_behind_messages_that_nobody_waits_for_is_delivered(leave: Any) -> None:
    one = broker()
    evens, odds = Reader(), Reader(window=1)
    one.subscribe(evens, ORDERS, NOW, lambda message: message.message_id % 2 == 0)
    one.subscribe(odds, ORDERS, NOW, lambda message: message.message_id % 2 == 1)
    one.publish(ORDERS, queued_all(range(6)), NOW)
    assert (evens.message_ids, odds.message_ids) == ([0, 2], [1])
    assert leave(one, odds)
    assert (evens.message_ids, odds.message_ids) == ([0, 2, 4], [1])


def test_a_message_that_is_pushed_alone_is_so_behind_one_that_is_not() -> None:
    one = broker()
    holder = subscribed(one, window=1)
    one.publish(ORDERS, queued_all([0]), NOW)
    failing = subscribed(one)
    failing.raises = lambda messages: True
    one.publish(ORDERS, queued_all([1, 2]), NOW)
    assert len(failing.failures) == 1
    one.gone(holder, NOW, orderly=True)
    assert subscribed(one).pushes == [1, 1, 1]


DISTANCE_MAX = 2**32 - 1
PLACE = st.one_of(
    st.integers(0, 400),
    st.integers(0, 60).map(lambda message_id: message_id * DISTANCE_MAX // 7),
    st.sampled_from([2**62, 2**63 - 1]),
)
STEP = st.one_of(
    st.tuples(
        st.sampled_from(["extend", "merge"]),
        PLACE,
        st.integers(1, 12),
        st.sampled_from([1, 3, DISTANCE_MAX, 2**40]),
    ),
    st.tuples(st.just("behind"), st.just(0), st.integers(1, 12), st.sampled_from([1, 2**40])),
    st.tuples(
        st.sampled_from(["insert", "take", "skip", "pop", "remove", "discard", "prepend"]),
        PLACE,
        st.integers(0, 30),
        st.just(1),
    ),
)


def columns_of(codes: str, ids: Sequence[int], seed: int) -> list[list[int]]:
    """Numbers for some ids, others for another seed."""
    return [[(message_id + seed + at) % 65536 for message_id in ids] for at in range(len(codes))]


@settings(max_examples=250)
@given(
    st.lists(STEP, max_size=40), st.integers(2, 6), st.sampled_from([SMALL, LARGE, LARGE + LARGE])
)
def test_ids_are_a_dictionary_in_order(
    steps: list[tuple[str, int, int, int]], chunk: int, codes: str
) -> None:
    before, module.CHUNK = module.CHUNK, chunk  # type: ignore[misc]
    try:
        walk(steps, codes)
    finally:
        module.CHUNK = before  # type: ignore[misc]


def walk(steps: list[tuple[str, int, int, int]], codes: str) -> None:
    known: dict[int, tuple[int, ...]] = {}
    here = MessageTable(codes)
    for seed, (step, message_id, number, gap) in enumerate(steps):
        start = max(known, default=200) + 1 if step == "behind" else message_id
        some = [start + gap * at for at in range(number) if start + gap * at < 2**63]
        new = columns_of(codes, some, seed)
        rows = dict(zip(some, zip(*new, strict=True), strict=True))
        match step:
            case "extend" | "behind":
                here.extend(some, *new)
                known |= rows
            case "merge":
                other = MessageTable(codes)
                for one, numbers in reversed(rows.items()):
                    other.insert(one, *numbers)
                here.merge(other)
                known |= rows
            case "insert" if some:
                here.insert(message_id, *rows[message_id])
                known[message_id] = rows[message_id]
            case "take":
                taken = here.take(number)
                first = sorted(known)[:number]
                assert list(zip(*taken, strict=True)) == [(one, *known.pop(one)) for one in first]
            case "skip":
                here.skip(number)
                known = {one: known[one] for one in sorted(known)[number:]}
            case "pop":
                message_id = sorted(known)[number % len(known)] if known else message_id
                row = known.pop(message_id, None)
                assert here.pop(message_id) == (None if row is None else (message_id, *row))
                assert here.pop(message_id) is None
            case "remove":
                here.remove(message_id, message_id + number)
                known = {
                    one: row for one, row in known.items() if one - message_id not in range(number)
                }
            case "discard":
                here.discard(some[::-1])
                known = {one: row for one, row in known.items() if one not in some}
            case "prepend":
                others = MessageTable(codes)
                for one in sorted(known)[: number // 2]:
                    row = here.pop(one)
                    assert row is not None
                    others.insert(*row)
                here.prepend(others)
                assert not others
        kept = sorted(known)
        assert list(here) == [(one, *known[one]) for one in kept]
        assert (len(here), here.last) == (len(kept), kept[-1] if kept else -1)
        assert here.first == ((kept[0], *known[kept[0]]) if kept else None)
        assert here.largest == max((row[0] for row in known.values()), default=0)
        for one in (message_id - 1, message_id, message_id + 1):
            assert here.get(one) == ((one, *known[one]) if one in known else None)
            if len(codes) == 1:
                assert here.number(one) == (known[one][0] if one in known else 0)
        for count in (1, 3, 1000):
            assert list(zip(*here.head(count), strict=True)) == list(here)[:count]
        lo, hi = message_id - 7, message_id + 9
        inside = [row for lot in here.columns(lo, hi) for row in zip(*lot, strict=True)]
        assert inside == [(one, *known[one]) for one in kept if lo <= one < hi]


def test_an_id_costs_at_most_16_bytes() -> None:
    """BK: ten million of them wait in 160 MB; the bench counts those, this counts a part."""
    count = 40 * module.CHUNK
    tracemalloc.start()
    try:
        ids = MessageTable(LARGE + LARGE)
        for start in range(0, count, 100):
            batch = range(start, start + 100)
            ids.extend(batch, array("I", [500]) * 100, array("I", [7]) * 100)
        octets = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert octets / len(ids) <= 16


@pytest.mark.parametrize("arrived", [-1e9, 2.0**32, 1e12])
def test_a_clock_that_was_set_anywhere_stops_no_queue(arrived: float) -> None:
    made, reader = broker(), Reader()
    made.publish(ORDERS, queued_all([1, 2], arrived=arrived), arrived)
    for _ in range(2):  # they come back, and wait again
        made.subscribe(reader, ORDERS, arrived)
        made.go_on()
        assert list(reader.unsettled) == [1, 2]
        reader.unsettled.clear()
        made.gone(reader, arrived)
    assert [row.message_id for row in made.store.peek(ORDERS, 9)] == [1, 2]
