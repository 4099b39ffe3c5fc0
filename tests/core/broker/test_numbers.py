"""Numbers of places in arrays are the same as a dictionary, in less than a tenth of its memory."""

from __future__ import annotations

import random
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.broker.world import NOW, ORDERS, broker, letters, subscribed
from twisted_msgproto.core.broker import Wanted
from twisted_msgproto.core.broker import numbers as module
from twisted_msgproto.core.broker.machine import TRIES_COUNTED
from twisted_msgproto.core.broker.numbers import LARGE, SMALL, Numbers
from twisted_msgproto.core.broker.places import DISTANCE_MAX

PLACE = st.one_of(
    st.integers(0, 60),
    st.integers(0, 60).map(lambda place: place * DISTANCE_MAX // 7),
    st.sampled_from([2**62, 2**63 - 1]),
)
STEP = st.one_of(
    st.tuples(st.just("set"), PLACE, st.integers(0, 70_000)),
    st.tuples(st.sampled_from(["pop", "remove", "discard"]), PLACE, st.integers(0, 30)),
    st.tuples(st.sampled_from(["extend", "merge"]), PLACE, st.integers(1, 30)),
)


@settings(max_examples=200)
@given(st.lists(STEP, max_size=40), st.integers(2, 6), st.sampled_from([SMALL, LARGE]))
def test_numbers_are_a_dictionary(
    steps: list[tuple[str, int, int]], chunk: int, typecode: str
) -> None:
    before, module.CHUNK = module.CHUNK, chunk  # type: ignore[misc]
    try:
        walk(steps, typecode)
    finally:
        module.CHUNK = before  # type: ignore[misc]


def walk(steps: list[tuple[str, int, int]], typecode: str) -> None:
    known: dict[int, int] = {}
    numbers = Numbers(typecode)
    for step, place, number in steps:
        match step:
            case "set":
                numbers.set(place, number)
                known[place] = min(number, numbers.highest)
            case "pop":
                assert numbers.pop(place) == known.pop(place, 0)
            case "remove":
                numbers.remove(place, place + number)
                known = {at: one for at, one in known.items() if not place <= at < place + number}
            case "discard":
                some = [place + 2 * at for at in range(number + 1)]
                numbers.discard(some[::-1])
                known = {at: one for at, one in known.items() if at not in some}
            case "extend":
                some = [place + at * at for at in range(number)]
                numbers.extend(some, list(range(number)))
                known.update(zip(some, range(number), strict=True))
            case "merge":
                other = Numbers(typecode)
                other.update((place + 3 * at, at) for at in reversed(range(number)))
                numbers.merge(other)
                known.update(other)
        assert list(numbers) == sorted(known.items())
        assert (len(numbers), numbers.last) == (len(known), max(known, default=-1))
        assert numbers.largest == max(known.values(), default=0)
        assert all(numbers.get(at) == known.get(at, 0) for at in (place - 1, place, place + 1))
        lo, hi = place - 7, place + 9
        inside = [pair for lot in numbers.columns(lo, hi) for pair in zip(*lot, strict=True)]
        assert inside == [pair for pair in sorted(known.items()) if lo <= pair[0] < hi]
        assert all(len(distances) < 2 * module.CHUNK for distances, _ in numbers._chunks)
        assert all(distances for distances, _ in numbers._chunks)


@pytest.mark.parametrize(("typecode", "highest"), [(SMALL, 65_535), (LARGE, 4_294_967_295)])
def test_a_number_that_is_too_large_is_kept_as_the_largest(typecode: str, highest: int) -> None:
    numbers = Numbers(typecode)
    numbers.set(1, highest - 1)
    numbers.set(2, highest)
    numbers.set(3, highest + 1)
    numbers.extend([4, 5, 6], [highest - 1, highest, highest + 1])
    assert [number for _, number in numbers] == [highest - 1, highest, highest] * 2
    assert (numbers.highest, numbers.largest) == (highest, highest)
    assert Numbers().highest == 65_535


def test_numbers_are_equal_to_numbers_with_the_same_places_alone() -> None:
    one, other = Numbers(SMALL), Numbers(LARGE)
    one.set(7, 3)
    other.extend([7], [3])
    assert one == other
    other.set(8, 0)
    assert one != other
    assert one != [(7, 3)]


def test_places_up_to_a_distance_share_a_chunk_and_the_next_one_begins_another() -> None:
    """NB-02: a chunk for each place would cost as much as a dictionary."""
    for add in (Numbers.set, lambda one, at, number: one.extend([at], [number])):
        numbers = Numbers()
        numbers.extend([10], [1])
        add(numbers, 10 + DISTANCE_MAX, 2)
        assert numbers._bases == [10]
        add(numbers, 11 + DISTANCE_MAX, 3)
        assert numbers._bases == [10, 11 + DISTANCE_MAX]
        assert list(numbers) == [(10, 1), (10 + DISTANCE_MAX, 2), (11 + DISTANCE_MAX, 3)]
    numbers = Numbers()
    numbers.extend([5, 5 + DISTANCE_MAX], [1, 2])
    assert numbers._bases == [5]


@pytest.mark.parametrize("beyond", [0, 1])
def test_places_that_come_together_share_a_chunk_if_the_last_of_them_may(beyond: int) -> None:
    numbers = Numbers(SMALL)
    numbers.extend([3], [1])
    numbers.extend([DISTANCE_MAX + 2, DISTANCE_MAX + 3 + beyond], [2, 3])
    assert [numbers.get(place) for place in (3, DISTANCE_MAX + 2)] == [1, 2]
    assert numbers.get(DISTANCE_MAX + 3 + beyond) == 3
    assert len(numbers._bases) == 1 + beyond


def test_the_first_place_leaves_room_for_lower_ones_in_its_chunk() -> None:
    numbers = Numbers()
    numbers.set(DISTANCE_MAX, 1)
    numbers.set(DISTANCE_MAX // 2 + 1, 2)
    numbers.set(DISTANCE_MAX * 3 // 2, 3)
    assert len(numbers._bases) == 1
    numbers.set(0, 4)
    assert numbers._bases[0] == 0
    assert list(numbers) == [
        (0, 4),
        (DISTANCE_MAX // 2 + 1, 2),
        (DISTANCE_MAX, 1),
        (DISTANCE_MAX * 3 // 2, 3),
    ]


def test_what_begins_at_or_before_the_last_place_takes_the_place_of_what_is_there() -> None:
    numbers = Numbers()
    numbers.extend([3, 5], [1, 1])
    numbers.extend([5, 9], [2, 3])
    assert (list(numbers), len(numbers)) == ([(3, 1), (5, 2), (9, 3)], 3)
    numbers.extend([4, 9, 10], [7, 8, 9])
    assert list(numbers) == [(3, 1), (4, 7), (5, 2), (9, 8), (10, 9)]
    assert len(numbers) == 5
    numbers.extend([], [])
    assert len(numbers) == 5


def test_chunks_are_filled_up_to_twice_their_size_and_then_split_in_halves() -> None:
    """NB-02."""
    full = 2 * module.CHUNK
    numbers = Numbers()
    numbers.extend(range(full - 1), [1] * (full - 1))
    assert [len(column) for column, _ in numbers._chunks] == [full - 1]
    numbers.extend([full - 1], [1])
    assert [len(column) for column, _ in numbers._chunks] == [full - 1, 1]
    numbers = Numbers()
    for place in range(full - 1):
        numbers.set(place, 1)
    assert [len(column) for column, _ in numbers._chunks] == [full - 1]
    numbers.set(full, 1)
    assert [len(column) for column, _ in numbers._chunks] == [module.CHUNK, module.CHUNK]
    assert numbers._bases == [0, module.CHUNK]
    numbers = Numbers()
    numbers.extend([0], [1])
    far = 2 * DISTANCE_MAX
    for start in range(far, far + 4 * module.CHUNK, module.CHUNK):
        numbers.extend(range(start, start + module.CHUNK), [1] * module.CHUNK)
    assert [len(column) for column, _ in numbers._chunks] == [1] + 4 * [module.CHUNK]


def test_nothing_has_no_last_place() -> None:
    assert Numbers().last == -1


def weight(numbers: Numbers) -> int:
    """How many octets it takes; nothing is traced, which would take long."""
    columns = [column for chunk in numbers._chunks for column in chunk]
    parts = [numbers, numbers._bases, numbers._chunks, *numbers._bases, *numbers._chunks, *columns]
    return sum(map(sys.getsizeof, parts))


COUNT = 30_000


@pytest.mark.parametrize("stride", [1, 1_000_003])
@pytest.mark.parametrize("order", ["ascending", "descending", "any"])
@pytest.mark.parametrize(("typecode", "octets"), [(SMALL, 8), (LARGE, 10)])
def test_a_tried_letter_costs_little_wherever_it_is(
    stride: int, order: str, typecode: str, octets: int
) -> None:
    """NB-02: 6 octets, or 8, and a part of the chunks; in a dictionary it takes more than 70."""
    places = list(range(10**12, 10**12 + COUNT * stride, stride))
    if order == "descending":
        places.reverse()
    elif order == "any":
        random.Random(5).shuffle(places)
    numbers = Numbers(typecode)
    numbers.update((place, 3) for place in places)
    assert weight(numbers) <= octets * COUNT
    known = dict(numbers)
    assert sys.getsizeof(known) + sum(map(sys.getsizeof, known)) >= 70 * COUNT


def test_letters_that_are_rejected_one_by_one_cost_a_broker_little() -> None:
    """NB-02: all wait on disk, and all were tried."""
    count = 3000
    one = broker(durable=True, broker_memory=1, queue_messages=count)
    one.restore(ORDERS, range(count), [400] * count, [int(NOW)] * count, NOW)
    reader = subscribed(one, window=count)
    while len(reader.got) < count:
        for event in one.take_events():
            if isinstance(event, Wanted):
                one.loaded(ORDERS, letters(event.places))
    for place in range(count):
        reader.reject(one, place)
    figures = one.queues()[0]
    assert (figures.waiting, figures.in_flight, figures.tries) == (count, 0, 1)
    tries = one._queues[ORDERS].tries
    assert len(tries) == count
    assert weight(tries) <= 8 * count


def test_more_tries_than_can_be_counted_are_the_most_that_can() -> None:
    one = broker(durable=True, tries=10**9)
    told = Numbers()
    told.set(0, TRIES_COUNTED - 1)
    one.restore(ORDERS, [0], [400], [int(NOW)], NOW, tries=told)
    assert [row.tries for row in one.peek(ORDERS, 1)] == [TRIES_COUNTED - 1]
    reader = subscribed(one, window=1)
    one.loaded(ORDERS, letters([0]))
    reader.reject(one, 0)
    assert [(row.place, row.tries) for row in one.peek(ORDERS.dead, 1)] == [(0, TRIES_COUNTED)]
