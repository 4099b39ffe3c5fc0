"""sABC: sessions of requests and answers which a person can type, over TCP, TLS and WebSocket.

Read in this order: wire, lines, framing, tables, events, speaking, side, machine, verbs, session,
protocol, websocket, service.
"""

from .comeback import SabcClientService
from .events import ConnectReceived, ErrorReceived
from .exchange import Response
from .machine import Client, Server
from .protocol import SabcClient, SabcClientFactory, SabcServer, SabcServerFactory, connect
from .session import SabcSession

__all__ = [
    "Client",
    "ConnectReceived",
    "ErrorReceived",
    "Response",
    "SabcClient",
    "SabcClientFactory",
    "SabcClientService",
    "SabcServer",
    "SabcServerFactory",
    "SabcSession",
    "Server",
    "connect",
]
