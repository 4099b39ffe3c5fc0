"""The scanner sslyze, where it is installed: ``python -m tests.tools.sslyze`` brings it.

It needs an older cryptography than autobahn and pyOpenSSL, so it is never imported here: it has a
directory of its own, and runs as a process.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest

PROJECT: Final = Path(__file__).parent.parent.parent
FOREIGN: Final = PROJECT / "tests" / "foreign"
PINNED: Final = FOREIGN / "sslyze.txt"
SITE: Final = FOREIGN / "sslyze"
STAMP: Final = SITE / "installed.txt"

PROFILE: Final = "intermediate"
"""Mozilla's configuration that every endpoint has to have."""

CERTIFICATE: Final = "certificate"
"""Findings about the certificate begin with this word: those of tests are nobody's."""

PATIENCE_SECONDS: Final = 600
"""For a scan of all endpoints on a machine with far more work than processors."""


def wanted() -> str:
    return f"{sys.version}\n{PINNED.read_text()}"


def installed() -> bool:
    """Whether it is here, for this Python and in the pinned versions."""
    return STAMP.exists() and STAMP.read_text() == wanted()


needs_sslyze = pytest.mark.skipif(
    not installed(), reason="sslyze is missing: python -m tests.tools.sslyze brings it"
)


def install() -> None:
    """Fetch it in the pinned versions, unless it is here."""
    if installed():
        return
    shutil.rmtree(SITE, ignore_errors=True)
    words = ["install", "--quiet", "--no-deps", "-r", str(PINNED), "--target", str(SITE)]
    subprocess.run([sys.executable, "-m", "pip", *words], check=True)
    STAMP.write_text(wanted())


def scanned(targets: Sequence[str], directory: Path) -> dict[str, dict[str, Any]]:
    """Scan ``HOST:PORT`` targets; each with its findings, from the kind of finding to its text.

    Raises AssertionError for one that could not be scanned.
    """
    report = directory / "sslyze.json"
    words = ["-m", "sslyze", f"--mozilla_config={PROFILE}", f"--json_out={report}", *targets]
    done = subprocess.run(
        [sys.executable, *words],
        env={**os.environ, "PYTHONPATH": str(SITE)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert report.exists(), done.stdout + done.stderr
    found: dict[str, dict[str, Any]] = {}
    for result in json.loads(report.read_text())["server_scan_results"]:
        place = result["server_location"]
        assert result["connectivity_status"] == "COMPLETED", result
        found[f"{place['hostname']}:{place['port']}"] = _findings(done.stdout, place["port"])
    return found


def _findings(output: str, port: int) -> dict[str, Any]:
    """What sslyze prints for people: the comparison with the profile is not in its JSON."""
    _, _, compared = output.partition("COMPLIANCE AGAINST TLS CONFIGURATION")
    _, told, rest = compared.partition(f":{port}: ")
    assert told, output
    lines = iter(rest.splitlines())
    verdict = next(lines)
    assert verdict.startswith(("OK", "FAILED")), verdict
    found = {}
    for line in lines:
        kind, colon, text = line.strip().removeprefix("* ").partition(": ")
        if not (line.strip().startswith("* ") and colon):
            break
        found[kind] = text
    return found


if __name__ == "__main__":
    install()
