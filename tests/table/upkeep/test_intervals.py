"""Ranges of offsets against sets of integers."""

from __future__ import annotations

import random
from collections import Counter

import pyarrow as pa
import pytest

from twisted_msgproto.queue.damage import Range, merged
from twisted_msgproto.table import intervals
from twisted_msgproto.table.intervals import Coverage, size, without


def some_ranges(chance: random.Random, count: int) -> list[Range]:
    los = [chance.randrange(100) for _ in range(count)]
    return [(lo, lo + chance.randrange(1, 20)) for lo in los]


def offsets(ranges: list[Range]) -> Counter[int]:
    return Counter(offset for lo, hi in ranges for offset in range(lo, hi))


def arrays(ranges: list[Range]) -> tuple[pa.Array, pa.Array]:
    return (
        pa.array([lo for lo, _ in ranges], pa.int64()),
        pa.array([hi for _, hi in ranges], pa.int64()),
    )


def pairs(ranges: tuple[pa.Array, pa.Array]) -> list[Range]:
    return list(zip(*(part.to_pylist() for part in ranges), strict=True))


@pytest.mark.parametrize("settle", [1, 3, 4096])
@pytest.mark.parametrize("seed", range(30))
def test_coverage_is_the_same_however_rows_come(
    seed: int, settle: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intervals, "SETTLE_RANGES", settle)
    chance = random.Random(seed)
    ranges = some_ranges(chance, 40)
    coverage = Coverage()
    for start in range(0, 40, 7):
        coverage.add(*arrays(ranges[start : start + 7]))
    seen = offsets(ranges)
    assert coverage.rows == seen.total()
    assert coverage.ranges() == merged(ranges)
    twice = {offset for offset, count in seen.items() if count > 1}
    assert set(offsets(coverage.twice())) == twice


@pytest.mark.parametrize("seed", range(60))
def test_ranges_without_others(seed: int) -> None:
    chance = random.Random(seed)
    ranges, others = some_ranges(chance, 5), some_ranges(chance, 5)
    left = without(ranges, others)
    assert set(offsets(left)) == set(offsets(ranges)) - set(offsets(others))
    assert left == sorted(left)
    assert size(left) == len(set(offsets(left)))


def test_nothing_covers_nothing() -> None:
    assert (Coverage().ranges(), Coverage().twice(), Coverage().rows) == ([], [], 0)
    assert without([], [(1, 2)]) == []
