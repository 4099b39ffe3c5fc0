"""``msgproto bench`` can keep what it measured, and compare with it later.

A history is a file of JSON lines, one for each row of each run.  Rows are compared only with those
of the same kind of machine and of the same ``--scale``; the fastest run of another machine says
nothing.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Any, Final

from twisted_msgproto.core.errors import ConfigurationError

from .measuring import Readings, Result

DIRECTORY: Final = Path("bench-history")
"""Runs are kept below this directory if ``--history`` names no other."""

FILE: Final = "rows.jsonl"
"""The rows of all runs are in this file of the directory."""

WORSE_SHARE: Final = 0.10
"""A row is worse when its median is by more than this share worse than the saved one."""

_PANEL_COLUMNS: Final = 3


@dataclass(frozen=True, slots=True)
class Saved:
    """Is one row of one run.

    Attributes:
        when: the time of the measurement, ISO 8601 in UTC.
        machine: the kind of machine, see :func:`machine_kind`.
        scale: the ``--scale`` of the run.
        name: that of the row.
        unit: of the values; ``×`` for a ratio to the work beside it.
        rising: larger values are better.
        values: one for each round.
        told: all that ``--json`` prints of the row.
    """

    when: str
    machine: str
    scale: float
    name: str
    unit: str
    rising: bool
    values: tuple[float, ...]
    told: Mapping[str, Any]

    @property
    def median(self) -> float:
        """Return the median of the rounds."""
        return median(self.values)


@dataclass(frozen=True, slots=True)
class Change:
    """Compares a row with the same row of earlier runs.

    Attributes:
        name: that of the row.
        ratio: this median / the median of all saved rounds.
        runs: this many saved runs were compared with.
        worse: it is worse by more than :data:`WORSE_SHARE`, and the rounds' spread does not
            explain it.
    """

    name: str
    ratio: float
    runs: int
    worse: bool

    def __str__(self) -> str:
        told = "WORSE" if self.worse else "as good"
        return f"    {self.ratio:.2f} × the median of {self.runs} saved runs: {told}"


def machine_kind() -> str:
    """Return what has to be equal for two runs to be comparable: system, cores, Python."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    python = ".".join(platform.python_version_tuple()[:2])
    return f"{platform.system()} {platform.machine()}, {cores} cores, Python {python}"


def saved_row(result: Result | Readings, when: str, machine: str, scale: float) -> Saved:
    """Return a measured row as it is kept."""
    if isinstance(result, Result):
        unit, rising, values = "×", result.row.figure == "rate", result.ratios
    else:
        unit, rising = result.row.unit, False
        values = [reading.value for reading in result.readings]
    name, told = result.row.name, result.as_dict()
    return Saved(when, machine, scale, name, unit, rising, tuple(values), told)


def save(directory: Path, rows: Iterable[Saved]) -> None:
    """Append ``rows`` to the history; ConfigurationError, one line, if that is not possible.

    A line that was never ended, by a run that was killed or a full disk, stays a line of its own.
    """
    lines = "".join(f"{json.dumps(asdict(row))}\n" for row in rows)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with open(directory / FILE, "ab+") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
            torn = lines and file.read() not in (b"", b"\n")
            file.write((f"\n{lines}" if torn else lines).encode())
    except OSError as error:
        raise ConfigurationError(f"--save: {directory}: {error.strerror}") from None


def load(directory: Path) -> list[Saved]:
    """Return all that was saved, the eldest first.

    Raises ConfigurationError, one line, if there is no history or a line of it is broken.
    """
    path = directory / FILE
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError as error:
        raise ConfigurationError(
            f"{path}: {error.strerror}: msgproto bench --save makes it"
        ) from None
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from None
    return [_parsed(path, number, line) for number, line in enumerate(lines, 1)]


def _parsed(path: Path, number: int, line: bytes) -> Saved:
    try:
        row = Saved(**json.loads(line))
        if isinstance(row.values, list) and _is_whole(row):
            return replace(row, values=tuple(map(float, row.values)))
    except (TypeError, ValueError, RecursionError):
        pass
    raise ConfigurationError(f"{path}, line {number}: no row of msgproto bench; remove this line")


