"""Rows for which a transform raises: found by halving their batch, and landed in a table beside.

The main table decides. The version that lands the rest of a batch counts the rows that it rejects
(``msgproto-rejected:GATEWAY``), and ``msgproto-dead-letters:GATEWAY`` names the durable file that
lists them. The table of dead letters follows with a version that has those rows and notes the same
name. Until then no other row of that gateway lands and its queue is told nothing.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from ..core.errors import ConfigurationError, QueueMismatch, TableError
from ..queue import SCHEMA
from ..queue.damage import merged as merged_ranges
from ..queue.interface import Queue
from . import erased, gaps, plan, preflight
from .actions import Run, Torn
from .delta_table import Table
from .landing import DAY, Failure, LandedRanges, OpenQueue, Target, discard, land_ranges, merged
from .plan import Range
from .row_offsets import read_offsets, size, without
from .snapshot import read_version
from .storage import Storage, one_line

ERROR = pa.field("_error", pa.string())

DEAD_SCHEMA: pa.Schema = SCHEMA.append(ERROR).append(DAY)
"""A dead letter has the queue's columns, and what the function raised."""

NOTE_PREFIX = "msgproto-dead-letters:"
DONE_PREFIX = "msgproto-dead-letters-of:"
FOLDER = "_bridge/rejected"

REJECTED_MAX = 1000
REJECTED_SHARE = 100
# A batch may lose one row in a hundred, or these few, but no thousand: then the function is wrong.
REJECTED_FEW = 10

SHOWN_MAX = 5

NOTE_BITS = 62

Rejected = Mapping[str, Mapping[int, str]]  # offsets of each gateway's rows, and why


class FunctionFailed(TableError):
    """A transform raised, and nothing else was at fault; ``by_row``: a batch can be halved."""

    def __init__(self, name: str, reason: str, *, by_row: bool) -> None:
        super().__init__(f"the transform {name} failed: {reason}")
        self.name = name
        self.reason = reason
        self.by_row = by_row


# -- halving --------------------------------------------------------------------------------------

Run_ = Callable[[Sequence[Sequence[Range]]], LandedRanges]


