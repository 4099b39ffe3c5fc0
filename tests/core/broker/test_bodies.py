"""Bodies above the memory's limit are on disk, and are read back when their turn comes."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Sequence

from tests.core.broker.world import (
    NOW,
    ORDERS,
    OTHERS,
    Reader,
    broker,
    queued_all,
    subscribed,
)
from twisted_msgproto.core.broker import (
    LIMITS,
    QUEUED_MESSAGE_BYTES,
    Broker,
    QueuedMessage,
    QueueName,
    Wanted,
)
from twisted_msgproto.core.limits import Limits


def wanted(one: Broker) -> dict[QueueName, list[int]]:
    return {
        event.name: event.message_ids
        for event in one.store.take_events()
        if isinstance(event, Wanted)
    }


def restored(one: Broker, ids: Iterable[int], name: QueueName = ORDERS) -> None:
    ids = list(ids)
    one.store.restore(
        name,
        ids,
        [QUEUED_MESSAGE_BYTES] * len(ids),
        [int(NOW)] * len(ids),
        NOW,
    )


def test_a_queue_may_have_half_of_the_memory_and_the_next_half_of_the_rest() -> None:
    one = broker(durable=True, broker_memory_bytes=7 * QUEUED_MESSAGE_BYTES)
    for name, start in ((ORDERS, 0), (OTHERS, 20)):
        for message_id in range(start, start + 20):
            one.publish(name, queued_all([message_id], body=b""), NOW)
    kept = [
        sum(row.message is not None for row in one.store.peek(name, 99))
        for name in (ORDERS, OTHERS)
    ]
    assert kept == [4, 2]
    assert one.store.snapshot()["broker_waiting"] == 40


def test_only_a_queue_that_is_there_and_nobody_uses_is_forgotten() -> None:
    one = broker()
    assert not one.store.forget(ORDERS)
    one.store.declare(ORDERS, NOW)
    reader = subscribed(one)
    assert not one.store.forget(ORDERS)
    one.gone(reader, NOW)
    assert one.store.forget(ORDERS)
    assert not one.store.knows(ORDERS)


def test_what_was_restored_is_asked_for_once_somebody_wants_it() -> None:
    one = broker(durable=True)
    restored(one, range(10))
    assert wanted(one) == {}
    reader = subscribed(one)
    assert (reader.message_ids, wanted(one)) == ([], {ORDERS: list(range(10))})
    one.ready(reader)
    assert wanted(one) == {}, "it is being read"
    one.store.loaded(ORDERS, queued_all(range(10)))
    assert reader.message_ids == list(range(10))


def test_at_least_100_ids_are_read_at_a_time_and_at_most_a_number() -> None:
    one = broker(durable=True)
    restored(one, range(2000))
    subscribed(one, window=1)
    ids = wanted(one)[ORDERS]
    assert ids == list(range(512))


def test_large_bodies_are_read_one_by_one() -> None:
    one = broker(durable=True)
    one.store.restore(ORDERS, [0, 1], [2 << 20, 2 << 20], [0, 0], NOW)
    subscribed(one)
    assert wanted(one) == {ORDERS: [0]}


def test_what_nobody_has_asked_for_is_not_taken_in() -> None:
    one = broker(durable=True)
    restored(one, range(3))
    one.store.loaded(ORDERS, queued_all(range(3)))
    one.store.loaded(OTHERS, queued_all([7]))
    assert one.store.snapshot()["broker_memory_bytes"] == 0
    subscribed(one)
    one.store.purge(ORDERS, 1)
    one.store.loaded(ORDERS, queued_all([0, 9]))
    assert one.store.snapshot()["broker_memory_bytes"] == 0


def test_a_consumer_that_keeps_up_needs_no_reading() -> None:
    one = broker(durable=True, broker_memory_bytes=1)
    reader = subscribed(one)
    for message_id in range(100):
        one.publish(ORDERS, queued_all([message_id]), NOW)
        reader.settle(one)
    assert reader.message_ids == list(range(100))
    assert wanted(one) == {}


def test_a_broker_has_its_messages_in_memory_alone_unless_it_is_told_otherwise() -> None:
    limits = Limits.of(LIMITS).replace({"broker-memory-bytes": QUEUED_MESSAGE_BYTES})
    one = Broker(limits)
    one.publish(ORDERS, queued_all([0]), NOW)
    assert one.store.full(ORDERS) and one.store.peek(ORDERS, 1)[0].message
    assert not Broker(limits, durable=True).store.full(ORDERS)


LARGE = bytes(10_000)
LIMIT = 100_000


def read_back(one: Broker, name: QueueName = ORDERS) -> None:
    """Read what is wanted until nothing is."""
    while ids := wanted(one).get(name):
        one.store.loaded(name, queued_all(ids, body=LARGE))


def held(one: Broker) -> int:
    figures = one.store.snapshot()
    assert isinstance(figures["broker_memory_bytes"], int)
    return figures["broker_memory_bytes"]


def test_what_nobody_acknowledges_leaves_the_memory_and_a_neighbour_is_served__NB_02() -> None:
    """NB-02: a consumer reads a gigabyte of many queues and acknowledges nothing."""
    one = broker(durable=True, broker_memory_bytes=LIMIT)
    queues = [QueueName("tests", f"{number}") for number in range(17)]
    hog = subscribed(one, *queues)
    good = subscribed(one)
    most = 0
    for round in range(20):
        for number, name in enumerate(queues):
            one.publish(name, queued_all([round * 100 + number], body=LARGE), NOW)
        one.publish(ORDERS, queued_all([round * 100 + 50], body=LARGE), NOW)
        good.settle(one)
        most = max(most, held(one))
    assert len(hog.got) == 20 * 17
    assert good.message_ids == [round * 100 + 50 for round in range(20)]
    assert wanted(one) == {}, "the neighbour's messages came from memory"
    assert 0 < most <= LIMIT
    assert one.store.snapshot()["broker_in_flight"] == 20 * 17
    hog.settle(one)
    figures = one.store.snapshot()
    assert (figures["broker_memory_bytes"], figures["broker_bytes"], figures["broker_strays"]) == (
        0,
    ) * 3


def test_what_comes_back_and_is_not_in_memory_is_read_at_its_id__NB_02() -> None:
    """NB-02: in order, with its tries, and marked as delivered before."""
    one = broker(durable=True, broker_memory_bytes=LIMIT, tries=2)
    first = subscribed(one, window=40)
    for message_id in range(50):
        one.publish(ORDERS, queued_all([message_id], body=LARGE), NOW)
    assert first.message_ids == list(range(40))
    first.settle(one, 3)
    first.reject(one, 5)
    read_back(one)
    assert first.message_ids == [*range(41), 5]
    one.gone(first, NOW, orderly=True)
    second = subscribed(one)
    read_back(one)
    assert second.message_ids == [message_id for message_id in range(50) if message_id != 3]
    assert [each.message_id for _, each in second.got if each.again] == [*range(3), *range(4, 41)]
    assert [each.message_id for _, each in second.got if each.tries] == [5]
    second.reject(one, 5)
    assert [row.message_id for row in one.store.peek(ORDERS.dead, 9)] == [5]
    second.settle(one)
    third = subscribed(one, ORDERS.dead)
    read_back(one, ORDERS.dead)
    assert [(each.message_id, each.again, each.tries) for _, each in third.got] == [(5, True, 2)]
    third.settle(one)
    assert held(one) == one.store.snapshot()["broker_bytes"] == 0


def test_a_queue_that_waits_to_be_read_has_its_turn_beside_those_that_hold_the_memory() -> None:
    """NB-02: messages of a hundred queues were read for a consumer that takes no more of them."""
    one = broker(durable=True, broker_memory_bytes=LIMIT)
    others = [QueueName("tests", f"{number}") for number in range(100)]
    for number, name in enumerate((*others, ORDERS)):
        one.store.restore(name, range(number * 10, number * 10 + 5), [5000] * 5, [0] * 5, NOW)
    hog, good = subscribed(one, *others, window=1), subscribed(one)

    def answered() -> int:
        events = wanted(one)
        for name, ids in events.items():
            one.store.loaded(name, queued_all(ids, body=bytes(5000 - QUEUED_MESSAGE_BYTES)))
        return len(events)

    turns = 0
    while len(good.got) < 5:
        hog.settle(one)  # one message, and all of its queues want to be read
        assert answered(), "nobody is read"
        assert held(one) + one.store.memory.expected <= LIMIT + 5000
        turns += 1
    assert turns <= 10
    assert good.message_ids == [1000, 1001, 1002, 1003, 1004]


def test_who_wants_more_gets_in_line_behind_those_who_waited_for_room__NB_02() -> None:
    one = broker(durable=True, broker_memory_bytes=1)  # room for one message
    for number, name in enumerate((ORDERS, OTHERS)):
        one.store.restore(name, range(number * 10, number * 10 + 3), [5000] * 3, [0] * 3, NOW)
    first, second = subscribed(one, window=1), subscribed(one, OTHERS, window=1)
    turns = []
    while asked := wanted(one):
        ((name, ids),) = asked.items()
        turns.append((name, ids))
        one.store.loaded(name, queued_all(ids, body=bytes(5000 - QUEUED_MESSAGE_BYTES)))
        (first if name == ORDERS else second).settle(one)
    assert turns == [
        *((ORDERS, [0]), (OTHERS, [10]), (ORDERS, [1])),
        *((OTHERS, [11]), (ORDERS, [2]), (OTHERS, [12])),
    ]


def test_no_more_of_what_was_read_leaves_the_memory_than_others_need__NB_02() -> None:
    one = broker(durable=True, broker_memory_bytes=9000)
    names = [QueueName("tests", name) for name in ("one", "other", "third")]
    for number, name in enumerate(names):
        one.store.restore(name, [number], [5000], [0], NOW)
    full = [subscribed(one, name, window=1) for name in names[:2]]
    assert list(wanted(one)) == names[:2]
    for number, name in enumerate(names[:2]):
        full[number].window = 0
        one.store.loaded(name, queued_all([number], body=bytes(5000 - QUEUED_MESSAGE_BYTES)))
    assert held(one) == 10_000
    subscribed(one, names[2])
    assert list(wanted(one)) == names[2:]
    assert held(one) == 5000


def test_a_forgotten_queue_leaves_the_line__NB_02() -> None:
    one = broker(durable=True, broker_memory_bytes=1)
    for number, name in enumerate((ORDERS, OTHERS)):
        one.store.restore(name, [number], [5000], [0], NOW)
    subscribed(one, window=1)
    second = subscribed(one, OTHERS, window=1)
    assert list(wanted(one)) == [ORDERS]
    one.store.purge(OTHERS, 1)
    assert one.unsubscribe(second, OTHERS, NOW)
    assert one.store.forget(OTHERS)
    assert wanted(one) == {}


def test_what_was_read_and_makes_room_is_marked_as_delivered_before_when_it_comes_again() -> None:
    one = broker(durable=True, broker_memory_bytes=1, tries=9)
    one.store.restore(ORDERS, [0], [5000], [0], NOW)
    one.store.restore(OTHERS, [2], [5000], [0], NOW)
    body = bytes(5000 - QUEUED_MESSAGE_BYTES)
    first = subscribed(one, window=1)
    assert wanted(one) == {ORDERS: [0]}
    one.store.loaded(ORDERS, queued_all([0], body=body))
    first.reject(one, 0)  # it is on disk again
    assert wanted(one) == {ORDERS: [0]}
    first.window = 0
    one.store.loaded(ORDERS, queued_all([0], body=body))
    second = subscribed(one, OTHERS)
    assert wanted(one) == {OTHERS: [2]}
    assert held(one) == 0
    one.store.loaded(OTHERS, queued_all([2], body=body))
    assert second.message_ids == [2]
    second.settle(one)
    first.window = 2
    one.ready(first)
    assert wanted(one) == {ORDERS: [0]}
    one.store.loaded(ORDERS, queued_all([0], body=body))
    assert [(each.message_id, each.again, each.tries) for _, each in first.got[1:]] == [
        (0, True, 1)
    ]


def test_what_came_back_from_disk_and_is_purged_leaves_nothing_behind__NB_02() -> None:
    """NB-02: a peer that takes messages, goes, and has them purged would fill the memory else."""
    one = broker(durable=True, broker_memory_bytes=LIMIT)
    first = subscribed(one, window=40)
    for message_id in range(40):
        one.publish(ORDERS, queued_all([message_id], body=LARGE), NOW)
    one.gone(first, NOW)
    back = [row.message_id for row in one.store.peek(ORDERS, 40) if row.message is None]
    assert back, "some came back when they were not in memory"
    assert one.store.purge(ORDERS, back[0] + 1) == back[0] + 1
    assert one.store.purge(ORDERS, 40) == 39 - back[0]
    assert (held(one), one.store.snapshot()["broker_bytes"]) == (0, 0)


SLOW = 10**9
"""A filter that costs so many steps ends a turn."""


def test_a_queue_in_line_whose_messages_are_all_in_memory_again_asks_for_none() -> None:
    """What is asked for is waited for, and nobody would answer a question for nothing."""
    one = broker(durable=True, broker_memory_bytes=40_000)
    holder = subscribed(one, window=1)
    one.publish(ORDERS, queued_all([0]), NOW)
    assert holder.message_ids == [0]

    class Meddling(Reader):
        def push(self, queue: QueueName, messages: Sequence[QueuedMessage]) -> bool:
            assert one.store.purge(ORDERS, 1) == 1
            holder.window = 0
            holder.reject(one, 0)
            return super().push(queue, messages)

    meddling = Meddling()
    one.store.restore(OTHERS, [10], [50_000], [int(NOW)], NOW)
    one.subscribe(meddling, OTHERS, NOW, lambda message: True, lambda message: SLOW)
    one.go_on()
    assert wanted(one) == {OTHERS: [10]}
    one.store.restore(ORDERS, [1], [QUEUED_MESSAGE_BYTES], [int(NOW)], NOW)
    reader = subscribed(one)
    assert wanted(one) == {}, "the memory is full of what is being read for others"
    one.store.loaded(OTHERS, queued_all([10]))
    assert meddling.message_ids == [10]
    assert wanted(one) == {}, "the one that came back stands alone, and is in memory"
    assert reader.message_ids == [] and one.unfinished
    one.go_on()
    assert reader.message_ids == [0]


def test_what_was_read_for_a_queue_that_is_about_to_be_served_stays_in_memory__NB_02() -> None:
    """NB-02: it would be read again and again, while others have their turns."""
    one = broker(durable=True, broker_memory_bytes=2000)
    busy, third = QueueName("tests", "busy"), subscribed(one, OTHERS)
    one.publish(busy, queued_all([1]), NOW)
    one.store.restore(ORDERS, [0], [5000], [int(NOW)], NOW)
    first = subscribed(one)
    assert wanted(one) == {ORDERS: [0]}
    one.store.restore(OTHERS, [2], [QUEUED_MESSAGE_BYTES], [int(NOW)], NOW)
    one.go_on()
    assert wanted(one) == {}, "it is in line"
    slow = Reader()
    one.subscribe(slow, busy, NOW, lambda message: True, lambda message: SLOW)
    one.store.loaded(ORDERS, queued_all([0], body=bytes(5000 - QUEUED_MESSAGE_BYTES)))
    assert (slow.message_ids, first.message_ids) == ([1], []), "the turn has ended"
    assert (wanted(one), one.store.peek(ORDERS, 1)[0].message is None) == ({}, False)
    one.go_on()
    assert first.message_ids == [0]
    assert (wanted(one), third.message_ids) == ({OTHERS: [2]}, [])


def test_what_comes_back_while_the_memory_is_full_of_what_is_being_read_leaves_it__NB_02() -> None:
    """NB-02: it is marked as delivered before when it comes again, and has its tries."""
    one = broker(durable=True, broker_memory_bytes=40_000, tries=9)
    reader = subscribed(one, window=1)
    one.publish(ORDERS, queued_all([0]), NOW)
    one.store.restore(OTHERS, [10], [50_000], [int(NOW)], NOW)
    subscribed(one, OTHERS)
    assert wanted(one) == {OTHERS: [10]}
    before = held(one)
    reader.reject(one, 0)
    assert (before, held(one)) == (QUEUED_MESSAGE_BYTES + 4, 0)
    assert wanted(one) == {}
    one.store.loaded(OTHERS, [], [10])
    assert wanted(one) == {ORDERS: [0]}
    one.store.loaded(ORDERS, queued_all([0]))
    assert [(each.message_id, each.again, each.tries) for _, each in reader.got[1:]] == [
        (0, True, 1)
    ]


def test_a_consumer_that_cannot_tell_its_room_while_its_queue_is_in_line_ends_alone() -> None:
    one = broker(durable=True, broker_memory_bytes=QUEUED_MESSAGE_BYTES)
    for name, message_id in ((OTHERS, 10), (ORDERS, 0)):
        one.store.restore(name, [message_id], [5000], [int(NOW)], NOW)
    other, broken = subscribed(one, OTHERS), subscribed(one)
    assert wanted(one) == {OTHERS: [10]}

    def room() -> int:
        raise RuntimeError("no idea")

    broken.room = room  # type: ignore[method-assign]
    one.store.loaded(OTHERS, [], [10])
    assert wanted(one) == {ORDERS: [0]}
    one.store.loaded(ORDERS, queued_all([0]))
    assert [str(error) for error in broken.failures] == ["no idea"]
    assert (broken.got, other.failures) == ([], [])
    assert [row.message_id for row in one.store.peek(ORDERS, 1)] == [0]


def test_as_much_is_read_as_the_memory_has_room_for_and_no_more__NB_02() -> None:
    """NB-02: to the byte; one message is read in any case."""
    for limit, ids in ((9_999, [0]), (10_000, [0, 1]), (14_999, [0, 1]), (100, [0])):
        one = broker(durable=True, broker_memory_bytes=limit)
        one.store.restore(ORDERS, range(5), [5000] * 5, [int(NOW)] * 5, NOW)
        subscribed(one)
        assert wanted(one) == {ORDERS: ids}
        assert one.store.memory.expected == 5000 * len(ids)


def test_a_queue_that_was_restored_may_be_forgotten_unless_it_is_kept__BK_05() -> None:
    one = broker(durable=True)
    restored(one, [])
    one.store.restore(OTHERS, [], [], [], NOW)
    one.store.declare(OTHERS, NOW, kept=True)
    one.store.advance(NOW + 10**9)
    assert [one.store.knows(name) for name in (ORDERS, OTHERS)] == [False, True]


def test_nothing_holds_a_queue_that_was_forgotten() -> None:
    """Peers choose names: each would stay with all that it has."""
    one = broker(durable=True)
    restored(one, [0])
    reader = subscribed(one)
    one.store.loaded(ORDERS, queued_all([0]))
    reader.settle(one, 0)
    one.gone(reader, NOW, orderly=True)
    queue = one.store.by_name[ORDERS]
    assert one.store.forget(ORDERS)
    assert not [holder for holder in gc.get_referrers(queue) if isinstance(holder, dict)]
