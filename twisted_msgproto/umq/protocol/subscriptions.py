"""A topic as its subscriber has it: updates, and why there are no more of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from ...core.errors import ConnectionClosed, LimitExceeded
from ...core.kept import KEPT_WEIGHT_OCTETS
from ...net.clients.subscriptions import LOST, REFUSED, UNSUBSCRIBED, Backlog, Ending
from ..machine.attachments import ATTACHMENT_OCTETS, attachments_octets, text_octets
from ..wire import base36
from .exchange import NoSuchMethod, Reply, Stored, Update

if TYPE_CHECKING:
    from .session import UmqSession


def weigh(update: Update) -> int:
    attachments = update.attachments
    octets = attachments_octets(attachments) + ATTACHMENT_OCTETS * len(attachments)
    return KEPT_WEIGHT_OCTETS + text_octets(update.payload) + octets


SLOW_TIMES: Final = 4
"""Reading continues while an answer to our calls is awaited.  A subscription ends when its updates
that wait are this many times the limit at which reading pauses otherwise.
"""


class Updates(Backlog[Update]):
    """Updates of one topic until they are iterated; a session reads slower meanwhile."""

    __slots__ = ("_session", "_taken")

    def __init__(self, taken: Callable[[], object] = lambda: None) -> None:
        super().__init__(self._takenOne, weigh)
        self._session: UmqSession | None = None
        self._taken = taken

    def charge(self, session: UmqSession) -> None:
        """From now on what is here counts in ``session``."""
        before, self._session = self._session, session
        if before is not None and len(self):
            before._backlogChanged(-len(self), -self.octets)
        if len(self):
            session._backlogChanged(len(self), self.octets)

    def _takenOne(self, update: Update, octets: int) -> None:
        if self._session is not None:
            self._session._backlogChanged(-1, -octets)
        self._taken()


class Subscription(Ending):
    """A topic to which we subscribed at the peer: a hook is called, or iterate ``async for``.

    It ends once, for one of these reasons:

    * ``"closed"``: the publisher said ``D``.  It has ended the topic, or has dropped us because we
      read too slowly; UMQ does not say which;
    * ``"unsubscribed"``: we said ``U``;
    * ``"refused"``: the call that asked for it failed;
    * ``"slow"``: updates came faster than they were iterated, and we said ``U``;
    * ``"lost"``: the session ended first.

    Several may iterate at a time: each update goes to one of them, in the order of their asking.

    Attributes:
        id: the topic's id, as it stands in the subscribing request.
        reason: why it has ended, as above; None while it lives.  What had come before the end can
            still be iterated.
        failure: the exception that iteration raises at the end, or None.
    """

    def __init__(
        self,
        session: UmqSession,
        number: int,
        hook: Callable[[Update], object] | None,
        streamed: bool,
        updates: Updates | None = None,
    ) -> None:
        """``updates`` belong to somebody who outlives the session."""
        super().__init__()
        self._session = session
        self._number = number
        self._hook = hook
        self._streamed = streamed
        self._borrowed = updates is not None
        self._backlog = Updates() if updates is None else updates
        self._backlog.charge(session)
        self._answer: Reply | Failure | None = None
        self._starting: list[Deferred[Reply]] = []
        self.id = base36(number)

    def whenStarted(self) -> Deferred[Reply]:
        """Fires with the answer to the subscribing request; fails like that call."""
        started: Deferred[Reply] = Deferred(self._starting.remove)
        if self._answer is None:
            self._starting.append(started)
        else:
            started.callback(self._answer)
        return started

    def unsubscribe(self) -> None:
        """Say ``U``; nothing more is delivered (``UM-14``)."""
        self._drop(UNSUBSCRIBED, None)

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Update:
        """Return the next update; at the end StopAsyncIteration, or what ended the subscription
        early.

        Cancelling the wait (a time-out) loses nothing: the update goes to whoever asks next.
        """
        return await self._backlog.take()

    # The session's side

    def _accepted(self, answer: Reply) -> None:
        stored = Stored.read(answer.payload)
        if stored is None:
            self._started(answer)
        else:  # nobody will publish to it
            self._refused(Failure(NoSuchMethod(stored)))

    def _never(self, error: Exception) -> Subscription:
        self._conclude(LOST if isinstance(error, ConnectionClosed) else REFUSED, error)
        if not self._borrowed:
            self._backlog.end(error)
        self._started(Failure(error))
        return self

    def _refused(self, failure: Failure) -> None:
        lost = self._session._ended or failure.check(ConnectionClosed)
        self._drop(LOST if lost else REFUSED, failure.value)  # type: ignore[arg-type]
        self._started(failure)

    def _started(self, answer: Reply | Failure) -> None:
        self._answer = answer
        while self._starting:
            self._starting.pop(0).callback(answer)

    def _drop(self, reason: str, failure: Exception | None) -> None:
        """Say ``U`` if it lives, and end."""
        session = self._session
        if self.reason is None and session.machine.opened:
            session._time()
            session.machine.unsubscribe(self._number)
            session._settle()
        self._end(reason, failure)

    def _arrived(self, update: Update) -> None:
        if self._hook is not None:
            self._hook(update)
        else:
            session, limits, octets = self._session, self._session.limits, weigh(update)
            much = session._backlogOctets >= SLOW_TIMES * limits["backlog-octets"]
            much = much or not session.machine.kept.fits(octets)
            session._backlogChanged(1, octets)
            self._backlog.put((update,))
            waiting = len(self._backlog)
            if waiting >= SLOW_TIMES * limits["backlog"] or (waiting and much):
                self._drop("slow", LimitExceeded("updates came faster than they were taken"))

    def _end(self, reason: str, failure: Exception | None = None) -> None:
        if not self._conclude(reason, failure):
            return
        session = self._session
        session.subscriptions.pop(self._number, None)
        if not self._borrowed:
            self._backlog.end(failure)
        self._tellEnd()
        session._guarded(session.subscriptionEnded, self, reason)

    def _lost(self) -> None:
        self._end(LOST, ConnectionClosed("the connection ended, and the subscription with it"))
