"""MicroMsg2 sends messages to queues and topics, with negotiated extensions; both sides and a
broker are here.

Read in this order: wire, terms, machine, application, protocol, service.
"""

from ..net.limit_types import MicroMsg2ClientLimits, MicroMsg2ServerLimits
from .application import Broker
from .machine.extensions import STANDARD, Extension, ExtensionSet, Proposal
from .protocol.client import (
    MicroMsg2Client,
    MicroMsg2ClientFactory,
    MicroMsg2ClientService,
    connect,
)
from .protocol.server import MicroMsg2Server, MicroMsg2ServerFactory, serve
from .protocol.session import MessageRefused
from .wire.texts import BadText, Filter, Offer

__all__ = [
    "STANDARD",
    "BadText",
    "Broker",
    "Extension",
    "ExtensionSet",
    "Filter",
    "MessageRefused",
    "MicroMsg2Client",
    "MicroMsg2ClientFactory",
    "MicroMsg2ClientLimits",
    "MicroMsg2ClientService",
    "MicroMsg2Server",
    "MicroMsg2ServerFactory",
    "MicroMsg2ServerLimits",
    "Offer",
    "Proposal",
    "connect",
    "serve",
]
