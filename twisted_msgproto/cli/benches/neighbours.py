"""Measure how long a good client waits for its acks beside one that sends in bulk (NB-01).

The gateway serves all five protocols over one real queue, on a modelled disk: what is written goes
to a real file, and each sync takes 1, 10 or 200 ms.  The bulk sender writes Lumberjack windows of
16,384 empty documents, compressed, as fast as they are taken.  The good client has one message in
flight.  Each of the three is a process of its own.

* *p99 beside bulk*: the good client's 99th percentile, as a share of what is allowed, which follows
  from what the same client needs alone: 6 × its median there, at least 50 ms; on the disk of 200 ms
  3 × its median.  Both are measured in turns.
* *bulk beside a good client*: the bulk sender's rate, beside its rate alone.
"""

from __future__ import annotations

import argparse
import json
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from twisted_msgproto.registry import PROTOCOLS

from ..measuring import Comparison, Figures, Gauge, Reading, Row, Subject, answer_usage
from .idle_peers import OPENERS, Driver, answer, listen

MODULE = "twisted_msgproto.cli.benches.neighbours"
BULK_WINDOW = 16_384
IN_FLIGHT = 8
"""The bulk sender has this many windows in flight at most: more than one group of the queue."""
ACK_OCTETS = 6
TURNS = 4
"""A reading has this many turns of the client alone and of the client beside bulk."""
WARM_SECONDS = 1.0
"""Bulk runs for this long before anything is measured, and for at least five syncs: the queue
learns what groups cost."""
WARM_SYNCS = 5
BULK_SECONDS = 2.0
"""The rate of bulk is measured for this long, and for at least twenty syncs."""
BULK_SYNCS = 20
CONSUMED_SECONDS = 0.5
"""A consumer follows the queue this often, so that what was written can be trimmed."""
QUIET_LOOK_SECONDS = 0.05
QUIET_LOOKS_MAX = 1_200
"""The queue is written to its end within this many looks."""
BULK_GOAL = 0.9


class ModelDisk(NamedTuple):
    """Describes a modelled disk, and what a good client may wait for on it."""

    sync_milliseconds: int
    messages: int
    """The client sends this many messages in a reading, alone and beside bulk each."""
    times: float
    """Its p99 beside bulk may be this many times the median alone …"""
    least_seconds: float
    """… and this long in any case."""

    def allowed(self, alone: float) -> float:
        """Return the goal for the p99 in seconds, from the median alone."""
        return max(self.times * alone, self.least_seconds)

    def seconds(self, least: float, syncs: int) -> float:
        """Return a time that has at least this many syncs."""
        return max(least, syncs * self.sync_milliseconds / 1e3)


DISKS: Final = (
    ModelDisk(1, 800, 6.0, 0.050),
    ModelDisk(10, 400, 6.0, 0.050),
    ModelDisk(200, 40, 3.0, 0.0),
)


