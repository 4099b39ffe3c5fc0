"""Node and the packages from npm which tests in JavaScript need; who lacks them is told how to get
them.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.tools.processes import PROJECT

PACKAGE = PROJECT / "clients" / "js"
MODULES = PACKAGE / "node_modules"


def node() -> str:
    return _program("node")


def npm() -> str:
    return _program("npm")


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (Debian: apt-get install nodejs npm)")
    return found


def installed(name: str) -> Path:
    """The directory of a package that ``clients/js`` is developed with, or skip the test."""
    directory = MODULES / name
    if not directory.is_dir():
        pytest.skip(f"{name} from npm is not installed in clients/js: ./run test installs it")
    return directory
