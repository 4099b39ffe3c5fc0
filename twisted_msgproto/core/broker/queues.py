"""One queue of the broker: what waits, what is in memory, who consumes it, and whose turn it is."""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from .message_table import LARGE, SMALL, MessageTable
from .terms import DEAD, Consumer, Figures, QueuedMessage, QueueName, Waiting, second

MESSAGE_STEPS: Final = 20

PUSH_STEPS: Final = 200
"""Calling one consumer is this many steps, however little it gets."""

SERVED_MAX: Final = 512
"""A queue delivers at most this many messages before the next queue has its turn."""

SHARED_MAX: Final = 16
"""A consumer of several queues gets at most this many messages of one before the next."""

STEPS_MAX: Final = 20_000
"""Planning for filters ends after this many steps; the rest has another turn."""


class Row(NamedTuple):
    """A message that waits: its weight in bytes, and the second when it arrived."""

    message_id: int
    weight: int
    second: int

    @classmethod
    def of(cls, message: QueuedMessage) -> Row:
        return cls(message.message_id, message.nbytes, second(message.arrived))


class Rows(NamedTuple):
    """The same columns of many messages, in order."""

    message_ids: list[int]
    weights: list[int]
    seconds: list[int]


def rows() -> MessageTable:
    """Return what keeps rows, in 12 bytes each."""
    return MessageTable(LARGE + LARGE)


@dataclass(slots=True, eq=False)
class Memory:
    """Bytes of all messages in memory, of all queues of a broker."""

    limit: int  # see the limit ``broker-memory-bytes``
    used: int = 0  # bytes of messages in memory
    expected: int = 0  # bytes of messages that are being read back

    @property
    def has_room(self) -> bool:
        """Return whether something may be read back: one message may be above the limit."""
        return self.used + self.expected <= self.limit


class Wish(NamedTuple):
    """``wants`` is None: everything; ``cost`` of a call in steps of about 0.1 µs, None: one."""

    wants: Callable[[QueuedMessage], bool] | None = None
    cost: Callable[[QueuedMessage], int] | None = None


Batch = tuple[int, "BrokerQueue"]
"""What all messages of one push have in common: the number of the push, and their queue."""

Released = list[tuple[Batch, list[int]]]
"""The ids of messages that a consumer holds no longer, in order, by batch."""


@dataclass(slots=True, eq=False, repr=False)
class Subscriber:
    consumer: Consumer
    # What it consumes; the queue that had its last turn longest ago stands first.
    queues: OrderedDict[BrokerQueue, Wish] = field(default_factory=OrderedDict)
    # The batches of all messages that it has to acknowledge, by id, in order of delivery.
    unsettled: dict[int, Batch] = field(default_factory=dict)
    # The batch number and id of the last delivery that it acknowledged or rejected.
    latest: tuple[int, int] = (-1, -1)

    def seen(self) -> set[int]:
        """Return the ids that it has probably looked at.

        Delivered before the latest one that it acknowledged or rejected, and the one after: it was
        busy with that.  What is behind was fetched ahead.
        """
        message_ids = set()
        for message_id, batch in self.unsettled.items():
            message_ids.add(message_id)
            if (batch[0], message_id) > self.latest:
                break
        return message_ids


