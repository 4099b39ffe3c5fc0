"""Find out whether the peers of WebSocket connections still live (RFC 6455, pings and pongs)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf
from typing import Final

from .quiet import Call, Clock, log

STEP_SECONDS: Final = 0.5
"""Pings and checks that are due within this time are made together, by one call of the clock: most
of what a ping costs is that its code and its connection are in no cache.
"""

PINGS_A_TURN: Final = 200
"""At most this many are made in one turn of the reactor, which needs some 10 ms.  After a restart
all peers connect at once, and stay together for as long as they live (``NB-07``).
"""


class Keepalives:
    """Waits for all connections of a factory, with one timer.

    A server with ten thousand idle connections does little else: a timer for each of them would
    need as much time as the pings, and 0.5 KB of memory each (``NB-11``).
    """

    __slots__ = ("_at", "_call", "_clock", "_waiting", "_waits", "interval", "patience")

    def __init__(self, clock: Clock, interval: float, patience: float) -> None:
        """Send pings every ``interval`` seconds (0: none); an answer may need ``patience`` seconds.

        ``clock`` has ``seconds()`` and ``callLater()``.
        """
        self.interval = interval
        self.patience = patience
        self._clock = clock
        self._call: Call | None = None
        # When the call comes; nothing is earlier while the waits are looked through.
        self._at = -inf
        self._waiting = 0  # connections whose wait is not over
        # By the length of a wait, in the order in which they end: only a few lengths occur.
        self._waits: dict[float, deque[tuple[float, Keepalive]]] = {}

    def wait(self, one: Keepalive, seconds: float) -> None:
        """Call ``one.due`` after this time, or at most :data:`STEP_SECONDS` later."""
        waits = self._waits.get(seconds)
        if waits is None:
            waits = self._waits[seconds] = deque()
        at = self._clock.seconds() + seconds
        waits.append((at, one))
        self._waiting += 1
        if self._call is None or at < self._at:
            self._arm(at, seconds)

    def forget(self) -> None:
        """One that waited is stopped; what it left in its row is passed over."""
        self._waiting -= 1
        if not self._waiting and self._at > -inf:
            self._disarm()
            self._waits.clear()

    def _arm(self, at: float, seconds: float) -> None:
        self._disarm()
        self._at = at
        self._call = self._clock.callLater(seconds, self._step)

    def _disarm(self) -> None:
        if self._call is not None and self._call.active():
            self._call.cancel()
        self._call = None

    def _step(self) -> None:
        now, self._at = self._clock.seconds(), -inf
        due: list[Keepalive] = []
        for waits in self._waits.values():
            while waits and waits[0][0] <= now and len(due) < PINGS_A_TURN:
                one = waits.popleft()[1]
                if one.live:
                    one.waits = False
                    due.append(one)
        self._waiting -= len(due)
        for one in due:
            if one.live:  # what was done for the others may have ended it
                try:
                    one.due(now)
                except Exception:  # one of them harms none of the others
                    log.failure("a ping failed")
        self._call = None
        if self._waiting:
            nearest = min([waits[0][0] for waits in self._waits.values() if waits])
            more = len(due) == PINGS_A_TURN and nearest <= now
            self._arm(nearest, 0.0 if more else max(nearest - now, STEP_SECONDS))


class Keepalive:
    """Sends a ping from time to time, and says when nothing comes back.

    Whatever the peer sends shows that it lives: a large message leaves it no room for a pong.

    Attributes:
        heard: something came from the peer since the last ping.  The carrier sets it.
        waits: :class:`Keepalives` is going to call :meth:`due`.
    """

    __slots__ = ("_all", "_asked_at", "_gone", "_ping", "heard", "waits")

    def __init__(
        self, every: Keepalives, ping: Callable[[], None], gone: Callable[[], bool]
    ) -> None:
        """Note what to do; the first ping is sent some time after :meth:`start`.

        Args:
            every: waits for this connection and the others.
            ping: sends a ping.
            gone: nothing came in time.  It returns True where the connection is ended, and
                False where the peer deserves as much time again.
        """
        self._all = every
        self._ping: Callable[[], None] | None = ping
        self._gone: Callable[[], bool] | None = gone
        self._asked_at: float | None = None
        self.heard = False
        self.waits = False

    @property
    def live(self) -> bool:
        """Whether the connection has not been stopped."""
        return self._ping is not None

    def start(self) -> None:
        """Send the first ping when the time between two pings is over."""
        if self._all.interval > 0:
            self._wait(self._all.interval)

    def stop(self) -> None:
        """Send no more pings, and wait for no answer; the connection is not referred to then."""
        if self._ping is not None:
            self._ping = self._gone = None
            if self.waits:
                self.waits = False
                self._all.forget()

    def due(self, now: float) -> None:
        """End with a peer that did not answer, or send the next ping."""
        interval, patience = self._all.interval, self._all.patience
        assert self._ping is not None and self._gone is not None
        if self._asked_at is not None and not self.heard:
            if now < self._asked_at + patience - STEP_SECONDS / 2:
                self._wait(patience - interval)
                return
            if self._gone():
                return
            self._asked_at = now
            self._wait(patience)
            return
        if self._asked_at is not None and now < self._asked_at + interval - STEP_SECONDS / 2:
            self._wait(interval - patience)
            return
        self._asked_at, self.heard = now, False
        self._wait(min(interval, patience))
        self._ping()

    def _wait(self, seconds: float) -> None:
        self.waits = True
        self._all.wait(self, seconds)
