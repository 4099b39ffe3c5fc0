"""``msgproto bench`` measures the figures of docs/benchmarks.md on this machine.

Real sockets, real processes, a real queue on a real disk.  Nearly every figure is a ratio to
something measured beside it in the same round; see :mod:`.measuring`.

The subjects are the protocols, ``queue``, ``spark``, ``growth`` (what a message costs when there is
ten times more of something), ``idle`` (what a gateway costs with nothing to do),
``neighbours`` (how long a client waits beside one that sends in bulk), ``status`` (what the live
page costs) and ``scale`` (what 10, 100 and 1000 gateways cost a bridge).
``lumberjack`` brings the first three of these with it, because together they are the whole way of
a message from the wire into the table.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from twisted_msgproto import registry
from twisted_msgproto.core.errors import ConfigurationError

from . import history, missing_extra
from .children import signals_as_interrupts
from .measuring import ROUNDS, Comparison, Readings, Result, Row, measure, read

SUMMARY = "measure the speed of the protocols, the queue and Spark, as ratios"

SUBJECTS: Mapping[str, str] = {
    **{name: protocol.bench for name, protocol in registry.PROTOCOLS.items()},
    **{
        name: f"twisted_msgproto.cli.benches.{name}"
        for name in (
            *("queue", "small", "broker", "spark", "growth"),
            *("idle", "neighbours", "status", "scale"),
        )
    },
}
"""This maps each subject to the module with its rows, in the order of measurement.

Such a module has ``comparisons(arguments)`` that yields the rows, and may have ``REQUIRES``:
without these packages of an extra it has nothing to measure.
"""


def all_subjects() -> dict[str, str]:
    """Return :data:`SUBJECTS` and those of other packages' protocols.

    A broken package is left out, with a line on stderr.
    """

    def complain(text: str) -> None:
        print(f"msgproto bench: {text}", file=sys.stderr)

    subjects = dict(SUBJECTS)
    for protocol in registry.usable(complain):
        if protocol.bench:
            subjects.setdefault(protocol.name, protocol.bench)
    return subjects


AGAINST = frozenset({"lumberjack"})
"""Subjects that can be measured beside another program (``--against``)."""

BRINGS: Mapping[str, tuple[str, ...]] = {"lumberjack": ("queue", "spark", "growth")}
"""This maps a subject to the subjects that are measured with it."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``msgproto bench``."""
    parser.add_argument(
        "subjects",
        nargs="*",
        metavar="SUBJECT",
        help=f"default: all of {', '.join(SUBJECTS)}, and protocols of other packages which have"
        " rows",
    )
    parser.add_argument("--only", metavar="TEXT", help="only rows whose name has this text")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="pairs each (default 5)")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="times the messages of each load (default 1)"
    )
    parser.add_argument("--queue", type=Path, help="make queues below this directory")
    parser.add_argument(
        "--against",
        metavar="COMMAND",
        help="the command line of another server for the same protocol, with {port} in it: it is "
        f"measured beside ours ({', '.join(AGAINST)} only)",
    )
    parser.add_argument("--json", action="store_true", help="a JSON object a line")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw the figures into this file")
    parser.add_argument("--save", action="store_true", help="keep what is measured in the history")
    parser.add_argument(
        "--against-saved",
        action="store_true",
        help="compare each row with the history; exit status 1 if one is more than"
        f" {100 * history.WORSE_SHARE:g} %% worse and its rounds' spread does not explain it",
    )
    parser.add_argument(
        "--history",
        type=Path,
        metavar="DIR",
        default=history.DIRECTORY,
        help=f"the directory of the history (default: {history.DIRECTORY})",
    )
    parser.add_argument(
        "--plot-saved",
        type=Path,
        metavar="FILE",
        help="draw the history into this SVG or PNG file, and measure nothing",
    )
    parser.add_argument("--list", action="store_true", help="name the rows and end")


