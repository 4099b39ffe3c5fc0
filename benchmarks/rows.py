"""The rows: each yields readings without end, from servers that it starts and ends."""

from __future__ import annotations

import json
import multiprocessing
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

from .senders import (
    SENDERS,
    MicroMsg2Sender,
    Mtl,
    drive,
    lumberjack_window,
    micromsg2_message,
    one_by_one,
)
from .servers import cpu_seconds, resident_bytes, server, tree_bytes, tree_seconds

Readings = Generator[float, None, None]

IDLE = 1_000
"""This many idle connections."""
FILES = 4_096
SUBSCRIBERS = 100
GROUP = 1_000
"""Messages of a group that is written and synced at once."""
BULK_WINDOW, BULK_IN_FLIGHT = 16_384, 8
PACED, PACED_RATE = 100, 2_000
PATIENCE_SECONDS = 300.0


class Row(NamedTuple):
    """What is measured: its unit, what it is, and its readings in a directory at a scale."""

    unit: str
    text: str
    readings: Callable[[Path, float], Readings]


# ── The protocols ───────────────────────────────────────────────────────────────────────────────


class Load(NamedTuple):
    """Messages of a reading, in windows of ``size``, with ``in_flight`` of them a connection."""

    messages: int
    size: int
    connections: int
    in_flight: int


LARGE = {
    "lumberjack": Load(200_000, 2048, 4, 2),
    "micromsg2": Load(160_000, 100, 16, 1),
    "sabc": Load(60_000, 64, 2, 4),
    "umq": Load(30_000, 10, 1, 10),
    "mtl": Load(60_000, 1_000, 1, 1),
}
SMALL = {
    "lumberjack": Load(20_000, 10, 1, 1),
    "micromsg2": Load(10_000, 5, 1, 1),
    "sabc": Load(3_000, 1, 1, 1),
    "umq": Load(3_000, 1, 1, 1),
    "mtl": Load(3_000, 1, 1, 1),
}


def into_queue(protocol: str, load: Load, directory: Path, scale: float) -> Readings:
    """Yield the server's CPU time from bytes to acknowledgements, on disk."""
    messages = max(load.size * load.connections, int(load.messages * scale))
    with server(protocol, directory) as (pid, port), ExitStack() as stack:
        work: Callable[[], None]
        if protocol == "mtl":
            writer = Mtl(port)
            stack.callback(writer.close)
            work = partial(writer.drive, messages, load.size)
        else:
            senders = [SENDERS[protocol](port, load.size) for _ in range(load.connections)]
            work = partial(drive, senders, messages, load.in_flight)
        while True:
            before = cpu_seconds(pid)
            work()
            yield (cpu_seconds(pid) - before) / messages * 1e6


def fan_out(directory: Path, scale: float) -> Readings:
    """Yield the CPU time of a delivery to one of many subscribers of a topic."""
    messages = max(100, int(1_000 * scale))
    with server("micromsg2", directory, "--limit", "subscriber-messages=1000000") as (pid, port):
        subscribers = [MicroMsg2Sender(port, 1, "pub-sub") for _ in range(SUBSCRIBERS)]
        for one in subscribers:
            one.subscribe("topic%2Fprices")
            one.socket.setblocking(False)
        publisher = MicroMsg2Sender(port, 1, "")
        frames = micromsg2_message(1, b"topic/prices") * messages
        sending: Any = None
        while True:
            before = cpu_seconds(pid)
            sending = threading.Thread(target=publisher.socket.sendall, args=[frames])
            sending.start()
            missing = dict.fromkeys(subscribers, len(frames))
            while missing:
                for one in list(missing):
                    with suppress(BlockingIOError):
                        missing[one] -= len(one.receive())
                    if missing[one] <= 0:
                        del missing[one]
                time.sleep(0.001)
            sending.join()
            yield (cpu_seconds(pid) - before) / messages / SUBSCRIBERS * 1e6


