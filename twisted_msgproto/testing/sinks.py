"""These sinks say that a batch is safe when the test says so, or at once."""

from __future__ import annotations

from twisted.internet.defer import Deferred, succeed
from zope.interface import implementer

from ..core.message import Message, MessageBatch
from ..net.sink import IMessageSink


@implementer(IMessageSink)
class SafeSink:
    """Everything in memory and says at once that it is safe.

    Attributes:
        batches: the batches that were put, oldest first.
    """

    def __init__(self) -> None:
        self.batches: list[MessageBatch] = []

    def put(self, batch: MessageBatch) -> Deferred[int | None]:
        """Keep ``batch``; the Deferred has fired already."""
        self.batches.append(batch)
        return succeed(None)

    @property
    def messages(self) -> list[Message]:
        """Return all messages that were put, one by one."""
        return [message for batch in self.batches for message in batch]


@implementer(IMessageSink)
class HeldSink:
    """Batches waiting until the test releases them or lets them fail.

    Attributes:
        batches: the batches that were put, oldest first.
        waiting: the Deferreds of the batches that are neither safe nor lost, oldest first; a test
            may fire them in any order.
    """

    def __init__(self) -> None:
        self.batches: list[MessageBatch] = []
        self.waiting: list[Deferred[int | None]] = []

    def put(self, batch: MessageBatch) -> Deferred[int | None]:
        """Keep ``batch``; the Deferred waits for :meth:`release` or :meth:`fail`."""
        safe: Deferred[int | None] = Deferred()
        self.batches.append(batch)
        self.waiting.append(safe)
        return safe

    def release(self, count: int | None = None) -> None:
        """Say that the oldest ``count`` batches are safe (None: all that wait now)."""
        for _ in range(len(self.waiting) if count is None else count):
            self.waiting.pop(0).callback(None)

    def fail(self, error: Exception) -> None:
        """Say that the oldest batch that waits never will be safe."""
        self.waiting.pop(0).errback(error)

    @property
    def messages(self) -> list[Message]:
        """Return all messages that were put, one by one."""
        return [message for batch in self.batches for message in batch]