def _is_whole(row: Saved) -> bool:
    """Return whether each member of a row that was read is of its kind."""
    texts = (row.when, row.machine, row.name, row.unit)
    numbers = (row.scale, *row.values)
    return (
        bool(row.values)
        and all(isinstance(text, str) for text in texts)
        and isinstance(row.rising, bool)
        and isinstance(row.told, dict)
        and all(isinstance(number, int | float) and isfinite(number) for number in numbers)
    )


def compare(now: Saved, history: Sequence[Saved]) -> Change | None:
    """Return how a row stands to the same row of earlier runs; None if there are none.

    It is worse if its median is, by :data:`WORSE_SHARE`, and if this median lies outside of all
    saved rounds and the saved median outside of these rounds.  One slow round decides nothing.
    """
    key = (now.machine, now.scale, now.name, now.unit)
    same = [row for row in history if (row.machine, row.scale, row.name, row.unit) == key]
    before = [value for row in same for value in row.values]
    if not before or not median(before) or not now.median:
        return None
    ratio = now.median / median(before)
    slower = 1 / ratio if now.rising else ratio
    worse = (
        slower > 1 + WORSE_SHARE
        and not min(before) <= now.median <= max(before)
        and not min(now.values) <= median(before) <= max(now.values)
    )
    return Change(now.name, ratio, len(same), worse)


def plot(history: Sequence[Saved], file: Path) -> None:
    """Draw each row's medians and rounds, run by run, into ``file`` (its suffix is the format).

    Runs of different kinds of machines, or of different ``--scale``, have different lines, each of
    one colour in all panels.  Raises ConfigurationError if nothing was saved, or the file cannot be
    written.
    """
    if not history:
        raise ConfigurationError("nothing to draw: msgproto bench --save keeps runs")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(dict.fromkeys(row.name for row in history))
    lines = -(-len(names) // _PANEL_COLUMNS)
    several = len({row.scale for row in history}) > 1
    kinds = list(dict.fromkeys(_kind(row, several) for row in history))
    handles: dict[str, Any] = {}
    # The same history makes the same octets: no date, and ids that are not random.
    with pyplot.rc_context({"svg.hashsalt": "msgproto", "font.size": 8}):
        size = (4 * _PANEL_COLUMNS, 2.2 * lines)
        figure, panels = pyplot.subplots(lines, _PANEL_COLUMNS, figsize=size, squeeze=False)
        for panel in panels.flat[len(names) :]:
            panel.set_axis_off()
        for name, panel in zip(names, panels.flat, strict=False):
            rows = sorted((row for row in history if row.name == name), key=lambda row: row.when)
            for place, row in enumerate(rows):
                panel.plot([place] * len(row.values), row.values, ".", color="#999999")
            for kind in dict.fromkeys(_kind(row, several) for row in rows):
                ours = [at for at in enumerate(rows) if _kind(at[1], several) == kind]
                medians = [row.median for _, row in ours]
                colour = f"C{kinds.index(kind)}"
                places = [place for place, _ in ours]
                (handles[kind],) = panel.plot(places, medians, "o-", color=colour, label=kind)
            panel.set_title(name, fontsize=7)
            panel.set_ylabel(rows[0].unit)
            panel.set_ylim(0, 1.1 * max(max(row.values) for row in rows) or 1)
            runs = [row.when[:16].replace("T", " ") for row in rows]
            panel.set_xticks(range(len(rows)), runs, fontsize=6)
        figure.legend([handles[kind] for kind in kinds], kinds, loc="lower right", fontsize=6)
        figure.tight_layout()
        metadata = {"Date": None} if file.suffix == ".svg" else None
        write_figure(figure, file, metadata=metadata)
        pyplot.close(figure)


def _kind(row: Saved, several: bool) -> str:
    """Return what makes a row comparable, as the legend has it; ``several`` scales are named."""
    return f"{row.machine}, --scale {row.scale:g}" if several else row.machine


def write_figure(figure: Any, file: Path, **settings: Any) -> None:
    """Write a picture; ConfigurationError, one line, if that is not possible."""
    try:
        figure.savefig(file, **settings)
    except OSError as error:
        raise ConfigurationError(f"{file}: {error.strerror}") from None
    except ValueError as error:  # a format that is not known
        raise ConfigurationError(f"{file}: {error}") from None
