"""Measure what the way from the queue into a table costs.

* *queue → table* beside Spark's own Parquet → Parquet stream: both in one warm session, in turns,
  on the same rows (300-octet JSON bodies, fourteen columns), with the same number of batches, in
  CPU seconds of all processes and in rows a second.
* *received → in the table*: messages at a steady rate, and the bridge as users start it; a row
  counts as landed when its commit stands in the table's log.
* *a plan over many gateways*, *a commit in a long log*, *SIGTERM while a gateway hangs*.
"""

from __future__ import annotations

import argparse
import json
import os
import queue as queues
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from twisted_msgproto.core.message import MessageBatch
from twisted_msgproto.queue import QueueReader, QueueWriter

from ..measuring import Comparison, Figures, Gauge, Reading, Row

REQUIRES = ("pyspark",)

BODY_OCTETS = 300
GROUP = 2048
ROWS = 1_000_000
BATCHES = 4
RATE = 2000
LATENCY_SECONDS = 20.0
LATENCY_GROUP = 20
WARM_BATCHES = 20
"""The backlog of the start has landed when the bridge has landed this many batches."""
BATCHES_MIN = 3
"""These are measured in any case, however slow they are: rows of the steady part are in them."""
GATEWAYS = 1000
ANSWER_SECONDS = 0.01
COMMITS = 20_000
PATIENCE_SECONDS = 120.0
"""The bridge may need this long to land the next batch before the measurement ends."""


def bodies(first: int, count: int, chance: random.Random) -> list[bytes]:
    """Return JSON documents of :data:`BODY_OCTETS` that compress about as logs do."""
    words = ["GET", "POST", "/index", "/api/v1/item", "200", "404", "error", "timeout", "user"]
    made = []
    for number in range(first, first + count):
        text = " ".join(chance.choices(words, k=24))
        body = b'{"n":%d,"id":"%016x","message":"%s"}' % (
            number,
            chance.getrandbits(64),
            text.encode(),
        )
        made.append(body[:BODY_OCTETS].ljust(BODY_OCTETS))
    return made


def batch_of(first: int, count: int, chance: random.Random) -> MessageBatch:
    """Return a batch of such documents, received now."""
    return MessageBatch(
        "lumberjack",
        "json",
        int(time.time() * 1e6),
        peer="tcp:127.0.0.1:40000",
        session="lumberjack-2026-1",
        count=count,
        octets=count * BODY_OCTETS,
        message_id=list(range(first, first + count)),
        body=bodies(first, count, chance),
    )


def fill(directory: Path, rows: int, group: int = GROUP) -> None:
    """A queue with ``rows`` messages, in groups of ``group``."""
    writer = QueueWriter(directory)
    chance = random.Random(1)
    answers: queues.SimpleQueue[BaseException | None] = queues.SimpleQueue()
    for first in range(0, rows, group):
        writer.submit(
            batch_of(first, min(group, rows - first), chance), lambda error, _: answers.put(error)
        )
        if (failure := answers.get()) is not None:
            raise failure
    writer.close()


# ── Throughput ──────────────────────────────────────────────────────────────────────────────────


def copy_to_parquet(queue: Path, directory: Path, files: int, codec: str = "snappy") -> None:
    """The same rows as Parquet files, for Spark's own stream to read."""
    directory.mkdir()
    reader = QueueReader(queue)
    rows = reader.end()
    for number in range(files):
        lo, hi = rows * number // files, rows * (number + 1) // files
        table = pa.Table.from_batches(list(reader.read(lo, hi)))
        # As many row groups as let both cores read one file.
        pq.write_table(
            table, directory / f"{number}.parquet", row_group_size=31_250, compression=codec
        )


