"""What the queue costs above the disk: ratios against raw write + fdatasync of the same octets.

    PYTHONPATH=. python bench/durable_queue.py [--directory DIR] [--json]

Each round measures the baseline and the queue one after the other on the same disk; what counts
is the median of the rounds' ratios (a wall time alone says nothing on a shared machine).

* ``append``: groups encoded before the clock starts, through ``SegmentLog.append``.
* ``columns``: message batches through ``QueueWriter.submit``, encoding included, a few groups in
  flight as connections have them.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from twisted_msgproto.core.message import MessageBatch
from twisted_msgproto.queue import QueueReader, QueueWriter, SegmentLog
from twisted_msgproto.queue.columns import encode
from twisted_msgproto.queue.disk import OS_DISK, sync_call

BODY_OCTETS = 300
IN_FLIGHT = 4
SLICES = 10


def batches(group: int, groups: int, batch: int) -> list[list[MessageBatch]]:
    """Groups of batches as the Lumberjack reader makes them: 300 octets of JSON-like text."""
    source = random.Random(1)
    bodies = [source.randbytes(BODY_OCTETS // 2).hex().encode() for _ in range(group)]
    made = []
    sequence = 0
    for number in range(groups):
        parts = []
        for start in range(0, group, batch):
            count = min(batch, group - start)
            parts.append(
                MessageBatch(
                    "lumberjack",
                    "json",
                    1_700_000_000_000_000 + number,
                    peer="tcp:127.0.0.1:50000",
                    session="lumberjack-20260101T000000-1",
                    count=count,
                    octets=count * BODY_OCTETS,
                    message_id=list(range(sequence + 1, sequence + 1 + count)),
                    body=bodies[start : start + count],
                )
            )
            sequence += count
        made.append(parts)
    return made


class Raw:
    """The baseline: write a group's octets and sync them."""

    def __init__(self, directory: Path) -> None:
        self._sync = sync_call()[1]
        self._descriptor = os.open(directory / "raw", os.O_WRONLY | os.O_CREAT, 0o600)

    def run(self, frames: Sequence[bytes]) -> float:
        """Seconds to write and sync ``frames``, one sync each."""
        began = time.perf_counter()
        for frame in frames:
            os.write(self._descriptor, frame)
            self._sync(self._descriptor)
        return time.perf_counter() - began

    def close(self) -> None:
        os.close(self._descriptor)


class Append:
    """Groups encoded before, through the log."""

    def __init__(self, directory: Path) -> None:
        self._log = SegmentLog(directory / "q")

    def run(self, work: list[list[MessageBatch]]) -> float:
        """Seconds to append ``work``."""
        frames = [encode(parts) for parts in work]
        began = time.perf_counter()
        for frame in frames:
            self._log.append([frame])
        return time.perf_counter() - began

    def close(self) -> None:
        self._log.close()


class Columns:
    """Message batches through the writer, a few groups in flight."""

    def __init__(self, directory: Path, group: int) -> None:
        self._writer = QueueWriter(directory / "q", group_messages=group)
        self._flight = threading.Semaphore(IN_FLIGHT)
        self._done = threading.Semaphore(0)
        self._errors: list[BaseException] = []

    def run(self, work: list[list[MessageBatch]]) -> float:
        """Seconds to submit ``work`` and have it durable."""
        began = time.perf_counter()
        for parts in work:
            self._flight.acquire()
            for part in parts[:-1]:
                self._writer.submit(part, self._part_done)
            self._writer.submit(parts[-1], self._group_done)
        for _ in work:
            self._done.acquire()
        if self._errors:
            raise self._errors[0]
        return time.perf_counter() - began

    def _part_done(self, error: BaseException | None) -> None:
        if error is not None:
            self._errors.append(error)

    def _group_done(self, error: BaseException | None) -> None:
        self._part_done(error)
        self._flight.release()
        self._done.release()

    def close(self) -> None:
        self._writer.close()


def read(directory: Path) -> tuple[int, float]:
    """Messages and seconds to read a whole queue in batches of about 10,000."""
    reader = QueueReader(directory / "q")
    began = time.perf_counter()
    rows = sum(batch.num_rows for batch in reader.read(0, reader.end()))
    return rows, time.perf_counter() - began


def measure(where: Path, group: int, groups: int, batch: int, rounds: int) -> dict[str, float]:
    """Medians of the ratios over ``rounds``; within a round, slices of both sides take turns."""
    work = batches(group, groups, batch)
    frames = [b"".join(map(bytes, encode(parts).pieces)) + bytes(32) for parts in work]
    step = max(1, groups // SLICES)
    ratios: dict[str, list[float]] = {"append": [], "columns": [], "raw_s": [], "read_us": []}
    for _ in range(rounds):
        for name in ("append", "columns"):
            directory = Path(tempfile.mkdtemp(dir=where))
            base = Raw(directory)
            queue = Append(directory) if name == "append" else Columns(directory, group)
            base_s = queue_s = 0.0
            try:
                for start in range(0, groups, step):
                    base_s += base.run(frames[start : start + step])
                    queue_s += queue.run(work[start : start + step])
                queue.close()
                rows, read_s = read(directory)
                assert rows == group * groups, (rows, group * groups)
            finally:
                base.close()
                queue.close()
                shutil.rmtree(directory)
            ratios["read_us"].append(read_s * 1e6 / rows)
            ratios["raw_s"].append(base_s)
            ratios[name].append(base_s / queue_s)
    return {name: statistics.median(values) for name, values in ratios.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=400_000)
    parser.add_argument("--group", type=int, help="only groups of so many messages")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    results = []
    for group, batch in ((1, 1), (100, 100), (1000, 1000), (1000, 50), (16_384, 2048)):
        if arguments.group not in (None, group):
            continue
        groups = max(1, min(1000, arguments.messages // group))
        result = measure(arguments.directory, group, groups, batch, arguments.rounds)
        result |= {"group": group, "batch": batch, "groups": groups}
        results.append(result)
        if not arguments.json:
            print(
                f"groups of {group} ({groups} of them, batches of {batch}): append "
                f"{result['append']:.2f} x raw, columns {result['columns']:.2f} x raw; "
                f"raw {group * groups / result['raw_s']:,.0f} messages/s; "
                f"read {result['read_us']:.2f} us a message",
                flush=True,
            )
    if arguments.json:
        print(json.dumps({"sync": OS_DISK.sync_name, "results": results}))


if __name__ == "__main__":
    main()
