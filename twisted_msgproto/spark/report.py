"""A bridge reports with progress lines and with status files.

A status stands in ``QUEUE/bridges/NAME.json`` of every queue on this machine, NAME being the
consumer's; :class:`SentStatuses` brings it to queues on other machines.
"""

from __future__ import annotations

import heapq
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ..core.errors import MsgprotoError
from ..queue.consumers import (
    STATUSES,
    TIME_MAX,
    cut_to_fit,
    read_status,
    rests_until,
    status_path,
    write_status,
)
from ..queue.lineage import Description, Landed
from ..table.landing import LandedRanges
from .daemon_threads import DaemonThreadPool

RATE_SECONDS = 10.0

KNOWN_TOLD_MAX = 20  # a status tells of this many gateways, those that the table is furthest behind

SEND_SECONDS = 5.0  # a queue on another machine is sent the bridge's status this often

SENDERS_MAX = 4

LOOK_SECONDS = 0.02

SHOWN_MAX = 5  # a line names this many of what may be many
REST_SECONDS = 86_400.0  # until the next run of one that ends, while no pause is known


PAUSE_SECONDS_MAX = 32 * 86_400.0  # a longer one means that a clock was wrong


def lock_path(queue: Path, consumer: str) -> Path:
    return queue / STATUSES / f"{consumer}.lock"


@dataclass(slots=True, frozen=True)
class Batch:
    """One batch that is in the table, as version ``number``, since ``at`` (seconds since 1970)."""

    number: int
    rows: int
    seconds: float
    at: float


@dataclass(slots=True, frozen=True)
class Lag:
    """How far a table is behind one queue: rows, and the age of the oldest of them in seconds."""

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
    """Figures of a running bridge, which count from its start, but for ``landed``."""

    landed: Mapping[str, Landed] = field(default_factory=dict)
    rows: int = 0
    skipped: int = 0  # damaged in the queue
    dropped: int = 0  # not returned by a transform
    left_out: int = 0  # by the table's ``where``
    rejected: int = 0  # a transform raised
    errors: Counter[str] = field(default_factory=Counter)  # columns not made; "" is the body
    batches: int = 0
    failures: int = 0
    last: Batch | None = None
    _recent: deque[tuple[float, int]] = field(default_factory=deque)

    def add(self, batch: Batch, landed: LandedRanges) -> None:
        self.rows += batch.rows
        self.skipped += sum(hi - lo for parts in landed.damaged.values() for lo, hi in parts)
        self.dropped += landed.dropped
        self.left_out += sum(landed.left_out.values())
        self.rejected += sum(map(len, landed.rejected.values()))
        self.errors.update(landed.errors)
        self.batches += 1
        self.last = batch
        if self._recent and batch.at < self._recent[-1][0]:  # the clock was set back
            self._recent.clear()
        self._recent.append((batch.at, self.rows))

    def rate(self, now: float) -> float:
        while len(self._recent) > 1 and self._recent[1][0] < now - RATE_SECONDS:
            self._recent.popleft()
        if not self._recent or not now - RATE_SECONDS <= self._recent[-1][0] <= now:
            return 0.0
        at, rows = self._recent[0]
        if len(self._recent) == 1:
            assert self.last is not None
            return self.last.rows / max(self.last.seconds, 1e-3)
        return (self.rows - rows) / max(now - at, 1e-3)


@dataclass(slots=True, frozen=True)
class Aside:
    location: str
    gateway: str
    state: str
    line: str
    seconds: float


@dataclass(slots=True, frozen=True)
class Report:
    """What a bridge does at one moment; ``docs/spark.md`` describes ``state``."""

    state: str
    progress: Progress
    lags: Mapping[str, Lag] = field(default_factory=dict)
    gateways: int = 0
    aside: tuple[Aside, ...] = ()
    error: str | None = None
    drained: bool = False  # it ended because all that was there has landed


class StatusFiles:
    """The status of one bridge in its queues' ``directories``, which may grow, and in ``whole``.

    One that runs ``once`` tells how long it rests afterwards: ``every`` seconds, or twice the
    longest pause that the statuses of its runs so far tell of.
    """

    def __init__(
        self,
        directories: Mapping[str, Path],
        consumer: str,
        about: Mapping[str, object],
        clock: Callable[[], float] = time.time,
        whole: Path | None = None,
        *,
        once: bool = False,
        every: float | None = None,
    ) -> None:
        self._directories = directories
        self._consumer = consumer
        self._about = {"consumer": consumer, "pid": os.getpid(), "started_at": clock(), **about}
        self._clock = clock
        self._whole = whole
        self._rests_until: float | None = None
        self._pause: float | None = None
        self._every = every
        if once:
            self._look_back(clock())

    def _look_back(self, now: float) -> None:
        before = last_status([self._whole, *self._paths().values()])
        pauses = [float(before.get("longest_pause_seconds") or 0.0)]
        if before.get("state") == "ended":
            pauses.append(now - (before.get("updated_at") or 0.0))
        self._pause = max((one for one in pauses if 0 <= one <= PAUSE_SECONDS_MAX), default=0.0)
        # This run is not late before it could land anything.
        self._rests_until = max(now, rests_until(before, now))

    def _paths(self) -> dict[str, Path]:
        directories = list(self._directories.items())
        return {name: status_path(path, self._consumer) for name, path in directories}

    def write(self, report: Report) -> None:
        """Raises OSError when one of the files cannot be written; the others are."""
        statuses = {path: self.for_queue(report, name) for name, path in self._paths().items()}
        if self._whole is not None:
            names = sorted({*report.progress.landed, *report.lags})
            queues = {name: _of_queue(report, name) for name in names}
            statuses[self._whole] = {**self._shared(report), "queues": queues}
        failed: OSError | None = None
        for path, status in statuses.items():
            try:
                write_status(path, status)
            except OSError as error:
                failed = error
        if failed is not None:
            raise failed

    def for_queue(self, report: Report, name: str) -> dict[str, Any]:
        return {**self._shared(report), "queue": name, **_of_queue(report, name)}

    def _shared(self, report: Report) -> dict[str, Any]:
        now = self._clock()
        progress, last = report.progress, report.progress.last
        return {
            **self._about,
            "state": report.state,
            "updated_at": now,
            "rows": progress.rows,
            "rows_per_second": round(progress.rate(now), 1),
            "skipped_rows": progress.skipped,
            "dropped_rows": progress.dropped,
            "left_out_rows": progress.left_out,
            "rejected_rows": progress.rejected,
            "errors": {name or "body": rows for name, rows in sorted(progress.errors.items())},
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
            "known": _known(report),
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
            "error": report.error,
            "rests_until": self._rest(report, now),
            "longest_pause_seconds": None if self._pause is None else round(self._pause, 1),
        }

    def _rest(self, report: Report, now: float) -> float | None:
        if self._pause is None or report.error is not None:
            return None
        if not report.drained:
            return self._rests_until
        return now + (self._every or 2 * self._pause or REST_SECONDS)


