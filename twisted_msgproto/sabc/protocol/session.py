"""This is one sABC session on Twisted, of either role and on either wire.

The link moves octets or frames between a wire and the machine.  Here is what is sABC's own: the
method for each event, the hooks, and the answers to requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from inspect import iscoroutine
from sys import getsizeof
from typing import Any, ClassVar, Final

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from ...core.errors import ConnectionClosed, Fault, Refused, TimedOut, shown
from ...core.kept import KEPT_LIMIT, KEPT_WEIGHT_OCTETS, Keeping, Kept, table_octets
from ...core.limits import Limit
from ...core.message import Message, MessageBatch
from ...net.authentication import LOGIN_LIMITS
from ...net.authorising import CALL, PUBLISH, refusal_text
from ...net.counters import Places
from ...net.link import SteadyLogger
from ...net.outbox import Ticket, fail_all
from ...net.wires.websocket import WEBSOCKET_LIMITS, WebSocketWire
from ..terms.counters import Counters
from ..terms.events import (
    REQUEST,
    SEND_ONLY,
    DisconnectingReceived,
    DisconnectReceived,
    DrainTimedOut,
    ErrorReceived,
    FrameDiscarded,
    FrameRefused,
    MessageAbandoned,
    MessagesReceived,
    MessagesSafe,
    RequestFailed,
    RequestsTimedOut,
    ResponsesReceived,
    SessionExpired,
)
from ..terms.limits import SESSION_LIMITS
from ..terms.tables import TOO_MANY
from .exchange import Response, octets_of
from .verbs import Stream, Verbs

PROTOCOL: Final = "sabc"

LIMITS: Final = (
    *SESSION_LIMITS,
    Limit("session-seconds", 0.0, "s", "a session ends after this time; 0 = never (SA-11)"),
    *LOGIN_LIMITS,
    *WEBSOCKET_LIMITS,
    Limit(
        "websocket-message-octets",
        0,
        "octets",
        "of a WebSocket message; 0 = twice message-octets (SA-22)",
    ),
)

log = SteadyLogger(namespace="twisted_msgproto.sabc")


class SabcSession(Verbs):
    """What server and client have in common: hooks, and the method for each event.

    Attributes:
        machine: where the protocol's decisions are made; its ``snapshot()`` tells where it stands.
        session: the public name of this session; never the session id, which is a secret.
        peer: the peer's transport address as text.
        clientId: who the client is, or None.
        expires: when the session ends, in seconds since 1970-01-01 UTC, or None (``SA-11``).
    """

    log: ClassVar[Logger] = log
    readsWhileDraining = True
    counted = Places.of(Counters)
    answerEvents = frozenset({ResponsesReceived, RequestFailed, RequestsTimedOut, MessagesSafe})

    # What most sessions never change stands here: an idle one weighs less.
    _outputPaused = False
    _unanswered: Sequence[Any] = ()  # the waiters that the end has left
    _keeping: Keeping | None = None

    # ── hooks for subclasses ────────────────────────────────────────────────────────────────────

    def requestReceived(self, message: Message) -> Any:
        """The peer wants an answer (``SA-16``): a body, a :class:`Response`, None, or a Deferred
        or coroutine for one of these.

        With a sink this is called when the message is safe.  None is an empty acknowledgement, and
        so is the answer while nobody overrides this.  Raising Refused answers ERROR with its code
        and text; any other exception is logged and answered with code 500.
        """

    def messageReceived(self, message: Message) -> Any:
        """A send-only message came (``SA-17``); a Deferred holds up an orderly end (``SA-12``).

        With a sink this is called when the message is safe, even if the peer has left by then.
        """

    def errorReceived(self, error: ErrorReceived) -> None:
        """The peer reports an error that answers none of our requests (``SA-24``)."""

    def batchReceived(self, batch: MessageBatch) -> Deferred[Any] | None:
        """Messages of one read arrived, all requests or all send-only.

        By default they go to the factory's sink.  The other hooks see them once the Deferred (None:
        at once) has fired; if it fails the session ends, and its requests with it.
        """
        sink = self.factory.sink
        return None if sink is None else sink.put(batch)

    # ── the connection's life ───────────────────────────────────────────────────────────────────

    def connectionMade(self) -> None:
        self._streams: dict[Ticket[Response], Stream] = {}
        super().connectionMade()

    @property
    def framed(self) -> bool:
        return isinstance(self.wire, WebSocketWire)

    @property
    def unhooked(self) -> frozenset[str]:
        """Return the kinds of messages that no hook processes: the machine answers them when
        they are safe.
        """
        kind: Any = type(self)
        return _unhooked(kind)

    @property
    def expires(self) -> float | None:
        """Return when the session ends, in seconds since 1970-01-01 UTC."""
        return self.machine.expires

    @property
    def established(self) -> bool:
        """The session stands."""
        return self._established and not self._ended and not self.machine.closed

    @property
    def keptByAll(self) -> Kept | None:
        return None

    @property
    def keeping(self) -> Keeping:
        """Return what counts what this session keeps for longer than a message."""
        if self._keeping is None:
            self._keeping = Keeping(self.keptByAll)
        return self._keeping

    def workLost(self, work: list[Any], reason: Failure) -> None:
        self._unanswered = [waiter for _, waiter in work]

    def endNow(self) -> None:
        self.loseSession()

    def sessionEnding(self, reason: Failure) -> None:
        if self._keeping is not None:
            self._keeping.clear()
        error = self.ending or ConnectionClosed("the session has ended")
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.stop()
        fail_all([done for done, stream in streams.items() if not stream.waiting], error)
        unanswered, self._unanswered = self._unanswered, ()
        for waiter in unanswered:
            self._release(waiter).fail(error)
        super().sessionEnding(reason)

    # ── what the peer gets wrong, and how it ends ───────────────────────────────────────────────

    def oversized(self) -> None:
        if not self._ended:
            self._follow(self.machine.oversized())

    def _errorCame(self, event: ErrorReceived) -> None:
        self._guarded(self.errorReceived, event)

    def _frameRefused(self, event: FrameRefused) -> None:
        line = "{peer}: a frame was refused: {text} ({code})"
        self.tellOf(line, "frame refused", text=event.text, code=event.code)

    def _frameDiscarded(self, event: FrameDiscarded) -> None:
        self._tellLost("a frame without end was discarded", event.id)

    def _messageAbandoned(self, event: MessageAbandoned) -> None:
        self._tellLost("an unfinished message was given up", event.id)

    def _tellLost(self, what: str, id: str | None) -> None:
        self.tellOf("{peer}: {what}: {id}", "unfinished", what=what, id=shown(id or ""))

    def _clientLeaves(self, event: object) -> None:
        """The client wants no more than its answers: the machine sees to it."""

    def _countEnd(self, event: object) -> None:
        self.factory.counters[f"ended:{type(event).__name__}"] += 1

    # ── messages in ─────────────────────────────────────────────────────────────────────────────

    def _deliver(self, event: MessagesReceived) -> None:
        if self.factory.authoriser is not None:
            action = CALL if event.kind == REQUEST else PUBLISH
            if self.refuses(action, count=len(event.ids)):
                self.machine.forbid(event.place, refusal_text(action, ""))
                return
        event.batch = batch = MessageBatch(  # by place: names cost half as much again
            PROTOCOL,
            event.kind,
            self.factory.receivedAt(),
            self.peer,
            self.session,
            self.clientId,
            len(event.ids),
            event.octets,
            event.ids,
            None,  # no destination
            event.fields,
            event.bodies,
            None,  # no attachments
            event.truncated,
            weight=event.weight,
        )
        self.deliver(batch, event.place)

    def _safe(self, place: Any) -> None:
        """Messages at ``place`` are safe; send-only ones reach their hook after the end too."""
        events = self.machine.made_safe(place, self._now())
        if events or not self._following:
            self._follow(events)

    def _nowSafe(self, event: MessagesSafe) -> None:
        batch: Any = event.messages.batch
        if event.messages.kind != REQUEST:
            self._tellAll(batch)
        elif not self._gone:
            self._askAll(batch)

    def _tellAll(self, batch: MessageBatch) -> None:
        for message in batch:
            try:
                result = self.messageReceived(message)
            except Exception:
                log.failure("{peer}: messageReceived failed", peer=self.peer)
                result = None
            if iscoroutine(result):
                result = Deferred.fromCoroutine(result)
            if isinstance(result, Deferred):
                result.addErrback(
                    lambda failure: log.failure(
                        "{peer}: messageReceived failed", failure, peer=self.peer
                    )
                )
                result.addCallback(lambda _: self._told())
            else:
                self.machine.settle(1)

    def _told(self) -> None:
        self.machine.settle(1)
        self._settle()

    def _askAll(self, batch: MessageBatch) -> None:
        """Let the application answer; answers that are there at once leave together.

        Requests may wait for their answers for long.  While all sessions keep too much, those of a
        session with more than its share are refused before the application hears of them.
        """
        numbers: list[str] = []
        bodies: list[bytes] = []
        ask = self.requestReceived
        fits = (self._keeping or self.keeping).fits
        crowded = not fits(batch.octets + batch.weight + KEPT_WEIGHT_OCTETS * batch.count)
        for message in batch:
            number: Any = message.message_id
            if crowded and not fits(_owed(message)):
                self.factory.limitMet(KEPT_LIMIT, "a request")
                self.machine.fail(number, TOO_MANY, f"too many unanswered requests: {KEPT_LIMIT}")
                continue
            try:
                result = ask(message)
            except Exception:
                self._failed(Failure(), number)
                continue
            if type(result) is bytes:
                numbers.append(number)
                bodies.append(result)
            else:
                self._resolve(result, message)
        for number in self.machine.answer_all(numbers, bodies):
            self._answer(bodies[numbers.index(number)], number)

    def _resolve(self, result: Any, message: Message) -> None:
        number: Any = message.message_id
        if iscoroutine(result):
            result = Deferred.fromCoroutine(result)
        if isinstance(result, Deferred):
            if not result.called:
                octets = _owed(message)
                self.keeping.add(octets)
                result.addBoth(self._later, number, octets)
                return
            result.addCallbacks(
                self._answer, self._failed, callbackArgs=(number,), errbackArgs=(number,)
            )
        else:
            self._answer(result, number)

    def _later(self, result: object, number: str, octets: int) -> None:
        self.keeping.remove(octets)
        if isinstance(result, Failure):
            self._failed(result, number)
        else:
            self._answer(result, number)
        self._settle()

    def _answer(self, result: object, number: str) -> None:
        if self.machine.closed:
            return
        try:
            if isinstance(result, Response):
                self.machine.answer(number, octets_of(result.body), headers=result.headers)
            else:
                self.machine.answer(number, octets_of(result))
        except Exception:
            self._failed(Failure(), number)

    def _failed(self, failure: Failure, number: str) -> None:
        if self.machine.closed:
            return
        code: str | int = 500
        text = "request failed"
        if failure.check(Refused):
            error: Any = failure.value
            text = str(error)
            try:
                self.machine.fail(number, code if error.code is None else error.code, text)
                return
            except ValueError:  # a code that no header can carry
                failure = Failure()
        log.failure("{peer}: requestReceived failed", failure, peer=self.peer)
        self.machine.fail(number, code, "request failed")

    # ── answers in ──────────────────────────────────────────────────────────────────────────────

    def _answered(self, event: ResponsesReceived) -> None:
        truncated = event.truncated or [False] * len(event.ids)
        columns = zip(event.waiters, event.bodies, event.fields, truncated, strict=True)
        for waiter, body, headers, cut in columns:
            self._release(waiter).done(Response(body, headers, cut))

    def _requestFailed(self, event: RequestFailed) -> None:
        self._release(event.waiter).fail(Refused(event.text, event.code))

    def _timedOut(self, event: RequestsTimedOut) -> None:
        for waiter in event.waiters:
            self._release(waiter).fail(TimedOut("no answer in time"))

    # ── octets out ──────────────────────────────────────────────────────────────────────────────

    def outputChanged(self, paused: bool) -> None:
        self._outputPaused = paused
        super().outputChanged(paused)
        if not paused:
            for stream in list(self._streams.values()):
                stream.go()

    actions: ClassVar = {
        Fault: Verbs.peerFaulted,
        MessagesReceived: _deliver,
        MessagesSafe: _nowSafe,
        ResponsesReceived: _answered,
        RequestFailed: _requestFailed,
        RequestsTimedOut: _timedOut,
        ErrorReceived: _errorCame,
        FrameRefused: _frameRefused,
        FrameDiscarded: _frameDiscarded,
        MessageAbandoned: _messageAbandoned,
        DisconnectReceived: _clientLeaves,
        DisconnectingReceived: _countEnd,
        SessionExpired: _countEnd,
        DrainTimedOut: _countEnd,
    }


def _owed(message: Message) -> int:
    """Return what a request takes until its answer is there: a coroutine keeps all of it."""
    headers = 0 if message.fields is None else table_octets(message.fields)
    return getsizeof(message.message_id) + len(message.body or b"") + headers + KEPT_WEIGHT_OCTETS


@cache
def _unhooked(kind: type[SabcSession]) -> frozenset[str]:
    hooks = {REQUEST: "requestReceived", SEND_ONLY: "messageReceived"}
    return frozenset(
        name for name, hook in hooks.items() if getattr(kind, hook) is getattr(SabcSession, hook)
    )
