"""A data flow that loses its lease asks for another one, but not for ever in a hurry."""

from __future__ import annotations

import random as random_module
from collections.abc import Callable
from math import inf
from typing import Final

from ...net.clients.reconnect import Backoff

RENEWAL_SECONDS: Final = 1.0
"""After a lease could not be renewed: how long until the client tries again."""

RENEWAL_SECONDS_MOST: Final = 60.0
"""A flow whose leases end soon waits at most this long for the next."""

RENEWALS_AT_ONCE: Final = 10
"""This number of leases in a row that end soon and were of no use are renewed without a wait."""

STEADY_SECONDS: Final = 10.0
"""A lease that stood this long has not ended soon."""


class Hurry:
    """How soon the leases of a flow end, and how long to wait for the next."""

    def __init__(self, random: Callable[[], float] = random_module.random) -> None:
        """``random`` returns numbers from 0 to 1."""
        self._backoff = Backoff(RENEWAL_SECONDS, RENEWAL_SECONDS_MOST, random)
        self._since = -inf  # when the newest lease was asked for
        self._soon = 0  # leases in a row that have ended soon
        self._of_use = False  # a content was received or confirmed under the newest lease

    def begun(self, now: float) -> None:
        self._since = now

    def used(self) -> None:
        """A content was received or confirmed: the lease was of use, however soon it ends.

        A gateway that restarts often is no server that grants leases and ends them.
        """
        self._of_use = True

    def next(self, now: float) -> float:
        """Return the seconds to wait: a lease has ended; 0.0: another one is asked for now."""
        if self._of_use or now >= self._since + STEADY_SECONDS:
            self._soon = 0
            self._of_use = False
            self._backoff.reset()
        self._soon += 1
        if self._soon > RENEWALS_AT_ONCE:
            return self._backoff.next()
        self.begun(now)
        return 0.0
