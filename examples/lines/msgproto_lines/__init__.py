"""Lines: each is acknowledged when it is safe, and goes to all who have subscribed."""

from twisted_msgproto.extend import LOOPBACK, Registered

from .machine import Client, Server
from .protocol import (
    LinesClient,
    LinesClientFactory,
    LinesClientService,
    LinesServer,
    LinesServerFactory,
    connect,
)

REGISTERED = Registered(
    name="lines",
    title="Lines",
    package="msgproto_lines",
    ports={"tcp": 5060},
    demo={"endpoint": [LOOPBACK]},
)
"""What the entry point in pyproject.toml names."""

__all__ = [
    "REGISTERED",
    "Client",
    "LinesClient",
    "LinesClientFactory",
    "LinesClientService",
    "LinesServer",
    "LinesServerFactory",
    "Server",
    "connect",
]
