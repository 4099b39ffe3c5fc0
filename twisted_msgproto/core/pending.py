"""Correlates answers with those who wait for them: each correlation id has a waiter and a deadline,
and their number is limited.

This serves protocols whose messages are answered one by one and in any order (calls, requests,
control commands).  Time comes in as an argument; nothing here has a clock.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

from .errors import LimitExceeded

K = TypeVar("K", bound=Hashable)
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
        self.limit = limit
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
        """Return the waiter for ``key`` and leave it waiting; None if nobody waits."""
        entry = self._waiters.get(key)
        return None if entry is None else entry[1]

    def resolve(self, key: K) -> W | None:
        """Remove and return the waiter for ``key``; None if nobody waits for it (any more)."""
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
        """When ``expire`` has work next; None if no deadline is set."""
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
