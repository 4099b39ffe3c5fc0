"""MicroMsg2 on Twisted.  Read: session (both sides), server, client."""

from .client import (
    MicroMsg2Client,
    MicroMsg2ClientFactory,
    MicroMsg2ClientService,
    connect,
    default_proposal,
)
from .server import MicroMsg2Server, MicroMsg2ServerFactory, serve
from .session import LIMITS, PROTOCOL, MessageRefused

__all__ = [
    "LIMITS",
    "PROTOCOL",
    "MessageRefused",
    "MicroMsg2Client",
    "MicroMsg2ClientFactory",
    "MicroMsg2ClientService",
    "MicroMsg2Server",
    "MicroMsg2ServerFactory",
    "connect",
    "default_proposal",
    "serve",
]
