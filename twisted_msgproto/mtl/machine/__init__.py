"""MTL's machines, frames in and frames out: no socket, no clock, no randomness of their own.

:class:`.Server` is the broker: :mod:`.sessions` answers requests, :mod:`.receiving` takes content
from writers and :mod:`.sending` gives content to readers.  :class:`.Client` is a client's control
flow and :class:`.ClientFlow` one of its data flows.  :mod:`.profile` is where a server's
application says what becomes of content.
"""

from .client import Client
from .client_flow import ClientFlow
from .flows import ReadingFlow, Stored, WritingFlow
from .profile import Profile
from .server import Server
from .sessions import Arrival, Channel, Session

__all__ = [
    "Arrival",
    "Channel",
    "Client",
    "ClientFlow",
    "Profile",
    "ReadingFlow",
    "Server",
    "Session",
    "Stored",
    "WritingFlow",
]
