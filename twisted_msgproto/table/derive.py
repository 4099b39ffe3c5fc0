"""Columns of a raw table's rows: proposed, tried out, and made into a table of their own."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import Any, Unpack

import pyarrow as pa
import pyarrow.compute as pc

from ..core.errors import TableError
from ..queue import SCHEMA
from ..queue.interface import Queue
from ..queue.lineage import Landed
from . import erased, gaps
from .actions import DataFile, Run
from .columns import (
    DAY,
    INTEGER,
    ISO,
    OWN_NAMES,
    BodyError,
    Number,
    is_utf8,
    parse,
    text_of,
)
from .compact import groups
from .delta_table import Machine, Table, exists
from .landing import DAY as DAY_COLUMN
from .landing import Files, LandedRanges, Target, read_rows, undone
from .object_storage import storage_at
from .preflight import consumer_name, not_noted
from .proof import GatewayReport, verify
from .retention import erase
from .row_offsets import END, FileLost, without
from .shape import ERROR, Shape, Shaper
from .storage import Storage, verify_tells

ROWS = 10_000  # a proposal looks at so many rows unless told otherwise

COLUMNS_MAX = 200

FEW = 100  # a member in fewer than one of so many rows is named in a comment alone

LONG_MAX = 1 << 63

Path = tuple[str, ...]


def raw_rows(table: Table, most: int) -> Iterator[pa.RecordBatch]:
    check_raw(table)
    for file in sorted(table.files(), key=lambda file: file.modified):
        for rows in _rows_of(table, file):
            if most <= 0:
                return
            yield rows.slice(0, most)
            most -= rows.num_rows


def check_raw(table: Table) -> None:
    missing = [name for name in SCHEMA.names if name not in table.schema.names]
    if missing:
        raise TableError(
            f"{table.location} has no column {missing[0]!r}: name a table with the queue's columns"
        )


def _rows_of(table: Table, file: DataFile) -> Iterator[pa.RecordBatch]:
    for rows in read_rows(table.storage, file, table.schema):
        rows = rows.select(SCHEMA.names)
        for name, value in file.partition.items():
            if name in SCHEMA.names:
                index = rows.schema.get_field_index(name)
                column = pa.array([value] * rows.num_rows, SCHEMA.field(name).type)
                rows = rows.set_column(index, SCHEMA.field(name), column)
        yield from rows.cast(SCHEMA).combine_chunks().to_batches()


# -- proposing ------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Seen:
    rows: int = 0
    kinds: set[str] = field(default_factory=set)
    many: set[bool] = field(default_factory=set)

    def take(self, value: Any) -> None:
        if value is None:
            return
        self.rows += not isinstance(value, dict)  # its members have columns of their own
        self.many.add(isinstance(value, list))
        parts = value if isinstance(value, list) else [value]
        self.kinds.update(_kind(part) for part in parts if part is not None)

    @property
    def type(self) -> str:
        kinds = self.kinds
        if "json" in kinds or len(self.many) > 1:
            return "json"
        found = "string"
        if len(kinds) == 1:
            [found] = kinds
        elif kinds <= {"long", "double"} and kinds:
            found = "double"
        return f"array<{found}>" if True in self.many else found


def _kind(value: Any) -> str:
    text = text_of(value)
    if text is None:
        return "json"
    if isinstance(value, bool):
        return "boolean"
    if INTEGER.fullmatch(text):
        # What is a text and begins with a zero is a number for nobody who wrote it.
        plain = isinstance(value, Number) or not re.match("-?0.", text)
        fits = len(text) < 20 and int(text) < LONG_MAX
        return "long" if plain and fits else "string"
    if isinstance(value, Number):
        return "double"
    if ISO.fullmatch(text):
        return "timestamp"
    return "date" if DAY.fullmatch(text) else "string"


def propose(batches: Iterable[pa.RecordBatch]) -> str:
    """Return the section ``[table.columns]`` for these rows of a queue, as TOML."""
    found: dict[tuple[bool, Path], _Seen] = {}
    rows = 0
    for batch in batches:
        rows += batch.num_rows
        for body in batch.column("body").to_pylist():
            for path, value in _members(body):
                found.setdefault((False, path), _Seen()).take(value)
        for fields in batch.column("fields").to_pylist():
            for name, value in dict(fields or ()).items():
                if name:
                    found.setdefault((True, (name,)), _Seen()).take(value)
    seen = {place: one for place, one in found.items() if one.rows}
    often = {place: one for place, one in seen.items() if one.rows * FEW >= rows}
    chosen = sorted(often, key=lambda place: -often[place].rows)[:COLUMNS_MAX]
    taken = {name.lower() for name in OWN_NAMES}
    lines = [f"# proposed from {rows} rows", "[table.columns]"]
    for place in [place for place in seen if place in set(chosen)]:
        lines.append(_line(place, seen[place], taken))
    rest = [".".join(path) for (_, path), one in seen.items() if (_, path) not in set(chosen)]
    lines += [f"# seldom: {', '.join(map(_quoted, rest))}"] if rest else []
    return "\n".join(lines)


def _members(body: bytes | None) -> Iterator[tuple[Path, Any]]:
    try:
        document = parse(body) if body is not None else None
    except BodyError:
        return
    waiting: list[tuple[Path, Any]] = [((), document)]
    while waiting:
        path, value = waiting.pop(0)
        if isinstance(value, dict):
            inner = [
                ((*path, name), part) for name, part in value.items() if name and is_utf8(name)
            ]
            waiting = [*inner, *waiting]
        if path:
            yield path, value


def _quoted(text: str) -> str:
    """Return a text as TOML has it, which knows no halves of surrogate pairs."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _line(place: tuple[bool, Path], seen: _Seen, taken: set[str]) -> str:
    in_fields, path = place
    base = re.sub(r"\W+", "_", "_".join(path), flags=re.ASCII).strip("_") or "column"
    name, number = base, 1
    while name.lower() in taken:
        number += 1
        name = f"{base}_{number}"
    taken.add(name.lower())
    dotted = not in_fields and any("." in part for part in path)
    where = f"[{', '.join(map(_quoted, path))}]" if dotted else _quoted(".".join(path))
    source = 'from = "fields", ' if in_fields else ""
    kind = "string" if in_fields and seen.type.startswith(("json", "array")) else seen.type
    return f'{name} = {{ {source}path = {where}, type = "{kind}" }}'


