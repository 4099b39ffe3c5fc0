"""Find the connection that a message came through, and when that connection ended (``MT-30``).

libzmq's monitor tells which *descriptor* was disconnected, and a message knows the descriptor it
came through; but a descriptor is used again at once.  So each connection gets a serial in our
answer to its ZAP request, which libzmq puts into the metadata of all its messages.  Before each
answer the monitors are read until they are empty.  So when a descriptor is told to be disconnected,
every serial under it that was given until then belongs to a connection that has ended, also one
whose messages were not read yet; and whoever has the descriptor next gets a higher one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

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
    """The serials of one server's connections, through all its sockets."""

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
