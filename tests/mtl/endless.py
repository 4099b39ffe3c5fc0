"""Clients that speak ZMTP by hand and never end a message."""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Callable
from contextlib import suppress

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


def always() -> bool:
    """It goes on until the server ends it."""
    return True


def join(host: str, port: int) -> socket.socket:
    """A connection whose hand-shake is over: libzmq wants nothing before that."""
    connection = socket.create_connection((host, port), PATIENCE_MS / 1000)
    connection.sendall(HELLO)
    heard = b""
    while b"ROUTER" not in heard:
        octets = connection.recv(1000)
        assert octets, heard
        heard += octets
    return connection


def until_cut_off(host: str, port: int, octets: int, going: Callable[[], bool] = always) -> int:
    """Send a message of such frames that never ends until the server closes the connection.

    Return what was sent, also when it is ``going`` no more.  What is in the kernel of either side
    when the server closes may never be taken, so this looks for the end and not for a reset.
    """
    some = memoryview(frame(octets) * max(1, 65_536 // (octets + 2)))
    sent = 0
    with join(host, port) as connection, suppress(ConnectionError):
        connection.setblocking(False)
        while going():
            readable, writable, _ = select.select([connection], [connection], [], 0.1)
            if readable and not connection.recv(1000):
                break
            if writable:
                sent += connection.send(some[sent % len(some) :])
    return sent
