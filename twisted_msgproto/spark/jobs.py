"""A batch is one Spark job: Spark schedules ranges, its Python workers land them."""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..core.errors import ConfigurationError, MsgprotoError, TableError
from ..table.landing import TABLE_SCHEMA, LandedRanges, Target, Writer, land_together, merged
from ..table.plan import Range
from .registration import OWN_ERROR, first_line, job_error
from .session import within
from .source_options import forget_opened, open_range

JOB_GROUP = "msgproto-bridge"  # as Spark's pages call it; cancelling ends the batch

END_SEEN_SECONDS = 2.0

Tasks = Sequence[Sequence[Range]]

Runner = Callable[[Target, Tasks], LandedRanges]  # raises TableError, one line, if it cannot

Work = tuple[Target, Tasks]  # a batch of one table

MEET_SECONDS = 0.1  # for batches of other tables at its place: what they share is read once


class JavaEnded(ConfigurationError):
    """Spark's Java machine is gone: killed, or out of memory."""


_settled: list[int] = []  # the process that has done this; a forked one has not


def settle() -> None:
    """Hide what is imported from the collector, once: Spark would search it after every task."""
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
    """Lands what a task has of every table, in a worker.

    It is a class, because a function in a function would be sent with all that it refers to. Each
    task is pickled by itself: a worker unpickles its own and no other's.
    """

    tasks: tuple[bytes, ...]

    def __call__(self, number: int, rows: Iterable[object]) -> Iterator[list[LandedRanges | str]]:
        """Yield for each table of a task the result, or one line that says why there is none."""
        for _ in rows:
            pass  # there are none, but Spark ends a worker that did not read to their end
        works: list[tuple[Target, list[Range]]] = pickle.loads(self.tasks[number])
        results: list[LandedRanges | str] = []
        landed = land_together([(Writer(target), parts) for target, parts in works], open_range)
        for (_, parts), result in zip(works, landed, strict=True):
            if isinstance(result, LandedRanges):
                forget_opened(part for part in parts if part.gateway in result.failed)
                results.append(result)
            else:
                results.append(first_line(result))  # through Java an error becomes a page
        settle()
        yield results


@dataclass(slots=True)
class Job:
    """Batches that are landed together; ``spans`` are those of the first."""

    spans: Spans
    works: list[Work] = field(default_factory=list)
    results: Future[list[LandedRanges | MsgprotoError]] = field(default_factory=Future)


class Meeting:
    """Where batches of ``tables`` wait for each other, so that ``land`` reads once what they share.

    Who ended at the same place is waited for, once. What fails together is landed alone.
    """

    def __init__(
        self, land: Callable[[Sequence[Work]], list[LandedRanges | MsgprotoError]], tables: int
    ) -> None:
        self._land = land
        self._tables = tables
        self._changed = threading.Condition()
        self._gathering: list[Job] = []
        self._places: dict[str, dict[str, int]] = {}  # table, gateway: where its last batch ended

    def __call__(self, target: Target, tasks: Tasks) -> LandedRanges:
        spans = spans_of(tasks)
        with self._changed:
            begins = target.location not in self._places
            ends = {name: hi for name, (_, hi) in spans.items()}
            self._places.setdefault(target.location, {}).update(ends)
            job = next((one for one in self._gathering if shares(one.spans, spans)), None)
            leads = job is None
            if job is None:
                job = Job(spans)
                self._gathering.append(job)
            number = len(job.works)
            job.works.append((target, tasks))
            self._changed.notify_all()
            if leads:
                self._changed.wait_for(lambda: not self._misses(job, begins), MEET_SECONDS)
                self._gathering.remove(job)
        if leads:
            try:
                job.results.set_result(self._land(job.works))
            except BaseException as error:
                job.results.set_exception(error)
        try:
            result = job.results.result()[number]
            # What is denied may be another table's; who is away would be waited for once more.
            others = isinstance(result, LandedRanges) and any(
                failure.mismatch for failure in result.failed.values()
            )
        except TableError as error:
            result, others = error, True
        if others and len(job.works) > 1:
            [result] = self._land([(target, tasks)])
        if isinstance(result, MsgprotoError):
            raise result
        return result

    def _misses(self, job: Job, begins: bool) -> bool:
        if begins and len(self._places) < self._tables:
            return True
        here = {target.location for target, _ in job.works}
        return any(
            lo <= self._places[location].get(gateway, -1) < hi
            for location in self._places.keys() - here
            for gateway, (lo, hi) in job.spans.items()
        )


