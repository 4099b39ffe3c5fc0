"""Arrow's JSON reader as a short cut, where it can be trusted.

It is given the bodies of a block that are valid UTF-8, begin with ``{`` and end with ``}`` (blanks
aside). When it makes as many rows of them, each body is exactly one object: ``}`` blank ``{``
stands nowhere inside of one, and a line feed in a string is refused. Anything else may end the
process, as ``null`` at a block's start does. Bodies that may be as one that it refuses are taken
out.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from .columns import BLANKS, DEPTH_MAX, EPOCHS, BodyError, Column, Number, parse, walk

BLOCK_BYTES_MAX = 64 << 20  # more are read one by one: Arrow would hold copies of all at once
SAMPLES = 16  # bodies that show what kind of JSON columns have, while nothing is known

STRING, NUMBER, BOOLEAN = "string", "number", "boolean"

IN_ROW = re.compile(r"in row (\d+)\s*$")  # so an error of Arrow ends that concerns one body

TRIES = 4  # so often bodies that Arrow refuses are left out before the rest is read one by one

REFUSED_SHARE = 20  # Arrow is asked for single bodies until one of so many has been refused

# Patterns of bodies that Arrow may not read as the reference does; a good one among them costs
# time, not its value.  They begin with a plain text, which is found much faster.

GAP = r"[ \t\r\n]*"

END = rf"{GAP}[,\]}}]"

OTHER_NUMBERS = ("Inf", "-NaN")  # Arrow takes these for numbers, and ``-Inf``

NEGATIVE_ZERO = f"-0{END}"

TWO_OBJECTS = rf"\}}{GAP}\{{"

NO_INT64 = r"[-0-9nul,\[ \t\r\n]*(?:[.eENI]|9[2-9][0-9]{17}|[0-9]{20})"
"""So a number goes on, or a list of some, in which one is no int64."""

FIRST = {STRING: '"', NUMBER: "-0-9NI", BOOLEAN: "tf"}  # of their values; null has ``n``


@dataclass(frozen=True, slots=True)
class Part:
    """Bodies that were read in one way: their documents, and the raw values of a column."""

    rows: pa.Array
    texts: pa.Array
    raw: Callable[[str], pa.Array | list[Any]]


class ArrowJson:
    """Reads what columns have in blocks of bodies, and learns what kind of JSON that is."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._kinds: dict[str, str] = {}
        self._sampled = False
        self._usable = not any(one.is_json or _is_deep(one) for one in columns)

    def read(self, bodies: pa.Array) -> list[Part]:
        if not self._usable:
            return []
        rows, texts = _sorted_out(bodies)
        if not self._sampled and len(texts):
            self._sampled = True
            self._kinds = self._seen_in(texts)
        return self._read(rows, texts, self._kinds, TRIES)

    def learn(self, column: Column, value: Any) -> None:
        _learn(self._kinds, column, value)

    def _read(
        self, rows: pa.Array, texts: pa.Array, kinds: dict[str, str], tries: int
    ) -> list[Part]:
        """Return parts for those of some suitable bodies that Arrow reads as the reference does."""
        schema = self._schema(kinds)
        # An empty text at the end: the last body has its line feed, too.
        lines = pa.concat_arrays([texts, pa.array([""], pa.string())])
        size = pc.sum(pc.binary_length(lines)).as_py() + len(texts)
        if not len(texts) or schema is None or size > BLOCK_BYTES_MAX:
            return []
        whole = pc.binary_join(pa.ListArray.from_arrays([0, len(lines)], lines), "\n")
        odd = _other_numbers(texts, whole) if tries == TRIES else None
        if odd is None:
            joined = whole.buffers()[2].slice(0, size)  # a scalar would be a copy
            try:
                table = _read_json(joined, schema)
            except pa.ArrowException as error:
                odd = self._refused(texts, joined, schema, kinds, str(error)) if tries else None
            else:
                if table.num_rows != len(texts):
                    odd = pc.match_substring_regex(texts, TWO_OBJECTS)
                else:
                    raw = {column.name: _found(table, column.path) for column in self._columns}
                    odd = self._misread(texts, whole, raw)
                    if odd is None:
                        return [Part(rows, texts, raw.__getitem__)]
        if not tries or odd is None or not pc.any(odd).as_py():
            return []
        good = pc.invert(odd)
        parts = self._read(rows.filter(good), texts.filter(good), kinds, tries - 1)
        rows, texts = rows.filter(odd), texts.filter(odd)
        others = kinds | self._seen_in(texts)
        # Arrow is worth its start for more than a few, of senders that write other kinds.
        if len(texts) > SAMPLES and others != kinds:
            parts += self._read(rows, texts, others, tries - 1)
            if 2 * len(texts) > len(odd):
                self._kinds = others
        return parts

    def _refused(
        self,
        texts: pa.Array,
        joined: pa.Buffer,
        schema: pa.Schema,
        kinds: dict[str, str],
        error: str,
    ) -> pa.Array | None:
        """Return which bodies may be as the one that Arrow has refused; None when they are many."""
        said = IN_ROW.search(error)
        if said is None:
            whole = [one for one in self._columns if pa.types.is_int64(_scalar(_type(one, kinds)))]
            return _matching(texts, [_member(one.path[-1]) + NO_INT64 for one in whole])
        place = int(said[1])
        if place < len(texts):
            with contextlib.suppress(BodyError):
                document = parse(texts[place].as_py().encode())
                unlike = [_unlike(column, document, kinds) for column in self._columns]
                found = _matching(texts, [pattern for pattern in unlike if pattern])
                if found is not None and found[place].as_py():
                    return found
        return _named(texts, joined, schema, error)

    def _misread(
        self, texts: pa.Array, whole: pa.Array, raw: dict[str, pa.Array]
    ) -> pa.Array | None:
        """Return in which bodies Arrow may have read other values than are there."""
        for column in self._columns:
            array = raw[column.name]
            values = array.flatten() if pa.types.is_list(array.type) else array
            if pa.types.is_float32(_scalar(column.kind)) and pa.types.is_floating(values.type):
                values = values.cast(pa.float32())
            if pa.types.is_string(_scalar(column.kind)) and pa.types.is_integer(values.type):
                # It drops the sign of a zero ...
                zero = pc.any(pc.equal(values, 0)).as_py()
                if zero and pc.match_substring_regex(whole, NEGATIVE_ZERO)[0].as_py():
                    return pc.match_substring_regex(texts, NEGATIVE_ZERO)
            elif pa.types.is_floating(values.type) and pc.any(pc.is_inf(values)).as_py():
                # ... and takes 1.8e308 for an infinite number.
                places = pc.indices_nonzero(pc.is_inf(values))
                if pa.types.is_list(array.type):
                    places = pc.list_parent_indices(array).take(places)
                return _mask(places.to_pylist(), len(texts))
        return None

    def _seen_in(self, texts: pa.Array) -> dict[str, str]:
        kinds: dict[str, str] = {}
        for text in texts[:SAMPLES].to_pylist():
            with contextlib.suppress(BodyError):
                document = parse(text.encode())
                for column in self._columns:
                    _learn(kinds, column, walk(document, column.path))
        return kinds

    def _schema(self, kinds: dict[str, str]) -> pa.Schema | None:
        """Return what Arrow is to look for; None when it cannot be said."""
        tree: dict[str, Any] = {}
        for column in self._columns:
            found = _type(column, kinds)
            if found is None:
                return None
            level = tree
            for name in column.path[:-1]:
                level = level.setdefault(name, {})
                if not isinstance(level, dict):
                    return None
            if level.setdefault(column.path[-1], found) != found:
                return None
        return pa.schema(_fields(tree))


