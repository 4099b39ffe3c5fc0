"""Rows that were erased, by other programs and by ours: exactly noted, and nothing lands them
again.
"""

from __future__ import annotations

import errno
import json
import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from tests.table.conftest import both
from tests.tools.disks import Unreadable
from tests.tools.loops import drain, loop_over, run_here
from tests.tools.tables import (
    Gateway,
    check_sum,
    counted_rows,
    create_table,
    delta,
    expected_rows,
    land_gateways,
    opened_again,
)
from twisted_msgproto.core.errors import RewindNeeded, TableChanged, TableError
from twisted_msgproto.queue import Landed
from twisted_msgproto.table import preflight
from twisted_msgproto.table.actions import Run
from twisted_msgproto.table.compact import compact
from twisted_msgproto.table.delta_table import Table
from twisted_msgproto.table.proof import verify
from twisted_msgproto.table.retention import erase, vacuum
from twisted_msgproto.table.rewind import rewind
from twisted_msgproto.table.shape import Shape


@pytest.fixture
def unreadable(monkeypatch: pytest.MonkeyPatch) -> Unreadable:
    return Unreadable(monkeypatch)


def land_on(table: Table, gateway: Gateway) -> None:
    """As a bridge does that is killed before its queue hears of it: the rows stay there."""
    loop_over(opened_again(table), [gateway.directory]).run()


def merge(table: Table, clause: Callable[[Any], Any]) -> None:
    rows = pa.table({"offset": pa.array([3, 4], pa.int64())})
    merger = delta(table).merge(rows, "t.offset = s.offset", source_alias="s", target_alias="t")
    clause(merger).execute()


STRANGERS: dict[str, tuple[Callable[[Table], object], set[int]]] = {
    "DELETE of a row": (lambda t: delta(t).delete("offset = 0"), {0}),
    "DELETE of many": (lambda t: delta(t).delete("offset % 2 = 1"), set(range(1, 21, 2))),
    "DELETE of all": (lambda t: delta(t).delete(), set(range(21))),
    "UPDATE": (lambda t: delta(t).update({"client_id": "'x'"}, predicate="offset < 9"), set()),
    "MERGE that updates": (
        lambda t: merge(t, lambda m: m.when_matched_update({"client_id": "'x'"})),
        set(),
    ),
    "MERGE that deletes": (lambda t: merge(t, lambda m: m.when_matched_delete()), {3, 4}),
    "OPTIMIZE": (lambda t: delta(t).optimize.compact(), set()),
    "DELETE, then OPTIMIZE": (
        lambda t: (delta(t).delete("offset = 7"), delta(t).optimize.compact()),
        {7},
    ),
}


@pytest.mark.parametrize(
    ("table", "name"),
    [
        *(("local", name) for name in STRANGERS),
        pytest.param("s3", "DELETE, then OPTIMIZE", marks=pytest.mark.slow),
    ],
    indirect=["table"],
)
def test_what_other_programs_erase_does_not_stop_the_bridge_nor_land_again__RD_30(
    table: Table, a: Gateway, name: str
) -> None:
    """RD-30"""
    act, erased = STRANGERS[name]
    for _ in range(2):
        a.put(10)
        land_on(table, a)
    act(table)
    left = expected_rows(a, 0, 21) - Counter((a.id, one) for one in erased)
    check_sum(table, a, len(erased))  # before a bridge has noted anything
    a.put(5)
    land_on(table, a)
    left += expected_rows(a, 21, 26)
    assert counted_rows(table) == left
    check_sum(table, a, len(erased))
    # What is set back lands again, without the rows that were erased.
    lose_a_file(table)
    rewind(opened_again(table), Run.new(), queues={a.id: a.reader})
    land_on(table, a)
    assert counted_rows(table) == left
    check_sum(table, a, len(erased))


def lose_a_file(table: Table) -> None:
    table.refresh()
    first = min(table.files(), key=lambda file: file.modified)
    table.storage.delete(first.path)


