"""Measure the CPU time that each turn of the reactor spends on a peer's input (NB-07).

While one connection's input is processed, all others wait.  No turn should last more than 50 ms; an
operator who sets ``--turn-warn MS`` hears whose input needed longer.  Without it nothing is
measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

Slow = Callable[[str, str, float], None]


class TurnWatch:
    """Measures the methods through which input reaches connections, and tells of slow ones.

    A method that is called within another that is measured belongs to the same turn.
    """

    def __init__(
        self, seconds: float, slow: Slow, cpu: Callable[[], float] = time.thread_time
    ) -> None:
        """Make a watch.

        ``slow(peer, host, spent)`` is called after each turn that has spent more than ``seconds``
        of CPU time; ``cpu`` returns what the thread has spent so far.
        """
        self._seconds = seconds
        self._slow = slow
        self._cpu = cpu
        self._within = False

    def measure(self, owner: Any, *names: str, peer: str, host: str = "") -> None:
        """Measure these methods of ``owner`` from now on; ``peer`` at ``host`` causes the calls."""
        for name in names:
            setattr(owner, name, partial(self._measured, peer, host, getattr(owner, name)))

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


__all__ = ["TurnWatch"]
