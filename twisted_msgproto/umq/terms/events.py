"""UMQ's machines report these events to their caller.

Messages that can have attachments come complete by default: the event is returned when the last
attachment is there.  :class:`AttachmentsAnnounced` says earlier that one is on its way; whoever
wants its attachments one by one answers it with the machine's ``stream`` (``UM-19``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from ..wire import UmqFault


@dataclass(slots=True, frozen=True)
class AttachmentFailure:
    """Replaces an attachment that its sender could not deliver (``UM-04``)."""

    text: str


Attachment = bytes | AttachmentFailure


@dataclass(slots=True)
class HelloReceived:
    """An ``H`` arrived with all its attachments: answer with ``welcome`` or ``fatal``
    (``UM-06``).
    """

    version: int
    payload: str
    attachments: list[Attachment] = field(default_factory=list)


@dataclass(slots=True)
class WelcomeReceived:
    """A ``W`` arrived with all its attachments: the session is established (``UM-07``)."""

    version: int
    payload: str
    attachments: list[Attachment] = field(default_factory=list)


@dataclass(slots=True)
class FatalReceived:
    """``F``, the peer's last word; ``code`` is None if it spells none (``UM-08``)."""

    code: int | None
    text: str


@dataclass(slots=True)
class CallReceived:
    """A ``C`` arrived: answer ``id`` with ``result`` or ``error`` (``UM-09``)."""

    id: str
    payload: str
    attachments: list[Attachment] = field(default_factory=list)


@dataclass(slots=True)
class CallbackReceived:
    """A ``B`` arrived for a callback that is registered; it is answered like a call (``UM-11``)."""

    id: str
    callback: int
    payload: str
    attachments: list[Attachment] = field(default_factory=list)


@dataclass(slots=True)
class ResultReceived:
    """An ``R`` arrived, the answer to our call (``UM-10``); ``waiter`` is what the call was made
    with.
    """

    number: int
    waiter: object
    payload: str
    attachments: list[Attachment] = field(default_factory=list)


@dataclass(slots=True)
class ErrorReceived:
    """An ``E`` arrived: our call failed at the peer (``UM-09``)."""

    number: int
    waiter: object
    payload: str


@dataclass(slots=True)
class CallExpired:
    """No answer came in time (``UM-20``); one that comes later is ignored."""

    number: int
    waiter: object


@dataclass(slots=True)
class TopicUpdated:
    """A ``T`` arrived for a topic to which we subscribed (``UM-12``)."""

    topic: int
    payload: str
    attachments: list[Attachment] = field(default_factory=list)


@dataclass(slots=True)
class TopicClosed:
    """A ``D`` arrived: the publisher ended the topic; it is forgotten (``UM-13``)."""

    topic: int


@dataclass(slots=True)
class TopicUnsubscribed:
    """A ``U`` arrived for a topic that we publish: it is closed, ``D`` is on its way
    (``UM-14``).
    """

    topic: int


@dataclass(slots=True)
class AttributeSet:
    """An ``S`` arrived: the peer's attribute has a value now (``UM-15``)."""

    name: str
    value: str
    attachments: list[Attachment] = field(default_factory=list)


@dataclass(slots=True)
class AttributeUnset:
    """An ``X`` arrived: the peer's attribute is gone (``UM-16``); it may never have been there."""

    name: str


Message = (
    HelloReceived
    | WelcomeReceived
    | CallReceived
    | CallbackReceived
    | ResultReceived
    | TopicUpdated
    | AttributeSet
)
"""Events that can have attachments."""

STREAMABLE: Final = (CallReceived, CallbackReceived, ResultReceived, TopicUpdated)
"""Messages whose attachments may be had one by one (``UM-19``)."""


@dataclass(slots=True)
class AttachmentsAnnounced:
    """``message`` will have ``count`` attachments, and is returned when they are there.

    Call the machine's ``stream(message)`` now to have it at once, and then one
    :class:`AttachmentArrived` for each.
    """

    message: Message
    count: int


@dataclass(slots=True)
class AttachmentArrived:
    """An attachment, or its failure, arrived for a message that is streamed (``UM-19``)."""

    message: Message
    index: int
    attachment: Attachment


@dataclass(slots=True)
class CallsSafe:
    """The sink has made these calls safe: they may be answered now."""

    calls: Sequence[CallReceived | CallbackReceived]


@dataclass(slots=True)
class KeptTooMuch:
    """A ``what`` of the peer (a call, an attribute, a log-in) was refused: the process keeps too
    much, and this session more than its share.
    """

    what: str


Event = (
    Message
    | CallsSafe
    | FatalReceived
    | ErrorReceived
    | CallExpired
    | TopicClosed
    | TopicUnsubscribed
    | AttributeUnset
    | AttachmentsAnnounced
    | AttachmentArrived
    | KeptTooMuch
    | UmqFault
)
"""Everything a machine tells; a FatalReceived or a UmqFault is the last event of all."""
