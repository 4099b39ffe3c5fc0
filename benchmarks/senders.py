"""Senders of each protocol: plain sockets, and bytes that were made before the clock runs."""

from __future__ import annotations

import base64
import json
import selectors
import socket
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from itertools import cycle, islice, repeat
from typing import Any

BODY = b'{"n": 12345, "message": "' + b"a line of a log " * 17 + b'"}'
"""About 300 bytes, as the lines of logs have."""
SILENT_SECONDS_MAX = 60.0
READ_BYTES = 1 << 18


class Sender:
    """One connection with its handshake through.

    Attributes:
        socket: the connection.
        windows: bytes of a window each, without end.
        size: messages of a window.
    """

    socket: socket.socket
    windows: Iterator[bytes]
    size: int

    def __init__(self, port: int, size: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), SILENT_SECONDS_MAX)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.size = size
        self._rest = b""

    def heard(self, data: bytes) -> int:
        """Return how many messages these bytes of the server acknowledge."""
        raise NotImplementedError

    def receive(self) -> bytes:
        """Return what comes next."""
        data = self.socket.recv(READ_BYTES)
        if not data:
            raise RuntimeError("the server closed the connection")
        return data


def lumberjack_window(size: int, body: bytes = BODY, compressed: bool = False) -> bytes:
    """Return a window of version 2."""
    head = struct.Struct(">2sII").pack
    frames = b"".join(head(b"2J", n, len(body)) + body for n in range(1, size + 1))
    if compressed:
        packed = zlib.compress(frames, 3)
        frames = b"2C" + struct.pack(">I", len(packed)) + packed
    return b"2W" + struct.pack(">I", size) + frames


class LumberjackSender(Sender):
    """Sends windows; an ack has the number of the last event."""

    def __init__(self, port: int, size: int) -> None:
        super().__init__(port, size)
        self.windows = repeat(lumberjack_window(size))

    def heard(self, data: bytes) -> int:
        """Count the acks of whole windows."""
        self._rest += data
        end = len(self._rest) // 6 * 6
        acks, self._rest = self._rest[:end], self._rest[end:]
        last = self.size.to_bytes(4, "big")
        return self.size * sum(acks[at + 2 : at + 6] == last for at in range(0, end, 6))


def micromsg2_message(number: int, address: bytes) -> bytes:
    """Return a message of 100 bytes."""
    head = b"\0" + struct.pack(">H", number) + bytes((len(address),)) + address
    return head + b"\0\0" + bytes((100,)) + BODY[:100]


@cache
def _micromsg2_messages() -> list[bytes]:
    return [micromsg2_message(number, b"orders") for number in range(1, 1 << 16)]


def _micromsg2_windows(size: int) -> Iterator[bytes]:
    messages = cycle(_micromsg2_messages())
    while True:
        yield b"".join(islice(messages, size))


class MicroMsg2Sender(Sender):
    """Sends messages to one queue; the server acknowledges ``size`` of them at a time."""

    def __init__(self, port: int, size: int, extensions: str = "batch-ack:max-count={}") -> None:
        super().__init__(port, size)
        required = extensions.format(size).encode()
        opening = b"\1\0\0\x05bench" + struct.pack(">H", len(required)) + required + b"\0\0"
        self.socket.sendall(opening)
        self.receive()
        self.socket.sendall(opening)
        self.windows = _micromsg2_windows(size)
        self._bytes = 0

    def command(self, text: str) -> None:
        """Send a command; nothing answers one that is followed."""
        self.socket.sendall(b"\1" + bytes((len(text),)) + text.encode())

    def subscribe(self, destination: str) -> None:
        """Subscribe, and wait until the server has read it."""
        self.command(f"subscribe;destination={destination}")
        self.command("unsubscribe;destination=topic%2Fnone")  # this one is answered
        self.receive()

    def heard(self, data: bytes) -> int:
        """Count the batch acks."""
        acks, self._bytes = divmod(self._bytes + len(data), 5)
        return acks * self.size


class SabcSender(Sender):
    """Sends requests; each is acknowledged by a message of its own, whose last byte is NUL."""

    def __init__(self, port: int, size: int) -> None:
        super().__init__(port, size)
        self.socket.sendall(b"CONNECT\r\nclient-id::bench\r\nframing::length\r\n\r\n\0")
        answer = b""
        while not answer.endswith(b"\0"):
            answer += self.receive()
        session = answer.split(b"session-id::")[1].split(b"\r\n")[0]
        body, lines = BODY[:100], (b"MESSAGE", b"session-id::" + session, b"msg-id::%d")
        one = b"\r\n".join((*lines, b"content-length::100", b"", body, b"", b"\0"))
        self.windows = cycle(
            b"".join(one.replace(b"%d", b"%d" % n) for n in range(begin, begin + size))
            for begin in range(0, 64 * size, size)
        )

    def heard(self, data: bytes) -> int:
        """Count the acknowledgements."""
        return data.count(b"\0")


