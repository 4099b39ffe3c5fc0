"""The Twisted adapters of all protocols share these modules (floor 2)."""

from .backpressure import OctetBudget, ReadControl
from .counters import Counters
from .delivery import Delivery
from .factory import MsgprotoServerFactory, SessionFactory
from .link import Link
from .session import Session, SessionHooks
from .sink import DurableSink, IMessageSink
from .timer import MachineTimer

IngestHooks = SessionHooks
"""This is the older name."""

__all__ = [
    "Counters",
    "Delivery",
    "DurableSink",
    "IMessageSink",
    "IngestHooks",
    "Link",
    "MachineTimer",
    "MsgprotoServerFactory",
    "OctetBudget",
    "ReadControl",
    "Session",
    "SessionFactory",
    "SessionHooks",
]
