"""``python -m tests.tools.dying OPTIONS bridge …``: ``msgproto bridge …``, with ill luck.

``--at POINT --nth N`` kills the process with SIGKILL when it is at a point of its work (see
:data:`POINTS`) for the Nth time.  ``--here`` runs the tasks in the process itself: all of a bridge
but the Java machine, for tests which need many bridges.  ``--fail-once FILE`` lets the first task
of all die with its worker, after it has written its files and before it can say so; FILE is made
then.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.tools.loops import run_here
from twisted_msgproto import cli
from twisted_msgproto.core.disk import OSDisk
from twisted_msgproto.queue import QueueReader
from twisted_msgproto.spark import bridge, jobs
from twisted_msgproto.spark.loop import Loop
from twisted_msgproto.table.delta_table import Table
from twisted_msgproto.table.landing import LandedRanges, Target
from twisted_msgproto.table.plan import Range

POINTS: Mapping[str, tuple[type, str, bool]] = {
    "registered": (QueueReader, "register", True),
    "planned": (Loop, "_plan", True),
    "landed": (Table, "commit", False),
    "linked": (OSDisk, "link", True),
    "committed": (Table, "commit", True),
    "synced": (Table, "sync", True),
    "unmarked": (QueueReader, "commit", False),
    "marked": (QueueReader, "commit", True),
}
"""Point → the class and the method before (False) or after (True) which the process dies.

``landed``: a batch's files are written and no commit names them.  ``linked``: a commit is visible,
its name not yet durable.  ``committed``: the table has it, the gateway does not know.
"""


class HereRunner:
    """Runs batches in this process; in the place of ``SparkRunner``."""

    cores = 2

    def __init__(self, spark: object, log: Path, tables: int) -> None:
        pass

    def __call__(self, target: Target, tasks: Sequence[Sequence[Range]]) -> LandedRanges:
        return run_here(target, tasks)

    def warm(self) -> None:
        """There are no workers which could be started ahead of the first batch."""

    def check(self) -> None:
        """There is no Java machine which could have ended."""

    def cancel(self) -> None:
        """Nothing runs elsewhere."""


@contextlib.contextmanager
def no_context(*arguments: object) -> Iterator[None]:
    yield None


def dies(point: str, nth: int) -> None:
    """From now on this process is killed at ``point`` for the ``nth`` time."""
    owner, name, after = POINTS[point]
    method = getattr(owner, name)
    counted = itertools.count(1)

    def dying(*arguments: Any, **named: Any) -> Any:
        last = next(counted) == nth
        if last and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = method(*arguments, **named)
        if last:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, dying)


def failing_once(marker: str) -> Callable[[tuple[bytes, ...]], Any]:
    """``jobs.Landing``, whose first run ends its worker after its files are written."""
    landing = jobs.Landing

    def made(tasks: tuple[bytes, ...]) -> Any:
        work = landing(tasks)

        def run(number: int, rows: Any) -> Any:
            results = list(work(number, rows))
            try:
                os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return iter(results)
            os._exit(1)

        return run

    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--at", choices=POINTS)
    parser.add_argument("--nth", type=int, default=1)
    parser.add_argument("--here", action="store_true")
    parser.add_argument("--fail-once", metavar="FILE")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    asked = parser.parse_args()
    if asked.here:
        bridge.SparkRunner = HereRunner  # type: ignore[assignment, misc]
        bridge.spark_context = no_context  # type: ignore[assignment]
    if asked.fail_once:
        jobs.Landing = failing_once(asked.fail_once)  # type: ignore[assignment, misc]
    if asked.at:
        dies(asked.at, asked.nth)
    return cli.main(asked.command)


if __name__ == "__main__":
    sys.exit(main())