@dataclass(slots=True, eq=False, repr=False)
class BrokerQueue:
    name: QueueName
    memory: Memory
    used: float  # when somebody published to it or left it last
    kept: bool = False  # it stays when nobody uses it
    waiting: MessageTable = field(default_factory=rows)
    passed: MessageTable = field(default_factory=rows)  # what waits, and no consumer wants
    in_flight: int = 0  # messages that are with consumers
    away: MessageTable = field(default_factory=rows)  # those of them that are not in memory
    # What waits, and came back when it was not in memory.
    returned: MessageTable = field(default_factory=rows)
    # Ids that were read back; some may have been delivered since.
    read: array[int] = field(default_factory=lambda: array("q"))
    nbytes: int = 0  # the weight of everything, waiting or in flight
    # By id, those that are in memory, waiting or in flight, and their weight.
    messages: dict[int, QueuedMessage] = field(default_factory=dict)
    in_memory: int = 0
    tries: MessageTable = field(default_factory=lambda: MessageTable(SMALL))
    # Messages that are delivered one at a time, because a push with them has failed.
    alone: set[int] = field(default_factory=set)
    # What is being read, and its weight when it was asked for; None: nothing is.
    loading: set[int] | None = None
    expected: int = 0
    subscribers: dict[Subscriber, Wish] = field(default_factory=dict)
    filters: int = 0  # this many of them do not want everything
    # Those of them that may have room, in turn.
    takers: OrderedDict[Subscriber, None] = field(default_factory=OrderedDict)
    # What to call when there is room again.
    withheld: dict[Callable[[], None], None] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.waiting) + len(self.passed) + self.in_flight

    @property
    def for_dead(self) -> bool:
        return self.name.name.endswith(DEAD)

    @property
    def idle(self) -> bool:
        return not (self.kept or self.subscribers or self.withheld or len(self))

    @property
    def first(self) -> Row | None:
        firsts = [row for row in (self.passed.first, self.waiting.first) if row is not None]
        return Row(*min(firsts)) if firsts else None

    # ── messages ──────────────────────────────────────────────────────────────────────────────────

    def may_keep(self, nbytes: int) -> bool:
        """A queue may have as much in memory as is free: something is left for the others."""
        memory = self.memory
        return self.in_memory + nbytes <= memory.limit - memory.used - memory.expected

    def keep(self, messages: Sequence[QueuedMessage]) -> None:
        kept, nbytes = self.messages, 0
        for message in messages:
            kept[message.message_id] = message
            nbytes += message.nbytes
        self.in_memory += nbytes
        self.memory.used += nbytes

    def expect(self, nbytes: int) -> None:
        """Count what is being read back for it now; 0: nothing is any more."""
        self.memory.expected += nbytes - self.expected
        self.expected = nbytes

    def drop(self, message_ids: Iterable[int]) -> int:
        """Hold these in memory no longer; return what they weighed there."""
        remove, nbytes = self.messages.pop, 0
        for message_id in message_ids:
            message = remove(message_id, None)
            if message is not None:
                nbytes += message.nbytes
        self.in_memory -= nbytes
        self.memory.used -= nbytes
        return nbytes

    def send_away(self, messages: Sequence[QueuedMessage]) -> None:
        """Hold these messages in flight in memory no longer: if they return, they are read back."""
        self.drop([message.message_id for message in messages])
        for message in messages:
            self.away.insert(*Row.of(message))

    def drop_waiting(self, messages: Sequence[QueuedMessage]) -> None:
        """Hold these waiting messages in memory no longer: they are read back in their turn."""
        self.drop([message.message_id for message in messages])
        for message in messages:
            if message.again:
                self.returned.insert(*Row.of(message))

    def keep_read(self, messages: Sequence[QueuedMessage]) -> None:
        self.keep(messages)
        here = [message_id for message_id in self.read if message_id in self.messages]
        self.read = array("q", [*here, *(message.message_id for message in messages)])

    def drop_read(self) -> None:
        """Hold what was read back in memory no longer, as far as it still waits."""
        messages = [
            self.messages[message_id] for message_id in self.read if message_id in self.messages
        ]
        self.drop_waiting([message for message in messages if self.waiting.get(message.message_id)])
        self.read = array("q")

    def landed(self, message_ids: Sequence[int]) -> int:
        """Forget these messages, which were in flight; return what they weighed."""
        nbytes = self.drop(message_ids)
        if self.away.count:
            for message_id in message_ids:
                row = self.away.pop(message_id)
                nbytes += 0 if row is None else Row(*row).weight
        return nbytes

    def ready_run(self, most: int) -> list[QueuedMessage]:
        messages = map(self.messages.get, self.waiting.head(most)[0])
        run: list[QueuedMessage] = []
        for message in messages:
            if message is None or (run and message.message_id in self.alone):
                break
            run.append(message)
            if message.message_id in self.alone:
                break
        return run

    def take_oldest(self, most: int) -> Rows:
        passed, waiting = self.passed.first, self.waiting.first
        if passed is None or waiting is None:
            return Rows(*(self.waiting if passed is None else self.passed).take(most))
        return Rows(*(self.passed if passed < waiting else self.waiting).take(1))

    def reconsider(self) -> None:
        """Let what nobody wanted wait again, because somebody may want it now."""
        if self.passed:
            self.waiting.prepend(self.passed)

    # ── consumers ───────────────────────────────────────────────────────────────────────────────

    def join(self, subscriber: Subscriber, wish: Wish) -> None:
        if subscriber in self.subscribers:
            self.leave(subscriber)
        self.filters += wish.wants is not None
        self.subscribers[subscriber] = wish
        subscriber.queues[self] = wish
        self.takers[subscriber] = None
        self.reconsider()

    def leave(self, subscriber: Subscriber) -> None:
        self.filters -= self.subscribers.pop(subscriber).wants is not None
        del subscriber.queues[self]
        self.takers.pop(subscriber, None)

    # ── people ──────────────────────────────────────────────────────────────────────────────────

    def peek(self, count: int) -> list[Waiting]:
        found: list[tuple[int, ...]] = []
        for message_ids in (self.passed, self.waiting):
            found += zip(*message_ids.head(count), strict=True)
        return [
            Waiting(*Row(*row), self.tries.number(row[0]), self.messages.get(row[0]))
            for row in sorted(found)[:count]
        ]

    def figures(self) -> Figures:
        first = self.first
        return Figures(
            name=self.name,
            waiting=len(self) - self.in_flight,
            in_flight=self.in_flight,
            nbytes=self.nbytes,
            consumers=len(self.subscribers),
            oldest=None if first is None else first.second,
            tries=self.tries.largest,
        )


