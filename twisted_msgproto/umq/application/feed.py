"""What is published under one name goes to its subscribers in order, as long as there is time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from ..protocol.topics import Topic


class Feed:
    """One name: the topics that subscribed to it, and the updates that wait for their turn.

    All subscribers get all updates in one order.  One who comes while an update is sent gets the
    next.

    Attributes:
        topics: the subscribers' topics, in the order in which they came.
    """

    def __init__(self) -> None:
        self.topics: dict[Topic, None] = {}
        self._updates: OrderedDict[Deferred[int], str] = OrderedDict()
        self._rest: Iterator[Topic] | None = None  # who has not got the first update yet
        self._got = 0

    @property
    def waits(self) -> bool:
        return bool(self._updates)

    def add(self, text: str) -> Deferred[int]:
        """Let an update wait; the Deferred fires with how many subscribers got it.

        It fails with what a topic raised (LimitExceeded for a text that is too large): then the
        subscribers after that one do not get the update.  Cancelling it withdraws an update that
        nobody has got yet.
        """
        sent: Deferred[int] = Deferred(self._withdraw)
        self._updates[sent] = text
        return sent

    def _withdraw(self, sent: Deferred[int]) -> None:
        if self._rest is None or sent is not next(iter(self._updates)):
            del self._updates[sent]

    def send(self, late: Callable[[], bool]) -> None:
        """Send what waits to one subscriber after the other, until it is ``late``."""
        while self._updates:
            sent, text = next(iter(self._updates.items()))
            if self._rest is None:
                self._rest, self._got = iter(list(self.topics)), 0
            failure = None
            try:
                for topic in self._rest:
                    self._got += topic.publish(text)
                    if late():
                        return
            except Exception:
                failure = Failure()
            self._rest = None
            if sent.called:
                pass  # cancelled, when some had got it
            elif failure is None:
                sent.callback(self._got)
            else:
                sent.errback(failure)
            del self._updates[sent]  # not before: what is published meanwhile stands behind it
            if late():
                return
