"""Sequence numbers wrap: they only name messages and are never compared.

The order of messages is known from their places in a window (:mod:`.window`), never from the size
of their numbers.  A sequence space only knows the number that follows, and how many steps lie
between two numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class SequenceSpace:
    """A sequence space has the numbers ``first`` … ``last``, in a circle."""

    first: int
    last: int

    @property
    def size(self) -> int:
        return self.last - self.first + 1

    def __contains__(self, number: int) -> bool:
        return self.first <= number <= self.last

    def after(self, number: int, steps: int = 1) -> int:
        """Return the number ``steps`` further along the circle (negative: back)."""
        return (number - self.first + steps) % self.size + self.first

    def following(self, number: int, count: int) -> Sequence[int]:
        first = self.after(number)
        if first + count - 1 <= self.last:
            return range(first, first + count)
        return [self.after(number, steps) for steps in range(1, count + 1)]

    def steps(self, start: int, end: int) -> int:
        """Return how many steps forward lead from ``start`` to ``end``: 0 ≤ steps < size."""
        return (end - start) % self.size


SEQUENCE_16_BITS_WITHOUT_0 = SequenceSpace(1, 0xFFFF)
"""MicroMsg2 counts from 1 to 65535 and begins again (``MM-13``)."""
