"""The client's side of one connection looks the same in every protocol to who uses it.

::

    client = await (await endpoint.connect(XClientFactory())).whenEstablished()
    …                                       # the protocol's own verbs
    await client.close()                    # what is in flight is finished, within ``drain``
    client.abort()                          # or: at once
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Self

from twisted.internet.defer import Deferred, fail, succeed
from twisted.python.failure import Failure

from ...core.errors import ConnectionClosed
from ..ending import OrderlyLink
from ..outbox import Waiters


class ClientLink(OrderlyLink):
    """Makes a link a client; mix it in before the session of a protocol.

    Every verb of a client returns a Deferred, and each failure comes through that: as
    ConnectionClosed, ProtocolViolation, Refused, TimedOut, LimitExceeded or NotStored of
    :mod:`twisted_msgproto.core.errors`.
    """

    @cached_property
    def _standing(self) -> Waiters[Any]:
        """Return who waits for the session."""
        return Waiters()

    def whenEstablished(self) -> Deferred[Self]:
        """Return a Deferred that fires with this client when its session stands.

        It fails with what ended the connection before that, or has ended it since: Refused when the
        server (or TLS) said no, TimedOut, ProtocolViolation, ConnectionClosed.
        """
        if self._gone:
            return fail(self.ending or ConnectionClosed("the connection has ended"))
        return succeed(self) if self._established else self._standing.wait()

    def establish(self) -> None:
        """The session stands: whoever waits for that is told."""
        super().establish()
        self._standing.fire(self)

    def neverConnected(self, error: Exception) -> None:
        """Note that the connection is gone (WebSocket); whoever waits for a session is told why."""
        self._standing.fail(error)
        super().neverConnected(error)

    def sessionEnding(self, reason: Failure) -> None:
        """The connection is gone: whoever waits for a session hears why."""
        self._standing.fail(self.ending or ConnectionClosed("the connection has ended"))
        super().sessionEnding(reason)


__all__ = ["ClientLink"]