def _read_json(joined: pa.Buffer, schema: pa.Schema) -> pa.Table:
    return pj.read_json(
        pa.BufferReader(joined),
        read_options=pj.ReadOptions(use_threads=False, block_size=joined.size + 1),
        parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )


def _found(table: pa.Table, path: Sequence[str]) -> pa.Array:
    array = table.column(path[0]).combine_chunks()
    return pc.struct_field(array, list(path[1:])) if len(path) > 1 else array


def _matching(texts: pa.Array, patterns: Iterable[str]) -> pa.Array | None:
    found = None
    for pattern in set(patterns):
        more = pc.match_substring_regex(texts, pattern)
        found = more if found is None else pc.or_(found, more)
    return found


def _mask(places: Iterable[int], length: int) -> pa.Array:
    mask = [False] * length
    for place in places:
        mask[place] = True
    return pa.array(mask)


def _other_numbers(texts: pa.Array, whole: pa.Array) -> pa.Array | None:
    """Return in which texts there are :data:`OTHER_NUMBERS`; None if in none."""
    if any(pc.match_substring_regex(whole, name + END)[0].as_py() for name in OTHER_NUMBERS):
        names = "|".join(OTHER_NUMBERS)
        found = pc.match_substring_regex(texts, rf"[:,\[]{GAP}-?(?:{names}){END}")
        return found if pc.any(found).as_py() else None
    return None


