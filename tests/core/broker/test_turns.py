"""Who gets what in one turn, and how many steps it is, as a table (NB-07)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.core.broker.world import NOW, ORDERS, OTHERS, Reader, broker, letters, subscribed
from twisted_msgproto.core.broker import Letter
from twisted_msgproto.core.broker import turns as module
from twisted_msgproto.core.broker.turns import (
    LETTER_STEPS,
    PUSH_STEPS,
    SERVED_MAX,
    SHARED_MAX,
    planned,
)

Wants = Callable[[Letter], bool] | None


def even(letter: Letter) -> bool:
    return letter.place % 2 == 0


def never(letter: Letter) -> bool:
    return False


CASES: list[tuple[str, list[tuple[int, Wants]], int, list[list[int]], list[int], int]] = [
    # who: room and filter; letters; what each gets; what nobody wants; steps
    ("one", [(9, None)], 3, [[0, 1, 2]], [], PUSH_STEPS + 4 * LETTER_STEPS),
    ("one with room for two", [(2, None)], 3, [[0, 1]], [], PUSH_STEPS + 3 * LETTER_STEPS),
    ("one without room", [(0, None)], 3, [[]], [], PUSH_STEPS + LETTER_STEPS),
    ("two", [(9, None)] * 2, 3, [[0, 2], [1]], [], 2 + 2 * PUSH_STEPS + 4 * LETTER_STEPS),
    ("two, one full", [(0, None), (9, None)], 2, [[], [0, 1]], [], 2 + PUSH_STEPS + 60),
    ("two, both full", [(0, None)] * 2, 2, [[], []], [], 2 + LETTER_STEPS),
    ("three for two", [(9, None)] * 3, 2, [[0], [1], []], [], 2 + 2 * PUSH_STEPS + 60),
    ("rooms of 1 and 3", [(1, None), (3, None)], 9, [[0], [1, 2, 3]], [], 2 + 400 + 100),
    # with a filter each asked is a step, before the letter's own
    ("a filter", [(9, even)], 3, [[0, 2]], [1], 3 + PUSH_STEPS + 4 * LETTER_STEPS),
    ("a filter, full", [(1, even)], 3, [[0]], [1], 3 + PUSH_STEPS + 3 * LETTER_STEPS),
    ("nobody", [(9, never)], 2, [[]], [0, 1], 2 + 3 * LETTER_STEPS),
    ("even, all", [(9, even), (9, None)], 3, [[0, 2], [1]], [], 2 + 2 * PUSH_STEPS + 80),
    ("even full, all", [(0, even), (9, None)], 3, [[], [0, 1, 2]], [], 3 + PUSH_STEPS + 80),
]


@pytest.mark.parametrize(("who", "count", "got", "unwanted", "steps"), [c[1:] for c in CASES],
                         ids=[c[0] for c in CASES])  # fmt: skip
def test_letters_are_planned_in_turn_and_cost_their_steps__NB_07(
    who: list[tuple[int, Wants]],
    count: int,
    got: list[list[int]],
    unwanted: list[int],
    steps: int,
) -> None:
    one = broker()
    readers = [Reader(room) for room, _ in who]
    for reader, (_, wants) in zip(readers, who, strict=True):
        one.subscribe(reader, ORDERS, NOW, wants)
    queue = one._queues[ORDERS]
    done, hands, left, cost = planned(queue, letters(range(count)))
    places = {hand.consumer: [one.place for one in some] for hand, some in hands}
    assert [places.get(reader, []) for reader in readers] == got
    assert ([one.place for one in left], cost) == (unwanted, steps)
    assert done == sum(map(len, got)) + len(unwanted)
    assert all(places.values())
    # Whoever has no room is out of turn until it says that it has.
    full = {reader for reader, (room, _) in zip(readers, who, strict=True) if room == 0}
    asked = {subscriber.consumer for subscriber in queue.subscribers} - {
        subscriber.consumer for subscriber in queue.takers
    }
    assert asked == full


def test_whoever_got_the_last_letter_comes_last() -> None:
    one = broker()
    for _ in range(3):
        one.subscribe(Reader(), ORDERS, NOW)
    for count in range(1, 7):
        _, hands, _, _ = planned(one._queues[ORDERS], letters(range(count)))
        lasts = [some[-1].place for _, some in hands]
        assert lasts == sorted(lasts) and lasts[-1] == count - 1


@pytest.mark.parametrize("queues", [1, 2])
def test_a_consumer_of_several_queues_gets_a_number_of_one__BK_06(queues: int) -> None:
    one = broker()
    reader = Reader()
    for name in (ORDERS, OTHERS)[:queues]:
        one.subscribe(reader, name, NOW)
    done, *_ = planned(one._queues[ORDERS], letters(range(SHARED_MAX + 5)))
    assert done == (SHARED_MAX if queues == 2 else SHARED_MAX + 5)


@pytest.mark.parametrize(("most", "planned_letters"), [(1, 1), (22, 1), (23, 2), (44, 2), (45, 3)])
def test_planning_with_filters_ends_after_a_number_of_steps__NB_07(
    most: int, planned_letters: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each letter is 22 steps here: 20 of its own, and 2 for the filter."""
    monkeypatch.setattr(module, "STEPS_MAX", LETTER_STEPS + most)
    one = broker()
    one.subscribe(Reader(), ORDERS, NOW, even, lambda letter: 2)
    assert planned(one._queues[ORDERS], letters(range(10)))[0] == planned_letters


def test_who_may_take_no_step_takes_none__NB_07() -> None:
    one = broker()
    one.declare(ORDERS, NOW)
    called: list[None] = []
    one._calls.append(lambda: called.append(None))
    one.go_on(0)
    assert one.unfinished
    assert called == []
    one.go_on(1)
    assert called == [None]


def test_however_many_letters_are_published_at_once_a_turn_has_its_most__NB_07() -> None:
    one = broker()
    readers = [subscribed(one) for _ in range(3)]
    one.publish(ORDERS, letters(range(2000)), NOW)
    assert sorted(place for reader in readers for place in reader.places) == list(range(2000))
    assert max(push for reader in readers for push in reader.pushes) <= SERVED_MAX // 3 + 1
