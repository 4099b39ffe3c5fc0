"""Commits on a local disk: their durable order, faults, races, and what they cost."""

from __future__ import annotations

import errno
import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.tools.disks import LOSSES, CutDisk, StepDisk
from tests.tools.tables import RUN, TABLE_SCHEMA, age_log, data_file, land
from twisted_msgproto.core.errors import Overtaken, TableChanged, TableError
from twisted_msgproto.queue import Landed
from twisted_msgproto.table import delta_table
from twisted_msgproto.table.actions import Run
from twisted_msgproto.table.compact import compact
from twisted_msgproto.table.delta_table import Table
from twisted_msgproto.table.retention import vacuum
from twisted_msgproto.testing import BrokenDisk


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("step", ["write", "sync", "link", "sync_directory"])
def test_a_disk_which_fails_is_one_line_and_the_commit_can_be_asked_for_again(
    table: Table, step: str, number: int
) -> None:
    """TB-11: a full disk is one line; nothing lands twice when it has room again."""
    land(table, "a", 5)
    disk = BrokenDisk()
    writer = Table.open(table.location, disk=disk)
    writer.sync()
    disk.fail(step, errno=number)
    file = data_file(Path(table.location), "a", 5, 9)
    before = writer.landed()
    for attempt in range(2):
        try:
            version = writer.commit([file], {"a": Landed(9)}, before=dict(before), run=RUN)
        except TableError as error:
            assert attempt == 0
            assert "\n" not in str(error)
    assert version == 2
    assert Table.open(table.location).landed() == {"a": Landed(9)}
    assert DeltaTable(table.location).to_pyarrow_table().num_rows == 9
    left = list((Path(table.location) / "_delta_log").glob("*.tmp"))
    assert left == []


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("restarted", [False, True], ids=["goes on", "starts again"])
@pytest.mark.parametrize("step", ["sync", "sync directory"])
def test_a_sync_which_failed_is_not_believed_when_it_succeeds__TB_01(
    table: Table, step: str, restarted: bool, loss: str
) -> None:
    """TB-01: the second sync of a failed one tells nothing, and the queue was trimmed after it."""
    land(table, "a", 5)
    disk = CutDisk()
    writer = Table.open(table.location, disk=disk)
    writer.sync()
    file = data_file(Path(table.location), "a", 5, 9)
    before = dict(writer.landed())
    disk.failing = {step}
    with pytest.raises(TableError, match="the disk did not take it"):
        writer.commit([file], {"a": Landed(9)}, before=before, run=RUN)
    if restarted:
        writer = Table.open_for_writing(table.location, disk=CutDisk(volatile=disk.volatile))
    if writer.landed() == before:
        writer.commit([file], {"a": Landed(9)}, before=before, run=RUN)
    writer.sync()
    disk.lose_power(loss)
    assert Table.open_for_writing(table.location).landed() == {"a": Landed(9)}
    assert DeltaTable(table.location).to_pyarrow_table().num_rows == 9


@pytest.mark.parametrize("place", [1, 2, 3, 4, 6, 9])
def test_a_version_counts_as_a_lost_answer_while_the_table_has_its_rows__TB_11(
    table: Table, place: int
) -> None:
    """Else the queue is told that rows are safe which were set back since."""
    writer = Table.open(table.location)
    first, second = (data_file(Path(table.location), "a", lo, lo + 3) for lo in (0, 3))
    writer.commit([first], {"a": Landed(3)}, before={"a": None}, run=RUN)
    version = writer.commit([second], {"a": Landed(6)}, before={"a": Landed(3)}, run=RUN)
    if place != 6:
        other = Table.open(table.location)
        other.commit([], {"a": Landed(place)}, before={"a": Landed(6)}, run=Run.new())
    again = data_file(Path(table.location), "a", 3, 6)
    writer = Table.open(table.location)  # which does not know that its run was answered
    try:
        found = writer.commit([again], {"a": Landed(6)}, before={"a": Landed(3)}, run=RUN)
    except Overtaken:
        found = None
    assert found == {3: version + 2, 6: version, 9: version}.get(place)


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


def commit_in_a_process(location: str, gateway: str, barrier: Any, results: Any) -> None:
    """Land rows of a gateway that all have, and then of one's own."""
    table = Table.open(location)
    for name in ("shared", gateway):
        file = data_file(Path(location), name, 0, 5)
        barrier.wait()
        try:
            version = table.commit([file], {name: Landed(5)}, before={name: None}, run=Run.new())
            results.put((name, version))
        except Overtaken:
            results.put((name, "overtaken"))


def test_of_writers_at_once_one_lands_a_gateway_and_those_of_others_all_pass__TB_03_TB_04(
    table: Table,
) -> None:
    """TB-03, TB-04: two bridges exclude each other by the table."""
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(3), context.Queue()
    processes = [
        context.Process(target=commit_in_a_process, args=(table.location, name, barrier, results))
        for name in "abc"
    ]
    for process in processes:
        process.start()
    found = sorted((results.get() for _ in range(6)), key=str)
    for process in processes:
        process.join()
    assert {name for name, _ in found[:3]} == set("abc")
    assert {version for _, version in found[:3]} == {2, 3, 4}
    assert found[3:] == [("shared", "overtaken"), ("shared", "overtaken"), ("shared", 1)]
    assert DeltaTable(table.location).to_pyarrow_table().num_rows == 20


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


