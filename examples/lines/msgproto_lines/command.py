"""``msgproto send lines`` and ``msgproto recv lines``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from twisted_msgproto.extend import (
    LOG_IN_OPTIONS,
    TLS_OPTIONS,
    Connecting,
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

from .protocol import LinesClient, connect

DEFAULT_ENDPOINT = "tcp:127.0.0.1:5060"
SEND_OPTIONS = TLS_OPTIONS | LOG_IN_OPTIONS | {"window"}
RECV_OPTIONS = TLS_OPTIONS | LOG_IN_OPTIONS
WINDOW = 256


def connected(
    reactor: Any, options: ConnectOptions, client: type[LinesClient] = LinesClient
) -> Connecting[LinesClient]:
    """Return what connects as these options of a command say."""
    user, password = options.user, options.password or ""
    return connect(reactor, client_endpoint(reactor, options), client, user=user, password=password)


async def send(reactor: Any, options: SendOptions, messages: Messages, progress: Progress) -> None:
    """Send all messages; return when each is acknowledged."""
    async with connected(reactor, options) as client:
        await ask_each(reactor, messages, progress, options.window or WINDOW, client.send)


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

    async with connected(reactor, options, Showing) as client:
        await client.subscribe()
        await ended
        raise ConnectionClosed("the server has ended the connection")
