"""These services keep one session at a time, and come back, for as long as they run."""

from __future__ import annotations

import random as random_module
from collections.abc import Callable
from enum import StrEnum
from types import TracebackType
from typing import Any, Final, Generic, Self, TypedDict, TypeVar, Unpack, cast

from twisted.application.service import Service
from twisted.internet.defer import Deferred, fail, maybeDeferred, succeed
from twisted.internet.interfaces import IProtocolFactory
from twisted.logger import Logger
from twisted.python.failure import Failure

from ...core.errors import ConnectionClosed, LimitExceeded, Refused, TimedOut, unquoted
from ...core.limits import Limit, Limits
from ..deferreds import Waiters, guarded
from ..lifetimes import BeforeShutdown, is_cancelled
from ..limit_types import ReconnectLimits
from .client import session_of
from .client_endpoints import endpoint_of
from .command_types import ClientEndpoint

RECONNECT_LIMITS: Final = (
    Limit("retry-first", 1.0, "s", "from a lost connection to the next attempt", 0.001),
    Limit("retry-most", 60.0, "s", "between two attempts, however many have failed", 0.001),
    Limit("refused-first", 2.0, "s", "from a refusal to the next attempt", 0.001),
    Limit("refused-most", 300.0, "s", "between two attempts, however many were refused", 0.001),
    Limit("steady-seconds", 10.0, "s", "after a session of this length the intervals begin anew"),
    Limit("waiting-seconds", 60.0, "s", "a verb waits for a session, then TimedOut", 0.001),
    Limit("waiting-verbs", 10_000, "verbs", "wait for a session; one more gets LimitExceeded", 1),
    Limit("waiting-bytes", 64 << 20, "bytes", "of what waits for a session", 1),
)

DRAIN_SECONDS: Final = 4.0  # for calls in flight at the end, if there is no limit ``drain``

BACKOFF_FACTOR: Final = 2.0

BACKOFF_JITTER: Final = 0.5  # of a wait is random, lest all clients reconnect at the same moment


class ReconnectState(StrEnum):
    """The states of a client that reconnects; each equals its name in lower case."""

    CONNECTING = "connecting"

    UP = "up"

    DOWN = "down"  # not started, stopped, or the next attempt is yet to come

    REFUSED = "refused"
    """The server said no.  It stays so during further attempts, until one ends otherwise."""


class Backoff:
    __slots__ = ("_first", "_most", "_random", "_wait", "attempts")

    attempts: int  # that have failed since the last reset
    _wait: float

    def __init__(self, first: float, most: float, random: Callable[[], float]) -> None:
        self._first = min(first, most)
        self._most = most
        self._random = random
        self.reset()

    def next(self) -> float:
        wait, self._wait = self._wait, min(self._most, self._wait * BACKOFF_FACTOR)
        self.attempts += 1
        return wait * (1 - BACKOFF_JITTER * self._random())

    def reset(self) -> None:
        self._wait, self.attempts = self._first, 0


# ── one verb that may have to wait for a session ────────────────────────────────────────────────


S = TypeVar("S")
T = TypeVar("T")


class PendingCall(Generic[S, T]):
    """A call of a verb that may have to wait for a session; its Deferred outlives sessions."""

    __slots__ = ("deadline", "done", "inner", "nbytes", "over", "safe", "sending", "timer", "verb")

    def __init__(
        self,
        verb: Callable[[S, float], Deferred[T]],
        deadline: float,
        nbytes: int,
        safe: bool,
        forget: Callable[[PendingCall[S, T]], None],
    ) -> None:
        self.verb = verb
        self.deadline: float = deadline
        self.nbytes: int = nbytes
        self.safe: bool = safe
        self.over: bool = False  # its Deferred has fired, or is about to
        self.sending: bool = False  # its verb is just being called
        self.inner: Deferred[T] | None = None  # the Deferred of the newest session that had it
        self.timer: Any = None  # while it waits for a session

        def cancelled(done: Deferred[T]) -> None:
            self.over = True
            forget(self)
            if self.inner is not None:
                self.inner.cancel()  # nothing happens if it has fired

        self.done: Deferred[T] = Deferred(cancelled)

    def stop(self) -> None:
        timer, self.timer = self.timer, None
        if timer is not None:
            timer.cancel()

    def fire(self, result: T) -> None:
        if not self.over:
            self.over = True
            self.done.callback(result)

    def fail(self, error: Failure | Exception) -> None:
        if not self.over:
            self.over = True
            self.done.errback(error)


