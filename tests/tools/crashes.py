"""One runner for crashes of programs which write a table on a local disk.

An :class:`Act` is a piece of work.  It is cut before each of its steps in turn, the machine loses
what a loss of power loses, the table is opened again, and its rows must be exactly those which its
log says have landed.  A new kind of work is one more ``Act`` in a list of parameters.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from tests.tools.powercut import Cut, CutDisk
from tests.tools.tables import RUN, TABLE_SCHEMA, rows_of
from twisted_msgproto.core.errors import TableError
from twisted_msgproto.queue import Landed
from twisted_msgproto.table.actions import DataFile, Run
from twisted_msgproto.table.log import Table
from twisted_msgproto.table.storage import LocalStorage

OTHER = Run("0ther", "elsewhere", 4711)


@dataclass
class Clock:
    """The time of the programs under test, in seconds since 1970."""

    ahead: float = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


@dataclass(frozen=True)
class Act:
    name: str
    prepare: Callable[[Scene], None]
    work: Callable[[Scene], None]
    cuts: Callable[[str], bool] = lambda step: True
    """Which steps are worth a cut of their own."""


@dataclass
class Scene:
    """One table, the disk under it and the program which writes it."""

    location: Path
    disk: CutDisk
    clock: Clock = dataclasses.field(default_factory=Clock)
    promised: dict[str, int] = dataclasses.field(default_factory=dict)
    """How far each gateway has landed for certain: its commit has returned."""

    def open(self, disk: CutDisk | None = None) -> Table:
        return Table.open_for_writing(self.location, disk=disk or self.disk, clock=self.clock)

    def create(self) -> Table:
        return Table.create(self.location, TABLE_SCHEMA, disk=self.disk, clock=self.clock)

    def copied(self, location: Path) -> Scene:
        """The same after a crash, elsewhere: the files, and what is promised of them."""
        if self.location.exists():
            shutil.copytree(self.location, location)
        return Scene(location, CutDisk(), self.clock, dict(self.promised))

    def land(self, table: Table, gateway: str, hi: int, run: Run = RUN) -> None:
        """Lands a gateway's rows up to ``hi``: a synced file, and a commit that names it."""
        before = table.landed().get(gateway)
        lo = before.offset if before else 0
        file = written(table, gateway, lo, hi)
        table.commit([file], {gateway: Landed(hi, 5, hi)}, before={gateway: before}, run=run)
        self.promised[gateway] = hi

    def read(self) -> pa.Table:
        return DeltaTable(str(self.location)).to_pyarrow_table()


def written(table: Table, gateway: str, lo: int, hi: int) -> DataFile:
    """Rows in a Parquet file, written and synced through the table's disk."""
    assert isinstance(table.storage, LocalStorage)
    disk = table.storage.disk
    sink = pa.BufferOutputStream()
    pq.write_table(rows_of(gateway, lo, hi), sink)
    octets = sink.getvalue().to_pybytes()
    folder = table.storage.path("day=2026-01-31")
    disk.make_directory(folder)
    path = f"{folder}/{gateway}-{lo}-{hi}-{time.monotonic_ns()}.parquet"
    disk.write(path, octets)
    disk.sync(path)
    disk.sync_directory(folder)
    return DataFile(
        path=str(Path(path).relative_to(table.location)),
        size=len(octets),
        partition={"day": "2026-01-31"},
        rows=hi - lo,
        statistics=f'{{"numRecords":{hi - lo}}}',
        modified=int(time.time() * 1000),
    )


def cuts_of(act: Act, loss: str, location: Path) -> list[int]:
    """Before which of its steps an act is to be cut, for a loss which says something new there.

    Where all octets were synced, a loss of octets leaves the same as a kill.
    """
    scene = Scene(location, CutDisk())
    act.prepare(scene)
    scene.disk.steps.clear()
    scene.disk.unsynced.clear()
    act.work(scene)
    assert scene.disk.steps
    wanted = [act.cuts(step) for step in scene.disk.steps] + [True]
    unsynced = [*scene.disk.unsynced, bool(scene.disk.volatile.octets)]
    whole = loss in ("kill", "missing")
    return [n for n, cut in enumerate(wanted) if cut and (whole or unsynced[n])]


def crash(act: Act, step: int, loss: str, followed: bool, location: Path) -> Scene:
    """Does an act up to a step, lets another bridge commit after it if ``followed``, and loses."""
    scene = Scene(location, CutDisk())
    act.prepare(scene)
    scene.disk.steps.clear()
    scene.disk.cut_before = step
    with contextlib.suppress(Cut):
        act.work(scene)
    scene.disk.cut_before = None
    if followed:
        try:
            scene.land(scene.open(CutDisk(volatile=scene.disk.volatile)), "other", 3, OTHER)
        except TableError as error:
            assert "is not a table" in str(error)
    scene.disk.lose_power(loss)
    return scene


def check_exact(scene: Scene, new_rows: bool) -> None:
    """What the table says has landed is there, once, and landing goes on from there."""
    disk = CutDisk()
    table = Table.open_or_create(scene.location, TABLE_SCHEMA, disk=disk, clock=scene.clock)
    for gateway, offset in scene.promised.items():
        assert table.landed()[gateway].offset >= offset, f"{gateway} went back"
    if new_rows:
        for gateway in ("a", "b"):
            landed = table.landed().get(gateway, Landed(0))
            scene.land(table, gateway, landed.offset + 4)
        table.maintain()
    table.sync()
    rows = scene.read()
    again = Table.open(scene.location)
    assert again.landed() == table.landed()
    assert sorted((f.path, f.size) for f in again.files()) == sorted(
        (f.path, f.size) for f in table.files()
    )
    expected = [(g, n) for g, place in sorted(table.landed().items()) for n in range(place.offset)]
    found = zip(rows["gateway"].to_pylist(), rows["offset"].to_pylist(), strict=True)
    assert sorted(found) == expected