def broker(size: int, messages: int, directory: Path, scale: float) -> Readings:
    """Yield the CPU time from publishing to the consumer's acknowledgement, ``size`` at a time."""
    windows = max(10, int(messages * scale) // size)
    with server("micromsg2", directory, "--broker-queue", "orders") as (pid, port):
        publisher = MicroMsg2Sender(port, size)
        consumer = MicroMsg2Sender(port, size, "batch-ack:max-count={};pub-sub")
        consumer.subscribe("orders")
        number = 0
        while True:
            before = cpu_seconds(pid)
            for _ in range(windows):
                window = next(publisher.windows)
                publisher.socket.sendall(window)
                number = (number + size - 1) % 65_535 + 1
                missing = size
                while missing > 0:
                    missing -= publisher.heard(publisher.receive())
                octets = len(window)
                while octets > 0:
                    octets -= len(consumer.receive())
                consumer.socket.sendall(b"\2\1\2" + number.to_bytes(2, "big"))
            yield (cpu_seconds(pid) - before) / windows / size * 1e6


def idle(protocol: str, directory: Path, scale: float) -> Readings:
    """Yield the memory of a connection that does nothing after its handshake."""
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    )
    count = max(10, int(IDLE * scale))
    while True:
        with server(protocol, directory) as (pid, port):
            made = [SENDERS[protocol](port, 1) for _ in range(10)]
            before = resident_bytes(pid)
            made += [SENDERS[protocol](port, 1) for _ in range(count)]
            for one in made[-10:]:
                one_by_one(one, 1)  # so it has read all that came before
            value = (resident_bytes(pid) - before) / count / 1024
            for one in made:
                one.socket.close()
        yield value


def _bulk(port: int) -> None:
    """Send windows of empty documents without end."""
    sender = SENDERS["lumberjack"](port, BULK_WINDOW)
    window = lumberjack_window(BULK_WINDOW, b"{}", compressed=True)
    sender.windows = iter(lambda: window, b"")
    drive([sender], 1 << 40, BULK_IN_FLIGHT)


def neighbours(directory: Path, scale: float) -> Readings:
    """Yield how long a client waits for 99 of 100 acks beside one that sends in bulk."""
    count = max(20, int(400 * scale))
    with server("lumberjack", directory) as (_, port):
        bulk = multiprocessing.get_context("fork").Process(target=_bulk, args=[port], daemon=True)
        bulk.start()
        try:
            client = SENDERS["lumberjack"](port, 1)
            one_by_one(client, 20)
            while True:
                yield quantiles(one_by_one(client, count), n=100)[98] * 1e3
        finally:
            bulk.terminate()
            bulk.join()


# ── The queue and the table ─────────────────────────────────────────────────────────────────────


BYTES = b"what nobody reads"
LINE = b'{"message": "' + b"a line of a log " * 18 + b'"}'


def document(number: int, kind: str) -> bytes:
    """Return the body of an event with what a typed table takes, about 330 bytes.

    ``quoted``: its numbers are in quotes, its time has nine digits; ``bad`` and ``few``: one of a
    hundred, of a thousand, has a number that is none.
    """
    status: int | str = 200 + number % 300
    if number % {"bad": 100, "few": 1_000}.get(kind, number + 1) == 0:
        status = "n/a"
    quoted = kind == "quoted"
    event = {
        "@timestamp": f"2026-01-31T12:00:{number % 60:02d}.{'123456789' if quoted else '123'}Z",
        "host": {"name": f"web-{number % 20}"},
        "http": {"status": str(status) if quoted else status, "bytes": number},
        "duration": str(number / 7) if quoted else number / 7,
        "message": "a line of a log " * 10,
        "user": f"user-{number % 1000}",
    }
    return json.dumps(event).encode()