# ── services of all kinds ─────────────────────────────────────────────────────────────────────────


log: Final = Logger(namespace="twisted_msgproto.net")


class ReconnectOptions(TypedDict, total=False):
    retryPolicy: Callable[[int], float] | None
    stopWhenRefused: bool
    drain: float
    limits: ReconnectLimits | Limits | None
    random: Callable[[], float]


class ReconnectingService(Service, Generic[S]):
    """One session with a server, for as long as the service runs.

    A verb that is called while there is no session waits for the next one, up to its time limit;
    then it fails with TimedOut.  When the server refuses the session, whatever waits fails with
    Refused, and so does whatever is called until another attempt ends otherwise; attempts continue
    at growing intervals, unless ``stopWhenRefused``.

    Subclasses say how a session begins and ends (:meth:`_begin`, :meth:`_closeSession`,
    :meth:`_cutOff`, :meth:`_leave`) and report what happens (:meth:`_attempting`,
    :meth:`_established`, :meth:`_failed`).

    Attributes:
        state: a :class:`ReconnectState`.
        session: the session that stands now, or None.
        refusal: why the server refused the last attempt, or None.
        limits: the limits of this service (:data:`RECONNECT_LIMITS`).
    """

    session: S | None = None

    def __init__(
        self,
        clock: Any,
        *,
        retryPolicy: Callable[[int], float] | None = None,
        stopWhenRefused: bool = False,
        drain: float = DRAIN_SECONDS,
        limits: ReconnectLimits | Limits | None = None,
        random: Callable[[], float] = random_module.random,
    ) -> None:
        """Make a service; ``clock`` has ``seconds()`` and ``callLater()``.

        ``retryPolicy(attempts)`` returns the seconds until the next attempt after this many
        failures; it replaces the limits ``retry-first`` and ``retry-most``.  Refusals keep their
        own intervals; with ``stopWhenRefused`` a refusal ends the attempts until the service is
        stopped and started again.  What is in flight when the service stops has ``drain`` seconds.
        ``limits`` change :data:`RECONNECT_LIMITS` by name.  ``random`` returns numbers from 0 to 1.

        Raises ConfigurationError for a limit that does not exist or makes no sense.
        """
        self.clock = clock
        self.limits: Limits = (
            limits
            if isinstance(limits, Limits)
            else Limits.of(RECONNECT_LIMITS).replace(limits or {})
        )
        self.state: ReconnectState = ReconnectState.DOWN
        self.refusal: Refused | None = None
        self._retryPolicy = retryPolicy
        self._stopWhenRefused = stopWhenRefused
        self._drain = drain
        self._retries = Backoff(self.limits["retry-first"], self.limits["retry-most"], random)
        self._refusals = Backoff(self.limits["refused-first"], self.limits["refused-most"], random)
        self._stoodSince = 0.0
        self._standing: Waiters[S] = Waiters()  # who waits in whenEstablished
        self._pending: dict[PendingCall[S, Any], None] = {}  # verbs that wait, oldest first
        self._pendingBytes = 0
        self._busy = False  # somebody is at the calls
        self._watchers: dict[object, Callable[[ReconnectState], object]] = {}
        self._closing = False  # stopService was called
        self._ending = False  # … and the session has not ended yet
        self._stopping: Waiters[None] = Waiters()  # who waits for the end
        self._deadline: Any = None  # of the orderly end
        self._renewed: dict[Any, Any] = {}  # subscriptions, which each session renews

    # ── what can be seen ────────────────────────────────────────────────────────────────────────

    def watch(self, hook: Callable[[ReconnectState], object]) -> Callable[[], None]:
        """Call ``hook(state)`` at each change of the state; call what this returns to end that.

        It may be a coroutine function; nobody waits for its end.
        """
        watching = object()
        self._watchers[watching] = hook
        return lambda: self._watchers.pop(watching, None) and None

    def _change(self, state: ReconnectState) -> None:
        if state is self.state:
            return
        self.state = state
        for hook in list(self._watchers.values()):
            guarded(log, "a client's service", hook, state)

    def whenEstablished(self) -> Deferred[S]:
        """Fires with the session that stands, now or when the next one does.

        Fails with Refused when the server refuses it (at once, if it just has), with
        ConnectionClosed when the service is stopped first.
        """
        if self._usable:
            return succeed(cast(S, self.session))
        error = self._unable()
        if error is not None:
            return fail(error)
        return self._standing.wait()

    @property
    def _usable(self) -> bool:
        return self.session is not None and not self._closing

    @property
    def waiting(self) -> int:
        """Return how many verbs wait for a session now."""
        return len(self._pending)

    def _unable(self) -> Exception | None:
        if self._closing and not self.running:
            return ConnectionClosed("the client was stopped")
        refused = self.state is ReconnectState.REFUSED and not self._closing
        return self.refusal if refused else None

    # ── verbs that wait ────────────────────────────────────────────────────────────────────────

    def perform(
        self,
        verb: Callable[[S, float], Deferred[T]],
        *,
        seconds: float | None = None,
        nbytes: int = 0,
        safe: bool = False,
    ) -> Deferred[T]:
        """Call ``verb(session, secondsLeft)`` in the session that stands, or in the next one.

        ``seconds`` (None: the limit ``waiting-seconds``) are for waiting and, where ``verb`` minds
        its argument, for the rest too.  ``nbytes`` are held while it waits.  What was on its way
        when its session ended fails with ConnectionClosed, since nobody knows whether the server
        has it; ``safe``: doing it twice does no harm, so it is done again in the next session.

        The Deferred fails as that of ``verb``, with TimedOut or Refused while it waits, with
        LimitExceeded when too many wait, with ConnectionClosed when the service is stopped.
        Cancelling it is safe at any time.
        """
        seconds = self.limits["waiting-seconds"] if seconds is None else seconds
        deadline = self.clock.seconds() + seconds
        call: PendingCall[S, T] = PendingCall(verb, deadline, nbytes, safe, self._forget)
        error = self._unable() or self._tooMuch(nbytes)
        if error is not None:
            call.fail(error)
        else:
            self._wait(call)
        return call.done

    def _tooMuch(self, nbytes: int) -> Exception | None:
        if self._usable:
            return None
        try:
            self.limits.check("waiting-verbs", len(self._pending) + 1)
            self.limits.check("waiting-bytes", self._pendingBytes + nbytes)
        except LimitExceeded as error:
            return error
        return None

    def _wait(self, call: PendingCall[S, Any], first: bool = False) -> None:
        self._pending[call] = None
        if first:
            self._pending = {call: None, **self._pending}
        self._pendingBytes += call.nbytes
        self._runPending()
        if call in self._pending and call.timer is None:
            left = max(0.0, call.deadline - self.clock.seconds())
            call.timer = self.clock.callLater(left, self._late, call)

    def _forget(self, call: PendingCall[S, Any]) -> None:
        call.stop()
        if call in self._pending:
            del self._pending[call]
            self._pendingBytes -= call.nbytes

    def _runPending(self) -> None:
        if self._busy:
            return  # whoever is at it comes to the newest, too
        self._busy = True
        try:
            while self._pending and self._usable:
                self._run(next(iter(self._pending)), cast(S, self.session))
        finally:
            self._busy = False

    def _run(self, call: PendingCall[S, Any], session: S) -> None:
        self._forget(call)
        left = max(0.0, call.deadline - self.clock.seconds())
        call.sending = True
        inner: Deferred[Any] = maybeDeferred(call.verb, session, left)
        call.inner = inner
        inner.addCallbacks(
            self._done,
            self._notDone,
            callbackArgs=(call, session),
            errbackArgs=(call, session),
        )
        call.sending = False

    def _done(self, result: Any, call: PendingCall[S, Any], session: S) -> None:
        call.fire(result)

    def _notDone(self, failure: Failure, call: PendingCall[S, Any], session: S) -> None:
        if call.over:
            return  # its caller has cancelled it
        lost = failure.check(ConnectionClosed) is not None and self._isOver(session)
        if lost and self.session is session and not self._closing:
            self.session = None  # it is over, though it may be that nobody has said so yet
        if lost and (call.safe or call.sending) and self._unable() is None:
            self._wait(call, first=call.sending)  # while sending: it was not sent
            return
        call.fail(failure)

    def _late(self, call: PendingCall[S, Any]) -> None:
        call.timer = None
        self._forget(call)
        call.fail(TimedOut("there was no session in time"))

    def _failWaiting(self, error: Exception) -> None:
        """Everybody who waits for a session hears that there is none; each callback may do more."""
        calls = list(self._pending)
        self._standing.fail(error)
        for call in calls:
            if call in self._pending:
                self._forget(call)
                call.fail(error)

    # ── what subclasses report ──────────────────────────────────────────────────────────────────

    def _attempting(self) -> None:
        if self.state is not ReconnectState.REFUSED:
            self._change(ReconnectState.CONNECTING)

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
        self._change(ReconnectState.UP)
        self._standing.fire(session)
        self._runPending()

    def _failed(self, error: BaseException | None = None) -> None:
        """An attempt has failed, or the session is over; ``error`` says why, if that is known."""
        stood, self.session = self.state is ReconnectState.UP, None
        if stood and self.clock.seconds() - self._stoodSince >= self.limits["steady-seconds"]:
            self._retries.reset()
        if self._closing:
            return
        if isinstance(error, Refused) and not stood:
            self.refusal = error
            self._change(ReconnectState.REFUSED)
            self._failWaiting(error)
        else:
            self._change(ReconnectState.DOWN)

    def _delay(self) -> float:
        if self.state is ReconnectState.REFUSED:
            seconds = self._refusals.next()
            log.warn(
                "the server refuses: {text} ({next})",
                text=unquoted(str(self.refusal)),
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
        for renewed in list(self._renewed.values()):
            renewed._renew(session)

    def _isOver(self, session: S) -> bool:
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
        for renewed in self._renewed.values():
            renewed._resume()
        self._change(ReconnectState.DOWN)
        self._begin()

    def close(self) -> Deferred[None]:
        """End the session in order and come back no more; as :meth:`stopService`."""
        return self.stopService()

    async def __aenter__(self) -> Self:
        """Start; who needs a session waits for :meth:`whenEstablished`, or calls a verb."""
        self.startService()
        self._shutdown = BeforeShutdown(self.clock, self.close)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop; after a cancellation what is in flight is cut off."""
        shutdown = self._shutdown

        def forget(result: None) -> None:
            shutdown.forget()
            return result

        closed = self.close().addBoth(forget)
        if isinstance(error, GeneratorExit):
            self._hurry()
            return
        if error is not None and is_cancelled(error):
            self._hurry()
        try:
            await closed
        except BaseException as interrupted:  # it never fails by itself
            self._hurry()
            if error is None or isinstance(interrupted, GeneratorExit):
                raise

    def _hurry(self) -> None:
        deadline = self._deadline
        if deadline is not None and deadline.active():
            deadline.reset(0)

    def stopService(self) -> Deferred[None]:
        """End the session in order and come back no more; fires when the connection is closed.

        What is in flight is finished, within the seconds of ``drain``; what waits for a session
        fails with ConnectionClosed, and so does whatever is called from now on.
        """
        if self.running:
            super().stopService()  # type: ignore[no-untyped-call]
        stopped = self._stopping.wait()
        first, self._ending, self._closing = not self._ending, True, True
        self._failWaiting(ConnectionClosed("the client was stopped"))
        if first:
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

    def abort(self) -> None:
        """End the session at once and come back no more; what is in flight fails."""
        self.stopService()
        if self._ending:
            self._cutOff()

    def _outOfTime(self) -> None:
        self._deadline = None
        self._cutOff()

    def _forgetDeadline(self) -> None:
        deadline, self._deadline = self._deadline, None
        if deadline is not None and deadline.active():
            deadline.cancel()

    def _left(self, result: object) -> None:
        self._forgetDeadline()
        self.session = None
        self._change(ReconnectState.DOWN)
        self._ending = False
        stopping, self._stopping = self._stopping, Waiters()
        if self.running:  # it was started again meanwhile
            self._restart()
        for renewed in list(self._renewed.values()):
            if not self.running:
                renewed._rest(ConnectionClosed("the client was stopped"))
        stopping.fire(None)  # last: whoever waited for this may start or stop it again


# ── services on Twisted's transports ──────────────────────────────────────────────────────────────


class ReconnectingClient(ReconnectingService[S]):
    """A client on Twisted transports that reconnects.

    What the factory builds has ``whenEstablished()``, which fires with the session, or fails with
    Refused if the server refused it; the session's ``close()`` ends it in order.
    """

    def __init__(
        self,
        endpoint: str | ClientEndpoint,
        factory: Any,
        *,
        connecting: IProtocolFactory | None = None,
        **options: Unpack[ReconnectOptions],
    ) -> None:
        """``factory`` builds the sessions, or ``connecting`` does with it (WebSocket).

        ``endpoint`` is one, or its string as ``connect`` takes it.  ``options`` go to
        :class:`ReconnectingService`.
        """
        drain = factory.limits.get("drain", DRAIN_SECONDS)
        options.setdefault("drain", drain)
        super().__init__(factory.clock, **options)
        self.factory = factory
        webSocket = connecting is not None
        self._endpoint = endpoint_of(factory.clock, endpoint, webSocket=webSocket)
        self._builder = factory if connecting is None else connecting
        self._attempt: Deferred[Any] | None = None  # the connection that is being made
        self._connection: Any = None  # the one that lives
        self._next: Any = None  # the call of the next attempt
        self._error: BaseException | None = None  # why the attempt at hand has failed
        self._over: Waiters[None] = Waiters()  # who waits for the end of what is at hand

    @property
    def _resting(self) -> bool:
        return self._attempt is None and self._connection is None and self._next is None

    def _begin(self) -> None:
        self._next = None
        self._attempting()
        if self._closing or not self._resting:
            return  # whoever heard of it has stopped this, or the last connection has not ended
        attempt: Deferred[Any] = maybeDeferred(self._endpoint.connect, self._builder)
        self._attempt = attempt
        attempt.addCallbacks(self._connected, self._unconnected)

    def _connected(self, connection: Any) -> None:
        self._attempt, self._connection = None, connection
        session = session_of(connection)
        established: Deferred[S] = session.whenEstablished()
        established.addCallbacks(self._established, self._unestablished)
        session.link.whenGone().addCallback(self._lost)
        if self._closing and self._connection is not None:  # it may be lost by now
            self._end()

    def _unconnected(self, failure: Failure) -> None:
        self._attempt, self._error = None, failure.value
        self._again()

    def _unestablished(self, failure: Failure) -> None:
        self._error = failure.value

    def _lost(self, result: None) -> None:
        self._connection = None
        self._again()

    def _again(self) -> None:
        """Come back after a while, unless somebody who hears of it stops or starts this."""
        error, self._error = self._error, None
        self._failed(error)
        if self._closing:
            self._over.fire(None)
            return
        seconds = self._delay()
        refused = self._stopWhenRefused and self.state is ReconnectState.REFUSED
        if self._resting and not self._closing and not refused:
            self._next = self.clock.callLater(seconds, self._begin)

    def _closeSession(self, session: S) -> Deferred[Any]:
        closed: Deferred[Any] = cast(Any, session).close()
        return closed

    def _leave(self) -> Deferred[Any]:
        call, self._next = self._next, None
        if call is not None:
            call.cancel()
        if self._resting:
            return succeed(None)
        over = self._over.wait()
        if self._attempt is not None:  # not now: its connectionMade may be what stops this
            self.clock.callLater(0, self._attempt.cancel)
        else:
            self._end()
        return over

    def _end(self) -> None:
        session = session_of(self._connection)
        if session.established:  # its sessionEstablished has stopped this, what it sent is finished
            session.close()
        else:
            self._connection.transport.loseConnection()

    def _cutOff(self) -> None:
        transport = getattr(self._connection, "transport", None)
        if transport is not None:
            transport.abortConnection()
