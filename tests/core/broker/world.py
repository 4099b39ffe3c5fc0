"""What tests of the broker share: letters, consumers, and a broker that is asked in one line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from twisted_msgproto.core.broker import LIMITS, Broker, QueuedMessage, QueueName, weight
from twisted_msgproto.core.broker.places import SMALL, Places
from twisted_msgproto.core.limits import Limits
from twisted_msgproto.core.machine import State, Table

NOW = 1_000_000.0
ORDERS = QueueName("tests", "orders")
OTHERS = QueueName("tests", "others")


def broker(*, durable: bool = False, when_full: str = "wait", **limits: float) -> Broker:
    """A broker with these limits, as ``queue_messages=10``."""
    changes = {name.replace("_", "-"): value for name, value in limits.items()}
    return Broker(Limits.of(LIMITS).replace(changes), durable=durable, when_full=when_full)


def letter(
    place: int, body: bytes = b"body", envelope: bytes = b"", arrived: float = NOW
) -> QueuedMessage:
    return QueuedMessage(place, weight(envelope, body), envelope, body, arrived)


def tries(known: Mapping[int, int]) -> Places:
    """Place → tries, as a broker is told them."""
    found = Places(SMALL)
    for place, count in known.items():
        found.insert(place, count)
    return found


def letters(places: Iterable[int], **named: Any) -> list[QueuedMessage]:
    return [letter(place, **named) for place in places]


class Reader:
    """A consumer with room for so many letters which it has not acknowledged."""

    def __init__(self, window: int = 1000, *, acknowledges: bool = True) -> None:
        self.window = window
        self.acknowledges = acknowledges
        self.got: list[tuple[QueueName, QueuedMessage]] = []
        self.pushes: list[int] = []
        self.unsettled: dict[int, QueuedMessage] = {}
        self.failures: list[Exception] = []
        self.raises: Callable[[Sequence[QueuedMessage]], bool] = lambda letters: False

    @property
    def places(self) -> list[int]:
        return [one.place for _, one in self.got]

    def room(self) -> int:
        return self.window - len(self.unsettled)

    def push(self, queue: QueueName, letters: Sequence[QueuedMessage]) -> bool:
        assert 0 < len(letters) <= self.room()
        if self.raises(letters):
            raise RuntimeError("cannot be encoded")
        self.pushes.append(len(letters))
        self.got += [(queue, one) for one in letters]
        if self.acknowledges:
            self.unsettled.update({one.place: one for one in letters})
        return self.acknowledges

    def failed(self, error: Exception) -> None:
        self.failures.append(error)

    def settle(self, broker: Broker, *places: int) -> None:
        """Acknowledge these places, or all that it has."""
        chosen = places or tuple(self.unsettled)
        for place in chosen:
            self.unsettled.pop(place, None)
        broker.settle(self, chosen)

    def reject(self, broker: Broker, *places: int, requeue: bool = True) -> None:
        for place in places:
            self.unsettled.pop(place, None)
        broker.reject(self, places, requeue=requeue)


def subscribed(broker: Broker, *names: QueueName, now: float = NOW, **named: Any) -> Reader:
    """A reader of these queues."""
    reader = Reader(**named)
    for name in names or (ORDERS,):
        broker.subscribe(reader, name, now)
    broker.go_on()
    return reader


# What may happen to a letter, as a table.  The broker does not step through it for each letter: it
# moves whole batches.  The table is its specification: the model follows each letter through it,
# and fails where the broker does anything else; the page about the broker shows it.


class LetterState(State):
    """Says where a letter is."""

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


LETTER: Final[Table[LetterState]] = {
    LetterState.WAITING: {
        Delivered: LetterState.IN_FLIGHT,
        Buried: LetterState.WAITING,
        Requeued: LetterState.WAITING,
        Dropped: LetterState.DONE,
    },
    LetterState.IN_FLIGHT: {
        Acknowledged: LetterState.DONE,
        Refused: LetterState.DONE,
        Returned: LetterState.WAITING,
        Buried: LetterState.WAITING,
    },
    LetterState.DONE: {},
}