def _member(name: str) -> str:
    return re.escape(json.dumps(name, ensure_ascii=False)) + f"{GAP}:{GAP}"


def _unlike(column: Column, document: Any, kinds: Mapping[str, str]) -> str | None:
    """Return a pattern for bodies with a column's value of another kind, as this one; or None."""
    value, before = document, ""
    for name in column.path:
        if not isinstance(value, dict):
            return None if value is None else _member(before) + r"[^{n \t\r\n]"
        value, before = value.get(name), name
    kind = _kind(column, kinds)
    other = rf"[^{FIRST[kind]}n\] \t\r\n]"
    if value is None:
        return None
    if not pa.types.is_list(column.kind):
        return None if _kind_of(value) == kind else _member(before) + other
    if not isinstance(value, list):
        return _member(before) + r"[^\[n \t\r\n]"
    if all(part is None or _kind_of(part) == kind for part in value):
        return None
    return _member(before) + rf"\[(?:{GAP}null{GAP},)*{GAP}{other}"


def _named(texts: pa.Array, joined: pa.Buffer, schema: pa.Schema, error: str) -> pa.Array | None:
    """Return which bodies Arrow refuses, one at a time; None when they are too many."""
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
            return _mask(refused, len(texts))
        try:
            _read_json(joined.slice(ends[place]), schema)
            return _mask(refused, len(texts))
        except pa.ArrowException as again:
            error = str(again)
    return None


def _scalar(kind: pa.DataType | None) -> pa.DataType | None:
    return kind.value_type if kind is not None and pa.types.is_list(kind) else kind


def _is_deep(column: Column) -> bool:
    return bool(pa.types.is_nested(_scalar(column.kind)))


def _sorted_out(bodies: pa.Array) -> tuple[pa.Array, pa.Array]:
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
        opened = pc.add(_count(texts, "{"), _count(texts, "["))
        good = pc.and_(good, pc.less_equal(opened, DEPTH_MAX))
    rows = pc.indices_nonzero(pc.fill_null(good, False))
    return rows, texts if len(rows) == len(texts) else texts.take(rows)


def _count(texts: pa.Array, part: str) -> pa.Array:
    """Count a part, as far as it matters; Arrow's own count takes six times as long."""
    split = pc.split_pattern(texts, part, max_splits=DEPTH_MAX + 1)
    return pc.subtract(pc.list_value_length(split), 1)


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


def _kind_of(value: Any) -> str | None:
    if isinstance(value, Number):
        return NUMBER
    if isinstance(value, str):
        return STRING
    return BOOLEAN if isinstance(value, bool) else None


def _learn(kinds: dict[str, str], column: Column, value: Any) -> None:
    if pa.types.is_list(column.kind) and isinstance(value, list):
        value = next((part for part in value if part is not None), None)
    kind = _kind_of(value)
    if kind is not None:
        kinds[column.name] = kind


def _kind(column: Column, kinds: Mapping[str, str]) -> str:
    kind = _scalar(column.kind)
    if pa.types.is_boolean(kind):
        usual = BOOLEAN
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind) or column.format in EPOCHS:
        usual = NUMBER
    else:
        usual = STRING
    return kinds.get(column.name, usual)


def _type(column: Column, kinds: Mapping[str, str]) -> pa.DataType | None:
    """Return the type in which Arrow is to read a column; None when it could not keep its text."""
    kind, seen = _scalar(column.kind), _kind(column, kinds)
    is_string = pa.types.is_string(kind)
    found = None
    if seen == STRING:
        found = pa.string()
    elif seen == BOOLEAN:
        found = pa.bool_() if is_string or pa.types.is_boolean(kind) else None
    elif pa.types.is_floating(kind):
        found = pa.float64()
    elif is_string or pa.types.is_integer(kind) or column.format in EPOCHS:
        found = pa.int64()
    return pa.list_(found) if found is not None and pa.types.is_list(column.kind) else found
