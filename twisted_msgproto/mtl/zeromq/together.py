"""Bound the memory of all unfinished messages of a process (``NB-02``).

libzmq's own thread allocates what it holds, and the C library tells how much that is.  It can be
far more than what came: a frame of two octets on the wire costs 64, and a frame of 34 octets that
was read alone keeps the whole buffer it was read into.  When it is more than the octets of honest
peers explain, connections are cut off until the rest fits, those with the largest possible share
first.

libzmq cannot be told to read one connection later than another, so honest octets have the same
bound: when unfinished messages alone have more, the latest of their senders are cut off.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from itertools import islice
from math import inf
from typing import Any, Final, NamedTuple, Protocol

from ...net.backpressure import OctetBudget
from .allocated import Allocated

LOOK_SECONDS: Final = 0.05
"""Connections and memory are checked at this interval: libzmq's thread fills up to 150 MB
meanwhile."""

HURRY_SECONDS: Final = 0.02
"""While there is more than may be held, up to a thousand connections are checked at this interval,
and more of them at longer ones, up to the usual one: to weigh a thousand takes 3 ms."""

FREED_SECONDS: Final = 0.15
"""Until libzmq has noticed that a connection was cut off, and has freed its unfinished message, the
messages of others grow for this long."""

CONNECTION_OCTETS: Final = 100 << 10
"""libzmq allocates this much for a connection without any message, and uses 34 KB of it."""

FRAME_TIMES: Final = 32
"""The smallest frame has two octets on the wire and needs 64 in memory."""

BUFFER_OCTETS: Final = 20 << 10
"""A buffer into which libzmq reads has 18.5 KB, with counters for each message in it."""

ALLOWED_OCTETS: Final = 64 << 20
"""This much is allowed in any case, because what libzmq needs beside messages is only estimated."""

LITTLE_OCTETS: Final = ALLOWED_OCTETS // 2
"""Up to this much needs no hurry."""

FREEING_SECONDS: Final = 1.0
"""libzmq reads from all connections before it frees the messages of those that were cut off, which
takes 0.1 s for a thousand.  For this long the freed memory is returned to the system at each check;
else it would count as this process's beside the octets that others send meanwhile."""

LEFT_SECONDS: Final = 60.0
"""Complete messages of a connection that was cut off wait up to this many seconds to be read."""

FULL_SECONDS: Final = 1.0
"""For this many seconds after a check found too much, newcomers are turned away."""

WEIGHED_PER_TURN: Final = 1000
"""One turn weighs this many connections when there is too much, in 3 ms."""


class Rank(IntEnum):
    """Strangers are cut off first."""

    STRANGER = 0
    """It has never sent a complete message, and honest clients send one before their contents; or
    it has sent one with too many frames, and no honest client does."""
    STANDS = 1
    HEARD = 2
    """A complete message of it was read since the last check."""


class Weight(NamedTuple):
    """Says how much memory one connection may use.

    Attributes:
        rank: who it is.
        octets: what has come of its unfinished message.
        most: octets of memory that these may cost at most.
        honest: octets of memory that they may cost if the peer is honest.
        begun: octets of these that belong to a message which is not complete, for certain.
        late: the sender of that message is so many seconds behind ``min-rate``.
        coming: octets by which that message grows until others were freed, as fast as it has grown.
    """

    rank: Rank
    octets: int
    most: int
    honest: int
    begun: int = 0
    late: float = 0.0
    coming: float = 0.0


Found = tuple[Weight, "Weighed", int]
"""The weight of a connection, its ROUTER and its descriptor."""


class Weighed(Protocol):
    """The connections of one ROUTER, as :class:`Together` sees them."""

    @property
    def connections(self) -> int:
        """Return how many there are."""

    @property
    def unseen(self) -> int:
        """Return the octets that honest peers may hold whose input the system does not count."""

    def descriptors(self) -> list[int]:
        """Return those of connections that can be weighed."""

    def weigh(self, descriptor: int) -> Weight | None:
        """Return what this connection may hold; None if it has ended or has nothing unfinished."""

    def make_room(self, descriptor: int, octets: int) -> None:
        """End this connection, whose unfinished message has ``octets``."""


