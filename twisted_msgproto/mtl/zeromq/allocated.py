"""Bound the memory that libzmq has allocated by the cheapest question that suffices (``NB-02``).

The exact question makes the C library walk over everything that is free, in the reactor's thread:
with a hundred thousand free pieces it needs 5 to 18 ms, and it was asked twenty times a second.
Most of the time something cheaper shows that there cannot be too much: threads that have hardly
worked since the last answer have hardly allocated anything.
"""

from __future__ import annotations

from math import inf
from typing import Any, Final

from ...net.backpressure import OctetBudget
from ...net.memory import FEW_OCTETS

WORK_OCTETS: Final = 8 << 30
"""libzmq's thread fills at most this much memory in a second of processor time: six times what it
did on a busy machine of 2.2 GHz, with frames of any size from none to eight million octets."""

AGAIN_SECONDS: Final = 1.0
"""If the octets of all threads did not suffice, that question is not asked again for this time: it
walks over free pieces as well."""


class Allocated:
    """Bounds the octets that the threads of libzmq have allocated."""

    def __init__(self, budget: OctetBudget, clock: Any) -> None:
        self._budget = budget
        self._clock = clock
        self._known = inf  # the last answer, in octets
        self._worked = 0.0  # processor seconds of other threads before that question
        self._again = -inf

    def exactly(self) -> int | None:
        """Return the allocated octets; None where the C library does not tell."""
        worked = self._budget.worked()
        allocated = self._budget.allocated()
        # Threads with few octets were not counted, and count as soon as they have more.
        self._note(None if allocated is None else allocated + FEW_OCTETS, worked)
        return allocated

    def at_most(self, enough: float) -> float | None:
        """Return a bound of the allocated octets; a bound above ``enough`` is their exact number.

        None where the C library does not tell.
        """
        bound = self._by_work()
        if bound <= enough:
            return bound
        bound = self._by_all(enough)
        return bound if bound <= enough else self.exactly()

    def _by_work(self) -> float:
        """Return the octets that other threads can have allocated by now."""
        worked = self._budget.worked()
        return inf if worked is None else self._known + WORK_OCTETS * (worked - self._worked)

    def _by_all(self, enough: float) -> float:
        """Return the octets of all threads, the reactor's too; infinity if they do not suffice."""
        now = self._clock.seconds()
        if now < self._again:
            return inf
        worked = self._budget.worked()
        allocated = self._budget.allocated_at_most()
        if allocated is None or allocated > enough:
            self._again = now + AGAIN_SECONDS
            return inf
        self._note(allocated, worked)
        return allocated

    def _note(self, allocated: int | None, worked: float | None) -> None:
        self._known = inf if allocated is None else allocated
        self._worked = worked or 0.0


__all__ = ["AGAIN_SECONDS", "WORK_OCTETS", "Allocated"]