# -- trying out -----------------------------------------------------------------------------------


@dataclass(slots=True)
class Tried:
    """How columns fared: rows that the table would have, values and errors by column."""

    rows: int = 0
    left_out: int = 0
    values: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)


def try_out(shape: Shape, batches: Iterable[pa.RecordBatch]) -> Tried:
    shaper = Shaper(shape)
    tried = Tried()
    columns = [] if shape.columns is None else [one.name for one in shape.columns.columns]
    for batch in batches:
        made = shaper(batch)
        for name in columns:
            tried.values[name] += made.num_rows - made.column(name).null_count
        tried.rows += made.num_rows
        tried.left_out += batch.num_rows - made.num_rows
        for error in made.column(ERROR).drop_null().to_pylist() if shape.columns else ():
            name, colon, _ = error.partition(": ")
            tried.examples.setdefault(name if colon else "", error)
    tried.errors = shaper.errors
    return tried


def tried_lines(name: str, shape: Shape, tried: Tried) -> Sequence[str]:
    left_out = f", {tried.left_out} left out" if tried.left_out else ""
    lines = [f"{name}: {tried.rows} rows{left_out}, {sum(tried.errors.values())} errors"]
    columns = [] if shape.columns is None else [one.name for one in shape.columns.columns]
    for column in ["", *columns]:
        errors = tried.errors[column]
        example = f", as: {tried.examples[column]}" if column in tried.examples else ""
        values = f", {tried.values[column]} values" if column else ""
        if errors or column:
            lines.append(f"{name}: {column or 'body'}: {errors} errors{values}{example}")
    return lines


# -- a table of its own ---------------------------------------------------------------------------

OPERATION = "DERIVE"


@dataclass(slots=True)
class Derived:
    """What :func:`derive` has made of the version ``of``, the last two in this run."""

    version: int
    of: int
    rows: int = 0
    left_out: int = 0
    errors: Counter[str] = field(default_factory=Counter)


