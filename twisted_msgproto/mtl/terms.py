"""MTL's words, which are data only: limits, states and what is legal in them, events.

Its four tables are a session and a data flow, as the server and as the client know them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import auto
from typing import Final

from ..core.broker import LIMITS as BROKER_LIMITS
from ..core.limits import Limit
from ..core.machine import Happening, Own, State, Table, to
from .wire import LIMITS, Authorize, Open, Reply, RequestReader, RequestWriter, SelectProfile
from .wire.data import Confirm, Content, Dismiss, Lease, Ping, Pong, Reject, Response, Summon

# ── Limits of both sides (``MT-29``) ──────────────────────────────────────────────────────────────


SESSION_LEASES: Final = 64
"""A session has no more leases; a further request gets 403."""

LEASE_SECONDS: Final = 30.0
"""A lease that nobody uses by then ends (``MT-11``)."""

WAITING_WEIGHT_BYTES: Final = 640
"""A content that waits to be sent needs this beside its own bytes, with the Deferred for it."""

BURST: Final = 256
"""Contents that an unconfirmed reader is sent between two looks at its socket."""

SHARED_LIMITS: Final = (
    *LIMITS,
    Limit("content-bytes", 8 << 20, "bytes", "of one frame; libzmq cuts off who sends more", 1),
    Limit("heartbeat", 5.0, "s", "a silent data flow is pinged at this interval (MT-21)", 0.001),
    Limit("liveness", 15.0, "s", "a peer that is silent for this long is gone (MT-21)", 0.002),
)

SERVER_LIMITS: Final = (
    *SHARED_LIMITS,
    Limit(
        "peer-bytes",
        256 << 20,
        "bytes",
        "libzmq holds for one peer, each way, at content-bytes a message; one message at least",
        1,
    ),
    Limit("sessions", 10_000, "sessions", "open at a time; a further Open gets 403", 1),
    Limit("session-idle", 300.0, "s", "a session without any traffic ends (MT-30)", 0.001),
    Limit("authentication", 30.0, "s", "a session that is not authenticated by then ends", 0.001),
    Limit("login-delay", 1.0, "s", "from a failed login's arrival to its answer"),
    Limit("prefetch", 100, "contents", "unconfirmed ones a reader may hold (MT-27)", 1),
    *BROKER_LIMITS,
)

CLIENT_LIMITS: Final = (
    *SHARED_LIMITS,
    Limit("request-timeout", 2.5, "s", "for a reply; then on a new socket again (MT-28)", 0.001),
    Limit("login-timeout", 12.0, "s", "for the reply to Authorize: servers let logins wait", 0.001),
    Limit("request-tries", 3, "tries", "before a request fails (MT-28)", 1),
    Limit("window", 1000, "contents", "sent by a writer and not confirmed yet", 1),
    Limit(
        "unsent-bytes", 64 << 20, "bytes", "of contents that wait to be sent; send fails above", 1
    ),
    Limit(
        "peer-bytes",
        256 << 20,
        "bytes",
        "libzmq holds for one flow, each way, at content-bytes a message; one at least; with"
        " confirm full no more than the window goes out",
        1,
    ),
    Limit(
        "backlog-bytes",
        16 << 20,
        "bytes",
        "a reader keeps for async for; then it reads no more",
        1,
    ),
    Limit("renewals", 10, "times", "a flow is renewed in a row, with nothing of it answered", 1),
    Limit("drain", 4.0, "s", "close() waits this long for what is in flight"),
)


# ── The server's session ──────────────────────────────────────────────────────────────────────────


class Step:
    """What leads on beside the peer's frames."""

    GRANTED = Own()  # the client is who it says, or need not say
    CHALLENGED = Own()  # the SASL cycle continues
    DENIED = Own()  # the SASL cycle ended without success, or the authentication has ended
    READER_LEASED = Own()  # the lease that was shown is one of Connection.Reader
    WRITER_LEASED = Own()  # the lease that was shown is one of Connection.Writer
    CONTENT_LOST = Own()  # content of the flow never will be safe
    FLOW_ENDED = Own()  # the peer is gone, the session of the lease has ended, or content was lost
    OPENED = Own()  # the server answered 201 to Open or Authorize
    UNAUTHORIZED = Own()  # the server answered 401
    PROFILE_SELECTED = Own()  # the server answered 200 to Profile
    SOCKET_CHANGED = Own()  # the server does not know the new socket
    RENEWED = Own()  # a lease and a socket are there
    LEASE_ACCEPTED = Own()  # the server answered 200 to the lease
    FLOW_LOST = Own()  # the server answered 403 to a command, or nothing
    FLOW_CLOSED = Own()  # the caller wants no more


