"""sABC's machines: bytes in, events out; no I/O, no clock.

:class:`Client` and :class:`Server` are the two sides.  The others here are what they return, beside
:class:`~twisted_msgproto.core.errors.Fault`.
"""

from ..terms import (
    ConnectReceived,
    ConnectRefused,
    DisconnectingReceived,
    DisconnectReceived,
    DrainTimedOut,
    ErrorReceived,
    FrameDiscarded,
    FrameRefused,
    MessageAbandoned,
    MessagesReceived,
    MessagesSafe,
    RequestFailed,
    RequestsTimedOut,
    ResponsesReceived,
    SessionExpired,
    SessionGranted,
)
from .sides import (
    Client,
    Server,
)

__all__ = [
    "Client",
    "ConnectReceived",
    "ConnectRefused",
    "DisconnectReceived",
    "DisconnectingReceived",
    "DrainTimedOut",
    "ErrorReceived",
    "FrameDiscarded",
    "FrameRefused",
    "MessageAbandoned",
    "MessagesReceived",
    "MessagesSafe",
    "RequestFailed",
    "RequestsTimedOut",
    "ResponsesReceived",
    "Server",
    "SessionExpired",
    "SessionGranted",
]
