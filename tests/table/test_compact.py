"""Compaction and expiry change files, never rows which should stay; also when all come at once."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType

from tests.table.conftest import both
from tests.tools.tables import RUN, Gateway, at_once, delta
from tests.tools.tables import counted_rows as rows
from tests.tools.tables import create_table as create
from tests.tools.tables import expected_rows as expected
from tests.tools.tables import land_gateways as land
from tests.tools.tables import opened_again as again
from twisted_msgproto.core.errors import Overtaken, TableError
from twisted_msgproto.table import compact as compacting
from twisted_msgproto.table.actions import Run
from twisted_msgproto.table.compact import Compactions, compact
from twisted_msgproto.table.delta_table import Table
from twisted_msgproto.table.proof import verify
from twisted_msgproto.table.retention import expire

FIRST = date(2023, 11, 15)
SECOND = FIRST + timedelta(days=1)


def fill(table: Table, *gateways: Gateway, batches: int = 4) -> None:
    """Some batches of two days."""
    for number in range(batches):
        for gateway in gateways:
            gateway.put(5, day=number * 2 // batches)
        land(table, *gateways)


def test_small_files_are_grouped_by_partition_up_to_the_target(local: Table, a: Gateway) -> None:
    """In the order they were written; a large one, or one alone, stays as it is."""
    for day, count in ((0, 7), (1, 2), (2, 1)):
        for _ in range(count):
            a.put(2, day=day)
            land(local, a)
    a.put(500, day=0)
    [large] = land(local, a)
    small = max(file.size for file in local.files() if file.path != large.path)
    options = {"small": large.size, "target": small * 7 // 2}  # three fit, and not four
    would = compact(local, RUN, dry_run=True, **options)
    assert (would.small, would.removed, would.added) == (10, 8, 3)
    compact(local, RUN, **options)
    assert rows(local) == expected(a, 0, a.rows)
    days = [(file.partition["day"], file.rows) for file in local.files()]
    assert sorted(days) == [
        *(("2023-11-15", count) for count in (2, 6, 7, 500)),
        ("2023-11-16", 4),
        ("2023-11-17", 2),
    ]


@both
def test_compaction_keeps_rows_and_places_and_sorts(table: Table, a: Gateway, b: Gateway) -> None:
    fill(table, b, a)
    before, landed = rows(table), table.landed()
    contents = delta(table)
    keys = [("gateway", "ascending"), ("offset", "ascending")]
    table_before = pa.table(contents.to_pyarrow_table()).sort_by(keys)
    would = compact(table, RUN, dry_run=True)
    assert (would.removed, would.added, would.version) == (4, 2, None)
    assert again(table).version == table.version
    done = compact(table, RUN)
    assert (done.removed, done.added, done.given_up) == (4, 2, 0)
    assert rows(table) == before == expected(a, 0, 21) + expected(b, 0, 21)
    assert table.landed() == again(table).landed() == landed
    assert verify(table).intact
    contents.update_incremental()
    assert pa.table(contents.to_pyarrow_table()).sort_by(keys).equals(table_before)
    for new in table.files():
        with table.storage.filesystem().open_input_file(new.path) as source:
            found = pq.ParquetFile(source).read(columns=["gateway", "offset"])
        assert found.equals(found.sort_by(keys))
    assert compact(table, RUN).version is None


def test_rows_which_do_not_fit_into_memory_become_more_files(table: Table, a: Gateway) -> None:
    fill(table, a)
    compact(table, RUN, memory=1)
    assert len(table.files()) == 4
    compact(table, RUN)
    assert len(table.files()) == 2


def append(table: Table, gateway: Gateway) -> None:
    gateway.put(5)
    land(table, gateway)


PAIRS: dict[str, tuple[Callable[[Table, Gateway], object], tuple[int, int]]] = {
    "a compaction": (lambda table, a: compact(table, Run("0ther", "there", 18)), (0, 2)),
    "new rows": (append, (2, 0)),
    "an expiry": (lambda table, a: expire(table, SECOND, RUN), (1, 1)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_compaction_that_comes_second_gives_up_what_went_meanwhile(
    table: Table, a: Gateway, name: str
) -> None:
    meanwhile, ends = PAIRS[name]
    fill(table, a)
    other = again(table)
    other.files()
    meanwhile(table, a)
    lines: list[str] = []
    done = compact(other, RUN, say=lines.append)
    assert (done.added, done.given_up) == ends and len(lines) == done.given_up
    assert rows(table) == expected(a, 11 if name == "an expiry" else 0, a.rows)


def test_an_expiry_which_comes_second_takes_the_compacted_file(table: Table, a: Gateway) -> None:
    fill(table, a)
    other = again(table)
    other.files()
    compact(other, RUN)
    done = expire(table, SECOND, RUN)
    assert (done.days, done.files, done.rows) == (["2023-11-15"], 1, 11)
    assert rows(table) == expected(a, 11, 21)


@pytest.mark.parametrize("turn", range(4))
def test_two_compactions_an_append_and_an_expiry_at_once(
    table: Table, a: Gateway, turn: int
) -> None:
    fill(table, a)
    views = [again(table) for _ in range(4)]
    for view in views:
        view.files()
    a.put(7, day=1)
    calls: list[Callable[[], object]] = [
        lambda: compact(views[0], Run("one", "h", 1)),
        lambda: compact(views[1], Run("two", "h", 2)),
        lambda: land(views[2], a),
        lambda: expire(views[3], SECOND, Run("three", "h", 3)),
    ]
    ends = at_once(*list(itertools.permutations(calls))[turn * 5])
    assert {type(end) for end in ends if isinstance(end, Exception)} <= {Overtaken}
    assert rows(table) == expected(a, 11, 28)
    assert again(table).landed()[a.id].offset == 28
    report = verify(again(table), {a.id: a.reader})
    assert report.intact, list(report.findings())


def test_rows_of_no_day_do_not_expire(local: Table, a: Gateway) -> None:
    """Another program may append rows whose day is null."""
    land(local, a)
    odd = dataclasses.replace(local.files()[0], partition={"day": None})
    local.replace(local.files(), [odd], run=RUN)
    expire(local, date(2100, 1, 1), RUN)
    assert [file.path for file in local.files()] == [odd.path]


def test_a_table_without_days_cannot_expire(tmp_path: Path) -> None:
    table = create(tmp_path / "flat", partition_by=["protocol"])
    with pytest.raises(TableError, match="is not partitioned by day"):
        expire(table, SECOND, RUN)


def test_compaction_is_given_up_and_told_when_a_file_is_lost(table: Table, a: Gateway) -> None:
    fill(table, a)
    lost = min(table.files(), key=lambda file: file.partition["day"] or "")
    table.storage.delete(lost.path)
    lines: list[str] = []
    done = compact(table, RUN, say=lines.append)
    assert (done.given_up, done.added) == (1, 1)
    assert "it is missing" in lines[0]


def test_a_bridge_compacts_every_ten_minutes_at_most(
    table: Table, a: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And only when there are many small files."""
    monkeypatch.setattr(compacting, "DUE_FILES", 3)
    lines: list[str] = []
    now = 0.0
    compactions = Compactions(RUN, lines.append, clock=lambda: now)
    fill(table, a, batches=3)
    now = 600.0
    compactions.begin(table)
    compactions.wait(60)
    assert lines == []
    fill(table, a, batches=1)
    for moment in (601.0, 1199.0, 1200.0, 1201.0):
        now = moment
        compactions.begin(table)
        compactions.wait(60)
    assert lines == ["compaction made 1 files of 3 small ones"]
    fill(table, a)
    for moment in (1799.0, 1800.0):
        now = moment
        compactions.begin(table)
        compactions.wait(60)
    assert len(lines) == 2
    assert rows(table) == expected(a, 0, a.rows)
    table.storage.delete(table.files()[0].path)
    fill(table, a)
    now = 2400.0
    compactions.begin(table)
    compactions.wait(60)
    assert len(lines) == 3


def test_columns_which_came_later_are_null_in_older_rows(tmp_path: Path, a: Gateway) -> None:
    table = create(tmp_path / "table")
    fill(table, a, batches=2)
    DeltaTable(table.location).alter.add_columns(Field("colour", PrimitiveType("string")))
    table.refresh()
    done = compact(again(table), RUN)
    assert done.given_up == 0
    read = DeltaTable(table.location).to_pyarrow_table()
    assert read.column("colour").null_count == read.num_rows == 11
