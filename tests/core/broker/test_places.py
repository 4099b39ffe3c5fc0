"""A backlog in chunks is the same as a sorted list."""

from __future__ import annotations

import tracemalloc
from array import array

from hypothesis import given, settings
from hypothesis import strategies as st

from twisted_msgproto.core.broker import places as module
from twisted_msgproto.core.broker.places import Places, Row

ROOM, DISTANCE_MAX = 2**63, 2**32 - 1
STEP = st.one_of(
    st.tuples(st.just("extend"), st.integers(1, 12), st.sampled_from([1, 3, DISTANCE_MAX, 2**40])),
    st.tuples(st.just("insert"), st.integers(0, 400), st.sampled_from([0, 0, DISTANCE_MAX, 2**40])),
    st.tuples(
        st.sampled_from(["take", "skip", "remove", "prepend"]), st.integers(1, 9), st.just(0)
    ),
)


def row(place: int) -> Row:
    return Row(place, place % 97, place % 89)


@settings(max_examples=150)
@given(st.lists(STEP, max_size=40), st.integers(2, 6))
def test_places_are_a_sorted_list(steps: list[tuple[str, int, int]], chunk: int) -> None:
    before, module.CHUNK = module.CHUNK, chunk  # type: ignore[misc]
    try:
        walk(steps)
    finally:
        module.CHUNK = before  # type: ignore[misc]


def walk(steps: list[tuple[str, int, int]]) -> None:
    kept: list[int] = []
    places = Places()
    for step, number, gap in steps:
        match step:
            case "extend":
                start = (kept[-1] if kept else 200) + 1
                new = [start + gap * index for index in range(number)]
                if new[-1] < ROOM:
                    places.extend(*zip(*map(row, new), strict=True))
                    kept += new
            case "insert" if number + gap not in kept:
                places.insert(row(number + gap))
                kept = sorted([*kept, number + gap])
            case "take":
                taken = places.take(number)
                assert list(map(Row, *taken)) == [row(place) for place in kept[:number]]
                del kept[:number]
            case "skip":
                places.skip(number)
                del kept[:number]
            case "remove":
                place = kept[number % len(kept)] if kept else number
                assert places.remove(place) == (row(place) if kept else None)
                assert places.remove(place) is None
                kept = [one for one in kept if one != place]
            case "prepend":
                others = Places()
                for place in kept[: number // 2]:
                    places.remove(place)
                    others.insert(row(place))
                places.prepend(others)
                assert not others
        assert list(places) == [row(place) for place in kept]
        assert (len(places), places.last) == (len(kept), kept[-1] if kept else -1)
        assert places.first == (row(kept[0]) if kept else None)
        for count in (1, 3, 1000):
            assert places.front(count) == kept[:count]
            assert list(map(Row, *places.head(count))) == [row(place) for place in kept[:count]]


def test_what_is_added_behind_the_end_may_also_be_before_it() -> None:
    places = Places()
    places.extend([10, 20], [0, 0], [0, 0])
    places.extend([5, 15, 25], [0, 0, 0], [0, 0, 0])
    assert places.front(9) == [5, 10, 15, 20, 25]


def test_a_place_costs_at_most_16_octets() -> None:
    """BK: ten million of them wait in 160 MB; the bench counts those, this counts a part."""
    count = 40 * module.CHUNK
    tracemalloc.start()
    try:
        places = Places()
        for start in range(0, count, 100):
            batch = range(start, start + 100)
            places.extend(batch, array("I", [500]) * 100, array("I", [7]) * 100)
        octets = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert octets / len(places) <= 16


def test_places_before_the_first_and_behind_the_last_are_not_here() -> None:
    places = Places()
    assert not places.has(5)
    for place in (10**12, 10**12 + 2):
        places.insert(Row(place, 1, 1))
    assert [at for at in range(10**12 - 2, 10**12 + 5) if places.has(at)] == [10**12, 10**12 + 2]
    assert not places.has(0) and not places.has(10**13)
    places.skip(1)
    assert (places.has(10**12), places.has(10**12 + 2)) == (False, True)
