"""Unreadable is not absent: what no reader of a table's files takes for a file that is not there.

Each row of READERS is one reader of one file.  While the file cannot be read, the work is refused
with one line, or its result is the same, where other files say all of it.  Nothing is removed,
committed or begun; and when the file can be read again, the work is done.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.spark.conftest import damage_record
from tests.tools.disks import Unreadable
from tests.tools.s3 import Store
from tests.tools.tables import RUN, TABLE_SCHEMA, Gateway, rows_of, stored_file
from tests.tools.tables import create_table as create
from tests.tools.tables import land_gateways as land
from twisted_msgproto.core.errors import ConfigurationError, TableError
from twisted_msgproto.queue import Landed
from twisted_msgproto.table import delta_table, preflight
from twisted_msgproto.table.actions import DataFile
from twisted_msgproto.table.compact import compact
from twisted_msgproto.table.delta_table import Table
from twisted_msgproto.table.proof import counts, verify
from twisted_msgproto.table.retention import expire, vacuum
from twisted_msgproto.table.rewind import rewind

DAYS = 86_400.0


def version(number: int) -> str:
    return f"{number:020d}.json"


FIRST, NEWEST = version(1), version(5)
CHECKPOINT = ".checkpoint.parquet"
DATA = "day="


@dataclass
class Scene:
    """A table as bridges and another program have left it, and the queue of one gateway."""

    location: str
    options: dict[str, str]
    queue: Gateway

    def open(self) -> Table:
        return Table.open(self.location, self.options)

    def writer(self) -> Table:
        return Table.open_for_writing(self.location, self.options)


def made(location: str, directory: Path, options: dict[str, str]) -> Scene:
    """Versions: 0 created; 1 landed, some of it damaged; 2, 3 landed; 4 checkpointed and ours; 5
    another program's.
    """
    table = create(location, storage=options)
    a, b = Gateway(directory / "a"), Gateway(directory / "b")
    for gateway in (a, b):
        gateway.put(19)
    damage_record(a.directory, b"body 7")
    land(table, a)
    for _ in range(3):
        a.put(5)
        b.put(5)
        land(table, a, b)
        if table.version == 3:
            DeltaTable(location, storage_options=options).create_checkpoint()
    named = {"kind": "'x'"}
    DeltaTable(location, storage_options=options).update(named, predicate="offset = 30")
    return Scene(location, options, a)


# -- work ------------------------------------------------------------------------------------------

Act = Callable[[], object]


def opening(scene: Scene) -> Act:
    return lambda: scene.open().landed()


def opening_for_writing(scene: Scene) -> Act:
    return lambda: scene.writer().landed()


def without_the_first(prepare: Callable[[Scene], Act]) -> Callable[[Scene], Act]:
    """The log begins at its checkpoint, which is not to be done without."""

    def prepared(scene: Scene) -> Act:
        scene.open().storage.delete(f"_delta_log/{version(0)}")
        return prepare(scene)

    prepared.__name__ = f"{prepare.__name__} without the first"
    return prepared


def making(scene: Scene) -> Act:
    def make() -> object:
        found = Table.open_or_create(scene.location, TABLE_SCHEMA, storage=scene.options)
        return found.landed()

    return make


def starting_on(scene: Scene) -> Act:
    def start() -> object:
        table = preflight.open_table(scene.location, None, None, scene.options, RUN)
        preflight.check_operations(table)
        return preflight.is_new(scene.location, scene.options)

    return start


def refreshing(scene: Scene) -> Act:
    table = scene.open()
    scene.queue.put(5)
    land(scene.writer(), scene.queue)
    return lambda: (table.refresh(), table.version)[1]


def listing_files(scene: Scene) -> Act:
    table = scene.open()
    return table.files


def unnamed(table: Table) -> DataFile:
    """A file that no version names."""
    return stored_file(table, "c", 0, 3)


def committing(scene: Scene) -> Act:
    delta = DeltaTable(scene.location, storage_options=scene.options)
    delta.alter.add_constraint({"ours": "offset >= 0"})
    table = scene.writer()
    table.sync()
    file = unnamed(table)
    return lambda: table.commit([file], {"c": Landed(3, 5, 7)}, before={}, run=RUN)


def syncing(scene: Scene) -> Act:
    table = scene.open()

    def sync() -> object:
        try:
            table.sync()
        except TableError:
            assert not table.durable
            raise
        return table.durable

    return sync


def maintaining(scene: Scene) -> Act:
    def later() -> float:
        return time.time() + DAYS

    return Table.open_for_writing(scene.location, scene.options, clock=later).maintain


def counting(scene: Scene) -> Act:
    return lambda: counts(scene.open())


def verifying(scene: Scene) -> Act:
    return lambda: verify(scene.open())


def rewinding(scene: Scene) -> Act:
    table, queue = scene.writer(), scene.queue
    return lambda: rewind(
        table, RUN, queues={queue.id: queue.reader}, gateways=[queue.id], discard_rows=True
    )


def compacting(scene: Scene) -> Act:
    table = scene.writer()
    return lambda: compact(table, RUN)


def expiring(scene: Scene) -> Act:
    table = scene.writer()
    return lambda: expire(table, date(2030, 1, 1), RUN)


def vacuuming(scene: Scene) -> Act:
    table = scene.writer()
    (compact(table, RUN), expire(table, date(2030, 1, 1), RUN))
    return lambda: vacuum(table)


def vacuuming_later(scene: Scene) -> Act:
    table = scene.writer()
    unnamed(table)
    return lambda: vacuum(table, clock=lambda: time.time() + 2 * DAYS)


SAME = "same"
"""What the file says other files say too."""

READERS: list[tuple[Callable[[Scene], Act], str, str, str]] = [
    # what is done, which reader fails, of what, and what becomes of the work
    (opening, "names", "_delta_log", ""),
    (opening, "read", NEWEST, ""),
    (opening, "open", CHECKPOINT, SAME),
    (opening, "rows", CHECKPOINT, SAME),
    (without_the_first(opening), "open", CHECKPOINT, ""),
    (without_the_first(opening), "rows", CHECKPOINT, ""),
    (opening_for_writing, "names", "_delta_log", ""),
    (opening_for_writing, "read", NEWEST, ""),
    (opening_for_writing, "read", "_last_checkpoint", ""),
    (opening_for_writing, "open", CHECKPOINT, SAME),
    (opening_for_writing, "rows", CHECKPOINT, SAME),
    (without_the_first(opening_for_writing), "open", CHECKPOINT, ""),
    (opening_for_writing, "open file", DATA, ""),
    (opening_for_writing, "read", DATA, ""),
    (making, "names", "_delta_log", ""),
    (starting_on, "names", "table", ""),
    (starting_on, "names", "_delta_log", ""),
    (starting_on, "read", version(4), ""),
    (refreshing, "read", version(6), ""),
    (listing_files, "names", "_delta_log", ""),
    (listing_files, "read", NEWEST, ""),
    (committing, "read", version(6), ""),
    (committing, "open", DATA, ""),
    (committing, "rows", DATA, ""),
    (committing, "stat", DATA, ""),
    (syncing, "read", NEWEST, ""),
    (maintaining, "names", "_delta_log", ""),
    (maintaining, "stat", "_delta_log", ""),
    (maintaining, "read", version(4), ""),
    (maintaining, "open", CHECKPOINT, ""),
    (maintaining, "rows", CHECKPOINT, ""),
    (counting, "open", CHECKPOINT, SAME),
    (verifying, "open", DATA, ""),
    (verifying, "rows", DATA, ""),
    (rewinding, "open", DATA, ""),
    (rewinding, "rows", DATA, ""),
    (compacting, "open", DATA, ""),
    (compacting, "rows", DATA, ""),
    (expiring, "open", DATA, ""),
    (expiring, "rows", DATA, ""),
    (vacuuming, "info", "_delta_log", ""),
    (vacuuming_later, "list", "", ""),
    (vacuuming_later, "read", FIRST, ""),
    (vacuuming_later, "open", CHECKPOINT, ""),
    (vacuuming_later, "rows", CHECKPOINT, ""),
]


def named(reader: tuple[Callable[[Scene], Act], str, str, str]) -> str:
    act, kind, part, _ = reader
    return f"{act.__name__}-{kind}-{part.strip('_=.').lstrip('0') or 'all'}"


def contents(location: str) -> dict[str, bytes]:
    """The files of a table; but for the hint where its newest checkpoint is, which may grow old."""
    return {
        str(path.relative_to(location)): path.read_bytes()
        for path in Path(location).rglob("*")
        if path.is_file() and path.name != "_last_checkpoint"
    }


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("template")
    made(str(directory / "table"), directory, {})
    return directory


@pytest.fixture
def scene(template: Path, tmp_path: Path) -> Scene:
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    return Scene(str(tmp_path / "table"), {}, Gateway.at(tmp_path / "a"))


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Unreadable:
    monkeypatch.setattr(delta_table, "CHECKPOINT_EVERY", 2)
    monkeypatch.setattr(delta_table, "CLEAN_SECONDS", 0.0)
    return Unreadable(monkeypatch)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOMEM], ids=errno.errorcode.get)
@pytest.mark.parametrize("reader", READERS, ids=named)
def test_a_file_that_cannot_be_read_is_not_taken_for_absent__RD_50(
    reader: tuple[Callable[[Scene], Act], str, str, str],
    number: int,
    scene: Scene,
    faults: Unreadable,
) -> None:
    """RD-50: unreadable is not absent."""
    prepare, kind, part, outcome = reader
    act = prepare(scene)
    before = contents(scene.location)
    if outcome == SAME:
        expected = act()
        with faults.now(kind, part, number):
            assert act() == expected
    else:
        with (
            faults.now(kind, part, number),
            pytest.raises((TableError, ConfigurationError)) as told,
        ):
            act()
        # Neither "rewind", nor "restore": what to do about it is to try again.
        assert type(told.value) in (TableError, ConfigurationError)
        assert os.strerror(number) in str(told.value)
        assert "\n" not in str(told.value) and "restore" not in str(told.value)
    assert faults.met
    after = contents(scene.location)
    assert before.items() <= after.items(), "something was removed or changed"
    grown = [name for name in after.keys() - before.keys() if not name.endswith(CHECKPOINT)]
    assert grown == []
    act()


def test_rows_without_places_are_looked_for_again__RD_50(
    tmp_path: Path, faults: Unreadable
) -> None:
    """RD-50: a file that cannot be read may hold rows of a gateway."""
    rows = rows_of("a", 0, 5).append_column("day", pa.array([19_676] * 5, pa.int32()))
    write_deltalake(str(tmp_path / "table"), rows.cast(TABLE_SCHEMA))
    table = Table.open(tmp_path / "table")
    for kind in ("open", "rows"):
        with (
            faults.now(kind, ".parquet", errno.EIO),
            pytest.raises(TableError, match=r"cannot read part-.*: Input/output error"),
        ):
            preflight.check_operations(table)
    with pytest.raises(TableError, match="holds rows of gateway a"):
        preflight.check_operations(table)


def test_a_folder_that_cannot_be_seen_is_no_table_of_another__RD_50(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RD-50: it was taken for absent, then for a race which another writer had won."""
    (tmp_path / "table" / "_delta_log").mkdir(parents=True)
    real = os.stat

    def stat(path: Any, *more: Any, **named: Any) -> os.stat_result:
        if "table" in str(path):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return real(path, *more, **named)

    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", stat)
        with pytest.raises(TableError, match=r"cannot make the table .*Input/output error"):
            Table.create(tmp_path / "table", TABLE_SCHEMA)
    assert contents(str(tmp_path / "table")) == {}
    assert Table.create(tmp_path / "table", TABLE_SCHEMA).version == 0


