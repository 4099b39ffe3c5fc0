"""``python -m tests.mutants ROOM [--sample N] [--seed S]``: which small errors do tests miss?

ROOM is a directory or file below ``twisted_msgproto``.  Errors, *mutants*, are planted one by one
in a scratch copy, and the quick tests that execute the statement run in forks of this process: the
room's, those of ``--tests``, and of the nets over several rooms those that concern this one.  What
each test executes is measured once, and kept until code or tests change.
"""

import argparse
import ast
import contextlib
import hashlib
import importlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from itertools import accumulate
from pathlib import Path
from typing import Any

from .making import Mutant, mutants

KEPT = "MSGPROTO_MUTANTS_KEPT"  # says to the process in the copy where measurements are kept
NETS = ("tests/contract", "tests/sim", "tests/states", "tests/fuzz/test_fuzz.py")
WORDS = {
    "core": ("test_a_broker_is", "json-slices", "lumberjack-0"),
    "net": ("tests/contract", "websocket", "lumberjack-0"),
    "queue": ("bridge", "lumberjack-0", "micromsg2-0"),
    "table": ("tests/states/test_bridge",),
}
"""Room → what the names of tests in the nets contain that concern it; else the room's name."""
WARM = "pytest hypothesis.stateful pytest_cov pytest_timeout coverage cryptography.x509 pyarrow"
WARM += " twisted.trial.unittest twisted.internet.testing twisted.internet.ssl twisted.web.http"
OPTIONS = "-q -p no:cacheprovider --same --worlds 80 --fuzz 1000 -o timeout=0 -m 'not slow'"
TEST_SECONDS, MUTANT_SECONDS = 5.0, 40.0  # of a test, and of all tests of a mutant, at most


class Watch:
    """A plug-in of pytest: leaves out what is not the room's, notes times and the first failure."""

    def __init__(self, own: tuple[str, ...], words: tuple[str, ...]) -> None:
        self.own, self.words, self.failed = own, words, ""
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        for item in [item for item in items if not item.nodeid.startswith(self.own)]:
            concerns = any(word in item.nodeid for word in self.words)
            if not concerns or "planted" in item.nodeid:
                items.remove(item)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.failed = self.failed or (report.nodeid if report.failed else "")
        self.seconds[report.nodeid] += 1e9 if report.failed else report.duration


