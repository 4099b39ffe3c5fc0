"""Lumberjack 1 and 2: shippers of events, and the reader which acknowledges them.

Read in this order: wire, terms, machine, protocol, service, command.
"""

from .machine import Reader, Writer
from .protocol import (
    LumberjackClient,
    LumberjackClientFactory,
    LumberjackServer,
    LumberjackServerFactory,
    LumberjackShipper,
)

__all__ = [
    "LumberjackClient",
    "LumberjackClientFactory",
    "LumberjackServer",
    "LumberjackServerFactory",
    "LumberjackShipper",
    "Reader",
    "Writer",
]