def test_the_remedy_alone_does_not_land_an_erased_row_again__RD_30(
    table: Table, a: Gateway
) -> None:
    """No bridge has seen the DELETE when the table is rewound."""
    a.put(20)
    drain(opened_again(table), [a.directory])
    delta(table).delete("offset = 0")
    rewind(opened_again(table), Run.new(), queues={a.id: a.reader})
    drain(opened_again(table), [a.directory])
    assert counted_rows(table) == expected_rows(a, 1, 21)
    check_sum(table, a, 1)


def test_a_delete_that_was_restored_before_a_bridge_saw_it_erased_nothing__RD_30(
    local: Table, a: Gateway
) -> None:
    a.put(20)
    drain(opened_again(local), [a.directory])
    delta(local).delete("offset = 0")
    delta(local).restore(1)
    rewind(opened_again(local), Run.new(), queues={a.id: a.reader})
    drain(opened_again(local), [a.directory])
    assert counted_rows(local) == expected_rows(a, 0, 21)
    check_sum(local, a, 0)


def test_the_sum_holds_where_rows_are_left_out__RD_30(local: Table, a: Gateway) -> None:
    def land_some() -> None:
        loop = loop_over(opened_again(local), [a.directory])
        loop.target = replace(loop.target, shape=Shape((("protocol", ("lumberjack",)),)))
        loop.run()

    for _ in range(2):
        a.put(10, protocol="umq")
        a.put(10)
        land_some()
    erase(opened_again(local), Run.new(), where="offset in (12, 13, 33)")
    delta(local).delete("offset = 15")
    check_sum(local, a, 4)
    a.put(5)
    land_some()
    check_sum(local, a, 4)
    left = counted_rows(local)
    lose_a_file(local)
    rewind(opened_again(local), Run.new(), queues={a.id: a.reader})
    land_some()
    assert counted_rows(local) == left
    check_sum(local, a, 4)


def test_a_delete_while_a_batch_is_read_is_noted_with_it__RD_30(local: Table, a: Gateway) -> None:
    a.put(20)
    drain(opened_again(local), [a.directory])
    a.put(5)

    def meanwhile(target: Any, tasks: Any) -> Any:
        delta(local).delete("offset = 0")
        return run_here(target, tasks)

    said: list[str] = []
    drain(opened_again(local), [a.directory], runner=meanwhile, say=said.append)
    assert "(DELETE, by another program) erased 1 rows" in said[0]
    assert counted_rows(local) == expected_rows(a, 1, 26)
    delta(local).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    drain(opened_again(local), [a.directory])
    check_sum(local, a, 1)


def test_files_that_are_gone_already_prove_nothing__RD_30(local: Table, a: Gateway) -> None:
    a.put(20)
    drain(opened_again(local), [a.directory])
    delta(local).delete("offset = 0")
    delta(local).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    with pytest.raises(RewindNeeded, match=r"\(DELETE, .* took out files which are gone already"):
        drain(opened_again(local), [a.directory])


def test_a_disk_that_cannot_be_read_is_no_proof__RD_30(
    local: Table, a: Gateway, unreadable: Unreadable
) -> None:
    """The version is met again: nothing lands on top of it meanwhile."""
    a.put(20)
    drain(opened_again(local), [a.directory])
    table = opened_again(local)
    table.seen = lambda commit: (preflight.note_erased(table, commit), None)[1]
    delta(local).delete("offset = 0")
    for _ in range(2):
        with unreadable.now("open", ".parquet", errno.EIO), pytest.raises(TableError) as told:
            table.refresh()
        assert type(told.value) is TableError
    table.refresh()
    assert sum(table.due.values()) == 1


