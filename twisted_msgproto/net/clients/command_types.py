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
from typing import Any, Final, Protocol, TypeAlias, Union

from twisted.internet.defer import CancelledError, Deferred, maybeDeferred
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.python.failure import Failure

from ...core.errors import LimitExceeded, Refused, TimedOut
from ...core.strict_json import NotJson, parse_json


class _Connects(Protocol):
    def connect(self, protocolFactory: Any, /) -> Deferred[Any]: ...


ClientEndpoint: TypeAlias = Union[IStreamClientEndpoint, _Connects]  # noqa: UP007
"""Where to connect to: any of Twisted's client endpoints is one."""


TLS_OPTIONS: Final = frozenset({"tls_ca", "tls_cert", "tls_key"})

LOG_IN_OPTIONS: Final = frozenset({"user", "password"})


def typed(text: str) -> int | float | str:
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
        follow: where it is given, ``recv`` calls it once it is connected, with a function: given
            the time now, that returns when a part of a message came last.
    """

    count: int | None = None
    filter: str | None = None
    ready: Callable[[], object] | None = None
    follow: Callable[[Callable[[float], float]], object] | None = None


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


# ── one question a message ──────────────────────────────────────────────────────────────────────


class InFlight:
    """The messages on their way; ``progress`` hears once of all the answers of a read."""

    def __init__(self, reactor: Any, messages: Messages, progress: Progress, window: int) -> None:
        self._reactor = reactor
        self._messages = messages
        self._progress = progress
        self._window = window
        self._count = 0
        self._answered = 0  # of these nobody was told yet
        self._failed: Failure | None = None  # the first
        self._turn: Any = None  # the call that tells what was answered
        self._waiting: Deferred[None] | None = None
        self._reading: Deferred[list[bytes]] | None = None

    async def some(self, most: int) -> list[bytes]:
        """Return 1 … ``most`` messages to send now; an empty list when all are answered.

        Raises what the first message that fails fails with, once the others that are on their way
        have had their answers, too; nothing more is read then.
        """
        await self._until(self._window - 1)
        batch = await self._read(min(most, self._window - self._count))
        if batch and self._failed is None:
            self._progress.sent(len(batch))
            return batch
        await self._until(0)
        self._tell()
        if self._failed is not None:
            self._failed.raiseException()
        return []

    def add(self, answer: Deferred[Any], count: int = 1, number: int | None = None) -> None:
        """``answer`` acknowledges ``count`` messages; with a ``number`` its error names that."""
        self._count += count
        answer.addBoth(self._changed, count, number)

    def _changed(self, result: Any, count: int, number: int | None) -> None:
        self._count -= count
        if not isinstance(result, Failure):
            self._answered += count
        else:
            named = result.check(Refused, LimitExceeded, TimedOut, ValueError)
            # One error may end several messages; the first of them is told.
            if number is not None and named and not hasattr(result.value, "__notes__"):
                assert result.value is not None
                result.value.add_note(f"message {number}")
            self._failed = self._failed or result
        if self._turn is None:
            self._turn = self._reactor.callLater(0, self._told)

    def _told(self) -> None:
        self._turn = None
        self._tell()
        if self._waiting is not None:
            woken, self._waiting = self._waiting, None
            woken.callback(None)
        if self._failed is not None and self._reading is not None:
            self._reading.cancel()

    def _tell(self) -> None:
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        count, self._answered = self._answered, 0
        if count:
            self._progress.acknowledged(count)

    async def _until(self, most: int) -> None:
        while self._count > (0 if self._failed else most):
            self._waiting = Deferred()
            await self._waiting

    async def _read(self, most: int) -> list[bytes]:
        if self._failed is not None:
            return []
        self._reading = Deferred.fromCoroutine(self._messages.some(most))
        try:
            return await self._reading
        except CancelledError:
            if self._failed is None:
                raise
            return []
        finally:
            self._reading = None


async def ask_each(
    reactor: Any,
    messages: Messages,
    progress: Progress,
    window: int,
    ask: Callable[[bytes], Deferred[Any]],
) -> None:
    """Call ``ask`` with each message; its answer is the acknowledgement.

    No more than ``window`` are in flight.  Raises what the first request that fails fails with,
    once the others that are in flight have had their answers, too; its note names the message.
    """
    in_flight = InFlight(reactor, messages, progress, window)
    number = 0
    while batch := await in_flight.some(window):
        for body in batch:
            number += 1
            in_flight.add(maybeDeferred(ask, body), number=number)
