"""Measure what many gateways cost a bridge: 10, 100 and 1000 real Flight endpoints on this machine.

* *a batch's plan*: from the first question to the tasks, every living gateway asked, a tenth of
  them silent; answers take 10 ms beyond what they cost.
* *a commit* that moves every gateway, and *opening a table* that knows them.
* *a batch*: a few rows of every gateway, from the writers' sync to the commit; a bridge as users
  start it, with Spark.  *A start after kill -9*: until the table has what waited.
* *the network*: octets of a question and its answer, and of a row, counted between the two.

The endpoints are on the same machine and use a share of its cores; the rows say so.
"""

from __future__ import annotations

import argparse
import resource
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..measuring import Gauge, Reading, Row
from .endpoints import PROCESSES, Endpoints, serving
from .spark import cpu_seconds, ended, started

if TYPE_CHECKING:
    from twisted_msgproto.table.log import Table

REQUIRES = ("pyspark", "deltalake")

SIZES = (10, 100, 1000)
DEAD_SHARE = 10
"""One gateway out of this many is silent."""
ANSWER_SECONDS = 0.01
ROWS = 10
PLANS = 5
"""The median of this many plans counts, after the first rounds have found the dead."""
BATCHES = 3
COMMITS = 120
"""This is more than a checkpoint's interval: a start reads what a bridge leaves behind."""
QUESTIONS = 50
NETWORK_ROWS = 20_000
PATIENCE_SECONDS = 300.0


