"""Prove up to where a table holds each gateway completely: nothing missing, nothing twice.

``verify`` reads the files, not what the log says of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ..core.errors import QueueMismatch, TableError
from ..queue.damage import Range
from ..queue.interface import Queue
from ..queue.lineage import Landed
from . import erased, gaps
from .actions import DataFile
from .delta_table import Table
from .preflight import not_noted
from .row_offsets import (
    Coverage,
    FileLost,
    check_columns,
    gateways_of,
    has_keys,
    read_footer,
    read_offsets,
    size,
    without,
)
from .storage import Storage, verify_tells

LINES_MAX = 20


@dataclass(slots=True)
class GatewayReport:
    """What the table holds of one gateway, and what is wrong with it.  Ranges are in order."""

    gateway: str
    landed: Landed | None  # the place in the log; None when there are rows and no place
    begin: int
    rows: int
    seen: list[Range]
    missing: list[Range]  # below the place, in no file, for no known reason
    twice: list[Range]
    above: list[Range]  # at or above the place: a bridge would land them once more
    expired: list[Range]
    damaged: list[Range]  # damaged in the queue before they could land
    erased: list[Range] = field(default_factory=list)  # erased on purpose; they do not land again
    back: list[Range] = field(default_factory=list)  # these rows were erased and are there again
    expired_rows: int = 0
    damaged_rows: int = 0
    dropped: list[Range] = field(default_factory=list)  # or lost: nobody can tell
    left_out: int = 0  # the table's shape left out so many rows
    rejected: int = 0  # the transform raised for so many rows, which are dead letters
    uncounted: int = 0  # so many more offsets are absent than the counts say, or fewer
    mismatch: str = ""  # why the queue is another one than has landed here
    in_queue: int | None = None  # of the missing; None: not asked

    @property
    def intact_to(self) -> int:
        """Return the offset up to which the table is proven to hold every row once.

        Where a transform drops rows, nothing behind the last row that is there is proven. Where
        rows are left out or rejected, only their number is known: it proves all or nothing.
        """
        if self.uncounted:
            return self.begin
        bounds = [lo for ranges in (self.missing, self.twice) for lo, _ in ranges[:1]]
        end = self.landed.offset if self.landed else self.begin
        bounds += [lo for lo, hi in self.dropped[-1:] if hi == end]
        return min([end, *bounds])

    @property
    def proven(self) -> bool:
        wrong = self.missing or self.twice or self.above or self.uncounted or self.mismatch
        return self.landed is not None and not wrong

    @property
    def intact(self) -> bool:
        return self.proven and not self.back


@dataclass(slots=True)
class Report:
    location: str
    version: int
    files: int
    gateways: dict[str, GatewayReport] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    nameless: int = 0
    half_made: bool = False

    @property
    def intact(self) -> bool:
        return not (self.lost or self.nameless or self.half_made) and all(
            found.intact for found in self.gateways.values()
        )

    @property
    def rows(self) -> int:
        return sum(found.rows for found in self.gateways.values())

    def findings(self) -> Iterator[str]:
        if self.half_made:
            yield "half made: run 'msgproto table derive' again, to its end"
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
        ("erased, and there again", found.back),
    ):
        for lo, hi in ranges[:LINES_MAX]:
            yield f"{kind}: gateway {gateway} offsets {lo} to {hi} ({hi - lo} rows)"
        if len(ranges) > LINES_MAX:
            rest = ranges[LINES_MAX:]
            yield f"{kind}: gateway {gateway} {len(rest)} more ranges ({size(rest)} rows)"
    if found.missing and found.in_queue is not None:
        total = size(found.missing)
        yield f"missing: gateway {gateway} its queue still has {found.in_queue} of {total} rows"
    if found.uncounted > 0:
        yield (
            f"missing: gateway {gateway} {found.uncounted} rows, among the offsets that are absent "
            f"because the table leaves rows out or rejects them"
        )
    if found.uncounted < 0:
        yield (
            f"not left out: gateway {gateway} has {-found.uncounted} rows more than the log says"
        )
    if found.landed is None:
        yield f"no place: gateway {gateway} has {found.rows} rows, and the log has no place of it"
    if found.mismatch:
        yield f"not its queue: gateway {gateway} {found.mismatch}"


def verify(
    table: Table, queues: Mapping[str, Queue] | None = None, *, every_column: bool = False
) -> Report:
    """Read every row of ``table`` (``every_column``: whole files); report the missing and twice.

    ``queues``, by queue id, are asked what they still have, and whether it is the same history.
    """
    check_columns(table)
    files = table.files()
    offsets = read_offsets(table.storage, files, every_column=every_column)
    report = Report(table.location, table.version, len(files))
    report.lost, report.nameless = offsets.lost, offsets.nameless
    report.half_made = gaps.half_derived(table.transactions)
    reasons = _Reasons(table)
    landed = table.landed()
    for gateway in sorted({*landed, *offsets.gateways}):
        coverage = offsets.gateways.get(gateway, Coverage())
        report.gateways[gateway] = _judged(gateway, landed.get(gateway), coverage, reasons)
    for gateway, found in report.gateways.items():
        if queues and gateway in queues:
            _ask(found, queues[gateway])
    return report


def _judged(
    gateway: str, landed: Landed | None, coverage: Coverage, reasons: _Reasons
) -> GatewayReport:
    seen, end = coverage.ranges(), landed.offset if landed else 0
    expired = reasons.expired.get(gateway, [])
    damaged = reasons.damaged.get(gateway, [])
    noted = reasons.erased.get(gateway, [])
    known = [lo for ranges in (seen, expired, damaged, noted) for lo, _ in ranges[:1]]
    begin = reasons.begins.get(gateway, min(known, default=0))
    absent = without([(begin, end)], seen)
    left_out, rejected = (counts.get(gateway, 0) for counts in (reasons.left_out, reasons.rejected))
    by_count = left_out or rejected
    rest = without(absent, noted)
    erased = without(absent, rest)
    dropped_from = reasons.dropping.get(gateway, end)
    missing = rest if by_count else without(rest, [*expired, *damaged])
    missing, dropped = (
        without(missing, [(dropped_from, end)]),
        without(missing, [(0, dropped_from)]),
    )
    uncounted = 0
    if by_count:
        # The counts do not say how many of theirs are where a transform drops rows.
        uncounted = size(missing) - gaps.absent(reasons.transactions, gateway)
        uncounted = max(0, uncounted) if gateway in reasons.dropping else uncounted
        missing = []
    # Where rows are left out or rejected, ranges are too coarse: they are counted.
    counted = (reasons.counted(gateway) if by_count else None) or (
        size(rest) - size(without(rest, expired)),
        size(without(rest, expired)) - size(without(rest, [*expired, *damaged])),
    )
    present = without(seen, without(seen, reasons.noted.get(gateway, [])))
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
        erased=erased,
        back=present,
        expired_rows=counted[0],
        damaged_rows=counted[1],
        dropped=dropped,
        left_out=left_out,
        rejected=rejected,
        uncounted=uncounted,
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
    def __init__(self, table: Table) -> None:
        self.transactions = table.transactions
        self.left_out = gaps.counted(table.transactions, gaps.LEFT_OUT_PREFIX)
        self.rejected = gaps.counted(table.transactions, gaps.REJECTED_PREFIX)
        self.begins = gaps.offsets(table.transactions, gaps.BEGIN_PREFIX)
        self.expired = gaps.noted(table.transactions, gaps.EXPIRED_PREFIX)
        self.damaged = gaps.noted(table.transactions, gaps.DAMAGED_PREFIX)
        self.noted = erased.Notes(table.storage).of(table.transactions)
        # What others took out, a start of a bridge would note.
        self.erased = erased.united([self.noted, *not_noted(table).values()])
        self.dropping = gaps.offsets(table.transactions, gaps.DROPPING_PREFIX)

    def counted(self, gateway: str) -> tuple[int, int]:
        prefixes = gaps.EXPIRED_ROWS_PREFIX, gaps.DAMAGED_ROWS_PREFIX
        expired, damaged = (self.transactions.get(prefix + gateway, 0) for prefix in prefixes)
        return expired, damaged


# -- counts ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class GatewayCounts:
    landed: int | None = None
    begin: int | None = None  # the lowest offset in the table
    rows: int = 0


@dataclass(slots=True)
class Counts:
    location: str
    version: int
    table_id: str
    files: int
    bytes: int
    rows: int = 0
    partitions: dict[str, dict[str, int]] = field(default_factory=dict)  # column, value: rows
    gateways: dict[str, GatewayCounts] = field(default_factory=dict)


def counts(table: Table) -> Counts:
    """Return what the log says; only files of which it does not say enough are opened."""
    files = table.files()
    nbytes = sum(file.size for file in files)
    found = Counts(table.location, table.version, table.table_id, len(files), nbytes)
    for gateway, landed in table.landed().items():
        found.gateways[gateway] = GatewayCounts(landed.offset)
    keys = has_keys(table)
    for file in files:
        try:
            _count(found, file, table.storage, keys)
        except FileLost as error:
            tells = verify_tells(table.location)
            raise TableError(f"{file.path} of {table.location}: {error}; {tells}") from error
    found.gateways = dict(sorted(found.gateways.items()))
    return found


def _count(found: Counts, file: DataFile, storage: Storage, keys: bool) -> None:
    rows = int(read_footer(storage, file).num_rows) if file.rows is None else file.rows
    found.rows += rows
    for name, value in file.partition.items():
        by = found.partitions.setdefault(name, {})
        key = "null" if value is None else value
        by[key] = by.get(key, 0) + rows
    for gateway, begin, rows in gateways_of(storage, file) if keys else ():
        each = found.gateways.setdefault(gateway, GatewayCounts())
        each.begin = begin if each.begin is None else min(each.begin, begin)
        each.rows += rows
