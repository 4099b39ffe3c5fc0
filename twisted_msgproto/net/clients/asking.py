"""Requests in flight: what ``msgproto send`` does where each message is a request of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from .shapes import Messages, Progress


async def ask_each(
    reactor: Any,
    messages: Messages,
    progress: Progress,
    window: int,
    ask: Callable[[bytes], Deferred[Any]],
) -> None:
    """Call ``ask`` with each message; its answer is the acknowledgement.

    No more than ``window`` are in flight.  Raises what the first request which fails fails with.
    """
    in_flight = answered = 0
    failed: list[Failure] = []
    waiting: Deferred[None] | None = None

    def changed(result: Any) -> None:
        nonlocal answered, in_flight, waiting
        in_flight -= 1
        if isinstance(result, Failure):
            failed.append(result)
        else:
            answered += 1
        if waiting is not None:
            woken, waiting = waiting, None
            reactor.callLater(0, woken.callback, None)  # once for all answers of a read

    async def until(most: int) -> None:
        """Wait until no more than ``most`` are in flight."""
        nonlocal answered, waiting
        while True:
            count, answered = answered, 0
            if count:
                progress.acknowledged(count)
            if failed:
                failed[0].raiseException()
            if in_flight <= most:
                return
            waiting = Deferred()
            await waiting

    while batch := await messages.some(window - in_flight):
        for body in batch:
            in_flight += 1
            ask(body).addBoth(changed)
        progress.sent(len(batch))
        await until(window - 1)
    await until(0)
