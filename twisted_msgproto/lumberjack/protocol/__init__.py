"""These are Lumberjack's protocols on Twisted: the reader's server, the writer's client, and the
shipper above it.
"""

from ...net.clients.reconnect import Backoff
from .reconnect import SHIPPER_LIMITS, LumberjackClientService, LumberjackShipper
from .sides import (
    CLIENT_LIMITS,
    PROTOCOL,
    READ_BYTES,
    LumberjackClient,
    LumberjackClientFactory,
    LumberjackServer,
    LumberjackServerFactory,
    connect,
    serve,
)

__all__ = [
    "CLIENT_LIMITS",
    "PROTOCOL",
    "READ_BYTES",
    "SHIPPER_LIMITS",
    "Backoff",
    "LumberjackClient",
    "LumberjackClientFactory",
    "LumberjackClientService",
    "LumberjackServer",
    "LumberjackServerFactory",
    "LumberjackShipper",
    "connect",
    "serve",
]
