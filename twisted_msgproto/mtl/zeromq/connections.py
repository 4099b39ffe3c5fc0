"""Connections of libzmq: what the system says of them, their serials, and how many there may be.

libzmq names a connection by its descriptor.  Another connection may have that descriptor as soon as
libzmq has closed it, so whatever changes a connection compares addresses before.

So each connection gets a serial in our answer to its ZAP request, which libzmq puts into the
metadata of all its messages (``MT-30``).  Before each answer the monitors are read until they are
empty: when a descriptor is told to be disconnected, every serial under it that was given until then
belongs to a connection that has ended, also one whose messages were not read yet.

A connection above a limit is shut down at its descriptor, and its peer connects again by itself.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import sys
import termios
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final

import zmq

from ...net.peers import CROWDED

# ── What the system says ──────────────────────────────────────────────────────────────────────────


TCP_INFO: Final = struct.Struct("=24xI24xI")
"""The beginning of Linux's ``tcp_info``: segments that are not acknowledged, and milliseconds since
data came last."""


def silent_seconds(descriptor: int) -> float | None:
    """Return how long nothing has come from the other end of a TCP connection, in seconds.

    None if something of ours is not acknowledged by it, or where the system does not tell.
    """
    with suppress(OSError, AttributeError), socket.socket(fileno=os.dup(descriptor)) as connection:
        data = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO.size)
        unacknowledged, milliseconds = TCP_INFO.unpack(data)
        return None if unacknowledged else float(milliseconds / 1e3)
    return None


@contextmanager
def standing(descriptor: int, endpoint: str) -> Iterator[socket.socket | None]:
    """Yield the connection that was accepted at this endpoint, or connected to it.

    It is None if the descriptor is another one's by now; OSError is raised if it is nobody's.
    """
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        yield connection if _belongs(connection, endpoint) else None


def shut_down(
    descriptor: int, peer: tuple[str] | tuple[str, int], *, at_once: bool = False
) -> bool:
    """Shut down the TCP connection with this host, and port; return whether it still existed.

    libzmq still reads the bytes that came before, up to 2 MiB; ``at_once`` discards them.
    """
    with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
        # The descriptor may be somebody else's by now.
        if address_of(connection) and connection.getpeername()[: len(peer)] == peer:
            connection.shutdown(socket.SHUT_RDWR)
            if at_once:
                throw_away(connection)
            return True
    return False


def waiting_in(descriptor: int) -> int | None:
    """Return how many bytes wait in the kernel to be read; None if there is no such connection."""
    with suppress(OSError):
        found: int = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)))[0]
        return found
    return None


def throw_away(connection: socket.socket) -> None:
    """Throw away what waits to be read from a TCP connection after its end.

    Linux accepts nothing more for it.  One call reads everything: between two of them libzmq's
    thread could read the bytes behind a gap.  With MSG_TRUNC Linux copies nothing.
    """
    if sys.platform == "linux":
        nbytes = waiting_in(connection.fileno())
        with suppress(OSError):
            connection.recv(nbytes or 1, socket.MSG_TRUNC | socket.MSG_DONTWAIT)


def address_of(connection: socket.socket) -> str:
    """Return the host at the other end; "" on ipc."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return ""
    host: str = connection.getpeername()[0]
    return host


def _belongs(connection: socket.socket, endpoint: str) -> bool:
    """The descriptor is still what was accepted or connected there, and not somebody else's."""
    here = connection.getsockname()
    if isinstance(here, tuple):
        ports = (here[1], connection.getpeername()[1])
        return endpoint.rpartition(":")[2] in map(str, ports)
    path = here if isinstance(here, str) else "@" + here[1:].decode()
    return endpoint == f"ipc://{path}"


# ── Serials ───────────────────────────────────────────────────────────────────────────────────────


PROPERTY: Final = "X-Connection"
"""A message's metadata has its connection's serial under this name; peers cannot set it."""

DESCRIPTOR: Final = "__fd"
"""libzmq's metadata names the descriptor like this (its option ``ZMQ_SRCFD`` reads it)."""

_LENGTH: Final = struct.Struct(">I")


def metadata(serial: int) -> bytes:
    """Return the metadata of a ZAP reply that assigns this serial."""
    name, value = PROPERTY.encode(), b"%d" % serial
    return bytes([len(name)]) + name + _LENGTH.pack(len(value)) + value


class Connections:
    def __init__(self) -> None:
        self._given = 0
        self._closed: dict[int, int] = {}  # descriptor → the last serial given when it was closed
        self._standing: dict[int, dict[int, Callable[[int], None]]] = {}

    def admit(self) -> int:
        """The serial of a connection that is let in now; the monitors were read before."""
        self._given += 1
        return self._given

    def stands(self, serial: int, descriptor: int, ended: Callable[[int], None]) -> bool:
        """A first message of this connection was read; whether it stands still.

        If it does, ``ended(serial)`` is called when it ends.
        """
        if serial <= self._closed.get(descriptor, 0):
            return False
        self._standing.setdefault(descriptor, {})[serial] = ended
        return True

    def disconnected(self, descriptor: int) -> None:
        """Libzmq has told that the connection at this descriptor has ended."""
        self._closed[descriptor] = self._given
        for serial, ended in self._standing.pop(descriptor, {}).items():
            ended(serial)


