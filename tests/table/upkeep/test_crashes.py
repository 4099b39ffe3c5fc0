"""What looks after a table, killed or without power at each of its steps: no row is lost or twice.

Part of the crash table: compaction, expiry, rewind and vacuum on a local disk.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest

from tests.tools.power import Killed, PowerDisk
from tests.tools.upkept import Gateway, create, expected, land, rows
from twisted_msgproto.table.actions import Run
from twisted_msgproto.table.compact import compact
from twisted_msgproto.table.disk import TableDisk
from twisted_msgproto.table.expire import expire
from twisted_msgproto.table.log import Table
from twisted_msgproto.table.rewind import rewind
from twisted_msgproto.table.vacuum import vacuum
from twisted_msgproto.table.verify import verify

Rows = Counter[tuple[str, int]]


def tomorrow() -> float:
    return time.time() + 90_000


class Scene:
    """A table of two days of one gateway, six small files; copied for every cut."""

    def __init__(self, directory: Path) -> None:
        self.location = directory / "table"
        self.gateway = Gateway(directory / "queue")
        table = create(self.location)
        for number in range(6):
            self.gateway.put(5, day=number // 3)
            land(table, self.gateway)

    def at(self, location: Path) -> Path:
        """A copy of the table, all of it durable."""
        shutil.copytree(self.location, location)
        return location

    @property
    def whole(self) -> Rows:
        return expected(self.gateway, 0, 31)


Work = Callable[[Scene, Table], object]


def do_compact(scene: Scene, table: Table) -> object:
    return compact(table, Run.new())


def do_expire(scene: Scene, table: Table) -> object:
    return expire(table, date(2023, 11, 16), Run.new())


def do_rewind(scene: Scene, table: Table) -> object:
    return rewind(table, Run.new(), queues={scene.gateway.id: scene.gateway.reader})


def do_vacuum(scene: Scene, table: Table) -> object:
    return vacuum(table, clock=tomorrow)


def nothing(scene: Scene) -> None:
    """The table is as bridges left it."""


def compacted(scene: Scene) -> None:
    compact(Table.open(scene.location), Run.new())


def hole(scene: Scene) -> None:
    """The fourth batch's file is lost; the second day's others have rows above it."""
    files = sorted(Table.open(scene.location).files(), key=lambda file: file.modified)
    (scene.location / files[3].path).unlink()


ACTS: dict[str, tuple[Callable[[Scene], None], Work]] = {
    "compaction": (nothing, do_compact),
    "expiry": (nothing, do_expire),
    "rewind": (hole, do_rewind),
    "vacuum": (compacted, do_vacuum),
}


def opened(location: Path, disk: TableDisk | None = None) -> Table:
    return Table.open_for_writing(location, disk=disk)


def steps_of(scene: Scene, work: Work, location: Path) -> int:
    disk = PowerDisk(scene.at(location))
    work(scene, opened(location, disk))
    return disk.steps


@pytest.mark.parametrize("power", ["kill", "missing", "torn"])
@pytest.mark.parametrize("name", ACTS)
def test_a_cut_at_any_step_leaves_the_table_exact(tmp_path: Path, name: str, power: str) -> None:
    prepare, work = ACTS[name]
    scene = Scene(tmp_path)
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


def check(scene: Scene, name: str, location: Path, what: str) -> None:
    """The work was done or it was not; doing it again and landing on gives what was to be."""
    table = opened(location)
    queues = {scene.gateway.id: scene.gateway.reader}
    done = table.landed()[scene.gateway.id].offset < 31
    if name != "rewind" or done:
        report = verify(table, queues)
        assert report.whole, (what, list(report.findings()))
    if name == "expiry":
        assert rows(table) in (scene.whole, expected(scene.gateway, 16, 31)), what
        ACTS[name][1](scene, table)
        assert rows(table) == expected(scene.gateway, 16, 31), what
    else:
        if name != "rewind":
            assert rows(table) == scene.whole, what
        ACTS[name][1](scene, table)
        if name == "rewind":
            assert rows(table) == expected(scene.gateway, 0, 16), what
            land(table, scene.gateway)
        assert rows(table) == scene.whole, what
    report = verify(opened(location), queues, every_column=True)
    assert report.whole, (what, list(report.findings()))
