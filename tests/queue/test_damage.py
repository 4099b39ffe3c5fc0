"""Sums over ranges of offsets."""

from __future__ import annotations

from itertools import combinations, pairwise, product

from hypothesis import given
from hypothesis import strategies as st

from tests.sim.disk import SimulatedDisk
from twisted_msgproto.queue import damage

bounds = st.integers(0, 30)
ranges = st.lists(st.tuples(bounds, bounds).map(lambda pair: (min(pair), max(pair) + 1)))


def offsets(ranges: list[damage.Range]) -> set[int]:
    return {offset for lo, hi in ranges for offset in range(lo, hi)}


@given(ranges)
def test_merged_ranges_hold_the_same_offsets_in_order_and_apart(found: list[damage.Range]) -> None:
    merged = damage.merged(found)
    assert offsets(merged) == offsets(found)
    assert all(first[1] < second[0] for first, second in pairwise(merged))


@given(bounds, bounds, ranges)
def test_what_is_not_covered_is_what_is_left(lo: int, hi: int, known: list[damage.Range]) -> None:
    left = damage.uncovered(lo, hi, known)
    assert offsets(left) == set(range(lo, hi)) - offsets(known)


def test_three_ranges_wherever_they_lie_are_merged_and_left_out() -> None:
    """All of them: a range that lies in another one, touches it, or is apart from the others."""
    every = list(combinations(range(6), 2))
    for found in product(every, repeat=3):
        merged = damage.merged(found)
        assert offsets(merged) == offsets(list(found))
        assert all(first[1] < second[0] for first, second in pairwise(merged))
        for lo, hi in ((0, 5), (1, 4), (2, 2)):
            left = damage.uncovered(lo, hi, found)
            assert all(one < end for one, end in left)
            assert offsets(left) == set(range(lo, hi)) - offsets(merged)


@given(st.dictionaries(st.tuples(bounds, bounds), st.sampled_from(["checksum", "two words"])))
def test_the_list_of_ranges_comes_back_from_its_file(found: dict[damage.Range, str]) -> None:
    disk = SimulatedDisk()
    disk.make_directory("/q")
    assert damage.read(disk, "/q") == {}
    damage.write(disk, "/q", found)
    assert damage.read(disk, "/q") == found
