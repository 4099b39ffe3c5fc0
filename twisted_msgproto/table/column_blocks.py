"""Blocks of bodies and fields become columns, with Arrow where it can be trusted.

What comes out is what :meth:`Columns.row` says of each row.  Arrow's JSON reader is a short cut for
the bodies of a block that are valid UTF-8, begin with ``{`` and end with ``}`` (blanks aside).
When it makes as many rows of them as there are bodies, each body is exactly one object: ``}`` blank
``{`` stands nowhere inside of one, and a line feed in a string is refused.  It is never given
anything else: a body ``null`` at the beginning of a block, or a decimal with a large exponent, ends
the process.  What it refuses is read body by body.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from .columns import (
    BLANKS,
    DEPTH_MAX,
    EPOCHS,
    MICROS_MAX,
    MICROS_MIN,
    NOT_OBJECT,
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

BLOCK_BYTES_MAX = 64 << 20
"""Bodies of more bytes together are read one by one: Arrow would hold copies of all at once."""

SAMPLES = 16
"""So many bodies show what kind of JSON the columns have, as long as nothing is known of them."""

STRING, NUMBER, BOOLEAN = "string", "number", "boolean"

BODY = ""
"""Errors of bodies as a whole are counted under this name."""

IN_ROW = re.compile(r"in row (\d+)\s*$")
"""So an error of Arrow ends that concerns one body."""

TRIES = 2
"""So often bodies that Arrow refuses are left out before the rest is read one by one."""

REFUSED_SHARE = 20
"""Arrow is asked again until one of so many bodies has been refused."""

OTHER_NUMBERS = r"[:,\[][ \t\r\n]*(?:-?Inf|-NaN)[ \t\r\n]*[,\]}]"
"""Arrow takes these for numbers."""


@dataclass(slots=True)
class Converted:
    """The columns of a block in order, the error of each row (null: none), and in how many rows
    each column has one.
    """

    columns: list[pa.Array]
    errors: pa.Array
    counts: Counter[str]


class Blocks:
    """Converts blocks of rows; knows from one to the next what kind of JSON each column has.

    Without ``short_cut`` every body is read by itself.
    """

    def __init__(self, columns: Columns, *, short_cut: bool = True) -> None:
        self.columns = columns
        self._kinds: dict[str, str] = {}
        members = [one for one in columns.columns if not one.in_fields and not one.of_body]
        self._members = members
        self._short_cut = short_cut and not any(one.is_json or _is_deep(one) for one in members)
        self._sampled = False
        self._copy = bytearray()

    def convert(self, bodies: pa.Array | None, fields: pa.Array | None, rows: int) -> Converted:
        """Return the columns of ``rows`` rows; ``bodies`` are binary, ``fields`` maps of text."""
        noted = _Noted(rows)
        parts: list[_Part] = []
        if bodies is not None and self.columns.reads_bodies:
            parts = self._parts(bodies, noted)
        order = _order([part.rows for part in parts], rows)
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

    def _parts(self, bodies: pa.Array, noted: _Noted) -> list[_Part]:
        parts = []
        suitable, texts = _sorted_out(bodies) if self._short_cut else (None, None)
        there = pc.indices_nonzero(bodies.is_valid()).to_pylist()
        left = there
        if suitable is not None and texts is not None and len(suitable):
            part = self._by_arrow(suitable, texts)
            if part is not None:
                parts.append(part)
                known = set(part.rows) if len(part.rows) < len(there) else None
                left = [] if known is None else [row for row in there if row not in known]
        if left:
            parts.append(self._one_by_one(bodies, left, noted))
        return parts

    def _by_arrow(self, rows: Sequence[int], texts: pa.Array, tries: int = TRIES) -> _Part | None:
        """Return a part for bodies that are suitable, without those that Arrow refuses; None when
        that are too many, or when it does not say which.
        """
        if not self._sampled:
            self._sampled = True
            self._sample(texts[:SAMPLES].to_pylist())
        schema = self._schema()
        if schema is None:
            return None
        # An empty text at the end: the last body has its line feed, too.
        lines = pa.concat_arrays([texts, pa.array([""], pa.string())])
        size = pc.sum(pc.binary_length(lines)).as_py() + len(texts)
        if size > BLOCK_BYTES_MAX:
            return None
        joined = pc.binary_join(pa.ListArray.from_arrays([0, len(lines)], lines), "\n")[
            0
        ].as_buffer()
        if self._finds(joined, b"Inf") or self._finds(joined, b"-NaN"):
            odd = pc.match_substring_regex(texts, OTHER_NUMBERS)
            if pc.any(odd).as_py():
                return self._without(rows, texts, pc.indices_nonzero(odd).to_pylist(), tries)
        try:
            table = _read_json(joined, schema)
        except pa.ArrowException as error:
            refused = _refused(texts, joined, schema, str(error)) if tries else None
            return None if refused is None else self._without(rows, texts, refused, tries - 1)
        if table.num_rows != len(texts):
            return None
        raw = {}
        for column in self._members:
            array = table.column(column.path[0]).combine_chunks()
            if len(column.path) > 1:
                array = pc.struct_field(array, list(column.path[1:]))
            raw[column.name] = array
            if _loses_sign(column.kind, array) and self._finds(joined, b"-0"):
                return None
        return _Part(rows, texts, raw.__getitem__)

    def _finds(self, joined: pa.Buffer, part: bytes) -> bool:
        """Return whether a text is in a buffer; a copy in memory that was used before is cheap."""
        if len(self._copy) < len(joined):
            self._copy = bytearray(2 * len(joined))
        self._copy[: len(joined)] = memoryview(joined)
        return self._copy.find(part, 0, len(joined)) >= 0

    def _without(
        self, rows: Sequence[int], texts: pa.Array, left: list[int], tries: int
    ) -> _Part | None:
        """Return a part for all rows but those in the places ``left``."""
        out = set(left)
        kept = [place for place in range(len(rows)) if place not in out]
        if not kept:
            return None
        return self._by_arrow([rows[place] for place in kept], texts.take(pa.array(kept)), tries)

    def _sample(self, texts: Iterable[str]) -> None:
        for text in texts:
            try:
                document = parse(text.encode())
            except BodyError:
                continue
            for column in self._members:
                self._learn(column, walk(document, column.path))

    def _learn(self, column: Column, value: Any) -> None:
        if pa.types.is_list(column.kind) and isinstance(value, list):
            value = next((part for part in value if part is not None), None)
        if isinstance(value, Number):
            self._kinds[column.name] = NUMBER
        elif isinstance(value, str):
            self._kinds[column.name] = STRING
        elif isinstance(value, bool):
            self._kinds[column.name] = BOOLEAN

    def _schema(self) -> pa.Schema | None:
        """Return what Arrow is to look for; None when it cannot be said."""
        tree: dict[str, Any] = {}
        for column in self._members:
            kind = column.kind.value_type if pa.types.is_list(column.kind) else column.kind
            found = _read_as(kind, column.format, self._kinds.get(column.name))
            if found is None:
                return None
            found = pa.list_(found) if pa.types.is_list(column.kind) else found
            level = tree
            for name in column.path[:-1]:
                level = level.setdefault(name, {})
                if not isinstance(level, dict):
                    return None
            if level.setdefault(column.path[-1], found) != found:
                return None
        return pa.schema(_fields(tree))

    def _one_by_one(self, bodies: pa.Array, rows: Sequence[int], noted: _Noted) -> _Part:
        picked = bodies if len(rows) == len(bodies) else bodies.take(pa.array(rows))
        texts: list[str | None] = []
        values: dict[str, list[Any]] = {column.name: [] for column in self._members}
        paths = [(values[column.name].append, column.path) for column in self._members]
        for row, body in zip(rows, picked.to_pylist(), strict=True):
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
        if 2 * len(rows) > len(bodies):  # a few that do not fit say nothing of the others
            for column in self._members:
                last = next((one for one in reversed(values[column.name]) if one is not None), None)
                self._learn(column, last)
        return _Part(rows, pa.array(texts, pa.string()), values.__getitem__)

    def _of_part(self, column: Column, part: _Part, noted: _Noted) -> pa.Array:
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
        return self._of_array(column, found, range(rows), noted)

    def _of_array(
        self, column: Column, raw: pa.Array, rows: Sequence[int], noted: _Noted
    ) -> pa.Array:
        typed, bad = convert_array(column.kind, column.format, raw)
        if not bad:
            return typed
        cells = [_as_json(value) for value in raw.take(pa.array(bad)).to_pylist()]
        return self._patched(column, typed, bad, cells, rows, noted)

    def _of_values(
        self, column: Column, values: list[Any], rows: Sequence[int], noted: _Noted
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
        rows: Sequence[int],
        noted: _Noted,
    ) -> pa.Array:
        """Return ``typed`` with what the reference says of these cells."""
        if not places:
            return typed
        values = []
        for place, cell in zip(places, cells, strict=True):
            errors: list[str] = []
            values.append(None if cell is None else self.columns.cell(column, cell, errors))
            if errors:
                noted.column(rows[place], column.name, errors)
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


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows that were read in one way: their documents, and the raw values of a column."""

    rows: Sequence[int]
    texts: pa.Array
    raw: Callable[[str], pa.Array | list[Any]]


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


