"""``./run check``: one line for each check that holds, and the findings of those that do not."""

import sys

import pytest

from tests.check import main

MODULE = [sys.executable, "-m"]


def test_a_check_that_holds_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main({"platform": [*MODULE, "platform"]}) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("platform: ok (")


def test_a_check_that_fails_says_what_it_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert main({"platform": [*MODULE, "platform"], "absent": [*MODULE, "tests.absent"]}) == 1
    platform, found, absent = capsys.readouterr().out.splitlines()
    assert platform.startswith("platform: ok (")
    assert "tests.absent" in found
    assert absent.startswith("absent: failed (")
