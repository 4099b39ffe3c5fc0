"""Blocks of bodies and fields become columns, a column at a time.

What comes out is what :meth:`Columns.row` says of each row.  What Arrow does not read
(``arrow_json.py``) is read body by body, and what it cannot convert cell by cell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from .arrow_json import ArrowJson, Part
from .columns import (
    EPOCHS,
    MICROS_MAX,
    MICROS_MIN,
    NOT_OBJECT,
    TIMESTAMP,
    BodyError,
    Column,
    Columns,
    Number,
    Unfit,
    parse,
    scalar,
    text_of,
    walk,
)

BODY = ""  # errors of bodies as a whole are counted under this name


@dataclass(slots=True)
class Converted:
    """The columns of a block in order, the error of each row, and how many each column has."""

    columns: list[pa.Array]
    errors: pa.Array
    counts: Counter[str]


class Blocks:
    """Converts blocks of rows, and learns what JSON they have; without ``short_cut`` one by one."""

    def __init__(self, columns: Columns, *, short_cut: bool = True) -> None:
        self.columns = columns
        self._members = [one for one in columns.columns if not one.in_fields and not one.of_body]
        self._arrow = ArrowJson(self._members) if short_cut else None

    def convert(self, bodies: pa.Array | None, fields: pa.Array | None, rows: int) -> Converted:
        """Return the columns of ``rows`` rows; ``bodies`` are binary, ``fields`` maps of text."""
        noted = _Noted(rows)
        parts: list[Part] = []
        if bodies is not None and self.columns.reads_bodies:
            parts = self._parts(bodies, noted)
        order = _order(parts, rows)
        found = []
        for column in self.columns.columns:
            if column.in_fields:
                array = self._of_fields(column, fields, rows, noted)
            else:
                done = [self._of_part(column, part, noted) for part in parts]
                array = _arranged(done, order, column.kind, rows)
            if column.required and array.null_count:
                noted.missing(column.name, pc.indices_nonzero(array.is_null()).to_pylist())
            found.append(array)
        return Converted(found, noted.array(), noted.counts)

    # -- bodies -----------------------------------------------------------------------------------

    def _parts(self, bodies: pa.Array, noted: _Noted) -> list[Part]:
        parts = [] if self._arrow is None else self._arrow.read(bodies)
        if sum(len(part.rows) for part in parts) < len(bodies) - bodies.null_count:
            left = pc.indices_nonzero(bodies.is_valid())
            if parts:
                known = pa.concat_arrays([part.rows for part in parts])
                left = left.filter(pc.invert(pc.is_in(left, known)))
            parts.append(self._one_by_one(bodies, left, noted))
        return parts

    def _one_by_one(self, bodies: pa.Array, rows: pa.Array, noted: _Noted) -> Part:
        picked = bodies.take(rows)
        texts: list[str | None] = []
        values: dict[str, list[Any]] = {column.name: [] for column in self._members}
        paths = [(values[column.name].append, column.path) for column in self._members]
        for row, body in zip(rows.to_pylist(), picked.to_pylist(), strict=True):
            try:
                document = parse(body)
                texts.append(body.decode())
                if not isinstance(document, dict):
                    noted.body(row, NOT_OBJECT)
            except BodyError as error:
                document = None
                texts.append(None)
                noted.body(row, str(error))
            for append, path in paths:
                append(walk(document, path))
        # A few that do not fit say nothing of the others.
        if self._arrow is not None and 2 * len(rows) > len(bodies):
            for column in self._members:
                last = next((one for one in reversed(values[column.name]) if one is not None), None)
                self._arrow.learn(column, last)
        return Part(rows, pa.array(texts, pa.string()), values.__getitem__)

    def _of_part(self, column: Column, part: Part, noted: _Noted) -> pa.Array:
        if column.of_body:
            return part.texts
        raw = part.raw(column.name)
        if isinstance(raw, pa.Array):
            return self._of_array(column, raw, part.rows, noted)
        return self._of_values(column, raw, part.rows, noted)

    # -- cells ------------------------------------------------------------------------------------

    def _of_fields(
        self, column: Column, fields: pa.Array | None, rows: int, noted: _Noted
    ) -> pa.Array:
        if fields is None:
            return pa.nulls(rows, column.kind)
        found = pc.map_lookup(fields, pa.scalar(column.path[0]), "last")
        return self._of_array(column, found, None, noted)

    def _of_array(
        self, column: Column, raw: pa.Array, rows: pa.Array | None, noted: _Noted
    ) -> pa.Array:
        typed, bad = convert_array(column.kind, column.format, raw)
        if not bad:
            return typed
        cells = [_as_json(value) for value in raw.take(pa.array(bad)).to_pylist()]
        return self._patched(column, typed, bad, cells, rows, noted)

    def _of_values(
        self, column: Column, values: list[Any], rows: pa.Array, noted: _Noted
    ) -> pa.Array:
        singly = list(range(len(values)))
        typed = pa.nulls(len(values), column.kind)
        if not column.is_json and not pa.types.is_nested(column.kind):
            texts = [None if value is None else text_of(value) for value in values]
            try:
                typed, singly = convert_array(
                    column.kind, column.format, pa.array(texts, pa.string())
                )
                singly += [
                    index
                    for index, text in enumerate(texts)
                    if text is None and values[index] is not None
                ]
            except UnicodeEncodeError:
                pass  # half of a surrogate pair is somewhere
        cells = [values[index] for index in singly]
        return self._patched(column, typed, singly, cells, rows, noted)

    def _patched(
        self,
        column: Column,
        typed: pa.Array,
        places: Sequence[int],
        cells: Sequence[Any],
        rows: pa.Array | None,
        noted: _Noted,
    ) -> pa.Array:
        if not places:
            return typed
        values = []
        for place, cell in zip(places, cells, strict=True):
            errors: list[str] = []
            values.append(None if cell is None else self.columns.cell(column, cell, errors))
            if errors:
                row = place if rows is None else rows[place].as_py()
                noted.column(row, column.name, errors)
        again = pa.array(values, column.kind)
        if len(values) == len(typed):
            order = [0] * len(typed)
        else:
            order = list(range(len(typed)))
            again = pa.concat_arrays([typed, again])
        first = len(again) - len(values)
        for index, place in enumerate(places):
            order[place] = first + index
        return again.take(pa.array(order))


class _Noted:
    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._errors: dict[int, list[str]] = {}
        self._bodies: set[int] = set()
        self._cells: set[tuple[int, str]] = set()
        self.counts: Counter[str] = Counter()

    def body(self, row: int, error: str) -> None:
        self._errors.setdefault(row, []).append(error)
        self._bodies.add(row)
        self.counts[BODY] += 1

    def column(self, row: int, name: str, errors: Iterable[str]) -> None:
        self._errors.setdefault(row, []).extend(errors)
        self._cells.add((row, name))
        self.counts[name] += 1

    def missing(self, name: str, rows: Iterable[int]) -> None:
        for row in rows:
            if row not in self._bodies and (row, name) not in self._cells:
                self.column(row, name, [f"{name}: it is missing"])

    def array(self) -> pa.Array:
        if not self._errors:
            return pa.nulls(self._rows, pa.string())
        told: list[str | None] = [None] * self._rows
        for row, errors in self._errors.items():
            told[row] = "; ".join(errors)
        return pa.array(told, pa.string())


def _order(parts: Sequence[Part], rows: int) -> pa.Array | None:
    """Return where each row is in the parts one after the other; None when they are in order."""
    if not parts or (len(parts) == 1 and len(parts[0].rows) == rows):
        return None
    known = pa.concat_arrays([part.rows for part in parts])
    if len(known) == rows:
        return pc.array_sort_indices(known)
    return pc.index_in(pa.array(range(rows), known.type), known)


def _arranged(
    arrays: Sequence[pa.Array], order: pa.Array | None, kind: pa.DataType, rows: int
) -> pa.Array:
    if not arrays:
        return pa.nulls(rows, kind)
    return arrays[0] if order is None else pa.concat_arrays(arrays).take(order)


def _as_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_as_json(part) for part in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return Number(value)
    return value


# -- a column at a time ---------------------------------------------------------------------------

Places = list[int]

Result = tuple[pa.Array, Places]  # values, null where the reference has to look, and where that is


def convert_array(kind: pa.DataType, format: str | None, raw: pa.Array) -> Result:
    if pa.types.is_list(kind):
        return _lists(kind, format, raw)
    if raw.type == kind:
        return raw, []
    if pa.types.is_float32(kind):
        return _singles(kind, raw)
    if pa.types.is_integer(raw.type):
        return _integers(kind, format, raw)
    if pa.types.is_boolean(raw.type):
        return raw.cast(kind), []
    if pa.types.is_integer(kind):
        return _chosen(raw, r"^-?[0-9]{1,18}$", lambda texts: _narrow(kind, texts.cast(pa.int64())))
    if pa.types.is_floating(kind):
        plain = r"^-?[0-9]{1,40}(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,2})?$"
        return _chosen(raw, plain, lambda texts: texts.cast(kind))
    if pa.types.is_decimal(kind):
        whole, scale = kind.precision - kind.scale, kind.scale
        plain = rf"^-?[0-9]{{1,{whole}}}" + (rf"(\.[0-9]{{1,{scale}}})?$" if scale else "$")
        return _chosen(raw, plain, lambda texts: texts.cast(kind)) if whole else _all(raw, kind)
    if pa.types.is_boolean(kind):
        return _chosen(raw, "^(true|false)$", lambda texts: pc.equal(texts, "true"))
    if format in EPOCHS:
        plain = "^-?[0-9]{1,15}$" if format == "epoch_ms" else "^-?[0-9]{1,12}$"
        return _chosen(raw, plain, lambda texts: _epochs(kind, format, texts.cast(pa.int64())))
    if format is not None:
        return _formatted(kind, format, raw)
    if pa.types.is_date(kind):
        plain = f"^{DAY_TEXT}$"
        return _chosen(raw, plain, lambda texts: _from_year_one(texts.cast(kind), pa.int32()))
    times = _utc_times(raw)
    return _chosen(raw, ISO_TEXT, _times) if times is None else (times, _lost(raw, times))


def _all(raw: pa.Array, kind: pa.DataType) -> Result:
    return pa.nulls(len(raw), kind), pc.indices_nonzero(raw.is_valid()).to_pylist()


def _chosen(texts: pa.Array, pattern: str, convert: Callable[[pa.Array], pa.Array]) -> Result:
    """Convert the texts that ``pattern`` matches; the reference has to look at the others."""
    good = pc.match_substring_regex(texts, pattern)
    chosen = texts if pc.all(good).as_py() else pc.if_else(good, texts, None)
    try:
        typed = convert(chosen)
    except pa.ArrowException:
        # The kernels do not say which one.
        typed = convert(pa.nulls(len(texts), pa.string()))
    return typed, _lost(texts, typed)


def _lost(raw: pa.Array, typed: pa.Array) -> Places:
    if typed.null_count == raw.null_count:
        return []
    places: Places = pc.indices_nonzero(pc.and_(raw.is_valid(), typed.is_null())).to_pylist()
    return places


def _integers(kind: pa.DataType, format: str | None, raw: pa.Array) -> Result:
    if pa.types.is_string(kind):
        return raw.cast(kind), []
    typed = _narrow(kind, raw) if pa.types.is_integer(kind) else _epochs(kind, format, raw)
    return typed, _lost(raw, typed)


def _singles(kind: pa.DataType, raw: pa.Array) -> Result:
    wide, _ = convert_array(pa.float64(), None, raw)
    typed = wide.cast(kind)
    large = pc.and_(pc.is_inf(typed), pc.is_finite(wide))
    typed = pc.if_else(large, None, typed)
    return typed, _lost(raw, typed)


def _narrow(kind: pa.DataType, wide: pa.Array) -> pa.Array:
    if kind.bit_width == 64:
        return wide
    bound = 1 << (kind.bit_width - 1)
    return _between(wide, -bound, bound - 1).cast(kind)


def _between(numbers: pa.Array, least: int, most: int) -> pa.Array:
    bounds = pc.min_max(numbers)
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    if low is None or (low >= least and high <= most):
        return numbers
    good = pc.and_(pc.greater_equal(numbers, least), pc.less_equal(numbers, most))
    return pc.if_else(good, numbers, None)


def _epochs(kind: pa.DataType, format: str | None, numbers: pa.Array) -> pa.Array:
    unit = EPOCHS[format or ""]
    least, most = -(-MICROS_MIN // unit), MICROS_MAX // unit
    return pc.multiply(_between(numbers, least, most), unit).cast(kind)


def _formatted(kind: pa.DataType, format: str, texts: pa.Array) -> Result:
    """Convert each text once: times in logs come in the same second often."""
    convert = scalar(kind, format)
    encoded = texts.dictionary_encode()
    values = []
    for text in encoded.dictionary.to_pylist():
        try:
            values.append(convert(text))
        except Unfit:
            values.append(None)
    typed = pa.array(values, kind).take(encoded.indices)
    return typed, _lost(texts, typed)


_LEAP_YEAR = r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"

DAY_TEXT = (
    r"(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    r"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    rf"|{_LEAP_YEAR}-02-29)"
)
"""Days of the calendar alone: of one that is none, Arrow does not say where it stands."""

_HOURS, _SIXTY = r"(?:[01][0-9]|2[0-3])", "[0-5][0-9]"

ISO_TEXT = rf"^{DAY_TEXT}[T ]{_HOURS}:{_SIXTY}:{_SIXTY}(\.[0-9]+)?(Z|[+-]{_HOURS}:?{_SIXTY})?$"

WITH_ZONE = r"(Z|:[0-9]{2}(\.[0-9]+)?[+-][0-9]{2}:?[0-9]{2})$"

LONG_FRACTION = r"\.[0-9]{7}"

SECONDS, MICROSECONDS = len("2026-01-31T12:00:00"), len("2026-01-31T12:00:00.123456")


def _utc_times(texts: pa.Array) -> pa.Array | None:
    """Convert times that all have seconds and end with ``Z``; None if one is something else."""
    lengths = pc.min_max(pc.binary_length(texts))
    if not pc.all(pc.ends_with(texts, "Z")).as_py() or (lengths["min"].as_py() or 0) <= SECONDS:
        return None
    cut = pc.binary_slice(texts.cast(pa.binary()), 0, -1)
    if lengths["max"].as_py() > MICROSECONDS + 1:
        rest = pc.binary_slice(cut, MICROSECONDS, lengths["max"].as_py()).view(pa.string())
        if not pc.all(pc.or_(pc.ascii_is_decimal(rest), pc.equal(rest, ""))).as_py():
            return None
        cut = pc.binary_slice(cut, 0, MICROSECONDS)
    try:
        times = cut.view(pa.string()).cast(pa.timestamp("us"))
    except pa.ArrowInvalid:
        return None
    return _from_year_one(times.cast(TIMESTAMP), pa.int64())


def _times(texts: pa.Array) -> pa.Array:
    if pc.any(pc.match_substring_regex(texts, LONG_FRACTION)).as_py():
        texts = pc.replace_substring_regex(texts, r"(\.[0-9]{6})[0-9]+", r"\1")
    zoned = pc.ends_with(texts, "Z")
    if not pc.all(zoned).as_py():
        zoned = pc.match_substring_regex(texts, WITH_ZONE)
        if not pc.all(zoned).as_py():
            named = pc.binary_join_element_wise(texts, "Z", "")
            texts = pc.if_else(zoned, texts, named)
    return _from_year_one(texts.cast(pa.timestamp("us", "UTC")), pa.int64())


def _from_year_one(times: pa.Array, number: pa.DataType) -> pa.Array:
    """Leave those of other years to the reference, which refuses them."""
    unit = 1 if number == pa.int64() else 86_400_000_000
    whole = _between(times.cast(number), MICROS_MIN // unit, MICROS_MAX // unit)
    return whole.cast(times.type)


def _lists(kind: pa.DataType, format: str | None, raw: pa.Array) -> Result:
    values, bad = convert_array(kind.value_type, format, raw.flatten())
    lengths = pc.fill_null(pc.list_value_length(raw), 0)
    ends = pc.cumulative_sum(lengths)
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends.cast(pa.int32())])
    mask = raw.is_null() if raw.null_count else None
    typed = pa.ListArray.from_arrays(offsets, values, type=kind, mask=mask)
    if not bad:
        return typed, []
    parents = pc.list_parent_indices(raw).take(pa.array(bad))
    return typed, pc.unique(parents).to_pylist()
