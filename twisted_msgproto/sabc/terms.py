"""What sABC's machines are made of, as data: events, states with their tables, limits, counters.

Messages come as columns, one event for a run of one kind (``request``, ``send-only``), so that a
read of a thousand requests is one event.  Secrets do not show in ``repr``.

The tables say what leads from one state to another.  A frame that is in no row of its state is the
peer's fault; a verb that is in none is ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import auto
from typing import Final

from ..core.errors import Fault
from ..core.limits import Limit
from ..core.machine import Own, State, Table, to
from .wire import (
    CLIENT_ID,
    CLIENT_PASSCODE,
    MSG_ID,
    MSG_MORE,
    REF_MSG_ID,
    RESERVED,
    SESSION_EXPIRY,
    SESSION_ID,
    Connect,
    Connected,
    Disconnect,
    Disconnecting,
    Error,
    Frame,
    Message,
)

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
    """The server's yes to CONNECT (``SA-09``)."""

    session_id: str = field(repr=False)
    expires: float | None  # seconds since 1970 UTC (``SA-11``); None: not set, or no date
    headers: Mapping[str, str]


@dataclass(slots=True)
class ConnectRefused:
    """The server's error in answer to CONNECT; the client may connect again (``SA-08``)."""

    code: str | None
    text: str


@dataclass(slots=True)
class MessagesReceived:
    """Originals that arrived, in columns (``SA-14`` … ``SA-19``).

    Of the kind ``request`` each is to be answered with ``answer``, ``fail`` or ``acknowledge``; say
    ``settle(count)`` when the ``send-only`` are dealt with.
    """

    kind: str
    ids: list[str]
    fields: list[Mapping[str, str]]
    bodies: list[bytes]
    truncated: list[bool]  # which were cut (``SA-22``)
    nbytes: int  # of the bodies
    weight: int = field(default=0, compare=False)  # what ids and headers count beside
    position: int = field(default=0, compare=False)  # for ``made_safe`` and ``not_safe``
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
    truncated: list[bool]


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


class Step:
    ACCEPTED = Own()  # the application's yes to a session
    REJECTED = Own()  # the application's no; the client may try again
    MESSAGE_SENT = Own()  # an original of ours: a request or a send-only message
    ANSWER_SENT = Own()  # an answer of ours
    DRAIN_BEGUN = Own()  # the server's wish for no more originals, though no DISCONNECT came
    DRAINED = Own()  # the last answer that was owed
    STOPPED = Own()  # our end at once
    EXPIRED = Own()  # the end of the session's time
    TIMED_OUT = Own()  # a drain that lasted too long
    CONNECTION_LOST = Own()  # the end of the connection
    CONNECT_SENT = Own()  # our wish for a session
    DISCONNECT_SENT = Own()  # our wish for an orderly end


class Serving(State):
    """The states of a server."""

    AWAITING = auto()  # no CONNECT, or none that was accepted
    AUTHENTICATING = auto()  # CONNECT came; the application decides
    OPEN = auto()
    DRAINING = auto()  # no further originals; answers are still owed
    CLOSED = auto()


_ENDS: Final = (Fault, Step.STOPPED, Step.CONNECTION_LOST)

SERVER: Final[Table[Serving]] = {
    Serving.AWAITING: {
        Connect: Serving.AUTHENTICATING,
        **to(Serving.CLOSED, *_ENDS),
    },
    Serving.AUTHENTICATING: {
        Step.ACCEPTED: Serving.OPEN,
        Step.REJECTED: Serving.AWAITING,
        **to(Serving.CLOSED, *_ENDS),
    },
    Serving.OPEN: {
        **to(Serving.OPEN, Message, Error, Step.MESSAGE_SENT, Step.ANSWER_SENT),
        **to(Serving.DRAINING, Disconnect, Step.DRAIN_BEGUN),
        **to(Serving.CLOSED, Disconnecting, Step.EXPIRED, *_ENDS),
    },
    Serving.DRAINING: {
        **to(Serving.DRAINING, Message, Error, Step.MESSAGE_SENT, Step.ANSWER_SENT, Disconnect),
        **to(Serving.CLOSED, Step.DRAINED, Disconnecting, Step.EXPIRED, Step.TIMED_OUT, *_ENDS),
    },
    Serving.CLOSED: {},
}
"""A client's CONNECTED is in no row (``SA-05``), a second CONNECT only in the first (``SA-27``)."""


