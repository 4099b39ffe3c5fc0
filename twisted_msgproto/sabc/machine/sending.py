"""One half of an sABC machine speaks: it has the verbs, and knows what they leave to be answered.

:class:`Speaker` is the base of :class:`.receiving.Listener`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from sys import maxsize
from typing import Any, ClassVar, Generic, TypeVar

from ...core.connection import Connection
from ...core.deadlines import Deadlines, Pending
from ...core.errors import LimitExceeded
from ...core.limits import Limits
from ...core.machine import IllegalTransition, Machine, State, Table
from .. import wire
from ..terms import SESSION_LIMITS, Counters, Event, Step
from ..wire import (
    CONTENT_LENGTH,
    END,
    END_OF_EMPTY,
    ERROR_CODE,
    MSG_ID,
    MSG_MORE,
    REF_MSG_ID,
    RESERVED,
    SESSION_ID,
    TRUNCATED,
    YES,
    Bounds,
)

_TRUNCATED_LINE = f"{TRUNCATED}::{YES}\r\n"
_OVERHEAD_LINES = 6  # the lines that our own messages have beside an application's headers
_OVERHEAD_BYTES = 1536

S = TypeVar("S", bound=State)


def _never(now: float) -> float:
    return 0.0


class Speaker(Connection[Any, Any, Event], Generic[S]):
    """The half with the verbs: requests, send-only, answers, errors (``SA-14`` … ``SA-24``).

    Inputs and outputs are bytes on a byte stream, and lists of frames on WebSocket.
    """

    __slots__ = (
        "_framed",
        "_limits",
        "_machine",
        "_number",
        "_out",
        "_pending",
        "_prefix",
        "_response_seconds",
        "_sending",
        "_session_id",
        "_unanswered",
        "_unfinished_max",
        "_unsettled",
        "bounds",
        "counters",
        "deadlines",
        "lengths",
        "message_bytes",
        "part_bytes",
        "peer_bytes",
        "taken_at",
    )

    TABLE: ClassVar[Table[Any]]
    counters: Counters
    deadlines: Deadlines
    _initial: S
    _closed: S
    _draining: S | None  # of a server that answers what is in work, and then closes

    def __init__(self, limits: Limits | None, *, framed: bool) -> None:
        limits = Limits.of(SESSION_LIMITS) if limits is None else limits
        self._limits = limits
        self.bounds: Bounds = Bounds.of(limits)
        self.part_bytes: int = limits.integer("part-bytes")
        self.message_bytes: int = limits.integer("message-bytes")
        self.peer_bytes: int | None = None  # the largest message that it says to accept
        self._unfinished_max = limits.integer("unfinished-messages")
        self._response_seconds = limits["response-seconds"]
        self._framed = framed  # WebSocket: frames come and go one by one

        self.counters = Counters()
        self.deadlines = Deadlines()
        self.lengths: bool = False  # both announced ``framing::length`` (``SA-26``)

        self._machine = Machine(self.TABLE, self._initial)
        self._out: list[bytes] = []
        self._session_id = b""
        self._prefix = ""  # of every MESSAGE of this session
        self._unanswered: dict[str, bool] = {}  # the peer's requests by id: whether they were cut
        self._unsettled = 0  # send-only messages that the application works on
        self._pending: Pending[str, object] = Pending(limits.integer("outstanding-requests"))
        # When the peer took something of ours last: requests without a time run from there.
        self.taken_at: Callable[[float], float] = _never
        self._number = 0
        self._sending = 0  # originals of ours whose last part was not sent

    @property
    def state(self) -> S:
        state: S = self._machine.state
        return state

    @property
    def closed(self) -> bool:
        """Nothing more is read; close the connection when the bytes to send are out."""
        return self._machine.state is self._closed

    @property
    def outstanding(self) -> int:
        return len(self._pending)

    @property
    def room(self) -> int:
        return self._pending.limit - len(self._pending)

    @property
    def parts_room(self) -> int:
        return self._unfinished_max - self._sending

    finished = closed

    def outputs(self) -> Any:
        out, self._out = self._out, []
        return out if self._framed else b"".join(out)

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
        self.lengths = lengths

    def _lines(self, headers: Mapping[str, str] | None, reserved: Iterable[str] = RESERVED) -> str:
        """Return an application's headers as lines; ValueError for what may not be sent."""
        if not headers:
            return ""
        lines = []
        for name, value in headers.items():
            lines.append(wire.header_line(name, value))
            if name in reserved or (self.lengths and name == CONTENT_LENGTH):
                raise ValueError(f"header {name} belongs to the protocol")
            if len(lines[-1].encode()) > self.bounds.line_bytes:
                raise LimitExceeded(f"a header is above {self.bounds.line_bytes} bytes")
        text = "\r\n".join([*lines, ""])
        if len(lines) > self.bounds.header_lines - _OVERHEAD_LINES:
            raise LimitExceeded(f"{len(lines)} headers are too many")
        if len(text.encode()) > self.bounds.block_bytes - _OVERHEAD_BYTES:
            raise LimitExceeded("the headers are too long")
        return text

    def _send_message(self, lines: str, extra: str, body: bytes) -> None:
        """``lines`` stand on every frame, ``extra`` on the first one only (``SA-18``)."""
        if len(body) <= self.part_bytes:
            if not self.lengths and wire.ends_early(body):
                raise ValueError("without lengths a body cannot hold an end mark (SA-21)")
            self._send_part(lines + extra, body, True)
            return
        outgoing = OutgoingMessage(self, lines, extra)
        outgoing.write(body)
        outgoing.finish()

    def _send_whole(self, lines: str, extra: str, body: bytes, most: int | None = None) -> None:
        """LimitExceeded, and nothing queued, above ``most`` (None: what the peer will not cut)."""
        most = self.sent_bytes_max if most is None else most
        before = len(self._out)
        if len(body) <= most:
            self._send_message(lines, extra, body)
        nbytes = sum(map(len, self._out[before:])) or len(body)
        if nbytes > most:
            del self._out[before:]
            raise self.too_large(nbytes)

    @property
    def sent_bytes_max(self) -> int:
        """Return how large our messages may be; a peer that does not say is taken to be like us."""
        return self.message_bytes if self.peer_bytes is None else self.peer_bytes

    def too_large(self, nbytes: int) -> LimitExceeded:
        return LimitExceeded(
            f"a message of {nbytes} bytes is above message-bytes={self.sent_bytes_max}"
        )

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
        """Send a message that wants an answer; return its id (``SA-14`` … ``SA-16``).

        ``waiter`` comes back with the answer, or after ``seconds`` (None: ``response-seconds``)
        without one.  Raises IllegalTransition outside of a session, LimitExceeded when too many are
        outstanding or the peer does not accept this size, ValueError for what cannot be framed.
        """
        extra, id = self._original(headers, waiting=True)
        self._send_whole(f"{MSG_ID}::{id}\r\n", extra, body)
        self._await_answer(id, waiter, now, seconds)
        return id

    def _await_answer(self, id: str, waiter: object, now: float, seconds: float | None) -> None:
        deadline = now + (self._response_seconds if seconds is None else seconds)
        self._pending.add(id, waiter, deadline, own=seconds is not None)
        self.deadlines.no_later("answer", deadline)

    def send_only(self, body: bytes, *, headers: Mapping[str, str] | None = None) -> str:
        """Send a message that wants no answer; its id (``SA-17``).  Raises as ``request`` does."""
        extra, id = self._original(headers, waiting=False)
        self._send_whole(f"{MSG_ID}::{id}\r\n", f"{wire.SEND_ONLY}::{YES}\r\n{extra}", body)
        return id

    def open_message(
        self,
        waiter: object | None,
        now: float,
        *,
        headers: Mapping[str, str] | None = None,
        seconds: float | None = None,
    ) -> OutgoingMessage:
        """``waiter`` None: it wants no answer; the time for one runs from now.

        Raises as ``request`` does, and LimitExceeded when as many messages are open as a peer with
        the same limits would accept.
        """
        extra, id = self._original(headers, waiting=waiter is not None)
        self._check_parts_room()
        if waiter is None:
            extra = f"{wire.SEND_ONLY}::{YES}\r\n{extra}"
        else:
            self._await_answer(id, waiter, now, seconds)
        self._sending += 1
        return OutgoingMessage(self, f"{MSG_ID}::{id}\r\n", extra, id)

    def _check_parts_room(self) -> None:
        if not self.parts_room:
            raise LimitExceeded(f"{self._sending} messages are unfinished")

    def _original(self, headers: Mapping[str, str] | None, *, waiting: bool) -> tuple[str, str]:
        if waiting and self._pending.full:
            raise LimitExceeded(f"{self._pending.limit} requests are outstanding")
        extra = self._lines(headers)
        self._machine.step(Step.MESSAGE_SENT)
        self._number += 1
        return extra, str(self._number)

    def forget(self, id: str) -> object | None:
        """Nobody waits for this answer any more: its waiter, None if there is none."""
        return self._pending.resolve(id)

    def answer(self, id: str, body: bytes, *, headers: Mapping[str, str] | None = None) -> None:
        """Answer the peer's request ``id`` (``SA-16``); nothing happens on a closed connection.

        Raises ValueError for an id that waits for no answer, and as ``request`` does.
        """
        if self.closed:
            return
        extra = self._answer_lines(id, headers)
        # What is above the peer's limit it cuts; above twice the limit it would close.
        most = maxsize if self.peer_bytes is None else 2 * self.peer_bytes
        self._send_whole(f"{REF_MSG_ID}::{id}\r\n", extra, body, most)
        del self._unanswered[id]
        self._look_drained()

    def _answer_lines(self, id: str, headers: Mapping[str, str] | None) -> str:
        extra = self._lines(headers)
        truncated = self._unanswered.get(id)
        if truncated is None:
            raise ValueError(f"request {id!r} waits for no answer")
        self._machine.step(Step.ANSWER_SENT)
        return extra + (_TRUNCATED_LINE if truncated and TRUNCATED not in (headers or {}) else "")

    def open_answer(self, id: str, *, headers: Mapping[str, str] | None = None) -> OutgoingMessage:
        """Raises as ``answer`` does, and LimitExceeded while ``parts_room`` is 0 (``SA-18``)."""
        self._check_parts_room()
        extra = self._answer_lines(id, headers)
        self._sending += 1
        return OutgoingMessage(self, f"{REF_MSG_ID}::{id}\r\n", extra, id, answers=True)

    def answer_all(self, ids: Sequence[str], bodies: Sequence[bytes]) -> list[str]:
        """Return the ids of those that want ``answer`` one by one.

        Those are the cut ones, and bodies that need parts or do not fit the framing.
        """
        if self.closed or not ids:
            return []
        self._machine.step(Step.ANSWER_SENT)
        unanswered, lengths, out = self._unanswered, self.lengths, self._out
        most, before = self.part_bytes, f"{self._prefix}{REF_MSG_ID}::"
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
        self._machine.step(Step.ANSWER_SENT)
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
        self._send_error(code, text, id, self._answer_lines(id, None))
        del self._unanswered[id]
        self._look_drained()

    def settle(self, count: int) -> None:
        """Note that this many send-only messages are dealt with (``SA-12``)."""
        self._unsettled -= count
        self._look_drained()

    def send_error(
        self, code: int | str, text: str, *, headers: Mapping[str, str] | None = None
    ) -> None:
        """Tell the peer of an error that answers nothing (``SA-24``); closes nothing by itself."""
        if Step.MESSAGE_SENT not in self.TABLE[self.state]:
            raise IllegalTransition(self.state, Step.MESSAGE_SENT)
        self._send_error(code, text, None, self._lines(headers))

    def stop(self) -> None:
        """Close at once: DISCONNECTING if there is a session (``SA-13``)."""
        if not self.closed:
            self._send_disconnecting()
            self._machine.step(Step.STOPPED)

    def _send_disconnecting(self) -> None:
        if self._session_id:
            head = wire.encode_head("DISCONNECTING", {SESSION_ID: self._session_id.decode()})
            self._out.append(head + END_OF_EMPTY)

    def _look_drained(self) -> None:
        if self._machine.state is self._draining and not (self._unanswered or self._unsettled):
            self._send_disconnecting()
            self._machine.step(Step.DRAINED)