class Gateway:
    """Holds the processes of one modelled disk: the gateway and the good client."""

    def __init__(self, disk: ModelDisk, directory: str, scale: float) -> None:
        self._disk = disk
        self._scale = min(1.0, scale)
        self._server = Subject(MODULE, "serve", str(disk.sync_milliseconds), directory)
        try:
            self._client = Driver(MODULE)
        except BaseException:
            self._server.close()
            raise
        self._ports: dict[str, int] = self._server.usage()["ports"]

    def close(self) -> None:
        """End them."""
        self._client.close()
        self._server.close()

    @contextmanager
    def _bulk(self) -> Iterator[Subject]:
        """Have the bulk sender at work."""
        with closing(Subject(MODULE, "bulk", str(self._ports["lumberjack"]))) as bulk:
            time.sleep(self._disk.seconds(WARM_SECONDS * self._scale, WARM_SYNCS))
            yield bulk
        for _ in range(QUIET_LOOKS_MAX):
            if not self._server.usage()["waiting"]:
                return
            time.sleep(QUIET_LOOK_SECONDS)
        raise RuntimeError("the queue does not come to its end")

    def _send(self, protocol: str, messages: int) -> list[float]:
        return self._client.ask("send", protocol, self._ports[protocol], messages)

    def good_client(self, protocol: str) -> Reading:
        """Return the client's p99 beside bulk, as a share of what is allowed."""
        messages = max(1, int(self._disk.messages * self._scale / TURNS))
        alone: list[float] = []
        beside: list[float] = []
        self._send(protocol, 1)  # the session begins
        for _ in range(TURNS):
            alone += self._send(protocol, messages)
            with self._bulk():
                beside += self._send(protocol, messages)
        p50_alone, p99_alone = _percentiles(alone)
        p50, p99 = _percentiles(beside)
        return Reading(
            p99 / self._disk.allowed(p50_alone),
            {
                "p50 ms": p50 * 1e3,
                "p99 ms": p99 * 1e3,
                "alone p50 ms": p50_alone * 1e3,
                "alone p99 ms": p99_alone * 1e3,
                "messages": len(beside),
            },
        )

    def bulk_alone(self) -> Figures:
        """Measure the bulk sender's rate."""
        with self._bulk() as bulk:
            return self._rate(bulk)

    def bulk_beside(self, protocol: str) -> Figures:
        """Measure the bulk sender's rate while a good client sends."""
        with self._bulk() as bulk, self._sending(protocol):
            return self._rate(bulk)

    def _rate(self, bulk: Subject) -> Figures:
        before = bulk.usage()
        time.sleep(self._disk.seconds(BULK_SECONDS * self._scale, BULK_SYNCS))
        after = bulk.usage()
        return Figures(
            after["events"] - before["events"],
            after["seconds"] - before["seconds"],
            0.0,
        )

    @contextmanager
    def _sending(self, protocol: str) -> Iterator[None]:
        """Have the good client at work."""
        ended = threading.Event()

        def send() -> None:
            while not ended.is_set():
                self._send(protocol, 5)

        thread = threading.Thread(target=send)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def _percentiles(latencies: list[float]) -> tuple[float, float]:
    p99 = Figures(1, 1.0, 0.0, latencies=latencies).percentile(0.99)
    assert p99 is not None
    return median(latencies), p99


def comparisons(arguments: argparse.Namespace) -> Iterator[Row]:
    """Yield the rows of neighbours; ``arguments`` are those of ``msgproto bench``."""
    for disk in DISKS:
        with _Lazy(disk, arguments) as gateway:
            yield from _rows(disk, gateway)


def _rows(disk: ModelDisk, gateway: Callable[[], Gateway]) -> Iterator[Row]:
    name = f"neighbours, {disk.sync_milliseconds} ms a sync"

    def good_client(protocol: str) -> Callable[[], Reading]:
        return lambda: gateway().good_client(protocol)

    for protocol in PROTOCOLS:
        yield Gauge(
            f"{name}, {protocol} beside bulk, p99",
            "of what is allowed",
            good_client(protocol),
            mark=1.0,
        )
    yield Comparison(
        f"{name}, bulk beside a good client",
        "bulk alone",
        "rate",
        lambda: gateway().bulk_beside("sabc"),
        lambda: gateway().bulk_alone(),
        mark=BULK_GOAL,
    )


class _Lazy:
    """Makes a gateway when it is first called, and ends it with the block."""

    def __init__(self, disk: ModelDisk, arguments: argparse.Namespace) -> None:
        self._disk = disk
        self._arguments = arguments
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._gateway: Gateway | None = None

    def __call__(self) -> Gateway:
        if self._gateway is None:
            where = self._arguments.queue
            self._directory = tempfile.TemporaryDirectory(prefix="msgproto-bench-", dir=where)
            self._gateway = Gateway(self._disk, self._directory.name, self._arguments.scale)
        return self._gateway

    def __enter__(self) -> _Lazy:
        return self

    def __exit__(self, *error: object) -> None:
        if self._gateway is not None:
            self._gateway.close()
        if self._directory is not None:
            self._directory.cleanup()


# ── The gateway's process ───────────────────────────────────────────────────────────────────────


