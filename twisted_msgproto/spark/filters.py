"""Use the filters that Spark passes to a source, in plans and in workers.

Spark applies every filter again, so what is not understood here is not used, and what is used must
never be stricter than Spark's own meaning: comparisons of floats, where NaN equals NaN, are left to
it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import and_, eq, ge, gt, le, lt
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import datasource as sql

OFFSET_MAX = sys.maxsize

COMPARED: Mapping[type[sql.Filter], Callable[[Any, Any], Any]] = {
    sql.EqualTo: eq,
    sql.GreaterThan: gt,
    sql.GreaterThanOrEqual: ge,
    sql.LessThan: lt,
    sql.LessThanOrEqual: le,
}

SEARCHED: Mapping[type[sql.Filter], Callable[..., Any]] = {
    sql.StringStartsWith: pc.starts_with,
    sql.StringEndsWith: pc.ends_with,
    sql.StringContains: pc.match_substring,
}


def expression(filters: Iterable[sql.Filter], schema: pa.Schema) -> pc.Expression | None:
    """Return ``filters`` as one expression, false or null only where Spark drops rows; or None."""
    parts = [part for part in (translated(each, schema) for each in filters) if part is not None]
    return reduce(and_, parts) if parts else None


def translated(one: sql.Filter, schema: pa.Schema) -> pc.Expression | None:
    """Return one filter as an Arrow expression; None when it stays with Spark."""
    if isinstance(one, sql.Not):
        return _negated(one.child, schema)
    path: tuple[str, ...] = getattr(one, "attribute", ())
    if len(path) != 1 or path[0] not in schema.names:
        return None
    column, kind = pc.field(path[0]), schema.field(path[0]).type
    if isinstance(one, sql.IsNull):
        return column.is_null()
    if isinstance(one, sql.IsNotNull):
        return column.is_valid()
    if isinstance(one, sql.In):
        asked = [value for value in one.value if value is not None]
        values = [scalar for value in asked if (scalar := _scalar(value, kind)) is not None]
        if not values or len(values) != len(asked):
            return None
        return column.isin(pa.array([value.as_py() for value in values], kind))
    value = _scalar(getattr(one, "value", None), kind)
    if value is None:
        return None
    if type(one) in COMPARED:
        return COMPARED[type(one)](column, value)
    if isinstance(one, sql.EqualNullSafe):
        return column == value
    if type(one) in SEARCHED and pa.types.is_string(kind):
        return SEARCHED[type(one)](column, value.as_py())
    return None


def _negated(child: sql.Filter, schema: pa.Schema) -> pc.Expression | None:
    inner = translated(child, schema)
    if inner is None:
        return None
    if isinstance(child, sql.EqualNullSafe):
        return pc.field(child.attribute[0]).is_null() | ~inner
    return ~inner


def _scalar(value: Any, kind: pa.DataType) -> pa.Scalar | None:
    """``value`` as the column's own type; None when Arrow and Spark may see it differently."""
    comparable = (
        pa.types.is_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_date(kind)
        or pa.types.is_timestamp(kind)
    )
    if value is None or not comparable:
        return None
    if pa.types.is_timestamp(kind) and (getattr(value, "tzinfo", None) is None) != (
        kind.tz is None
    ):
        return None
    if isinstance(value, bool) != pa.types.is_boolean(kind):
        return None
    try:
        return pa.scalar(value, kind)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return None


@dataclass(slots=True)
class Bounds:
    """Offsets lo ≤ offset < hi, and the selected gateways (None: any), which a plan can use."""

    lo: int = 0
    hi: int = OFFSET_MAX
    gateways: frozenset[str] | None = field(default=None)

    def wants(self, gateway: str) -> bool:
        return self.gateways is None or gateway in self.gateways


def bounds(filters: Iterable[sql.Filter]) -> Bounds:
    found = Bounds()
    for one in filters:
        path = getattr(one, "attribute", None)
        if path == ("offset",):
            _narrow(found, one)
        elif path == ("gateway",):
            asked: Iterable[Any] | None = None
            if isinstance(one, sql.EqualTo | sql.EqualNullSafe):
                asked = [one.value]
            elif isinstance(one, sql.In):
                asked = one.value
            if asked is not None:
                names = frozenset(name for name in asked if isinstance(name, str))
                found.gateways = names if found.gateways is None else found.gateways & names
    return found


def _narrow(found: Bounds, one: sql.Filter) -> None:
    values = list(one.value) if isinstance(one, sql.In) else [getattr(one, "value", None)]
    numbers = [number for number in values if isinstance(number, int)]
    if len(numbers) != len(values) or not numbers:
        return
    low, high = min(numbers), max(numbers)
    if isinstance(one, sql.EqualTo | sql.EqualNullSafe | sql.In | sql.GreaterThanOrEqual):
        found.lo = max(found.lo, low)
    if isinstance(one, sql.GreaterThan):
        found.lo = max(found.lo, low + 1)
    if isinstance(one, sql.EqualTo | sql.EqualNullSafe | sql.In | sql.LessThanOrEqual):
        found.hi = min(found.hi, high + 1)
    if isinstance(one, sql.LessThan):
        found.hi = min(found.hi, high)
