"""The machines of MTL report these events: the broker, a client's control flow, one of its data
flows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ..wire.control import Reply

if TYPE_CHECKING:
    from ..machine.flows import WritingFlow
    from ..machine.sessions import Place, Session

# ── The broker ────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class AuthenticationRequested:
    """A response arrived; answer with ``challenge``, ``authorize`` or ``refuse`` (``MT-08``).

    ``first`` is True where a new cycle begins.
    """

    session: Session
    mechanism: str
    response: bytes
    first: bool


@dataclass(slots=True)
class SessionOpened:
    """A client has opened a session; it may have to authenticate still."""

    session: Session


@dataclass(slots=True)
class SessionRefused:
    """A client wanted to open a session, above the limit of this name."""

    limit: str


@dataclass(slots=True)
class KeptTooMuch:
    """A client was refused ``what`` it wanted, because all sessions together keep too much for
    their clients.
    """

    what: str


@dataclass(slots=True)
class SessionEstablished:
    """The session's client is authenticated, or need not be."""

    session: Session


@dataclass(slots=True)
class SessionEnded:
    """The session is over; ``reason`` is a word for logs: ``reopened``, ``idle``, ``lost``, …"""

    session: Session
    reason: str


@dataclass(slots=True)
class ContentReceived:
    """Contents of one writer arrived, as columns; answer ``place`` with ``made_safe`` or
    ``not_safe``.

    ``texts`` are the properties as texts, None where a content has none; ``envelopes`` what the log
    keeps of contents for a broker's queues, None where there are none.
    """

    flow: WritingFlow
    place: Place
    sequences: list[int]
    resources: list[str]
    texts: list[dict[str, str] | None]
    bodies: list[bytes]
    octets: int
    envelopes: list[bytes | None] | None = None


ServerEvent = (
    AuthenticationRequested
    | SessionOpened
    | SessionRefused
    | KeptTooMuch
    | SessionEstablished
    | SessionEnded
    | ContentReceived
)


# ── A client's control flow ───────────────────────────────────────────────────────────────────────


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


@dataclass(slots=True)
class SocketDropped:
    """No reply came in time: close the socket, continue with a new one."""


ClientEvent = Answered | RequestRefused | RequestTimedOut | LeaseGranted | SocketDropped


# ── A client's data flow ──────────────────────────────────────────────────────────────────────────


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
    """These contents were refused; ``code`` is that of a Response, None for a Reject."""

    numbers: list[int]
    code: int | None


LEASE_UNANSWERED: Final = "the lease was not answered"
"""A suspended flow has this reason if its data port said nothing."""


@dataclass(slots=True)
class FlowSuspended:
    """The flow is lost: get another lease and a socket, then ``renew``."""

    reason: str


@dataclass(slots=True)
class FlowBroken:
    """The server has rejected content and does not know the flow any more: ``close`` it.

    What follows the rejected content was not accepted either.  It is not sent again by the flow:
    that would leave a gap where the rejected content was.
    """

    reason: str


@dataclass(slots=True)
class FlowGivenUp:
    """The flow was renewed as often as it may, and nothing of it was answered: ``close`` it.

    A content that the server's limits forbid ends the connection each time it is sent.
    """

    reason: str


ClientFlowEvent = (
    FlowOpened
    | Responded
    | ContentsReceived
    | ContentsConfirmed
    | ContentsRefused
    | FlowSuspended
    | FlowBroken
    | FlowGivenUp
)
