"""Deadlines say when a machine has to be called next, without a clock.

A deadline may be early, and is never late.  What happens for each message would move a deadline
each time ("nothing came for 120 s"), so machines note the time alone.  When the deadline comes, the
machine finds that there is nothing to do yet and sets it again: one check every 120 s.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from heapq import heapify, heappop, heappush
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

    Attributes:
        next: the nearest deadline, in the machine's seconds; None if none is set.  To be read only.
    """

    __slots__ = ("_rows", "_stamp", "_stamps", "next")

    def __init__(self) -> None:
        self._rows: list[tuple[float, int, K]] = []
        self._stamps: dict[K, int] = {}  # that row of a key is the one in force
        self._stamp = 0
        self.next: float | None = None

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
        """Remove and return all keys whose deadlines are at or before ``now``, earliest first.

        Keys with the same deadline come in the order of their setting.
        """
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
    """At most ``limit`` waiters, each under its own key and with its own deadline.

    A timer without a clock: ask ``next_deadline()``, come back then, and call ``expire(now)``.
    """

    __slots__ = ("_deadlines", "_stamp", "_waiters", "limit")

    def __init__(self, limit: int) -> None:
        """``limit`` is in waiters; ValueError below 1."""
        if limit < 1:
            raise ValueError(f"at least 1 waiter, not {limit}")
        self.limit: int = limit
        self._waiters: dict[K, tuple[int, W]] = {}
        self._deadlines: list[tuple[float, int, K]] = []
        self._stamp = 0  # tells a waiter from an older one under the same key

    def __len__(self) -> int:
        return len(self._waiters)

    def __contains__(self, key: K) -> bool:
        return key in self._waiters

    @property
    def full(self) -> bool:
        return len(self._waiters) >= self.limit

    def add(self, key: K, waiter: W, deadline: float | None = None) -> None:
        """Let ``waiter`` wait for ``key`` until ``deadline`` (None: for ever).

        Raises LimitExceeded when full and ValueError when somebody waits for ``key`` already.
        """
        waiters = self._waiters
        if key in waiters:
            raise ValueError(f"{key!r} is pending already")
        if len(waiters) >= self.limit:
            raise LimitExceeded(f"{self.limit} are pending already")
        self._stamp = stamp = self._stamp + 1
        waiters[key] = stamp, waiter
        if deadline is not None:
            heappush(self._deadlines, (deadline, stamp, key))

    def get(self, key: K) -> W | None:
        entry = self._waiters.get(key)
        return None if entry is None else entry[1]

    def resolve(self, key: K) -> W | None:
        entry = self._waiters.pop(key, None)
        if entry is None:
            return None
        # Answered waiters leave their deadline behind: sweep before those outnumber the rest.
        if len(self._deadlines) > 2 * len(self._waiters) + 64:
            stamps = {stamp for stamp, _ in self._waiters.values()}
            self._deadlines = [row for row in self._deadlines if row[1] in stamps]
            heapify(self._deadlines)
        return entry[1]

    def _live(self, row: tuple[float, int, K]) -> bool:
        entry = self._waiters.get(row[2])
        return entry is not None and entry[0] == row[1]

    def next_deadline(self) -> float | None:
        deadlines = self._deadlines
        while deadlines and not self._live(deadlines[0]):
            heappop(deadlines)
        return deadlines[0][0] if deadlines else None

    def expire(self, now: float) -> list[tuple[K, W]]:
        expired = []
        while (deadline := self.next_deadline()) is not None and deadline <= now:
            key = heappop(self._deadlines)[2]
            expired.append((key, self._waiters.pop(key)[1]))
        return expired

    def keys(self) -> list[K]:
        return list(self._waiters)

    def drain(self) -> list[tuple[K, W]]:
        drained = [(key, waiter) for key, (_, waiter) in self._waiters.items()]
        self._waiters.clear()
        self._deadlines.clear()
        return drained
