"""Topics and queues decide who gets a message.  This is pure: no sockets, no clock.

A destination that begins with ``topic/`` is a topic: each message goes to every subscriber whose
filter matches, and to nobody else (``MM-26``).  Any other destination is a queue once it has had a
subscriber or was named beforehand: each message goes to one of its consumers, in order, and is
taken back to its place when that consumer is lost before it has acknowledged (``MM-27``).  A
destination that is neither is no business of the broker.

What is bounded, and what happens at the bound (``MM-32``):

* a queue takes messages up to its limits; what comes above them is kept, but it is not *accepted*
  until there is room, so its ack is withheld and its sender stops;
* a topic never waits: a subscriber that has more messages waiting than its limit is told so and
  closed (``slow-consumer``), and the messages that waited for it are gone;
* subscriptions of one consumer, and queues in all: above the limit a subscription is refused.

Everything lives in memory.  What a consumer has not seen when the process ends is gone here; it is
in the sink, and senders send again what was not acknowledged.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, repeat
from operator import attrgetter, itemgetter
from typing import Final, Protocol

from ..core.limits import Limit, Limits
from .wire import (
    LIMIT_EXCEEDED,
    BadText,
    Filter,
    Properties,
    Unnumbered,
    encode_address,
    encode_unnumbered,
)

TOPIC_PREFIX: Final = "topic/"

NO_NOTES: Final[Mapping[str, str]] = {}

BAD_FILTER: Final = "bad-filter"
BAD_COMMAND: Final = "bad-command"
NOT_ALLOWED: Final = "not-allowed"
SLOW_CONSUMER: Final = "slow-consumer"

TURN_STEPS: Final = 100_000
"""The broker does this many steps in one call, of about 0.1 µs each; the rest waits for a turn."""

COUNTED_STEPS: Final = 2_000
"""Steps are counted after each message, or after this many of them."""

FILTERED_OCTETS: Final = 8
"""This many octets of properties are one step for each condition that searches in a text."""

MESSAGE_STEPS: Final = 20
"""Encoding one message, or delivering it from a queue, is this many steps."""

PUSH_STEPS: Final = 200
"""Writing to one consumer is this many steps, however little is written."""

LIMITS: Final = (
    Limit("subscriptions", 100, "subscriptions", "of one connection (MM-32)", 1),
    Limit("broker-queues", 1000, "queues", "of one server (MM-32)", 0),
    Limit("queue-messages", 10_000, "messages", "in one broker queue; above it acks wait", 1),
    Limit("queue-octets", 64 << 20, "octets", "in one broker queue; above it acks wait", 1),
    Limit("subscriber-messages", 10_000, "messages", "waiting for one topic subscriber (MM-32)", 1),
    Limit("subscriber-octets", 16 << 20, "octets", "waiting for one topic subscriber", 1),
    Limit("filter-conditions", 32, "conditions", "in one filter (MM-32)", 1),
)
"""The broker has these limits."""


class SubscriptionRefused(Exception):
    """A SUBSCRIBE or UNSUBSCRIBE cannot be; ``code`` and text are for the ERROR."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(slots=True, eq=False)
class Routed:
    """Is one message for consumers; it compares by its order of arrival.

    ``frames`` are what every consumer gets, but for the numbers (see ``encode_unnumbered``), and
    ``octets`` are the payload's.  ``notes`` are for annotating extensions (the type of ``dotnet``),
    ``weight`` is what a condition which searches in a text costs with this message, in steps.
    """

    order: int
    frames: tuple[Unnumbered, ...]
    octets: int
    properties: Properties
    notes: Mapping[str, str]
    weight: int

    def __lt__(self, other: Routed) -> bool:
        return self.order < other.order


Row = tuple[str, Properties, bytes, bytes, Mapping[str, str]]
"""A message as it was published: destination, properties, their text, payload and notes."""