class Connecting(State):
    """The states of a client."""

    IDLE = auto()  # CONNECT not sent, or refused
    WAITING = auto()  # CONNECT sent
    OPEN = auto()
    DRAINING = auto()  # DISCONNECT sent
    CLOSED = auto()


CLIENT: Final[Table[Connecting]] = {
    Connecting.IDLE: {
        Step.CONNECT_SENT: Connecting.WAITING,
        Error: Connecting.IDLE,
        **to(Connecting.CLOSED, *_ENDS),
    },
    Connecting.WAITING: {
        Connected: Connecting.OPEN,
        Error: Connecting.IDLE,
        **to(Connecting.CLOSED, *_ENDS),
    },
    Connecting.OPEN: {
        **to(Connecting.OPEN, Message, Error, Step.MESSAGE_SENT, Step.ANSWER_SENT),
        Step.DISCONNECT_SENT: Connecting.DRAINING,
        **to(Connecting.CLOSED, Disconnecting, *_ENDS),
    },
    Connecting.DRAINING: {
        **to(Connecting.DRAINING, Message, Error, Step.ANSWER_SENT),
        **to(Connecting.CLOSED, Disconnecting, *_ENDS),
    },
    Connecting.CLOSED: {},
}
"""A server's CONNECT and DISCONNECT are in no row (``SA-05``)."""

# ── What is refused, and how ────────────────────────────────────────────────────────────────────

BAD_REQUEST, UNAUTHORIZED, FORBIDDEN, TIMED_OUT = 400, 401, 403, 408
TOO_LARGE, TOO_MANY, UNAVAILABLE = 413, 429, 503

MISPLACED: Final[Mapping[type[Frame], frozenset[str]]] = {
    Connect: RESERVED - {CLIENT_ID, CLIENT_PASSCODE},
    Connected: RESERVED - {SESSION_ID, SESSION_EXPIRY},
    Disconnect: RESERVED - {SESSION_ID},
    Disconnecting: RESERVED - {SESSION_ID},
    Message: RESERVED - {SESSION_ID, MSG_ID, REF_MSG_ID, SEND_ONLY, MSG_MORE},
    Error: frozenset(),
}


SESSION_LIMITS: Final = (
    Limit("connect-seconds", 10.0, "s", "for CONNECT to come and to be answered (SA-27)", 0.001),
    Limit("message-bytes", 1 << 20, "bytes", "a message is cut there, twice it closes (SA-22)", 1),
    Limit("header-block-bytes", 8192, "bytes", "of all headers of a frame (SA-27)", 64),
    Limit("unfinished-messages", 16, "messages", "whose last part has not come (SA-19)", 1),
    Limit("outstanding-requests", 1024, "requests", "unanswered, each direction (SA-27)", 1),
    Limit("response-seconds", 60.0, "s", "for the answer to our request (SA-27)", 0.001),
    Limit("part-bytes", 65536, "bytes", "of a body are sent as one frame (SA-18)", 1),
)

LOGIN_ATTEMPTS: Final = 5

UNFINISHED_SECONDS: Final = 60.0
"""The next part of a message comes within this time (``SA-27``)."""

DRAIN_SECONDS: Final = 30.0
"""What is in work after DISCONNECT is answered within this time (``SA-12``)."""


@dataclass(slots=True)
class Counters:
    requests: int = 0
    send_only: int = 0
    responses: int = 0
    errors_received: int = 0
    errors_sent: int = 0
    refused_frames: int = 0
    discarded_frames: int = 0
    abandoned_messages: int = 0
    truncated_messages: int = 0
    unknown_responses: int = 0
