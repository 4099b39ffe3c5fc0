"""UMQ for ``msgproto send`` and ``recv``: a call a message, updates of a topic.

ENDPOINT is ``ws://HOST:PORT/`` or ``wss://…``; ``tcp:HOST:PORT`` and ``tls:HOST:PORT`` mean the
same addresses.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone
from twisted.python.failure import Failure

from ..core.errors import ConfigurationError, ConnectionClosed, PeerError, Refused
from ..core.message import Message
from ..core.strict_json import JsonRefused, NotJson, parse_json
from ..net.clients.client import session_standing
from ..net.clients.client_endpoints import client_endpoint, host_and_port, websocket_endpoint
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
from .application import call_method, dump
from .protocol.calls import PROTOCOL, NoSuchMethod, Reply, Stored, Update, plain
from .protocol.sides import UmqClient, UmqClientFactory
from .protocol.topics import Subscription

DEFAULT_ENDPOINT = "ws://127.0.0.1:5048/"

SEND_OPTIONS: Final = TLS_OPTIONS | LOG_IN_OPTIONS | {"destination", "window", "replace_invalid"}
RECV_OPTIONS: Final = TLS_OPTIONS | LOG_IN_OPTIONS | {"destination"}
CALL_OPTIONS: Final = TLS_OPTIONS | LOG_IN_OPTIONS

WINDOW = 100


def _where(reactor: Any, options: ConnectOptions) -> tuple[str, Any]:
    text = options.endpoint
    if text.startswith(("ws:", "wss:")):
        return text, websocket_endpoint(reactor, options)
    kind, _, rest = text.partition(":")
    endpoint = client_endpoint(reactor, options)
    scheme = {"tcp": "ws", "tls": "wss"}.get(kind)
    if scheme is None or "=" in rest:
        return "ws://localhost/", endpoint
    host, port = host_and_port(rest)
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}/", endpoint


async def _connected(
    reactor: Any, options: ConnectOptions, protocol: type[UmqClient] = UmqClient
) -> UmqClient:
    url, endpoint = _where(reactor, options)
    hello = "" if options.user is None else f"{options.user}:{options.password or ''}"
    factory = UmqClientFactory(url, hello=hello, clock=reactor)
    factory.protocol = protocol
    client: UmqClient = await session_standing(endpoint.connect(factory))
    return client


async def send(reactor: Any, options: SendOptions, messages: Messages, progress: Progress) -> None:
    """A call for each message; its answer is the acknowledgement.

    With a destination the call is ``["DESTINATION", MESSAGE]``.  A message that is not UTF-8 is the
    call's attachment, and the text in its place is empty (``UM-03``).  The first call that fails
    ends it.  That a server says to have stored nothing (``UM-17``) is noted.
    """
    session = await _connected(reactor, options)
    noted = False

    def ask(body: bytes) -> Deferred[Reply]:
        text, attachments = _payload(body, options.replace_invalid)
        if options.destination is not None:
            text = dump([options.destination, text])
        # How long is too long, the caller of ``send`` knows.
        return session.call(text, attachments, timeout=inf).addCallback(answered)

    def answered(reply: Reply) -> Reply:
        nonlocal noted
        if not noted and Stored.read(reply.payload) == Stored(False):
            noted = True
            progress.note("the server has no queue: it stored nothing")
        return reply

    progress.follow(session.link.takenAt)
    try:
        await ask_each(reactor, messages, progress, options.window or WINDOW, ask)
    finally:
        await session.close()


def _payload(body: bytes, replace_invalid: bool) -> tuple[str, list[bytes]]:
    try:
        return body.decode("utf-8", "replace" if replace_invalid else "strict"), []
    except UnicodeDecodeError:
        return "", [body]


async def call(
    reactor: Any, options: SendOptions, method: str, arguments: list[str]
) -> tuple[str, bool]:
    """Its result as JSON, and whether there was such a method; if not, what the server did instead.

    An argument that is JSON is that value, any other is text.
    """
    values: list[Any] = []
    for argument in arguments:
        try:
            values.append(parse_json(argument, len(argument)))
        except NotJson:
            values.append(argument)
        except JsonRefused as error:
            raise ConfigurationError(f"--args: no server accepts this JSON: {error}") from None
    session = await _connected(reactor, options)
    try:
        result = await call_method(session, method, *values, timeout=inf)
        if isinstance(result, Stored):
            return str(NoSuchMethod(result)), False
        if isinstance(result, Reply):
            sizes = [len(body) for body in plain(result.attachments)]
            return dump({"result": result.payload, "attachments": sizes}), True
        return dump(result), True
    finally:
        await session.close()


class Receiver(UmqClient):
    show: Callable[[Message], None]
    ended: Deferred[None]

    def requestReceived(self, message: Message) -> Any:
        self.show(message)

    def attributeChanged(self, name: str, value: str | None) -> None:
        body = None if value is None else value.encode()
        self.show(self._shown("attribute", name, body))

    def _shown(self, kind: str, destination: str, body: bytes | None) -> Message:
        return Message(
            PROTOCOL,
            kind,
            self.link.receivedAt(),
            self.peer,
            self.session,
            destination=destination,
            body=body,
            attachments=[],
        )

    def subscriptionEnded(self, subscription: Subscription, reason: str) -> None:
        if reason == "closed":
            why = "the server has ended the topic, or we read it too slowly"
            self.ended.errback(PeerError(why))

    def sessionLost(self, reason: Failure) -> None:
        if self.ended.called:
            return
        if reason.check(ConnectionDone) and not isinstance(self.link.closeReason, Refused):
            self.ended.callback(None)
        else:
            self.ended.errback(self.link.closeReason or ConnectionClosed("the connection was lost"))


async def recv(reactor: Any, options: RecvOptions, show: Callable[[Message], None]) -> None:
    """Show what the server pushes; with a destination, subscribe it with ``["subscribe", …]``."""
    if options.destination is not None and not options.destination:
        raise ConfigurationError("--destination: the name of a topic is expected")
    kind = type("Showing", (Receiver,), {"show": staticmethod(show), "ended": Deferred()})
    session = await _connected(reactor, options, kind)
    assert isinstance(session, Receiver)
    if options.follow is not None:
        options.follow(session.link.arrivedAt)
    name = options.destination

    def update(update: Update) -> None:
        assert name is not None
        show(session._shown("topic", name, update.payload.encode()))

    try:
        if name is not None:
            subscription = session.subscribe(lambda id: dump(["subscribe", name, id]), update)
            await subscription.whenStarted()
        await session.ended
    finally:
        await session.close()
