"""The operating system reads and changes the connections of libzmq.

libzmq names a connection by its descriptor.  Another connection may have that descriptor as soon as
libzmq has closed it, so the functions compare addresses before they change anything.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

TCP_INFO: Final = struct.Struct("=24xI24xI")
"""The beginning of Linux's ``tcp_info``: segments that are not acknowledged, and milliseconds since
data came last."""


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
    """Yield the connection that was accepted at this endpoint, or connected to it.

    It is None if the descriptor is another one's by now; OSError is raised if it is nobody's.
    """
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        yield connection if _belongs(connection, endpoint) else None


def shut_down(
    descriptor: int, peer: tuple[str] | tuple[str, int], *, at_once: bool = False
) -> bool:
    """Shut down the TCP connection with this host, and port; return whether it still existed.

    libzmq still reads the octets that came before, up to 2 MiB; ``at_once`` discards them.
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


def _belongs(connection: socket.socket, endpoint: str) -> bool:
    """The descriptor is still what was accepted or connected there, and not somebody else's."""
    here = connection.getsockname()
    if isinstance(here, tuple):
        ports = (here[1], connection.getpeername()[1])
        return endpoint.rpartition(":")[2] in map(str, ports)
    path = here if isinstance(here, str) else "@" + here[1:].decode()
    return endpoint == f"ipc://{path}"
