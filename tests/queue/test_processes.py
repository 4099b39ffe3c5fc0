"""Real processes and disks: a second writer, kill -9 under load, a file-size limit, trimming."""

from __future__ import annotations

import shutil
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

writer = QueueWriter(sys.argv[1], segment_bytes=int(sys.argv[2]), retry_delay=0.01)
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

LIMITED = """
import resource, sys
from tests.tools.queues import Results, batch
from twisted_msgproto.queue import QueueWriter

writer = QueueWriter(sys.argv[1], retry_delay=0.01, report=lambda line: print(line, flush=True))
limit = 20_000
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
results = Results()
for number in range(200):
    results.submit(writer, batch(number, nbytes=300))
sys.stdin.readline()
print("acknowledged while full", len(results.given), "end", writer.end, flush=True)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
errors = results.wait(200)
print("errors", sum(error is not None for error in errors), flush=True)
writer.close()
"""


def started(source: str, *arguments: object, stdin: bool = False) -> Launched:
    return Launched(
        [sys.executable, "-c", source, *map(str, arguments)],
        cwd=PROJECT,
        env=environment(),
        stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
    )


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
    process = started(WRITER, tmp_path / "q", 1 << 20, 0)
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
        process = started(WRITER, tmp_path / "q", 20_000, number)
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
    assert writer.recovery.quarantined == []
    writer.close()
    found = rows(tmp_path / "q")
    assert [row["offset"] for row in found] == list(range(len(found)))
    numbers = ids(found)
    assert numbers == sorted(set(numbers))
    assert set(told) <= set(numbers)
    assert all(numbers[offset] == value for offset, value in seen.items())
    report = verify(tmp_path / "q")
    assert (report.damaged, report.lines) == ([], [])


def test_a_file_size_limit_stops_the_queue_and_it_resumes_when_that_is_gone(
    tmp_path: Path,
) -> None:
    """Disk full for real, with short writes: RLIMIT_FSIZE."""
    process = started(LIMITED, tmp_path / "q", stdin=True)
    try:
        process.line("nothing can be acknowledged")
        assert process.process.stdin is not None
        process.process.stdin.write("\n")
        process.process.stdin.flush()
        match = process.line(r"acknowledged while full (\d+) end (\d+)")
        assert int(match[1]) == int(match[2]) < 200
        process.line("messages are acknowledged again")
        assert process.line(r"errors (\d+)")[1] == "0"
        assert process.wait() == 0
        process.process.stdin.close()
    finally:
        process.end()
    assert ids(rows(tmp_path / "q")) == list(range(200))


def test_a_reader_beside_a_trimming_writer_reads_everything_once(tmp_path: Path) -> None:
    """FAULTS: a segment's reader while it is trimmed."""
    process = started(WRITER, tmp_path / "q", 5_000, 0)
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


ORDERED = """
import sys
from tests.tools.queues import batch, put
from twisted_msgproto.queue import QueueWriter

writer = QueueWriter(sys.argv[1])
print("begin", flush=True)
for number in range(20):
    assert put(writer, batch(number)) == [None]
    print("acknowledged", number, 1, flush=True)
writer.close()
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_the_system_is_asked_to_write_then_to_sync_and_only_then_anyone_is_told(
    tmp_path: Path,
) -> None:
    """FAULTS: the order write → fdatasync → ack, seen with strace (kill -9 does not test it)."""
    trace = tmp_path / "trace"
    calls = "pwritev,pwritev2,writev,pwrite64,write,fdatasync,fsync"
    command = [sys.executable, "-c", ORDERED, str(tmp_path / "q")]
    ended = subprocess.run(
        ["strace", "-f", "-y", "-o", trace, "-e", f"trace={calls}", *command],
        cwd=PROJECT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    if "ptrace" in ended.stderr.lower():
        pytest.skip("strace may not trace here")
    assert ended.returncode == 0, ended.stderr
    steps = []
    for line in trace.read_text().splitlines():
        if "unfinished" in line and "sync" in line:
            continue  # only its return counts
        if ".segment>" in line or ("resumed" in line and "sync" in line):
            steps.append("sync" if "sync" in line else "write")
        elif "/q/end>" in line and "write" in line:
            steps.append("publish")
        elif '"acknowledged' in line:
            steps.append("tell")
        elif '"begin' in line:
            steps.clear()
    assert steps[: 4 * 20] == ["write", "sync", "publish", "tell"] * 20
