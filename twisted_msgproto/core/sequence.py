"""Spaces of sequence numbers that wrap: the numbers only name messages, they are never compared.

Which message came first is known from its place in a window (:mod:`.window`), never from the size
of its number.  What remains to a sequence space is to know which number follows, and how many steps
lie between two numbers.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class SequenceSpace:
    """The numbers ``first`` … ``last`` in a circle."""

    first: int
    last: int

    @property
    def size(self) -> int:
        """Return how many numbers the circle has."""
        return self.last - self.first + 1

    def __contains__(self, number: int) -> bool:
        return self.first <= number <= self.last

    def after(self, number: int, steps: int = 1) -> int:
        """Return the number ``steps`` further along the circle (negative: back)."""
        return (number - self.first + steps) % self.size + self.first

    def steps(self, start: int, end: int) -> int:
        """Return how many steps forward lead from ``start`` to ``end``: 0 ≤ steps < size."""
        return (end - start) % self.size


SEQUENCE_16_BITS_WITHOUT_0 = SequenceSpace(1, 0xFFFF)
"""MicroMsg2 (``MM-13``): 65535 is followed by 1."""

SEQUENCE_64_BITS = SequenceSpace(0, 0xFFFF_FFFF_FFFF_FFFF)
"""MTL (``MT-22``)."""
