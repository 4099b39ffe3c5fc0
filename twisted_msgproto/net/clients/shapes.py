"""What the command line hands to a protocol's ``command.py``: options, messages, progress.

A protocol which can be sent to has ``async def send(reactor, options, messages, progress)``, one
which pushes to its clients has ``async def recv(reactor, options, show)``; these are the types.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

SIZE_OCTETS = 300
"""How large a made-up message is when nobody says."""


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
    """

    endpoint: str
    destination: str | None = None
    user: str | None = None
    password: str | None = None
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SendOptions(ConnectOptions):
    """How to send.

    Attributes:
        window: messages in flight; None for the protocol's default.
        compress: zlib level, 0 for none; None for the protocol's default.
        count: how many messages will come, where that is known.
        size: octets of each, where that is known.
    """

    window: int | None = None
    compress: int | None = None
    count: int | None = None
    size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecvOptions(ConnectOptions):
    """How to receive.  ``count`` ends it after so many messages; None: never."""

    count: int | None = None


class Messages(Protocol):
    """Where the messages to send come from."""

    async def some(self, most: int) -> list[bytes]:
        """1 … ``most`` messages as soon as any is there; an empty list after the last."""


class Progress(Protocol):
    """Whom a ``send`` tells how far it is; called once a batch, not once a message."""

    def sent(self, count: int) -> None:
        """``count`` more messages are on their way."""

    def acknowledged(self, count: int) -> None:
        """``count`` more messages are acknowledged."""
