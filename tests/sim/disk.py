"""A disk that forgets: volatile until synced, full when told so, broken when told so.

:class:`SimulatedDisk` is a :class:`twisted_msgproto.queue.Disk`.  What was written and not synced
survives a crash of the process and not a loss of power: :meth:`SimulatedDisk.lose_power` keeps what
was synced and a random prefix of the rest, file by file and directory by directory.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from twisted_msgproto.core.disk import Stat
from twisted_msgproto.core.errors import QueueLocked

inodes = itertools.count(1)
split = lru_cache(maxsize=10_000)(os.path.split)


class Content:
    """A file's bytes: as programs see them, and as they would survive."""

    def __init__(self) -> None:
        self.nbytes = bytearray()
        self.durable = bytearray()
        # ("write", position, bytes) and ("truncate", size), oldest first.
        self.unsynced: list[tuple[Any, ...]] = []
        self.modified = 0
        self.inode = next(inodes)  # a copy of the machine has it, too

    @staticmethod
    def apply(nbytes: bytearray, change: tuple[Any, ...]) -> None:
        if change[0] == "truncate":
            size = change[1]
            del nbytes[size:]
            nbytes.extend(bytes(size - len(nbytes)))
        else:
            _, position, new = change
            nbytes.extend(bytes(max(0, position - len(nbytes))))
            nbytes[position : position + len(new)] = new

    def change(self, *change: Any) -> None:
        self.apply(self.nbytes, change)
        self.unsynced.append(change)

    def sync(self) -> None:
        for change in self.unsynced:
            self.apply(self.durable, change)
        self.unsynced.clear()

    def lose(self, source: random.Random) -> None:
        """Keep what is durable and a random prefix of the changes, the last one in part."""
        kept = source.randint(0, len(self.unsynced))
        for change in self.unsynced[:kept]:
            self.apply(self.durable, change)
        if kept < len(self.unsynced) and self.unsynced[kept][0] == "write":
            _, position, octets = self.unsynced[kept]
            part = octets[: source.randint(0, len(octets))]
            if part:
                self.apply(self.durable, ("write", position, part))
        self.unsynced.clear()
        self.nbytes = bytearray(self.durable)


class SimulatedFile:
    """An open file of a :class:`SimulatedDisk`; dead after a crash."""

    def __init__(self, disk: SimulatedDisk, path: str, content: Content) -> None:
        self._disk = disk
        self._path = path
        self._content = content
        self._life = disk.life

    def _use(self, operation: str) -> None:
        if self._life != self._disk.life:
            raise OSError(errno.EBADF, "the process which opened this file has crashed")
        self._disk.note(operation, self._path)

    def size(self) -> int:
        with self._disk.mutex:
            self._use("size")
            return len(self._content.nbytes)

    def read(self, position: int, nbytes: int) -> bytes:
        with self._disk.mutex:
            self._use("read")
            return bytes(self._content.nbytes[position : position + nbytes])

    def write(self, position: int, pieces: Sequence[Any]) -> None:
        with self._disk.mutex:
            self._use("write")
            octets = b"".join(bytes(memoryview(piece)) for piece in pieces)
            grown = position + len(octets) - len(self._content.nbytes)
            room = self._disk.room()
            full = room is not None and grown > room
            if full:
                octets = octets[: max(0, len(octets) - (grown - room))]
            if octets:
                self._content.change("write", position, octets)
                self._content.modified = self._disk.now
            if full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def truncate(self, size: int) -> None:
        with self._disk.mutex:
            self._use("truncate")
            self._content.change("truncate", size)

    def sync(self) -> None:
        with self._disk.mutex:
            try:
                self._use("sync")
            except OSError:
                # As with Linux: what could not be written is forgotten, the next sync succeeds.
                self._content.unsynced.clear()
                raise
            self._content.sync()

    def close(self) -> None:
        if self._life == self._disk.life:
            self._disk.opened[self._path] -= 1


