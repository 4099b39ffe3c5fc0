"""Deadlines say when a machine has to be called next, without a clock.

A deadline may be early, and is never late.  What happens for each message would move a deadline
each time ("nothing came for 120 s"), so machines note the time alone.  When the deadline comes, the
machine finds that there is nothing to do yet and sets it again: one check every 120 s.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

from .errors import LimitExceeded

K = TypeVar("K", bound=Hashable)


class Deadlines:
    """A few named deadlines, and knows the nearest.

    Attributes:
        next: the nearest deadline, in the machine's seconds; None if none is set.  To be read only.
    """

    __slots__ = ("_times", "next")

    def __init__(self) -> None:
        self._times: dict[str, float] = {}
        self.next: float | None = None

    def __contains__(self, name: str) -> bool:
        return name in self._times

    def set(self, name: str, at: float) -> None:
        """Fall due at ``at`` seconds, whatever was set before."""
        times, nearest = self._times, self.next
        before = times.get(name)
        times[name] = at
        if nearest is None or at <= nearest:
            self.next = at
        elif before == nearest:
            self.next = min(times.values())

    def no_later(self, name: str, at: float) -> None:
        """Fall due at ``at`` seconds, or earlier if that was set before."""
        before = self._times.get(name)
        if before is None or at < before:
            self.set(name, at)

    def clear(self, name: str) -> None:
        """Forget a deadline, if it was set."""
        times = self._times
        if times.pop(name, None) == self.next:
            if times:
                self.next = min(times.values())
            else:
                self.clear_all()  # a dict that had something keeps the room for it, but not then

    def clear_all(self) -> None:
        """Forget all deadlines."""
        self._times.clear()
        self.next = None

    def due(self, now: float) -> list[str]:
        """Remove and return the names of all deadlines at or before ``now``, earliest first.

        Deadlines of the same time come in the order of their setting.
        """
        if self.next is None or now < self.next:
            return []
        times = self._times
        names = sorted((name for name, at in times.items() if at <= now), key=times.__getitem__)
        for name in names:
            del times[name]
        self.next = min(times.values()) if times else None
        return names


class ManyDeadlines(Generic[K]):
    """A deadline for each of any number of keys; the cost of a call does not grow with them.

    Moving a deadline leaves its old row in the heap until it comes to the top, or until outdated
    rows outnumber the others; so memory is bounded by the number of keys.
    """

    __slots__ = ("_rows", "_stamp", "_stamps", "next")

    def __init__(self) -> None:
        self._rows: list[tuple[float, int, K]] = []
        self._stamps: dict[K, int] = {}  # that row of a key is the one in force
        self._stamp = 0
        self.next: float | None = None  # the nearest, of the machine's seconds; to be read only

    def __len__(self) -> int:
        return len(self._stamps)

    def __contains__(self, key: K) -> bool:
        return key in self._stamps

    def set(self, key: K, at: float) -> None:
        self._stamp += 1
        self._stamps[key] = self._stamp
        heapq.heappush(self._rows, (at, self._stamp, key))
        self._tidy()

    def clear(self, key: K) -> None:
        if self._stamps.pop(key, None) is not None:
            self._tidy()

    def clear_all(self) -> None:
        self._rows.clear()
        self._stamps.clear()
        self.next = None

    def due(self, now: float) -> list[K]:
        """Remove and return the keys due at ``now``, earliest first, then as they were set."""
        keys = []
        while self.next is not None and self.next <= now:
            key = heapq.heappop(self._rows)[2]
            del self._stamps[key]
            keys.append(key)
            self._tidy()
        return keys

    def _tidy(self) -> None:
        rows, stamps = self._rows, self._stamps
        if len(rows) > 2 * len(stamps) + 64:
            rows[:] = [row for row in rows if stamps.get(row[2]) == row[1]]
            heapq.heapify(rows)
        while rows and stamps.get(rows[0][2]) != rows[0][1]:
            heapq.heappop(rows)
        self.next = rows[0][0] if rows else None


# ── correlates answers with those who wait for them ─────────────────────────────────────────────


W = TypeVar("W")


class Pending(Generic[K, W]):
    """At most ``limit`` waiters, without a clock: ``expire(now)`` at ``next_deadline()``."""

    __slots__ = ("_deadlines", "_own", "_waiters", "limit")

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValueError(f"at least 1 waiter, not {limit}")
        self.limit: int = limit
        self._waiters: dict[K, W] = {}
        self._deadlines: ManyDeadlines[K] = ManyDeadlines()
        self._own: set[K] | None = None  # of whose deadlines none is moved; most need none

    def __len__(self) -> int:
        return len(self._waiters)

    def __contains__(self, key: K) -> bool:
        return key in self._waiters

    @property
    def full(self) -> bool:
        return len(self._waiters) >= self.limit

    def add(self, key: K, waiter: W, deadline: float | None = None, *, own: bool = False) -> None:
        """Let ``waiter`` wait for ``key`` until ``deadline`` (None: for ever), in any case if it is
        its ``own``.  LimitExceeded when full, ValueError when somebody waits for ``key`` already.
        """
        waiters = self._waiters
        if key in waiters:
            raise ValueError(f"{key!r} is pending already")
        if len(waiters) >= self.limit:
            raise LimitExceeded(f"{self.limit} are pending already")
        waiters[key] = waiter
        if deadline is not None:
            self._deadlines.set(key, deadline)
        if own:
            self._own = self._own or set()
            self._own.add(key)

    def get(self, key: K) -> W | None:
        return self._waiters.get(key)

    def resolve(self, key: K) -> W | None:
        self._deadlines.clear(key)
        if self._own:
            self._own.discard(key)
        return self._waiters.pop(key, None)

    def next_deadline(self) -> float | None:
        return self._deadlines.next

    def expire(self, now: float, later: float = 0.0) -> list[tuple[K, W]]:
        """Those whose deadline is not their own wait until ``later``, if that is after ``now``."""
        expired = []
        for key in self._deadlines.due(now):
            if later > now and key not in (self._own or ()):
                self._deadlines.set(key, later)
            else:
                expired.append((key, self._waiters[key]))
                self.resolve(key)
        return expired

    def keys(self) -> list[K]:
        return list(self._waiters)

    def drain(self) -> list[tuple[K, W]]:
        drained = list(self._waiters.items())
        self._waiters.clear()
        self._own = None
        self._deadlines.clear_all()
        return drained