def test_a_commit_costs_the_same_after_hundreds(table: Table) -> None:
    disk = CutDisk()
    writer = Table.open(table.location, disk=disk)
    costs = []
    for offset in range(1, 301):
        disk.steps.clear()
        before = writer.landed().get("a")
        writer.commit([], {"a": Landed(offset)}, before={"a": before}, run=RUN)
        costs.append(len(disk.steps))
    assert set(costs[1:]) == {6}


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


# -- steps -----------------------------------------------------------------------------------------

LOG = "_delta_log"
V0, V1, V2 = (f"{LOG}/{number:020d}.json" for number in range(3))
WRITTEN = ("write TMP", "truncate TMP", "sync TMP")


class Watched(StepDisk):
    """A disk that knows what was done; the next step that begins with ``failing`` fails."""

    def __init__(self, table: Path) -> None:
        super().__init__()
        self.table = table
        self.steps: list[str] = []
        self.failing = "\0"

    def step(self, operation: str, path: str) -> None:
        told = "TMP" if path.endswith(".json.tmp") else os.path.relpath(path, self.table)
        self.steps.append(f"{operation} {told}")
        if self.steps[-1].startswith(self.failing):
            self.failing = "\0"
            raise OSError(errno.ENOSPC, "no room")


def made(version: str) -> list[str]:
    """The steps of a version: it is whole, durable and nobody else's before it has a name."""
    return [*WRITTEN, f"link {version}", "remove TMP", f"sync directory {LOG}"]


def checkpointed(version: int) -> list[str]:
    """The steps of a checkpoint: it is durable before it is named."""
    hint = [*WRITTEN, f"rename {LOG}/_last_checkpoint", f"sync directory {LOG}"]
    return [*made(f"{LOG}/{version:020d}.checkpoint.parquet"), *hint]


@pytest.fixture
def disk(tmp_path: Path) -> Watched:
    return Watched(tmp_path / "table")


def test_a_version_is_durable_before_and_after_it_has_its_number__TB_01(disk: Watched) -> None:
    table = Table.create(disk.table, TABLE_SCHEMA, disk=disk)
    assert disk.steps[-6:] == made(V0)
    assert f"sync directory {os.curdir}" in disk.steps[:-6], "the name of the log's folder"
    table.sync()
    disk.steps.clear()
    land(table, "a", 3)
    assert disk.steps == made(V1)


def test_the_folder_of_a_version_is_synced_by_the_system__TB_01(
    disk: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table.create(disk.table, TABLE_SCHEMA)
    synced: list[str] = []
    real = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    table.commit([], {"a": Landed(1)}, before={"a": None}, run=RUN)
    assert synced[-1] == f"{disk.table}/{LOG}"


def test_what_others_made_is_renewed_with_its_files_before_the_next_version__TB_01(
    disk: Watched,
) -> None:
    """A second sync of what somebody's first one did not write tells nothing."""
    table = Table.create(disk.table, TABLE_SCHEMA, disk=disk)
    table.sync()
    land(table, "a", 3)
    rows = DeltaTable(disk.table).to_pyarrow_table()
    write_deltalake(disk.table, rows, mode="append")
    table.refresh()
    foreign, folder = table.files()[-1].path, os.path.dirname(table.files()[-1].path)
    disk.steps.clear()
    before = (disk.table / V2).read_bytes()
    for failing in ("write TMP", "sync TMP", "rename", "sync day", "sync directory"):
        disk.failing = failing
        with pytest.raises(TableError, match=r"cannot sync .*no room"):
            land(table, "a", 6)
        assert not table.durable and table.version == 2
        assert not list((disk.table / LOG).glob("*.tmp"))
        assert (disk.table / V2).read_bytes() == before
    disk.steps.clear()
    assert land(table, "a", 6) == 3
    renewed = [*WRITTEN, f"rename {V2}", f"sync {foreign}"]
    folders = [f"sync directory {LOG}", f"sync directory {folder}"]
    assert disk.steps[:7] == [*renewed, *folders]
    assert len(disk.steps) == 7 + 6


def test_a_checkpoint_is_durable_before_it_is_named__TB_01(
    disk: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_table, "CHECKPOINT_EVERY", 1)
    monkeypatch.setattr(delta_table, "CHECKPOINT_RETRY", 1)
    table = Table.create(disk.table, TABLE_SCHEMA, disk=disk)
    other = Table.open(disk.table, disk=disk)
    land(table, "a", 3)
    other.refresh()
    for each in (table, other):  # another bridge made the same: that is no harm
        each.sync()
        disk.steps.clear()
        each.maintain()
        steps = checkpointed(1)
        if each is other:
            del steps[5]  # nothing of its own to sync
        assert disk.steps == steps
    assert Table.open(disk.table).landed() == table.landed()


@pytest.mark.parametrize("failing", ["write TMP", "sync TMP", "link", "sync directory", "rename"])
def test_a_checkpoint_that_has_no_room_says_so_and_is_made_later__TB_01(
    disk: Watched, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_table, "CHECKPOINT_EVERY", 1)
    monkeypatch.setattr(delta_table, "CHECKPOINT_RETRY", 1)
    table = Table.create(disk.table, TABLE_SCHEMA, disk=disk)
    land(table, "a", 3)
    disk.failing = failing
    with pytest.raises(TableError, match=r"cannot write a checkpoint of .*no room"):
        table.maintain()
    assert not (disk.table / LOG / "_last_checkpoint").exists()
    assert not list((disk.table / LOG).glob("*.tmp"))
    land(table, "a", 6)
    table.maintain()
    assert (disk.table / LOG / "_last_checkpoint").exists()
    assert Table.open(disk.table).landed() == table.landed()


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
