"""Propose columns for the bodies of a raw table, and try columns out on them."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from ..core.errors import TableError
from ..queue import SCHEMA
from .columns import (
    DAY,
    DECIMAL,
    INTEGER,
    ISO,
    OWN_NAMES,
    BodyError,
    Number,
    parse,
    text_of,
)
from .landing import read_rows
from .log import Table
from .shape import ERROR, Shape, Shaper

ROWS = 10_000
"""A proposal looks at so many rows unless told otherwise."""

COLUMNS_MAX = 200

FEW = 100
"""A member in fewer than one of so many rows is named in a comment alone."""

LONG_MAX = 1 << 63

Path = tuple[str, ...]


def raw_rows(table: Table, most: int) -> Iterator[pa.RecordBatch]:
    """Yield the first rows of a table that has the queue's columns.

    Raises TableError for a table that has others.
    """
    missing = [name for name in SCHEMA.names if name not in table.schema.names]
    if missing:
        raise TableError(
            f"{table.location} has no column {missing[0]!r}: name a table with the queue's columns"
        )
    files = sorted(table.files(), key=lambda file: file.modified)
    for file in files:
        for rows in read_rows(table.storage, file, table.schema):
            if most <= 0:
                return
            rows = rows.slice(0, most).select(SCHEMA.names)
            for name, value in file.partition.items():
                if name in SCHEMA.names:
                    index = rows.schema.get_field_index(name)
                    column = pa.array([value] * rows.num_rows, SCHEMA.field(name).type)
                    rows = rows.set_column(index, SCHEMA.field(name), column)
            most -= rows.num_rows
            yield from rows.cast(SCHEMA).combine_chunks().to_batches()


# -- proposing ------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Seen:
    """What stands at one place of many bodies."""

    rows: int = 0
    kinds: set[str] = field(default_factory=set)
    many: set[bool] = field(default_factory=set)

    def take(self, value: Any) -> None:
        if value is None:
            return
        self.rows += 1
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
        fits = len(text) < 20 and -LONG_MAX <= int(text) < LONG_MAX
        return "long" if plain and fits else "string"
    if isinstance(value, Number):
        return "double" if DECIMAL.fullmatch(text) and _is_finite(text) else "string"
    if ISO.fullmatch(text):
        return "timestamp"
    return "date" if DAY.fullmatch(text) else "string"


def _is_finite(text: str) -> bool:
    return abs(float(text)) != float("inf")


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
                found.setdefault((True, (name,)), _Seen()).take(value)
    seen = {place: one for place, one in found.items() if one.rows}
    often = {place: one for place, one in seen.items() if one.rows * FEW >= rows}
    chosen = sorted(often, key=lambda place: -often[place].rows)[:COLUMNS_MAX]
    taken = {name.lower() for name in OWN_NAMES}
    lines = [f"# proposed from {rows} rows", "[table.columns]"]
    for place in [place for place in seen if place in set(chosen)]:
        lines.append(_line(place, seen[place], taken))
    rest = [".".join(path) for (_, path), one in seen.items() if (_, path) not in set(chosen)]
    lines += [f"# seldom: {', '.join(map(json.dumps, rest))}"] if rest else []
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
            inner = [((*path, name), part) for name, part in value.items() if name]
            waiting = [*inner, *waiting]
        elif path:
            yield path, value


def _line(place: tuple[bool, Path], seen: _Seen, taken: set[str]) -> str:
    in_fields, path = place
    base = re.sub(r"\W+", "_", "_".join(path), flags=re.ASCII).strip("_") or "column"
    name, number = base, 1
    while name.lower() in taken:
        number += 1
        name = f"{base}_{number}"
    taken.add(name.lower())
    dotted = not in_fields and any("." in part for part in path)
    where = json.dumps(list(path)) if dotted else json.dumps(".".join(path))
    source = 'from = "fields", ' if in_fields else ""
    kind = "string" if in_fields and seen.type.startswith(("json", "array")) else seen.type
    return f'{name} = {{ {source}path = {where}, type = "{kind}" }}'


# -- trying out -----------------------------------------------------------------------------------


@dataclass(slots=True)
class Tried:
    """How columns fared: rows that the table would have, values and errors by column, and one of
    each error.
    """

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
