"""The example's package, installed as a user would install it: once for all tests of a process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.processes import PROJECT, environment

LINES = PROJECT / "examples" / "lines"


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of its own with the package ``msgproto-lines``, offline."""
    source = tmp_path_factory.mktemp("source") / "lines"
    # pip builds in the source's directory, and the example's is not to change.
    shutil.copytree(LINES, source, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    target = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    offline = ["--no-index", "--no-deps", "--no-build-isolation", "--target", str(target)]
    ended = subprocess.run([*pip, *offline, str(source)], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return target


@pytest.fixture(scope="session")
def installed(site: Path) -> dict[str, str]:
    """The environment of a process which has the package."""
    env = environment()
    return {**env, "PYTHONPATH": os.pathsep.join([env["PYTHONPATH"], str(site)])}
