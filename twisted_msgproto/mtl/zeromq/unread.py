"""Bound what libzmq holds for peers that do not read.

libzmq does not say how much it holds for a peer.  But the system says how many octets of a
connection the other end has acknowledged, and ZeroMQ's framing says how many octets a message
becomes at least: what was passed to libzmq and is not acknowledged is held by it and the kernel.
It is entered in the ledger of the process as unread output, with what waits outside libzmq.

One peer could leave all of the ledger's limit unread; so while all together hold much, less is
passed to libzmq for each.  A peer that reads nothing loses its place first.

Only TCP on Linux tells what was acknowledged: of other connections only what waits outside libzmq
counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, ClassVar, Final

from ...net.memory import OctetBudget
from .bounded import Backlog
from .unfinished import Octets, octets_of

STEP_OCTETS: Final = 64 << 10
"""A peer may have this much unread without being counted, in libzmq and outside; after this much
more the system is asked again, which needs 2 µs."""

PASSED_OCTETS: Final = 8 << 20
"""libzmq holds about this much for one peer while all peers together hold much: one content."""

MUCH_SHARE: Final = 0.5
"""This share of the ledger's limit is much; from three quarters on peers may lose their places."""

CHECK_SECONDS: Final = 1.0
"""Peers that have something unread are checked this often: they may have read meanwhile."""

CHECKS_PER_TURN: Final = 1000
"""A turn checks this many of them, in 3 ms."""

MESSAGE_OCTETS: Final = 256
"""A message that waits outside libzmq counts as this many octets beside its own."""

FRAME_OCTETS: Final = 2
"""ZMTP puts at least these octets before a frame; before one of more than 255 it puts nine.

More than there are would never be acknowledged; fewer are acknowledged as heartbeats are, and what
a peer gains by 7 octets of 256 is gone when it has read everything.
"""

CURVE_OCTETS: Final = 33
"""CURVE's MESSAGE has these octets beside the frame in it."""


class Unread:
    """What one peer has not read yet, as the ledger's holder.

    Attributes:
        name: of its connection.
        descriptor: of its connection.
        passed: octets that were passed to libzmq and the peer has not acknowledged.
        check_at: from this many on the system is asked again.
        waiting: octets that wait outside libzmq, at the last check.
        entered: octets that are in the ledger.
        read: octets that it has read since that was noted there.
    """

    __slots__ = (
        "_acknowledged",
        "_every",
        "check_at",
        "descriptor",
        "entered",
        "name",
        "passed",
        "read",
        "waiting",
    )

    def __init__(self, every: EveryUnread, name: bytes, descriptor: int) -> None:
        self._every = every
        self.name = name
        self.descriptor = descriptor
        self.passed = self.waiting = self.entered = self.read = 0
        self.check_at = STEP_OCTETS
        self._acknowledged = 0
        self.note_read()

    def note_read(self) -> int:
        """Ask the system what the peer has acknowledged; return how much of ours that is."""
        told, read = self._every.octets(self.descriptor), self.passed
        if told is not None:
            # Heartbeats are acknowledged as well, and nobody passed them to libzmq.
            read = min(read, max(0, told.acknowledged - self._acknowledged))
            self._acknowledged = told.acknowledged
        self.passed -= read
        return read

    def has_room(self) -> bool:
        """Check what the peer has read; whether libzmq may hold more for it now."""
        every = self._every
        every.enter(self, self.note_read())
        room = self.passed < PASSED_OCTETS or every.little
        self.check_at = self.passed + STEP_OCTETS if room else 0
        return room

    # ── as the ledger's holder ──────────────────────────────────────────────────────────────────

    address: ClassVar[str] = ""
    reading: ClassVar[bool] = True

    def holdBack(self, held_back: bool) -> None:
        """Output is not held back."""

    def cutOff(self, octets: int, limit: float) -> None:
        """End the peer: all together hold too much, and it reads too little of it."""
        self._every.chosen(self)


class EveryUnread:
    """What the peers of one ROUTER have not read, as the ledger has it."""

    def __init__(
        self,
        clock: Any,
        budget: OctetBudget,
        backlogs: Mapping[bytes, Backlog],
        cut_off: Callable[[Unread, int], None],
        octets: Callable[[int], Octets | None] = octets_of,
    ) -> None:
        """``backlogs`` has what waits outside libzmq, by peer; ``cut_off(peer, octets)`` ends the
        connection of one that left these octets unread; ``octets`` asks the system about a
        descriptor.
        """
        self._clock = clock
        self._ledger = budget.held
        self._backlogs = backlogs
        self._cut_off = cut_off
        self.octets = octets
        self._entered: dict[Unread, None] = {}
        self._timer: Any = None

    @property
    def little(self) -> bool:
        return self._ledger.held < self._ledger.limit * MUCH_SHARE

    def waits(self, peer: Unread, backlog: Backlog) -> None:
        if weight_of(backlog) >= peer.waiting + STEP_OCTETS:
            peer.has_room()

    def enter(self, peer: Unread, read: int) -> None:
        """Note in the ledger what is unread now; ``read`` octets were read since the last check.

        A peer that reads less than a step at a time does not read.
        """
        backlog = self._backlogs.get(peer.name)
        peer.waiting = 0 if backlog is None else weight_of(backlog)
        octets = peer.passed + peer.waiting
        if octets < STEP_OCTETS:
            octets = 0
        peer.read += read
        reads = peer.read >= STEP_OCTETS
        shrunk = peer.entered - octets
        if (not reads and octets and 0 <= shrunk < STEP_OCTETS) or not (octets or shrunk):
            return
        now = self._clock.seconds()
        if reads:
            # What was sent meanwhile would hide that the peer reads.
            peer.read = 0
            least = max(0, min(octets, peer.entered) - STEP_OCTETS)
            self._ledger.hold(peer, least, now, outward=True)
            if backlog is not None:
                backlog.since = now
        peer.entered = octets
        if octets:
            self._entered[peer] = None
        else:
            self._entered.pop(peer, None)
        self._ledger.hold(peer, octets, now, outward=True)
        self._check_or_rest()

    def forget(self, peer: Unread) -> None:
        """Note that its connection has ended, so that nothing is held for it."""
        if peer.entered:
            peer.entered = 0
            del self._entered[peer]
            self._ledger.hold(peer, 0, self._clock.seconds(), outward=True)

    def chosen(self, peer: Unread) -> None:
        """End this peer, unless it has read everything since the last check."""
        del self._entered[peer]
        octets, peer.entered = peer.entered, 0
        peer.note_read()
        if peer.passed + peer.waiting >= STEP_OCTETS:
            self._cut_off(peer, octets)
        self._check_or_rest()

    def _check_or_rest(self) -> None:
        if self._timer is None and self._entered:
            self._timer = self._clock.callLater(CHECK_SECONDS, self._check)

    def _check(self) -> None:
        """Check the next peers, those first that were not checked for longest."""
        self._timer = None
        for peer in list(islice(self._entered, CHECKS_PER_TURN)):
            if peer in self._entered:  # else it was cut off for what another has
                del self._entered[peer]
                self._entered[peer] = None
                peer.has_room()
        self._check_or_rest()

    def shutdown(self) -> None:
        for peer in list(self._entered):
            self.forget(peer)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def weight_of(backlog: Backlog) -> int:
    return backlog.octets + MESSAGE_OCTETS * len(backlog.messages)
