"""Which logs are a table, and what it is: by its versions and checkpoints, whole, torn and gone."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.tools.tables import RUN, TABLE_SCHEMA, data_file
from twisted_msgproto.core.errors import TableError
from twisted_msgproto.queue.lineage import Landed
from twisted_msgproto.table.disk import OSTableDisk
from twisted_msgproto.table.log import Table
from twisted_msgproto.table.snapshot import load
from twisted_msgproto.table.storage import LocalStorage

NEWEST = 7
ALL = range(NEWEST + 1)


def version(number: int) -> str:
    return f"{number:020d}.json"


def checkpoint(number: int, part: int = 0, parts: int = 0) -> str:
    return f"{number:020d}.checkpoint{f'.{part:010d}.{parts:010d}' if parts else ''}.parquet"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table whose version N says that N rows have landed, with a checkpoint of each version."""
    path = tmp_path_factory.mktemp("opening") / "table"
    table = Table.create(path, TABLE_SCHEMA)
    for number in ALL[1:]:
        file = data_file(path, "a", number - 1, number)
        before = {"a": table.landed().get("a")}
        table.commit([file], {"a": Landed(number)}, before=before, run=RUN)
        DeltaTable(path).create_checkpoint()
    (path / "_delta_log/_last_checkpoint").unlink()
    return path


def left(template: Path, path: Path, versions: Sequence[int], checkpoints: Sequence[int]) -> Path:
    """A copy with these versions and checkpoints alone; the folder of its log."""
    shutil.copytree(template, path)
    kept = {*map(version, versions), *map(checkpoint, checkpoints)}
    for file in (path / "_delta_log").iterdir():
        if file.name not in kept:
            file.unlink()
    return path / "_delta_log"


@pytest.mark.parametrize(
    ("versions", "checkpoints", "torn", "until", "base"),
    [
        (ALL, [], [], None, -1),
        (ALL[:2], [], [], None, -1),
        (ALL, [], [], 3, -1),
        ([], [7], [], None, 7),
        ([5, 6], [4], [], None, 4),  # the checkpoint's own version may be gone
        ([4, 5, 6], [4], [], None, 4),
        ([6], [4], [], None, "lacks version 0; restore the table's folder from a copy"),
        ([], [4], [], None, 4),
        ([3], [4], [], None, 4),
        ([5], [4, 6], [6], None, "lacks version 0; checkpoint 6 cannot be read"),
        ([5, 6, 7], [4, 6], [], None, 6),
        ([5, 6, 7], [4, 6], [6], None, 4),
        ([5, 6, 7], [4, 6], [], 6, 6),
        ([5, 6, 7], [4, 6], [], 5, 4),
        ([5, 6, 7], [4, 6], [], 4, 4),
        (ALL, [4, 6], [], 3, -1),
        (ALL, [4], [4], None, -1),
        ([5, 6], [4], [4], None, "lacks version 0; checkpoint 4 cannot be read"),
        ([3, 4, 5], [2, 4], [2, 4], None, "lacks version 0; checkpoint 4 cannot be read"),
        ([0, 2], [], [], None, "lacks version 1; restore"),
        ([1], [], [], None, "lacks version 0; restore"),
        ([0], [], [], 1, "lacks version 1; restore"),
        ([5, 7], [4], [], None, "lacks version 0; restore"),
        (ALL[:3], [], [1], None, "version 1 of .* is torn: a line of it is cut; if it is the last"),
        ([], [], [], None, "is not a table: it has no _delta_log"),
    ],
)
def test_a_table_is_its_newest_checkpoint_behind_which_nothing_is_missing(
    template: Path,
    tmp_path: Path,
    versions: Sequence[int],
    checkpoints: Sequence[int],
    torn: Sequence[int],
    until: int | None,
    base: int | str,
) -> None:
    log = left(template, tmp_path / "table", versions, checkpoints)
    for number in torn:
        path = log / (checkpoint(number) if checkpoints else version(number))
        path.write_bytes(path.read_bytes()[:-10])
    storage = LocalStorage(str(tmp_path / "table"))
    if isinstance(base, str):
        with pytest.raises(TableError, match=base) as told:
            load(storage, until=until)
        assert "\n" not in str(told.value)
        return
    newest = max([*versions, *checkpoints]) if until is None else until
    for files in (False, True):
        loaded = load(storage, until=until, files=files)
        assert loaded.base.version == base
        assert [one.version for one in loaded.commits] == list(range(base + 1, newest + 1))
        assert (loaded.state.version, len(loaded.state.files or ())) == (newest, files * newest)
        assert loaded.state.transactions.get("msgproto:a", 0) == newest