class Consumer(Protocol):
    """Describes what the broker needs of a connection."""

    def room(self) -> int:
        """Return how many messages it accepts now."""

    def push(self, messages: Sequence[Routed]) -> Iterable[int] | None:
        """Write messages; their numbers, or None where nobody will acknowledge them."""

    def too_slow(self) -> None:
        """More waits for it than may: end it."""


class Subscriber:
    """Holds what the broker knows of one consumer.

    Attributes:
        filters: its subscriptions: destination → filter, or None for all messages.
        waiting: messages of topics that it has no space for yet.
        in_flight: number → message and the queue it goes back to (None: a topic's).
    """

    __slots__ = ("_counters", "consumer", "filters", "in_flight", "waiting", "waiting_octets")

    def __init__(self, consumer: Consumer, counters: dict[str, int]) -> None:
        self._counters = counters
        self.consumer = consumer
        self.filters: dict[str, Filter | None] = {}
        self.waiting: deque[Routed] = deque()
        self.waiting_octets = 0
        self.in_flight: dict[int, tuple[Routed, BrokerQueue | None]] = {}

    def wants(self, destination: str, properties: Properties) -> bool:
        """Does the filter for ``destination`` let a message with ``properties`` pass?"""
        condition = self.filters[destination]
        return condition is None or condition.matches(properties)

    def choose(
        self, destination: str, messages: list[Routed], chosen: list[Routed]
    ) -> Iterator[int]:
        """Add to ``chosen`` the ``messages`` to ``destination`` that its filter lets pass.

        Yield the number of steps done since the last time.
        """
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

    def push(self, messages: Sequence[Routed], queue: BrokerQueue | None) -> None:
        """Hand messages to the consumer, and remember them until it acknowledges."""
        self._counters["broker_delivered"] += len(messages)
        numbers = self.consumer.push(messages)
        if numbers is not None:
            self.in_flight.update(zip(numbers, zip(messages, repeat(queue)), strict=True))


class BrokerQueue:
    """Is one queue: messages in order, and the consumers that compete for them (``MM-27``).

    Attributes:
        consumers: its subscribers; the first is the next to be asked.
        octets: payload octets that wait here.
    """

    def __init__(self, name: str, messages_max: int, octets_max: int) -> None:
        self.name = name
        self.consumers: deque[Subscriber] = deque()
        self.octets = 0
        self._messages_max = messages_max
        self._octets_max = octets_max
        self._waiting: list[Routed] = []  # a heap by order of arrival
        self._unwanted: list[Routed] = []  # no consumer's filter lets them pass
        self._withheld: list[Callable[[], None]] = []

    def __len__(self) -> int:
        """Return how many messages wait here."""
        return len(self._waiting) + len(self._unwanted)

    @property
    def full(self) -> bool:
        """Nothing more is accepted now."""
        return len(self) > self._messages_max or self.octets > self._octets_max

    def append(self, message: Routed) -> None:
        """A message arrived, or came back: it waits at its place."""
        heapq.heappush(self._waiting, message)
        self.octets += message.octets

    def when_accepted(self, accepted: Callable[[], None]) -> None:
        """Call ``accepted`` once there is room."""
        self._withheld.append(accepted)

    def reconsider(self) -> None:
        """The consumers or their filters changed: messages that nobody wanted may be wanted."""
        if self._unwanted:
            self._waiting += self._unwanted
            self._waiting.sort(key=attrgetter("order"))  # what is sorted is a heap
            self._unwanted.clear()

    def dispatch(self, steps: int = TURN_STEPS) -> int:
        """Deliver messages to consumers while the next message's consumers have space.

        Returns what is left of ``steps``; below 1 there is more to do, perhaps.
        """
        if self.consumers and self._waiting:
            rooms = {subscriber: subscriber.consumer.room() for subscriber in self.consumers}
            given: dict[Subscriber, list[Routed]] = {}
            steps -= len(rooms)
            while self._waiting and steps > 0:
                message = self._waiting[0]
                steps -= MESSAGE_STEPS
                taker, wanted = None, False
                for subscriber in self.consumers:
                    condition = subscriber.filters[self.name]
                    if condition is not None:
                        steps -= len(condition.conditions) + message.weight * condition.searches
                    if subscriber.wants(self.name, message.properties):
                        wanted = True
                        if rooms[subscriber] > 0:
                            taker = subscriber
                            break
                if wanted and taker is None:
                    break  # it waits, and all behind it: order matters
                heapq.heappop(self._waiting)
                if taker is None:
                    self._unwanted.append(message)
                    continue
                self.octets -= message.octets
                rooms[taker] -= 1
                given.setdefault(taker, []).append(message)
                if len(self.consumers) > 1:
                    self.consumers.remove(taker)
                    self.consumers.append(taker)
            for subscriber, messages in given.items():
                subscriber.push(messages, self)
                steps -= PUSH_STEPS + len(messages)
        self._accept()
        return steps

    def _accept(self) -> None:
        if self._withheld and not self.full:
            withheld, self._withheld = self._withheld, []
            for accepted in withheld:
                accepted()


