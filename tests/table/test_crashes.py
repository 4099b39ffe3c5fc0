"""Kills and losses of power at every step of what is done to a table: it is exact, and goes on."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.tools.disks import POWERS, PowerDisk, StepDisk
from tests.tools.tables import Gateway, age_log, land_gateways
from tests.tools.tables import counted_rows as rows
from tests.tools.tables import create_table as create
from tests.tools.tables import expected_rows as expected
from twisted_msgproto.queue import Landed
from twisted_msgproto.table import delta_table
from twisted_msgproto.table.actions import Run
from twisted_msgproto.table.compact import compact
from twisted_msgproto.table.delta_table import Table
from twisted_msgproto.table.proof import verify
from twisted_msgproto.table.retention import erase, expire, vacuum
from twisted_msgproto.table.rewind import rewind

STATUS = pa.field("status", pa.int32())
"""A column that the tables do not have yet."""

ENDS = [(power, followed) for followed in (False, True) for power in POWERS]


@pytest.fixture(autouse=True)
def small_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_table, "CHECKPOINT_EVERY", 4)
    monkeypatch.setattr(delta_table, "CLEAN_SECONDS", 0.0)


Rows = Counter[tuple[str, int]]


class Upkeep:
    """A table of two days of one gateway, four small files; copied for every cut.

    Another gateway has a row that has not landed yet.
    """

    def __init__(self, directory: Path) -> None:
        self.location = directory / "table"
        self.gateway = Gateway(directory / "queue")
        self.other = Gateway(directory / "other")
        create(self.location)
        for number in range(4):
            self.put(day=number // 2)
            self.land()

    def put(self, day: int = 1) -> None:
        self.gateway.put(5, day=day)

    def land(self) -> None:
        land_gateways(Table.open(self.location), self.gateway)

    def at(self, location: Path) -> Path:
        """A copy of the table, all of it durable."""
        shutil.copytree(self.location, location)
        return location

    @property
    def whole(self) -> Rows:
        return expected(self.gateway, 0, self.gateway.rows)

    def without(self, gone: list[tuple[int, int]]) -> Rows:
        return self.whole - Counter((self.gateway.id, n) for lo, hi in gone for n in range(lo, hi))


def nothing(scene: Upkeep) -> None:
    """The table is as bridges left it."""


def hole(scene: Upkeep) -> None:
    """The third batch's file is lost; the second day's other has rows above it."""
    files = sorted(Table.open(scene.location).files(), key=lambda file: file.modified)
    (scene.location / files[2].path).unlink()


def old_log(scene: Upkeep) -> None:
    """A checkpoint and more versions than the next one needs, all older than the retention."""
    Table.open(scene.location).maintain()
    for _ in range(4):
        scene.put()
        scene.land()
    age_log(scene.location, 7 * 3600.0)


def do_compact(scene: Upkeep, table: Table) -> object:
    return compact(table, Run.new())


def do_expire(scene: Upkeep, table: Table) -> object:
    return expire(table, date(2023, 11, 16), Run.new())


def do_rewind(scene: Upkeep, table: Table) -> object:
    queues = {each.id: each.reader for each in (scene.gateway, scene.other)}
    return rewind(table, Run.new(), queues=queues)


def do_erase(scene: Upkeep, table: Table) -> object:
    return erase(table, Run.new(), offsets={scene.gateway.id: ERASED}, purge=True)


def do_vacuum(scene: Upkeep, table: Table) -> object:
    """What took the place of the files that go was made by another program, which syncs nothing."""
    DeltaTable(table.location).optimize.compact()
    return vacuum(table, clock=lambda: time.time() + 90_000)


def do_grow(scene: Upkeep, table: Table) -> object:
    added = table.grow([STATUS], run=Run.new())
    assert opened(Path(table.location)).schema.field(STATUS.name).type == STATUS.type
    return added


def do_land(scene: Upkeep, table: Table) -> object:
    """On top of what another program has made, which syncs nothing."""
    DeltaTable(table.location).optimize.compact()
    table.refresh()
    return land_gateways(table, scene.gateway)


def do_maintain(scene: Upkeep, table: Table) -> object:
    return table.maintain()


ERASED = [(0, 1), (4, 6), (20, 21)]

Work = Callable[[Upkeep, Table], object]

WORKS: dict[str, tuple[Callable[[Upkeep], None], Work]] = {
    "landing": (Upkeep.put, do_land),
    "checkpoint and cleanup": (old_log, do_maintain),
    "compaction": (nothing, do_compact),
    "expiry": (nothing, do_expire),
    "erasure": (nothing, do_erase),
    "growth": (nothing, do_grow),
    "rewind": (hole, do_rewind),
    "vacuum": (nothing, do_vacuum),
}


def opened(location: Path, disk: Any = None) -> Table:
    return Table.open_for_writing(location, disk=disk or StepDisk())


@pytest.mark.parametrize("name", WORKS)
def test_a_cut_at_any_step_leaves_the_table_exact__TB_01_TB_02_TB_08(
    tmp_path: Path, name: str, pytestconfig: pytest.Config
) -> None:
    """What has landed is known to one log, whatever a loss of power takes.

    Another bridge may land on top of what was left, before the power is lost.  In the short form
    each step meets one of the ends, by turns.
    """
    prepare, work = WORKS[name]
    scene = Upkeep(tmp_path)
    prepare(scene)
    done, step = False, 0
    while not done:
        ends = ENDS if pytestconfig.getoption("--long") else [ENDS[step % len(ENDS)]]
        for power, followed in ends:
            what = f"{name} cut by {power} before step {step}, {followed=}"
            location = scene.at(tmp_path / what)
            disk = PowerDisk(location, dies_at=step)

            def act(location: Path = location, disk: PowerDisk = disk) -> object:
                return work(scene, opened(location, disk))

            done = disk.ends("kill" if followed else power, act)
            if followed:
                disk = disk.restarted()
                other = partial(land_gateways, opened(location, disk), scene.other)
                assert disk.ends(power, other)
            check(scene, name, location, done, followed, what)
        step += 1
    assert step > 4


def check(scene: Upkeep, name: str, location: Path, done: bool, followed: bool, what: str) -> None:
    """The work was done or it was not; doing it again and landing on gives what was to be."""
    table = opened(location)
    queues = {scene.gateway.id: scene.gateway.reader}
    end = scene.gateway.rows
    before, after = {
        "landing": (expected(scene.gateway, 0, end - 5), scene.whole),
        "expiry": (scene.whole, expected(scene.gateway, 11, end)),
        "erasure": (scene.whole, scene.without(ERASED)),
        "rewind": (Counter(), expected(scene.gateway, 0, 11)),
    }.get(name, (scene.whole, scene.whole))
    others = expected(scene.other, 0, int(followed))
    if name != "rewind" or table.landed()[scene.gateway.id].offset < end:
        report = verify(table, queues)
        assert report.intact, (what, list(report.findings()))
        there = rows(table)
        found = there - others
        assert found + others == there, (what, "a version that was answered is lost")
        assert found == after or (found == before and not done), what
    else:
        assert not done, what
    if name == "erasure":
        noted = sum(hi - lo for lo, hi in report.gateways[scene.gateway.id].erased)
        assert noted == (scene.whole - found).total(), what
    WORKS[name][1](scene, table)
    if name == "expiry":
        others = Counter()
    assert rows(table) == after + others, what
    if name == "erasure":
        held = {str(path.relative_to(location)) for path in location.glob("day=*/*")}
        first = {str(path.relative_to(scene.location)) for path in scene.location.glob("day=*/*")}
        assert not held & first - {file.path for file in table.files()}, what
        known = table.landed()
        places = dict.fromkeys(known, Landed(0))
        table.replace(table.files(), [], run=Run.new(), landed=places, before=known)
    land_gateways(table, scene.gateway, scene.other)
    whole = scene.whole if name == "rewind" else after
    if not (followed and name == "expiry"):
        others = expected(scene.other, 0, 1)
    assert rows(table) == whole + others, what
    report = verify(opened(location), queues, every_column=True)
    assert report.intact, (what, list(report.findings()))
    assert DeltaTable(location).to_pyarrow_table(columns=["offset"]).num_rows == report.rows, what


@pytest.mark.parametrize("power", POWERS)
def test_a_cut_while_a_table_is_made_leaves_it_or_none(tmp_path: Path, power: str) -> None:
    gateway = Gateway(tmp_path / "queue")
    done, number = False, 0
    while not done:
        location = tmp_path / f"cut-{number}"
        disk = PowerDisk(location, dies_at=number)
        done = disk.ends(power, partial(create, location, disk=disk))
        assert not done or opened(location).version == 0
        table = Table.open_or_create(location, create(tmp_path / f"{number}").schema)
        land_gateways(table, gateway)
        assert rows(table) == expected(gateway, 0, 1)
        number += 1
    assert number > 4
