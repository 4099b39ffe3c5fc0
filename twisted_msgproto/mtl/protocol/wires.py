"""The wire of a client's flows: a DEALER socket for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from twisted.internet.interfaces import IAddress
from zope.interface import implementer

from ...net.wires import Wire

UNREAD_LOOK_SECONDS: Final = 0.02
"""A wire that is to be closed checks this often whether its socket has sent everything."""


@implementer(IAddress)
class Endpoint:
    """A ZeroMQ address, as the address at the other end of a wire."""

    def __init__(self, address: str) -> None:
        self.address = address


class NoSocket:
    """What stands in a socket's place while there is none: what is written is lost."""

    unread = unreadBytes = 0
    refused: Any = None
    ended: Any = None

    def __init__(self, trouble: str = "") -> None:
        """``trouble`` says why there is none, for the errors of those who wait for an answer."""
        self.trouble = trouble

    def sendAll(self, messages: list[list[bytes]]) -> None:
        """Nobody gets them."""

    def movedAt(self, now: float) -> float:
        return 0.0

    def ignored(self) -> None:
        """There is nothing to read, nor to close."""

    pauseProducing = resumeProducing = shutdown = ignored


class DealerWire(Wire):
    """One DEALER socket at a time, or none.

    Attributes:
        socket: the socket in use.
        paused: it is not read.
    """

    def __init__(self, clock: Any, address: str, closed: Callable[[], None]) -> None:
        """``address`` is the server's; ``closed()`` is called once, when the wire has ended."""
        self._clock = clock
        self._address = Endpoint(address)
        self._closed = closed
        self.paused: bool = False
        self._look: Any = None  # the call that closes the wire once everything was sent
        self.socket: Any = NoSocket()

    # ── sockets in turn ─────────────────────────────────────────────────────────────────────────

    def use(self, socket: Any) -> None:
        self.socket = socket
        if self.paused:
            socket.pauseProducing()

    def drop(self) -> int:
        """Close the socket, if there is one; return how many messages it had not sent."""
        socket, self.socket = self.socket, NoSocket()
        unread: int = socket.unread
        socket.shutdown()
        return unread

    @property
    def trouble(self) -> str:
        """Why it may be that nobody answers on this socket; empty before anything is known."""
        return str(self.socket.trouble)

    @property
    def unread(self) -> int:
        return int(self.socket.unread)

    @property
    def unreadBytes(self) -> int:
        return int(self.socket.unreadBytes)

    def takenAt(self, now: float) -> float:
        return float(self.socket.movedAt(now))

    # ── as every wire ───────────────────────────────────────────────────────────────────────────

    def write(self, outputs: list[list[bytes]]) -> None:
        self.socket.sendAll(outputs)

    def close(self, fault: bool) -> None:
        if self.unread:
            self._look = self._clock.callLater(UNREAD_LOOK_SECONDS, self._lookUnread)
        else:
            self._closed()

    def _lookUnread(self) -> None:
        self._look = None
        self.close(fault=False)

    def abort(self) -> None:
        self._closed()

    def pauseProducing(self) -> None:
        self.paused = True
        self.socket.pauseProducing()

    def resumeProducing(self) -> None:
        self.paused = False
        self.socket.resumeProducing()

    def getPeer(self) -> IAddress:
        return self._address

    getHost = getPeer

    def established(self) -> None:
        """The session stands; nothing changes here."""

    def stop(self) -> None:
        if self._look is not None:
            self._look.cancel()
            self._look = None
        self.drop()
