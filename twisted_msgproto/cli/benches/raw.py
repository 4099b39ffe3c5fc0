"""Make octets durable in the plainest way: write, sync, repeat.  The queue is compared with it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

from twisted_msgproto.queue.disk import sync_call

from ..measuring import Figures, timed

TOUCH_OCTETS = 1 << 20


def touch_memory(directory: Path, octets: int) -> None:
    """Let this machine have memory for a file of ``octets``: write one, and remove it.

    The host of a virtual machine provides memory when it is touched first, and reclaims what is not
    used for some seconds.  Writing into memory that is not there costs much more CPU time, and
    whoever writes first would pay for both sides of a comparison.
    """
    path, piece = directory / "touched", bytes(TOUCH_OCTETS)
    with path.open("wb", buffering=0) as file:
        for _ in range(0, octets, TOUCH_OCTETS):
            file.write(piece)
    path.unlink()


class RawFile:
    """Writes a file in ``directory`` and syncs it group by group; closing removes it."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "raw"
        self._sync = sync_call()[1]
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        self._descriptor = os.open(self._path, flags, 0o600)

    def write(self, groups: Iterable[Any], messages: int) -> Figures:
        """Write the buffers ``groups``, with a sync each; they hold ``messages`` messages."""
        written = 0
        with timed(messages) as figures:
            for written, group in enumerate(groups, 1):  # noqa: B007
                os.write(self._descriptor, group)
                self._sync(self._descriptor)
        figures.groups = written
        return figures

    def close(self) -> None:
        """Close and remove the file."""
        os.close(self._descriptor)
        self._path.unlink()


def write_raw(directory: Path, octets: int, messages: int, groups: int) -> Figures:
    """Write ``octets`` in as many equal groups, with a sync after each."""
    edges = [octets * number // groups for number in range(groups + 1)]
    data = memoryview(os.urandom(-(-octets // groups)))
    pieces = [data[: end - begin] for begin, end in pairwise(edges)]
    file = RawFile(directory)
    try:
        return file.write(pieces, messages)
    finally:
        file.close()
