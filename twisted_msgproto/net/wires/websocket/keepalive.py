"""Find out whether the peers of WebSocket connections still live (RFC 6455, pings and pongs)."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from typing import Any, Final

from ...memory import Clock
from .frames import log

STEP_SECONDS: Final = 0.5
"""What is due within this time is done together, by one call of the clock: most of what a ping
costs is that its code and its connection are in no cache.
"""

PINGS_A_TURN: Final = 200
"""At most this many connections are looked at in one turn of the reactor, which needs some 10 ms.
After a restart all peers connect at once, and stay together for as long as they live.
"""


class Keepalives:
    """The pings of all connections of a factory, with one timer.

    A server with ten thousand idle connections does little else, so a connection has no timer of
    its own.
    """

    __slots__ = ("_at", "_call", "_clock", "_living", "_waiting", "interval", "patience")

    def __init__(self, clock: Clock, interval: float, patience: float) -> None:
        """Send pings every ``interval`` seconds (0: none); an answer may need ``patience``."""
        self.interval: float = interval
        self.patience: float = patience
        self._clock = clock
        self._call: Any = None
        self._at = -inf  # when the call comes; nothing is earlier while a step is made
        self._living = 0  # connections that have started and not stopped
        self._waiting: list[Keepalive] = []  # a heap, by when each is looked at

    def join(self, one: Keepalive) -> None:
        self._living += 1
        self._wait(one, self._clock.seconds() + self.interval)
        if one.at < self._at or self._call is None:
            self._arm(one.at, self.interval)

    def leave(self) -> None:
        """One that joined has stopped; it is passed over when its time comes."""
        self._living -= 1
        if not self._living and self._at > -inf:
            self._rest()

    def _rest(self) -> None:
        self._disarm()
        self._waiting.clear()

    def _arm(self, at: float, seconds: float) -> None:
        self._disarm()
        self._at = at
        self._call = self._clock.callLater(seconds, self._step)

    def _disarm(self) -> None:
        if self._call is not None and self._call.active():
            self._call.cancel()
        self._call = None

    def _wait(self, one: Keepalive, at: float) -> None:
        one.at = at
        heappush(self._waiting, one)

    def _step(self) -> None:
        now, self._at, left, waiting = self._clock.seconds(), -inf, PINGS_A_TURN, self._waiting
        while left and waiting and waiting[0].at <= now:
            one = heappop(waiting)
            if one.ping is not None:  # what was done for the others may have ended it
                left -= 1
                self._look(one, now)
        self._call = None
        if not self._living:
            self._rest()
        elif waiting:  # who is being ended lives until its connection is lost, and waits no more
            nearest = waiting[0].at  # whatever is still due is left for the next turn
            self._arm(nearest, 0.0 if nearest <= now else max(nearest - now, STEP_SECONDS))

    def _look(self, one: Keepalive, now: float) -> None:
        patience = self.patience
        if one.heard:
            if now >= one.asked_at + self.interval:
                self._ask(one, now)
                patience = min(patience, self.interval)
            else:
                patience = self.interval
        elif now >= one.asked_at + patience:
            if self._has_gone(one):
                return
            one.asked_at = now
        self._wait(one, one.asked_at + patience)

    def _ask(self, one: Keepalive, now: float) -> None:
        one.asked_at, one.heard = now, False
        assert one.ping is not None
        try:
            one.ping()
        except Exception:  # one of them harms none of the others
            log.failure("a ping failed")

    def _has_gone(self, one: Keepalive) -> bool:
        try:
            return one.gone is None or one.gone()
        except Exception:
            log.failure("a connection could not be ended")
            return False


class Keepalive:
    """The pings of one connection, and what is done when nothing comes back.

    Whatever the peer sends shows that it lives: a large message leaves it no room for a pong.

    Attributes:
        heard: something came from the peer since the last ping.  The carrier sets it.
        ping: sends a ping.  None: the connection was stopped.
        gone: nothing came in time.  It returns True where the connection is ended, and False where
            the peer deserves as much time again.
        asked_at: when it was pinged, or given that time.
        at: when it is looked at.
    """

    __slots__ = ("_all", "asked_at", "at", "gone", "heard", "ping")

    def __init__(
        self, every: Keepalives, ping: Callable[[], None], gone: Callable[[], bool]
    ) -> None:
        self._all = every
        self.ping: Callable[[], None] | None = ping
        self.gone: Callable[[], bool] | None = gone
        self.heard: bool = True  # no ping was sent yet
        self.at = self.asked_at = -inf

    def __lt__(self, other: Keepalive) -> bool:
        return self.at < other.at

    def start(self) -> None:
        if self._all.interval > 0:
            self._all.join(self)

    def stop(self) -> None:
        if self.ping is not None:
            self.ping = self.gone = None
            if self.at > -inf:
                self._all.leave()
