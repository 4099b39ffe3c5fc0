"""Types, style and floors, in under a minute: ``./run check`` or ``python -m tests.check``.

mypy keeps its cache, so only the first run is slow.  Each check is a process; all run side by side,
and what they found is printed when they end.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

PROJECT = Path(__file__).parent.parent

TOOLS = Path(sys.executable).parent

CHECKS = {
    "style": [str(TOOLS / "ruff"), "check", "."],
    "format": [str(TOOLS / "ruff"), "format", "--check", "."],
    "floors": [str(TOOLS / "lint-imports")],
    "types": [str(TOOLS / "mypy")],
    "calls in tests": [str(TOOLS / "mypy"), "--config-file=tests/mypy.ini"],
}
"""What is checked, and the command that does it; pyproject.toml has its settings, unless it
names a file."""


def main(checks: dict[str, list[str]] = CHECKS) -> int:
    """Run all checks, print what they found, and return how many failed."""
    begun = time.monotonic()
    running = {
        name: subprocess.Popen(
            command,
            cwd=PROJECT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for name, command in checks.items()
    }
    failed = 0
    for name, process in running.items():
        told, _ = process.communicate()
        seconds = time.monotonic() - begun
        if process.returncode:
            failed += 1
            print(told, end="")
        print(f"{name}: {'failed' if process.returncode else 'ok'} ({seconds:.0f} s)", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
