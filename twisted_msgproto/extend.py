"""This module has what a further protocol needs, in a package of its own.

Nothing of Twisted is imported until a name is asked for that needs it, so that machines and the
entry point of a package are imported without it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from .core.connection import Connection, WorkLost
from .core.deadlines import Deadlines
from .core.errors import ConnectionClosed, Fault, LimitExceeded, PeerError, Refused
from .core.limits import Limit, Limits
from .core.machine import IllegalTransition, ReceiveWindow, State
from .core.message import Message, MessageBatch
from .registry import LOOPBACK, Registered

if TYPE_CHECKING:
    from .net.authentication import LOGIN_LIMITS, Authentication, AuthenticationOptions
    from .net.clients.client import ClientLink
    from .net.clients.client_endpoints import client_endpoint
    from .net.clients.command_types import (
        LOG_IN_OPTIONS,
        TLS_OPTIONS,
        ConnectOptions,
        Messages,
        Progress,
        RecvOptions,
        SendOptions,
        ask_each,
    )
    from .net.clients.reconnect import ReconnectingClient
    from .net.counters import CounterPaths
    from .net.factory import MsgprotoServerFactory, SessionFactory
    from .net.gateway import Gateway, ListeningService, standalone
    from .net.lifetimes import Connecting, connecting
    from .net.link import Link
    from .net.logs import SteadyLogger
    from .net.options import ServerOptions
    from .net.session import ClientSession, LoginLink, Session, SessionLink, hook
    from .net.wires.stream import StreamWire

__all__ = [
    "LOGIN_LIMITS",
    "LOG_IN_OPTIONS",
    "LOOPBACK",
    "TLS_OPTIONS",
    "Authentication",
    "AuthenticationOptions",
    "ClientLink",
    "ClientSession",
    "ConnectOptions",
    "Connecting",
    "Connection",
    "ConnectionClosed",
    "CounterPaths",
    "Deadlines",
    "Fault",
    "Gateway",
    "IllegalTransition",
    "Limit",
    "LimitExceeded",
    "Limits",
    "Link",
    "ListeningService",
    "LoginLink",
    "Message",
    "MessageBatch",
    "Messages",
    "MsgprotoServerFactory",
    "PeerError",
    "Progress",
    "ReceiveWindow",
    "ReconnectingClient",
    "RecvOptions",
    "Refused",
    "Registered",
    "SendOptions",
    "ServerOptions",
    "Session",
    "SessionFactory",
    "SessionLink",
    "State",
    "SteadyLogger",
    "StreamWire",
    "WorkLost",
    "ask_each",
    "client_endpoint",
    "connecting",
    "hook",
    "standalone",
]

LATE: Final = {
    "authentication": "LOGIN_LIMITS Authentication AuthenticationOptions",
    "clients.client": "ClientLink",
    "clients.client_endpoints": "client_endpoint",
    "clients.reconnect": "ReconnectingClient",
    "clients.command_types": "LOG_IN_OPTIONS TLS_OPTIONS ConnectOptions Messages Progress"
    " RecvOptions SendOptions ask_each",
    "counters": "CounterPaths",
    "factory": "MsgprotoServerFactory SessionFactory",
    "gateway": "Gateway ListeningService standalone",
    "lifetimes": "Connecting connecting",
    "link": "Link",
    "logs": "SteadyLogger",
    "options": "ServerOptions",
    "session": "ClientSession LoginLink Session SessionLink hook",
    "wires.stream": "StreamWire",
}

if not TYPE_CHECKING:  # to a type checker it would be a module which has every name

    def __getattr__(name: str) -> Any:
        """Import what needs Twisted only when somebody asks for it."""
        for module, names in LATE.items():
            if name in names.split():
                return getattr(import_module(f".net.{module}", __package__), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
