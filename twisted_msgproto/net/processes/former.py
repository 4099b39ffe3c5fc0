"""The queues that no process has are looked after by nobody else: the page says how far they are.

They stand below the directory of the queues from a time with more processes, or in the directory
itself from a time with one.  A bridge lands them like the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from twisted.internet.defer import Deferred, succeed
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.failure import Failure

from ..status.figures import DISK_SILENT, QUEUE_SECONDS, Figures

log = Logger(namespace="twisted_msgproto.processes")

FORMER_SECONDS: Final = 5.0
"""What was read of these queues is good for this long: only a bridge changes it."""


class FormerQueues:
    """Reads how far the queues that no process has are landed."""

    def __init__(self, reactor: Any, places: Callable[[], list[str]]) -> None:
        """``places()`` returns their directories; it is called in a thread."""
        self._reactor = reactor
        self._places = places
        self._known: list[Figures] = []
        self._read_at = float("-inf")
        self._reading: Deferred[Any] | None = None
        self._told: str | None = None

    def latest(self) -> Deferred[list[Figures]]:
        """Return their figures as they were some seconds ago at most.

        A disk that does not answer in time is not asked twice, and what was read last is returned.
        """
        if self._reactor.seconds() - self._read_at < FORMER_SECONDS:
            return succeed(self._known)
        reading = self._reading
        if reading is None:
            pool = self._reactor.getThreadPool()
            reading = self._reading = deferToThreadPool(self._reactor, pool, self._read)
            reading.addBoth(self._take)
        answer: Deferred[list[Figures]] = Deferred()

        def tell(_: object) -> None:
            if not answer.called:  # else it has waited too long
                answer.callback(self._known)

        reading.addBoth(tell)
        answer.addTimeout(QUEUE_SECONDS, self._reactor)
        return answer.addErrback(self._silent)

    def _read(self) -> list[Figures]:
        from ..status.store import former_queues

        return former_queues(self._places(), time.time())

    def _take(self, result: list[Figures] | Failure) -> None:
        self._reading, self._read_at = None, self._reactor.seconds()
        if isinstance(result, Failure):
            why = result.getErrorMessage()
            if why != self._told:  # a disk that cannot read now is asked again and again
                self._told = why
                log.failure("queues that no process has could not be read", result)
        else:
            self._told = None
            self._known = result

    def _silent(self, _: Failure) -> list[Figures]:
        why = f"The queue's files cannot be read: {DISK_SILENT}."
        return [{**one, "ok": False, "why": why} for one in self._known]


__all__ = ["FORMER_SECONDS", "FormerQueues"]
