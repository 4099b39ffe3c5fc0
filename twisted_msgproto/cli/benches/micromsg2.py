"""Measure what MicroMsg2 costs: a server through a real socket, its fan-out, and its filters.

The load comes from this process with plain sockets and octets that were encoded before; the
server is a process of its own, and its CPU time is what is measured.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import selectors
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

from ...micromsg2.machine import Proposal
from ...micromsg2.wire import (
    Filter,
    Offer,
    encode_address,
    encode_command,
    encode_handshake,
    encode_message,
    read_properties,
)
from ..measuring import Comparison, Figures, Subject, answer_usage, timed

PAYLOAD_OCTETS = 100
WINDOW = 100
MESSAGES = 200_000
RUN = 65_500
"""One connection has this many messages: complete windows, before the numbers wrap."""

FILTER_SECONDS = 2e-6
"""A filter check may cost this much."""


# ── Loads: octets that were encoded before the clock runs ──────────────────────────────────────


@cache
def windows(payload_octets: int = PAYLOAD_OCTETS) -> list[bytes]:
    """Return all windows of one connection."""
    address, payload = encode_address("orders"), b"x" * payload_octets
    return [
        b"".join(encode_message(number, address, payload)[0] for number in range(n, n + WINDOW))
        for n in range(1, RUN, WINDOW)
    ]


def session(port: int, *required: Offer) -> socket.socket:
    """Return a connection with the handshake through."""
    made = socket.create_connection(("127.0.0.1", port))
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    opening = encode_handshake(Proposal(required=required).opening())
    made.sendall(opening)
    if not made.recv(65536):
        raise RuntimeError("the server refused the handshake")
    made.sendall(opening)
    return made


def drive(port: int, count: int) -> list[float]:
    """Send ``count`` windows of 100, each when the one before is acknowledged.

    Returns the seconds from sending to the ack, a window each.
    """
    latencies: list[float] = []
    while len(latencies) < count:
        with session(port, Offer("batch-ack", {"max-count": str(WINDOW)})) as made:
            for window in windows()[: count - len(latencies)]:
                started = time.perf_counter()
                made.sendall(window)
                heard = 0
                while heard < 5:
                    octets = made.recv(64)
                    if not octets:
                        raise RuntimeError("the server closed the connection")
                    heard += len(octets)
                latencies.append(time.perf_counter() - started)
    return latencies


def subscribers(port: int, count: int) -> list[socket.socket]:
    """Make ``count`` connections that are subscribed to one topic."""
    made = []
    for _ in range(count):
        one = session(port, Offer("pub-sub"))
        # Nothing answers a subscription, but the server reads what follows it later.
        one.sendall(encode_command("subscribe", {"destination": "topic/prices"}))
        one.sendall(encode_command("unsubscribe", {"destination": "topic/none"}))
        if not one.recv(65536):
            raise RuntimeError("the server closed a subscriber")
        one.setblocking(False)
        made.append(one)
    return made


def fan_out(port: int, subscribed: list[socket.socket], count: int) -> list[float]:
    """Publish ``count`` windows to the topic; all that is delivered is read."""
    topic = encode_address("topic/prices")
    frame = encode_message(1, topic, b"x" * PAYLOAD_OCTETS)[0]
    missing = dict.fromkeys(subscribed, count * WINDOW * len(frame))
    unsent = memoryview(frame * (count * WINDOW))
    with selectors.DefaultSelector() as selector, session(port) as publisher:
        for one in subscribed:
            selector.register(one, selectors.EVENT_READ)
        publisher.setblocking(False)
        while any(missing.values()):
            if unsent:
                with contextlib.suppress(BlockingIOError):
                    unsent = unsent[publisher.send(unsent) :]
            for key, _ in selector.select(0.001):
                octets = key.fileobj.recv(1 << 18)  # type: ignore[union-attr]
                if not octets:
                    raise RuntimeError("the server closed a subscriber")
                missing[key.fileobj] -= len(octets)  # type: ignore[index]
    return []


# ── What stands beside ──────────────────────────────────────────────────────────────────────────


def scan(count: int) -> Figures:
    """Return a minimal parse of the same octets in memory: no limit, no check."""
    with timed(count * WINDOW) as figures:
        for window in windows()[:count]:
            messages: list[tuple[int, bytes]] = []
            position, end = 0, len(window)
            while position < end:
                sequence = window[position + 1] << 8 | window[position + 2]
                at = position + 4 + window[position + 3]
                at += 2 + (window[at] << 8 | window[at + 1])
                start = at + 1
                position = start + window[at]
                messages.append((sequence, window[start:position]))
    return figures


def filter_checks(count: int) -> Figures:
    """Return a filter of two conditions on a message that matches."""
    chosen = Filter.read("amount>=N100;market=Teu")
    properties = read_properties(b"amount:N250;market:Teu;")
    with timed(count) as figures:
        for _ in range(count):
            chosen.matches(properties)
    return figures


# ── The comparisons ─────────────────────────────────────────────────────────────────────────────


def comparisons(arguments: argparse.Namespace) -> Iterator[Comparison]:
    """Yield the rows of MicroMsg2; ``arguments`` are those of ``msgproto bench``."""
    count = max(10, int(MESSAGES * arguments.scale) // WINDOW)
    subjects: list[Subject] = []
    made: dict[str, Subject] = {}

    def subject(*words: str) -> Subject:
        key = " ".join(words)
        if key not in made:
            made[key] = Subject("twisted_msgproto.cli.benches.micromsg2", *words)
            subjects.append(made[key])
        return made[key]

    with tempfile.TemporaryDirectory(prefix="msgproto-bench-", dir=arguments.queue) as directory:
        try:
            yield from _rows(subject, Path(directory), count)
        finally:
            for one in subjects:
                one.close()


def _rows(subject: Callable[..., Subject], directory: Path, count: int) -> Iterator[Comparison]:
    def server(*words: str) -> Figures:
        one = subject(*words)
        return one.measure(count * WINDOW, partial(drive, one.port, count))

    def spread(width: int) -> Figures:
        one = subject("counting")
        windows_sent = max(1, count // width)
        subscribed = subscribers(one.port, width)
        try:
            work = partial(fan_out, one.port, subscribed, windows_sent)
            return one.measure(width * windows_sent * WINDOW, work)
        finally:
            for made in subscribed:
                made.close()

    yield Comparison(
        f"server, {PAYLOAD_OCTETS} octets, batch-ack {WINDOW}, counting sink",
        "a minimal parse in memory",
        "cpu",
        lambda: server("counting"),
        lambda: scan(min(count, len(windows()))),
        mark=4.0,
        goal=2.0,
    )
    yield Comparison(
        f"into the queue, batch-ack {WINDOW}",
        "the same with a counting sink",
        "cpu",
        lambda: server("durable", str(directory)),
        lambda: server("counting"),
    )
    yield Comparison(
        "fan-out to 100 subscribers, a delivery",
        "fan-out to 10 subscribers, a delivery",
        "cpu",
        lambda: spread(100),
        lambda: spread(10),
        mark=1.1,
    )
    checks = count * WINDOW
    yield Comparison(
        "a filter check with two conditions",
        "2 µs",
        "cpu",
        lambda: filter_checks(checks),
        lambda: Figures(checks, checks * FILTER_SECONDS, checks * FILTER_SECONDS),
        mark=1.0,
    )


# ── The measured server ─────────────────────────────────────────────────────────────────────────


def serve(kind: str, directory: str | None = None) -> None:
    """Be the measured server, over a counting sink or over a durable queue."""
    from twisted.internet import reactor as installed
    from twisted.internet.defer import Deferred, succeed
    from zope.interface import implementer

    from ...core.message import MessageBatch
    from ...micromsg2.protocol import MicroMsg2ServerFactory
    from ...net.sink import DurableSink, IMessageSink

    @implementer(IMessageSink)
    class CountingSink:
        def put(self, batch: MessageBatch) -> Deferred[int | None]:
            return succeed(None)

    reactor: Any = installed
    sink: Any = CountingSink()
    if directory is not None:
        sink = DurableSink(os.path.join(directory, "queue"), reactor, max_bytes=1 << 40)
        close: Callable[[], Any] = sink.close
        reactor.addSystemEventTrigger("before", "shutdown", close)
    factory = MicroMsg2ServerFactory(sink, limits={"subscriber-messages": 1 << 30})
    listening = reactor.listenTCP(0, factory, interface="127.0.0.1")
    answer_usage(
        reactor, int(listening.getHost().port), lambda: {"events": factory.counters["events"]}
    )
    reactor.run()


if __name__ == "__main__":
    serve(*sys.argv[1:])
