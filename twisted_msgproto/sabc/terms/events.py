"""The machines of sABC report these events to their caller, in the order of the stream; the names
are past participles.

Messages come as columns, one event for a run of one kind (``request``, ``send-only``), so that a
read of a thousand requests is one event.  Secrets do not show in ``repr``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...core.errors import Fault

REQUEST = "request"
SEND_ONLY = "send-only"


@dataclass(slots=True)
class ConnectReceived:
    """A client's wish for a session (``SA-07``, ``SA-08``): answer with ``accept`` or ``reject``.

    ``headers`` are those that the protocol does not reserve.
    """

    client_id: str | None
    passcode: str | None = field(repr=False)
    headers: Mapping[str, str]


@dataclass(slots=True)
class SessionGranted:
    """The server's yes to CONNECT (``SA-09``).

    ``expires`` is when the session ends at the latest, in seconds since 1970-01-01 UTC (``SA-11``);
    None: no time is set, or what the server wrote is no date.
    """

    session_id: str = field(repr=False)
    expires: float | None
    headers: Mapping[str, str]


@dataclass(slots=True)
class ConnectRefused:
    """The server's error in answer to CONNECT; the client may connect again (``SA-08``)."""

    code: str | None
    text: str


@dataclass(slots=True)
class MessagesReceived:
    """Originals that arrived, in columns (``SA-14`` … ``SA-19``).

    ``kind`` is ``request`` (each is to be answered with ``answer``, ``fail`` or ``acknowledge``) or
    ``send-only`` (say ``settle(count)`` when they are dealt with).  ``truncated`` is None if no
    message was cut (``SA-22``).  ``octets`` are those of the bodies; ``weight`` is what ids and
    headers count beside.  ``place`` is for ``made_safe`` and ``not_safe``.
    """

    kind: str
    ids: list[str]
    fields: list[Mapping[str, str]]
    bodies: list[bytes]
    truncated: list[bool] | None
    octets: int
    weight: int = field(default=0, compare=False)
    place: int = field(default=0, compare=False)
    batch: object = field(default=None, compare=False, repr=False)
    """What the caller has made of it, for when it is safe."""


@dataclass(slots=True)
class MessagesSafe:
    """Messages that are safe, so that the application can process them now (``SA-16``)."""

    messages: MessagesReceived


@dataclass(slots=True)
class ResponsesReceived:
    """Answers to our requests, in columns, with the waiters of those requests (``SA-16``)."""

    ids: list[str]
    waiters: list[object]
    fields: list[Mapping[str, str]]
    bodies: list[bytes]
    truncated: list[bool] | None


@dataclass(slots=True)
class RequestFailed:
    """The peer's error in answer to a request (``SA-16``)."""

    id: str
    waiter: object
    code: str | None
    text: str


@dataclass(slots=True)
class RequestsTimedOut:
    """Requests without an answer in time (``SA-27``)."""

    ids: list[str]
    waiters: list[object]


@dataclass(slots=True)
class ErrorReceived:
    """An error of the peer that answers none of our requests (``SA-23``, ``SA-24``)."""

    code: str | None
    body: bytes
    headers: Mapping[str, str]


@dataclass(slots=True)
class FrameRefused:
    """A frame that means nothing: it was answered with ERROR and skipped (``SA-06``)."""

    code: int
    text: str
    id: str | None


@dataclass(slots=True)
class FrameDiscarded:
    """A frame with neither end mark nor ``msg-more`` (``SA-20``)."""

    id: str | None


@dataclass(slots=True)
class MessageAbandoned:
    """A message of which parts came and then no more (``SA-27``)."""

    id: str | None


@dataclass(slots=True)
class DisconnectReceived:
    """The client's wish for no more than its answers (``SA-12``)."""


@dataclass(slots=True)
class DisconnectingReceived:
    """The peer's end, whatever is still on its way (``SA-13``)."""


@dataclass(slots=True)
class SessionExpired:
    """The end of the session's time; DISCONNECTING was queued (``SA-11``)."""


@dataclass(slots=True)
class DrainTimedOut:
    """An orderly end that lasted too long; DISCONNECTING was queued (``SA-12``)."""


Event = (
    ConnectReceived
    | SessionGranted
    | ConnectRefused
    | MessagesReceived
    | MessagesSafe
    | ResponsesReceived
    | RequestFailed
    | RequestsTimedOut
    | ErrorReceived
    | FrameRefused
    | FrameDiscarded
    | MessageAbandoned
    | DisconnectReceived
    | DisconnectingReceived
    | SessionExpired
    | DrainTimedOut
    | Fault
)
