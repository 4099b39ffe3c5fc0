"""Bound the time that each turn of the reactor spends on a peer's input, and measure it.

While one connection's input is processed, all others wait, so it is processed in stretches of about
:data:`TURN_SECONDS`; ``--turn-warn MS`` tells an operator whose input needed longer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from twisted.internet.interfaces import IReactorCore
from twisted.protocols.tls import TLSMemoryBIOProtocol

TURN_SECONDS: Final = 0.008
"""A connection's input is processed for about this much CPU time; then others have their turn.  A
good client's message needs two or three, so about 25 ms beside one hostile peer.
"""

FIRST_READ_BYTES: Final = 16 << 10

TIMED_BYTES: Final = 4 << 10  # smaller reads change no pace: none of them is slow

PARTIAL_READ_BYTES: Final = 64 << 10
"""A read of an unfinished message returns no more.  A thousand peers that never end theirs could
bring a gigabyte in one turn, before the ledger can hold them back.
"""

READ_BYTES_MIN: Final = 1 << 10

Slow = Callable[[str, str, float], None]


def spent_of(clock: Any) -> Callable[[], float]:
    """Return what tells the CPU seconds spent: a busy machine should not make reads smaller."""
    seconds: Callable[[], float] = clock.seconds
    return time.thread_time if IReactorCore.providedBy(clock) else seconds


def next_read_bytes(count: int, took: float, least: int, most: int) -> int:
    """Return how many bytes or messages to process at a time, as ``count`` of them took ``took``
    seconds; quick input gets twice as many, since every read costs a write and a batch.
    """
    if took > TURN_SECONDS:
        return max(least, int(count * TURN_SECONDS / took))
    if took < TURN_SECONDS / 2:
        return min(most, count * 2)
    return count


class Turn:
    __slots__ = ("_began", "_spent")

    def __init__(self, spent: Callable[[], float]) -> None:
        self._spent = spent
        self._began = spent()

    def over(self) -> bool:
        return self._spent() - self._began > TURN_SECONDS


class TurnWatch:
    """Measures methods that take input; what one calls of the others belongs to its turn."""

    def __init__(
        self, seconds: float, slow: Slow, cpu: Callable[[], float] = time.thread_time
    ) -> None:
        """``slow(peer, host, spent)`` is called after a turn of more than ``seconds`` of CPU."""
        self._seconds = seconds
        self._slow = slow
        self._cpu = cpu
        self._within = False

    def measure(
        self, owner: Any, *names: str, peer: str, host: str = "", transport: Any = None
    ) -> None:
        """Measure these methods of ``owner`` from now on, and those of a TLS ``transport``."""
        tls = isinstance(transport, TLSMemoryBIOProtocol)
        for each, name in [(owner, name) for name in names] + [(transport, "dataReceived")] * tls:
            setattr(each, name, partial(self._measured, peer, host, getattr(each, name)))

    def _measured(self, peer: str, host: str, method: Callable[..., Any], *args: Any) -> Any:
        if self._within:
            return method(*args)
        self._within = True
        began = self._cpu()
        try:
            return method(*args)
        finally:
            self._within = False
            spent = self._cpu() - began
            if spent > self._seconds:
                self._slow(peer, host, spent)
