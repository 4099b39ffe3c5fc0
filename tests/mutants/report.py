"""What became of the mutants: kept as JSON beside this file, shown as ``docs/mutants.md``."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .rooms import PROJECT, ROOMS

if TYPE_CHECKING:  # what makes mutants is not installed everywhere
    from .making import Mutant
    from .running import Verdict

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
EQUIVALENT = HERE / "equivalent.toml"
PAGE = PROJECT / "docs" / "mutants.md"
HEAD = HERE / "page.md"
"""The beginning of the page, as text."""

Change = tuple[str, str, str]
"""A file, and its lines before and after."""

CHOSEN = "another number"
"""In a row of the table ``after`` stands for every change of a number of the line, except to 0."""

_NUMBER = re.compile(r"[- ]*\b(0x[0-9A-Fa-f]+|\d[\d.]*)\b")


def reasons() -> dict[Change, str]:
    """Return why some mutants change nothing that anybody could notice."""
    rows = tomllib.loads(EQUIVALENT.read_text()).get("mutant", [])
    return {(row["file"], row["before"], row["after"]): row["why"] for row in rows}


def reason(change: Iterable[str], why: dict[Change, str]) -> str:
    """Return why a change does nothing, of :func:`reasons`; "" if it may do something."""
    file, before, after = change
    chosen = why.get((file, before, CHOSEN), "") if _numbers_alone(before, after) else ""
    return why.get((file, before, after), chosen)


def _numbers_alone(before: str, after: str) -> bool:
    """Return whether two lines differ in numbers alone, and none of them has become 0."""
    zeros = [sum(one in ("0", "0.0") for one in _NUMBER.findall(line)) for line in (before, after)]
    return _NUMBER.sub("#", before) == _NUMBER.sub("#", after) and zeros[1] <= zeros[0]


Sample = dict[str, Any]
"""What became of one sample of a room's mutants: its ``seed``, how many mutants the room has in
``all``, how many were ``tried``, ``killed`` and ``killed_at_first``, the changes of those that do
``nothing`` and of the ``survivors``."""


def known() -> dict[str, list[Sample]]:
    """Return the samples of each room; a survivor with a reason changes nothing."""
    rooms: dict[str, list[Sample]] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    why = reasons()
    for one in [one for samples in rooms.values() for one in samples]:
        explained = [change for change in one["survivors"] if reason(change, why)]
        one["survivors"] = [change for change in one["survivors"] if change not in explained]
        one["nothing"] = sorted(one["nothing"] + explained)
    return rooms


def fresh_seed(name: str) -> int:
    """Return the first seed of which no sample of the room was drawn."""
    drawn = {one["seed"] for one in known().get(name, [])}
    return next(seed for seed in count(1) if seed not in drawn)


def _change(mutant: Mutant) -> list[str]:
    return [str(mutant.file), *mutant.change((PROJECT / mutant.file).read_text())]


def result_of(seed: int, verdicts: list[Verdict], number: int = 0) -> Sample:
    """Return what became of a sample of a room that has ``number`` mutants."""
    why = reasons()
    left = sorted(_change(verdict.mutant) for verdict in verdicts if not verdict.by)
    killed = sum(bool(verdict.by) for verdict in verdicts)
    return {
        "seed": seed,
        "all": number,
        "tried": len(verdicts),
        "killed": killed,
        "killed_at_first": killed,
        "nothing": [change for change in left if reason(change, why)],
        "survivors": [change for change in left if not reason(change, why)],
    }


def keep(name: str, samples: list[Sample]) -> None:
    """Keep the samples of a room, beside those of the other rooms."""
    rooms = {**known(), name: sorted(samples, key=lambda one: int(one["seed"]))}
    ordered = {room: rooms[room] for room in ROOMS if room in rooms}
    RESULTS.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n")


def record(name: str, sample: Sample) -> bool:
    """Keep a sample beside the room's others, and return True.

    Of a seed that is known nothing is recorded: tests were written for its survivors, and what is
    killed now was not killed at first.
    """
    samples = known().get(name, [])
    if sample["seed"] in {one["seed"] for one in samples}:
        return False
    keep(name, [*samples, sample])
    return True


def tried_again(sample: Sample, verdicts: list[Verdict]) -> Sample:
    """Return a sample whose survivors were tried again.

    Those of statements that are no more are not counted.
    """
    why = reasons()
    killed = {tuple(_change(verdict.mutant)): bool(verdict.by) for verdict in verdicts}
    before = [tuple(change) for change in sample["survivors"]]
    left = [list(change) for change in before if killed.get(change) is False]
    return {
        **sample,
        "tried": sample["tried"] - sum(change not in killed for change in before),
        "killed": sample["killed"] + sum(killed.get(change, False) for change in before),
        "nothing": sorted(sample["nothing"] + [one for one in left if reason(one, why)]),
        "survivors": [one for one in left if not reason(one, why)],
    }


def share(sample: Sample, killed: str = "killed") -> str:
    """Return the share of those that were killed, of those that change something."""
    changing = sample["tried"] - len(sample["nothing"])
    return f"{100 * sample[killed] / changing:.1f} %" if changing else "–"


def summary(sample: Sample) -> str:
    """Return one line about a sample."""
    return (
        f"{sample['tried']} tried, {sample['killed']} killed, {len(sample['nothing'])} change "
        f"nothing, {len(sample['survivors'])} survived: {share(sample)}"
    )


def _listed(changes: list[Change], why: dict[Change, str]) -> list[str]:
    lines = []
    for file, before, after in changes:
        lines += [f"* `{file}`:", "", "  ```diff", f"  - {before}", f"  + {after}", "  ```", ""]
        if said := reason((file, before, after), why):
            lines += [f"  {said}", ""]
    return lines


COLUMNS = (
    *("seed", "room", "mutants in all", "tried", "change nothing", "killed at first"),
    *("killed at first of those that change something", "survive now"),
)
"""What the table of samples shows."""


def _row(seed: str, room: str, sample: Sample) -> str:
    number = str(sample.get("all") or "")
    numbers = sample["tried"], len(sample["nothing"]), sample["killed_at_first"]
    cells = [seed, room, number, *map(str, numbers), share(sample, "killed_at_first")]
    return f"| {' | '.join([*cells, str(len(sample['survivors']))])} |"


def _sum(samples: list[Sample]) -> Sample:
    numbers = {name: sum(one[name] for one in samples) for name in ("tried", "killed_at_first")}
    left = {
        name: [change for one in samples for change in one[name]]
        for name in ("nothing", "survivors")
    }
    return {**numbers, **left}


def table_of(rooms: dict[str, list[Sample]]) -> list[str]:
    """Return the lines of a table: the samples of each seed, and their sums."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    for seed in sorted({one["seed"] for samples in rooms.values() for one in samples}):
        drawn = {
            f"`{room}`": one
            for room, samples in rooms.items()
            for one in samples
            if one["seed"] == seed
        }
        lines += [_row(str(seed), room, one) for room, one in drawn.items()]
        lines.append(_row(str(seed), "all of these", _sum(list(drawn.values()))))
    return lines


def write_page() -> None:
    """Write the page."""
    why = reasons()
    rooms = known()
    lines = [HEAD.read_text().rstrip(), "", *table_of(rooms)]
    for title, key in (("Survivors", "survivors"), ("Mutants that change nothing", "nothing")):
        lines += ["", f"## {title}"]
        found = {
            room: sorted({tuple(change) for one in samples for change in one[key]})
            for room, samples in rooms.items()
        }
        for room, changes in found.items():
            if changes:
                lines += ["", f"### {room}", "", *_listed(changes, why)]
        if not any(found.values()):
            lines += ["", "There are none."]
    text = "\n".join(lines)
    while "\n\n\n" in text:
        text = text.replace("\n\n\n", "\n\n")
    PAGE.write_text(text.rstrip() + "\n")
