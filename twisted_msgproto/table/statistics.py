"""A data file's ``add`` carries statistics of every column, or of none.

pyarrow's and duckdb's readers treat a column without statistics, beside others that have them, as
one without any value and skip the file wrongly. The columns of maps and lists, which nobody filters
by range, are left out as every writer of Delta tables leaves them out.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from .columns import Number, json_text

TEXT_MAX = 32
"""The log keeps so much of a text's bounds, as Delta's own writer does."""
TIE_BREAKER = "\U0010ffff"

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
MICRO = datetime.timedelta(microseconds=1)


@dataclass(slots=True)
class _Bounds:
    nulls: int = 0
    least: Any = None
    most: Any = None

    def take(
        self, column: Any, kind: pa.DataType, ordered: bool, known: tuple[str, str] | None
    ) -> bool:
        """Add a row group's column; False when its footer does not say enough."""
        found = column.statistics
        if found is None or not found.has_null_count:
            return False
        self.nulls += found.null_count
        if not ordered or found.null_count == column.num_values:
            return True
        if not found.has_min_max and known is None:
            return False
        try:
            least, most = _bounds_of(found, kind) if found.has_min_max else known or ("", "")
        except (OverflowError, ValueError):
            return False  # Python has no such time, and JSON no such year
        self.least = least if self.least is None else min(self.least, least)
        self.most = most if self.most is None else max(self.most, most)
        return True


def statistics_of(
    footer: pq.FileMetaData,
    *,
    finite: bool = False,
    texts: Mapping[str, tuple[str, str]] = MappingProxyType({}),
) -> str:
    """Return the ``stats`` of a Parquet file, from its footer: a JSON text.

    Only the number of rows stands there when a column's footer says too little, or when a column
    is of a type whose order in Parquet is not the one of Delta's readers (structures, times
    without a zone, floats unless all of them are known to be ``finite``).
    ``texts`` are the bounds of columns with texts for which a footer has no room.
    """
    rows: dict[str, Any] = {"numRecords": footer.num_rows}
    if footer.num_rows:
        rows |= _collect(footer, finite, texts) or {}
    return json_text(rows)


def _collect(
    footer: pq.FileMetaData, finite: bool, texts: Mapping[str, tuple[str, str]]
) -> dict[str, dict[str, Any]] | None:
    """Return the statistics of all columns; None when those of one are not known."""
    places = {footer.schema.column(index).path: index for index in range(len(footer.schema))}
    minimum: dict[str, Any] = {}
    maximum: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for column in footer.schema.to_arrow_schema():
        if pa.types.is_list(column.type) or pa.types.is_map(column.type):
            continue
        ordered = _ordered(column.type) or (finite and pa.types.is_floating(column.type))
        if not (ordered or pa.types.is_binary(column.type)):
            return None
        bounds = _Bounds()
        for group in range(footer.num_row_groups):
            part = footer.row_group(group).column(places[column.name])
            if not bounds.take(part, column.type, ordered, texts.get(column.name)):
                return None
        nulls[column.name] = bounds.nulls
        if bounds.least is not None:
            minimum[column.name] = _least(bounds.least)
            maximum[column.name] = _most(bounds.most)
    return {"minValues": minimum, "maxValues": maximum, "nullCount": nulls}


def _bounds_of(found: Any, kind: pa.DataType) -> tuple[Any, Any]:
    if pa.types.is_timestamp(kind):
        # For these Arrow would import pandas: half of a worker's start, and 40 MB.
        least, most = (EPOCH + MICRO * value for value in (found.min_raw, found.max_raw))
        return least, most
    return found.min, found.max


def _ordered(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_string(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_date32(kind)
        or kind == pa.timestamp("us", "UTC")
    )


def _least(value: Any) -> Any:
    return value[:TEXT_MAX] if isinstance(value, str) else _plain(value)


def _most(value: Any) -> Any:
    if isinstance(value, str):
        if len(value) <= TEXT_MAX or value[TEXT_MAX] == TIE_BREAKER:
            return value
        return value[:TEXT_MAX] + TIE_BREAKER
    return _plain(value)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        # Whole microseconds: a time cut to milliseconds is below the rows it speaks of.
        return f"{value.replace(tzinfo=None).isoformat(timespec='microseconds')}Z"
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, Decimal):  # all of its digits, which a float does not have
        return Number(f"{value:f}")
    return value
