"""Each step of a version on a local disk, in its durable order, and after a step that failed."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tools.tables import RUN, TABLE_SCHEMA, land
from twisted_msgproto.core.errors import TableError
from twisted_msgproto.queue.lineage import Landed
from twisted_msgproto.table.actions import Commit, DataFile, Proposal, parse_commit, version_name
from twisted_msgproto.table.checkpoint import write_checkpoint
from twisted_msgproto.table.disk import OSTableDisk
from twisted_msgproto.table.local_commit import NO_LINKS, LocalCommits
from twisted_msgproto.table.log import Table
from twisted_msgproto.table.properties import PROTOCOL, metadata_of
from twisted_msgproto.table.snapshot import Base
from twisted_msgproto.table.storage import LocalStorage


class Steps(OSTableDisk):
    """A disk in memory that knows what was done; one step may fail."""

    def __init__(self, failing: str = "", error: OSError | None = None) -> None:
        self.files: dict[str, bytes] = {}
        self.steps: list[str] = []
        self.failing = failing
        self.error = error or OSError(errno.EIO, "broken")

    def _step(self, name: str, *paths: str) -> None:
        short = [os.path.relpath(path, "/table") for path in paths]
        told = ["TMP" if path.endswith(".json.tmp") else path for path in short]
        self.steps.append(" ".join([name, *told]))
        if self.failing and self.steps[-1].startswith(self.failing):
            raise self.error

    def make_directory(self, path: str) -> None:
        self._step("make", path)

    def write(self, path: str, octets: bytes) -> None:
        self._step("write", path)
        self.files[path] = octets

    def read(self, path: str) -> bytes:
        return self.files[path]

    def sync(self, path: str) -> None:
        self._step("sync", path)
        if path not in self.files:
            raise FileNotFoundError(path)

    def link(self, old: str, new: str) -> None:
        self._step("link", old, new)
        if new in self.files:
            raise FileExistsError(new)
        self.files[new] = self.files[old]

    def rename(self, old: str, new: str) -> None:
        self._step("rename", old, new)
        self.files[new] = self.files.pop(old)

    def remove(self, path: str) -> None:
        self._step("remove", path)
        if self.files.pop(path, None) is None:
            raise FileNotFoundError(path)

    def sync_directory(self, path: str) -> None:
        self._step("folder", path)


def commits_on(disk: Steps) -> LocalCommits:
    return LocalCommits(LocalStorage("/table", disk), lambda: 1.5)


LOG = "_delta_log"
V0, V1, V2, V3 = (f"{LOG}/{version_name(number)}" for number in range(4))
MADE = ["write TMP", "sync TMP", f"link TMP {V1}", "remove TMP", f"folder {LOG}"]


def test_a_version_is_written_synced_linked_and_then_its_folder_is_synced__TB_01() -> None:
    disk = Steps()
    proposal = Proposal(RUN, "WRITE", landed={"a": Landed(1)})
    made = commits_on(disk).attempt(0, proposal)
    assert disk.steps == MADE
    assert list(disk.files) == [f"/table/{V1}"]
    assert made == parse_commit(1, disk.files[f"/table/{V1}"]) == proposal.as_commit(1, 1500)


def test_the_first_version_is_made_in_a_folder_of_its_own__TB_01() -> None:
    disk = Steps()
    metadata = metadata_of("id", TABLE_SCHEMA, ("day",))
    commits_on(disk).create(metadata, RUN)
    assert disk.steps == [f"make {LOG}", *(step.replace(V1, V0) for step in MADE)]
    first = parse_commit(0, disk.files[f"/table/{V0}"])
    assert (first.metadata, first.protocol, first.run) == (metadata, PROTOCOL, RUN)
    assert (first.operation, first.timestamp) == ("CREATE TABLE", 1500)


@pytest.mark.parametrize(
    ("failing", "steps", "left"),
    [
        ("write", ["write TMP", "remove TMP"], []),
        ("sync", ["write TMP", "sync TMP", "remove TMP"], []),
        ("link", [*MADE[:3], "remove TMP"], []),
        ("remove", MADE, None),
        ("folder", MADE, [V1]),
    ],
)
def test_after_a_step_that_fails_nothing_is_left_but_perhaps_the_version__TB_01__TB_11(
    failing: str, steps: list[str], left: list[str] | None
) -> None:
    disk = Steps(failing)
    commits = commits_on(disk)
    if left is None:  # a rest is no harm: it is removed with the next cleaning
        commits.put(1, b"x")
        left = [V1]
        disk.files = {path: data for path, data in disk.files.items() if "tmp" not in path}
    else:
        with pytest.raises(OSError, match="broken"):
            commits.put(1, b"x")
    assert disk.steps == steps
    assert list(disk.files) == [f"/table/{path}" for path in left]


def test_a_number_that_is_used_is_told_apart_from_a_disk_that_has_no_links() -> None:
    disk = Steps()
    disk.files[f"/table/{V1}"] = b"theirs"
    with pytest.raises(FileExistsError):
        commits_on(disk).put(1, b"ours")
    assert disk.files == {f"/table/{V1}": b"theirs"}
    assert disk.steps == [*MADE[:3], "remove TMP"]
    for number in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EIO):
        kind: type[Exception] = TableError if number != errno.EIO else OSError
        with pytest.raises(kind) as told:
            commits_on(Steps("link", OSError(number, "no"))).put(1, b"x")
        assert ("without hard links" in str(told.value)) == (number in NO_LINKS)


OWN = Commit(1, "WRITE", RUN, added=(DataFile("own.parquet", 1, {}),))
FOREIGN = Commit(2, "WRITE", None, added=(DataFile("day=1/f.parquet", 1, {}),))
RENEWED = ["write TMP", "sync TMP"]


def kept(disk: Steps) -> Steps:
    names = (V1, V2, f"{LOG}/_last_checkpoint", "own.parquet", "day=1/f.parquet", "day=0/g.parquet")
    disk.files = {f"/table/{name}": name.encode() for name in names}
    return disk


def call(disk: Steps, **more: Any) -> Callable[[], None]:
    return lambda: commits_on(disk).sync([OWN, FOREIGN], **more)


def test_versions_are_renewed_and_the_files_of_other_programs_synced__TB_01() -> None:
    disk = kept(Steps())
    before = dict(disk.files)
    call(disk)()
    renewed = [*RENEWED, f"rename TMP {V1}", *RENEWED, f"rename TMP {V2}"]
    assert disk.steps == [*renewed, "sync day=1/f.parquet", f"folder {LOG}", "folder day=1"]
    assert disk.files == before
    disk = kept(Steps())
    call(disk, files=[DataFile("day=0/g.parquet", 1, {})], names=["_last_checkpoint", "gone"])()
    assert disk.steps[6:] == [
        *("sync day=0/g.parquet", "sync day=1/f.parquet"),
        *(f"sync {LOG}/_last_checkpoint", f"sync {LOG}/gone"),
        *(f"folder {LOG}", "folder day=0", "folder day=1"),
    ]


@pytest.mark.parametrize("failing", ["write TMP", "sync TMP", "rename TMP", "sync day", "folder"])
def test_a_sync_that_fails_leaves_every_file_and_no_copy__TB_01__TB_11(failing: str) -> None:
    disk = kept(Steps(failing))
    before = dict(disk.files)
    with pytest.raises(OSError, match="broken"):
        call(disk)()
    assert disk.files == before


class Watched(OSTableDisk):
    """A disk that knows what was done."""

    def __init__(self, table: Path) -> None:
        self.table = table
        self.steps: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        found = object.__getattribute__(self, name)
        if name not in ("sync", "link", "rename", "sync_directory", "write", "remove"):
            return found

        def done(*arguments: Any) -> object:
            paths = [os.path.relpath(one, self.table) for one in arguments if isinstance(one, str)]
            told = ["TMP" if one.endswith(".json.tmp") else one for one in paths]
            self.steps.append(" ".join([name, *told]))
            return found(*arguments)

        return done


def test_a_checkpoint_is_durable_before_it_is_named__TB_01(table: Table) -> None:
    land(table, "a", 3)
    path = Path(table.location)
    for _ in range(2):  # another bridge made the same: that is no harm
        disk = Watched(path)
        made = write_checkpoint(LocalStorage(table.location, disk), Base(), 1)
        (name,) = made.names
        assert made == Base(1, (f"{1:020d}.checkpoint.parquet",))
        scratch = disk.steps[0].removeprefix("sync ")
        assert scratch.startswith("_msgproto/checkpoint-") and scratch.endswith(name)
        assert disk.steps == [
            *(f"sync {scratch}", f"link {scratch} {LOG}/{name}", f"sync_directory {LOG}"),
            *("write TMP", "sync TMP", f"rename TMP {LOG}/_last_checkpoint"),
            f"sync_directory {LOG}",
        ]
        assert list((path / "_msgproto").iterdir()) == []
    with pytest.raises(FileNotFoundError):
        write_checkpoint(LocalStorage(table.location), Base(), 7)  # there is no such version
    assert list((path / "_msgproto").iterdir()) == []
    assert Table.open(table.location).landed() == table.landed()


def test_a_checkpoint_that_has_no_room_says_so_and_not_that_its_folder_is_gone__TB_01(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator reads the disk's reason; that there is nothing to clean up is none."""
    land(table, "a", 3)

    def full(path: str) -> None:
        raise OSError(errno.ENOSPC, "no room", path)

    monkeypatch.setattr("twisted_msgproto.table.checkpoint.os.makedirs", full)
    with pytest.raises(OSError, match="no room") as raised:
        write_checkpoint(LocalStorage(table.location), Base(), 1)
    assert raised.value.errno == errno.ENOSPC


def test_a_checkpoint_that_was_not_made_is_not_named__TB_01(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    land(table, "a", 3)
    path = Path(table.location)
    before = sorted((path / LOG).iterdir())
    monkeypatch.setattr(
        "twisted_msgproto.table.checkpoint.DeltaTable.create_checkpoint", lambda table: None
    )
    with pytest.raises(FileNotFoundError):
        write_checkpoint(LocalStorage(table.location), Base(), 1)
    assert sorted((path / LOG).iterdir()) == before
    assert list((path / "_msgproto").iterdir()) == []
