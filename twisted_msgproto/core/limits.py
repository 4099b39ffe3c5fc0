"""Limits are data: each has a name, a default, a unit and a reason.

A protocol lists its limits in one table.  The table is the source of the ``--limit NAME=VALUE``
options, the ``--help`` text and the documentation, so a limit cannot be on paper only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import inf
from typing import Final, NamedTuple

from .errors import ConfigurationError, LimitExceeded
from .loading import closest


class Limit(NamedTuple):
    """A limit has a name, a default, a unit ("bytes", "s", "messages", …) and a reason to
    exist.
    """

    name: str
    default: float
    unit: str
    reason: str
    minimum: float = 0
    maximum: float = inf


def amount(value: float, unit: str) -> str:
    """Return ``value`` as people write it: ``64 MiB``, ``16 KiB/s``, ``10,000 connections``."""
    if unit.startswith("bytes") and value:
        rest = unit.removeprefix("bytes")
        for size, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
            if value % size == 0:
                return f"{value // size:,.0f} {name}{rest}"
    return f"{value:,.15g} {unit}"


SIZES: Final[Mapping[str, int]] = {
    "": 1,
    "b": 1,
    **{f"{sign}ib": 1 << 10 * power for power, sign in enumerate("kmgt", 1)},
    **{f"{sign}b": 1000**power for power, sign in enumerate("kmgt", 1)},
}

SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", re.ASCII)

A_SIZE: Final = "a number of bytes, or one with KiB, MiB, GiB, TiB, kB, MB, GB or TB"


def read_size(text: str) -> int:
    """``65536``, ``64KiB`` or ``10GB`` in bytes; ValueError for another text."""
    match = SIZE.fullmatch(text.strip())
    unit = None if match is None else SIZES.get(match[2].lower())
    if match is None or unit is None:
        raise ValueError(f"{A_SIZE}, is expected, not {text!r}")
    return int(Fraction(match[1]) * unit)


DURATION: Final = re.compile(
    r"(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d|milliseconds?|seconds?|minutes?|hours?|days?)?", re.ASCII
)

SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

A_DURATION: Final = "a number of seconds, or a duration like 500ms, 10s or 2m"


def read_seconds(text: str) -> float:
    """``500ms``, ``10s``, ``2 minutes`` or a bare number; ValueError for another text."""
    match = DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{A_DURATION}, is expected, not {text!r}")
    unit = match[2] or "s"
    if unit.startswith("milli"):
        unit = "ms"
    return float(match[1]) * SECONDS[unit if unit == "ms" else unit[0]]


@dataclass(slots=True, frozen=True)
class Limits(Mapping[str, float]):
    """The limits in force: a table of :class:`Limit`, and the values that an operator
    changed.

    ``limits["json-bytes"]`` is the value in force.  A value keeps the type of its
    default: an integer limit stays an integer.
    """

    table: Mapping[str, Limit]
    changed: Mapping[str, float]

    @classmethod
    def of(cls, *tables: Iterable[Limit]) -> Limits:
        return cls({limit.name: limit for table in tables for limit in table}, {})

    def replace(self, changes: Mapping[str, object]) -> Limits:
        """Return a copy with ``changes`` (name → number, or text that spells one).

        Raises ConfigurationError for an unknown name, for what is no number, and for a value
        below the limit's minimum or above its maximum.
        """
        if not isinstance(changes, Mapping):
            raise TypeError(f"limits: a mapping is expected, not {type(changes).__name__}")
        changed = dict(self.changed)
        for name, value in changes.items():
            changed[name] = self._read(name, value)
        return Limits(self.table, changed)

    def _read(self, name: str, value: object) -> float:
        limit = self.table.get(name)
        if limit is None:
            near = closest(name, self.table)
            raise ConfigurationError(
                f"unknown limit {name!r}{near}; known: {', '.join(self.table)}"
            )
        number_type = type(limit.default)
        base, slash, per = limit.unit.partition("/")
        takes = {"bytes": A_SIZE, "s": A_DURATION}.get(base, f"a number of {limit.unit}")
        try:
            if base == "bytes" and isinstance(value, str):
                number = number_type(read_size(value.removesuffix(f"{slash}{per}")))
            elif limit.unit == "s" and isinstance(value, str) and value[-1:].isalpha():
                number = number_type(read_seconds(value))
            else:
                number = number_type(str(value))
        except ValueError:
            raise ConfigurationError(f"limit {name} takes {takes}, not {value!r}") from None
        if not limit.minimum <= number < inf:
            raise ConfigurationError(f"limit {name} is at least {limit.minimum:g}, not {value!r}")
        if number > limit.maximum:
            raise ConfigurationError(f"limit {name} is at most {limit.maximum:.0f}, not {value!r}")
        return number

    def __getitem__(self, name: str) -> float:
        if name in self.changed:
            return self.changed[name]
        return self.table[name].default

    def integer(self, name: str) -> int:
        """Return the limit ``name`` as a whole number."""
        return int(self[name])

    def check(self, name: str, amount: float) -> None:
        """Raise LimitExceeded if ``amount`` is above the limit ``name``; nothing is sent then."""
        if amount > self[name]:
            limit = self.table[name]
            text = f"{amount:.0f} {limit.unit}, {name} allows {self[name]:.0f}"
            raise LimitExceeded(f"{text}; nothing was sent")

    def __iter__(self) -> Iterator[str]:
        return iter(self.table)

    def __len__(self) -> int:
        return len(self.table)
