"""``msgproto send mtl`` and ``msgproto recv mtl``: a plain client of one flow.

DESTINATION is ``RESOURCE``, ``PROFILE/RESOURCE`` or ``VIRTUAL-HOST/PROFILE/RESOURCE``; ``send``
writes to the profile ``ingest`` when it does not say, ``recv`` reads from ``queue``.  With CURVE
``--tls-ca`` is a file with the server's public key and ``--tls-key`` one with our secret key.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from socket import AF_INET, getaddrinfo
from typing import Any, Final, NamedTuple

import zmq
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import DNSLookupError

from ..core.errors import ConfigurationError, TimedOut
from ..core.message import Message
from ..net.authentication.sasl import credentials
from ..net.clients.command_types import (
    LOG_IN_OPTIONS,
    ConnectOptions,
    InFlight,
    Messages,
    Progress,
    RecvOptions,
    SendOptions,
    typed,
)
from ..registry import PROTOCOLS
from .protocol import PROTOCOL
from .protocol.client import MtlClient, MtlClientFactory
from .protocol.flows import Received
from .wire.data import FieldValue, as_texts, encode_table
from .zeromq import CurveClient, is_local, read_key, read_secret_key

DEFAULT_ENDPOINT = f"tcp://127.0.0.1:{PROTOCOLS[PROTOCOL].ports['control']}"
DEFAULT_VIRTUAL_HOST = "msgproto"
DEFAULT_RESOURCE = "messages"

BOTH_OPTIONS: Final = LOG_IN_OPTIONS | {"destination", "tls_ca", "tls_key"}
SEND_OPTIONS: Final = BOTH_OPTIONS | {"window", "properties"}
RECV_OPTIONS: Final = BOTH_OPTIONS | {"ready"}

SLICE = 256


class Destination(NamedTuple):
    virtual_host: str
    profile: str
    resource: str


def destination(text: str | None, profile: str) -> Destination:
    """Read a destination; ``profile`` is the one meant when it does not say."""
    parts = (text or DEFAULT_RESOURCE).split("/", 2)
    return Destination(*[DEFAULT_VIRTUAL_HOST, profile][: 3 - len(parts)], *parts)


async def _connect(
    reactor: Any, options: ConnectOptions, target: Destination, window: int | None = None
) -> MtlClient:
    curve = None
    if options.tls_key is not None and options.tls_ca is None:
        raise ConfigurationError("CURVE needs the server's public key: --tls-ca FILE")
    if options.tls_ca is not None:
        if options.tls_key is None:
            raise ConfigurationError("CURVE needs our secret key: --tls-key FILE")
        secret = read_secret_key(str(options.tls_key))
        curve = CurveClient(read_key(str(options.tls_ca)), zmq.curve_public(secret), secret)
    reveal = curve is not None or is_local(options.endpoint)
    factory = MtlClientFactory(
        target.virtual_host,
        target.profile,
        credentials=credentials(options.user, options.password, reveal=reveal),
        limits=None if window is None else {"window": window},
        curve=curve,
        clock=reactor,
    )
    client = MtlClient(reachable(options.endpoint), factory, persistent=False)
    try:
        await factory.enter(client)
    except BaseException as error:
        trouble = client.link.wire.trouble
        client.abort()
        if trouble and isinstance(error, CancelledError):  # --timeout is over
            raise TimedOut(f"the server does not answer: {trouble}") from None
        raise
    return client


def reachable(endpoint: str) -> str:
    """Return it for libzmq, which looks for IPv4 alone, and for ever; raises DNSLookupError."""
    kind, _, address = endpoint.partition("://")
    host, _, port = address.rpartition(":")
    if kind != "tcp" or not host:
        return endpoint
    try:
        found = getaddrinfo(host.strip("[]"), None)
    except OSError as error:
        raise DNSLookupError(str(error)) from None
    if host.startswith("[") or any(family == AF_INET for family, *_ in found):
        return endpoint
    return f"tcp://[{found[0][4][0]}]:{port}"


async def send(reactor: Any, options: SendOptions, messages: Messages, progress: Progress) -> None:
    """Send all ``messages`` with confirm ``full``; raises Refused, TimedOut or ConnectionClosed."""
    target = destination(options.destination, "ingest")
    properties: dict[str, FieldValue] = {
        name: typed(text) for name, text in options.properties.items()
    }
    try:
        encode_table(properties)
    except ValueError as error:
        raise ConfigurationError(f"--property: {error}") from None
    client = await _connect(reactor, options, target, options.window)
    try:
        writer = await client.writer([target.resource], "full")
        if writer.newResources:
            progress.note(
                f"the broker had no queue {target.resource}: it was made, and nobody consumes it"
            )
        elif options.destination is not None and "/" not in options.destination:
            progress.note(
                f"no queue got them: {target.resource} is a resource of the profile"
                f" {target.profile}; --destination queue/{target.resource} is a queue"
            )
        progress.follow(writer.link.takenAt)
        window = client.limits.integer("window")
        in_flight = InFlight(reactor, messages, progress, window)
        while bodies := await in_flight.some(SLICE):
            in_flight.add(writer.sendMany(target.resource, bodies, properties), len(bodies))
    except BaseException:
        client.abort()
        raise
    await client.close()


async def recv(reactor: Any, options: RecvOptions, show: Callable[[Message], None]) -> None:
    """Summon a resource and show what comes, confirmed when shown; raises Refused or TimedOut."""
    target = destination(options.destination, "queue")
    client = await _connect(reactor, options, target)
    ended: Deferred[None] = Deferred()
    left = options.count
    confirm = "none" if target.profile.lower() == "test" else "full"

    def received(content: Received) -> None:
        nonlocal left
        if ended.called:
            return  # not confirmed: somebody else gets it
        show(
            Message(
                PROTOCOL,
                "content",
                int(time.time() * 1_000_000),
                options.endpoint,
                message_id=content.sequence,
                destination=content.resource,
                fields=as_texts(content.table),
                body=content.body,
            )
        )
        if confirm == "full":
            reader.confirm(content.sequence)
        if left is not None:
            left -= 1
            if left <= 0:
                ended.callback(None)

    def lost(error: Exception) -> None:
        if not ended.called:
            ended.errback(error)

    try:
        reader = await client.reader([target.resource], confirm, received)
        reader.lost = lost
        if options.follow is not None:
            options.follow(reader.link.takenAt)
        await reader.summon(target.resource)
        if options.ready is not None:
            options.ready()
        await ended
        reader.flush()
    finally:
        await client.close()