def derive(
    raw: Table,
    target: Target,
    queues: Mapping[str, Queue],
    run: Run,
    *,
    consumer: str | None = None,
    say: Callable[[str], object] = lambda line: None,
    **machine: Unpack[Machine],
) -> Derived:
    """Make the table ``target`` of the rows of ``raw``, for a bridge to go on with where that ends.

    First each of ``queues`` (by id) keeps for ``consumer`` what ``raw`` has not landed; then a
    version of ``raw`` is settled on, and converted in parts, each a commit that notes how many
    there are. The last has the places; until then bridges refuse the table. After a kill the same
    call goes on, or begins again when that version cannot be read any more.
    """
    check_raw(raw)
    for gateway, queue in queues.items():
        queue.describe(raw.landed().get(gateway))  # a refusal makes no table
    typed, note = _begun(raw, target, run, machine)
    consumer = consumer or consumer_name(typed.table_id)
    known = typed.transactions
    if not known[note]:
        return Derived(typed.version, 0, _rows_in(typed))
    settled = _settled(raw, known[note] - 1) if known.get(gaps.DERIVED_PARTS) else None
    if settled is None:
        _hold(queues, raw.landed(), consumer)
        raw.refresh()
        raw.sync()
        fresh = {name: 0 for name in known if name.startswith(gaps.LEFT_OUT_PREFIX)}
        fresh |= {note: raw.version + 1, gaps.DERIVED_PARTS: 0}
        before = {name: known.get(name, 0) for name in (note, gaps.DERIVED_PARTS)}
        typed.replace(
            typed.files(),
            [],
            run=run,
            operation=OPERATION,
            data_change=True,
            notes=fresh,
            notes_before=before,
        )
        settled = raw, _proven(raw)
    raw, proof = settled
    _hold(queues, raw.landed(), consumer)
    done = Derived(0, raw.version)
    commit = partial(typed.commit, before={}, run=run, operation=OPERATION)
    parts = _parts(raw)
    for number in range(typed.transactions[gaps.DERIVED_PARTS], len(parts)):
        part = _convert(raw, parts[number], target, typed.storage)
        counted = gaps.added(gaps.LEFT_OUT_PREFIX, part.left_out, typed.transactions)
        commit(
            part.files,
            {},
            notes={**counted, gaps.DERIVED_PARTS: number + 1},
            notes_before={note: raw.version + 1, gaps.DERIVED_PARTS: number},
        )
        left_out = sum(part.left_out.values())
        done.left_out += left_out
        done.errors += part.errors
        say(
            f"part {number + 1} of {len(parts)}, {_day(parts[number][0])}: "
            f"{sum(part.rows.values())} rows, {left_out} left out, "
            f"{sum(part.errors.values())} errors"
        )
    notes = _reasons(raw, proof, typed) | _erased(raw, typed, run)
    commit(
        [],
        raw.landed(),
        notes={**notes, note: 0, gaps.DERIVED_PARTS: 0},
        notes_before={note: raw.version + 1, gaps.DERIVED_PARTS: len(parts)},
    )
    done.version = typed.version
    done.rows = _rows_in(typed)
    return done


def _begun(raw: Table, target: Target, run: Run, machine: Machine) -> tuple[Table, str]:
    """Return the table and the name of the note that says which version of ``raw`` it is of."""
    digest = sha256(repr((target.shape, target.partition_by)).encode()).hexdigest()[:16]
    note = f"{gaps.DERIVING_PREFIX}{raw.table_id}:{digest}"
    place = target.location, target.schema, target.partition_by, target.storage
    if not exists(storage_at(target.location, target.storage)):
        return Table.create(*place, run=run, notes={note: raw.version + 1}, **machine), note
    typed = Table.open_for_writing(target.location, target.storage, **machine)
    if typed.has(note):
        return typed, note
    if gaps.half_derived(typed.transactions):
        raise TableError(
            f"{typed.location} has a part of {raw.location} or of another table, by another "
            "definition: put that back, or remove the table's folder"
        )
    raise TableError(
        f"{typed.location} is a table already, and not made of {raw.location} by this definition: "
        "choose a new location"
    )


def _rows_in(table: Table) -> int:
    return sum(file.rows or 0 for file in table.files())


def _settled(raw: Table, version: int) -> tuple[Table, dict[str, GatewayReport]] | None:
    """Return ``raw`` at a version with its proof; None if it cannot be read there any more."""
    try:
        older = Table.open(raw.location, raw.storage.options, version=version)
        return older, _proven(older)
    except TableError:
        return None