def test_rows_that_a_restore_brings_back_are_named_and_taken_out_by_rewind__RD_30(
    local: Table, a: Gateway
) -> None:
    a.put(20)
    drain(opened_again(local), [a.directory])
    delta(local).delete("offset = 0")
    a.put(5)
    drain(opened_again(local), [a.directory])
    delta(local).restore(1)
    [line] = [
        one for one in verify(opened_again(local)).findings() if "back" in one or "again" in one
    ]
    assert line == f"erased, and there again: gateway {a.id} offsets 0 to 1 (1 rows)"
    with pytest.raises(RewindNeeded, match="RESTORE"):
        drain(opened_again(local), [a.directory])
    rewind(opened_again(local), Run.new(), queues={a.id: a.reader})
    drain(opened_again(local), [a.directory])
    assert counted_rows(local) == expected_rows(a, 1, 26)
    check_sum(local, a, 1)


def test_offsets_of_another_history_are_not_those_that_were_erased__RD_30(
    local: Table, a: Gateway, tmp_path: Path
) -> None:
    """A queue that was restored from an older copy gives an erased row's offset to another."""
    a.put(10)
    shutil.copytree(a.directory, tmp_path / "copy")
    a.put(10)
    drain(opened_again(local), [a.directory])
    delta(local).delete("offset = 15 or offset = 2")
    drain(opened_again(local), [a.directory])
    older = Gateway.at(tmp_path / "copy")
    older.rows += 100
    older.put(12)
    queues = {a.id: older.reader}
    rewind(opened_again(local), Run.new(), queues=queues, discard_rows=True)
    drain(opened_again(local), [older.directory])
    assert counted_rows(local) == expected_rows(a, 0, 2) + expected_rows(a, 3, 23)


# -- features --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["enableChangeDataFeed", "appendOnly"])
def test_a_table_that_keeps_its_rows_lands_and_is_compacted__RD_30(
    local: Table, a: Gateway, name: str
) -> None:
    def switch(on: str) -> None:
        delta(local).alter.set_table_properties({f"delta.{name}": on})

    def remove() -> None:
        table = opened_again(local)
        table.replace(table.files(), [], run=Run.new(), operation="DELETE", data_change=True)

    switch("true")
    for _ in range(3):
        a.put(10)
        drain(opened_again(local), [a.directory])
    assert compact(opened_again(local), Run.new()).added == 1
    before = data_files(local)
    line = rf"no rows can be taken out of .*{name} = false\), do this again, and switch it on again"
    with pytest.raises(TableChanged, match=line):
        erase(opened_again(local), Run.new(), offsets={a.id: [(5, 6)]})
    with pytest.raises(TableChanged, match=line):
        remove()
    assert data_files(local) == before and counted_rows(local) == expected_rows(a, 0, 31)
    if name == "enableChangeDataFeed":
        delta(local).delete("offset = 0")
        drain(opened_again(local), [a.directory])
        assert counted_rows(local) == expected_rows(a, 1, 31)
    switch("false")
    remove()
    switch("true")
    assert not counted_rows(local)


CONSTRAINTS = [
    ("offset >= 0", True),
    ("0 <= offset AND body IS NOT NULL", True),
    ("protocol = 'lumberjack'", True),
    ("day > '2020-01-01'", True),
    ("client_id IS NOT NULL", False),
    ("offset <= 5", False),
    ("offset != 7", False),
    ("protocol <> 'lumberjack'", False),
]


@pytest.mark.parametrize(("text", "holds"), CONSTRAINTS, ids=[text for text, _ in CONSTRAINTS])
def test_constraints_are_kept_to__RD_30(local: Table, a: Gateway, text: str, holds: bool) -> None:
    delta(local).alter.add_constraint({"ours": text})
    a.put(10)
    if holds:
        drain(opened_again(local), [a.directory])
        assert counted_rows(local) == expected_rows(a, 0, 11)
        return
    line = rf"a row \(gateway {a.id}, offset \d\) breaks the constraint ours .*DROP CONSTRAINT"
    with pytest.raises(TableChanged, match=line):
        drain(opened_again(local), [a.directory])
    assert not counted_rows(local)
    delta(local).alter.drop_constraint("ours")
    drain(opened_again(local), [a.directory])
    assert counted_rows(local) == expected_rows(a, 0, 11)


