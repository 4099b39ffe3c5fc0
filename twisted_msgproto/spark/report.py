"""A bridge reports with progress lines and with status files.

A status stands in ``QUEUE/bridges/NAME.json`` of every queue on this machine, NAME being the
consumer's.  The gateway's status page reads it (:func:`read_statuses`) and needs neither the
bridge nor Spark for that.  The file is replaced whole, so a reader never sees half of one.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..queue.lineage import Description, Landed

RATE_SECONDS = 10.0
"""Rows per second are measured over this long."""

DIRECTORY = "bridges"
"""The bridges' files are in this directory of a queue: a status and a lock for each consumer."""

AWAY_SHOWN_MAX = 5
"""Gateways that are away are named up to this number in a progress line; the status has all."""


def status_path(queue: Path, consumer: str) -> Path:
    """Return where the status of the bridge ``consumer`` stands."""
    return queue / DIRECTORY / f"{consumer}.json"


def lock_path(queue: Path, consumer: str) -> Path:
    """Return what a bridge locks, so that two never publish under one consumer's name."""
    return queue / DIRECTORY / f"{consumer}.lock"


def read_statuses(queue: str | Path) -> list[dict[str, Any]]:
    """Return the status of every bridge that ever ran on this queue, by consumer's name.

    The keys are described in ``docs/spark.md``.  A bridge that was killed still says ``running``:
    compare ``updated_at`` (seconds since 1970, written every second) with the time.  Unreadable
    files are left out.
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


@dataclass(slots=True, frozen=True)
class Batch:
    """Describes one batch that is in the table.

    ``number`` is the table's version, ``at`` when it was committed (seconds since 1970).
    """

    number: int
    rows: int
    seconds: float
    at: float


@dataclass(slots=True, frozen=True)
class Lag:
    """Says how far a table is behind one queue: rows, and the age of the oldest of them in
    seconds.
    """

    rows: int
    oldest_age: float


def lag(landed: Landed | None, description: Description, now: float) -> Lag:
    """Return the lag behind a gateway at ``now`` (seconds since 1970), by what it said last."""
    rows = description.end - (description.begin if landed is None else landed.offset)
    if rows <= 0 or description.oldest is None:
        return Lag(max(0, rows), 0.0)
    return Lag(rows, max(0.0, now - description.oldest / 1e6))


@dataclass(slots=True)
class Progress:
    """Holds figures of a running bridge; all of them count from its start, but for ``landed``.

    ``landed`` is where the table is in each queue.  ``skipped`` counts rows that are damaged in
    the queue and so will never land; ``dropped`` those that a transform did not return.
    """

    landed: Mapping[str, Landed] = field(default_factory=dict)
    rows: int = 0
    skipped: int = 0
    dropped: int = 0
    batches: int = 0
    failures: int = 0
    last: Batch | None = None
    _recent: deque[tuple[float, int]] = field(default_factory=deque)

    def add(self, batch: Batch, *, skipped: int = 0, dropped: int = 0) -> None:
        """Counts a batch that was committed."""
        self.rows += batch.rows
        self.skipped += skipped
        self.dropped += dropped
        self.batches += 1
        self.last = batch
        self._recent.append((batch.at, self.rows))

    def rate(self, now: float) -> float:
        """Return rows per second over the last :data:`RATE_SECONDS`."""
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
class Aside:
    """Names a gateway whose rows do not move, the reason, and for how long."""

    location: str
    gateway: str
    state: str
    line: str
    seconds: float


@dataclass(slots=True, frozen=True)
class Report:
    """Says what a bridge does at one moment; ``docs/spark.md`` describes ``state``."""

    state: str
    progress: Progress
    lags: Mapping[str, Lag] = field(default_factory=dict)
    gateways: int = 0
    aside: tuple[Aside, ...] = ()
    standing: tuple[tuple[str, str], ...] = ()
    error: str | None = None


class StatusFiles:
    """Writes the status of one bridge into the directories of its queues.

    ``directories`` are those on this machine, by queue id; ``whole`` is one more file, for the
    bridge as such, where there is a place for it.
    """

    def __init__(
        self,
        directories: Mapping[str, Path],
        consumer: str,
        about: Mapping[str, object],
        clock: Callable[[], float] = time.time,
        whole: Path | None = None,
    ) -> None:
        self._paths = {name: status_path(path, consumer) for name, path in directories.items()}
        self._about = {"consumer": consumer, "pid": os.getpid(), "started_at": clock(), **about}
        self._clock = clock
        self._whole = whole

    def write(self, report: Report) -> None:
        """Raises OSError when one of the files cannot be written; the others are."""
        now = self._clock()
        progress, last = report.progress, report.progress.last
        shared: dict[str, Any] = {
            **self._about,
            "state": report.state,
            "updated_at": now,
            "rows": progress.rows,
            "rows_per_second": round(progress.rate(now), 1),
            "skipped_rows": progress.skipped,
            "dropped_rows": progress.dropped,
            "batches": progress.batches,
            "failed_batches": progress.failures,
            "last_batch": None
            if last is None
            else {
                "batch": last.number,
                "rows": last.rows,
                "seconds": round(last.seconds, 3),
                "at": last.at,
            },
            "gateways": report.gateways,
            "away": [
                {
                    "location": one.location,
                    "queue": one.gateway or None,
                    "state": one.state,
                    "error": one.line,
                    "seconds": round(one.seconds, 1),
                }
                for one in report.aside
            ],
            "standing_consumers": [
                {"queue": queue, "consumer": consumer} for queue, consumer in report.standing
            ],
            "error": report.error,
        }
        failed: OSError | None = None
        for name, path in self._paths.items():
            status = {**shared, "queue": name, **_of_queue(report, name)}
            failed = _written(path, status) or failed
        if self._whole is not None:
            names = sorted({*progress.landed, *report.lags})
            queues = {name: _of_queue(report, name) for name in names}
            failed = _written(self._whole, {**shared, "queues": queues}) or failed
        if failed is not None:
            raise failed


def _of_queue(report: Report, name: str) -> dict[str, Any]:
    landed, behind = report.progress.landed.get(name), report.lags.get(name)
    return {
        "offset": None if landed is None else landed.offset,
        "lag_rows": None if behind is None else behind.rows,
        "oldest_age_seconds": None if behind is None else round(behind.oldest_age, 3),
    }


def _written(path: Path, status: Mapping[str, Any]) -> OSError | None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(path, json.dumps(status))
    except OSError as error:
        return error
    return None


def replace_file(path: Path, text: str) -> None:
    """Write ``path`` as a whole (mode 0600), by renaming."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    os.replace(fresh, path)


def progress_line(report: Report, now: float) -> str:
    """Return one line for people: what the last batch did and how far behind the table is."""
    progress, last = report.progress, report.progress.last
    rows = sum(behind.rows for behind in report.lags.values())
    oldest = max((behind.oldest_age for behind in report.lags.values()), default=0.0)
    batch = "no batch yet" if last is None else f"batch {last.number}: {last.rows} rows"
    taken = "" if last is None else f" in {last.seconds:.2f} s"
    skipped = f", {progress.skipped} damaged rows skipped" if progress.skipped else ""
    dropped = f", {progress.dropped} rows dropped" if progress.dropped else ""
    return (
        f"{batch}{taken}, {progress.rows} rows in all, {progress.rate(now):.0f} rows/s, "
        f"lag {rows} rows, oldest {oldest:.1f} s{skipped}{dropped}{_away(report.aside)}"
    )


def _away(aside: Iterable[Aside]) -> str:
    names = [one.location for one in aside]
    more = len(names) - AWAY_SHOWN_MAX
    shown = ", ".join(names[:AWAY_SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")
    return f", away: {shown}" if names else ""
