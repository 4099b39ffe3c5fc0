"""Deliver batches to a sink, and count what of one connection is not safe yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from ..core.errors import QueueError
from ..core.message import MessageBatch
from .backpressure import OctetBudget, ReadControl
from .hooks import Later, awaited
from .traffic import Traffic

BATCH_WEIGHT_OCTETS: Final = 2000
"""A batch that waits for the sink counts as this many octets beside its own.  Otherwise a peer
whose tiny messages alternate in kind could make millions of batches out of 64 MiB.
"""

Hook = Callable[[MessageBatch], Later]


def tell_not_stored(log: Logger, peer: str, failure: Failure, again: bool) -> None:
    """Log why messages of ``peer`` will never be acknowledged.

    A disk's fault is the operator's, and one line; any other is in code, with its traceback.
    ``again`` says that something of the session was lost before: what the disk loses then is no
    news.
    """
    if failure.check(QueueError):
        if not again:
            log.error("{peer}: not acknowledged: {text}", peer=peer, text=str(failure.value))
    else:
        log.failure("{peer}: not acknowledged", failure, peer=peer)


class Delivery:
    """Delivers batches of one connection to hooks and counts what is not safe yet.

    Attributes:
        unsafe_octets: octets of this connection that are not safe yet, with the weight of batches.
        unsafe_batches: batches of this connection that are not safe yet.
    """

    __slots__ = (
        "_budget",
        "_control",
        "_failed",
        "_limit",
        "_safe",
        "_traffic",
        "unsafe_batches",
        "unsafe_octets",
    )

    def __init__(
        self,
        control: ReadControl,
        budget: OctetBudget,
        limit: int,
        safe: Callable[[Any], None],
        failed: Callable[[Any, Failure], None],
        traffic: Traffic,
    ) -> None:
        """Make a delivery; above ``limit`` unsafe octets the connection is not read.

        For each batch ``safe(position)`` is called when it is safe, or ``failed(position,
        failure)`` when it never will be.  ``traffic`` counts what is delivered.
        """
        self._control = control
        self._budget = budget
        self._limit = limit
        self._safe = safe
        self._failed = failed
        self._traffic = traffic
        self.unsafe_octets = 0
        self.unsafe_batches = 0

    def deliver(self, hook: Hook, batch: MessageBatch, position: Any) -> None:
        """Deliver ``batch`` to ``hook``; ``position`` is where it stands in what the peer sent."""
        traffic, count = self._traffic, batch.count
        traffic.messages += count
        traffic.octets += batch.octets
        try:
            result = hook(batch)
            if result is not None and not isinstance(result, Deferred):
                result = awaited(result)
        except Exception:
            self._failed(position, Failure())
            return
        if result is None or (result.called and not result.paused and result.result is None):
            traffic.latencies[0] += count
            self._safe(position)  # at once, without a callback
            return
        octets = batch.octets + batch.weight + BATCH_WEIGHT_OCTETS
        if not self.unsafe_batches:
            self._budget.senders += 1
        self.unsafe_octets += octets
        self.unsafe_batches += 1
        self._budget.add(octets, self._control, self.unsafe_octets)
        if self.unsafe_octets > self._limit:
            self._control.pause("connection-octets")
        result.addBoth(self._finished, octets, position, count, traffic.seconds())

    def _finished(self, result: Any, octets: int, position: Any, count: int, began: float) -> None:
        self.unsafe_octets -= octets
        self.unsafe_batches -= 1
        if not self.unsafe_batches:
            self._budget.senders -= 1
        self._budget.remove(octets)
        if self.unsafe_octets <= self._limit // 2:
            self._control.resume("connection-octets")
        if isinstance(result, Failure):
            self._failed(position, result)
        else:
            self._traffic.acknowledged(count, began)
            self._safe(position)