class Together:
    """Watches the memory of all ROUTERs of a process.

    It does nothing unless the threads of libzmq have allocated more than the budget's ledger allows
    peers to hold.

    Attributes:
        little: whether libzmq is known to have held little at the last look, or, if it is False,
            more than it may; None where neither is known.
    """

    def __init__(self, budget: OctetBudget, clock: Any) -> None:
        self._budget = budget
        self._clock = clock
        self._allocated = Allocated(budget, clock)
        self._routers: list[Weighed] = []
        self._looked = -LOOK_SECONDS
        self._rest: Iterator[tuple[Weighed, int]] = iter(())
        self._found: list[Found] = []
        self._call: Any = None
        self._going = 0.0  # octets that those held who were cut off at the last look
        self._last_taken = 0.0
        self._freeing_until = 0.0  # libzmq frees what those held who were cut off
        self._left_until = 0.0  # what those who were cut off have left may be the reason
        self._full_until = 0.0
        self.little: bool | None = None

    @classmethod
    def of(cls, budget: OctetBudget, clock: Any) -> Together:
        """Return the object that all servers with this budget share."""
        found: Together = budget.shared.setdefault(cls, cls(budget, clock))
        return found

    def add(self, router: Weighed) -> None:
        """Bound the connections of this ROUTER, too."""
        self._routers.append(router)

    def remove(self, router: Weighed) -> None:
        """Forget this ROUTER: it has closed."""
        if router in self._routers:
            self._routers.remove(router)
        if not self._routers and self._call is not None:
            self._call.cancel()
            self._call = None

    @property
    def min_rate(self) -> float:
        """Return the octets a second with which the sender of a message is not late."""
        return self._budget.held.min_rate

    @property
    def full(self) -> bool:
        """Whether newcomers are turned away: cutting off everybody possible has not been enough."""
        now: float = self._clock.seconds()
        return now < self._full_until

    @property
    def interval(self) -> float:
        """Return how many seconds after a look the next one is due."""
        if self.little is not False:
            return LOOK_SECONDS
        thousands = self._connections / WEIGHED_PER_TURN
        return min(LOOK_SECONDS, HURRY_SECONDS * max(1.0, thousands))

    def look(self) -> None:
        """Check whether there is too much, unless that was done just now."""
        now = self._clock.seconds()
        if self._call is not None or now < self._looked + self.interval / 2:
            return
        self._looked = now
        freeing, allowed = now < self._freeing_until, self._allowed
        taken = self._taken() if freeing else self._taken_at_most(allowed)
        if taken is None:
            self.little, self._last_taken, self._going = None, 0.0, 0.0
            return
        if freeing and taken < self._last_taken:
            self._budget.release()
        self._last_taken = taken
        if taken > allowed:
            self.little = False
            every = [(router, one) for router in self._routers for one in router.descriptors()]
            self._rest, self._found = iter(every), []
            self._weigh()
        else:
            self.little, self._going = taken <= LITTLE_OCTETS or None, 0.0

    def _taken(self) -> float | None:
        """Return what libzmq has allocated for messages, in octets; None where nobody knows."""
        allocated = self._allocated.exactly()
        return None if allocated is None else allocated - self._expected

    def _taken_at_most(self, enough: float) -> float | None:
        """Return a bound of that, which is exact if it is above ``enough``."""
        allocated = self._allocated.at_most(enough + self._expected)
        return None if allocated is None else allocated - self._expected

    @property
    def _expected(self) -> int:
        """Return what connections without messages cost, in octets; that is estimated."""
        return CONNECTION_OCTETS * self._connections

    @property
    def _connections(self) -> int:
        return sum(each.connections for each in self._routers)

    @property
    def _allowed(self) -> float:
        """Return how many octets libzmq may hold beside what the ledger counts."""
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
        """Cut off connections while there is more than may be held."""
        found, self._found = sorted(self._found, key=_largest), []
        self._cut_late(self._cut_large(found))

    def _cut_large(self, found: list[Found]) -> list[Found]:
        """Cut off connections while there is more than honest peers explain; return the others.

        The memory is divided among them by what each may hold at most.  That of connections which
        the last check cut off may not be free yet, and what those who stand cannot hold is somebody
        else's: only strangers are cut off for that.
        """
        now, taken = self._clock.seconds(), self._taken() or 0
        honest = sum(weight.honest for weight, _, _ in found)
        honest += sum(router.unseen for router in self._routers)
        over = taken - honest - self._allowed
        every = sum(weight.most for weight, _, _ in found)
        going, self._going = self._going, 0.0
        enough = inf if over > every else going
        cut = 0
        for weight, router, descriptor in found:
            if over <= (0 if weight.rank is Rank.STRANGER else enough):
                break
            part = weight.most * min(1, taken / every)
            over -= part
            self._going += part
            self._left_until = now + LEFT_SECONDS
            self._make_room(router, descriptor, weight)
            cut += 1
        if over > going and now < self._left_until:
            self._full_until = now + FULL_SECONDS
        return found[cut:]

    def _cut_late(self, found: list[Found]) -> None:
        """Cut off connections while messages that have begun will be more than may be held.

        Until something was freed they grow as fast as they did since the last look.
        """
        over = sum(weight.begun + weight.coming for weight, _, _ in found) - self._allowed
        for weight, router, descriptor in sorted(found, key=_latest):
            if over <= 0:
                break
            over -= weight.begun + weight.coming
            self._going += weight.honest
            self._make_room(router, descriptor, weight)

    def _make_room(self, router: Weighed, descriptor: int, weight: Weight) -> None:
        self._freeing_until = self._clock.seconds() + FREEING_SECONDS
        router.make_room(descriptor, weight.octets)


def _largest(found: Found) -> tuple[int, int]:
    weight = found[0]
    return weight.rank, -weight.most


def _latest(found: Found) -> tuple[bool, int, float, int]:
    weight = found[0]
    return not weight.begun, weight.rank, -weight.late, -weight.begun


__all__ = ["FREED_SECONDS", "HURRY_SECONDS", "LOOK_SECONDS", "Rank", "Together", "Weight"]
