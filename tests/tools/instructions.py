"""``python -m tests.tools.instructions [ROW …] [--against REV]``: what a message costs, counted.

Seconds on a shared machine scatter by more than a change costs.  Valgrind counts the instructions
of a program, which are nearly the same in each run, whatever else the machine does.  It knows
nothing of caches, of the kernel, of waiting and of waking up: a row that counts more is slower, but
a row that counts less need not be quicker.

Each row of :mod:`.instructed` is done a number of times and three times as often, in two children
of one process; the difference is what its messages cost, without start and imports.  With
``--against REV`` the same work is done in a worktree of that revision, with its own compiled parts.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tests.tools.instructed import LARGE, ROWS

PROJECT = Path(__file__).parents[2]
WORK = Path(__file__).with_name("instructed.py")

LAYOUTS = 1
"""Each row is counted in so many layouts of its memory, and the median is what it costs."""

WORSE = 1.05
"""A row above this ratio is marked."""

VALGRIND = (
    *("valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"),
    "--vgdb=no",
)
"""Of valgrind's tools that count instructions, this one takes the least time."""

HOW_TO_GET_IT = "valgrind is not there: apt-get install valgrind"

COUNTED = re.compile(r"^==(\d+)== I +refs: +([\d,]+)$", re.MULTILINE)


class Failed(Exception):
    """It cannot be measured; the text is one line."""


@dataclass(frozen=True)
class Cost:
    """What a message of a row costs, in each layout; beyond what all runs cost."""

    layouts: tuple[float, ...]

    @property
    def each(self) -> float:
        return median(self.layouts)

    @property
    def spread(self) -> float:
        """How far apart the layouts are, as a share."""
        return (max(self.layouts) - min(self.layouts)) / self.each


def difference(few: tuple[int, int], many: tuple[int, int]) -> float:
    """What a message costs, of two runs: each its messages and its instructions."""
    messages, instructions = many[0] - few[0], many[1] - few[1]
    if messages <= 0 or instructions <= 0:
        raise Failed(f"{messages} more messages cost {instructions} more instructions")
    return instructions / messages


def counts(log: str) -> dict[int, int]:
    """The instructions of each process, as valgrind's log says."""
    return {int(process): int(count.replace(",", "")) for process, count in COUNTED.findall(log)}


def costs(said: Sequence[dict[str, Any]], counted: dict[int, int]) -> dict[str, Cost | None]:
    """What each row costs; None where the revision has nothing to measure.

    ``said`` is what the work has printed: two runs of each row and layout, the short one first.
    """
    found: dict[str, list[float]] = {}
    for few, many in zip(said[::2], said[1::2], strict=True):
        name = few["row"]
        same = few["layout"] == many["layout"] and name == many["row"]
        if not same or many["times"] != LARGE * few["times"]:
            raise Failed(f"{name}: its runs are mixed up")
        layouts = found.setdefault(name, [])
        if "missing" in few:
            continue
        if "messages" not in few or "messages" not in many:
            raise Failed(f"{name}: it failed")
        runs = [(one["messages"], counted[one["process"]]) for one in (few, many)]
        layouts.append(difference(runs[0], runs[1]))
    return {name: Cost(tuple(layouts)) if layouts else None for name, layouts in found.items()}


def command() -> list[str]:
    """What counts; addresses are the same in each run where the system allows that."""
    plain = [*VALGRIND, sys.executable, "-P", str(WORK)]
    setarch = shutil.which("setarch")
    asked = [setarch, "-R"] if setarch else []
    if asked and subprocess.run([*asked, "true"], capture_output=True).returncode == 0:
        return [*asked, *plain]
    return plain


def environment(tree: Path) -> dict[str, str]:
    """``tree`` comes before what is installed; nothing else of the caller's has a part in it."""
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "PYTHONPATH": str(tree),
        "PYTHONHASHSEED": "0",
        # Octets are copied 32 at once: valgrind would count each octet of one long instruction.
        "GLIBC_TUNABLES": "glibc.cpu.x86_rep_movsb_threshold=0x7fffffffffff"
        ":glibc.cpu.x86_rep_stosb_threshold=0x7fffffffffff",
        "OPENBLAS_NUM_THREADS": "1",  # pyarrow imports numpy, whose threads would spin
        "LC_ALL": "C.UTF-8",
    }


def build(tree: Path) -> None:
    """Build the compiled parts of ``tree`` in their places, and all octet code."""
    with tempfile.TemporaryDirectory() as scratch:
        for words in (
            ["setup.py", "-q", "build_ext", "--inplace", "--build-temp", scratch],
            ["-m", "compileall", "-q", "twisted_msgproto"],
        ):
            subprocess.run(
                [sys.executable, *words], cwd=tree, check=True, stdout=subprocess.DEVNULL
            )


