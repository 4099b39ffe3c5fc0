"""A table's disk which can be killed before any of its steps, and can lose its power."""

from __future__ import annotations

import os
from pathlib import Path

from twisted_msgproto.table.disk import OSTableDisk


class Killed(BaseException):
    """The process ends here: nothing catches it."""


class PowerDisk(OSTableDisk):
    """A real directory below ``root``; remembers what was synced.

    The step number ``dies_at`` (from 0) does not happen: :class:`Killed` is raised in its place.
    What stands below ``root`` when this is made counts as synced.
    """

    __slots__ = ("_names", "_octets", "dies_at", "root", "steps")

    def __init__(self, root: Path, dies_at: int | None = None) -> None:
        self.root = root
        self.dies_at = dies_at
        self.steps = 0
        self._octets = {path for path in root.rglob("*") if path.is_file()}
        self._names = {path: set(os.listdir(path)) for path in self._folders()}

    def restarted(self) -> PowerDisk:
        """The disk of the next program: what this one has not synced is not durable yet."""
        after = PowerDisk(self.root)
        after._octets, after._names = set(self._octets), dict(self._names)
        return after

    def _folders(self) -> list[Path]:
        found = [path for path in self.root.rglob("*") if path.is_dir()]
        return [self.root.parent, *([self.root] if self.root.exists() else []), *found]

    def _step(self) -> None:
        if self.steps == self.dies_at:
            raise Killed
        self.steps += 1

    def write(self, path: str, octets: bytes) -> None:
        self._step()
        super().write(path, octets)

    def sync(self, path: str) -> None:
        self._step()
        super().sync(path)
        self._octets.add(Path(path))

    def sync_directory(self, path: str) -> None:
        self._step()
        super().sync_directory(path)
        self._names[Path(path)] = set(os.listdir(path))

    def link(self, old: str, new: str) -> None:
        self._step()
        super().link(old, new)
        if Path(old) in self._octets:
            self._octets.add(Path(new))

    def rename(self, old: str, new: str) -> None:
        self._step()
        super().rename(old, new)
        if Path(old) in self._octets:
            self._octets.add(Path(new))

    def remove(self, path: str) -> None:
        self._step()
        super().remove(path)

    def make_directory(self, path: str) -> None:
        self._step()
        super().make_directory(path)
        self._names[Path(path).parent] = set(os.listdir(Path(path).parent))

    def cut(self, *, torn: bool) -> None:
        """The power fails: names and octets which were not synced are lost.

        ``torn``: the names had reached the disk by themselves, the octets only half.
        """
        # One file may have two names: a version and the temporary name it was written under.
        whole = {path.stat().st_ino for path in self._octets if path.exists()}
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
