"""Run one coroutine in the reactor, from start to end: the frame of every client sub-command."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.error import ReactorNotRunning
from twisted.python.failure import Failure

from twisted_msgproto.net.monotonic import count_monotonically

T = TypeVar("T")


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
        running.cancel()
        return running

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
