"""``python -m benchmarks``: each row gives a figure, here and beside an earlier commit."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.rows import ROWS

PROJECT = Path(__file__).parent.parent


def measured(*words: str) -> list[str]:
    command = [sys.executable, "-m", "benchmarks", *words, "--scale", "0.02", "--pairs", "1"]
    ended = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=600)
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout.splitlines()


ALIKE = ("bridge-", "json-", "paced-", "idle-")
LONG = {name for name in ROWS if name.startswith(ALIKE) or name.endswith("-large")} - {
    "json-typed-cpu",
    "idle-umq",
}
LONG |= {"broker-1", "queue-write-lone", "queue-read-lone"}
"""Each measures with the code of another row."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name in LONG)) for name in ROWS]
)
def test_a_row_gives_a_figure(name: str) -> None:
    lines = [line for line in measured(name) if line.split()[0] == name]
    assert len(lines) == 1
    assert re.fullmatch(r"\S+ +\S+ (µs CPU|KiB|ms|rows/s)", lines[0])
    assert float(lines[0].split()[1]) > 0


@pytest.mark.slow
def test_a_row_is_measured_beside_an_earlier_commit() -> None:
    if not (PROJECT / ".git").exists():
        pytest.skip("this copy of the source has no history")
    (line,) = measured("queue-read-lone", "--against", "HEAD")
    assert re.search(r", beside \S+: × \d\.\d{3} \(\d\.\d{3} to \d\.\d{3}\)$", line)


def test_what_is_no_row_and_no_commit_is_one_plain_line() -> None:
    for words, told in (
        (["nothing"], "no row 'nothing'; --list names them"),
        (["queue-read", "--against", "no-such-commit"], "invalid reference: no-such-commit"),
    ):
        command = [sys.executable, "-m", "benchmarks", *words]
        ended = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
        assert ended.returncode == 2
        assert told in ended.stderr.splitlines()[-1]
