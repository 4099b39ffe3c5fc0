"""What a queue and a table need of a disk, and the operating system's own.

Everything that must outlast a loss of power goes through a :class:`Disk`, so that tests can replace
it by one that loses what was not synced, runs full or breaks.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from .errors import QueueLocked

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows has no flock; the queue says so when it locks
    fcntl = None  # type: ignore[assignment]

PRIVATE_MODES = 0o700, 0o600
SHARED_MODES = 0o777, 0o666
PIECES_PER_WRITE_MAX = 512

LOOK_SECONDS = 0.02
"""A writer tries its lock again after this time: :meth:`Disk.lock_holder` may have held it."""

LOOK_S = 1.0
"""A writer checks this often that its files are where readers, and the next start, will find them.
"""
LOST_LOCK_S = 2.5 * LOOK_S
"""A start with a new lock file waits so long: who holds a removed one notices that, and stops."""

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class File(Protocol):
    """Positions and sizes are in bytes.  Every call may raise OSError."""

    def size(self) -> int:
        """Return the file's size now."""

    def read(self, position: int, nbytes: int) -> bytes:
        """Read up to ``nbytes`` bytes from ``position``; fewer only at the end of the file."""

    def write(self, position: int, pieces: Sequence[Any]) -> None:
        """Write ``pieces`` one after another; after an OSError a part may have been written."""

    def truncate(self, size: int) -> None:
        """Cut the file to ``size`` bytes."""

    def sync(self) -> None:
        """Return when everything written to the file would survive a loss of power."""

    def close(self) -> None:
        """Close the file."""


class Stat(NamedTuple):
    """Paths with the same device and inode name one file; ``written``: µs after 1970 UTC."""

    device: int
    inode: int
    nbytes: int
    written: int


class Disk(Protocol):
    """Directories and files.  Every call may raise OSError."""

    def make_directory(self, path: str, *, top: str = "", close: bool = False) -> None:
        """Make ``path`` and what is missing above it, so that it survives.

        The names of those that are there are made durable, too, up to ``top``, whose name is.
        ``close`` also takes other users' access to ``path`` away if it is there.
        """

    def names(self, path: str) -> list[str]:
        """Return what stands in the directory ``path``; FileNotFoundError if there is none."""

    def open(self, path: str, *, write: bool = False) -> File:
        """Open a file; with ``write`` it is made if it is not there."""

    def stat(self, path: str) -> Stat:
        """Return which file or directory ``path`` names; FileNotFoundError if there is none."""

    def rename(self, old: str, new: str) -> None:
        """Rename a file; a file that had the new name is replaced."""

    def link(self, old: str, new: str) -> None:
        """Link a file to a second name; FileExistsError if the name is used."""

    def remove(self, path: str) -> None:
        """Remove a file."""

    def sync_directory(self, path: str) -> None:
        """Return when the names in the directory would survive a loss of power."""

    def lock(self, path: str, busy: str, *, used: bool = False) -> Callable[[], None]:
        """Lock the file ``path`` for this process; returns a function that releases the lock.

        ``used``: somebody has held this lock before, perhaps by another file of this name.  Raises
        QueueLocked with ``busy`` and the id of the process that has it.
        """

    def lock_holder(self, path: str) -> str | None:
        """Return the id of the process that has locked the file ``path``; None if nobody has."""


def sync_call(system: Any = os, control: Any = fcntl) -> Callable[[int], object]:
    """The ``fsync`` of macOS does not reach the medium."""
    full: int | None = getattr(control, "F_FULLFSYNC", None)
    if full is not None:
        return lambda descriptor: control.fcntl(descriptor, full)
    sync: Callable[[int], object] = getattr(system, "fdatasync", system.fsync)
    return sync


def _behind(pieces: Sequence[Any], nbytes: int) -> list[memoryview]:
    rest = []
    for piece in pieces:
        view = memoryview(piece).cast("B")
        rest.append(view[nbytes:])
        nbytes = max(nbytes - len(view), 0)
    return rest


class OSFile:
    __slots__ = ("_descriptor", "_sync")

    def __init__(self, descriptor: int, sync: Callable[[int], object]) -> None:
        self._descriptor = descriptor
        self._sync = sync

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

    def write(self, position: int, pieces: Sequence[Any]) -> None:
        for start in range(0, len(pieces), PIECES_PER_WRITE_MAX):
            some = pieces[start : start + PIECES_PER_WRITE_MAX]
            left = sum([memoryview(piece).nbytes for piece in some])
            while left:
                written = os.pwritev(self._descriptor, some, position)
                position += written
                left -= written
                if left:  # a signal, a full disk, or 2 GiB: the next call goes on, or says which
                    if not written:
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                    some = _behind(some, written)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def sync(self) -> None:
        self._sync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


def _is_directory(path: str) -> bool:
    """``os.path.isdir``, but OSError where that cannot be seen."""
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except FileNotFoundError:
        return False


