"""Floor 2: what the Twisted adapters of all protocols share."""

from .backpressure import OctetBudget, OutputGuard, ReadControl
from .factory import MsgprotoServerFactory
from .ingest import Delivery, IngestHooks
from .sink import DurableSink, IMessageSink
from .timer import MachineTimer

__all__ = [
    "Delivery",
    "DurableSink",
    "IMessageSink",
    "IngestHooks",
    "MachineTimer",
    "MsgprotoServerFactory",
    "OctetBudget",
    "OutputGuard",
    "ReadControl",
]
