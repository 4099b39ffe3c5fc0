"""One Spark job a batch: Spark schedules ranges, its Python workers land them.

The loop knows nothing of Spark but a :data:`Runner`.  :class:`SparkRunner` is the one of a bridge;
:func:`run_here` does the same work in this process, for tests.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ..core.errors import ConfigurationError, MsgprotoError, TableError
from ..queue.source import Queue
from ..table.landing import LandedRanges, Range, Target, land_ranges, merged
from .opening import open_queue
from .options import Access
from .session import first_line

JOB_GROUP = "msgproto-bridge"
"""The group of a bridge's jobs in Spark's own pages; cancelling it ends the running batch."""

END_SEEN_SECONDS = 2.0
"""After an error, how long it may take until a dead Java machine is seen as dead."""

OWN_ERROR = re.compile(r"twisted_msgproto\.core\.errors\.\w+: (.+)")
"""One of our errors in what a Python worker sent through Java."""

PYTHON_ERROR = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\S.*)")
"""The last line of a worker's traceback, which says what it was."""

Runner = Callable[[Target, Sequence[Sequence[Range]]], LandedRanges]
"""Lands the ranges of a batch's tasks; raises TableError, one line, when it cannot."""


class JavaEnded(ConfigurationError):
    """Spark's Java machine is gone: killed, or out of memory."""


def run_here(target: Target, tasks: Sequence[Sequence[Range]]) -> LandedRanges:
    """The tasks one after the other in this process."""
    return merged(land_ranges(target, ranges, open_range) for ranges in tasks)


_opened: dict[str, Queue] = {}
"""Queues which this worker process has open; Spark uses a worker for many tasks."""


def open_range(part: Range) -> Queue:
    """The queue of a range, kept open between tasks; opened anew when another stands there."""
    queue = _opened.get(part.location)
    if queue is None or queue.queue_id != part.gateway:
        access = part.access if isinstance(part.access, Access) else Access()
        queue = _opened[part.location] = open_queue(part.location, access, queue_id=part.gateway)
    return queue


def task(target: Target) -> Callable[[Iterable[Sequence[Range]]], Iterator[LandedRanges | str]]:
    """What a worker does with its partition: lists of ranges, mostly one."""

    def work(parts: Iterable[Sequence[Range]]) -> Iterator[LandedRanges | str]:
        for ranges in parts:
            try:
                landed = land_ranges(target, ranges, open_range)
            except MsgprotoError as error:
                # As a value: through Java an error becomes a page.
                yield first_line(error)
                return
            for gateway in landed.failed:
                for part in ranges:
                    if part.gateway == gateway:
                        _opened.pop(part.location, None)
            yield landed

    return work


class SparkRunner:
    """Runs batches as jobs of ``spark``; ``log`` is where Spark's own log stands."""

    def __init__(self, spark: Any, log: Path) -> None:
        self.spark = spark
        self.cores: int = spark.sparkContext.defaultParallelism
        self.log = log

    def __call__(self, target: Target, tasks: Sequence[Sequence[Range]]) -> LandedRanges:
        """Lands a batch.  Raises TableError when a task could not, JavaEnded when Java is gone."""
        context = self.spark.sparkContext
        rows = sum(part.hi - part.lo for ranges in tasks for part in ranges)
        gateways = len({part.gateway for ranges in tasks for part in ranges})
        try:
            context.setJobGroup(JOB_GROUP, f"{rows} rows of {gateways} gateways", True)
            parts = context.parallelize([list(ranges) for ranges in tasks], len(tasks))
            results = parts.mapPartitions(task(target)).collect()
        except Exception as error:
            raise self.explained(error) from error
        for result in results:
            if isinstance(result, str):
                raise TableError(result)
        return merged(results)

    def check(self) -> None:
        """Raises JavaEnded when Spark's Java machine has gone."""
        process = self.spark.sparkContext._gateway.proc
        if process.poll() is not None:
            raise JavaEnded(
                f"Spark's Java machine (pid {process.pid}) ended with status "
                f"{process.returncode}, killed or out of memory; what it did not commit lands at "
                f"the next start; its log: {self.log}"
            )

    def cancel(self) -> None:
        """Ends the running job, from any thread."""
        self.spark.sparkContext.cancelJobGroup(JOB_GROUP)

    def explained(self, error: Exception) -> MsgprotoError:
        """One line for what Spark raised."""
        if isinstance(error, MsgprotoError):
            return error
        deadline = time.monotonic() + END_SEEN_SECONDS
        while type(error).__module__.startswith("py4j") or isinstance(error, OSError):
            try:
                self.check()
            except JavaEnded as ended:
                return ended
            if time.monotonic() > deadline or type(error).__name__ == "Py4JJavaError":
                break
            time.sleep(0.02)
        return TableError(f"{job_error(str(error))}; Spark's log: {self.log}")


def job_error(text: str) -> str:
    """The one line of what Spark says about a failed job: our own words if they are in it."""
    own = OWN_ERROR.search(text)
    if own is not None:
        return own[1].strip()
    python = PYTHON_ERROR.search(text)
    return f"the batch failed: {first_line(Exception(python[1] if python else text))}"
