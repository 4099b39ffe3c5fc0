"""A process that hangs is noticed, and killed in the end: :class:`Watch`.

A process hangs when its reactor does not turn: it still has its share of new connections, and its
socket still accepts those of whoever asks it something, but nobody gets an answer.  So each process
that serves is asked again and again for an answer that costs nothing.  One that is slow to answer
is *silent*: nobody waits for it until it answers this again.  One that is silent for long is killed
and starts again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from ...core.errors import ConfigurationError, QueueAway, QueueError

TURN_SECONDS: Final = 1.0
"""The watch checks this often who has answered, so a silence is known to about a second."""

ASK_SECONDS: Final = 3.0
"""A process is asked this long after its last answer.  An ask costs each side about a millisecond
of its processor.
"""

SILENT_SECONDS: Final = 3.0
"""A process that has not answered for this long is silent.  A turn of a busy reactor lasts some
milliseconds, and nobody who opens the page waits for a process that hangs, but for the first
seconds.
"""

LATE_SECONDS: Final = 0.5
"""If a check is later than this, the time before it is not counted.  The supervisor was stopped
itself, or had no processor, and its processes perhaps as well; their answers may be here unread.
"""

HANG_SECONDS: Final = 60.0
"""A process that is silent for this long is killed.  No turn of a reactor lasts a minute, also on
a machine with far more work than processors.
"""

HANG_SECONDS_LEAST: Final = 1.0
"""An operator may choose this time at least: the watch does not check more often."""

HANG_SECONDS_MOST: Final = 86_400.0
"""An operator may choose a day at most, or never, as 0."""

log = Logger(namespace="twisted_msgproto.processes")


def hang_seconds_of(value: object) -> float:
    """Return the key ``process-hang-seconds`` of a gateway.toml; ConfigurationError if it cannot
    be.
    """
    if value is None:
        return HANG_SECONDS
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else None
    if number is None or (number and not HANG_SECONDS_LEAST <= number <= HANG_SECONDS_MOST):
        raise ConfigurationError(
            f"process-hang-seconds is a number from {HANG_SECONDS_LEAST:g} to"
            f" {HANG_SECONDS_MOST:.0f}, or 0 for never, not {value!r}"
        )
    return float(number)


class _Watched:
    """Is one process that serves.

    Attributes:
        rests: seconds since it was asked last, or since it answered.
        asked: the ask under way; None: it has answered the last one.
        waits: how long this ask has waited while the supervisor turned, in seconds.
        silent: whether it was slow to answer, and has not answered since.
        killed: whether it was given up.
    """

    def __init__(self) -> None:
        self.rests = ASK_SECONDS  # it is asked at the next check
        self.asked: Deferred[Any] | None = None
        self.waits = 0.0
        self.silent = False
        self.killed = False


class Watch:
    """Watches the processes that serve."""

    def __init__(
        self,
        reactor: Any,
        ask: Callable[[int], Deferred[Any]],
        answered: Callable[[int], None],
        hangs: Callable[[int, float], None],
        hang_seconds: float = HANG_SECONDS,
    ) -> None:
        """``ask(number)`` asks a process, and never gives its answer up by itself.

        ``answered(number)`` is called with each answer, ``hangs(number, seconds)`` once when a
        process has been silent for ``hang_seconds``.  If these are 0, it is never called.
        """
        self._reactor = reactor
        self._ask = ask
        self._answered = answered
        self._hangs = hangs
        self._hang_seconds = hang_seconds
        self._watched: dict[int, _Watched] = {}
        self._checked_at = 0.0
        self._call: Any = None

    # ── whom it watches ─────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Check who answers, from now on."""
        self._checked_at = self._reactor.seconds()
        self._call = self._reactor.callLater(TURN_SECONDS, self._check)

    def stop(self) -> None:
        """Watch nobody any more."""
        if self._call is not None and self._call.active():
            self._call.cancel()
        for number in list(self._watched):
            self.end(number)

    def begin(self, number: int) -> None:
        """Watch a process, which serves now."""
        self._watched.setdefault(number, _Watched())

    def end(self, number: int) -> None:
        """Watch a process no more: it does not serve, or is told to end."""
        watched = self._watched.pop(number, None)
        if watched is not None and watched.asked is not None:
            watched.asked.cancel()

    def silent(self, number: int) -> bool:
        """Return whether a process is silent, so that nobody is to wait for it."""
        watched = self._watched.get(number)
        return watched is not None and watched.silent

    # ── checking ────────────────────────────────────────────────────────────────────────────────

    def _check(self) -> None:
        now = self._reactor.seconds()
        passed, self._checked_at = now - self._checked_at, now
        self._call = self._reactor.callLater(TURN_SECONDS, self._check)
        # Timers come before what is in the sockets: an answer that came while we were stopped
        # is read before the next check.
        turned = passed <= TURN_SECONDS + LATE_SECONDS
        for number, watched in list(self._watched.items()):
            watched.rests += passed
            if watched.asked is None:
                if watched.rests >= ASK_SECONDS:
                    self._ask_one(number, watched)
            elif turned:
                watched.waits += passed
                self._judge(number, watched)

    def _ask_one(self, number: int, watched: _Watched) -> None:
        watched.rests = watched.waits = 0.0
        watched.asked = asked = self._ask(number)
        asked.addBoth(self._told, number, watched)

    def _told(self, result: object, number: int, watched: _Watched) -> None:
        """A process has answered, or the ask has failed."""
        watched.asked = None
        watched.rests = 0.0
        if self._watched.get(number) is not watched:
            return
        if isinstance(result, Failure) and not _is_answer(result):
            return  # it is asked again
        if watched.silent:
            watched.silent = False
            log.info(
                "process {process} answers again", process=number, event="process answers again"
            )
        self._answered(number)

    def _judge(self, number: int, watched: _Watched) -> None:
        if not watched.silent and watched.waits >= SILENT_SECONDS:
            watched.silent = True
            log.warn("process {process} does not answer", process=number, event="process silent")
        if not watched.killed and 0 < self._hang_seconds <= watched.waits:
            watched.killed = True
            self._hangs(number, self._hang_seconds)


def _is_answer(failure: Failure) -> bool:
    """Return whether a process has answered, though not as it should.

    A failure without an answer says nothing of it.  It may have no socket, which its own log says,
    and works without.  One that hangs accepts connections, and does not fail.
    """
    if failure.check(QueueAway):
        return False
    if failure.check(QueueError):
        return True
    log.failure("a process could not be asked", failure)
    return False


__all__ = [
    "ASK_SECONDS",
    "HANG_SECONDS",
    "LATE_SECONDS",
    "SILENT_SECONDS",
    "TURN_SECONDS",
    "Watch",
    "hang_seconds_of",
]
