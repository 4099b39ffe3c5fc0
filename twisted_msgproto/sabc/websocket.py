"""sABC on WebSocket: one message is one frame (``SA-25``).

A connection here only carries frames; the session in it is the same class as on a byte stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IAddress
from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure

from ..core.errors import ConnectionClosed
from ..core.limits import Limits
from ..net.wires.websocket import (
    CLOSE_NORMAL,
    CLOSE_PROTOCOL,
    CLOSE_TOO_BIG,
    BoundedClientFactory,
    BoundedServerFactory,
    WebSocketClientConnection,
    WebSocketServerConnection,
)
from .protocol import SabcClientFactory, SabcServerFactory
from .session import PROTOCOL, SabcSession

SUBPROTOCOL = "sabc"
"""Offered by clients and taken by servers, but not required (``SA-25``)."""

_BEFORE_SESSION_OCTETS = 64  # what CONNECT has beside its header block


class _Carrier:
    """What both sides' connections add: frames for a session, in and out."""

    session: SabcSession
    factory: Any
    transport: Any
    maxMessagePayloadSize: int
    maxFramePayloadSize: int
    _close_code = CLOSE_PROTOCOL

    def webSocketOpened(self) -> None:
        """The upgrade is done: the session begins."""
        self._frames: list[bytes] = []
        self._full_size = self.maxMessagePayloadSize
        # Before the session stands a connection may hold one header block.
        block = self.factory.limits.integer("header-block-octets") + _BEFORE_SESSION_OCTETS
        self.maxMessagePayloadSize = self.maxFramePayloadSize = min(block, self._full_size)
        self.session.framed = self
        session: Any = self.session
        session.makeConnection(_Transport(self))

    def sessionEstablished(self) -> None:
        """The session stands: messages may have their full size."""
        self.maxMessagePayloadSize = self.maxFramePayloadSize = self._full_size

    def messageReceived(self, payload: bytes, binary: bool) -> None:
        """One frame, text or binary (``SA-25``).

        Those of one read go to the session together, but not what belongs to no session yet.
        """
        self._frames.append(payload)
        if not self.session.established:
            self.readFinished()

    def _max_message_size_exceeded(self, size: int, most: int, reason: str) -> None:
        """autobahn's, before it closes: in a session the peer gets its ERROR, as on TCP."""
        if self.session.established:
            self.readFinished()
            self._close_code = CLOSE_TOO_BIG
            self.session.oversized()
        super()._max_message_size_exceeded(size, most, reason)  # type: ignore[misc]

    def readFinished(self) -> None:
        """All frames of one read are there."""
        frames, self._frames = self._frames, []
        if frames:
            self.session.framesReceived(frames)

    def webSocketClosed(self, clean: bool, code: int | None, reason: str | None) -> None:
        """The connection is gone; a session which had begun is told."""
        if self.session.transport is None:
            self.session.neverConnected(ConnectionClosed(f"no WebSocket: {reason or code}"))
        else:
            error = ConnectionDone() if clean else ConnectionLost(reason or "")
            self.session.connectionLost(Failure(error))

    def peerUnreading(self) -> None:
        """The peer read nothing for ``unread-seconds``: it is told of, and dropped."""
        if self.session.transport is not None and self.session.established:
            self.session.peerUnreading()
        super().peerUnreading()  # type: ignore[misc]  # the WebSocket connection has it

    def outputPaused(self) -> None:
        """The peer does not read."""
        self.session.outputChanged(True)

    def outputResumed(self) -> None:
        """The peer has caught up."""
        self.session.outputChanged(False)

    def sendFrames(self, frames: list[bytes]) -> None:
        """One message each: text, unless it is not UTF-8 (``SA-25``)."""
        self.sendMessages((frame, not _is_text(frame)) for frame in frames)  # type: ignore[attr-defined]

    def closeSession(self, fault: bool) -> None:
        """The session has ended."""
        code = self._close_code if fault else CLOSE_NORMAL
        self.closeWebSocket(code)  # type: ignore[attr-defined]


def _is_text(frame: bytes) -> bool:
    if frame.isascii():
        return True
    try:
        frame.decode()
    except UnicodeDecodeError:
        return False
    return True


class _Transport:
    """What a session sees of its connection."""

    def __init__(self, carrier: Any) -> None:
        self._carrier = carrier
        self.disconnecting = False

    def getPeer(self) -> IAddress:
        """The peer's address."""
        return self._carrier.transport.getPeer()  # type: ignore[no-any-return]

    def getHost(self) -> IAddress:
        """Our own address."""
        return self._carrier.transport.getHost()  # type: ignore[no-any-return]

    def pauseProducing(self) -> None:
        """Deliver no further frame."""
        self._carrier.pauseReading()

    def resumeProducing(self) -> None:
        """Deliver frames again."""
        self._carrier.resumeReading()

    def loseConnection(self) -> None:
        """Begin the closing hand-shake."""
        self._carrier.closeWebSocket(CLOSE_NORMAL)

    def abortConnection(self) -> None:
        """Drop the connection."""
        self._carrier.abort("the session was given up")


class SabcWebSocketServer(_Carrier, WebSocketServerConnection):
    """A server's connection."""

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """The transport is gone; where TLS failed, there never was a session to tell of it."""
        self.factory.sessions.lookTls(self.transport, reason)
        super().connectionLost(reason)


class SabcWebSocketClient(_Carrier, WebSocketClientConnection):
    """A client's connection."""


def _websocket_limits(limits: Limits) -> Limits:
    """The limits with the size of a WebSocket message filled in (``SA-22``)."""
    octets = limits.integer("websocket-message-octets")
    return limits.replace(
        {"websocket-message-octets": octets or 2 * limits.integer("message-octets")}
    )


class WebSocketServerFactory(BoundedServerFactory):
    """Accepts WebSocket connections for the sessions of a :class:`SabcServerFactory`."""

    protocol = SabcWebSocketServer
    protocolName = PROTOCOL

    def __init__(self, sessions: SabcServerFactory, origins: Sequence[str] = ()) -> None:
        """Raises ConfigurationError for what is no origin."""
        self.sessions = sessions
        self.limits = _websocket_limits(sessions.limits)
        super().__init__(sessions.clock, self.limits, origins=origins, protocols=[SUBPROTOCOL])

    def buildProtocol(self, address: Any) -> Any:
        """A connection with a session in it, or None (which closes it) above a limit."""
        session = self.sessions.buildProtocol(address)
        if session is None:
            return None
        connection: Any = super().buildProtocol(address)
        if connection is not None:
            connection.session = session
        return connection

    def drain(self) -> Deferred[None]:
        """The sessions' factory drains; see there."""
        return self.sessions.drain()


class WebSocketClientFactory(BoundedClientFactory):
    """Connects to a WebSocket server for the sessions of a :class:`SabcClientFactory`."""

    protocol = SabcWebSocketClient

    def __init__(self, sessions: SabcClientFactory, url: str, origin: str | None = None) -> None:
        """Raises ConfigurationError for what is no address."""
        self.sessions = sessions
        self.limits = _websocket_limits(sessions.limits)
        super().__init__(sessions.clock, self.limits, url, origin=origin, protocols=[SUBPROTOCOL])

    def buildProtocol(self, address: Any) -> Any:
        """A connection with a session in it."""
        connection: Any = super().buildProtocol(address)
        connection.session = self.sessions.buildProtocol(address)
        return connection
