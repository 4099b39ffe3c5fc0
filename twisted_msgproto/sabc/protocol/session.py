"""An sABC session, of either role and on either wire: hooks and verbs, and a link.

The link moves bytes or frames between a wire and the machine.  Here is what is sABC's own: the
method for each event, and the answers to requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from sys import getsizeof
from types import MappingProxyType
from typing import Any, ClassVar, Final, TypeVar

from twisted.internet.defer import Deferred, fail, succeed
from twisted.logger import Logger
from twisted.python.failure import Failure

from ...core.errors import ConnectionClosed, Fault, Refused, TimedOut, shown
from ...core.limits import Limit
from ...core.machine import IllegalTransition
from ...core.message import Message, MessageBatch
from ...core.session_memory import (
    SESSION_LIMIT,
    SESSION_WEIGHT_BYTES,
    MemoryShare,
    SessionMemory,
    table_bytes,
)
from ...net.authentication import LOGIN_LIMITS
from ...net.authorising import CALL, PUBLISH, refusal_text
from ...net.counters import CounterPaths
from ...net.deferreds import Ticket, awaited, fail_all, promised
from ...net.factory import expect
from ...net.logs import SteadyLogger
from ...net.session import Session, SessionLink, hook, put_into
from ...net.wires.websocket import WEBSOCKET_LIMITS, WebSocketWire
from ..machine import Client, Server
from ..machine.sending import OutgoingMessage
from ..terms import (
    REQUEST,
    SEND_ONLY,
    SESSION_LIMITS,
    TOO_MANY,
    Counters,
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

PROTOCOL: Final = "sabc"

LIMITS: Final = (
    *SESSION_LIMITS,
    Limit("session-seconds", 0.0, "s", "a session ends after this time; 0 = never (SA-11)"),
    *LOGIN_LIMITS,
    *WEBSOCKET_LIMITS,
)

log: SteadyLogger = SteadyLogger(namespace="twisted_msgproto.sabc")

PARTS_A_TURN: Final = 16
"""This many pieces of a streamed body are sent before other work gets its turn."""

BYTES: Final = (bytes, str, bytearray, memoryview)
"""A body of these classes is sent as one; any other is an iterable of bytes."""


Body = bytes | str | Iterable[bytes]

M = TypeVar("M", Server, Client)


@dataclass(frozen=True, slots=True, init=False)
class Response:
    """An answer: ``request`` returns it, and ``requestReceived`` may return it.

    ``truncated``: the peer's answer was above our limit and cut (``SA-22``).  Received, ``body`` is
    bytes; one to send may have any body that a request may have.
    """

    body: bytes
    headers: Mapping[str, str]
    truncated: bool

    def __init__(
        self,
        body: Body = b"",
        headers: Mapping[str, str] = MappingProxyType({}),
        truncated: bool = False,
    ) -> None:
        for name, value in (("body", body), ("headers", headers), ("truncated", truncated)):
            object.__setattr__(self, name, value)

    @property
    def text(self) -> str:
        """Return the body as UTF-8 text; U+FFFD for what is none (``SA-04``)."""
        return self.body.decode("utf-8", "replace")


def bytes_of(body: object) -> bytes:
    """Return a body as bytes; text is UTF-8, None is empty.  TypeError for anything else."""
    if isinstance(body, bytes):
        return body
    if body is None:
        return b""
    if isinstance(body, str):
        return body.encode()
    if isinstance(body, bytearray | memoryview):
        return bytes(body)
    raise TypeError(f"a body is bytes, text or None, not {type(body).__name__}")


def parts_of(body: object) -> Iterator[bytes]:
    """TypeError for what has none: a mapping would send its keys."""
    if isinstance(body, Iterable) and not isinstance(body, Mapping):
        return iter(body)
    kind = type(body).__name__
    raise TypeError(f"a body is bytes, text, an iterable of bytes or None, not {kind}")


_NO_MORE: Final = object()
"""A body ends with this, and not with a piece that is None."""


@dataclass(slots=True, eq=False)
class Stream:
    """A body that is sent piece by piece, as the peer reads."""

    link: SabcLink
    outgoing: OutgoingMessage
    pieces: Iterator[object]
    done: Ticket[Response]
    waiting: bool  # for an answer
    call: Any = None  # goes on in the next turn

    def go(self) -> None:
        link, outgoing = self.link, self.outgoing
        if self.call is not None or outgoing.finished:
            return
        for _ in range(PARTS_A_TURN):
            if link.outputPaused or link.machine.closed:
                return
            try:
                piece = next(self.pieces, _NO_MORE)
                if piece is not _NO_MORE:
                    outgoing.write(bytes_of(piece))
            except Exception as error:
                link.release(self.done).fail(error)
                return
            if piece is _NO_MORE:
                outgoing.finish()
                link.flush()
                if not self.waiting:
                    link.streams.pop(self.done, None)
                    self.done.done(Response())
                return
            link.flush()
        self.call = link.factory.clock.callLater(0, self._resume)

    def _resume(self) -> None:
        self.call = None
        self.go()

    def abort(self) -> None:
        """Send no more of it, and tell the peer where that can be told (``SA-20``)."""
        self.stop()
        if not self.outgoing.finished:
            self.outgoing.abort()
            self.link.flush()
        elif self.outgoing.id is not None:
            self.link.machine.forget(self.outgoing.id)

    def stop(self) -> None:
        if self.call is not None:
            self.call.cancel()
            self.call = None
        close = getattr(self.pieces, "close", None)
        if close is not None:
            with suppress(Exception):
                close()


class SabcLink(SessionLink):
    log: ClassVar[Logger] = log
    readsWhileDraining = True
    counted = CounterPaths.of(Counters)
    answerEvents = frozenset({ResponsesReceived, RequestFailed, RequestsTimedOut, MessagesSafe})

    factory: Any
    machine: Server | Client

    # What most sessions never change stands here: an idle one weighs less.
    outputPaused: bool = False  # the peer does not read what we write
    _leaves = False  # in order, because we want to
    _unanswered: Sequence[Any] = ()  # the waiters that the end has left
    _memory: MemoryShare | None = None
    # Answers that have to wait until others are sent: their parts, headers and numbers.
    _inParts: tuple[tuple[Iterator[bytes], Mapping[str, str] | None, str], ...] = ()

    # ── the connection's life ───────────────────────────────────────────────────────────────────

    def __init__(self, protocol: Any) -> None:
        super().__init__(protocol)
        self.streams: dict[Ticket[Response], Stream] = {}

    def machineOf(self, kind: type[M], **settings: Any) -> M:
        factory = self.factory
        machine = kind(
            factory.limits,
            framed=isinstance(self.wire, WebSocketWire),
            lenient=factory.lenient,
            unhooked=_unhooked(self.protocol.__class__),
            **settings,
        )
        machine.taken_at = self.takenAt
        return machine

    @property
    def established(self) -> bool:
        return self._established and not self._ended and not self.machine.closed

    @property
    def sessionMemory(self) -> SessionMemory | None:
        return None

    @property
    def memory(self) -> MemoryShare:
        if self._memory is None:
            self._memory = MemoryShare(self.sessionMemory)
        return self._memory

    def workLost(self, work: list[Any], reason: Failure) -> None:
        self._unanswered = [waiter for _, waiter in work]

    def endInOrder(self) -> None:
        self._leaves = True
        super().endInOrder()

    def sessionEnding(self, reason: Failure) -> None:
        if self._memory is not None:
            self._memory.clear()
        error = self.closeReason or ConnectionClosed("the session has ended")
        streams, self.streams = self.streams, {}
        for stream in streams.values():
            stream.stop()
        fail_all([done for done, stream in streams.items() if not stream.waiting], error)
        unanswered, self._unanswered = self._unanswered, ()
        for waiter in unanswered:
            self.release(waiter).fail(error)
        super().sessionEnding(reason)

    # ── for verbs ───────────────────────────────────────────────────────────────────────────────

    def say(self, body: object, verb: Callable[[Any, bytes], object]) -> Deferred[Any] | None:
        try:
            if not self._established or self._ended:
                raise ConnectionClosed("there is no session")
            data = bytes_of(body)
            if self.outputPaused and data:
                self.roomFor(len(data))
            verb(self.machine, data)
        except IllegalTransition:
            return fail(ConnectionClosed("the session is ending"))
        except (ValueError, ConnectionClosed) as error:
            return fail(error)
        self._settle()
        return None

    def stream(
        self,
        pieces: Iterator[bytes],
        headers: Mapping[str, str] | None,
        timeout: float | None,
        *,
        waiting: bool,
    ) -> Deferred[Response]:
        done: Ticket[Response] = Ticket(self.release)  # type: ignore[arg-type]  # it returns more than None

        def open_message(machine: Any, data: bytes) -> None:
            waiter = done if waiting else None
            outgoing = machine.open_message(waiter, self._now(), headers=headers, seconds=timeout)
            self.streams[done] = Stream(self, outgoing, pieces, done, waiting)
            self.streams[done].go()

        return self.say(b"", open_message) or done

    def _sendParts(self) -> None:
        """Begin answers whose bodies come in pieces, as many as the peer takes at a time."""
        while self._inParts and self.machine.parts_room and not self.machine.closed:
            (pieces, headers, number), *rest = self._inParts
            self._inParts = tuple(rest)
            done: Ticket[Response] = Ticket()
            done.addErrback(self._failed, number).addCallback(self._partsEnded)
            try:
                outgoing = self.machine.open_answer(number, headers=headers)
            except Exception as error:
                done.fail(error)
                continue
            self.streams[done] = Stream(self, outgoing, pieces, done, False)
            self.streams[done].go()

    def _partsEnded(self, _: object) -> None:
        self._sendParts()
        self.flush()

    def forget(self, ticket: Any) -> None:
        self.machine.forget(ticket.number)

    def endNow(self) -> None:
        if not self._ended:
            self._inputIgnored = True
            self.machine.stop()
            self._settle()

    def release(self, waiter: Any) -> Ticket[Response]:
        stream = self.streams.pop(waiter, None) if self.streams else None
        if stream is not None:
            stream.abort()
        return waiter  # type: ignore[no-any-return]

    # ── what the peer gets wrong, and how it ends ───────────────────────────────────────────────

    def oversized(self) -> None:
        if self.established:  # to anybody else the WebSocket says enough
            self._follow(self.machine.oversized())

    def _frameRefused(self, event: FrameRefused) -> None:
        line = "{peer}: a frame was refused: {text} ({code})"
        self.logNews(line, "frame refused", text=event.text, code=event.code)

    def _tellLost(self, what: str, id: str | None) -> None:
        self.logNews("{peer}: {what}: {id}", "unfinished", what=what, id=shown(id or ""))

    def _peerEnds(self, event: DisconnectingReceived) -> None:
        if self._leaves:
            return
        expires = self.machine.expires
        expired = expires is not None and self._now() >= expires
        what = "the session has expired" if expired else "the session has ended"
        self.peerSaid = ConnectionClosed(f"{what}: the peer said DISCONNECTING")
        self.setCloseReason(self.peerSaid)

    def _expired(self, event: SessionExpired) -> None:
        self.setCloseReason(ConnectionClosed("the session has expired"))

    # ── messages in ─────────────────────────────────────────────────────────────────────────────

    def _deliver(self, event: MessagesReceived) -> None:
        if self.factory.authoriser is not None:
            action = CALL if event.kind == REQUEST else PUBLISH
            if self.refuses(action, count=len(event.ids)):
                self.machine.forbid(event.position, refusal_text(action, ""))
                return
        event.batch = batch = MessageBatch(  # by place: names cost half as much again
            PROTOCOL,
            event.kind,
            self.receivedAt(),
            self.peer,
            self.session,
            self.clientId,
            len(event.ids),
            event.nbytes,
            event.ids,
            None,  # no destination
            event.fields,
            event.bodies,
            None,  # no attachments
            event.truncated if True in event.truncated else None,
            weight=event.weight,
        )
        self.deliver(batch, event.position)

    def _safe(self, position: Any) -> None:
        """Messages at ``position`` are safe; send-only ones reach their hook after the end too."""
        events = self.machine.made_safe(position, self._now())
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
            session, later = self.protocol, None
            try:
                later = awaited(session.messageReceived(message), session, "messageReceived")
            except BaseException:
                self._unheard(Failure())
            if later is None:
                self.machine.settle(1)
            else:
                later.addErrback(self._unheard).addCallback(lambda _: self._told())

    def _unheard(self, failure: Failure) -> None:
        log.failure("{peer}: messageReceived failed", failure, peer=self.peer)

    def _told(self) -> None:
        self.machine.settle(1)
        self._settle()

    def _askAll(self, batch: MessageBatch) -> None:
        """Answers that are there at once leave together.

        Requests may wait for their answers for long.  While all sessions keep too much, those of a
        session with more than its share are refused before the application hears of them.
        """
        numbers: list[str] = []
        bodies: list[bytes] = []
        ask = self.protocol.requestReceived
        fits = (self._memory or self.memory).fits
        crowded = not fits(batch.nbytes + batch.weight + SESSION_WEIGHT_BYTES * batch.count)
        for message in batch:
            number: Any = message.message_id
            if crowded and not fits(_owed(message)):
                self.factory.limitMet(SESSION_LIMIT, "a request")
                self.machine.fail(
                    number, TOO_MANY, f"too many unanswered requests: {SESSION_LIMIT}"
                )
                continue
            try:
                result = ask(message)
            except BaseException:
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
        later = promised(result)
        if later is None:
            self._answer(result, number)
        else:  # perhaps it has fired, and waits for another
            nbytes = _owed(message)
            self.memory.add(nbytes)
            later.addBoth(self._later, number, nbytes)

    def _later(self, result: object, number: str, nbytes: int) -> None:
        self.memory.remove(nbytes)
        if isinstance(result, Failure):
            self._failed(result, number)
        else:
            self._answer(result, number)
        self._settle()

    def _answer(self, result: Any, number: str) -> None:
        if self.machine.closed:
            return
        body, headers = result, None
        if isinstance(result, Response):
            body, headers = result.body, result.headers
        try:
            if body is None or isinstance(body, BYTES):
                self.machine.answer(number, bytes_of(body), headers=headers)
            else:
                self._inParts += ((parts_of(body), headers, number),)
                self._sendParts()
        except Exception:
            self._failed(Failure(), number)

    def _failed(self, failure: Failure, number: str) -> None:
        if self.machine.closed:
            return
        if failure.check(Refused):
            error: Any = failure.value
            try:
                self.machine.fail(number, 500 if error.code is None else error.code, str(error))
                return
            except ValueError:  # a code that no header can carry
                failure = Failure()
        log.failure("{peer}: requestReceived failed", failure, peer=self.peer)
        self.machine.fail(number, 500, "request failed")

    # ── answers in ──────────────────────────────────────────────────────────────────────────────

    def _answered(self, event: ResponsesReceived) -> None:
        columns = zip(event.waiters, event.bodies, event.fields, event.truncated, strict=True)
        for waiter, body, headers, cut in columns:
            self.release(waiter).done(Response(body, headers, cut))

    def _timedOut(self, event: RequestsTimedOut) -> None:
        for waiter in event.waiters:
            self.release(waiter).fail(TimedOut("no answer in time"))

    # ── bytes out ──────────────────────────────────────────────────────────────────────────────

    def outputChanged(self, paused: bool) -> None:
        self.outputPaused = paused
        super().outputChanged(paused)
        if not paused:
            for stream in list(self.streams.values()):
                stream.go()

    actions: ClassVar[dict[type, Any]] = {
        Fault: SessionLink.peerFaulted,
        MessagesReceived: _deliver,
        MessagesSafe: _nowSafe,
        ResponsesReceived: _answered,
        RequestFailed: lambda link, event: link.release(event.waiter).fail(
            Refused(event.text, event.code)
        ),
        RequestsTimedOut: _timedOut,
        ErrorReceived: lambda link, event: link._guarded(link.protocol.errorReceived, event),
        FrameRefused: _frameRefused,
        FrameDiscarded: lambda link, event: link._tellLost(
            "a frame without end was discarded", event.id
        ),
        MessageAbandoned: lambda link, event: link._tellLost(
            "an unfinished message was given up", event.id
        ),
        DisconnectReceived: lambda link, event: None,  # the machine sees to it
        DisconnectingReceived: _peerEnds,
        SessionExpired: _expired,
        DrainTimedOut: lambda link, event: None,
    }


def _owed(message: Message) -> int:
    """Return what a request takes until its answer is there: a coroutine keeps all of it."""
    headers = 0 if message.fields is None else table_bytes(message.fields)
    return getsizeof(message.message_id) + len(message.body or b"") + headers + SESSION_WEIGHT_BYTES


@cache
def _unhooked(kind: type[SabcSession]) -> frozenset[str]:
    hooks = {REQUEST: "requestReceived", SEND_ONLY: "messageReceived"}
    return frozenset(
        name for name, hook in hooks.items() if getattr(kind, hook) is getattr(SabcSession, hook)
    )


class SabcSession(Session, link=SabcLink):
    """What server and client have in common: hooks and verbs."""

    link: SabcLink

    # ── hooks ───────────────────────────────────────────────────────────────────────────────────

    @hook
    def requestReceived(self, message: Message) -> Any:
        """The peer wants an answer (``SA-16``): a body, a :class:`Response`, None, or a Deferred
        or coroutine for one of these.  A body is what :meth:`request` takes.

        With a sink this is called when the message is safe.  None is an empty acknowledgement, and
        so is the answer while nobody overrides this.  Raising Refused answers ERROR with its code
        and text; any other exception is logged and answered with code 500.
        """

    @hook
    def messageReceived(self, message: Message) -> Any:
        """A send-only message came (``SA-17``); a Deferred holds up an orderly end (``SA-12``).

        With a sink this is called when the message is safe, even if the peer has left by then.
        """

    @hook
    def errorReceived(self, error: ErrorReceived) -> None:
        """The peer reports an error that answers none of our requests (``SA-24``)."""

    @hook
    def batchReceived(self, batch: MessageBatch) -> Deferred[Any] | None:
        """Messages of one read arrived, all requests or all send-only.

        By default they go to the factory's sink.  The other hooks see them once the Deferred (None:
        at once) has fired; if it fails the session ends, and its requests with it.
        """
        return put_into(self.factory.sink, batch)

    # ── verbs ───────────────────────────────────────────────────────────────────────────────────

    def request(
        self,
        body: Body = b"",
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Deferred[Response]:
        """Send a message and wait for its answer (``SA-14`` … ``SA-16``).

        ``body``: bytes, text (sent as UTF-8), or an iterable of bytes, which is sent part by part
        as fast as the peer reads (``SA-18``).  ``timeout`` is in seconds (None: the limit
        ``response-seconds``).

        The Deferred fails with Refused when the peer answers ERROR or has cut the message (then the
        code is ``truncated``), TimedOut, ConnectionClosed, LimitExceeded when too many requests are
        outstanding or the message is more than the peer takes, or ValueError for what cannot be
        sent (``SA-03``, ``SA-21``).  Cancelling it forgets the answer, and ends a streamed body.
        """
        link = self.link
        if not isinstance(body, BYTES):
            return link.stream(parts_of(body), headers, timeout, waiting=True)
        ticket: Ticket[Response] = Ticket(link.forget)

        def ask(machine: Any, data: bytes) -> None:
            ticket.number = machine.request(
                data, ticket, link._now(), headers=headers, seconds=timeout
            )

        return link.say(body, ask) or ticket

    def sendOnly(
        self, body: Body = b"", *, headers: Mapping[str, str] | None = None
    ) -> Deferred[None]:
        """Send a message that wants no answer (``SA-17``).

        The Deferred fires when it is written, and fails as that of :meth:`request` does.
        """
        link = self.link
        if not isinstance(body, BYTES):
            streamed = link.stream(parts_of(body), headers, None, waiting=False)
            return streamed.addCallback(lambda _: None)

        def send(machine: Any, data: bytes) -> None:
            machine.send_only(data, headers=headers)

        return link.say(body, send) or succeed(None)

    def sendError(
        self, code: int | str, text: str = "", *, headers: Mapping[str, str] | None = None
    ) -> Deferred[None]:
        """Tell the peer of an error that answers nothing (``SA-24``).

        The Deferred fires when it is written; it fails with ValueError for headers that cannot be
        sent, and with ConnectionClosed without a session.
        """

        def send(machine: Any, data: bytes) -> None:
            machine.send_error(code, text, headers=headers)

        expect("code", code, "a number or text", isinstance(code, int | str))
        expect("text", text, "text", isinstance(text, str))
        return self.link.say(text, send) or succeed(None)

    def loseSession(self) -> None:
        """End the session at once: DISCONNECTING, then close (``SA-13``)."""
        self.link.endNow()
