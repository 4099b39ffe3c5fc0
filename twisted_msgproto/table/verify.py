"""Prove up to where a table holds each gateway completely: nothing missing, nothing twice.

``verify`` reads the gateway and the offset of every row.  It reads the files, not what the log says
of them, and compares what they hold with how far each gateway has landed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..core.errors import QueueMismatch, TableError
from ..queue.damage import Range, merged
from ..queue.lineage import Landed
from ..queue.source import Queue
from . import gaps
from .actions import Commit, Torn
from .intervals import Coverage, size, without
from .log import Table
from .offsets import check_columns, read_offsets
from .snapshot import list_log, one_line, read_version

LINES_MAX = 20


@dataclass(slots=True)
class GatewayReport:
    """What the table holds of one gateway, and what is wrong with it.  Ranges are in order."""

    gateway: str
    landed: Landed | None
    """This is the place in the log; None when there are rows and no place."""
    begin: int
    rows: int
    seen: list[Range]
    missing: list[Range]
    """These are below the place, in no file, for no known reason."""
    twice: list[Range]
    above: list[Range]
    """These rows are at or above the place: a bridge would land them once more."""
    expired: list[Range]
    damaged: list[Range]
    """Damaged in the queue before they could land."""
    dropped: list[Range] = field(default_factory=list)
    """These are absent where a transform drops rows: nobody can tell the dropped ones from the
    lost ones.
    """
    mismatch: str = ""
    """Why the queue is not the one that has landed here; empty when it is, or was not asked."""
    in_queue: int | None = None
    """The queue still has this many of the missing rows; None when it was not asked."""

    @property
    def whole_to(self) -> int:
        """Return the offset up to which the table is proven to hold every row once.

        Where a transform drops rows, nothing behind the last row that is there is proven.
        """
        bounds = [lo for ranges in (self.missing, self.twice) for lo, _ in ranges[:1]]
        end = self.landed.offset if self.landed else self.begin
        bounds += [lo for lo, hi in self.dropped[-1:] if hi == end]
        return min([end, *bounds])

    @property
    def whole(self) -> bool:
        wrong = self.missing or self.twice or self.above or self.mismatch
        return self.landed is not None and not wrong


@dataclass(slots=True)
class Report:
    """What ``verify`` has found."""

    location: str
    version: int
    files: int
    gateways: dict[str, GatewayReport] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    nameless: int = 0

    @property
    def whole(self) -> bool:
        return not (self.lost or self.nameless) and all(
            found.whole for found in self.gateways.values()
        )

    @property
    def rows(self) -> int:
        return sum(found.rows for found in self.gateways.values())

    def findings(self) -> Iterator[str]:
        for path, reason in sorted(self.lost.items()):
            yield f"lost: file {path}: {reason}"
        if self.nameless:
            yield f"nameless: {self.nameless} rows have no gateway or no offset"
        for gateway, found in sorted(self.gateways.items()):
            yield from _findings(gateway, found)


def _findings(gateway: str, found: GatewayReport) -> Iterator[str]:
    for kind, ranges in (
        ("missing", found.missing),
        ("twice", found.twice),
        ("above the place", found.above),
    ):
        for lo, hi in ranges[:LINES_MAX]:
            yield f"{kind}: gateway {gateway} offsets {lo} to {hi} ({hi - lo} rows)"
        if len(ranges) > LINES_MAX:
            rest = ranges[LINES_MAX:]
            yield f"{kind}: gateway {gateway} {len(rest)} more ranges ({size(rest)} rows)"
    if found.missing and found.in_queue is not None:
        total = size(found.missing)
        yield f"missing: gateway {gateway} its queue still has {found.in_queue} of {total} rows"
    if found.landed is None:
        yield f"no place: gateway {gateway} has {found.rows} rows, and the log has no place of it"
    if found.mismatch:
        yield f"not its queue: gateway {gateway} {found.mismatch}"


def verify(
    table: Table, queues: Mapping[str, Queue] | None = None, *, every_column: bool = False
) -> Report:
    """Read every row of ``table`` and report what is missing or twice.

    ``queues``, by queue id, are asked for what they still have and whether their history is the one
    that has landed.  ``every_column`` reads whole files.

    Raises:
        TableError: the table cannot be read, or its rows have no gateway and offset.
        QueueError: a queue cannot be asked.
    """
    check_columns(table)
    files = table.files()
    offsets = read_offsets(table.storage, files, every_column=every_column)
    report = Report(table.location, table.version, len(files))
    report.lost, report.nameless = offsets.lost, offsets.nameless
    reasons = _Reasons(table, queues or {})
    landed = table.landed()
    for gateway in sorted({*landed, *offsets.gateways}):
        coverage = offsets.gateways.get(gateway, Coverage())
        report.gateways[gateway] = _judged(gateway, landed.get(gateway), coverage, reasons)
    for gateway, found in report.gateways.items():
        if gateway in reasons.queues:
            _ask(found, reasons.queues[gateway])
    return report


def _judged(
    gateway: str, landed: Landed | None, coverage: Coverage, reasons: _Reasons
) -> GatewayReport:
    seen, end = coverage.ranges(), landed.offset if landed else 0
    expired = reasons.expired.get(gateway, [])
    damaged = reasons.damaged.get(gateway, [])
    known = [lo for ranges in (seen, expired, damaged) for lo, _ in ranges[:1]]
    begin = reasons.begins.get(gateway, min(known, default=0))
    missing = without([(begin, end)], [*seen, *expired, *damaged])
    dropped_from = reasons.dropping.get(gateway, end)
    missing, dropped = (
        without(missing, [(dropped_from, end)]),
        without(missing, [(0, dropped_from)]),
    )
    if missing:
        # Commits tell of damage that is noted nowhere else, as long as the log has them.
        damaged = merged([*damaged, *reasons.told(gateway)])
        missing = without(missing, damaged)
    return GatewayReport(
        gateway=gateway,
        landed=landed,
        begin=begin,
        rows=coverage.rows,
        seen=seen,
        missing=missing,
        twice=coverage.twice(),
        above=without(seen, [(0, end)]) if landed else [],
        expired=expired,
        damaged=damaged,
        dropped=dropped,
    )


def _ask(found: GatewayReport, queue: Queue) -> None:
    description = queue.describe()
    held = without([(description.begin, description.end)], description.damaged)
    found.in_queue = size(found.missing) - size(without(found.missing, held))
    if found.landed is not None:
        try:
            queue.check(found.landed)
        except QueueMismatch as error:
            found.mismatch = str(error)


class _Reasons:
    """Why offsets are not in the table, from its notes, its log and the queues."""

    def __init__(self, table: Table, queues: Mapping[str, Queue]) -> None:
        self.queues = queues
        self.begins = gaps.begins(table.transactions)
        self.expired = gaps.noted(table.transactions, gaps.EXPIRED_PREFIX)
        self.damaged = gaps.noted(table.transactions, gaps.DAMAGED_PREFIX)
        self.dropping = gaps.dropping(table.transactions)
        self._table = table
        self._commits: dict[str, list[Range]] | None = None

    def told(self, gateway: str) -> list[Range]:
        if self._commits is None:
            self._commits = damage_of_commits(self._table)
        queue = self.queues.get(gateway)
        return [*self._commits.get(gateway, []), *(queue.damaged() if queue else [])]


def damage_of_commits(table: Table) -> dict[str, list[Range]]:
    """Return what bridges found damaged in queues, according to the commits that the log still
    has.

    Raises TableError when one of them cannot be read: what it says was damaged would be reported as
    missing, and a rewind would set the gateway back for it.
    """
    found: dict[str, list[Range]] = {}
    try:
        for commit in _commits(table):
            gateways: Any = commit.info.get("gateways", {})
            for gateway, entry in gateways.items():
                damaged = [(lo, hi) for lo, hi in entry.get("damaged", ())]
                found.setdefault(gateway, []).extend(damaged)
    except OSError as error:
        raise TableError(f"cannot read {table.location}: {one_line(error)}") from error
    return found


def _commits(table: Table) -> Iterator[Commit]:
    for version in list_log(table.storage).versions:
        # Cleaned away meanwhile, or torn and of no use here.
        with contextlib.suppress(FileNotFoundError, Torn):
            yield read_version(table.storage, version)
