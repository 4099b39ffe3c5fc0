"""Floor 2: what the Twisted adapters of all protocols share."""

from .backpressure import OctetBudget, OutputGuard, ReadControl
from .factory import MsgprotoServerFactory, SessionFactory
from .ingest import Delivery, IngestConnection, IngestHooks
from .sink import DurableSink, IMessageSink
from .timer import MachineTimer

__all__ = [
    "Delivery",
    "DurableSink",
    "IMessageSink",
    "IngestConnection",
    "IngestHooks",
    "MachineTimer",
    "MsgprotoServerFactory",
    "OctetBudget",
    "OutputGuard",
    "ReadControl",
    "SessionFactory",
]
