"""This package has what all protocols share on Twisted: factories, sessions, hooks and sinks."""

from .authorising import Access, IAuthoriser
from .counters import Counters
from .factory import MsgprotoServerFactory, SessionFactory
from .link import Link, MachineTimer
from .memory import ByteBudget, ReadControl
from .session import Delivery, Session, SessionHooks
from .sink import DurableSink, IMessageSink

__all__ = [
    "Access",
    "ByteBudget",
    "Counters",
    "Delivery",
    "DurableSink",
    "IAuthoriser",
    "IMessageSink",
    "Link",
    "MachineTimer",
    "MsgprotoServerFactory",
    "ReadControl",
    "Session",
    "SessionFactory",
    "SessionHooks",
]