def run(arguments: argparse.Namespace) -> int:
    """Measure; exit status 1 if a figure misses its mark, or is worse than what was saved."""
    if arguments.plot_saved:
        history.plot(history.load(arguments.history), arguments.plot_saved)
        return 0
    kept = history.load(arguments.history) if arguments.against_saved else []
    if arguments.save and not arguments.list:
        history.save(arguments.history, [])  # it says now, not after a long row, that it cannot
    when = datetime.now(UTC).isoformat(timespec="seconds")
    machine, worse = history.machine_kind(), False
    results: list[Result | Readings] = []
    known = 0
    # One row at a time: what a subject has started for its rows ends when they have been measured,
    # and also when we are told to end.
    with signals_as_interrupts(), closing(_rows(arguments)) as rows:
        for row in rows:
            if arguments.only and arguments.only not in row.name:
                continue
            known += 1
            if arguments.list:
                beside = f"  beside  {row.beside}" if isinstance(row, Comparison) else ""
                print(f"{row.name}{beside}")
                continue
            results.append(_result(row, arguments.rounds))
            row_now = history.saved_row(results[-1], when, machine, arguments.scale)
            change = history.compare(row_now, kept)
            worse = worse or (change is not None and change.worse)
            print(_told(results[-1], change, arguments), flush=True)
            if arguments.save:
                history.save(arguments.history, [row_now])
    if not known:
        raise ConfigurationError("nothing to measure: see msgproto bench --list")
    if arguments.plot:
        plot(results, arguments.plot)
    missed = any(result.keeps(result.row.mark) is False for result in results)
    return 1 if missed or worse else 0


def _told(
    result: Result | Readings, change: history.Change | None, arguments: argparse.Namespace
) -> str:
    """Return a row as it is printed, with what the history says if that was asked for."""
    if arguments.json:
        compared = {"against_saved": change and asdict(change)} if arguments.against_saved else {}
        return json.dumps({**result.as_dict(), **compared})
    if not arguments.against_saved:
        return describe(result)
    return f"{describe(result)}\n{change or '    nothing like it was saved'}"


def _result(row: Row, rounds: int) -> Result | Readings:
    if isinstance(row, Comparison):
        return measure(row, rounds, _said)
    return read(row, rounds, _said)


def _said(line: str) -> None:
    if sys.stderr.isatty():
        print(line, file=sys.stderr, flush=True)


def _rows(arguments: argparse.Namespace) -> Generator[Row]:
    """Yield the rows of the subjects asked for, each subject once."""
    subjects = chosen(arguments.subjects)
    if arguments.against is not None and not AGAINST & set(subjects):
        raise ConfigurationError(f"--against is for {', '.join(AGAINST)} only")
    for name, asked in subjects.items():
        try:
            module = _module(name)
        except ModuleNotFoundError as error:
            text = missing_extra(error)
            if asked or text is None:
                raise
            print(f"msgproto bench: {name} is left out: {text}", file=sys.stderr)
            continue
        with closing(module.comparisons(arguments)) as rows:
            yield from rows


def chosen(asked: Sequence[str]) -> dict[str, bool]:
    """Return the subjects to measure → whether they were asked for by name; ConfigurationError."""
    ours_alone = bool(asked) and SUBJECTS.keys() >= set(asked)
    subjects = SUBJECTS if ours_alone else all_subjects()
    unknown = [name for name in asked if name not in subjects]
    if unknown:
        raise ConfigurationError(f"unknown subject {unknown[0]!r}; known: {', '.join(subjects)}")
    wanted = set(asked or subjects)
    wanted |= {brought for name in asked for brought in BRINGS.get(name, ())}
    return {name: name in asked for name in subjects if name in wanted}


