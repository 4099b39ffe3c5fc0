"""Fixtures for every room: processes that end with their test, and nothing left over."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.tools.processes import (
    PROJECT,
    Launcher,
    children,
    command_of,
    environment,
    launching,
)

KEPT_THREADS = ("PoolThread-", "execnet", "pytest", "Thread-Socket")
"""Threads which belong to a reactor's pool, to pytest's own workers, or to a Spark session."""

KEPT_COMMANDS = ("java", "pyspark", "multiprocessing", "resource_tracker")
"""Processes of a Spark session or of the standard library, which live as long as ours."""


# A test says what holds, not how soon: on a busy machine any example may take long.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--worlds N`` and ``--fuzz N``: simulated worlds a protocol, spoiled streams a decoder."""
    parser.addoption("--worlds", type=int, default=3000, help="simulated worlds a protocol")
    parser.addoption("--fuzz", type=int, default=50_000, help="spoiled streams a decoder")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever uses the Spark session runs in one worker: a second session costs a gigabyte."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launcher]:
    """Start processes in ``tmp_path``: ``launch("lumberjack", "-e", …, module="twisted")``."""
    with launching(tmp_path) as launcher:
        yield launcher


@pytest.fixture(autouse=True)
def nothing_left_over() -> Iterator[None]:
    """Fail a test which leaves a process or a thread that would keep Python from ending."""
    threads = set(threading.enumerate())
    processes = children(os.getpid())
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
        for pid in children(os.getpid()) - processes
        if (command := command_of(pid)) and not any(word in command for word in KEPT_COMMANDS)
    ]
    assert not left_threads, f"threads left over: {left_threads}"
    assert not left_processes, f"processes left over: {left_processes}"


@pytest.fixture(autouse=True)
def temporary_names(request: pytest.FixtureRequest) -> None:
    """Trial's ``mktemp`` makes its names below the working directory; ours stay out of it."""
    if hasattr(request.instance, "mktemp"):
        directory = request.getfixturevalue("tmp_path")
        numbers = itertools.count()
        request.instance.mktemp = lambda: str(directory / f"temporary-{next(numbers)}")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One session a test process: each costs some ten seconds."""
    pytest.importorskip("pyspark")
    from twisted_msgproto.spark import register
    from twisted_msgproto.spark.session import spark_session

    scratch = tmp_path_factory.mktemp("spark")
    with spark_session("local[2]", scratch, {}) as session:
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
