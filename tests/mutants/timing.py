"""A plug-in of pytest for these runs: few, repeatable random examples, and how long a test took.

The seconds are written as JSON to the file that the environment names.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import settings

TIMES_VARIABLE = "MSGPROTO_TEST_TIMES"
"""Names the file that the times are written to; without it nothing is written."""

EXAMPLES = 25
"""Random examples of a test that does not say its own number."""

_seconds: dict[str, float] = {}


def pytest_configure() -> None:
    """Use the same random examples in each run: a mutant is killed or not, whoever asks."""
    settings.register_profile(
        "mutants", deadline=None, max_examples=EXAMPLES, derandomize=True, database=None
    )
    settings.load_profile("mutants")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add what one phase of a test took; one that fails without any mutant is worth nothing."""
    seconds = report.duration if report.outcome != "failed" else float("inf")
    _seconds[report.nodeid] = _seconds.get(report.nodeid, 0.0) + seconds


def pytest_sessionfinish() -> None:
    """Write the file."""
    if name := os.environ.get(TIMES_VARIABLE):
        Path(name).write_text(json.dumps(_seconds, indent=0))
