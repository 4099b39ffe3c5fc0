"""What a bridge tells: its progress lines, and the status file in the queue's directory.

It stands in ``QUEUE/bridges/NAME.json``, NAME being the consumer's.  The gateway's status page
reads it (:func:`read_statuses`) and needs neither the bridge nor Spark for that.  The file is
replaced whole, so a reader never sees half of one.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .offsets import Places, Source, rows_between

RATE_SECONDS = 10.0
"""Rows per second are measured over this long."""


DIRECTORY = "bridges"
"""Where the bridges' files stand in a queue's directory: status and lock, one each a consumer."""


def status_path(queue: Path, consumer: str) -> Path:
    """Where the status of the bridge ``consumer`` stands."""
    return queue / DIRECTORY / f"{consumer}.json"


def lock_path(queue: Path, consumer: str) -> Path:
    """What a bridge locks, so that two never publish under one consumer's name."""
    return queue / DIRECTORY / f"{consumer}.lock"


def read_statuses(queue: str | Path) -> list[dict[str, Any]]:
    """The status of every bridge that ever ran on this queue, by consumer's name.

    The keys are described in ``docs/spark.md``.  A bridge that was killed still says ``running``:
    look at ``updated_at`` (seconds since 1970, written every second).  Unreadable files are left
    out.
    """
    statuses = []
    for path in sorted((Path(queue) / DIRECTORY).glob("*.json")):
        try:
            status = json.loads(path.read_text())
        except (OSError, ValueError):
            continue
        if isinstance(status, dict):
            statuses.append(status)
    return statuses


@dataclass(slots=True)
class Batch:
    """One batch which has ended: its number, rows, seconds, and when (seconds since 1970)."""

    number: int
    rows: int
    seconds: float
    at: float


@dataclass(slots=True)
class Progress:
    """Figures of a running bridge; all of them since it started, but for ``landed``.

    ``landed`` is where the table is in each queue.  ``skipped`` counts rows that are damaged in
    the queue and so will never land.
    """

    landed: Places = field(default_factory=dict)
    rows: int = 0
    skipped: int = 0
    batches: int = 0
    last: Batch | None = None
    _recent: deque[tuple[float, int]] = field(default_factory=deque)

    def add(self, batch: Batch, end: Places, start: Places | None) -> int:
        """Counts a batch; returns how many of its rows were damaged and left out."""
        missing = 0
        if batch.rows or (start is not None and start != end):
            expected = rows_between(self.landed if start is None else start, end)
            missing = max(0, expected - batch.rows)
            self.rows += batch.rows
            self.skipped += missing
            self.batches += 1
            self.last = batch
            self._recent.append((batch.at, self.rows))
        self.landed = end
        return missing

    def rate(self, now: float) -> float:
        """Rows per second over the last :data:`RATE_SECONDS`."""
        while len(self._recent) > 1 and self._recent[1][0] < now - RATE_SECONDS:
            self._recent.popleft()
        if not self._recent or self._recent[-1][0] < now - RATE_SECONDS:
            return 0.0
        at, rows = self._recent[0]
        if len(self._recent) == 1:
            assert self.last is not None
            return self.last.rows / max(self.last.seconds, 1e-3)
        return (self.rows - rows) / max(now - at, 1e-3)


@dataclass(slots=True, frozen=True)
class Lag:
    """How far a table is behind one queue: rows, and the age of the oldest of them in seconds."""

    rows: int
    oldest_age: float


def lag(queue: Source, landed: Places, now: float) -> Lag:
    """The lag behind ``queue`` at ``now`` (seconds since 1970)."""
    place = landed.get(queue.queue_id)
    begin = queue.begin() if place is None else place["offset"]
    end = queue.end()
    if end <= begin:
        return Lag(0, 0.0)
    # Damaged rows are not there to be asked; a few further on will do.
    for batch in queue.read(begin, min(end, begin + 1)):
        if batch.num_rows:
            at = batch.column("received_at")[0].value / 1e6
            return Lag(end - begin, max(0.0, now - at))
    return Lag(end - begin, 0.0)


class StatusFiles:
    """Writes the status of one bridge into the directories of its queues."""

    def __init__(
        self,
        directories: Mapping[str, Path],
        consumer: str,
        about: Mapping[str, object],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._paths = {name: status_path(path, consumer) for name, path in directories.items()}
        self._about = {"consumer": consumer, "pid": os.getpid(), "started_at": clock(), **about}
        self._clock = clock

    def write(
        self, state: str, progress: Progress, lags: Mapping[str, Lag], error: str | None = None
    ) -> None:
        """``state`` is ``starting``, ``running``, ``ended`` or ``failed`` (with ``error``)."""
        now = self._clock()
        last = progress.last
        for name, path in self._paths.items():
            path.parent.mkdir(mode=0o700, exist_ok=True)
            behind = lags.get(name)
            status: dict[str, Any] = {
                **self._about,
                "queue": name,
                "state": state,
                "updated_at": now,
                "offset": progress.landed[name]["offset"] if name in progress.landed else None,
                "lag_rows": None if behind is None else behind.rows,
                "oldest_age_seconds": None if behind is None else round(behind.oldest_age, 3),
                "rows": progress.rows,
                "rows_per_second": round(progress.rate(now), 1),
                "skipped_rows": progress.skipped,
                "batches": progress.batches,
                "last_batch": None
                if last is None
                else {
                    "batch": last.number,
                    "rows": last.rows,
                    "seconds": round(last.seconds, 3),
                    "at": last.at,
                },
                "error": error,
            }
            replace_file(path, json.dumps(status))


def replace_file(path: Path, text: str, *, durable: bool = False) -> None:
    """Writes ``path`` whole (mode 0600), by renaming; ``durable``: its octets are synced first."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        if durable:
            file.flush()
            os.fsync(descriptor)
    os.replace(fresh, path)


def progress_line(progress: Progress, lags: Mapping[str, Lag], now: float) -> str:
    """One line for people: what the last batch did and how far behind the table is."""
    last = progress.last
    rows = sum(behind.rows for behind in lags.values())
    oldest = max((behind.oldest_age for behind in lags.values()), default=0.0)
    batch = "no batch yet" if last is None else f"batch {last.number}: {last.rows} rows"
    taken = "" if last is None else f" in {last.seconds:.2f} s"
    skipped = f", {progress.skipped} damaged rows skipped" if progress.skipped else ""
    return (
        f"{batch}{taken}, {progress.rows} rows in all, {progress.rate(now):.0f} rows/s, "
        f"lag {rows} rows, oldest {oldest:.1f} s{skipped}"
    )
