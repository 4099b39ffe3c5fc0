"""These are Lumberjack's protocols on Twisted: the reader's server, the writer's client, and the
shipper above it.
"""

from ...net.clients.reconnect import Backoff
from .client import CLIENT_LIMITS, LumberjackClient, LumberjackClientFactory
from .server import PROTOCOL, READ_OCTETS, LumberjackServer, LumberjackServerFactory
from .shipper import SHIPPER_LIMITS, LumberjackShipper

__all__ = [
    "CLIENT_LIMITS",
    "PROTOCOL",
    "READ_OCTETS",
    "SHIPPER_LIMITS",
    "Backoff",
    "LumberjackClient",
    "LumberjackClientFactory",
    "LumberjackServer",
    "LumberjackServerFactory",
    "LumberjackShipper",
]
