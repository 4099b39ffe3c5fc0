"""Statistics of data files: whatever a reader filters by, it gets exactly the rows which fit."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.tools.tables import RUN, TABLE_SCHEMA, TIME
from twisted_msgproto.queue import SCHEMA
from twisted_msgproto.queue.lineage import Landed
from twisted_msgproto.table.actions import DataFile
from twisted_msgproto.table.log import Table
from twisted_msgproto.table.statistics import TEXT_MAX, TIE_BREAKER, statistics_of

LONG = "peer-" + "x" * TEXT_MAX


def hard_rows(file: int) -> pa.Table:
    """Rows whose columns are null throughout, in part and nowhere, short and long."""
    numbers = range(file * 10, file * 10 + 10)
    columns: dict[str, list[Any]] = {
        "gateway": [f"gateway-{file % 2}"] * 10,
        "offset": list(numbers),
        "received_at": [TIME + datetime.timedelta(microseconds=n) for n in numbers],
        "protocol": ["mtl" if n % 2 else "umq" for n in numbers],
        "peer": [None if n % 3 else f"{LONG}{n}" for n in numbers],
        "session": [None] * 10 if file else ["s"] * 10,
        "client_id": [None if n % 7 else "" for n in numbers],
        "kind": [None] * 10,
        "message_id": [str(n) for n in numbers],
        "destination": ["z" * TEXT_MAX + TIE_BREAKER + str(n) for n in numbers],
        "fields": [None if n % 5 else [("a", str(n))] for n in numbers],
        "body": [None if n % 4 else b"\xff\0%d" % n for n in numbers],
        "attachments": [None] * 10,
        "truncated": [file == 2 and n % 10 > 7 for n in numbers],
    }
    return pa.table(columns, schema=SCHEMA)


@pytest.fixture(scope="module")
def hard_table(tmp_path_factory: pytest.TempPathFactory) -> str:
    location = tmp_path_factory.mktemp("statistics") / "table"
    table = Table.create(location, TABLE_SCHEMA)
    (location / "day=2026-01-31").mkdir()
    for file in range(3):
        path = location / f"day=2026-01-31/{file}.parquet"
        pq.write_table(hard_rows(file), path, row_group_size=4)
        statistics = statistics_of(pq.read_metadata(path))
        assert "maxValues" in json.loads(statistics)
        add = DataFile(
            str(path.relative_to(location)),
            path.stat().st_size,
            {"day": "2026-01-31"},
            10,
            statistics,
        )
        table.commit([add], {f"{file}": Landed(1)}, before={}, run=RUN)
    return str(location)


def whole() -> pa.Table:
    return pa.concat_tables(hard_rows(file) for file in range(3))


PLAIN = [field.name for field in SCHEMA if not pa.types.is_nested(field.type)]


def values(name: str) -> list[Any]:
    found: list[Any] = pc.unique(whole().column(name)).drop_null().to_pylist()
    return [*found[:3], *found[-2:]]


OPERATIONS = {
    "=": lambda column, value: column == value,
    "<>": lambda column, value: column != value,
    "<": lambda column, value: column < value,
    ">": lambda column, value: column > value,
    "<=": lambda column, value: column <= value,
    ">=": lambda column, value: column >= value,
}


@pytest.mark.parametrize("name", SCHEMA.names)
def test_pyarrow_finds_every_row_by_each_column(hard_table: str, name: str) -> None:
    dataset = DeltaTable(hard_table).to_pyarrow_dataset()
    filters = [pc.field(name).is_null(), pc.field(name).is_valid()]
    if name in PLAIN:
        filters += [
            compare(pc.field(name), pa.scalar(value, SCHEMA.field(name).type))
            for value in values(name)
            for compare in OPERATIONS.values()
        ]
    for condition in filters:
        expected = whole().filter(condition).column("offset").to_pylist()
        found = dataset.to_table(columns=["offset"], filter=condition).column("offset").to_pylist()
        assert sorted(found) == expected, str(condition)


@pytest.mark.parametrize("name", PLAIN)
def test_polars_finds_every_row_by_each_column(hard_table: str, name: str) -> None:
    frame = pl.scan_delta(hard_table)
    column = pl.col(name)
    conditions = [column.is_null(), column.is_not_null()]
    conditions += [op(column, value) for value in values(name) for op in OPERATIONS.values()]
    plain = pl.from_arrow(whole().select(PLAIN))
    assert isinstance(plain, pl.DataFrame)
    for condition in conditions:
        found = frame.filter(condition).select("offset").collect().to_series().sort().to_list()
        assert found == plain.filter(condition).select("offset").to_series().to_list(), condition


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
