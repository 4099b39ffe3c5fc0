"""``python -m tests.mutants ROOM [--sample N] [--seed S]``: which small errors do tests not notice?

A sample is kept beside those of other seeds; the next one takes a seed that was not drawn yet.
``--again`` tries those once more that survived.  ``--since REVISION`` tries mutants
only of lines that have changed since a revision of git, and ``--operator NAME`` one mutant of this
operator at every place; both record nothing.  ``--covered`` lists
the lines and branches that the room's quick tests leave out, and plants nothing; without a room it
measures the whole package under all tests.  Without a room and without it the page
``docs/mutants.md`` is written from what is known.  The exit status is 1 when a mutant survived that
is not in the list of those that change nothing, or when something is left out.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from . import report
from .changed import since
from .making import Mutant, found_again, mutants_of, operators
from .rooms import PROJECT, ROOMS
from .running import Measured, Runner, Verdict, copied, measure, tried
from .sampling import sample
from .whole import whole

SAMPLE = 40


def read_words(words: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="run mutants", description=__doc__)
    parser.add_argument("rooms", nargs="*", metavar="ROOM", help=", ".join(ROOMS))
    parser.add_argument("--sample", type=int, help="mutants a room; default 40")
    parser.add_argument("--seed", type=int, help="which mutants; default: a fresh sample")
    parser.add_argument("--again", action="store_true", help="those that survived, once more")
    parser.add_argument("--since", metavar="REVISION", help="only of lines changed since then")
    parser.add_argument("--operator", action="append", choices=sorted(operators()), metavar="NAME")
    parser.add_argument("--covered", action="store_true", help="only measure what tests execute")
    arguments = parser.parse_args(words)
    for room in arguments.rooms:
        if room not in ROOMS:
            parser.error(f"no room {room!r}: {', '.join(ROOMS)}")
    return arguments


@contextmanager
def measured_copy(name: str) -> Iterator[tuple[Path, Measured]]:
    """Make a scratch copy of the project, and measure the room's tests in it if need be."""
    with tempfile.TemporaryDirectory(prefix="msgproto-mutants-") as directory:
        scratch = Path(directory) / "copy"
        copied(scratch)
        yield scratch, measure(name, ROOMS[name], scratch)


def verdicts_on(
    name: str, mutants: list[Mutant], scratch: Path, measured: Measured
) -> Iterator[Verdict]:
    """Try mutants one by one, and print what becomes of each."""
    runner = Runner(scratch)
    try:
        runner.check(ROOMS[name], measured.seconds)
        for place, mutant in enumerate(mutants, 1):
            verdict = tried(runner, measured, scratch, mutant)
            said = f"killed by {verdict.by[:100]}" if verdict.by else "SURVIVED"
            print(f"{place}/{len(mutants)} {mutant.file}:{mutant.line} {mutant.operator}: {said}")
            if not verdict.by:
                before, after = mutant.change((PROJECT / mutant.file).read_text())
                print(f"  - {before}\n  + {after}")
            sys.stdout.flush()
            yield verdict
    finally:
        runner.close()


def run(name: str, number: int, seed: int | None) -> int:
    """Try a sample of a room's mutants and record what became of them; return the survivors."""
    begun = time.monotonic()
    chosen = report.fresh_seed(name) if seed is None else seed
    with measured_copy(name) as (scratch, measured):
        mutants = list(mutants_of(PROJECT, ROOMS[name].files(PROJECT)))
        drawn = sample(mutants, number, chosen)
        verdicts = list(verdicts_on(name, drawn, scratch, measured))
    result = report.result_of(chosen, verdicts, len(mutants))
    print(f"{name}, seed {chosen}: {report.summary(result)} in {time.monotonic() - begun:.0f} s")
    if not report.record(name, result):
        print("nothing is recorded: tests were written for this seed, and another one is fresh")
    return len(result["survivors"])


def run_since(name: str, number: int, seed: int, revision: str) -> int:
    """Try mutants of the lines that have changed since a revision; return the survivors."""
    changed = since(PROJECT, revision)
    files = [file for file in ROOMS[name].files(PROJECT) if file in changed]
    mutants = sample(mutants_of(PROJECT, files), number, seed, changed)
    if not mutants:
        print(f"{name}: nothing that has changed since {revision} can be mutated")
        return 0
    with measured_copy(name) as (scratch, measured):
        result = report.result_of(seed, list(verdicts_on(name, mutants, scratch, measured)))
    print(f"{name} since {revision}: {report.summary(result)}")
    return len(result["survivors"])


def run_operators(name: str, number: int | None, seed: int, wanted: list[str]) -> int:
    """Try mutants of some operators, one at each place of a room; return the survivors."""
    every = mutants_of(PROJECT, ROOMS[name].files(PROJECT))
    some = [mutant for mutant in every if mutant.operator in wanted]
    mutants = sample(some, number or len(some), seed)
    with measured_copy(name) as (scratch, measured):
        result = report.result_of(seed, list(verdicts_on(name, mutants, scratch, measured)))
    print(f"{name}, {', '.join(wanted)}: {report.summary(result)}")
    return len(result["survivors"])


def run_again(name: str) -> int:
    """Try the survivors of a room's samples once more; return how many survive again."""
    samples = report.known().get(name, [])
    changes: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)
    for file, before, after in [change for one in samples for change in one["survivors"]]:
        changes[file].add((before, after))
    with measured_copy(name) as (scratch, measured):
        mutants = [
            mutant
            for file, some in changes.items()
            for mutant in found_again(PROJECT, Path(file), some)
        ]
        verdicts = list(verdicts_on(name, mutants, scratch, measured))
    result = [report.tried_again(one, verdicts) for one in samples]
    report.keep(name, result)
    for one in result:
        print(f"{name}, seed {one['seed']}: {report.summary(one)}")
    return sum(len(one["survivors"]) for one in result)


def covered(name: str) -> int:
    """Print which lines and branches of a room its quick tests leave out; return 1 if any."""
    files = [str(file) for file in ROOMS[name].files(PROJECT)]
    with measured_copy(name) as (scratch, measured):
        words = ["report", "--data-file", str(measured.data), "--show-missing", "--skip-covered"]
        words += ["--fail-under=100"]
        done = subprocess.run(
            [sys.executable, "-m", "coverage", *words, f"--include={','.join(files)}"],
            cwd=scratch,
        )
    return int(done.returncode != 0)


def main(words: list[str] | None = None) -> int:
    """Try mutants, measure, or write the page."""
    arguments = read_words(words)
    number, seed, rooms = arguments.sample or SAMPLE, arguments.seed or 1, arguments.rooms
    if arguments.covered:
        return max(map(covered, rooms)) if rooms else whole()
    if arguments.since:
        return min(1, sum(run_since(name, number, seed, arguments.since) for name in rooms))
    if arguments.operator:
        few, wanted = arguments.sample, arguments.operator
        return min(1, sum(run_operators(name, few, seed, wanted) for name in rooms))
    if arguments.again:
        survivors = sum(map(run_again, rooms))
    else:
        survivors = sum(run(name, number, arguments.seed) for name in rooms)
    report.write_page()
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
