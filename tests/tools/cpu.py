"""What CPU time a run of the tests took, and which files took most of it.

The time of a file is that of all processes which its tests started, as far as they were still there
or had been waited for.  On systems without ``/proc`` nothing is told.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.tools.processes import children

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
