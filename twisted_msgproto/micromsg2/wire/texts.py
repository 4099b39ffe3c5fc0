"""Read and write the texts inside MicroMsg2 frames: fields, values, properties, extension lists,
commands, filters.

Grammar, as this package writes it; what is read beyond that stands at each function::

    field       = 1*( "a"-"z" / "0"-"9" / "-" )                                 MM-01
    value       = "N" number / "D" seconds / "T" percent-encoded text           MM-23
    properties  = *( field ":" value ";" )                                      MM-22
    extensions  = [ extension *( ";" extension ) ]                              MM-08
    extension   = field [ ":" pair *( "," pair ) ]
    command     = field [ ";" pair *( "," pair ) ]                              MM-15
    pair        = field "=" percent-encoded text
    filter      = condition *( ";" condition )                                  MM-25
    condition   = field operator value                                          MM-24

Everything raises :class:`BadText` for what does not parse.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from sys import getsizeof
from types import MappingProxyType
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

from ...core.errors import LimitExceeded, shown

NUMBER_CHARACTERS_MAX = 64
"""A number or a time is no longer than this in text (``MM-24``)."""

COUNT_DIGITS_MAX: Final = 5

_FIELD: Final = re.compile(r"[a-z0-9-]+\Z")
_LENIENT_KEY: Final = re.compile(r"[a-z0-9_-]+\Z")
_NUMBER: Final = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?\Z")


class BadText(ValueError):
    """A text inside a frame does not follow its grammar."""


class TooLong(BadText, LimitExceeded):
    """A text is longer than a frame can carry, or than a limit allows; nothing was written."""


def is_field(text: str) -> bool:
    """Return whether it is a FIELD (``MM-01``)."""
    return _FIELD.match(text) is not None


def check_field(text: str, what: str) -> str:
    if not is_field(text):
        raise BadText(f"{what} {shown(text)} is not of a-z, 0-9 and hyphen")
    return text


def read_count(text: str) -> int | None:
    """Return a whole number of at most five digits; None for anything else."""
    digits = text.isascii() and text.isdigit() and len(text) <= COUNT_DIGITS_MAX
    return int(text) if digits else None


def _ascii(data: bytes, what: str) -> str:
    try:
        return data.decode("ascii")
    except UnicodeDecodeError:
        raise BadText(f"{what} is not ASCII: {shown(data)}") from None


# Values -----------------------------------------------------------------------------------------


class Kind(Enum):
    """The type of a value; the enum's value is its prefix on the wire (``MM-23``)."""

    NUMBER = "N"
    DATE = "D"
    TEXT = "T"


Content = int | Decimal | str


@dataclass(slots=True, frozen=True)
class Value:
    """One property or filter value (``MM-23``)."""

    kind: Kind
    content: Content  # to compare: int, Decimal (a date's seconds since 1970) or str
    text: str  # as it was written, without its prefix and decoded
    typed: bool = field(default=True, compare=False)  # it had a valid prefix (``MM-22``)


def read_value(text: str) -> Value:
    """Read a FILTER_VALUE: what is neither N, D nor T is text; not UTF-8: U+FFFD (``MM-22``)."""
    prefix, rest = text[:1], text[1:]
    if prefix == "T":
        decoded = unquote(rest)
        return Value(Kind.TEXT, decoded, decoded)
    if prefix in ("N", "D") and len(rest) <= NUMBER_CHARACTERS_MAX and _NUMBER.match(rest):
        if prefix == "D":
            return Value(Kind.DATE, Decimal(rest), rest)
        return Value(Kind.NUMBER, Decimal(rest) if "." in rest else int(rest), rest)
    decoded = unquote(text)
    return Value(Kind.TEXT, decoded, decoded, typed=False)


def write_value(value: Value | str | int | float | Decimal | datetime) -> str:
    """Return ``value`` with its type prefix: only typed values are written (``MM-22``).

    TypeError for other types (bool included), BadText for NaN, infinities, numbers above 64
    characters, times without a zone, and text that is not UTF-8.
    """
    match value:
        case Value(kind, _, text):
            return kind.value + (_quoted(text) if kind is Kind.TEXT else text)
        case str():
            return "T" + _quoted(value)
        case bool():
            raise TypeError("a property is text, a number or a time, not bool")
        case int() | float() | Decimal():
            return "N" + _spelled(Decimal(str(value)) if isinstance(value, float) else value)
        case datetime():
            if value.tzinfo is None:
                raise BadText("a time needs its zone")
            elapsed = value - datetime(1970, 1, 1, tzinfo=UTC)
            microseconds = elapsed.days * 86_400_000_000 + elapsed.seconds * 1_000_000
            return "D" + _spelled(Decimal(microseconds + elapsed.microseconds) / 1_000_000)
        case _:
            raise TypeError(f"a property is text, a number or a time, not {type(value).__name__}")


def _quoted(text: str) -> str:
    try:
        return quote(text, safe="")
    except UnicodeEncodeError:
        raise BadText(f"{shown(text)} is not UTF-8") from None


