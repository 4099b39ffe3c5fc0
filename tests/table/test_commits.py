"""Commits: their faults and races, and checkpoints of them."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.table.conftest import both
from tests.tools.disks import PowerDisk
from tests.tools.tables import (
    RUN,
    age_log,
    at_once,
    delta,
    land,
    opened_again,
    stored_file,
)
from twisted_msgproto.core.errors import Overtaken, TableChanged, TableError
from twisted_msgproto.queue import Landed
from twisted_msgproto.table import delta_table
from twisted_msgproto.table.actions import Run
from twisted_msgproto.table.compact import compact
from twisted_msgproto.table.delta_table import Table
from twisted_msgproto.table.retention import vacuum
from twisted_msgproto.testing import BrokenDisk


@both
def test_of_writers_at_once_one_lands_a_gateway_and_those_of_others_all_pass__TB_03_TB_04(
    table: Table,
) -> None:
    """TB-03, TB-04: two bridges exclude each other by the table."""

    def landing(name: str) -> Callable[[], int]:
        writer = opened_again(table)
        files = [stored_file(writer, name, 0, 5)]
        landed, before = {name: Landed(5)}, {name: None}
        return lambda: writer.commit(files, landed, before=before, run=Run.new())

    ends = at_once(*map(landing, ["shared", "shared", "shared", "b", "c"]))
    assert sorted(end for end in ends if not isinstance(end, Overtaken)) == [1, 2, 3]
    assert sum(isinstance(end, Overtaken) for end in ends[:3]) == 2
    assert delta(table).to_pyarrow_table().num_rows == 15


def test_a_version_whose_folder_was_not_synced_is_written_anew__TB_01(table: Table) -> None:
    """TB-01: a second sync of what the first one did not write would tell nothing."""
    disk = BrokenDisk()
    writer = Table.open(table.location, disk=disk)
    writer.sync()
    disk.fail("sync_directory", errno=errno.EIO)
    with pytest.raises(TableError, match="cannot commit to"):
        writer.commit([], {"a": Landed(3)}, before={"a": None}, run=RUN)
    version = Path(table.location, "_delta_log", f"{1:020d}.json")
    doubtful = version.open("rb")  # or its number could be used again
    assert writer.commit([], {"a": Landed(3)}, before={"a": None}, run=RUN) == 1
    assert not os.path.samestat(os.fstat(doubtful.fileno()), version.stat())
    assert doubtful.read() == version.read_bytes()
    doubtful.close()


@pytest.mark.parametrize("step", ["write", "sync", "rename", "sync_directory"])
def test_what_others_made_is_durable_before_the_next_version__TB_01(
    table: Table, step: str
) -> None:
    """TB-01: though it could not be synced at first."""
    land(table, "a", 3)
    land(table, "a", 6)
    power = PowerDisk(Path(table.location))
    disk = BrokenDisk(power)
    writer = Table.open(table.location, disk=disk)
    writer.sync()
    DeltaTable(table.location).optimize.compact()  # which syncs nothing
    before = writer.landed()
    disk.fail(step, errno=errno.ENOSPC)
    writer.refresh()
    with pytest.raises(TableError, match=r"cannot sync .*No space left"):
        writer.commit([], {"a": Landed(9)}, before=before, run=RUN)
    assert not writer.durable
    writer.commit([], {"a": Landed(9)}, before=before, run=RUN)
    power.cut(torn=False)
    assert Table.open_for_writing(table.location).landed() == {"a": Landed(9)}
    assert DeltaTable(table.location).to_pyarrow_table().num_rows == 6


@pytest.mark.parametrize("number", [1, 2, 3, 4, 6, 9])
def test_a_version_counts_as_a_lost_answer_while_the_table_has_its_rows__TB_11(
    table: Table, number: int
) -> None:
    """Else the queue is told that rows are safe which were set back since."""
    writer = Table.open(table.location)
    first, second = (stored_file(table, "a", lo, lo + 3) for lo in (0, 3))
    writer.commit([first], {"a": Landed(3)}, before={"a": None}, run=RUN)
    version = writer.commit([second], {"a": Landed(6)}, before={"a": Landed(3)}, run=RUN)
    if number != 6:
        other = Table.open(table.location)
        other.commit([], {"a": Landed(number)}, before={"a": Landed(6)}, run=Run.new())
    again = stored_file(table, "a", 3, 6)
    writer = Table.open(table.location)  # which does not know that its run was answered
    try:
        found = writer.commit([again], {"a": Landed(6)}, before={"a": Landed(3)}, run=RUN)
    except Overtaken:
        found = None
    assert found == {3: version + 2, 6: version, 9: version}.get(number)


@pytest.mark.parametrize(
    "number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK], ids=errno.errorcode.get
)
def test_a_file_system_without_links_is_one_line(table: Table, number: int) -> None:
    disk = BrokenDisk()
    disk.fail("link", errno=number)
    writer = Table.open(table.location, disk=disk)
    with pytest.raises(TableError, match="without hard links"):
        writer.commit([], {"a": Landed(1)}, before={"a": None}, run=RUN)
    assert Table.open(table.location).version == 0


def test_a_compaction_on_a_full_disk_is_one_line_and_is_made_when_it_has_room__TB_11(
    table: Table,
) -> None:
    for hi in (3, 6, 9):
        land(table, "a", hi)
    disk = BrokenDisk()
    writer = Table.open(table.location, disk=disk)
    writer.sync()
    disk.fail("sync", errno=errno.ENOSPC)
    with pytest.raises(TableError, match=r"cannot be written: .*No space left") as told:
        compact(writer, RUN)
    assert "\n" not in str(told.value)
    assert len(list(Path(table.location).rglob("*.parquet"))) == len(writer.files()) == 3
    done = compact(writer, RUN)
    assert (done.removed, done.added, done.given_up) == (3, 1, 0)
    assert len(Table.open(table.location).files()) == 1
    assert DeltaTable(table.location).to_pyarrow_table().num_rows == 9


def test_a_checkpoint_alone_is_the_whole_table_for_other_programs(table: Table) -> None:
    """And it keeps what others said of the table, and which files went out of it lately."""
    for hi in (3, 6, 9):
        land(table, "a", hi)
    delta = DeltaTable(table.location)
    delta.alter.set_table_name("events")
    delta.alter.set_table_properties({"mine": "kept"}, raise_if_not_exists=False)
    table.refresh()
    table.sync()
    compact(table, RUN)
    path = Path(table.location, "_delta_log")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delta_table, "CHECKPOINT_EVERY", 1)
        again = Table.open(table.location)
        land(again, "a", 12)
        again.maintain()
    seen = DeltaTable(table.location)
    expected = sorted(seen.file_uris()), seen.schema(), seen.metadata().configuration
    for version in path.glob("*.json"):
        version.unlink()
    alone, reread = DeltaTable(table.location), Table.open(table.location)
    assert (sorted(alone.file_uris()), alone.schema(), alone.metadata().configuration) == expected
    assert (alone.metadata().name, expected[2]["mine"]) == ("events", "kept")
    assert alone.transaction_version("msgproto:a") == 12
    assert sorted(alone.to_pyarrow_table()["offset"].to_pylist()) == list(range(12))
    assert reread.files() == again.files() and reread.landed() == again.landed()
    (checkpoint,) = path.glob(f"{again.version:020d}.checkpoint.parquet")
    adds = pq.read_table(checkpoint)["add"].drop_null().to_pylist()
    assert {add["dataChange"] for add in adds} == {False}
    later = time.time() + 25 * 3600.0
    assert len(vacuum(reread, dry_run=True, clock=lambda: later).paths) == 3
    assert vacuum(reread, dry_run=True).paths == []
    land(reread, "a", 15)
    assert DeltaTable(table.location).to_pyarrow_table().num_rows == 15


@pytest.mark.parametrize(("days", "known"), [(6, 3), (8, 0)])
def test_a_checkpoint_forgets_files_that_went_out_over_a_week_ago(
    table: Table, monkeypatch: pytest.MonkeyPatch, days: int, known: int
) -> None:
    monkeypatch.setattr(delta_table, "CHECKPOINT_EVERY", 1)
    for hi in (3, 6, 9):
        land(table, "a", hi)
    compact(table, RUN)
    later = Table.open(table.location, clock=lambda: time.time() + days * 86400.0)
    land(later, "a", 12)
    later.maintain()
    (checkpoint,) = Path(table.location, "_delta_log").glob(f"{later.version:020d}*.parquet")
    removed = pq.read_table(checkpoint)["remove"]
    assert len(removed) - removed.null_count == known


class Cleaning:
    """Another bridge, of gateway ``b``, which makes checkpoints and cleans the log hours later."""

    def __init__(self, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(delta_table, "CHECKPOINT_EVERY", 5)
        monkeypatch.setattr(delta_table, "CLEAN_SECONDS", 0.0)
        self.table = Table.open(table.location)
        self.landed = 0

    def land(self, versions: int) -> None:
        for _ in range(versions):
            self.landed += 1
            land(self.table, "b", self.landed)
            age_log(self.table.location, 7 * 3600.0)
            self.table.maintain()


def restore(table: Table) -> None:
    """What another program's RESTORE leaves in the log, but for the files."""
    version = Path(table.location) / "_delta_log" / f"{table.version + 1:020d}.json"
    version.write_text('{"commitInfo":{"timestamp":1,"operation":"RESTORE"}}\n')


