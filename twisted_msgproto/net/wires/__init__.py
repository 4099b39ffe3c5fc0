"""A wire carries a session, and knows nothing of its protocol: byte streams, and WebSocket."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from twisted.internet.error import ConnectionLost

from ...core.errors import ProtocolViolation


class Wire(ABC):
    """One connection to a :class:`~twisted_msgproto.net.link.Link`.

    A wire calls on its link: ``received(inputs)`` with what one read brought (before
    :meth:`established` each message of WebSocket alone; nothing in it says that :attr:`held` has
    changed), ``heldChanged()``, ``unread()``, ``outputChanged(paused)``, ``outputDrained()``,
    ``oversized()``, and at the end ``connectionLost(reason)``: ConnectionDone after a closing
    handshake, :class:`WebSocketBroken` where the peer broke WebSocket; before the upgrade it is
    ``neverConnected(error)``.
    """

    write: Callable[[Any], None]  # bytes on a byte stream; a list of frames on WebSocket

    output: Any = None  # unread yet (:class:`.stream.Output`); None where nobody can tell

    held: int = 0  # bytes of incomplete input; an empty ``received`` says that it changed

    @abstractmethod
    def close(self, fault: bool) -> None:
        """Let out what was written, then end the connection in order.

        ``fault`` says that the peer broke the protocol; a wire may tell it so.
        """

    @abstractmethod
    def abort(self) -> None:
        """End the connection at once; what was written may be lost."""

    @abstractmethod
    def pauseProducing(self) -> None:
        """Deliver nothing more until ``resumeProducing``."""

    @abstractmethod
    def resumeProducing(self) -> None:
        """Resume delivering what arrives."""

    @abstractmethod
    def established(self) -> None:
        """The session stands: the wire may allow larger messages from now on."""

    @abstractmethod
    def stop(self) -> None:
        """The connection is lost: forget what waits, and stop every timer."""


class WebSocketBroken(ConnectionLost, ProtocolViolation):
    """The peer broke WebSocket itself, so the connection is lost."""
