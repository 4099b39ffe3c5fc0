"""Set a gateway's place in a table back to what the table's rows prove.

``rewind`` finds the offset up to which the table holds every row once, sets the place to it, and
removes the rows from there on, in the same version: the queue lands them again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ..core.errors import Overtaken, QueueMismatch, TableError
from ..queue import SCHEMA
from ..queue.damage import Range
from ..queue.interface import Queue
from ..queue.lineage import Landed
from . import erased, gaps
from .actions import Commit, DataFile, Run
from .delta_table import Table
from .landing import rewrite
from .preflight import REWIND, consumer_name, not_noted
from .proof import GatewayReport, Report, verify
from .row_offsets import (
    END,
    KEY,
    FileLost,
    groups_of,
    may_hold,
    queried,
    size,
    without,
)


@dataclass(slots=True)
class Rewound:
    gateway: str
    before: Landed
    place: Landed
    removed: int
    lost: int = 0  # so many of these the queue does not have


@dataclass(slots=True)
class Plan:
    gateways: list[Rewound] = field(default_factory=list)
    files: list[DataFile] = field(default_factory=list)  # written again, or lost
    version: int | None = None


def rewind(
    table: Table,
    run: Run,
    *,
    queues: Mapping[str, Queue] | None = None,
    gateways: Sequence[str] = (),
    discard_rows: bool = False,
    dry_run: bool = False,
) -> Plan:
    """Set the places of ``gateways`` (default: all the table knows) to what ``verify`` proves.

    ``queues``, by id, say whether they still have rows; needed where anything is wrong. Only
    ``discard_rows`` removes rows that the table alone has.
    """
    try:
        return _rewind(table, run, queues or {}, gateways, discard_rows, dry_run)
    except FileLost as error:
        raise TableError(
            f"a file of {table.location} went meanwhile: {error}; try again"
        ) from error


def _rewind(
    table: Table,
    run: Run,
    queues: Mapping[str, Queue],
    gateways: Sequence[str],
    discard_rows: bool,
    dry_run: bool,
) -> Plan:
    _stand_on(table)
    others = not_noted(table)
    report = verify(table, queues, every_column=True)
    known = table.landed()
    for gateway in gateways:
        if gateway not in known:
            raise TableError(f"{table.location} has no place of a gateway {gateway}")
    chosen = list(gateways) or sorted(known)
    plan = Plan()
    for gateway in chosen:
        plan.gateways.append(_placed(table, report, gateway, queues.get(gateway)))
    places = {found.gateway: found.place.offset for found in plan.gateways}
    plan.files = list(_concerned(table, report, places))
    for found in plan.gateways:
        if found.lost and not discard_rows:
            first = found.place.offset
            raise TableError(
                f"gateway {found.gateway}: {found.lost} rows from offset {first} on are in this "
                "table alone, its queue has other rows there or none; copy them if you need them "
                "and add --discard to take them out of the table"
            )
    if not dry_run:
        for found in plan.gateways:
            if found.gateway in queues:
                _keep(table, queues[found.gateway], found)
        notes = _still_erased(table, report, places, others)
        _write(table, run, report, plan, places, notes)
    return plan


def _stand_on(table: Table) -> None:
    """Let nothing that another program does meanwhile stand behind the new places."""

    def seen(commit: Commit) -> None:
        if commit.run is None and commit.data_change and (commit.added or commit.removed):
            raise TableError(f"another program has changed {table.location} meanwhile; try again")

    table.seen = seen


def _placed(table: Table, report: Report, gateway: str, queue: Queue | None) -> Rewound:
    found = report.gateways[gateway]
    landed = table.landed()[gateway]
    offset = found.intact_to
    if queue is None:
        # What a transform may have dropped behind the last row may as well be gone.
        if not found.proven or offset < landed.offset or report.lost:
            raise TableError(
                f"gateway {gateway} is intact up to offset {offset} of {landed.offset}; --queue "
                "names its queue, which has to land the rest again"
            )
        return Rewound(gateway, landed, landed, size(found.back))
    if found.mismatch:
        offset = divergence(table, queue, gateway, offset)
    # Of another history the queue has no row, of its own none at or above its end.
    lost = _rows_from(found, offset if found.mismatch else max(offset, queue.end()))
    begin = queue.begin()
    if offset < begin:
        raise TableError(
            f"gateway {gateway} is intact up to offset {offset}, and its queue begins at {begin}: "
            f"{begin - offset} rows are in neither. Restore the table from a copy or to a later "
            "version, expire their day, or land into a new table"
        )
    try:
        place = queue.place(offset)
    except QueueMismatch as error:
        raise TableError(f"gateway {gateway} cannot go on at offset {offset}: {error}") from error
    removed = _rows_from(found, offset) + size(without(found.back, [(offset, END)]))
    return Rewound(gateway, landed, place, removed, lost)


def _keep(table: Table, queue: Queue, found: Rewound) -> None:
    """Have the queue keep what has to land again: the bridge's mark let it trim that.

    Without a consumer of the table's name any may be the bridge's: all marks are set back.
    """
    place, marks = found.place, queue.describe().consumers
    own = consumer_name(table.table_id)
    for name, mark in marks.items():
        if mark > place.offset and (name == own or own not in marks):
            queue.commit(name, place.offset)
    begin = queue.describe().begin
    if place.offset < begin:
        raise TableError(
            f"gateway {found.gateway} is intact up to offset {place.offset}, and its queue, which "
            f"begins at {begin}, was trimmed meanwhile: nothing was changed; try again to see what "
            "is left"
        )


def _rows_from(found: GatewayReport, offset: int) -> int:
    """Return how many rows are at or above an offset, those that are twice counted once."""
    return sum(hi - max(lo, offset) for lo, hi in found.seen if hi > offset)


# -- rows -----------------------------------------------------------------------------------------


def _concerned(table: Table, report: Report, places: Mapping[str, int]) -> Iterator[DataFile]:
    lowest = {
        gateway: min([offset, *(lo for lo, _ in report.gateways[gateway].back)])
        for gateway, offset in places.items()
        if report.gateways[gateway].back or _rows_from(report.gateways[gateway], offset)
    }
    for file in table.files():
        lost = file.path in report.lost
        if lost or (
            lowest
            and may_hold(file, min(lowest.values()), END)
            and _holds(table, file, report, places)
        ):
            yield file


def _holds(table: Table, file: DataFile, report: Report, places: Mapping[str, int]) -> bool:
    groups = groups_of(table.storage, file, KEY)
    return any(pc.any(_out(rows, report, places)).as_py() for rows in groups)


def _out(rows: pa.Table, report: Report, places: Mapping[str, int]) -> pa.ChunkedArray:
    back = {gateway: report.gateways[gateway].back for gateway in places}
    return pc.or_(_above(rows, places), erased.among(rows, back))


def _above(rows: pa.Table, places: Mapping[str, int]) -> pa.ChunkedArray:
    names = pa.array(list(places), pa.string())
    bounds = pa.array(list(places.values()), pa.int64())
    index = pc.index_in(rows.column("gateway").cast(pa.string()), names)
    above = pc.greater_equal(rows.column("offset"), pc.take(bounds, index))
    return pc.fill_null(above, False)


def _write(
    table: Table,
    run: Run,
    report: Report,
    plan: Plan,
    places: Mapping[str, int],
    notes: Mapping[str, int],
) -> None:
    known, absent = table.transactions, _absent(table, report, places)
    try:
        plan.version = rewrite(
            table,
            plan.files,
            lambda rows: pc.invert(_out(rows, report, places)),
            lost=report.lost,
            run=run,
            operation=REWIND,
            landed={found.gateway: found.place for found in plan.gateways},
            before={found.gateway: found.before for found in plan.gateways},
            info={"rewound": {found.gateway: found.place.offset for found in plan.gateways}},
            notes={**notes, **absent},
            notes_before={name: known.get(name, 0) for name in absent},
        )
    except Overtaken as error:
        line = f"{error}; stop what writes this table, then rewind again"
        raise TableError(line) from error


def _absent(table: Table, report: Report, places: Mapping[str, int]) -> dict[str, int]:
    """Return what is left out below the new places: all that is absent there and was proven."""
    notes: dict[str, int] = {}
    for gateway, offset in places.items():
        found = report.gateways[gateway]
        known = [*without(found.seen, found.back), *found.erased, *found.back]
        rows = size(without([(found.begin, offset)], known)) if offset > found.begin else 0
        notes |= gaps.absent_notes(table.transactions, gateway, rows)
    return notes


def _still_erased(
    table: Table,
    report: Report,
    places: Mapping[str, int],
    others: Mapping[str, erased.Erased],
) -> dict[str, int]:
    """Return the notes of what stays erased, unless it was put back or is another history's."""
    other = {name for name in places if report.gateways[name].mismatch}
    noted = erased.Notes(table.storage).of(table.transactions)
    taken = {
        gateway: without(parts, report.gateways[gateway].seen)
        for gateway, parts in erased.united(others.values()).items()
    }
    stay = {
        gateway: without(parts, [(places[gateway], END)]) if gateway in other else parts
        for gateway, parts in erased.united([noted, taken]).items()
    }
    if stay == noted and not others:
        return {}
    return erased.instead(table.storage, table.transactions, stay, *others)


