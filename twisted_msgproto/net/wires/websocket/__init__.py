"""This is WebSocket as two of the protocols need it: autobahn inside, bounded on every side.

autobahn speaks RFC 6455. This package adds what it leaves open:

* **Composition**: a connection carries messages for a *session*, any object with the methods of
  :class:`..FramedSession`; the session sees a :class:`.wire.WebSocketWire`.  Only
  :mod:`.carrier` knows autobahn's inner life.
* **Defaults**: every size, time and count has a bound (:data:`.limits.WEBSOCKET_LIMITS`); no web
  page is served to those who do not upgrade, no compression, protocol version 13 only.
* **Origins are explicit**: a browser page from an origin that was not listed is refused with
  403.  Clients that are not browsers send no ``Origin`` and are let in.
* **The messages of one read come together**, so that a session answers them with one write.
* **Reading stops at once**: after ``pauseProducing()`` no further message is delivered.  What had
  been read already waits in one buffer, at most one read and one message large.
* **Writing is bounded**: octets that the peer does not read wait in a queue and are fed to the
  transport as it drains.  The session hears when the queue crosses its limit, and a peer that
  reads nothing for ``unread-seconds`` is dropped.
* **No exception leaves** through ``dataReceived``: an error of the session is logged and closes
  the connection with 1011, an error of autobahn on odd input drops the connection.
* Time comes from the factory's ``reactor`` alone.
"""

from .. import FramedSession
from ..origins import WebSocketAddress, client_endpoint, parse_address, parse_origins
from .factories import WebSocketClientFactory, WebSocketServerFactory
from .limits import (
    CLOSE_INTERNAL,
    CLOSE_LEAVING,
    CLOSE_NORMAL,
    CLOSE_PROTOCOL,
    CLOSE_TOO_BIG,
    WEBSOCKET_LIMITS,
)
from .wire import Message, OctetWire, WebSocketWire

__all__ = [
    "CLOSE_INTERNAL",
    "CLOSE_LEAVING",
    "CLOSE_NORMAL",
    "CLOSE_PROTOCOL",
    "CLOSE_TOO_BIG",
    "WEBSOCKET_LIMITS",
    "FramedSession",
    "Message",
    "OctetWire",
    "WebSocketAddress",
    "WebSocketClientFactory",
    "WebSocketServerFactory",
    "WebSocketWire",
    "client_endpoint",
    "parse_address",
    "parse_origins",
]
