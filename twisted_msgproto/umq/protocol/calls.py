"""The calls of one session, both ways: what is exchanged, answered, and stored first."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from twisted.internet.defer import Deferred, fail, succeed
from twisted.python.failure import Failure

from ...core.errors import ConnectionClosed, LimitExceeded, PeerError, Refused, TimedOut, shown
from ...core.machine import IllegalTransition
from ...core.message import Message, MessageBatch
from ...core.session_memory import SESSION_LIMIT
from ...net.authorising import CALL, refusal_text
from ...net.deferreds import Ticket, promised
from ...net.factory import expect
from ...net.session import SessionHooks
from ..machine.attachments import ATTACHMENT_BYTES, Slot, attachment_bytes
from ..terms import (
    Attachment,
    AttachmentArrived,
    AttachmentFailure,
    AttachmentsAnnounced,
    AttributeSet,
    CallbackReceived,
    CallExpired,
    CallReceived,
    ErrorReceived,
)
from ..terms import ResultReceived as Result
from ..wire import Code, base36, coded, number

Body = bytes | Slot | Deferred[bytes]
"""An attachment to send is bytes, or a Deferred that fires with them (a failure sends ``-``)."""


class CallFailed(Refused):
    """The peer's ``E`` in answer to our call (``UM-09``).

    ``payload`` is its text; ``code`` is the number it begins with, or None.
    """

    def __init__(self, payload: str) -> None:
        code, text = coded(payload)
        super().__init__(text, code)
        self.payload = payload


class SessionRefused(Refused):
    """The end of the session by the peer's ``F`` (``UM-08``); ``code`` is its code."""


class NoSuchMethod(Refused):
    """The answer of a server without that method: all it did was to store the call (``UM-17``)."""

    def __init__(self, stored: Stored) -> None:
        done = "stored the call" if stored.durable else "gave the call to its application"
        super().__init__(f"the server has no such method, it {done}")


class AttachmentLost(PeerError):
    """An attachment that its sender could not deliver: ``-`` came in its place (``UM-04``)."""


@dataclass(slots=True)
class Reply:
    """An answer: a text and its attachments.

    Received, each attachment is its bytes or an AttachmentFailure; of a call that was ``streamed``
    they come through ``stream`` instead.
    """

    payload: Any = ""
    attachments: Sequence[Any] = ()
    stream: AttachmentStream | None = None


@dataclass(slots=True, frozen=True)
class Stored:
    """A server's answer to a call that it took in without a method for it (``UM-17``).

    ``durable``: the call is in its queue; else it has none, and an application has the call.
    """

    durable: bool

    def __str__(self) -> str:
        return _STORED if self.durable else _NOT_STORED

    @classmethod
    def read(cls, payload: str) -> Stored | None:
        """Return what an answer's payload says; None if it is something else."""
        if not payload.startswith("{"):
            return None
        text = "".join(payload.split())
        return cls(text == _STORED) if text in (_STORED, _NOT_STORED) else None


_STORED: Final = '{"stored":true}'
_NOT_STORED: Final = '{"stored":false}'


@dataclass(slots=True)
class Update:
    """Something new on a topic (``UM-12``); attachments as in :class:`Reply`."""

    payload: str
    attachments: Sequence[Attachment] = ()


@dataclass(slots=True)
class Request:
    """A call (``C``) or callback (``B``) of the peer.

    ``callback`` is the callback's id, None for a call; ``session`` is the :class:`.UmqSession`
    where it came from.
    """

    session: Any
    id: str
    payload: str
    attachments: Sequence[Attachment] = ()
    callback: int | None = None
    stream: AttachmentStream | None = None


def plain(attachments: Sequence[Attachment]) -> list[bytes]:
    """Return the attachments for the table's column: one that failed is empty there."""
    return [b"" if isinstance(entry, AttachmentFailure) else entry for entry in attachments]


def _bytes(attachment: Attachment) -> int:
    return attachment_bytes(attachment) + ATTACHMENT_BYTES


