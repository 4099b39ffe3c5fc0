"""Lumberjack 1 and 2 connect shippers of events with a reader that acknowledges them.

Read in this order: wire, terms, machine, protocol, service, command.
"""

from ..net.limit_types import LumberjackClientLimits, LumberjackServerLimits
from .protocol.reconnect import LumberjackClientService, LumberjackShipper
from .protocol.sides import (
    LumberjackClient,
    LumberjackClientFactory,
    LumberjackServer,
    LumberjackServerFactory,
    connect,
    serve,
)
from .wire.frames import encode_json, encode_window

__all__ = [
    "LumberjackClient",
    "LumberjackClientFactory",
    "LumberjackClientLimits",
    "LumberjackClientService",
    "LumberjackServer",
    "LumberjackServerFactory",
    "LumberjackServerLimits",
    "LumberjackShipper",
    "connect",
    "encode_json",
    "encode_window",
    "serve",
]
