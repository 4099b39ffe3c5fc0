"""Measure what Lumberjack costs: the reader through a real socket, alone and into the durable
queue.

The load comes from this process with plain sockets and octets that were encoded before; the
server is a process of its own, and its CPU time is what is measured.
"""

from __future__ import annotations

import argparse
import os
import random
import socket
import struct
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

from ...core.errors import ConfigurationError
from ...lumberjack import wire
from ..measuring import (
    Comparison,
    Figures,
    Gauge,
    Measured,
    Reading,
    Row,
    Subject,
    answer_usage,
    timed,
)
from ..peers import Peer
from .raw import touch_memory, write_raw

BODY_OCTETS = 300
WINDOW = 2048
MESSAGES = 200_000
MEMORY_TIMES = 2.5
"""This, times the messages, is the number of events before the memory is first read."""
SILENT_SECONDS_MAX = 60
"""A reader may say nothing for this long while something is not acked."""
AGAINST_TIMES = 5
"""The rows beside a peer have this many times the messages: its CPU time is known to 10 ms only."""
MODULE = "twisted_msgproto.cli.benches.lumberjack"


# ── Loads: octets that were encoded before the clock runs ──────────────────────────────────────


@cache
def documents(count: int) -> list[bytes]:
    """Documents of 300 octets, as compressible as log lines are."""
    source = random.Random(1)
    words = [source.randbytes(4).hex() for _ in range(500)]
    bodies = []
    for number in range(count):
        text = f'{{"n":{number},"message":"'
        while len(text) < BODY_OCTETS - 2:
            text += source.choice(words) + " "
        bodies.append((text[: BODY_OCTETS - 2] + '"}').encode())
    return bodies


@cache
def json_window(size: int = WINDOW) -> bytes:
    """Return a W frame and ``size`` J frames."""
    return wire.encode_window(size) + wire.encode_json(range(1, size + 1), documents(size))


@cache
def data_window(size: int = WINDOW) -> bytes:
    """Return a W frame and ``size`` D frames of five pairs, as large as the J frames."""
    # 10 octets of header either way; five keys of 6 octets, ten lengths, the rest is values.
    value = "v" * ((BODY_OCTETS - 5 * (4 + 6 + 4)) // 5)
    pairs = [{f"field{key}": value for key in range(5)}] * size
    return wire.encode_window(size, wire.VERSION_1) + wire.encode_data(range(1, size + 1), pairs)


@cache
def zlib_window(size: int = WINDOW, level: int = 3) -> bytes:
    """Return a W frame and one C frame with ``size`` J frames."""
    frames = wire.encode_json(range(1, size + 1), documents(size))
    return wire.encode_window(size) + wire.encode_compressed(frames, level)


# ── The load generator ──────────────────────────────────────────────────────────────────────────


def drive(
    port: int, window: bytes, windows: int, connections: int = 1, in_flight: int = 1
) -> list[float]:
    """Send ``windows`` windows over ``connections``, each with ``in_flight`` not yet acked.

    Returns the seconds from sending to the ack, a window each.  Raises RuntimeError if the server
    closes a connection or falls silent.
    """
    import selectors

    (last,) = struct.unpack_from(">I", window, 2)  # a window's last sequence: acked, it is done
    selector = selectors.DefaultSelector()
    latencies: list[float] = []
    remaining = windows

    class Flow:
        def __init__(self) -> None:
            self.socket = socket.create_connection(("127.0.0.1", port))
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.socket.setblocking(False)
            self.started: list[float] = []
            self.unsent = memoryview(b"")
            self.heard = b""
            selector.register(self.socket, selectors.EVENT_READ, self)

        def send(self) -> None:
            nonlocal remaining
            while True:
                if not self.unsent:
                    if len(self.started) >= in_flight or not remaining:
                        break
                    remaining -= 1
                    self.started.append(time.perf_counter())
                    self.unsent = memoryview(window)
                try:
                    self.unsent = self.unsent[self.socket.send(self.unsent) :]
                except BlockingIOError:
                    break
                except ConnectionError:
                    raise RuntimeError("the server closed the connection") from None
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self.unsent else 0)
            selector.modify(self.socket, wanted, self)

        def hear(self) -> None:
            try:
                octets = self.socket.recv(65536)
            except ConnectionResetError:
                octets = b""
            if not octets:
                raise RuntimeError("the server closed the connection")
            self.heard += octets
            while len(self.heard) >= 6:
                (sequence,) = struct.unpack_from(">I", self.heard, 2)
                self.heard = self.heard[6:]
                if sequence == last:  # others: a keep-alive (0), or the ack of a part
                    latencies.append(time.perf_counter() - self.started.pop(0))

    flows: list[Flow] = []
    try:
        for _ in range(connections):
            flows.append(Flow())
        for flow in flows:
            flow.send()
        while len(latencies) < windows:
            ready = selector.select(SILENT_SECONDS_MAX)
            if not ready:
                raise RuntimeError(f"the server was silent for {SILENT_SECONDS_MAX} s")
            for key, events in ready:
                flow = key.data
                if events & selectors.EVENT_READ:
                    flow.hear()
                flow.send()
    finally:
        for flow in flows:
            flow.socket.close()
        selector.close()
    return latencies


