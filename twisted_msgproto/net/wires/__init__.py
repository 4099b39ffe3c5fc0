"""A wire carries a session: :mod:`.stream` serves TCP, TLS and UNIX sockets, :mod:`.websocket` the
others.  It knows nothing of the protocol.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any
from typing import Protocol as Shape

from twisted.internet.error import ConnectionLost
from twisted.python.failure import Failure

from ...core.errors import ProtocolViolation


class Wire(ABC):
    """One connection to a :class:`~twisted_msgproto.net.link.Link`.

    A wire calls on its link: ``makeConnection(wire)`` once something can be written,
    ``received(inputs)`` with what one read brought, ``unread()`` when the peer reads nothing of
    what was written, ``outputChanged(paused)`` when much waits for the peer or no longer does, and
    ``connectionLost(reason)`` at the end.
    """

    write: Callable[[Any], None]
    """Write bytes on a byte stream; a list of frames on WebSocket."""

    output: Any = None
    """What the peer has not read yet (:class:`.stream.Output`); None where nobody can tell."""

    held: int = 0
    """How many bytes of an incomplete input are held; ``received`` with nothing in it
    says that the number has changed.
    """

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


class FramedSession(Shape):
    """A WebSocket connection carries messages for such a session; the factory builds one for each.

    Attributes:
        wire: set before the upgrade; until ``makeConnection`` it can be closed, but not written to.
    """

    wire: Any

    def makeConnection(self, wire: Any) -> None:
        """The upgrade is done: ``wire`` can be written to from here on."""

    def received(self, inputs: list[Any]) -> None:
        """Receive the messages of one read, in order.

        Before ``wire.established()`` each comes alone.  An empty list says that ``wire.held`` has
        changed, and no more.
        """

    def heldChanged(self) -> None:
        """``wire.held`` has changed, though nothing can be read: reading is paused."""

    def oversized(self) -> None:
        """A message above the limit begins; when this returns the connection closes with 1009."""

    def unread(self) -> None:
        """The peer has read nothing for ``unread-seconds``; after this it is dropped."""

    def outputChanged(self, paused: bool) -> None:
        """More than ``unread-bytes`` wait for the peer to read, or half of them no longer do."""

    def outputDrained(self) -> None:
        """The peer has read all that waited for it."""

    def connectionLost(self, reason: Failure) -> None:
        """The connection is gone: ConnectionDone after a closing handshake, ConnectionLost
        otherwise; the latter is a :class:`WebSocketBroken` where the peer broke WebSocket.
        """

    def neverConnected(self, error: Exception) -> None:
        """The connection is gone before the upgrade; instead of ``connectionLost``."""
