"""On WebSocket, one message is one frame of sABC (``SA-25``).

The session is the same class as on a byte stream; here its transport is a WebSocket wire.
"""

from __future__ import annotations

from collections.abc import Sequence

from twisted.internet.defer import Deferred

from ...core.limits import Limits
from ...net.wires import websocket
from ...net.wires.websocket import OctetWire
from . import SabcClientFactory, SabcServerFactory
from .session import PROTOCOL

SUBPROTOCOL = "sabc"
"""Clients offer this and servers accept it, but it is not required (``SA-25``)."""

_BEFORE_SESSION_OCTETS = 64  # what CONNECT has beside its header block


def _websocket_limits(limits: Limits) -> Limits:
    """Return the limits with the size of a WebSocket message filled in (``SA-22``)."""
    octets = limits.integer("websocket-message-octets")
    return limits.replace(
        {"websocket-message-octets": octets or 2 * limits.integer("message-octets")}
    )


def _first_octets(limits: Limits) -> int:
    return limits.integer("header-block-octets") + _BEFORE_SESSION_OCTETS


class WebSocketServerFactory(websocket.WebSocketServerFactory):
    """The maker of WebSocket connections for the sessions of a :class:`SabcServerFactory`."""

    protocolName = PROTOCOL
    wire = OctetWire

    def __init__(self, sessions: SabcServerFactory, origins: Sequence[str] = ()) -> None:
        super().__init__(
            sessions,
            sessions.buildProtocol,
            _websocket_limits(sessions.limits),
            origins=origins,
            protocols=[SUBPROTOCOL],
        )
        self.first_octets = _first_octets(sessions.limits)

    def drain(self) -> Deferred[None]:
        self.abortUpgrades()
        return self.sessions.drain()


class WebSocketClientFactory(websocket.WebSocketClientFactory):
    """The maker of WebSocket connections for the sessions of a :class:`SabcClientFactory`."""

    wire = OctetWire

    def __init__(self, sessions: SabcClientFactory, url: str, origin: str | None = None) -> None:
        super().__init__(
            sessions,
            sessions.buildProtocol,
            _websocket_limits(sessions.limits),
            url,
            origin=origin,
            protocols=[SUBPROTOCOL],
        )
        self.first_octets = _first_octets(sessions.limits)