# ── whose turn it is ──────────────────────────────────────────────────────────────────────────────

# Messages are planned for the consumers of a queue before any of them is called.  Consumers have
# their turns one after the other, and each gets one message in its turn while it has room.  A
# message that only consumers without room want waits for them, and so do all messages behind it,
# because order matters.

Hands = Sequence[tuple[Subscriber, Sequence[QueuedMessage]]]
"""Who gets what; each has at least one message, and whoever gets the last one comes last."""

Plan = tuple[int, Hands, Sequence[QueuedMessage], int]
"""Of how many messages, who gets them, what nobody wants, and the steps to plan and deliver."""


class ConsumerRaised(Exception):
    """A consumer has raised ``error`` when it was asked for its room, or its filter has."""

    def __init__(self, subscriber: Subscriber, error: Exception) -> None:
        super().__init__(str(error))
        self.subscriber = subscriber
        self.error = error


def planned(queue: BrokerQueue, messages: Sequence[QueuedMessage]) -> Plan:
    """Plan the next messages of a queue, as far as consumers have room; raises ConsumerRaised."""
    if queue.filters:
        return _planned_by_filters(queue, messages)
    takers, rooms, asked = _takers(queue, len(messages))
    done = min(len(messages), sum(rooms))
    hands = list(zip(takers, deal(messages[:done], rooms), strict=True)) if done else []
    hands.sort(key=_last_id)
    return done, hands, (), asked + PUSH_STEPS * len(hands) + MESSAGE_STEPS * (1 + done)


def _last_id(hand: tuple[Subscriber, Sequence[QueuedMessage]]) -> int:
    return hand[1][-1].message_id


def _takers(queue: BrokerQueue, most: int) -> tuple[list[Subscriber], list[int], int]:
    takers, rooms, asked = [], [], 0
    for subscriber in tuple(queue.takers):
        asked += 1
        room = room_of(queue, subscriber)
        if room > 0:
            takers.append(subscriber)
            rooms.append(room)
            if len(takers) == most:
                break
    return takers, rooms, asked


def room_of(queue: BrokerQueue, subscriber: Subscriber) -> int:
    """Return how much of this queue a consumer may have now; a full one is out of turn then."""
    try:
        room = subscriber.consumer.room()
    except Exception as error:
        raise ConsumerRaised(subscriber, error) from error
    if room <= 0:
        queue.takers.pop(subscriber, None)
        return 0
    most = SERVED_MAX if len(subscriber.queues) == 1 else SHARED_MAX
    return room if room < most else most


def room_for(queue: BrokerQueue) -> int:
    """Return how many messages consumers may have at once now; raises ConsumerRaised."""
    if queue.filters:
        return SERVED_MAX  # messages that nobody wants are set aside, whoever has room
    room = 0
    for subscriber in tuple(queue.takers):
        room += room_of(queue, subscriber)
        if room >= SERVED_MAX:
            return SERVED_MAX
    return room


def deal(
    messages: Sequence[QueuedMessage], rooms: Sequence[int]
) -> Sequence[Sequence[QueuedMessage]]:
    """Deal one by one, in turn; all ``rooms`` are above 0, and together enough."""
    if len(rooms) == 1:
        return [messages]
    hands: list[list[QueuedMessage]] = [[] for _ in rooms]
    turn = deque(zip(hands, rooms, strict=True))
    for message in messages:
        hand, room = turn.popleft()
        hand.append(message)
        if len(hand) < room:
            turn.append((hand, room))
    return hands


def _planned_by_filters(queue: BrokerQueue, messages: Sequence[QueuedMessage]) -> Plan:
    hands: dict[Subscriber, list[QueuedMessage]] = {}
    rooms: dict[Subscriber, int] = {}
    turn = list(queue.takers)
    full = [subscriber for subscriber in queue.subscribers if subscriber not in queue.takers]
    unwanted: list[QueuedMessage] = []
    done, steps = 0, MESSAGE_STEPS
    for message in messages:
        wanted, taker = False, None
        for subscriber in (*turn, *full):
            wants, cost = queue.subscribers[subscriber]
            if wants is not None:
                steps += 1 if cost is None else cost(message)
                try:
                    if not wants(message):
                        continue
                except Exception as error:
                    raise ConsumerRaised(subscriber, error) from error
            wanted = True
            if subscriber not in rooms:
                rooms[subscriber] = 0 if subscriber in full else room_of(queue, subscriber)
            if rooms[subscriber] > 0:
                taker = subscriber
                break
        if taker is not None:
            rooms[taker] -= 1
            hands.setdefault(taker, []).append(message)
            turn.remove(taker)
            turn.append(taker)
        elif wanted:
            break
        else:
            unwanted.append(message)
        done += 1
        steps += MESSAGE_STEPS
        if steps >= STEPS_MAX:
            break
    steps += PUSH_STEPS * len(hands)
    return done, sorted(hands.items(), key=_last_id), unwanted, steps
