"""This is WebSocket as two of the protocols need it: autobahn inside, bounded on every side.

autobahn speaks RFC 6455; only :mod:`.carrier` knows its inner life.  This package adds what it
leaves open: a bound for every size, time and count, explicit origins, the messages of one read
together, reading that stops at once, and output that waits for the peer within a limit.

No exception leaves through ``dataReceived``: an error of the session is logged and closes the
connection with 1011, an error of autobahn on odd input drops the connection.
"""

from .. import FramedSession
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
    WEBSOCKET_LIMITS,
)

__all__ = [
    "CLOSE_INTERNAL",
    "CLOSE_LEAVING",
    "CLOSE_NORMAL",
    "CLOSE_PROTOCOL",
    "CLOSE_TOO_BIG",
    "WEBSOCKET_LIMITS",
    "ByteWire",
    "FramedSession",
    "Message",
    "WebSocketClientFactory",
    "WebSocketServerFactory",
    "WebSocketWire",
    "parse_origins",
]
