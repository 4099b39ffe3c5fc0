"""MTL's machines, frames in and events out: no socket, no clock, no randomness of their own.

:class:`Server` is the broker, whose inputs are each an :class:`Arrival` on a :class:`Channel`.
:class:`Client` is a client's control flow and :class:`ClientFlow` one of its data flows.  The
others here are what they return.
"""

from ..terms import (
    Answered,
    ContentsConfirmed,
    ContentsReceived,
    ContentsRefused,
    FlowGivenUp,
    FlowOpened,
    FlowSuspended,
    LeaseGranted,
    RequestRefused,
    RequestTimedOut,
    Responded,
    SocketDropped,
)
from .client import Client
from .client_flow import ClientFlow
from .flows import (
    AuthenticationRequested,
    ContentReceived,
    LeaseRefused,
    LimitMet,
    SessionEnded,
    SessionEstablished,
    SessionOpened,
)
from .server import Server
from .sessions import Arrival, Channel

__all__ = [
    "Answered",
    "Arrival",
    "AuthenticationRequested",
    "Channel",
    "Client",
    "ClientFlow",
    "ContentReceived",
    "ContentsConfirmed",
    "ContentsReceived",
    "ContentsRefused",
    "FlowGivenUp",
    "FlowOpened",
    "FlowSuspended",
    "LeaseGranted",
    "LeaseRefused",
    "LimitMet",
    "RequestRefused",
    "RequestTimedOut",
    "Responded",
    "Server",
    "SessionEnded",
    "SessionEstablished",
    "SessionOpened",
    "SocketDropped",
]