COLUMNS = """
[table.columns]
time = { path = "@timestamp", type = "timestamp" }
host = { path = "host.name", type = "string" }
status = { path = "http.status", type = "int" }
duration = { type = "double" }
user = { type = "string" }
"""


def batches(
    group: int, messages: int, body_of: Callable[[int], bytes] = lambda number: LINE
) -> Iterator[Any]:
    """Yield batches of a group each, as a server of Lumberjack makes them."""
    from twisted_msgproto.core.message import MessageBatch

    for first in range(0, messages, group):
        bodies = [body_of(number) for number in range(first, first + group)]
        yield MessageBatch(
            "lumberjack",
            "json",
            int(time.time() * 1e6),
            peer="tcp:127.0.0.1:50000",
            session="lumberjack-20260101T000000-1",
            count=group,
            nbytes=sum(map(len, bodies)),
            message_id=list(range(first, first + group)),
            body=bodies,
        )


def fill(writer: Any, made: list[Any]) -> None:
    """Submit batches, and wait until all are durable."""
    done = threading.Semaphore(0)
    errors: list[BaseException] = []

    def called(error: BaseException | None, first: int | None) -> None:
        if error is not None:
            errors.append(error)
        done.release()

    for batch in made:
        writer.submit(batch, called)
    for _ in made:
        done.acquire()
    if errors:
        raise errors[0]


@contextmanager
def _queue(directory: Path) -> Iterator[tuple[Path, Any]]:
    from twisted_msgproto.queue import QueueWriter

    writer = QueueWriter(directory / "queue", max_bytes=1 << 40)
    try:
        yield directory / "queue", writer
    finally:
        writer.close()


