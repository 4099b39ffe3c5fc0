"""Measures how much of the whole package all tests execute, in their own processes as well."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from .rooms import PROJECT

PERCENT_MIN: Final = 95
"""Of lines and branches of the package; core, machines, wires, link and queue have 100 each."""

CONFIGURATION: Final = """\
[run]
branch = true
source_pkgs = twisted_msgproto
data_file = {data}
parallel = true
concurrency = thread
patch = subprocess, fork, _exit
disable_warnings = no-data-collected, module-not-imported, module-not-measured

[report]
exclude_also =
    {left_out}
"""

TESTS: Final = ("-q", "-n", "2", "--dist", "loadgroup", "--same")


def whole(arguments: Sequence[str] = ()) -> int:
    """Run all tests, or those that pytest's ``arguments`` select, and print what they execute.

    Processes that are killed tell nothing, so the figure is rather too low.  Return 1 if it is
    below :data:`PERCENT_MIN`, or if a test failed.
    """
    with tempfile.TemporaryDirectory(prefix="msgproto-covered-") as directory:
        file = Path(directory) / "coveragerc"
        project = tomllib.loads((PROJECT / "pyproject.toml").read_text())
        left_out = "\n    ".join(project["tool"]["coverage"]["report"]["exclude_also"])
        data = Path(directory) / "data"
        file.write_text(CONFIGURATION.format(data=data, left_out=left_out))
        coverage = [sys.executable, "-m", "coverage"]
        chosen = f"--rcfile={file}"
        tested = subprocess.run(
            [*coverage, "run", chosen, "-m", "pytest", *TESTS, *arguments], cwd=PROJECT
        )
        subprocess.run([*coverage, "combine", "--quiet", chosen], cwd=PROJECT, check=True)
        # Tests install copies of the package elsewhere: what these execute does not count.
        words = ["report", chosen, f"--include={PROJECT}/twisted_msgproto/*"]
        told = subprocess.run(
            [*coverage, *words, "--skip-covered", f"--fail-under={PERCENT_MIN}"], cwd=PROJECT
        )
    return int(tested.returncode != 0 or told.returncode != 0)


__all__ = ["PERCENT_MIN", "whole"]
