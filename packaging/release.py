#!/usr/bin/env python3
"""Build what a release consists of: ``python packaging/release.py DIRECTORY``.

* an sdist,
* a wheel with the compiled parts, for every Python from 3.11 on (``cp311-abi3``),
* a wheel without them (``py3-none-any``), for platforms that no other wheel fits.

Both wheels are built from the sdist.  pip prefers the compiled one where it fits.
``--no-isolation`` builds with the setuptools of this Python and needs no network.

A wheel built on Linux runs on this machine's distribution and newer ones; ``auditwheel repair``
in a manylinux image gives it the tag that package indexes want.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent

SDIST = "import sys, setuptools.build_meta as backend; backend.build_sdist(sys.argv[1])"

PURE = "MSGPROTO_PURE"
"""setup.py leaves the compiled parts out if this variable is set."""


def make_sdist(source: Path, target: Path) -> Path:
    """Return the sdist of ``source``, made by the setuptools of this Python."""
    subprocess.run(
        [sys.executable, "-c", SDIST, str(target)],
        cwd=source,
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    (made,) = target.glob("*.tar.gz")
    return made


def make_wheel(sdist: Path, target: Path, *, pure: bool, isolated: bool) -> None:
    """Build the wheel of an sdist, with or without the compiled parts."""
    environment = {name: value for name, value in os.environ.items() if name != PURE}
    if pure:
        environment[PURE] = "1"
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-cache-dir"),
            *(() if isolated else ("--no-build-isolation",)),
            *("--disable-pip-version-check", "--wheel-dir", str(target), str(sdist)),
        ],
        env=environment,
        check=True,
        stdin=subprocess.DEVNULL,
    )


def main() -> None:
    """Build all three and print their names."""
    parser = argparse.ArgumentParser(description="Build an sdist and both wheels.")
    parser.add_argument("directory", type=Path, help="an empty directory, or none yet")
    parser.add_argument("--source", type=Path, default=PROJECT, help=argparse.SUPPRESS)
    parser.add_argument("--no-isolation", action="store_true", help="use this Python's setuptools")
    options = parser.parse_args()
    target = options.directory.resolve()
    target.mkdir(parents=True, exist_ok=True)
    if any(target.iterdir()):
        parser.error(f"{target} is not empty")
    sdist = make_sdist(options.source, target)
    for pure in (False, True):
        make_wheel(sdist, target, pure=pure, isolated=not options.no_isolation)
    for made in sorted(target.iterdir()):
        print(made)


if __name__ == "__main__":
    main()
