"""Lumberjack 1 and 2: shippers of events, and the reader which acknowledges them.

Read in this order: wire, machine (the reader), writer, protocol (the server), client, shipper,
service, command.
"""

from .client import LumberjackClient, LumberjackClientFactory
from .comeback import LumberjackClientService
from .machine import Reader
from .protocol import LumberjackServer, LumberjackServerFactory
from .shipper import LumberjackShipper
from .writer import Writer

__all__ = [
    "LumberjackClient",
    "LumberjackClientFactory",
    "LumberjackClientService",
    "LumberjackServer",
    "LumberjackServerFactory",
    "LumberjackShipper",
    "Reader",
    "Writer",
]
