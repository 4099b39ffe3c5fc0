"""A link sees a WebSocket connection through these classes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from twisted.internet.interfaces import IAddress

from .. import Wire
from .carrier import Carrier
from .frames import BINARY, CLOSE_PROTOCOL, CLOSE_TOO_BIG, TEXT, frame, opcode_of

Message = str | bytes
"""A WebSocket message is text as ``str`` or binary as ``bytes``."""


class WebSocketWire(Wire):
    """One WebSocket connection, either side.

    Messages are ``str`` (text) and ``bytes`` (binary), in lists.
    """

    nbytes: ClassVar[bool] = False
    """If true, text is received as bytes, too."""

    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier
        self._masked = not carrier.factory.isServer
        self.disconnecting = False

    def write(self, messages: Iterable[Any]) -> None:
        masked = self._masked
        parts: list[bytes] = []
        for message in messages:
            if type(message) is str:
                parts += frame(TEXT, message.encode(), masked)
            else:
                parts += frame(BINARY, message, masked)
        carrier = self._carrier
        if parts and carrier.state == carrier.STATE_OPEN:
            carrier.send(b"".join(parts))

    def close(self, fault: bool = False) -> None:
        """Begin the closing handshake behind what was written; the second call does nothing.

        ``fault``: the peer broke the protocol.  Messages that still arrive are dropped.
        """
        self.disconnecting = True
        carrier = self._carrier
        if not fault:
            carrier.closeWebSocket(carrier.factory.close_code)
        else:
            carrier.closeWebSocket(CLOSE_TOO_BIG if carrier.oversize else CLOSE_PROTOCOL)

    def abort(self) -> None:
        self.disconnecting = True
        self._carrier.abort("the session was given up")

    def established(self) -> None:
        self._carrier.established()

    def pauseProducing(self) -> None:
        self._carrier.pauseReading()

    def resumeProducing(self) -> None:
        self._carrier.resumeReading()

    @property
    def unread(self) -> bool:
        return self._carrier.output.full

    @property
    def full(self) -> bool:  # type: ignore[override]
        return self._carrier.output.full

    def takenAt(self, now: float) -> float:
        return self._carrier.output.takenAt(now)

    @property
    def waiting(self) -> int:
        return self._carrier.output.nbytes

    def boundWaiting(self, nbytes: float) -> None:
        self._carrier.output.most_waiting = nbytes

    def stop(self) -> None:
        """The connection is lost: the carrier has seen to it."""

    def getPeer(self) -> IAddress:
        return self._carrier.transport.getPeer()  # type: ignore[no-any-return]

    def getHost(self) -> IAddress:
        return self._carrier.transport.getHost()  # type: ignore[no-any-return]

    # As Twisted's transports call them, for those who have one wire among many.

    def loseConnection(self) -> None:
        self.close()

    def abortConnection(self) -> None:
        self.abort()


class ByteWire(WebSocketWire):
    """Does what :class:`WebSocketWire` does, for a protocol whose frames are bytes.

    Frames in UTF-8 are sent as text, all others as binary; both kinds are received as ``bytes``.
    """

    nbytes = True

    def write(self, messages: Iterable[bytes]) -> None:
        """Send ``messages`` with one write; nothing once the connection closes."""
        masked = self._masked
        parts: list[bytes] = []
        for message in messages:
            parts += frame(opcode_of(message), message, masked)
        carrier = self._carrier
        if parts and carrier.state == carrier.STATE_OPEN:
            carrier.send(b"".join(parts))