def _module(name: str) -> ModuleType:
    """Return a subject's module; ModuleNotFoundError if it or what it needs is not installed."""
    if name in SUBJECTS:
        module = importlib.import_module(SUBJECTS[name])
    else:
        module = registry.load_module(name, registry.registered(name).bench)
    for package in getattr(module, "REQUIRES", ()):
        if find_spec(package) is None:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    return module


def describe(result: Result | Readings) -> str:
    """Return a result for people, in two lines."""
    return _compared(result) if isinstance(result, Result) else _shown(result)


def _bounds(result: Result | Readings, sign: str) -> str:
    row = result.row
    kept = {True: "kept", False: "MISSED", None: "no mark"}[result.keeps(row.mark)]
    told = "" if row.mark is None else f", mark {sign} {row.mark:.3g} {kept}"
    if row.goal is not None:
        told += f", goal {sign} {row.goal:g}" + (" kept" if result.keeps(row.goal) else "")
    return told


def _compared(result: Result) -> str:
    row, values = result.row, result.as_dict()
    bounds = _bounds(result, "≤" if row.figure == "cpu" else "≥")
    latency = ""
    if values["latency_p50_seconds"] is not None:
        latency = (
            f", ack after p50 {values['latency_p50_seconds'] * 1e3:.2f} ms"
            f" p99 {values['latency_p99_seconds'] * 1e3:.2f} ms"
        )
    low, high = min(result.ratios), max(result.ratios)
    ours, beside = _side(values, "", " CPU s per million"), _side(values, "beside_", "")
    return (
        f"{row.name}: {result.ratio:.2f} × {row.beside} ({low:.2f}-{high:.2f}{bounds})\n"
        f"    {ours}{latency}; beside it {beside}"
    )


def _side(values: Mapping[str, Any], side: str, cpu_unit: str) -> str:
    """One side's figures, as far as they were measured."""
    told = f"{values[f'{side}messages_per_second']:,.0f} messages/s"
    if (cpu := values[f"{side}cpu_seconds_per_million"]) is not None:
        told += f", {cpu:.3f}{cpu_unit}"
    if (group := values[f"{side}messages_per_group"]) is not None:
        told += f", {group:,.0f} messages a group"
    return told


def _shown(result: Readings) -> str:
    row, values = result.row, [reading.value for reading in result.readings]
    low, high = min(values), max(values)
    notes = "; ".join(
        f"{name.replace('_', ' ')} {value:,.4g}"
        for name, value in result.readings[-1].notes.items()
    )
    return (
        f"{row.name}: {result.value:.3g} {row.unit} ({low:.3g}-{high:.3g}{_bounds(result, '≤')})"
        + (f"\n    {notes}" if notes else "")
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) or value >= 1000 else f"{value:.3g}"


def plot(results: Sequence[Result | Readings], file: Path) -> None:
    """Draw each figure with its rounds and its mark.

    Ratios stand as they are; a value that stands alone is drawn in parts of its mark, and not at
    all if it has none.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    bars: list[tuple[str, float, list[float], float | None]] = []
    for result in results:
        row = result.row
        if isinstance(result, Result):
            bars.append((row.name, result.ratio, result.ratios, row.mark))
        elif row.mark is not None:
            shares = [reading.value / row.mark for reading in result.readings]
            bars.append((f"{row.name} ÷ {row.mark:g}", result.value / row.mark, shares, 1.0))
    figure, axes = pyplot.subplots(figsize=(12, 1 + 0.5 * len(bars)))
    for place, (_, value, rounds, mark) in enumerate(reversed(bars)):
        axes.barh(place, value, color="#4477aa")
        axes.plot(rounds, [place] * len(rounds), "k.", markersize=4)
        if mark is not None:
            axes.plot([mark] * 2, [place - 0.4, place + 0.4], "r-")
    axes.set_yticks(range(len(bars)), [name for name, *_ in reversed(bars)])
    axes.set_xlabel("ratio to the work beside it, or value ÷ mark (red: the mark)")
    figure.tight_layout()
    history.write_figure(figure, file)
