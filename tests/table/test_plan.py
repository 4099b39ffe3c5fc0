"""Batches: whose rows, how many, proven by what, cut into how many tasks."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from twisted_msgproto.queue.lineage import Description, Landed
from twisted_msgproto.table.landing import Range
from twisted_msgproto.table.plan import (
    TASK_ROWS_MIN,
    Waiting,
    batch_ends,
    cut,
    plan_batch,
    share,
)


def waiting(
    gateway: str, begin: int, end: int, landed: int | None = None, octets: int = 0
) -> Waiting:
    place = None if landed is None else Landed(landed, 1, 1)
    description = Description(gateway, begin, end, Landed(end, 9, 9), octets, 0, octets, (), {}, {})
    return Waiting(gateway, f"/{gateway}", place, description, access="key")


def nobody(ends: Mapping[str, int]) -> dict[str, Landed]:
    raise AssertionError("nobody had to be asked")


def rows_of(tasks: object) -> dict[str, list[tuple[int, int]]]:
    found: dict[str, list[tuple[int, int]]] = {}
    for ranges in tasks:  # type: ignore[attr-defined]
        for part in ranges:
            found.setdefault(part.gateway, []).append((part.lo, part.hi))
    return found


def test_nothing_waits_and_there_is_no_batch() -> None:
    assert plan_batch([waiting("a", 0, 10, 10), waiting("b", 5, 5)], nobody, cores=2) is None


def test_a_batch_begins_where_the_table_is_and_ends_where_the_gateway_is() -> None:
    plan = plan_batch([waiting("a", 0, 10, 4), waiting("b", 3, 8)], nobody, cores=2)
    assert plan is not None
    assert rows_of(plan.tasks) == {"a": [(4, 10)], "b": [(3, 8)]}
    assert plan.before == {"a": Landed(4, 1, 1), "b": None}
    assert plan.landed == {"a": Landed(10, 9, 9), "b": Landed(8, 9, 9)}
    assert plan.rows == 11


def test_every_range_carries_what_proves_the_end_of_its_batch() -> None:
    plan = plan_batch([waiting("a", 0, 100_000)], nobody, cores=2)
    assert plan is not None
    assert [[part.landed for part in ranges] for ranges in plan.tasks] == [
        [Landed(100_000, 9, 9)],
        [Landed(100_000, 9, 9)],
    ]
    assert plan.tasks[0][0].access == "key"


def test_a_capped_end_is_proven_by_the_gateway() -> None:
    asked: list[Mapping[str, int]] = []

    def place(ends: Mapping[str, int]) -> dict[str, Landed]:
        asked.append(ends)
        return {"a": Landed(60, 7, 7)}

    plan = plan_batch([waiting("a", 0, 100), waiting("b", 0, 40)], place, cores=1, rows_max=100)
    assert plan is not None
    assert asked == [{"a": 60}]
    assert plan.landed == {"a": Landed(60, 7, 7), "b": Landed(40, 9, 9)}


def test_a_gateway_which_does_not_prove_its_capped_end_is_left_out() -> None:
    plan = plan_batch(
        [waiting("a", 0, 100), waiting("b", 0, 40)], lambda ends: {}, cores=1, rows_max=100
    )
    assert plan is not None
    assert plan.landed == {"b": Landed(40, 9, 9)}
    assert set(plan.before) == {"b"}


def test_rows_are_shared_evenly_and_what_one_does_not_need_goes_to_others() -> None:
    assert share({"a": 10, "b": 1000, "c": 1000}, 110) == {"a": 10, "b": 50, "c": 50}
    assert share({"a": 1, "b": 1}, 1) == {"a": 0, "b": 1}


def test_heavy_rows_make_small_batches_but_never_none() -> None:
    heavy = [waiting("a", 0, 100, octets=100_000), waiting("b", 0, 1, octets=9_000)]
    ends = batch_ends(heavy, rows_max=1000, octets_max=10_000)
    assert ends == {"a": 9, "b": 1}
    assert batch_ends([waiting("a", 0, 5, octets=10**12)], octets_max=1) == {"a": 1}


@pytest.mark.parametrize(
    ("rows", "tasks"), [(10, 1), (TASK_ROWS_MIN, 1), (2 * TASK_ROWS_MIN, 2), (10**6, 4)]
)
def test_small_batches_are_one_task_and_large_ones_as_many_as_cores(rows: int, tasks: int) -> None:
    plan = plan_batch([waiting("a", 0, rows)], nobody, cores=4)
    assert plan is not None
    assert len(plan.tasks) == tasks


def test_a_thousand_gateways_are_as_many_tasks_as_cores__TB_13() -> None:
    """TB-13: files and tasks a batch do not depend on the number of gateways."""
    plan = plan_batch([waiting(f"{n:04}", 0, 20) for n in range(1000)], nobody, cores=2)
    assert plan is not None
    assert len(plan.tasks) == 2
    assert [sum(part.hi - part.lo for part in ranges) for ranges in plan.tasks] == [10_000, 10_000]
    assert rows_of(plan.tasks) == {f"{n:04}": [(0, 20)] for n in range(1000)}


@pytest.mark.parametrize("tasks", [1, 2, 3, 7])
@pytest.mark.parametrize("rows", [(1,), (5, 0, 7), (100, 1, 1), (3, 3, 3, 3)])
def test_a_cut_loses_nothing_and_repeats_nothing(tasks: int, rows: tuple[int, ...]) -> None:
    ranges = [
        Range("/q", str(n), 10, 10 + count, Landed(99)) for n, count in enumerate(rows) if count
    ]
    parts = cut(ranges, tasks)
    assert len(parts) <= tasks
    offsets = [
        (part.gateway, offset)
        for ranges_ in parts
        for part in ranges_
        for offset in range(part.lo, part.hi)
    ]
    assert offsets == [(part.gateway, n) for part in ranges for n in range(part.lo, part.hi)]
    sizes = [sum(part.hi - part.lo for part in ranges_) for ranges_ in parts]
    assert max(sizes) - min(sizes) <= max(1, sum(rows) // tasks)
