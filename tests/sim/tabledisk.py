"""A table's disk on a :class:`~tests.sim.disk.SimulatedDisk`: it forgets what was not synced."""

from __future__ import annotations

import errno
import os

from tests.sim.disk import SimulatedDisk


class SimulatedTableDisk:
    def __init__(self, disk: SimulatedDisk) -> None:
        self._disk = disk

    def names(self, path: str) -> list[str]:
        return self._disk.names(path)

    def read(self, path: str) -> bytes:
        file = self._disk.open(path)
        return file.read(0, file.size())

    def last(self, path: str, octets: int) -> bytes:
        return self.read(path)[-octets:]

    def size(self, path: str) -> int:
        return self._disk.open(path).size()

    def modified(self, path: str) -> float:
        return self._disk.modified(path) / 1e6

    def write(self, path: str, octets: bytes) -> None:
        if self._disk.exists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        file = self._disk.open(path, write=True)
        written = 0
        while written < len(octets):
            written += file.write(written, [octets[written:]])

    def sync(self, path: str) -> None:
        self._disk.open(path).sync()

    def sync_directory(self, path: str) -> None:
        self._disk.sync_directory(path)

    def link(self, old: str, new: str) -> None:
        self._disk.link(old, new)

    def rename(self, old: str, new: str) -> None:
        self._disk.rename(old, new)

    def remove(self, path: str) -> None:
        self._disk.remove(path)

    def make_directory(self, path: str) -> None:
        self._disk.make_directory(path)
