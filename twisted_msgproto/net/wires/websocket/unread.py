"""What stands between a WebSocket connection and its transport: unread output, time, the log."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any
from typing import Protocol as Shape

from twisted.internet.interfaces import IPushProducer
from twisted.logger import Logger
from zope.interface import implementer

from twisted_msgproto.core.errors import shown

_CHUNK = 65536
"""What is given to the transport at once while it drains, in octets."""

log = Logger(namespace="twisted_msgproto.net.wires.websocket")


class Call(Shape):
    """What ``callLater`` returns."""

    def cancel(self) -> None:
        """Forget it."""

    def active(self) -> bool:
        """It may still happen."""


class Clock(Shape):
    """What is needed of a reactor here: time only."""

    def callLater(self, delay: float, callable: Callable[..., object], *args: object) -> Call:
        """Call ``callable`` after ``delay`` seconds."""


class QuietLog:
    """autobahn's log lines: what peers sent is escaped and cut, and debug lines cost nothing."""

    def debug(self, *args: object, **values: object) -> None:
        """Dropped: autobahn writes several for each frame."""

    def info(self, text: str = "", **values: object) -> None:
        """Told as debug, with every value escaped: these are a peer's doings, not ours."""
        safe = {name: shown(str(value)) for name, value in values.items()}
        log.debug("{text}", text=text.format(**safe) if safe else text)

    warn = error = critical = info


class PlainTimer:
    """autobahn's timers, on the factory's own clock."""

    __slots__ = ("clock",)

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def call_later(self, delay: float, function: Callable[..., object], *args: object) -> Call:
        """A plain ``callLater``: autobahn's own buckets cancel in linear time."""
        return self.clock.callLater(delay, function, *args)


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