def _read_json(joined: pa.Buffer, schema: pa.Schema) -> pa.Table:
    return pj.read_json(
        pa.BufferReader(joined),
        read_options=pj.ReadOptions(use_threads=False, block_size=joined.size + 1),
        parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )


def _refused(texts: pa.Array, joined: pa.Buffer, schema: pa.Schema, error: str) -> list[int] | None:
    """Return the places of bodies that Arrow refuses, which it says one at a time; None when it
    does not say, or when they are so many that it is better to read each body by itself.
    """
    ends = pc.cumulative_sum(pc.add(pc.binary_length(texts), 1)).to_pylist()
    refused: list[int] = []
    first = 0
    while (said := IN_ROW.search(error)) is not None and len(refused) * REFUSED_SHARE < len(texts):
        place = first + int(said[1])
        if place >= len(texts):
            return None
        refused.append(place)
        first = place + 1
        if first == len(texts):
            return refused
        try:
            _read_json(joined.slice(ends[place]), schema)
            return refused
        except pa.ArrowException as again:
            error = str(again)
    return None


def _is_deep(column: Column) -> bool:
    """Return whether a column is more than scalars or lists of them."""
    kind = column.kind.value_type if pa.types.is_list(column.kind) else column.kind
    return bool(pa.types.is_nested(kind))


