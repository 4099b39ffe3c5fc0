"""A table's disk whose files are there and cannot be read, for as long as a test says so."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from twisted_msgproto.table.disk import OSTableDisk
from twisted_msgproto.table.storage import LocalStorage

DISK = ("names", "read", "last", "size", "modified")
"""Every method of a table's disk that reads, by its name."""

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
        for kind in DISK:
            monkeypatch.setattr(OSTableDisk, kind, self._failing(kind, getattr(OSTableDisk, kind)))
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
        def read(disk: OSTableDisk, path: str, *more: int) -> Any:
            self.look(kind, path)
            return real(disk, path, *more)

        return read


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

    def read(self, octets: int | None = None) -> bytes:
        self._faults.look("rows", self._path)
        return bytes(self._real.read(octets))

    def seek(self, position: int, whence: int = 0) -> int:
        return int(self._real.seek(position, whence))

    def tell(self) -> int:
        return int(self._real.tell())

    def close(self) -> None:
        self._real.close()

    @property
    def closed(self) -> bool:
        return bool(self._real.closed)
