"""MTL's machines, frames in and frames out: no socket, no clock, no randomness of their own.

:class:`.Server` is the broker: :mod:`.sessions` answers requests, :mod:`.content` takes content
from writers and gives it to readers.  :class:`.Client` is a client's control flow and
:class:`.ClientFlow` one of its data flows.  A :class:`.Profile` is where the application of a
server says what becomes of content.
"""

from .client import Client
from .client_flow import ClientFlow
from .flows import (
    AuthenticationRequested,
    ContentReceived,
    MemoryLimitExceeded,
    Profile,
    ReadingFlow,
    ServerEvent,
    Session,
    SessionEnded,
    SessionEstablished,
    SessionOpened,
    SessionRefused,
    Stored,
    WritingFlow,
)
from .server import Server
from .sessions import Arrival, Channel

__all__ = [
    "Arrival",
    "AuthenticationRequested",
    "Channel",
    "Client",
    "ClientFlow",
    "ContentReceived",
    "MemoryLimitExceeded",
    "Profile",
    "ReadingFlow",
    "Server",
    "ServerEvent",
    "Session",
    "SessionEnded",
    "SessionEstablished",
    "SessionOpened",
    "SessionRefused",
    "Stored",
    "WritingFlow",
]
