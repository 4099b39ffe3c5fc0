"""Write a line when a session begins and one when it ends (``--log-sessions``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from twisted.logger import Logger, LogLevel

from ..core.errors import shown
from ..core.reasons import ended_because
from .peerlog import Topic

log = Logger(namespace="twisted_msgproto.sessions")

SESSIONS: Final = Topic("more sessions began or ended", 200, 2000)
"""These lines tell of sessions, if an operator asks for them."""


class SessionLog:
    """Lines about the sessions of one server, in its log for what peers do."""

    def __init__(
        self, protocol: str, seconds: Callable[[], float], write: Callable[..., None]
    ) -> None:
        """``write`` is the server factory's ``writeOf``."""
        self._protocol = protocol
        self._seconds = seconds
        self._write_of = write
        self._began: dict[str, float] = {}  # when, by the session's name

    def began(self, session: Any) -> None:
        if session.session in self._began:  # its client has logged in again
            return
        self._began[session.session] = self._seconds()
        self._write(session, "{protocol}: session {session} of {peer}{client} began", "began")

    def ended(self, session: Any, why: BaseException | None) -> None:
        began = self._began.pop(session.session, None)
        if began is None:
            return
        self._write(
            session,
            "{protocol}: session {session} of {peer}{client} ended after {seconds:.1f} s and"
            " {messages} messages: {why}",
            "ended",
            seconds=round(self._seconds() - began, 3),
            messages=session.messageCount,
            why=ended_because(why),
        )

    def _write(self, session: Any, text: str, event: str, **fields: Any) -> None:
        client = session.clientId
        self._write_of(
            log,
            getattr(session, "address", "") or session.peer or "",
            text,
            reason=event,
            topic=SESSIONS,
            level=LogLevel.info,
            event=f"session {event}",
            protocol=self._protocol,
            session=session.session,
            peer=session.peer or "an unknown address",
            client_id=client,
            client=f" ({shown(client)})" if client else "",
            **fields,
        )
