"""Clients that speak ZMTP by hand and never end a message."""

from __future__ import annotations

import select
import socket
import struct
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.mtl.plain import LEASE, PATIENCE_MS, Plain, short

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="TCP_INFO tells what came: Linux")

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


class Endless:
    """Peers that send messages without an end, from one thread; who is cut off comes again.

    Attributes:
        cut: how often one was cut off.
        sent: octets of them all.
    """

    def __init__(self, join: Callable[[], socket.socket], count: int, octets: int) -> None:
        self._join = join
        self._some = memoryview(frame(octets) * max(1, 65_536 // (octets + 2)))
        self._peers: dict[int, tuple[socket.socket, int]] = {}
        self._poll = select.epoll()
        self._over = threading.Event()
        self.cut = self.sent = 0
        for _ in range(count):
            self._come()
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def _come(self) -> None:
        peer = self._join()
        peer.setblocking(False)
        self._peers[peer.fileno()] = (peer, 0)
        self._poll.register(peer, select.EPOLLIN | select.EPOLLOUT)

    def _send(self) -> None:
        while not self._over.is_set():
            for descriptor, events in self._poll.poll(0.1):
                peer, sent = self._peers[descriptor]
                try:
                    ended = bool(events & select.EPOLLIN) and not peer.recv(1000)
                    if not ended:
                        octets = peer.send(self._some[sent % len(self._some) :])
                        self._peers[descriptor] = (peer, sent + octets)
                        self.sent += octets
                except BlockingIOError:
                    continue
                except OSError:
                    ended = True
                if ended:
                    self._poll.unregister(descriptor)
                    del self._peers[descriptor]
                    peer.close()
                    self.cut += 1
                    with suppress(OSError, AssertionError):
                        self._come()

    def close(self) -> None:
        self._over.set()
        self._thread.join(PATIENCE_MS / 1000)
        for peer, _ in self._peers.values():
            peer.close()
        self._poll.close()


class Leased:
    """Joins peers that have opened a flow each."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._clients: list[Plain] = []
        self._leases = 0

    def __call__(self) -> socket.socket:
        if self._leases % 60 == 0:
            self._clients.append(Plain(f"tcp://127.0.0.1:{self._port}").ready("ingest"))
        self._leases += 1
        _, reply = self._clients[-1].ask("Connection.Writer", resources=["a"], confirm="full")
        connection = join("127.0.0.1", self._port)
        header = struct.pack(">BQ", LEASE, 1) + short(reply["lease"])
        connection.sendall(b"\x01" + bytes([len(header)]) + header + b"\0\0")
        heard = b""
        while not heard.endswith(b"200"):
            octets = connection.recv(1000)
            assert octets, heard
            heard += octets
        return connection

    def close(self) -> None:
        for client in self._clients:
            client.context.destroy(linger=0)
