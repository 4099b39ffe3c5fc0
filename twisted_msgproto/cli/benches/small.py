"""Measure what small batches cost on their way into the queue, in each protocol.

A sender waits for acknowledgements here, so few messages share a sync, and what a batch costs
beside its octets shows: turns of the reactor, hand-overs between threads, encoding, the sync.  Two
server processes serve all five protocols: one over a queue, one over a sink that is safe at once.

* *CPU* rows: the server with the queue, beside the server without one under the same load and a raw
  write of as many octets in as many groups.
* *one message in flight*: the median time to the acknowledgement, beside the median of a write and
  a sync of as many octets.
"""

from __future__ import annotations

import argparse
import base64
import json
import selectors
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import cache, partial
from itertools import cycle, islice, repeat
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from ...micromsg2.wire import Offer, encode_address, encode_message
from ...sabc import wire as sabc
from ..measuring import Comparison, Figures, Gauge, Reading, Row, Subject, answer_usage
from . import lumberjack, micromsg2
from .idle_peers import listen
from .raw import RawFile, touch_memory, write_raw

MODULE: Final = "twisted_msgproto.cli.benches.small"
BODY_OCTETS: Final = 100
SILENT_SECONDS_MAX: Final = 60.0
"""A server may say nothing for this long while something is not acknowledged."""
READ_OCTETS: Final = 1 << 18
SINGLES: Final = 500
"""A reading of one message in flight has this many of them."""
UMQ_HELLO: Final = b"H1:"
MTL_AHEAD: Final = 1_000
"""A writer of MTL has at most this many contents that are not confirmed."""


# ── Senders ─────────────────────────────────────────────────────────────────────────────────────


class Sender:
    """Is one connection: ``windows`` are sent in turn, and :meth:`heard` finds their answers.

    Attributes:
        socket: the connection, with its handshake through.
        windows: octets of a window each, without end; messages are encoded before the clock
            runs.
        size: messages of a window.
    """

    socket: socket.socket
    windows: Iterator[bytes]
    size: int

    def heard(self, octets: bytes) -> int:
        """Return how many messages these octets of the server acknowledge."""
        raise NotImplementedError


