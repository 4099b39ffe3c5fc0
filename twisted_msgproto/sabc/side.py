"""What client and server share: messages in, messages out, answers, times.

The duties of the caller are told in :mod:`.machine`.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from hmac import compare_digest
from typing import ClassVar, Final, Generic, TypeVar

from ..core.errors import Fault, LimitExceeded
from ..core.limits import Limits
from ..core.machine import IllegalTransition, Machine, Table
from ..core.pending import Pending
from . import wire
from .events import (
    REQUEST,
    SEND_ONLY,
    DisconnectingReceived,
    ErrorReceived,
    Event,
    FrameDiscarded,
    FrameRefused,
    MessageAbandoned,
    MessagesReceived,
    RequestFailed,
    RequestsTimedOut,
    ResponsesReceived,
)
from .framing import BodyContinued, Decoder, FrameClosed, FrameOpened, Piece, read_frame
from .outgoing import OutgoingMessage
from .tables import AnswerSent, ConnectionLost, MessageSent, Stopped
from .wire import (
    CLIENT_ID,
    CLIENT_PASSCODE,
    CONTENT_LENGTH,
    END,
    END_OF_EMPTY,
    ERROR_CODE,
    MSG_ID,
    MSG_MORE,
    REF_MSG_ID,
    SESSION_EXPIRY,
    SESSION_ID,
    SESSION_LIMITS,
    YES,
    Bounds,
    Connect,
    Connected,
    Disconnect,
    Disconnecting,
    Error,
    Frame,
    Message,
)

BAD_REQUEST, UNAUTHORIZED, FORBIDDEN, TIMED_OUT = 400, 401, 403, 408
TOO_LARGE, TOO_MANY, FAILED, UNAVAILABLE = 413, 429, 500, 503

LENGTH: Final = "length"
TRUNCATED: Final = "truncated"
_TRUNCATED_LINE = f"{TRUNCATED}::{YES}\r\n"
_PIECES_A_MESSAGE = 16  # how finely a message which is still coming is measured against its limit
_OVERHEAD_LINES = 6  # the lines which our own messages have beside an application's headers
_OVERHEAD_OCTETS = 1536

RESERVED: Final = frozenset(
    (
        wire.CLIENT_ID,
        wire.CLIENT_PASSCODE,
        wire.SESSION_ID,
        wire.SESSION_EXPIRY,
        wire.MSG_ID,
        wire.REF_MSG_ID,
        wire.SEND_ONLY,
        wire.MSG_MORE,
        wire.ERROR_CODE,
    )
)
"""Headers which mean something to the protocol (``SA-06``)."""

_MISPLACED: Final[Mapping[type[Frame], frozenset[str]]] = {
    Connect: RESERVED - {CLIENT_ID, CLIENT_PASSCODE},
    Connected: RESERVED - {SESSION_ID, SESSION_EXPIRY},
    Disconnect: RESERVED - {SESSION_ID},
    Disconnecting: RESERVED - {SESSION_ID},
    Message: RESERVED - {SESSION_ID, MSG_ID, REF_MSG_ID, wire.SEND_ONLY, MSG_MORE},
    Error: frozenset(),
}
"""Reserved headers where they must not stand (``SA-06``)."""

_NO_FIELDS: Final[Mapping[str, str]] = {}


S = TypeVar("S", bound=Enum)


@dataclass(slots=True)
class Counters:
    """What a machine has seen, as plain integers."""

    requests: int = 0
    send_only: int = 0
    responses: int = 0
    errors_received: int = 0
    errors_sent: int = 0
    refused_frames: int = 0
    discarded_frames: int = 0
    abandoned_messages: int = 0
    truncated_messages: int = 0
    unknown_responses: int = 0
    odd_expiries: int = 0

    def as_dict(self) -> dict[str, int]:
        """By name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


class _Incoming:
    """A message which is being received, or what is to be skipped of one.

    Attributes:
        key: (is a response, id); None for an ERROR and for what carries no id.
        id: the id to name in events.
        size: octets of all its frames so far, heads and end marks included (``SA-22``).
        muted: nothing of it is to be delivered (any more); it is read to its true end.
        heard: when the last octets of it came.
    """

    __slots__ = ("fields", "heard", "id", "key", "muted", "parts", "send_only", "size")

    def __init__(self, key: tuple[bool, str] | None, id: str | None, now: float) -> None:
        self.key = key
        self.id = id
        self.fields: dict[str, str] = {}
        self.parts: list[bytes] = []
        self.send_only = False
        self.size = 0
        self.muted = False
        self.heard = now


