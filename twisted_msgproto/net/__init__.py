"""This package has what all protocols share on Twisted: factories, sessions, hooks and sinks."""

from .authentication import Identity, IIdentity, PasswordFile, portal_over
from .authorising import Access, Authoriser, IAuthoriser, Rules, read_rules
from .clients.command_types import ClientEndpoint
from .counters import Counters
from .deferreds import Later
from .factory import ServerSettings, SessionSettings
from .lifetimes import ClientTLS, Connecting, ServerEndpoint, Serving
from .session import Session, SessionHooks
from .sink import DurableSink, IMessageSink, MessageSink

__all__ = [
    "Access",
    "Authoriser",
    "ClientEndpoint",
    "ClientTLS",
    "Connecting",
    "Counters",
    "DurableSink",
    "IAuthoriser",
    "IIdentity",
    "IMessageSink",
    "Identity",
    "Later",
    "MessageSink",
    "PasswordFile",
    "Rules",
    "ServerEndpoint",
    "ServerSettings",
    "Serving",
    "Session",
    "SessionHooks",
    "SessionSettings",
    "portal_over",
    "read_rules",
]