def test_a_restore_is_met_though_the_log_was_cleaned_before_a_checkpoint__TB_05(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TB-05: the table was taken up anew behind the RESTORE, and the bridge landed on top."""
    other = Cleaning(table, monkeypatch)
    table = Table.open(table.location)
    table.sync()
    for _ in range(12):
        other.land(1)
        table.refresh()
        table.sync()
    land(table, "a", 5)
    assert f"{0:020d}.json" not in table.storage.log_names()
    restore(table)
    seen: list[str] = []
    table.seen = lambda commit: seen.append(commit.operation)
    table.maintain()
    table.refresh()
    assert seen == ["RESTORE"]


def test_versions_which_were_cleaned_away_unread_are_not_landed_upon__TB_05(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TB-05: what they did is not known; it may have been a RESTORE."""
    land(table, "a", 5)
    stopped = Table.open(table.location)
    stopped.sync()
    other = Cleaning(table, monkeypatch)
    other.land(3)
    restore(other.table)
    other.table.refresh()
    other.land(12)
    assert f"{stopped.version + 1:020d}.json" not in other.table.storage.log_names()
    with pytest.raises(TableChanged, match="was cleaned away before it was read here"):
        land(stopped, "a", 9)


def test_two_who_add_columns_add_each_once_and_a_batch_of_before_lands(table: Table) -> None:
    first, second = Table.open(table.location), Table.open(table.location)
    status, user = pa.field("status", pa.int32()), pa.field("user", pa.string(), nullable=False)
    assert first.grow([status], run=Run.new()) == ["status"]
    assert second.grow([status, user], run=Run.new()) == ["user"]
    assert second.grow([status, user], run=Run.new()) == []
    assert first.grow([user], run=Run.new()) == []
    land(first, "a", 5)
    assert Table.open(table.location).version == 3
    found = DeltaTable(table.location).to_pyarrow_table()
    assert found.num_rows == 5 and found.column("user").null_count == 5
    assert found.schema.names[-2:] == ["status", "user"]
    assert DeltaTable(table.location).protocol().min_writer_version == 2
