"""A queue's disk runs full or fails when the test says so."""

from __future__ import annotations

import errno as errno_module
import os
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ..core.disk import OS_DISK, Disk, File, Stat

STEPS: Final = frozenset(
    {
        *("names", "open", "read", "write", "truncate", "sync", "rename", "remove"),
        *("sync_directory", "stat", "link"),
    }
)
"""These steps can be made to fail; they are methods of the queue's ``Disk`` and ``File``."""


@dataclass
class _Fault:
    """What a step meets: an error, or no answer until it is healed."""

    name: str
    passes: int
    times: int | None
    errno: int | None
    healed: threading.Event = field(default_factory=threading.Event)


class BrokenDisk:
    """A disk that passes calls on to the operating system's files, and fails when the test says so.

    Use it for a queue as ``QueueWriter(directory, disk=disk)`` or ``DurableSink(directory, reactor,
    disk=disk)``.  Any thread may call it.

    Attributes:
        counts: how often each step was asked for so far.
    """

    def __init__(self, disk: Disk = OS_DISK) -> None:
        """``disk`` does what does not fail."""
        self.counts: Counter[str] = Counter()
        self._disk = disk
        self._lock = threading.Lock()
        self._faults: dict[tuple[str, str], _Fault] = {}

    def fail(
        self,
        step: str,
        *,
        name: str = "",
        nth: int = 1,
        times: int | None = 1,
        errno: int = errno_module.EIO,
    ) -> None:
        """Let ``step`` raise OSError with ``errno``, at its ``nth`` call from now on.

        It fails ``times`` times (None: until :meth:`heal`), and only for files whose name ends with
        ``name``.  Whatever the error is, the queue tries again.  ValueError for an unknown step.
        """
        self._add(step, _Fault(name, nth - 1, times, errno))

    def hang(self, step: str, *, name: str = "") -> None:
        """Let ``step`` not return until :meth:`heal`, for files whose name ends with ``name``."""
        self._add(step, _Fault(name, 0, None, None))

    def _add(self, step: str, fault: _Fault) -> None:
        if step not in STEPS:
            raise ValueError(f"{step!r} is none of {', '.join(sorted(STEPS))}")
        with self._lock:
            self._faults[step, fault.name] = fault

    def heal(self) -> None:
        """Let nothing fail any more, and what hangs go on."""
        with self._lock:
            for fault in self._faults.values():
                fault.healed.set()
            self._faults.clear()

    def look(self, step: str, path: str) -> None:
        """Count one step; OSError if it is to fail."""
        with self._lock:
            self.counts[step] += 1
            fault = self._met(step, path)
        if fault is None:
            return
        if fault.errno is None:
            fault.healed.wait()
        else:
            raise OSError(fault.errno, os.strerror(fault.errno), path)

    def _met(self, step: str, path: str) -> _Fault | None:
        for (failing, name), fault in self._faults.items():
            if failing != step or not path.endswith(name):
                continue
            if fault.passes:
                fault.passes -= 1
            elif fault.times is None:
                return fault
            elif fault.times:
                fault.times -= 1
                return fault
        return None

    def make_directory(self, path: str, *, top: str = "", close: bool = False) -> None:
        """See :class:`~twisted_msgproto.core.disk.Disk`."""
        self._disk.make_directory(path, top=top, close=close)

    def names(self, path: str) -> list[str]:
        """See :class:`~twisted_msgproto.core.disk.Disk`."""
        self.look("names", path)
        return self._disk.names(path)

    def open(self, path: str, *, write: bool = False) -> File:
        """See :class:`~twisted_msgproto.core.disk.Disk`."""
        self.look("open", path)
        return _BrokenFile(self, path, self._disk.open(path, write=write))

    def stat(self, path: str) -> Stat:
        """See :class:`~twisted_msgproto.core.disk.Disk`."""
        self.look("stat", path)
        return self._disk.stat(path)

    def rename(self, old: str, new: str) -> None:
        """See :class:`~twisted_msgproto.core.disk.Disk`."""
        self.look("rename", new)
        self._disk.rename(old, new)

    def link(self, old: str, new: str) -> None:
        """See :class:`~twisted_msgproto.core.disk.Disk`."""
        self.look("link", new)
        self._disk.link(old, new)

    def remove(self, path: str) -> None:
        """See :class:`~twisted_msgproto.core.disk.Disk`."""
        self.look("remove", path)
        self._disk.remove(path)

    def sync_directory(self, path: str) -> None:
        """See :class:`~twisted_msgproto.core.disk.Disk`."""
        self.look("sync_directory", path)
        self._disk.sync_directory(path)

    def lock(self, path: str, busy: str, *, used: bool = False) -> Callable[[], None]:
        """See :class:`~twisted_msgproto.core.disk.Disk`."""
        return self._disk.lock(path, busy, used=used)

    def lock_holder(self, path: str) -> str | None:
        """See :class:`~twisted_msgproto.core.disk.Disk`."""
        return self._disk.lock_holder(path)


class _BrokenFile:
    def __init__(self, disk: BrokenDisk, path: str, file: File) -> None:
        self._disk = disk
        self._path = path
        self._file = file

    def size(self) -> int:
        return self._file.size()

    def read(self, position: int, nbytes: int) -> bytes:
        self._disk.look("read", self._path)
        return self._file.read(position, nbytes)

    def write(self, position: int, pieces: Sequence[Any]) -> None:
        self._disk.look("write", self._path)
        self._file.write(position, pieces)

    def truncate(self, size: int) -> None:
        self._disk.look("truncate", self._path)
        self._file.truncate(size)

    def sync(self) -> None:
        self._disk.look("sync", self._path)
        self._file.sync()

    def close(self) -> None:
        self._file.close()
