"""Sessions that still inherit their link, until their protocols own one."""

from __future__ import annotations

from typing import Any, Self

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IHalfCloseableProtocol, IHandshakeListener
from twisted.internet.protocol import Protocol
from twisted.python.failure import Failure
from zope.interface import implementer

from .clients.client import ClientLink
from .link import Link
from .session import SessionHooks, SessionLink


@implementer(IHalfCloseableProtocol, IHandshakeListener)
class InheritedLink(Link, Protocol):
    """A protocol that is its own link."""

    def __init__(self) -> None: ...

    @property
    def protocol(self) -> Any:
        return self

    @property
    def link(self) -> Self:
        return self

    def connectionMade(self) -> None:
        """Begin; a subclass that overrides this calls it."""
        self._prepare(self.transport)
        self._follow(self.machine.connection_made(self._now()))
        self._begin()


class InheritedClientLink(ClientLink, InheritedLink):
    """A client that is its own link."""

    def whenEstablished(self) -> Deferred[Self]:
        return super().whenEstablished()


class InheritedSession(SessionHooks, SessionLink, InheritedLink):
    """A session that is its own link."""

    def sessionEstablished(self) -> Any:
        """The session stands: messages may come, and may be sent where the protocol can."""

    def sessionLost(self, reason: Failure) -> Any:
        """Called when the session has ended; ``reason`` is what Twisted passed to
        ``connectionLost``.
        """
