"""Measure the way from the queue into a table.

::

    python -m bench.spark throughput     # queue → Parquet beside Spark's own Parquet → Parquet
    python -m bench.spark latency        # acknowledged → in the table, at 2000 messages/s

Both columns of ``throughput`` run in one session, in turns, on the same rows (300-octet JSON
bodies, fourteen columns), with the same number of batches; the figure is the median of the ratios
of neighbours.  ``latency`` starts the bridge as users do; a row counts as landed when a reader
which follows the sink's log can see it.
"""

from __future__ import annotations

import argparse
import json
import queue as queues
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from twisted_msgproto import MessageBatch
from twisted_msgproto.queue import QueueReader, QueueWriter
from twisted_msgproto.spark.table import SINK_LOG, LandedTable, log_entries, table_file

BODY_OCTETS = 300
GROUP = 2048


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


def fill(directory: Path, rows: int, group: int = GROUP) -> None:
    """A queue with ``rows`` messages, in groups of ``group``."""
    writer = QueueWriter(directory)
    chance = random.Random(1)
    answers: queues.SimpleQueue[BaseException | None] = queues.SimpleQueue()
    for first in range(0, rows, group):
        count = min(group, rows - first)
        writer.submit(
            MessageBatch(
                "lumberjack",
                "json",
                int(time.time() * 1e6),
                peer="tcp:127.0.0.1:40000",
                session="lumberjack-2026-1",
                count=count,
                octets=count * BODY_OCTETS,
                message_id=list(range(first, first + count)),
                body=bodies(first, count, chance),
            ),
            answers.put,
        )
        if (failure := answers.get()) is not None:
            raise failure
    writer.close()


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


def drain(stream: Any, table: Path) -> float:
    """Seconds until the stream has landed everything in a Parquet table."""
    began = time.perf_counter()
    query = (
        stream.writeStream.format("parquet")
        .option("path", str(table))
        .option("checkpointLocation", str(table / "_checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return time.perf_counter() - began


def throughput(directory: Path, rows: int, batches: int, pairs: int) -> dict[str, Any]:
    """Rows per second of both streams, and the ratio of neighbours."""
    from twisted_msgproto.spark import register
    from twisted_msgproto.spark.session import spark_session
    from twisted_msgproto.spark.source import spark_schema

    queue, parquet, scratch = directory / "queue", directory / "parquet", directory / "scratch"
    scratch.mkdir()
    say(f"writing {rows} rows")
    fill(queue, rows)
    copy_to_parquet(queue, parquet, batches)
    seconds: dict[str, list[float]] = {"queue": [], "parquet": []}
    with spark_session("local[2]", scratch, {}, []) as spark:
        register(spark)
        streams: dict[str, Callable[[], Any]] = {
            "queue": lambda: (
                spark.readStream.format("msgproto")
                .option("queue", str(queue))
                .option("maxRowsPerTrigger", -(-rows // batches))
                .load()
            ),
            "parquet": lambda: (
                spark.readStream.schema(spark_schema())
                .format("parquet")
                .option("maxFilesPerTrigger", 1)
                .load(str(parquet))
            ),
        }
        for turn in range(pairs + 1):
            for name, stream in streams.items():
                table = directory / f"table-{name}-{turn}"
                taken = drain(stream(), table)
                landed = LandedTable(table).count()
                if landed != rows:
                    raise SystemExit(f"{name}: {landed} rows landed, not {rows}")
                if turn:  # the first turn warms up the Java machine
                    seconds[name].append(taken)
                    say(f"{name}: {taken:.2f} s, {rows / taken:.0f} rows/s")
    ratios = [own / ours for ours, own in zip(seconds["queue"], seconds["parquet"], strict=True)]
    return {
        "rows": rows,
        "batches": batches,
        "queue_rows_per_second": round(rows / statistics.median(seconds["queue"])),
        "parquet_rows_per_second": round(rows / statistics.median(seconds["parquet"])),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "ratio": round(statistics.median(ratios), 3),
    }


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

            self._writer.submit(
                MessageBatch(
                    "lumberjack",
                    "json",
                    int(time.time() * 1e6),
                    peer="tcp:127.0.0.1:40000",
                    count=self._group,
                    octets=self._group * BODY_OCTETS,
                    message_id=list(range(first, end)),
                    body=bodies(first, self._group, chance),
                ),
                called,
            )
            first = end
        self._writer.close()


def latency(directory: Path, rate: float, seconds: float, options: list[str]) -> dict[str, Any]:
    """Milliseconds from the acknowledgement of a row to its standing in the table."""
    queue, table = directory / "queue", directory / "table"
    writing = Writing(queue, rate, 20)
    writing.start()
    bridge = subprocess.Popen(
        [
            *(sys.executable, "-m", "twisted_msgproto", "bridge"),
            *("--queue", str(queue), "--table", str(table)),
            *options,
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert bridge.stdout is not None
    seen: dict[int, float] = {}
    until: float | None = None
    batch = 0
    try:
        threading.Thread(target=say_all, args=[bridge.stdout], daemon=True).start()
        log = table / SINK_LOG
        while until is None or time.time() < until:
            path = next(
                (p for p in (log / str(batch), log / f"{batch}.compact") if p.exists()), None
            )
            if path is None:
                time.sleep(0.005)
                continue
            seen[batch] = time.time()
            batch += 1
            if until is None and batch == 20:  # the backlog of the start has landed
                began = time.time()
                until = began + seconds
    finally:
        writing.stop.set()
        writing.join()
        bridge.send_signal(signal.SIGTERM)
        status = bridge.wait(60)
    ends = batch_ends(table, batch)
    delays: list[float] = []
    rows = iter(writing.acknowledged)
    end, at = next(rows)
    for number in range(batch):
        while end <= ends.get(number, 0):
            if at >= began:
                delays.append((seen[number] - at) * 1000)
            end, at = next(rows, (1 << 62, 0.0))
    cuts = statistics.quantiles(delays, n=100)
    return {
        "rate": rate,
        "batches": batch,
        "groups": len(delays),
        "p50_ms": round(cuts[49]),
        "p95_ms": round(cuts[94]),
        "p99_ms": round(cuts[98]),
        "exit": status,
    }


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


def say_all(lines: Iterable[str]) -> None:
    for line in lines:
        say(line.rstrip())


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("throughput", "latency"))
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--rate", type=float, default=2000.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--conf", action="append", default=[], help="for the bridge")
    arguments = parser.parse_args()
    # Ended from outside, the bridge and the directory still have to go.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="msgproto-bench-") as directory:
        if arguments.what == "throughput":
            result = throughput(Path(directory), arguments.rows, arguments.batches, arguments.pairs)
        else:
            options = [word for conf in arguments.conf for word in ("--conf", conf)]
            result = latency(Path(directory), arguments.rate, arguments.seconds, options)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
