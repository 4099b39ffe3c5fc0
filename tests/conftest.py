"""Fixtures for every room: processes that end with their test, and nothing left over."""
# ruff: noqa: E402

from __future__ import annotations

import os

# No test's own process loses its power, and disks of tests know what was synced; a wrong descriptor
# is an error as before.  What is imported below may keep these for good.
os.fsync = os.fdatasync = os.fstat  # type: ignore[assignment]

import functools
import gc
import importlib.metadata
import itertools
import secrets
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis.core
import pytest
from hypothesis import HealthCheck, settings

from tests.tools import java_classes, warm
from tests.tools.measures import LONG, SHORT, CpuByFile, Turns, check_servers, watched_turns
from tests.tools.processes import (
    PROJECT,
    Launcher,
    children,
    command_of,
    environment,
    launching,
)
from tests.tools.s3 import Store, running_store

KEPT_THREADS = ("PoolThread-", "execnet", "pytest", "Thread-Socket")
"""Threads which belong to a reactor's pool, to pytest's own workers, or to a Spark session."""

KEPT_COMMANDS = ("java", "pyspark", "multiprocessing", "resource_tracker", "tests.tools.s3")
"""Processes of a Spark session, of the standard library or of the S3 server, which live as long as
ours."""


JAVA_VARIABLES = ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS", "SPARK_DAEMON_JAVA_OPTS")
"""Where Spark's own scripts look for options: of drivers, of what starts them, of a cluster."""

# A shell has its background jobs ignore Ctrl-C, and so would every process that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A test says what holds, not how soon: on a busy machine any example may take long.
# A slow machine draws slowly: that is no fault of a strategy.
SLOW = [HealthCheck.too_slow]
settings.register_profile("same", deadline=None, derandomize=True, suppress_health_check=SLOW)
settings.register_profile("fresh", deadline=None, derandomize=False, suppress_health_check=SLOW)
settings.load_profile("same")


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--long``, and an option for each number which depends on it."""
    parser.addoption("--long", action="store_true", help="the long form of what is random or large")
    for name, what in {
        "worlds": "simulated worlds a protocol",
        "fuzz": "spoiled streams a decoder",
        "gateways": "gateways which land into one table, a multiple of 20",
        "states": "examples of a state machine",
    }.items():
        text = f"{what} ({SHORT[name]}; with --long {LONG[name]})"
        parser.addoption(f"--{name}", type=int, help=text)
    text = "where the fresh worlds, streams and examples of this run begin"
    parser.addoption("--seed", type=int, help=text)
    text = "nothing is fresh: what is random is the same in every run"
    parser.addoption("--same", action="store_true", help=text)


COLLECTED_AFTER = (50_000, 20, 20)
"""Python's thresholds of garbage collection, in pytest's own processes: a tenth of what the tests
took there went into collections, which come after 700 objects unless told otherwise."""

SEED_VARIABLE = "MSGPROTO_RUN_SEED"
"""Tells pytest-xdist's workers the seed of the run."""


def pytest_configure(config: pytest.Config) -> None:
    """Half of what Spark took in a whole run went into compiling Java's code.

    A part of what is random is fresh in each run, and comes again with its seed.  With ``--same``
    nothing is: a change is merged or not for what it does, and not by chance.
    """
    gc.disable()  # until all tests are collected: nothing of them goes
    # pytest asks before every test which Twisted this is, and read it from a file each time.
    importlib.metadata.version = functools.cache(importlib.metadata.version)
    config.pluginmanager.register(CpuByFile())
    for name in JAVA_VARIABLES:
        os.environ.setdefault(name, java_classes.options())
    long = config.getoption("--long")
    for name, number in (LONG if long else SHORT).items():
        if config.getoption(name) is None:
            setattr(config.option, name, number)
    if config.option.seed is None and not config.getoption("--same"):
        seed = os.environ.setdefault(SEED_VARIABLE, str(secrets.randbelow(10**9)))
        config.option.seed = int(seed)
    if config.option.seed is not None:
        settings.load_profile("fresh")
        hypothesis.core.global_force_seed = config.option.seed


def pytest_collection_finish() -> None:
    """Keep twelve thousand tests out of each garbage collection: one took a second with them."""
    gc.freeze()
    gc.set_threshold(*COLLECTED_AFTER)
    gc.enable()


def pytest_sessionfinish() -> None:
    """End what others were forked from."""
    warm.end()


def pytest_report_header(config: pytest.Config) -> str:
    """Say whether this run has something new, and how that comes again."""
    if config.option.seed is None:
        return "worlds, streams and examples: the same in every run"
    return f"seed of the fresh worlds, streams and examples: --seed {config.option.seed}"


WITH_JAVA = ("spark", "bridges", "cluster", "pages")
"""Groups of tests that start Spark; each runs in one of pytest's workers."""


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Iterator[None]:
    """Whatever uses the Spark session runs in one worker: a second session costs a gigabyte.

    What starts a Spark of its own does so in a few other groups, of which none lasts as long as
    the whole run.  All are slow: Java has to start first.  Workers begin with what is slow, so that
    none of it is left to one of them when the others have ended.
    """
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))
        mark = item.get_closest_marker("xdist_group")
        if mark is not None and mark.args[0] in WITH_JAVA:
            item.add_marker(pytest.mark.slow)
    if not config.getoption("--long"):
        leave_out_long(config, items)
    yield
    if getattr(config.option, "loadgroup", False):
        items.sort(key=lambda item: item.get_closest_marker("slow") is None)
        for item in items:
            name_with_group(item)


