"""Floor 2: what the Twisted adapters of all protocols share."""

from .backpressure import OctetBudget, ReadControl
from .counters import Counters
from .delivery import Delivery
from .factory import MsgprotoServerFactory, SessionFactory
from .link import Link
from .session import Session, SessionHooks
from .sink import DurableSink, IMessageSink
from .timer import MachineTimer

IngestHooks = SessionHooks
"""The older name."""

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
