"""Numbers of places in arrays are the same as a dictionary, in an eighth of its memory."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.broker.world import NOW, ORDERS, broker, letters, subscribed
from tests.doubles import octets_of
from twisted_msgproto.core.broker import Broker, Wanted
from twisted_msgproto.core.broker import numbers as module
from twisted_msgproto.core.broker.numbers import Numbers

TRIES_COUNTED, SMALL, LARGE, DISTANCE_MAX = 2**16 - 1, "H", "I", 2**32 - 1


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


@pytest.mark.parametrize("stride", [1, 1_000_003])
@pytest.mark.parametrize("order", ["ascending", "descending", "any"])
@pytest.mark.parametrize(("typecode", "octets"), [(SMALL, 9), (LARGE, 11)])
def test_a_tried_letter_costs_little_wherever_it_is(
    stride: int, order: str, typecode: str, octets: int
) -> None:
    """NB-02: in a dictionary it takes more than 70 octets."""
    count = 5000
    places = list(range(10**12, 10**12 + count * stride, stride))
    if order == "descending":
        places.reverse()
    elif order == "any":
        random.Random(5).shuffle(places)

    def build() -> Numbers:
        numbers = Numbers(typecode)
        numbers.update((place, 3) for place in places)
        return numbers

    assert octets_of(build) <= octets * count + 10_000


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

    def reject() -> Broker:
        for place in range(count):
            reader.reject(one, place)
        reader.got.clear()
        one.take_events()
        return one

    assert octets_of(reject) <= 40 * count
    figures = one.queues()[0]
    assert (figures.waiting, figures.in_flight, figures.tries) == (count, 0, 1)