class Streams:
    """Holds a Spark session and the same rows as a queue and as Parquet, made when first needed."""

    def __init__(self, directory: Path, rows: int) -> None:
        self._directory = directory
        self._rows = rows
        self._open = ExitStack()

    @cached_property
    def _queue(self) -> Path:
        path = self._directory / "queue"
        fill(path, self._rows)
        return path

    @cached_property
    def _parquet(self) -> Path:
        path = self._directory / "parquet"
        copy_to_parquet(self._queue, path, BATCHES)
        return path

    @cached_property
    def _spark(self) -> Any:
        from twisted_msgproto.spark import register
        from twisted_msgproto.spark.session import spark_session

        scratch = self._directory / "scratch"
        scratch.mkdir()
        spark = self._open.enter_context(spark_session("local[2]", scratch, {}))
        register(spark)
        return spark

    def from_queue(self) -> Figures:
        """Land the queue as the bridge does: one job a batch, one commit a batch."""
        from twisted_msgproto.spark.jobs import SparkRunner
        from twisted_msgproto.table import starting
        from twisted_msgproto.table.actions import Run
        from twisted_msgproto.table.landing import Target
        from twisted_msgproto.table.plan import Waiting, plan_batch

        path, queue = self._directory / "table", QueueReader(self._queue)
        runner = SparkRunner(self._spark.sparkContext, self._directory / "scratch" / "spark.log")
        run = Run.new()
        cpu, began = cpu_seconds(), time.perf_counter()
        table = starting.open_table(str(path), None, None, {}, run)
        target = Target(table.location)
        landed = 0
        while landed < self._rows:
            before = table.landed().get(queue.queue_id)
            waiting = Waiting(queue.queue_id, str(self._queue), before, queue.describe(before))
            plan = plan_batch(
                [waiting],
                lambda ends: {name: queue.place(offset) for name, offset in ends.items()},
                cores=2,
                rows_max=-(-self._rows // BATCHES),
            )
            assert plan is not None
            result = runner(target, plan.tasks)
            table.commit(result.files, plan.landed, before=plan.before, run=run)
            landed += plan.rows
        figures = Figures(self._rows, time.perf_counter() - began, cpu_seconds() - cpu)
        if sum(file.rows or 0 for file in table.files()) != self._rows:
            raise RuntimeError(f"the table does not hold {self._rows} rows")
        shutil.rmtree(path)
        return figures

    def from_parquet(self) -> Figures:
        """Land the Parquet files, with Spark's own stream."""
        from twisted_msgproto.spark.source import spark_schema

        path = self._directory / "copied"
        cpu, began = cpu_seconds(), time.perf_counter()
        query = (
            self._spark.readStream.schema(spark_schema())
            .format("parquet")
            .option("maxFilesPerTrigger", 1)
            .load(str(self._parquet))
            .writeStream.format("parquet")
            .option("path", str(path))
            .option("checkpointLocation", str(path / "_checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        figures = Figures(self._rows, time.perf_counter() - began, cpu_seconds() - cpu)
        landed = sum(pq.read_metadata(file).num_rows for file in path.glob("*.parquet"))
        if landed != self._rows:
            raise RuntimeError(f"{landed} rows landed, not {self._rows}")
        shutil.rmtree(path)
        return figures

    def close(self) -> None:
        """End the session."""
        self._open.close()


def cpu_seconds() -> float:
    """Return the CPU time of this process and of all below it: Java and its Python workers."""
    from twisted_msgproto.spark.session import descendants

    ticks = 0
    for pid in {os.getpid(), *descendants(os.getpid())}:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += sum(map(int, fields[11:15]))  # its own time, and that of children it waited for
    return ticks / os.sysconf("SC_CLK_TCK")


# ── Latency ─────────────────────────────────────────────────────────────────────────────────────


class Writing(threading.Thread):
    """Writes at a steady rate; remembers when each offset was acknowledged."""

    def __init__(self, directory: Path, rate: float, group: int) -> None:
        super().__init__(daemon=True)
        self.acknowledged: list[tuple[int, float]] = []  # (end, time), in order
        self.stop = threading.Event()
        self._writer = QueueWriter(directory)
        self._rate = rate
        self._group = group

    def run(self) -> None:
        """Until told to stop."""
        chance = random.Random(2)
        began, first = time.time(), 0
        while not self.stop.is_set():
            due = began + first / self._rate - time.time()
            if due > 0:
                self.stop.wait(due)
            end = first + self._group

            def called(error: BaseException | None, _: int | None, end: int = end) -> None:
                if error is None:
                    self.acknowledged.append((end, time.time()))

            self._writer.submit(batch_of(first, self._group, chance), called)
            first = end
        self._writer.close()


def started(queue: Path | str, table: Path, *options: str) -> subprocess.Popen[str]:
    """A bridge, as users start it."""
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "twisted_msgproto", "bridge", "--trigger", "0"),
            *("--queue", str(queue), "--table", str(table), *options),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )


def ended(bridge: subprocess.Popen[str]) -> None:
    """Ends a bridge, in order if it can."""
    bridge.send_signal(signal.SIGTERM)
    try:
        bridge.wait(60)
    except subprocess.TimeoutExpired:
        bridge.kill()
        bridge.wait()


def latency(directory: Path, rate: float, seconds: float, warm: int = WARM_BATCHES) -> Reading:
    """Return the seconds from the acknowledgement of a row to its commit: the 95 % quantile.

    It is measured for ``seconds`` after the first ``warm`` batches, and for at least three batches.
    """
    queue, table = directory / "queue", directory / "table"
    writing = Writing(queue, rate, LATENCY_GROUP)
    writing.start()
    bridge = started(queue, table)
    assert bridge.stdout is not None
    said: list[str] = []
    threading.Thread(target=said.extend, args=[bridge.stdout], daemon=True).start()
    try:
        began, seen = _watch(bridge, table / "_delta_log", seconds, warm)
    finally:
        writing.stop.set()
        writing.join()
        ended(bridge)
    delays: list[float] = []
    rows = iter(writing.acknowledged)
    end, at = next(rows)
    for landed, offset in seen:
        while end <= offset:
            if at >= began:
                delays.append(landed - at)
            end, at = next(rows, (1 << 62, 0.0))
    cuts = statistics.quantiles(delays, n=100)
    return Reading(
        cuts[94],
        {
            "p50_seconds": cuts[49],
            "p95_seconds": cuts[94],
            "p99_seconds": cuts[98],
            "batches": len(seen),
            "groups": len(delays),
        },
    )


def _watch(
    bridge: subprocess.Popen[str], log: Path, seconds: float, warm: int
) -> tuple[float, list[tuple[float, int]]]:
    """Return when the steady part began; when each batch stood in the log, and the offset it ends
    at.
    """
    seen: list[tuple[float, int]] = []
    began = until = 0.0
    while not until or time.time() < until or len(seen) < warm + BATCHES_MIN:
        path = log / f"{len(seen) + 1:020}.json"
        if path.exists():
            at = time.time()
            seen.append((at, landed_in(path)))
            if len(seen) == warm:
                began = at
                until = began + seconds
            continue
        if bridge.poll() is not None:
            raise RuntimeError(f"the bridge ended with {bridge.returncode}")
        if seen and time.time() - seen[-1][0] > PATIENCE_SECONDS:
            raise RuntimeError(f"the bridge landed nothing for {PATIENCE_SECONDS:.0f} s")
        time.sleep(0.005)
    return began, seen


def landed_in(commit: Path) -> int:
    """Return how far a commit says that its one gateway has landed."""
    for line in commit.read_text().splitlines():
        transaction = json.loads(line).get("txn")
        if transaction and transaction["appId"].startswith("msgproto:"):
            return int(transaction["version"])
    return 0


# ── Many gateways, long logs, ends ──────────────────────────────────────────────────────────────


class Answering:
    """Is a gateway without a network: it answers after a while, or never."""

    def __init__(self, name: str, answers: bool) -> None:
        self.queue_id = name
        self._never = None if answers else threading.Event()

    def describe(self, landed: Any = None) -> Any:
        """Return what a plan needs, after :data:`ANSWER_SECONDS`."""
        from twisted_msgproto.queue.lineage import Description, Landed

        if self._never is not None:
            self._never.wait()
        time.sleep(ANSWER_SECONDS)
        return Description(self.queue_id, 0, 0, 20, Landed(20), 0, 0, 0, (), {}, {})

    def register(self, consumer: str) -> int:
        """Nothing is kept."""
        return 0


def plan_seconds(gateways: int) -> Reading:
    """Return seconds from the first question to the tasks of a batch, in the second round.

    In the first one every gateway is asked twice, and the dead are found.
    """
    from twisted_msgproto.spark.gateways import Gateways
    from twisted_msgproto.table.plan import plan_batch

    queues = {f"{n:05}": Answering(f"{n:05}", n % 10 != 0) for n in range(gateways)}
    some = Gateways(
        list(queues),
        lambda location: queues[location],  # type: ignore[arg-type, return-value]
        "bench",
        lambda description, landed: None,
        lambda line: None,
    )
    first = time.perf_counter()
    while len(some.by_id) < gateways - gateways // 10:
        some.ask({})
    began = time.perf_counter()
    answered = some.ask({})
    plan = plan_batch(list(some.waiting(answered, {})), some.place, cores=2)
    seconds = time.perf_counter() - began
    assert plan is not None
    notes = {"gateways": len(plan.landed), "first_round_seconds": began - first}
    return Reading(seconds, notes)


def commit_growth(directory: Path, commits: int) -> Reading:
    """Return the CPU of a commit at the end of a long log, as a multiple of one at its
    beginning.
    """
    from twisted_msgproto.queue.lineage import Landed
    from twisted_msgproto.table.actions import DataFile, Run
    from twisted_msgproto.table.landing import TABLE_SCHEMA
    from twisted_msgproto.table.log import Table

    table, run = Table.create(directory / "table", TABLE_SCHEMA), Run.new()
    day = directory / "table" / "day=2026-01-31"
    day.mkdir()
    costs: list[float] = []
    before: Landed | None = None
    for number in range(commits):
        file = DataFile(f"day=2026-01-31/{number}.parquet", 1, {"day": "2026-01-31"}, 1)
        (day / f"{number}.parquet").write_bytes(b"x")  # nobody reads it, but it must be there
        landed = Landed(number + 1, 1, 1)
        cpu = time.process_time()
        table.commit([file], {"q": landed}, before={"q": before}, run=run)
        costs.append(time.process_time() - cpu)
        table.maintain()
        before = landed
    some = max(1, min(500, commits // 4))
    first, last = statistics.median(costs[:some]), statistics.median(costs[-some:])
    return Reading(last / first, {"first_ms": first * 1e3, "last_ms": last * 1e3})


def end_seconds(directory: Path) -> Reading:
    """Return seconds from SIGTERM to the end of a bridge, one of whose gateways hangs."""
    queue = directory / "queue"
    fill(queue, 1000)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        bridge = started(queue, directory / "table", "--queue", f"grpc://127.0.0.1:{port}")
        assert bridge.stdout is not None
        for line in bridge.stdout:
            if line.startswith("batch "):
                break
        began = time.perf_counter()
        ended(bridge)
        return Reading(time.perf_counter() - began, {"status": float(bridge.returncode)})


# ── The rows ────────────────────────────────────────────────────────────────────────────────────


def comparisons(arguments: argparse.Namespace) -> Iterator[Row]:
    """Yield the rows of Spark; ``arguments`` are those of ``msgproto bench``."""

    def made() -> Any:
        return tempfile.TemporaryDirectory(prefix="msgproto-bench-", dir=arguments.queue)

    rows = max(1000, int(ROWS * arguments.scale))
    with made() as directory, closing(Streams(Path(directory), rows)) as streams:
        for figure, mark, goal in (("cpu", 0.6, 0.4), ("rate", 1.5, 2.5)):
            yield Comparison(
                f"queue → table, {rows:,} rows, {figure}",
                "Spark's own Parquet → Parquet stream",
                figure,  # type: ignore[arg-type]
                streams.from_queue,
                streams.from_parquet,
                mark=mark,
                goal=goal,
            )
    seconds = max(2.0, LATENCY_SECONDS * arguments.scale)
    warm = max(3, min(WARM_BATCHES, int(WARM_BATCHES * arguments.scale)))
    with made() as directory:
        yield Gauge(
            f"received → in the table, {RATE} messages/s, --trigger 0",
            "s (p95)",
            lambda: latency(Path(directory), RATE, seconds, warm),
            mark=0.4,
            goal=0.25,
        )
    yield Gauge(
        f"batch plan, {GATEWAYS} gateways which answer in 10 ms, 10 % dead (no network)",
        "s",
        lambda: plan_seconds(GATEWAYS),
        mark=1.0,
        goal=0.3,
    )
    commits = max(200, int(COMMITS * arguments.scale))
    with made() as directory:
        yield Gauge(
            f"CPU of a commit after {commits:,} commits",
            "× the first",
            lambda: commit_growth(Path(directory), commits),
            mark=1.5,
        )
    with made() as directory:
        yield Gauge(
            "SIGTERM with a gateway that hangs",
            "s",
            lambda: end_seconds(Path(directory)),
            mark=5.0,
        )
