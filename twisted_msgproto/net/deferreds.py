"""Deferreds of sessions: what waits to be done for a caller, with the producers that must wait with
it, and what hooks of an application return.

A callback may cancel its neighbour, call a verb again, or close the client.  Whatever it does, each
Deferred here fires exactly once.  How much may wait is checked by
:meth:`~twisted_msgproto.core.limits.Limits.check`, before anything is written.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from inspect import isasyncgen, iscoroutine, isgenerator
from typing import Any, Final, Generic, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IPushProducer
from twisted.logger import Logger
from twisted.python.failure import Failure

from ..core.errors import LimitExceeded, unquoted

T = TypeVar("T")

TICKETS_MAX: Final = 10_000


class Ticket(Deferred[T]):
    """The Deferred of one piece of work; its caller may cancel it at any time."""

    number: Any = None  # what the machine calls the work

    def done(self, result: T) -> None:
        if not self.called:
            self.callback(result)

    def fail(self, error: BaseException | Failure) -> None:
        if not self.called:
            self.errback(error)


def fail_all(tickets: Iterable[Ticket[Any]], error: BaseException) -> None:
    """Fail every ticket with ``error``; a callback of one may cancel or fail the others."""
    for ticket in list(tickets):
        ticket.fail(error)


class Tickets(Generic[T]):
    __slots__ = ("_tickets",)

    def __init__(self) -> None:
        self._tickets: dict[Any, Ticket[T]] = {}

    def check(self) -> None:
        if len(self._tickets) >= TICKETS_MAX:
            raise LimitExceeded(f"{TICKETS_MAX} wait for an answer already; nothing sent")

    def issue(self, number: Any) -> Ticket[T]:
        def forget(_: object) -> None:
            self._tickets.pop(number, None)

        ticket: Ticket[T] = Ticket(forget)
        self._tickets[number] = ticket
        return ticket

    def done(self, number: Any, result: T) -> None:
        ticket = self._tickets.pop(number, None)
        if ticket is not None:
            ticket.done(result)

    def fail(self, number: Any, error: BaseException) -> bool:
        """Fail the ticket of ``number``; return False if nobody waits for it (any more)."""
        ticket = self._tickets.pop(number, None)
        if ticket is not None:
            ticket.fail(error)
        return ticket is not None


class Waiters(Generic[T]):
    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[Deferred[T], None] = {}

    def wait(self) -> Deferred[T]:
        waiting: Deferred[T] = Deferred(lambda cancelled: self._waiting.pop(cancelled, None))
        self._waiting[waiting] = None
        return waiting

    def fire(self, result: T) -> None:
        """Fire for all who wait now; who begins to wait in a callback waits for the next time."""
        self._tell(lambda waiting: waiting.callback(result))

    def fail(self, error: BaseException | Failure) -> None:
        self._tell(lambda waiting: waiting.errback(error))

    def _tell(self, tell: Callable[[Deferred[T]], None]) -> None:
        told, self._waiting = self._waiting, {}
        for waiting in told:
            if not waiting.called:  # a callback of one before it has cancelled it
                tell(waiting)


class ProducerControl:
    """A push producer, paused while there is no room for what it would send."""

    __slots__ = ("_paused", "producer")

    def __init__(self) -> None:
        self.producer: IPushProducer | None = None

    def register(self, producer: Any, streaming: bool) -> None:
        """Register a producer: RuntimeError for a second one, ValueError for a pull producer."""
        if self.producer is not None:
            raise RuntimeError("a producer is registered already")
        if not streaming:
            raise ValueError("push producers only")
        self.producer = producer
        self._paused = False

    def unregister(self) -> None:
        self.producer = None

    def look(self, full: bool) -> None:
        producer = self.producer
        if producer is None or full is self._paused:
            return
        self._paused = full
        if full:
            producer.pauseProducing()
        else:
            producer.resumeProducing()

    def stop(self) -> None:
        producer, self.producer = self.producer, None
        if producer is not None:
            producer.stopProducing()


# ── what hooks of an application return ─────────────────────────────────────────────────────────


Later = Deferred[Any] | Coroutine[Any, Any, Any] | None
"""A hook for messages returns this: None is done, anything else is done later."""


def awaited(later: object, of: object, name: str) -> Deferred[Any] | None:
    """Return a Deferred for what the hook ``name`` of ``of`` returned, or None if it is done."""
    waiting = promised(later)
    if waiting is None and later is not None:
        raise TypeError(
            f"{type(of).__name__}.{name} returned {unquoted(repr(later))}; it returns None, a"
            " Deferred or a coroutine"
        )
    return waiting


def guarded(log: Logger, peer: str, hook: Callable[..., object], *arguments: Any) -> None:
    """Call a hook whose exception is logged and harms nobody; nobody waits for its end."""

    def failed(failure: Failure) -> None:
        name = getattr(hook, "__name__", "a hook")
        log.failure("{peer}: {hook} failed", failure, peer=peer, hook=name)

    try:
        returned = hook(*arguments)
        if isgenerator(returned) or isasyncgen(returned):  # inlineCallbacks was forgotten
            raise TypeError("it is a generator, so nothing of it has run")
        later = promised(returned)
        if later is not None:
            later.addErrback(failed)
    except BaseException:
        failed(Failure())


def promised(result: object) -> Deferred[Any] | None:
    if isinstance(result, Deferred):
        return result
    return Deferred.fromCoroutine(result) if iscoroutine(result) else None
