"""What the queue needs of a disk, and the operating system's own.

Everything the queue does to files goes through a :class:`Disk`, so that tests can replace it by one
that loses what was not synced, runs full or breaks.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from twisted_msgproto.core.errors import QueueLocked

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows has no flock; the queue says so when it locks
    fcntl = None  # type: ignore[assignment]

IDENTITY_FILE = "identity"
DIRECTORY_MODE = 0o700
FILE_MODE = 0o600
PIECES_PER_WRITE_MAX = 512
"""One system call gets at most this many buffers; systems allow 1024."""

LOOK_SECONDS = 0.02
"""A writer tries its lock again after this time: :meth:`Disk.lock_holder` may have held it."""

LOOK_S = 1.0
"""A writer checks this often that its files are where readers, and the next start, will find them.
"""
LOST_LOCK_S = 2.5 * LOOK_S
"""A start whose lock file of a queue is a new one waits for this long: who holds the one that was
removed or replaced notices that, and stops.
"""

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""These error numbers say that the disk, a quota or a file-size limit is used up: space may
become free.
"""


REMEDY = (
    "if the disk never reads that file again: stop the gateway, put a copy with zeros for what is "
    "lost in its place (dd if=FILE of=COPY bs=4096 conv=noerror,sync; truncate -r FILE COPY && "
    "mv COPY FILE), and start the gateway"
)
"""This ends a line about a file that the disk cannot read; the start then finds what is lost."""


class File(Protocol):
    """One open file.  Positions and sizes are in bytes.  Every call may raise
    OSError.
    """

    def size(self) -> int:
        """Return the file's size now."""

    def read(self, position: int, nbytes: int) -> bytes:
        """Read up to ``nbytes`` bytes from ``position``; fewer only at the end of the file."""

    def write(self, position: int, pieces: Sequence[Any]) -> int:
        """Write the buffers ``pieces`` one after another at ``position``.

        Returns how many bytes were written: fewer than all means that the disk is full.
        """

    def truncate(self, size: int) -> None:
        """Cut the file to ``size`` bytes."""

    def sync(self) -> None:
        """Return when everything written to the file would survive a loss of power."""

    def close(self) -> None:
        """Close the file."""


class Stat(NamedTuple):
    """The file that a path names: two paths with the same device and inode name one file."""

    device: int
    inode: int
    nbytes: int


class Disk(Protocol):
    """Directories and files.  Every call may raise OSError."""

    sync_name: str
    """This is the name of the system call behind :meth:`File.sync`, for the log."""

    def make_directory(self, path: str) -> None:
        """Make ``path`` (mode 0700) and what is missing above it, so that it survives.

        The names of those that are there are made durable, too.
        """

    def names(self, path: str) -> list[str]:
        """Return what stands in the directory ``path``; FileNotFoundError if there is none."""

    def open(self, path: str, *, write: bool = False) -> File:
        """Open a file; with ``write`` it is made (mode 0600) if it is not there."""

    def modified(self, path: str) -> int:
        """When a file was last written, µs since 1970 UTC; FileNotFoundError if there is none."""

    def stat(self, path: str) -> Stat:
        """Return which file or directory ``path`` names; FileNotFoundError if there is none."""

    def rename(self, old: str, new: str) -> None:
        """Rename a file; a file that had the new name is replaced."""

    def remove(self, path: str) -> None:
        """Remove a file."""

    def sync_directory(self, path: str) -> None:
        """Return when the names in the directory would survive a loss of power."""

    def lock(self, path: str, busy: str) -> Callable[[], None]:
        """Lock the file ``path`` for this process; returns a function that releases the lock.

        Raises QueueLocked with ``busy`` and the id of the process that has it.
        """

    def lock_holder(self, path: str) -> str | None:
        """Return the id of the process that has locked the file ``path``; None if nobody has."""


def sync_call(system: Any = os, control: Any = fcntl) -> tuple[str, Callable[[int], object]]:
    """The strongest cheap sync there is here: its name and a function of a file descriptor.

    macOS has no ``fdatasync`` and its ``fsync`` does not reach the medium, so ``F_FULLFSYNC``
    comes first there.
    """
    full: int | None = getattr(control, "F_FULLFSYNC", None)
    if full is not None:
        return "F_FULLFSYNC", lambda descriptor: control.fcntl(descriptor, full)
    if hasattr(system, "fdatasync"):
        return "fdatasync", system.fdatasync
    return "fsync", system.fsync


def write_call(system: Any = os) -> Callable[[int, Sequence[Any], int], int]:
    """Write buffers at a position of a file descriptor, in one system call where the system has
    one.
    """
    if hasattr(system, "pwritev"):
        at: Callable[[int, Sequence[Any], int], int] = system.pwritev
        return at

    def seek_and_write(descriptor: int, pieces: Sequence[Any], position: int) -> int:
        system.lseek(descriptor, position, os.SEEK_SET)
        written: int = system.writev(descriptor, pieces)
        return written

    return seek_and_write


