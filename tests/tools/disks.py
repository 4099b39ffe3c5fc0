"""Disks of a table that stop at a step, lose their power or cannot be read, and what must be left.

:class:`CutDisk` works over real files.  Every change goes to the real files at once, as other
programs see it; a sync only notes that it was asked for, because here it is this module which
decides what is lost.  :meth:`CutDisk.lose_power` then takes back what a loss of power takes: names
which were made, replaced or removed since their folder was synced, or the bytes of files which
were not synced.

An :class:`Act` is a piece of work.  It is cut before each of its steps in turn, the machine loses
what a loss of power loses, the table is opened again, and its rows must be exactly those which its
log says have landed.  A new kind of work is one more ``Act`` in a list of parameters.

The files of an :class:`Unreadable` disk are there and cannot be read, as long as a test says so.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import shutil
import time
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.tools.tables import RUN, TABLE_SCHEMA, rows_of
from twisted_msgproto.core.disk import File, OSDisk, read_file, write_file
from twisted_msgproto.core.errors import TableError
from twisted_msgproto.queue import Landed
from twisted_msgproto.table.actions import DataFile, Run
from twisted_msgproto.table.delta_table import Table
from twisted_msgproto.table.storage import LocalStorage

LOSSES = ("kill", "empty", "torn", "cut at a line", "missing")
"""What may be left: everything (a kill), files without or with a part of their bytes, no names."""


class Cut(BaseException):
    """The process is gone at this step; nothing of it may catch this."""


def damaged(nbytes: bytes, loss: str) -> bytes:
    if loss == "empty":
        return b""
    if loss == "torn":
        return nbytes[: len(nbytes) // 2]
    if loss == "cut at a line":
        lines = nbytes.splitlines(keepends=True)
        return b"".join(lines[:-1])
    raise ValueError(loss)


@dataclass
class Volatile:
    """What would not survive, of all programs of one machine."""

    nbytes: set[str] = field(default_factory=set)
    names: dict[str, list[tuple[str, Callable[[], None]]]] = field(default_factory=dict)
    """Folder to names in it and what takes their changes back, oldest first."""
    given_up: set[str] = field(default_factory=set)
    """Files which a sync failed to write: later syncs succeed and write nothing."""
    given_up_names: dict[str, list[tuple[str, Callable[[], None]]]] = field(default_factory=dict)
    """The same of names."""


class StepDisk(OSDisk):
    """The operating system's disk; :meth:`step` is called before each change of it.

    Nothing is synced in fact: what a loss of power would take, the disks below know.
    """

    def __init__(self) -> None:
        super().__init__(shared=True)

    def step(self, operation: str, path: str) -> None:
        """Called before each change."""

    def written(self, path: str) -> None:
        """Called when bytes of a file were written."""

    def synced(self, path: str) -> None:
        """Called when a file was synced."""

    def open(self, path: str, *, write: bool = False) -> File:
        return StepFile(self, path, super().open(path, write=write))

    def link(self, old: str, new: str) -> None:
        self.step("link", new)
        super().link(old, new)

    def rename(self, old: str, new: str) -> None:
        self.step("rename", new)
        super().rename(old, new)

    def remove(self, path: str) -> None:
        self.step("remove", path)
        super().remove(path)

    def sync_directory(self, path: str) -> None:
        self.step("sync directory", path)
        os.stat(path)

    def make_directory(self, path: str, *, top: str = "", close: bool = False) -> None:
        self.step("make directory", path)
        super().make_directory(path, top=top, close=close)


class StepFile:
    """An open file of a :class:`StepDisk`."""

    def __init__(self, disk: StepDisk, path: str, file: File) -> None:
        self.disk = disk
        self.path = path
        self.size, self.read, self.close = file.size, file.read, file.close
        self._file = file

    def write(self, position: int, pieces: Sequence[Any]) -> None:
        self.disk.step("write", self.path)
        self._file.write(position, pieces)
        self.disk.written(self.path)

    def truncate(self, size: int) -> None:
        self.disk.step("truncate", self.path)
        self._file.truncate(size)
        self.disk.written(self.path)

    def sync(self) -> None:
        self.disk.step("sync", self.path)
        self.disk.synced(self.path)


class CutDisk(StepDisk):
    """The operating system's files, with a memory of what is not durable.

    Steps in ``failing`` (``"sync"``, ``"sync directory"``) fail once, as the kernel's do: what
    they could not write is called clean, and a second sync of it succeeds in vain.

    Attributes:
        steps: what has been done so far, each with the name of its file.
        unsynced: for each step, whether there were bytes before it which were not synced.
    """

    def __init__(self, cut_before: int | None = None, volatile: Volatile | None = None) -> None:
        super().__init__()
        self.cut_before = cut_before
        self.steps: list[str] = []
        self.unsynced: list[bool] = []
        self.failing: set[str] = set()
        self.volatile = volatile or Volatile()

    def lose_power(self, loss: str) -> None:
        """Take back what was not synced, as ``loss`` says; nothing for a kill."""
        if loss == "kill":
            return
        if loss == "missing":
            for folder in {*self.volatile.names, *self.volatile.given_up_names}:
                undos = self.volatile.given_up_names.get(folder, [])
                for _, undo in reversed(undos + self.volatile.names.get(folder, [])):
                    undo()
            return
        for path in self.volatile.nbytes | self.volatile.given_up:
            if os.path.exists(path):
                with open(path, "rb") as file:
                    octets = file.read()
                with open(path, "wb") as file:
                    file.write(damaged(octets, loss))

    def open(self, path: str, *, write: bool = False) -> File:
        if write and not os.path.exists(path):
            self._named(path, lambda: removed(path))
        return super().open(path, write=write)

    def written(self, path: str) -> None:
        self.volatile.nbytes.add(path)

    def synced(self, path: str) -> None:
        failed, unsynced = self._fails("sync"), path in self.volatile.nbytes
        self.volatile.nbytes.discard(path)
        if failed:
            if unsynced:
                self.volatile.given_up.add(path)
            raise OSError(errno.EIO, "the disk did not take it")

    def sync_directory(self, path: str) -> None:
        self.step("sync directory", path)
        os.stat(path)
        changed = self.volatile.names.pop(path, [])
        given_up = self.volatile.given_up_names.setdefault(path, [])
        if self._fails("sync directory"):
            given_up += changed
            raise OSError(errno.EIO, "the disk did not take it")
        # What was changed once more is as the later change has left it.
        names = {name for name, _ in changed}
        given_up[:] = [change for change in given_up if change[0] not in names]

    def link(self, old: str, new: str) -> None:
        super().link(old, new)
        self._same_bytes(old, new)
        self._named(new, lambda: removed(new))

    def rename(self, old: str, new: str) -> None:
        before = read_file(self, new)
        super().rename(old, new)
        self._same_bytes(old, new)
        self._named(new, lambda: removed(new) if before is None else replaced(new, before))

    def remove(self, path: str) -> None:
        before = read_file(self, path) or b""
        super().remove(path)
        self._named(path, lambda: replaced(path, before))

    def make_directory(self, path: str, *, top: str = "", close: bool = False) -> None:
        self.step("make directory", path)
        os.makedirs(path, exist_ok=True)

    def _same_bytes(self, old: str, new: str) -> None:
        for files in (self.volatile.nbytes, self.volatile.given_up):
            (files.add if old in files else files.discard)(new)

    def _fails(self, step: str) -> bool:
        fails = step in self.failing
        self.failing.discard(step)
        return fails

    def step(self, operation: str, path: str) -> None:
        if self.cut_before is not None and len(self.steps) >= self.cut_before:
            raise Cut(f"before {operation} {path}")
        self.steps.append(f"{operation} {os.path.basename(path)}")
        self.unsynced.append(bool(self.volatile.nbytes))

    def _named(self, path: str, undo: Callable[[], None]) -> None:
        self.volatile.names.setdefault(os.path.dirname(path), []).append((path, undo))


def removed(path: str) -> None:
    if os.path.exists(path):
        os.unlink(path)


def replaced(path: str, nbytes: bytes) -> None:
    with open(path, "wb") as file:
        file.write(nbytes)


class Killed(BaseException):
    """The process ends here: nothing catches it."""


class PowerDisk(StepDisk):
    """A real directory below ``root``; remembers what was synced.

    The step number ``dies_at`` (from 0) does not happen: :class:`Killed` is raised in its place.
    What stands below ``root`` when this is made counts as synced.
    """

    def __init__(self, root: Path, dies_at: int | None = None) -> None:
        super().__init__()
        self.root = root
        self.dies_at = dies_at
        self.steps = 0
        self._bytes = {path for path in root.rglob("*") if path.is_file()}
        self._names = {path: set(os.listdir(path)) for path in self._folders()}

    def restarted(self) -> PowerDisk:
        """The disk of the next program: what this one has not synced is not durable yet."""
        after = PowerDisk(self.root)
        after._bytes, after._names = set(self._bytes), dict(self._names)
        return after

    def _folders(self) -> list[Path]:
        found = [path for path in self.root.rglob("*") if path.is_dir()]
        return [self.root.parent, *([self.root] if self.root.exists() else []), *found]

    def step(self, operation: str, path: str) -> None:
        if self.root.parent not in (Path(path), *Path(path).parents):
            return  # the name of what was there before
        if self.steps == self.dies_at:
            raise Killed
        self.steps += 1

    def written(self, path: str) -> None:
        self._bytes.discard(Path(path))

    def synced(self, path: str) -> None:
        self._bytes.add(Path(path))

    def sync_directory(self, path: str) -> None:
        super().sync_directory(path)
        self._names[Path(path)] = set(os.listdir(path))

    def link(self, old: str, new: str) -> None:
        super().link(old, new)
        if Path(old) in self._bytes:
            self._bytes.add(Path(new))

    def rename(self, old: str, new: str) -> None:
        super().rename(old, new)
        if Path(old) in self._bytes:
            self._bytes.add(Path(new))

    def cut(self, *, torn: bool) -> None:
        """The power fails: names and bytes which were not synced are lost.

        ``torn``: the names had reached the disk by themselves, the bytes only half.
        """
        # One file may have two names: a version and the temporary name it was written under.
        whole = {path.stat().st_ino for path in self._bytes if path.exists()}
        for folder in self._folders():
            if folder == self.root.parent or not folder.exists():
                continue
            kept = self._names.get(folder, set())
            for path in folder.iterdir():
                if not path.is_file():
                    continue
                if path.name not in kept and not torn:
                    path.unlink()
                elif path.stat().st_ino not in whole:
                    os.truncate(path, path.stat().st_size // 2)


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
    disk.make_directory(folder, top=table.location)
    path = f"{folder}/{gateway}-{lo}-{hi}-{time.monotonic_ns()}.parquet"
    write_file(disk, path, octets)
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

    Where all bytes were synced, a loss of bytes leaves the same as a kill.
    """
    scene = Scene(location, CutDisk())
    act.prepare(scene)
    scene.disk.steps.clear()
    scene.disk.unsynced.clear()
    act.work(scene)
    assert scene.disk.steps
    wanted = [act.cuts(step) for step in scene.disk.steps] + [True]
    unsynced = [*scene.disk.unsynced, bool(scene.disk.volatile.nbytes)]
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


