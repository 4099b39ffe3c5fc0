"""Clients that speak ZMTP by hand and never end a message."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

from tests.mtl.plain import PATIENCE_MS

GREETING = (b"\xff" + bytes(8) + b"\x7f\x03\0" + b"NULL".ljust(20, b"\0")).ljust(64, b"\0")
PROPERTY = b"\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"
READY = b"\x05READY" + PROPERTY
HELLO = GREETING + b"\x04" + bytes([len(READY)]) + READY


def frame(octets: int) -> bytes:
    """A frame of so many octets after which another one comes."""
    if octets < 256:
        return b"\x01" + bytes([octets]) + bytes(octets)
    return b"\x03" + struct.pack(">Q", octets) + bytes(octets)


def without_end(octets: int) -> Iterator[bytes]:
    """The hand-shake, and frames of so many octets of one message, for ever."""
    yield HELLO
    some = frame(octets) * max(1, 65_536 // (octets + 2))
    while True:
        yield some


def until_cut_off(host: str, port: int, octets: int) -> int:
    """Send a message that never ends until the server closes the connection; what was sent.

    TimeoutError if the server takes no more and does not close it.
    """
    sent = 0
    with socket.create_connection((host, port), PATIENCE_MS / 1000) as connection:
        try:
            for some in without_end(octets):
                connection.sendall(some)
                sent += len(some)
        except ConnectionError:
            pass
    return sent
