"""Inputs that coverage-guided fuzzing has found (``python -m tests.atheris``) find nothing more."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.streams import Finding, examine_input
from tests.fuzz.targets import TARGETS
from tests.fuzz.test_fuzz import BUGS
from tests.tools.processes import PROJECT, environment

FINDINGS = sorted(path for path in Path(__file__).parent.glob("findings/*/*") if path.is_file())


def test_no_input_that_was_a_finding_is_one():
    for path in FINDINGS:
        try:
            examine_input(TARGETS[path.parent.name], path.read_bytes())
        except Exception as error:
            pytest.fail(f"{path}: {type(error).__name__}: {error}")


def test_an_input_finds_a_planted_bug():
    """One whose choice of pieces cuts an escape."""
    name, plant = BUGS["forgets-a-cut-escape"]
    document = rb'["\u00e9","\ud83d\ude00","\u00e9","\u00e9"]'
    inputs = [choice.to_bytes(4, "big") + document for choice in range(20)]
    for octets in inputs:
        examine_input(TARGETS[name], octets)
    with plant(), pytest.raises(Finding):
        for octets in inputs:
            examine_input(TARGETS[name], octets)


def test_without_atheris_one_line_says_what_is_missing():
    hidden = "import sys; sys.modules['atheris'] = None; import runpy; "
    run = "runpy.run_module('tests.atheris', run_name='__main__')"
    ended = subprocess.run(
        [sys.executable, "-c", f"{hidden}sys.argv[1:] = ['umq']; {run}"],
        cwd=PROJECT,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 1
    assert ended.stderr == "tests.atheris: atheris is missing: pip install '.[fuzz]'\n"
