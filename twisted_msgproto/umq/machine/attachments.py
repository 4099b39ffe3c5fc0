"""Attachments find their messages by order alone, in both directions (``UM-04``).

An announcement owns its slots until they are filled, also when nobody wants its message any more:
its bytes are dropped then (:meth:`Incoming.forget`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from ...core.session_memory import SESSION_WEIGHT_BYTES, text_bytes
from ..terms import (
    Attachment,
    AttachmentArrived,
    AttributeSet,
    AttributeUnset,
    Event,
    Message,
    Streamable,
    TopicClosed,
)

Ordered = Message | TopicClosed | AttributeUnset
Filled = Ordered | AttachmentArrived
"""What filling a slot brings: messages to deliver, or attachments that are streamed."""

Key = tuple[str, int | str]
"""Messages with the same key (a topic, or an attribute's name) are delivered in order."""


NONE_WAIT: Final[deque[Any]] = deque(maxlen=0)
"""Peers that never send an attachment share this, as most do: an empty deque weighs 760 bytes."""

SLOTS_BYTES: Final = 128
"""Slots that are still to be filled need this much for each message, wanted or not."""

WAITING_BYTES: Final = 256
"""A message that waits needs this much beside its own bytes."""

QUEUE_BYTES: Final = 768
"""The queue of the messages of one key needs this much beside these."""


@dataclass(slots=True)
class Announcement:
    """A message that waits: for its attachments, or for earlier messages of its key."""

    message: Ordered | None  # None once nobody wants it
    missing: int  # slots that are not filled yet
    key: Key | None = None
    nbytes: int = 0
    filled: int = 0
    streamed: bool = False  # it was delivered before its attachments


def _weight(message: Ordered) -> int:
    if isinstance(message, AttributeSet):
        return text_bytes(message.name) + text_bytes(message.value)
    if isinstance(message, AttributeUnset):
        return text_bytes(message.name)
    return 0 if isinstance(message, TopicClosed) else text_bytes(message.payload)


class Incoming:
    """The peer's announcements, oldest first, and the order of delivery."""

    def __init__(self) -> None:
        self.announcements: deque[Announcement] = NONE_WAIT
        self._queues: dict[Key, deque[Announcement]] = {}
        self.nbytes: int = 0  # of messages that wait here, with the attachments that are there
        self.waiting: int = 0  # messages: for attachments or for an earlier message

    def __len__(self) -> int:
        return len(self.announcements)

    @property
    def objects(self) -> int:
        return (
            SLOTS_BYTES * len(self.announcements)
            + WAITING_BYTES * self.waiting
            + QUEUE_BYTES * len(self._queues)
        )

    def announce(self, message: Message | None, count: int, key: Key | None = None) -> Announcement:
        """``count`` ≥ 1 slots of ``message``; None discards what will fill them."""
        announcement = Announcement(message, count, key)
        if self.announcements is NONE_WAIT:
            self.announcements = deque()
        self.announcements.append(announcement)
        if message is not None:
            announcement.nbytes = _weight(message)
            self.nbytes += announcement.nbytes
            self.waiting += 1
            if key is not None:
                self._queues.setdefault(key, deque()).append(announcement)
        return announcement

    def queued(self, message: Ordered, key: Key) -> bool:
        """Put ``message`` (complete) behind earlier ones of ``key``; False if there are none."""
        queue = self._queues.get(key)
        if queue is None:
            return False
        nbytes = _weight(message)
        queue.append(Announcement(message, 0, key, nbytes))
        self.nbytes += nbytes
        self.waiting += 1
        return True

    def fill(self, attachment: Attachment) -> list[Filled]:
        """Fill the first open slot of the oldest announcement; IndexError if there is none."""
        announcement = self.announcements[0]
        announcement.missing -= 1
        if not announcement.missing:
            self.announcements.popleft()
        message = announcement.message
        if message is None or isinstance(message, TopicClosed | AttributeUnset):
            return []
        announcement.filled += 1
        if announcement.streamed and isinstance(message, Streamable):
            if not announcement.missing:
                self.nbytes -= announcement.nbytes
            return [AttachmentArrived(message, announcement.filled - 1, attachment)]
        message.attachments.append(attachment)
        nbytes = attachment_bytes(attachment)
        announcement.nbytes += nbytes
        self.nbytes += nbytes
        return [] if announcement.missing else self._release(announcement)

    def stream(self, message: Streamable) -> list[Filled]:
        for announcement in self.announcements:
            if announcement.message is message and not announcement.streamed:
                announcement.streamed = True
                given = self._give(announcement)
                here, message.attachments = message.attachments, []
                given += [AttachmentArrived(message, *one) for one in enumerate(here)]
                return given
        return []

    def forget(self, announcement: Announcement) -> None:
        self.nbytes -= announcement.nbytes
        self.waiting -= 1
        announcement.message = None

    def _release(self, announcement: Announcement) -> list[Filled]:
        if announcement.key is None:
            return self._give(announcement)
        given: list[Filled] = []
        queue = self._queues[announcement.key]
        while queue and not queue[0].missing:
            given += self._give(queue.popleft())
        if not queue:
            del self._queues[announcement.key]
        return given

    def _give(self, announcement: Announcement) -> list[Filled]:
        message = announcement.message
        assert message is not None  # only calls are forgotten, and they stand in no queue
        left = _weight(message) if announcement.missing else 0  # it stays until all have come
        self.nbytes -= announcement.nbytes - left
        announcement.nbytes = left
        self.waiting -= 1
        return [message]


class Slot:
    """The place of an attachment of ours that comes later: pass it to a verb, then fill it."""

    def __init__(self, body: bytes | None = None) -> None:
        self.body = body  # None until it is filled
        self.error: str | None = None  # the text of a failure

    @property
    def filled(self) -> bool:
        return self.body is not None or self.error is not None


ATTACHMENT_BYTES: Final = 48
"""An attachment that is kept needs this much beside its bytes: thousands may be empty."""


def attachments_bytes(attachments: Iterable[Attachment]) -> int:
    return sum(map(attachment_bytes, attachments))


def attachment_bytes(attachment: Attachment) -> int:
    return len(attachment) if isinstance(attachment, bytes) else text_bytes(attachment.text)


def event_bytes(event: Event) -> int:
    texts = [getattr(event, name, "") for name in ("payload", "name", "value")]
    attachments = getattr(event, "attachments", ())
    return SESSION_WEIGHT_BYTES + sum(map(text_bytes, texts)) + attachments_bytes(attachments)


@dataclass(slots=True)
class PeerAttribute:
    """The value of an attribute, with its attachments (``UM-15``)."""

    value: str
    attachments: list[Attachment]
    nbytes: int  # of name and value in UTF-8, and of the attachments
    weight: int  # what it occupies here