@dataclass(slots=True)
class AttachmentStream:
    """The attachments of one message, one by one (``UM-19``).

    Attributes:
        count: how many there will be in all.
        taken: whoever answers the message has this.
    """

    count: int
    changed: Callable[[int], None] = lambda nbytes: None
    _arrived: deque[Attachment] = field(default_factory=deque)
    _waiting: deque[Deferred[bytes]] = field(default_factory=deque)
    _asked: int = 0
    _lost: bool = False
    _came: int = 0
    _dropped: bool = False
    taken: bool = False

    @property
    def complete(self) -> bool:
        return self._came == self.count

    @property
    def awaited(self) -> bool:
        return bool(self._waiting)

    def next(self) -> Deferred[bytes]:
        """Return the next attachment.

        Fails with AttachmentLost when ``-`` came in its place, with ConnectionClosed when the
        connection ended first.  IndexError after the last.  Cancelling it loses nothing: whoever
        asks next gets the attachment.
        """
        if self._asked >= self.count:
            raise IndexError(f"there are {self.count} attachments")
        self._asked += 1
        if self._arrived:
            attachment = self._arrived.popleft()
            self.changed(-_bytes(attachment))
            if isinstance(attachment, bytes):
                return succeed(attachment)
            return fail(AttachmentLost(attachment.text))
        if self._lost:
            return fail(ConnectionClosed("the connection ended before the attachment"))
        waiting: Deferred[bytes] = Deferred(self._cancelled)
        self._waiting.append(waiting)
        return waiting

    def _cancelled(self, waiting: Deferred[bytes]) -> None:
        self._waiting.remove(waiting)
        self._asked -= 1

    def arrived(self, attachment: Attachment) -> None:
        """Note that the peer has sent one more."""
        self._came += 1
        if not self._waiting:
            if self._dropped:
                return
            self._arrived.append(attachment)
            self.changed(_bytes(attachment))
            return
        waiting = self._waiting.popleft()
        if isinstance(attachment, bytes):
            waiting.callback(attachment)
        else:
            waiting.errback(AttachmentLost(attachment.text))

    def drop(self) -> None:
        """Nobody will ask for what has come, and what still comes."""
        self._dropped = self._lost = True
        nbytes = sum(map(_bytes, self._arrived))
        self._arrived.clear()
        self.changed(-nbytes)

    def lost(self) -> None:
        """The connection is gone: what is waited for has failed."""
        self._lost = True
        while self._waiting:
            self._waiting.popleft().errback(
                ConnectionClosed("the connection ended before the attachment")
            )


class Streams:
    """The attachments of one session that come one by one, by the messages to which they belong."""

    def __init__(self, link: Any) -> None:
        self._link = link
        self._open: dict[int, tuple[object, AttachmentStream]] = {}
        self.nbytes: int = 0  # that came and were not taken

    def announced(self, event: AttachmentsAnnounced) -> None:
        message = event.message
        stream = AttachmentStream(event.count, self._changed)
        self._open[id(message)] = message, stream
        self._link._follow(self._link.machine.stream(message))
        if len(message.attachments) == event.count:  # all of it came in one read
            attachments, message.attachments = message.attachments, []
            for attachment in attachments:
                self._came(stream, attachment)

    def arrived(self, event: AttachmentArrived) -> None:
        found = self._open.get(id(event.message))
        if found is not None:
            message, stream = found
            self._came(stream, event.attachment)
            if stream.complete and stream.taken:
                del self._open[id(message)]

    def _came(self, stream: AttachmentStream, attachment: Attachment) -> None:
        """Deliver an attachment, or that it failed if all keep too much and nobody waits for it."""
        link = self._link
        if not stream.awaited and not link.machine.memory.fits(attachment_bytes(attachment)):
            link.keptTooMuch("streamed attachment")
            attachment = AttachmentFailure(f"too much is kept: {SESSION_LIMIT}")
        stream.arrived(attachment)

    def of(self, message: object) -> AttachmentStream | None:
        """Return the attachments of ``message`` that come one by one; asked for once."""
        found = self._open.get(id(message)) if self._open else None
        if found is None:
            return None
        stream = found[1]
        stream.taken = True
        if stream.complete:
            del self._open[id(message)]
        return stream

    def drop(self, message: object) -> None:
        stream = self.of(message)
        if stream is not None:
            stream.drop()

    def lost(self) -> None:
        opened, self._open = self._open, {}
        for _, stream in opened.values():
            stream.lost()

    def _changed(self, nbytes: int) -> None:
        link = self._link
        self.nbytes += nbytes
        memory = link.machine.memory
        memory.add(nbytes) if nbytes > 0 else memory.remove(-nbytes)
        if self.nbytes > link.factory.limits["attachments-bytes"] // 4:
            link.pauseReading("stream")
        elif self.nbytes == 0:
            link.resumeReading("stream")


