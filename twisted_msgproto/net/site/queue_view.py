"""What a broker shows of its queues, and what an operator can do with them.

A running gateway's broker is a :class:`BrokerView`, and so are the queues of a directory whose
gateway has stopped.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Protocol

from ...core.errors import QueueError

QUEUES_SHOWN_MAX: Final = 10_000

MESSAGES_SHOWN: Final = 10
MESSAGES_SHOWN_MAX: Final = 1000

BODIES_BYTES_MAX: Final = 4 << 20
"""``peek`` shows no more bytes of messages in one answer, but at least one message."""


class NoSuchQueue(QueueError):
    """The broker has no queue of this name."""


Body = bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueShown:
    """One queue, as an operator sees it."""

    space: str  # ``micromsg2``, ``mtl/VIRTUAL-HOST/PROFILE``, or that of the shared namespace
    name: str  # the destination or the resource
    waiting: int  # messages that no consumer has
    in_flight: int = 0  # messages that consumers have not acknowledged yet
    bytes: int = 0  # what the messages weigh
    consumers: int = 0
    oldest: int | None = None  # when that arrived, in µs since 1970 UTC
    tries: int = 0  # of the message that was tried most


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageShown:
    """One message of a queue, as an operator sees it."""

    message_id: int  # its offset in the queue's log, or its number in memory
    received_at: int  # in µs since 1970 UTC
    tries: int
    bytes: int  # of its body
    fields: Mapping[str, str]  # as the table's column ``fields`` has them
    body: Body


class BrokerView(Protocol):
    """The queues of a gateway, which people may look at and change.

    What it returns may be a Deferred or the value itself.  Every method but ``queues`` raises
    NoSuchQueue.
    """

    def queues(self) -> Any:
        """Return a sequence of :class:`QueueShown`, by space and name."""

    def peek(self, space: str, name: str, count: int) -> Any:
        """Return the first ``count`` messages as a sequence of :class:`MessageShown`."""

    def purge(self, space: str, name: str) -> Any:
        """Drop everything that waits; return how many messages that were."""

    def requeue(self, space: str, name: str, to: str) -> Any:
        """Put all that waits to the queue ``to`` of its space, with no tries; return how many."""


def within_bounds(messages: Sequence[MessageShown]) -> Sequence[MessageShown]:
    nbytes = 0
    for count, message in enumerate(messages[:MESSAGES_SHOWN_MAX]):
        nbytes += len(message.body) + sum(map(len, (*message.fields, *message.fields.values())))
        if nbytes > BODIES_BYTES_MAX and count:
            return messages[:count]
    return messages[:MESSAGES_SHOWN_MAX]


def message_in_json(message: MessageShown) -> dict[str, object]:
    shown = asdict(message)
    body = shown.pop("body")
    try:
        shown["body"] = body.decode()
    except UnicodeDecodeError:
        shown["body_base64"] = base64.b64encode(body).decode()
    return shown


def from_json(shown: Mapping[str, Any]) -> MessageShown:
    values = dict(shown)
    if "body_base64" in values:
        values["body"] = base64.b64decode(values.pop("body_base64"))
    else:
        values["body"] = values["body"].encode()
    return MessageShown(**values)
