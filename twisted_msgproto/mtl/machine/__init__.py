"""MTL's machines, frames in and frames out: no socket, no clock, no randomness of their own.

:class:`.Server` is the broker, :class:`.Client` a client's control flow and :class:`.ClientFlow`
one of its data flows; :mod:`.flows` holds the server's table of a data flow and :mod:`.profiles`
what becomes of content.
"""

from .client import CLIENT, Client, ClientState
from .client_flow import CLIENT_FLOW, ClientFlow, ClientFlowState
from .flows import FLOW, FlowState, ReadingFlow, Stored, WritingFlow
from .limits import CLIENT_LIMITS, SERVER_LIMITS
from .profiles import IngestProfile, Profile, QueueProfile, TestProfile
from .server import Server
from .sessions import SESSION, Arrival, Channel, ContentReceived, Session, SessionState

__all__ = [
    "CLIENT",
    "CLIENT_FLOW",
    "CLIENT_LIMITS",
    "FLOW",
    "SERVER_LIMITS",
    "SESSION",
    "Arrival",
    "Channel",
    "Client",
    "ClientFlow",
    "ClientFlowState",
    "ClientState",
    "ContentReceived",
    "FlowState",
    "IngestProfile",
    "Profile",
    "QueueProfile",
    "ReadingFlow",
    "Server",
    "Session",
    "SessionState",
    "Stored",
    "TestProfile",
    "WritingFlow",
]
