"""The public conformance cases of WebSocket, run by the program that they were written for.

The package ``autobahntestsuite`` needs Python 2.7.  It and what it needs are installed beside the
other foreign programs, in the pinned versions, and never imported here.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.conformance.testees import TESTEES
from tests.tools.processes import PROJECT, environment

FOREIGN: Final = PROJECT / "tests" / "foreign"
PINNED: Final = FOREIGN / "wstest.txt"
SITE: Final = FOREIGN / "wstest"

SECTIONS: Final = ("1", "2", "3", "4", "5", "6", "7", "9", "10")
"""Of the suite's cases; 12 and 13 are about compression, which ours never agree to."""

START: Final = (
    "import site, sys; site.addsitedir(sys.argv.pop(1));"
    "from autobahntestsuite import wstest; wstest.run()"
)

RANKS: Final = {"OK": 0, "NON-STRICT": 1, "INFORMATIONAL": 1, "UNIMPLEMENTED": 2}
"""Better verdicts have smaller numbers; what is not named here is worst."""

WORST: Final = 3


@dataclass(frozen=True)
class Verdict:
    """What the suite says of one case: of what came back, and of how the connection closed."""

    behaviour: str
    closing: str
    as_text: bool = False
    """The bytes came back as text instead of binary, and nothing else is wrong."""

    @property
    def rank(self) -> int:
        """The worse of the two verdicts as a number, less is better."""
        behaviour = 0 if self.as_text else RANKS.get(self.behaviour, WORST)
        return max(behaviour, RANKS.get(self.closing, WORST))

    @property
    def text(self) -> str:
        """The verdict in a word."""
        if self.as_text:
            return "as text"
        return (
            self.behaviour.lower()
            if self.behaviour == self.closing
            else (f"{self.behaviour.lower()}, close {self.closing.lower()}")
        )


Verdicts = Mapping[str, Mapping[str, Verdict]]
"""From the testee to the case (``9.3.1``) to its verdict."""

Side = Callable[[str, Sequence[str], Path], Verdicts]
"""Runs cases with a Python 2.7 in a directory: :func:`servers` or :func:`clients`."""


def python2(program: str) -> str:
    """The path of a Python 2.7; SystemExit, one line, if this is none."""
    path = shutil.which(program)
    if path is not None:
        asked = [path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        told = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
        if told == "2.7":
            return path
    raise SystemExit(
        f"{program} is no Python 2.7, which the suite needs: --python2 PROGRAM names one"
    )


def install(python: str) -> None:
    """Fetch the suite in the pinned versions, unless it is there."""
    if (SITE / "autobahntestsuite").is_dir():
        return
    words = ["install", "--no-deps", "--require-hashes", "-r", str(PINNED), "--target", str(SITE)]
    subprocess.run([python, "-m", "pip", *words], check=True, stdout=sys.stderr)


def free_port() -> int:
    """A port that nobody listens on now: the suite's server has to be told one."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process that ends with the block, by its pid."""
    process = subprocess.Popen(command, text=True, **options)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)


def _suite(python: str, mode: str, specification: Path, *more: str) -> list[str]:
    return [python, "-c", START, str(SITE), "-m", mode, "-s", str(specification), *more]


def run(side: Side, python: str, sections: Sequence[str], directory: Path) -> Verdicts:
    """Run the cases of the sections.

    What fails is run once more, without the others: the suite ends a case after at most 100 s, and
    a machine that is busy may need longer for a large message.
    """
    found = side(python, [f"{section}.*" for section in sections], directory)
    again = sorted(
        {case for told in found.values() for case, one in told.items() if one.rank >= WORST},
        key=ordered,
    )
    if not again:
        return found
    shutil.rmtree(directory / f"{side.__name__}")
    more = side(python, again, directory)
    return {
        name: {
            case: min(one, more[name].get(case, one), key=lambda verdict: verdict.rank)
            for case, one in told.items()
        }
        for name, told in found.items()
    }


def _plain() -> dict[str, str]:
    """Our environment without what is on the path for this Python: the suite has another one."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**kept, "PYTHONUNBUFFERED": "1"}


def _testees(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tests.conformance.testees", *arguments]


def servers(python: str, cases: Sequence[str], directory: Path) -> Verdicts:
    """Run the cases against the servers of all testees; the suite is the client."""
    reports = directory / "servers"
    with running(_testees("servers"), stdout=subprocess.PIPE, env=environment()) as process:
        assert process.stdout is not None
        ports = json.loads(process.stdout.readline())
        listed = [{"agent": name, "url": f"ws://127.0.0.1:{port}"} for name, port in ports.items()]
        specification = _specification(directory, reports, cases, servers=listed)
        command = _suite(python, "fuzzingclient", specification)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=_plain())
    return verdicts(reports)


def clients(python: str, cases: Sequence[str], directory: Path) -> Verdicts:
    """Run the cases against the clients of all testees; the suite is the server."""
    reports = directory / "clients"
    url = f"ws://127.0.0.1:{free_port()}"
    specification = _specification(directory, reports, cases, url=url)
    command = _suite(python, "fuzzingserver", specification, "--webport", "0")
    with running(command, stdout=subprocess.PIPE, env=_plain()) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "will run" in line:
                break
        # It prints a line for each case; a full pipe would stop it.
        draining = subprocess.Popen(["cat"], stdin=process.stdout, stdout=subprocess.DEVNULL)
        subprocess.run(_testees("clients", url), check=True, env=environment())
    draining.wait(30)
    return verdicts(reports)


def _specification(directory: Path, reports: Path, cases: Sequence[str], **more: object) -> Path:
    path = directory / f"{reports.name}.json"
    asked = {"outdir": str(reports), "cases": list(cases), "exclude-cases": []}
    path.write_text(json.dumps({**asked, "exclude-agent-cases": {}, **more}))
    return path


def verdicts(reports: Path) -> Verdicts:
    """What the suite has written into a directory."""
    index = json.loads((reports / "index.json").read_text())
    return {
        name: {case: _verdict(reports / told["reportfile"], told) for case, told in cases.items()}
        for name, cases in index.items()
    }


def _verdict(file: Path, told: Mapping[str, str]) -> Verdict:
    as_text = False
    if told["behavior"] == "FAILED" and told["behaviorClose"] == "OK":
        report = json.loads(file.read_text())
        frames = report["rxFrameStats"] or {}
        as_text = "binary" in report["description"].lower() and "1" in frames and "2" not in frames
    return Verdict(told["behavior"], told["behaviorClose"], as_text)


def worse(found: Verdicts) -> list[tuple[str, str]]:
    """The cases in which one of ours has a worse verdict than bare autobahn: testee and case."""
    bare = found[TESTEES[0]]
    return [
        (name, case)
        for name in TESTEES[1:]
        for case in sorted(bare, key=ordered)
        if case not in found[name] or found[name][case].rank > bare[case].rank
    ]


def ordered(case: str) -> list[int]:
    """A key that sorts 9.10 behind 9.9."""
    return [int(part) for part in case.split(".")]
