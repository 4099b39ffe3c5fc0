"""Lumberjack 1 and 2 connect shippers of events with a reader that acknowledges them.

Read in this order: wire, terms, machine, protocol, service, command.
"""

from .machine import Reader, Writer
from .protocol import (
    LumberjackClient,
    LumberjackClientFactory,
    LumberjackClientService,
    LumberjackServer,
    LumberjackServerFactory,
    LumberjackShipper,
)

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
