"""Bytes, frames and columns as they stand on a wire, and captures of them for tshark."""

from __future__ import annotations

import struct
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from twisted_msgproto.core.errors import Fault
from twisted_msgproto.core.packed import PackedBytes, PackedMaps, PackedNumbers
from twisted_msgproto.lumberjack.wire.frames import Json, Window


def flatten(events):
    """Messages one by one, as (class, column values…), and at the end the fault's reason."""
    flat = []
    for event in events:
        if isinstance(event, Fault):
            flat.append(("fault", event.reason))
            continue
        columns = [
            getattr(event, name)
            for name in event.__slots__
            if isinstance(getattr(event, name), Sequence)
        ]
        flat += [(type(event).__name__, *row) for row in zip(*columns, strict=True)]
    return flat


def windows_apart(frames: Iterable[Any]) -> Iterator[Any]:
    """``frames``, with each W frame that stands among J frames as a frame of its own."""
    for frame in frames:
        if not isinstance(frame, Json):
            yield frame
            continue
        start = 0
        for end, size in (*frame.windows, (len(frame.sequences), None)):
            if end > start:
                bodies: Any = frame.bodies[start:end]
                numbers: Any = frame.sequences[start:end]
                octets = 10 * len(bodies) + sum(map(len, bodies))
                yield Json(frame.version, numbers, bodies, octets, frame.compressed)
            if size is not None:
                yield Window(frame.version, size, frame.compressed)
            start = end


def packed_rows(texts: Sequence[bytes], before: bytes = b"") -> PackedBytes:
    """The texts one behind another, between bytes which belong to none of them."""
    bounds = array("i", [len(before)])
    for text in texts:
        bounds.append(bounds[-1] + len(text))
    return PackedBytes(before + b"".join(texts) + b"behind", bounds)


def packed_frames(
    numbers: Sequence[int], bodies: Sequence[bytes]
) -> tuple[PackedNumbers, PackedBytes]:
    return PackedNumbers("q", numbers), packed_rows(bodies, b"??")


def packed_maps(values: Sequence[Mapping[str, str]]) -> PackedMaps:
    bounds = array("i", [0])
    for value in values:
        bounds.append(bounds[-1] + len(value))
    keys = packed_rows([key.encode() for value in values for key in value])
    items = packed_rows([item.encode() for value in values for item in value.values()])
    return PackedMaps(bounds, keys, items)


def deflated(nbytes: bytes, times: int = 1, level: int = 9) -> bytes:
    """``nbytes`` × ``times`` as a zlib stream, made without ever having them.

    They are deflated once: what was flushed fully stands for itself, however often it is repeated.
    """
    deflating = zlib.compressobj(level, wbits=-zlib.MAX_WBITS)
    block = deflating.compress(nbytes) + deflating.flush(zlib.Z_FULL_FLUSH)
    checksum = 1
    for _ in range(times):
        checksum = zlib.adler32(nbytes, checksum)
    return b"\x78\xda" + block * times + deflating.flush() + struct.pack(">I", checksum)


_RAW_IP = 101
_SYN, _ACK, _PUSH, _FIN = 2, 16, 8, 1
_HOSTS = (bytes((10, 0, 0, 1)), bytes((10, 0, 0, 2)))
_FIRST_CLIENT_PORT = 40_000

UPGRADE = (
    "GET / HTTP/1.1\r\nHost: server\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Protocol: {0}\r\n\r\n"
)
UPGRADED = (
    "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nSec-WebSocket-Protocol: {0}\r\n\r\n"
)


class Capture:
    """Holds packets of any number of connections, one after another.

    Attributes:
        segment: a TCP segment holds at most so many bytes.
    """

    def __init__(self, segment: int = 1400) -> None:
        self.segment = segment
        self._packets: list[bytes] = []
        self._connections = 0

    def connection(self, port: int) -> Connection:
        self._connections += 1
        return Connection(self, _FIRST_CLIENT_PORT + self._connections, port)

    def add(self, packet: bytes) -> None:
        self._packets.append(packet)

    def write(self, path: Path) -> Path:
        with path.open("wb") as file:
            file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 1 << 18, _RAW_IP))
            for number, packet in enumerate(self._packets):
                seconds, thousandths = divmod(number, 1000)
                size = len(packet)
                file.write(struct.pack("<IIII", seconds, thousandths * 1000, size, size))
                file.write(packet)
        return path


class Connection:
    def __init__(self, capture: Capture, client: int, server: int) -> None:
        self._capture = capture
        self._ports = (client, server)
        self._sent = [0, 0]
        self._packet(0, _SYN)
        self._packet(1, _SYN | _ACK)
        self._packet(0, _ACK)

    def _packet(self, side: int, flags: int, nbytes: bytes = b"") -> None:
        ports = self._ports[side], self._ports[1 - side]
        numbers = self._sent[side], self._sent[1 - side] if flags & _ACK else 0
        tcp = struct.pack(">HHIIBBHHH", *ports, *numbers, 5 << 4, flags, 65535, 0, 0) + nbytes
        hosts = _HOSTS[side] + _HOSTS[1 - side]
        ip = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0x4000, 64, 6, 0) + hosts
        self._capture.add(ip + tcp)
        self._sent[side] += len(nbytes) + bool(flags & (_SYN | _FIN))

    def _send(self, side: int, nbytes: bytes) -> None:
        for at in range(0, len(nbytes), self._capture.segment):
            self._packet(side, _PUSH | _ACK, nbytes[at : at + self._capture.segment])

    def client(self, nbytes: bytes) -> None:
        self._send(0, nbytes)

    def server(self, nbytes: bytes) -> None:
        self._send(1, nbytes)

    def upgrade(self, subprotocol: str) -> None:
        self.client(UPGRADE.format(subprotocol).encode())
        self.server(UPGRADED.format(subprotocol).encode())

    def messages(self, side: str, messages: Iterable[str | bytes]) -> None:
        masked = side == "client"
        octets = b"".join(websocket_frame(message, masked) for message in messages)
        (self.client if masked else self.server)(octets)


def websocket_frame(message: str | bytes, masked: bool) -> bytes:
    """One message in one frame; what a client sends is masked."""
    text = isinstance(message, str)
    body = message.encode() if isinstance(message, str) else message
    size, high = len(body), 0x80 if masked else 0
    length = (high | size,) if size < 126 else (high | 126, size >> 8, size & 255)
    head = bytes((0x81 if text else 0x82, *length))
    if not masked:
        return head + body
    mask = b"\x11\x22\x33\x44"
    return head + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(body))
