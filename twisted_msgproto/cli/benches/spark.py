"""What the way from the queue into a table costs.

* *queue → Parquet* beside Spark's own Parquet → Parquet stream: both in one session, in turns, on
  the same rows (300-octet JSON bodies, fourteen columns), with the same number of batches.
* *acknowledged → in the table*: messages at a steady rate, and the bridge as users start it; a row
  counts as landed when a reader which follows the sink's log can see it.
"""

from __future__ import annotations

import argparse
import queue as queues
import random
import shutil
import signal
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
from twisted_msgproto.spark.table import SINK_LOG, LandedTable, log_entries, table_file

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
"""The backlog of the start has landed when the bridge has landed so many batches."""
BATCHES_MIN = 3
"""Looked at in any case, however slow they are: rows of the steady part are in them."""
PATIENCE_SECONDS = 120.0
"""How long the bridge may take to land the next batch before it is given up."""


def bodies(first: int, count: int, chance: random.Random) -> list[bytes]:
    """JSON documents of :data:`BODY_OCTETS` which compress about as logs do."""
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
    """A batch of such documents, received now."""
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
        writer.submit(batch_of(first, min(group, rows - first), chance), answers.put)
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
    """A Spark session and the same rows as a queue and as Parquet, made when first needed."""

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
        """Land the queue."""
        stream = (
            self._spark.readStream.format("msgproto")
            .option("queue", str(self._queue))
            .option("maxRowsPerTrigger", -(-self._rows // BATCHES))
            .load()
        )
        return self._drain(stream)

    def from_parquet(self) -> Figures:
        """Land the Parquet files, with Spark's own source."""
        from twisted_msgproto.spark.source import spark_schema

        stream = (
            self._spark.readStream.schema(spark_schema())
            .format("parquet")
            .option("maxFilesPerTrigger", 1)
            .load(str(self._parquet))
        )
        return self._drain(stream)

    def _drain(self, stream: Any) -> Figures:
        """Land all of a stream in a Parquet table.

        The CPU time is none of ours: it is spent in Java and its workers.
        """
        table = self._directory / "table"
        began = time.perf_counter()
        query = (
            stream.writeStream.format("parquet")
            .option("path", str(table))
            .option("checkpointLocation", str(table / "_checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        figures = Figures(self._rows, time.perf_counter() - began, 0.0)
        landed = LandedTable(table).count()
        if landed != self._rows:
            raise RuntimeError(f"{landed} rows landed, not {self._rows}")
        shutil.rmtree(table)
        return figures

    def close(self) -> None:
        """End the session."""
        self._open.close()


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

            def called(error: BaseException | None, end: int = end) -> None:
                if error is None:
                    self.acknowledged.append((end, time.time()))

            self._writer.submit(batch_of(first, self._group, chance), called)
            first = end
        self._writer.close()


def latency(directory: Path, rate: float, seconds: float, warm: int = WARM_BATCHES) -> Reading:
    """Seconds from the acknowledgement of a row to its standing in the table: the 95 % quantile.

    Looked at for so many ``seconds`` after the first ``warm`` batches, and for three batches.
    """
    queue, table = directory / "queue", directory / "table"
    writing = Writing(queue, rate, LATENCY_GROUP)
    writing.start()
    bridge = subprocess.Popen(
        [
            *(sys.executable, "-m", "twisted_msgproto", "bridge"),
            *("--queue", str(queue), "--table", str(table)),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert bridge.stdout is not None
    said: list[str] = []
    threading.Thread(target=said.extend, args=[bridge.stdout], daemon=True).start()
    try:
        began, seen = _watch(bridge, table / SINK_LOG, seconds, warm)
    finally:
        writing.stop.set()
        writing.join()
        bridge.send_signal(signal.SIGTERM)
        try:
            bridge.wait(60)
        except subprocess.TimeoutExpired:
            bridge.kill()
            bridge.wait()
    ends = batch_ends(table, len(seen))
    delays: list[float] = []
    rows = iter(writing.acknowledged)
    end, at = next(rows)
    for number, landed in enumerate(seen):
        while end <= ends.get(number, 0):
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
) -> tuple[float, list[float]]:
    """When the steady part began, and when each batch stood in the sink's log."""
    seen: list[float] = []
    began = until = 0.0
    while not until or time.time() < until or len(seen) < warm + BATCHES_MIN:
        number = len(seen)
        if (log / str(number)).exists() or (log / f"{number}.compact").exists():
            seen.append(time.time())
            if len(seen) == warm:
                began = time.time()
                until = began + seconds
            continue
        if bridge.poll() is not None:
            raise RuntimeError(f"the bridge ended with {bridge.returncode}")
        if seen and time.time() - seen[-1] > PATIENCE_SECONDS:
            raise RuntimeError(f"the bridge landed nothing for {PATIENCE_SECONDS:.0f} s")
        time.sleep(0.005)
    return began, seen


def batch_ends(table: Path, batches: int) -> dict[int, int]:
    """The offset after the last row of each batch, from the files which the log names."""
    ends: dict[int, int] = {}
    known: set[str] = set()
    for number in range(batches):
        for path in (table / SINK_LOG / str(number), table / SINK_LOG / f"{number}.compact"):
            if path.exists():
                for entry in log_entries(path.read_text(), path):
                    if entry["path"] not in known:
                        known.add(entry["path"])
                        footer = pq.read_metadata(table_file(table, entry["path"]))
                        top = max(
                            footer.row_group(group).column(1).statistics.max
                            for group in range(footer.num_row_groups)
                        )
                        ends[number] = max(ends.get(number, 0), top + 1)
                break
    return ends


# ── The rows ────────────────────────────────────────────────────────────────────────────────────


def comparisons(arguments: argparse.Namespace) -> Iterator[Row]:
    """The rows of Spark; ``arguments`` are those of ``msgproto bench``."""

    def made() -> Any:
        return tempfile.TemporaryDirectory(prefix="msgproto-bench-", dir=arguments.queue)

    rows = max(1000, int(ROWS * arguments.scale))
    with made() as directory, closing(Streams(Path(directory), rows)) as streams:
        yield Comparison(
            f"queue → Parquet through Spark, {rows:,} rows",
            "Spark's own Parquet → Parquet stream",
            "rate",
            streams.from_queue,
            streams.from_parquet,
            mark=0.55,
            goal=0.7,
        )
    seconds = max(2.0, LATENCY_SECONDS * arguments.scale)
    warm = max(3, min(WARM_BATCHES, int(WARM_BATCHES * arguments.scale)))
    with made() as directory:
        yield Gauge(
            f"acknowledged → in the table, {RATE} messages/s, default trigger",
            "s (p95)",
            lambda: latency(Path(directory), RATE, seconds, warm),
            mark=1.0,
            goal=0.5,
        )
