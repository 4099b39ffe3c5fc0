"""sABC has sessions of requests and answers that a person can type, over TCP, TLS and WebSocket.

Read in this order: wire, terms, machine, protocol, service.
"""

from ..net.limit_types import SabcClientLimits, SabcServerLimits
from .protocol.reconnect import SabcClientService
from .protocol.session import Response, SabcSession
from .protocol.sides import (
    SabcClient,
    SabcClientFactory,
    SabcServer,
    SabcServerFactory,
    connect,
    serve,
)
from .terms import ConnectReceived, ErrorReceived

__all__ = [
    "ConnectReceived",
    "ErrorReceived",
    "Response",
    "SabcClient",
    "SabcClientFactory",
    "SabcClientLimits",
    "SabcClientService",
    "SabcServer",
    "SabcServerFactory",
    "SabcServerLimits",
    "SabcSession",
    "connect",
    "serve",
]
