"""End one connection in order, on either side, within the limit ``drain``."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final

from twisted.internet.defer import Deferred, succeed
from twisted.python.failure import Failure

from ..core.errors import ConnectionClosed
from .link import Link
from .outbox import Waiters

GOODBYE_SECONDS: Final = 1.0
"""The last words of a session may need this long to be written and read, then the connection is
cut.
"""


class OrderlyLink(Link):
    """A link that can be closed in order.

    A protocol says what an orderly end is (:meth:`endInOrder`, :meth:`endNow`).
    """

    _lateness: Any = None  # the call that ends an orderly end that takes too long

    @cached_property
    def _leaving(self) -> Waiters[None]:
        """Return who waits for the end.  A WebSocket session may be closed before it has a
        connection.
        """
        return Waiters()

    @property
    def established(self) -> bool:
        """Whether the session stands."""
        return self._established and not self._ended

    @property
    def closing(self) -> bool:
        """``close()`` was called."""
        return self._lateness is not None

    def close(self) -> Deferred[None]:
        """End the connection in order; the Deferred fires when it is closed, and never fails.

        Nothing more can be sent.  What is in flight is finished, within the seconds of the limit
        ``drain``; what is not answered by then fails with ConnectionClosed.
        """
        if self._gone:
            return succeed(None)
        left = self._leaving.wait()
        if self._lateness is None:
            drain = self.factory.limits["drain"]
            self._lateness = self.factory.clock.callLater(drain, self._late)
            self._beginEnd()
        return left

    def _beginEnd(self) -> None:
        if self.transport is None:  # no upgrade yet
            self.because(ConnectionClosed("the connection was closed before its session stood"))
            self._abort()
        elif not self._ended:
            self.endInOrder()

    def _late(self) -> None:
        self.because(ConnectionClosed("the connection was closed before everything was answered"))
        self._lateness = self.factory.clock.callLater(GOODBYE_SECONDS, self._abort)
        if not self._ended:
            self.endNow()

    def endInOrder(self) -> None:
        """Begin the orderly end of a connection that can be used; finish what is in flight."""
        self.drain()

    def endNow(self) -> None:
        """Say the last words and end the connection, whatever is in flight."""
        outputs = self.machine.outputs()
        if outputs:
            self._write(outputs)
        self._end(fault=False)

    def neverConnected(self, error: Exception) -> None:
        self.ending = error
        self._ended = self._gone = True
        self._closed()

    def sessionEnding(self, reason: Failure) -> None:
        super().sessionEnding(reason)
        self._closed()

    def _closed(self) -> None:
        lateness = self._lateness
        if lateness is not None and lateness.active():
            lateness.cancel()
        if "_leaving" in vars(self):  # somebody has closed it
            self._leaving.fire(None)
