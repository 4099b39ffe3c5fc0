"""One sABC session on Twisted, of either role and on either transport.

A session moves octets between a transport and its machine, turns events into hooks and Deferreds,
owns the timer and the back-pressure, and decides nothing about the protocol.  On a byte stream it
is the transport's protocol; on WebSocket a wire stands between (:mod:`.websocket`).
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import iscoroutine
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IHalfCloseableProtocol, ISSLTransport, ITCPTransport
from twisted.internet.protocol import connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from ...core.connection import WorkLost
from ...core.errors import ConnectionClosed, Fault, Refused, TimedOut, shown
from ...core.limits import Limit
from ...core.message import Message, MessageBatch
from ...net.authentication import LOGIN_LIMITS
from ...net.backpressure import OutputGuard, ReadControl
from ...net.factory import peer_name
from ...net.ingest import Delivery, tell_not_stored, tell_unread
from ...net.timer import MachineTimer
from ...net.wires.websocket import WEBSOCKET_LIMITS, WebSocketWire
from ..machine import Client, Server
from ..terms.events import (
    REQUEST,
    DisconnectingReceived,
    DrainTimedOut,
    ErrorReceived,
    Event,
    FrameDiscarded,
    FrameRefused,
    MessageAbandoned,
    MessagesReceived,
    RequestFailed,
    RequestsTimedOut,
    ResponsesReceived,
    SessionExpired,
)
from ..terms.limits import SESSION_LIMITS
from .exchange import Response, octets_of
from .verbs import Stream, Verbs

PROTOCOL: Final = "sabc"

LIMITS: Final = (
    *SESSION_LIMITS,
    Limit("session-seconds", 0.0, "s", "a session ends after so long; 0 = never (SA-11)"),
    *LOGIN_LIMITS,
    *WEBSOCKET_LIMITS,
    Limit(
        "websocket-message-octets",
        0,
        "octets",
        "of a WebSocket message; 0 = twice message-octets (SA-22)",
    ),
)
"""Everything a server or client of sABC bounds, beside what all servers bound."""

log = Logger(namespace="twisted_msgproto.sabc")


@implementer(IHalfCloseableProtocol)
class SabcSession(Verbs):
    """What server and client have in common: hooks, and the way of events.

    Attributes:
        machine: where the protocol's decisions are made; its ``snapshot()`` tells where it stands.
        session: the public name of this session; never the session id, which is a secret.
        peer: the peer's transport address as text.
        clientId: who the client is, or None.
        expires: when the session ends, in seconds since 1970-01-01 UTC, or None (``SA-11``).
    """

    factory: Any
    machine: Server | Client
    session: str
    peer: str
    clientId: str | None = None
    framed: WebSocketWire | None = None
    """The WebSocket connection in between, or None on a byte stream."""

    # ── hooks for subclasses ────────────────────────────────────────────────────────────────────

    def sessionEstablished(self) -> None:
        """The session stands: messages may be sent and may come."""

    def sessionLost(self, reason: Failure) -> None:
        """The session has ended; ``reason`` is what the transport gave to ``connectionLost``."""

    def requestReceived(self, message: Message) -> Any:
        """The peer wants an answer (``SA-16``): a body, a :class:`Response`, None, or a Deferred
        or coroutine for one of these.

        With a sink this is called when the message is safe.  None is an empty acknowledgement, and
        so is the answer while nobody overrides this.  Raising Refused answers ERROR with its code
        and text; any other exception is logged and answered with code 500.
        """

    def messageReceived(self, message: Message) -> Any:
        """A send-only message came (``SA-17``); a Deferred holds up an orderly end (``SA-12``)."""

    def errorReceived(self, error: ErrorReceived) -> None:
        """The peer reports an error which answers none of our requests (``SA-24``)."""

    # ── the connection's life ───────────────────────────────────────────────────────────────────

    def connectionMade(self) -> None:
        """Begin; a subclass which overrides this calls it first."""
        factory, transport = self.factory, self.transport
        assert transport is not None
        if isinstance(transport, WebSocketWire):
            self.framed = transport
        address = transport.getPeer()
        self.peer = peer_name(address)
        self.address = str(getattr(address, "host", ""))
        self.session = factory.sessionNames.next()
        self._established = False
        self._ended = False  # the transport was asked to close
        self._gone = False  # it is closed
        self._unsafe: set[int] = set()  # places of what never will be safe
        self._streams: dict[Deferred[Response], Stream] = {}
        self._control = ReadControl(transport, self._readingChanged)
        self._delivery = Delivery(
            self._put,
            self._control,
            factory.budget,
            factory.limits.integer("unsafe-octets"),
            lambda failure: None,
        )
        self._place = 0  # of what is just being given to the sink
        self.machine = self._newMachine()
        self._timer = MachineTimer(factory.clock, self.machine, self._advanced)
        self._guard: OutputGuard | None = None
        self._outputPaused = False
        # TLS writes nothing before its hand-shake: a guard would take that for a peer which does
        # not read, and stop reading what the hand-shake waits for.
        if self.framed is None and not ISSLTransport.providedBy(transport):
            self._watchOutput()
        factory.connectionOpened(self, self.address)
        if ITCPTransport.providedBy(transport):
            transport.setTcpNoDelay(True)
        self._begin(factory.clock.seconds())
        self._flush()

    def _watchOutput(self) -> None:
        factory = self.factory
        self._guard = OutputGuard(
            self.transport,
            self._control,
            factory.clock,
            factory.limits["unread-seconds"],
            self.unread,
            self.outputChanged,
        )

    def _newMachine(self) -> Server | Client:
        raise NotImplementedError

    def _begin(self, now: float) -> None:
        raise NotImplementedError

    @property
    def expires(self) -> float | None:
        """When the session ends, in seconds since 1970-01-01 UTC."""
        return self.machine.expires

    @property
    def established(self) -> bool:
        """The session stands."""
        return self._established and not self._ended and not self.machine.closed

    def snapshot(self) -> dict[str, object]:
        """Where the session stands, as plain values and without secrets."""
        return {
            "session": self.session,
            "peer": self.peer,
            "client_id": self.clientId,
            **self.machine.snapshot(),
        }

    def readConnectionLost(self) -> None:
        """The peer has shut its sending side, so nobody will answer us any more."""
        self.loseSession()

    def writeConnectionLost(self) -> None:
        """Nobody reads what we write any more."""
        self._abort()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """End; a subclass which overrides this calls it."""
        self._ended = self._gone = True
        ended = self.machine.lost(self.factory.clock.seconds())
        self._timer.stop()
        if self._guard is not None:
            self._guard.stop()
        factory = self.factory
        factory.budget.forget(self._control)
        for name, count in self.machine.counters.as_dict().items():
            factory.counters[name] += count
        factory.connectionClosed(self, reason)
        self._lost(reason)
        error = self._lossOf(reason)
        streams, self._streams = self._streams, {}
        # Whoever hears of it may cancel others which wait still: each fires once.
        for done, stream in streams.items():
            stream.stop()
            if not stream.waiting and not done.called:
                done.errback(error)
        for event in ended:
            if isinstance(event, WorkLost):
                for _, waiter in event.work:
                    self._fail(waiter, error)
        if self._established:
            self.sessionLost(reason)

    def neverConnected(self, error: Exception) -> None:
        """The WebSocket connection ended before the session could begin."""

    def _lossOf(self, reason: Failure) -> Exception:
        """What those are told who still wait for answers."""
        return ConnectionClosed(f"the session ended: {reason.getErrorMessage()}")

    def _lost(self, reason: Failure) -> None:
        """What a role has to tidy up."""

    # ── octets in ───────────────────────────────────────────────────────────────────────────────

    def dataReceived(self, data: bytes) -> None:
        """Octets from a byte stream."""
        if not self._ended:
            if self._guard is None:
                self._watchOutput()
            now = self.factory.clock.seconds()
            self._take(self.machine.receive(data, now), now)

    def received(self, frames: list[bytes]) -> None:
        """WebSocket messages of one read; none where only part of one has come."""
        if frames and not self._ended:
            now = self.factory.clock.seconds()
            self._take(self.machine.receive(frames, now), now)

    def oversized(self) -> None:
        """A WebSocket message is above twice the limit of a message (``SA-22``)."""
        if not self._ended:
            self._take(self.machine.oversized(), self.factory.clock.seconds())

    def _take(self, events: list[Event], now: float) -> None:
        for event in events:
            if type(event) is MessagesReceived:
                self._deliver(event)
            elif type(event) is ResponsesReceived:
                self._answered(event)
            else:
                self._happened(event, now)
        self._flush()

    def _happened(self, event: Event, now: float) -> None:
        if isinstance(event, RequestFailed):
            self._fail(event.waiter, Refused(event.text, event.code))
        elif isinstance(event, RequestsTimedOut):
            for waiter in event.waiters:
                self._fail(waiter, TimedOut("no answer in time"))
        elif isinstance(event, ErrorReceived):
            self._guarded(self.errorReceived, event)
        elif isinstance(event, Fault):
            self._faulted(event)
        elif isinstance(event, FrameRefused):
            log.info(
                "{peer}: a frame was refused: {text} ({code})",
                peer=self.peer,
                text=event.text,
                code=event.code,
            )
        elif isinstance(event, FrameDiscarded | MessageAbandoned):
            log.info(
                "{peer}: {what}: {id}",
                peer=self.peer,
                what="a frame without end was discarded"
                if isinstance(event, FrameDiscarded)
                else "an unfinished message was given up",
                id=shown(event.id or ""),
            )
        elif isinstance(event, DisconnectingReceived | SessionExpired | DrainTimedOut):
            self.factory.counters[f"ended:{type(event).__name__}"] += 1

    def _faulted(self, fault: Fault) -> None:
        """The peer broke the protocol: one line and a counter (``SA-06``)."""
        self.factory.countFault(fault.reason)
        log.warn(
            "{peer}: closed: {text} (starts with {octets})",
            peer=self.peer,
            text=fault.text,
            octets=fault.octets.hex(" ") or "nothing",
            reason=fault.reason,
        )

    def _guarded(self, hook: Callable[[Any], object], argument: object) -> None:
        """Call a hook whose failure harms nobody else."""
        try:
            hook(argument)
        except Exception:
            log.failure("{peer}: {hook} failed", peer=self.peer, hook=hook.__name__)

    # ── messages in ─────────────────────────────────────────────────────────────────────────────

    def _deliver(self, event: MessagesReceived) -> None:
        factory = self.factory
        batch = MessageBatch(
            PROTOCOL,
            event.kind,
            factory.receivedAt(),
            self.peer,
            self.session,
            self.clientId,
            len(event.ids),
            event.octets,
            message_id=event.ids,
            fields=event.fields,
            body=event.bodies,
            truncated=event.truncated,
        )
        factory.counters.settled["events"] += batch.count
        factory.counters.settled["octets"] += batch.octets
        self._place = event.place
        self._delivery.deliver(batch, self._safe, batch, event.place)

    def _put(self, batch: MessageBatch) -> Deferred[Any] | None:
        sink = self.factory.sink
        if sink is None:
            return None
        safe: Deferred[Any] = sink.put(batch)
        return safe.addErrback(self._notSafe, self._place)

    def _notSafe(self, failure: Failure, place: int) -> None:
        """A batch will never be safe: its requests fail (``SA-16``), and the session ends.

        Going on would leave a gap in what is stored of this session.
        """
        tell_not_stored(log, self.peer, failure, self._ended)
        self.factory.counters["unsafe_batches"] += 1
        self._unsafe.add(place)

    def _safe(self, batch: MessageBatch, place: int) -> None:
        machine = self.machine
        if place in self._unsafe:
            self._unsafe.discard(place)
            if not self._gone:
                machine.not_safe(place, self.factory.clock.seconds())
                self._flush()
            return
        if not self._gone:
            machine.made_safe(place, self.factory.clock.seconds())
        if batch.kind != REQUEST:
            self._settle(batch)
        elif self._gone:
            return
        elif type(self).requestReceived is SabcSession.requestReceived:
            ids: Any = batch.message_id
            machine.acknowledge(ids)
        else:
            self._ask_all(batch)
        self._flush()

    def _settle(self, batch: MessageBatch) -> None:
        """Send-only messages: nobody is answered, but an orderly end waits for them."""
        if type(self).messageReceived is SabcSession.messageReceived:
            self.machine.settle(batch.count)
            return
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
                result.addCallback(lambda _: self._settled())
            else:
                self.machine.settle(1)

    def _settled(self) -> None:
        self.machine.settle(1)
        self._flush()

    def _ask_all(self, batch: MessageBatch) -> None:
        """Let the application answer; answers which are there at once leave together."""
        numbers: list[str] = []
        bodies: list[bytes] = []
        ask = self.requestReceived
        for message in batch:
            number: Any = message.message_id
            try:
                result = ask(message)
            except Exception:
                self._failed(Failure(), number)
                continue
            if type(result) is bytes:
                numbers.append(number)
                bodies.append(result)
            else:
                self._resolve(result, number)
        for number in self.machine.answer_all(numbers, bodies):
            self._answer(bodies[numbers.index(number)], number)

    def _resolve(self, result: Any, number: str) -> None:
        """Answer with ``result``, when it is there."""
        if iscoroutine(result):
            result = Deferred.fromCoroutine(result)
        if isinstance(result, Deferred):
            if not result.called:
                result.addBoth(self._later, number)
                return
            result.addCallbacks(
                self._answer, self._failed, callbackArgs=(number,), errbackArgs=(number,)
            )
        else:
            self._answer(result, number)

    def _later(self, result: object, number: str) -> None:
        """An answer which had to be waited for."""
        if isinstance(result, Failure):
            self._failed(result, number)
        else:
            self._answer(result, number)
        self._flush()

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
            except ValueError:  # a code which no header can carry
                failure = Failure()
        log.failure("{peer}: requestReceived failed", failure, peer=self.peer)
        self.machine.fail(number, code, "request failed")

    # ── answers in ──────────────────────────────────────────────────────────────────────────────

    def _answered(self, event: ResponsesReceived) -> None:
        truncated = event.truncated or [False] * len(event.ids)
        columns = zip(event.waiters, event.bodies, event.fields, truncated, strict=True)
        for waiter, body, headers, cut in columns:
            answered = self._release(waiter)
            if not answered.called:  # the callback of another answer may have cancelled it
                answered.callback(Response(body, headers, cut))

    def _fail(self, waiter: Any, error: Exception) -> None:
        """A request has failed, unless its caller has cancelled it meanwhile."""
        failed = self._release(waiter)
        if not failed.called:
            failed.errback(error)

    # ── octets out ──────────────────────────────────────────────────────────────────────────────

    def _flush(self) -> None:
        """Write what is queued, arm the timer, and close if the machine has."""
        if self._ended:
            return
        outputs = self.machine.outputs()
        if outputs:
            if self.framed is None:
                self.transport.write(outputs)  # type: ignore[union-attr]
            else:
                self.framed.write(outputs)
        if self.machine.finished:
            self._close()
        else:
            self._timer.look()

    def _close(self) -> None:
        """The machine is done: let what was written go out, then close."""
        self._ended = True
        self._control.resume("draining")
        if self._guard is not None:
            self._guard.close()
        elif self.framed is not None:
            self.framed.close(self.machine.faulted)
        else:
            self._abort()

    def _abort(self) -> None:
        self._ended = True
        self.transport.abortConnection()  # type: ignore[union-attr]

    def unread(self) -> None:
        """The peer has left unread what we write for too long: a line and a counter."""
        if not self._ended:
            tell_unread(log, self.factory, self.peer)
        self._abort()

    def outputDrained(self) -> None:
        """The peer has read all that waited on WebSocket."""

    def outputChanged(self, paused: bool) -> None:
        """The peer has stopped reading what we write, or has caught up."""
        self._outputPaused = paused
        if self.framed is not None:
            (self._control.pause if paused else self._control.resume)("unread-output")
        if not paused:
            for stream in list(self._streams.values()):
                stream.go()

    # ── time ────────────────────────────────────────────────────────────────────────────────────

    def _advanced(self, events: list[Event]) -> None:
        """The machine's deadline has come."""
        if not self._ended:
            self._take(events, self.factory.clock.seconds())

    def _readingChanged(self, paused: bool) -> None:
        now = self.factory.clock.seconds()
        if paused:
            self.machine.paused(now)
        else:
            self.machine.resumed(now)
            self._timer.look()


__all__ = ["LIMITS", "PROTOCOL", "SabcSession"]