class SimulatedDisk:
    """See the module.  ``capacity`` is in bytes, None means endless."""

    def __init__(self, capacity: int | None = None) -> None:
        self.capacity = capacity
        self.mutex = threading.RLock()
        self.life = 0
        self.now = 0
        """The time which files are given when they are written, µs since 1970 UTC."""
        self.process = 1
        """Who takes locks; another number is another process."""
        self.opened = Counter[str]()
        """How many files of each path are open now."""
        self.journal: deque[tuple[str, str]] = deque(maxlen=10_000)
        """The last operations with their file's name, oldest first."""
        self._names: dict[str, dict[str, Content]] = {"/": {}}
        self._durable_names: dict[str, dict[str, Content]] = {"/": {}}
        # Changes of names which were not synced, by directory: (name, content or None), …
        self._unsynced_names: dict[str, list[list[tuple[str, Content | None]]]] = {"/": []}
        self._locks: dict[str, int] = {}
        self._faults: list[tuple[str, str, int]] = []
        self._unreadable: dict[str, int] = {}

    # -- what goes wrong --------------------------------------------------------------------------

    def fail_next(self, operation: str, number: int, name: str = "", times: int = 1) -> None:
        """Let the next ``operation`` ("write", "sync", "open", …) on a file whose path holds
        ``name`` raise OSError ``number``, ``times`` in a row.
        """
        self._faults.extend([(operation, name, number)] * times)

    def cannot_read(self, path: str, number: int = errno.EIO) -> None:
        """Let the names of a directory, or the bytes of a file, not be read until
        :meth:`can_read`.
        """
        self._unreadable[path] = number

    def is_unreadable(self, path: str) -> bool:
        """Whether the bytes of a file, or the names of a directory, cannot be read now."""
        return path in self._unreadable

    def can_read(self) -> None:
        self._unreadable.clear()

    @contextmanager
    def seen_whole(self) -> Iterator[None]:
        """Whoever looks meanwhile is no program, and can read everything."""
        unreadable, self._unreadable = self._unreadable, {}
        yield
        self._unreadable = unreadable

    def mend(self) -> None:
        self.capacity = None
        self._faults.clear()
        self.can_read()

    def note(self, operation: str, path: str) -> None:
        self.journal.append((operation, split(path)[1]))
        if self._unreadable and operation in ("read", "names", "stat") and path in self._unreadable:
            raise OSError(number := self._unreadable[path], os.strerror(number), path)
        if self._faults:
            for index, (wanted, name, number) in enumerate(self._faults):
                if wanted == operation and name in path:
                    del self._faults[index]
                    raise OSError(number, os.strerror(number), path)

    def room(self) -> int | None:
        """Bytes left, or None."""
        if self.capacity is None:
            return None
        return max(0, self.capacity - self.used())

    def used(self) -> int:
        return sum(
            len(content.nbytes) for names in self._names.values() for content in names.values()
        )

    def crash(self) -> None:
        """The process ends at once; what it wrote is still there, synced or not."""
        with self.mutex:
            self.life += 1
            self._locks.clear()
            self.opened.clear()

    def lose_power(self, source: random.Random) -> None:
        """The machine ends at once; what was not synced survives as a random prefix."""
        with self.mutex:
            self.crash()
            contents = {
                id(content): content
                for names in (*self._names.values(), *self._durable_names.values())
                for content in names.values()
            }
            for directory, changes in self._unsynced_names.items():
                for change in changes[: source.randint(0, len(changes))]:
                    self._apply(self._durable_names[directory], change)
                changes.clear()
            for content in contents.values():
                content.lose(source)
            self._names = {path: dict(names) for path, names in self._durable_names.items()}

    # -- for tests --------------------------------------------------------------------------------

    def bytes_of(self, path: str) -> bytes:
        """The bytes of a file as programs see them."""
        return bytes(self._content(path).nbytes)

    def exists(self, path: str) -> bool:
        directory, name = split(path)
        return path in self._names or name in self._names.get(directory, {})

    def spoil(self, path: str, nbytes: bytes) -> None:
        """Put other bytes into a file, as if they had been there for long."""
        content = self._content(path)
        content.nbytes, content.durable = bytearray(nbytes), bytearray(nbytes)
        content.unsynced.clear()

    def flip(self, path: str, at: int, bits: int = 1) -> None:
        """Spoil one byte of a file."""
        octets = bytearray(self.bytes_of(path))
        octets[at] ^= bits
        self.spoil(path, bytes(octets))

    def paths(self) -> list[str]:
        return sorted(
            os.path.join(directory, name)
            for directory, names in self._names.items()
            for name in names
        )

    # -- the Disk protocol ------------------------------------------------------------------------

    @staticmethod
    def _apply(names: dict[str, Content], change: list[tuple[str, Content | None]]) -> None:
        for name, content in change:
            if content is None:
                names.pop(name, None)
            else:
                names[name] = content

    def _change(self, directory: str, change: list[tuple[str, Content | None]]) -> None:
        self._apply(self._names[directory], change)
        self._unsynced_names[directory].append(change)

    def _directory(self, path: str) -> dict[str, Content]:
        names = self._names.get(path)
        if names is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return names

    def _content(self, path: str) -> Content:
        directory, name = split(path)
        content = self._directory(directory).get(name)
        if content is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return content

    def make_directory(self, path: str, *, top: str = "", close: bool = False) -> None:
        with self.mutex:
            self.note("make_directory", path)
            for parent in (path, *self._parents(path)):
                self._names.setdefault(parent, {})
                self._durable_names.setdefault(parent, {})
                self._unsynced_names.setdefault(parent, [])

    @staticmethod
    def _parents(path: str) -> list[str]:
        parents = []
        while path != "/":
            path = os.path.dirname(path)
            parents.append(path)
        return parents

    def names(self, path: str) -> list[str]:
        with self.mutex:
            self.note("names", path)
            inside = [
                os.path.basename(directory)
                for directory in self._names
                if directory != "/" and os.path.dirname(directory) == path
            ]
            return [*self._directory(path), *inside]

    def open(self, path: str, *, write: bool = False) -> SimulatedFile:
        with self.mutex:
            self.note("open", path)
            directory, name = split(path)
            if write and name not in self._directory(directory):
                self._change(directory, [(name, Content())])
            file = SimulatedFile(self, path, self._content(path))
            self.opened[path] += 1
            return file

    def stat(self, path: str) -> Stat:
        with self.mutex:
            self.note("stat", path)
            if path in self._names or path in self._locks:  # neither is a file
                return Stat(0, 0, 0, 0)
            content = self._content(path)
            return Stat(0, content.inode, len(content.nbytes), content.modified)

    def rename(self, old: str, new: str) -> None:
        with self.mutex:
            self.note("rename", new)
            content = self._content(old)
            (source, old_name), (target, new_name) = split(old), split(new)
            if source == target:
                self._change(source, [(old_name, None), (new_name, content)])
            else:
                self._change(target, [(new_name, content)])
                self._change(source, [(old_name, None)])

    def link(self, old: str, new: str) -> None:
        with self.mutex:
            self.note("link", new)
            content = self._content(old)
            directory, name = split(new)
            if name in self._directory(directory):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new)
            self._change(directory, [(name, content)])

    def remove(self, path: str) -> None:
        with self.mutex:
            self.note("remove", path)
            self._content(path)
            directory, name = split(path)
            self._change(directory, [(name, None)])

    def sync_directory(self, path: str) -> None:
        with self.mutex:
            try:
                self.note("sync_directory", path)
            except OSError:
                # Names are forgotten like bytes: the next sync of the directory succeeds.
                self._unsynced_names[path].clear()
                raise
            for change in self._unsynced_names[path]:
                self._apply(self._durable_names[path], change)
            self._unsynced_names[path].clear()

    def lock(self, path: str, busy: str, *, used: bool = False) -> Callable[[], None]:
        with self.mutex:
            self.note("lock", path)
            if path in self._locks:
                raise QueueLocked(f"{busy} (process {self._locks[path]})")
            self._locks[path] = self.process
            life = self.life

            def unlock() -> None:
                if life == self.life:
                    self._locks.pop(path, None)

            return unlock

    def lock_holder(self, path: str) -> str | None:
        with self.mutex:
            self.note("lock_holder", path)
            return str(self._locks[path]) if path in self._locks else None


CHANGES = frozenset({"write", "sync", "truncate", "rename", "remove", "link", "sync_directory"})
"""What a program does to a disk; it may be cut before each of them."""


class Cut(BaseException):
    """The process ends here."""


class CutDisk(SimulatedDisk):
    """Ends the process before its ``left``-th change of the disk from now on."""

    left: int | None = None
    changes = 0

    def note(self, operation: str, path: str) -> None:
        if operation in CHANGES:
            self.changes += 1
            if self.left is not None:
                if self.left <= 0:
                    raise Cut
                self.left -= 1
        super().note(operation, path)
