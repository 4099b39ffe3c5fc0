"""``./run chaos``: faults, crowds and hostile peers at full length, against real processes.

Prints a row for each thing that is done, and ends with exit status 1 if something did not hold.
``--write docs/how-it-is-tested.md`` keeps what was measured in that page's table.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from tests.chaos.report import Found, NotHere, Row, write
from tests.chaos.trials import crowds, filebeat, neighbours, repeated

ROWS: tuple[Row, ...] = (*repeated.ROWS, *neighbours.ROWS, *crowds.ROWS, *filebeat.ROWS)
"""What is done, in this order."""

KINDS = tuple(dict.fromkeys(row.kind for row in ROWS))
BUSY_LOAD = 0.5
"""With more processes than this waiting for a processor at the start, the machine is busy."""


def parser() -> argparse.ArgumentParser:
    parsing = argparse.ArgumentParser(prog="./run chaos", description=__doc__)
    parsing.add_argument("--scale", type=float, default=1.0, help="times as much of everything")
    parsing.add_argument(
        "--only",
        action="append",
        metavar="TEXT",
        help=f"only this kind ({', '.join(KINDS)}), or rows with this text; may be repeated",
    )
    parsing.add_argument("--write", type=Path, metavar="PAGE", help="put the table into this page")
    parsing.add_argument("--list", action="store_true", help="name the rows and end")
    return parsing


def chosen(only: Sequence[str] | None) -> list[Row]:
    """The rows of these kinds, or with one of these texts in their names."""
    return [
        row
        for row in ROWS
        if only is None or any(text == row.kind or text in row.name for text in only)
    ]


def machine() -> str:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    python = f"Python {platform.python_version()}"
    return f"{cores} cores ({platform.machine()}), {platform.system()}, {python}"


def measured(row: Row, scale: float) -> Found | None:
    """Do one row; None if that is not possible here.  What breaks did not hold."""
    try:
        return row.measure(scale)
    except NotHere as missing:
        print(f"{row.kind}: {row.name}\n    left out: {missing}", flush=True)
        return None
    except (AssertionError, OSError, RuntimeError) as error:
        text = " ".join(str(error).split())[:200] or type(error).__name__
        return Found(f"broke off: {text}".replace("|", "/"), False)


def main(words: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(words)
    rows = chosen(arguments.only)
    if arguments.list or not rows:
        print("\n".join(f"{row.kind}: {row.name}" for row in rows or ROWS))
        return 0 if rows else 2
    command = shlex.join(["./run", "chaos", *(sys.argv[1:] if words is None else words)])
    busy = os.getloadavg()[0] > BUSY_LOAD * (os.cpu_count() or 1)
    now: dict[str, tuple[str, str, str]] = {}
    broken = 0
    for row in rows:
        found = measured(row, arguments.scale)
        if found is None:
            continue
        broken += not found.kept
        print(
            f"{row.kind}: {row.name}\n    {'kept' if found.kept else 'NOT KEPT'}: {found.text}"
            f" ({row.goal})",
            flush=True,
        )
        when = f"{datetime.now(UTC):%Y-%m-%d}" + (", busy machine" if busy else "")
        when += "" if arguments.scale == 1 else f", scale {arguments.scale:g}"
        now[row.name] = (found.text, "yes" if found.kept else "**no**", when)
        if arguments.write:
            about = f"Measured on {machine()}, the last time with `{command}`."
            write(arguments.write, ROWS, now, about)
    print(f"{len(now) - broken} of {len(now)} kept")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
