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

import errno
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
        # Called with its descriptor when a first message of a connection that stands was read.
        self.heard: Callable[[int], None] = lambda descriptor: None
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
        self.heard(descriptor)
        return True

    def disconnected(self, descriptor: int) -> None:
        """Libzmq has told that the connection at this descriptor has ended."""
        self._closed[descriptor] = self._given
        for serial, ended in self._standing.pop(descriptor, {}).items():
            ended(serial)


# ── Admission ─────────────────────────────────────────────────────────────────────────────────────


EVENTS: Final = (
    zmq.EVENT_ACCEPTED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)

EVENT: Final = struct.Struct("=Hi")

LEFT: Final = ""
TOO_SLOW: Final = "its hand-shake took longer than the limit handshake allows"
OTHER_PROTOCOL: Final = (
    "it does not speak ZMTP 3: it is a ZeroMQ before version 4, or no ZeroMQ at all"
)


class Strangers:
    """Connections of which no message was read yet: how many of them ended without a hand-shake.

    libzmq ends a connection of ZMTP 1 or 2, or of another protocol, without an event of its own, as
    it tells every end.  Nor does it say which connection its ZAP request is about: only the address
    is known.  So the ends of an address without a reason are told as soon as they are more than
    were asked about.
    """

    def __init__(self, tell: Callable[[str, str], None]) -> None:
        self._tell = tell
        self._standing: dict[int, str] = {}  # descriptor → address
        self._open: Counter[str] = Counter()
        self._ended: Counter[str] = Counter()  # without a reason
        self._asked: Counter[str] = Counter()

    def accepted(self, descriptor: int, address: str) -> None:
        self._standing[descriptor] = address
        self._open[address] += 1

    def asked(self, address: str) -> None:
        """Note that libzmq asks by ZAP about one of this address."""
        if self._open[address]:
            self._asked[address] += 1

    def heard(self, descriptor: int) -> None:
        self._gone(descriptor, self._asked, -1)

    def ended(self, descriptor: int, reason: str | None) -> None:
        """It has ended, for a reason that was told or need not be; None: libzmq says none."""
        self._gone(descriptor, self._ended, 1 if reason is None else 0)

    def _gone(self, descriptor: int, counter: Counter[str], change: int) -> None:
        address = self._standing.pop(descriptor, None)
        if address is None:
            return
        self._open[address] -= 1
        counter[address] += change
        while self._ended[address] > self._asked[address]:
            self._ended[address] -= 1
            self._tell(address, OTHER_PROTOCOL)
        if not self._open[address]:
            del self._open[address], self._ended[address], self._asked[address]


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
        self._failing: dict[object, str] = {}  # by listener: why its next connection ends
        self.strangers = Strangers(self._tell)

    def happened(
        self, messages: list[list[bytes]], listener: object = None, *, curve: bool = False
    ) -> list[list[bytes]]:
        """Follow everything that libzmq has to say now of the connections of one ``listener``.

        Listeners are asked one after the other.  So the end of a connection may be told after
        another listener has accepted one at the same descriptor; that one stays.  Tell of
        hand-shakes that have failed, and return the events that are about descriptors: libzmq tells
        of the descriptor right after the failure.
        """
        rest: list[list[bytes]] = []
        new: dict[int, str] = {}
        for message in messages:
            kind, descriptor = EVENT.unpack(message[0])
            if kind == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
                self._failing[listener] = failed_hand_shake(descriptor, curve)
                continue
            if kind == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
                # Who only looks whether somebody listens is no fault.
                self._failing[listener] = TOO_SLOW if descriptor == errno.EAGAIN else LEFT
                continue
            rest.append(message)
            reason = self._failing.pop(listener, None)
            if new.pop(descriptor, None) is not None:
                # Nobody can say any more whose it was, and libzmq has not asked about it.
                self._tell("", OTHER_PROTOCOL if reason is None else reason)
            if self._listeners.get(descriptor) is listener:
                self._tell(self.connections.get(descriptor, ""), reason or LEFT)
                self._forget(descriptor, reason)
            if kind == zmq.EVENT_ACCEPTED:
                new[descriptor] = message[1].decode()
        for descriptor, endpoint in new.items():
            self._accepted(descriptor, endpoint, listener)
        return rest

    def _tell(self, address: str, text: str) -> None:
        if text != LEFT:
            self.refused(address, text)

    def _forget(self, descriptor: int, reason: str | None = LEFT) -> None:
        self._listeners.pop(descriptor, None)
        self.strangers.ended(descriptor, reason)
        address = self.connections.pop(descriptor, "")
        if address:
            self._addresses[address] -= 1
            if not self._addresses[address]:
                del self._addresses[address]

    def _accepted(self, descriptor: int, endpoint: str, listener: object) -> None:
        address = ""
        try:
            with standing(descriptor, endpoint) as connection:
                if connection is not None:
                    self._forget(descriptor)  # the end of its former owner is told later
                    address = address_of(connection)
                    if len(self.connections) >= self._limit * CROWDED:
                        self._make_room(address)
                    limit = self._exceeded(address)
                    if limit:
                        connection.shutdown(socket.SHUT_RDWR)
                        self._turned_away(limit)
                        return
                    self.connections[descriptor] = address
                    if address:
                        self._addresses[address] += 1
        except OSError:
            pass  # it has gone already, and its end is told later
        if self._listeners.setdefault(descriptor, listener) is listener:
            self.strangers.accepted(descriptor, address)

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
