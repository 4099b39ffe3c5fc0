"""``python -m benchmarks [ROW …]``: what a message costs here; ``--against REV``: and there.

With ``--against`` each row runs in this tree and in a worktree of REV, in turns.  What counts is
the ratio, here by there, of each pair: their median is printed with the least and the largest.  A
shared machine's speed drifts by more than what is to be measured, and a pair drifts together.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

from .rows import ROWS

PROJECT = Path(__file__).resolve().parent.parent
PAIRS = 9


class Failed(Exception):
    """A row cannot be measured in a tree; the text says which."""


class Measuring:
    """A process that measures one row with the package of ``tree``, reading by reading."""

    def __init__(self, row: str, tree: Path, scripts: Path, directory: Path, scale: float) -> None:
        self._where = f"{row} in {tree}"
        directory.mkdir()
        self._log = directory / "stderr.txt"
        # -P: nothing of the directory where this was called; `scripts` has this package alone.
        words = ["-P", "-m", "benchmarks.reading", row, str(directory), str(scale)]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, *words],
                cwd=directory,
                env={**os.environ, "PYTHONPATH": f"{scripts}{os.pathsep}{tree}"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def read(self) -> float:
        """Return the next reading."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            print(file=self._process.stdin, flush=True)
            return float(json.loads(self._process.stdout.readline()))
        except (BrokenPipeError, ValueError):
            said = self._log.read_text().strip().splitlines()[-1:]
            raise Failed(f"{self._where}: {said[0] if said else 'it ended'}") from None

    def close(self) -> None:
        """End the process and what it has started."""
        self._process.communicate()


@contextmanager
def worktree(revision: str) -> Iterator[Path]:
    """Have a worktree of ``revision`` with its compiled parts; Failed if there is none."""
    with tempfile.TemporaryDirectory(prefix="msgproto-bench-") as made:
        tree = Path(made) / "tree"
        git = ["git", "-C", str(PROJECT), "worktree"]
        added = subprocess.run(
            [*git, "add", "--detach", str(tree), revision], capture_output=True, text=True
        )
        if added.returncode:
            raise Failed(added.stderr.strip().splitlines()[-1])
        try:
            build = ["setup.py", "-q", "build_ext", "--inplace", "--build-temp", f"{made}/build"]
            subprocess.run(
                [sys.executable, *build], cwd=tree, check=True, stdout=subprocess.DEVNULL
            )
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def measured(name: str, trees: list[Path], pairs: int, scale: float) -> list[list[float]]:
    """Return the readings of a row in each tree, taken in turns; the first of each warms it up."""
    readings: list[list[float]] = [[] for _ in trees]
    with ExitStack() as stack:
        made = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="msgproto-bench-")))
        scripts = made / "scripts"
        shutil.copytree(Path(__file__).parent, scripts / "benchmarks")
        sides = []
        for number, tree in enumerate(trees):
            side = Measuring(name, tree, scripts, made / str(number), scale)
            stack.callback(side.close)
            sides.append(side)
        for turn in range(pairs + 1):
            order = range(len(sides)) if turn % 2 else reversed(range(len(sides)))
            for number in order:
                value = sides[number].read()
                if turn:
                    readings[number].append(value)
    return readings


def main() -> int:
    """Measure; 1 if a row could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help="a row, or how its name begins")
    parser.add_argument("--against", metavar="REV", help="beside this commit")
    parser.add_argument("--pairs", type=int, default=PAIRS, help=f"default {PAIRS}")
    parser.add_argument("--scale", type=float, default=1.0, help="times the load of each reading")
    parser.add_argument("--list", action="store_true", help="name the rows and end")
    arguments = parser.parse_args()
    chosen = [name for name in ROWS if name.startswith(tuple(arguments.rows) or "")]
    if unknown := [one for one in arguments.rows if not any(n.startswith(one) for n in ROWS)]:
        parser.error(f"no row {unknown[0]!r}; --list names them")
    if arguments.list:
        print("\n".join(f"{name:18} {ROWS[name].unit}: {ROWS[name].text}" for name in chosen))
        return 0
    status = 0
    with ExitStack() as stack:
        trees = [PROJECT]
        try:
            if arguments.against:
                trees.append(stack.enter_context(worktree(arguments.against)))
        except Failed as error:
            parser.error(str(error))
        for name in chosen:
            try:
                here, *there = measured(name, trees, arguments.pairs, arguments.scale)
            except Failed as error:
                print(f"{name}: {error}", file=sys.stderr)
                status = 1
                continue
            told = f"{name:18} {median(here):9.3g} {ROWS[name].unit}"
            for other in there:
                ratios = [a / b for a, b in zip(here, other, strict=True)]
                told += f", beside {median(other):.3g}: × {median(ratios):.3f}"
                told += f" ({min(ratios):.3f} to {max(ratios):.3f})"
            print(told, flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
