"""What an application may do with an sABC session: ask, tell, end it; bodies in parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from twisted.internet.defer import Deferred, fail, succeed

from ...core.errors import ConnectionClosed
from ...core.machine import IllegalTransition
from ...net.inherited import InheritedSession as Session
from ...net.outbox import Ticket
from ..machine import Client, Server
from ..machine.outgoing import OutgoingMessage
from .exchange import Body, Response, octets_of

PARTS_A_TURN: Final = 16
"""This many pieces of a streamed body are sent before other work gets its turn."""

_UNSENT = (ValueError, ConnectionClosed, IllegalTransition)


def _unsent(error: Exception) -> Exception:
    if isinstance(error, IllegalTransition):
        return ConnectionClosed("the session is ending")
    return error


class Verbs(Session):
    """The part of a :class:`.session.SabcSession` that an application calls."""

    factory: Any
    machine: Server | Client
    _outputPaused: bool
    _streams: dict[Ticket[Response], Stream]

    def request(
        self,
        body: Body = b"",
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Deferred[Response]:
        """Send a message and wait for its answer (``SA-14`` … ``SA-16``).

        ``body``: octets, text (sent as UTF-8), or an iterable of octets, which is sent part by part
        as fast as the peer reads (``SA-18``).  ``timeout`` is in seconds (None: the limit
        ``response-seconds``).

        The Deferred fails with Refused when the peer answers ERROR or has cut the message (then the
        code is ``truncated``), TimedOut, ConnectionClosed, LimitExceeded when too many requests are
        outstanding or the message is more than the peer takes, or ValueError for what cannot be
        sent (``SA-03``, ``SA-21``).  Cancelling it forgets the answer, and ends a streamed body.
        """
        if not isinstance(body, bytes | str | bytearray | memoryview):
            return self._stream(iter(body), headers, timeout, waiting=True)
        ticket: Ticket[Response] = Ticket(self._forget)
        try:
            speaking, octets = self._speaking, octets_of(body)
            if self._outputPaused:
                self.roomFor(len(octets))
            ticket.number = speaking.request(
                octets, ticket, self._now(), headers=headers, seconds=timeout
            )
        except _UNSENT as error:
            return fail(_unsent(error))
        self._settle()
        return ticket

    def _forget(self, ticket: Any) -> None:
        self.machine.forget(ticket.number)

    def sendOnly(
        self, body: Body = b"", *, headers: Mapping[str, str] | None = None
    ) -> Deferred[None]:
        """Send a message that wants no answer (``SA-17``).

        The Deferred fires when it is written, and fails as that of :meth:`request` does.
        """
        if not isinstance(body, bytes | str | bytearray | memoryview):
            streamed = self._stream(iter(body), headers, None, waiting=False)
            return streamed.addCallback(lambda _: None)
        try:
            speaking, octets = self._speaking, octets_of(body)
            if self._outputPaused:
                self.roomFor(len(octets))
            speaking.send_only(octets, headers=headers)
        except _UNSENT as error:
            return fail(_unsent(error))
        self._settle()
        return succeed(None)

    def sendError(
        self, code: int | str, text: str = "", *, headers: Mapping[str, str] | None = None
    ) -> Deferred[None]:
        """Tell the peer of an error that answers nothing (``SA-24``).

        The Deferred fires when it is written; it fails with ValueError for headers that cannot be
        sent, and with ConnectionClosed without a session.
        """
        try:
            speaking = self._speaking
            if self._outputPaused:
                self.roomFor(len(text))
            speaking.send_error(code, text, headers=headers)
        except _UNSENT as error:
            return fail(_unsent(error))
        self._settle()
        return succeed(None)

    def loseSession(self) -> None:
        """End the session at once: DISCONNECTING, then close (``SA-13``)."""
        if not self._ended:
            self._deaf = True
            self.machine.stop()
            self._settle()

    @property
    def room(self) -> int:
        return self.machine.room

    @property
    def _speaking(self) -> Any:
        if not self._established or self._ended:
            raise ConnectionClosed("there is no session")
        return self.machine

    def _stream(
        self,
        pieces: Iterator[bytes],
        headers: Mapping[str, str] | None,
        timeout: float | None,
        *,
        waiting: bool,
    ) -> Deferred[Response]:
        done: Ticket[Response] = Ticket(self._cancelStream)
        try:
            speaking = self._speaking
            outgoing = speaking.open_message(
                done if waiting else None, self._now(), headers=headers, seconds=timeout
            )
        except _UNSENT as error:
            return fail(_unsent(error))
        stream = Stream(self, outgoing, pieces, done, waiting)
        self._streams[done] = stream
        stream.go()
        self._settle()
        return done

    def _cancelStream(self, done: Deferred[Response]) -> None:
        assert isinstance(done, Ticket)
        stream = self._streams.pop(done, None)
        if stream is not None:
            stream.abort()

    def _release(self, waiter: Any) -> Ticket[Response]:
        """Return the ticket of a request that is over; what is left of its body is not sent."""
        stream = self._streams.pop(waiter, None) if self._streams else None
        if stream is not None:
            stream.abort()
        return waiter  # type: ignore[no-any-return]


class Stream:
    """A body that is sent in pieces, as fast as the peer reads them."""

    __slots__ = ("_call", "_done", "_outgoing", "_pieces", "_session", "waiting")

    def __init__(
        self,
        session: Verbs,
        outgoing: OutgoingMessage,
        pieces: Iterator[bytes],
        done: Ticket[Response],
        waiting: bool,
    ) -> None:
        self._session = session
        self._outgoing = outgoing
        self._pieces = pieces
        self._done = done
        self.waiting = waiting  # for an answer
        self._call: Any = None

    def go(self) -> None:
        session, outgoing = self._session, self._outgoing
        if self._call is not None or outgoing.finished:
            return
        for _ in range(PARTS_A_TURN):
            if session._outputPaused or session.machine.closed:
                return
            try:
                piece = next(self._pieces, None)
                if piece is not None:
                    outgoing.write(octets_of(piece))
            except Exception as error:
                self._give_up(error)
                return
            if piece is None:
                outgoing.finish()
                session._settle()
                if not self.waiting:
                    session._streams.pop(self._done, None)
                    self._done.done(Response())
                return
            session._settle()
        self._call = session.factory.clock.callLater(0, self._resume)

    def _resume(self) -> None:
        self._call = None
        self.go()

    def _give_up(self, error: Exception) -> None:
        self._session._streams.pop(self._done, None)
        self.abort()
        self._done.fail(error)

    def abort(self) -> None:
        """Send no more of it, and tell the peer where that can be told (``SA-20``)."""
        self.stop()
        if not self._outgoing.finished:
            self._outgoing.abort()
            self._session._settle()
        elif self._outgoing.id is not None:
            self._session.machine.forget(self._outgoing.id)

    def stop(self) -> None:
        if self._call is not None:
            self._call.cancel()
            self._call = None
        close = getattr(self._pieces, "close", None)
        if close is not None:
            with suppress(Exception):
                close()