STORED: list[tuple[Callable[[Scene], Act], str, str]] = [
    (opening, "_delta_log", ""),
    (opening, NEWEST, ""),
    (opening, CHECKPOINT, SAME),
    (without_the_first(opening), CHECKPOINT, ""),
    (making, "_delta_log", ""),
    (committing, DATA, ""),
    (verifying, DATA, ""),
    (vacuuming_later, "prefix=", ""),
    (vacuuming_later, CHECKPOINT, ""),
]
"""One reader of each kind: all of them ask a store in the same ways."""


@pytest.fixture(scope="module")
def stored(s3: Store, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    options = {**s3.options, "max_retries": "0"}
    return made(s3.new_location(), tmp_path_factory.mktemp("queues"), options)


@pytest.mark.slow
@pytest.mark.parametrize("status", ["403", "500"])
@pytest.mark.parametrize("reader", STORED, ids=lambda reader: named((*reader[:1], "", *reader[1:])))
def test_an_object_that_cannot_be_read_is_not_taken_for_absent__RD_50(
    reader: tuple[Callable[[Scene], Act], str, str],
    status: str,
    stored: Scene,
    s3: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """RD-50: an object store answers 404 for what is not there, and for nothing else."""
    monkeypatch.setattr(delta_table, "CHECKPOINT_EVERY", 2)
    prepare, part, outcome = reader
    shutil.copytree(stored.queue.directory, tmp_path / "a")
    scene = Scene(s3.copy_of(stored.location), stored.options, Gateway.at(tmp_path / "a"))
    act = prepare(scene)
    before, expected = s3.etags(scene.location), act() if outcome == SAME else None
    s3.fault(f"unreadable {status} {part}")
    try:
        if outcome == SAME:
            assert act() == expected
        else:
            with pytest.raises((TableError, ConfigurationError)) as told:
                act()
            assert type(told.value) in (TableError, ConfigurationError)
            assert "\n" not in str(told.value) and "restore" not in str(told.value)
    finally:
        s3.fault("none")
    assert before.items() <= s3.etags(scene.location).items()
    act()