def test_a_constraint_that_is_not_understood_is_refused_by_its_name__RD_30(
    local: Table, a: Gateway
) -> None:
    delta(local).alter.add_constraint({"odd": "offset % 2 >= 0"})
    with pytest.raises(
        TableChanged, match=r"nothing can land in .*: its constraint odd \(.*DROP CONSTRAINT"
    ):
        drain(opened_again(local), [a.directory])
    assert verify(opened_again(local)).intact
    delta(local).alter.drop_constraint("odd")
    drain(opened_again(local), [a.directory])
    assert counted_rows(local) == expected_rows(a, 0, 1)


def test_of_rows_without_keys_none_may_be_taken_out_by_others(tmp_path: Path) -> None:
    """A transform may have left out gateway and offset."""
    rows = pa.table({"n": [1, 2], "day": ["2026-01-31"] * 2})
    table = Table.create(tmp_path / "table", rows.schema)
    table.commit([], {"g": Landed(3)}, before={}, run=Run.new())
    write_deltalake(table.location, rows, mode="append")
    preflight.check_operations(opened_again(table))
    delta(table).delete("n = 1")
    with pytest.raises(RewindNeeded, match="changed rows, and nobody can tell which"):
        preflight.check_operations(opened_again(table))


# -- erase -----------------------------------------------------------------------------------------


def data_files(table: Table) -> set[str]:
    found = table.storage.filesystem().get_file_info(pafs.FileSelector("", recursive=True))
    return {info.path for info in found if info.path.startswith("day=")}


@both
@pytest.mark.parametrize("purge", [False, True], ids=["kept", "purged"])
def test_rows_are_erased_and_never_land_again(table: Table, a: Gateway, purge: bool) -> None:
    for _ in range(2):
        a.put(10)
        land_on(table, a)
    before = data_files(table)
    where = "\"offset\" = 3 OR (body = 'body 9' AND offset > 4) OR client_id = 'nobody'"
    bodies = delta(table).to_pyarrow_table().sort_by("offset")["body"].to_pylist()
    where = where.replace("body 9", bodies[9].decode())
    done = erase(opened_again(table), Run.new(), where=where, purge=purge)
    assert (done.rows, done.gateways, done.not_there) == (2, {a.id: [(3, 4), (9, 10)]}, 0)
    assert len(done.purged) == (1 if purge else 0)
    assert before - data_files(table) == set(done.purged)
    left = expected_rows(a, 0, 3) + expected_rows(a, 4, 9) + expected_rows(a, 10, 21)
    assert counted_rows(table) == left
    check_sum(table, a, 2)
    assert compact(opened_again(table), Run.new()).added == 1
    lose_a_file(table)
    rewind(opened_again(table), Run.new(), queues={a.id: a.reader})
    land_on(table, a)
    assert counted_rows(table) == left
    check_sum(table, a, 2)
    again = erase(opened_again(table), Run.new(), offsets={a.id: [(3, 4), (20, 22)]}, purge=purge)
    assert (again.gateways, again.not_there) == ({a.id: [(20, 21)]}, 2)
    check_sum(table, a, 3)


def test_a_checkpoint_says_nothing_of_purged_values(local: Table, a: Gateway) -> None:
    a.put(10)
    land_on(local, a)
    table = opened_again(local)
    done = erase(table, Run.new(), offsets={a.id: [(10, 11)]}, purge=True)
    [path] = Path(local.location, "_delta_log").glob(f"{done.version:020d}.checkpoint.parquet")
    adds = pq.read_table(path).column("add").drop_null().to_pylist()
    assert [json.loads(one["stats"])["maxValues"]["offset"] for one in adds] == [9]


