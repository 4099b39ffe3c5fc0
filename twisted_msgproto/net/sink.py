"""Messages become safe in a sink: this is its interface, :class:`IMessageSink`, and the sink over
the queue.

A protocol hands a batch to its sink and acknowledges when the Deferred fires.  What "safe" means is
the sink's promise; :class:`DurableSink` promises that the batch is on disk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from os import PathLike, fsdecode
from typing import TYPE_CHECKING, Any, Protocol, Unpack

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IReactorFromThreads
from twisted.internet.threads import deferToThreadPool
from zope.interface import Interface, implementer

from ..core.errors import ConfigurationError
from ..core.message import MessageBatch
from .deferreds import Later

if TYPE_CHECKING:
    from ..queue import QueueOptions, QueueWriter


class IMessageSink(Interface):
    """Accepts batches and says when they are safe."""

    def put(batch: MessageBatch) -> Deferred[int | None]:
        """Make ``batch`` safe.

        The Deferred fires when it is, and fails if it never will be.  It fires with the offset of
        the batch's first message, whose fellows follow it, or with None from a sink without
        offsets: a broker's queues over such a sink are in memory only.  Batches are made safe in
        the order of these calls.  The batch is not changed after this call.
        """


class MessageSink(Protocol):
    """What :class:`IMessageSink` says, for types."""

    def put(self, batch: MessageBatch, /) -> Later:
        """Make ``batch`` safe: done when this returns None, or when what it returns has fired.

        A result is the offset of the batch's first message, or None.
        """


Finished = tuple[Deferred[int | None], BaseException | None, int | None, MessageBatch | None]
"""Whom to tell, why it is not safe or its first offset, and the batch if it is for queues."""


@implementer(IMessageSink)
class DurableSink:
    """Stores batches in a queue directory: its Deferreds fire after ``fdatasync``.

    The queue's own thread writes and flushes, and also encodes small batches; a packed batch is
    encoded by ``put``.  The reactor is woken once for all batches that became safe meanwhile.
    While the disk is full the Deferreds wait.

    Attributes:
        writer: the queue's writer; its figures are the queue's figures.
        reactor: where its Deferreds fire.
        brokerPersistence: keeps the queues of brokers; None while no server has any.
        keeps_queues: whether the queues of brokers outlive the process: not over a writer that is
            none of ours.
        afterGroup: what is to be called, once each, behind the Deferreds of the group that is being
            told to be safe; None while there is none.
    """

    brokerPersistence: Any = None
    keeps_queues = True
    afterGroup: dict[Callable[[], object], None] | None = None

    def __init__(
        self,
        directory: str | PathLike[str],
        reactor: Any = None,
        **queue_options: Unpack[QueueOptions],
    ) -> None:
        """Open the queue in ``directory``, recovering it if need be.

        ``queue_options`` go to :class:`~twisted_msgproto.queue.QueueWriter`.  Raises QueueLocked
        when another process writes this queue, and other QueueErrors with one clear line each.
        """
        self._prepare(directory, reactor, queue_options)
        self.open()

    @classmethod
    def unopened(
        cls,
        directory: str | PathLike[str],
        reactor: Any = None,
        **queue_options: Unpack[QueueOptions],
    ) -> DurableSink:
        """Return a sink whose queue nobody has touched yet: call :meth:`open` before the first
        ``put``.

        For what is made before ``twistd`` becomes a daemon: the queue's thread would stay behind
        in the process that ends then, and files would belong to the user who started it.
        ConfigurationError without the extra ``queue``.
        """
        sink = cls.__new__(cls)
        try:
            sink._prepare(directory, reactor, queue_options)
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                f"a queue needs {error.name}: pip install 'twisted-msgproto[queue]'"
            ) from None
        return sink

    def _prepare(
        self, directory: str | PathLike[str], reactor: Any, queue_options: QueueOptions
    ) -> None:
        if reactor is None:
            from twisted.internet import reactor
        from ..queue import QueueWriter  # what it needs is missed at once, not at the opening

        if not fsdecode(directory) or "\0" in fsdecode(directory):
            raise ConfigurationError(f"a queue is a directory, not {directory!r}")

        def opened() -> None:
            self._attach(QueueWriter(directory, **queue_options))

        self.reactor = reactor
        self._open = opened

    def open(self) -> None:
        """Open the queue; raises as the constructor does."""
        self._open()

    @classmethod
    def over(cls, writer: QueueWriter, reactor: IReactorFromThreads) -> DurableSink:
        """Return a sink over a writer that is open already (or over one that behaves like it)."""
        sink = cls.__new__(cls)
        sink.reactor = reactor
        sink.keeps_queues = hasattr(writer, "broker")
        sink._attach(writer)
        return sink

    def _attach(self, writer: QueueWriter) -> None:
        self.writer = writer
        self._finished: deque[Finished] = deque()
        self._woken = False  # a call of _fire is on its way

    def put(self, batch: MessageBatch) -> Deferred[int | None]:
        """Queue ``batch``; fires with its first offset when it is on disk, or fails."""
        safe: Deferred[int | None] = Deferred()

        def finished(error: BaseException | None, first: int | None) -> None:
            self._finished.append((safe, error, first, brokered))
            # Whoever clears the flag looks at what was finished afterwards, so none is forgotten.
            if not self._woken:
                self._woken = True
                self.reactor.callFromThread(self._fire)

        brokered = None if batch.envelope is None else batch
        self.writer.submit(batch, finished)
        return safe

    def _fire(self) -> None:
        self._woken = False
        group = self.afterGroup = {}
        try:
            while self._finished:
                safe, error, first, brokered = self._finished.popleft()
                if error is None:
                    if (
                        brokered is not None
                        and first is not None
                        and self.brokerPersistence is not None
                    ):
                        self.brokerPersistence.stored(brokered, first)
                    safe.callback(first)
                else:
                    safe.errback(error)
        finally:
            self.afterGroup = None
        for call in group:
            call()

    def close(self, timeout: float = 4.0) -> Deferred[bool]:
        """Flush what waits (for at most ``timeout`` seconds), stop the thread, free the lock.

        What consumers of queues have settled is written before that.  Fires with whether everything
        that was put is safe.
        """
        kept = succeed(None) if self.brokerPersistence is None else self.brokerPersistence.close()
        kept.addTimeout(timeout, self.reactor).addErrback(lambda failure: None)
        return kept.addCallback(
            lambda _: deferToThreadPool(
                self.reactor, self.reactor.getThreadPool(), self.writer.close, timeout
            )
        )
