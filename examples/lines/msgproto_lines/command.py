"""``msgproto send lines`` and ``msgproto recv lines``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from twisted_msgproto.extend import (
    TLS_OPTIONS,
    ConnectionClosed,
    ConnectOptions,
    Message,
    Messages,
    Progress,
    RecvOptions,
    SendOptions,
    ask_each,
    client_endpoint,
)

from .protocol import LinesClient, LinesClientFactory

DEFAULT_ENDPOINT = "tcp:127.0.0.1:5060"
SEND_OPTIONS = TLS_OPTIONS | {"window"}
RECV_OPTIONS = TLS_OPTIONS
WINDOW = 256


async def connected(
    reactor: Any, options: ConnectOptions, protocol: type[LinesClient] = LinesClient
) -> LinesClient:
    """Connect to whom the operator means."""
    factory = LinesClientFactory(clock=reactor)
    factory.protocol = protocol
    client: Any = await client_endpoint(reactor, options).connect(factory)
    standing: LinesClient = await client.whenEstablished()
    return standing


async def send(reactor: Any, options: SendOptions, messages: Messages, progress: Progress) -> None:
    """Send all messages; return when each is acknowledged."""
    client = await connected(reactor, options)
    try:
        await ask_each(reactor, messages, progress, options.window or WINDOW, client.send)
    finally:
        await client.close()


async def recv(reactor: Any, options: RecvOptions, show: Callable[[Message], None]) -> None:
    """Show what others put until the connection ends."""
    ended: Deferred[None] = Deferred()

    class Showing(LinesClient):
        def messageReceived(self, message: Message) -> None:
            """Show it."""
            show(message)

        def sessionLost(self, reason: Failure) -> None:
            """There is no more to come."""
            ended.callback(None)

    client = await connected(reactor, options, Showing)
    try:
        await client.subscribe()
        await ended
        raise ConnectionClosed("the server has ended the connection")
    finally:
        client.abort()
