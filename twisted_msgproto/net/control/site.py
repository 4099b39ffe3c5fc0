"""The sites of a gateway have a bounded number of connections, and each has to ask something.

Whoever may connect may be hostile: a scraper that hangs, a program that opens connections and says
nothing, a request whose header never ends.  None of them keeps others from an answer.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure
from twisted.web.http import HTTPChannel, Request
from twisted.web.server import Site

CONNECTIONS_MAX: Final = 100
"""At most this many connections to one site are open: 32 pages that listen, and others that come
and go.  For a newcomer the one closes that has waited longest without a whole request.
"""

REQUEST_SECONDS: Final = 30.0
"""A whole request has to come within this time, and the next one on the same connection, too."""


class BoundedChannel(HTTPChannel):
    """One connection.  Octets alone earn it no time: only whole requests do.

    Attributes:
        answering: whether a request is being answered, or a stream is open.
    """

    answering = False
    site: ControlSite
    transport: Any

    def connectionMade(self) -> None:
        super().connectionMade()  # type: ignore[no-untyped-call]
        self.site.opened(self)

    def resetTimeout(self) -> None:
        """Do nothing; the channel calls this for every octet."""

    def timeoutConnection(self) -> None:
        """Close the connection: no whole request came in time."""
        self.transport.abortConnection()

    def allContentReceived(self) -> None:
        self.answering = True
        super().allContentReceived()  # type: ignore[no-untyped-call]

    def requestDone(self, request: Request) -> None:
        self.answering = False
        self.site.rested(self)
        super().requestDone(request)  # type: ignore[no-untyped-call]

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.site.closed(self)
        super().connectionLost(reason)  # type: ignore[no-untyped-call]


class ControlSite(Site):
    """A site without a log of requests: nothing has to be done while nobody asks.

    Attributes:
        connections: those that are open, the one that was answered least recently first.
    """

    protocolName: ClassVar[str] = "control"
    noisy = False
    protocol = BoundedChannel  # type: ignore[assignment]

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        settings.setdefault("timeout", REQUEST_SECONDS)
        super().__init__(*arguments, **settings)  # type: ignore[no-untyped-call]
        self.connections: dict[BoundedChannel, None] = {}

    def logPrefix(self) -> str:
        return self.protocolName

    def buildProtocol(self, addr: Any) -> Any:
        """Return a channel for a newcomer; None (the connection is closed) if there is no place."""
        if len(self.connections) >= CONNECTIONS_MAX and not self._make_room():
            return None
        return super().buildProtocol(addr)  # type: ignore[no-untyped-call]

    def _make_room(self) -> bool:
        for channel in self.connections:
            if not channel.answering:
                self.closed(channel)
                channel.transport.abortConnection()
                return True
        return False

    def opened(self, channel: BoundedChannel) -> None:
        self.connections[channel] = None

    def rested(self, channel: BoundedChannel) -> None:
        """A request of this connection was answered: it is the last to be closed for others."""
        if self.connections.pop(channel, 0) is None:
            self.connections[channel] = None

    def closed(self, channel: BoundedChannel) -> None:
        self.connections.pop(channel, None)

    def acceptableProtocols(self) -> list[bytes]:
        """Return what TLS may agree on: HTTP/2 has channels of its own, without these bounds."""
        return [b"http/1.1"]

    def startFactory(self) -> None:
        """Do nothing; the port calls this when it listens."""

    def stopFactory(self) -> None:
        """Do nothing; the port calls this when it listens no more."""

    def log(self, request: Any) -> None:
        """Write nothing; the site calls this when a request is answered."""
