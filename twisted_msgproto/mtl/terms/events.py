"""The machines of a client report these events: its control flow, and one of its data flows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..wire.control import Reply

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
