"""This is WebSocket as two of the protocols need it: autobahn inside, bounded on every side.

No exception leaves through ``dataReceived``: an error of the session is logged and closes the
connection with 1011, an error of autobahn on odd input drops the connection.
"""

from .carrier import ByteWire, Message, WebSocketWire
from .factories import (
    WebSocketClientFactory,
    WebSocketServerFactory,
    parse_origins,
)
from .frames import (
    CLOSE_INTERNAL,
    CLOSE_LEAVING,
    CLOSE_NORMAL,
    CLOSE_PROTOCOL,
    CLOSE_TOO_BIG,
    MESSAGE_LIMIT,
    WEBSOCKET_LIMITS,
)

__all__ = [
    "CLOSE_INTERNAL",
    "CLOSE_LEAVING",
    "CLOSE_NORMAL",
    "CLOSE_PROTOCOL",
    "CLOSE_TOO_BIG",
    "MESSAGE_LIMIT",
    "WEBSOCKET_LIMITS",
    "ByteWire",
    "Message",
    "WebSocketClientFactory",
    "WebSocketServerFactory",
    "WebSocketWire",
    "parse_origins",
]
