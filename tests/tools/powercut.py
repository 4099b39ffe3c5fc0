"""A disk over real files which stops at a step, and forgets what was not synced.

Every change goes to the real files at once, as other programs see it; a sync only notes that it
was asked for, because here it is this module which decides what is lost.
:meth:`CutDisk.lose_power` then takes back what a loss of power takes: names which were made,
replaced or removed since their folder was synced, or the octets of files which were not synced.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field

from twisted_msgproto.table.disk import OSTableDisk

LOSSES = ("kill", "empty", "torn", "cut at a line", "missing")
"""What may be left: everything (a kill), files without or with a part of their octets, no names."""


class Cut(BaseException):
    """The process is gone at this step; nothing of it may catch this."""


def damaged(octets: bytes, loss: str) -> bytes:
    if loss == "empty":
        return b""
    if loss == "torn":
        return octets[: len(octets) // 2]
    if loss == "cut at a line":
        lines = octets.splitlines(keepends=True)
        return b"".join(lines[:-1])
    raise ValueError(loss)


@dataclass
class Volatile:
    """What would not survive, of all programs of one machine."""

    octets: set[str] = field(default_factory=set)
    names: dict[str, list[tuple[str, Callable[[], None]]]] = field(default_factory=dict)
    """Folder to names in it and what takes their changes back, oldest first."""
    given_up: set[str] = field(default_factory=set)
    """Files which a sync failed to write: later syncs succeed and write nothing."""
    given_up_names: dict[str, list[tuple[str, Callable[[], None]]]] = field(default_factory=dict)
    """The same of names."""


class CutDisk(OSTableDisk):
    """The operating system's files, with a memory of what is not durable.

    Steps in ``failing`` (``"sync"``, ``"sync directory"``) fail once, as the kernel's do: what
    they could not write is called clean, and a second sync of it succeeds in vain.

    Attributes:
        steps: what has been done so far, each with the name of its file.
        unsynced: for each step, whether there were octets before it which were not synced.
    """

    __slots__ = ("cut_before", "failing", "steps", "unsynced", "volatile")

    def __init__(self, cut_before: int | None = None, volatile: Volatile | None = None) -> None:
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
        for path in self.volatile.octets | self.volatile.given_up:
            if os.path.exists(path):
                with open(path, "rb") as file:
                    octets = file.read()
                with open(path, "wb") as file:
                    file.write(damaged(octets, loss))

    def write(self, path: str, octets: bytes) -> None:
        self._step("write", path)
        super().write(path, octets)
        self.volatile.octets.add(path)
        self._named(path, lambda: removed(path))

    def sync(self, path: str) -> None:
        self._step("sync", path)
        os.stat(path)
        if self._fails("sync"):
            if path in self.volatile.octets:
                self.volatile.given_up.add(path)
            self.volatile.octets.discard(path)
            raise OSError(errno.EIO, "the disk did not take it")
        self.volatile.octets.discard(path)

    def sync_directory(self, path: str) -> None:
        self._step("sync directory", path)
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
        self._step("link", new)
        super().link(old, new)
        self._same_octets(old, new)
        self._named(new, lambda: removed(new))

    def rename(self, old: str, new: str) -> None:
        self._step("rename", new)
        before = self.read(new) if os.path.exists(new) else None
        super().rename(old, new)
        self._same_octets(old, new)
        self._named(new, lambda: removed(new) if before is None else replaced(new, before))

    def remove(self, path: str) -> None:
        self._step("remove", path)
        before = self.read(path) if os.path.exists(path) else b""
        super().remove(path)
        self._named(path, lambda: replaced(path, before))

    def make_directory(self, path: str) -> None:
        self._step("make directory", path)
        os.makedirs(path, exist_ok=True)

    def _same_octets(self, old: str, new: str) -> None:
        for files in (self.volatile.octets, self.volatile.given_up):
            (files.add if old in files else files.discard)(new)

    def _fails(self, step: str) -> bool:
        fails = step in self.failing
        self.failing.discard(step)
        return fails

    def _step(self, operation: str, path: str) -> None:
        if self.cut_before is not None and len(self.steps) >= self.cut_before:
            raise Cut(f"before {operation} {path}")
        self.steps.append(f"{operation} {os.path.basename(path)}")
        self.unsynced.append(bool(self.volatile.octets))

    def _named(self, path: str, undo: Callable[[], None]) -> None:
        self.volatile.names.setdefault(os.path.dirname(path), []).append((path, undo))


def removed(path: str) -> None:
    if os.path.exists(path):
        os.unlink(path)


def replaced(path: str, octets: bytes) -> None:
    with open(path, "wb") as file:
        file.write(octets)