def _proven(raw: Table) -> dict[str, GatewayReport]:
    report = verify(raw)
    for gateway, found in report.gateways.items():
        if found.dropped:
            raise TableError(
                f"{raw.location} has a transform that drops rows, so nobody can tell whether rows "
                f"of gateway {gateway} are missing"
            )
    for line in report.findings():
        raise TableError(f"{raw.location} is not intact ({line}): {verify_tells(raw.location)}")
    return report.gateways


def _hold(queues: Mapping[str, Queue], places: Mapping[str, Landed], consumer: str) -> None:
    """Have the queues keep what is at and above ``places``.  Raises QueueError, one line."""
    for gateway, queue in queues.items():
        place = places.get(gateway)
        if queue.register(consumer) != (place.offset if place else 0) and place is not None:
            queue.commit(consumer, place.offset, place)
        queue.describe(place)  # it may have trimmed in between; from here on it does not


def _parts(raw: Table) -> list[list[DataFile]]:
    days: dict[str, list[DataFile]] = {}
    for file in raw.files():
        days.setdefault(_day(file), []).append(file)
    return [part for day in sorted(days) for part in groups(days[day])]


def _day(file: DataFile) -> str:
    return file.partition.get(DAY_COLUMN.name) or "no day"


def _convert(
    raw: Table, part: Iterable[DataFile], target: Target, storage: Storage
) -> LandedRanges:
    """Write rows of some files in the columns of ``target``, durably; no log names them."""
    landed = LandedRanges()
    files, shaper = Files(target, storage), Shaper(target.shape or Shape())
    rows: Counter[str] = Counter()
    read: Counter[str] = Counter()
    try:
        with undone(target, files.remove):
            for file in part:
                for batch in _rows_of(raw, file):
                    made = shaper(batch)
                    read += _by_gateway(batch)
                    rows += _by_gateway(made)
                    if made.num_rows:
                        files.write(made)
            landed.files = files.finish()
    except FileLost as error:
        raise TableError(
            f"a file of {raw.location} went meanwhile: {error}; run it again"
        ) from error
    landed.rows, landed.left_out, landed.errors = dict(rows), dict(read - rows), shaper.errors
    return landed


def _by_gateway(batch: pa.RecordBatch) -> Counter[str]:
    counted = pc.value_counts(batch.column("gateway"))
    return Counter({one["values"].as_py(): one["counts"].as_py() for one in counted})


def _reasons(raw: Table, proof: Mapping[str, GatewayReport], typed: Table) -> dict[str, int]:
    ranges = (gaps.EXPIRED_PREFIX, gaps.DAMAGED_PREFIX)
    notes = {name: hi for name, hi in raw.transactions.items() if name.startswith(ranges)}
    for gateway, found in proof.items():
        notes[gaps.BEGIN_PREFIX + gateway] = found.begin
        for prefix, rows in (
            (gaps.EXPIRED_ROWS_PREFIX, found.expired_rows),
            (gaps.DAMAGED_ROWS_PREFIX, found.damaged_rows),
            (gaps.LEFT_OUT_PREFIX, found.left_out),
            (gaps.REJECTED_PREFIX, found.rejected),
        ):
            notes |= gaps.added(prefix, {gateway: rows}, typed.transactions)
    return notes


def _erased(raw: Table, typed: Table, run: Run) -> dict[str, int]:
    """Return the notes of what was erased from ``raw``, and take out what went meanwhile."""
    before = _erased_from(raw)
    since = {
        gateway: without(ranges, before.get(gateway, []))
        for gateway, ranges in _erased_from(Table.open(raw.location, raw.storage.options)).items()
    }
    places = raw.landed()
    later = {}
    for gateway, ranges in since.items():
        place = places[gateway].offset if gateway in places else 0
        later[gateway] = without(ranges, [(0, place)])
        since[gateway] = without(ranges, [(place, END)])
    if any(since.values()):
        erase(typed, run, offsets=since)
    noted = erased.Notes(typed.storage).of(typed.transactions)
    whole = erased.united([noted, before, later])
    return erased.instead(typed.storage, typed.transactions, whole)


def _erased_from(table: Table) -> dict[str, list[tuple[int, int]]]:
    noted = erased.Notes(table.storage).of(table.transactions)
    return erased.united([noted, *not_noted(table).values()])
