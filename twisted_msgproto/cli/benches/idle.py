"""Measure what an idle gateway costs, and how long it needs to start.

* *10,000 idle connections*: TCP connections that never send an octet.  Memory above that of the
  same process without them, CPU time while nobody speaks, and how long one good client waits for
  its acknowledgements (on disk) among them.
* *after one event each*: the memory when each of them has had one event acknowledged.
* *listening*: from the start of the process to its open port, with a GiB in its queue that is not
  in the cache of the system.

The gateway is ``python -m twisted lumberjack --queue DIR``, measured from outside.
"""

from __future__ import annotations

import argparse
import os
import resource
import shlex
import socket
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from functools import cached_property
from pathlib import Path

from twisted_msgproto.cli.benches.lumberjack import drive, json_window
from twisted_msgproto.core.errors import ConfigurationError
from twisted_msgproto.queue import QueueWriter

from ..measuring import Figures, Gauge, Reading, Row
from ..peers import PORT, Peer
from .queue import MAX_BYTES, batches, submit_all

CONNECTIONS = 10_000
SPARE_FILES = 200
"""Either process opens this many files beside the connections."""
SETTLE_SECONDS = 1.0
IDLE_SECONDS = 10.0
GOOD_WINDOWS = 2_000
GOOD_WINDOW = 10
QUEUE_OCTETS = 1 << 30
MIB = 1 << 20
PATIENCE_SECONDS = 60.0


def gateway(directory: Path, connections: int = CONNECTIONS) -> Peer:
    """Return a gateway over the queue in ``directory`` that accepts this many connections and a
    few more.
    """
    words = [sys.executable, "-m", "twisted", "lumberjack", "--queue", str(directory / "queue")]
    words += ["-e", f"tcp:{PORT}:interface=127.0.0.1", "--limit", f"connections={connections + 10}"]
    return Peer(shlex.join(words), directory, "the gateway")


class Crowd:
    """Holds a gateway and its idle connections, made when first needed."""

    def __init__(self, directory: Path, count: int) -> None:
        self._directory = directory
        self._count = count
        self._sockets: list[socket.socket] = []
        self.resident_before = 0

    @cached_property
    def gateway(self) -> Peer:
        """The gateway, with all connections accepted and nothing left to do for them."""
        need_files(self._count + SPARE_FILES)
        made = self._gateway = gateway(self._directory, self._count)
        # What the first messages bring into memory is no cost of a connection.
        drive(made.port, json_window(GOOD_WINDOW), 10)
        self.resident_before = made.usage()["rss"]
        connect(made.port, self._count, self._sockets)
        time.sleep(SETTLE_SECONDS)
        return made

    def memory(self) -> Reading:
        """Return the MiB above the same process without the connections."""
        resident = self.gateway.usage()["rss"]
        added = (resident - self.resident_before) / MIB
        return Reading(
            added,
            {
                "connections": self._count,
                "MiB before": self.resident_before / MIB,
                "KiB a connection": added * 1024 / self._count,
            },
        )

    def memory_after_events(self) -> Reading:
        """The same when each connection has had one event acknowledged."""
        _ = self.gateway
        one_event_each(self._sockets)
        return self.memory()

    def cpu(self, seconds: float) -> Reading:
        """Return the percentage of a processor used while nobody speaks."""
        before, began = self.gateway.usage()["cpu"], time.perf_counter()
        time.sleep(seconds)
        taken = self.gateway.usage()["cpu"] - before
        return Reading(taken / (time.perf_counter() - began) * 100, {"connections": self._count})

    def good_client(self, windows: int) -> Reading:
        """Return the milliseconds within which 99 of 100 acknowledgements of another client
        arrive.
        """
        latencies = drive(self.gateway.port, json_window(GOOD_WINDOW), windows)
        figures = Figures(windows, 1.0, 0.0, latencies=latencies)
        p50, p99 = figures.percentile(0.5), figures.percentile(0.99)
        assert p50 is not None and p99 is not None
        return Reading(p99 * 1e3, {"p50 ms": p50 * 1e3, "connections": self._count})

    def close(self) -> None:
        """End the gateway and its connections."""
        for connection in self._sockets:
            connection.close()
        if (made := self.__dict__.get("gateway") or self.__dict__.get("_gateway")) is not None:
            made.close()