def test_a_purge_leaves_what_compaction_made_of_other_files(local: Table, a: Gateway) -> None:
    for _ in range(3):
        a.put(10)
        land_on(local, a)
    small = data_files(local)
    compact(opened_again(local), Run.new())
    [whole] = opened_again(local).files()
    done = erase(opened_again(local), Run.new(), offsets={a.id: [(0, 1)]}, purge=True)
    assert done.purged == [whole.path]
    assert small < data_files(local)


def test_an_erasure_between_two_batches_of_a_running_bridge(local: Table, a: Gateway) -> None:
    """Its rows are read, and another's file goes meanwhile: nothing stops it."""
    a.put(20)
    land_on(local, a)
    a.put(5)

    def meanwhile(target: Any, tasks: Any) -> Any:
        erase(opened_again(local), Run.new(), offsets={a.id: [(2, 4), (22, 23)]}, purge=True)
        return run_here(target, tasks)

    loop_over(opened_again(local), [a.directory], runner=meanwhile).run()
    assert counted_rows(local) == expected_rows(a, 0, 2) + expected_rows(a, 4, 26)
    check_sum(local, a, 2)


def test_a_compaction_in_between_is_followed(local: Table, a: Gateway) -> None:
    for _ in range(2):
        a.put(10)
        land_on(local, a)
    table = opened_again(local)
    compact(opened_again(local), Run.new())
    assert erase(table, Run.new(), offsets={a.id: [(2, 4)]}).rows == 2
    assert counted_rows(local) == expected_rows(a, 0, 2) + expected_rows(a, 4, 21)
    check_sum(local, a, 2)


@pytest.mark.parametrize("purge", [True, False], ids=["purge", "vacuum"])
def test_what_others_deleted_is_noted_before_its_proof_goes(
    local: Table, a: Gateway, purge: bool
) -> None:
    a.put(20)
    land_on(local, a)
    delta(local).delete("offset = 0")
    if purge:
        erase(opened_again(local), Run.new(), offsets={a.id: [(1, 2)]}, purge=True)
    else:
        assert vacuum(opened_again(local), clock=lambda: time.time() + 90_000).paths
    a.put(5)
    land_on(local, a)
    assert counted_rows(local) == expected_rows(a, 1 + purge, 26)
    check_sum(local, a, 1 + purge)


def test_the_note_of_what_was_erased_is_not_done_without(local: Table, a: Gateway) -> None:
    a.put(20)
    land_on(local, a)
    erase(opened_again(local), Run.new(), offsets={a.id: [(5, 6)]})
    delta(local).vacuum(
        retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True
    )
    check_sum(local, a, 1)  # another program's vacuum leaves it
    shutil.rmtree(Path(local.location, "_bridge"))
    with pytest.raises(TableError, match=r"says which rows were erased, .*put it back from a copy"):
        verify(opened_again(local))


@pytest.mark.parametrize("name", ["a%41", "a\\A"])
def test_rows_are_not_looked_for_in_another_table(tmp_path: Path, a: Gateway, name: str) -> None:
    """delta-rs reads ``aA`` and ``a/A``."""
    a.put(3)
    tables = [create_table(tmp_path / place) for place in (name, "aA", "a/A")]
    for table in tables:
        land_gateways(table, a)
    with pytest.raises(TableError, match="rename the directory"):
        erase(tables[0], Run.new(), where="offset = 1")


@pytest.mark.parametrize("where", ["nope = 1", "offset = ", "1=1) -- ", "'x'"])
def test_what_is_no_expression_over_the_rows_is_one_line(
    local: Table, a: Gateway, where: str
) -> None:
    a.put(5)
    land_on(local, a)
    with pytest.raises(TableError, match=r"^rows of .*table: ") as told:
        erase(opened_again(local), Run.new(), where=where)
    assert "\n" not in str(told.value)
    assert counted_rows(local) == expected_rows(a, 0, 6)