class OSDisk:
    """The operating system's disk; what it makes is for its user alone, or as the umask says."""

    def __init__(self, *, shared: bool = False) -> None:
        self._sync = sync_call()
        self._directory_mode, self._file_mode = SHARED_MODES if shared else PRIVATE_MODES

    def make_directory(self, path: str, *, top: str = "", close: bool = False) -> None:
        path = os.path.abspath(path)
        if _is_directory(path):
            if close:
                with contextlib.suppress(PermissionError):
                    os.chmod(path, self._directory_mode)
            # A killed process may have made it, or one above it, and have synced no name.
            self._sync_above(path, top)
            return
        parent = os.path.dirname(path)
        if _is_directory(parent):
            self._sync_above(parent, top)
        else:
            self.make_directory(parent, top=top)
        try:
            os.mkdir(path, self._directory_mode)
        except FileExistsError:
            if not _is_directory(path):
                raise
            self.make_directory(path, top=top, close=close)  # another process made it in between
            return
        try:
            self.sync_directory(parent)
        except OSError:
            # A second sync may succeed without the name on the disk: it is to be made anew.
            with contextlib.suppress(OSError):
                os.rmdir(path)
            raise

    def _sync_above(self, path: str, top: str) -> None:
        """Up to ``top``, another disk, or one closed to this user, which no process of his made."""
        device = os.stat(path).st_dev
        while path != top and (parent := os.path.dirname(path)) != path:
            if os.stat(parent).st_dev != device:
                return
            try:
                self.sync_directory(parent)
            except PermissionError:
                return
            path = parent

    def names(self, path: str) -> list[str]:
        return os.listdir(path)

    def open(self, path: str, *, write: bool = False) -> File:
        flags = os.O_RDWR | os.O_CREAT if write else os.O_RDONLY
        return OSFile(os.open(path, flags, self._file_mode), self._sync)

    def stat(self, path: str) -> Stat:
        found = os.stat(path)
        return Stat(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns // 1000)

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)

    def link(self, old: str, new: str) -> None:
        os.link(old, new)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def sync_directory(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def lock(self, path: str, busy: str, *, used: bool = False) -> Callable[[], None]:
        """Its text names the file: a copy, and one that was made anew, are no one's yet."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, self._file_mode)
        try:
            self._take(descriptor, path, busy, used)
        except BaseException:
            os.close(descriptor)
            raise
        return lambda: os.close(descriptor)

    def _take(self, descriptor: int, path: str, busy: str, used: bool) -> None:
        try:
            self._flock(descriptor)
        except BlockingIOError:
            raise QueueLocked(f"{busy} (process {self._holder(descriptor)})") from None
        own = os.fstat(descriptor)
        if used and self._words(descriptor)[1:] != [str(own.st_ino)]:
            time.sleep(LOST_LOCK_S)
        try:
            held = os.path.samestat(os.stat(path), own)
        except FileNotFoundError:
            held = False
        if not held:
            raise QueueLocked(f"{path} was removed or replaced meanwhile")
        with contextlib.suppress(OSError):  # a full disk: the lock holds without its text
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, b"%d %d\n" % (os.getpid(), own.st_ino), 0)

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
"""A queue uses this disk unless another is passed to it; its files are for their user alone."""

SHARED_DISK: Disk = OSDisk(shared=True)
"""A table uses this one: other programs write into it, too, so the umask decides who reads it."""


def exists(disk: Disk, path: str) -> bool:
    """Raise OSError when that cannot be seen."""
    try:
        disk.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def read_file(disk: Disk, path: str) -> bytes | None:
    """None if there is no such file; OSError for one that cannot be read now."""
    try:
        opened = disk.open(path)
    except FileNotFoundError:
        return None
    with contextlib.closing(opened) as file:
        try:
            return file.read(0, file.size())
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from error


def sync_file(disk: Disk, path: str) -> None:
    """Return when what anybody has written to a file would survive a loss of power."""
    with contextlib.closing(disk.open(path)) as file:
        file.sync()


def write_file(disk: Disk, path: str, data: bytes) -> None:
    """Make a file of these bytes, or overwrite one, and sync it; a crash may leave half of it."""
    with contextlib.closing(disk.open(path, write=True)) as file:
        file.write(0, [data])
        file.truncate(len(data))
        file.sync()


def replace_file(disk: Disk, path: str, data: bytes) -> None:
    """Put a small file in place so that a crash leaves the old one or the new one, never half."""
    directory, name = os.path.split(path)
    beside = os.path.join(directory, f".{name}.new")
    try:
        write_file(disk, beside, data)
        disk.rename(beside, path)
    except OSError:
        with contextlib.suppress(OSError):  # half of it would fill what room is left
            disk.remove(beside)
        raise
    disk.sync_directory(directory)


def replace_or_overwrite(disk: Disk, path: str, data: bytes) -> None:
    """Put a small file in place; on a full disk over the one that is there, as that has room."""
    there = exists(disk, path)
    try:
        replace_file(disk, path, data)
    except OSError as error:
        if error.errno not in NO_ROOM or not there:
            raise
        write_file(disk, path, data)


@contextlib.contextmanager
def writing(path: os.PathLike[str]) -> Iterator[None]:
    """Name the file in what the system says of a write: of a full disk it names none."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = os.fspath(path)
        raise