def queue_write(group: int, messages: int, directory: Path, scale: float) -> Readings:
    """Yield the CPU time of a message from its batch to the disk."""
    made = list(batches(group, max(group, int(messages * scale) // group * group)))
    with _queue(directory) as (_, writer):
        while True:
            before = time.process_time()
            if group == 1:  # each waits for the one before: it is written alone
                for batch in made:
                    fill(writer, [batch])
            else:
                fill(writer, made)
            yield (time.process_time() - before) / len(made) / group * 1e6


def queue_read(group: int, messages: int, directory: Path, scale: float) -> Readings:
    """Yield the CPU time of a message from the disk to Arrow's columns."""
    from twisted_msgproto.queue import QueueReader

    with _queue(directory) as (path, writer):
        for batch in batches(group, max(group, int(messages * scale) // group * group)):
            fill(writer, [batch])
        reader = QueueReader(path)
        while True:
            before, end = time.process_time(), reader.end()
            rows = sum(batch.num_rows for batch in reader.read(0, end))
            if rows != end:
                raise RuntimeError(f"{rows} rows of a queue that ends at {end}")
            yield (time.process_time() - before) / rows * 1e6


def same(rows: Any) -> Any:
    """Return all rows as they are: the cheapest ``--transform``."""
    return rows


TABLES = {
    "": [""],
    "raw": [""],
    "both": [COLUMNS, ""],
    "identity": [f"transform = '{__name__}:{same.__name__}'\n"],
}
"""What is measured → the sections of its bridge's tables; else one with columns."""


def _landed(log: Path) -> Iterator[tuple[int, float]]:
    """Yield how far each commit of a table has landed its one gateway, and when; newest first."""
    for commit in sorted(log.glob("*[0-9].json"), reverse=True):
        for line in commit.read_text().splitlines():
            transaction = json.loads(line).get("txn")
            if transaction and transaction["appId"].startswith("msgproto:"):
                yield int(transaction["version"]), commit.stat().st_mtime


class Landing:
    """A queue and a bridge that lands it in the tables of ``kind``; see :func:`document`."""

    def __init__(self, kind: str, directory: Path, stack: ExitStack) -> None:
        sections = TABLES.get(kind, [COLUMNS])
        self.logs = [directory / f"table{n}" / "_delta_log" for n in range(len(sections))]
        tables = (
            f"[[table]]\nlocation = '{log.parent.name}'\n{section}"
            for log, section in zip(self.logs, sections, strict=True)
        )
        file = directory / "bridge.toml"
        file.write_text('queue = "queue"\ntrigger = "0"\n' + "".join(tables))
        _, self.writer = stack.enter_context(_queue(directory))
        self.body_of = partial(document, kind=kind) if kind else lambda number: LINE
        fill(self.writer, list(batches(GROUP, GROUP, self.body_of)))
        command = [sys.executable, "-P", "-m", "twisted_msgproto", "bridge", "--config", str(file)]
        self.log = stack.enter_context((directory / "bridge.log").open("w"))
        self.process = subprocess.Popen(
            command, cwd=directory, stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL
        )
        stack.callback(self.close)
        self.wait(GROUP)

    def wait(self, end: int) -> None:
        """Return when all before ``end`` is in every table."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while min(next(_landed(log), (0, 0.0))[0] for log in self.logs) < end:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the bridge stands still, see {self.log.name}")
            time.sleep(0.005)

    def close(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        self.process.wait(60)


def bridge(unit: str, kind: str, directory: Path, scale: float) -> Readings:
    """Yield what a row takes from the queue into the table: rows a second, or CPU time.

    ``kind`` is "" for lines, ``raw`` for documents as they are, ``identity`` for these through a
    transform, ``both`` for a raw and a typed table of one bridge, and else what ``document`` has
    for a table with columns.
    """
    with ExitStack() as stack:
        landing = Landing(kind, directory, stack)
        pid, end = landing.process.pid, GROUP
        rows = max(GROUP, int(500_000 * scale) // GROUP * GROUP)
        made = list(batches(GROUP, rows, landing.body_of))
        while True:
            landing.process.send_signal(signal.SIGSTOP)  # so it finds all of them at once
            fill(landing.writer, made)
            end += rows
            cpu, began = tree_seconds(pid), time.perf_counter()
            landing.process.send_signal(signal.SIGCONT)
            landing.wait(end)
            took = time.perf_counter() - began
            yield rows / took if unit == "rows/s" else (tree_seconds(pid) - cpu) / rows * 1e6


def paced(unit: str, kind: str, directory: Path, scale: float) -> Readings:
    """Yield figures of a bridge that gets 2,000 messages a second: what a message costs, how long
    95 of 100 take from the queue into the first table, or how much memory all processes use.
    """
    with ExitStack() as stack:
        landing = Landing(kind, directory, stack)
        pid, end = landing.process.pid, GROUP
        while True:
            cpu, given = tree_seconds(pid), list[tuple[int, float]]()
            for _ in range(max(10, int(200 * scale))):
                began = time.perf_counter()
                fill(landing.writer, list(batches(PACED, PACED, landing.body_of)))
                end += PACED
                given.append((end, time.time()))
                time.sleep(max(0.0, began + PACED / PACED_RATE - time.perf_counter()))
            landing.wait(end)
            if unit == "µs CPU":
                yield (tree_seconds(pid) - cpu) / len(given) / PACED * 1e6
            elif unit == "KiB":
                yield tree_bytes(pid) / 1024
            else:
                places = list(_landed(landing.logs[0]))
                late = [min(at for place, at in places if place >= n) - then for n, then in given]
                yield quantiles(late, n=20)[18] * 1e3


def commits(directory: Path, scale: float) -> Readings:
    """Yield how long a commit takes in an object store, with what a bridge does around it, when the
    table has had some hundreds: the median of as many again as an eighth.
    """
    from tests.tools.s3 import running_store
    from twisted_msgproto.queue.lineage import Landed
    from twisted_msgproto.table.actions import DataFile, Run
    from twisted_msgproto.table.delta_table import Table
    from twisted_msgproto.table.landing import TABLE_SCHEMA

    with running_store() as store:
        table, run = Table.create(store.new_location(), TABLE_SCHEMA, (), store.options), Run.new()

        def commit() -> float:
            path = f"part-{table.version}.parquet"
            with table.storage.filesystem().open_output_stream(path) as part:
                part.write(BYTES)
            began = time.perf_counter()
            table.refresh()
            before = table.landed().get("a")
            landed = Landed(table.version + 1)
            file = DataFile(path, len(BYTES), {}, 1)
            table.commit([file], {"a": landed}, before={"a": before}, run=run)
            table.sync()
            table.maintain()
            return (time.perf_counter() - began) * 1e3

        count = max(8, int(400 * scale))
        while True:
            times = [commit() for _ in range(count)]
            yield median(times[-count // 8 :])


def _typed() -> Iterator[tuple[str, Row]]:
    for kind, text in (
        ("raw", "documents of 330 bytes into the table"),
        ("typed", "the same, into five columns"),
        ("quoted", "numbers in quotes, and times of nine digits"),
        ("bad", "one document of a hundred has no number where one should be"),
        ("few", "one of a thousand"),
        ("identity", "as they are, through a transform"),
        ("both", "into a raw and a typed table, by one bridge"),
    ):
        yield f"json-{kind}-rate", Row("rows/s", text, partial(bridge, "rows/s", kind))
        yield f"json-{kind}-cpu", Row("µs CPU", text, partial(bridge, "µs CPU", kind))
    for kind, text in (("raw", "a raw table"), ("typed", "five columns"), ("both", "both")):
        for name, unit in (("cpu", "µs CPU"), ("late", "ms"), ("memory", "KiB")):
            told = f"documents into {text}, 2,000 a second"
            yield f"paced-{kind}-{name}", Row(unit, told, partial(paced, unit, kind))


def _protocols() -> Iterator[tuple[str, Row]]:
    for words, loads in (("large", LARGE), ("small", SMALL)):
        for name, load in loads.items():
            text = (
                f"{name} into the queue, windows of {load.size:,}, {load.in_flight} in flight,"
                f" {load.connections} connection{'s' * (load.connections > 1)}"
            )
            yield f"{name}-{words}", Row("µs CPU", text, partial(into_queue, name, load))
    for name in SENDERS:
        yield f"idle-{name}", Row("KiB", "an idle connection's memory", partial(idle, name))


ROWS: dict[str, Row] = {
    **dict(_protocols()),
    "fan-out": Row("µs CPU", f"micromsg2, a delivery to one of {SUBSCRIBERS} subscribers", fan_out),
    "broker-10": Row(
        "µs CPU", "micromsg2, publish to settle, 10 at a time", partial(broker, 10, 10_000)
    ),
    "broker-1": Row(
        "µs CPU", "micromsg2, publish to settle, one at a time", partial(broker, 1, 2_000)
    ),
    "queue-write": Row(
        "µs CPU", f"a batch of {GROUP:,} to the disk", partial(queue_write, GROUP, 400_000)
    ),
    "queue-write-lone": Row(
        "µs CPU", "a message alone to the disk", partial(queue_write, 1, 2_000)
    ),
    "queue-read": Row("µs CPU", f"batches of {GROUP:,}", partial(queue_read, GROUP, 400_000)),
    "queue-read-lone": Row("µs CPU", "messages written alone", partial(queue_read, 1, 20_000)),
    "bridge-rate": Row("rows/s", "from the queue into the table", partial(bridge, "rows/s", "")),
    "bridge-cpu": Row("µs CPU", "the same, all of its processes", partial(bridge, "µs CPU", "")),
    **dict(_typed()),
    "commit-s3": Row("ms", "a commit in an object store that has had 400", commits),
    "neighbours": Row("ms", "lumberjack: p99 of a client's acks beside bulk", neighbours),
}
"""Name → row.  A figure is of one message, connection or acknowledgement."""
