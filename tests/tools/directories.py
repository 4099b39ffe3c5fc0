"""A directory for one test of trial's TestCase, which has no ``tmp_path``."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any


def temporary(case: Any) -> Path:
    directory = tempfile.mkdtemp(prefix="msgproto-")
    case.addCleanup(shutil.rmtree, directory, ignore_errors=True)
    return Path(directory)
