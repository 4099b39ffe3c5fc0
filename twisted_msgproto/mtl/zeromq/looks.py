"""The sockets of a client take turns to look at their connections."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any, Final

LOOK_SECONDS: Final = 0.1
"""Looks are made at this interval.  A server can send 12 MB between two at a gigabit a second."""

LOOKS_PER_TURN: Final = 20
"""This number of looks is made at a time, and they need less than 1 % of a processor."""


class Look:
    """Holds one call of :class:`Looks`."""

    __slots__ = ("_looks", "call")

    def __init__(self, looks: Looks, call: Callable[[], object]) -> None:
        self._looks = looks
        self.call = call

    def cancel(self) -> None:
        """Forget it."""
        self._looks.forget(self)


class Looks:
    """Makes calls in turns, whatever delay was asked for."""

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self._waiting: dict[Look, None] = {}
        self._timer: Any = None

    def seconds(self) -> float:
        """Return the reactor's time."""
        now: float = self._reactor.seconds()
        return now

    def callLater(self, seconds: float, call: Callable[[], object]) -> Look:
        """Call ``call`` in its turn, however many ``seconds`` are asked for."""
        look = Look(self, call)
        self._waiting[look] = None
        if self._timer is None:
            self._timer = self._reactor.callLater(LOOK_SECONDS, self._turn)
        return look

    def forget(self, look: Look) -> None:
        """This one is not wanted any more."""
        self._waiting.pop(look, None)
        if not self._waiting and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _turn(self) -> None:
        self._timer = None
        for look in list(islice(self._waiting, LOOKS_PER_TURN)):
            if self._waiting.pop(look, look) is None:  # what was done for another has ended it
                look.call()
        if self._waiting and self._timer is None:
            self._timer = self._reactor.callLater(LOOK_SECONDS, self._turn)


__all__ = ["LOOKS_PER_TURN", "LOOK_SECONDS", "Look", "Looks"]