def forked(words: list[str], watch: Watch, seconds: float) -> dict[str, Any]:
    """Run pytest in a fork with a process group of its own; ``failed`` says what failed first."""
    (answer := Path.cwd() / "answer.json").unlink(missing_ok=True)
    if not (child := os.fork()):
        os.setsid()
        signal.alarm(int(seconds))
        os.dup2(os.open("output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 1)
        os.dup2(1, 2)
        with contextlib.suppress(BaseException):
            status = importlib.import_module("pytest").main(words, plugins=[watch])
            failed = watch.failed or (f"(pytest ended with {status})" if status else "")
            answer.write_text(json.dumps({"failed": failed, "seconds": watch.seconds}))
        os._exit(1)
    os.waitpid(child, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    return json.loads(answer.read_text()) if answer.exists() else {"failed": "(no end)"}


def measured(words: list[str], watch: Watch, files: list[Path]) -> tuple[dict[str, float], Any]:
    """Return what each test takes, and what gives the tests of each line of a file."""
    tests = [Path(word) for word in words if word.startswith("tests/")]
    files = files + [file for one in tests for file in sorted(one.rglob("*.py")) or [one]]
    content = b"".join(map(Path.read_bytes, files)) + repr((words, watch.words, OPTIONS)).encode()
    data = Path(os.environ[KEPT], hashlib.sha256(content).hexdigest())
    if not (times := data.with_suffix(".json")).exists():
        os.environ["COVERAGE_FILE"] = str(data)
        words = [*words, "--cov=twisted_msgproto", "--cov-context=test", "--cov-report="]
        answer = forked(words, watch, 3600.0)
        if not answer.get("seconds"):
            raise SystemExit(f"mutants: {answer}\n{Path('output.txt').read_text()[-3000:]}")
        times.write_text(json.dumps(answer["seconds"]))
    (coverage := importlib.import_module("coverage").CoverageData(str(data))).read()
    return json.loads(times.read_text()), coverage.contexts_by_lineno


def chosen(mutant: Mutant, lines: dict[int, list[str]], seconds: dict[str, float]) -> list[str]:
    """Return the tests of a mutant, quick ones first, and of each function one before others."""
    contexts = {test for line in mutant.lines for test in lines.get(line, ())} - {""}
    contexts = contexts or {one for some in lines.values() for one in some}  # while it is imported
    timed = {one: seconds.get(one, 1e9) for one in (name.split("|")[0] for name in contexts)}
    quick = sorted((took, test) for test, took in timed.items() if took < TEST_SECONDS)
    first = {test.partition("[")[0]: test for _, test in reversed(quick)}
    quick = sorted(quick, key=lambda one: one[1] not in first.values())
    totals = accumulate(took for took, _ in quick)
    return [test for (_, test), sum_ in zip(quick, totals, strict=True) if sum_ < MUTANT_SECONDS]


def run(arguments: argparse.Namespace) -> int:
    """Try a sample of a room's mutants here, in the scratch copy; return 1 if any survived."""
    place, room = Path("twisted_msgproto", arguments.room), arguments.room.split("/")[0]
    files = sorted(place.rglob("*.py")) or [place]
    own = (*arguments.tests, *([f"tests/{room}"] if Path("tests", room).is_dir() else []))
    watch = Watch(own, WORDS.get(room, (room,)))
    nets = () if room in ("cli", "spark", "testing") else NETS
    seconds, contexts = measured([*own, *nets], watch, files)
    every: defaultdict[tuple[Path, Any], list[int]] = defaultdict(list)
    for file in files:
        for number, mutant in enumerate(mutants(ast.parse(file.read_text()))):
            every[file, mutant.place].append(number)
    source, killed, proven = random.Random(arguments.seed), 0, set[str]()
    drawn = source.sample(sorted(every), min(arguments.sample, len(every)))
    for at, (file, number) in enumerate([(one[0], source.choice(every[one])) for one in drawn], 1):
        tree = ast.parse(text := file.read_text())
        before, mutant = ast.unparse(tree), list(mutants(tree))[number]
        mutant.plant()
        failed, after, lines = "(time is up)", ast.unparse(tree), contexts(str(file))
        while failed:
            some = chosen(mutant, lines, seconds)
            file.write_text(after)
            patience = 20.0 + 5.0 * sum(seconds[test] for test in some)
            failed = forked(["-x", *some], watch, patience)["failed"] if some else ""
            file.write_text(before)
            if failed not in seconds or failed in proven:
                break
            proven.add(failed)  # one that fails in a fork whatever the code is kills no mutant
            if not forked([failed], watch, 60.0)["failed"]:
                break
            seconds[failed] = 1e9
        file.write_text(text)
        killed += bool(failed)
        said = f"killed by {failed}" if failed else f"SURVIVED {len(some)} tests"
        print(f"{at} {file}:{mutant.place[0]} {said}")
        changes = zip(before.splitlines(), after.splitlines(), strict=False)
        print(*next((f"  - {a}\n  + {b}" for a, b in changes if a != b), ""), sep="", flush=True)
    print(f"killed {killed} of {len(drawn)}")
    return int(killed < len(drawn))


def main() -> int:
    """Copy the project, and try mutants in the copy."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("room", metavar="ROOM", help="a directory or file of the package")
    parser.add_argument("--sample", type=int, default=40, help="so many mutants; default 40")
    parser.add_argument("--seed", type=int, default=1, help="which ones; default 1")
    parser.add_argument("--tests", nargs="*", default=[], help="these tests besides the room's")
    arguments = parser.parse_args()
    if KEPT in os.environ:
        for name in WARM.split():  # of others; none installs a reactor
            importlib.import_module(name)
        return run(arguments)
    project = Path(__file__).resolve().parents[2]
    if not project.joinpath("twisted_msgproto", arguments.room).exists():
        parser.error(f"no room {arguments.room!r}")
    (kept := project / ".coverage_rooms").mkdir(exist_ok=True)
    left = shutil.ignore_patterns(".*", "node_modules", "_build", "__pycache__", "*.egg-info")
    with tempfile.TemporaryDirectory(prefix="msgproto-mutants-") as directory:
        shutil.copytree(project, scratch := Path(directory, "copy"), ignore=left, symlinks=True)
        own = {"PYTHONPATH": str(scratch), "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
        environment = {**os.environ, **own, KEPT: str(kept), "PYTEST_ADDOPTS": OPTIONS}
        words = [sys.executable, "-m", "tests.mutants", *sys.argv[1:]]
        return subprocess.call(words, cwd=scratch, env=environment, stdin=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.exit(main())
