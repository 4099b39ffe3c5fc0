"""One half of an sABC machine listens: it turns bytes into messages and answers.

:class:`Listener` adds it to :class:`.sending.Speaker` and is the base of the two roles in
:mod:`.sides`.
"""

from __future__ import annotations

import codecs
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from hmac import compare_digest
from operator import attrgetter
from typing import Any, ClassVar, Final

from ...core.errors import Fault
from ...core.limits import Limits
from ...core.session_memory import table_bytes
from .. import wire
from ..terms import (
    BAD_REQUEST,
    FORBIDDEN,
    MISPLACED,
    REQUEST,
    SEND_ONLY,
    TIMED_OUT,
    TOO_LARGE,
    TOO_MANY,
    UNAUTHORIZED,
    UNAVAILABLE,
    UNFINISHED_SECONDS,
    DisconnectingReceived,
    ErrorReceived,
    Event,
    FrameDiscarded,
    FrameRefused,
    MessagesReceived,
    MessagesSafe,
    RequestFailed,
    ResponsesReceived,
)
from ..wire import (
    BLANK,
    END,
    ERROR_CODE,
    MSG_ID,
    MSG_MORE,
    REF_MSG_ID,
    RESERVED,
    SESSION_ID,
    TRUNCATED,
    YES,
    Connect,
    Connected,
    Disconnecting,
    Error,
    Frame,
    Message,
    wide,
)
from ..wire.framing import BodyContinued, Decoder, FrameClosed, FrameOpened, Piece, read_frame
from .sending import S, Speaker


@dataclass(slots=True, eq=False)
class Incoming:
    """A message that is being received, or what is to be skipped of one."""

    key: tuple[bool, str] | None  # (is a response, id); None: an ERROR, or without an id
    id: str | None  # to name in events
    heard: float  # when the last bytes of it came
    fields: dict[str, str] = field(default_factory=dict)
    parts: list[bytes] = field(default_factory=list)
    send_only: bool = False
    size: int = 0  # bytes of all its frames so far, heads and end marks included (``SA-22``)
    weight: int = 0  # of its headers so far in memory, where more of it has to come
    cut: bool = False  # above the limit: what was kept is delivered at its true end
    muted: bool = False  # nothing of it is delivered (any more); it is read to its true end
    given_up: bool = False  # the rest of it did not come in time

    @property
    def named(self) -> str | None:
        """The id that an ERROR may name: an original's; those of answers are our own."""
        return None if self.key is None or self.key[0] else self.id

    def mute(self) -> None:
        self.muted = True
        self.parts = []
        self.fields = {}

    def weigh(self, headers: Mapping[str, str]) -> None:
        """Count headers of a frame that does not end the message: they wait with it."""
        if not self.muted:
            own = {name: value for name, value in headers.items() if name not in RESERVED}
            self.weight += table_bytes(own)


NOTHING_YET: Final = Incoming(None, None, 0.0)
"""All sides that are in no message share this; it is never changed."""


def whole_characters(body: bytes) -> bytes:
    """Return ``body`` without an unfinished last UTF-8 character; as it is if it is not UTF-8."""
    try:
        return body[: codecs.utf_8_decode(body, "strict", False)[1]]
    except UnicodeDecodeError:
        return body


_PIECES_A_MESSAGE = 16  # how finely a message that is still coming is measured against its limit

_CUT: Final = "the peer has cut the message to what it takes"
_FIELD_WEIGHT_BYTES: Final = 150  # a header of one's own counts as so much beside its bytes
_MORE_THAN_TWICE: Final = Fault("message-bytes", "the message is more than twice too large")

_NO_FIELDS: Final[Mapping[str, str]] = {}