# ── What stands beside ──────────────────────────────────────────────────────────────────────────


def scan(window: bytes, windows: int, size: int) -> Figures:
    """Return a checked scan of J frames in memory: unpack, compare, slice, keep."""
    unpack, length_max = struct.Struct(">BBII").unpack_from, 16 << 20
    with timed(windows * size) as figures:
        for _ in range(windows):
            bodies: list[bytes] = []
            sequences: list[int] = []
            position, end = 6, len(window)
            while position < end:
                version, kind, sequence, length = unpack(window, position)
                if version != 0x32 or kind != 0x4A or length > length_max:
                    raise ValueError("not a J frame")
                start = position + 10
                position = start + length
                if position > end:
                    raise ValueError("cut short")
                bodies.append(window[start:position])
                sequences.append(sequence)
    return figures


def inflate(window: bytes, windows: int, size: int) -> Figures:
    """Run ``zlib.decompress`` alone on the same data."""
    payload = window[12:]
    with timed(windows * size) as figures:
        for _ in range(windows):
            zlib.decompress(payload)
    return figures


# ── The comparisons ─────────────────────────────────────────────────────────────────────────────


class Subjects:
    """Holds the server processes of one run, started when first needed and ended with the run."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._subjects: dict[str, Measured] = {}

    def get(self, *arguments: str) -> Measured:
        """Return the server with these arguments."""
        key = " ".join(arguments)
        if key not in self._subjects:
            self._subjects[key] = Subject(MODULE, *arguments)
        return self._subjects[key]

    def peer(self, command: str) -> Measured:
        """Start another program's server; raise ConfigurationError if it does not start."""
        if command not in self._subjects:
            self._subjects[command] = Peer(command, self.directory)
        return self._subjects[command]

    def close(self) -> None:
        """End them all."""
        for subject in self._subjects.values():
            subject.close()


def comparisons(arguments: argparse.Namespace) -> Iterator[Row]:
    """Yield the rows of Lumberjack; ``arguments`` are those of ``msgproto bench``."""
    count = max(WINDOW, int(MESSAGES * arguments.scale))
    with tempfile.TemporaryDirectory(prefix="msgproto-bench-", dir=arguments.queue) as made:
        subjects = Subjects(Path(made))
        try:
            yield from _rows(subjects, count)
            if arguments.against is not None:
                yield from _against(subjects, count * AGAINST_TIMES, arguments.against)
        finally:
            subjects.close()


