"""sABC for ``msgproto send``, ``recv`` and ``bench``: a request a message.

ENDPOINT is ``tcp:HOST:PORT``, ``tls:HOST:PORT``, ``unix:PATH``, ``ws://…`` or ``wss://…``.
``--user`` is the client-id, ``--password-file`` holds the passcode, ``--property`` a header of
every message.  A body is bytes: lines are carried as they are.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from math import inf
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from ..core.errors import ConfigurationError, ConnectionClosed, Refused
from ..core.message import Message
from ..core.strict_json import JsonRefused, NotJson, parse_json
from ..net.clients.client import session_standing
from ..net.clients.client_endpoints import client_endpoint, websocket_endpoint
from ..net.clients.command_types import (
    LOG_IN_OPTIONS,
    TLS_OPTIONS,
    ConnectOptions,
    Messages,
    Progress,
    RecvOptions,
    SendOptions,
    ask_each,
)
from ..registry import PROTOCOLS
from .protocol.session import PROTOCOL, Response
from .protocol.sides import ANONYMOUS_CLIENT_ID, SabcClient, SabcClientFactory
from .terms import ErrorReceived

DEFAULT_ENDPOINT = f"tcp:127.0.0.1:{PROTOCOLS[PROTOCOL].ports['tcp']}"

SEND_OPTIONS: Final = TLS_OPTIONS | LOG_IN_OPTIONS | {"window", "properties"}
CALL_OPTIONS: Final = TLS_OPTIONS | LOG_IN_OPTIONS | {"properties"}
RECV_OPTIONS: Final = TLS_OPTIONS | LOG_IN_OPTIONS

WINDOW = 256


async def _connected(
    reactor: Any, options: ConnectOptions, protocol: type[SabcClient] = SabcClient
) -> SabcClient:
    factory = SabcClientFactory(
        options.user or ANONYMOUS_CLIENT_ID, options.password, clock=reactor
    )
    factory.protocol = protocol
    if _on_websocket(options):
        endpoint = websocket_endpoint(reactor, options)
        connecting = endpoint.connect(factory.webSocketFactory(options.endpoint))
    else:
        connecting = client_endpoint(reactor, options).connect(factory)
    client: SabcClient = await session_standing(connecting)
    return client


def _on_websocket(options: ConnectOptions) -> bool:
    return options.endpoint.startswith(("ws:", "wss:"))


def encode(line: bytes, options: SendOptions) -> bytes:
    """Return the line as it is; ValueError for one that WebSocket cannot carry (``SA-21``)."""
    if line.startswith(b"\0") and _on_websocket(options):
        raise ValueError(
            "it begins with NUL, which ends a message on WebSocket; a tcp: endpoint carries it"
        )
    return line


async def send(reactor: Any, options: SendOptions, messages: Messages, progress: Progress) -> None:
    """The answer to a request is its acknowledgement; the first request that fails ends it."""
    session = await _connected(reactor, options)
    window = min(options.window or WINDOW, session.link.machine.room)

    def ask(body: bytes) -> Deferred[Any]:
        # How long is too long, the caller of ``send`` knows.
        return session.request(body, headers=options.properties, timeout=inf)

    progress.follow(session.link.takenAt)
    try:
        await ask_each(reactor, messages, progress, window, ask)
    finally:
        await session.disconnect()


async def call(
    reactor: Any, options: SendOptions, request: str, arguments: list[str]
) -> tuple[str, bool]:
    """Its answer as JSON, and True.

    The answer's ``body`` is its value where it is JSON, else its text, else ``body_base64``;
    ``fields`` are its headers.
    """
    if arguments:
        raise ConfigurationError("sabc has no --args: the text of --call is the request's body")
    session = await _connected(reactor, options)
    try:
        answer = await session.request(request, headers=options.properties, timeout=inf)
        return json.dumps(_shown(answer), ensure_ascii=False), True
    finally:
        await session.disconnect()


def _shown(answer: Response) -> dict[str, Any]:
    shown: dict[str, Any] = {"fields": dict(answer.headers)}
    try:
        text = answer.body.decode()
    except UnicodeDecodeError:
        return shown | {"body_base64": base64.b64encode(answer.body).decode()}
    try:
        return shown | {"body": parse_json(text, len(answer.body))}
    except (NotJson, JsonRefused):  # the answer is no less an answer
        return shown | {"body": text}


async def recv(reactor: Any, options: RecvOptions, show: Callable[[Message], None]) -> None:
    """Show requests and send-only messages of the server until the session ends."""
    ended: Deferred[None] = Deferred()

    class Receiver(SabcClient):
        def requestReceived(self, message: Message) -> None:
            show(message)

        def messageReceived(self, message: Message) -> None:
            show(message)

        def errorReceived(self, error: ErrorReceived) -> None:
            if not ended.called:
                text = error.body.decode("utf-8", "replace") or "it does not say which"
                ended.errback(Refused(f"the server reports an error: {text}", error.code))

        def sessionLost(self, reason: Failure) -> None:
            if not ended.called:
                ended.callback(None)

    session = await _connected(reactor, options, Receiver)
    if options.follow is not None:
        options.follow(session.link.arrivedAt)
    try:
        await ended
        if options.count is not None:
            raise ConnectionClosed("the session ended before all messages came")
    finally:
        session.loseSession()
