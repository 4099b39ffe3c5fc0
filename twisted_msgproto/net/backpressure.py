"""Backpressure pauses the reading of a connection while too much waits.

Nothing is dropped for lack of space.  A connection is not read while one of these reasons holds: it
or all connections together have too many octets that are not safe yet, its peer does not read what
we write, or more of its octets must be decoded first.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any, Final

from ..core.kept import Kept
from .ledger import Clock, Ledger
from .offenders import Offenders
from .peerlog import PeerLog

_NO_REASON: Final[frozenset[str]] = frozenset()  # one for all: an empty one weighs 216 octets


class ReadControl:
    """The reading of one transport, which pauses for any number of reasons at a time."""

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
        """Return why not."""
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


class OctetBudget:
    """The bound of octets that wait for the sink, over all connections of a process.

    Above the limit connections with more than their share of it are not read; a connection with
    little waiting is never paused for the others.

    Attributes:
        limit: octets; above it reading pauses, at half of it reading resumes.
        waiting: octets that wait now.
        senders: connections of which something waits now; each one's share is limit / senders.
        held: what peers make the process hold, and what cannot wait for the sink.
        kept: what sessions keep for their peers for longer than a message.
        peer_log: what peers do is logged through it, whichever server they came to.
        offenders: the addresses whose peers broke their protocol or failed to log in.
        shared: what servers of one kind share, by its class.
    """

    def __init__(self, limit: float = inf, reason: str = "process-octets") -> None:
        """``reason`` is what connections are paused for; two budgets have two reasons."""
        self.limit = limit
        self.held = Ledger()
        self.kept = Kept()
        self.peer_log = PeerLog()
        self.offenders = Offenders()
        self.shared: dict[type, Any] = {}
        self._reason = reason
        self.waiting = 0
        self.senders = 0
        self._paused: dict[ReadControl, None] = {}

    def bound(self, waiting: float, held: float, min_rate: float, clock: Clock) -> None:
        """One of the servers of this process has these limits; the smallest of all hold.

        ``clock`` is the servers' own.
        """
        self.limit = min(self.limit, waiting)
        ledger = self.held
        ledger.bound(held)
        ledger.min_rate = min_rate if ledger.clock is None else min(ledger.min_rate, min_rate)
        ledger.clock = clock

    def add(self, octets: int, control: ReadControl, own: float = inf) -> None:
        """Note that ``octets`` of the connection behind ``control`` wait from now on.

        ``own`` is what waits of that connection with them.  Without it the connection is paused
        whenever all together are above the limit.
        """
        self.waiting += octets
        if self.waiting > self.limit and own > self.limit / max(self.senders, 1):
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
