"""Captures of TCP connections for tshark: octets in, a pcap file out."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

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
        segment: a TCP segment holds at most so many octets.
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

    def _packet(self, side: int, flags: int, octets: bytes = b"") -> None:
        ports = self._ports[side], self._ports[1 - side]
        numbers = self._sent[side], self._sent[1 - side] if flags & _ACK else 0
        tcp = struct.pack(">HHIIBBHHH", *ports, *numbers, 5 << 4, flags, 65535, 0, 0) + octets
        hosts = _HOSTS[side] + _HOSTS[1 - side]
        ip = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0x4000, 64, 6, 0) + hosts
        self._capture.add(ip + tcp)
        self._sent[side] += len(octets) + bool(flags & (_SYN | _FIN))

    def _send(self, side: int, octets: bytes) -> None:
        for at in range(0, len(octets), self._capture.segment):
            self._packet(side, _PUSH | _ACK, octets[at : at + self._capture.segment])

    def client(self, octets: bytes) -> None:
        self._send(0, octets)

    def server(self, octets: bytes) -> None:
        self._send(1, octets)

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
    return head + mask + bytes(octet ^ mask[at % 4] for at, octet in enumerate(body))