def _rows(subjects: Subjects, count: int) -> Iterator[Row]:
    def counted(window: bytes, size: int, connections: int = 1, in_flight: int = 1) -> Figures:
        subject, windows = subjects.get("counting"), count // size
        work = partial(drive, subject.port, window, windows, connections, in_flight)
        return subject.measure(windows * size, work)

    windows = count // WINDOW
    messages, octets = windows * WINDOW, windows * (len(json_window()) - 6)
    committed = 0  # groups of the queue in its last run

    def durable(connections: int, in_flight: int) -> Figures:
        nonlocal committed
        subject = subjects.get("durable", str(subjects.directory))
        work = partial(drive, subject.port, json_window(), windows, connections, in_flight)
        touch_memory(subjects.directory, octets)
        figures = subject.measure(messages, work)
        committed = figures.groups
        return figures

    def written(groups: int | None = None) -> Figures:
        """Return the same octets in ``groups``; None: in as many as the queue made of them just
        now.
        """
        touch_memory(subjects.directory, octets)
        return write_raw(subjects.directory, octets, messages, groups or committed)

    yield Comparison(
        f"reader, J, window {WINDOW}, counting sink",
        "a checked scan in memory",
        "cpu",
        lambda: counted(json_window(), WINDOW),
        lambda: scan(json_window(), windows, WINDOW),
        mark=2.0,
        goal=1.3,
    )
    for connections, in_flight in ((1, 1), (4, 8)):
        # Small windows cost what a turn of the reactor costs, unless more than one is under way.
        yield Comparison(
            f"reader, J, window 50, {connections}×{in_flight}, counting sink",
            "a checked scan in memory",
            "cpu",
            partial(counted, json_window(50), 50, connections, in_flight),
            lambda: scan(json_window(), windows, WINDOW),
        )
    yield Comparison(
        f"reader, zlib 3, window {WINDOW}, counting sink",
        "zlib.decompress alone",
        "cpu",
        lambda: counted(zlib_window(), WINDOW),
        lambda: inflate(zlib_window(), windows, WINDOW),
        mark=2.0,
        goal=1.3,
    )
    yield Comparison(
        f"reader, D with 5 pairs, window {WINDOW}, counting sink",
        "J frames of the same octets",
        "cpu",
        lambda: counted(data_window(), WINDOW),
        lambda: counted(json_window(), WINDOW),
        mark=8.0,
        goal=5.0,
    )
    for connections, in_flight in ((1, 1), (4, 2)):
        load = f"{connections}×{in_flight}, window {WINDOW}"
        into_queue = partial(durable, connections, in_flight)
        yield Comparison(
            f"into the queue, {load}",
            "write + fdatasync of the same octets, same group sizes",
            "rate",
            into_queue,
            written,
            mark=0.3,
            goal=0.5,
            follows=True,
        )
        # For honesty: what the work would cost if each sync took all that is in flight at most.
        yield Comparison(
            f"into the queue, {load}, beside whole windows",
            "write + fdatasync of the same octets, groups of "
            + ("1 window" if connections == 1 else f"{connections} windows"),
            "rate",
            into_queue,
            partial(written, max(1, windows // connections)),
        )

    def reader_and_write() -> Figures:
        read, write = counted(json_window(), WINDOW, 4, 2), written()
        return Figures(
            read.messages, read.wall + write.wall, read.cpu + write.cpu, groups=write.groups
        )

    yield Comparison(
        f"into the queue, 4×2, window {WINDOW}, CPU",
        "reader under the same load + raw write, same group sizes",
        "cpu",
        lambda: durable(4, 2),
        reader_and_write,
        mark=1.8,
        goal=1.4,
        follows=True,
    )

    def memory() -> Reading:
        """Return how far the resident memory of one gateway moves while it stores ten times
        more.
        """
        notes: dict[str, float] = {}
        resident: list[float] = []
        with tempfile.TemporaryDirectory(dir=subjects.directory) as own:
            subject = Subject(MODULE, "durable", own)
            try:
                sent = 0
                for share in (1, 10):
                    total = max(1, int(count * MEMORY_TIMES) // WINDOW) * share
                    drive(subject.port, json_window(), total - sent, 4, 2)
                    sent = total
                    resident.append(subject.usage()["resident"] / (1 << 20))
                    notes[f"MiB after {sent * WINDOW} events"] = resident[-1]
            finally:
                subject.close()
        return Reading(abs(resident[1] - resident[0]), notes)

    yield Gauge("into the queue, change of memory, 10 × events", "MiB", memory, mark=20.0)


def _against(subjects: Subjects, count: int, command: str) -> Iterator[Row]:
    """Yield the same work beside another program's reader."""

    def run(server: Measured, window: Callable[[], bytes], size: int, *flows: int) -> Figures:
        windows = count // size
        work = partial(drive, server.port, window(), windows, *flows)
        return server.measure(windows * size, work)

    def ours(*load: Any) -> Figures:
        return run(subjects.get("counting"), *load)

    def peers(window: Callable[[], bytes], size: int, *flows: int) -> Figures:
        try:
            return run(subjects.peer(command), window, size, *flows)
        except RuntimeError as error:
            raise ConfigurationError(f"--against: {error} (windows of {size})") from None

    loads: tuple[tuple[str, tuple[Callable[[], bytes], int, int, int]], ...] = (
        (f"J, window {WINDOW}, 1×1", (json_window, WINDOW, 1, 1)),
        (f"J, window {WINDOW}, 4×2", (json_window, WINDOW, 4, 2)),
        ("J, window 50, 1×1", (partial(json_window, 50), 50, 1, 1)),
        ("J, window 50, 4×8", (partial(json_window, 50), 50, 4, 8)),
        (f"zlib 3, window {WINDOW}, 1×1", (zlib_window, WINDOW, 1, 1)),
    )
    for name, load in loads:
        yield Comparison(
            f"reader against a peer, {name}, counting sink",
            command,
            "cpu",
            partial(ours, *load),
            partial(peers, *load),
            mark=1.0,
            goal=0.6,
        )


# ── The measured server ─────────────────────────────────────────────────────────────────────────


def serve(kind: str, directory: str | None = None) -> None:
    """Be the measured server: a reader over a counting sink, or over a durable queue."""
    from twisted.internet import reactor as installed
    from twisted.internet.defer import Deferred, succeed
    from zope.interface import implementer

    from ...core.message import MessageBatch
    from ...lumberjack.protocol import LumberjackServerFactory
    from ...net.memory import keep_freed_memory
    from ...net.sink import DurableSink, IMessageSink

    done: Deferred[int | None] = succeed(None)

    @implementer(IMessageSink)
    class CountingSink:
        def put(self, batch: MessageBatch) -> Deferred[int | None]:
            return done  # one for all: the reader is measured, and not what makes Deferreds

    reactor: Any = installed
    keep_freed_memory()  # as every gateway does
    sink: Any = CountingSink()
    groups: Callable[[], int] = int  # 0: nothing is made durable
    if directory is not None:
        durable = DurableSink(os.path.join(directory, "queue"), reactor, max_bytes=1 << 40)
        reactor.addSystemEventTrigger("before", "shutdown", durable.close)
        sink, groups = durable, lambda: durable.writer.statistics()["groups"]
    factory = LumberjackServerFactory(sink)
    listening = reactor.listenTCP(0, factory, interface="127.0.0.1")
    answer_usage(
        reactor,
        int(listening.getHost().port),
        lambda: {"events": factory.counters["events"], "groups": groups()},
    )
    reactor.run()


if __name__ == "__main__":
    serve(*sys.argv[1:])