class SessionState(State):
    """A session is in one of these states; a peer without one is in ``NEW``."""

    NEW = auto()
    UNAUTHORIZED = auto()
    AUTHORIZING = auto()  # a response is being looked at
    CHALLENGED = auto()
    READY = auto()
    PROFILED = auto()


_ALWAYS: Final[Mapping[Happening, SessionState]] = {
    Open: SessionState.UNAUTHORIZED,
    Authorize: SessionState.AUTHORIZING,
    Step.DENIED: SessionState.UNAUTHORIZED,
}

SESSION: Final[Table[SessionState]] = {
    SessionState.NEW: {Open: SessionState.UNAUTHORIZED},
    SessionState.UNAUTHORIZED: {**_ALWAYS, Step.GRANTED: SessionState.READY},
    SessionState.AUTHORIZING: {
        Step.GRANTED: SessionState.READY,
        Step.CHALLENGED: SessionState.CHALLENGED,
        Step.DENIED: SessionState.UNAUTHORIZED,
    },
    SessionState.CHALLENGED: _ALWAYS,
    SessionState.READY: {**_ALWAYS, SelectProfile: SessionState.PROFILED},
    SessionState.PROFILED: {
        **_ALWAYS,
        **to(SessionState.PROFILED, SelectProfile, RequestReader, RequestWriter),
    },
}
"""A request that is in no row gets 401 before authentication and 409 after it (``MT-03``)."""


# ── The server's data flow ────────────────────────────────────────────────────────────────────────


class FlowState(State):
    """A data connection is in one of these states."""

    UNLEASED = auto()  # no lease was shown, or what it gave has ended
    READING = auto()
    WRITING = auto()
    BROKEN = auto()  # what it wrote could not be made safe; it ends when all before it is settled


FLOW: Final[Table[FlowState]] = {
    FlowState.UNLEASED: {
        Step.READER_LEASED: FlowState.READING,
        Step.WRITER_LEASED: FlowState.WRITING,
        Ping: FlowState.UNLEASED,
    },
    FlowState.READING: {
        **to(FlowState.READING, Summon, Dismiss, Confirm, Reject, Ping, Pong),
        Step.FLOW_ENDED: FlowState.UNLEASED,
    },
    FlowState.WRITING: {
        **to(FlowState.WRITING, Content, Ping, Pong),
        Step.CONTENT_LOST: FlowState.BROKEN,
        Step.FLOW_ENDED: FlowState.UNLEASED,
    },
    FlowState.BROKEN: {
        **to(FlowState.BROKEN, Ping, Pong, Step.CONTENT_LOST),
        Step.FLOW_ENDED: FlowState.UNLEASED,
    },
}

REFUSALS: Final[Mapping[FlowState, Mapping[type, int]]] = {
    FlowState.UNLEASED: {Lease: 403, Summon: 403, Dismiss: 403, Content: 403},
    FlowState.READING: {Lease: 403, Content: 403},
    FlowState.WRITING: {Lease: 403, Summon: 400, Dismiss: 400},
    FlowState.BROKEN: {Lease: 403, Summon: 400, Dismiss: 400, Content: 403},
}
"""This maps an illegal command to the code of its Response; one without a code is dropped and
counted (``MT-11``, ``MT-14``, ``MT-18``, ``MT-19``)."""


# ── The client's session ──────────────────────────────────────────────────────────────────────────


class ClientState(State):
    """What the server has agreed to, as far as the client knows."""

    CLOSED = auto()
    UNAUTHORIZED = auto()
    READY = auto()
    PROFILED = auto()


_ANSWERS: Final[Mapping[Happening, ClientState]] = {
    Step.OPENED: ClientState.READY,
    Step.UNAUTHORIZED: ClientState.UNAUTHORIZED,
    Step.SOCKET_CHANGED: ClientState.CLOSED,
}

