"""Keep one session at a time for as long as a service runs; all protocols share this."""

from __future__ import annotations

import random as random_module
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic

from twisted.application.service import Service
from twisted.internet.defer import Deferred, fail, maybeDeferred, succeed
from twisted.logger import Logger
from twisted.python.failure import Failure

from ...core.errors import ConnectionClosed, LimitExceeded, Refused, TimedOut, shown
from ...core.limits import Limits
from ..outbox import Waiters
from .errand import Errand, S, T
from .terms import COMEBACK_LIMITS, DRAIN_SECONDS, Backoff, ComebackState

log: Final = Logger(namespace="twisted_msgproto.net")


class Comeback(Service, Generic[S]):
    """One session with a server, for as long as the service runs.

    A verb that is called while there is no session waits for the next one, up to its time limit;
    then it fails with TimedOut.  When the server refuses the session, whatever waits fails with
    Refused, and so does whatever is called until another attempt ends otherwise; attempts continue
    at growing intervals, unless ``stopWhenRefused``.

    Subclasses say how a session begins and ends (:meth:`_begin`, :meth:`_closeSession`,
    :meth:`_cutOff`, :meth:`_leave`) and report what happens (:meth:`_attempting`,
    :meth:`_established`, :meth:`_failed`).

    Attributes:
        state: a :class:`ComebackState`.
        session: the session that stands now, or None.
        refusal: why the server refused the last attempt, or None.
        limits: the limits of this service (:data:`COMEBACK_LIMITS`).
    """

    session: S | None = None

    def __init__(
        self,
        clock: Any,
        *,
        retryPolicy: Callable[[int], float] | None = None,
        stopWhenRefused: bool = False,
        drain: float = DRAIN_SECONDS,
        limits: Mapping[str, object] | Limits | None = None,
        random: Callable[[], float] = random_module.random,
    ) -> None:
        """Make a service; ``clock`` has ``seconds()`` and ``callLater()``.

        ``retryPolicy(attempts)`` returns the seconds until the next attempt after this many
        failures; it replaces the limits ``retry-first`` and ``retry-most``.  Refusals keep their
        own intervals; with ``stopWhenRefused`` a refusal ends the attempts until the service is
        stopped and started again.  What is in flight when the service stops has ``drain`` seconds.
        ``limits`` change :data:`COMEBACK_LIMITS` by name.  ``random`` returns numbers from 0 to 1.

        Raises ConfigurationError for a limit that does not exist or makes no sense.
        """
        self.clock = clock
        self.limits = (
            limits
            if isinstance(limits, Limits)
            else Limits.of(COMEBACK_LIMITS).replace(limits or {})
        )
        self.state = ComebackState.DOWN
        self.refusal: Refused | None = None
        self._retryPolicy = retryPolicy
        self._stopWhenRefused = stopWhenRefused
        self._drain = drain
        self._retries = Backoff(self.limits["retry-first"], self.limits["retry-most"], random)
        self._refusals = Backoff(self.limits["refused-first"], self.limits["refused-most"], random)
        self._stoodSince = 0.0
        self._standing: Waiters[S] = Waiters()  # who waits in whenEstablished
        self._errands: dict[Errand[S, Any], None] = {}  # verbs that wait, oldest first
        self._errandOctets = 0
        self._busy = False  # somebody is at the errands
        self._watchers: dict[int, Callable[[ComebackState], object]] = {}
        self._watched = 0
        self._closing = False  # stopService was called
        self._ending = False  # … and the session has not ended yet
        self._stopping: Waiters[None] = Waiters()  # who waits for the end
        self._deadline: Any = None  # of the orderly end

    # ── what can be seen ────────────────────────────────────────────────────────────────────────

    def watch(self, hook: Callable[[ComebackState], object]) -> Callable[[], None]:
        """Call ``hook(state)`` at each change of the state; call what this returns to end that."""
        self._watched += 1
        number = self._watched
        self._watchers[number] = hook
        return lambda: self._watchers.pop(number, None) and None

    def _change(self, state: ComebackState) -> None:
        if state is self.state:
            return
        self.state = state
        for hook in list(self._watchers.values()):
            try:
                hook(state)
            except Exception:
                log.failure("a hook which watches a client's state failed")

    def whenEstablished(self) -> Deferred[S]:
        """Fires with the session that stands, now or when the next one does.

        Fails with Refused when the server refuses it (at once, if it just has), with
        ConnectionClosed when the service is stopped first.
        """
        if self.session is not None:
            return succeed(self.session)
        error = self._unable()
        if error is not None:
            return fail(error)
        return self._standing.wait()

    @property
    def waiting(self) -> int:
        """Return how many verbs wait for a session now."""
        return len(self._errands)

    def _unable(self) -> Exception | None:
        """Why there is no use in waiting for a session, if there is none."""
        if self._closing:
            return ConnectionClosed("the client was stopped")
        return self.refusal if self.state is ComebackState.REFUSED else None

    # ── verbs that wait ────────────────────────────────────────────────────────────────────────

    def perform(
        self,
        verb: Callable[[S, float], Deferred[T]],
        *,
        seconds: float | None = None,
        octets: int = 0,
        safe: bool = False,
    ) -> Deferred[T]:
        """Call ``verb(session, secondsLeft)`` in the session that stands, or in the next one.

        ``seconds`` (None: the limit ``waiting-seconds``) are for waiting and, where ``verb`` minds
        its argument, for the rest too.  ``octets`` are held while it waits.  What was on its way
        when its session ended fails with ConnectionClosed, since nobody knows whether the server
        has it; ``safe``: doing it twice does no harm, so it is done again in the next session.

        The Deferred fails as that of ``verb``, with TimedOut or Refused while it waits, with
        LimitExceeded when too many wait, with ConnectionClosed when the service is stopped.
        Cancelling it is safe at any time.
        """
        seconds = self.limits["waiting-seconds"] if seconds is None else seconds
        deadline = self.clock.seconds() + seconds
        errand: Errand[S, T] = Errand(verb, deadline, octets, safe, self._forget)
        error = self._unable() or self._tooMuch(octets)
        if error is not None:
            errand.fail(error)
        else:
            self._wait(errand)
        return errand.done

    def _tooMuch(self, octets: int) -> Exception | None:
        if self.session is not None:
            return None
        try:
            self.limits.check("waiting-verbs", len(self._errands) + 1)
            self.limits.check("waiting-octets", self._errandOctets + octets)
        except LimitExceeded as error:
            return error
        return None

    def _wait(self, errand: Errand[S, Any], first: bool = False) -> None:
        self._errands[errand] = None
        if first:
            self._errands = {errand: None, **self._errands}
        self._errandOctets += errand.octets
        self._runErrands()
        if errand in self._errands and errand.timer is None:
            left = max(0.0, errand.deadline - self.clock.seconds())
            errand.timer = self.clock.callLater(left, self._late, errand)

    def _forget(self, errand: Errand[S, Any]) -> None:
        errand.stop()
        if errand in self._errands:
            del self._errands[errand]
            self._errandOctets -= errand.octets

    def _runErrands(self) -> None:
        if self._busy:
            return  # whoever is at it comes to the newest, too
        self._busy = True
        try:
            while self._errands and self.session is not None:
                self._run(next(iter(self._errands)), self.session)
        finally:
            self._busy = False

    def _run(self, errand: Errand[S, Any], session: S) -> None:
        self._forget(errand)
        left = max(0.0, errand.deadline - self.clock.seconds())
        errand.sending = True
        inner: Deferred[Any] = maybeDeferred(errand.verb, session, left)
        errand.inner = inner
        inner.addCallbacks(
            self._done,
            self._notDone,
            callbackArgs=(errand, session),
            errbackArgs=(errand, session),
        )
        errand.sending = False

    def _done(self, result: Any, errand: Errand[S, Any], session: S) -> None:
        errand.inner = None
        errand.fire(result)

    def _notDone(self, failure: Failure, errand: Errand[S, Any], session: S) -> None:
        errand.inner = None
        if errand.over:
            return  # its caller has cancelled it
        lost = failure.check(ConnectionClosed) is not None and self._isOver(session)
        if lost and self.session is session and not self._closing:
            self.session = None  # it is over, though it may be that nobody has said so yet
        if lost and (errand.safe or errand.sending) and self._unable() is None:
            self._wait(errand, first=errand.sending)  # while sending: it was not sent
            return
        errand.fail(failure)

    def _late(self, errand: Errand[S, Any]) -> None:
        errand.timer = None
        self._forget(errand)
        errand.fail(TimedOut("there was no session in time"))

    def _failWaiting(self, error: Exception) -> None:
        """Everybody who waits for a session hears that there is none; each callback may do more."""
        errands = list(self._errands)
        self._standing.fail(error)
        for errand in errands:
            if errand in self._errands:
                self._forget(errand)
                errand.fail(error)

    # ── what subclasses report ──────────────────────────────────────────────────────────────────

    def _attempting(self) -> None:
        if self.state is not ComebackState.REFUSED:
            self._change(ComebackState.CONNECTING)

    def _established(self, session: S) -> None:
        if self._closing:
            return
        self.session = session
        self.refusal = None
        self._refusals.reset()
        self._stoodSince = self.clock.seconds()
        try:
            self._renew(session)
        except Exception:
            log.failure("a new session was not made as the one before")
        self._change(ComebackState.UP)
        self._standing.fire(session)
        self._runErrands()

    def _failed(self, error: BaseException | None = None) -> None:
        """An attempt has failed, or the session is over; ``error`` says why, if that is known."""
        stood, self.session = self.state is ComebackState.UP, None
        if stood and self.clock.seconds() - self._stoodSince >= self.limits["steady-seconds"]:
            self._retries.reset()
        if self._closing:
            return
        if isinstance(error, Refused) and not stood:
            self.refusal = error
            self._change(ComebackState.REFUSED)
            self._failWaiting(error)
        else:
            self._change(ComebackState.DOWN)

    def _delay(self) -> float:
        if self.state is ComebackState.REFUSED:
            seconds = self._refusals.next()
            log.warn(
                "the server refuses: {text} ({next})",
                text=shown(str(self.refusal))[1:-1],
                next="not tried again"
                if self._stopWhenRefused
                else f"tried again in {seconds:.1f} s",
            )
            return seconds
        seconds = self._retries.next()
        if self._retryPolicy is not None:
            seconds = self._retryPolicy(self._retries.attempts)
        return seconds

    # ── for subclasses to say ───────────────────────────────────────────────────────────────────

    def _begin(self) -> None:
        raise NotImplementedError

    def _renew(self, session: S) -> None:
        """A session stands: what it must know before anything else is done in it."""

    def _isOver(self, session: S) -> bool:
        """Return whether a verb that failed with ConnectionClosed means that ``session`` is
        over.
        """
        return True

    def _closeSession(self, session: S) -> Deferred[Any]:
        raise NotImplementedError

    def _leave(self) -> Deferred[Any]:
        raise NotImplementedError

    def _cutOff(self) -> None:
        raise NotImplementedError

    # ── the service's life ──────────────────────────────────────────────────────────────────────

    def startService(self) -> None:
        """Connect, and connect again."""
        if self.running:
            return
        super().startService()  # type: ignore[no-untyped-call]
        if not self._ending:
            self._restart()

    def _restart(self) -> None:
        self._closing = False
        self.refusal = None
        self._retries.reset()
        self._refusals.reset()
        self._change(ComebackState.DOWN)
        self._begin()

    def close(self) -> Deferred[None]:
        """End the session in order and come back no more; as :meth:`stopService`."""
        return self.stopService()

    def stopService(self) -> Deferred[None]:
        """End the session in order and come back no more; fires when the connection is closed.

        What is in flight is finished, within the seconds of ``drain``; what waits for a session
        fails with ConnectionClosed, and so does whatever is called from now on.
        """
        if self.running:
            super().stopService()  # type: ignore[no-untyped-call]
        stopped = self._stopping.wait()
        if not self._ending:
            self._ending = True
            self._closing = True
            self._failWaiting(ConnectionClosed("the client was stopped"))
            self._deadline = self.clock.callLater(self._drain, self._outOfTime)
            session = self.session
            closed: Deferred[Any] = (
                succeed(None) if session is None else maybeDeferred(self._closeSession, session)
            )
            closed.addErrback(
                lambda failure: log.failure("the session did not end in order", failure)
            )
            closed.addCallback(lambda _: self._leave()).addBoth(self._left)
        return stopped

    def _outOfTime(self) -> None:
        self._deadline = None
        self._cutOff()

    def _left(self, result: object) -> None:
        deadline, self._deadline = self._deadline, None
        if deadline is not None and deadline.active():
            deadline.cancel()
        self.session = None
        self._change(ComebackState.DOWN)
        self._ending = False
        stopping, self._stopping = self._stopping, Waiters()
        if self.running:  # it was started again meanwhile
            self._restart()
        stopping.fire(None)  # last: whoever waited for this may start or stop it again
