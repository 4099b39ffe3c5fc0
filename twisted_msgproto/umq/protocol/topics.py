"""The topics of one session: those that the peer subscribed here, and those that we subscribed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IConsumer
from twisted.python.failure import Failure
from zope.interface import implementer

from ...core.errors import ConnectionClosed, LimitExceeded, Refused
from ...core.session_memory import SESSION_WEIGHT_BYTES, text_bytes
from ...net.clients.subscriptions import LOST, REFUSED, UNSUBSCRIBED, Backlog, Ending
from ...net.deferreds import ProducerControl
from ...net.factory import expect
from ..machine.attachments import ATTACHMENT_BYTES, Slot, attachments_bytes
from ..terms import TopicClosed, TopicUnsubscribed, TopicUpdated
from ..wire import Code, base36
from .calls import UNSENT, NoSuchMethod, Reply, Stored, Update


def expect_functions(request: object, hook: object) -> None:
    expect("request", request, "a function of the topic's id", callable(request))
    expect("hook", hook, "a function of an Update", hook is None or callable(hook))


@implementer(IConsumer)
class Topic:
    """A topic to which the peer subscribed here: publish to it (``UM-12``, ``UM-21``).

    What the subscriber does not read waits here, within ``topic-queue-bytes``; a registered
    producer is paused meanwhile.  Above the limit the subscriber is dropped: the queue is thrown
    away and the topic closed with ``D``.

    Attributes:
        id: the topic's id as the subscriber chose it.
        closed: why the topic has ended: ``"closed"``, ``"unsubscribed"``, ``"slow"``, ``"lost"``;
            None while it lives.
    """

    def __init__(self, topics: Topics, number: int, id: str) -> None:
        self._topics = topics
        self._link = topics.link
        self._number = number
        self._queue: deque[tuple[str, Sequence[bytes | Slot], int]] = deque()
        self._bytes = 0  # what they take
        self._producers = ProducerControl()
        self._ended: list[Deferred[str]] = []
        self.id = id
        self.closed: str | None = None

    @property
    def paused(self) -> bool:
        """The subscriber does not read: updates wait here."""
        return bool(self._queue)

    def publish(self, payload: str, attachments: Sequence[Any] = ()) -> bool:
        """Send an update; False if the topic has ended (then nothing is sent)."""
        link = self._link
        if self.closed is not None or not link.machine.opened:
            return False
        bodies = link.calls.bodies(attachments)
        if not self._queue and not link.wire.output.full:
            link.machine.publish(self._number, payload, bodies)
            link.flush()
            return True
        link.machine.check(payload, bodies)
        self._topics.slow[self] = None
        attached = sum(len(body) for body in bodies if isinstance(body, bytes))
        attached += ATTACHMENT_BYTES * len(bodies)
        nbytes = text_bytes(payload) + attached + SESSION_WEIGHT_BYTES
        memory = link.machine.memory
        fits = memory.fits(nbytes)
        memory.add(nbytes)
        self._queue.append((payload, bodies, nbytes))
        self._bytes += nbytes
        if not fits or self._bytes > link.factory.limits["topic-queue-bytes"]:
            link.count("topics_dropped")
            self.end("slow")
            return False
        self._producers.look(True)  # it may publish, or end the topic
        return True

    def close(self) -> None:
        """Send what waits, then ``D``; nothing if the topic has ended."""
        if self.closed is None:
            while self._queue:
                self._send()
            self.end("closed")

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
        """Publish an update with these UTF-8 bytes."""
        self.publish(data.decode())

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        """Pause ``producer`` while the subscriber does not read, and stop it at the end.

        Raises RuntimeError for a second one, and ValueError for a pull producer.
        """
        self._producers.register(producer, streaming)
        if self.closed is not None:
            self._producers.stop()
        self._producers.look(self.paused)

    def unregisterProducer(self) -> None:
        """The producer has no more."""
        self._producers.unregister()

    # The link's side

    def _send(self) -> None:
        payload, bodies, nbytes = self._queue.popleft()
        self._bytes -= nbytes
        self._link.machine.memory.remove(nbytes)
        self._link.time()
        self._link.machine.publish(self._number, payload, bodies)

    def drain(self) -> None:
        """Send what waits, as far as the peer reads it."""
        while self._queue and self.closed is None and not self._link.wire.output.full:
            self._send()
            self._link.flush()
        if not self._queue and self.closed is None:
            self._topics.slow.pop(self, None)
            self._producers.look(False)

    def end(self, reason: str) -> None:
        """Nothing is published any more."""
        link, topics = self._link, self._topics
        link.machine.memory.remove(self._bytes)
        self.closed = reason
        self._queue.clear()
        self._bytes = 0
        topics.slow.pop(self, None)
        topics.published.pop(self._number, None)
        if reason in ("closed", "slow") and link.machine.opened:
            link.machine.close_topic(self._number)
            link.flush()
        self._producers.stop()
        while self._ended:
            self._ended.pop(0).callback(reason)


def weigh(update: Update) -> int:
    attachments = update.attachments
    nbytes = attachments_bytes(attachments) + ATTACHMENT_BYTES * len(attachments)
    return SESSION_WEIGHT_BYTES + text_bytes(update.payload) + nbytes


SLOW_TIMES: Final = 4
"""Reading continues while an answer to our calls is awaited.  A subscription ends when its updates
that wait are this many times the limit at which reading pauses otherwise.
"""


class Updates(Backlog[Update]):
    __slots__ = ("_taken", "_topics")

    def __init__(self, taken: Callable[[], object] = lambda: None) -> None:
        super().__init__(self._takenOne, weigh)
        self._topics: Topics | None = None
        self._taken = taken

    def charge(self, topics: Topics) -> None:
        before, self._topics = self._topics, topics
        if before is not None and len(self):
            before.waiting(-self.nbytes)
        if len(self):
            topics.waiting(self.nbytes)

    def _takenOne(self, update: Update, nbytes: int) -> None:
        if self._topics is not None:
            self._topics.waiting(-nbytes)
        self._taken()


class Subscription(Ending):
    """A topic to which we subscribed at the peer: a hook is called, or iterate ``async for``.

    It ends once, for one of these reasons:

    * ``"closed"``: the publisher said ``D``.  It has ended the topic, or has dropped us because we
      read too slowly; UMQ does not say which;
    * ``"unsubscribed"``: we said ``U``;
    * ``"refused"``: the call that asked for it failed;
    * ``"slow"``: updates came faster than they were iterated, and we said ``U``;
    * ``"lost"``: the session ended first.

    Several may iterate at a time: each update goes to one of them, in the order of their asking.

    Attributes:
        id: the topic's id, as it stands in the subscribing request.
        reason: why it has ended, as above; None while it lives.  What had come before the end can
            still be iterated.
        failure: the exception that iteration raises at the end, or None.
    """

    def __init__(
        self,
        topics: Topics,
        number: int,
        hook: Callable[[Update], object] | None,
        updates: Updates | None = None,
    ) -> None:
        """``updates`` belong to somebody who outlives the session."""
        super().__init__()
        self._topics = topics
        self._link = topics.link
        self._number = number
        self._hook = hook
        self._borrowed = updates is not None
        self._backlog = Updates() if updates is None else updates
        self._backlog.charge(topics)
        self._answer: Reply | Failure | None = None
        self._starting: list[Deferred[Reply]] = []
        self.id: str = base36(number)

    def whenStarted(self) -> Deferred[Reply]:
        """Fires with the answer to the subscribing request; fails like that call."""
        started: Deferred[Reply] = Deferred(self._starting.remove)
        if self._answer is None:
            self._starting.append(started)
        else:
            started.callback(self._answer)
        return started

    def unsubscribe(self) -> None:
        """Say ``U``; nothing more is delivered (``UM-14``)."""
        self._drop(UNSUBSCRIBED, None)

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Update:
        """Return the next update; at the end StopAsyncIteration, or what ended the subscription
        early.

        Cancelling the wait (a time-out) loses nothing: the update goes to whoever asks next.
        """
        return await self._backlog.take()

    # The link's side

    def accepted(self, answer: Reply) -> None:
        """The server has answered the subscription."""
        stored = Stored.read(answer.payload)
        if stored is None:
            self._started(answer)
        else:  # nobody will publish to it
            self.refused(Failure(NoSuchMethod(stored)))

    def never(self, error: Exception) -> Subscription:
        """Nothing could be asked for: end with ``error``."""
        self._conclude(LOST if isinstance(error, ConnectionClosed) else REFUSED, error)
        if not self._borrowed:
            self._backlog.end(error)
        self._started(Failure(error))
        return self

    def refused(self, failure: Failure) -> None:
        """The server has said no, or will not say anything."""
        lost = self._link.ended or failure.check(ConnectionClosed)
        self._drop(LOST if lost else REFUSED, failure.value)  # type: ignore[arg-type]
        self._started(failure)

    def _started(self, answer: Reply | Failure) -> None:
        self._answer = answer
        while self._starting:
            self._starting.pop(0).callback(answer)

    def _drop(self, reason: str, failure: Exception | None) -> None:
        link = self._link
        if self.reason is None and link.machine.opened:
            link.time()
            link.machine.unsubscribe(self._number)
            link.flush()
        self.end(reason, failure)

    def arrived(self, update: Update) -> object:
        """An update came; return what the hook did, which may be a coroutine."""
        if self._hook is not None:
            return self._hook(update)
        topics, link, nbytes = self._topics, self._link, weigh(update)
        fits = link.machine.memory.fits(nbytes)
        topics.waiting(nbytes)
        self._backlog.put((update,))
        waiting, most = len(self._backlog), SLOW_TIMES * link.factory.limits["backlog-bytes"]
        if (waiting and not fits) or (waiting > 1 and topics.waiting_bytes >= most):
            self._drop("slow", LimitExceeded("updates came faster than they were taken"))
        return None

    def end(self, reason: str, failure: Exception | None = None) -> None:
        """No update will come any more."""
        if not self._conclude(reason, failure):
            return
        self._topics.subscribed.pop(self._number, None)
        if not self._borrowed:
            self._backlog.end(failure)
        self._tellEnd()
        link = self._link
        link._guarded(link.protocol.subscriptionEnded, self, reason)

    def lost(self) -> None:
        """The connection is gone."""
        self.end(LOST, ConnectionClosed("the connection ended, and the subscription with it"))


class Topics:
    def __init__(self, link: Any) -> None:
        self.link: Any = link
        self.published: dict[int, Topic] = {}  # that the peer subscribed here
        self.subscribed: dict[int, Subscription] = {}
        self.slow: dict[Topic, None] = {}  # something waits for a subscriber that does not read
        self.waiting_bytes: int = 0  # of updates that nobody has taken yet

    def open(self, id: str) -> Topic:
        try:
            number = self.link.machine.open_topic(id)
        except ValueError as error:
            over = isinstance(error, LimitExceeded)
            raise Refused(str(error), (Code.UNAVAILABLE if over else Code.FORMAT).value) from None
        topic = self.published[number] = Topic(self, number, id)
        return topic

    def subscribe(
        self,
        request: Callable[[str], str],
        hook: Callable[[Update], object] | None,
        attachments: Sequence[Any],
        timeout: float | None,
        updates: Updates | None = None,
    ) -> Subscription:
        """Do what a session's ``subscribe`` does; ``updates`` outlive the session."""
        expect_functions(request, hook)
        link = self.link
        try:
            link.standing()
            number = link.machine.subscribe()
        except UNSENT as error:
            return Subscription(self, 0, hook, updates).never(error)
        subscription = Subscription(self, number, hook, updates)
        self.subscribed[number] = subscription
        try:
            answer = link.protocol.call(request(subscription.id), attachments, timeout)
        except Exception:
            subscription.unsubscribe()
            raise
        answer.addCallbacks(subscription.accepted, subscription.refused)
        return subscription

    def updated(self, event: TopicUpdated) -> None:
        link = self.link
        subscription = self.subscribed.get(event.topic)
        if subscription is not None:
            update = Update(event.payload, event.attachments)
            link._guarded(subscription.arrived, update)

    def closed(self, event: TopicClosed) -> None:
        subscription = self.subscribed.get(event.topic)
        if subscription is not None:
            subscription.end("closed")

    def unsubscribed(self, event: TopicUnsubscribed) -> None:
        topic = self.published.get(event.topic)
        if topic is not None:
            topic.end("unsubscribed")

    def drain(self) -> None:
        """Resume those that are slow, each in its turn: the peer has read everything (UM-21)."""
        for topic in list(self.slow):
            topic.drain()

    def lost(self) -> None:
        for topic in list(self.published.values()):
            topic.end("lost")
        for subscription in list(self.subscribed.values()):
            subscription.lost()

    def waiting(self, nbytes: int) -> None:
        self.waiting_bytes += nbytes
        memory = self.link.machine.memory
        memory.add(nbytes) if nbytes > 0 else memory.remove(-nbytes)
        self.look()

    def look(self) -> None:
        """Pause reading while nobody consumes updates, but not while we wait for an answer."""
        link = self.link
        share = self.waiting_bytes / link.factory.limits["backlog-bytes"]
        if share >= 1 and not link.machine.calls_pending:
            link.pauseReading("backlog")
        elif share <= 0.5 or link.machine.calls_pending:
            link.resumeReading("backlog")