@pytest.mark.parametrize(("lost", "base"), [(0, 6), (1, None), (2, None)])
def test_a_checkpoint_in_parts_is_one_when_all_of_them_are_there(
    template: Path, tmp_path: Path, lost: int, base: int | None
) -> None:
    log = left(template, tmp_path / "table", [6, 7], [6])
    actions = pq.read_table(log / checkpoint(6))
    (log / checkpoint(6)).unlink()
    for part, rows in ((1, actions.slice(0, 3)), (2, actions.slice(3))):
        if part != lost:
            pq.write_table(rows, log / checkpoint(6, part, 2))
    if base is None:
        with pytest.raises(TableError, match="lacks version 0"):
            Table.open(tmp_path / "table")
        return
    table = Table.open(tmp_path / "table")
    assert (table.version, table.landed(), len(table.files())) == (7, {"a": Landed(7)}, 7)


@pytest.mark.parametrize("action", [b"metaData", b"protocol"])
def test_a_log_that_does_not_say_what_the_table_is_is_none(
    template: Path, tmp_path: Path, action: bytes
) -> None:
    log = left(template, tmp_path / "table", [0], [])
    first = (log / version(0)).read_bytes().replace(b'{"commitInfo', b'{"other')
    kept = [line for line in first.splitlines(keepends=True) if action not in line]
    (log / version(0)).write_bytes(b"".join(kept))
    with pytest.raises(TableError, match="names no table up to version 0"):
        Table.open(tmp_path / "table")


def test_names_that_are_none_of_a_log_are_passed_over(template: Path, tmp_path: Path) -> None:
    log = left(template, tmp_path / "table", [0, 1], [])
    for name in ("x.json", version(3) + ".tmp", "1.json", f"{9:020d}.crc", "_last_checkpoint"):
        (log / name).write_bytes(b"?")
    assert Table.open(tmp_path / "table").version == 1


class Disk(OSTableDisk):
    """A disk that lists names which are gone, or refuses to list any."""

    def __init__(self, *more: str, refusing: str | None = None) -> None:
        self.more, self.refusing = more, refusing

    def names(self, path: str) -> list[str]:
        if self.refusing is not None:
            raise OSError(self.refusing)
        return [*super().names(path), *self.more]


def test_a_version_that_goes_while_the_log_is_read_is_one_line(
    template: Path, tmp_path: Path
) -> None:
    left(template, tmp_path / "table", ALL, [])
    with pytest.raises(TableError, match=r"version 8 of .* went while its log was read; try again"):
        Table.open(tmp_path / "table", disk=Disk(version(8)))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("plain", "plain"),
        ("two\n  lines", "two lines"),
        ("<Error><Code>No</Code><Message>it is\nnot</Message></Error>", "No: it is not"),
        ("<Error><Code>No</Code></Error>", "No"),
        ("<Message>alone</Message>", "<Message>alone</Message>"),
        ("\x1b[31;1mred\x1b[0m ↳ why", "red why"),
        ("x" * 301, "x" * 300),
        ("", "OSError"),
    ],
)
def test_what_a_store_says_is_one_line_without_its_markup(
    template: Path, text: str, line: str
) -> None:
    refusing: Any = Disk(refusing=text)
    with pytest.raises(TableError) as told:
        Table.open(template, disk=refusing)
    assert str(told.value) == f"cannot read {template}: {line}"