def need_files(count: int) -> None:
    """Let this process and those it starts open this many files; raise ConfigurationError if it
    may not.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        raise ConfigurationError(f"idle: {count} open files are needed, ulimit -n allows {hard}")
    if soft != resource.RLIM_INFINITY and soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def connect(port: int, count: int, made: list[socket.socket]) -> None:
    """Add this many connections to ``made``; returns when the gateway has accepted all of them.

    Raises RuntimeError when it does not.
    """
    for _ in range(count):
        made.append(socket.create_connection(("127.0.0.1", port), 10.0))
    deadline = time.monotonic() + PATIENCE_SECONDS
    while accepted(port) < count:
        if time.monotonic() > deadline:
            raise RuntimeError("the gateway did not accept all connections")
        time.sleep(0.01)


def one_event_each(connections: Iterable[socket.socket]) -> None:
    """Have one event of each connection acknowledged; raises RuntimeError for another answer."""
    window = json_window(1)
    for connection in connections:
        connection.sendall(window)
        heard = connection.recv(6)
        if heard != b"2A\0\0\0\1":
            raise RuntimeError(f"the gateway answered {heard!r}")


def accepted(port: int) -> int:
    """Return how many connections to this port a process has accepted and not closed: see
    proc(5).
    """
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    found = 0
    for fields in map(str.split, lines):
        state, inode = fields[3], fields[9]
        # Established; what still waits to be accepted belongs to no process, and has no inode.
        if fields[1].endswith(f":{port:04X}") and state == "01" and inode != "0":
            found += 1
    return found


class Start:
    """Starts a gateway whose queue holds a number of octets, again and again."""

    def __init__(self, directory: Path, octets: int) -> None:
        self._directory = directory
        self._octets = octets

    @cached_property
    def _queue(self) -> Path:
        path = self._directory / "queue"
        writer = QueueWriter(path, max_bytes=MAX_BYTES)
        try:
            work = batches(8192, 4, 2048)
            while writer.statistics()["stored_octets"] < self._octets:
                submit_all(writer, work)
        finally:
            writer.close()
        return path

    def listening(self) -> Reading:
        """Seconds from the start of the process to its open port."""
        files = [path for path in self._queue.rglob("*") if path.is_file()]
        octets = 0
        for path in files:
            octets += path.stat().st_size
            forget(path)
        with closing(gateway(self._directory)) as started:
            return Reading(started.start_seconds, {"MiB in the queue": octets / MIB})


def forget(path: Path) -> None:
    """Drop a file from the system's cache, as it is after the machine has started."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def comparisons(arguments: argparse.Namespace) -> Iterator[Row]:
    """Yield the rows of idleness; ``arguments`` are those of ``msgproto bench``."""
    count = max(10, int(CONNECTIONS * arguments.scale))
    seconds = max(0.5, IDLE_SECONDS * min(1.0, arguments.scale))
    windows = max(10, int(GOOD_WINDOWS * arguments.scale))
    idle = f"{count:,} idle connections"

    def made() -> tempfile.TemporaryDirectory[str]:
        return tempfile.TemporaryDirectory(prefix="msgproto-bench-", dir=arguments.queue)

    with made() as directory, closing(Crowd(Path(directory), count)) as crowd:
        yield Gauge(f"{idle}, memory above start", "MiB", crowd.memory, mark=60 * 1e6 / MIB)
        yield Gauge(f"{idle}, CPU", "%", lambda: crowd.cpu(seconds), mark=2.0)
        yield Gauge(
            f"{idle}, a good client's acks",
            "ms (p99)",
            lambda: crowd.good_client(windows),
            mark=5.0,
            repeats=True,
        )
        yield Gauge(
            f"{idle} after one event each, memory above start", "MiB", crowd.memory_after_events
        )
    octets = int(QUEUE_OCTETS * arguments.scale)
    with made() as directory:
        start = Start(Path(directory), octets)
        yield Gauge(
            f"listening, {octets / (1 << 30):.3g} GiB in the queue",
            "s",
            start.listening,
            mark=2.0,
            repeats=True,
        )