PROTOCOL: Final = "umq"

UNSENT: Final = (ValueError, ConnectionClosed, IllegalTransition)
"""What a verb fails with whose work was not sent; TypeError is raised."""

Received = CallReceived | CallbackReceived


class PendingCall(Ticket[Reply]):
    streamed = False


class Calls:
    """Our calls until they are answered, the peer's until we have answered, and its callbacks."""

    def __init__(self, link: Any) -> None:
        kind: Any = type(link.protocol)
        self._link = link
        self._callbacks: dict[int, Callable[[Request], Any]] = {}
        self._seconds = link.factory.limits["call-seconds"]
        # Of one read for the sink: a kind, its events in a row, the calls of them that wait.
        self.gathered: list[tuple[str, list[Any], list[Received]]] = []
        # What comes goes to the sink, or to a hook in its place.
        self.stores: bool = (
            link.factory.sink is not None
            or kind.batchReceived is not SessionHooks.batchReceived
            or kind.messageReceived is not SessionHooks.messageReceived
        )

    # ── ours ────────────────────────────────────────────────────────────────────────────────────

    def call(
        self,
        payload: str,
        attachments: Sequence[Any],
        timeout: float | None,
        streamed: bool,
        callback: int | None = None,
    ) -> Deferred[Reply]:
        """Raises one of UNSENT if that cannot be."""
        link = self._link
        now = link.standing()
        bodies: Sequence[bytes | Slot] = self.bodies(attachments) if attachments else ()
        link.lookRoom(payload, *bodies)
        answer = PendingCall(self._cancelled)
        answer.streamed = streamed
        own = timeout is not None
        deadline = now + (self._seconds if timeout is None else timeout)
        answer.number = link.machine.call(
            payload, bodies, callback, waiter=answer, deadline=deadline, own=own
        )
        link.topics.look()
        link.flush()
        return answer

    def _cancelled(self, answer: Deferred[Reply]) -> None:
        assert isinstance(answer, PendingCall)
        self._link.machine.cancel(answer.number)
        if self._link.leaving:
            self._link.flush()

    def answered(self, event: Result) -> None:
        waiter: Any = event.waiter
        if not waiter.called:  # the callback of another answer may have cancelled it
            stream = self._link.streams.of(event)
            waiter.callback(Reply(event.payload, event.attachments, stream))
        else:
            self._link.streams.drop(event)

    def failed(self, event: ErrorReceived) -> None:
        waiter: Any = event.waiter
        waiter.fail(CallFailed(event.payload))

    def expired(self, event: CallExpired) -> None:
        waiter: Any = event.waiter
        waiter.fail(TimedOut("the call was not answered in time"))

    def register(self, function: Callable[[Request], Any], id: str | None = None) -> str:
        expect("function", function, "a function of a Request", callable(function))
        registered = self._link.machine.register_callback(None if id is None else number(id))
        self._callbacks[registered] = function
        return base36(registered)

    def unregister(self, id: str) -> None:
        self._link.machine.unregister_callback(number(id))
        self._callbacks.pop(number(id), None)

    # ── the peer's ──────────────────────────────────────────────────────────────────────────────

    def admitted(self, event: Received) -> bool:
        link, methods = self._link, self._link.factory.methods
        try:
            if link.factory.authoriser is not None:
                self._authorise(event)
            if methods is not None and type(event) is CallReceived:
                methods.check(event.payload)
        except Exception:
            self._link.streams.drop(event)
            self._refuse(event.id, Failure())
            return False
        return True

    def _authorise(self, event: Received) -> None:
        """Callbacks are for who was given them, so nobody is asked about those."""
        link = self._link
        if not isinstance(event, CallReceived):
            return
        methods = link.factory.methods
        action, name = (CALL, "") if methods is None else methods.access(event.payload)
        if link.refuses(action, name):
            raise Refused(refusal_text(action, name), Code.REJECTED.value)

    def came(self, event: Received) -> None:
        if not self.stores:
            self.serve(event)
            return
        waits = self.waits(event)
        if not waits:
            self.serve(event)
        self.gather("call" if type(event) is CallReceived else "callback", event, waits)

    def gather(self, kind: str, event: Any, waits: bool = False) -> None:
        gathered = self.gathered
        if not gathered or gathered[-1][0] != kind:
            gathered.append((kind, [], []))
        _, events, calls = gathered[-1]
        events.append(event)
        if waits:
            calls.append(event)

    def waits(self, event: Received) -> bool:
        methods = self._link.factory.methods
        if methods is None or type(event) is not CallReceived:
            return True
        return bool(methods.durable(event.payload))

    def serve(self, event: Received) -> None:
        link = self._link
        stream = link.streams.of(event)
        try:
            result = self._ask(event, stream)
            later = None if result is None or type(result) is str else promised(result)
        except BaseException:
            if stream is not None:
                stream.drop()
            self._refuse(event.id, Failure())
            return
        if later is None:
            self._answer(event.id, result)
        else:
            later.addBoth(self._answerLater, event.id, stream)
            link.machine.later(event.id)

    def _ask(self, event: Received, stream: AttachmentStream | None) -> Any:
        session = self._link.protocol
        callback = None if isinstance(event, CallReceived) else event.callback
        request = Request(session, event.id, event.payload, event.attachments, callback, stream)
        if callback is None:
            return session.callReceived(request)
        function = self._callbacks.get(callback)
        if function is None:  # unregistered, while the call waited
            raise Refused("callback not found", Code.CALLBACK_NOT_FOUND.value)
        return function(request)

    def _answerLater(self, result: Any, id: str, stream: AttachmentStream | None) -> None:
        failed = isinstance(result, Failure)
        if failed and stream is not None:
            stream.drop()
        if self._link.machine.opened:
            self._refuse(id, result) if failed else self._answer(id, result)
            self._link.flush()

    def _answer(self, id: str, result: Any) -> None:
        machine = self._link.machine
        try:
            if type(result) is str:
                machine.result(id, result)
                return
            if not machine.opened:
                return
            attachments: Sequence[Any] = ()
            if isinstance(result, Reply):
                result, attachments = result.payload, result.attachments
            if isinstance(result, bytes):
                result = result.decode()
            elif result is None:
                result = ""
            elif not isinstance(result, str):
                kind = type(result).__name__
                raise TypeError(f"an answer is text, bytes, a Reply or None, not {kind}")
            machine.result(id, result, self.bodies(attachments) if attachments else ())
        except LimitExceeded:
            self._link.log.failure("{peer}: an answer is too large", peer=self._link.peer)
            machine.error(id, f"{Code.UNAVAILABLE.value} the answer is too large")
        except Exception:
            self._refuse(id, Failure())

    def _refuse(self, id: str, failure: Failure) -> None:
        """Answer a call that failed: only what was meant for the peer is sent."""
        link = self._link
        if not link.machine.opened:
            return
        methods = link.factory.methods
        text = None if methods is None else methods.errorText(failure)
        if text is None and failure.check(Refused):
            code = getattr(failure.value, "code", None)
            text = str(failure.value) if code is None else f"{code} {failure.value}"
        if text is None:
            link.count("calls_failed")
            kind = type(link.protocol).__name__
            line = "{peer}: a call failed ({kind}.callReceived or requestReceived, or a method)"
            link.log.failure(line, failure, peer=link.peer, kind=kind)
            text = "internal error"
        text = text[: link.factory.limits.integer("payload-characters")]
        link.machine.error(id, text.encode("utf-8", "replace").decode())

    def accept(self, method: str | None) -> str | None:
        """Answer a call for which there is no application: yes, if the sink has it."""
        factory = self._link.factory
        if factory.sink is None:
            why = "not an RPC server" if factory.methods is None else "no such method"
            raise Refused(why, Code.NOT_AN_RPC_SERVER.value)
        return None if method is None else str(Stored(True))

    def message(self, request: Request) -> Message:
        link, methods = self._link, self._link.factory.methods
        return Message(
            PROTOCOL,
            "call",
            link.receivedAt(),
            link.peer,
            link.session,
            link.clientId,
            request.id,
            None if methods is None else methods.nameIn(request.payload),
            None,
            request.payload.encode(),
            plain(request.attachments),
        )

    # ── attachments that come later ─────────────────────────────────────────────────────────────

    def bodies(self, attachments: Sequence[Any]) -> list[bytes | Slot]:
        """Return attachments for the machine: a Deferred becomes a slot that is filled later."""
        # A Deferred can be iterated, without an end.
        expect("attachments", attachments, "a list", not isinstance(attachments, Deferred))
        bodies: list[bytes | Slot] = []
        for attachment in attachments:
            if isinstance(attachment, Deferred):
                self._link.time()  # from when the slot is to be filled
                slot = Slot()
                attachment.addCallbacks(
                    self._fill, self._fillError, callbackArgs=(slot,), errbackArgs=(slot,)
                )
                bodies.append(slot)
            else:
                bodies.append(attachment)
        return bodies

    def _fill(self, body: bytes, slot: Slot) -> bytes:
        link = self._link
        link.time()
        try:
            link.machine.fill(slot, body)
        except (LimitExceeded, TypeError):
            link.log.failure("{peer}: an attachment cannot be sent", peer=link.peer)
        link.flush()
        return body  # for the next message, or session, that has it

    def _fillError(self, failure: Failure, slot: Slot) -> None:
        link, error = self._link, shown(failure.getErrorMessage())
        link.log.info("{peer}: an attachment failed: {error}", peer=link.peer, error=error)
        link.time()
        link.machine.fill_error(slot, "the attachment is not available")
        link.flush()

    # ── what goes to the sink ───────────────────────────────────────────────────────────────────

    def batch(self, kind: str, events: list[Any]) -> MessageBatch:
        link = self._link
        ids: list[str] | None = None
        bodies: list[bytes | None]
        if kind == "attribute":
            destinations = [event.name for event in events]
            bodies = [
                event.value.encode() if isinstance(event, AttributeSet) else None
                for event in events
            ]
        else:
            bodies = [event.payload.encode() for event in events]
            if kind == "topic":
                destinations = [base36(event.topic) for event in events]
            else:
                ids = [event.id for event in events]
                methods = link.factory.methods
                if kind == "callback":
                    destinations = [base36(event.callback) for event in events]
                elif methods is None:
                    destinations = [None] * len(events)
                else:
                    destinations = [methods.nameIn(event.payload) for event in events]
        given = [getattr(event, "attachments", None) for event in events]
        attachments = [plain(entries) if entries else [] for entries in given]
        nbytes = sum(len(body) for body in bodies if body is not None)
        nbytes += sum(len(entry) for entries in attachments for entry in entries)
        return MessageBatch(
            PROTOCOL,
            kind,
            link.receivedAt(),
            link.peer,
            link.session,
            link.clientId,
            len(events),
            nbytes,
            message_id=ids,
            destination=destinations,
            body=bodies,
            attachments=attachments,
        )