CLIENT: Final[Table[ClientState]] = {
    ClientState.CLOSED: _ANSWERS,
    ClientState.UNAUTHORIZED: _ANSWERS,
    ClientState.READY: {**_ANSWERS, Step.PROFILE_SELECTED: ClientState.PROFILED},
    ClientState.PROFILED: {**_ANSWERS, Step.PROFILE_SELECTED: ClientState.PROFILED},
}
"""A request is sent in any state: the server says what it thinks of it."""


# ── The client's data flow ────────────────────────────────────────────────────────────────────────


class ClientFlowState(State):
    """Where a data flow stands, as its client knows it."""

    LOST = auto()  # no lease, or no socket: renew
    LEASING = auto()  # the lease was shown
    OPEN = auto()
    CLOSED = auto()


_STEPS: Final[Mapping[Happening, ClientFlowState]] = {
    Step.RENEWED: ClientFlowState.LEASING,
    Step.FLOW_LOST: ClientFlowState.LOST,
    Step.FLOW_CLOSED: ClientFlowState.CLOSED,
}

CLIENT_FLOW: Final[Table[ClientFlowState]] = {
    ClientFlowState.LOST: _STEPS,
    ClientFlowState.LEASING: {
        **_STEPS,
        Step.LEASE_ACCEPTED: ClientFlowState.OPEN,
        **to(ClientFlowState.LEASING, Ping, Pong, Response),
    },
    ClientFlowState.OPEN: {
        **_STEPS,
        **to(ClientFlowState.OPEN, Response, Content, Confirm, Reject, Ping, Pong),
    },
    ClientFlowState.CLOSED: {Step.FLOW_CLOSED: ClientFlowState.CLOSED},
}
"""A command in no row is dropped and counted."""


# ── Events of a client's control flow ─────────────────────────────────────────────────────────────


@dataclass(slots=True)
class Answered:
    """Request ``number`` was answered with yes (for Open: 201 or 401)."""

    number: int
    reply: Reply


@dataclass(slots=True)
class RequestRefused:
    """Request ``number`` was answered with no: ``code`` and the server's reason."""

    number: int
    code: int
    reason: str


@dataclass(slots=True)
class RequestTimedOut:
    """Nobody answered request ``number``, on as many sockets as the limit says."""

    number: int


@dataclass(slots=True)
class LeaseGranted:
    """The lease of request ``number`` is here, for the first time or again."""

    number: int
    port: int
    token: str
    content_bytes: int | None = None  # the server's limit, where it says
    new: tuple[str, ...] = ()  # resources that are made by the first content


@dataclass(slots=True)
class SocketDropped:
    """No reply came in time: close the socket, continue with a new one."""


ClientEvent = Answered | RequestRefused | RequestTimedOut | LeaseGranted | SocketDropped


# ── Events of a client's data flow ────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class FlowOpened:
    """The lease was accepted; for the first time or again."""


@dataclass(slots=True)
class Responded:
    """Command ``number`` was answered with this code."""

    number: int
    code: int


@dataclass(slots=True)
class ContentsReceived:
    """Contents arrived from the server, as columns; ``properties`` as they came."""

    sequences: list[int]
    resources: list[str]
    properties: list[bytes]
    bodies: list[bytes]


@dataclass(slots=True)
class ContentsConfirmed:
    """These contents (the numbers that ``send`` returned) are safe, in the order of sending."""

    numbers: list[int]


@dataclass(slots=True)
class ContentsRefused:
    """These contents were rejected."""

    numbers: list[int]


LEASE_UNANSWERED: Final = "the lease was not answered"
"""A suspended flow has this reason if its data port said nothing."""


@dataclass(slots=True)
class FlowSuspended:
    """The flow is lost: get another lease and a socket, then ``renew``."""

    reason: str


@dataclass(slots=True)
class FlowGivenUp:
    """Nothing of the flow is sent again: ``close`` it.

    It was renewed as often as it may, and all was in vain: a content that the server's limits
    forbid ends the connection each time it is sent.  ``code`` is that of the server's last answer,
    if it answers with no; None: it does not answer.

    Or the server has rejected content and does not know the flow any more: what follows it was not
    accepted either, and to send it again would leave a gap.
    """

    reason: str
    code: int | None = None


ClientFlowEvent = (
    FlowOpened
    | Responded
    | ContentsReceived
    | ContentsConfirmed
    | ContentsRefused
    | FlowSuspended
    | FlowGivenUp
)
