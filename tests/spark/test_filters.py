"""Spark's filters as expressions of Arrow: no row that a query wants may be left out.

Each filter is compared with what SQL says of every row, null among them; no process, no Java.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyspark.sql.datasource as sql
import pytest

from twisted_msgproto.spark.filters import OFFSET_MAX, Bounds, bounds, expression, translated

ROWS = {
    "offset": pa.array([0, 1, 2, None], pa.int64()),
    "kind": pa.array(["json", "text", None, "js_n"], pa.string()),
    "day": pa.array([dt.date(2024, 1, 1), None, dt.date(2024, 1, 3), dt.date(2024, 1, 2)]),
    "at": pa.array([10, 20, None, 30], pa.timestamp("us", "UTC")),
    "flag": pa.array([True, False, None, True], pa.bool_()),
    "share": pa.array([0.5, None, 1.5, 2.5], pa.float64()),
}
TABLE = pa.table(ROWS)
JAN_2 = dt.date(2024, 1, 2)
AT_20 = dt.datetime.fromtimestamp(20e-6, dt.UTC)


def left(one: sql.Filter) -> list[int]:
    """The rows that the expression leaves."""
    wanted = translated(one, TABLE.schema)
    assert wanted is not None
    numbered = TABLE.append_column("row", pa.array(range(TABLE.num_rows)))
    found: list[int] = numbered.filter(wanted)["row"].to_pylist()
    return found


def said(column: str, holds: Callable[[Any], bool]) -> list[int]:
    """The rows for which SQL says true: of null only what ``holds`` says of None."""
    return [row for row, value in enumerate(ROWS[column].to_pylist()) if holds(value)]


def known(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is not None and holds(value)


CASES: list[tuple[sql.Filter, Callable[[Any], bool]]] = [
    (sql.EqualTo(("offset",), 1), known(lambda value: value == 1)),
    (sql.EqualNullSafe(("offset",), 1), known(lambda value: value == 1)),
    (sql.GreaterThan(("offset",), 1), known(lambda value: value > 1)),
    (sql.GreaterThanOrEqual(("offset",), 1), known(lambda value: value >= 1)),
    (sql.LessThan(("offset",), 1), known(lambda value: value < 1)),
    (sql.LessThanOrEqual(("offset",), 1), known(lambda value: value <= 1)),
    (sql.In(("offset",), (0, 2)), known(lambda value: value in (0, 2))),
    (sql.In(("offset",), (0, None)), known(lambda value: value == 0)),
    (sql.IsNull(("kind",)), lambda value: value is None),
    (sql.IsNotNull(("kind",)), lambda value: value is not None),
    (sql.EqualTo(("kind",), "json"), known(lambda value: value == "json")),
    (sql.StringStartsWith(("kind",), "js_"), known(lambda value: value.startswith("js_"))),
    (sql.StringEndsWith(("kind",), "on"), known(lambda value: value.endswith("on"))),
    (sql.StringContains(("kind",), "ex"), known(lambda value: "ex" in value)),
    (sql.GreaterThan(("day",), JAN_2), known(lambda value: value > JAN_2)),
    (sql.LessThanOrEqual(("at",), AT_20), known(lambda value: value <= AT_20)),
    (sql.EqualTo(("flag",), True), known(lambda value: value is True)),
]


@pytest.mark.parametrize(("one", "holds"), CASES, ids=lambda value: type(value).__name__)
def test_a_filter_leaves_exactly_the_rows_that_sql_wants(
    one: sql.Filter, holds: Callable[[Any], bool]
) -> None:
    [column] = one.attribute  # type: ignore[attr-defined]
    assert left(one) == said(column, holds)


@pytest.mark.parametrize(("one", "holds"), CASES, ids=lambda value: type(value).__name__)
def test_not_leaves_the_others_and_null_only_where_sql_does(
    one: sql.Filter, holds: Callable[[Any], bool]
) -> None:
    [column] = one.attribute  # type: ignore[attr-defined]
    total = isinstance(one, sql.IsNull | sql.IsNotNull | sql.EqualNullSafe)
    others = (lambda value: not holds(value)) if total else known(lambda value: not holds(value))
    nulls = said(column, lambda value: value is None)
    if isinstance(one, sql.In):  # Arrow keeps null as well; Spark drops it itself
        assert set(left(sql.Not(one))) == {*said(column, others), *nulls}
    else:
        assert left(sql.Not(one)) == said(column, others)


@pytest.mark.parametrize(
    "one",
    [
        sql.EqualTo(("nothing",), 1),
        sql.EqualTo(("kind", "of"), "json"),
        sql.EqualTo(("offset",), None),
        sql.EqualTo(("offset",), "1"),
        sql.EqualTo(("offset",), True),
        sql.EqualTo(("offset",), 1 << 70),
        sql.EqualTo(("flag",), 1),
        sql.EqualTo(("share",), 0.5),
        sql.EqualTo(("at",), dt.datetime(2024, 1, 1)),
        sql.In(("offset",), (1, "2")),
        sql.In(("offset",), (None,)),
        sql.StringContains(("offset",), "1"),
        sql.StringContains(("day",), JAN_2),  # type: ignore[arg-type]
        sql.Not(sql.EqualTo(("share",), 0.5)),
        sql.Filter(),
    ],
    ids=repr,
)
def test_what_arrow_may_see_differently_stays_with_spark(one: sql.Filter) -> None:
    assert translated(one, TABLE.schema) is None
    assert expression([one], TABLE.schema) is None
    understood = sql.EqualTo(("offset",), 1)
    both = expression([one, understood], TABLE.schema)
    assert both is not None
    assert both.equals(translated(understood, TABLE.schema))


def test_all_filters_have_to_hold() -> None:
    both = [sql.GreaterThan(("offset",), 0), sql.EqualTo(("kind",), "text")]
    assert TABLE.filter(expression(both, TABLE.schema))["offset"].to_pylist() == [1]
    assert expression([], TABLE.schema) is None


@pytest.mark.parametrize(
    ("one", "lo", "hi"),
    [
        (sql.EqualTo(("offset",), 5), 5, 6),
        (sql.EqualNullSafe(("offset",), 5), 5, 6),
        (sql.In(("offset",), (9, 5, 7)), 5, 10),
        (sql.GreaterThan(("offset",), 5), 6, OFFSET_MAX),
        (sql.GreaterThanOrEqual(("offset",), 5), 5, OFFSET_MAX),
        (sql.LessThan(("offset",), 5), 0, 5),
        (sql.LessThanOrEqual(("offset",), 5), 0, 6),
        (sql.EqualTo(("offset",), "5"), 0, OFFSET_MAX),
        (sql.In(("offset",), (5, None)), 0, OFFSET_MAX),
        (sql.In(("offset",), ()), 0, OFFSET_MAX),
        (sql.IsNotNull(("offset",)), 0, OFFSET_MAX),
        (sql.Not(sql.EqualTo(("offset",), 5)), 0, OFFSET_MAX),
        (sql.GreaterThan(("count",), 5), 0, OFFSET_MAX),
    ],
    ids=repr,
)
def test_bounds_of_a_plan_hold_every_offset_that_a_filter_wants(
    one: sql.Filter, lo: int, hi: int
) -> None:
    assert bounds([one]) == Bounds(lo, hi)


def test_bounds_are_the_narrowest_of_all_filters() -> None:
    some = [
        sql.GreaterThan(("offset",), 5),
        sql.GreaterThanOrEqual(("offset",), 3),
        sql.LessThan(("offset",), 20),
        sql.LessThanOrEqual(("offset",), 30),
    ]
    assert bounds(some) == bounds(reversed(some)) == Bounds(6, 20)


def test_gateways_are_those_that_every_filter_names() -> None:
    several = sql.In(("gateway",), ("a", "b", None))
    assert bounds([several]).gateways == {"a", "b"}
    found = bounds([several, sql.EqualTo(("gateway",), "b")])
    assert [found.wants(name) for name in "abc"] == [False, True, False]
    assert bounds([several, sql.EqualNullSafe(("gateway",), "c")]).gateways == frozenset()
    assert bounds([sql.StringContains(("gateway",), "a")]).gateways is None
    assert Bounds().wants("any")
