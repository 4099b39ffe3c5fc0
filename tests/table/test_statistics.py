"""Statistics of data files, as Delta wants them; that readers find their rows: test_readers."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.tools.tables import TIME
from twisted_msgproto.table.statistics import TIE_BREAKER, statistics_of


def footer_of(tmp_path: Path, table: pa.Table, **options: Any) -> pq.FileMetaData:
    pq.write_table(table, tmp_path / "file.parquet", **options)
    return pq.read_metadata(tmp_path / "file.parquet")


@pytest.mark.parametrize(
    ("column", "options"),
    [
        (pa.array([1.0, float("nan")]), {}),
        (pa.array([{"a": 1}]), {}),
        (pa.array([datetime.datetime(2026, 1, 1)], pa.timestamp("us")), {}),
        (pa.array(["x" * 5000]), {}),
        (pa.array([1, 2]), {"write_statistics": False}),
        (pa.array([], pa.int64()), {}),
    ],
    ids=["float", "structure", "no zone", "too long for the footer", "none in the footer", "empty"],
)
def test_one_column_which_is_not_known_leaves_the_number_of_rows_alone(
    tmp_path: Path, column: pa.Array, options: dict[str, Any]
) -> None:
    rows = pa.table({"known": pa.array(range(len(column))), "column": column})
    statistics = json.loads(statistics_of(footer_of(tmp_path, rows, **options)))
    assert statistics == {"numRecords": len(column)}


def test_bounds_are_as_delta_wants_them(tmp_path: Path) -> None:
    rows = pa.table(
        {
            "day": pa.array([datetime.date(2026, 1, 31), None]),
            "text": pa.array(["a" * 40, "b" * 40]),
            "time": pa.array([TIME, TIME], pa.timestamp("us", tz="UTC")),
            "octets": pa.array([None, b"\xff"]),
            "nothing": pa.array([None, None], pa.string()),
        }
    )
    statistics = json.loads(statistics_of(footer_of(tmp_path, rows)))
    assert statistics == {
        "numRecords": 2,
        "minValues": {
            "day": "2026-01-31",
            "text": "a" * 32,
            "time": "2026-01-31T12:00:00.000000Z",
        },
        "maxValues": {
            "day": "2026-01-31",
            "text": "b" * 32 + TIE_BREAKER,
            "time": "2026-01-31T12:00:00.000000Z",
        },
        "nullCount": {"day": 1, "text": 0, "time": 0, "octets": 1, "nothing": 2},
    }
