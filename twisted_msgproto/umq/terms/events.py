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
    """What stands for an attachment that its sender could not deliver (``UM-04``)."""

    text: str


Attachment = bytes | AttachmentFailure


@dataclass(slots=True)
class HelloReceived:
    """An ``H`` with all its attachments: answer with ``welcome`` or ``fatal`` (``UM-06``)."""

    version: int
    payload: str
    attachments: list[Attachment] = field(default_factory=list)


@dataclass(slots=True)
class WelcomeReceived:
    """A ``W`` with all its attachments: the session is established (``UM-07``)."""

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
    """A ``C``: answer ``id`` with ``result`` or ``error`` (``UM-09``)."""

    id: str
    payload: str
    attachments: list[Attachment] = field(default_factory=list)


@dataclass(slots=True)
class CallbackReceived:
    """A ``B`` for a callback that is registered; it is answered like a call (``UM-11``)."""

    id: str
    callback: int
    payload: str
    attachments: list[Attachment] = field(default_factory=list)


@dataclass(slots=True)
class ResultReceived:
    """An ``R``, the answer to the call that was made with ``waiter`` (``UM-10``)."""

    number: int
    waiter: object
    payload: str
    attachments: list[Attachment] = field(default_factory=list)


@dataclass(slots=True)
class ErrorReceived:
    """An ``E``: our call failed at the peer (``UM-09``)."""

    number: int
    waiter: object
    payload: str


@dataclass(slots=True)
class CallExpired:
    """A call of ours without an answer in time (``UM-20``); one that comes later is ignored."""

    number: int
    waiter: object


@dataclass(slots=True)
class TopicUpdated:
    """A ``T`` for a topic to which we subscribed (``UM-12``)."""

    topic: int
    payload: str
    attachments: list[Attachment] = field(default_factory=list)


@dataclass(slots=True)
class TopicClosed:
    """A ``D``: the publisher ended the topic; it is forgotten (``UM-13``)."""

    topic: int


@dataclass(slots=True)
class TopicUnsubscribed:
    """A ``U`` for a topic that we publish: it is closed, ``D`` is on its way (``UM-14``)."""

    topic: int


@dataclass(slots=True)
class AttributeSet:
    """An ``S``: the peer's attribute has a value now (``UM-15``)."""

    name: str
    value: str
    attachments: list[Attachment] = field(default_factory=list)


@dataclass(slots=True)
class AttributeUnset:
    """An ``X``: the peer's attribute is gone (``UM-16``); it may never have been there."""

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

STREAMABLE: Final = (CallReceived, CallbackReceived, ResultReceived, TopicUpdated)


@dataclass(slots=True)
class AttachmentsAnnounced:
    """The news that ``message`` will have ``count`` attachments; it comes when they are there.

    Call the machine's ``stream(message)`` now to have it at once, and then one
    :class:`AttachmentArrived` for each.
    """

    message: Message
    count: int


@dataclass(slots=True)
class AttachmentArrived:
    """An attachment, or its failure, of a message that is streamed (``UM-19``)."""

    message: Message
    index: int
    attachment: Attachment


@dataclass(slots=True)
class CallsSafe:
    """Calls that the sink has made safe: they may be answered now."""

    calls: Sequence[CallReceived | CallbackReceived]


@dataclass(slots=True)
class KeptTooMuch:
    """The refusal of the peer's ``what`` (a call, an attribute, a log-in): the process keeps too
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
