"""Remove old days from a table: whole files, by the partition column ``day``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date

from ..core.errors import Overtaken, TableError
from ..queue.damage import Range
from . import gaps
from .actions import DataFile, Run
from .intervals import size
from .log import Table
from .offsets import KEY, read_offsets

DAY = "day"
ATTEMPTS_MAX = 20


@dataclass(slots=True)
class Expired:
    """What an expiry removed, or would remove."""

    before: date
    days: list[str] = field(default_factory=list)
    files: int = 0
    octets: int = 0
    gateways: Mapping[str, list[Range]] = field(default_factory=dict)
    version: int | None = None

    @property
    def rows(self) -> int:
        return sum(size(ranges) for ranges in self.gateways.values())


def expire(table: Table, before: date, run: Run, *, dry_run: bool = False) -> Expired:
    """Remove the days before ``before`` from ``table``, in one version.

    The version notes the removed offsets, so that ``verify`` does not miss them.  The files stay on
    the disk until vacuum removes them.

    Raises:
        TableError: the table is not partitioned by day, or cannot be read or written.
    """
    if DAY not in table.partition_by:
        raise TableError(
            f"{table.location} is not partitioned by {DAY}, so a day's rows are not whole files"
        )
    for _ in range(ATTEMPTS_MAX):
        files = days_before(table, before)
        expired = _expired(table, files, before)
        if not files or dry_run:
            return expired
        notes = gaps.notes(gaps.EXPIRED_PREFIX, expired.gateways, table.transactions)
        try:
            expired.version = table.replace(
                files,
                [],
                run=run,
                operation="DELETE",
                data_change=True,
                info={"expired": before.isoformat()},
                notes=notes,
            )
        except Overtaken:
            continue  # a compaction came first: the same days are in other files now
        return expired
    raise TableError(f"{ATTEMPTS_MAX} other writers came first to the old days of {table.location}")


def days_before(table: Table, before: date) -> list[DataFile]:
    found = []
    for file in table.files():
        try:
            day = date.fromisoformat(file.partition.get(DAY) or "")
        except ValueError:
            continue  # no day is no old day
        if day < before:
            found.append(file)
    return found


def _expired(table: Table, files: list[DataFile], before: date) -> Expired:
    expired = Expired(
        before=before,
        days=sorted({file.partition[DAY] or "" for file in files}),
        files=len(files),
        octets=sum(file.size for file in files),
    )
    if set(KEY) <= set(table.schema.names):
        offsets = read_offsets(table.storage, files)
        expired.gateways = {name: seen.ranges() for name, seen in offsets.gateways.items()}
    return expired