def serve(sync_milliseconds: str, directory: str) -> None:
    """Serve all five protocols over a queue whose disk needs this long for each sync."""
    from twisted.internet import reactor as installed
    from twisted.internet.task import LoopingCall

    from twisted_msgproto.net.backpressure import OctetBudget
    from twisted_msgproto.net.memory import keep_freed_memory
    from twisted_msgproto.net.sink import DurableSink
    from twisted_msgproto.queue import QueueReader
    from twisted_msgproto.queue.disk import OSDisk

    class SlowDisk(OSDisk):
        def __init__(self, seconds: float) -> None:
            super().__init__()
            # Nothing of a bench has to survive a loss of power: a sync only takes its time.
            self._sync = lambda descriptor: time.sleep(seconds)

    reactor: Any = installed
    keep_freed_memory()
    disk = SlowDisk(int(sync_milliseconds) / 1e3)
    sink = DurableSink(str(Path(directory, "queue")), reactor, max_bytes=1 << 40, disk=disk)
    reactor.addSystemEventTrigger("before", "shutdown", sink.close)
    ports = listen(reactor, sink, budget=OctetBudget())
    consumer = QueueReader(sink.writer.directory)
    consumer.register("bench")
    following = LoopingCall(lambda: consumer.commit("bench", sink.writer.end))
    following.start(CONSUMED_SECONDS)
    answer_usage(
        reactor,
        ports["lumberjack"],
        lambda: {"ports": ports, "waiting": sink.writer.statistics()["waiting_messages"]},
    )
    reactor.run()


# ── The bulk sender's process ───────────────────────────────────────────────────────────────────


def bulk_window() -> bytes:
    """Return a window of empty documents in one compressed frame."""
    from twisted_msgproto.lumberjack import wire

    frames = wire.encode_json(range(1, BULK_WINDOW + 1), [b"{}"] * BULK_WINDOW)
    return wire.encode_window(BULK_WINDOW) + wire.encode_compressed(frames)


def bulk(port: str) -> None:
    """Send windows as fast as they are taken; answer lines with how many events were acked."""
    line = socket.create_connection(("127.0.0.1", int(port)))
    window = bulk_window()
    free = threading.Semaphore(IN_FLIGHT)
    acked = {"events": 0, "seconds": time.perf_counter()}

    def send() -> None:
        while True:
            free.acquire()
            line.sendall(window)

    def hear() -> None:
        heard, windows, sequence = b"", 0, 0
        while octets := line.recv(65536):
            heard += octets
            while len(heard) >= ACK_OCTETS:
                (told,) = struct.unpack_from(">I", heard, 2)
                heard = heard[ACK_OCTETS:]
                sequence = told or sequence  # 0 keeps the connection alive
                if told == BULK_WINDOW:
                    windows, sequence = windows + 1, 0
                    free.release()
            acked.update(
                events=windows * BULK_WINDOW + sequence, seconds=time.perf_counter() - began
            )

    began = time.perf_counter()
    for work in (send, hear):
        threading.Thread(target=work, daemon=True).start()
    print(json.dumps({"port": int(port)}), flush=True)
    for _ in sys.stdin:
        print(json.dumps(acked), flush=True)


# ── The good client's process ───────────────────────────────────────────────────────────────────


class GoodClients:
    """Holds a session of each protocol that was asked for; one message is in flight."""

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self._sessions: dict[str, Any] = {}

    async def send(self, protocol: str, port: int, messages: int) -> list[float]:
        """Send messages one after another; return the seconds until each was acknowledged."""
        if protocol not in self._sessions:
            self._sessions[protocol] = await OPENERS[protocol](self._reactor, port)
        session = self._sessions[protocol]
        latencies = []
        for _ in range(messages):
            began = time.perf_counter()
            await session.send()
            latencies.append(time.perf_counter() - began)
        return latencies


ROLES: Final[Mapping[str, Callable[..., None]]] = {
    "serve": serve,
    "bulk": bulk,
    "drive": lambda: answer(GoodClients),
}

if __name__ == "__main__":
    ROLES[sys.argv[1]](*sys.argv[2:])
