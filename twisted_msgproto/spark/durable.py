"""Make a landed batch durable before the queue may forget it.

Spark writes table, sink log and checkpoint without fsync: after a power cut the newest files may
be empty.  The queue still has those rows, unless it was told that they are not needed any more.
So the bridge publishes its low-water mark only after the files of the batch, and of its log and
checkpoint, were fsync'ed (on this machine's file systems; object stores are durable by
themselves).
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

from .table import DELTA_LOG, SINK_LOG, log_entries, table_file


def sync_files(paths: Iterable[Path]) -> int:
    """Makes files and the directories they stand in durable; returns how many files.

    A file which is gone meanwhile (compacted, vacuumed) is none of ours any more.
    """
    count = 0
    directories: set[Path] = set()
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            sync_path(path)
            directories.add(path.parent)
            count += 1
    for directory in directories:
        with contextlib.suppress(FileNotFoundError):
            sync_path(directory)
    return count


def sync_path(path: Path) -> None:
    """fsync of one file or directory."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class BatchSync:
    """Follows one table and its checkpoint, batch by batch; either may be None (not local)."""

    def __init__(self, table: Path | None, checkpoint: Path | None) -> None:
        self._table = table
        self._checkpoint = checkpoint
        self._newest = 0  # modification time, in milliseconds, of the newest file synced
        self._batch = -1

    def reach(self, batch: int) -> None:
        """Makes everything up to ``batch`` durable."""
        if self._checkpoint is not None:
            self._sync_checkpoint(batch)
        if self._table is not None and not (self._table / DELTA_LOG).is_dir():
            self._sync_sink(batch)
        self._batch = batch

    def _sync_checkpoint(self, batch: int) -> None:
        """The plans and done marks after the last batch synced; at first all there are."""
        assert self._checkpoint is not None
        names = [self._checkpoint / "metadata"]
        for kind in ("offsets", "commits"):
            names += self._fresh(self._checkpoint / kind, batch)
        sync_files(names)

    def _sync_sink(self, batch: int) -> None:
        """The files of the log after the last batch synced, and what they name."""
        assert self._table is not None
        paths: list[Path] = []
        newest = self._newest
        for path in self._fresh(self._table / SINK_LOG, batch):
            with contextlib.suppress(FileNotFoundError):
                entries = log_entries(path.read_text(), path)
                paths.append(path)
                for entry in entries:
                    # A compacted file names everything since the beginning again.
                    if entry["modificationTime"] >= self._newest:
                        paths.append(table_file(self._table, entry["path"]))
                        newest = max(newest, entry["modificationTime"])
        sync_files(paths)
        self._newest = newest

    def _fresh(self, directory: Path, batch: int) -> list[Path]:
        """The files of the batches after the last one synced, up to ``batch``, in order."""
        try:
            entries = list(directory.iterdir())
        except FileNotFoundError:
            return []
        numbered = [
            (int(entry.name.removesuffix(".compact")), entry)
            for entry in entries
            if entry.name.removesuffix(".compact").isdigit()
        ]
        return [path for number, path in sorted(numbered) if self._batch < number <= batch]


def sync_delta(table: Path, version: int) -> None:
    """Makes commit ``version`` of a Delta table durable: its log file and the files it adds."""
    log = table / DELTA_LOG / f"{version:020d}.json"
    paths = [log]
    for line in log.read_text().splitlines():
        added = json.loads(line).get("add")
        if added is not None:
            paths.append(table_file(table, added["path"]))
    sync_files(paths)
