"""What stands between a WebSocket connection and its transport: output which waits."""

from __future__ import annotations

from collections import deque
from typing import Any

from twisted.internet.interfaces import IPushProducer
from zope.interface import implementer

from .quiet import Call

_CHUNK = 65536
"""What is given to the transport at once while it drains, in octets."""


@implementer(IPushProducer)
class Output:
    """Between a connection and its transport: a queue of what the peer does not read yet."""

    __slots__ = ("_abort", "_chunks", "_connection", "_over", "_paused", "ending", "octets")

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._chunks: deque[bytes] = deque()
        self._paused = False
        self._over = False
        self._abort: Call | None = None
        self.octets = 0
        """Octets in the queue."""
        self.ending = False
        """Close the transport when the queue is empty."""

    @property
    def paused(self) -> bool:
        """The transport has enough for now."""
        return self._paused

    def write(self, data: bytes) -> None:
        """To the transport now, or when it has room."""
        if not self._paused:
            self._connection.transport.write(data)
            return
        self._chunks.append(data)
        self.octets += len(data)
        if not self._over and self.octets > self._connection.factory.unread_octets:
            self._over = True
            self._connection.outputPaused()

    def pauseProducing(self) -> None:
        """The transport's buffer is full."""
        self._paused = True
        if self._abort is None:
            self._watch()

    def resumeProducing(self) -> None:
        """The transport's buffer has been read by the peer, which lives then."""
        self._paused = False
        if self._abort is not None:
            self._abort.cancel()
            self._abort = None
        chunks = self._chunks
        while chunks and not self._paused:
            data = chunks.popleft()
            if len(data) > _CHUNK:
                chunks.appendleft(data[_CHUNK:])
                data = data[:_CHUNK]
            self.octets -= len(data)
            self._connection.transport.write(data)
        if self._over and self.octets <= self._connection.factory.unread_octets // 2:
            self._over = False
            self._connection.outputResumed()
        if not self._paused and not chunks:
            self._connection._drained()

    def stopProducing(self) -> None:
        """The transport is gone."""
        self.stop()

    def stop(self) -> None:
        """Forget everything; nothing is written or timed any more."""
        self._chunks.clear()
        self.octets = 0
        if self._abort is not None:
            self._abort.cancel()
            self._abort = None

    def _watch(self) -> None:
        factory = self._connection.factory
        self._abort = factory.reactor.callLater(factory.unread_seconds, self._unread)

    def _unread(self) -> None:
        self._abort = None
        self._connection.peerUnreading()