def _sorted_out(bodies: pa.Array) -> tuple[list[int], pa.Array]:
    """Return the rows whose bodies may go to Arrow, and these bodies as text."""
    try:
        texts = bodies.cast(pa.string())
    except pa.ArrowInvalid:
        texts = pa.array([_decoded(body) for body in bodies.to_pylist()], pa.string())
    good = _is_enclosed(texts)
    if not pc.all(good).as_py():
        good = pc.fill_null(_is_enclosed(pc.utf8_trim(texts, BLANKS)), False)
    # A level of nesting takes two characters.
    if (pc.max(pc.binary_length(texts)).as_py() or 0) > 2 * DEPTH_MAX:
        opened = pc.add(pc.count_substring(texts, "{"), pc.count_substring(texts, "["))
        good = pc.fill_null(pc.and_(good, pc.less_equal(opened, DEPTH_MAX)), False)
    if not texts.null_count and pc.all(good).as_py():
        return list(range(len(texts))), texts
    rows = pc.indices_nonzero(pc.fill_null(good, False))
    return rows.to_pylist(), texts.take(rows)


def _is_enclosed(texts: pa.Array) -> pa.Array:
    return pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))


def _decoded(body: bytes | None) -> str | None:
    try:
        return None if body is None else body.decode()
    except UnicodeDecodeError:
        return None


def _fields(tree: dict[str, Any]) -> list[pa.Field]:
    return [
        pa.field(name, pa.struct(_fields(kind)) if isinstance(kind, dict) else kind)
        for name, kind in tree.items()
    ]


def _read_as(kind: pa.DataType, format: str | None, seen: str | None) -> pa.DataType | None:
    """Return the type in which Arrow is to read a scalar; None when it could not keep its text."""
    is_string = pa.types.is_string(kind)
    counts = pa.types.is_integer(kind) or format in EPOCHS
    if seen is None:
        seen = NUMBER if counts or pa.types.is_floating(kind) else STRING
        seen = BOOLEAN if pa.types.is_boolean(kind) else seen
    if seen == STRING:
        return pa.string()
    if seen == BOOLEAN:
        return pa.bool_() if is_string or pa.types.is_boolean(kind) else None
    if pa.types.is_floating(kind):
        return pa.float64()
    return pa.int64() if is_string or counts else None


def _loses_sign(kind: pa.DataType, array: pa.Array) -> bool:
    """Return whether there is a zero that becomes a text: Arrow drops the sign of -0."""
    if pa.types.is_list(kind):
        kind, array = kind.value_type, array.flatten()
    is_text = pa.types.is_string(kind) and pa.types.is_integer(array.type)
    return is_text and bool(pc.any(pc.equal(array, 0)).as_py())