# ── Admission ─────────────────────────────────────────────────────────────────────────────────────


EVENTS: Final = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL

EVENT: Final = struct.Struct("=Hi")


class ConnectionAdmission:
    """The connections of one server, through all its sockets.

    Attributes:
        connections: the address behind each descriptor that is connected; "" on ipc.
        refused: called with the address and the reason when a hand-shake fails; the address is ""
            where it is not known.
    """

    def __init__(
        self,
        limit: int,
        per_address: int,
        turned_away: Callable[[str], None],
        refused: Callable[[str, str], None] = lambda address, text: None,
        room: Callable[[str, Mapping[int, str]], int | None] = lambda address, connections: None,
    ) -> None:
        """``limit`` connections in all, ``per_address`` of one address (0: any number).

        ``turned_away(limit)`` is called with the name of the limit, ``refused(address, text)`` for
        who may not connect for another reason.  ``room(address, connections)`` returns the
        descriptor that is closed for a newcomer, or None; it is asked when nearly all that may
        connect have.
        """
        self._room = room
        self.refused = refused
        self.connections: dict[int, str] = {}
        self._limit = limit
        self._per_address = per_address
        self._turned_away = turned_away
        self._addresses: Counter[str] = Counter()
        self._listeners: dict[int, object] = {}  # by descriptor

    def failures(self, messages: list[list[bytes]], curve: bool) -> list[list[bytes]]:
        """Tell of hand-shakes that have failed; return the events that are about descriptors.

        libzmq tells of the descriptor right after the failure.
        """
        rest: list[list[bytes]] = []
        text = ""
        for message in messages:
            kind, value = EVENT.unpack(message[0])
            if kind == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
                text = failed_hand_shake(value, curve)
                continue
            if text and kind == zmq.EVENT_DISCONNECTED:
                self.refused(self.connections.get(value, ""), text)
                text = ""
            rest.append(message)
        return rest

    def happened(self, messages: list[list[bytes]], listener: object = None) -> None:
        """Follow everything that libzmq has to say now of the connections of one ``listener``.

        Listeners are asked one after the other.  So the end of a connection may be told after
        another listener has accepted one at the same descriptor; that one stays.
        """
        new: dict[int, str] = {}
        for event, where in messages:
            kind, descriptor = EVENT.unpack(event)
            new.pop(descriptor, None)
            if self._listeners.get(descriptor) is listener:
                self._forget(descriptor)
            if kind == zmq.EVENT_ACCEPTED:
                new[descriptor] = where.decode()
        for descriptor, endpoint in new.items():
            self._accepted(descriptor, endpoint, listener)

    def _forget(self, descriptor: int) -> None:
        self._listeners.pop(descriptor, None)
        address = self.connections.pop(descriptor, "")
        if address:
            self._addresses[address] -= 1
            if not self._addresses[address]:
                del self._addresses[address]

    def _accepted(self, descriptor: int, endpoint: str, listener: object) -> None:
        try:
            with standing(descriptor, endpoint) as connection:
                if connection is None:
                    return
                self._forget(descriptor)  # the end of its former owner is told later
                address = address_of(connection)
                if len(self.connections) >= self._limit * CROWDED:
                    self._make_room(address)
                limit = self._exceeded(address)
                if limit:
                    connection.shutdown(socket.SHUT_RDWR)
                    self._turned_away(limit)
                    return
        except OSError:
            return  # it has gone already
        self.connections[descriptor] = address
        self._listeners[descriptor] = listener
        if address:
            self._addresses[address] += 1

    def _make_room(self, address: str) -> None:
        silent = self._room(address, self.connections)
        if silent is not None:
            where = self.connections[silent]
            self._forget(silent)
            shut_down(silent, (where,))

    def _exceeded(self, address: str) -> str:
        if len(self.connections) >= self._limit:
            return "connections"
        if address and self._per_address and self._addresses[address] >= self._per_address:
            return "connections-per-address"
        return ""


def failed_hand_shake(error: int, curve: bool) -> str:
    """Return what is wrong with a peer whose hand-shake ended with this error of libzmq's."""
    if error == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH:
        return (
            "it has no CURVE keys, and --curve-key wants them"
            if curve
            else ("it wants CURVE, and there is no --curve-key")
        )
    if error == zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC:
        return "it has another public key for this server than that of --curve-key"
    return "its hand-shake is none of ZeroMQ's"
