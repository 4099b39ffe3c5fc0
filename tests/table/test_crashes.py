"""Kills and losses of power, at every step, on a local disk: exact, or refused with one line."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.tools.disks import (
    LOSSES,
    Act,
    Killed,
    PowerDisk,
    Scene,
    StepDisk,
    check_exact,
    crash,
    cuts_of,
    written,
)
from tests.tools.tables import RUN, Gateway, age_log, land_gateways
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

HOURS = 3600.0

STATUS = pa.field("status", pa.int32())
"""A column that the tables do not have yet."""


@pytest.fixture
def small_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_table, "CHECKPOINT_EVERY", 3)
    monkeypatch.setattr(delta_table, "CLEAN_SECONDS", HOURS)


def two_commits(scene: Scene) -> None:
    table = scene.create()
    scene.land(table, "a", 5)
    scene.land(table, "b", 5)


def checkpoint_due(scene: Scene) -> None:
    """A whole checkpoint, and as many commits after it as make the next one due."""
    table = scene.create()
    for hi in (2, 4, 6):
        scene.land(table, "a", hi)
    table.maintain()
    for hi in (8, 10, 12):
        scene.land(table, "a", hi)


def land(scene: Scene) -> None:
    scene.land(scene.open(), "a", 10)


def land_both(scene: Scene) -> None:
    table = scene.open()
    files = [written(table, gateway, 5, 10) for gateway in "ab"]
    before = table.landed()
    table.commit(
        files, {"a": Landed(10, 5, 1), "b": Landed(10, 5, 1)}, before=dict(before), run=RUN
    )


def checkpoint(scene: Scene) -> None:
    scene.open().maintain()


def clean(scene: Scene) -> None:
    """Makes the second checkpoint when everything before it is older than the retention."""
    table = scene.open()
    scene.clock.ahead = 2 * HOURS
    age_log(scene.location, 7 * HOURS)
    table.maintain()


def creating(scene: Scene) -> None:
    scene.create()


ACTS = [
    Act("data", two_commits, land, lambda step: ".parquet" in step or "day=" in step),
    Act("commit", two_commits, land_both),
    Act("checkpoint", checkpoint_due, checkpoint),
    Act("log cleanup", checkpoint_due, clean),
    Act("create", lambda scene: None, creating),
]


@pytest.mark.slow
@pytest.mark.parametrize("followed", [False, True], ids=["last", "followed"])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.name)
def test_the_table_is_exact_after_a_crash_at_any_step(
    act: Act,
    loss: str,
    followed: bool,
    tmp_path: Path,
    pytestconfig: pytest.Config,
    small_log: None,
) -> None:
    """TB-01, TB-02, TB-08: what has landed is known to one log, whatever a loss of power takes.

    It is exact as it was left, and after new rows as well.  The short form checks one of both at
    each cut, by turns: the next cut, another loss and the other value of ``followed`` have the
    other one.
    """
    both = pytestconfig.getoption("--long")
    for number in cuts_of(act, loss, tmp_path / "whole"):
        left = crash(act, number, loss, followed, tmp_path / f"cut-{number}")
        turn = (number + followed + (loss == "kill")) % 2
        for new_rows in (False, True) if both else (bool(turn),):
            check_exact(left.copied(tmp_path / f"{new_rows}-{number}"), new_rows=new_rows)


# -- what looks after a table ----------------------------------------------------------------------


Rows = Counter[tuple[str, int]]


def tomorrow() -> float:
    return time.time() + 90_000


class Upkeep:
    """A table of two days of one gateway, six small files; copied for every cut."""

    def __init__(self, directory: Path) -> None:
        self.location = directory / "table"
        self.gateway = Gateway(directory / "queue")
        table = create(self.location)
        for number in range(6):
            self.gateway.put(5, day=number // 3)
            land_gateways(table, self.gateway)

    def at(self, location: Path) -> Path:
        """A copy of the table, all of it durable."""
        shutil.copytree(self.location, location)
        return location

    @property
    def whole(self) -> Rows:
        return expected(self.gateway, 0, 31)


Work = Callable[[Upkeep, Table], object]


def do_compact(scene: Upkeep, table: Table) -> object:
    return compact(table, Run.new())


def do_expire(scene: Upkeep, table: Table) -> object:
    return expire(table, date(2023, 11, 16), Run.new())


def do_rewind(scene: Upkeep, table: Table) -> object:
    return rewind(table, Run.new(), queues={scene.gateway.id: scene.gateway.reader})


def do_erase(scene: Upkeep, table: Table) -> object:
    return erase(table, Run.new(), offsets={scene.gateway.id: ERASED}, purge=True)


def do_vacuum(scene: Upkeep, table: Table) -> object:
    return vacuum(table, clock=tomorrow)


def do_grow(scene: Upkeep, table: Table) -> object:
    added = table.grow([STATUS], run=Run.new())
    assert opened(Path(table.location)).schema.field(STATUS.name).type == STATUS.type
    return added


def nothing(scene: Upkeep) -> None:
    """The table is as bridges left it."""


def small_files_compacted(scene: Upkeep) -> None:
    compact(Table.open(scene.location), Run.new())


def hole(scene: Upkeep) -> None:
    """The fourth batch's file is lost; the second day's others have rows above it."""
    files = sorted(Table.open(scene.location).files(), key=lambda file: file.modified)
    (scene.location / files[3].path).unlink()


ERASED = [(0, 1), (4, 7), (30, 31)]

WORKS: dict[str, tuple[Callable[[Upkeep], None], Work]] = {
    "compaction": (nothing, do_compact),
    "expiry": (nothing, do_expire),
    "erasure": (nothing, do_erase),
    "growth": (nothing, do_grow),
    "rewind": (hole, do_rewind),
    "vacuum": (small_files_compacted, do_vacuum),
}


def opened(location: Path, disk: Any = None) -> Table:
    return Table.open_for_writing(location, disk=disk or StepDisk())


def steps_of(scene: Upkeep, work: Work, location: Path) -> int:
    disk = PowerDisk(scene.at(location))
    work(scene, opened(location, disk))
    return disk.steps


@pytest.mark.parametrize("power", ["kill", "missing", "torn"])
@pytest.mark.parametrize("name", WORKS)
def test_a_cut_at_any_step_leaves_the_table_exact(tmp_path: Path, name: str, power: str) -> None:
    prepare, work = WORKS[name]
    scene = Upkeep(tmp_path)
    prepare(scene)
    steps = steps_of(scene, work, tmp_path / "whole")
    assert steps > 3
    for number in range(steps):
        location = scene.at(tmp_path / f"cut-{number}")
        disk = PowerDisk(location, dies_at=number)
        with pytest.raises(Killed):
            work(scene, opened(location, disk))
        if power != "kill":
            disk.cut(torn=power == "torn")
        check(scene, name, location, f"{name} cut by {power} before step {number}")


def check(scene: Upkeep, name: str, location: Path, what: str) -> None:
    """The work was done or it was not; doing it again and landing on gives what was to be."""
    table = opened(location)
    queues = {scene.gateway.id: scene.gateway.reader}
    done = table.landed()[scene.gateway.id].offset < 31
    if name != "rewind" or done:
        report = verify(table, queues)
        assert report.intact, (what, list(report.findings()))
    if name == "expiry":
        assert rows(table) in (scene.whole, expected(scene.gateway, 16, 31)), what
        WORKS[name][1](scene, table)
        assert rows(table) == expected(scene.gateway, 16, 31), what
    elif name == "erasure":
        left = scene.whole - Counter(
            (scene.gateway.id, n) for lo, hi in ERASED for n in range(lo, hi)
        )
        before = rows(table)
        assert before in (scene.whole, left), what
        noted = sum(hi - lo for lo, hi in verify(table).gateways[scene.gateway.id].erased)
        assert noted == sum((scene.whole - before).values()), what
        WORKS[name][1](scene, table)
        assert rows(table) == left, what
        held = {str(path.relative_to(location)) for path in location.glob("day=*/*")}
        first = {str(path.relative_to(scene.location)) for path in scene.location.glob("day=*/*")}
        unpurged = held & first - {file.path for file in table.files()}
        assert not unpurged, what
        known, places = table.landed(), {scene.gateway.id: Landed(0)}
        table.replace(table.files(), [], run=Run.new(), landed=places, before=known)
        land_gateways(table, scene.gateway)
        assert rows(table) == left, what
    else:
        if name != "rewind":
            assert rows(table) == scene.whole, what
        WORKS[name][1](scene, table)
        if name == "rewind":
            assert rows(table) == expected(scene.gateway, 0, 16), what
            land_gateways(table, scene.gateway)
        assert rows(table) == scene.whole, what
    report = verify(opened(location), queues, every_column=True)
    assert report.intact, (what, list(report.findings()))
