"""Lumberjack 1 and 2: shippers of events, and the reader which acknowledges them.

Read in this order: wire, machine, protocol, service.
"""

from .machine import Reader
from .protocol import LumberjackServer, LumberjackServerFactory

__all__ = ["LumberjackServer", "LumberjackServerFactory", "Reader"]
