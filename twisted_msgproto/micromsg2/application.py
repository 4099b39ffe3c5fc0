"""Topics and queues decide who gets a message.  This is pure: no sockets, no clock.

A destination that begins with ``topic/`` is a topic: each message goes to every subscriber whose
filter matches (``MM-26``).  Any other destination is a queue once it has had a subscriber or was
named beforehand: each message goes to one consumer, in order, and is taken back to its place when
that consumer is lost before it has acknowledged (``MM-27``).

At the bounds (``MM-32``) a queue withholds acks until there is room.  A topic never waits: a
subscriber that has too much waiting is closed (``slow-consumer``).  A subscription above the limit
is refused.  Topics live in memory: what was not seen when the process ends is gone.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from operator import attrgetter, itemgetter
from sys import getsizeof
from typing import Final, Protocol

from ..core.broker import DEAD, TURN_STEPS, QueuedMessage, QueueName, TooManyQueues
from ..core.broker import LIMITS as QUEUE_LIMITS
from ..core.limits import Limit, Limits
from ..core.session_memory import SESSION_LIMIT, MemoryShare, SessionMemory
from ..net.broker import ServedBroker
from .queued_messages import (
    FILTERED_BYTES,
    NO_NOTES,
    Glance,
    Routed,
    routed,
    weight_of,
)
from .terms import BAD_COMMAND
from .wire.frames import LIMIT_EXCEEDED, encode_address, encode_unnumbered
from .wire.texts import NO_PROPERTIES, BadText, Filter, Properties

SPACE: Final = "micromsg2"
"""The queues of a MicroMsg2 server are in this space, unless it shares those of another server."""

TOPIC_PREFIX: Final = "topic/"

BAD_FILTER: Final = "bad-filter"
NOT_ALLOWED: Final = "not-allowed"
SLOW_CONSUMER: Final = "slow-consumer"

COUNTED_STEPS: Final = 2_000
"""Steps are counted after each message, or after this many of them."""

MESSAGE_STEPS: Final = 20

SUBSCRIPTION_BYTES: Final = 512
"""A subscription weighs this many bytes beside its destination and its filter."""

PLACE_BYTES: Final = 8
"""A subscriber keeps this for a message that waits for it; the message itself is shared."""

PUSH_STEPS: Final = 200

LIMITS: Final = (
    Limit("subscriptions", 100, "subscriptions", "of one connection (MM-32)", 1),
    *QUEUE_LIMITS,
    Limit("subscriber-messages", 10_000, "messages", "waiting for one topic subscriber (MM-32)", 1),
    Limit("subscriber-bytes", 16 << 20, "bytes", "waiting for one topic subscriber", 1),
)


class SubscriptionRefused(Exception):
    """A SUBSCRIBE or UNSUBSCRIBE cannot be; ``code`` and text are for the ERROR."""

    def __init__(self, code: str, text: str, *, crowded: bool = False) -> None:
        super().__init__(text)
        self.code = code
        self.crowded = crowded  # all sessions keep too much, and this one more than its share


Row = tuple[str, Properties, bytes, bytes, Mapping[str, str]]
"""A message as it was published: destination, properties, their text, payload and notes."""


class Consumer(Protocol):
    def room(self) -> int: ...

    def push(self, messages: Sequence[Routed]) -> Iterable[int] | None:
        """Write messages; their numbers, or None where nobody will acknowledge them."""

    def owing(self) -> None:
        """It has messages of queues to acknowledge, from now on."""

    def too_slow(self) -> None:
        """More waits for it than may: end it."""

    def failed(self, error: Exception) -> None: ...


def _weight(destination: str, chosen: Filter | None) -> int:
    nbytes = SUBSCRIPTION_BYTES + getsizeof(destination)
    return nbytes if chosen is None else nbytes + chosen.weight


class Subscriber:
    """What the broker knows of one consumer; to queues it is the consumer."""

    __slots__ = ("consumer", "filters", "in_flight", "kept", "waiting", "waiting_bytes")

    def __init__(self, consumer: Consumer, every: SessionMemory) -> None:
        self.kept: MemoryShare = MemoryShare(every)  # for subscriptions and entries of ``waiting``
        self.consumer: Consumer = consumer
        self.filters: dict[str, Filter | None] = {}  # by destination; None: all messages
        self.waiting: deque[Routed] = deque()  # for space, of topics
        self.waiting_bytes: int = 0
        self.in_flight: dict[int, int] = {}  # number → message id, of queues

    def choose(
        self, destination: str, messages: list[Routed], chosen: list[Routed]
    ) -> Iterator[int]:
        """Add to ``chosen`` what its filter lets pass; yield the steps since the last time."""
        condition = self.filters.get(destination)
        if condition is None:
            if destination in self.filters:
                chosen += messages
                yield len(messages)
            return
        checks, searches, steps = 1 + len(condition.conditions), condition.searches, 0
        for message in messages:
            if condition.matches(message.properties):
                chosen.append(message)
            steps += checks + message.weight * searches
            if steps >= COUNTED_STEPS:
                yield steps
                steps = 0
        yield steps

    def acknowledged(self, numbers: Iterable[int]) -> list[int]:
        """Forget these numbers; return the ids of messages of queues among them."""
        flights = self.in_flight
        return [flights.pop(number) for number in numbers if number in flights]

    # As the consumer of queues.

    def room(self) -> int:
        return self.consumer.room()

    def push(self, queue: QueueName, messages: Sequence[QueuedMessage]) -> bool:
        """Write messages of a queue; False if nobody is going to acknowledge them."""
        # All are encoded before anything is written of them.
        numbers = self.consumer.push([routed(message, queue.name) for message in messages])
        if numbers is None:
            return False
        self.in_flight.update(
            zip(numbers, [message.message_id for message in messages], strict=True)
        )
        self.consumer.owing()
        return True

    def failed(self, error: Exception) -> None:
        self.consumer.failed(error)


class Broker:
    """All topics of one server, and knows its queues."""

    def __init__(
        self,
        queues: ServedBroker,
        limits: Limits | None = None,
        kept: Iterable[str] = (),
        space: str = SPACE,
        every: SessionMemory | None = None,
    ) -> None:
        """``kept`` are queues from the start; ValueError for topics and names of dead letters."""
        limits = Limits.of(LIMITS) if limits is None else limits
        self._limits = limits
        self._served = queues
        self._space = space
        self._every = SessionMemory() if every is None else every
        self._waiting = MemoryShare(self._every)  # messages of topics, each once
        self._kept = list(kept)
        for name in self._kept:
            if name.startswith(TOPIC_PREFIX):
                raise ValueError(f"{name} is a topic, not a queue")
            if name.endswith(DEAD):
                raise ValueError(f"{name} has the name of a queue's dead letters")
        self.queues: Mapping[str, QueueName] = queues.names(space)
        self._glance = Glance()
        self.topics: dict[str, dict[Subscriber, None]] = {}  # those that have subscribers
        self._subscribers: dict[Consumer, Subscriber] = {}
        # What was published to topics and is not done yet, in order.
        self._publications: deque[Iterator[int]] = deque()
        self._order = 0

    def declare(self) -> None:
        """Make the queues that were named beforehand; TooManyQueues if they are too many."""
        for name in self._kept:
            self._served.store.declare(QueueName(self._space, name), self._served.now(), kept=True)

    # ── subscriptions (MM-25) ───────────────────────────────────────────────────────────────────

    def obey(self, consumer: Consumer, command: str, parameters: Mapping[str, str]) -> None:
        """Follow a ``subscribe`` or ``unsubscribe`` of ``consumer``; raises SubscriptionRefused."""
        destination = parameters.get("destination", "")
        if not destination:
            raise SubscriptionRefused(BAD_COMMAND, f"{command}: destination is missing")
        if command == "unsubscribe":
            self.unsubscribe(consumer, destination)
            return
        try:
            # Refuses a destination that no message could have.
            encode_address(destination)
            text = parameters.get("filter", "")
            chosen = Filter.read(text) if text else None
        except BadText as error:
            raise SubscriptionRefused(BAD_FILTER, f"{destination}: {error}") from None
        self.subscribe(consumer, destination, chosen)

    def subscribe(self, consumer: Consumer, destination: str, chosen: Filter | None = None) -> None:
        """Let ``consumer`` get messages to ``destination`` that ``chosen`` lets pass (``MM-25``).

        A second subscription to the same destination replaces the filter.  :meth:`look` delivers
        messages that wait in a queue.  Raises SubscriptionRefused above a limit.
        """
        subscriber = self._subscribers.get(consumer)
        if subscriber is None:
            subscriber = Subscriber(consumer, self._every)
            self._subscribers[consumer] = subscriber
        allowed, filters = self._limits.integer("subscriptions"), subscriber.filters
        if destination not in filters and len(filters) >= allowed:
            raise SubscriptionRefused(
                LIMIT_EXCEEDED, f"{destination}: subscriptions allows {allowed}"
            )
        weight = _weight(destination, chosen)
        if destination in filters:
            weight -= _weight(destination, filters[destination])
        if weight > 0 and not subscriber.kept.fits(weight):
            text = f"{destination}: {SESSION_LIMIT} allows no more"
            raise SubscriptionRefused(LIMIT_EXCEEDED, text, crowded=True)
        if destination.startswith(TOPIC_PREFIX):
            self.topics.setdefault(destination, {})[subscriber] = None
        else:
            self._compete(subscriber, destination, chosen)
        filters[destination] = chosen
        subscriber.kept.add(weight)

    def _compete(self, subscriber: Subscriber, destination: str, chosen: Filter | None) -> None:
        name = QueueName(self._space, destination)
        try:
            if chosen is None:
                self._served.machine.subscribe(subscriber, name, self._served.now())
                return
            condition, checks, searches = chosen, len(chosen.conditions), chosen.searches
            read, reading = self._glance.properties, self._glance.steps
            self._served.machine.subscribe(
                subscriber,
                name,
                self._served.now(),
                lambda message: condition.matches(read(message)),
                lambda message: (
                    checks + reading(message) + searches * (len(message.envelope) // FILTERED_BYTES)
                ),
            )
        except TooManyQueues as error:
            raise SubscriptionRefused(LIMIT_EXCEEDED, str(error)) from None

    def look(self) -> None:
        """Deliver from queues whose subscriptions have changed.

        Call it once after the commands of a read: searching what no filter let pass costs time, and
        a peer may subscribe again and again.
        """
        self._served.deliver()

    def unsubscribe(self, consumer: Consumer, destination: str) -> None:
        """Deliver no further messages to ``destination``; what is in flight stays in flight."""
        subscriber = self._subscribers.get(consumer)
        if subscriber is None or destination not in subscriber.filters:
            raise SubscriptionRefused(BAD_COMMAND, f"unsubscribe: not subscribed to {destination}")
        subscriber.kept.remove(_weight(destination, subscriber.filters.pop(destination)))
        if destination in self.topics:
            self._leave(subscriber, destination)
        else:
            name = QueueName(self._space, destination)
            self._served.machine.unsubscribe(subscriber, name, self._served.now())

    def _leave(self, subscriber: Subscriber, topic: str) -> None:
        subscribers = self.topics[topic]
        del subscribers[subscriber]
        if not subscribers:
            del self.topics[topic]

    # ── messages ────────────────────────────────────────────────────────────────────────────────

    def publish(
        self,
        destinations: Sequence[str],
        properties: Sequence[Properties],
        texts: Sequence[bytes],
        payloads: Sequence[bytes],
        notes: Sequence[Mapping[str, str]],
        published: Callable[[], None],
    ) -> None:
        """Deliver messages of one sender that are safe, in order, to the subscribers of topics.

        All columns have a value a message, but ``notes`` may be empty where there are none.
        ``published()`` is called when that is done: at once, unless the broker is ``unfinished``,
        because what is published waits until what was published before is done.
        """
        if not notes:
            notes = [NO_NOTES] * len(payloads)
        rows = zip(destinations, properties, texts, payloads, notes, strict=True)
        self._publications.append(self._publish(rows, published))
        if len(self._publications) == 1:
            self.go_on()

    def enqueue(
        self,
        destinations: Sequence[str],
        payloads: Sequence[bytes],
        envelopes: Sequence[bytes | None],
        came: Callable[[], None],
        durable: Callable[[], None],
        accepted: Callable[[], None],
    ) -> None:
        """Deliver messages of one sender that are safe, in order, to the consumers of queues.

        ``envelopes`` are None where a message is not for a queue.  ``came()`` is called when they
        are in their queues, ``durable()`` when these are so, and ``accepted()`` when none of them
        is full.  A durable broker has them from the log, and they are not published twice.
        """
        rows = []
        names: dict[str, QueueName] = {}
        for destination, payload, envelope in zip(destinations, payloads, envelopes, strict=True):
            if envelope is not None:
                name = names.get(destination)
                if name is None:
                    name = names[destination] = QueueName(self._space, destination)
                rows.append((name, envelope, payload))
        if not self._served.durable:
            self._served.publish(rows)
        self._served.when_accepted(names.values(), accepted, came=came, durable=durable)

    @property
    def unfinished(self) -> bool:
        """Whether more is left than one turn may do: call :meth:`go_on` in the next."""
        return bool(self._publications)

    def go_on(self, steps: int = TURN_STEPS) -> None:
        """Do what is not done yet, as far as ``steps`` go."""
        while steps > 0 and self._publications:
            taken = next(self._publications[0], None)
            if taken is None:
                self._publications.popleft()
            else:
                steps -= taken

    def _publish(self, rows: Iterable[Row], published: Callable[[], None]) -> Iterator[int]:
        topics: defaultdict[str, list[Routed]] = defaultdict(list)
        for destination, run in groupby(rows, itemgetter(0)):
            if destination in self.topics:
                yield from self._route(run, topics[destination])
            else:
                yield MESSAGE_STEPS
        yield from self._spread(topics)
        for message in chain.from_iterable(topics.values()):
            message.properties = NO_PROPERTIES  # those that wait need them no more
        published()

    def _route(self, rows: Iterable[Row], to: list[Routed]) -> Iterator[int]:
        last, address, weight, steps = None, b"", 0, 0
        for destination, properties, text, payload, notes in rows:
            if text != last:
                last, address = text, encode_address(destination, text)
                weight = len(text) // FILTERED_BYTES
            self._order += 1
            frames = encode_unnumbered(address, payload)
            nbytes = weight_of(address, payload, notes)
            to.append(Routed(self._order, frames, nbytes, properties, notes, weight))
            steps += MESSAGE_STEPS
            if steps >= COUNTED_STEPS:
                yield steps
                steps = 0
        yield steps

    def _spread(self, topics: Mapping[str, list[Routed]]) -> Iterator[int]:
        subscribers = chain.from_iterable(self.topics.get(name, ()) for name in topics)
        concerned = dict.fromkeys(subscribers)
        yield len(concerned)
        for subscriber in concerned:
            chosen: list[Routed] = []
            names = [name for name in subscriber.filters if name in topics]
            for name in names:
                yield from subscriber.choose(name, topics[name], chosen)
            if len(names) > 1:
                chosen.sort(key=attrgetter("order"))
            if chosen and subscriber.filters:  # else it is lost
                self._hand_on(subscriber, chosen)
            yield PUSH_STEPS + len(chosen)

    def _hand_on(self, subscriber: Subscriber, messages: list[Routed]) -> None:
        given = 0
        try:
            if not subscriber.waiting:
                consumer = subscriber.consumer
                while given < len(messages) and (room := consumer.room()) > 0:
                    consumer.push(messages[given : given + room])
                    given += room
            if given < len(messages) and subscriber.filters:  # else it is lost
                self._wait(subscriber, messages[given:])
                self._pump(subscriber)
                if self._too_much_for_all(subscriber):
                    self._drop(subscriber)
        except Exception as error:  # a vendor's extension cannot say it: that harms nobody else
            self._end(subscriber, error)

    def _too_much_for_all(self, subscriber: Subscriber) -> bool:
        every = self._every
        return (
            every.nbytes > every.limit
            and bool(subscriber.waiting)
            and not subscriber.kept.fits(subscriber.waiting_bytes)
        )

    def _wait(self, subscriber: Subscriber, messages: list[Routed]) -> None:
        nbytes, new = 0, 0
        for message in messages:
            nbytes += message.nbytes
            if not message.waiters:
                new += message.nbytes
            message.waiters += 1
        subscriber.waiting.extend(messages)
        subscriber.waiting_bytes += nbytes
        subscriber.kept.add(PLACE_BYTES * len(messages))
        self._waiting.add(new)

    def _waited(self, subscriber: Subscriber, messages: Collection[Routed]) -> None:
        nbytes, done = 0, 0
        for message in messages:
            nbytes += message.nbytes
            message.waiters -= 1
            if not message.waiters:
                done += message.nbytes
        subscriber.waiting_bytes -= nbytes
        subscriber.kept.remove(PLACE_BYTES * len(messages))
        self._waiting.remove(done)

    def _end(self, subscriber: Subscriber, error: Exception) -> None:
        self.lost(subscriber.consumer)
        subscriber.consumer.failed(error)

    def _pump(self, subscriber: Subscriber) -> None:
        waiting = subscriber.waiting
        while waiting and (room := subscriber.consumer.room()) > 0:
            messages = [waiting.popleft() for _ in range(min(room, len(waiting)))]
            self._waited(subscriber, messages)
            subscriber.consumer.push(messages)
        if (
            len(waiting) > self._limits["subscriber-messages"]
            or subscriber.waiting_bytes > self._limits["subscriber-bytes"]
        ):
            self._drop(subscriber)

    def _drop(self, subscriber: Subscriber) -> None:
        consumer = subscriber.consumer
        self.lost(consumer)
        consumer.too_slow()

    # ── what consumers say ──────────────────────────────────────────────────────────────────────

    def owes(self, consumer: Consumer) -> bool:
        """Return whether ``consumer`` has messages of queues that it has not acknowledged."""
        subscriber = self._subscribers.get(consumer)
        return subscriber is not None and bool(subscriber.in_flight)

    def acknowledged(self, consumer: Consumer, numbers: Iterable[int]) -> None:
        """Note that ``consumer`` acknowledged these: they are done, and it has space again."""
        subscriber = self._subscribers.get(consumer)
        if subscriber is None:
            return
        message_ids = subscriber.acknowledged(numbers)
        if message_ids:
            self._served.machine.settle(subscriber, message_ids)
        self.ready(consumer)

    def ready(self, consumer: Consumer) -> None:
        """Deliver what waits, because ``consumer`` may have space."""
        subscriber = self._subscribers.get(consumer)
        if subscriber is None:
            return
        try:
            self._pump(subscriber)
        except Exception as error:
            self._end(subscriber, error)
            return
        self._served.machine.ready(subscriber)

    def lost(self, consumer: Consumer, *, orderly: bool = False) -> None:
        """``consumer`` is gone: what it had of queues, unacknowledged, goes back (``MM-27``).

        ``orderly``: that was not the consumer's doing, so nothing of it counts as a try.
        """
        subscriber = self._subscribers.pop(consumer, None)
        if subscriber is None:
            return
        self._waited(subscriber, subscriber.waiting)
        subscriber.waiting.clear()
        subscriber.in_flight.clear()
        subscriber.kept.clear()
        destinations, subscriber.filters = list(subscriber.filters), {}
        for destination in destinations:
            if destination in self.topics:
                self._leave(subscriber, destination)
        self._served.machine.gone(subscriber, self._served.now(), orderly=orderly)
