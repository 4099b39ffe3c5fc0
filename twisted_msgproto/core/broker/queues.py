"""One queue of the broker: what waits, what is in memory, and who consumes it."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from .message_table import LARGE, SMALL, MessageTable
from .terms import DEAD, Consumer, Figures, QueuedMessage, QueueName, Waiting, second


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


class Memory:
    """Bytes of all messages in memory, of all queues of a broker.

    Attributes:
        limit: bytes; see the limit ``broker-memory-bytes``.
        used: bytes of messages in memory.
        expected: bytes of messages that are being read back.
    """

    __slots__ = ("expected", "limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit: int = limit
        self.used: int = 0
        self.expected: int = 0

    @property
    def has_room(self) -> bool:
        """Return whether something may be read back: one message may be above the limit."""
        return self.used + self.expected <= self.limit


class Wish(NamedTuple):
    """What a consumer wants of a queue; ``wants`` is None: everything.

    ``cost`` tells what a call of ``wants`` costs, in steps of about 0.1 µs; None: one step.
    """

    wants: Callable[[QueuedMessage], bool] | None = None
    cost: Callable[[QueuedMessage], int] | None = None


Batch = tuple[int, "BrokerQueue"]
"""Is what all messages of one push have in common: the number of the push, and their queue."""

Released = list[tuple[Batch, list[int]]]
"""Are the ids of messages that a consumer holds no longer, in order, by batch."""


class Subscriber:
    """What the broker knows of one consumer.

    Attributes:
        queues: what it consumes, the queue that had its last turn longest ago first.
        unsettled: id → batch, of all messages that it has to acknowledge, in order of delivery.
        latest: the batch number and id of the last delivery that it acknowledged or rejected.
    """

    __slots__ = ("consumer", "latest", "queues", "unsettled")

    def __init__(self, consumer: Consumer) -> None:
        self.consumer: Consumer = consumer
        self.queues: OrderedDict[BrokerQueue, Wish] = OrderedDict()
        self.unsettled: dict[int, Batch] = {}
        self.latest: tuple[int, int] = (-1, -1)

    def seen(self) -> set[int]:
        """Return the ids that it has probably looked at.

        These are the messages delivered before the latest one that it acknowledged or rejected, and
        the one after: it was busy with that.  What is behind was fetched ahead.
        """
        message_ids = set()
        for message_id, batch in self.unsettled.items():
            message_ids.add(message_id)
            if (batch[0], message_id) > self.latest:
                break
        return message_ids


class BrokerQueue:
    """The messages of one queue, waiting or in flight, and its consumers.

    Attributes:
        kept: it stays when nobody uses it.
        waiting: the ids of messages that wait.
        passed: the ids of messages that wait, and that no consumer wants.
        in_flight: this many messages are with consumers.
        away: the ids of those among them that are not in memory.
        returned: ids that wait, and came back when they were not in memory.
        read: ids that were read back; some may have been delivered since.
        bytes: the weight of everything, waiting or in flight.
        messages: id → message, of those that are in memory, waiting or in flight.
        in_memory: the weight of ``messages``.
        tries: the tries of messages that have had one.
        alone: the ids of messages that are delivered one at a time, because a push with them
            has failed.
        loading: the ids that are being read; None: nothing is.
        expected: their weight, when they were asked for.
        filters: this many of them do not want everything.
        takers: those of them that may have room, in turn.
        used: when somebody published to it or left it last.
        withheld: what to call when there is room again.
    """

    __slots__ = (
        "_memory",
        "alone",
        "away",
        "expected",
        "filters",
        "in_flight",
        "in_memory",
        "kept",
        "loading",
        "messages",
        "name",
        "nbytes",
        "passed",
        "read",
        "returned",
        "subscribers",
        "takers",
        "tries",
        "used",
        "waiting",
        "withheld",
    )

    def __init__(self, name: QueueName, memory: Memory, now: float) -> None:
        self.name: QueueName = name
        self.kept: bool = False
        self.waiting: MessageTable = rows()
        self.passed: MessageTable = rows()
        self.in_flight: int = 0
        self.away: MessageTable = rows()
        self.returned: MessageTable = rows()
        self.read: array[int] = array("q")
        self.nbytes: int = 0
        self.messages: dict[int, QueuedMessage] = {}
        self.in_memory: int = 0
        self._memory = memory
        self.tries: MessageTable = MessageTable(SMALL)
        self.alone: set[int] = set()
        self.loading: set[int] | None = None
        self.expected: int = 0
        self.subscribers: dict[Subscriber, Wish] = {}
        self.filters: int = 0
        self.takers: OrderedDict[Subscriber, None] = OrderedDict()
        self.used: float = now
        self.withheld: dict[Callable[[], None], None] = {}

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
        """Return whether so much more of this queue may be in memory.

        A queue may have as much there as is free, so something is always left for the others.
        """
        memory = self._memory
        return self.in_memory + nbytes <= memory.limit - memory.used - memory.expected

    def keep(self, messages: Sequence[QueuedMessage]) -> None:
        kept, nbytes = self.messages, 0
        for message in messages:
            kept[message.message_id] = message
            nbytes += message.nbytes
        self.in_memory += nbytes
        self._memory.used += nbytes

    def expect(self, nbytes: int) -> None:
        """Count what is being read back for it now; 0: nothing is any more."""
        self._memory.expected += nbytes - self.expected
        self.expected = nbytes

    def drop(self, message_ids: Iterable[int]) -> int:
        """Hold these in memory no longer; return what they weighed there."""
        remove, nbytes = self.messages.pop, 0
        for message_id in message_ids:
            message = remove(message_id, None)
            if message is not None:
                nbytes += message.nbytes
        self.in_memory -= nbytes
        self._memory.used -= nbytes
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
        messages = list(map(self.messages.get, self.waiting.front(most)))
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
            Waiting(
                message_id,
                nbytes,
                second,
                self.tries.number(message_id),
                self.messages.get(message_id),
            )
            for message_id, nbytes, second in sorted(found)[:count]
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
