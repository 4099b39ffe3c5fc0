"""Disks of a table that stop at a step, lose their power or cannot be read.

Every change goes to the real files at once, as other programs see it; a sync only notes that it was
asked for, because here it is this module which decides what is lost.
"""

from __future__ import annotations

import contextlib
import errno
import os
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from twisted_msgproto.core.disk import File, OSDisk
from twisted_msgproto.table.storage import LocalStorage


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


POWERS = ("kill", "missing", "torn")
"""What a process may leave: all that it did, or no more than it has synced, files whole or torn."""


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

    def ends(self, power: str, work: Callable[[], object]) -> bool:
        """Do some work until the process dies, then lose what ``power`` says; whether it was done.

        ``power`` is one of POWERS.
        """
        try:
            work()
            done = True
        except Killed:
            done = False
        if power != "kill":
            self.cut(torn=power == "torn")
        return done

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
