"""``msgproto bench``: the figures of docs/benchmarks.md, measured on this machine.

Real sockets, real processes, a real queue on a real disk.  Every figure is a ratio to something
measured beside it in the same round; see :mod:`.measuring`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from twisted_msgproto import registry
from twisted_msgproto.core.errors import ConfigurationError

from .measuring import ROUNDS, Comparison, Result, measure

SUMMARY = "measure the speed of the protocols, as ratios"


def configure(parser: argparse.ArgumentParser) -> None:
    """The options of ``msgproto bench``."""
    parser.add_argument(
        "subjects",
        nargs="*",
        metavar="SUBJECT",
        help="protocols; default: all which have a bench",
    )
    parser.add_argument("--only", metavar="TEXT", help="only comparisons whose name has this text")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="pairs each (default 5)")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="times the messages of each load (default 1)"
    )
    parser.add_argument("--queue", type=Path, help="make queues below this directory")
    parser.add_argument("--json", action="store_true", help="a JSON object a line")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw the ratios into this file")
    parser.add_argument("--list", action="store_true", help="name the comparisons and end")


def run(arguments: argparse.Namespace) -> int:
    """Measure; exit status 1 if a ratio misses its mark."""
    results: list[Result] = []
    known = 0
    # One row at a time: what a protocol has started for its rows ends when they have been measured.
    for row in _comparisons(arguments):
        if arguments.only and arguments.only not in row.name:
            continue
        known += 1
        if arguments.list:
            print(f"{row.name}  beside  {row.beside}")
            continue
        result = measure(row, arguments.rounds, _said)
        results.append(result)
        print(json.dumps(result.as_dict()) if arguments.json else describe(result), flush=True)
    if not known:
        raise ConfigurationError("nothing to measure: see msgproto bench --list")
    if arguments.plot:
        plot(results, arguments.plot)
    return 1 if any(result.keeps(result.comparison.mark) is False for result in results) else 0


def _said(line: str) -> None:
    if sys.stderr.isatty():
        print(line, file=sys.stderr, flush=True)


def _comparisons(arguments: argparse.Namespace) -> Iterable[Comparison]:
    for subject in arguments.subjects or _measurable():
        module = f"{registry.registered(subject).package}.bench"
        if find_spec(module) is None:
            raise ConfigurationError(f"{subject} has nothing to measure yet")
        loaded = importlib.import_module(module)
        yield from loaded.comparisons(arguments)


def _measurable() -> list[str]:
    return [name for name, row in registry.PROTOCOLS.items() if find_spec(f"{row.package}.bench")]


def describe(result: Result) -> str:
    """A result for people, in two lines."""
    row, values = result.comparison, result.as_dict()
    kept = {True: "kept", False: "MISSED", None: "no mark"}[result.keeps(row.mark)]
    sign = "≤" if row.figure == "cpu" else "≥"
    bounds = "" if row.mark is None else f", mark {sign} {row.mark:g} {kept}"
    if row.goal is not None:
        bounds += f", goal {sign} {row.goal:g}" + (" kept" if result.keeps(row.goal) else "")
    latency = ""
    if values["latency_p50_seconds"] is not None:
        latency = (
            f", ack after p50 {values['latency_p50_seconds'] * 1e3:.2f} ms"
            f" p99 {values['latency_p99_seconds'] * 1e3:.2f} ms"
        )
    groups = ""
    if values["messages_per_group"] is not None:
        groups = f", {values['messages_per_group']:,.0f} messages a group"
    beside_groups = ""
    if values["beside_messages_per_group"] is not None:
        beside_groups = f", {values['beside_messages_per_group']:,.0f} a group"
    low, high = min(result.ratios), max(result.ratios)
    return (
        f"{row.name}: {result.ratio:.2f} × {row.beside} ({low:.2f}-{high:.2f}{bounds})\n"
        f"    {values['messages_per_second']:,.0f} messages/s,"
        f" {values['cpu_seconds_per_million']:.3f} CPU s per million{groups}{latency};"
        f" beside it {values['beside_messages_per_second']:,.0f}/s,"
        f" {values['beside_cpu_seconds_per_million']:.3f}{beside_groups}"
    )


def plot(results: list[Result], file: Path) -> None:
    """Draw each ratio with its rounds and its mark."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(10, 1 + 0.5 * len(results)))
    for place, result in enumerate(reversed(results)):
        axes.barh(place, result.ratio, color="#4477aa")
        axes.plot(result.ratios, [place] * len(result.ratios), "k.", markersize=4)
        if result.comparison.mark is not None:
            axes.plot([result.comparison.mark] * 2, [place - 0.4, place + 0.4], "r-")
    axes.set_yticks(range(len(results)), [row.comparison.name for row in reversed(results)])
    axes.set_xlabel("ratio to the work beside it (red: the mark)")
    figure.tight_layout()
    figure.savefig(file)