class OSFile:
    __slots__ = ("_descriptor", "_sync", "_write_at")

    def __init__(
        self,
        descriptor: int,
        sync: Callable[[int], object],
        write_at: Callable[[int, Sequence[Any], int], int],
    ) -> None:
        self._descriptor = descriptor
        self._sync = sync
        self._write_at = write_at

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def read(self, position: int, nbytes: int) -> bytes:
        data = os.pread(self._descriptor, nbytes, position)
        while len(data) < nbytes:
            more = os.pread(self._descriptor, nbytes - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def write(self, position: int, pieces: Sequence[Any]) -> int:
        if len(pieces) <= PIECES_PER_WRITE_MAX:
            return self._write_at(self._descriptor, pieces, position)
        written = 0
        for start in range(0, len(pieces), PIECES_PER_WRITE_MAX):
            some = pieces[start : start + PIECES_PER_WRITE_MAX]
            taken = self._write_at(self._descriptor, some, position + written)
            written += taken
            if taken < sum(memoryview(piece).nbytes for piece in some):
                break
        return written

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def sync(self) -> None:
        self._sync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


class OSDisk:
    def __init__(self) -> None:
        self.sync_name, self._sync = sync_call()
        self._write_at = write_call()

    def make_directory(self, path: str) -> None:
        """See :class:`Disk`.  An empty directory, or one of ours, is closed to others.

        Any other keeps its mode: an operator's slip must not close ``/tmp``.
        """
        path = os.path.abspath(path)
        if os.path.isdir(path):
            names = os.listdir(path)
            if not names or IDENTITY_FILE in names:
                with contextlib.suppress(PermissionError):
                    os.chmod(path, DIRECTORY_MODE)
            # A killed process may have made it, or one above it, and have synced no name.
            self._sync_above(path)
            return
        parent = os.path.dirname(path)
        if os.path.isdir(parent):
            self._sync_above(parent)
        else:
            self.make_directory(parent)
        try:
            os.mkdir(path, DIRECTORY_MODE)
        except FileExistsError:
            if not os.path.isdir(path):
                raise
            self.make_directory(path)  # another process made it in between
            return
        try:
            self.sync_directory(parent)
        except OSError:
            # A second sync may succeed without the name on the disk: it is to be made anew.
            with contextlib.suppress(OSError):
                os.rmdir(path)
            raise

    def _sync_above(self, path: str) -> None:
        """Make the names of a directory, and of those above it on its disk, durable.

        Ends at a directory that this user may not read, because no process of this user made it.
        """
        device = os.stat(path).st_dev
        while (parent := os.path.dirname(path)) != path and os.stat(parent).st_dev == device:
            try:
                self.sync_directory(parent)
            except PermissionError:
                return
            path = parent

    def names(self, path: str) -> list[str]:
        return os.listdir(path)

    def open(self, path: str, *, write: bool = False) -> File:
        flags = os.O_RDWR | os.O_CREAT if write else os.O_RDONLY
        return OSFile(os.open(path, flags, FILE_MODE), self._sync, self._write_at)

    def modified(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1000

    def stat(self, path: str) -> Stat:
        found = os.stat(path)
        return Stat(found.st_dev, found.st_ino, found.st_size)

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def sync_directory(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def lock(self, path: str, busy: str) -> Callable[[], None]:
        """See :class:`Disk`.  Waits if somebody may hold another file that had this name.

        The text of the file names it, too: a copy, and one that was made anew, are no one's yet.
        """
        names = os.listdir(os.path.dirname(path))
        used = IDENTITY_FILE in names or any(name.endswith(".segment") for name in names)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, FILE_MODE)
        try:
            self._flock(descriptor)
        except BlockingIOError:
            holder = self._holder(descriptor)
            os.close(descriptor)
            raise QueueLocked(f"{busy} (process {holder})") from None
        own = os.fstat(descriptor)
        if used and self._words(descriptor)[1:] != [str(own.st_ino)]:
            time.sleep(LOST_LOCK_S)
        try:
            held = os.path.samestat(os.stat(path), own)
        except FileNotFoundError:
            held = False
        if not held:
            os.close(descriptor)
            raise QueueLocked(f"{path} was removed or replaced meanwhile")
        with contextlib.suppress(OSError):  # a full disk: the lock holds without its text
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, b"%d %d\n" % (os.getpid(), own.st_ino), 0)
        return lambda: os.close(descriptor)

    def lock_holder(self, path: str) -> str | None:
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return self._holder(descriptor)
        finally:
            os.close(descriptor)
        return None

    @staticmethod
    def _flock(descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(LOOK_SECONDS)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    @classmethod
    def _holder(cls, descriptor: int) -> str:
        return next(iter(cls._words(descriptor)), "unknown")

    @staticmethod
    def _words(descriptor: int) -> list[str]:
        try:
            return os.pread(descriptor, 64, 0).decode("ascii", "replace").split()
        except OSError:  # somebody has it all the same
            return []


OS_DISK: Disk = OSDisk()
"""The queue uses this disk unless another is passed to it."""


def exists(disk: Disk, path: str) -> bool:
    try:
        disk.stat(path)
    except FileNotFoundError:
        return False
    return True


def read_whole(disk: Disk, path: str) -> bytes | None:
    """Return the bytes of a small file, or None if there is no such file.

    Raises OSError for one that cannot be read now: that is not the same.
    """
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return None
    try:
        return file.read(0, file.size())
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error
    finally:
        file.close()


def replace_whole(disk: Disk, path: str, data: bytes) -> None:
    """Put a small file in place so that a crash leaves the old one or the new one, never half."""
    directory, name = os.path.split(path)
    beside = os.path.join(directory, f".{name}.new")
    file = disk.open(beside, write=True)
    try:
        file.truncate(0)
        if file.write(0, [data]) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), beside)
        file.sync()
    finally:
        file.close()
    disk.rename(beside, path)
    disk.sync_directory(directory)


def failure(what: str, error: OSError) -> str:
    """Return one line that says that ``what`` failed, and what to do where the disk cannot read."""
    if error.errno != errno.EIO:
        return f"{what}: {error}"
    return f"{what}: {error}; nothing is given up: try again, or {REMEDY}"
