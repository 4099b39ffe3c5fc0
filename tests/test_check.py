"""``./run check``: one line for each check that holds, and the findings of those that do not."""

import pytest

from tests.check import CHECKS, main


def test_a_check_that_holds_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main({"platform": ["platform"]}) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("platform: ok (")


def test_a_check_that_fails_says_what_it_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert main({"platform": ["platform"], "absent": ["tests.absent"]}) == 1
    platform, found, absent = capsys.readouterr().out.splitlines()
    assert platform.startswith("platform: ok (")
    assert "tests.absent" in found
    assert absent.startswith("absent: failed (")


def test_types_style_and_words_are_checked() -> None:
    tools = {words[0] for words in CHECKS.values()}
    assert tools == {"ruff", "mypy", "tests.docs.docstrings"}
