"""A subscription brings what the peer publishes, and says that and why it has ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Generic, TypeVar

from twisted.internet.defer import Deferred, maybeDeferred, succeed
from twisted.logger import Logger

from ...core.errors import ConnectionClosed, unquoted
from ..deferreds import Waiters

T = TypeVar("T")

LOST = "lost"  # a subscription ended for this reason when its session ended first

REFUSED = "refused"

UNSUBSCRIBED = "unsubscribed"


class Ending:
    """What ends once, and tells why.

    Attributes:
        reason: a word for why it has ended; None while it lives.
        failure: the exception behind the reason, or None.
    """

    def __init__(self) -> None:
        self._ending: Waiters[str] = Waiters()
        self.reason: str | None = None
        self.failure: Exception | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing more comes."""
        return self.reason is not None

    def whenEnded(self) -> Deferred[str]:
        """Fires with the ``reason`` at the end, and never fails."""
        return self._ending.wait() if self.reason is None else succeed(self.reason)

    def _conclude(self, reason: str, failure: Exception | None) -> bool:
        if self.reason is not None:
            return False
        self.reason, self.failure = reason, failure
        return True

    def _tellEnd(self) -> None:
        assert self.reason is not None
        self._ending.fire(self.reason)


class Backlog(Generic[T]):
    """What has come until somebody takes it, with ``async for`` or by steps.

    Several may take at a time: each item goes to one of them, in the order of their asking.
    Giving up a step (a time-out) loses nothing: the item goes to whoever asks next.

    Attributes:
        nbytes: what the items that are here weigh.
    """

    __slots__ = ("_items", "_left", "_over", "_takers", "_weigh", "_why", "nbytes")

    def __init__(
        self,
        left: Callable[[T, int], object] = lambda item, nbytes: None,
        weigh: Callable[[T], int] = lambda item: 0,
    ) -> None:
        """``left(item, bytes)`` is called with each item that was taken, and its weight.

        ``weigh(item)`` returns its bytes: a peer chooses how large each is, so their number alone
        bounds nothing.
        """
        self._left = left
        self._weigh = weigh
        self.nbytes: int = 0
        self._items: deque[tuple[T, int]] = deque()
        self._takers: deque[Deferred[T | None]] = deque()
        self._over = False
        self._why: Exception | None = None

    def __len__(self) -> int:
        return len(self._items)

    def put(self, items: Iterable[T]) -> None:
        for item in items:
            nbytes = self._weigh(item)
            self.nbytes += nbytes
            self._items.append((item, nbytes))
        while self._items and self._takers:
            taker, (item, nbytes) = self._takers.popleft(), self._items.popleft()
            self.nbytes -= nbytes
            taker.callback(item)
            self._left(item, nbytes)

    async def take(self) -> T:
        """Return the next item, or raise StopAsyncIteration or what :meth:`end` was told."""
        if self._items:
            item, nbytes = self._items.popleft()
            self.nbytes -= nbytes
            self._left(item, nbytes)
            return item
        if not self._over:
            taker: Deferred[T | None] = Deferred()
            self._takers.append(taker)
            try:
                taken = await taker
            finally:
                if taker in self._takers:  # the step was cancelled, or given up otherwise
                    self._takers.remove(taker)
            if taken is not None:
                return taken
        if self._why is not None:
            raise self._why.with_traceback(None)
        raise StopAsyncIteration

    def end(self, why: Exception | None) -> None:
        self._over, self._why = True, why
        while self._takers:  # a callback of one may cancel another
            self._takers.popleft().callback(None)

    def reopen(self) -> None:
        """Items may come again."""
        self._over, self._why = False, None


class Renewed(Ending):
    """A subscription that is renewed with every session, until :meth:`end`.

    The server may end it while the session continues.  Then nothing more comes until the next
    session, or until it is asked for again with :meth:`renew`.

    While the backlog is full, a new session does not subscribe.  It subscribes when
    half of the backlog was iterated.

    Attributes:
        reason: why nothing more comes, though a session may stand; None while something comes, or
            will with the next session.  The end of a session alone is no reason.
        failure: the exception behind the reason, or None.
    """

    log: ClassVar[Logger]

    def __init__(
        self, service: Any, kept: dict[Any, Any], key: object, backlog: Backlog[Any]
    ) -> None:
        """``kept``: what ``service`` renews with each session; this one stands there at ``key``.

        ``backlog`` is for all sessions: it tells this when something was taken.
        """
        super().__init__()
        self._backlog = backlog
        self._service = service
        self._kept = kept
        self._key = key
        self._subscription: Any = None  # that of the newest session
        self._postponed = False  # the session that stands was not asked yet
        kept[key] = self

    def end(self) -> Deferred[None]:
        """Unsubscribe, now and for all sessions to come; fires when that is written."""
        if self._kept.get(self._key) is self:
            del self._kept[self._key]
        said: Deferred[None] = succeed(None)
        if self._subscription is not None:
            said = maybeDeferred(self._subscription.unsubscribe)
            said.addErrback(lambda failure: failure.trap(ConnectionClosed) and None)
        self._end(UNSUBSCRIBED, None)
        return said

    def renew(self) -> None:
        """Ask for it again, now or in the next session; nothing happens while it lives."""
        self._kept[self._key] = self
        if self._subscription is None or self._subscription.ended:
            self._begin()
            if self._service.session is not None:
                self._renew(self._service.session)

    def _begin(self) -> None:
        self.reason = self.failure = None
        self._backlog.reopen()

    def _rest(self, error: Exception) -> None:
        """The service was stopped: who iterates hears so, until it is started again."""
        if self.reason is None:
            self._backlog.end(error)

    def _resume(self) -> None:
        if self.reason is None:
            self._backlog.reopen()

    def _ask(self, session: Any) -> Any:
        raise NotImplementedError

    def _share(self) -> float:
        raise NotImplementedError

    def _taken(self) -> None:
        if self._postponed and self._share() <= 0.5:
            self._postponed = False
            if self._service.session is not None and self.reason is None:
                self._renew(self._service.session)

    def _renew(self, session: Any) -> None:
        self._begin()
        self._postponed = self._share() >= 1
        if self._postponed:
            return
        try:
            subscription = self._ask(session)
        except ConnectionClosed:
            return  # the next session will have it
        except Exception as error:
            self._end(REFUSED, error)
            return
        self._subscription = subscription
        subscription.whenEnded().addCallback(self._ended, subscription)

    def _ended(self, reason: str, subscription: Any) -> None:
        if reason != LOST and subscription is self._subscription:
            self._end(reason, subscription.failure)

    def _end(self, reason: str, failure: Exception | None) -> None:
        if not self._conclude(reason, failure):
            return
        self._backlog.end(failure)
        if reason != UNSUBSCRIBED:
            self.log.info(
                "a subscription has ended: {reason}{error}",
                reason=reason,
                error="" if failure is None else f", {unquoted(str(failure))}",
            )
        self._tellEnd()
