"""Find where a table and a queue part: the last row that both have.

A queue that was restored from an older copy and written on has other rows than the table from some
offset on.  Below it rows are the same in both, above it they are not, so the offset is found by
halving.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ..core.errors import TableError
from ..queue import SCHEMA
from ..queue.source import Queue
from .actions import DataFile
from .log import Table
from .offsets import KEY, read_footer, read_group

PROOF = ("received_at", "message_id", "session", "peer", "body")
"""These columns distinguish rows of two histories; those that the table has are compared."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where rows lo ≤ offset < hi of the gateway are."""

    lo: int
    hi: int
    file: DataFile
    group: int


def parting_offset(table: Table, queue: Queue, gateway: str, whole_to: int) -> int:
    """Return the offset after the last row that the table and the queue have in common.

    It is at most ``whole_to``.  What the queue has trimmed cannot be compared.

    Raises:
        TableError: the rows cannot be compared, or none that the queue holds is in the table.
        FileLost: a file of the table is missing or torn.
    """
    names = [name for name in PROOF if name in table.schema.names]
    types = {name: table.schema.field(name).type for name in names}
    if "received_at" not in names or any(types[n] != SCHEMA.field(n).type for n in names):
        raise TableError(
            f"{table.location} does not have the columns of its queues, so where it parts from "
            f"queue {gateway} cannot be told; land into a new table"
        )
    begin, end = queue.begin(), min(queue.end(), whole_to)
    if end <= begin:
        return end
    rows = _Rows(table, gateway, begin, end, [*KEY, *names])
    low, high = begin, end
    while low < high:
        middle = (low + high) // 2
        if _same(rows, queue, middle, names):
            low = middle + 1
        else:
            high = middle
    if low == begin > 0:
        raise TableError(
            f"no row which queue {gateway} still holds (from offset {begin} on) is in "
            f"{table.location}; land into a new table"
        )
    return low


def _same(rows: _Rows, queue: Queue, offset: int, names: list[str]) -> bool:
    """Return whether a row is the same in both; what is damaged in the queue is told by the next
    one.
    """
    while offset < rows.end:
        ours = rows.row(offset)
        theirs = [batch for batch in queue.read(offset, offset + 1) if batch.num_rows]
        if ours is not None and theirs:
            return bool(ours == theirs[0].select(names).slice(0, 1).to_pylist()[0])
        offset += 1
    return False


class _Rows:
    """Single rows of one gateway in a table."""

    def __init__(self, table: Table, gateway: str, begin: int, end: int, names: list[str]) -> None:
        self.end = end
        self._table = table
        self._gateway = gateway
        self._names = names
        self._places = [
            place for file in table.files() for place in _places(table, file, gateway, begin, end)
        ]

    def row(self, offset: int) -> dict[str, Any] | None:
        """Return a row's columns of PROOF; None if the table does not have it."""
        for place in self._places:
            if place.lo <= offset < place.hi:
                rows = _group(self._table, place, self._names)
                mine = pc.and_(
                    pc.equal(rows.column("gateway"), self._gateway),
                    pc.equal(rows.column("offset"), offset),
                )
                found = rows.filter(mine).drop_columns([*KEY]).to_pylist()
                if found:
                    row: dict[str, Any] = found[0]
                    return row
        return None


def _places(table: Table, file: DataFile, gateway: str, begin: int, end: int) -> list[_Place]:
    found = []
    footer = read_footer(table.storage, file)
    for group in range(footer.num_row_groups):
        rows = read_group(table.storage, file, footer, group, KEY)
        offsets = rows.column("offset").filter(pc.equal(rows.column("gateway"), gateway))
        bounds = pc.min_max(offsets).as_py()
        if bounds["min"] is not None and bounds["min"] < end and bounds["max"] >= begin:
            found.append(_Place(bounds["min"], bounds["max"] + 1, file, group))
    return found


def _group(table: Table, place: _Place, names: list[str]) -> pa.Table:
    footer = read_footer(table.storage, place.file)
    return read_group(table.storage, place.file, footer, place.group, names)
