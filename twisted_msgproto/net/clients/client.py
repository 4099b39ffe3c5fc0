"""The client's side of one connection, as a person uses it: the same in every protocol.

::

    client = await (await endpoint.connect(XClientFactory())).whenEstablished()
    …                                       # the protocol's own verbs
    await client.close()                    # what is in flight is finished, within ``drain``
    client.abort()                          # or: at once
"""

from __future__ import annotations

from typing import Any, Final, Self

from twisted.internet.defer import Deferred, fail, succeed
from twisted.python.failure import Failure

from ...core.errors import ConnectionClosed
from ..link import Link
from ..outbox import Waiters

GOODBYE_SECONDS: Final = 1.0
"""What a client has to say at the end has so long to be written and read, then it is cut off."""


class ClientLink(Link):
    """A link which is a client; mix it in before the session of a protocol.

    A protocol says what an orderly end is (:meth:`endInOrder`, :meth:`endNow`).  Every verb of it
    returns a Deferred, and each failure comes through that: ConnectionClosed, ProtocolViolation,
    Refused, TimedOut, LimitExceeded or NotStored of :mod:`twisted_msgproto.core.errors`.
    """

    def __init__(self) -> None:
        """A subclass which overrides this calls it: WebSocket has clients before connections."""
        self._standing: Waiters[Any] = Waiters()  # who waits for the session
        self._leaving: Waiters[None] = Waiters()  # who waits for the end
        self._lateness: Any = None  # the call which ends an orderly end that takes too long

    # ── verbs ───────────────────────────────────────────────────────────────────────────────────

    def whenEstablished(self) -> Deferred[Self]:
        """Return a Deferred which fires with this client when its session stands.

        It fails with what ended the connection before that, or has ended it since: Refused when the
        server (or TLS) said no, TimedOut, ProtocolViolation, ConnectionClosed.
        """
        if self._gone:
            return fail(self.ending or ConnectionClosed("the connection has ended"))
        return succeed(self) if self._established else self._standing.wait()

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

    @property
    def closing(self) -> bool:
        """``close()`` was called."""
        return self._lateness is not None

    def _beginEnd(self) -> None:
        if self.transport is None:  # no upgrade yet
            self._abort()
        elif not self._ended:
            self.endInOrder()

    def _late(self) -> None:
        """The time for what is in flight is over."""
        self.because(ConnectionClosed("the connection was closed before everything was answered"))
        self._lateness = self.factory.clock.callLater(GOODBYE_SECONDS, self._abort)
        if not self._ended:
            self.endNow()

    # ── what a protocol adds ────────────────────────────────────────────────────────────────────

    def endInOrder(self) -> None:
        """Begin the orderly end of a connection which can be used; finish what is in flight."""
        self.drain()

    def endNow(self) -> None:
        """Say the last words and end the connection, whatever is in flight."""
        outputs = self.machine.outputs()
        if outputs:
            self._write(outputs)
        self._end(fault=False)

    # ── the connection's life ───────────────────────────────────────────────────────────────────

    def establish(self) -> None:
        """The session stands: whoever waits for that is told."""
        super().establish()
        self._standing.fire(self)

    def neverConnected(self, error: Exception) -> None:
        """On WebSocket: the connection is gone before the session could begin."""
        self.ending = error
        self._ended = self._deaf = self._gone = True
        self._endWaiting(error)
        self._leaving.fire(None)

    def sessionEnding(self, reason: Failure) -> None:
        """The connection is gone: who waits for a session hears why, and who closed hears it."""
        self._endWaiting(self.ending or ConnectionClosed("the connection has ended"))
        super().sessionEnding(reason)
        self._leaving.fire(None)

    def _endWaiting(self, error: Exception) -> None:
        lateness = self._lateness
        if lateness is not None and lateness.active():
            lateness.cancel()
        self._standing.fail(error)


__all__ = ["GOODBYE_SECONDS", "ClientLink"]
