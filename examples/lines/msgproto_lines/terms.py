"""Limits, states, events and counters."""

from __future__ import annotations

from dataclasses import dataclass
from enum import auto
from typing import Any

from twisted_msgproto.extend import Limit
from twisted_msgproto.extend import State as AnyState

LIMITS = (
    Limit("line-bytes", 1 << 20, "bytes", "of a line; a longer one ends the connection", 64),
    Limit("in-flight", 10_000, "lines", "of a client, which the server has not acknowledged", 1),
    Limit("ack-seconds", 30.0, "s", "without any ack end a client's connection", 0.001),
    Limit("unread-bytes", 16 << 20, "bytes", "wait for a subscriber; with more it is cut off", 1),
    Limit("login-seconds", 30.0, "s", "for a client to log in, where a server has users", 0.001),
)


class State(AnyState):
    """Where a side stands; from each state only those below it can be reached."""

    LOGIN = auto()
    OPEN = auto()
    DRAINING = auto()
    CLOSED = auto()


@dataclass(slots=True)
class BodiesReceived:
    """One read brought these bodies; ``first`` is the number of the first one's line, from 1."""

    bodies: list[bytes]
    first: int
    position: int


@dataclass(slots=True)
class BodiesStored:
    """These bodies are safe."""

    bodies: list[bytes]


@dataclass(slots=True)
class SubscriptionAsked:
    """The client wants what is put from now on."""


@dataclass(slots=True)
class LoginAsked:
    """The client says who it is."""

    name: str
    password: str


@dataclass(slots=True)
class LetIn:
    """The server has let us in."""


@dataclass(slots=True)
class Acknowledged:
    """What these callers asked for is done."""

    waiters: list[Any]


@dataclass(slots=True)
class BodyPublished:
    """Somebody has put this body."""

    body: bytes


@dataclass(slots=True)
class Counters:
    """What one connection has counted."""

    lines: int = 0
