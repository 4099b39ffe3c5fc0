"""MTL is broker-based messaging on ZeroMQ: it has a control flow of JSON requests, and data flows
of content.

Read in this order: wire, terms, machine, protocol, application, service.
"""

from ..net.authentication.sasl import credentials
from ..net.limit_types import MtlClientLimits, MtlServerLimits
from .application import IngestProfile, QueueProfile, TestProfile
from .machine.flows import Profile, ReadingFlow, Stored, WritingFlow
from .protocol.client import MtlClient, MtlClientFactory, MtlClientService, connect
from .protocol.flows import MtlReader, MtlWriter, Received
from .protocol.server import MtlServer, MtlServerFactory, serve
from .zeromq import CurveClient, CurveServer

__all__ = [
    "CurveClient",
    "CurveServer",
    "IngestProfile",
    "MtlClient",
    "MtlClientFactory",
    "MtlClientLimits",
    "MtlClientService",
    "MtlReader",
    "MtlServer",
    "MtlServerFactory",
    "MtlServerLimits",
    "MtlWriter",
    "Profile",
    "QueueProfile",
    "ReadingFlow",
    "Received",
    "Stored",
    "TestProfile",
    "WritingFlow",
    "connect",
    "credentials",
    "serve",
]
