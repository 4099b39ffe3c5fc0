"""What became of the mutants: kept as JSON beside this file, shown as ``docs/mutants.md``."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from .rooms import PROJECT, ROOMS
from .running import Verdict

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
EQUIVALENT = HERE / "equivalent.toml"
PAGE = PROJECT / "docs" / "mutants.md"
HEAD = HERE / "page.md"
"""The beginning of the page, as text."""

Change = tuple[str, str, str]
"""A file, and its lines before and after."""


def reasons() -> dict[Change, str]:
    """Return why some mutants change nothing that anybody could notice."""
    rows = tomllib.loads(EQUIVALENT.read_text()).get("mutant", [])
    return {(row["file"], row["before"], row["after"]): row["why"] for row in rows}


def known() -> dict[str, Any]:
    """Return what is known of each room; a survivor with a reason changes nothing."""
    rooms = dict(json.loads(RESULTS.read_text())) if RESULTS.exists() else {}
    why = reasons()
    for result in rooms.values():
        explained = [change for change in result["survivors"] if tuple(change) in why]
        result["survivors"] = [one for one in result["survivors"] if one not in explained]
        result["nothing"] = sorted(result["nothing"] + explained)
    return rooms


def _left(verdicts: list[Verdict]) -> tuple[list[list[str]], list[list[str]]]:
    """Return the mutants that nobody noticed: those that change nothing, and the survivors."""
    why = reasons()
    nothing, survivors = [], []
    for mutant in [verdict.mutant for verdict in verdicts if not verdict.by]:
        before, after = mutant.change((PROJECT / mutant.file).read_text())
        change = (str(mutant.file), before, after)
        (nothing if change in why else survivors).append(list(change))
    return sorted(nothing), sorted(survivors)


def _keep(name: str, result: dict[str, Any]) -> dict[str, Any]:
    rooms = {**known(), name: result}
    ordered = {room: rooms[room] for room in ROOMS if room in rooms}
    RESULTS.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n")
    return result


def result_of(seed: int, verdicts: list[Verdict]) -> dict[str, Any]:
    """Return what became of a sample of a room's mutants."""
    nothing, survivors = _left(verdicts)
    killed = sum(bool(verdict.by) for verdict in verdicts)
    return {
        "seed": seed,
        "tried": len(verdicts),
        "killed": killed,
        "killed_at_first": killed,
        "nothing": nothing,
        "survivors": survivors,
    }


def record(name: str, seed: int, verdicts: list[Verdict]) -> dict[str, Any]:
    """Keep what became of a sample of a room's mutants, and return it."""
    return _keep(name, result_of(seed, verdicts))


def record_again(name: str, verdicts: list[Verdict]) -> dict[str, Any]:
    """Keep what became of the survivors; those of statements that are no more are not counted."""
    before = known()[name]
    nothing, survivors = _left(verdicts)
    gone = len(before["survivors"]) - len(verdicts)
    return _keep(
        name,
        {
            **before,
            "tried": before["tried"] - gone,
            "killed": before["killed"] + sum(bool(verdict.by) for verdict in verdicts),
            "killed_at_first": before.get("killed_at_first", before["killed"]),
            "nothing": sorted(before["nothing"] + nothing),
            "survivors": survivors,
        },
    )


def summary(result: dict[str, Any]) -> str:
    """Return one line about a room."""
    changing = result["tried"] - len(result["nothing"])
    share = 100 * result["killed"] / changing if changing else 100
    return (
        f"{result['tried']} tried, {result['killed']} killed, {len(result['nothing'])} change "
        f"nothing, {len(result['survivors'])} survived: {share:.1f} %"
    )


def _listed(changes: list[Change], why: dict[Change, str]) -> list[str]:
    lines = []
    for file, before, after in changes:
        lines += [f"* `{file}`:", "", "  ```diff", f"  - {before}", f"  + {after}", "  ```", ""]
        if reason := why.get((file, before, after)):
            lines += [f"  {reason}", ""]
    return lines


def write_page() -> None:
    """Write the page."""
    why = reasons()
    lines = [HEAD.read_text().rstrip(), ""]
    lines += [
        "| room | tried | killed at first | killed | change nothing | survived | killed of those"
    ]
    lines[-1] += " which change something |"
    lines += ["|---|---|---|---|---|---|---|"]
    rooms = known()
    for name, result in rooms.items():
        changing = result["tried"] - len(result["nothing"])
        share = f"{100 * result['killed'] / changing:.1f} %" if changing else "–"
        first = result.get("killed_at_first", result["killed"])
        lines.append(
            f"| `{name}` | {result['tried']} | {first} | {result['killed']} "
            f"| {len(result['nothing'])} | {len(result['survivors'])} | {share} |"
        )
    for title, key in (("Survivors", "survivors"), ("Mutants that change nothing", "nothing")):
        lines += ["", f"## {title}"]
        for name, result in rooms.items():
            if result[key]:
                lines += ["", f"### {name}", ""]
                lines += _listed([tuple(change) for change in result[key]], why)
        if not any(result[key] for result in rooms.values()):
            lines += ["", "There are none."]
    text = "\n".join(lines)
    while "\n\n\n" in text:
        text = text.replace("\n\n\n", "\n\n")
    PAGE.write_text(text.rstrip() + "\n")