# -- where a table and a queue diverge -------------------------------------------------------------


PROOF = ("received_at", "message_id", "session", "peer", "body")
"""These columns distinguish rows of two histories; those that the table has are compared."""


def divergence(table: Table, queue: Queue, gateway: str, intact_to: int) -> int:
    """Return the offset after the last row that table and queue have in common.

    A queue restored from an older copy and written on differs from there: it is found by halving.
    """
    names = [name for name in PROOF if name in table.schema.names]
    types = {name: table.schema.field(name).type for name in names}
    if "received_at" not in names or any(types[n] != SCHEMA.field(n).type for n in names):
        raise TableError(
            f"{table.location} does not have the columns of its queues, so where it parts from "
            f"queue {gateway} cannot be told; land into a new table"
        )
    begin, end = queue.begin(), min(queue.end(), intact_to)
    if end <= begin:
        return end
    low, high = begin, end
    while low < high:
        middle = (low + high) // 2
        if _same(table, queue, (middle, end), names):
            low = middle + 1
        else:
            high = middle
    if low == begin > 0:
        raise TableError(
            f"no row which queue {gateway} still holds (from offset {begin} on) is in "
            f"{table.location}; land into a new table"
        )
    return low


def _same(table: Table, queue: Queue, within: Range, names: list[str]) -> bool:
    offset, end = within
    columns = ", ".join(f'"{name}"' for name in names)
    mine = "gateway = '{}'".format(queue.queue_id.replace("'", "''"))
    while offset < end:
        theirs = next((rows for rows in queue.read(offset, end) if rows.num_rows), None)
        if theirs is None:
            return False
        offset = theirs.column("offset")[0].as_py()
        ours = _rows(table, f'SELECT {columns} FROM rows WHERE {mine} AND "offset" = {offset}')
        if ours:
            return bool(ours[0] == theirs.select(names).slice(0, 1).to_pylist()[0])
        next_one = f'SELECT min("offset") AS lo FROM rows WHERE {mine} AND "offset" > {offset}'
        offset = _rows(table, next_one)[0]["lo"] or end
    return False


def _rows(table: Table, query: str) -> list[dict[str, Any]]:
    return [row for part in queried(table, query) for row in part.to_pylist()]
