"""This package has what all protocols share on Twisted: factories, sessions, hooks and sinks."""

from .authentication import Identity, IIdentity, PasswordFile, portal_over
from .authorising import Access, Authoriser, IAuthoriser, Rules, read_rules
from .counters import Counters
from .factory import MsgprotoServerFactory, SessionFactory
from .hooks import Later
from .lifetimes import ClientEndpoint, ClientTLS, Connecting, ServerEndpoint, Serving
from .link import Link, MachineTimer
from .memory import ByteBudget, ReadControl
from .session import Delivery, Session, SessionHooks
from .sink import DurableSink, IMessageSink, MessageSink

__all__ = [
    "Access",
    "Authoriser",
    "ByteBudget",
    "ClientEndpoint",
    "ClientTLS",
    "Connecting",
    "Counters",
    "Delivery",
    "DurableSink",
    "IAuthoriser",
    "IIdentity",
    "IMessageSink",
    "Identity",
    "Later",
    "Link",
    "MachineTimer",
    "MessageSink",
    "MsgprotoServerFactory",
    "PasswordFile",
    "ReadControl",
    "Rules",
    "ServerEndpoint",
    "Serving",
    "Session",
    "SessionFactory",
    "SessionHooks",
    "portal_over",
    "read_rules",
]
