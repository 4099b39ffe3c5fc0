"""Processes that a sub-command starts and never leaves behind.

Each child leads a process group of its own: Ctrl-C on the terminal reaches only the parent, which
ends its children in the right order; what a child has started ends with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from twisted_msgproto.core.log_output import private

END_SECONDS = 20.0
"""A child may need this long for its last work after SIGTERM; then it is killed."""

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Child:
    """``python -m twisted_msgproto …`` with all it says in a file."""

    def __init__(self, name: str, words: Sequence[str], log: Path) -> None:
        self.name = name
        self.log = log
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        # Run from a working tree, the children find the package where we found it.
        package_root = str(Path(__file__).parent.parent.parent)
        environment["PYTHONPATH"] = os.pathsep.join(
            filter(None, [package_root, os.environ.get("PYTHONPATH")])
        )
        with open(log, "wb", opener=private) as output:
            self.process: subprocess.Popen[bytes] = subprocess.Popen(
                [sys.executable, "-m", "twisted_msgproto", *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    @property
    def status(self) -> int | None:
        """Return its exit status; None while it runs."""
        return self.process.poll()

    def lines(self) -> list[str]:
        text = self.log.read_text(errors="backslashreplace")
        return text[: text.rfind("\n") + 1].splitlines()

    def send_signal(self, number: int) -> None:
        """Signal the whole group; do nothing if it is gone."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def terminate(self) -> None:
        if self.status is None:
            self.process.send_signal(signal.SIGTERM)

    def wait(self, seconds: float) -> int | None:
        """Return its exit status, or None if it still runs after ``seconds``."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(seconds)
        return None


class Children:
    """The children of one sub-command; as a context manager it ends those that still run.

    While they are being ended, further signals wait: an impatient second Ctrl-C leaves nothing
    behind either.
    """

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self.all: list[Child] = []

    def start(self, name: str, *words: str) -> Child:
        with signals_held():  # or an interrupt might leave a child that nobody knows
            child = Child(name, words, self.logs / f"{name}.log")
            self.all.append(child)
        return child

    def __enter__(self) -> Children:
        return self

    def __exit__(self, *error: object) -> None:
        with handled(signal.SIG_IGN):
            self.end(self.all)

    @staticmethod
    def end(children: Sequence[Child], seconds: float = END_SECONDS) -> None:
        for child in children:
            child.terminate()
        deadline = time.monotonic() + seconds
        for child in children:
            child.wait(max(0.0, deadline - time.monotonic()))
        for child in children:
            # Also when the child itself has ended: what it started may outlive it.
            child.send_signal(signal.SIGKILL)
            child.process.wait()


@contextlib.contextmanager
def handled(action: Any) -> Iterator[None]:
    """Let signals that end a program have this handler during the block."""
    before = {number: signal.signal(number, action) for number in ENDING_SIGNALS}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Delay signals that come during the block to its end, as KeyboardInterrupt.

    They are noted, not blocked: a child would inherit a mask.
    """
    came: list[int] = []
    with handled(lambda number, frame: came.append(number)):
        yield
    if came:
        raise KeyboardInterrupt


def signals_as_interrupts() -> AbstractContextManager[None]:
    """SIGTERM and SIGHUP raise KeyboardInterrupt, as SIGINT does, so that tidying up happens."""
    return handled(signal.default_int_handler)
