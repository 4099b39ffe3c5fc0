"""Counts what one server was sent, and how long each message waited for its acknowledgement."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Final

DECADES: Final = range(-4, 2)
"""Bounds begin at 0.1 ms; latencies above 100 s are counted together."""

STEPS: Final = (1.0, 1.25, 1.6, 2.0, 2.5, 3.15, 4.0, 5.0, 6.3, 8.0)
"""A decade has ten bounds; each is about a quarter above the one before."""

BOUNDS: Final = (
    *(round(step * 10.0**power, 9) for power in DECADES for step in STEPS),
    100.0,
)
"""These are the upper bounds of the classes of latencies, in seconds."""

CLASSES: Final = len(BOUNDS) + 1


class Traffic:
    """Integers that only grow; whoever wants a rate reads them twice.

    A latency is the time from the moment when a batch of messages was read until it was safe and
    could be acknowledged.  It counts once for each message of the batch.  What never became safe
    is not counted there.

    Attributes:
        messages: messages that were delivered to the sink.
        octets: their octets.
        latencies: how many messages waited as long as each class of :data:`BOUNDS` says.
        waited: seconds that all these messages waited together.
        seconds: returns the time in seconds.
    """

    __slots__ = ("latencies", "messages", "octets", "seconds", "waited")

    def __init__(self, seconds: Callable[[], float]) -> None:
        self.messages = 0
        self.octets = 0
        self.latencies = [0] * CLASSES
        self.waited = 0.0
        self.seconds = seconds

    def acknowledged(self, count: int, began: float) -> None:
        """Note that ``count`` messages that were read at ``began`` are safe now."""
        took = self.seconds() - began
        self.latencies[bisect_left(BOUNDS, took)] += count
        self.waited += took * count


def quantile(latencies: Sequence[int], share: float) -> float | None:
    """Return how many seconds ``share`` of the messages waited at most; None without messages.

    It lies between the bounds of its class, as if the messages were spread evenly between them.
    """
    wanted = share * sum(latencies)
    if not wanted:
        return None
    reached = list(accumulate(latencies))
    place = bisect_left(reached, wanted)
    if place >= len(BOUNDS):
        return BOUNDS[-1]
    low = BOUNDS[place - 1] if place else 0.0
    within = (wanted - (reached[place] - latencies[place])) / latencies[place]
    return low + within * (BOUNDS[place] - low)
