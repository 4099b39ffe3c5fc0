"""What the protocols share which take messages in: hooks, the sink, and what waits for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred, DeferredList, maybeDeferred
from twisted.python.failure import Failure

from ..core.message import Message, MessageBatch
from .backpressure import OctetBudget, ReadControl

if TYPE_CHECKING:
    from .factory import MsgprotoServerFactory


class IngestHooks:
    """The hooks for received messages: override one of them in a subclass of a server protocol."""

    factory: MsgprotoServerFactory

    def batchReceived(self, batch: MessageBatch) -> Deferred[Any] | None:
        """Messages of one read arrived.

        By default each goes to :meth:`messageReceived`, if a subclass overrides that, and then the
        batch goes to the factory's sink.  The acknowledgement follows when the returned Deferred
        (None: at once) and all Deferreds of ``messageReceived`` have fired; a failure withholds it.
        """
        waiting: list[Deferred[Any]] = []
        if type(self).messageReceived is not IngestHooks.messageReceived:
            for message in batch:
                result = maybeDeferred(self.messageReceived, message)
                waiting.append(result)
        sink = self.factory.sink
        if sink is not None:
            waiting.append(sink.put(batch))
        if not waiting:
            return None
        return waiting[0] if len(waiting) == 1 else _all(waiting)

    def messageReceived(self, message: Message) -> Deferred[Any] | None:
        """One message arrived; override this to see each, return a Deferred to delay its ack."""


def _all(waiting: list[Deferred[Any]]) -> Deferred[Any]:
    """Fires when all have fired; fails with the first failure, the others are consumed."""
    gathered: Deferred[Any] = DeferredList(waiting, fireOnOneErrback=True, consumeErrors=True)
    return gathered.addErrback(_first_failure)


def _first_failure(failure: Failure) -> Failure:
    first: Failure = failure.value.subFailure  # type: ignore[union-attr]
    return first


class Delivery:
    """Hands batches of one connection to its hook and counts what is not safe yet.

    Attributes:
        unsafe_octets: octets of this connection which are not safe yet.
        unsafe_batches: batches of this connection which are not safe yet.
    """

    __slots__ = (
        "_budget",
        "_control",
        "_failed",
        "_hook",
        "_limit",
        "_settled",
        "unsafe_batches",
        "unsafe_octets",
    )

    def __init__(
        self,
        hook: Callable[[MessageBatch], Deferred[Any] | None],
        control: ReadControl,
        budget: OctetBudget,
        limit: int,
        failed: Callable[[Failure], None],
        settled: Callable[[], None] = lambda: None,
    ) -> None:
        """``limit`` bounds the unsafe octets: above it the connection is not read.

        ``failed(failure)`` is called for each batch which will never be safe, ``settled()`` after
        each batch, safe or not.
        """
        self._hook = hook
        self._control = control
        self._budget = budget
        self._limit = limit
        self._failed = failed
        self._settled = settled
        self.unsafe_octets = 0
        self.unsafe_batches = 0

    def deliver(self, batch: MessageBatch, safe: Callable[[], None]) -> None:
        """Give ``batch`` to the hook; ``safe()`` is called when it is safe."""
        try:
            result = self._hook(batch)
        except Exception:
            result = Deferred()
            result.errback(Failure())
        if result is None or (result.called and not result.paused and result.result is None):
            safe()  # at once, without a callback
            self._settled()
            return
        octets = batch.octets
        self.unsafe_octets += octets
        self.unsafe_batches += 1
        self._budget.add(octets, self._control)
        if self.unsafe_octets > self._limit:
            self._control.pause("connection-octets")
        result.addBoth(self._finished, octets, safe)

    def _finished(self, result: Any, octets: int, safe: Callable[[], None]) -> None:
        self.unsafe_octets -= octets
        self.unsafe_batches -= 1
        self._budget.remove(octets)
        if self.unsafe_octets <= self._limit // 2:
            self._control.resume("connection-octets")
        if isinstance(result, Failure):
            self._failed(result)
        else:
            safe()
        self._settled()


__all__ = ["Delivery", "IngestHooks"]
