"""Who may connect to a ROUTER: counts its connections and turns away those above the limits.

libzmq takes as many connections as there are file descriptors, and each may fill its share of
memory.  It says which descriptor it has accepted and which it has lost; a connection above a limit
is shut down at its descriptor, and its peer comes again later by itself.
"""

from __future__ import annotations

import os
import socket
import struct
from collections import Counter
from collections.abc import Callable
from typing import Final

import zmq

EVENTS: Final = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED
"""What a socket is asked to tell."""

EVENT: Final = struct.Struct("=Hi")


class Door:
    """The connections of one server, through all its sockets.

    Attributes:
        connections: the address behind each descriptor which is connected; "" on ipc.
    """

    def __init__(self, limit: int, per_address: int, turned_away: Callable[[str], None]) -> None:
        """``limit`` connections in all, ``per_address`` of one address (0: any number).

        ``turned_away(limit)`` is called with the name of the limit.
        """
        self.connections: dict[int, str] = {}
        self._limit = limit
        self._per_address = per_address
        self._turned_away = turned_away
        self._addresses: Counter[str] = Counter()

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
            with socket.socket(fileno=os.dup(descriptor)) as connection:
                if not _belongs(connection, endpoint):
                    return
                address = address_of(connection)
                limit = self._exceeded(address)
                if limit:
                    connection.shutdown(socket.SHUT_RDWR)
                    self._turned_away(limit)
                    return
        except OSError:
            return  # it has gone already
        self.connections[descriptor] = address
        if address:
            self._addresses[address] += 1

    def _exceeded(self, address: str) -> str:
        if len(self.connections) >= self._limit:
            return "connections"
        if address and self._per_address and self._addresses[address] >= self._per_address:
            return "connections-per-address"
        return ""


def address_of(connection: socket.socket) -> str:
    """The host at the other end; "" on ipc."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return ""
    host: str = connection.getpeername()[0]
    return host


def _belongs(connection: socket.socket, endpoint: str) -> bool:
    """The descriptor is still what was accepted there, and not somebody else's by now."""
    here = connection.getsockname()
    if isinstance(here, tuple):
        return endpoint.rpartition(":")[2] == str(here[1])
    path = here if isinstance(here, str) else "@" + here[1:].decode()
    return endpoint == f"ipc://{path}"
