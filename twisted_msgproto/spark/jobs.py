"""A batch is one Spark job: Spark schedules ranges, its Python workers land them."""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..core.errors import ConfigurationError, MsgprotoError, TableError
from ..table.landing import TABLE_SCHEMA, LandedRanges, Target, land_ranges, merged
from ..table.plan import Range
from .session import first_line
from .source_options import forget_opened, open_range

JOB_GROUP = "msgproto-bridge"
"""The group of a bridge's jobs in Spark's own pages; cancelling it ends the running batch."""

END_SEEN_SECONDS = 2.0

OWN_ERROR = re.compile(r"twisted_msgproto\.core\.errors\.\w+: (.+)")

PYTHON_ERROR = re.compile(
    r"(?P<indent>(?<![^\n])[ \t]+|)Traceback \(most recent call last\):\n"
    r"(?:(?P=indent)[ \t].*\n)+(?P=indent)(?P<error>\S.*)"
)
"""Spark indents what a worker said that could not start."""

Runner = Callable[[Target, Sequence[Sequence[Range]]], LandedRanges]
"""Lands the ranges of a batch's tasks; raises TableError, one line, when it cannot."""


class JavaEnded(ConfigurationError):
    """Spark's Java machine is gone: killed, or out of memory."""


_settled: list[int] = []
"""The process that has done this; a forked one has not."""


def settle() -> None:
    """Hide what a worker has imported by now from the garbage collector, once.

    Spark collects after every task, and would search all of pyspark and pyarrow each time: that
    costs more than landing a small batch.
    """
    if os.getpid() not in _settled:
        gc.collect()
        gc.freeze()
        _settled[:] = [os.getpid()]


def warm(number: int, rows: Iterable[object]) -> Iterator[None]:
    """Do nothing, as a task that lands nothing: afterwards its worker has everything imported."""
    pq.ParquetWriter(pa.BufferOutputStream(), TABLE_SCHEMA, compression="zstd").close()
    settle()
    yield from (None for _ in rows)


@dataclass(frozen=True, slots=True)
class Landing:
    """Work of a batch for the workers: each lands the ranges of its task.

    It is a class, because a function in a function would be sent with all that it refers to.  Each
    task is pickled by itself: a worker unpickles its own and no other's.
    """

    target: Target
    tasks: tuple[bytes, ...]

    def __call__(self, number: int, rows: Iterable[object]) -> Iterator[LandedRanges | str]:
        """Run task ``number``; yield its result, or one line that says why there is none."""
        for _ in rows:
            pass  # there are none, but Spark ends a worker that did not read to their end
        ranges: list[Range] = pickle.loads(self.tasks[number])
        try:
            landed = land_ranges(self.target, ranges, open_range)
        except MsgprotoError as error:
            # As a value: through Java an error becomes a page.
            yield first_line(error)
            return
        forget_opened(part for part in ranges if part.gateway in landed.failed)
        settle()
        yield landed


class SparkRunner:
    """Batches as jobs of ``context``; ``log`` is the path of Spark's own log."""

    def __init__(self, context: Any, log: Path) -> None:
        self.context = context
        self.cores: int = context.defaultParallelism
        self.log = log
        self._empty: dict[int, Any] = {}

    def __call__(self, target: Target, tasks: Sequence[Sequence[Range]]) -> LandedRanges:
        context = self.context
        rows = sum(part.hi - part.lo for ranges in tasks for part in ranges)
        gateways = len({part.gateway for ranges in tasks for part in ranges})
        try:
            context.setJobGroup(JOB_GROUP, f"{rows} rows of {gateways} gateways", True)
            work = Landing(target, tuple(pickle.dumps(list(ranges)) for ranges in tasks))
            results = self._partitions(len(tasks)).mapPartitionsWithIndex(work).collect()
        except Exception as error:
            raise self.explained(error) from error
        for result in results:
            if isinstance(result, str):
                raise TableError(result)
        return merged(results)

    def warm(self) -> None:
        """Start the workers and have them import what they need; return at once."""

        def work() -> None:
            with contextlib.suppress(Exception):
                self.context.setJobGroup(JOB_GROUP, "starting workers", True)
                self._partitions(self.cores).mapPartitionsWithIndex(warm).collect()

        threading.Thread(target=work, name="warming", daemon=True).start()

    def _partitions(self, number: int) -> Any:
        """Return a data set of so many empty partitions, made once: work is sent with the job."""
        if number not in self._empty:
            self._empty[number] = self.context.parallelize([], number)
        return self._empty[number]

    def check(self) -> None:
        process = self.context._gateway.proc
        if process.poll() is not None:
            raise JavaEnded(
                f"Spark's Java machine (pid {process.pid}) ended with status "
                f"{process.returncode}, killed or out of memory; what it did not commit lands at "
                f"the next start; its log: {self.log}"
            )

    def cancel(self) -> None:
        self.context.cancelJobGroup(JOB_GROUP)

    def explained(self, error: Exception) -> MsgprotoError:
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
    """Return one line of what Spark says of a failed job, in our own words if they are there."""
    own = OWN_ERROR.search(text)
    if own is not None:
        return own[1].strip()
    python = PYTHON_ERROR.search(text)
    return f"the batch failed: {first_line(Exception(python['error'] if python else text))}"
