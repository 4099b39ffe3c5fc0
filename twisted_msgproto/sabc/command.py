"""sABC for ``msgproto send``, ``recv`` and ``bench``: a request a message.

ENDPOINT is ``tcp:HOST:PORT``, ``tls:HOST:PORT``, ``unix:PATH``, ``ws://…`` or ``wss://…``.
``--user`` is the client-id, ``--password-file`` holds the passcode.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from ..core.errors import ConfigurationError, ConnectionClosed
from ..core.message import Message
from ..net.clients.asking import ask_each
from ..net.clients.endpoints import client_endpoint, tls_options
from ..net.clients.shapes import ConnectOptions, Messages, Progress, RecvOptions, SendOptions
from ..net.wires import websocket
from ..registry import PROTOCOLS
from .protocol import ANONYMOUS_CLIENT_ID, SabcClient, SabcClientFactory
from .protocol.session import PROTOCOL, log
from .terms.events import ErrorReceived

DEFAULT_ENDPOINT = f"tcp:127.0.0.1:{PROTOCOLS[PROTOCOL].ports['tcp']}"

WINDOW = 256
"""Requests in flight when nobody says."""


async def _connected(
    reactor: Any, options: ConnectOptions, protocol: type[SabcClient] = SabcClient
) -> SabcClient:
    if options.destination is not None:
        raise ConfigurationError("sABC knows no destinations: leave --destination out")
    factory = SabcClientFactory(
        options.user or ANONYMOUS_CLIENT_ID, options.password, clock=reactor
    )
    factory.protocol = protocol
    if options.endpoint.startswith(("ws:", "wss:")):
        url = options.endpoint
        address = websocket.parse_address(url)
        tls = tls_options(options, address.host) if address.secure else None
        endpoint = websocket.client_endpoint(reactor, url, tls)
        connection: Any = await endpoint.connect(factory.webSocketFactory(url))
        client: SabcClient = connection.session
    else:
        connected: Any = await client_endpoint(reactor, options).connect(factory)
        client = connected
    return await client.whenEstablished()


async def send(reactor: Any, options: SendOptions, messages: Messages, progress: Progress) -> None:
    """A request for each message; its answer is the acknowledgement.

    The first request which fails ends it.
    """
    if options.compress:
        raise ConfigurationError("sABC does not compress: leave --compress out")
    session = await _connected(reactor, options)
    window = min(options.window or WINDOW, session.room)
    try:
        await ask_each(reactor, messages, progress, window, session.request)
    finally:
        await session.disconnect()


class Receiver(SabcClient):
    """Shows what the server sends of its own accord."""

    show: Callable[[Message], None]
    ended: Deferred[None]

    def requestReceived(self, message: Message) -> Any:
        """Show it, and say that it came."""
        self.show(message)

    def messageReceived(self, message: Message) -> Any:
        """Show it."""
        self.show(message)

    def errorReceived(self, error: ErrorReceived) -> None:
        """Tell the operator."""
        log.warn("the server reports an error: {code}", code=error.code)

    def sessionLost(self, reason: Failure) -> None:
        """There is no more to come."""
        if not self.ended.called:
            self.ended.callback(None)


async def recv(reactor: Any, options: RecvOptions, show: Callable[[Message], None]) -> None:
    """Show requests and send-only messages of the server until the session ends."""
    ended: Deferred[None] = Deferred()

    class Showing(Receiver):
        pass

    Showing.show = staticmethod(show)
    Showing.ended = ended
    session = await _connected(reactor, options, Showing)
    try:
        await ended
        if options.count is not None:
            raise ConnectionClosed("the session ended before all messages came")
    finally:
        session.loseSession()
