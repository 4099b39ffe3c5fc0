"""In a test time passes when the test says so."""

from __future__ import annotations

from typing import Final

from twisted.internet.task import Clock as TwistedClock

from .pairs import Pair

BEGIN_SECONDS: Final = 1_700_000_000.0
"""The clock begins at this time, a day in November 2023, in seconds since 1970-01-01 UTC."""


class Clock(TwistedClock):
    """Twisted's clock for tests, which also moves the bytes of pairs.

    Pass it to a factory as its ``clock``, and ``clock.seconds`` as its ``wallClock``: then the
    times in messages are those of the test.
    """

    def __init__(self) -> None:
        super().__init__()
        self.rightNow = BEGIN_SECONDS

    def settle(self, *pairs: Pair) -> None:
        """Move bytes and run the calls that are due, until nothing happens any more."""
        moved = True
        while moved:
            moved = any([pair.pump() for pair in pairs])
            if any(call.getTime() <= self.seconds() for call in self.getDelayedCalls()):
                self.advance(0)
                moved = True

    def wait(self, seconds: float, *pairs: Pair, step: float = 1.0) -> None:
        """Let ``seconds`` pass in steps, and let everything happen that happens meanwhile."""
        self.settle(*pairs)
        while seconds > 0:
            self.advance(min(step, seconds))
            self.settle(*pairs)
            seconds -= step
