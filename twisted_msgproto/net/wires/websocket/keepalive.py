"""Find out whether the peers of WebSocket connections still live (RFC 6455, pings and pongs)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Final

from ...memory import Clock
from .frames import Call, log

STEP_SECONDS: Final = 0.5
"""Pings and checks that are due within this time are made together, by one call of the clock: most
of what a ping costs is that its code and its connection are in no cache.
"""

PINGS_A_TURN: Final = 200
"""At most this many connections are checked in one turn of the reactor, which needs some 10 ms.
After a restart all peers connect at once, and stay together for as long as they live.
"""


class Round:
    """Connections that were pinged together, and wait together.

    Attributes:
        asked_at: when they were pinged.
        members: those that were; some may have stopped since.
    """

    __slots__ = ("asked_at", "members")

    def __init__(self, asked_at: float, members: list[Keepalive]) -> None:
        self.asked_at: float = asked_at
        self.members: list[Keepalive] = members


class Keepalives:
    """Waits for all connections of a factory, with one timer.

    A server with ten thousand idle connections does little else, so a connection has no timer of
    its own: those that are pinged together are checked together, and pinged again together.
    """

    __slots__ = (
        "_at",
        "_call",
        "_clock",
        "_living",
        "_newcomers",
        "_numbers",
        "_rounds",
        "interval",
        "patience",
    )

    def __init__(self, clock: Clock, interval: float, patience: float) -> None:
        """Send pings every ``interval`` seconds (0: none); an answer may need ``patience`` seconds.

        ``clock`` has ``seconds()`` and ``callLater()``.
        """
        self.interval: float = interval
        self.patience: float = patience
        self._clock = clock
        self._call: Call | None = None
        # When the call comes; nothing is earlier while a step is made.
        self._at = -inf
        self._living = 0  # connections that have started and not stopped
        # When their first pings are due, in this order.
        self._newcomers: deque[tuple[float, Keepalive]] = deque()
        # By the time when they are checked; the number keeps rounds from being compared.
        self._rounds: list[tuple[float, int, Round]] = []
        self._numbers = count()

    def join(self, one: Keepalive) -> None:
        """Ping ``one`` after the interval, or at most :data:`STEP_SECONDS` later, and so on."""
        at = self._clock.seconds() + self.interval
        self._newcomers.append((at, one))
        self._living += 1
        if at < self._at or self._call is None:
            self._arm(at, self.interval)

    def leave(self) -> None:
        """Note that one that joined has stopped; it is passed over when its time comes."""
        self._living -= 1
        if not self._living and self._at > -inf:
            self._rest()

    def _rest(self) -> None:
        self._disarm()
        self._newcomers.clear()
        self._rounds.clear()

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
        ask: list[Keepalive] = []
        left = self._check_rounds(now, ask)
        self._add_newcomers(now, ask, left)
        if ask:
            self._wait(now + min(self.interval, self.patience), Round(now, ask))
        for one in ask:
            if one.ping is not None:  # what was done for the others may have ended it
                one.heard = False
                try:
                    one.ping()
                except Exception:  # one of them harms none of the others
                    log.failure("a ping failed")
        self._call = None
        if not self._living:
            self._rest()
        # Those who are being ended live until their connections are lost, and wait for nothing.
        elif waiting := [rows[0][0] for rows in (self._newcomers, self._rounds) if rows]:
            nearest = min(waiting)
            # Whatever is still due is left for the next turn.
            self._arm(nearest, 0.0 if nearest <= now else max(nearest - now, STEP_SECONDS))

    def _wait(self, at: float, together: Round) -> None:
        heappush(self._rounds, (at, next(self._numbers), together))

    def _check_rounds(self, now: float, ask: list[Keepalive]) -> int:
        left, rounds = PINGS_A_TURN, self._rounds
        while rounds and rounds[0][0] <= now and len(rounds[0][2].members) <= left:
            together = heappop(rounds)[2]
            left -= len(together.members)
            self._check(together, now, ask)
        return left

    def _check(self, together: Round, now: float, ask: list[Keepalive]) -> None:
        asked_at = together.asked_at
        heard: list[Keepalive] = []
        silent: list[Keepalive] = []
        for one in together.members:
            if one.ping is not None:
                (heard if one.heard else silent).append(one)
        if now >= asked_at + self.interval:
            ask += heard
        elif heard:
            self._wait(asked_at + self.interval, Round(asked_at, heard))
        if silent and now >= asked_at + self.patience:
            silent = [one for one in silent if not self._has_gone(one)]
            asked_at = now
        if silent:
            self._wait(asked_at + self.patience, Round(asked_at, silent))

    def _has_gone(self, one: Keepalive) -> bool:
        try:
            return one.gone is None or one.gone()
        except Exception:
            log.failure("a connection could not be ended")
            return False

    def _add_newcomers(self, now: float, ask: list[Keepalive], left: int) -> None:
        newcomers = self._newcomers
        while newcomers and newcomers[0][0] <= now and left:
            one = newcomers.popleft()[1]
            if one.ping is not None:
                ask.append(one)
                left -= 1


class Keepalive:
    """The pings of one connection, and what is done when nothing comes back.

    Whatever the peer sends shows that it lives: a large message leaves it no room for a pong.

    Attributes:
        heard: something came from the peer since the last ping.  The carrier sets it.
        ping: sends a ping.  None: the connection was stopped.
        gone: nothing came in time.  It returns True where the connection is ended, and False where
            the peer deserves as much time again.
    """

    __slots__ = ("_all", "_joined", "gone", "heard", "ping")

    def __init__(
        self, every: Keepalives, ping: Callable[[], None], gone: Callable[[], bool]
    ) -> None:
        self._all = every
        self._joined = False
        self.ping: Callable[[], None] | None = ping
        self.gone: Callable[[], bool] | None = gone
        self.heard: bool = False

    def start(self) -> None:
        if self._all.interval > 0:
            self._joined = True
            self._all.join(self)

    def stop(self) -> None:
        if self.ping is not None:
            self.ping = self.gone = None
            if self._joined:
                self._all.leave()
