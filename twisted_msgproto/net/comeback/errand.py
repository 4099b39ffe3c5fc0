"""One verb that may have to wait for a session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

S = TypeVar("S")
T = TypeVar("T")


class Errand(Generic[S, T]):
    """A call of a verb that may have to wait for a session; its Deferred outlives sessions.

    Attributes:
        done: the Deferred that the caller received; it fires once.
        octets: how much it counts against the limit while it waits.
        safe: whether doing it twice does no harm.
    """

    __slots__ = ("deadline", "done", "inner", "octets", "over", "safe", "sending", "timer", "verb")

    def __init__(
        self,
        verb: Callable[[S, float], Deferred[T]],
        deadline: float,
        octets: int,
        safe: bool,
        forget: Callable[[Errand[S, T]], None],
    ) -> None:
        self.verb = verb
        self.deadline = deadline
        self.octets = octets
        self.safe = safe
        self.over = False  # its Deferred has fired, or is about to
        self.sending = False  # its verb is just being called
        self.inner: Deferred[T] | None = None  # the Deferred of the session that has it
        self.timer: Any = None  # while it waits for a session

        def cancelled(done: Deferred[T]) -> None:
            self.over = True
            forget(self)
            inner, self.inner = self.inner, None
            if inner is not None:
                inner.cancel()

        self.done: Deferred[T] = Deferred(cancelled)

    def stop(self) -> None:
        timer, self.timer = self.timer, None
        if timer is not None:
            timer.cancel()

    def fire(self, result: T) -> None:
        if not self.over:
            self.over = True
            self.done.callback(result)

    def fail(self, error: Failure | Exception) -> None:
        if not self.over:
            self.over = True
            self.done.errback(error)
