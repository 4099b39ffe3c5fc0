"""How large a run of the tests is, and what it takes: CPU time, turns of a reactor, open files.

The watch of hostile tests is about CPU time of each turn of a server (NB-07).  How long a piece of
work takes differs from machine to machine, so the bound is a ratio: a turn may cost as much as a
fixed piece of work in the same process, so many times.  Tests that can count the work of a turn
count it as well; real figures are for ``./run chaos``.

The CPU time of a file is that of all processes which its tests started, as far as they were still
there or had been waited for.  On systems without ``/proc`` nothing is told.

What is planted (the simulator's bugs, the fuzzers' bugs) must be caught in the short form, which is
``./run test``; ``./run long`` has the long one.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from unittest import mock

import pytest

from tests.tools.processes import Launched, children
from twisted_msgproto.extend import SessionFactory
from twisted_msgproto.net.turns import TurnWatch

WORKS = 10
"""A turn may cost as much as this many pieces of work: about 100 ms where one takes 10 ms."""

SAID = "ms of CPU time in one turn"
"""What a server says of a turn that was too long."""

_TEXT = json.dumps([{"name": f"event {number}", "values": [number] * 5} for number in range(300)])


def work_seconds() -> float:
    """CPU seconds of a fixed piece of work; about 0.01 on the machine this was written on."""
    began = time.thread_time()
    for _ in range(60):
        found = json.loads(_TEXT)
        sorted((len(entry["name"]), entry["name"].upper()) for entry in found)
    return time.thread_time() - began


def bound_seconds() -> float:
    """CPU seconds that a turn may take here and now."""
    return WORKS * max(work_seconds() for _ in range(2))


def turn_warn() -> str:
    """The option that has a server watch its turns in a hostile test."""
    return f"--turn-warn={bound_seconds() * 1e3:.0f}"


def check_servers(servers: list[Launched]) -> None:
    """No server that was told to watch has said that a turn was too long; AssertionError."""
    said = [line for server in servers for line in server.lines if SAID in line]
    assert not said, said


class Turns:
    """What the turns of this process took.

    Attributes:
        worst: CPU seconds of the longest, and whose input it was.
        count: how many turns there were.
    """

    def __init__(self) -> None:
        self.worst = (0.0, "")
        self.count = 0

    def taken(self, peer: str, host: str, spent: float) -> None:
        self.count += 1
        self.worst = max(self.worst, (spent, peer))

    def check(self) -> None:
        spent, peer = self.worst
        bound = bound_seconds() if spent > 0.01 else spent
        assert spent <= bound, (
            f"{peer}: its input took {spent * 1e3:.0f} ms of CPU time in one turn;"
            f" {WORKS} pieces of work take {bound * 1e3:.0f} ms"
        )


@contextmanager
def watched_turns() -> Iterator[Turns]:
    """Measure every turn of every connection that begins in the block, and check them."""
    turns = Turns()
    gc.collect()
    gc.freeze()  # what other tests have left is not looked through in these turns
    with mock.patch.object(SessionFactory, "turnWatch", TurnWatch(-1.0, turns.taken)):
        yield turns
    turns.check()


SHOWN: Final = 15
"""So many files are named, those that took most first."""

TICKS: Final = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


def of_process(pid: int) -> int:
    """Ticks of CPU time of a process and of those that it has waited for; 0 if it has gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return sum(map(int, stat.rpartition(")")[2].split()[11:15]))


def of_tree(pid: int) -> int:
    """Ticks of CPU time of a process and of all that come from it."""
    return of_process(pid) + sum(map(of_tree, children(pid)))


class CpuByFile:
    """A plugin: measures whenever the next test is of another file, and tells at the end."""

    def __init__(self) -> None:
        self.ticks: Counter[str] = Counter()
        self._last = of_tree(os.getpid())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Iterator[None]:
        """Count what was spent until now for this file, if it is the last test of it for now."""
        result = yield
        file = item.nodeid.partition("::")[0]
        if nextitem is None or nextitem.nodeid.partition("::")[0] != file:
            now = of_tree(os.getpid())
            self.ticks[file] += max(0, now - self._last)
            self._last = now
        return result

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A worker of pytest-xdist tells the process that started it."""
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["cpu"] = dict(self.ticks)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.ticks.update(getattr(node, "workeroutput", {}).get("cpu", {}))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if sum(self.ticks.values()) < TICKS or terminalreporter.config.option.verbose < 0:
            return
        seconds = sum(self.ticks.values()) / TICKS
        terminalreporter.write_sep("=", f"{seconds:.0f} s of CPU time in tests")
        for file, ticks in self.ticks.most_common(SHOWN):
            terminalreporter.write_line(f"{ticks / TICKS:8.1f} s  {file}")


DESCRIPTORS = "/proc/self/fd"


@contextmanager
def no_file_stays_open() -> Iterator[None]:
    """Fail if this process has other open files afterwards than before; skip without Linux."""
    if not os.path.isdir(DESCRIPTORS):
        pytest.skip(f"{DESCRIPTORS} is missing: Linux counts open files there")
    before = sorted(os.listdir(DESCRIPTORS))
    yield
    assert sorted(os.listdir(DESCRIPTORS)) == before


SPARE_FILES = 200
"""A process opens this many files beside its connections."""


def need_files(count: int) -> None:
    """Let this process and those it starts open this many files; fail if it may not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        pytest.fail(f"{count} open files are needed, ulimit -n allows {hard}")
    if soft != resource.RLIM_INFINITY and soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def accepted(port: int) -> int:
    """Return how many connections to this port a process has accepted: see proc(5)."""
    found = 0
    for fields in map(str.split, Path("/proc/net/tcp").read_text().splitlines()[1:]):
        state, inode = fields[3], fields[9]
        # Established; what still waits to be accepted belongs to no process, and has no inode.
        if fields[1].endswith(f":{port:04X}") and state == "01" and inode != "0":
            found += 1
    return found


SHORT = {"worlds": 200, "fuzz": 5_000, "gateways": 200, "states": 40}
"""Option → how many: simulated worlds a protocol, spoiled streams a decoder, gateways of a bridge,
examples of a state machine.

The simulator's rarest planted bug shows in world 181 of the 200, the fuzzers' rarest
fault in stream 1,918.
"""

LONG = {"worlds": 2500, "fuzz": 50_000, "gateways": 1000, "states": 2000}
"""The same with ``--long``."""
