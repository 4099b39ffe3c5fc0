"""A machine has one timer; nothing else arms a timer from a machine's deadline."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

from ..core.connection import Connection


class MachineTimer:
    """Advances a machine when its nearest deadline has come.

    ``look()`` after each input is cheap: nothing is asked of the machine but its nearest deadline,
    and a timer that runs early enough is left alone.
    """

    __slots__ = ("_at", "_call", "_clock", "_deadlines", "_follow", "_machine")

    def __init__(
        self,
        clock: Any,
        machine: Connection[Any, Any, Any],
        follow: Callable[[list[Any]], None],
    ) -> None:
        """Make a timer; ``clock`` has ``seconds()`` and ``callLater()``.

        ``follow(events)`` is called whenever ``machine`` was advanced: it follows the events, if
        there are any, and writes the machine's outputs.
        """
        self._clock = clock
        self._machine = machine
        self._deadlines = machine.deadlines
        self._follow = follow
        self._call: Any = None
        self._at = inf  # when the call comes

    def look(self) -> None:
        """Something happened: come back at the nearest deadline."""
        at = self._deadlines.next
        if at is None or at >= self._at:
            return  # a timer that runs in vain costs less than to cancel and set it each time
        delay = max(0.0, at - self._clock.seconds())
        self._at = at
        if self._call is None:
            self._call = self._clock.callLater(delay, self._fired)
        else:
            self._call.reset(delay)

    def _fired(self) -> None:
        self._call = None
        self._at = inf
        now = self._clock.seconds()
        at = self._deadlines.next
        if at is not None and at <= now:
            # Here and not in ``follow``, which may have no use for the events any more: a deadline
            # that stays where it is would be due again at once.
            self._follow(self._machine.advance(now))
        self.look()

    def stop(self) -> None:
        """The connection is gone."""
        call, self._call = self._call, None
        self._at = -inf  # nothing is nearer: it is never set again
        if call is not None:
            call.cancel()
