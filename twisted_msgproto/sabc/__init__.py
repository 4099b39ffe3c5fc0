"""sABC: sessions of requests and answers which a person can type, over TCP, TLS and WebSocket.

Read in this order: wire, framing, tables, events, side, machine, session, protocol, websocket,
service.
"""

from .events import ConnectReceived, ErrorReceived
from .machine import Client, Server
from .protocol import SabcClient, SabcClientFactory, SabcServer, SabcServerFactory, connect
from .session import Response, SabcSession

__all__ = [
    "Client",
    "ConnectReceived",
    "ErrorReceived",
    "Response",
    "SabcClient",
    "SabcClientFactory",
    "SabcServer",
    "SabcServerFactory",
    "SabcSession",
    "Server",
    "connect",
]