def last_status(paths: Iterable[Path | None]) -> dict[str, Any]:
    found: list[dict[str, Any]] = []
    for path in paths:
        if path is not None and (status := read_status(path)) is not None:
            known = [status.get(name) or 0.0 for name in ("updated_at", "longest_pause_seconds")]
            if all(isinstance(one, int | float) and abs(one) <= TIME_MAX for one in known):
                found.append(status)
    return max(found, key=lambda status: status.get("updated_at") or 0.0, default={})


def _known(report: Report) -> list[dict[str, Any]]:
    most = heapq.nlargest(KNOWN_TOLD_MAX, report.lags.items(), key=lambda one: one[1].rows)
    return [{"queue": name, **_of_queue(report, name)} for name, _ in most]


def _of_queue(report: Report, name: str) -> dict[str, Any]:
    landed, behind = report.progress.landed.get(name), report.lags.get(name)
    return {
        "offset": None if landed is None else landed.offset,
        "lag_rows": None if behind is None else behind.rows,
        "oldest_age_seconds": None if behind is None else round(behind.oldest_age, 3),
    }


@dataclass(eq=False)
class SentStatuses:
    """The status of one bridge on its way to queues elsewhere; a gateway that is away misses it."""

    files: StatusFiles
    consumer: str
    opened: Callable[[str], Any]
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._crew = DaemonThreadPool(SENDERS_MAX, "statuses")
        self._due: dict[str, float] = {}
        self._on_their_way: set[str] = set()

    def send(self, report: Report, remote: Iterable[str]) -> None:
        now = self.clock()
        for name in remote:
            if self._due.get(name, now) <= now and name not in self._on_their_way:
                self._due[name] = now + SEND_SECONDS
                self._on_their_way.add(name)
                self._crew.submit(partial(self._send, name, report))

    def finish(self, report: Report, remote: Iterable[str], seconds: float) -> None:
        deadline = self.clock() + seconds
        left = set(remote)
        while (left or self._on_their_way) and self.clock() < deadline:
            for name in left - self._on_their_way:  # or an earlier one might come after it
                self._on_their_way.add(name)
                left.discard(name)
                self._crew.submit(partial(self._send, name, report))
            time.sleep(LOOK_SECONDS)

    def _send(self, name: str, report: Report) -> None:
        try:
            queue = self.opened(name)
            if queue is not None:
                queue.tell(self.consumer, cut_to_fit(self.files.for_queue(report, name)))
        except (MsgprotoError, OSError):
            pass  # it is sent again, with what is new then
        finally:
            self._on_their_way.discard(name)


def progress_line(report: Report, now: float) -> str:
    progress, last = report.progress, report.progress.last
    rows = sum(behind.rows for behind in report.lags.values())
    oldest = max((behind.oldest_age for behind in report.lags.values()), default=0.0)
    batch = "no batch yet" if last is None else f"batch {last.number}: {last.rows} rows"
    taken = ""
    if last is not None:
        taken = f" in {last.seconds:.2f} s ({last.rows / max(last.seconds, 1e-3):.0f} rows/s)"
    skipped = f", {progress.skipped} damaged rows skipped" if progress.skipped else ""
    dropped = f", {progress.dropped} rows dropped" if progress.dropped else ""
    rejected = f", {progress.rejected} rows rejected" if progress.rejected else ""
    wrong = ", ".join(
        f"{name or 'body'} {rows}" for name, rows in progress.errors.most_common(SHOWN_MAX)
    )
    errors = f", rows in error: {wrong}" if wrong else ""
    away = first_few([one.location for one in report.aside])
    return (
        f"{batch}{taken}, {progress.rows} rows in all, {progress.rate(now):.0f} rows/s, "
        f"lag {rows} rows, oldest {oldest:.1f} s{skipped}{dropped}{rejected}{errors}"
        f"{away and f', away: {away}'}"
    )


def first_few(names: Sequence[object]) -> str:
    more = len(names) - SHOWN_MAX
    return ", ".join(map(str, names[:SHOWN_MAX])) + (f" and {more} more" if more > 0 else "")