class Broker:
    """Holds all topics and queues of one server.

    Attributes:
        queues: by destination.
        counters: plain integers for metrics.
    """

    def __init__(self, limits: Limits | None = None, queues: Iterable[str] = ()) -> None:
        """``queues`` are destinations that are queues from the start.

        ValueError for one that is a topic.
        """
        limits = Limits.of(LIMITS) if limits is None else limits
        self._limits = limits
        self.queues: dict[str, BrokerQueue] = {}
        self._topics: dict[str, dict[Subscriber, None]] = {}
        self._subscribers: dict[Consumer, Subscriber] = {}
        self._changed: dict[BrokerQueue, None] = {}
        # What is not done yet: what was published, in order, and queues.
        self._publications: deque[Iterator[int]] = deque()
        self._undone: dict[BrokerQueue, None] = {}
        self._order = 0
        self.counters = {
            "broker_published": 0,
            "broker_delivered": 0,
            "broker_acknowledged": 0,
            "broker_returned": 0,
            "broker_lost": 0,
            "broker_slow_consumers": 0,
        }
        for name in queues:
            if name.startswith(TOPIC_PREFIX):
                raise ValueError(f"{name} is a topic, not a queue")
            self._make_queue(name)

    def _make_queue(self, name: str) -> BrokerQueue:
        limits = self._limits
        self.queues[name] = BrokerQueue(
            name, limits.integer("queue-messages"), limits.integer("queue-octets")
        )
        return self.queues[name]

    def snapshot(self) -> dict[str, int]:
        """Return figures for metrics: the counters, and what waits now."""
        return {
            **self.counters,
            "broker_queues": len(self.queues),
            "broker_waiting": sum(map(len, self.queues.values())),
            "broker_subscriptions": sum(len(s.filters) for s in self._subscribers.values()),
        }

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
            chosen = Filter.read(text, self._limits.integer("filter-conditions")) if text else None
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
            subscriber = self._subscribers[consumer] = Subscriber(consumer, self.counters)
        again = destination in subscriber.filters
        allowed = self._limits.integer("subscriptions")
        if not again and len(subscriber.filters) >= allowed:
            raise SubscriptionRefused(
                LIMIT_EXCEEDED, f"{destination}: subscriptions allows {allowed}"
            )
        if destination.startswith(TOPIC_PREFIX):
            subscriber.filters[destination] = chosen
            self._topics.setdefault(destination, {})[subscriber] = None
            return
        queue = self.queues.get(destination)
        if queue is None:
            allowed = self._limits.integer("broker-queues")
            if len(self.queues) >= allowed:
                raise SubscriptionRefused(
                    LIMIT_EXCEEDED, f"{destination}: broker-queues allows {allowed}"
                )
            queue = self._make_queue(destination)
        subscriber.filters[destination] = chosen
        if not again:
            queue.consumers.append(subscriber)
        self._changed[queue] = None

    def look(self) -> None:
        """Deliver queues whose subscriptions have changed to their consumers.

        Call it once after the commands of a read: searching what no filter let pass costs time, and
        a peer may subscribe again and again.
        """
        if self._changed:
            changed, self._changed = self._changed, {}
            for queue in changed:
                queue.reconsider()
                self._dispatch(queue)

    def unsubscribe(self, consumer: Consumer, destination: str) -> None:
        """Deliver no further messages to ``destination``; what is in flight stays in flight."""
        subscriber = self._subscribers.get(consumer)
        if subscriber is None or destination not in subscriber.filters:
            raise SubscriptionRefused(BAD_COMMAND, f"unsubscribe: not subscribed to {destination}")
        del subscriber.filters[destination]
        self._leave(subscriber, destination)

    def _leave(self, subscriber: Subscriber, destination: str) -> None:
        queue = self.queues.get(destination)
        if queue is not None:
            queue.consumers.remove(subscriber)
            self._changed[queue] = None
            return
        subscribers = self._topics[destination]
        del subscribers[subscriber]
        if not subscribers:
            del self._topics[destination]

    # ── messages ────────────────────────────────────────────────────────────────────────────────

    def concerns(self, destinations: Iterable[str]) -> bool:
        """Is one of these a topic or queue that the broker has?"""
        # Most servers have no subscriber at all, and most batches one destination.
        if not self.queues and not self._topics:
            return False
        names = set(destinations)
        return not (self.queues.keys().isdisjoint(names) and self._topics.keys().isdisjoint(names))

    def publish(
        self,
        destinations: Sequence[str],
        properties: Sequence[Properties],
        texts: Sequence[bytes],
        payloads: Sequence[bytes],
        notes: Sequence[Mapping[str, str]],
        accepted: Callable[[], None],
    ) -> None:
        """Messages of one sender arrived, in order; ``accepted()`` is called when all are accepted.

        All columns have a value a message, but ``notes`` may be empty where there are none. That is
        at once, unless one of them went to a queue that is full, or the broker is ``unfinished``:
        what is published waits until what was published before is done.
        """
        if not notes:
            notes = [NO_NOTES] * len(payloads)
        rows = zip(destinations, properties, texts, payloads, notes, strict=True)
        self._publications.append(self._publish(rows, accepted))
        if len(self._publications) == 1:
            self.go_on()

    @property
    def unfinished(self) -> bool:
        """Whether more is left than one turn may do: call :meth:`go_on` in the next."""
        return bool(self._publications or self._undone)

    def go_on(self, steps: int = TURN_STEPS) -> None:
        """Do what is not done yet, as far as ``steps`` go (NB-07)."""
        while steps > 0 and self.unfinished:
            if self._undone:
                queue = next(iter(self._undone))
                del self._undone[queue]
                steps = self._dispatch(queue, steps)
                continue
            taken = next(self._publications[0], None)
            if taken is None:
                self._publications.popleft()
            else:
                steps -= taken

    def _dispatch(self, queue: BrokerQueue, steps: int = TURN_STEPS) -> int:
        steps = queue.dispatch(steps)
        if steps <= 0:
            self._undone[queue] = None
        return steps

    def _publish(self, rows: Iterable[Row], accepted: Callable[[], None]) -> Iterator[int]:
        """Do what :meth:`publish` says; yield the number of steps done."""
        queues: dict[BrokerQueue, None] = {}
        topics: defaultdict[str, list[Routed]] = defaultdict(list)
        for destination, run in groupby(rows, itemgetter(0)):
            queue = self.queues.get(destination)
            if queue is None and destination not in self._topics:
                yield MESSAGE_STEPS
                continue
            routed = topics[destination] if queue is None else queue
            if queue is not None:
                queues[queue] = None
            yield from self._route(run, routed)
        self._undone.update(queues)
        yield 0  # they come first
        yield from self._spread(topics)
        full = [queue for queue in queues if queue.full]
        missing = len(full) + 1

        def one_accepted() -> None:
            nonlocal missing
            missing -= 1
            if not missing:
                accepted()

        for queue in full:
            queue.when_accepted(one_accepted)
        one_accepted()

    def _route(self, rows: Iterable[Row], to: list[Routed] | BrokerQueue) -> Iterator[int]:
        """Encode messages for all their receivers; yield the number of steps done."""
        last, address, weight, steps = None, b"", 0, 0
        for destination, properties, text, payload, notes in rows:
            if text != last:
                last, address = text, encode_address(destination, text)
                weight = len(text) // FILTERED_OCTETS
            self._order += 1
            frames = encode_unnumbered(address, payload)
            to.append(Routed(self._order, frames, len(payload), properties, notes, weight))
            self.counters["broker_published"] += 1
            steps += MESSAGE_STEPS
            if steps >= COUNTED_STEPS:
                yield steps
                steps = 0
        yield steps

    def _spread(self, topics: Mapping[str, list[Routed]]) -> Iterator[int]:
        """Deliver messages to the subscribers of their topics; yield the number of steps done."""
        subscribers = chain.from_iterable(self._topics.get(name, ()) for name in topics)
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
        """Messages of topics for one subscriber, as far as it has room; the rest waits."""
        given = 0
        if not subscriber.waiting:
            consumer = subscriber.consumer
            while given < len(messages) and (room := consumer.room()) > 0:
                subscriber.push(messages[given : given + room], None)
                given += room
        if given < len(messages):
            rest = messages[given:]
            subscriber.waiting.extend(rest)
            subscriber.waiting_octets += sum([message.octets for message in rest])
            self._pump(subscriber)

    def _pump(self, subscriber: Subscriber) -> None:
        """Deliver what waits of topics, as far as the consumer has space."""
        waiting = subscriber.waiting
        while waiting and (room := subscriber.consumer.room()) > 0:
            messages = [waiting.popleft() for _ in range(min(room, len(waiting)))]
            subscriber.waiting_octets -= sum([message.octets for message in messages])
            subscriber.push(messages, None)
        if (
            len(waiting) > self._limits["subscriber-messages"]
            or subscriber.waiting_octets > self._limits["subscriber-octets"]
        ):
            self.counters["broker_slow_consumers"] += 1
            consumer = subscriber.consumer
            self.lost(consumer)
            consumer.too_slow()

    # ── what consumers say ──────────────────────────────────────────────────────────────────────

    def acknowledged(self, consumer: Consumer, numbers: Iterable[int]) -> None:
        """Note that ``consumer`` acknowledged these: they are done, and it has space again."""
        subscriber = self._subscribers.get(consumer)
        if subscriber is None:
            return
        for number in numbers:
            if subscriber.in_flight.pop(number, None) is not None:
                self.counters["broker_acknowledged"] += 1
        self.ready(consumer)

    def ready(self, consumer: Consumer) -> None:
        """Deliver what waits, because ``consumer`` may have space."""
        subscriber = self._subscribers.get(consumer)
        if subscriber is None:
            return
        self._pump(subscriber)
        for destination in list(subscriber.filters):
            queue = self.queues.get(destination)
            if queue is not None:
                self._dispatch(queue)

    def lost(self, consumer: Consumer) -> None:
        """``consumer`` is gone: what it had of queues, unacknowledged, goes back (``MM-27``)."""
        subscriber = self._subscribers.pop(consumer, None)
        if subscriber is None:
            return
        returned: dict[BrokerQueue, None] = {}
        for message, queue in subscriber.in_flight.values():
            if queue is None:
                self.counters["broker_lost"] += 1
            else:
                queue.append(message)
                returned[queue] = None
                self.counters["broker_returned"] += 1
        self.counters["broker_lost"] += len(subscriber.waiting)
        subscriber.waiting.clear()
        subscriber.in_flight.clear()
        destinations, subscriber.filters = list(subscriber.filters), {}
        for destination in destinations:
            self._leave(subscriber, destination)
        self._changed.update(returned)
        self.look()
