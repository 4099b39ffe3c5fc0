"""Who must not read now: pause reasons of one connection, and the octets of all which wait.

Nothing is dropped for want of room.  A connection is not read while there is a reason: it or all
connections together have too many octets which are not safe yet, its peer does not read what we
write, or more of what it sent must be decoded first.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any, Final, Protocol

_NO_REASON: Final[frozenset[str]] = frozenset()  # one for all: an empty one weighs 216 octets


class ReadControl:
    """Pauses and resumes the reading of one transport, for any number of reasons at a time."""

    __slots__ = ("_changed", "_reasons", "_transport")

    def __init__(self, transport: Any, changed: Callable[[bool], None] = lambda paused: None):
        """``changed(paused)`` is called whenever a reason comes or goes."""
        self._transport = transport
        self._changed = changed
        self._reasons = _NO_REASON

    @property
    def paused(self) -> bool:
        """The transport is not read now."""
        return bool(self._reasons)

    @property
    def reasons(self) -> frozenset[str]:
        """Why not."""
        return self._reasons

    def pause(self, reason: str) -> None:
        """Do not read while ``reason`` stands."""
        if reason not in self._reasons:
            self._reasons |= {reason}
            if len(self._reasons) == 1:
                self._transport.pauseProducing()
            self._changed(True)

    def resume(self, reason: str) -> None:
        """``reason`` stands no longer: read again unless there is another."""
        if reason in self._reasons:
            self._reasons = (self._reasons - {reason}) or _NO_REASON
            if not self._reasons:
                self._transport.resumeProducing()
            self._changed(bool(self._reasons))


class Holder(Protocol):
    """A connection which holds octets of what is not whole yet."""

    def cutOff(self, octets: int, limit: float) -> None:
        """End at once: ``octets`` are held, the most of all, who together may hold ``limit``."""


class HeldOctets:
    """Octets of frames and messages which are not whole yet, of all connections of a process.

    They cannot wait for better times, because what they lack would not come then.  Above the limit
    the connection which holds most is cut off: a usual one, with a little in the works, never is.

    Attributes:
        limit: octets.
        held: octets which are held now.
    """

    def __init__(self) -> None:
        self.limit = inf
        self.held = 0
        self._holders: dict[Holder, int] = {}

    def hold(self, holder: Holder, octets: int) -> None:
        """``holder`` holds so many octets now, in all; it or others may be cut off before this
        returns."""
        self.held += octets - self._holders.pop(holder, 0)
        if octets:
            self._holders[holder] = octets
        while self.held > self.limit:
            most = max(self._holders, key=self._holders.__getitem__)
            held = self._holders.pop(most)
            self.held -= held
            most.cutOff(held, self.limit)


class OctetBudget:
    """Octets which wait for the sink, of all connections of a process; above the limit none reads.

    Attributes:
        limit: octets; reading stops above it and goes on at half of it.
        waiting: octets which wait now.
        held: octets of what is not whole yet, and so cannot wait for the sink.
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
        """``octets`` of the connection behind ``control`` wait from now on."""
        self.waiting += octets
        if self.waiting > self.limit:
            self._paused[control] = None
            control.pause(self._reason)

    def remove(self, octets: int) -> None:
        """``octets`` wait no longer."""
        self.waiting -= octets
        if self._paused and self.waiting <= self.limit // 2:
            paused, self._paused = self._paused, {}
            for control in paused:
                control.resume(self._reason)

    def forget(self, control: ReadControl) -> None:
        """The connection behind ``control`` is gone (what waits of it goes on waiting)."""
        self._paused.pop(control, None)
