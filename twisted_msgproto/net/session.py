"""A session belongs to one peer: it has hooks, and delivers the peer's messages to the sink."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from twisted.internet.defer import Deferred, DeferredList, maybeDeferred, succeed
from twisted.python.failure import Failure

from ..core.message import Message, MessageBatch
from .authorising import Permissions
from .ending import OrderlyLink
from .factory import SessionFactory, host_of
from .hooks import Later, awaited


class SessionHooks:
    """Declares what a subclass may override, whatever the protocol.

    Attributes:
        session: the public name of this session.
        peer: the peer's transport address as text.
        clientId: who the peer is, or None.
        messageCount: how many messages the peer has sent.
    """

    factory: SessionFactory
    clientId: str | None = None
    messageCount = 0  # on the class: an idle session weighs less

    def sessionEstablished(self) -> None:
        """The session stands: messages may come, and may be sent where the protocol can."""

    def sessionLost(self, reason: Failure) -> None:
        """Called when the session has ended; ``reason`` is what Twisted passed to
        ``connectionLost``.
        """

    def batchReceived(self, batch: MessageBatch) -> Later:
        """Messages of one read arrived.

        By default each goes to :meth:`messageReceived`, if a subclass overrides that, and then the
        batch goes to the factory's sink.  The acknowledgement follows when the returned Deferred
        (None: at once) and all Deferreds of ``messageReceived`` have fired; a failure withholds it.
        Both may be coroutine functions.
        """
        sink = self.factory.sink
        if type(self).messageReceived is SessionHooks.messageReceived:  # nobody looks at them
            return None if sink is None else sink.put(batch)
        waiting: list[Deferred[Any]] = []
        for message in batch:
            waiting.append(maybeDeferred(self.messageReceived, message))
        if sink is not None:
            stored = awaited(sink.put(batch))
            waiting.append(succeed(None) if stored is None else stored)
        if not waiting:
            return None
        return waiting[0] if len(waiting) == 1 else _all(waiting)

    def messageReceived(self, message: Message) -> Later:
        """One message arrived; override this to see each, return a Deferred to delay its ack."""


def _all(waiting: list[Deferred[Any]]) -> Deferred[Any]:
    """Return a Deferred that fires when all have fired; it fails with the first failure."""
    gathered: Deferred[Any] = DeferredList(waiting, fireOnOneErrback=True, consumeErrors=True)
    return gathered.addErrback(_first_failure)


def _first_failure(failure: Failure) -> Failure:
    first: Failure = failure.value.subFailure  # type: ignore[union-attr]
    return first


class Session(SessionHooks, OrderlyLink):
    """This link is one peer's session, as in every protocol but MTL.

    Attributes as :class:`SessionHooks` and :class:`~.link.Link` have them.
    """

    protocolName: ClassVar[str]

    refusalEnds: ClassVar[str] = ""
    """This is added to the line in the log that tells of a refusal."""

    _permissions: Permissions | None = None  # nothing was asked yet

    def refuses(self, action: str, name: str = "", count: int = 1) -> bool:
        """Return whether the factory's authoriser does not allow this; then it is counted.

        Ask only where there is an authoriser, and before anything of it is stored.
        """
        permissions = self._permissions
        if permissions is None:
            # Not the address of the beginning: behind a proxy its first octets say whose it is.
            address = host_of(self.transport.getPeer())  # type: ignore[union-attr]
            permissions = self._permissions = Permissions(
                self.factory, self.clientId, address, self.peer, ends=self.refusalEnds
            )
        return permissions.refuses(action, name, count)

    def establish(self) -> None:
        """The session stands: the wire and the application are told."""
        super().establish()
        if self.factory.sessionLog is not None:
            self.factory.sessionLog.began(self)
        self._guarded(self.sessionEstablished)

    @property
    def established(self) -> bool:
        """Return whether the session stands."""
        return self._established and not self._ended

    def deliver(self, batch: MessageBatch, place: Any) -> None:
        """Deliver a batch; the machine is told when what stood at ``place`` is safe, or lost."""
        tally = self._tally
        self.messageCount += batch.count
        tally["events"] += batch.count
        tally["octets"] += batch.octets
        self._delivery.deliver(self.batchReceived, batch, place)

    def sessionEnding(self, reason: Failure) -> None:
        """The connection is gone: the application is told of a session that stood."""
        if self._established:
            self._established = False
            if self.factory.sessionLog is not None:
                self.factory.sessionLog.ended(self, self.ending)
            self._guarded(self.sessionLost, reason)
        super().sessionEnding(reason)

    def snapshot(self) -> Mapping[str, object]:  # type: ignore[override]
        """Return where the session stands, as plain values without secrets."""
        return {"client_id": self.clientId, **super().snapshot()}
