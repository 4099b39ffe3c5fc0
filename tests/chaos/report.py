"""The table of ``./run chaos``: its rows, and the page that keeps what was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

BEGIN, END = "<!-- the table of ./run chaos -->", "<!-- its end -->"
"""The page's table stands between these lines."""

COLUMNS = ("what is done", "what must hold", "measured", "kept", "when")
RULE = "|" + "---|" * len(COLUMNS)
NOT_YET = ("not measured yet", "–", "–")


class NotHere(Exception):
    """A row cannot be measured on this machine; the text says what is missing."""


@dataclass(frozen=True)
class Found:
    """What was measured: a text with figures, and whether what must hold did."""

    text: str
    kept: bool


@dataclass(frozen=True)
class Row:
    """One row: ``measure(scale)`` does it, smaller for a scale below 1.

    It returns what was found, and raises NotHere where that is not possible here.
    """

    kind: str
    name: str
    goal: str
    measure: Callable[[float], Found]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def kept_rows(page: str) -> dict[str, tuple[str, str, str]]:
    """What the page's table says of each row: measured, kept, when."""
    found: dict[str, tuple[str, str, str]] = {}
    for line in page.partition(BEGIN)[2].partition(END)[0].splitlines():
        if line.startswith("|"):
            name, _, measured, kept, when = cells(line)
            found[name] = (measured, kept, when)
    return found


def table(rows: Iterable[Row], measured: Mapping[str, tuple[str, str, str]]) -> str:
    lines = ["| " + " | ".join(COLUMNS) + " |", RULE]
    for row in rows:
        told = measured.get(row.name, NOT_YET)
        lines.append("| " + " | ".join((row.name, row.goal, *told)) + " |")
    return "\n".join(lines)


def written(
    page: str, rows: Iterable[Row], now: Mapping[str, tuple[str, str, str]], about: str
) -> str:
    """The page with its table made anew; what was not measured now is kept as it stands."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the page has no lines {BEGIN!r} and {END!r}")
    made = table(rows, {**kept_rows(page), **now})
    return f"{before}{BEGIN}\n\n{about}\n\n{made}\n\n{END}{after}"


def write(
    path: Path, rows: Iterable[Row], now: Mapping[str, tuple[str, str, str]], about: str
) -> None:
    path.write_text(written(path.read_text(), rows, now, about))
