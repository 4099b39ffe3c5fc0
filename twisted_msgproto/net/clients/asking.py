"""Keep requests in flight, for ``msgproto send`` where each message is a request of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.python.failure import Failure

from ...core.errors import LimitExceeded, Refused, TimedOut
from .shapes import Messages, Progress


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
    in_flight = answered = number = 0
    failed: list[Failure] = []
    waiting: Deferred[None] | None = None

    def changed(result: Any, number: int) -> None:
        nonlocal answered, in_flight, waiting
        in_flight -= 1
        if isinstance(result, Failure):
            if result.check(Refused, LimitExceeded, TimedOut, ValueError):
                assert result.value is not None
                if not hasattr(result.value, "__notes__"):  # one error may end several
                    result.value.add_note(f"message {number}")
            failed.append(result)
        else:
            answered += 1
        if waiting is not None:
            woken, waiting = waiting, None
            reactor.callLater(0, woken.callback, None)  # once for all answers of a read

    async def until(most: int) -> None:
        """Wait until no more than ``most`` are in flight; none, once one has failed."""
        nonlocal answered, waiting
        while True:
            count, answered = answered, 0
            if count:
                progress.acknowledged(count)
            if in_flight <= (0 if failed else most):
                break
            waiting = Deferred()
            await waiting
        if failed:
            failed[0].raiseException()

    while batch := await messages.some(window - in_flight):
        progress.sent(len(batch))
        for body in batch:
            in_flight += 1
            number += 1
            maybeDeferred(ask, body).addBoth(changed, number)
        await until(window - 1)
    await until(0)