class Listener(Speaker[S]):
    """The half that joins the peer's frames to messages, within bounds (``SA-01`` … ``SA-27``)."""

    __slots__ = (
        "_connect_seconds",
        "_current",
        "_decoder",
        "_lenient",
        "_more",
        "_positions",
        "_receiving",
        "_refuse_oversize",
        "_request_prefix",
        "_unanswered_max",
        "_unfinished",
        "_unhooked",
        "_unsafe",
        "expires",
    )

    _open: tuple[S, ...]
    _expires_here: ClassVar[bool] = False

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        framed: bool = False,
        lenient: bool = False,
        refuse_oversize: bool = False,
        unhooked: Container[str] = (),
    ) -> None:
        super().__init__(limits, framed=framed)
        limits = self._limits
        self._unhooked = unhooked
        self._paused = False
        self._connect_seconds = limits["connect-seconds"]
        self._unanswered_max = limits.integer("outstanding-requests")
        self._lenient = lenient
        self._refuse_oversize = refuse_oversize

        self.expires: float | None = None

        piece = max(1, min(65536, self.message_bytes // _PIECES_A_MESSAGE))
        self._decoder = Decoder(self.bounds, part_bytes=piece, lenient=lenient)
        self._request_prefix = b""  # of a request's id
        self._positions = 0  # of the last event with messages
        self._unsafe: dict[int, MessagesReceived] = {}  # by position: not answered by the sink
        self._current = NOTHING_YET  # the message of the frame being received
        self._more = False  # that frame says msg-more
        self._receiving = False  # there is one
        self._unfinished: dict[tuple[bool, str], Incoming] = {}

    # ── bytes in ───────────────────────────────────────────────────────────────────────────────

    def receive(self, inputs: Any, now: float) -> list[Event]:
        events: list[Event] = []
        if self._machine.state is self._closed:
            return events
        if self._framed:
            self._read_frames(inputs, now, events)
        else:
            self._read_bytes(inputs, now, events)
        if self._receiving or self._unfinished:
            self.deadlines.no_later("unfinished", now + UNFINISHED_SECONDS)
        for event in events:
            if type(event) is MessagesReceived:
                event.position = self._positions = self._positions + 1
                self._unsafe[event.position] = event
        return events

    def _read_bytes(self, data: bytes, now: float, events: list[Event]) -> None:
        decoder = self._decoder
        decoder.feed(data)
        together = True  # once: when the frame of which a part came before is through
        while True:
            if together and decoder.at_head:
                together = False
                self._take_all(now, events)
            piece = decoder.next()
            if piece is None:
                break
            if type(piece) is not Message or not self._quick_answer(piece, now, events):
                self._take(piece, now, events)
                if self.closed:
                    break

    def _read_frames(self, messages: Sequence[bytes], now: float, events: list[Event]) -> None:
        if all(data.endswith(END) for data in messages):
            self._decoder.feed(b"".join(messages))
            taken = self._take_all(now, events, len(messages))
            self._decoder.clear()
            if taken:
                return
        for data in messages:
            if self.closed:
                break
            piece = read_frame(data, self.bounds, lenient=self._lenient)
            if type(piece) is not Message or not self._quick_answer(piece, now, events):
                self._take(piece, now, events)

    def _simple(self, now: float) -> bool:
        return not (
            self._machine.state is not self._open[0]
            or self._unfinished
            or self._receiving
            or (self.expires is not None and now >= self.expires)
        )

    def _take_all(self, now: float, events: list[Event], count: int = 0) -> bool:
        """False, and nothing is done, if anything but requests in one frame each has come."""
        if not self._simple(now):
            return False
        unanswered = self._unanswered
        found = self._decoder.plain(
            self._request_prefix, self.message_bytes, unanswered, self._unanswered_max, count
        )
        if found is None:
            return False
        ids, bodies, weight = found
        unanswered.update(dict.fromkeys(ids, False))
        self.counters.requests += len(ids)
        nbytes = sum(map(len, bodies))
        weight += len(ids) * (len(self._request_prefix) + len(BLANK))
        events.append(
            MessagesReceived(
                *(REQUEST, ids, [_NO_FIELDS] * len(ids), bodies, [False] * len(ids)),
                *(nbytes, weight),
            )
        )
        return True

    def _quick_answer(self, frame: Message, now: float, events: list[Event]) -> bool:
        """Deal with an answer in one frame, with no header but the two it needs; False: another."""
        headers = frame.headers
        id = headers.get(REF_MSG_ID)
        if (
            id is None
            or len(headers) != 2
            or id not in self._pending
            or not frame.final
            or not self._simple(now)
            or frame.head_bytes + len(frame.body) + frame.end_bytes > self.message_bytes
            or not compare_digest(headers.get(SESSION_ID, "").encode(), self._session_id)
        ):
            return False
        self._answered(id, _NO_FIELDS, frame.body, False, events)
        return True

    def _take(self, piece: Piece, now: float, events: list[Event]) -> None:
        if isinstance(piece, FrameOpened):
            self._open_frame(piece.frame, now, events)
            if not self.closed:
                self._current.weigh(piece.frame.headers)
        elif isinstance(piece, BodyContinued):
            self._continue(piece.nbytes, now, events)
        elif isinstance(piece, FrameClosed):
            self._close_frame(piece.final, piece.nbytes, now, events)
        elif isinstance(piece, Fault):
            self._fail(self._code_of(piece), piece, events)
        elif not piece.has_body:
            self._command(piece, now, events)
        else:
            self._open_frame(piece, now, events)
            if not self.closed:
                if not piece.final:
                    self._current.weigh(piece.headers)
                self._continue(piece.body, now, events)
            if not self.closed:
                self._close_frame(piece.final, piece.end_bytes, now, events)

    def _code_of(self, fault: Fault) -> int:
        return BAD_REQUEST

    def _fail(self, code: int, fault: Fault, events: list[Event], ref: str | None = None) -> None:
        self._send_error(code, fault.text, ref)
        self._machine.step(Fault)
        self._decoder.end()
        events.append(fault)

    def _refuse(
        self, code: int, text: str, events: list[Event], incoming: Incoming | None = None
    ) -> None:
        """Answer a frame with ERROR; nothing of its message is delivered (any more)."""
        self.counters.refused_frames += 1
        ref, id = (None, None) if incoming is None else (incoming.named, incoming.id)
        self._send_error(code, text, ref)
        events.append(FrameRefused(code, text, id))
        if incoming is not None:
            incoming.mute()

    def _admit(self, frame: Frame, now: float, events: list[Event]) -> bool:
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
        if self.expires is not None and now >= self.expires and self._expires_here:
            self._fail(UNAUTHORIZED, Fault("session-expired", "the session has expired"), events)
            return False
        return True

    def _wrong_place(self, kind: type[Frame]) -> tuple[int, str]:
        return BAD_REQUEST, "wrong-command"

    def _misplaced(self, frame: Frame) -> str | None:
        wrong = MISPLACED[type(frame)].intersection(frame.headers)
        return f"{min(wrong)} does not belong on {frame.command}" if wrong else None

    def _command(self, frame: Frame, now: float, events: list[Event]) -> None:
        if not self._admit(frame, now, events):
            return
        problem = self._misplaced(frame)
        if problem is not None:
            self._refuse(BAD_REQUEST, problem, events)
            return
        self._machine.step(type(frame))
        if type(frame) is Disconnecting:
            events.append(DisconnectingReceived())
        else:
            self._commanded(frame, now, events)

    def _enter_session(self, session_id: str, lengths: bool) -> None:
        super()._enter_session(session_id, lengths)
        self._request_prefix = f"{self._prefix}{MSG_ID}::".encode()
        self._decoder.lengths = lengths
        self._decoder.session_id = session_id

    def _commanded(self, frame: Frame, now: float, events: list[Event]) -> None:
        raise NotImplementedError

    # ── frames with a body ──────────────────────────────────────────────────────────────────────

    def _open_frame(self, frame: Frame, now: float, events: list[Event]) -> None:
        if not self._admit(frame, now, events):
            return
        headers = frame.headers
        if type(frame) is Error:
            self._more = False
            incoming = Incoming(None, None, now)
            headers.pop(SESSION_ID, None)  # a secret, and no news to the application
            incoming.fields = headers
        else:
            self._machine.step(Message)
            self._more = headers.get(MSG_MORE) == YES
            id, ref = headers.get(MSG_ID), headers.get(REF_MSG_ID)
            key = None if id is ref is None else (id is None, str(ref if id is None else id))
            found = None if key is None else self._unfinished.get(key)
            incoming = found or Incoming(key, id if id is not None else ref, now)
            incoming.heard = now
            if not incoming.muted:
                self._examine(frame, incoming, found is None, events)
        self._current = incoming
        self._receiving = True
        self._grow(incoming, frame.head_bytes, events)

    def _examine(self, frame: Frame, incoming: Incoming, first: bool, events: list[Event]) -> None:
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
            self._refuse(code, problem, events, incoming)
            return
        if first:
            incoming.send_only = send_only
            if ref is not None and ref not in self._pending:
                incoming.mute()
                self.counters.unknown_responses += 1
                return
        for name, value in headers.items():
            if name not in RESERVED:
                incoming.fields[name] = value

    def _grow(self, incoming: Incoming, nbytes: int, events: list[Event]) -> None:
        """Note that this many bytes more of a message came, beside its body (``SA-22``)."""
        incoming.size += nbytes
        if incoming.size > self.message_bytes:
            self._overgrown(incoming, True, events)

    def _overgrown(self, incoming: Incoming, trim: bool, events: list[Event]) -> None:
        """A message above the limit is cut once, or refused; at twice the limit it is refused.

        A cut message is kept until its true end: if it grows on, nothing of it is delivered.
        """
        if not incoming.muted and not incoming.cut:
            if self._refuse_oversize and incoming.key is not None:
                self._refuse(TOO_LARGE, "the message is too large", events, incoming)
            else:
                body = b"".join(incoming.parts)
                incoming.parts = [whole_characters(body) if trim else body]
                incoming.cut = True
        if incoming.size > 2 * self.message_bytes:
            incoming.mute()
            self._fail(TOO_LARGE, _MORE_THAN_TWICE, events, incoming.named)

    def oversized(self) -> list[Event]:
        """What is more than twice the limit in one WebSocket message is not read (``SA-22``)."""
        events: list[Event] = []
        if not self.closed:
            self._fail(TOO_LARGE, _MORE_THAN_TWICE, events)
        return events

    def _continue(self, data: bytes, now: float, events: list[Event]) -> None:
        """Keep more of a body as far as the limit reaches; beyond it, only count the bytes."""
        incoming = self._current
        incoming.heard = now
        if not incoming.muted and not incoming.cut:
            left = max(0, self.message_bytes - incoming.size)
            incoming.parts.append(data[:left])
        self._grow(incoming, len(data), events)

    def _close_frame(self, final: bool, nbytes: int, now: float, events: list[Event]) -> None:
        incoming, self._current = self._current, NOTHING_YET
        self._receiving = False
        key = incoming.key
        if final:
            incoming.size += nbytes
            if incoming.size > self.message_bytes:
                # The body is complete: only its end mark is above the limit.
                self._overgrown(incoming, False, events)
            if self.closed:
                return
            if not incoming.muted:
                self.counters.truncated_messages += incoming.cut
                self._deliver(incoming, b"".join(incoming.parts), incoming.cut, events)
            elif incoming.given_up and key and key in self._unfinished and not key[0]:
                # Its late end, or a new message under its id, which would wait for an answer.
                text = "a message with this msg-id was given up; send it anew"
                self._refuse(TIMED_OUT, text, events, incoming)
            if key is not None:
                self._unfinished.pop(key, None)
        elif self._more:
            self._suspend(incoming, events)
        else:
            self.counters.discarded_frames += 1
            events.append(FrameDiscarded(incoming.id))
            if key is not None:
                self._unfinished.pop(key, None)

    def _suspend(self, incoming: Incoming, events: list[Event]) -> None:
        """A part is complete; keep its message until the next, unless too many wait already.

        What is skipped has places of its own, as many again, or its last part would pass for a
        message of its own.
        """
        key = incoming.key
        if key is None or key in self._unfinished:
            return
        if not incoming.muted and len(self._unfinished) - self._muted >= self._unfinished_max:
            text = f"more than {self._unfinished_max} unfinished messages"
            self._refuse(TOO_MANY, text, events, incoming)
        if not (incoming.muted and self._full(incoming.heard, events)):
            self._unfinished[key] = incoming

    @property
    def _muted(self) -> int:
        return sum(incoming.muted for incoming in self._unfinished.values())

    def _full(self, now: float, events: list[Event]) -> bool:
        """End the session if too many messages that are skipped may still go on.

        One of which nothing has come for a while makes room, when another needs its place.
        """
        muted = [incoming for incoming in self._unfinished.values() if incoming.muted]
        if len(muted) < self._unfinished_max:
            return False
        eldest = min(muted, key=attrgetter("heard"))
        if now >= eldest.heard + UNFINISHED_SECONDS:
            del self._unfinished[eldest.key]  # type: ignore[arg-type]
            return False
        fault = Fault("unfinished-messages", "too many refused messages go on")
        self._fail(TOO_MANY, fault, events)
        return True

    # ── messages in ─────────────────────────────────────────────────────────────────────────────

    def _deliver(
        self, incoming: Incoming, body: bytes, truncated: bool, events: list[Event]
    ) -> None:
        key, id = incoming.key, incoming.id
        if key is None or id is None:
            self._error_received(incoming.fields, body, events)
            return
        if key[0]:
            if id in self._pending:
                if incoming.fields.get(TRUNCATED) == YES:
                    self._answered_cut(id, events)
                else:
                    self._answered(id, incoming.fields, body, truncated, events)
            else:
                self.counters.unknown_responses += 1
            return
        if incoming.send_only:
            self.counters.send_only += 1
            self._unsettled += 1
        elif len(self._unanswered) >= self._unanswered_max:
            text = f"more than {self._unanswered_max} unanswered requests"
            self._refuse(TOO_MANY, text, events, incoming)
            return
        else:
            self.counters.requests += 1
            self._unanswered[id] = truncated
        kind = SEND_ONLY if incoming.send_only else REQUEST
        last = events[-1] if events else None
        if type(last) is not MessagesReceived or last.kind != kind:
            last = MessagesReceived(kind, [], [], [], [], 0)
            events.append(last)
        last.truncated.append(truncated)
        last.ids.append(id)
        last.fields.append(incoming.fields)
        last.bodies.append(body)
        nbytes = len(body)
        last.nbytes += nbytes
        size = self.message_bytes if truncated else incoming.size
        fields = incoming.fields
        last.weight += size - nbytes + _FIELD_WEIGHT_BYTES * len(fields)
        last.weight += wide((id, *fields, *fields.values()))

    def _answered(
        self, id: str, fields: Mapping[str, str], body: bytes, truncated: bool, events: list[Event]
    ) -> None:
        waiter = self._pending.resolve(id)
        self.counters.responses += 1
        last = events[-1] if events else None
        if type(last) is not ResponsesReceived:
            last = ResponsesReceived([], [], [], [], [])
            events.append(last)
        last.truncated.append(truncated)
        last.ids.append(id)
        last.waiters.append(waiter)
        last.fields.append(fields)
        last.bodies.append(body)

    def _answered_cut(self, id: str, events: list[Event]) -> None:
        self.counters.responses += 1
        events.append(RequestFailed(id, self._pending.resolve(id), TRUNCATED, _CUT))

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

    @property
    def no_partial_input(self) -> bool:
        unfinished = len(self._unfinished) - self._muted if self._unfinished else 0
        return not (self._receiving or unfinished or self._decoder.weight)

    # ── what the sink says ──────────────────────────────────────────────────────────────────────

    def made_safe(self, position: int, now: float) -> list[Event]:
        """Answer the messages of this event, which are safe, if no hook processes them."""
        event = self._answered_by_sink(position)
        if event.kind not in self._unhooked:
            return [MessagesSafe(event)]
        if event.kind == SEND_ONLY:
            self.settle(len(event.ids))
        else:
            self.acknowledge(event.ids)
        return []

    def not_safe(self, position: int, now: float) -> list[Event]:
        """Requests fail, the session ends: what is stored of it would have a gap (``SA-16``)."""
        event = self._answered_by_sink(position)
        if event.kind == REQUEST:
            for id in event.ids:
                if not self.closed and id in self._unanswered:
                    self.fail(id, UNAVAILABLE, "not stored")
        self.stop()
        return []

    def forbid(self, position: int, text: str) -> None:
        """403 for each message of this event, which the peer may not send."""
        event = self._answered_by_sink(position)
        if event.kind == SEND_ONLY:
            self.settle(len(event.ids))
        for id in event.ids:
            if event.kind == SEND_ONLY:
                self._send_error(FORBIDDEN, text, id)
            elif not self.closed and id in self._unanswered:
                self.fail(id, FORBIDDEN, text)

    def _answered_by_sink(self, position: int) -> MessagesReceived:
        event = self._unsafe.pop(position, None)
        if event is None:
            raise ValueError(f"no event had the position {position!r}")
        return event
