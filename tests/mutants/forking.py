"""A process that has imported what tests need, and forks itself for each run of some tests.

It runs in the scratch copy.  Each line of its input is JSON with ``tests`` and ``seconds``; each
line that it answers has pytest's exit ``status`` (``null``: it needed longer) and the ``failed``
test.  A fork has a process group of its own, which is killed at its end.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import sys
from pathlib import Path
from typing import Any

from .rooms import OPTIONS

WARM = (
    *("pytest", "hypothesis", "hypothesis.stateful", "hypothesis.strategies", "pytest_timeout"),
    *("twisted.trial.unittest", "twisted.internet.defer", "twisted.internet.task"),
    *("twisted.python.log", "twisted.internet.testing", "twisted.internet.ssl", "twisted.web.http"),
    *("cryptography.x509", "pyarrow", "pyarrow.compute", "pyarrow.parquet"),
)
"""Modules of others that are imported once: none of them installs a reactor."""

OUTPUT = Path("mutants-output.txt")


class Failed:
    """A plug-in of pytest that remembers the first test which failed."""

    def __init__(self) -> None:
        self.name = ""

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Remember it."""
        if report.failed and not self.name:
            self.name = report.nodeid

    def pytest_collectreport(self, report: Any) -> None:
        """Remember a module that cannot be imported."""
        if report.failed and not self.name:
            self.name = f"{report.nodeid} (import)"


def _child(tests: list[str], answer: int) -> None:
    os.setsid()
    output = os.open(OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    import pytest

    failed = Failed()
    words = ["-x", "-q", "-p", "no:cacheprovider", "-p", "tests.mutants.timing", *OPTIONS]
    status = int(pytest.main([*words, *tests], plugins=[failed]))
    os.write(answer, json.dumps({"status": status, "failed": failed.name}).encode())
    os._exit(0)


def run(tests: list[str], seconds: float) -> dict[str, Any]:
    """Run some tests in a fork and return the answer."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            _child(tests, writing)
        finally:
            os._exit(1)
    os.close(writing)
    ready, _, _ = select.select([reading], [], [], seconds)
    octets = os.read(reading, 1 << 16) if ready else b""
    os.close(reading)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    if octets:
        answer: dict[str, Any] = json.loads(octets)
        return answer
    return {"status": -1 if ready else None, "failed": ""}


def main() -> None:
    """Answer line by line until the input ends."""
    for name in WARM:
        importlib.import_module(name)
    assert "twisted.internet.reactor" not in sys.modules
    print(json.dumps({"ready": os.getpid()}), flush=True)
    for line in sys.stdin:
        print(json.dumps(run(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
