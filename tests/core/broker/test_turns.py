"""Who gets what in one turn, and how many steps it is, as a table (NB-07)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.core.broker.world import NOW, ORDERS, OTHERS, Reader, broker, letter, letters, subscribed
from twisted_msgproto.core.broker import Letter

Wants = Callable[[Letter], bool] | None


def even(letter: Letter) -> bool:
    return letter.place % 2 == 0


def never(letter: Letter) -> bool:
    return False


CASES: dict[str, tuple[list[tuple[int, Wants]], int, list[list[int]]]] = {
    # who: room and filter; letters; what each gets
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
    "nobody": ([(9, never)], 2, [[]]),
    "even, all": ([(9, even), (9, None)], 3, [[0, 2], [1]]),
    "even full, all": ([(0, even), (9, None)], 3, [[], [0, 1, 2]]),
}


@pytest.mark.parametrize(("who", "count", "got"), CASES.values(), ids=CASES)
def test_letters_are_given_in_turn__NB_07(
    who: list[tuple[int, Wants]], count: int, got: list[list[int]]
) -> None:
    one = broker()
    readers = [Reader(room) for room, _ in who]
    for reader, (_, wants) in zip(readers, who, strict=True):
        one.subscribe(reader, ORDERS, NOW, wants)
    one.publish(ORDERS, letters(range(count)), NOW)
    assert [reader.places for reader in readers] == got
    waiting = count - sum(map(len, got))
    assert one.snapshot()["broker_waiting"] == waiting
    # Whoever had no room gets the rest when it says that it has.
    for reader, (room, _) in zip(readers, who, strict=True):
        if room == 0:
            reader.window = 9
            one.ready(reader)
    one.go_on()
    assert sorted(place for reader in readers for place in reader.places) == [
        place
        for place in range(count)
        if any(place in some for some in got)
        or any(room == 0 and (wants is None or wants(letter(place))) for room, wants in who)
    ]


def test_a_consumer_of_several_queues_gets_a_number_of_each_in_turn__BK_06() -> None:
    one = broker(durable=False)
    for name, start in ((ORDERS, 0), (OTHERS, 10_000)):
        one.publish(name, letters(range(start, start + 1000)), NOW)
    reader = subscribed(one, ORDERS, OTHERS, window=400)
    while len(reader.got) < 2000 and reader.unsettled:
        reader.settle(one)
        one.go_on()
    names = [name for name, _ in reader.got]
    assert (len(names), names.index(OTHERS) < 500) == (2000, True)


def test_who_may_take_no_step_takes_none__NB_07() -> None:
    one = broker()
    reader = Reader()
    one.publish(ORDERS, letters(range(1)), NOW)
    one.subscribe(reader, ORDERS, NOW, even, lambda letter: 10**9)
    one.publish(ORDERS, letters(range(1, 3)), NOW)
    one.go_on(0)
    before = list(reader.places)
    assert one.unfinished
    for _ in range(10):
        one.go_on(10)
    assert reader.places == [0, 2] != before


def test_however_many_letters_are_published_at_once_a_turn_has_its_most__NB_07() -> None:
    one = broker()
    readers = [subscribed(one) for _ in range(3)]
    one.publish(ORDERS, letters(range(2000)), NOW)
    assert sorted(place for reader in readers for place in reader.places) == list(range(2000))
    assert max(push for reader in readers for push in reader.pushes) <= 500