Spans = Mapping[str, tuple[int, int]]


def spans_of(tasks: Tasks) -> Spans:
    """Return the first offset that a batch reads of each gateway, and where it ends."""
    parts = [part for ranges in tasks for part in ranges]
    begins = {part.gateway: part.lo for part in reversed(parts)}
    return {part.gateway: (begins[part.gateway], part.hi) for part in parts}


def rows_of(spans: Spans) -> int:
    return sum(hi - lo for lo, hi in spans.values())


def shares(one: Spans, other: Spans) -> bool:
    common = {
        gateway: (max(lo, other[gateway][0]), min(hi, other[gateway][1]))
        for gateway, (lo, hi) in one.items()
        if gateway in other
    }
    rows = sum(max(0, hi - lo) for lo, hi in common.values())
    return 2 * rows >= max(rows_of(one), rows_of(other))


class SparkRunner:
    """Batches of ``tables`` as jobs of ``context``; ``log`` is the path of Spark's own log."""

    def __init__(self, context: Any, log: Path, tables: int = 1) -> None:
        self.context = context
        self.cores: int = context.defaultParallelism
        self.log = log
        self._empty: dict[int, Any] = {}
        self._cancelled = False
        self._meeting = Meeting(self._land, tables)

    def __call__(self, target: Target, tasks: Tasks) -> LandedRanges:
        return self._meeting(target, tasks)

    def _land(self, works: Sequence[Work]) -> list[LandedRanges | MsgprotoError]:
        if self._cancelled:
            raise TableError("the bridge ends")
        context = self.context
        spans = [spans_of(tasks) for _, tasks in works]
        rows, gateways = sum(map(rows_of, spans)), len(set().union(*spans))
        number = max(len(tasks) for _, tasks in works)
        parts = [
            [(target, list(tasks[n]) if n < len(tasks) else []) for target, tasks in works]
            for n in range(number)
        ]
        try:
            context.setJobGroup(JOB_GROUP, f"{rows} rows of {gateways} gateways", True)
            work = Landing(tuple(map(pickle.dumps, parts)))
            results = self._partitions(number).mapPartitionsWithIndex(work).collect()
        except Exception as error:
            raise self.explained(error) from error
        landed: list[LandedRanges | MsgprotoError] = []
        for each in zip(*results, strict=True):
            line = next((result for result in each if isinstance(result, str)), None)
            landed.append(TableError(line) if line else merged(each))
        return landed

    def warm(self) -> None:
        """Start the workers and have them import what they need; return at once."""

        def work() -> None:
            self.context.setJobGroup(JOB_GROUP, "starting workers", True)
            self._partitions(self.cores).mapPartitionsWithIndex(warm).collect()

        within(0.0, work)

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
        self._cancelled = True
        self.context.cancelJobGroup(JOB_GROUP)

    def explained(self, error: Exception) -> MsgprotoError:
        """Return what a job failed of; raise JavaEnded if Java has ended."""
        if isinstance(error, MsgprotoError):
            return error
        of_py4j = type(error).__module__.startswith("py4j")
        if isinstance(error, OSError) or (of_py4j and type(error).__name__ != "Py4JJavaError"):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.context._gateway.proc.wait(END_SEEN_SECONDS)
        self.check()
        text = str(error) or type(error).__name__
        own = OWN_ERROR.search(text)
        told = own[1].strip() if own else f"the batch failed: {job_error(text)}"
        return TableError(f"{told}; Spark's log: {self.log}")
