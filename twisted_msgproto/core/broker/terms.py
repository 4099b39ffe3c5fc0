"""The broker's nouns: messages, consumers, events, limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from ..errors import LimitExceeded
from ..limits import Limit

DEAD: Final = ".dead"
"""The dead letters of the queue ``NAME`` are in the queue ``NAME.dead``."""

QUEUED_MESSAGE_BYTES: Final = 320
"""A message in memory is counted with this many bytes more than it has, for its objects."""

LIMITS: Final = (
    Limit("broker-queues", 1000, "queues", "of one broker, without those of dead letters"),
    Limit("queue-messages", 10_000, "messages", "in one queue; above it its senders wait", 1),
    Limit("queue-bytes", 64 << 20, "bytes", "in one queue; above it its senders wait", 1),
    Limit("queue-age", 0.0, "s", "then a waiting message is a dead letter; 0 = never"),
    Limit("queue-idle", 3600.0, "s", "an empty queue without consumers is forgotten after this"),
    Limit("tries", 5, "tries", "of one message; then it is a dead letter", 1),
    Limit("dead-letters", 10_000, "messages", "of one queue; above it the oldest are dropped", 0),
    Limit("broker-memory-bytes", 256 << 20, "bytes", "of messages in memory, of all queues", 1),
)

WAIT: Final = "wait"
DEAD_LETTER: Final = "dead-letter"
WHEN_FULL: Final = (WAIT, DEAD_LETTER)
"""What happens when a queue is full: its senders wait, or its oldest messages are dead letters."""

SECOND_MAX: Final = 2**32 - 1

TRIES_COUNTED: Final = 2**16 - 1
"""More tries of one message than this many are not told apart."""


@dataclass(slots=True)
class Counters:
    """Messages by what became of them, for metrics; ``strays`` are ids that were not in flight."""

    published: int = 0
    delivered: int = 0
    acknowledged: int = 0
    rejected: int = 0
    returned: int = 0
    strays: int = 0
    failed_consumers: int = 0
    dead_letters: int = 0
    dead_dropped: int = 0
    unreadable: int = 0
    purged: int = 0
    requeued: int = 0


class TooManyQueues(LimitExceeded):
    """A queue more than the broker may have; nothing was acknowledged."""


class QueueName(NamedTuple):
    space: str  # ``micromsg2``, ``mtl/VHOST/PROFILE``, or the name of a shared space
    name: str  # the destination or the resource: within its space it is one queue

    @property
    def dead(self) -> QueueName:
        """The queue of its dead letters; such a queue has none of its own, so it is itself."""
        return self if self.name.endswith(DEAD) else QueueName(self.space, self.name + DEAD)

    def __str__(self) -> str:
        return f"{self.space}:{self.name}"


@dataclass(slots=True, eq=False)
class QueuedMessage:
    message_id: int  # its offset in the log, or a number; each in a broker is another
    nbytes: int  # its weight, below 4 GiB
    envelope: bytes  # what its protocol needs beside the body to make it again
    body: bytes
    arrived: float  # in seconds of the clock by which the broker is called
    tries: int = 0  # how many consumers were lost with it, or have rejected it
    again: bool = False  # it came back from a consumer


def second(time: float) -> int:
    """Return the whole second of a time, as 32 bits hold it, wherever a clock was set to."""
    return min(max(int(time), 0), SECOND_MAX)


def weight(envelope: bytes, body: bytes) -> int:
    return QUEUED_MESSAGE_BYTES + len(envelope) + len(body)


class Consumer(Protocol):
    """What the broker needs of a connection; consumers are told apart by identity."""

    def room(self) -> int:
        """0 when it is full: it is asked again after ``Broker.ready`` or an acknowledgement.

        Consumers without acknowledgements answer by the pressure of their transport.
        """

    def push(self, queue: QueueName, messages: Sequence[QueuedMessage]) -> bool:
        """True: it will acknowledge or reject each of them by its id; False: they are done with.

        An exception ends the consumer, and they go back.
        """

    def failed(self, error: Exception) -> None:
        """``push`` has raised ``error``: end the connection.  The broker has forgotten it."""


# ── events, for the durable half and for operators ──────────────────────────────────────────────


@dataclass(slots=True, frozen=True)
class Declared:
    """A queue was made; its name has to be durable before anything sent to it is acknowledged."""

    name: QueueName


@dataclass(slots=True, frozen=True)
class Forgotten:
    name: QueueName


@dataclass(slots=True)
class Settled:
    """These messages of a queue are done with, and will not be delivered again."""

    name: QueueName
    message_ids: list[int]


@dataclass(slots=True, frozen=True)
class Tried:
    """These messages of a queue came back: id → how many tries it has had now."""

    name: QueueName
    tries: Mapping[int, int]


@dataclass(slots=True, frozen=True)
class Wanted:
    """These messages of a queue are to be read: call ``loaded``, also with nothing."""

    name: QueueName
    message_ids: list[int]


@dataclass(slots=True, frozen=True)
class Moved:
    """Messages of ``name`` are in ``to`` now; as dead letters alone they keep their ``tries``."""

    name: QueueName
    to: QueueName
    message_ids: list[int]
    tries: bool


@dataclass(slots=True, frozen=True)
class QueueFull:
    """Senders to this queue wait from now on, because of this limit."""

    name: QueueName
    limit: str


Event = Declared | Forgotten | Settled | Tried | Wanted | Moved | QueueFull


# ── figures, for people ─────────────────────────────────────────────────────────────────────────


class Waiting(NamedTuple):
    """``message`` is None when its body is not in memory; ``arrived`` is in whole seconds."""

    message_id: int
    nbytes: int
    arrived: float
    tries: int
    message: QueuedMessage | None


class Figures(NamedTuple):
    """``nbytes`` are those waiting and in flight; ``tries`` of the message that had most."""

    name: QueueName
    waiting: int
    in_flight: int
    nbytes: int
    consumers: int
    oldest: float | None  # when it arrived, if any waits
    tries: int