def measure(tree: Path, names: Sequence[str], layouts: int = LAYOUTS) -> dict[str, Cost | None]:
    """Count what ``names`` cost in ``tree``; Failed if it cannot be said."""
    if not shutil.which("valgrind"):
        raise Failed(HOW_TO_GET_IT)
    said = []
    with tempfile.TemporaryFile("w+") as log, tempfile.TemporaryFile("w+") as asked:
        asked.writelines(f"{layout} {name}\n" for name in names for layout in range(layouts))
        asked.seek(0)
        with subprocess.Popen(
            command(),
            env=environment(tree),
            cwd="/",
            stdin=asked,
            stdout=subprocess.PIPE,
            stderr=log,
        ) as running:
            assert running.stdout is not None
            for line in running.stdout:
                said.append(json.loads(line))
                tell(said[-1])
        log.seek(0)
        text = log.read()
    if running.returncode or not said:
        raise Failed(f"the work ended with {running.returncode}: {text[-2000:]}")
    package = Path(said[0]["package"])
    if not package.is_relative_to(tree):
        raise Failed(f"{package} was imported and not what is in {tree}")
    try:
        return costs(said[1:], counts(text))
    except (Failed, KeyError) as error:
        raise Failed(f"{error}\n{text[-2000:]}") from None


def tell(said: dict[str, Any]) -> None:
    """Say on stderr how far it is."""
    if "package" in said:
        parts = ", ".join(Path(part).name for part in said["compiled"]) or "nothing"
        print(f"{said['package']}; compiled: {parts}", file=sys.stderr, flush=True)
    elif "messages" in said:
        text = f"  {said['row']}, layout {said['layout']}: {said['messages']:,} messages"
        print(text, file=sys.stderr, flush=True)


@contextmanager
def worktree(revision: str) -> Iterator[Path]:
    """A tree of this revision, which is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="instructions-") as made:
        tree = Path(made).resolve() / "tree"
        git = ["git", "-C", str(PROJECT), "worktree"]
        added = subprocess.run(
            [*git, "add", "--detach", str(tree), revision], capture_output=True, text=True
        )
        if added.returncode:
            raise Failed(f"no tree of {revision}: {added.stderr.strip().splitlines()[-1]}")
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True, capture_output=True)


def ratio(before: Cost | None, now: Cost | None) -> float | None:
    """How many times the instructions of before a message costs now."""
    return None if before is None or now is None else now.each / before.each


def described(
    now: dict[str, Cost | None], before: dict[str, Cost | None] | None = None
) -> list[dict[str, Any]]:
    """A row a line, with the figures of ``before`` beside it."""
    lines = []
    for name, cost in now.items():
        line: dict[str, Any] = {
            "row": name,
            "title": ROWS[name].title,
            "instructions": None if cost is None else round(cost.each, 1),
            "spread": None if cost is None else round(cost.spread, 4),
        }
        if before is not None:
            then = before[name]
            times = ratio(then, cost)
            line["before"] = None if then is None else round(then.each, 1)
            line["before_spread"] = None if then is None else round(then.spread, 4)
            line["ratio"] = None if times is None else round(times, 4)
        lines.append(line)
    return lines


def shown(line: dict[str, Any]) -> str:
    """A row for people."""

    def number(value: float | None, spread: float | None) -> str:
        return "not there" if value is None else f"{value:,.0f} ({spread:.1%})"

    figures = number(line["instructions"], line["spread"])
    if "before" in line:
        figures = f"{number(line['before'], line['before_spread'])} -> {figures}"
        if line["ratio"] is not None:
            worse = "  WORSE" if line["ratio"] > WORSE else ""
            figures += f"  {line['ratio']:.3f}{worse}"
    return f"{line['row']:24} {line['title']:58} {figures}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.tools.instructions",
        description="Count the instructions of a message; needs valgrind.",
    )
    parser.add_argument("rows", nargs="*", metavar="ROW", help="default: all of them")
    parser.add_argument("--against", metavar="REV", help="count in this revision as well")
    parser.add_argument(
        "--layouts",
        type=int,
        default=LAYOUTS,
        help=f"of memory, in which each row is counted (default {LAYOUTS})",
    )
    parser.add_argument("--json", action="store_true", help="a JSON object a line")
    parser.add_argument("--list", action="store_true", help="name the rows and end")
    options = parser.parse_args(arguments)
    if options.list:
        for one in ROWS.values():
            print(f"{one.name:24} {one.title}")
        return 0
    unknown = [name for name in options.rows if name not in ROWS]
    if unknown:
        parser.error(f"unknown row {unknown[0]!r}: see --list")
    names = options.rows or list(ROWS)
    try:
        build(PROJECT)
        before = None
        if options.against:
            # At the same time: nothing is measured that another process could disturb.
            with worktree(options.against) as tree, ThreadPoolExecutor(1) as beside:
                build(tree)
                other = beside.submit(measure, tree, names, options.layouts)
                now = measure(PROJECT, names, options.layouts)
                before = other.result()
        else:
            now = measure(PROJECT, names, options.layouts)
    except Failed as failed:
        print(f"instructions: {failed}", file=sys.stderr)
        return 2
    for line in described(now, before):
        print(json.dumps(line) if options.json else shown(line))
    return 0


if __name__ == "__main__":
    sys.exit(main())
