"""All clients that reconnect share these limits, states and intervals; nothing here needs
Twisted.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Final

from ...core.limits import Limit

COMEBACK_LIMITS: Final = (
    Limit("retry-first", 1.0, "s", "from a lost connection to the next attempt", 0.001),
    Limit("retry-most", 60.0, "s", "between two attempts, however many have failed", 0.001),
    Limit("refused-first", 2.0, "s", "from a refusal to the next attempt", 0.001),
    Limit("refused-most", 300.0, "s", "between two attempts, however many were refused", 0.001),
    Limit("steady-seconds", 10.0, "s", "after a session of this length the intervals begin anew"),
    Limit("waiting-seconds", 60.0, "s", "a verb waits for a session, then TimedOut", 0.001),
    Limit("waiting-verbs", 10_000, "verbs", "wait for a session; one more gets LimitExceeded", 1),
    Limit("waiting-octets", 64 << 20, "octets", "of what waits for a session", 1),
)

DRAIN_SECONDS: Final = 4.0
"""Calls in flight get this many seconds when a service stops, if the factory has no limit
``drain``.
"""

BACKOFF_FACTOR: Final = 2.0

BACKOFF_JITTER: Final = 0.5
"""This share of a wait is random, lest all clients reconnect at the same moment."""

DOUBLINGS_MOST: Final = 64
"""The exponent is bounded, since a float has an end after a thousand attempts."""


class ComebackState(StrEnum):
    """These are the states of a client that reconnects; each member equals its name in lower
    case.
    """

    CONNECTING = "connecting"

    UP = "up"

    DOWN = "down"
    """There is no connection: not started, stopped, or the next attempt is yet to come."""

    REFUSED = "refused"
    """The server said no.  It stays so during further attempts, until one ends otherwise."""


class Backoff:
    """The waits before attempts: they grow each time, and differ between clients.

    Attributes:
        attempts: attempts that have failed since :meth:`reset`.
    """

    __slots__ = ("_first", "_jitter", "_most", "_random", "attempts")

    def __init__(
        self,
        first: float,
        most: float,
        random: Callable[[], float],
        jitter: float = BACKOFF_JITTER,
    ) -> None:
        """Make intervals from ``first`` to ``most`` seconds; ``random`` returns numbers from 0
        to 1.
        """
        self._first = first
        self._most = most
        self._random = random
        self._jitter = jitter
        self.attempts = 0

    def next(self) -> float:
        """Return seconds to wait now; one attempt more has failed."""
        doubled = self._first * BACKOFF_FACTOR ** min(self.attempts, DOUBLINGS_MOST)
        self.attempts += 1
        return min(self._most, doubled) * (1 - self._jitter * self._random())

    def reset(self) -> None:
        self.attempts = 0
