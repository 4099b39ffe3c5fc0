"""Keep requests in flight, for ``msgproto send`` where each answer is an acknowledgement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, maybeDeferred
from twisted.python.failure import Failure

from ...core.errors import LimitExceeded, Refused, TimedOut
from .shapes import Messages, Progress


class InFlight:
    """The messages that are on their way; ``progress`` hears of their answers.

    Answers are told in the turn of the reactor in which they come, once for all answers of a read,
    also while the next line of the input is awaited.
    """

    def __init__(self, reactor: Any, messages: Messages, progress: Progress, window: int) -> None:
        self._reactor = reactor
        self._messages = messages
        self._progress = progress
        self._window = window
        self._count = 0
        self._answered = 0  # of these nobody was told yet
        self._failed: Failure | None = None  # the first
        self._turn: Any = None  # the call that tells what was answered
        self._most = 0  # who waits goes on with this many in flight
        self._waiting: Deferred[None] | None = None
        self._reading: Deferred[list[bytes]] | None = None

    async def some(self, most: int) -> list[bytes]:
        """Return 1 … ``most`` messages to send now; an empty list when all are answered.

        Raises what the first message that fails fails with, once the others that are on their way
        have had their answers, too; nothing more is read then.
        """
        await self._until(self._window - 1)
        batch = await self._read(min(most, self._window - self._count))
        if batch and self._failed is None:
            self._progress.sent(len(batch))
            return batch
        await self._until(0)
        self._tell()
        if self._failed is not None:
            self._failed.raiseException()
        return []

    def add(self, answer: Deferred[Any], count: int = 1, number: int | None = None) -> None:
        """``answer`` acknowledges ``count`` messages; with a ``number`` its error names that."""
        self._count += count
        answer.addBoth(self._changed, count, number)

    def _changed(self, result: Any, count: int, number: int | None) -> None:
        self._count -= count
        if not isinstance(result, Failure):
            self._answered += count
        else:
            named = result.check(Refused, LimitExceeded, TimedOut, ValueError)
            # One error may end several messages; the first of them is told.
            if number is not None and named and not hasattr(result.value, "__notes__"):
                assert result.value is not None
                result.value.add_note(f"message {number}")
            self._failed = self._failed or result
        if self._turn is None:
            self._turn = self._reactor.callLater(0, self._told)

    def _told(self) -> None:
        self._turn = None
        self._tell()
        if self._waiting is not None and self._count <= self._most:
            woken, self._waiting = self._waiting, None
            woken.callback(None)
        if self._failed is not None and self._reading is not None:
            self._reading.cancel()

    def _tell(self) -> None:
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        count, self._answered = self._answered, 0
        if count:
            self._progress.acknowledged(count)

    async def _until(self, most: int) -> None:
        while self._count > (0 if self._failed else most):
            self._most = most
            self._waiting = Deferred()
            await self._waiting

    async def _read(self, most: int) -> list[bytes]:
        if self._failed is not None:
            return []
        self._reading = Deferred.fromCoroutine(self._messages.some(most))
        try:
            return await self._reading
        except CancelledError:
            if self._failed is None:
                raise
            return []
        finally:
            self._reading = None


async def ask_each(
    reactor: Any,
    messages: Messages,
    progress: Progress,
    window: int,
    ask: Callable[[bytes], Deferred[Any]],
) -> None:
    """Call ``ask`` with each message; its answer is the acknowledgement.

    No more than ``window`` are in flight.  Raises what the first request that fails fails with,
    once the others that are in flight have had their answers, too; its note names the message.
    """
    in_flight = InFlight(reactor, messages, progress, window)
    number = 0
    while batch := await in_flight.some(window):
        for body in batch:
            number += 1
            in_flight.add(maybeDeferred(ask, body), number=number)
