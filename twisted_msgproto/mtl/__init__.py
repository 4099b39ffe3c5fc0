"""MTL, broker-based messaging on ZeroMQ: a control flow of JSON requests, data flows of content.

Read in this order: wire, machine, sasl, protocol, service.
"""

from .comeback import MtlClientFactory, MtlClientService
from .machine import Client, ClientFlow, IngestProfile, Profile, QueueProfile, Server, TestProfile
from .protocol import MtlClient, MtlReader, MtlServer, MtlServerFactory, MtlWriter

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
