"""What other programs leave torn, because they sync nothing: mended, or refused with one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.tools.powercut import damaged
from tests.tools.tables import TABLE_SCHEMA, land, rows_of
from twisted_msgproto.core.errors import TableError
from twisted_msgproto.queue.lineage import Landed
from twisted_msgproto.table.actions import version_name
from twisted_msgproto.table.log import Table
from twisted_msgproto.table.torn import EMPTY

DAY = pa.array([20484] * 5, pa.int32()).cast(pa.date32())


def foreign_append(table: Table) -> None:
    rows = rows_of("foreign", 0, 5).append_column("day", DAY)
    write_deltalake(table.location, rows.cast(TABLE_SCHEMA), mode="append")


def foreign_checkpoint(table: Table) -> None:
    DeltaTable(table.location).create_checkpoint()


def newest(table: Table, ending: str) -> Path:
    return max((Path(table.location) / "_delta_log").glob(f"*{ending}"))


def newest_data(table: Table) -> Path:
    table.refresh()
    return Path(table.location) / Table.open(table.location).files()[-1].path


def lose(path: Path, loss: str) -> None:
    if loss == "missing":
        path.unlink()
    else:
        path.write_bytes(damaged(path.read_bytes(), loss))


LOSSES = ["empty", "torn", "missing"]
CASES: list[tuple[str, Callable[[Table], None], Callable[[Table], Path]]] = [
    ("commit", foreign_append, lambda table: newest(table, ".json")),
    ("data", foreign_append, newest_data),
    ("checkpoint", foreign_checkpoint, lambda table: newest(table, ".checkpoint.parquet")),
    (
        "last checkpoint",
        foreign_checkpoint,
        lambda table: Path(table.location) / "_delta_log/_last_checkpoint",
    ),
]


@pytest.mark.parametrize("followed", [False, True], ids=["last", "followed"])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_what_others_left_torn_is_mended_or_refused(
    case: tuple[str, Callable[[Table], None], Callable[[Table], Path]],
    loss: str,
    followed: bool,
    table: Table,
) -> None:
    name, work, victim = case
    land(table, "a", 5)
    work(table)
    path = victim(table)
    if followed:
        foreign_append(table)
    lose(path, loss)
    if followed and name in ("commit", "data"):
        with pytest.raises(TableError, match=r"restore the table's folder from a copy") as refused:
            Table.open_for_writing(table.location)
        assert "\n" not in str(refused.value)
        return
    mended = Table.open_for_writing(table.location)
    assert mended.landed() == {"a": Landed(5, 5, 7)}
    land(mended, "a", 9)
    rows = DeltaTable(table.location).to_pyarrow_table()
    found = [n for g, n in zip(*(rows[c].to_pylist() for c in ("gateway", "offset")), strict=True)]
    foreign = 5 if followed else 0
    assert len(found) == 9 + foreign
    if (name, loss) not in (("commit", "missing"), ("last checkpoint", "missing")):
        assert mended.mended


def test_a_torn_last_version_becomes_an_empty_one_and_its_number_is_not_used_again(
    table: Table,
) -> None:
    land(table, "a", 5)
    foreign_append(table)
    lose(newest(table, ".json"), "torn")
    mended = Table.open_for_writing(table.location)
    assert mended.version == 2
    octets = mended.storage.read(f"_delta_log/{version_name(2)}")
    assert [json.loads(line)["commitInfo"]["operation"] for line in octets.splitlines()] == [EMPTY]
    assert land(mended, "a", 9) == 3
    assert DeltaTable(table.location).version() == 3


def test_a_commit_of_ours_which_was_cut_at_a_line_is_known_as_torn(table: Table) -> None:
    land(table, "a", 5)
    lose(newest(table, ".json"), "cut at a line")
    with pytest.raises(TableError, match="holds 3 of 4 actions"):
        Table.open(table.location)
    assert Table.open_for_writing(table.location).landed() == {}


def test_a_torn_first_version_is_refused(table: Table) -> None:
    lose(newest(table, ".json"), "torn")
    with pytest.raises(TableError, match="and it is the first"):
        Table.open_for_writing(table.location)


def test_a_torn_checkpoint_without_the_versions_before_it_is_refused(table: Table) -> None:
    land(table, "a", 5)
    foreign_checkpoint(table)
    lose(newest(table, ".checkpoint.parquet"), "torn")
    (Path(table.location) / "_delta_log" / version_name(0)).unlink()
    with pytest.raises(TableError, match=r"lacks version 0; checkpoint 1 cannot be read"):
        Table.open_for_writing(table.location)


def test_a_whole_table_needs_no_mending(table: Table) -> None:
    land(table, "a", 5)
    foreign_append(table)
    assert Table.open_for_writing(table.location).mended == ()


def test_a_checkpoint_which_names_no_table_is_passed_over(table: Table) -> None:
    land(table, "a", 5)
    foreign_checkpoint(table)
    path = newest(table, ".checkpoint.parquet")
    actions = pq.read_table(path)
    pq.write_table(actions.filter(pc.is_null(actions["metaData"])), path)
    assert Table.open(table.location).landed() == {"a": Landed(5, 5, 7)}
