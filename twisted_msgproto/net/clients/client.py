"""The client's side of one connection looks the same in every protocol to who uses it.

::

    client = await (await endpoint.connect(XClientFactory())).whenEstablished()
    …                                       # the protocol's own verbs
    await client.close()                    # what is in flight is finished, within ``drain``
    client.abort()                          # or: at once
"""

from __future__ import annotations

from functools import cached_property
from math import inf
from typing import Any, Final

from twisted.internet.defer import Deferred, fail, succeed
from twisted.python.failure import Failure

from ...core.errors import ConnectionClosed, LimitExceeded, TimedOut
from ...core.limits import Limit
from ..deferreds import Waiters
from ..session import OrderlyLink

UNSENT_LIMITS: Final = (
    Limit(
        "unsent-bytes",
        64 << 20,
        "bytes",
        "that the server has not read: verbs fail above; of answers to it twice as many, then it"
        " is left",
        1,
    ),
)
"""Clients have this limit where what they say waits for the transport alone."""


def session_of(connection: Any) -> Any:
    """Return the session: what a factory has built, or what that carries (WebSocket)."""
    carried = getattr(connection, "session", None)
    return carried if hasattr(carried, "whenEstablished") else connection


async def session_standing(connecting: Deferred[Any]) -> Any:
    """Return the session when it stands; whatever comes in between ends the connection."""
    session = session_of(await connecting)
    try:
        return await session.whenEstablished()
    except BaseException:
        session.abort()
        raise


class ClientLink(OrderlyLink):
    """Makes a link a client's; mix it in before the link of a protocol."""

    @cached_property
    def _standing(self) -> Waiters[Any]:
        return Waiters()

    def whenEstablished(self) -> Deferred[Any]:
        """As :meth:`~twisted_msgproto.net.session.ClientSession.whenEstablished`."""
        if self._gone:
            return fail(self.closeReason or ConnectionClosed("the connection has ended"))
        return succeed(self.protocol) if self._established else self._standing.wait()

    def establish(self) -> None:
        super().establish()
        self._standing.fire(self.protocol)

    def _secure(self) -> None:
        try:
            super()._secure()
        except (TypeError, ValueError) as error:
            # What the application gave to begin with cannot be sent, so the session never stands.
            self.log.failure("{peer}: the session cannot begin", peer=self.peer)
            self.setCloseReason(error)
            self._abort()

    # ── a server that does not read ─────────────────────────────────────────────────────────────

    @property
    def _unsentMax(self) -> int:
        return int(self.factory.limits.get("unsent-bytes", UNSENT_LIMITS[0].default))

    def roomFor(self, nbytes: int) -> None:
        waiting, most = self.wire.output.nbytes, self._unsentMax
        if waiting + nbytes > most:
            raise LimitExceeded(
                f"{waiting} bytes wait for the server to read them, unsent-bytes allows {most};"
                " nothing was sent"
            )

    def outputChanged(self, paused: bool) -> None:
        """The server does not read, or reads again.

        A client goes on reading meanwhile, or both sides could wait for each other.  So what a
        server makes it answer has a bound of its own, above what waits when that begins; what verbs
        write has the same limit, and one may leave the other no room.
        """
        output, more = self.wire.output, 2 * self._unsentMax
        output.most_waiting = output.nbytes + more if paused else inf
        super().outputChanged(paused)

    def unread(self) -> None:
        waiting, most = self.wire.output.nbytes, 2 * self._unsentMax
        if waiting > most:
            text = f"the server does not read: {waiting} bytes wait for it"
            self.setCloseReason(TimedOut(f"{text}, and answers to it may be {most} (unsent-bytes)"))
        super().unread()

    def neverConnected(self, error: Exception) -> None:
        self._standing.fail(error)
        super().neverConnected(error)

    def sessionEnding(self, reason: Failure) -> None:
        self._standing.fail(self.closeReason or ConnectionClosed("the connection has ended"))
        super().sessionEnding(reason)
