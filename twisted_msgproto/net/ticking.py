"""One timer for one machine: it asks the machine when to come back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class MachineTimer:
    """Calls ``tick(now)`` at the time which the last call of it returned.

    ``look()`` after each input is cheap: while a timer runs that is early enough, it is left alone
    and finds out by itself, when it fires, that there is nothing to do yet.
    """

    __slots__ = ("_call", "_clock", "_early", "_shortest", "_tick")

    def __init__(
        self,
        clock: Any,
        tick: Callable[[float], float | None],
        shortest: float | None = None,
    ) -> None:
        """``clock`` has ``seconds()`` and ``callLater()``; ``tick`` may be called at any time.

        ``shortest``: what happens never makes a deadline nearer than so many seconds.  The machine
        need not be asked each time then: a timer which fires that soon is early enough.
        """
        self._clock = clock
        self._tick = tick
        self._shortest = shortest
        self._call: Any = None
        self._early = False  # the call was set no later than ``shortest`` after something happened

    def look(self) -> None:
        """Something happened: come back when the machine says so."""
        if self._early:
            return  # so the call comes no later than it should for what has just happened
        shortest = self._shortest
        if shortest is None:
            self._ask()
            return
        if self._call is None:
            self._call = self._clock.callLater(shortest, self._fired)
        elif self._call.getTime() > self._clock.seconds() + shortest:
            self._call.reset(shortest)
        self._early = True

    def _ask(self) -> None:
        """Tick now, and come back when the machine says so."""
        now = self._clock.seconds()
        deadline = self._tick(now)
        call = self._call
        if deadline is None:
            return  # a timer which runs in vain costs less than to cancel and set it each time
        if call is None:
            self._call = self._clock.callLater(max(0.0, deadline - now), self._fired)
        elif call.getTime() > deadline:
            call.reset(max(0.0, deadline - now))

    def _fired(self) -> None:
        self._call = None
        self._early = False
        self._ask()

    def stop(self) -> None:
        """The connection is gone."""
        call, self._call = self._call, None
        self._early = False
        if call is not None:
            call.cancel()
