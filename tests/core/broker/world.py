"""What tests of the broker share: messages, consumers, and a broker that is asked in one line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from twisted_msgproto.core.broker import LIMITS, Broker, QueuedMessage, QueueName, weight
from twisted_msgproto.core.broker.message_table import SMALL, MessageTable
from twisted_msgproto.core.limits import Limits
from twisted_msgproto.core.machine import State, Table

NOW = 1_000_000.0
ORDERS = QueueName("tests", "orders")
OTHERS = QueueName("tests", "others")


def broker(changed: Callable[[], None] = lambda: None, **options: Any) -> Broker:
    """A broker with these options and limits, as ``durable=True`` and ``queue_messages=10``."""
    own = {name: options.pop(name) for name in ("durable", "when_full") if name in options}
    changes = {name.replace("_", "-"): value for name, value in options.items()}
    return Broker(Limits.of(LIMITS).replace(changes), changed=changed, **own)


def queued(
    message_id: int, body: bytes = b"body", envelope: bytes = b"", arrived: float = NOW
) -> QueuedMessage:
    return QueuedMessage(message_id, weight(envelope, body), envelope, body, arrived)


def tries(known: Mapping[int, int]) -> MessageTable:
    """Place → tries, as a broker is told them."""
    found = MessageTable(SMALL)
    for message_id, count in known.items():
        found.insert(message_id, count)
    return found


def queued_all(ids: Iterable[int], **named: Any) -> list[QueuedMessage]:
    return [queued(message_id, **named) for message_id in ids]


class Reader:
    """A consumer with room for so many messages which it has not acknowledged."""

    def __init__(self, window: int = 1000, *, acknowledges: bool = True) -> None:
        self.window = window
        self.acknowledges = acknowledges
        self.got: list[tuple[QueueName, QueuedMessage]] = []
        self.pushes: list[int] = []
        self.unsettled: dict[int, QueuedMessage] = {}
        self.failures: list[Exception] = []
        self.raises: Callable[[Sequence[QueuedMessage]], bool] = lambda messages: False

    @property
    def message_ids(self) -> list[int]:
        return [one.message_id for _, one in self.got]

    def room(self) -> int:
        return self.window - len(self.unsettled)

    def push(self, queue: QueueName, messages: Sequence[QueuedMessage]) -> bool:
        assert 0 < len(messages) <= self.room()
        if self.raises(messages):
            raise RuntimeError("cannot be encoded")
        self.pushes.append(len(messages))
        self.got += [(queue, one) for one in messages]
        if self.acknowledges:
            self.unsettled.update({one.message_id: one for one in messages})
        return self.acknowledges

    def failed(self, error: Exception) -> None:
        self.failures.append(error)

    def settle(self, broker: Broker, *ids: int) -> None:
        """Acknowledge these ids, or all that it has."""
        chosen = ids or tuple(self.unsettled)
        for message_id in chosen:
            self.unsettled.pop(message_id, None)
        broker.settle(self, chosen)

    def reject(self, broker: Broker, *ids: int, requeue: bool = True) -> None:
        for message_id in ids:
            self.unsettled.pop(message_id, None)
        broker.reject(self, ids, requeue=requeue)


def subscribed(broker: Broker, *names: QueueName, now: float = NOW, **named: Any) -> Reader:
    """A reader of these queues."""
    reader = Reader(**named)
    for name in names or (ORDERS,):
        broker.subscribe(reader, name, now)
    broker.go_on()
    return reader


# What may happen to a message, as a table.  The broker does not step through it for each one: it
# moves whole batches.  The table is its specification: the model follows each message through it,
# and fails where the broker does anything else; the page about the broker shows it.


class MessageState(State):
    """Says where a message is."""

    WAITING = "in a queue, at its place"
    IN_FLIGHT = "with one consumer, which has to acknowledge it"
    DONE = "never delivered again"


class Delivered:
    """A consumer got it."""


class Acknowledged:
    """Its consumer has acknowledged it, or nobody acknowledges where it was delivered."""


class Refused:
    """Its consumer has rejected it for good."""


class Returned:
    """Its consumer has rejected it, went, or failed: it is back at its place."""


class Buried:
    """It is a dead letter from now on, after its last try, or as too old or one too many."""


class Requeued:
    """Somebody has moved it to another queue, mostly from the dead letters."""


class Dropped:
    """Somebody has purged it, it was one dead letter too many, or it cannot be read."""


QUEUED: Final[Table[MessageState]] = {
    MessageState.WAITING: {
        Delivered: MessageState.IN_FLIGHT,
        Buried: MessageState.WAITING,
        Requeued: MessageState.WAITING,
        Dropped: MessageState.DONE,
    },
    MessageState.IN_FLIGHT: {
        Acknowledged: MessageState.DONE,
        Refused: MessageState.DONE,
        Returned: MessageState.WAITING,
        Buried: MessageState.WAITING,
    },
    MessageState.DONE: {},
}