def _spelled(number: int | Decimal) -> str:
    if isinstance(number, Decimal) and not number.is_finite():
        raise BadText(f"{number} is no number to send")
    text = format(number, "f") if isinstance(number, Decimal) else str(number)
    if len(text) > NUMBER_CHARACTERS_MAX:
        raise BadText(f"a number has at most {NUMBER_CHARACTERS_MAX} characters")
    return text


# Properties -------------------------------------------------------------------------------------

Properties = Mapping[str, Value]

NO_PROPERTIES: Final[Properties] = {}

Writable = Value | str | int | float | Decimal | datetime


def read_properties(data: bytes) -> dict[str, Value]:
    """Read ``key:value;``, leniently; a repeated key keeps its last value (``MM-22``)."""
    properties = {}
    for item in _ascii(data, "properties").split(";"):
        if not item:
            continue
        key, colon, text = item.partition(":")
        if not colon:
            raise BadText(f"property {shown(item)} has no colon")
        if _LENIENT_KEY.match(key) is None:
            raise BadText(f"property name {shown(key)} is not of a-z, 0-9 and hyphen")
        properties[key] = read_value(text)
    return properties


SHORT_BYTES: Final = 512
SHORT_TEXTS: Final = 512
"""Texts of properties up to this length are remembered with what they say, so many of them.

All connections share them: what one of them sends fills no memory while it is silent.
"""

PAIR_BYTES: Final = 200
"""A property's objects weigh this many bytes, beside its value as text."""


class Parsed(NamedTuple):
    properties: Properties
    fields: Mapping[str, str]  # values as text
    untyped: int  # how many have no type
    weight: int  # bytes of memory: up to 60 times those of the text


NOTHING_SAID: Final = Parsed(NO_PROPERTIES, {}, 0, 0)


def parse_properties(data: bytes) -> Parsed:
    """Return what properties say, like :func:`read_properties`; short texts are read once."""
    if not data:
        return NOTHING_SAID
    return _short(data) if len(data) <= SHORT_BYTES else _all_said(data)


def _all_said(data: bytes) -> Parsed:
    properties = read_properties(data)
    fields = {key: value.text for key, value in properties.items()}
    untyped = sum(not value.typed for value in properties.values())
    weight = PAIR_BYTES * len(fields) + sum(map(getsizeof, fields.values()))
    return Parsed(properties, fields, untyped, weight)


_short = lru_cache(SHORT_TEXTS)(_all_said)


def write_properties(properties: Mapping[str, Writable]) -> bytes:
    """Return the bytes of ``properties`` (``MM-22``); BadText for a key that is no FIELD."""
    return "".join(
        f"{check_field(key, 'property name')}:{write_value(value)};"
        for key, value in properties.items()
    ).encode("ascii")


# Extension lists --------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class Offer:
    """One extension as it stands in a handshake: its name and its properties (``MM-08``)."""

    name: str
    properties: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return write_extensions([self]).decode("ascii")


EXTENSIONS_MAX: Final = 64

PROPERTIES_MAX: Final = 32
"""An extension has no more: a vendor's are kept as long as the session."""

USUAL_BYTES: Final = 512
USUAL_LISTS: Final = 64
"""So many lists of this length at most are remembered: sessions share what was agreed."""


def read_extensions(data: bytes) -> tuple[Offer, ...]:
    """Return an extension list (``MM-08``); BadText for duplicates and too many (``MM-32``).

    Lenient: empty items, property names in any case, ``:`` for a property's ``=`` (``MM-20``).
    """
    return _usual(data) if len(data) <= USUAL_BYTES else _parsed(data)


def _parsed(data: bytes) -> tuple[Offer, ...]:
    offers: dict[str, Offer] = {}
    for item in _ascii(data, "extension list").split(";"):
        if not item:
            continue
        if len(offers) == EXTENSIONS_MAX:
            raise BadText(f"more than {EXTENSIONS_MAX} extensions")
        name, _, rest = item.partition(":")
        check_field(name, "extension name")
        if name in offers:
            raise BadText(f"extension {name} is listed twice")
        properties = _read_pairs(rest, "[=:]")
        if len(properties) > PROPERTIES_MAX:
            raise BadText(f"extension {name} has more than {PROPERTIES_MAX} properties")
        offers[name] = Offer(name, MappingProxyType(properties))
    return tuple(offers.values())


_usual = lru_cache(USUAL_LISTS)(_parsed)


def _read_pairs(text: str, separators: str) -> dict[str, str]:
    pairs = {}
    for item in text.split(","):
        if not item:
            continue
        parts = re.split(separators, item, maxsplit=1)
        if len(parts) < 2:
            raise BadText(f"{shown(item)} has no value")
        pairs[check_field(parts[0].lower(), "key")] = unquote(parts[1])
    return pairs


def _write_pairs(pairs: Mapping[str, str]) -> str:
    return ",".join(f"{check_field(key, 'key')}={_quoted(value)}" for key, value in pairs.items())