DISK = ("names", "stat", "open file", "read")
"""What of a disk reads."""

ARROW = ("open", "rows", "list", "info")
"""What Arrow does with the files of a table: opens one, reads from it, lists a folder, looks at a
name.
"""


class Unreadable:
    """Fails readers of one kind, for paths with ``part`` in them, while :meth:`now` lasts.

    Attributes:
        met: how often a reader has failed.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.met = 0
        self._kind = self._part = ""
        self._number = self._left = 0
        for kind in ("names", "stat"):
            monkeypatch.setattr(OSDisk, kind, self._failing(kind, getattr(OSDisk, kind)))
        monkeypatch.setattr(OSDisk, "open", self._opening(OSDisk.open))
        filesystem = LocalStorage.filesystem
        monkeypatch.setattr(
            LocalStorage, "filesystem", lambda storage: Files(self, filesystem(storage))
        )

    @contextlib.contextmanager
    def now(self, kind: str, part: str, number: int, times: int = 1_000_000) -> Iterator[None]:
        assert kind in (*DISK, *ARROW)
        self._kind, self._part, self._number, self._left = kind, part, number, times
        try:
            yield
        finally:
            self._kind = ""

    def look(self, kind: str, path: str) -> None:
        if kind == self._kind and self._part in path and self._left:
            self._left -= 1
            self.met += 1
            if self._number == errno.ENOMEM and kind in ("open", "rows"):
                raise pa.ArrowMemoryError(os.strerror(self._number))
            raise OSError(self._number, os.strerror(self._number), path)

    def _failing(self, kind: str, real: Any) -> Any:
        def read(disk: OSDisk, path: str) -> Any:
            self.look(kind, path)
            return real(disk, path)

        return read

    def _opening(self, real: Any) -> Any:
        def opened(disk: OSDisk, path: str, *, write: bool = False) -> Any:
            self.look("open file", path)
            file = types.SimpleNamespace()
            found = real(disk, path, write=write)
            for name in ("size", "write", "truncate", "sync", "close"):
                setattr(file, name, getattr(found, name))

            def read(position: int, nbytes: int) -> bytes:
                self.look("read", path)
                return bytes(found.read(position, nbytes))

            file.read = read
            return file

        return opened


class Files:
    def __init__(self, faults: Unreadable, real: Any) -> None:
        self._faults = faults
        self._real = real

    def open_input_file(self, path: str) -> Any:
        self._faults.look("open", path)
        return pa.PythonFile(_File(self._faults, path, self._real.open_input_file(path)), "r")

    def get_file_info(self, what: Any) -> Any:
        if isinstance(what, list):
            self._faults.look("info", what[0])
        else:
            self._faults.look("list", what.base_dir)
        return self._real.get_file_info(what)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class _File:
    """A file of pyarrow's in Python's form; what it raises arrives as it was raised."""

    def __init__(self, faults: Unreadable, path: str, real: Any) -> None:
        self._faults = faults
        self._path = path
        self._real = real

    def read(self, nbytes: int | None = None) -> bytes:
        self._faults.look("rows", self._path)
        return bytes(self._real.read(nbytes))

    def seek(self, position: int, whence: int = 0) -> int:
        return int(self._real.seek(position, whence))

    def tell(self) -> int:
        return int(self._real.tell())

    def close(self) -> None:
        self._real.close()

    @property
    def closed(self) -> bool:
        return bool(self._real.closed)
