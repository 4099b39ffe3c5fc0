"""MTL is broker-based messaging on ZeroMQ: it has a control flow of JSON requests, and data flows
of content.

Read in this order: wire, terms, machine, protocol, application, service.
"""

from .application import IngestProfile, QueueProfile, TestProfile
from .machine import Client, ClientFlow, Profile, Server
from .protocol.client import MtlClient, MtlClientFactory, MtlClientService
from .protocol.flows import MtlReader, MtlWriter
from .protocol.server import MtlServer, MtlServerFactory

__all__ = [
    "Client",
    "ClientFlow",
    "IngestProfile",
    "MtlClient",
    "MtlClientFactory",
    "MtlClientService",
    "MtlReader",
    "MtlServer",
    "MtlServerFactory",
    "MtlWriter",
    "Profile",
    "QueueProfile",
    "Server",
    "TestProfile",
]
