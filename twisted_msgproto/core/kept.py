"""What sessions keep for their peers has one bound for the process, of all sessions.

A call that waits for its answer, an attribute, an open topic: each session has its own limits for
them, but thousands of sessions at these limits would fill the memory.  Nobody is late with them, so
nobody is cut off: a session that keeps more than its share is refused the next one while all
together keep too much.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from sys import getsizeof
from typing import Final

KEPT_LIMIT: Final = "process-kept-octets"

KEPT_WEIGHT_OCTETS: Final = 256
"""What is kept counts as this many octets beside its own: the objects that it is made of."""

ENTRY_OCTETS: Final = 80
"""A pair of texts counts as this many octets beside them: its place in a table."""

SMALL_OCTETS: Final = 8 << 10
"""A session that keeps no more than this is never refused anything for what others keep."""

CROWDED_SHARE: Final = 1.5
"""Above this many limits shares are small.  They have to be: sessions that came when there were few
keep what they have, and a limit / 1, / 2, / 3, … of 12,000 sessions is ten limits together.
"""

CROWD: Final = 20
"""Shares are divided by this then, so that all that is added still is half a limit."""


def table_octets(texts: Mapping[str, str]) -> int:
    """Return what a table of texts occupies: it may be sixty times what came over the wire."""
    octets = sum(map(getsizeof, texts)) + sum(map(getsizeof, texts.values()))
    return octets + ENTRY_OCTETS * len(texts)


class Kept:
    """What all sessions of a process keep.

    All together (up to 12,000) keep at most twice ``limit``, and :data:`SMALL_OCTETS` for each
    session beside it.

    Attributes:
        limit: octets; above it sessions with more than their share of it are refused.
        octets: octets that are kept now.
        sessions: sessions which keep anything now; each one's share is limit / sessions.
    """

    def __init__(self, limit: float = inf) -> None:
        self.limit = limit
        self.octets = 0
        self.sessions = 0

    def bound(self, limit: float) -> None:
        """Set the limit to ``limit`` octets unless it is smaller already."""
        self.limit = min(self.limit, limit)


class Keeping:
    """What one session keeps.

    Attributes:
        octets: octets that it keeps, with the weight of each piece.
    """

    __slots__ = ("_every", "octets")

    def __init__(self, every: Kept | None = None) -> None:
        """``every`` counts those of all sessions; without it this one has no bound."""
        self._every = Kept() if every is None else every
        self.octets = 0

    def fits(self, octets: int) -> bool:
        every = self._every
        limit, together = every.limit, every.octets + octets
        if together <= limit:
            return True
        share = limit / (every.sessions + (not self.octets))
        if together > limit * CROWDED_SHARE:
            share /= CROWD
        return self.octets + octets <= max(SMALL_OCTETS, share)

    def take(self, octets: int) -> bool:
        """Keep ``octets`` more if they fit: one call for both, since each message asks."""
        every = self._every
        if every.octets + octets > every.limit and not self.fits(octets):
            return False
        if octets and not self.octets:
            every.sessions += 1
        self.octets += octets
        every.octets += octets
        return True

    def add(self, octets: int) -> None:
        if octets:
            every = self._every
            if not self.octets:
                every.sessions += 1
            self.octets += octets
            every.octets += octets

    def remove(self, octets: int) -> None:
        if octets:
            every = self._every
            self.octets -= octets
            every.octets -= octets
            if not self.octets:
                every.sessions -= 1

    def clear(self) -> None:
        """Keep nothing more: the connection has gone.  What is still added or removed after that,
        by those who hear of it late, is counted nowhere.
        """
        self.remove(self.octets)
        self._every = Kept()
