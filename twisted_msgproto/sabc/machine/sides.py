"""Both sides of an sABC connection are machines: bytes in, events out, without I/O or clock.

CONNECTED brings a session id that only the two sides know; from there on every frame carries it
(``SA-10``).

What a peer gets wrong costs it a frame if its meaning is wrong, and the connection if its shape is:
then it is not known any more where the next frame begins (``SA-06``).

Answer each request with ``answer``, ``fail`` or ``acknowledge``, ``settle`` send-only messages;
where there is a sink, once they are safe.  ``lost(now)`` returns who still waits for an answer.

``now`` is in seconds since 1970-01-01 UTC: a session's end is a date.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Container, Mapping
from email.utils import formatdate
from typing import Any, ClassVar, Final

from ...core.connection import WorkLost
from ...core.errors import Fault
from ...core.limits import Limits
from ...core.machine import Table
from .. import wire
from ..terms import (
    BAD_REQUEST,
    CLIENT,
    DRAIN_SECONDS,
    FORBIDDEN,
    LOGIN_ATTEMPTS,
    SERVER,
    TIMED_OUT,
    UNAUTHORIZED,
    UNAVAILABLE,
    UNFINISHED_SECONDS,
    Connecting,
    ConnectReceived,
    ConnectRefused,
    DisconnectReceived,
    DrainTimedOut,
    Event,
    MessageAbandoned,
    RequestsTimedOut,
    Serving,
    SessionExpired,
    SessionGranted,
    Step,
)
from ..wire import (
    ANNOUNCEMENTS,
    CLIENT_ID,
    CLIENT_PASSCODE,
    END_OF_EMPTY,
    ERROR_CODE,
    FRAMING,
    LENGTH,
    MESSAGE_BYTES,
    RESERVED,
    SESSION_EXPIRY,
    SESSION_ID,
    Connect,
    Disconnect,
    Error,
    Frame,
)
from .receiving import NOTHING_YET, Incoming, Listener
from .sending import S

_DIGITS = re.compile(r"[0-9]{1,18}", re.ASCII)


def _free(headers: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in headers.items()
        if name not in RESERVED and name not in ANNOUNCEMENTS
    }


class Side(Listener[S]):
    __slots__ = ()

    # ── what the caller may look at ─────────────────────────────────────────────────────────────

    @property
    def input_weight(self) -> int:
        most = self.message_bytes
        kept = [
            min(incoming.size, most) + incoming.weight
            for incoming in self._waiting()
            if not incoming.muted
        ]
        return self._decoder.weight + sum(kept)

    def snapshot(self) -> dict[str, object]:
        return {
            "state": self.state.name,
            "framing": "websocket" if self._framed else "length" if self.lengths else "mark",
            "expires": self.expires,
            "unanswered": len(self._unanswered),
            "outstanding": len(self._pending),
            "unfinished": len(self._unfinished) - self._muted,
        }

    def _learn(self, headers: Mapping[str, str]) -> None:
        data = headers.get(MESSAGE_BYTES, "")
        self.peer_bytes = int(data) if _DIGITS.fullmatch(data) else None

    # ── time and the end ────────────────────────────────────────────────────────────────────────

    def resumed(self, now: float) -> list[Event]:
        self._paused = False
        for incoming in self._waiting():
            incoming.heard = now
            self.deadlines.no_later("unfinished", now + UNFINISHED_SECONDS)
        return []

    def _connect_expired(self, now: float, events: list[Event]) -> None:
        self._fail(TIMED_OUT, Fault("connect-seconds", "no session in time"), events)

    def _answers_expired(self, now: float, events: list[Event]) -> None:
        expired = self._pending.expire(now, self.taken_at(now) + self._response_seconds)
        if expired:
            events.append(
                RequestsTimedOut([id for id, _ in expired], [waiter for _, waiter in expired])
            )
        first = self._pending.next_deadline()
        if first is not None:
            self.deadlines.set("answer", first)

    def _waiting(self) -> list[Incoming]:
        waiting = list(self._unfinished.values())
        if self._receiving and self._current not in waiting:
            waiting.append(self._current)
        return waiting

    def _unfinished_expired(self, now: float, events: list[Event]) -> None:
        """They are remembered, so that a late part does not pass for a message (``SA-27``)."""
        if self._paused:
            return
        for incoming in self._waiting():
            if incoming.muted:
                continue
            due = incoming.heard + UNFINISHED_SECONDS
            if now < due:
                self.deadlines.no_later("unfinished", due)
                continue
            if incoming.key in self._unfinished and self._full(now, events):
                return
            self.counters.abandoned_messages += 1
            text = "the rest of the message did not come"
            self._send_error(TIMED_OUT, text, incoming.named)
            events.append(MessageAbandoned(incoming.id))
            incoming.mute()
            incoming.given_up = True
            incoming.heard = now

    timely: ClassVar[dict[Any, Any]] = {
        "connect": _connect_expired,
        "answer": _answers_expired,
        "unfinished": _unfinished_expired,
    }

    def lost(self, now: float) -> list[Event | WorkLost]:
        self._machine.try_step(Step.CONNECTION_LOST)
        self._decoder.end()
        self._unfinished.clear()
        self._unanswered.clear()
        self._receiving = False
        self._current = NOTHING_YET
        self._out.clear()
        self.deadlines.clear_all()
        unanswered = self._pending.drain()
        return [WorkLost(unanswered)] if unanswered else []


class Server(Side[Serving]):
    __slots__ = ("_announced", "_attempts_left", "_authenticates")

    TABLE: ClassVar[Table[Any]] = SERVER
    _initial = Serving.AWAITING
    _closed = Serving.CLOSED
    _open = (Serving.OPEN, Serving.DRAINING)
    _draining = Serving.DRAINING
    _expires_here = True

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        authenticates: bool = False,
        framed: bool = False,
        lenient: bool = False,
        refuse_oversize: bool = False,
        unhooked: Container[str] = (),
    ) -> None:
        """``authenticates``: a client-id is needed (``SA-07``).  ``framed``: on WebSocket.

        ``lenient``: bare LF ends a line too (``SA-28``).  ``refuse_oversize``: a message above the
        limit is refused, not cut (``SA-22``).  ``unhooked``: kinds of messages that no hook
        processes: they are answered as soon as they are safe.
        """
        super().__init__(
            limits,
            framed=framed,
            lenient=lenient,
            refuse_oversize=refuse_oversize,
            unhooked=unhooked,
        )
        self._attempts_left = LOGIN_ATTEMPTS
        self._authenticates = authenticates
        self._announced = False

    def connection_made(self, now: float) -> list[Event]:
        self.deadlines.set("connect", now + self._connect_seconds)
        return []

    def _code_of(self, fault: Fault) -> int:
        # Before CONNECT nothing else is known here, whatever it may be.
        unknown = fault.reason == "command" and self.state is Serving.AWAITING
        return UNAUTHORIZED if unknown else BAD_REQUEST

    def _wrong_place(self, kind: type[Frame]) -> tuple[int, str]:
        if self._session_id or kind is Connect:
            return BAD_REQUEST, "wrong-command"
        return UNAUTHORIZED, "before-connect"

    def _commanded(self, frame: Frame, now: float, events: list[Event]) -> None:
        if type(frame) is Disconnect:
            self._begin_drain(now)
            events.append(DisconnectReceived())
            self._refuse_unfinished(events)
            self._look_drained()
            return
        headers = frame.headers
        if not headers and self._authenticates:
            self._fail(BAD_REQUEST, Fault("headers-missing", "CONNECT needs headers"), events)
            return
        self._announced = not self._framed and headers.get(FRAMING) == LENGTH
        self._learn(headers)
        free = _free(headers)
        self.deadlines.set("connect", now + self._connect_seconds)
        events.append(ConnectReceived(headers.get(CLIENT_ID), headers.get(CLIENT_PASSCODE), free))

    def _refuse_unfinished(self, events: list[Event]) -> None:
        for incoming in self._unfinished.values():
            if not incoming.muted and incoming.named is not None:
                text = "the session accepts no further message"
                self._refuse(UNAVAILABLE, text, events, incoming)

    def accept(
        self,
        session_id: str,
        *,
        expires: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """``session_id``: at least 128 bits from a CSPRNG, as text without ``::`` (``SA-09``).

        ``expires``: seconds since 1970-01-01 UTC (``SA-11``).  Raises IllegalTransition unless
        CONNECT waits, ValueError for headers as ``request`` does.
        """
        own = {SESSION_ID: session_id}
        if expires is not None:
            own[SESSION_EXPIRY] = formatdate(int(expires), usegmt=True)
        if not self._framed:
            own[FRAMING] = LENGTH
        if self.peer_bytes is not None:  # a client that says so knows what is meant
            own[MESSAGE_BYTES] = str(self.message_bytes)
        lines = self._lines(headers, RESERVED | ANNOUNCEMENTS)
        head = wire.encode_head("CONNECTED", own, lines)
        self._machine.step(Step.ACCEPTED)
        self._out.append(head + END_OF_EMPTY)
        self._enter_session(session_id, self._announced)
        self.expires = expires
        self.deadlines.clear("connect")
        if expires is not None:
            self.deadlines.set("expiry", expires)

    def reject(self, now: float, code: int = FORBIDDEN, text: str = "Access Forbidden") -> None:
        """Refuse the session; the client may try again, but not for ever (``SA-08``, ``SA-27``)."""
        self._machine.step(Step.REJECTED)
        self._attempts_left -= 1
        self._send_error(code, text, None)
        self.deadlines.set("connect", now + self._connect_seconds)
        if not self._attempts_left:
            self._machine.step(Step.STOPPED)

    def drain(self, now: float) -> list[Event]:
        """Accept no more originals, answer what is in work, then close (as after DISCONNECT)."""
        if self.state is Serving.OPEN:
            self._machine.step(Step.DRAIN_BEGUN)
            self._begin_drain(now)
            self._look_drained()
        elif self.state is not Serving.DRAINING:
            self.stop()
        return []

    def _begin_drain(self, now: float) -> None:
        self.deadlines.no_later("drain", now + DRAIN_SECONDS)

    def _drain_expired(self, now: float, events: list[Event]) -> None:
        self._send_disconnecting()
        self._machine.step(Step.TIMED_OUT)
        events.append(DrainTimedOut())

    def _session_expired(self, now: float, events: list[Event]) -> None:
        self._send_disconnecting()
        self._machine.step(Step.EXPIRED)
        events.append(SessionExpired())

    timely: ClassVar[dict[Any, Any]] = {
        **Side.timely,
        "drain": _drain_expired,
        "expiry": _session_expired,
    }


LEAVE_SECONDS: Final = 4.0
"""A server that owes nothing closes within this time, where there is no limit ``drain``."""


class Client(Side[Connecting]):
    __slots__ = ()

    TABLE: ClassVar[Table[Any]] = CLIENT
    _initial = Connecting.IDLE
    _closed = Connecting.CLOSED
    _open = (Connecting.OPEN, Connecting.DRAINING)
    _draining = None  # it ends when its server does

    def connect(
        self,
        client_id: str,
        passcode: str | None = None,
        *,
        now: float,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """IllegalTransition unless IDLE, ValueError for headers (``SA-07``, ``SA-08``)."""
        own = {CLIENT_ID: client_id}
        if passcode is not None:
            own[CLIENT_PASSCODE] = passcode
        if not self._framed:
            own[FRAMING] = LENGTH
        own[MESSAGE_BYTES] = str(self.message_bytes)
        lines = self._lines(headers, RESERVED | ANNOUNCEMENTS)
        head = wire.encode_head("CONNECT", own, lines)
        self._machine.step(Step.CONNECT_SENT)
        self._out.append(head + END_OF_EMPTY)
        self.deadlines.set("connect", now + self._connect_seconds)

    def drain(self, now: float) -> list[Event]:
        if self.state is Connecting.OPEN:
            self.disconnect(now)
        elif self.state is not Connecting.DRAINING:
            self.stop()
        return []

    def ended(self, now: float) -> list[Event]:
        self.stop()
        return []

    def disconnect(self, now: float) -> None:
        """Ask the server to answer what it has and to close, in time (``SA-12``).

        A server that owes nothing has the time ``drain`` for it, any other 30 seconds.
        Raises IllegalTransition outside a session.
        """
        self._machine.step(Step.DISCONNECT_SENT)
        seconds = DRAIN_SECONDS
        if not self.outstanding:
            seconds = min(seconds, self._limits.get("drain", LEAVE_SECONDS))
        self.deadlines.set("drain", now + seconds)
        head = wire.encode_head("DISCONNECT", {SESSION_ID: self._session_id.decode()})
        self._out.append(head + END_OF_EMPTY)

    def _commanded(self, frame: Frame, now: float, events: list[Event]) -> None:
        headers = frame.headers
        session_id = headers.get(SESSION_ID)
        if not session_id:
            self._fail(BAD_REQUEST, Fault("session-id", "CONNECTED names no session"), events)
            return
        date = headers.get(SESSION_EXPIRY)
        self.expires = None if date is None else _read_date(date)
        self.deadlines.clear("connect")
        self._learn(headers)
        self._enter_session(session_id, not self._framed and headers.get(FRAMING) == LENGTH)
        free = _free(headers)
        events.append(SessionGranted(session_id, self.expires, free))

    def _error_received(self, headers: Mapping[str, str], body: bytes, events: list[Event]) -> None:
        if self.state is not Connecting.WAITING:
            super()._error_received(headers, body, events)
            return
        self.counters.errors_received += 1
        self._machine.step(Error)
        self.deadlines.clear("connect")
        code = headers.get(ERROR_CODE)
        events.append(ConnectRefused(code, body.decode("utf-8", "replace")))

    def _connect_expired(self, now: float, events: list[Event]) -> None:
        """CONNECTED may be on its way; so fail on a byte stream without a word (``SA-27``).

        An ERROR without the length that a server wants from then on would pass for a fault of
        framing (``SA-26``).
        """
        if self._framed:
            super()._connect_expired(now, events)
            return
        self._machine.step(Fault)
        events.append(Fault("connect-seconds", "no session in time"))

    def _drain_expired(self, now: float, events: list[Event]) -> None:
        self.stop()
        events.append(DrainTimedOut())

    timely: ClassVar[dict[Any, Any]] = {
        **Side.timely,
        "connect": _connect_expired,
        "drain": _drain_expired,
    }


_DATE = re.compile(
    r"[A-Za-z]{3}, (\d{1,2}) ([A-Za-z]{3}) (\d{4}) (\d\d):(\d\d):(\d\d) GMT", re.ASCII
)
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]


def _read_date(text: str) -> float | None:
    """Return an RFC 1123 date as seconds since 1970, whatever its weekday (``SA-11``)."""
    match = _DATE.fullmatch(text)
    if match is None or match[2].lower() not in _MONTHS:
        return None
    month = _MONTHS.index(match[2].lower()) + 1
    day, year, hour, minute, second = (int(match[i]) for i in (1, 3, 4, 5, 6))
    if not 1 <= day <= calendar.monthrange(year, month)[1] or hour > 23 or minute > 59:
        return None
    if second > 60 or year < 1:
        return None
    return float(calendar.timegm((year, month, day, hour, minute, second)))