def rejected_max(rows: int, before: int = 0) -> int:
    """Return how many of a batch's rows may be rejected, when ``before`` were since one landed."""
    return min(REJECTED_MAX, max(0, REJECTED_FEW - before, rows // REJECTED_SHARE))


def land_without(
    run: Run_,
    storage: Storage,
    tasks: Sequence[Sequence[Range]],
    error: FunctionFailed,
    before: int | None,
    cores: int = 1,
) -> LandedRanges:
    """Land those rows of a batch for which the function does not raise ``error``.

    ``before`` rows were rejected since one landed (None: no dead letters). Raises TableError when
    it rejects too many, or fails on a part as such; then nothing has landed.
    """
    whole = [part for ranges in tasks for part in ranges]
    number = sum(part.hi - part.lo for part in whole)
    limit = None if before is None else rejected_max(number)
    if not error.by_row:
        where = [f"offsets {one.lo} to {one.hi} of gateway {one.gateway}" for one in whole]
        more = len(where) - SHOWN_MAX
        shown = ", ".join(where[:SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")
        raise TableError(f"{error}; it looks across rows, so any of {shown} may be the reason")
    landed: list[LandedRanges] = []
    rejected: list[tuple[Range, FunctionFailed]] = []
    waiting = _halves(whole)
    fails = False
    try:
        while waiting:
            ranges, first = waiting.pop()
            rows = sum(part.hi - part.lo for part in ranges)
            if fails and rows > 1:
                waiting += _halves(ranges)
                fails = False
                continue
            fails = False
            try:
                done = run(plan.cut(ranges, plan.task_number(rows, len(ranges), cores)))
            except FunctionFailed as failed:
                if rows > 1:
                    waiting += _halves(ranges)
                    continue
                rejected.append((ranges[0], failed))
                if len(rejected) > (limit or 0):
                    raise TableError(_too_many(rejected, limit)) from failed
                continue
            landed.append(done)
            if done.failed:
                break
            fails = first  # the other half then, which is next
    except BaseException:
        _forget(storage, landed)
        raise
    found = merged(landed)
    if found.failed:
        _forget(storage, landed)
        return LandedRanges(failed=found.failed)
    alone = rejected_max(number, before or 0)
    if not sum(found.rows.values()) and len(rejected) > alone:
        raise TableError(_too_many(rejected, alone)) from rejected[-1][1]
    for part, raised in rejected:
        found.rejected.setdefault(part.gateway, {})[part.lo] = raised.reason
    return found


def _halves(ranges: Sequence[Range]) -> list[tuple[list[Range], bool]]:
    """Return both halves of a batch, the first one last, and whether it is the first of two."""
    parts = plan.cut(ranges, 2)
    return [(part, number < len(parts) - 1) for number, part in enumerate(parts)][::-1]


def _too_many(rejected: Sequence[tuple[Range, FunctionFailed]], limit: int | None) -> str:
    (first, error), (last, _) = rejected[0], rejected[-1]
    if limit is None:
        return (
            f"{error}, at offset {first.lo} of gateway {first.gateway}; mend the function, or name "
            "a table for such rows (dead_letters)"
        )
    return (
        f"{error}, at offset {first.lo} of gateway {first.gateway} and for {len(rejected)} rows up "
        f"to offset {last.lo} of gateway {last.gateway}: more than the {limit} that may be dead "
        "letters of one batch; mend the function"
    )


def _forget(storage: Storage, landed: Iterable[LandedRanges]) -> None:
    discard(storage, [file.path for part in landed for file in part.files])


# -- the notes of the main table ------------------------------------------------------------------


def _path_of(note: int) -> str:
    return f"{FOLDER}/{note:016x}.json"


def lists(transactions: Mapping[str, int]) -> set[str]:
    """Return the files of rejected rows that a table's notes name."""
    return {_path_of(note) for name, note in transactions.items() if name.startswith(NOTE_PREFIX)}


def _listed(main: Table) -> dict[str, tuple[int, dict[int, str]]]:
    """Return which rows wait to become dead letters; a file that is gone says that they are."""
    found = {}
    landed = main.landed()
    for name, note in main.transactions.items():
        gateway = name.removeprefix(NOTE_PREFIX)
        if gateway == name:
            continue
        try:
            rows = json.loads(main.storage.read(_path_of(note)))
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise TableError(
                f"{_path_of(note)} of {main.location} says which rows are to be dead letters, and "
                f"cannot be read: {one_line(error)}; put it back from a copy of the table's folder"
            ) from error
        # A rewind has set the others back: they land again, and may be rejected again.
        below = landed[gateway].offset
        found[gateway] = note, {int(at): why for at, why in rows.items() if int(at) < below}
    return found


def refuse_waiting(main: Table) -> None:
    """Raise ConfigurationError if rows wait to become dead letters and nobody says where."""
    for gateway, (_, rows) in _listed(main).items():
        raise ConfigurationError(
            f"{len(rows)} rows of gateway {gateway} which {main.location} has rejected are not yet "
            "among its dead letters: name that table once more (dead_letters)"
        )


def _rejected_in_a_row(main: Table) -> int:
    """Return how many rows the newest versions of a table have rejected, back to one with rows."""
    found = 0
    for version in range(main.version, -1, -1):
        try:
            commit = read_version(main.storage, version)
        except (FileNotFoundError, Torn):
            break
        except OSError as error:
            raise TableError(f"cannot read {main.location}: {one_line(error)}") from error
        if found >= REJECTED_FEW or (commit.added and commit.data_change):
            break
        entries: Any = commit.info.get("gateways", {})
        found += sum(entry.get("rejected", 0) for entry in entries.values())
    return found


Letters = tuple[int, dict[int, str], int]  # note, offsets with causes, the dead letters' note


class DeadLetters:
    """``table`` has the dead letters of ``main``; ``waiting`` are those that it has not yet."""

    def __init__(
        self,
        main: Table,
        table: Table,
        run: Run,
        open_queue: OpenQueue,
        maintenance: Callable[[Table], None] = Table.maintain,
    ) -> None:
        preflight.check_operations(table)
        self.table = table
        table.seen = lambda commit: (preflight.note_erased(table, commit), None)[1]
        self._main = main
        self._run = run
        self._open_queue = open_queue
        self._maintenance = maintenance
        self._prefix = f"{DONE_PREFIX}{main.table_id}:"
        for name in table.transactions:
            if name.startswith(DONE_PREFIX) and not name.startswith(self._prefix):
                raise ConfigurationError(
                    f"{table.location} has the dead letters of another table; choose another"
                )
        self.waiting: dict[str, Letters] = {}
        # It is read after the dead letters: else another bridge might have gone on in between.
        now = Table.open(main.location, main.storage.options)
        self.in_a_row = _rejected_in_a_row(now)  # since one landed, by earlier bridges, too
        for gateway, (note, rows) in _listed(now).items():
            known = table.transactions.get(self._prefix + gateway, 0)
            if rows and known != note:
                self.waiting[gateway] = note, rows, known
            else:
                self._settle(note)
        self._proposed: dict[str, Letters] = {}
        places = {gateway: place.offset for gateway, place in main.landed().items()}
        self._unproven = {
            gateway: place
            for gateway, place in table.landed().items()
            if place.offset > places.get(gateway, 0)
        }
        self.kept: erased.Erased = self._kept(places) if self._unproven else {}
        """Rows at and above the place of the main table, which was set back: dead letters stay."""

    def _kept(self, places: Mapping[str, int]) -> erased.Erased:
        storage = self.table.storage
        seen = read_offsets(storage, self.table.files()).gateways
        noted = erased.Notes(storage).of({**self.table.transactions, **self.table.due})
        rows = erased.united([{name: one.ranges() for name, one in seen.items()}, noted])
        return {
            gateway: without(rows.get(gateway, []), [(0, places.get(gateway, 0))])
            for gateway in self._unproven
        }

    def check(self, gateway: str, queue: Queue) -> None:
        """Raise QueueMismatch if dead letters above the main table's place hide others' offsets."""
        if gateway in self._unproven:
            try:
                queue.check(self._unproven[gateway])
            except QueueMismatch as error:
                raise QueueMismatch(
                    f"{error} (in the dead letters {self.table.location}); "
                    f"{erased.rewind(self.table.location)}"
                ) from error
            del self._unproven[gateway]

    def notes(
        self, bounds: Mapping[str, tuple[int, int]], rejected: Rejected
    ) -> tuple[dict[str, int], dict[str, int]]:
        """Return how many rows a batch rejects, with older dead ones, and its notes of that."""
        counts, notes = {}, {}
        self._proposed = {}
        for gateway, (lo, hi) in bounds.items():
            kept = self.kept.get(gateway, [])
            rows = dict(rejected.get(gateway, {}))
            counts[gateway] = len(rows) + size(kept) - size(without(kept, [(lo, hi)]))
            if rows:
                note = uuid.uuid4().int >> 128 - NOTE_BITS
                erased.put(self._main.storage, _path_of(note), json.dumps(rows).encode())
                known = self.table.transactions.get(self._prefix + gateway, 0)
                self._proposed[gateway] = note, rows, known
                notes[NOTE_PREFIX + gateway] = note
        return counts, notes | gaps.added(gaps.REJECTED_PREFIX, counts, self._main.transactions)

    def decided(self) -> None:
        """The version with the last :meth:`notes` is in the main table, and durable."""
        self.waiting |= self._proposed
        self._proposed = {}

    def follow(self, gateway: str, location: str, access: object = None) -> Failure | None:
        """Land what waits of a gateway; return why it cannot be read, if that is so."""
        note, rows, known = self.waiting[gateway]
        place, before = self._main.landed()[gateway], self.table.landed().get(gateway)
        parts = merged_ranges((offset, offset + 1) for offset in rows)
        landed = land_ranges(
            Target(self.table.location, self.table.storage.options, DEAD_SCHEMA),
            [Range(location, gateway, lo, hi, place, access) for lo, hi in parts],
            self._open_queue,
            self.table.storage,
            lambda batch: _with_errors(batch, rows),
        )
        if landed.failed:
            return landed.failed[gateway]
        damaged = gaps.sizes(landed.damaged).get(gateway, 0)
        if landed.rows.get(gateway, 0) + damaged != len(rows):
            raise TableError(f"rejected rows of gateway {gateway} were not read")
        begin = parts[0][0] if before is None else before.offset
        if before is not None and before.offset > place.offset:
            place = before
        notes = gaps.batch_notes(
            {gateway: begin} if before is None else {},
            landed.damaged,
            self.table.transactions,
            left_out={gateway: place.offset - begin - len(rows)},
        )
        name = self._prefix + gateway
        self.table.commit(
            landed.files,
            {gateway: place},
            before={gateway: before},
            run=self._run,
            notes=notes | {name: note},
            notes_before={name: known},
        )
        self.table.sync()
        self._settle(note)
        del self.waiting[gateway]
        self._maintenance(self.table)
        return None

    def _settle(self, note: int) -> None:
        with contextlib.suppress(OSError):
            self._main.storage.delete(_path_of(note))


def _with_errors(batch: pa.RecordBatch, rows: Mapping[int, str]) -> pa.RecordBatch:
    errors = [rows.get(offset) for offset in batch.column("offset").to_pylist()]
    schema = batch.schema.append(ERROR)
    return pa.RecordBatch.from_arrays([*batch.columns, pa.array(errors, ERROR.type)], schema=schema)
