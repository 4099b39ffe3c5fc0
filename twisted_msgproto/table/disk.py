"""What the table's log needs of a local disk, and the operating system's own.

Everything that must outlast a loss of power goes through a :class:`TableDisk`, so that tests see
every step, can stop before it, and can lose what was not synced.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from typing import Protocol

from ..queue.disk import sync_call

DIRECTORY_MODE = 0o777
FILE_MODE = 0o666
"""A table is shared with other programs: the umask decides, as with every Parquet file in it."""


_SYNC = sync_call()[1]


class TableDisk(Protocol):
    """Files by their paths.  Every call may raise OSError."""

    def names(self, path: str) -> list[str]:
        """Return what stands in a directory."""

    def read(self, path: str) -> bytes:
        """Return a whole file."""

    def last(self, path: str, nbytes: int) -> bytes:
        """Return at most this many bytes from the end of a file."""

    def size(self, path: str) -> int:
        """Return the size of a file in bytes."""

    def modified(self, path: str) -> float:
        """When a file was last written, in seconds since 1970."""

    def write(self, path: str, data: bytes) -> None:
        """Make a new file with these bytes; it must not exist."""

    def sync(self, path: str) -> None:
        """Return when the file's bytes would survive a loss of power."""

    def sync_directory(self, path: str) -> None:
        """Return when the names in the directory would survive a loss of power."""

    def link(self, old: str, new: str) -> None:
        """Link a file to a second name; raise FileExistsError if the name is used."""

    def rename(self, old: str, new: str) -> None:
        """Rename a file; a file that had the new name is replaced."""

    def remove(self, path: str) -> None:
        """Remove a file."""

    def make_directory(self, path: str) -> None:
        """Make a directory and what is missing above it; the new names survive."""


class OSTableDisk:
    __slots__ = ()

    def names(self, path: str) -> list[str]:
        return os.listdir(path)

    def read(self, path: str) -> bytes:
        with open(path, "rb", buffering=0) as file:
            return file.read()

    def last(self, path: str, nbytes: int) -> bytes:
        with open(path, "rb", buffering=0) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - nbytes))
            return file.read()

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def modified(self, path: str) -> float:
        return os.stat(path).st_mtime

    def write(self, path: str, data: bytes) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(descriptor, left) :]
        finally:
            os.close(descriptor)

    def sync(self, path: str) -> None:
        _synced(path, _SYNC)

    def sync_directory(self, path: str) -> None:
        _synced(path, os.fsync)

    def link(self, old: str, new: str) -> None:
        os.link(old, new)

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def make_directory(self, path: str) -> None:
        above = os.path.dirname(path)
        made = False
        try:
            try:
                os.mkdir(path, DIRECTORY_MODE)
            except FileNotFoundError:
                self.make_directory(above)
                os.mkdir(path, DIRECTORY_MODE)
            made = True
        except FileExistsError:
            if not stat.S_ISDIR(os.stat(path).st_mode):
                raise
        try:
            self.sync_directory(above)
        except OSError:
            # A second sync may succeed without the name on the disk: it is to be made anew.
            if made:
                with contextlib.suppress(OSError):
                    os.rmdir(path)
            raise


def stands(path: str | os.PathLike[str]) -> bool:
    """Return whether there is something at ``path``; raise OSError when that cannot be seen.

    ``os.path.exists`` and its kind say no to that, too.
    """
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _synced(path: str, sync: Callable[[int], object]) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)
