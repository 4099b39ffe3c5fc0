"""Both machines of sABC have these limits; each is an option of the server."""

from __future__ import annotations

from typing import Final

from ...core.limits import Limit

SESSION_LIMITS: Final = (
    Limit("connect-seconds", 10.0, "s", "for CONNECT to come and to be answered (SA-27)", 0.001),
    Limit(
        "message-octets", 1 << 20, "octets", "a message is cut there, twice it closes (SA-22)", 1
    ),
    Limit("header-block-octets", 8192, "octets", "of all headers of a frame (SA-27)", 64),
    Limit("unfinished-messages", 16, "messages", "whose last part has not come (SA-19)", 1),
    Limit("outstanding-requests", 1024, "requests", "unanswered, each direction (SA-27)", 1),
    Limit("response-seconds", 60.0, "s", "for the answer to our request (SA-27)", 0.001),
    Limit("part-octets", 65536, "octets", "of a body are sent as one frame (SA-18)", 1),
)

LOGIN_ATTEMPTS: Final = 5

UNFINISHED_SECONDS: Final = 60.0
"""The next part of a message comes within this time (``SA-27``)."""

DRAIN_SECONDS: Final = 30.0
"""What is in work after DISCONNECT is answered within this time (``SA-12``)."""
