"""These are the limits of a WebSocket connection, and the codes with which it closes."""

from __future__ import annotations

from typing import Final

from twisted_msgproto.core.limits import Limit

CLOSE_NORMAL: Final = 1000
CLOSE_LEAVING: Final = 1001
CLOSE_PROTOCOL: Final = 1002
CLOSE_TOO_BIG: Final = 1009
CLOSE_INTERNAL: Final = 1011

WEBSOCKET_LIMITS: Final = (
    Limit("connections", 10_000, "connections", "of one server at a time", 1),
    Limit("websocket-message-octets", 16 << 20, "octets", "one message, all its frames", 1),
    Limit("websocket-upgrade-seconds", 10.0, "s", "from connect to upgrade", 0.001),
    # Proxies often end a connection that was silent for a minute.
    Limit("websocket-ping-seconds", 55.0, "s", "between pings; 0 sends none"),
    Limit("unread-octets", 1 << 20, "octets", "unread output before the producer is paused", 1),
    Limit("unread-seconds", 30.0, "s", "a peer that reads nothing for this long is dropped", 0.001),
)
"""Both WebSocket protocols have these limits; they are part of their ``LIMITS`` tables."""

FRAMES_MAX: Final = 1 << 17
"""A message has no more fragments.

4 MiB in fragments of 64 octets are the most that is usual: conformance cases 9.3.1 and 9.4.1.
"""

UPGRADE_OCTETS: Final = 16 << 10

CLOSE_SECONDS: Final = 5.0

PONG_SECONDS: Final = 30.0
