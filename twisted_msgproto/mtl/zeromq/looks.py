"""A client's sockets look at their connections in turns, however many sockets there are."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any, Final

LOOK_SECONDS: Final = 0.1
"""A turn of looks comes at this interval: at a gigabit a second 12 MB pass between two."""

LOOKS_PER_TURN: Final = 20
"""One turn has this many looks: 1 % of a processor, also with thousands of sockets."""


class Look:
    """Is a look that is still to come."""

    __slots__ = ("_looks", "call")

    def __init__(self, looks: Looks, call: Callable[[], object]) -> None:
        self._looks = looks
        self.call = call

    def cancel(self) -> None:
        """Forget it."""
        self._looks.forget(self)


class Looks:
    """Is a clock on which each call waits for its turn and not for its time."""

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
