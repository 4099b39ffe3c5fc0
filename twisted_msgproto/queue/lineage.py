"""What proves that an offset belongs to this queue's history."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Landed:
    """How far a table has landed a queue, and what proves that it is this queue's history."""

    offset: int
    """The offset after the last landed row."""
    incarnation: int = 0
    """63 bits: the writer's start whose row ``offset - 1`` is; 0 when it is not known."""
    witness: int = 0
    """63 bits: the payload CRC-32 of the frame which holds row ``offset - 1``, times 2**31, plus
    the row's place in it; 0 when it is not known."""