class Side(Generic[S]):
    """What client and server share; see the module for the duties of the caller.

    Attributes:
        counters: plain integers for metrics.
        lengths: both sides announced ``framing::length`` (``SA-26``).
        expires: when the session ends (seconds since 1970-01-01 UTC), or None (``SA-11``).
    """

    TABLE: ClassVar[Table]  # type: ignore[type-arg]
    _closed: S
    _open: tuple[S, ...]
    _draining: S

    def __init__(
        self,
        initial: S,
        limits: Limits | None,
        *,
        framed: bool,
        lenient: bool,
        refuse_oversize: bool,
    ) -> None:
        limits = Limits.of(SESSION_LIMITS) if limits is None else limits
        self.bounds = Bounds.of(limits)
        self._connect_seconds = limits["connect-seconds"]
        self._message_octets = limits.integer("message-octets")
        self._unfinished_max = limits.integer("unfinished-messages")
        self._unfinished_seconds = limits["unfinished-seconds"]
        self._unanswered_max = limits.integer("outstanding-requests")
        self._response_seconds = limits["response-seconds"]
        self._drain_seconds = limits["session-drain"]
        self.part_octets = limits.integer("part-octets")
        self._framed = framed  # WebSocket: frames come and go one by one
        self._lenient = lenient
        self._refuse_oversize = refuse_oversize

        self.counters = Counters()
        self.lengths = False
        self.expires: float | None = None

        self._machine = Machine(self.TABLE, initial)
        self._faulted = False
        piece = max(1, min(65536, self._message_octets // _PIECES_A_MESSAGE))
        self._decoder = Decoder(self.bounds, part_octets=piece, lenient=lenient)
        self._out: list[bytes] = []
        self._due: list[Event] = []
        self._session_id = b""
        self._prefix = ""  # of every MESSAGE of this session
        self._request_prefix = b""  # of a request's id
        self._connect_deadline: float | None = None
        self._drain_deadline: float | None = None
        # what comes in
        self._current = _Incoming(None, None, 0.0)  # the message of the frame being received
        self._more = False  # that frame says msg-more
        self._receiving = False  # there is one
        self._unfinished: dict[tuple[bool, str], _Incoming] = {}
        self._unanswered: dict[str, bool] = {}  # requests by id: whether they were cut
        self._unsettled = 0  # send-only messages which the application works on
        # what goes out
        self._pending: Pending[str, object] = Pending(self._unanswered_max)
        self._number = 0
        self._sending = 0  # originals of ours whose last part was not sent

    # ── what the caller may look at ─────────────────────────────────────────────────────────────

    @property
    def state(self) -> S:
        """Where this side stands."""
        state: S = self._machine.state
        return state

    @property
    def closed(self) -> bool:
        """Nothing more is read; close the connection when the octets to send are out."""
        return self._machine.state is self._closed

    @property
    def faulted(self) -> bool:
        """Closed because the peer broke the protocol."""
        return self._faulted

    @property
    def outstanding(self) -> int:
        """Requests of ours without an answer."""
        return len(self._pending)

    @property
    def unanswered(self) -> int:
        """Requests of the peer which were not answered yet."""
        return len(self._unanswered)

    @property
    def room(self) -> int:
        """How many more requests may be sent now."""
        return self._pending.limit - len(self._pending)

    def snapshot(self) -> dict[str, object]:
        """The state as plain values, without secrets, for status pages and for people."""
        return {
            "state": self.state.name,
            "framing": "websocket" if self._framed else "length" if self.lengths else "mark",
            "expires": self.expires,
            "unanswered": len(self._unanswered),
            "outstanding": len(self._pending),
            "unfinished": len(self._unfinished),
        }

    def data_to_send(self) -> bytes:
        """What is to be written now (byte streams)."""
        out, self._out = self._out, []
        return b"".join(out)

    def frames_to_send(self) -> list[bytes]:
        """What is to be written now, one WebSocket message each (``SA-25``)."""
        out, self._out = self._out, []
        return out

    def take_due(self) -> list[Event]:
        """What ``tick`` found."""
        due, self._due = self._due, []
        return due

    # ── octets in ───────────────────────────────────────────────────────────────────────────────

    def receive_data(self, octets: bytes, now: float) -> list[Event]:
        """Read what came at ``now`` from a byte stream."""
        events: list[Event] = []
        if self.closed:
            return events
        decoder = self._decoder
        decoder.feed(octets)
        looked = False  # for many at once: when the frame of which a part came before is through
        while True:
            if not looked and decoder.at_head:
                looked = True
                self._quickest(now, events)
            piece = decoder.next()
            if piece is None:
                break
            if type(piece) is not Message or not self._quick(piece, now, events):
                self._take(piece, now, events)
                if self.closed:
                    break
        return events

    def receive_frame(self, octets: bytes, now: float) -> list[Event]:
        """Read one WebSocket message which came at ``now``."""
        return self.receive_frames((octets,), now)

    def receive_frames(self, messages: Iterable[bytes], now: float) -> list[Event]:
        """Read WebSocket messages, one frame each (``SA-25``), which came at ``now``."""
        events: list[Event] = []
        for octets in messages:
            if self.closed:
                break
            piece = read_frame(octets, self.bounds, lenient=self._lenient)
            if type(piece) is not Message or not self._quick(piece, now, events):
                self._take(piece, now, events)
        return events

    def _quickest(self, now: float, events: list[Event]) -> None:
        """Deal with requests in one frame each, if nothing else has come, all together."""
        if (
            self._machine.state is not self._open[0]
            or self._unfinished
            or self._receiving
            or (self.expires is not None and now >= self.expires)
        ):
            return
        unanswered = self._unanswered
        found = self._decoder.plain(
            self._request_prefix, self._message_octets, unanswered, self._unanswered_max
        )
        if found is None:
            return
        ids, bodies = found
        unanswered.update(dict.fromkeys(ids, False))
        self.counters.requests += len(ids)
        octets = sum(map(len, bodies))
        events.append(MessagesReceived(REQUEST, ids, [_NO_FIELDS] * len(ids), bodies, None, octets))

    def _quick(self, frame: Message, now: float, events: list[Event]) -> bool:
        """Deal with a request or an answer in one frame, with no header but the two it needs.

        False (and nothing is done) for all others.
        """
        headers = frame.headers
        if (
            len(headers) != 2
            or not frame.final
            or self._unfinished
            or self._machine.state is not self._open[0]
            or (self.expires is not None and now >= self.expires)
            or frame.head_octets + len(frame.body) + frame.end_octets > self._message_octets
            or not compare_digest(headers.get(SESSION_ID, "").encode(), self._session_id)
        ):
            return False
        id = headers.get(MSG_ID)
        last = events[-1] if events else None
        if id is not None:
            unanswered = self._unanswered
            if id in unanswered or len(unanswered) >= self._unanswered_max:
                return False
            unanswered[id] = False
            self.counters.requests += 1
            if type(last) is MessagesReceived and last.kind == REQUEST:
                last.ids.append(id)
                last.fields.append(_NO_FIELDS)
                last.bodies.append(frame.body)
                last.octets += len(frame.body)
                if last.truncated is not None:
                    last.truncated.append(False)
            else:
                body = frame.body
                events.append(
                    MessagesReceived(REQUEST, [id], [_NO_FIELDS], [body], None, len(body))
                )
            return True
        id = headers.get(REF_MSG_ID)
        if id is None or id not in self._pending:
            return False
        self._answered(id, _NO_FIELDS, frame.body, False, events)
        return True

    def _take(self, piece: Piece, now: float, events: list[Event]) -> None:
        if isinstance(piece, FrameOpened):
            self._open_frame(piece.frame, now, events)
        elif isinstance(piece, BodyContinued):
            self._continue(piece.octets, now, events)
        elif isinstance(piece, FrameClosed):
            self._close_frame(piece.final, piece.octets, now, events)
        elif isinstance(piece, Fault):
            self._fail(self._code_of(piece), piece, events)
        elif not piece.has_body:
            self._command(piece, now, events)
        else:
            self._open_frame(piece, now, events)
            if not self.closed:
                self._continue(piece.body, now, events)
            if not self.closed:
                self._close_frame(piece.final, piece.end_octets, now, events)

    def _code_of(self, fault: Fault) -> int:
        """The error code for octets which are no frame."""
        return BAD_REQUEST

    def _fail(self, code: int, fault: Fault, events: list[Event], ref: str | None = None) -> None:
        """The peer broke the protocol: ERROR with a code, and no more (``SA-06``)."""
        self._send_error(code, fault.text, ref)
        self._machine.step(Fault)
        self._faulted = True
        events.append(fault)

    def _refuse(
        self, code: int, text: str, events: list[Event], ref: str | None, id: str | None
    ) -> None:
        """A frame's meaning is wrong: ERROR with a code, the connection stays (``SA-06``)."""
        self.counters.refused_frames += 1
        self._send_error(code, text, ref)
        events.append(FrameRefused(code, text, id))

    def _admit(self, frame: Frame, now: float, events: list[Event]) -> bool:
        """Whether the table allows ``frame`` here, and whether it belongs to this session."""
        kind = type(frame)
        if kind not in self.TABLE[self.state]:
            code, reason = self._wrong_place(kind)
            self._fail(code, Fault(reason, self._machine.refusal(kind)), events)
            return False
        if kind is Connect or kind is Connected:
            return True
        claimed = frame.headers.get(SESSION_ID)
        if claimed is None and kind is Error:
            return True
        if claimed is None or not compare_digest(claimed.encode(), self._session_id):
            self._fail(UNAUTHORIZED, Fault("session-id", "not this session"), events)
            return False
        if self.expires is not None and now >= self.expires and self._expires_here():
            self._fail(UNAUTHORIZED, Fault("session-expired", "the session has expired"), events)
            return False
        return True

    def _wrong_place(self, kind: type[Frame]) -> tuple[int, str]:
        """Code and reason for a frame which the table does not allow."""
        return BAD_REQUEST, "wrong-command"

    def _expires_here(self) -> bool:
        """Whether this side is the one which ends the session at its time (``SA-11``)."""
        return False

    def _misplaced(self, frame: Frame) -> str | None:
        """What is wrong with the reserved headers of ``frame`` (``SA-06``), or None."""
        wrong = _MISPLACED[type(frame)].intersection(frame.headers)
        return f"{min(wrong)} does not belong on {frame.command}" if wrong else None

    def _command(self, frame: Frame, now: float, events: list[Event]) -> None:
        """A frame without a body."""
        if not self._admit(frame, now, events):
            return
        problem = self._misplaced(frame)
        if problem is not None:
            self._refuse(BAD_REQUEST, problem, events, None, None)
            return
        self._machine.step(type(frame))
        if type(frame) is Disconnecting:
            events.append(DisconnectingReceived())
        else:
            self._commanded(frame, now, events)

    def _commanded(self, frame: Frame, now: float, events: list[Event]) -> None:
        """A command of one's role which the table allows."""
        raise NotImplementedError

    # ── frames with a body ──────────────────────────────────────────────────────────────────────

    def _open_frame(self, frame: Frame, now: float, events: list[Event]) -> None:
        """The head of a MESSAGE or ERROR: find the message it belongs to."""
        if not self._admit(frame, now, events):
            return
        headers = frame.headers
        if type(frame) is Error:
            self._more = False
            incoming = _Incoming(None, None, now)
            headers.pop(SESSION_ID, None)  # a secret, and no news to the application
            incoming.fields = headers
        else:
            self._machine.step(Message)
            self._more = headers.get(MSG_MORE) == YES
            id, ref = headers.get(MSG_ID), headers.get(REF_MSG_ID)
            key = None if id is ref is None else (id is None, str(ref if id is None else id))
            found = None if key is None else self._unfinished.get(key)
            incoming = found or _Incoming(key, id if id is not None else ref, now)
            incoming.heard = now
            if not incoming.muted:
                self._examine(frame, incoming, found is None, events)
        self._current = incoming
        self._receiving = True
        self._grow(incoming, frame.head_octets, events)

    def _examine(self, frame: Frame, incoming: _Incoming, first: bool, events: list[Event]) -> None:
        """Refuse a MESSAGE whose headers make no sense (``SA-06``, ``SA-14`` … ``SA-17``)."""
        headers = frame.headers
        id, ref = headers.get(MSG_ID), headers.get(REF_MSG_ID)
        send_only = headers.get(wire.SEND_ONLY) == YES
        code = BAD_REQUEST
        problem = self._misplaced(frame)
        if problem is not None:
            pass
        elif id is None and ref is None:
            problem = "neither msg-id nor ref-msg-id"
        elif id is not None and ref is not None:
            problem = "msg-id and ref-msg-id"
        elif ref is not None and send_only:
            problem = "ref-msg-id and send-only"
        elif first and id is not None and id in self._unanswered:
            problem = "this msg-id waits for its answer"
        elif first and id is not None and self.state is self._draining:
            code, problem = UNAVAILABLE, "the session accepts no further message"
        if problem is not None:
            # Only an original may be named: the ids of its answers are our own ids.
            self._refuse(code, problem, events, id, incoming.id)
            self._mute(incoming)
            return
        if first:
            incoming.send_only = send_only
            if ref is not None and ref not in self._pending:
                self._mute(incoming)
                self.counters.unknown_responses += 1
                return
        for name, value in headers.items():
            if name not in RESERVED:
                incoming.fields[name] = value

    @staticmethod
    def _mute(incoming: _Incoming) -> None:
        incoming.muted = True
        incoming.parts = []
        incoming.fields = {}

    def _grow(self, incoming: _Incoming, octets: int, events: list[Event]) -> None:
        """So many octets more of a message came, beside its body (``SA-22``)."""
        incoming.size += octets
        if incoming.size > self._message_octets:
            self._overgrown(incoming, True, events)

    def _overgrown(self, incoming: _Incoming, trim: bool, events: list[Event]) -> None:
        """A message above the limit is cut once, and closes the connection at twice the limit."""
        if not incoming.muted:
            if self._refuse_oversize and incoming.key is not None:
                ref = None if incoming.key[0] else incoming.id
                self._refuse(TOO_LARGE, "the message is too large", events, ref, incoming.id)
            else:
                body = b"".join(incoming.parts)
                self.counters.truncated_messages += 1
                self._deliver(incoming, _whole_characters(body) if trim else body, True, events)
            self._mute(incoming)
        if incoming.size > 2 * self._message_octets:
            ref = None if incoming.key is None or incoming.key[0] else incoming.id
            fault = Fault("message-octets", "the message is more than twice too large")
            self._fail(TOO_LARGE, fault, events, ref)

    def _continue(self, octets: bytes, now: float, events: list[Event]) -> None:
        """More of a body: kept as far as the limit reaches, measured and forgotten beyond."""
        incoming = self._current
        incoming.heard = now
        if not incoming.muted:
            room = self._message_octets - incoming.size
            incoming.parts.append(octets if len(octets) <= room else octets[: max(0, room)])
        self._grow(incoming, len(octets), events)

    def _close_frame(self, final: bool, octets: int, now: float, events: list[Event]) -> None:
        """A frame is complete: so is its message, or it goes on, or the frame is in error."""
        incoming = self._current
        self._receiving = False
        key = incoming.key
        if final:
            incoming.size += octets
            if incoming.size > self._message_octets:
                # The body is complete: only its end mark is above the limit.
                self._overgrown(incoming, False, events)
            if not incoming.muted:
                self._deliver(incoming, b"".join(incoming.parts), False, events)
            if key is not None:
                self._unfinished.pop(key, None)
        elif self._more:
            self._suspend(incoming, events)
        else:
            self.counters.discarded_frames += 1
            events.append(FrameDiscarded(incoming.id))
            if key is not None:
                self._unfinished.pop(key, None)

    def _suspend(self, incoming: _Incoming, events: list[Event]) -> None:
        """A part is complete; keep its message until the next, unless too many wait already.

        What is skipped has to be remembered as well, or its last part would pass for a message of
        its own; so it has places of its own, as many again.
        """
        key = incoming.key
        if key is None or key in self._unfinished:
            return
        muted = sum(other.muted for other in self._unfinished.values())
        if not incoming.muted and len(self._unfinished) - muted >= self._unfinished_max:
            ref = None if key[0] else incoming.id
            text = f"more than {self._unfinished_max} unfinished messages"
            self._refuse(TOO_MANY, text, events, ref, incoming.id)
            self._mute(incoming)
        if incoming.muted and muted >= self._unfinished_max:
            fault = Fault("unfinished-messages", "too many refused messages go on")
            self._fail(TOO_MANY, fault, events)
            return
        self._unfinished[key] = incoming

    # ── messages in ─────────────────────────────────────────────────────────────────────────────

    def _deliver(
        self, incoming: _Incoming, body: bytes, truncated: bool, events: list[Event]
    ) -> None:
        key, id = incoming.key, incoming.id
        if key is None or id is None:
            self._error_received(incoming.fields, body, events)
            return
        if key[0]:
            if id in self._pending:
                self._answered(id, incoming.fields, body, truncated, events)
            else:
                self.counters.unknown_responses += 1
            return
        if incoming.send_only:
            self.counters.send_only += 1
            self._unsettled += 1
        elif len(self._unanswered) >= self._unanswered_max:
            text = f"more than {self._unanswered_max} unanswered requests"
            self._refuse(TOO_MANY, text, events, id, id)
            return
        else:
            self.counters.requests += 1
            self._unanswered[id] = truncated
        kind = SEND_ONLY if incoming.send_only else REQUEST
        last = events[-1] if events else None
        if type(last) is not MessagesReceived or last.kind != kind:
            last = MessagesReceived(kind, [], [], [], None, 0)
            events.append(last)
        if truncated and last.truncated is None:
            last.truncated = [False] * len(last.ids)
        if last.truncated is not None:
            last.truncated.append(truncated)
        last.ids.append(id)
        last.fields.append(incoming.fields)
        last.bodies.append(body)
        last.octets += len(body)

    def _answered(
        self, id: str, fields: Mapping[str, str], body: bytes, truncated: bool, events: list[Event]
    ) -> None:
        waiter = self._pending.resolve(id)
        self.counters.responses += 1
        last = events[-1] if events else None
        if type(last) is not ResponsesReceived:
            last = ResponsesReceived([], [], [], [], None)
            events.append(last)
        if truncated and last.truncated is None:
            last.truncated = [False] * len(last.ids)
        if last.truncated is not None:
            last.truncated.append(truncated)
        last.ids.append(id)
        last.waiters.append(waiter)
        last.fields.append(fields)
        last.bodies.append(body)

    def _error_received(self, headers: Mapping[str, str], body: bytes, events: list[Event]) -> None:
        """An ERROR fails the request it names, or goes to the application (``SA-16``)."""
        self.counters.errors_received += 1
        code = headers.get(ERROR_CODE)
        for name in (REF_MSG_ID, "message-id", MSG_ID):
            id = headers.get(name)
            if id is not None and id in self._pending:
                waiter = self._pending.resolve(id)
                events.append(RequestFailed(id, waiter, code, body.decode("utf-8", "replace")))
                return
        events.append(ErrorReceived(code, body, headers))

    # ── frames out ──────────────────────────────────────────────────────────────────────────────

    def _send_error(self, code: int | str, text: str, ref: str | None, headers: str = "") -> None:
        """Queue an ERROR; in a session it carries the session's id (``SA-23``, ``SA-26``)."""
        self.counters.errors_sent += 1
        body = text.encode("utf-8", "replace")
        lines = ["ERROR\r\n"]
        if self._session_id:
            lines.append(f"{SESSION_ID}::{self._session_id.decode()}\r\n")
        lines.append(f"{wire.header_line(ERROR_CODE, str(code))}\r\n")
        if ref is not None:
            lines.append(f"{REF_MSG_ID}::{ref}\r\n")
        lines.append(headers)
        if self.lengths:
            lines.append(f"{CONTENT_LENGTH}::{len(body)}\r\n")
        elif wire.ends_early(body):
            body = b""
        lines.append("\r\n")
        self._out.append("".join(lines).encode() + body + (END if body else END_OF_EMPTY))

    def _enter_session(self, session_id: str, lengths: bool) -> None:
        self._session_id = session_id.encode()
        self._prefix = f"MESSAGE\r\n{SESSION_ID}::{session_id}\r\n"
        self._request_prefix = f"{self._prefix}{MSG_ID}::".encode()
        self.lengths = self._decoder.lengths = lengths
        self._decoder.session_id = session_id

    def _lines(self, headers: Mapping[str, str] | None, reserved: Iterable[str] = RESERVED) -> str:
        """An application's headers as lines; ValueError for what may not be sent (``SA-03``)."""
        if not headers:
            return ""
        lines = []
        for name, value in headers.items():
            lines.append(wire.header_line(name, value))
            if name in reserved or (self.lengths and name == CONTENT_LENGTH):
                raise ValueError(f"header {name} belongs to the protocol")
            if len(lines[-1].encode()) > self.bounds.line_octets:
                raise LimitExceeded(f"a header is above {self.bounds.line_octets} octets")
        text = "\r\n".join([*lines, ""])
        if len(lines) > self.bounds.header_lines - _OVERHEAD_LINES:
            raise LimitExceeded(f"{len(lines)} headers are too many")
        if len(text.encode()) > max(0, self.bounds.block_octets - _OVERHEAD_OCTETS):
            raise LimitExceeded("the headers are too long")
        return text

    def _send_message(self, lines: str, extra: str, body: bytes) -> None:
        """Queue a message in as few frames as ``part_octets`` allows (``SA-18``, ``SA-19``).

        ``lines`` stand on every frame, ``extra`` on the first one only.
        """
        if len(body) <= self.part_octets:
            if not self.lengths and wire.ends_early(body):
                raise ValueError("without lengths a body cannot hold an end mark (SA-21)")
            self._send_part(lines + extra, body, True)
            return
        outgoing = OutgoingMessage(self, lines, extra)
        outgoing.write(body)
        outgoing.finish()

    def _send_part(self, lines: str, body: bytes, final: bool) -> None:
        length = f"{CONTENT_LENGTH}::{len(body)}\r\n" if self.lengths else ""
        more = "" if final else f"{MSG_MORE}::{YES}\r\n"
        head = f"{self._prefix}{lines}{more}{length}\r\n".encode()
        end = b"" if not final else END if body else END_OF_EMPTY
        self._out.append(head + body + end)

    # ── verbs ───────────────────────────────────────────────────────────────────────────────────

    def request(
        self,
        body: bytes,
        waiter: object,
        now: float,
        *,
        headers: Mapping[str, str] | None = None,
        seconds: float | None = None,
    ) -> str:
        """Send a message which wants an answer; its id (``SA-14`` … ``SA-16``).

        ``waiter`` comes back with the answer, or after ``seconds`` (None: the limit
        ``response-seconds``) without one.  Raises IllegalTransition outside of a session,
        LimitExceeded when too many are outstanding, ValueError for headers and bodies which the
        framing cannot carry.
        """
        extra, id = self._original(headers, waiting=True)
        self._send_message(f"{MSG_ID}::{id}\r\n", extra, body)
        self._pending.add(
            id, waiter, now + (self._response_seconds if seconds is None else seconds)
        )
        return id

    def send_only(self, body: bytes, *, headers: Mapping[str, str] | None = None) -> str:
        """Send a message which wants no answer; its id (``SA-17``).  Raises as ``request`` does."""
        extra, id = self._original(headers, waiting=False)
        self._send_message(f"{MSG_ID}::{id}\r\n", f"{wire.SEND_ONLY}::{YES}\r\n{extra}", body)
        return id

    def open_message(
        self,
        waiter: object | None,
        now: float,
        *,
        headers: Mapping[str, str] | None = None,
        seconds: float | None = None,
    ) -> OutgoingMessage:
        """Begin a message whose body comes in pieces; ``waiter`` None: it wants no answer.

        The time for the answer runs from now.  Raises as ``request`` does, and LimitExceeded when
        as many messages are open as a peer with the same limits would take.
        """
        extra, id = self._original(headers, waiting=waiter is not None)
        if self._sending >= self._unfinished_max:
            raise LimitExceeded(f"{self._sending} messages are unfinished")
        if waiter is None:
            extra = f"{wire.SEND_ONLY}::{YES}\r\n{extra}"
        else:
            seconds = self._response_seconds if seconds is None else seconds
            self._pending.add(id, waiter, now + seconds)
        self._sending += 1
        return OutgoingMessage(self, f"{MSG_ID}::{id}\r\n", extra, id)

    def _original(self, headers: Mapping[str, str] | None, *, waiting: bool) -> tuple[str, str]:
        if MessageSent not in self.TABLE[self.state]:
            raise IllegalTransition(self.state, MessageSent)
        if waiting and self._pending.full:
            raise LimitExceeded(f"{self._pending.limit} requests are outstanding")
        extra = self._lines(headers)
        self._machine.step(MessageSent)
        self._number += 1
        return extra, str(self._number)

    def forget(self, id: str) -> object | None:
        """Nobody waits for this answer any more: its waiter, None if there is none."""
        return self._pending.resolve(id)

    def answer(self, id: str, body: bytes, *, headers: Mapping[str, str] | None = None) -> None:
        """Answer the peer's request ``id`` (``SA-16``); nothing happens on a closed connection.

        Raises ValueError for an id which waits for no answer, and as ``request`` does.
        """
        if self.closed:
            return
        extra = self._lines(headers)
        truncated = self._unanswered.get(id)
        if truncated is None:
            raise ValueError(f"request {id!r} waits for no answer")
        if truncated and TRUNCATED not in (headers or {}):
            extra += _TRUNCATED_LINE
        self._machine.step(AnswerSent)
        self._send_message(f"{REF_MSG_ID}::{id}\r\n", extra, body)
        del self._unanswered[id]
        self._look_drained()

    def answer_all(self, ids: Sequence[str], bodies: Sequence[bytes]) -> list[str]:
        """Answer many requests at once; the ids of those which want ``answer`` one by one.

        Those are the cut ones, and bodies which need parts or do not fit the framing.
        """
        if self.closed or not ids:
            return []
        self._machine.step(AnswerSent)
        unanswered, lengths, out = self._unanswered, self.lengths, self._out
        most, before = self.part_octets, f"{self._prefix}{REF_MSG_ID}::"
        left = []
        for id, body in zip(ids, bodies, strict=True):
            if (
                unanswered.get(id) is not False
                or not 0 < len(body) <= most
                or not (lengths or not wire.ends_early(body))
            ):
                left.append(id)
                continue
            del unanswered[id]
            length = f"\r\n{CONTENT_LENGTH}::{len(body)}" if lengths else ""
            out.append(f"{before}{id}{length}\r\n\r\n".encode() + body + END)
        self._look_drained()
        return left

    def acknowledge(self, ids: Sequence[str]) -> None:
        """Answer many requests with nothing at all (``SA-16``); as ``answer`` does."""
        if self.closed or not ids:
            return
        self._machine.step(AnswerSent)
        unanswered = self._unanswered
        plain = []
        for id in ids:
            truncated = unanswered.pop(id, None)
            if truncated is None:
                raise ValueError(f"request {id!r} waits for no answer")
            if truncated:
                self._send_part(f"{REF_MSG_ID}::{id}\r\n{_TRUNCATED_LINE}", b"", True)
            else:
                plain.append(id)
        if plain:
            before = f"{self._prefix}{REF_MSG_ID}::"
            length = f"\r\n{CONTENT_LENGTH}::0" if self.lengths else ""
            after = f"{length}\r\n\r\n\0"
            if self._framed:
                self._out += [f"{before}{id}{after}".encode() for id in plain]
            else:
                self._out.append(f"{before}{(after + before).join(plain)}{after}".encode())
        self._look_drained()

    def fail(self, id: str, code: int | str, text: str) -> None:
        """Answer a request with ERROR (``SA-16``); raises ValueError as ``answer`` does."""
        if self.closed:
            return
        truncated = self._unanswered.get(id)
        if truncated is None:
            raise ValueError(f"request {id!r} waits for no answer")
        self._machine.step(AnswerSent)
        self._send_error(code, text, id, _TRUNCATED_LINE if truncated else "")
        del self._unanswered[id]
        self._look_drained()

    def settle(self, count: int) -> None:
        """So many send-only messages are dealt with (``SA-12``)."""
        self._unsettled -= count
        self._look_drained()

    def send_error(
        self, code: int | str, text: str, *, headers: Mapping[str, str] | None = None
    ) -> None:
        """Tell the peer of an error that answers nothing (``SA-24``); closes nothing by itself."""
        if MessageSent not in self.TABLE[self.state]:
            raise IllegalTransition(self.state, MessageSent)
        self._send_error(code, text, None, self._lines(headers))

    def stop(self) -> None:
        """Close at once: DISCONNECTING if there is a session (``SA-13``)."""
        if not self.closed:
            self._send_disconnecting()
            self._machine.step(Stopped)

    def _send_disconnecting(self) -> None:
        if self._session_id:
            head = wire.encode_head("DISCONNECTING", {SESSION_ID: self._session_id.decode()})
            self._out.append(head + END_OF_EMPTY)

    def _look_drained(self) -> None:
        """An answer went out; on a server which drains it may have been the last one."""

    # ── time and the end ────────────────────────────────────────────────────────────────────────

    def tick(self, now: float) -> float | None:
        """Do what is due at ``now``; when to come back (None: no need until something happens).

        Look at ``take_due()`` and at what is to be sent afterwards.
        """
        self._tick_times(now)
        if self.closed:
            return None
        deadline = self._connect_deadline
        if deadline is not None and now >= deadline:
            self._connect_deadline = None
            fault = Fault("connect-seconds", "no session in time")
            self._fail(TIMED_OUT, fault, self._due)
            return None
        deadlines = [deadline] if deadline is not None else []
        deadlines += self._tick_unfinished(now)
        expired = self._pending.expire(now)
        if expired:
            self._due.append(
                RequestsTimedOut([id for id, _ in expired], [waiter for _, waiter in expired])
            )
        first = self._pending.next_deadline()
        if first is not None:
            deadlines.append(first)
        deadlines += self._times()
        return min(deadlines, default=None)

    def _tick_times(self, now: float) -> None:
        """What else one's role does when the time comes."""

    def _times(self) -> list[float]:
        """When :meth:`_tick_times` has work."""
        return []

    def _tick_unfinished(self, now: float) -> list[float]:
        """Give up messages whose parts stopped coming (``SA-27``).

        They are remembered for as long again, so that a late part does not pass for a message.
        """
        deadlines = []
        seconds = self._unfinished_seconds
        waiting = list(self._unfinished.values())
        if self._receiving and self._current not in waiting:
            waiting.append(self._current)
        for incoming in waiting:
            if now >= incoming.heard + seconds:
                receiving = self._receiving and incoming is self._current
                if incoming.muted and not receiving:
                    del self._unfinished[incoming.key]  # type: ignore[arg-type]
                    continue
                if not incoming.muted:
                    self.counters.abandoned_messages += 1
                    ref = None if incoming.key is None or incoming.key[0] else incoming.id
                    self._send_error(TIMED_OUT, "the rest of the message did not come", ref)
                    self._due.append(MessageAbandoned(incoming.id))
                    self._mute(incoming)
                incoming.heard = now
            deadlines.append(incoming.heard + seconds)
        return deadlines

    def connection_lost(self) -> list[tuple[str, object]]:
        """The connection is gone: (id, waiter) of each request without an answer."""
        self._machine.try_step(ConnectionLost)
        self._unfinished.clear()
        self._unanswered.clear()
        self._receiving = False
        self._current = _Incoming(None, None, 0.0)
        return self._pending.drain()


def _whole_characters(body: bytes) -> bytes:
    """``body`` without an unfinished last UTF-8 character; as it is if it is not UTF-8."""
    try:
        return body[: codecs.utf_8_decode(body, "strict", False)[1]]
    except UnicodeDecodeError:
        return body
