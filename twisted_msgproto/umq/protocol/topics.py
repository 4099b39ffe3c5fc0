"""A topic as its publisher has it: it feels that a subscriber is slow."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IConsumer
from zope.interface import implementer

from ...core.kept import KEPT_WEIGHT_OCTETS
from ..machine.attachments import Slot, text_octets

if TYPE_CHECKING:
    from .session import UmqSession


@implementer(IConsumer)
class Topic:
    """A topic to which the peer subscribed here: publish to it (``UM-12``, ``UM-21``).

    What the subscriber does not read waits here, within ``topic-queue-messages`` and
    ``topic-queue-octets``; a registered producer is paused meanwhile.  Above the limits the
    subscriber is dropped: the queue is thrown away and the topic closed with ``D``.

    Attributes:
        id: the topic's id as the subscriber chose it.
        closed: why the topic has ended: ``"closed"``, ``"unsubscribed"``, ``"slow"``, ``"lost"``;
            None while it lives.
    """

    def __init__(self, session: UmqSession, number: int, id: str) -> None:
        self._session = session
        self._number = number
        self._queue: deque[tuple[str, Sequence[bytes | Slot], int, int]] = deque()
        self._octets = 0  # as topic-queue-octets counts them
        self._weight = 0  # what they take
        self._producer: Any = None
        self._streaming = False
        self._asking: Any = None  # the call that asks a pull producer for its next update
        self._ended: list[Deferred[str]] = []
        self.id = id
        self.closed: str | None = None

    @property
    def paused(self) -> bool:
        """The subscriber does not read: updates wait here."""
        return bool(self._queue)

    def publish(self, payload: str, attachments: Sequence[Any] = ()) -> bool:
        """Send an update; False if the topic has ended (then nothing is sent)."""
        session = self._session
        if self.closed is not None or not session.machine.opened:
            return False
        bodies = session._bodies(attachments)
        if not self._queue and not session.wire.unread:
            session._time()
            session.machine.publish(self._number, payload, bodies)
            session._settle()
            return True
        session.machine.check(payload, bodies)
        if not self._queue:
            session._slowTopics[self] = None
            if self._producer is not None and self._streaming:
                self._producer.pauseProducing()
        attached = sum(len(body) for body in bodies if isinstance(body, bytes))
        octets = len(payload) + attached
        weight = text_octets(payload) + attached + KEPT_WEIGHT_OCTETS
        kept = session.machine.kept
        fits = kept.fits(weight)
        kept.add(weight)
        self._queue.append((payload, bodies, octets, weight))
        self._octets += octets
        self._weight += weight
        limits = session.limits
        if (
            not fits
            or len(self._queue) > limits["topic-queue-messages"]
            or self._octets > limits["topic-queue-octets"]
        ):
            session._tally["topics_dropped"] += 1
            self._end("slow")
            return False
        return True

    def close(self) -> None:
        """Send what waits, then ``D``; nothing if the topic has ended."""
        if self.closed is None:
            while self._queue:
                self._send()
            self._end("closed")

    def whenClosed(self) -> Deferred[str]:
        """Fires with the reason when the topic has ended."""
        ended: Deferred[str] = Deferred(self._ended.remove)
        if self.closed is None:
            self._ended.append(ended)
        else:
            ended.callback(self.closed)
        return ended

    # IConsumer, for those who have a producer

    def write(self, data: bytes) -> None:
        """Publish an update with these UTF-8 octets."""
        self.publish(data.decode())
        if self._producer is not None and not self._streaming and not self.paused:
            self._askLater()

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        """Pause ``producer`` while the subscriber does not read, and stop it at the end.

        One that is not ``streaming`` is asked for an update (``resumeProducing``) now, and again
        each time when the subscriber has read the one before.  Raises RuntimeError if there is one.
        """
        if self._producer is not None:
            raise RuntimeError("the topic has a producer")
        self._producer, self._streaming = producer, streaming
        if self.closed is not None:
            self.unregisterProducer()
            producer.stopProducing()
        elif not streaming:
            if not self.paused:
                producer.resumeProducing()
        elif self.paused:
            producer.pauseProducing()

    def unregisterProducer(self) -> None:
        """The producer has no more."""
        self._producer = None
        asking, self._asking = self._asking, None
        if asking is not None:
            asking.cancel()

    def _askLater(self) -> None:
        if self._asking is None:
            self._asking = self._session.factory.clock.callLater(0, self._ask)

    def _ask(self) -> None:
        self._asking = None
        if not self.paused:  # otherwise when that is over
            self._producer.resumeProducing()

    # The session's side

    def _send(self) -> None:
        payload, bodies, octets, weight = self._queue.popleft()
        self._octets -= octets
        self._weight -= weight
        self._session.machine.kept.remove(weight)
        self._session._time()
        self._session.machine.publish(self._number, payload, bodies)

    def _drain(self) -> None:
        while self._queue and self.closed is None and not self._session.wire.unread:
            self._send()
            self._session._settle()
        if not self._queue and self.closed is None:
            self._session._slowTopics.pop(self, None)
            if self._producer is not None:
                self._producer.resumeProducing()

    def _end(self, reason: str) -> None:
        session = self._session
        session.machine.kept.remove(self._weight)
        self.closed = reason
        self._queue.clear()
        self._octets = self._weight = 0
        session._slowTopics.pop(self, None)
        session.topics.pop(self._number, None)
        if reason in ("closed", "slow") and session.machine.opened:
            session._time()
            session.machine.close_topic(self._number)
            session._settle()
        producer = self._producer
        self.unregisterProducer()
        if producer is not None:
            producer.stopProducing()
        while self._ended:
            self._ended.pop(0).callback(reason)
