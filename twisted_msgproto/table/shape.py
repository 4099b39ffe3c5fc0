"""What of a queue's rows a table has: which rows, and in which columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ..core.errors import ConfigurationError
from ..queue import SCHEMA
from .column_blocks import Blocks
from .columns import OWN_NAMES, Columns, columns_of

KEYS = ("gateway", "offset", "received_at")  # every typed table has them: they name a row

ERROR, BODY = "_error", "_body"

SELECTABLE = tuple(
    field.name for field in SCHEMA if pa.types.is_string(field.type) or field.name == "truncated"
)
"""Columns that ``where`` may name."""

KEEPABLE = tuple(field.name for field in SCHEMA if field.name not in KEYS)

Where = tuple[tuple[str, tuple[Any, ...]], ...]


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a table's rows."""

    where: Where = ()  # the values that a row may have in columns of the queue
    keep: tuple[str, ...] = ()  # the queue's that are beside ``columns``
    columns: Columns | None = None  # the queue's

    @property
    def schema(self) -> pa.Schema:
        """Return the columns of the rows; a table has ``day`` beside them."""
        if self.columns is None:
            return SCHEMA
        own = [SCHEMA.field(name) for name in KEYS]
        # One that is not kept any more is null in new rows.
        own += [SCHEMA.field(name).with_nullable(True) for name in self.keep]
        errors = [pa.field(ERROR, pa.string()), pa.field(BODY, pa.binary())]
        return pa.schema([*own, *self.columns.fields, *errors])


class Shaper:
    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._blocks = None if shape.columns is None else Blocks(shape.columns)
        self.errors: Counter[str] = Counter()  # rows by column; "" is the body

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        batch = self._chosen(batch)
        if self._blocks is None:
            return batch
        bodies = batch.column("body")
        done = self._blocks.convert(bodies, batch.column("fields"), batch.num_rows)
        self.errors += done.counts
        wrong = done.errors.is_valid()
        whole = pc.if_else(wrong, bodies, None) if done.counts else pa.nulls(len(bodies), BYTES)
        kept = [batch.column(name) for name in (*KEYS, *self._shape.keep)]
        return pa.RecordBatch.from_arrays(
            [*kept, *done.columns, done.errors, whole], schema=self._shape.schema
        )

    def _chosen(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        for name, values in self._shape.where:
            column = batch.column(name)
            good = pc.is_in(column, pa.array(values, column.type))
            if not pc.all(good, min_count=0).as_py():
                batch = batch.filter(good)
        return batch


BYTES = pa.binary()


# -- as it is written in a file -------------------------------------------------------------------


def shape_of(given: Mapping[str, Any], partition_by: tuple[str, ...] = ()) -> Shape | None:
    """Return the shape that a section ``[[table]]`` says; None for all rows as they are."""
    where = _where(given.get("where", {}))
    columns, keep = given.get("columns"), given.get("keep")
    if columns is None:
        if keep is not None:
            raise ConfigurationError("keep is for a table with [table.columns]; others keep all")
        return Shape(where) if where else None
    if not isinstance(columns, Mapping):
        raise ConfigurationError(f"[table.columns] is a table of columns, not {columns!r}")
    kept = _kept([] if keep is None else keep)
    lost = [name for name in partition_by if name != "day" and name not in kept]
    if lost:
        raise ConfigurationError(f'the table is partitioned by {lost[0]}: keep = ["{lost[0]}"]')
    return Shape(where, kept, columns_of(columns, (*OWN_NAMES, *kept)))


def _kept(given: object) -> tuple[str, ...]:
    if not isinstance(given, list) or not all(name in KEEPABLE for name in given):
        raise ConfigurationError(f"keep is a list of {', '.join(KEEPABLE)}, not {given!r}")
    _refuse_twice("keep", given)
    return tuple(name for name in KEEPABLE if name in given)


def _refuse_twice(where: str, given: Sequence[object]) -> None:
    for number, one in enumerate(given):
        if one in given[:number]:
            raise ConfigurationError(f"{where} has {one!r} twice")


def _where(given: object) -> Where:
    if not isinstance(given, Mapping):
        raise ConfigurationError(
            f'where is a table as {{ protocol = "lumberjack" }}, not {given!r}'
        )
    found = []
    for name, value in given.items():
        if name not in SELECTABLE:
            raise ConfigurationError(
                f"where names {name!r}; rows are chosen by {', '.join(SELECTABLE)}"
            )
        values = value if isinstance(value, list) else [value]
        kind = bool if name == "truncated" else str
        if not values or not all(isinstance(one, kind) for one in values):
            what = "true or false" if kind is bool else "a text or a list of texts"
            raise ConfigurationError(f"where: {name} is {what}, not {value!r}")
        _refuse_twice(f"where: {name}", values)
        found.append((name, tuple(values)))
    return tuple(found)
