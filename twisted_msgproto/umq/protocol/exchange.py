"""Applications exchange these over UMQ: requests, replies, their errors, attachments one by one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from twisted.internet.defer import Deferred, fail, succeed

from ...core.errors import ConnectionClosed, PeerError, Refused
from ..machine.attachments import ATTACHMENT_OCTETS, Slot, attachment_octets
from ..terms import Attachment, AttachmentFailure
from ..wire import coded

if TYPE_CHECKING:
    from .session import UmqSession

Body = bytes | Slot | Deferred[bytes]
"""An attachment to send is octets, or a Deferred that fires with them (a failure sends ``-``)."""


class CallFailed(Refused):
    """The peer's ``E`` in answer to our call (``UM-09``).

    ``payload`` is its text; ``code`` is the number it begins with, or None.
    """

    def __init__(self, payload: str) -> None:
        code, text = coded(payload)
        super().__init__(text, code)
        self.payload = payload


class SessionRefused(Refused):
    """The end of the session by the peer's ``F`` (``UM-08``); ``code`` is its code."""


class NoSuchMethod(Refused):
    """The answer of a server without that method: all it did was to store the call (``UM-17``)."""

    def __init__(self, stored: Stored) -> None:
        done = "stored the call" if stored.durable else "gave the call to its application"
        super().__init__(f"the server has no such method, it {done}")


class AttachmentLost(PeerError):
    """An attachment that its sender could not deliver: ``-`` came in its place (``UM-04``)."""


@dataclass(slots=True)
class Reply:
    """An answer: a text and its attachments.

    Received, each attachment is its octets or an AttachmentFailure; of a call that was ``streamed``
    they come through ``stream`` instead.
    """

    payload: Any = ""
    attachments: Sequence[Any] = ()
    stream: AttachmentStream | None = None


@dataclass(slots=True, frozen=True)
class Stored:
    """A stock server's answer to a call for which it has no method (``UM-17``).

    ``durable``: the call is in its queue; else it has none, and an application has the call.
    """

    durable: bool

    def __str__(self) -> str:
        return _STORED if self.durable else _NOT_STORED

    @classmethod
    def read(cls, payload: str) -> Stored | None:
        """Return what an answer's payload says; None if it is something else."""
        if not payload.startswith("{"):
            return None
        text = "".join(payload.split())
        return cls(text == _STORED) if text in (_STORED, _NOT_STORED) else None


_STORED: Final = '{"stored":true}'
_NOT_STORED: Final = '{"stored":false}'


@dataclass(slots=True)
class Update:
    """Something new on a topic (``UM-12``); attachments as in :class:`Reply`."""

    payload: str
    attachments: Sequence[Attachment] = ()
    stream: AttachmentStream | None = None


@dataclass(slots=True)
class Request:
    """A call (``C``) or callback (``B``) of the peer.

    ``callback`` is the callback's id, None for a call; ``session`` is where it came from.
    """

    session: UmqSession
    id: str
    payload: str
    attachments: Sequence[Attachment] = ()
    callback: int | None = None
    stream: AttachmentStream | None = None


def refusal(code: int, text: str) -> Refused:
    """Raise this in a method to answer ``E`` with ``code`` (a Code or any number) and ``text``."""
    return Refused(text, int(code))


def plain(attachments: Sequence[Attachment]) -> list[bytes]:
    """Return the attachments for the table's column: one that failed is empty there."""
    return [b"" if isinstance(entry, AttachmentFailure) else entry for entry in attachments]


def _octets(attachment: Attachment) -> int:
    return attachment_octets(attachment) + ATTACHMENT_OCTETS


@dataclass(slots=True)
class AttachmentStream:
    """The attachments of one message, one by one (``UM-19``).

    Attributes:
        count: how many there will be in all.
        taken: whoever answers the message has this.
    """

    count: int
    changed: Callable[[int], None] = lambda octets: None
    _arrived: deque[Attachment] = field(default_factory=deque)
    _waiting: deque[Deferred[bytes]] = field(default_factory=deque)
    _asked: int = 0
    _lost: bool = False
    _came: int = 0
    _dropped: bool = False
    taken: bool = False

    @property
    def complete(self) -> bool:
        return self._came == self.count

    @property
    def awaited(self) -> bool:
        return bool(self._waiting)

    def next(self) -> Deferred[bytes]:
        """Return the next attachment.

        Fails with AttachmentLost when ``-`` came in its place, with ConnectionClosed when the
        connection ended first.  IndexError after the last.
        """
        if self._asked >= self.count:
            raise IndexError(f"there are {self.count} attachments")
        self._asked += 1
        if self._arrived:
            attachment = self._arrived.popleft()
            self.changed(-_octets(attachment))
            if isinstance(attachment, bytes):
                return succeed(attachment)
            return fail(AttachmentLost(attachment.text))
        if self._lost:
            return fail(ConnectionClosed("the connection ended before the attachment"))
        waiting: Deferred[bytes] = Deferred()
        self._waiting.append(waiting)
        return waiting

    def arrived(self, attachment: Attachment) -> None:
        self._came += 1
        if not self._waiting:
            if self._dropped:
                return
            self._arrived.append(attachment)
            self.changed(_octets(attachment))
            return
        waiting = self._waiting.popleft()
        if isinstance(attachment, bytes):
            waiting.callback(attachment)
        else:
            waiting.errback(AttachmentLost(attachment.text))

    def drop(self) -> None:
        """Nobody will ask for what has come, and what still comes."""
        self._dropped = self._lost = True
        octets = sum(map(_octets, self._arrived))
        self._arrived.clear()
        self.changed(-octets)

    def lost(self) -> None:
        """The connection is gone: what is waited for has failed."""
        self._lost = True
        while self._waiting:
            self._waiting.popleft().errback(
                ConnectionClosed("the connection ended before the attachment")
            )
