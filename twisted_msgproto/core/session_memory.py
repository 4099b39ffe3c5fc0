"""What sessions keep for their peers has one bound for the process, of all sessions.

Nobody is late with a call that waits or a topic that is open, so nobody is cut off: a session that
keeps more than its share is refused the next one while all together keep too much.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from sys import getsizeof
from typing import Final

SESSION_LIMIT: Final = "process-session-bytes"

SESSION_WEIGHT_BYTES: Final = 256
"""What is kept counts as this many bytes beside its own: the objects that it is made of."""

ENTRY_BYTES: Final = 80
"""A pair of texts counts as this many bytes beside them: its place in a table."""

SMALL_BYTES: Final = 8 << 10
"""A session that keeps no more than this is never refused anything for what others keep."""

CROWDED_SHARE: Final = 1.5
"""Above this many limits shares are small.  They have to be: sessions that came when there were few
keep what they have, and a limit / 1, / 2, / 3, … of 12,000 sessions is ten limits together.
"""

CROWD: Final = 20
"""Shares are divided by this then, so that all that is added still is half a limit."""


def text_bytes(text: str) -> int:
    """Return what a text occupies: for one character beyond ASCII all can have four bytes each."""
    return len(text) if text.isascii() else getsizeof(text)


def table_bytes(texts: Mapping[str, str]) -> int:
    """Return what a table of texts occupies: it may be sixty times what came over the wire."""
    nbytes = sum(map(getsizeof, texts)) + sum(map(getsizeof, texts.values()))
    return nbytes + ENTRY_BYTES * len(texts)


class SessionMemory:
    """Up to 12,000 sessions keep at most twice ``limit``, and each :data:`SMALL_BYTES`."""

    def __init__(self, limit: float = inf) -> None:
        self.limit: float = limit
        self.nbytes = 0
        self.sessions = 0

    def bound(self, limit: float) -> None:
        self.limit = min(self.limit, limit)


class MemoryShare:
    """What one session keeps, in bytes, with the weight of each piece."""

    __slots__ = ("_every", "nbytes")

    def __init__(self, every: SessionMemory | None = None) -> None:
        """``every`` counts those of all sessions; without it this one has no bound."""
        self._every = SessionMemory() if every is None else every
        self.nbytes: int = 0

    def fits(self, nbytes: int) -> bool:
        every = self._every
        limit, together = every.limit, every.nbytes + nbytes
        if together <= limit:
            return True
        share = limit / (every.sessions + (not self.nbytes))
        if together > limit * CROWDED_SHARE:
            share /= CROWD
        return self.nbytes + nbytes <= max(SMALL_BYTES, share)

    def take(self, nbytes: int) -> bool:
        """Keep ``nbytes`` more if they fit: one call for both, since each message asks."""
        every = self._every
        if every.nbytes + nbytes > every.limit and not self.fits(nbytes):
            return False
        if nbytes and not self.nbytes:
            every.sessions += 1
        self.nbytes += nbytes
        every.nbytes += nbytes
        return True

    def add(self, nbytes: int) -> None:
        if nbytes:
            every = self._every
            if not self.nbytes:
                every.sessions += 1
            self.nbytes += nbytes
            every.nbytes += nbytes

    def remove(self, nbytes: int) -> None:
        if nbytes:
            every = self._every
            self.nbytes -= nbytes
            every.nbytes -= nbytes
            if not self.nbytes:
                every.sessions -= 1

    def clear(self) -> None:
        """What those still add or remove who hear late of the end counts nowhere."""
        self.remove(self.nbytes)
        self._every = SessionMemory()
