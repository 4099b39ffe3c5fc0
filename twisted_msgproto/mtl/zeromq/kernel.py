"""The connections of a server share the octets that may wait in the kernel (``NB-02``).

libzmq reads large frames by all that waits of a connection, and reads from up to 256 connections
before it notices that one of them was cut off.  Meanwhile these octets come on top of those that
libzmq holds already.  Measured with 1,000 senders at once, of which the first ones could leave
2 MiB: 256 connections were read in 0.2 s, and brought 200 MB.

A sender whose segments come while its share becomes smaller sends some of them again, which takes a
fifth of a second; if nothing was read for some seconds before, it begins again up to half as many
seconds later.  Nothing is lost.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from typing import Final

from .bounded import KERNEL_OCTETS

SHARED_OCTETS: Final = 32 << 20
"""The kernel is asked to hold this much of all connections together; Linux takes twice as much."""

LEAST_OCTETS: Final = 64 << 10
"""A connection may leave this much even in a crowd: 0.6 MB a second where a round trip takes
100 ms.

A segment of 64 KiB, as there is on one machine, fits no smaller buffer: each would wait for 0.2 s.
"""

VISITS: Final = 2
"""This many other connections get their new share when one comes or leaves.  By the time the number
of connections has doubled, all of them have got it."""


Peer = tuple[str, int]
"""The host and the port at the other end of a connection."""


def ask_kernel(descriptor: int, peer: Peer, octets: int) -> bool:
    """Set the receive buffer of the connection with ``peer``; return False if it has to be tried
    again.

    A descriptor that belongs to another connection by now is left alone.
    """
    with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
        if connection.getpeername()[:2] == peer:
            before = connection.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, octets)
            grows = before < connection.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
            if grows and hasattr(socket, "TCP_WINDOW_CLAMP"):
                # Linux would keep the window that belonged to the smaller buffer.
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP, 2 * octets)
        return True
    return False


class KernelShares:
    """Gives each connection of a server its share, and changes it as others come and leave.

    A share is a power of two, so it seldom changes.
    """

    def __init__(self, ask: Callable[[int, Peer, int], bool] = ask_kernel) -> None:
        """``ask(descriptor, peer, octets)`` sets a receive buffer; False if it could not."""
        self._ask = ask
        self._given: dict[int, tuple[Peer, int]] = {}  # by descriptor, in the order of their turns

    @property
    def share(self) -> int:
        """Return the octets that each connection may leave unread now."""
        each = SHARED_OCTETS // max(1, len(self._given))
        return min(KERNEL_OCTETS, max(LEAST_OCTETS, 1 << (each.bit_length() - 1)))

    def add(self, descriptor: int, peer: Peer) -> None:
        """Give a newcomer its share; its listener asked for KERNEL_OCTETS."""
        self._given[descriptor] = (peer, KERNEL_OCTETS)
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
        peer, given = self._given.pop(descriptor)
        if given != share and self._ask(descriptor, peer, share):
            given = share
        self._given[descriptor] = (peer, given)


__all__ = ["LEAST_OCTETS", "SHARED_OCTETS", "KernelShares", "Peer", "ask_kernel"]
