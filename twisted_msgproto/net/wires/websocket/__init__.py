"""WebSocket as two of the protocols need it."""

from ..origins import WebSocketAddress, client_endpoint, parse_address, parse_origins
from .carrier import (
    CLOSE_INTERNAL,
    CLOSE_NORMAL,
    CLOSE_PROTOCOL,
    CLOSE_TOO_BIG,
    WEBSOCKET_LIMITS,
    BoundedClientFactory,
    BoundedServerFactory,
    WebSocketClientConnection,
    WebSocketConnection,
    WebSocketServerConnection,
    _frame,
)

__all__ = [
    "CLOSE_INTERNAL",
    "CLOSE_NORMAL",
    "CLOSE_PROTOCOL",
    "CLOSE_TOO_BIG",
    "WEBSOCKET_LIMITS",
    "BoundedClientFactory",
    "BoundedServerFactory",
    "WebSocketAddress",
    "WebSocketClientConnection",
    "WebSocketConnection",
    "WebSocketServerConnection",
    "_frame",
    "client_endpoint",
    "parse_address",
    "parse_origins",
]