_HEAD_BYTES = len("msg-more::yes\r\ncontent-length::1234567890\r\n\r\n")
"""The most that a head of ours has beside the session, the message's own id and its headers."""


class OutgoingMessage:
    """The last part of the body is kept back until the next one comes (``SA-18``).

    Only the last frame of a message carries the end mark, and without lengths no part may begin
    with NUL (``SA-21``).
    """

    def __init__(
        self,
        side: Speaker[Any],
        lines: str,
        extra: str,
        id: str | None = None,
        *,
        answers: bool = False,
    ) -> None:
        """Made by ``open_message`` and ``open_answer``."""
        self._side = side
        self._answers = answers
        self._lines = lines
        self._extra = extra
        self._kept = bytearray()
        self._session_line = f"{SESSION_ID}::".encode() + side._session_id
        self._reach = len(self._session_line)
        self._tail = b""  # the end of what was sent, for what parts make together
        self._begun = False  # a part was sent
        self._sent = 0  # bytes of all parts, with what the framing adds
        self.id: str | None = id
        self.finished: bool = False

    def check(self, nbytes: bytes) -> None:
        """ValueError (``SA-21``) or LimitExceeded if these cannot be sent next; nothing is sent."""
        side = self._side
        if self.id is not None:
            left = len(self._kept) + len(nbytes)
            frames = 1 + left // side.part_bytes
            heads = frames * (len(side._prefix) + len(self._lines.encode()) + _HEAD_BYTES)
            total = self._sent + left + heads + len(self._extra.encode()) + len(END)
            if total > side.sent_bytes_max:
                raise side.too_large(total)
        if side.lengths:
            return
        before = (self._tail + bytes(self._kept[-self._reach :]))[-self._reach :]
        # Fewer than four bytes before are all there is: then the body may still begin badly.
        if wire.ends_early(before + nbytes) if len(before) < 4 else wire.END in before + nbytes:
            raise ValueError("without lengths a body cannot hold an end mark (SA-21)")
        if not side._framed and self._session_line in before + nbytes:
            raise ValueError("a body in parts cannot hold its own session (SA-26)")

    def write(self, nbytes: bytes) -> None:
        """Send more of the body; ValueError as :meth:`check` says, and when it is finished."""
        if self.finished:
            raise ValueError("the message is finished")
        self.check(nbytes)
        if self._side.closed:
            return
        self._kept += nbytes
        kept, size = self._kept, self._side.part_bytes
        start = 0
        # Three bytes ahead: then it is known whether the next part begins with CRLF NUL.
        while len(kept) - start > size + 3:
            end = self._cut(start, start + size)
            if end + 3 > len(kept):
                break
            self._part(bytes(kept[start:end]), False)
            start = end
        if start:
            del kept[:start]

    def _cut(self, start: int, end: int) -> int:
        side, kept = self._side, self._kept
        if side.lengths:
            return end
        while True:
            end = wire.part_start(kept, end)
            if side._framed or end >= len(kept):
                return end
            # A body that looks like the beginning of a frame must not lean against our next head.
            if not wire.leads_into_frame(kept, start, end, side.bounds):
                return end
            end += 1

    def _part(self, body: bytes, final: bool) -> None:
        lines, self._extra = self._lines + self._extra, ""
        self._begun = True
        self._tail = (self._tail + body[-self._reach :])[-self._reach :]
        self._side._send_part(lines, body, final)
        self._sent += len(self._side._out[-1])

    def finish(self) -> None:
        if not self.finished:
            self.finished = True
            self._release()
            side = self._side
            if not side.closed:
                self._part(bytes(self._kept), True)
                if self._answers and self.id is not None:
                    side._unanswered.pop(self.id, None)
                    side._look_drained()

    def abort(self) -> None:
        """An error frame tells the peer where the framing can (``SA-20``).

        An answer is still owed then: ``fail`` sends it.  On a stream without lengths the peer drops
        what came after its own time (``SA-27``).
        """
        if self.finished:
            return
        self.finished = True
        self._release()
        side = self._side
        assert self.id is not None  # the side itself finishes what it sends without one
        if not self._answers:
            side.forget(self.id)
        if self._begun and not side.closed and (side.lengths or side._framed):
            length = f"{CONTENT_LENGTH}::0\r\n" if side.lengths else ""
            side._out.append(f"{side._prefix}{self._lines}{length}\r\n".encode())

    def _release(self) -> None:
        if self.id is not None:
            self._side._sending -= 1