class UmqSender(Sender):
    """Sends calls; each has a result, a short text message of the WebSocket."""

    def __init__(self, port: int, size: int) -> None:
        super().__init__(port, size)
        key = base64.b64encode(bytes(16)).decode()
        self.socket.sendall(
            (
                "GET / HTTP/1.1\r\nHost: bench\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
            ).encode()
        )
        while b"\r\n\r\n" not in self._rest:
            self._rest += self.receive()
        self._rest = self._rest.split(b"\r\n\r\n", 1)[1]
        self.socket.sendall(self._text(b"H1:"))
        while not self.heard(b""):  # the welcome
            self._rest += self.receive()
        self.windows = cycle(
            b"".join(self._text(b"C%d:" % n + BODY[:100]) for n in range(begin, begin + size))
            for begin in range(1000, 1000 + 64 * size, size)
        )

    @staticmethod
    def _text(payload: bytes) -> bytes:
        """Return a text message of a WebSocket client, masked with zeros."""
        return bytes((0x81, 0x80 | len(payload))) + bytes(4) + payload

    def heard(self, data: bytes) -> int:
        """Count the messages: the server sends nothing but results."""
        rest = self._rest + data
        at = count = 0
        while len(rest) - at >= 2 and len(rest) - at >= 2 + rest[at + 1]:
            at += 2 + rest[at + 1]
            count += 1
        self._rest = rest[at:]
        return count


SENDERS: dict[str, Callable[[int, int], Sender]] = {
    "lumberjack": LumberjackSender,
    "micromsg2": MicroMsg2Sender,
    "sabc": SabcSender,
    "umq": UmqSender,
}


class _Flow:
    """What one connection has in flight."""

    def __init__(self, sender: Sender, windows: int, in_flight: int) -> None:
        self.sender, self._left = sender, windows
        self._in_flight = in_flight * sender.size
        self._missing, self._unsent = 0, memoryview(b"")
        sender.socket.setblocking(False)

    @property
    def done(self) -> bool:
        return not self._left and not self._missing

    def send(self) -> bool:
        """Send what may be in flight; return whether bytes are left over."""
        while True:
            if not self._unsent:
                if not self._left or self._missing + self.sender.size > self._in_flight:
                    return False
                self._left -= 1
                self._missing += self.sender.size
                self._unsent = memoryview(next(self.sender.windows))
            try:
                self._unsent = self._unsent[self.sender.socket.send(self._unsent) :]
            except BlockingIOError:
                return True

    def hear(self) -> None:
        self._missing -= self.sender.heard(self.sender.receive())


def drive(senders: list[Sender], messages: int, in_flight: int) -> None:
    """Send messages over some connections, each with ``in_flight`` windows not acknowledged.

    Raises RuntimeError if the server closes a connection or is silent.
    """
    flows = [_Flow(one, max(1, messages // one.size // len(senders)), in_flight) for one in senders]
    with selectors.DefaultSelector() as selector:
        for flow in flows:
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if flow.send() else 0)
            selector.register(flow.sender.socket, wanted, flow)
        while not all(flow.done for flow in flows):
            ready = selector.select(SILENT_SECONDS_MAX)
            if not ready:
                raise RuntimeError(f"the server was silent for {SILENT_SECONDS_MAX:g} s")
            for key, events in ready:
                if events & selectors.EVENT_READ:
                    key.data.hear()
                wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if key.data.send() else 0)
                if key.events != wanted:
                    selector.modify(key.fileobj, wanted, key.data)


def one_by_one(sender: Sender, count: int) -> list[float]:
    """Return the seconds to the ack of each of ``count`` windows, one after the other."""
    seconds = []
    for window in islice(sender.windows, count):
        began, missing = time.perf_counter(), sender.size
        sender.socket.sendall(window)
        while missing > 0:
            missing -= sender.heard(sender.receive())
        seconds.append(time.perf_counter() - began)
    return seconds


class Mtl:
    """A client of MTL: plain pyzmq, one session on the control port, and its data."""

    def __init__(self, port: int) -> None:
        import zmq

        self._context = zmq.Context()
        self._zmq = zmq
        self._control = self._context.socket(zmq.REQ)
        self._control.connect(f"tcp://127.0.0.1:{port}")
        self._ask("Open", protocol={"name": "MTL", "version": 1}, virtual_host="bench")
        self._ask("Profile", profile="ingest")
        reply = self._ask("Writer", resources=["bench"], confirm="full")
        self._data = self._context.socket(zmq.DEALER)
        self._data.connect(f"tcp://127.0.0.1:{reply['port']}")
        token = reply["lease"].encode()
        self._data.send_multipart([b"\1" + bytes(8) + bytes([len(token)]) + token, b""])
        self._data.recv_multipart()
        self._sent = self._confirmed = 0

    def _ask(self, command: str, **body: Any) -> Any:
        text = json.dumps({key.replace("_", "-"): value for key, value in body.items()})
        self._control.send_multipart([b"Connection." + command.encode(), text.encode()])
        return json.loads(self._control.recv_multipart()[1])

    def drive(self, messages: int, ahead: int) -> None:
        """Write contents of one resource, at most ``ahead`` of them not confirmed yet."""
        last, tail, body = self._sent + messages, b"\x05bench\0\0\0\0", BODY[:100]
        while self._confirmed < last:
            while self._sent < last and self._sent - self._confirmed < ahead:
                self._sent += 1
                self._data.send_multipart([b"\5" + self._sent.to_bytes(8, "big") + tail, body])
            header = self._data.recv_multipart()[0]
            if header[0] == 8:
                self._data.send_multipart([b"\x09", b""])
            elif header[0] == 6:
                self._confirmed = max(self._confirmed, int.from_bytes(header[1:9], "big"))

    def close(self) -> None:
        """Close the sockets."""
        self._context.destroy(linger=0)
