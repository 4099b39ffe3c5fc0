"""All connections of a server share the octets that may wait in the kernel (``NB-02``).

libzmq reads everything that waits of one connection at once, and reads from up to 256 connections
before it notices that one of them was cut off.  Meanwhile these octets come on top of those that
libzmq holds already.  Measured with 1,000 senders at once, of which the first ones could leave
2 MiB: 256 connections were read in 0.2 s, and brought 200 MB.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from typing import Final

from .bounded import KERNEL_OCTETS
from .descriptors import address_of

SHARED_OCTETS: Final = 32 << 20
"""The kernel is asked to hold this much of all connections together; Linux takes twice as much."""

LEAST_OCTETS: Final = 32 << 10
"""A connection may leave this much even in a crowd of more than a thousand: 0.6 MB a second where a
round trip takes 100 ms."""

VISITS: Final = 2
"""This many other connections get their new share when one comes or leaves.  By the time the number
of connections has doubled, all of them have got it."""


def ask_kernel(descriptor: int, address: str, octets: int) -> None:
    """Set the receive buffer of a connection to ``octets``, if it is still one to ``address``."""
    with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
        if address_of(connection) == address:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, octets)


class KernelShares:
    """Gives each connection of a server its share, and changes it as others come and leave.

    A share is a power of two, so it seldom changes.
    """

    def __init__(self, ask: Callable[[int, str, int], None] = ask_kernel) -> None:
        """``ask(descriptor, address, octets)`` sets the receive buffer of a connection."""
        self._ask = ask
        self._given: dict[int, tuple[str, int]] = {}  # by descriptor, in the order of their turns

    @property
    def share(self) -> int:
        """Return the octets that each connection may leave unread now."""
        each = SHARED_OCTETS // max(1, len(self._given))
        return min(KERNEL_OCTETS, max(LEAST_OCTETS, 1 << (each.bit_length() - 1)))

    def add(self, descriptor: int, address: str) -> None:
        """Give a newcomer from ``address`` its share; its listener asked for KERNEL_OCTETS."""
        self._given[descriptor] = (address, KERNEL_OCTETS)
        self._give(descriptor)
        self._visit()

    def remove(self, descriptor: int) -> None:
        """Divide the share of one that has left among the others."""
        if self._given.pop(descriptor, None) is not None:
            self._visit()

    def _visit(self) -> None:
        for descriptor in list(islice(self._given, VISITS)):
            self._give(descriptor)

    def _give(self, descriptor: int) -> None:
        """Give this connection its share; all others have their turn before its next one."""
        share = self.share
        address, given = self._given.pop(descriptor)
        self._given[descriptor] = (address, share)
        if given != share:
            self._ask(descriptor, address, share)


__all__ = ["LEAST_OCTETS", "SHARED_OCTETS", "KernelShares", "ask_kernel"]
