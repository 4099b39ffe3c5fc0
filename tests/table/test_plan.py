"""Batches: whose rows, how many, proven by what, cut into how many tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from twisted_msgproto.queue.lineage import Description, Landed
from twisted_msgproto.table.plan import Waiting, plan_batch

TASK = 20_000
"""From this many rows on a second task is worth its cost."""


def waiting(
    gateway: str, begin: int, end: int, landed: int | None = None, octets: int = 0
) -> Waiting:
    place = None if landed is None else Landed(landed, 1, 1)
    description = Description(gateway, begin, end, Landed(end, 9, 9), octets, 0, octets, (), {}, {})
    return Waiting(gateway, f"/{gateway}", place, description, access="key")


def planned(gateways: Sequence[Waiting], cores: int = 1, **most: int) -> tuple[Any, set[str]]:
    """A batch whose ends are proven as they are asked for, and for whom that was asked."""
    asked: set[str] = set()

    def place(ends: Mapping[str, int]) -> dict[str, Landed]:
        assert not asked, "all are asked at once"
        asked.update(ends)
        return {name: Landed(end, 7, 7) for name, end in ends.items()}

    plan = plan_batch(gateways, place, cores=cores, **most)
    assert plan is not None
    return plan, asked


def rows_of(plan: Any) -> dict[str, list[tuple[int, int]]]:
    found: dict[str, list[tuple[int, int]]] = {}
    for ranges in plan.tasks:
        for part in ranges:
            assert (part.location, part.access) == (f"/{part.gateway}", "key")
            assert part.landed == plan.landed[part.gateway], "it proves the end of the batch"
            found.setdefault(part.gateway, []).append((part.lo, part.hi))
    return found


def test_nothing_waits_and_there_is_no_batch() -> None:
    gateways = [waiting("a", 0, 10, 10), waiting("b", 5, 5), waiting("c", 0, 4, 9)]
    assert plan_batch(gateways, lambda ends: {}, cores=2) is None


def test_a_batch_begins_where_the_table_is_and_ends_where_the_gateway_is() -> None:
    plan, asked = planned([waiting("a", 0, 10, 4), waiting("b", 3, 8)], cores=2)
    assert rows_of(plan) == {"a": [(4, 10)], "b": [(3, 8)]}
    assert plan.before == {"a": Landed(4, 1, 1), "b": None}
    assert plan.landed == {"a": Landed(10, 9, 9), "b": Landed(8, 9, 9)}
    assert (plan.rows, asked) == (11, set())


def test_a_capped_end_is_proven_by_the_gateway_or_it_is_left_out() -> None:
    gateways = [waiting("a", 0, 100), waiting("b", 0, 40)]
    plan, asked = planned(gateways, rows_max=100)
    assert asked == {"a"}
    assert plan.landed == {"a": Landed(60, 7, 7), "b": Landed(40, 9, 9)}
    left = plan_batch(gateways, lambda ends: {}, cores=1, rows_max=100)
    assert left is not None
    assert (left.landed, set(left.before)) == ({"b": Landed(40, 9, 9)}, {"b"})


@pytest.mark.parametrize(
    ("gateways", "most", "ends"),
    [
        # shared evenly; what one does not need goes to the others
        ({"a": (10, 0), "b": (1000, 0), "c": (1000, 0)}, {"rows_max": 110}, (10, 50, 50)),
        ({"a": (1, 0), "b": (1, 0)}, {"rows_max": 1}, (0, 1)),
        # heavy rows make small batches, but never none
        ({"a": (100, 100_000), "b": (1, 9_000)}, {"bytes_max": 10_000}, (9, 1)),
        ({"a": (5, 10**12)}, {"bytes_max": 1}, (1,)),
        ({"a": (100, 10_000)}, {"bytes_max": 10_000}, (100,)),
    ],
)
def test_a_batch_has_a_share_of_each_and_is_bounded(
    gateways: dict[str, tuple[int, int]], most: dict[str, int], ends: tuple[int, ...]
) -> None:
    all_of_them = [waiting(name, 0, rows, octets=n) for name, (rows, n) in gateways.items()]
    plan, _ = planned(all_of_them, **most)
    assert tuple(plan.landed.get(name, Landed(0)).offset for name in gateways) == ends


@pytest.mark.parametrize(("rows", "tasks"), [(10, 1), (TASK, 1), (2 * TASK, 2), (10**6, 4)])
def test_small_batches_are_one_task_and_large_ones_as_many_as_cores(rows: int, tasks: int) -> None:
    plan, _ = planned([waiting("a", 0, rows)], cores=4)
    assert len(plan.tasks) == tasks


def test_a_thousand_gateways_are_as_many_tasks_as_cores__TB_13() -> None:
    """TB-13: files and tasks a batch do not depend on the number of gateways."""
    plan, _ = planned([waiting(f"{n:04}", 0, 20) for n in range(1000)], cores=2)
    assert [sum(part.hi - part.lo for part in ranges) for ranges in plan.tasks] == [10_000, 10_000]
    assert rows_of(plan) == {f"{n:04}": [(0, 20)] for n in range(1000)}


@pytest.mark.parametrize("cores", [1, 2, 3, 7])
@pytest.mark.parametrize("rows", [(1,), (5, 0, 7), (100, 1, 1), (3, 3, 3, 3)])
def test_a_cut_loses_nothing_and_repeats_nothing(cores: int, rows: tuple[int, ...]) -> None:
    counts = [count * TASK for count in rows]
    gateways = [waiting(f"{n}", 0, 10 + count, 10) for n, count in enumerate(counts)]
    plan, _ = planned(gateways, cores, rows_max=10**9)
    assert len(plan.tasks) <= cores
    for name, parts in rows_of(plan).items():
        assert [lo for lo, _ in parts] == [10, *(hi for _, hi in parts[:-1])]
        assert parts[-1][1] == 10 + counts[int(name)]
    assert len(rows_of(plan)) == sum(map(bool, counts))
    sizes = [sum(part.hi - part.lo for part in ranges) for ranges in plan.tasks]
    assert sum(sizes) == plan.rows == sum(counts)
    assert max(sizes) - min(sizes) <= max(1, sum(counts) // cores)