@contextmanager
def gateways(directory: Path, count: int, dead: int = 0) -> Iterator[list[Endpoints]]:
    """Run ``count`` gateways, the last ``dead`` of them in a process of their own."""
    living = count - dead
    shares = [living // PROCESSES + (n < living % PROCESSES) for n in range(PROCESSES)]
    shares += [dead] if dead else []
    with serving(directory, shares, rows=ROWS, delay=ANSWER_SECONDS) as served:
        yield served


def locations(served: list[Endpoints]) -> list[str]:
    """Return where all of them are."""
    return [location for one in served for location in one.locations]


def median(values: list[float]) -> float:
    """Return the middle one."""
    return sorted(values)[len(values) // 2]


# ── Plans ───────────────────────────────────────────────────────────────────────────────────────


def plan_seconds(directory: Path, count: int) -> Reading:
    """Return seconds from the first question to the tasks of a batch over all living gateways."""
    from twisted_msgproto.spark.gateways import Gateways
    from twisted_msgproto.spark.opening import open_queue
    from twisted_msgproto.table.plan import plan_batch

    dead = count // DEAD_SHARE
    with gateways(directory, count, dead) as served:
        served[-1].stop()
        some = Gateways(
            locations(served), open_queue, "bench", lambda d, landed: None, lambda line: None
        )
        first = time.perf_counter()
        until(lambda: some.ask({}) and len(some.by_id) == count - dead)
        first = time.perf_counter() - first
        seconds: list[float] = []
        rounds = 0
        own, every = own_cpu_seconds(), cpu_seconds()
        while len(seconds) < PLANS:
            rounds += 1
            began = time.perf_counter()
            answered = some.ask({}, PATIENCE_SECONDS)
            plan = plan_batch(list(some.waiting(answered, {})), some.place, cores=2)
            took = time.perf_counter() - began
            assert plan is not None
            if len(plan.landed) == count - dead:
                seconds.append(took)
        own, every = (own_cpu_seconds() - own) / rounds, (cpu_seconds() - every) / rounds
    notes = {
        "gateways_planned": float(count - dead),
        "first_rounds_seconds": first,
        "cpu_seconds": own,
        "endpoints_cpu_seconds": every - own,
    }
    return Reading(median(seconds), notes)


def own_cpu_seconds() -> float:
    """Return the CPU time of this process alone."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def until(holds: Callable[[], object]) -> None:
    """Wait for it; raise RuntimeError after :data:`PATIENCE_SECONDS`."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited {PATIENCE_SECONDS:.0f} s in vain")
        time.sleep(0.005)


# ── The table's log ─────────────────────────────────────────────────────────────────────────────


def commit_seconds(directory: Path, count: int) -> Reading:
    """Return seconds of a durable commit that moves all gateways; and of opening the table."""
    from twisted_msgproto.queue.lineage import Landed
    from twisted_msgproto.table.actions import DataFile, Run
    from twisted_msgproto.table.landing import TABLE_SCHEMA
    from twisted_msgproto.table.log import Table

    path = directory / "table"
    table, run = Table.create(path, TABLE_SCHEMA), Run.new()
    names = [f"{number:032x}" for number in range(count)]
    before: dict[str, Landed | None] = dict.fromkeys(names)
    seconds: list[float] = []
    slowest = 0.0
    for number in range(1, COMMITS + 1):
        file = DataFile(f"day=2026-01-31/{number}.parquet", 1, {"day": "2026-01-31"}, 1)
        landed = {name: Landed(10 * number, 1 << 60, 1 << 61) for name in names}
        entries = {name: {"lo": 0, "hi": 10, "rows": 10, "damaged": []} for name in names}
        began = time.perf_counter()
        table.commit([file], landed, before=before, run=run, info={"gateways": entries})
        seconds.append(time.perf_counter() - began)
        before = dict(landed)
        began = time.perf_counter()
        table.maintain()
        slowest = max(slowest, time.perf_counter() - began)
    octets = (path / "_delta_log" / f"{COMMITS:020}.json").stat().st_size
    began = time.perf_counter()
    if len(Table.open(path).landed()) != count:
        raise RuntimeError("the table does not know all gateways")
    notes = {
        "octets": float(octets),
        "checkpoint_seconds": slowest,
        "open_seconds": time.perf_counter() - began,
    }
    return Reading(median(seconds), notes)


# ── A bridge ────────────────────────────────────────────────────────────────────────────────────


def batch_seconds(directory: Path, count: int) -> Iterator[tuple[str, Reading]]:
    """A batch of a bridge over ``count`` gateways, and its start after kill -9."""
    path = directory / "table"
    with gateways(directory, count) as served:
        words = [word for place in locations(served)[1:] for word in ("--queue", place)]
        words += ["--master", "local[2]"]
        first_place = locations(served)[0]

        def begun() -> subprocess.Popen[str]:
            bridge = started(first_place, path, *words)
            threading.Thread(target=drained, args=[bridge], daemon=True).start()
            return bridge

        rows, table = ROWS * count, Looking(path)
        bridge = begun()
        try:
            _await_rows(bridge, table, rows)
            readings = []
            for _ in range(BATCHES):
                cpu = cpu_seconds()
                version = versions(path)
                rows += _written(served)
                took = _await_rows(bridge, table, rows)
                files = added(path, version)
                notes = {
                    "batches": float(len(files)),
                    "files_a_batch": float(max(files)),
                    "cpu_seconds_with_endpoints": cpu_seconds() - cpu,
                }
                readings.append(Reading(took, notes))
            yield "a batch", sorted(readings, key=lambda reading: reading.value)[BATCHES // 2]
            bridge.kill()
            bridge.wait()
            rows += _written(served)
            cpu = cpu_seconds()
            bridge = begun()
            took = _await_rows(bridge, table, rows)
            notes = {"cpu_seconds_with_endpoints": cpu_seconds() - cpu}
            yield "a start after kill -9", Reading(took, notes)
        finally:
            ended(bridge)


def _written(served: list[Endpoints]) -> int:
    """Add a few rows to every gateway; return how many in all."""
    for one in served:
        one.write(ROWS)
    return ROWS * len(locations(served))


def _await_rows(bridge: subprocess.Popen[str], table: Looking, rows: int) -> float:
    """Wait until the table has this many rows; return the seconds."""
    began = time.perf_counter()

    def arrived() -> bool:
        if bridge.poll() is not None:
            raise RuntimeError(f"the bridge ended with {bridge.returncode}")
        return table.rows() == rows

    until(arrived)
    return time.perf_counter() - began


def drained(bridge: subprocess.Popen[str]) -> None:
    """Reads what a bridge says, so that it never waits for us."""
    assert bridge.stdout is not None
    with suppress(ValueError):
        for _ in bridge.stdout:
            pass


class Looking:
    """Counts the rows of a table; it is opened once, and then its new commits are read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._table: Table | None = None

    def rows(self) -> int:
        """Return rows that the table has, by what it says of its gateways."""
        from twisted_msgproto.core.errors import TableError
        from twisted_msgproto.table.log import Table

        try:
            if self._table is None:
                self._table = Table.open(self._path)
            self._table.refresh()
        except TableError:
            return 0  # the bridge is just making it
        return sum(place.offset for place in self._table.landed().values())


def versions(path: Path) -> int:
    """Return the newest version of a table."""
    return max(int(file.stem) for file in (path / "_delta_log").glob("*.json"))


def added(path: Path, after: int) -> list[int]:
    """Return how many files each commit has added since a version."""
    return [
        sum(line.startswith('{"add"') for line in file.read_text().splitlines())
        for file in sorted((path / "_delta_log").glob("*.json"))
        if int(file.stem) > after
    ]


class Bridges:
    """Measures the rows of one bridge over ``count`` gateways when the first is needed."""

    def __init__(self, directory: Path, count: int) -> None:
        self._directory = directory
        self._count = count
        self._readings: dict[str, Reading] = {}

    def read(self, name: str) -> Reading:
        """Return one of the figures of :func:`batch_seconds`."""
        if not self._readings:
            self._readings = dict(batch_seconds(self._directory, self._count))
        return self._readings[name]


# ── The network ─────────────────────────────────────────────────────────────────────────────────


class Counting:
    """A relay on this machine that counts the octets of both directions."""

    def __init__(self, port: int) -> None:
        self.octets = 0
        self._to = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.location = f"grpc://127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._server.accept()
                far = socket.create_connection(("127.0.0.1", self._to))
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._relay, args=pair, daemon=True).start()

    def _relay(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while octets := source.recv(1 << 16):
                self.octets += len(octets)
                sink.sendall(octets)
            sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Accept no more connections."""
        self._server.close()


def network_octets(directory: Path) -> Reading:
    """Octets (of TCP's payload) of one question and its answer, and of one row."""
    from twisted_msgproto.queue.flight import QueueFlightServer
    from twisted_msgproto.spark.flight import FlightQueue

    from .spark import fill

    queue = directory / "queue"
    fill(queue, NETWORK_ROWS)
    with (
        closing(QueueFlightServer(str(queue), "grpc://127.0.0.1:0")) as server,
        closing(Counting(server.port)) as counting,
        closing(FlightQueue(counting.location, token_file=server.token_file)) as far,
    ):
        place = far.place(NETWORK_ROWS // 2)
        far.describe(place)
        before = counting.octets
        for _ in range(QUESTIONS):
            far.describe(place)
        question = (counting.octets - before) / QUESTIONS
        before = counting.octets
        rows = sum(batch.num_rows for batch in far.read(0, NETWORK_ROWS))
        return Reading(question, {"octets_a_row_of_300": (counting.octets - before) / rows})


# ── The rows ────────────────────────────────────────────────────────────────────────────────────


def comparisons(arguments: argparse.Namespace) -> Iterator[Row]:
    """Yield the rows of many gateways; ``arguments`` are those of ``msgproto bench``."""

    def made() -> tempfile.TemporaryDirectory[str]:
        return tempfile.TemporaryDirectory(prefix="msgproto-bench-", dir=arguments.queue)

    largest = SIZES[-1]
    for count in SIZES:
        with made() as directory:
            yield Gauge(
                f"batch plan, {count} Flight endpoints which answer in 10 ms, 10 % silent",
                "s",
                partial(plan_seconds, Path(directory), count),
                mark=1.0 if count == largest else None,
                goal=0.3 if count == largest else None,
            )
    for count in SIZES:
        with made() as directory:
            yield Gauge(
                f"commit which moves {count} gateways",
                "s",
                partial(commit_seconds, Path(directory), count),
            )
    for count in SIZES:
        with made() as directory:
            bridges = Bridges(Path(directory), count)
            for name in ("a batch", "a start after kill -9"):
                yield Gauge(
                    f"bridge over {count} gateways: {name}", "s", partial(bridges.read, name)
                )
    with made() as directory:
        yield Gauge(
            "network: a question and its answer",
            "octets",
            partial(network_octets, Path(directory)),
        )
