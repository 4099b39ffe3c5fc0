"""Who may connect to a ROUTER: counts its connections and turns away those above the limits.

libzmq takes as many connections as there are file descriptors, and each may fill its share of
memory.  It says which descriptor it has accepted and which it has lost; a connection above a limit
is shut down at its descriptor, and its peer comes again later by itself.
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

from ...net.room import CROWDED
from .bounded import KERNEL_OCTETS

EVENTS: Final = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
"""What a socket is asked to tell."""

EVENT: Final = struct.Struct("=Hi")

TCP_INFO: Final = struct.Struct("=24xI24xI")
"""The beginning of Linux's ``tcp_info``: segments that are not acknowledged, and milliseconds since
data came last."""

KERNEL_SHARED_OCTETS: Final = 64 << 20
"""The kernel is asked to hold this much, divided by the connections that there are, of a new one;
Linux takes twice as much.

Those that came before keep their larger shares: a thousand may leave 240 MiB, and each further one
:data:`KERNEL_OCTETS_LEAST`.

libzmq reads whatever waits of one connection at once, and goes round all connections that have
something.  So this much comes until it sees that a connection was cut off.  Measured with 1,000
senders at once: 0.4 s and 480 MB passed when each could leave :data:`KERNEL_OCTETS`.
"""

KERNEL_OCTETS_LEAST: Final = 64 << 10
"""A connection may leave this much even in a crowd: 1.3 MB a second where a round trip takes
100 ms."""


class Door:
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
        full: Callable[[], bool] = lambda: False,
    ) -> None:
        """``limit`` connections in all, ``per_address`` of one address (0: any number).

        ``turned_away(limit)`` is called with the name of the limit, ``refused(address, text)`` for
        who may not connect for another reason.  ``room(address, connections)`` returns the
        descriptor that is closed for a newcomer, or None; it is asked when nearly all that may
        connect have.  While ``full()``, nobody may connect, because libzmq holds too much.
        """
        self._room = room
        self._full = full
        self.refused = refused
        self.connections: dict[int, str] = {}
        self._limit = limit
        self._per_address = per_address
        self._turned_away = turned_away
        self._addresses: Counter[str] = Counter()

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

    def happened(self, messages: list[list[bytes]]) -> None:
        """What libzmq says of connections: all that it has to say now."""
        new: dict[int, str] = {}
        for event, where in messages:
            kind, descriptor = EVENT.unpack(event)
            new.pop(descriptor, None)
            self._forget(descriptor)
            if kind == zmq.EVENT_ACCEPTED:
                new[descriptor] = where.decode()
        for descriptor, endpoint in new.items():
            self._accepted(descriptor, endpoint)

    def _forget(self, descriptor: int) -> None:
        address = self.connections.pop(descriptor, "")
        if address:
            self._addresses[address] -= 1
            if not self._addresses[address]:
                del self._addresses[address]

    def _accepted(self, descriptor: int, endpoint: str) -> None:
        try:
            with standing(descriptor, endpoint) as connection:
                if connection is None:
                    return
                address = address_of(connection)
                if len(self.connections) >= self._limit * CROWDED:
                    self._make_room(address)
                limit = self._exceeded(address)
                if limit:
                    connection.shutdown(socket.SHUT_RDWR)
                    self._turned_away(limit)
                    return
                if address:
                    _share_kernel(connection, len(self.connections) + 1)
        except OSError:
            return  # it has gone already
        self.connections[descriptor] = address
        if address:
            self._addresses[address] += 1

    def _make_room(self, address: str) -> None:
        """Close a silent connection for a newcomer, if there is one (NB-08)."""
        silent = self._room(address, self.connections)
        if silent is not None:
            where = self.connections[silent]
            self._forget(silent)
            shut_down(silent, (where,))

    def _exceeded(self, address: str) -> str:
        if self._full():
            return "process-held-octets"
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


def silent_seconds(descriptor: int) -> float | None:
    """Return how long nothing has come from the other end of a TCP connection, in seconds.

    None if something of ours is not acknowledged by it, or where the system does not tell.
    """
    with suppress(OSError, AttributeError), socket.socket(fileno=os.dup(descriptor)) as connection:
        octets = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO.size)
        unacknowledged, milliseconds = TCP_INFO.unpack(octets)
        return None if unacknowledged else float(milliseconds / 1e3)
    return None


@contextmanager
def standing(descriptor: int, endpoint: str) -> Iterator[socket.socket | None]:
    """Give what was accepted at this endpoint, or connected to it.

    None if the descriptor is somebody else's by now; raises OSError if it is nobody's.
    """
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        yield connection if _belongs(connection, endpoint) else None


def shut_down(
    descriptor: int, peer: tuple[str] | tuple[str, int], *, at_once: bool = False
) -> bool:
    """Shut down the TCP connection with this host, and port; whether it was there still.

    libzmq still reads what came before, up to 2 MiB; ``at_once`` throws that away.
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
    """Return how many octets wait in the kernel to be read; None if there is no such connection."""
    with suppress(OSError):
        found: int = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)))[0]
        return found
    return None


def throw_away(connection: socket.socket) -> None:
    """Throw away what waits to be read from a TCP connection after its end.

    Linux accepts nothing more for it.  One call reads everything: between two of them libzmq's
    thread could read the octets behind a gap.  With MSG_TRUNC Linux copies nothing.
    """
    if sys.platform == "linux":
        octets = waiting_in(connection.fileno())
        with suppress(OSError):
            connection.recv(octets or 1, socket.MSG_TRUNC | socket.MSG_DONTWAIT)


def address_of(connection: socket.socket) -> str:
    """Return the host at the other end; "" on ipc."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return ""
    host: str = connection.getpeername()[0]
    return host


def _share_kernel(connection: socket.socket, connections: int) -> None:
    """Let this connection, one of so many, leave its share in the kernel (``NB-02``).

    The listener has asked for :data:`KERNEL_OCTETS` already.
    """
    share = max(KERNEL_OCTETS_LEAST, KERNEL_SHARED_OCTETS // connections)
    if share < KERNEL_OCTETS:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, share)


def _belongs(connection: socket.socket, endpoint: str) -> bool:
    """The descriptor is still what was accepted or connected there, and not somebody else's."""
    here = connection.getsockname()
    if isinstance(here, tuple):
        ports = (here[1], connection.getpeername()[1])
        return endpoint.rpartition(":")[2] in map(str, ports)
    path = here if isinstance(here, str) else "@" + here[1:].decode()
    return endpoint == f"ipc://{path}"
