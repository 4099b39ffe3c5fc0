"""This module remembers the addresses that broke their protocol or failed to log in."""

from __future__ import annotations

from collections import OrderedDict
from heapq import nlargest
from typing import Final, NamedTuple

from .addresses import network_of

OFFENDERS_MAX: Final = 1000
"""Faults are remembered for this many pairs of address and reason: about 300 kB.  The pair that was
silent for longest is dropped first.
"""


class Offence(NamedTuple):
    """How often an address had the same fault, and when last, in seconds of the clock.

    An IPv6 address stands for its network of 64 bits, which one client has to itself.
    """

    protocol: str
    address: str
    reason: str
    times: int
    last: float


class Offenders:
    """Faults by protocol, address and reason, since the start.

    Attributes:
        forgotten: faults of addresses that had to make room for others.
    """

    def __init__(self) -> None:
        self._counted: OrderedDict[tuple[str, str, str], tuple[int, float]] = OrderedDict()
        self.forgotten = 0

    def note(self, protocol: str, host: str, reason: str, now: float) -> None:
        """Count one fault of the peer at ``host``; "" if its transport has no address."""
        key = protocol, network_of(host) or host or "local", reason
        count, _ = self._counted.pop(key, (0, 0.0))
        self._counted[key] = count + 1, now
        if len(self._counted) > OFFENDERS_MAX:
            self.forgotten += self._counted.popitem(last=False)[1][0]

    def worst(self, most: int) -> list[Offence]:
        """Return those with the most faults, at most ``most`` of them."""
        found = (Offence(*key, *counted) for key, counted in self._counted.items())
        return nlargest(most, found, key=lambda one: one.times)

    def __len__(self) -> int:
        return len(self._counted)
