"""The durable order of each version and checkpoint on a local disk, and what a failure leaves."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake

from tests.tools.tables import RUN, TABLE_SCHEMA, land
from twisted_msgproto.core.errors import TableError
from twisted_msgproto.queue.lineage import Landed
from twisted_msgproto.table import log
from twisted_msgproto.table.disk import OSTableDisk
from twisted_msgproto.table.log import Table

LOG = "_delta_log"
V0, V1, V2 = (f"{LOG}/{number:020d}.json" for number in range(3))


class Watched(OSTableDisk):
    """A disk that knows what was done; the next step that begins with ``failing`` fails."""

    def __init__(self, table: Path) -> None:
        self.table = table
        self.steps: list[str] = []
        self.failing = "\0"

    def __getattribute__(self, name: str) -> Any:
        found = object.__getattribute__(self, name)
        changes = ("sync", "link", "rename", "sync_directory", "write", "remove", "make_directory")
        if name not in changes:
            return found

        def done(*arguments: Any) -> object:
            paths = [os.path.relpath(one, self.table) for one in arguments if isinstance(one, str)]
            told = ["TMP" if one.endswith(".json.tmp") else one for one in paths]
            self.steps.append(" ".join([name, *told]))
            if self.steps[-1].startswith(self.failing):
                self.failing = "\0"
                raise OSError(errno.ENOSPC, "no room")
            return found(*arguments)

        return done


def made(version: str) -> list[str]:
    """The steps of a version: it is whole, durable and nobody else's before it has a name."""
    link = f"link TMP {version}"
    return ["write TMP", "sync TMP", link, "remove TMP", f"sync_directory {LOG}"]


def checkpointed(version: int, scratch: str) -> list[str]:
    """The steps of a checkpoint: it is durable before it is named."""
    name = f"{version:020d}.checkpoint.parquet"
    return [
        *(f"sync {scratch}", f"link {scratch} {LOG}/{name}", f"sync_directory {LOG}"),
        *("write TMP", "sync TMP", f"rename TMP {LOG}/_last_checkpoint", f"sync_directory {LOG}"),
    ]


@pytest.fixture
def disk(tmp_path: Path) -> Watched:
    return Watched(tmp_path / "table")


def test_a_version_is_durable_before_and_after_it_has_its_number__TB_01(disk: Watched) -> None:
    table = Table.create(disk.table, TABLE_SCHEMA, disk=disk)
    assert disk.steps[-5:] == made(V0)
    assert f"sync_directory {os.curdir}" in disk.steps[:-5], "the name of the log's folder"
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
    for failing in ("write TMP", "sync TMP", "rename TMP", "sync day", "sync_directory"):
        disk.failing = failing
        with pytest.raises(TableError, match=r"cannot sync .*no room"):
            land(table, "a", 6)
        assert not table.durable and table.version == 2
        assert not list((disk.table / LOG).glob("*.tmp"))
        assert (disk.table / V2).read_bytes() == before
    disk.steps.clear()
    assert land(table, "a", 6) == 3
    renewed = ["write TMP", "sync TMP", f"rename TMP {V2}", f"sync {foreign}"]
    folders = [f"sync_directory {LOG}", f"sync_directory {folder}"]
    assert disk.steps[:6] == [*renewed, *folders]
    assert len(disk.steps) == 6 + 5


def test_a_checkpoint_is_durable_before_it_is_named__TB_01(
    disk: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "CHECKPOINT_EVERY", 1)
    monkeypatch.setattr(log, "CHECKPOINT_RETRY", 1)
    table = Table.create(disk.table, TABLE_SCHEMA, disk=disk)
    other = Table.open(disk.table, disk=disk)
    land(table, "a", 3)
    other.refresh()
    for each in (table, other):  # another bridge made the same: that is no harm
        each.sync()
        disk.steps.clear()
        each.maintain()
        scratch = disk.steps[0].removeprefix("sync ")
        assert scratch.startswith("_msgproto/checkpoint-")
        assert disk.steps == checkpointed(1, scratch)
        assert list((disk.table / "_msgproto").iterdir()) == []
    assert Table.open(disk.table).landed() == table.landed()


@pytest.mark.parametrize("failing", ["sync _msgproto", "link", "sync_directory", "write TMP"])
def test_a_checkpoint_that_has_no_room_says_so_and_is_made_later__TB_01(
    disk: Watched, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "CHECKPOINT_EVERY", 1)
    monkeypatch.setattr(log, "CHECKPOINT_RETRY", 1)
    table = Table.create(disk.table, TABLE_SCHEMA, disk=disk)
    land(table, "a", 3)
    disk.failing = failing
    with pytest.raises(TableError, match=r"cannot write a checkpoint of .*no room"):
        table.maintain()
    assert not (disk.table / LOG / "_last_checkpoint").exists()
    assert list((disk.table / "_msgproto").iterdir()) == []
    assert not list((disk.table / LOG).glob("*.tmp"))
    land(table, "a", 6)
    table.maintain()
    assert (disk.table / LOG / "_last_checkpoint").exists()
    assert Table.open(disk.table).landed() == table.landed()


def test_a_checkpoint_whose_folder_cannot_be_made_says_so__TB_01(
    disk: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator reads the disk's reason; that there is nothing to clean up is none."""
    monkeypatch.setattr(log, "CHECKPOINT_EVERY", 1)
    table = Table.create(disk.table, TABLE_SCHEMA, disk=disk)
    land(table, "a", 3)
    (disk.table / "_msgproto").write_bytes(b"a file in its place")
    with pytest.raises(TableError, match=r"cannot write a checkpoint of .*_msgproto"):
        table.maintain()
