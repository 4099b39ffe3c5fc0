"""``msgproto send`` and ``recv`` pass these types to a protocol's ``command`` module.

A ``command`` module, one of this package or a third party's, has:

``DEFAULT_ENDPOINT``
    Where the protocol's server listens when nobody names an endpoint.

``async def send(reactor, options, messages, progress)``
    Connect, send all ``messages``, and return once every one of them is acknowledged.  What ends it
    before that is raised.  It needs no deadline of its own: ``msgproto send`` cancels it when a
    peer that owes something is silent for too long.

``async def recv(reactor, options, show)``
    Connect and call ``show`` with each :class:`~twisted_msgproto.core.message.Message` that comes,
    until it is cancelled or the peer ends in peace.  What else ends it is raised.

``SEND_OPTIONS``, ``RECV_OPTIONS``
    The names of the fields below that the two understand.  An operator who gives another one is
    told that this protocol has none.  A module without them is given whatever there is.

``def encode(line, options) -> bytes`` (not every protocol needs it)
    The message that a line of the input stands for.  A ValueError says why the protocol cannot
    carry this line; the operator is told its number, and nothing behind it is sent.

This module holds the types of ``options``, ``messages`` and ``progress``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from ...core.strict_json import NotJson, parse_json

TLS_OPTIONS: Final = frozenset({"tls_ca", "tls_cert", "tls_key"})

LOG_IN_OPTIONS: Final = frozenset({"user", "password"})


def typed(text: str) -> int | float | str:
    """Return a property's value as an operator typed it: a number, or text with or without
    quotes.
    """
    try:
        value = parse_json(text, len(text))
    except NotJson:
        return text
    return value if isinstance(value, int | float | str) and value not in (True, False) else text


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectOptions:
    """Whom to connect to, and as whom.

    Attributes:
        endpoint: ``tcp:HOST:PORT``, ``tls:HOST:PORT``, ``unix:PATH``, ``ws://…``, ``wss://…`` or a
            ZeroMQ address, as the protocol takes it.
        destination: the queue, topic, method or resource meant; None where it has a default.
        user: who logs in; None for nobody.
        password: from the password file, without the line's end.
        tls_ca: PEM file of the authorities to trust; None for those of the system.
        tls_cert: PEM file of our own certificate (chain).
        tls_key: PEM file of its private key; None if it stands in ``tls_cert``.
        extensions: protocol extensions to require, as ``NAME`` or ``NAME:KEY=VALUE,KEY=VALUE``;
            empty: the protocol's own choice.
    """

    endpoint: str
    destination: str | None = None
    user: str | None = None
    password: str | None = None
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    extensions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SendOptions(ConnectOptions):
    """How to send.

    Attributes:
        window: messages in flight; None for the protocol's default.
        compress: zlib level, 0 for none; None for the protocol's default.
        count: how many messages will come, where that is known.
        size: bytes of each, where that is known.
        properties: properties (headers, fields) of every message, by name, as they were typed.
        protocol_version: the version of the protocol to write; None for the newest.
        hosts: more servers, each as ``endpoint``; the next one is tried when one is away.
        ttl: seconds after which a connection is replaced; None for never.
        pipelining: windows in flight; None for the protocol's default.
        replace_invalid: send U+FFFD for bytes that the protocol cannot carry as they are.
    """

    window: int | None = None
    compress: int | None = None
    count: int | None = None
    size: int | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    protocol_version: int | None = None
    hosts: tuple[str, ...] = ()
    ttl: float | None = None
    pipelining: int | None = None
    replace_invalid: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RecvOptions(ConnectOptions):
    """How to receive.

    Attributes:
        count: end after this many messages; None: never.
        filter: an expression of the protocol's, which messages have to meet; None for all.
        ready: where it is given, ``recv`` calls it once the server has agreed to send what waits
            there; None: nobody wants to know.
    """

    count: int | None = None
    filter: str | None = None
    ready: Callable[[], object] | None = None


class Messages(Protocol):
    """The messages to send."""

    async def some(self, most: int) -> list[bytes]:
        """1 … ``most`` messages as soon as any is there; an empty list after the last."""


class Progress(Protocol):
    """What hears of the progress of a ``send``, once a batch and not once a message."""

    def sent(self, count: int) -> None:
        """``count`` more messages are on their way."""

    def acknowledged(self, count: int) -> None:
        """``count`` more messages are acknowledged."""

    def written(self, count: int) -> None:
        """``count`` more messages are written to a peer that was not asked to acknowledge them.

        Only where the operator has asked for that; they do not count as acknowledged.
        """

    def follow(self, takenAt: Callable[[float], float]) -> None:
        """Ask ``takenAt(now)`` when the peer took something of ours last: then it is at work."""

    def note(self, text: str) -> None:
        """What the operator is to know of what was acknowledged; it ends the line that counts."""

    def alive(self) -> None:
        """The peer is at work: it acknowledges nothing yet, and says that it will."""
