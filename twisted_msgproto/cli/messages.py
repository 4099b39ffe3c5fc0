"""Messages for ``msgproto send``: the lines of stdin, or made-up ones.

Both give batches: whatever is there, as soon as it is there, without a thread and without ever
blocking the reactor, so that ``tail -f … | msgproto send …`` sends each line when it comes.
"""

from __future__ import annotations

import json
import os
from collections import deque

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorFDSet, IReadDescriptor
from twisted.python.failure import Failure
from zope.interface import implementer

from twisted_msgproto.core.errors import ConfigurationError

READ_OCTETS = 256 * 1024

LINE_OCTETS_MAX = 64 * 1024 * 1024
"""A line which grows beyond this is no message of any protocol here."""


@implementer(IReadDescriptor)
class Lines:
    """The lines of a file descriptor, without their ends; empty lines are no messages."""

    def __init__(self, reactor: IReactorFDSet, descriptor: int) -> None:
        self._reactor = reactor
        self._descriptor = descriptor
        self._ready: deque[bytes] = deque()
        self._tail: list[bytes] = []  # pieces of a line whose end has not come yet
        self._tail_octets = 0
        self._ended = False
        self._waiting: Deferred[None] | None = None

    async def some(self, most: int) -> list[bytes]:
        """1 … ``most`` lines as soon as any is there; an empty list at the end."""
        while not self._ready and not self._ended:
            self._waiting = Deferred(self._cancelled)
            self._reactor.addReader(self)
            await self._waiting
        ready = self._ready
        return [ready.popleft() for _ in range(min(most, len(ready)))]

    def fileno(self) -> int:
        """For the reactor."""
        return self._descriptor

    def logPrefix(self) -> str:
        """For the reactor."""
        return "msgproto send"

    def doRead(self) -> None:
        """For the reactor: there is something to read, or the end."""
        try:
            octets = os.read(self._descriptor, READ_OCTETS)
        except BlockingIOError:  # somebody else made this terminal or pipe non-blocking
            return
        self._fed(octets)
        if self._tail_octets > LINE_OCTETS_MAX:
            self._ended = True
            self._wake(ConfigurationError(f"a line of more than {LINE_OCTETS_MAX} octets"))
        elif self._ready or self._ended:
            self._wake(None)

    def connectionLost(self, reason: Failure) -> None:
        """For the reactor: the other end of the pipe is closed, or the reactor ends."""
        self._fed(b"")
        self._wake(None)

    def _cancelled(self, waiting: Deferred[None]) -> None:
        self._waiting = None
        self._reactor.removeReader(self)

    def _wake(self, result: Exception | None) -> None:
        self._reactor.removeReader(self)
        waiting, self._waiting = self._waiting, None
        if waiting is not None and result is None:
            waiting.callback(None)
        elif waiting is not None:
            waiting.errback(result)

    def _fed(self, octets: bytes) -> None:
        if not octets:
            self._ended = True
            octets = b"\n"
        *lines, rest = octets.split(b"\n")
        if lines:
            lines[0] = b"".join([*self._tail, lines[0]])
            self._tail.clear()
            self._tail_octets = 0
            self._ready.extend(line for raw in lines if (line := raw.removesuffix(b"\r")))
        if rest:
            self._tail.append(rest)
            self._tail_octets += len(rest)


class MadeUp:
    """``count`` JSON documents of ``size`` octets each (or a little more), all different."""

    def __init__(self, count: int, size: int) -> None:
        self._next = 0
        self._count = count
        shortest = len(json.dumps({"number": count, "text": ""}))
        self._text = "x" * max(0, size - shortest)

    async def some(self, most: int) -> list[bytes]:
        """1 … ``most`` documents; an empty list after the last."""
        start = self._next
        self._next = min(self._count, start + most)
        text = self._text
        width = len(str(self._count))
        return [
            b'{"number": %*d, "text": "%s"}' % (width, number, text.encode())
            for number in range(start, self._next)
        ]