def write_extensions(offers: Sequence[Offer]) -> bytes:
    """An extension list as ``MM-08`` has it, without a ``;`` after the last."""
    items = []
    for offer in offers:
        pairs = _write_pairs(offer.properties)
        check_field(offer.name, "extension name")
        items.append(f"{offer.name}:{pairs}" if pairs else offer.name)
    return ";".join(items).encode("ascii")


# Commands ---------------------------------------------------------------------------------------


def read_command(data: bytes) -> tuple[str, dict[str, str]]:
    """Name and parameters of a COMMAND (``MM-15``), names in lower case (``MM-25``)."""
    name, _, rest = _ascii(data, "command").partition(";")
    return check_field(name.lower(), "command name"), _read_pairs(rest.rstrip(";"), "=")


def write_command(name: str, parameters: Mapping[str, str]) -> bytes:
    pairs = _write_pairs(parameters)
    check_field(name, "command name")
    return (f"{name};{pairs}" if pairs else name).encode("ascii")


# Filters ----------------------------------------------------------------------------------------

Comparison = Callable[[Any, Any], bool]


# What each operator asks, of text and of numbers and dates (MM-24).
TEXT_OPERATORS: Final[Mapping[str, Comparison]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": str.startswith,
    ">": str.endswith,
    "~": lambda content, operand: operand not in content,
    "&": operator.contains,
}

_SEARCHING: Final = frozenset("~&")

NUMBER_OPERATORS: Final[Mapping[str, Comparison]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

# Longest operator first, so that "<=" is not read as "<" with a value that begins with "=".  No two
# parts of it can match the same text, or a long text could be split in too many ways.
_CONDITION: Final = re.compile(r"([^\s=<>!~&]*)\s*(<=|>=|!=|=|<|>|~|&)(.*)", re.DOTALL)


_MISSPELT: Final = re.compile(r"[ND](?:[0-9+\-.]|NaN\Z|Infinity\Z)")
"""An operand that is meant to be a number or a date, and is none; ``Nils`` is text (``MM-24``)."""


@dataclass(slots=True, frozen=True)
class Condition:
    """``key operator value``, checked when it is made (``MM-24``)."""

    key: str
    operator: str
    value: Value

    def __post_init__(self) -> None:
        self.comparison()

    def comparison(self) -> Comparison:
        kind = self.value.kind
        found = (TEXT_OPERATORS if kind is Kind.TEXT else NUMBER_OPERATORS).get(self.operator)
        if found is None:
            raise BadText(f"operator {self.operator} does not go with {kind.name}")
        return found

    def __str__(self) -> str:
        return f"{self.key}{self.operator}{write_value(self.value)}"


CONDITIONS_MAX: Final = 32

CONDITION_BYTES: Final = 300
"""A condition weighs this many bytes beside its texts: the objects that it is made of."""


class Filter:
    """Conditions that must all be true (``MM-24``, ``MM-25``).

    A message without the property, or with one of another type, does not match, whatever the
    operator.  No condition at all matches everything.

    Attributes:
        conditions: all of them.
        searches: how many of them search within a text, which takes the longer the longer it is.
        weight: how many bytes of memory they take.
    """

    __slots__ = ("_checks", "conditions", "searches", "weight")

    def __init__(self, conditions: Sequence[Condition]) -> None:
        self.conditions: tuple[Condition, ...] = tuple(conditions)
        self._checks = tuple(
            (condition.key, condition.value.kind, condition.comparison(), condition.value.content)
            for condition in self.conditions
        )
        self.searches: int = sum(condition.operator in _SEARCHING for condition in self.conditions)
        self.weight: int = sum(
            CONDITION_BYTES + getsizeof(condition.key) + getsizeof(condition.value.text)
            for condition in self.conditions
        )

    @classmethod
    def read(cls, expression: str) -> Filter:
        """Return what an expression says; BadText names the condition that cannot be."""
        conditions: list[Condition] = []
        for item in expression.split(";"):
            item = item.strip()
            if not item:
                continue
            if len(conditions) == CONDITIONS_MAX:
                raise BadText(f"more than {CONDITIONS_MAX} conditions")
            parts = _CONDITION.fullmatch(item)
            if parts is None or _LENIENT_KEY.match(parts[1]) is None:
                raise BadText(f"{shown(item)} is not: name, operator, value")
            text = parts[3].strip()
            operand = read_value(text)
            if not operand.typed and _MISSPELT.match(text):
                raise BadText(f"{shown(text)} is neither a number nor a date")
            conditions.append(Condition(parts[1], parts[2], operand))
        return cls(conditions)

    def matches(self, properties: Properties) -> bool:
        """Return whether a message with these properties is meant."""
        for key, kind, compare, operand in self._checks:
            value = properties.get(key)
            if value is None or value.kind is not kind or not compare(value.content, operand):
                return False
        return True

    def __str__(self) -> str:
        return ";".join(map(str, self.conditions))
