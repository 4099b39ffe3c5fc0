"""Real processes and disks: a second writer, kill -9 under load, trimming."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.processes import PROJECT, Launched, environment
from tests.tools.queues import ids, rows
from twisted_msgproto.core.errors import QueueLocked
from twisted_msgproto.queue import QueueReader, QueueWriter
from twisted_msgproto.queue.verify import verify

WRITER = """
import sys, threading
from tests.tools.queues import batch
from twisted_msgproto.queue import QueueWriter

writer = QueueWriter(sys.argv[1], segment_bytes=int(sys.argv[2]))
print("end", writer.end, flush=True)
room = threading.Semaphore(64)
done = []

def called(first, count):
    def callback(error, first_offset):
        # One line for each acknowledged batch, in one write: what a peer would have been told.
        print("acknowledged" if error is None else repr(error), first, count, flush=True)
        room.release()
    return callback

number = int(sys.argv[3])
while True:
    room.acquire()
    count = 1 + number % 7
    writer.submit(batch(number, count), called(number, count))
    number += count
"""


def started(*arguments: object) -> Launched:
    words = [sys.executable, "-c", WRITER, *map(str, arguments)]
    return Launched(words, cwd=PROJECT, env=environment(), stdin=subprocess.DEVNULL)


def acknowledged(lines: list[str]) -> list[int]:
    """Every number whose acknowledgement was printed in a whole line."""
    found = []
    for line in lines:
        words = line.split()
        if len(words) == 3 and words[0] == "acknowledged":
            found += range(int(words[1]), int(words[1]) + int(words[2]))
    return found


def test_a_second_process_is_refused_and_told_who_writes(tmp_path: Path) -> None:
    """A lock file keeps a second writer out; it ends with its process, however that ends."""
    process = started(tmp_path / "q", 1 << 20, 0)
    try:
        process.line("^acknowledged")
        with pytest.raises(QueueLocked, match=rf"process {process.pid}\)"):
            QueueWriter(tmp_path / "q")
        QueueReader(tmp_path / "q").register("spark")
    finally:
        process.signal(signal.SIGKILL)
        process.wait()
    QueueWriter(tmp_path / "q").close()


@pytest.mark.slow
def test_a_writer_killed_under_load_loses_nothing_it_acknowledged(tmp_path: Path) -> None:
    """FAULTS, chaos: kill -9 under load, 0 acknowledged lost, each offset once, order kept."""
    told: list[int] = []
    number = 0
    seen: dict[int, int] = {}
    for life in range(8):
        process = started(tmp_path / "q", 20_000, number)
        try:
            process.line("^end")
            reader = QueueReader(tmp_path / "q")
            # Reads beside the living writer; what was read once must stay as it was read.
            while len(acknowledged(list(process.lines))) < 100 * (life + 1):
                for row in rows(tmp_path / "q", len(seen), reader.end()):
                    seen[row["offset"]] = int(row["message_id"])
        finally:
            process.signal(signal.SIGKILL)
            process.wait()
        told += acknowledged(process.lines)
        number = (max(told) // 1000 + 2) * 1000
    writer = QueueWriter(tmp_path / "q")
    assert writer.losses == 0
    assert writer.damaged == []
    writer.close()
    found = rows(tmp_path / "q")
    assert [row["offset"] for row in found] == list(range(len(found)))
    numbers = ids(found)
    assert numbers == sorted(set(numbers))
    assert set(told) <= set(numbers)
    assert all(numbers[offset] == value for offset, value in seen.items())
    report = verify(tmp_path / "q")
    assert (report.damaged, report.lines) == ([], [])


def test_a_reader_beside_a_trimming_writer_reads_everything_once(tmp_path: Path) -> None:
    """FAULTS: a segment's reader while it is trimmed."""
    process = started(tmp_path / "q", 5_000, 0)
    numbers: list[int] = []
    try:
        process.line("^end")
        reader = QueueReader(tmp_path / "q")
        reader.register("spark")
        while reader.begin() < 300 or len(numbers) < 1000:
            lo, hi = len(numbers), reader.end()
            numbers += ids(rows(tmp_path / "q", lo, hi, rows=20))
            reader.commit("spark", len(numbers))
    finally:
        process.signal(signal.SIGKILL)
        process.wait()
    assert numbers == list(range(len(numbers)))
    assert reader.damaged() == []
