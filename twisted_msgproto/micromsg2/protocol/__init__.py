"""MicroMsg2 on Twisted.  Read: connection (both sides), sending (their verbs), sides."""

from .connection import PROTOCOL, MessageRefused, MicroMsg2Protocol
from .sides import (
    LIMITS,
    MicroMsg2Client,
    MicroMsg2ClientFactory,
    MicroMsg2Factory,
    MicroMsg2Server,
    MicroMsg2ServerFactory,
    default_proposal,
)

__all__ = [
    "LIMITS",
    "PROTOCOL",
    "MessageRefused",
    "MicroMsg2Client",
    "MicroMsg2ClientFactory",
    "MicroMsg2Factory",
    "MicroMsg2Protocol",
    "MicroMsg2Server",
    "MicroMsg2ServerFactory",
    "default_proposal",
]
