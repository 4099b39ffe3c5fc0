"""MicroMsg2 sends messages to queues and topics, with negotiated extensions; both sides and a
broker are here.

Read in this order: wire, terms, machine, application, protocol, service.
"""

from .application import Broker
from .machine import STANDARD, Client, Extension, ExtensionSet, Proposal, Server
from .protocol import (
    MessageRefused,
    MicroMsg2Client,
    MicroMsg2ClientFactory,
    MicroMsg2ClientService,
    MicroMsg2Server,
    MicroMsg2ServerFactory,
)
from .wire import Filter, Offer

__all__ = [
    "STANDARD",
    "Broker",
    "Client",
    "Extension",
    "ExtensionSet",
    "Filter",
    "MessageRefused",
    "MicroMsg2Client",
    "MicroMsg2ClientFactory",
    "MicroMsg2ClientService",
    "MicroMsg2Server",
    "MicroMsg2ServerFactory",
    "Offer",
    "Proposal",
    "Server",
]
