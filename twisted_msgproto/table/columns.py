"""Columns of JSON bodies and fields: what they are, and the reference that says what a body means.

:func:`Columns.row` decides value and error of one row together; what is faster
(``column_blocks.py``) has to say the same.  A scalar of JSON is a text here, as it is written:
``200`` and ``"200"`` differ for no type.  What cannot be converted is null and has an error, what
is missing is null and has none.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pyarrow as pa

from ..core.errors import ConfigurationError
from ..core.loading import closest

DEPTH_MAX = 200  # of JSON: Python's own bound depends on who calls, and Arrow has none
SHOWN_MAX = 60  # an error shows so many characters of a value at most

NOT_TEXT = "the body is not UTF-8"
NOT_JSON = "the body is not JSON"
NOT_OBJECT = "the body is JSON, but not an object"
TOO_DEEP = f"the body is nested deeper than {DEPTH_MAX} levels"

TIMESTAMP = pa.timestamp("us", "UTC")

TYPES: dict[str, pa.DataType] = {
    "string": pa.string(),
    "int": pa.int32(),
    "long": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "timestamp": TIMESTAMP,
    "date": pa.date32(),
    "json": pa.string(),
}

EPOCHS = {"epoch_ms": 1000, "epoch_s": 1_000_000}  # microseconds of the unit that is counted

UNFIT_NAME = re.compile(r"[\x00-\x20\x7f,;{}()=]")

OWN_NAMES = ("gateway", "offset", "received_at", "day", "_error", "_body")


class Number(str):
    """A JSON number as it is written."""

    __slots__ = ()


_decoder = json.JSONDecoder(parse_int=Number, parse_float=Number, parse_constant=Number)

BLANKS = " \t\n\r"


class BodyError(ValueError):
    """The body is not what columns can be made of; the text says why."""


def parse(body: bytes) -> Any:
    """Return the JSON value of a body, numbers as :class:`Number`; the last of equal names wins."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        raise BodyError(NOT_TEXT) from None
    try:
        value = _decoder.decode(text)
    except ValueError:
        raise BodyError(NOT_JSON) from None
    except RecursionError:
        raise BodyError(TOO_DEEP) from None
    if text.count("{") + text.count("[") > DEPTH_MAX and _is_deep(value):
        raise BodyError(TOO_DEEP)
    return value


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(DEPTH_MAX):
        level = [
            part
            for outer in level
            if isinstance(outer, (dict, list))
            for part in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return any(isinstance(part, (dict, list)) for part in level)


def json_text(value: Any) -> str:
    """Return a value as JSON without blanks, its numbers as they were written."""
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{_quoted(k)}:{json_text(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(json_text, value)) + "]"
    return _quoted(value)


def _quoted(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if is_utf8(text) else json.dumps(value)


def is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown(value: Any) -> str:
    text = json_text(value)
    return text if len(text) <= SHOWN_MAX else f"{text[: SHOWN_MAX - 1]}…"


# -- from text to values --------------------------------------------------------------------------


class Unfit(ValueError):
    """A text is no value of a type; the message is the end of ``VALUE is …``."""


INTEGER = re.compile(r"-?[0-9]+")

DECIMAL = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")

NOT_FINITE = ("NaN", "Infinity", "-Infinity")

ISO = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[T ]((?:[01][0-9]|2[0-3]):[0-9]{2}:[0-9]{2})"
    r"(?:\.([0-9]+))?(Z|[+-][0-9]{2}:?[0-9]{2})?"
)

DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")

EPOCH = dt.datetime(1970, 1, 1)

MICRO = dt.timedelta(microseconds=1)

MICROS_MIN = (dt.datetime.min - EPOCH) // MICRO

MICROS_MAX = (dt.datetime.max - EPOCH) // MICRO

EXPONENT_MAX = 10**6  # larger ones, which no value has, are taken for this one
EPOCH_DIGITS = 60  # more digits of a time since 1970 are far behind its microseconds


def as_string(text: str) -> str:
    if not is_utf8(text):
        raise Unfit("not Unicode: half of a surrogate pair")
    return str(text)


def as_integer(text: str, bits: int, name: str) -> int:
    if not INTEGER.fullmatch(text):
        raise Unfit(f"not of type {name}")
    digits = text.lstrip("-").lstrip("0")
    value = int(digits or "0") if len(digits) < 20 else 1 << 64
    value = -value if text.startswith("-") else value
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise Unfit(f"too large for {name}")
    return value


def as_float(text: str, bits: int) -> float:
    if text in NOT_FINITE:
        return float(text)
    name = "double" if bits == 64 else "float"
    if not DECIMAL.fullmatch(text):
        raise Unfit(f"not of type {name}")
    value = float(text)
    with contextlib.suppress(OverflowError):
        value = value if bits == 64 else struct.unpack("f", struct.pack("f", value))[0]
        if value not in (float("inf"), float("-inf")):
            return value
    raise Unfit(f"too large for {name}")


def as_decimal(text: str, precision: int, scale: int) -> Decimal:
    name = f"decimal({precision},{scale})"
    if not DECIMAL.fullmatch(text):
        raise Unfit(f"not of type {name}")
    negative, digits, unit = _number(text)
    if unit < -scale or len(digits) + unit > precision - scale:
        raise Unfit(f"not exactly a {name}")
    number = int(digits or "0") * 10 ** (unit + scale)
    return Decimal((negative, tuple(map(int, str(number))), -scale))


def _number(text: str) -> tuple[bool, str, int]:
    """Return sign, digits without zeros at either end, and the last one's power of ten."""
    mantissa, _, exponent = text.lower().partition("e")
    whole, _, fraction = mantissa.removeprefix("-").partition(".")
    digits = (whole + fraction).rstrip("0")
    if not digits.strip("0"):
        return False, "", 0
    power = exponent.lstrip("+-").lstrip("0")
    unit = int(power or "0") if len(power) < 7 else EXPONENT_MAX
    unit = -unit if exponent.startswith("-") else unit
    unit += len(whole) - len(digits)
    return text.startswith("-"), digits.lstrip("0"), unit


def as_boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise Unfit("not of type boolean")
    return text == "true"


def as_micros(text: str, format: str | None) -> int:
    if format in EPOCHS:
        value = _epoch(text, EPOCHS[format])
    elif format is not None:
        time = _formatted(text, format)
        value = (time - EPOCH.replace(tzinfo=dt.UTC)) // MICRO
    else:
        value = _iso(text)
    if not MICROS_MIN <= value <= MICROS_MAX:
        raise Unfit("outside of the years 1 to 9999")
    return value


def _iso(text: str) -> int:
    match = ISO.fullmatch(text)
    if match is None:
        raise Unfit("not of type timestamp")
    day, time, fraction, zone = match.groups()
    try:
        value = (dt.datetime.fromisoformat(f"{day}T{time}") - EPOCH) // MICRO
    except ValueError:
        raise Unfit("not of type timestamp") from None
    value += int((fraction or "0")[:6].ljust(6, "0"))
    if zone and zone != "Z":
        hours, minutes = int(zone[1:3]), int(zone[-2:])
        if hours > 23 or minutes > 59:
            raise Unfit("not of type timestamp")
        offset = (hours * 60 + minutes) * 60_000_000
        value += offset if zone[0] == "-" else -offset
    return value


def _epoch(text: str, unit: int) -> int:
    if not DECIMAL.fullmatch(text):
        raise Unfit("not a number of seconds or milliseconds since 1970")
    negative, digits, power = _number(text)
    if len(digits) + power > EPOCH_DIGITS:
        raise Unfit("outside of the years 1 to 9999")
    if len(digits) + power < -EPOCH_DIGITS:
        return 0
    power += max(0, len(digits) - EPOCH_DIGITS)
    whole = int(digits[:EPOCH_DIGITS] or "0") * unit
    value: int = whole * 10**power if power >= 0 else whole // 10**-power
    return -value if negative else value


def _formatted(text: str, format: str) -> dt.datetime:
    try:
        time = dt.datetime.strptime(text, format)
        return time.replace(tzinfo=dt.UTC) if time.tzinfo is None else time.astimezone(dt.UTC)
    except (ValueError, OverflowError):
        raise Unfit(f"not a time as {format}") from None


def as_date(text: str, format: str | None) -> dt.date:
    if format is not None:
        try:
            return dt.datetime.strptime(text, format).date()
        except ValueError:
            raise Unfit(f"not a date as {format}") from None
    try:
        if DAY.fullmatch(text):
            return dt.date.fromisoformat(text)
    except ValueError:
        pass
    raise Unfit("not of type date")


def scalar(kind: pa.DataType, format: str | None = None) -> Callable[[str], Any]:
    """Return what converts a scalar's text to ``kind`` (times: µs since 1970) or raises Unfit."""
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return as_string
    if pa.types.is_signed_integer(kind):
        name = {8: "byte", 16: "short", 32: "int", 64: "long"}[kind.bit_width]
        return lambda text: as_integer(text, kind.bit_width, name)
    if pa.types.is_float32(kind) or pa.types.is_float64(kind):
        return lambda text: as_float(text, kind.bit_width)
    if pa.types.is_decimal(kind):
        return lambda text: as_decimal(text, kind.precision, kind.scale)
    if pa.types.is_boolean(kind):
        return as_boolean
    if kind == TIMESTAMP:
        return lambda text: as_micros(text, format)
    if pa.types.is_date32(kind):
        return lambda text: as_date(text, format)
    raise ConfigurationError(f"no column of JSON is of type {kind}")


# -- from JSON values to values -------------------------------------------------------------------

Errors = list[str]

Convert = Callable[[Any, str, Errors], Any]  # appends what does not fit to the errors


def text_of(value: Any) -> str | None:
    if value is True:
        return "true"
    if value is False:
        return "false"
    return value if isinstance(value, str) else None


def converter(kind: pa.DataType, format: str | None = None) -> Convert:
    """Return what converts JSON values to ``kind``: scalars, lists, structs and maps of them."""
    if pa.types.is_list(kind):
        return _to_list(converter(kind.value_type, format))
    if pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
        return _to_map(converter(kind.item_type, format))
    if pa.types.is_struct(kind):
        parts = [kind.field(index) for index in range(kind.num_fields)]
        return _to_struct({part.name: converter(part.type, format) for part in parts})
    convert = scalar(kind, format)

    def to_scalar(value: Any, name: str, errors: Errors) -> Any:
        if value is None:
            return None
        text = text_of(value)
        if text is None:
            what = "an object" if isinstance(value, dict) else "an array"
            errors.append(f"{name}: {shown(value)} is {what}")
            return None
        try:
            return convert(text)
        except Unfit as error:
            errors.append(f"{name}: {shown(value)} is {error}")
            return None

    return to_scalar


def _to_list(convert: Convert) -> Convert:
    def to_list(value: Any, name: str, errors: Errors) -> Any:
        if value is None:
            return None
        if not isinstance(value, list):
            errors.append(f"{name}: {shown(value)} is no array")
            return None
        found: Errors = []
        values = [convert(part, name, found) for part in value]
        errors += found[:1]
        return None if found else values

    return to_list


def _to_map(convert: Convert) -> Convert:
    def to_map(value: Any, name: str, errors: Errors) -> Any:
        if value is None:
            return None
        if not isinstance(value, dict):
            errors.append(f"{name}: {shown(value)} is no object")
            return None
        found: Errors = []
        values = []
        for key, part in value.items():
            if not is_utf8(key):
                found.append(f"{name}: a name in {shown(value)} is not Unicode")
            values.append((key, convert(part, f"{name}.{key}", found)))
        errors += found[:1]
        return None if found else values

    return to_map


def _to_struct(converts: Mapping[str, Convert]) -> Convert:
    def to_struct(value: Any, name: str, errors: Errors) -> Any:
        if value is None:
            return None
        if not isinstance(value, dict):
            errors.append(f"{name}: {shown(value)} is no object")
            return None
        return {
            part: convert(value.get(part), f"{name}.{part}", errors)
            for part, convert in converts.items()
        }

    return to_struct


# -- columns --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a typed table."""

    name: str
    kind: pa.DataType
    path: tuple[str, ...] = ()  # names of members; empty: the whole body
    in_fields: bool = False  # the path is a name in the row's ``fields``
    is_json: bool = False
    format: str | None = None
    required: bool = False

    @property
    def of_body(self) -> bool:
        return self.is_json and not self.path

    def convert(self) -> Convert:
        if self.is_json:
            return lambda value, name, errors: None if value is None else json_text(value)
        return converter(self.kind, self.format)


def walk(value: Any, path: Iterable[str]) -> Any:
    """Return what is at the end of a path; None where a member is missing or there is no object."""
    for name in path:
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value


@dataclass(frozen=True)
class Columns:
    columns: tuple[Column, ...]
    _converts: dict[str, Convert] = field(default_factory=dict, compare=False, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return Columns, (self.columns,)

    @property
    def fields(self) -> list[pa.Field]:
        return [pa.field(column.name, column.kind) for column in self.columns]

    @property
    def reads_bodies(self) -> bool:
        return any(not column.in_fields for column in self.columns)

    def row(
        self, body: bytes | None, fields: Iterable[tuple[str, str | None]] | None = None
    ) -> tuple[dict[str, Any], str | None]:
        """Return a row's values (times: µs since 1970), and what is wrong with it, or None."""
        errors: Errors = []
        document, text = None, None
        if body is not None and self.reads_bodies:
            try:
                document = parse(body)
                text = body.decode()
                if not isinstance(document, dict):
                    errors.append(NOT_OBJECT)
            except BodyError as error:
                errors.append(str(error))
        pairs = dict(fields or ())
        whole = bool(errors)
        values = {}
        for column in self.columns:
            if column.of_body:
                value = text
                if value is None and column.required and not whole:
                    errors.append(f"{column.name}: it is missing")
            elif column.in_fields:
                value = self.cell(column, pairs.get(column.path[0]), errors)
            else:
                value = self.cell(column, walk(document, column.path), errors, quiet=whole)
            values[column.name] = value
        return values, "; ".join(errors) or None

    def cell(self, column: Column, value: Any, errors: Errors, *, quiet: bool = False) -> Any:
        """Return the value of a column; ``quiet`` when the body has its error already."""
        if value is None:
            if column.required and not quiet:
                errors.append(f"{column.name}: it is missing")
            return None
        convert = self._converts.get(column.name)
        if convert is None:
            convert = self._converts[column.name] = column.convert()
        return convert(value, column.name, errors)


# -- as they are written in a file ----------------------------------------------------------------

KEYS = ("path", "type", "from", "format", "required")

ARRAY = re.compile(r"array<(.+)>")

DECIMAL_TYPE = re.compile(r"decimal\(\s*(\d+)\s*,\s*(\d+)\s*\)")


def columns_of(given: Mapping[str, Any], taken: Sequence[str] = OWN_NAMES) -> Columns:
    """Return the columns of a section ``[table.columns]``; ``taken`` are the table's others."""
    columns = tuple(_column(name, settings) for name, settings in given.items())
    if not columns:
        raise ConfigurationError("[table.columns] names no column")
    seen = {name.lower(): name for name in taken}
    for column in columns:
        before = seen.get(column.name.lower())
        if before is not None:
            own = before in taken
            why = "the table has one already" if own else f"it differs from {before!r} only in case"
            raise ConfigurationError(f"the column {column.name!r} has a name that cannot be: {why}")
        seen[column.name.lower()] = column.name
    return Columns(columns)


def check_name(name: str) -> None:
    if not name or UNFIT_NAME.search(name):
        raise ConfigurationError(
            f"the column {name!r} has a name that cannot be: a name has no blank, control "
            "character nor any of ,;{}()="
        )


def _column(name: str, settings: object) -> Column:
    check_name(name)
    if isinstance(settings, str):
        settings = {"type": settings}
    if not isinstance(settings, Mapping):
        raise ConfigurationError(
            f'the column {name!r} is a table as {{ path = "user.id", type = "long" }}, not '
            f"{settings!r}"
        )
    for key in settings:
        if key not in KEYS:
            has = f"{closest(key, KEYS)}; it has {', '.join(KEYS)}"
            raise ConfigurationError(f"the column {name!r} has no setting {key!r}{has}")
    type_name = settings.get("type")
    kind = type_of(name, type_name)
    is_json = type_name == "json"
    source = settings.get("from", "body")
    if source not in ("body", "fields"):
        raise ConfigurationError(f'the column {name!r}: from is "body" or "fields", not {source!r}')
    in_fields = source == "fields"
    if in_fields and (is_json or pa.types.is_list(kind)):
        raise ConfigurationError(
            f"the column {name!r} is of type {type_name}, which fields do not have: they are texts"
        )
    required = settings.get("required", False)
    if not isinstance(required, bool):
        raise ConfigurationError(
            f"the column {name!r}: required is true or false, not {required!r}"
        )
    return Column(
        name,
        kind,
        _path(name, settings.get("path"), in_fields, () if is_json else (name,)),
        in_fields,
        is_json,
        _format(name, kind, settings.get("format")),
        required,
    )


def type_of(column: str, name: object) -> pa.DataType:
    text = name.strip() if isinstance(name, str) else ""
    array = ARRAY.fullmatch(text)
    inner = array[1].strip() if array else text
    found = TYPES.get(inner) if not (array and inner == "json") else None
    decimal = DECIMAL_TYPE.fullmatch(inner)
    if decimal:
        precision, scale = int(decimal[1]), int(decimal[2])
        if not 1 <= precision <= 38 or scale > precision:
            raise ConfigurationError(
                f"the column {column!r} is of type {text}; a decimal has 1 to 38 digits, and as "
                "many of them at most behind the point"
            )
        found = pa.decimal128(precision, scale)
    if found is None:
        known = ", ".join([*TYPES, "decimal(p,s)", "array<…>"])
        what = "has no type" if name is None else f"is of type {name!r}"
        raise ConfigurationError(f"the column {column!r} {what}; there are {known}")
    return pa.list_(found) if array else found


def _path(column: str, given: object, in_fields: bool, default: tuple[str, ...]) -> tuple[str, ...]:
    if given is None:
        return default
    if isinstance(given, str):
        # Names of fields are not nested, and have dots often.
        parts = [given] if in_fields else given.split(".")
    elif isinstance(given, list) and not (in_fields and len(given) != 1):
        parts = given
    else:
        parts = []
    if not parts or not all(isinstance(part, str) and part for part in parts):
        raise ConfigurationError(
            f'the column {column!r}: path is "member.member", or ["one member", "and its member"], '
            f"not {given!r}"
        )
    return tuple(parts)


def _format(column: str, kind: pa.DataType, given: object) -> str | None:
    if given is None:
        return None
    inner = kind.value_type if pa.types.is_list(kind) else kind
    is_time = pa.types.is_timestamp(inner)
    if not isinstance(given, str) or not (is_time or pa.types.is_date32(inner)):
        raise ConfigurationError(
            f"the column {column!r} has the format {given!r}; only timestamp and date have one"
        )
    if given in EPOCHS and is_time:
        return given
    sample = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)
    try:
        again = dt.datetime.strptime(sample.strftime(given), given)
    except ValueError:
        again = None
    if again is None or again.date() != sample.date():
        epochs = f"{', '.join(EPOCHS)} or " if is_time else ""
        raise ConfigurationError(
            f"the column {column!r} has the format {given!r}; a format is {epochs}one of "
            "Python's strptime, as %d/%b/%Y:%H:%M:%S %z"
        )
    return given
