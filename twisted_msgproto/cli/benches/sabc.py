"""Measure what sABC costs: requests and their acknowledgements through a real socket.

The load comes from this process with plain sockets and octets that were encoded before; the servers
are processes of their own.  Ours is compared with Twisted's LineReceiver: it echoes the same octets
with the end mark of a message as its delimiter, a line a message.
"""

from __future__ import annotations

import argparse
import os
import select
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

from twisted_msgproto.sabc.wire import END, Connect, Message, encode

from ..measuring import Comparison, Figures, Subject, answer_usage

BODY_OCTETS = 200
WINDOW = 256
MESSAGES = 200_000
SESSION_ID = "a-session-id-of-the-usual-length-0123456789"
WINDOWS_IN_FLIGHT = 2


# ── Loads: octets that were encoded before the clock runs ──────────────────────────────────────


@cache
def windows(size: int = WINDOW, lengths: bool = True) -> tuple[bytes, ...]:
    """Windows of ``size`` requests, each with ids of its own: one more than are in flight."""
    body = b"x" * BODY_OCTETS
    return tuple(
        b"".join(
            encode(
                Message({"session-id": SESSION_ID, "msg-id": str(number * size + n)}, body),
                lengths=lengths,
            )
            for n in range(size)
        )
        for number in range(WINDOWS_IN_FLIGHT + 1)
    )


def drive(port: int, count: int, *, session: bool, lengths: bool = True) -> list[float]:
    """Send ``count`` windows, some in flight; the seconds from sending to the last answer of each.

    Every message and every answer holds one NUL, its last octet.
    """
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if session:
        framing = {"framing": "length"} if lengths else {}
        connection.sendall(encode(Connect({"client-id": "bench", **framing})))
        heard = b""
        while not heard.endswith(b"\0"):
            heard += connection.recv(65536)
    load = windows(WINDOW, lengths)
    connection.setblocking(False)
    latencies: list[float] = []
    started: list[float] = []
    sent = answered = 0
    unsent = memoryview(b"")
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    while answered < count * WINDOW:
        while not unsent and sent < count and len(started) < WINDOWS_IN_FLIGHT:
            unsent = memoryview(load[sent % len(load)])
            sent += 1
            started.append(time.perf_counter())
            try:
                unsent = unsent[connection.send(unsent) :]
            except BlockingIOError:
                break
        poll.modify(connection, select.POLLIN | (select.POLLOUT if unsent else 0))
        poll.poll()
        if unsent:
            with suppress(BlockingIOError):
                unsent = unsent[connection.send(unsent) :]
        try:
            octets = connection.recv(262144)
        except BlockingIOError:
            continue
        if not octets:
            raise RuntimeError("the server closed the connection")
        before = answered // WINDOW
        answered += octets.count(b"\0")
        now = time.perf_counter()
        for _ in range(answered // WINDOW - before):
            latencies.append(now - started.pop(0))
    connection.close()
    return latencies


# ── The comparisons ─────────────────────────────────────────────────────────────────────────────


def comparisons(arguments: argparse.Namespace) -> Iterator[Comparison]:
    """Yield the rows of sABC; ``arguments`` are those of ``msgproto bench``."""
    count = max(1, int(MESSAGES * arguments.scale) // WINDOW)
    subjects: dict[tuple[str, ...], Subject] = {}

    def subject(*words: str) -> Subject:
        if words not in subjects:
            subjects[words] = Subject("twisted_msgproto.cli.benches.sabc", *words)
        return subjects[words]

    def ours(*words: str, lengths: bool = True) -> Figures:
        server = subject(*words)
        work = partial(drive, server.port, count, session=True, lengths=lengths)
        return server.measure(count * WINDOW, work)

    def lines() -> Figures:
        server = subject("lines")
        work = partial(drive, server.port, count, session=False)
        return server.measure(count * WINDOW, work)

    with tempfile.TemporaryDirectory(prefix="msgproto-bench-", dir=arguments.queue) as made:
        directory = str(Path(made) / "queue")
        try:
            yield Comparison(
                f"request and ack, {BODY_OCTETS} octets",
                "LineReceiver, a line a message",
                "rate",
                lambda: ours("counting"),
                lambda: lines(),
                mark=0.5,
                goal=0.8,
            )
            yield Comparison(
                f"request and ack, {BODY_OCTETS} octets, without lengths",
                "LineReceiver, a line a message",
                "rate",
                lambda: ours("counting", lengths=False),
                lambda: lines(),
                mark=0.5,
                goal=0.8,
            )
            yield Comparison(
                f"request and answer of a hook, {BODY_OCTETS} octets",
                "LineReceiver, a line a message",
                "rate",
                lambda: ours("echo"),
                lambda: lines(),
            )
            yield Comparison(
                f"request and ack, {BODY_OCTETS} octets, into the queue",
                "LineReceiver, a line a message",
                "rate",
                lambda: ours("durable", directory),
                lambda: lines(),
            )
        finally:
            for server in subjects.values():
                server.close()


# ── The measured servers ────────────────────────────────────────────────────────────────────────


def serve(kind: str, argument: str = "") -> None:
    """Be a measured server."""
    from twisted.internet import reactor as installed
    from twisted.internet.defer import Deferred, succeed
    from twisted.internet.protocol import Factory
    from twisted.protocols.basic import LineReceiver
    from zope.interface import implementer

    from twisted_msgproto.core.message import MessageBatch
    from twisted_msgproto.net.sink import DurableSink, IMessageSink
    from twisted_msgproto.sabc.protocol import SabcServer, SabcServerFactory

    @implementer(IMessageSink)
    class CountingSink:
        def put(self, batch: MessageBatch) -> Deferred[int | None]:
            return succeed(None)

    class Echo(SabcServer):
        def requestReceived(self, message: Any) -> Any:
            return message.body

    class Lines(LineReceiver):
        delimiter = END
        MAX_LENGTH = 1 << 20

        def lineReceived(self, line: bytes) -> None:
            self.sendLine(line)  # type: ignore[no-untyped-call]

    reactor: Any = installed
    factory: Any
    if kind == "lines":
        factory = Factory.forProtocol(Lines)
    else:
        sink: Any = CountingSink() if kind == "counting" else None
        if kind == "durable":
            sink = DurableSink(argument, reactor, max_bytes=1 << 40)
            close: Callable[[], Any] = sink.close
            reactor.addSystemEventTrigger("before", "shutdown", close)
        factory = SabcServerFactory(sink, newSessionId=lambda: SESSION_ID)
        if kind == "echo":
            factory.protocol = Echo
    listening = reactor.listenTCP(0, factory, interface="127.0.0.1")
    answer_usage(reactor, int(listening.getHost().port))
    reactor.run()


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    serve(*sys.argv[1:])