class LumberjackSender(Sender):
    """Sends windows of J frames; an ack has the sequence of the last frame."""

    def __init__(self, port: int, size: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.windows, self.size = repeat(lumberjack.json_window(size)), size
        self._rest = b""

    def heard(self, octets: bytes) -> int:
        """Count the acks of whole windows."""
        self._rest += octets
        whole = len(self._rest) // 6 * 6
        acks, self._rest = self._rest[:whole], self._rest[whole:]
        last = self.size.to_bytes(4, "big")
        return self.size * sum(acks[at + 2 : at + 6] == last for at in range(0, whole, 6))


class MicroMsg2Sender(Sender):
    """Sends messages to one queue; the server acknowledges ``size`` of them at a time."""

    ACK_OCTETS: Final = 5

    def __init__(self, port: int, size: int) -> None:
        offer = Offer("batch-ack", {"max-count": str(size)})
        self.socket = micromsg2.session(port, offer)
        self.windows, self.size = _micromsg2_windows(size), size
        self._octets = 0

    def heard(self, octets: bytes) -> int:
        """Count the batch acks."""
        self._octets += len(octets)
        acks, self._octets = divmod(self._octets, self.ACK_OCTETS)
        return acks * self.size


def _micromsg2_windows(size: int) -> Iterator[bytes]:
    """Windows without end; the last sequence number is followed by the first, within a window
    too.
    """
    messages = cycle(_micromsg2_messages())
    while True:
        yield b"".join(islice(messages, size))


@cache
def _micromsg2_messages() -> list[bytes]:
    """A message of each sequence number."""
    address, payload = encode_address("orders"), b"x" * BODY_OCTETS
    return [encode_message(number, address, payload)[0] for number in range(1, 1 << 16)]


class SabcSender(Sender):
    """Sends requests; each is acknowledged by a message of its own, whose last octet is NUL."""

    def __init__(self, port: int, size: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.sendall(sabc.encode(sabc.Connect({"client-id": "bench", "framing": "length"})))
        answer = b""
        while not answer.endswith(b"\0"):
            answer += self.socket.recv(READ_OCTETS)
        told = answer.split(b"session-id::")[1].split(b"\r\n")[0].decode()
        self.windows, self.size = cycle(_sabc_windows(told, size)), size

    def heard(self, octets: bytes) -> int:
        """Count the acknowledgements."""
        return octets.count(b"\0")


def _sabc_windows(session_id: str, size: int) -> list[bytes]:
    body = b"x" * BODY_OCTETS
    return [
        b"".join(
            sabc.encode(
                sabc.Message({"session-id": session_id, "msg-id": str(begin + number)}, body),
                lengths=True,
            )
            for number in range(size)
        )
        for begin in range(0, 64 * size, size)
    ]


class UmqSender(Sender):
    """Sends calls; each has a result, a short text message of the WebSocket."""

    def __init__(self, port: int, size: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        key = base64.b64encode(bytes(16)).decode()
        self.socket.sendall(
            (
                "GET / HTTP/1.1\r\nHost: bench\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
            ).encode()
        )
        self._rest = b""
        while b"\r\n\r\n" not in self._rest:
            self._rest += self.socket.recv(READ_OCTETS)
        self._rest = self._rest.split(b"\r\n\r\n", 1)[1]
        self.socket.sendall(_text(UMQ_HELLO))
        while not self.heard(b""):  # the welcome
            self._rest += self.socket.recv(READ_OCTETS)
        self.windows, self.size = cycle(_umq_windows(size)), size

    def heard(self, octets: bytes) -> int:
        """Count the messages: the server sends nothing but results."""
        rest = self._rest + octets
        at = count = 0
        while len(rest) - at >= 2 and len(rest) - at >= 2 + rest[at + 1]:
            at += 2 + rest[at + 1]
            count += 1
        self._rest = rest[at:]
        return count


def _text(payload: bytes) -> bytes:
    """Return a text message of a WebSocket client, masked with zeros."""
    return bytes((0x81, 0x80 | len(payload))) + bytes(4) + payload


@cache
def _umq_windows(size: int) -> list[bytes]:
    text = b"x" * BODY_OCTETS
    return [
        b"".join(_text(b"C%d:" % (begin + number) + text) for number in range(size))
        for begin in range(1000, 1000 + 64 * size, size)
    ]


SENDERS: Final[dict[str, Callable[[int, int], Sender]]] = {
    "lumberjack": LumberjackSender,
    "micromsg2": MicroMsg2Sender,
    "sabc": SabcSender,
    "umq": UmqSender,
}


class _Flow:
    """Holds what one connection has in flight."""

    def __init__(self, sender: Sender, windows: int, in_flight: int) -> None:
        self._sender = sender
        self._windows = sender.windows
        self._left = windows
        self._in_flight = in_flight * sender.size
        self._missing = 0  # messages that are not acknowledged
        self._unsent = memoryview(b"")
        self.socket = sender.socket
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)

    @property
    def done(self) -> bool:
        return not self._left and not self._missing

    def send(self) -> bool:
        """Send what may be in flight; return whether octets are left over."""
        while True:
            if not self._unsent:
                if not self._left or self._missing + self._sender.size > self._in_flight:
                    return False
                self._left -= 1
                self._missing += self._sender.size
                self._unsent = memoryview(next(self._windows))
            try:
                self._unsent = self._unsent[self.socket.send(self._unsent) :]
            except BlockingIOError:
                return True

    def hear(self) -> None:
        octets = self.socket.recv(READ_OCTETS)
        if not octets:
            raise RuntimeError("the server closed the connection")
        self._missing -= self._sender.heard(octets)


def drive(
    protocol: str, port: int, messages: int, size: int, connections: int = 1, in_flight: int = 1
) -> list[float]:
    """Send ``messages`` in windows of ``size`` over connections, each with ``in_flight`` windows
    that are not acknowledged yet.

    Returns no latencies.  Raises RuntimeError if the server closes a connection or is silent.
    """
    windows = max(1, messages // size // connections)
    flows: list[_Flow] = []
    with selectors.DefaultSelector() as selector:
        try:
            for _ in range(connections):
                flows.append(_Flow(SENDERS[protocol](port, size), windows, in_flight))
                selector.register(flows[-1].socket, selectors.EVENT_READ, flows[-1])
            for flow in flows:
                _await_room(selector, flow)
            while not all(flow.done for flow in flows):
                ready = selector.select(SILENT_SECONDS_MAX)
                if not ready:
                    raise RuntimeError(f"the server was silent for {SILENT_SECONDS_MAX:g} s")
                for key, events in ready:
                    if events & selectors.EVENT_READ:
                        key.data.hear()
                    _await_room(selector, key.data)
        finally:
            for flow in flows:
                flow.socket.close()
    return []


def _await_room(selector: selectors.BaseSelector, flow: _Flow) -> None:
    wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if flow.send() else 0)
    if selector.get_key(flow.socket).events != wanted:
        selector.modify(flow.socket, wanted, flow)


def drive_mtl(port: int, messages: int) -> list[float]:
    """Write contents of one resource, at most :data:`MTL_AHEAD` of them not confirmed yet."""
    import zmq

    context = zmq.Context()
    try:
        control, dealer = context.socket(zmq.REQ), context.socket(zmq.DEALER)
        control.connect(f"tcp://127.0.0.1:{port}")

        def ask(command: str, **body: Any) -> Any:
            text = json.dumps({key.replace("_", "-"): value for key, value in body.items()})
            control.send_multipart([b"Connection." + command.encode(), text.encode()])
            return json.loads(control.recv_multipart()[1])

        ask("Open", protocol={"name": "MTL", "version": 1}, virtual_host="bench")
        ask("Profile", profile="ingest")
        reply = ask("Writer", resources=["bench"], confirm="full")
        dealer.connect(f"tcp://127.0.0.1:{reply['port']}")
        token = reply["lease"].encode()
        dealer.send_multipart([b"\1" + bytes(8) + bytes([len(token)]) + token, b""])
        dealer.recv_multipart()
        tail, body = b"\x05bench\0\0\0\0", b"x" * BODY_OCTETS
        sent = confirmed = 0
        while confirmed < messages:
            while sent < messages and sent - confirmed < MTL_AHEAD:
                sent += 1
                dealer.send_multipart([b"\5" + sent.to_bytes(8, "big") + tail, body])
            header, _ = dealer.recv_multipart()
            if header[0] == 8:
                dealer.send_multipart([b"\x09", b""])
            elif header[0] == 6:
                confirmed = max(confirmed, int.from_bytes(header[1:9], "big"))
    finally:
        context.destroy(linger=0)
    return []


# ── The rows ────────────────────────────────────────────────────────────────────────────────────


class Load(NamedTuple):
    """Describes one row: what is sent, and the bounds of the ratio of CPU time."""

    protocol: str
    text: str
    messages: int
    size: int
    connections: int
    in_flight: int
    mark: float
    goal: float


LOADS: Final = (
    Load("micromsg2", "batch-ack 100, one window in flight", 100_000, 100, 1, 1, 2.2, 1.7),
    Load("micromsg2", "batch-ack 100, 16 connections", 200_000, 100, 16, 1, 1.6, 1.3),
    Load("sabc", "256 in flight on each of 2", 100_000, 64, 2, 4, 2.0, 1.7),
    Load("umq", "100 calls in flight", 50_000, 10, 1, 10, 2.0, 1.5),
    Load("mtl", "confirm full, 1,000 in flight", 100_000, 1, 1, MTL_AHEAD, 2.0, 1.5),
)


class Servers:
    """Holds the two servers, started when first needed."""

    def __init__(self, directory: Path, scale: float) -> None:
        self.directory = directory
        self._scale = scale
        self._subjects: dict[str, Subject] = {}
        self._stored = Figures(1, 1.0, 0.0)  # of the queue's last run: its groups …
        self._octets = 0  # … and octets

    def close(self) -> None:
        """End them."""
        for subject in self._subjects.values():
            subject.close()

    def get(self, kind: str) -> Subject:
        """Return the server over a sink of this kind."""
        if kind not in self._subjects:
            self._subjects[kind] = Subject(MODULE, kind, str(self.directory))
        return self._subjects[kind]

    def _run(self, load: Load, kind: str) -> tuple[Figures, int]:
        """Return what a load cost a server, and how many octets were stored."""
        server = self.get(kind)
        before = server.usage()
        port = before["ports"][load.protocol]
        messages = max(load.size * load.connections, int(load.messages * self._scale))
        messages -= messages % (load.size * load.connections)
        work = (
            partial(drive_mtl, port, messages)
            if load.protocol == "mtl"
            else partial(
                drive, load.protocol, port, messages, load.size, load.connections, load.in_flight
            )
        )
        figures = server.measure(messages, work)
        return figures, server.usage()["stored"] - before["stored"]

    def into_queue(self, load: Load) -> Figures:
        """Return what a load costs the server with the queue."""
        touch_memory(self.directory, self._octets)
        self._stored, self._octets = self._run(load, "durable")
        return self._stored

    def beside(self, load: Load) -> Figures:
        """Return what it costs the server without, and a raw write of what was just stored."""
        counted, _ = self._run(load, "counting")
        touch_memory(self.directory, self._octets)
        raw = write_raw(self.directory, self._octets, counted.messages, max(1, self._stored.groups))
        return Figures(
            counted.messages,
            counted.wall + raw.wall,
            counted.cpu + raw.cpu,
            groups=raw.groups,
        )

    def single(self, protocol: str) -> Reading:
        """Return the median time of an ack with one message in flight, beside a write and sync."""
        server = self.get("durable")
        count = max(20, int(SINGLES * self._scale))
        before = server.usage()
        latencies = _singles(SENDERS[protocol](before["ports"][protocol], 1), count)
        after = server.usage()
        octets = (after["stored"] - before["stored"]) // count
        with _raw_file(self.directory) as file:
            plain = []
            for _ in range(count):
                piece = bytes(octets)
                began = time.perf_counter()
                file.write([piece], 1)
                plain.append(time.perf_counter() - began)
        ours, beside = median(latencies), median(plain)
        return Reading(
            ours / beside, {"ack p50 ms": ours * 1e3, "write + sync p50 ms": beside * 1e3}
        )


def _singles(sender: Sender, count: int) -> list[float]:
    """Return the seconds to the ack of each of ``count`` messages, one after the other."""
    sender.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    windows = sender.windows
    latencies = []
    with closing(sender.socket):
        for _ in range(count):
            window = next(windows)
            began = time.perf_counter()
            sender.socket.sendall(window)
            while not sender.heard(sender.socket.recv(READ_OCTETS)):
                pass
            latencies.append(time.perf_counter() - began)
    return latencies


@contextmanager
def _raw_file(directory: Path) -> Iterator[RawFile]:
    with closing(RawFile(directory)) as file:
        yield file


def comparisons(arguments: argparse.Namespace) -> Iterator[Row]:
    """Yield the rows of small batches; ``arguments`` are those of ``msgproto bench``."""
    with (
        tempfile.TemporaryDirectory(prefix="msgproto-bench-", dir=arguments.queue) as made,
        closing(Servers(Path(made), arguments.scale)) as servers,
    ):
        for load in LOADS:
            yield Comparison(
                f"small batches into the queue, {load.protocol}, {load.text}",
                "a counting sink + raw write, same groups",
                "cpu",
                partial(servers.into_queue, load),
                partial(servers.beside, load),
                mark=load.mark,
                goal=load.goal,
                follows=True,
            )
        for protocol in SENDERS:
            yield Gauge(
                f"one message in flight into the queue, {protocol}, ack p50",
                "× write + fdatasync",
                partial(servers.single, protocol),
                mark=2.0,
                goal=1.3,
                repeats=True,
            )


# ── The measured servers ────────────────────────────────────────────────────────────────────────


def serve(kind: str, directory: str) -> None:
    """Serve all five protocols over a durable queue, or over a sink that is safe at once."""
    from twisted.internet import reactor as installed
    from twisted.internet.defer import Deferred, succeed
    from zope.interface import implementer

    from ...core.message import MessageBatch
    from ...net.memory import keep_freed_memory
    from ...net.sink import DurableSink, IMessageSink

    done: Deferred[int | None] = succeed(None)

    @implementer(IMessageSink)
    class CountingSink:
        def put(self, batch: MessageBatch) -> Deferred[int | None]:
            return done  # one for all: what makes Deferreds is not measured

    reactor: Any = installed
    keep_freed_memory()  # as every gateway does
    sink: Any = CountingSink()
    counted: Callable[[], dict[str, int]] = lambda: {"groups": 0, "stored": 0}  # noqa: E731
    if kind == "durable":
        durable = DurableSink(str(Path(directory, "queue")), reactor, max_bytes=1 << 40)
        reactor.addSystemEventTrigger("before", "shutdown", durable.close)
        sink = durable

        def counted() -> dict[str, int]:
            values = durable.writer.statistics()
            return {"groups": values["groups"], "stored": values["stored_octets"]}

    ports = listen(reactor, sink)
    answer_usage(reactor, ports["sabc"], lambda: {"ports": ports, **counted()})
    reactor.run()


if __name__ == "__main__":
    serve(*sys.argv[1:])
