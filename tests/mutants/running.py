"""Measures a room's quick tests, and runs those that must notice a mutant.

Everything happens in a scratch copy of the project: the working tree stays as it is.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coverage import CoverageData

from .making import Mutant, statement_lines
from .rooms import OPTIONS, PROJECT, Room
from .timing import TIMES_VARIABLE

KEPT = PROJECT / ".coverage_rooms"
"""What was measured of each room is kept here, until its code or tests change."""

LEFT_BEHIND = (
    *(".git", ".venv", "node_modules", "_build", ".hypothesis", "__pycache__", "*.egg-info"),
    *(".mypy_cache", ".ruff_cache", ".pytest_cache", ".coverage*"),
)
"""Names that a scratch copy does not have."""

TEST_SECONDS_MAX = 5.0
"""A test that needs longer than this runs for no mutant."""

BUDGET_SECONDS = 40.0
"""The tests that run for one mutant need about this long together, the quickest first."""

PATIENCE = 5.0
"""A mutant is stopped when its tests need so many times as long as usual, and
:data:`START_SECONDS`.
"""

START_SECONDS = 20.0
"""Importing what tests need takes less than this."""

FIRST_TESTS = 50
"""These many tests run first; most mutants need no more of them."""


def copied(scratch: Path) -> None:
    """Copy the project to ``scratch``."""
    shutil.copytree(PROJECT, scratch, ignore=shutil.ignore_patterns(*LEFT_BEHIND), symlinks=True)


def environment(scratch: Path) -> dict[str, str]:
    """Return the environment in which the copy is imported, by processes of tests as well."""
    return {**os.environ, "PYTHONPATH": str(scratch), "PYTHONHASHSEED": "0"}


def digest(room: Room) -> str:
    """Return a digest of everything that decides over what is measured of a room."""
    files = [PROJECT / file for file in room.files(PROJECT)]
    for place in room.tests:
        path = PROJECT / place.partition("::")[0]
        files += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    octets = b"".join(file.read_bytes() for file in files)
    return hashlib.sha256(octets + repr((room, OPTIONS)).encode()).hexdigest()


@dataclass
class Measured:
    """Says how long each test takes, and which tests execute each line of a file."""

    data: Path
    """The file of coverage.py."""
    seconds: dict[str, float]
    lines: dict[str, dict[int, set[str]]] = field(default_factory=dict)

    def tests_of(self, scratch: Path, mutant: Mutant) -> list[str]:
        """Return the tests of a mutant's statement: one of each function first, quick ones first.

        What runs while a module is imported belongs to all tests that execute something of it,
        and then to the others: a class without an abstract method is noticed where it is made.
        """
        lines = self._lines_of(str(mutant.file))
        source = (PROJECT / mutant.file).read_text()
        found: set[str] = set()
        for line in statement_lines(source, mutant.line):
            found |= lines.get(line, set())
        found.discard("")
        near = found or set().union(*lines.values())
        usable = sorted(
            (test not in near, self.seconds[test], test)
            for test in found or self.seconds
            if self.seconds.get(test, float("inf")) <= TEST_SECONDS_MAX
        )
        functions: set[str] = set()
        first, others = [], []
        for _, seconds, test in usable:
            name = test.partition("[")[0]
            (others if name in functions else first).append((seconds, test))
            functions.add(name)
        chosen, total = [], 0.0
        for seconds, test in first + others:
            total += seconds
            if total > BUDGET_SECONDS:
                break
            chosen.append(test)
        return chosen

    def _lines_of(self, file: str) -> dict[int, set[str]]:
        if file not in self.lines:
            data = CoverageData(str(self.data))
            data.read()
            found: defaultdict[int, set[str]] = defaultdict(set)
            for name in data.measured_files():
                if name.endswith(file):
                    for line, contexts in data.contexts_by_lineno(name).items():
                        found[line] |= {context.partition("|")[0] for context in contexts}
            self.lines[file] = dict(found)
        return self.lines[file]


def measure(name: str, room: Room, scratch: Path) -> Measured:
    """Run the room's quick tests once in the copy, with branch coverage by test."""
    kept = KEPT / name
    data, times, stamp = kept / "data", KEPT / f"{name}.json", KEPT / f"{name}.digest"
    wanted = digest(room)
    if not stamp.exists() or stamp.read_text() != wanted:
        kept.mkdir(parents=True, exist_ok=True)
        stamp.unlink(missing_ok=True)
        words = ["-q", "-p", "no:cacheprovider", "-p", "tests.mutants.timing", *OPTIONS]
        words += ["-m", "not slow"]
        words += ["--cov=twisted_msgproto", "--cov-branch", "--cov-context=test", "--cov-report="]
        if room.deselected:
            words += ["-k", f"not ({room.deselected})"]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *words, *room.tests],
            cwd=scratch,
            env={
                **environment(scratch),
                "COVERAGE_FILE": str(data),
                TIMES_VARIABLE: str(times),
            },
            stdin=subprocess.DEVNULL,
        )
        if done.returncode not in (0, 1):
            raise SystemExit(f"mutants: pytest ended with {done.returncode}")
        stamp.write_text(wanted)
    return Measured(data, {test: float(s) for test, s in json.loads(times.read_text()).items()})


class Runner:
    """Runs tests in forks of a warm process (:mod:`tests.mutants.forking`)."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.mutants.forking"],
            cwd=scratch,
            env={**environment(scratch), "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def run(self, tests: list[str], seconds: float) -> dict[str, Any]:
        """Run some tests; return pytest's status, None when they needed longer."""
        assert self._process.stdin is not None
        print(
            json.dumps({"tests": tests, "seconds": seconds}), file=self._process.stdin, flush=True
        )
        return self._answer()

    def check(self, room: Room, seconds: dict[str, float]) -> None:
        """Make sure that without a mutant the room's tests are found, and the quickest pass.

        A test that fails in these forks whatever the code does would kill every mutant.
        """
        quick = sorted(seconds, key=seconds.__getitem__)[:FIRST_TESTS]
        for words in (["--collect-only", *room.tests], quick):
            answer = self.run(words, 600.0)
            if answer["status"] != 0:
                raise SystemExit(f"mutants: without any mutant this fails: {answer}")

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    @contextmanager
    def planted(self, mutant: Mutant) -> Iterator[None]:
        """Plant a mutant in the copy, and restore it."""
        path = self._scratch / mutant.file
        source = path.read_text()
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()
        path.write_text(mutant.code(source))
        try:
            yield
        finally:
            path.write_text(source)


@dataclass
class Verdict:
    """Says what became of a mutant: ``by`` is the test that noticed, empty if none did."""

    mutant: Mutant
    by: str
    tests: int


def tried(runner: Runner, measured: Measured, scratch: Path, mutant: Mutant) -> Verdict:
    """Plant a mutant, and run the tests of its statement until one fails."""
    tests = measured.tests_of(scratch, mutant)
    parts = [part for part in (tests[:FIRST_TESTS], tests[FIRST_TESTS:]) if part]
    with runner.planted(mutant):
        for part in parts:
            usual = sum(measured.seconds[test] for test in part)
            answer = runner.run(part, START_SECONDS + PATIENCE * usual)
            if answer["status"] is None:
                return Verdict(mutant, "(time is up)", len(tests))
            if answer["status"] != 0:
                return Verdict(mutant, answer["failed"] or "(nothing runs)", len(tests))
    return Verdict(mutant, "", len(tests))