def leave_out_long(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what only the long form has; pytest says how many tests these are."""
    left_out = [item for item in items if item.get_closest_marker("long") is not None]
    if left_out:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)


def name_with_group(item: pytest.Item) -> None:
    """Put the test's group behind its id, where pytest-xdist's scheduler reads it.

    pytest-xdist does so itself, in a way which has no effect since pytest 9.2: the groups were
    ignored without a word (pytest-dev/pytest-xdist#1386).
    """
    mark = item.get_closest_marker("xdist_group")
    if not hasattr(item, "_id"):
        return  # an older pytest, in which pytest-xdist's own way works
    if mark is not None and not item.nodeid.endswith(f"@{mark.args[0]}"):
        item._id = type(item.id).parse(f"{item.nodeid}@{mark.args[0]}")


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launcher]:
    """Start processes in ``tmp_path``: ``launch("lumberjack", "-e", …, module="twisted")``."""
    with launching(tmp_path) as launcher:
        yield launcher


@pytest.fixture
def short_turns(request: pytest.FixtureRequest) -> Iterator[Turns]:
    """Fail a hostile test in which a turn of a server took too long (NB-07).

    This watches all connections of this process, and servers that were launched with
    :func:`tests.tools.measures.turn_warn`.
    """
    names = request.fixturenames
    servers = request.getfixturevalue("launch").started if "launch" in names else []
    with watched_turns() as turns:
        yield turns
    check_servers(servers)


def started() -> set[int]:
    """Return the processes that this one has started, and those that were forked for it."""
    forking = warm.forking_pid()
    if forking is None:
        return children(os.getpid())
    return (children(os.getpid()) - {forking}) | children(forking)


@pytest.fixture(scope="session", autouse=True)
def variables_as_they_were() -> Iterator[None]:
    """Fail if a test or a fixture has changed what decides how later processes start."""
    before = warm.deciding(os.environ)
    yield
    assert warm.deciding(os.environ) == before, "variables of the environment left over"


@pytest.fixture(autouse=True)
def nothing_left_over() -> Iterator[None]:
    """Fail a test which leaves a process or a thread that would keep Python from ending."""
    threads = set(threading.enumerate())
    processes = started()
    yield
    left_threads = [
        thread.name
        for thread in threading.enumerate()
        if thread not in threads
        and not thread.daemon
        and thread.is_alive()
        and not thread.name.startswith(KEPT_THREADS)
    ]
    left_processes = [
        command
        for pid in started() - processes
        if (command := command_of(pid)) and not any(word in command for word in KEPT_COMMANDS)
    ]
    assert not left_threads, f"threads left over: {left_threads}"
    assert not left_processes, f"processes left over: {left_processes}"


@pytest.fixture(autouse=True)
def temporary_names(request: pytest.FixtureRequest) -> None:
    """Trial's ``mktemp`` makes its names below the working directory; ours stay out of it."""
    if hasattr(request.instance, "mktemp"):
        numbers = itertools.count()
        directory = functools.partial(request.getfixturevalue, "tmp_path")  # few tests need one
        request.instance.mktemp = lambda: str(directory() / f"temporary-{next(numbers)}")


@pytest.fixture(scope="session")
def s3() -> Iterator[Store]:
    """One S3 server for each of pytest's workers: a start costs more than a second."""
    with running_store() as store:
        yield store


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[Any]:
    """One session for the whole run: each costs some ten seconds."""
    pytest.importorskip("pyspark")
    if getattr(pytestconfig.option, "loadgroup", False):
        try:
            (tmp_path_factory.getbasetemp().parent / "spark-session").touch(exist_ok=False)
        except FileExistsError:
            pytest.fail("a second worker needs Spark: tests of a group do not stay together")
    from twisted_msgproto.spark import register
    from twisted_msgproto.spark.session import spark_session

    scratch = tmp_path_factory.mktemp("spark")
    path = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = environment()["PYTHONPATH"]
    with spark_session("local[2]", scratch, {}) as session:
        # Spark's own Python got its path with the session; processes of later tests keep theirs.
        if path is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = path
        register(session)
        session.scratch = scratch
        yield session


@pytest.fixture(scope="session")
def sixth_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example ``msgproto-lines``, installed offline into a directory of its own."""
    source = tmp_path_factory.mktemp("source") / "lines"
    # pip builds in the source's directory, and the example's is not to change.
    shutil.copytree(
        PROJECT / "examples" / "lines",
        source,
        ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"),
    )
    target = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    offline = ["--no-index", "--no-deps", "--no-build-isolation", "--target", str(target)]
    ended = subprocess.run([*pip, *offline, str(source)], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return target


@pytest.fixture(scope="session")
def with_sixth(sixth_site: Path) -> dict[str, str]:
    """The environment of a process that has a sixth protocol, ``lines``."""
    env = environment()
    return {**env, "PYTHONPATH": os.pathsep.join([env["PYTHONPATH"], str(sixth_site)])}
