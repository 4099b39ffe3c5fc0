"""MicroMsg2's machines: bytes in, events out; no I/O, no clock.

:class:`Client` and :class:`Server` are the two sides.  The others here are what they return, beside
:class:`~twisted_msgproto.core.errors.Fault`.
"""

from ..terms import (
    CommandReceived,
    ErrorReceived,
    ExtensionReceived,
    MessagesAcknowledged,
    MessagesReceived,
    SessionEstablished,
)
from .sides import (
    Client,
    Server,
)

__all__ = [
    "Client",
    "CommandReceived",
    "ErrorReceived",
    "ExtensionReceived",
    "MessagesAcknowledged",
    "MessagesReceived",
    "Server",
    "SessionEstablished",
]
