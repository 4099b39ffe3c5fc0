"""Backpressure pauses the reading of a connection while too much waits.

Nothing is dropped for lack of space.  A connection is not read while one of these reasons holds: it
or all connections together have too many octets that are not safe yet, its peer does not read what
we write, or more of its octets must be decoded first.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any, Protocol


class ReadControl:
    """Pauses and resumes the reading of one transport, for any number of reasons at a time."""

    __slots__ = ("_changed", "_reasons", "_transport")

    def __init__(self, transport: Any, changed: Callable[[bool], None] = lambda paused: None):
        """``changed(paused)`` is called whenever a reason comes or goes."""
        self._transport = transport
        self._changed = changed
        self._reasons: set[str] = set()

    @property
    def paused(self) -> bool:
        """The transport is not read now."""
        return bool(self._reasons)

    @property
    def reasons(self) -> frozenset[str]:
        """Return why not."""
        return frozenset(self._reasons)

    def pause(self, reason: str) -> None:
        """Do not read while ``reason`` stands."""
        if reason not in self._reasons:
            self._reasons.add(reason)
            if len(self._reasons) == 1:
                self._transport.pauseProducing()
            self._changed(True)

    def resume(self, reason: str) -> None:
        """``reason`` stands no longer: read again unless there is another."""
        if reason in self._reasons:
            self._reasons.discard(reason)
            if not self._reasons:
                self._transport.resumeProducing()
            self._changed(bool(self._reasons))


class Holder(Protocol):
    """Holds octets of incomplete frames or messages, as a connection does."""

    def cutOff(self, octets: int, limit: float) -> None:
        """End at once: ``octets`` are held, the most of all, who together may hold ``limit``."""


class HeldOctets:
    """Bounds the octets of incomplete frames and messages, over all connections of a process.

    Pausing would not free them, because their missing parts would not arrive.  Above the limit the
    connection that uses the most memory is closed; an ordinary connection uses little and is never
    chosen.

    Attributes:
        limit: octets.
        held: octets that are held now.
    """

    def __init__(self) -> None:
        self.limit = inf
        self.held = 0
        self._holders: dict[Holder, int] = {}

    def hold(self, holder: Holder, octets: int) -> None:
        """Set the octets that ``holder`` holds now; it or others may be closed before this
        returns.
        """
        self.held += octets - self._holders.pop(holder, 0)
        if octets:
            self._holders[holder] = octets
        while self.held > self.limit:
            most = max(self._holders, key=self._holders.__getitem__)
            held = self._holders.pop(most)
            self.held -= held
            most.cutOff(held, self.limit)


class OctetBudget:
    """Bounds the octets that wait for the sink, over all connections of a process; above the limit
    nothing is read.

    Attributes:
        limit: octets; reading stops above it and resumes at half of it.
        waiting: octets that wait now.
        held: octets of incomplete messages, which cannot go to the sink yet.
    """

    def __init__(self, limit: float = inf, reason: str = "process-octets") -> None:
        """``reason`` is what connections are paused for; two budgets have two reasons."""
        self.limit = limit
        self.held = HeldOctets()
        self._reason = reason
        self.waiting = 0
        self._paused: dict[ReadControl, None] = {}

    def bound(self, waiting: float, held: float) -> None:
        """One of the servers of this process has these limits; the smallest of all hold."""
        self.limit = min(self.limit, waiting)
        self.held.limit = min(self.held.limit, held)

    def add(self, octets: int, control: ReadControl) -> None:
        """Note that ``octets`` of the connection behind ``control`` wait from now on."""
        self.waiting += octets
        if self.waiting > self.limit:
            self._paused[control] = None
            control.pause(self._reason)

    def remove(self, octets: int) -> None:
        """Note that ``octets`` wait no longer."""
        self.waiting -= octets
        if self._paused and self.waiting <= self.limit // 2:
            paused, self._paused = self._paused, {}
            for control in paused:
                control.resume(self._reason)

    def forget(self, control: ReadControl) -> None:
        """Note that the connection behind ``control`` is gone; its octets still wait for the
        sink.
        """
        self._paused.pop(control, None)