def _order(parts: Sequence[Sequence[int]], rows: int) -> pa.Array | None:
    """Return where each row is in the parts one after the other; None when they are in order."""
    if len(parts) == 1 and len(parts[0]) == rows:
        return None
    order: list[int | None] = [None] * rows
    index = 0
    for part in parts:
        for row in part:
            order[row] = index
            index += 1
    return pa.array(order, pa.int64())


def _arranged(
    arrays: Sequence[pa.Array], order: pa.Array | None, kind: pa.DataType, rows: int
) -> pa.Array:
    if not arrays:
        return pa.nulls(rows, kind)
    return arrays[0] if order is None else pa.concat_arrays(arrays).take(order)


def _as_json(value: Any) -> Any:
    """Return a value that Arrow has read as :func:`parse` does."""
    if isinstance(value, list):
        return [_as_json(part) for part in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return Number(value)
    return value


# -- a column at a time ---------------------------------------------------------------------------

Places = list[int]

Result = tuple[pa.Array, Places]
"""Values, null where the reference has to look, and where that is."""


def convert_array(kind: pa.DataType, format: str | None, raw: pa.Array) -> Result:
    """Convert an array of texts, integers, floats or truth values, or lists of these."""
    if pa.types.is_list(kind):
        return _lists(kind, format, raw)
    if raw.type == kind:
        return raw, []
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
        plain = rf"^-?[0-9]{{1,{max(1, whole)}}}" + (rf"(\.[0-9]{{1,{scale}}})?$" if scale else "$")
        return _chosen(raw, plain, lambda texts: texts.cast(kind)) if whole else _all(raw, kind)
    if pa.types.is_boolean(kind):
        return _chosen(raw, "^(true|false)$", lambda texts: pc.equal(texts, "true"))
    if format in EPOCHS:
        plain = "^-?[0-9]{1,15}$" if format == "epoch_ms" else "^-?[0-9]{1,12}$"
        return _chosen(raw, plain, lambda texts: _epochs(kind, format, texts.cast(pa.int64())))
    if format is not None:
        return _formatted(kind, format, raw)
    if pa.types.is_date(kind):
        plain = "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
        return _chosen(raw, plain, lambda texts: _from_year_one(texts.cast(kind), pa.int32()))
    return _chosen(raw, ISO_TEXT, _times)


def _all(raw: pa.Array, kind: pa.DataType) -> Result:
    return pa.nulls(len(raw), kind), pc.indices_nonzero(raw.is_valid()).to_pylist()


def _chosen(texts: pa.Array, pattern: str, convert: Callable[[pa.Array], pa.Array]) -> Result:
    """Convert the texts that ``pattern`` matches; where that makes null or fails, and all others,
    the reference has to look.
    """
    good = pc.match_substring_regex(texts, pattern)
    chosen = texts if pc.all(good).as_py() else pc.if_else(good, texts, None)
    try:
        typed = convert(chosen)
    except pa.ArrowException:
        # The kernels do not say which one: 30 February, or an offset of 25 hours.
        typed = convert(pa.nulls(len(texts), pa.string()))
    if typed.null_count == texts.null_count:
        return typed, []
    return typed, pc.indices_nonzero(pc.and_(texts.is_valid(), typed.is_null())).to_pylist()


def _integers(kind: pa.DataType, format: str | None, raw: pa.Array) -> Result:
    if pa.types.is_string(kind):
        return raw.cast(kind), []
    typed = _narrow(kind, raw) if pa.types.is_integer(kind) else _epochs(kind, format, raw)
    if typed.null_count == raw.null_count:
        return typed, []
    return typed, pc.indices_nonzero(pc.and_(raw.is_valid(), typed.is_null())).to_pylist()


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
    if typed.null_count == texts.null_count:
        return typed, []
    return typed, pc.indices_nonzero(pc.and_(texts.is_valid(), typed.is_null())).to_pylist()


ISO_TEXT = (
    r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}"
    r"(\.[0-9]+)?(Z|[+-][0-9]{2}:?[0-9]{2})?$"
)

WITH_ZONE = r"(Z|:[0-9]{2}(\.[0-9]+)?[+-][0-9]{2}:?[0-9]{2})$"

LONG_FRACTION = r"\.[0-9]{7}"


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
    day = 86_400_000_000 if number == pa.int64() else 1
    least, most = MICROS_MIN, MICROS_MAX
    if day == 1:
        least, most = least // 86_400_000_000, most // 86_400_000_000
    return _between(times.cast(number), least, most).cast(times.type)


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
