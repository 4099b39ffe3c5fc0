"""Run one coroutine in the reactor, from start to end: the frame of every client sub-command."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.error import ReactorNotRunning
from twisted.python.failure import Failure

from twisted_msgproto.net.process import count_monotonically

T = TypeVar("T")

STOP_SECONDS: Final = 12.0
"""After a signal, work may end its connections in order for this long: longer than any protocol's
limit ``drain``.  Then the process ends all the same."""


def run_in_reactor(work: Callable[[Any], Coroutine[Any, Any, T]]) -> T:
    """Start the reactor, run ``work(reactor)``, stop the reactor, return what ``work`` returned.

    What ``work`` raises is raised here.  SIGINT and SIGTERM cancel it; it may end its connections
    in peace, then KeyboardInterrupt is raised here.  A process can do this once.
    """
    from twisted.internet import reactor as installed  # late: importing it installs it

    reactor: Any = installed
    count_monotonically(reactor)
    outcome: list[T | Failure] = []
    interrupted = False

    def begin() -> None:
        running: Deferred[Any] = Deferred.fromCoroutine(work(reactor))
        reactor.addSystemEventTrigger("before", "shutdown", stopping, running)
        running.addBoth(ended)

    def stopping(running: Deferred[Any]) -> Deferred[Any]:
        nonlocal interrupted
        interrupted = not outcome
        left: Deferred[Any] = Deferred()

        def leave(_: object = None) -> None:
            if not left.called:
                left.callback(None)

        def abandon() -> None:
            running.cancel()
            leave()

        # Before the cancelling: it may end at once.
        running.addBoth(leave)
        abandoned = reactor.callLater(STOP_SECONDS, abandon)
        left.addCallback(lambda _: abandoned.active() and abandoned.cancel())
        running.cancel()
        return left

    def ended(result: T | Failure) -> None:
        outcome.append(result)
        with suppress(ReactorNotRunning):  # a signal was first
            reactor.stop()

    reactor.callWhenRunning(begin)
    reactor.run()
    if interrupted or not outcome:
        raise KeyboardInterrupt
    result = outcome[0]
    if isinstance(result, Failure):
        result.raiseException()
        raise AssertionError("unreachable")
    return result
