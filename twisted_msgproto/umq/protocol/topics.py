"""Topics on both sides: the publisher's, which feels a slow subscriber, and the subscriber's."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IConsumer
from twisted.python.failure import Failure
from zope.interface import implementer

from ...core.errors import ConnectionClosed, LimitExceeded
from ..machine.attachments import Slot
from ..wire import base36
from .exchange import NoSuchMethod, Reply, Stored, Update

if TYPE_CHECKING:
    from .session import UmqSession


@implementer(IConsumer)
class Topic:
    """A topic which the peer subscribed here: publish to it (``UM-12``, ``UM-21``).

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
        self._queue: deque[tuple[str, Sequence[bytes | Slot], int]] = deque()
        self._octets = 0
        self._producer: Any = None
        self._streaming = False
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
        if self.closed is not None:
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
        octets = len(payload) + sum(len(body) for body in bodies if isinstance(body, bytes))
        self._queue.append((payload, bodies, octets))
        self._octets += octets
        limits = session.limits
        if (
            len(self._queue) > limits["topic-queue-messages"]
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
        ended: Deferred[str] = Deferred()
        if self.closed is None:
            self._ended.append(ended)
        else:
            ended.callback(self.closed)
        return ended

    # IConsumer, for those who have a producer

    def write(self, data: bytes) -> None:
        """An update with these UTF-8 octets."""
        self.publish(data.decode())

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        """``producer`` is paused while the subscriber does not read, stopped at the end."""
        if self._producer is not None:
            raise RuntimeError("the topic has a producer")
        self._producer, self._streaming = producer, streaming
        if self.closed is not None:
            self.unregisterProducer()
            producer.stopProducing()
        elif not streaming:
            producer.resumeProducing()
        elif self.paused:
            producer.pauseProducing()

    def unregisterProducer(self) -> None:
        """The producer has no more."""
        self._producer = None

    # The session's side

    def _send(self) -> None:
        payload, bodies, octets = self._queue.popleft()
        self._octets -= octets
        self._session._time()
        self._session.machine.publish(self._number, payload, bodies)

    def _drain(self) -> None:
        """The subscriber reads again: send what waits, as long as it does."""
        while self._queue and self.closed is None and not self._session.wire.unread:
            self._send()
            self._session._settle()
        if not self._queue and self.closed is None:
            self._session._slowTopics.pop(self, None)
            if self._producer is not None:
                self._producer.resumeProducing()

    def _end(self, reason: str) -> None:
        """The topic ends here, or has ended; ``reason`` as in ``closed``."""
        self.closed = reason
        self._queue.clear()
        self._octets = 0
        session = self._session
        session._slowTopics.pop(self, None)
        session.topics.pop(self._number, None)
        if reason in ("closed", "slow") and session.machine.opened:
            session._time()
            session.machine.close_topic(self._number)
            session._settle()
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.stopProducing()
        ended, self._ended = self._ended, []
        for waiting in ended:
            waiting.callback(reason)


class Subscription:
    """A topic which we subscribed at the peer: a hook is called, or iterate ``async for``.

    Attributes:
        id: the topic's id, as it stands in the subscribing request.
        ended: the topic has ended; iteration ends after what had come.
    """

    def __init__(
        self,
        session: UmqSession,
        number: int,
        hook: Callable[[Update], object] | None,
        streamed: bool,
    ) -> None:
        self._session = session
        self._number = number
        self._hook = hook
        self._streamed = streamed
        self._backlog: deque[Update] = deque()
        self._waiting: Deferred[Update | None] | None = None
        self._failure: BaseException | None = None
        self._answer: Reply | Failure | None = None
        self._starting: list[Deferred[Reply]] = []
        self.id = base36(number)
        self.ended = False

    def whenStarted(self) -> Deferred[Reply]:
        """Fires with the answer to the subscribing request; fails like that call."""
        started: Deferred[Reply] = Deferred()
        if self._answer is None:
            self._starting.append(started)
        else:
            started.callback(self._answer)
        return started

    def unsubscribe(self) -> None:
        """Say ``U``; nothing more is delivered (``UM-14``)."""
        session = self._session
        if not self.ended and session.machine.opened:
            session._time()
            session.machine.unsubscribe(self._number)
            session._settle()
        self._end()

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Update:
        """The next update; raises what ended the subscription early, if anything did."""
        if self._backlog:
            update = self._backlog.popleft()
            self._session._backlogChanged(-1)
            return update
        if not self.ended:
            self._waiting = Deferred()
            waited = await self._waiting
            if waited is not None:
                return waited
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        raise StopAsyncIteration

    # The session's side

    def _accepted(self, answer: Reply) -> None:
        stored = Stored.read(answer.payload)
        if stored is None:
            self._started(answer)
        else:  # nobody will publish to it
            self._refused(Failure(NoSuchMethod(stored)))

    def _never(self, error: Exception) -> Subscription:
        """It could not even be asked for."""
        self.ended = True
        self._failure = error
        self._started(Failure(error))
        return self

    def _refused(self, failure: Failure) -> None:
        if not self.ended:
            self._drop(failure.value)  # type: ignore[arg-type]
        self._started(failure)

    def _started(self, answer: Reply | Failure) -> None:
        self._answer = answer
        starting, self._starting = self._starting, []
        for started in starting:
            started.callback(answer)

    def _drop(self, why: BaseException) -> None:
        """Unsubscribe, and tell whoever iterates why."""
        self._failure = why
        self.unsubscribe()

    def _arrived(self, update: Update) -> None:
        if self._hook is not None:
            self._hook(update)
        elif self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            waiting.callback(update)
        else:
            self._backlog.append(update)
            self._session._backlogChanged(1)
            if len(self._backlog) >= 4 * self._session.limits["backlog"]:
                self._drop(LimitExceeded("updates came faster than they were taken"))

    def _end(self) -> None:
        if self.ended:
            return
        self.ended = True
        self._session.subscriptions.pop(self._number, None)
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            waiting.callback(None)

    def _lost(self) -> None:
        self._failure = ConnectionClosed("the connection ended, and the subscription with it")
        self._end()
