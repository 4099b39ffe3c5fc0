"""What ``msgproto send`` and ``recv`` wait for, and for how long.

``send`` gives up on a server that owes it something and is silent.  A server owes something while a
connection or a session is being made, and while a message is on its way that it has not
acknowledged.  It owes nothing while we wait for the next line of the input.

``recv`` ends when nobody reads its output any more.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Coroutine
from typing import Any, Final, Generic, TypeVar

from twisted.internet.defer import CancelledError, Deferred
from twisted.python.failure import Failure

from twisted_msgproto.core.errors import TimedOut

from ..net.clients.command_types import Messages

T = TypeVar("T")

PATIENCE_SECONDS: Final = 30.0  # a peer that owes something may be silent for this long
ALIVE_FACTOR: Final = 20  # so much longer for a peer that is at work, but acknowledges nothing
LEAVE_SECONDS: Final = 5.0  # for a protocol to close its connections once we gave up
GOODBYE_SECONDS: Final = 1.0  # less, for a silent peer: it answers no goodbye, either


def silent(seconds: float) -> str:
    return f"the server did not answer for {seconds:g} s (--timeout S waits longer)"


class Attempt(Generic[T]):
    """A coroutine that can be given up: it may tidy up then, but not for ever."""

    def __init__(
        self, clock: Any, work: Coroutine[Any, Any, T], leave: float = LEAVE_SECONDS
    ) -> None:
        self.given_up: bool = False
        self._leave = leave
        self._over = False
        self._clock = clock
        self._timer: Any = None
        self.result: Deferred[T] = Deferred.fromCoroutine(self._run(work))
        """Fires with what the work returns or raises; CancelledError if it is given up."""

    async def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return await work
        finally:
            self._over = True
            if self._timer is not None:
                self._timer.cancel()

    def give_up(self) -> None:
        if not self.given_up:
            self._give_up()

    def _give_up(self) -> None:
        self.given_up = True
        self._timer = None
        self.result.cancel()
        if not self._over:
            self._timer = self._clock.callLater(self._leave, self._give_up)


class Patience:
    """A watch over one ``send``, to which it is ``messages`` and ``progress``."""

    def __init__(self, clock: Any, seconds: float, messages: Messages, progress: Any) -> None:
        """The peer may be silent for ``seconds``; ``progress`` hears of what is sent and comes."""
        self._clock = clock
        self._seconds = seconds
        self._messages = messages
        self._progress = progress
        self._reading = False  # we wait for the input
        self._outstanding = 0
        self._due = self._due_most = 0.0
        self._timer: Any = None
        self._attempt: Attempt[Any]
        self._taken_at: Callable[[float], float] = lambda now: 0.0

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work``; raises TimedOut when the peer's time is over, else as ``work`` does."""
        self._moved()
        self._attempt = attempt = Attempt(self._clock, work, GOODBYE_SECONDS)
        try:
            return await attempt.result
        except CancelledError:  # any other error: the protocol knows better what is wrong
            if not attempt.given_up:
                raise
            raise TimedOut(silent(self._seconds)) from None
        finally:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    # ── the deadline ────────────────────────────────────────────────────────────────────────────

    def _moved(self) -> None:
        now = self._clock.seconds()
        self._due_most = now + self._seconds * ALIVE_FACTOR
        self._due = now + self._seconds
        if self._timer is None:
            self._timer = self._clock.callLater(self._seconds, self._look)

    def _look(self) -> None:
        self._timer = None
        now = self._clock.seconds()
        left = max(self._due, self._taken_at(now) + self._seconds) - now
        if self._reading and not self._outstanding:
            return  # the next line begins it anew
        if left > 0:
            self._timer = self._clock.callLater(left, self._look)
        else:
            self._attempt.give_up()

    # ── what ``send`` calls ─────────────────────────────────────────────────────────────────────

    async def some(self, most: int) -> list[bytes]:
        self._reading = True
        try:
            return await self._messages.some(most)
        finally:
            self._reading = False
            if not self._outstanding:
                self._moved()

    def sent(self, count: int) -> None:
        if not self._outstanding:
            self._moved()
        self._outstanding += count
        self._progress.sent(count)

    def acknowledged(self, count: int) -> None:
        self._outstanding -= count
        self._moved()
        self._progress.acknowledged(count)

    def written(self, count: int) -> None:
        self._outstanding -= count
        self._moved()
        self._progress.written(count)

    def follow(self, takenAt: Callable[[float], float]) -> None:
        self._taken_at = takenAt

    def note(self, text: str) -> None:
        self._progress.note(text)

    def alive(self) -> None:
        """Prolong the peer's time, though not for ever."""
        self._due = max(self._due, min(self._due_most, self._clock.seconds() + self._seconds))


class Reader:
    """Watches whether somebody still reads the pipe of our output; no other output is watched."""

    def __init__(self, reactor: Any, descriptor: int | None, gone: Callable[[], None]) -> None:
        self._reactor = reactor
        self._gone = gone
        if descriptor is not None and stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            self._descriptor = descriptor
            reactor.addReader(self)

    def fileno(self) -> int:
        return self._descriptor

    def logPrefix(self) -> str:
        return "msgproto recv"

    def doRead(self) -> None:
        self._reactor.removeReader(self)
        self._gone()

    def connectionLost(self, reason: Failure) -> None:
        self.doRead()
