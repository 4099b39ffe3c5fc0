"""Bound what all unfinished messages of a process take together (``NB-02``).

What libzmq holds is in memory of its own thread, and the C library tells how much that is.  It can
be far more than what came: a frame takes 64 octets where it has two on the wire, and a frame of 34
octets that was read alone keeps the whole buffer it was read into.  So when it is more than an
honest peer's octets explain, whoever may hold most of it is cut off first, until the rest fits.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from itertools import islice
from math import inf
from typing import Any, Final, NamedTuple, Protocol

from ...net.backpressure import OctetBudget

LOOK_SECONDS: Final = 0.1
"""From one look at connections, or at memory, to the next: libzmq's thread fills up to 100 MB
meanwhile."""

CONNECTION_OCTETS: Final = 100 << 10
"""What libzmq allocates for a connection without any message, of which it uses 34 KB."""

FRAME_TIMES: Final = 32
"""The smallest frame has two octets on the wire and takes 64."""

BUFFER_OCTETS: Final = 20 << 10
"""What libzmq reads into at once, with counters for each message in it: 18.5 KB."""

ALLOWED_OCTETS: Final = 64 << 20
"""This much is allowed in any case: what libzmq takes beside messages is not known so well."""

LEFT_SECONDS: Final = 60.0
"""So long after somebody was cut off his whole messages may wait to be read: they stay."""

FULL_SECONDS: Final = 1.0
"""So long after a look at which there was too much newcomers are turned away."""

WEIGHED_PER_TURN: Final = 1000
"""Connections that one turn weighs when there is too much: 3 ms."""


class Rank(IntEnum):
    """Who is cut off before whom."""

    STRANGER = 0
    """It has never sent a whole message, which every honest client has before its contents; or one
    with too many frames, as no honest client has."""
    STANDS = 1
    HEARD = 2
    """A whole message of it was read just now."""


class Weight(NamedTuple):
    """What one connection may have to do with it.

    Attributes:
        rank: who it is.
        octets: that came of what is unfinished.
        most: octets of memory that these may take at most.
        honest: octets of memory that an honest peer's may take.
    """

    rank: Rank
    octets: int
    most: int
    honest: int


class Weighed(Protocol):
    """The connections of one ROUTER, as :class:`Together` sees them."""

    @property
    def connections(self) -> int:
        """How many there are."""

    @property
    def unseen(self) -> int:
        """Octets that honest peers may hold of whom the system does not tell what came."""

    def descriptors(self) -> list[int]:
        """Return those of connections that can be weighed."""

    def weigh(self, descriptor: int) -> Weight | None:
        """Return what this one may hold; None if it has gone, or has nothing unfinished."""

    def make_room(self, descriptor: int, octets: int) -> None:
        """End this connection, of which so much came, for the sake of all."""


class Together:
    """All ROUTERs of a process.

    Nothing is done, and nobody cut off, unless the threads of libzmq have allocated more than the
    budget's ledger allows peers to hold.
    """

    def __init__(self, budget: OctetBudget, clock: Any) -> None:
        self._budget = budget
        self._clock = clock
        self._routers: list[Weighed] = []
        self._looked = -LOOK_SECONDS
        self._rest: Iterator[tuple[Weighed, int]] = iter(())
        self._found: list[tuple[Weight, Weighed, int]] = []
        self._call: Any = None
        self._going = 0.0  # octets that those held who were cut off at the last look
        self._left_until = 0.0  # what those who were cut off have left may be the reason
        self._full_until = 0.0

    @classmethod
    def of(cls, budget: OctetBudget, clock: Any) -> Together:
        """Return the one of all servers that share this budget."""
        found: Together = budget.shared.setdefault(cls, cls(budget, clock))
        return found

    def add(self, router: Weighed) -> None:
        """Bound the connections of this one, too."""
        self._routers.append(router)

    def remove(self, router: Weighed) -> None:
        """This one has none any more."""
        if router in self._routers:
            self._routers.remove(router)
        if not self._routers and self._call is not None:
            self._call.cancel()
            self._call = None

    @property
    def full(self) -> bool:
        """There is too much still when everybody who may be cut off was: nobody else comes in."""
        now: float = self._clock.seconds()
        return now < self._full_until

    def look(self) -> None:
        """Look whether there is too much, unless that was done just now."""
        now = self._clock.seconds()
        if self._call is not None or now < self._looked + LOOK_SECONDS / 2:
            return
        self._looked = now
        if self._taken() > self._allowed:
            every = [(router, one) for router in self._routers for one in router.descriptors()]
            self._rest, self._found = iter(every), []
            self._weigh()
        else:
            self._going = 0.0

    def _taken(self) -> int:
        """Return the octets that libzmq has allocated for messages; 0 where nobody tells."""
        allocated = self._budget.allocated() or 0
        return allocated - CONNECTION_OCTETS * sum(each.connections for each in self._routers)

    @property
    def _allowed(self) -> float:
        """Return what may be held beside what the ledger knows."""
        ledger = self._budget.held
        return max(ALLOWED_OCTETS, ledger.limit - ledger.held)

    def _weigh(self) -> None:
        """Weigh the next connections."""
        self._call = None
        some = list(islice(self._rest, WEIGHED_PER_TURN))
        for router, descriptor in some:
            weight = router.weigh(descriptor)
            if weight is not None:
                self._found.append((weight, router, descriptor))
        if len(some) < WEIGHED_PER_TURN:
            self._decide()
        else:
            self._call = self._clock.callLater(0, self._weigh)

    def _decide(self) -> None:
        """Cut off those who may hold most while there is more than honest peers may hold.

        Each is taken to hold its part of what was allocated.  What was cut off at the look before
        may not be free yet, and what those who stand cannot hold is somebody else's: only strangers
        are cut off for that.
        """
        found, self._found = self._found, []
        now, taken = self._clock.seconds(), self._taken()
        honest = sum(weight.honest for weight, _, _ in found)
        honest += sum(router.unseen for router in self._routers)
        over = taken - honest - self._allowed
        every = sum(weight.most for weight, _, _ in found)
        enough = inf if over > every else self._going
        self._going = 0.0
        for weight, router, descriptor in sorted(found, key=_order):
            if over <= (0 if weight.rank is Rank.STRANGER else enough):
                break
            part = weight.most * min(1, taken / every)
            over -= part
            self._going += part
            self._left_until = now + LEFT_SECONDS
            router.make_room(descriptor, weight.octets)
        if over > 0 and now < self._left_until:
            self._full_until = now + FULL_SECONDS


def _order(found: tuple[Weight, Weighed, int]) -> tuple[int, int]:
    weight = found[0]
    return weight.rank, -weight.most


__all__ = ["LOOK_SECONDS", "Rank", "Together", "Weight"]
