"""Messages for ``msgproto send``: the lines of stdin, or made-up ones.

Both give batches: whatever is there, as soon as it is there, without a thread and without ever
blocking the reactor, so that ``tail -f … | msgproto send …`` sends each line when it comes.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from twisted_msgproto.core.errors import ConfigurationError

READ_BYTES = 262_144

LINE_BYTES_MAX = 67_108_864  # a line that grows beyond this is no message of any protocol here


class Lines:
    """The lines of a file descriptor, without their ends; empty lines are no messages."""

    def __init__(
        self,
        reactor: Any,
        descriptor: int,
        encode: Callable[[bytes], bytes] | None = None,
    ) -> None:
        """``encode`` makes a message of a line; ValueError says why the line cannot be sent."""
        self.refused: ConfigurationError | None = None  # why a line ended it before its end
        self._encode = encode
        self._number = 0  # of the line that was given out last
        self._reactor = reactor
        self._descriptor = descriptor
        self._ready: deque[bytes] = deque()
        self._tail: list[bytes] = []  # pieces of a line whose end has not come yet
        self._tailBytes = 0
        self._ended = False
        self._fault: str | None = None  # why the input ends where it does
        self._waiting: Deferred[None]

    async def some(self, most: int) -> list[bytes]:
        """1 … ``most`` messages as soon as any is there; an empty list at the end.

        A line that cannot be sent is the end: those before it are sent, and ``refused`` says why.
        """
        found: list[bytes] = []
        while not found and self.refused is None:
            while not self._ready and not self._ended:
                self._waiting = Deferred(self._cancelled)
                self._reactor.addReader(self)
                await self._waiting
            if not self._ready:
                if self._fault is not None:
                    self.refused = ConfigurationError(self._fault)
                break
            self._take(most, found)
        return found

    def _take(self, most: int, found: list[bytes]) -> None:
        ready, encode = self._ready, self._encode
        while ready and len(found) < most:
            line = ready.popleft()
            self._number += 1
            if not line:
                continue
            try:
                found.append(line if encode is None else encode(line))
            except ValueError as error:
                self.refused = ConfigurationError(f"line {self._number} cannot be sent: {error}")
                return

    def fileno(self) -> int:
        return self._descriptor

    def logPrefix(self) -> str:
        return "msgproto send"

    def doRead(self) -> None:
        try:
            data = os.read(self._descriptor, READ_BYTES)
        except BlockingIOError:  # somebody else made this terminal or pipe non-blocking
            return
        except OSError as error:
            self._fault = f"the input cannot be read: {error.strerror}"
            data = b""
        self._fed(data)
        if self._tailBytes > LINE_BYTES_MAX:
            self._ended = True
            number = self._number + len(self._ready) + 1
            self._fault = f"line {number} is longer than {LINE_BYTES_MAX} bytes"
        if self._ready or self._ended:
            self._wake()

    def connectionLost(self, reason: Failure) -> None:
        self._fed(b"")
        self._wake()

    def _cancelled(self, waiting: Deferred[None]) -> None:
        self._reactor.removeReader(self)

    def _wake(self) -> None:
        self._reactor.removeReader(self)
        self._waiting.callback(None)

    def _fed(self, data: bytes) -> None:
        if not data:
            self._ended = True
            data = b"\n" if self._tail else b""
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = b"".join([*self._tail, lines[0]])
            self._tail.clear()
            self._tailBytes = 0
            self._ready.extend(line.removesuffix(b"\r") for line in lines)
        if rest:
            self._tail.append(rest)
            self._tailBytes += len(rest)


class MadeUp:
    def __init__(self, count: int, size: int) -> None:
        self._next = 0
        self._count = count
        shortest = len(json.dumps({"number": count, "text": ""}))
        self.size: int = max(size, shortest)  # bytes of each
        self._text = "x" * (self.size - shortest)

    async def some(self, most: int) -> list[bytes]:
        start = self._next
        self._next = min(self._count, start + most)
        text = self._text
        width = len(str(self._count))
        return [
            b'{"number": %*d, "text": "%s"}' % (width, number, text.encode())
            for number in range(start, self._next)
        ]
