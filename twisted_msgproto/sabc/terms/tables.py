"""These tables say what leads from one state to another, on both sides; codes and misplaced headers
are here, too.

A frame that is in no row of its state is the peer's fault; a verb that is in none is ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import auto
from typing import Final

from ...core.errors import Fault
from ...core.machine import State, Table
from ..wire import (
    CLIENT_ID,
    CLIENT_PASSCODE,
    MSG_ID,
    MSG_MORE,
    REF_MSG_ID,
    RESERVED,
    SEND_ONLY,
    SESSION_EXPIRY,
    SESSION_ID,
    Connect,
    Connected,
    Disconnect,
    Disconnecting,
    Error,
    Frame,
    Message,
)


class Accepted:
    """The application's yes to a session."""


class Rejected:
    """The application's no; the client may try again."""


class MessageSent:
    """An original of ours: a request or a send-only message."""


class AnswerSent:
    """An answer of ours."""


class DrainBegun:
    """The server's wish for no more originals, though no DISCONNECT came."""


class Drained:
    """The last answer that was owed."""


class Stopped:
    """Our end at once."""


class Expired:
    """The end of the session's time."""


class TimedOut:
    """A drain that lasted too long."""


class ConnectionLost:
    """The end of the connection."""


class Serving(State):
    """The states of a server."""

    AWAITING = auto()  # no CONNECT, or none that was accepted
    AUTHENTICATING = auto()  # CONNECT came; the application decides
    OPEN = auto()
    DRAINING = auto()  # no further originals; answers are still owed
    CLOSED = auto()


_ENDS_SERVING: Final = {
    Fault: Serving.CLOSED,
    Stopped: Serving.CLOSED,
    ConnectionLost: Serving.CLOSED,
}

SERVER: Final[Table[Serving]] = {
    Serving.AWAITING: {Connect: Serving.AUTHENTICATING, **_ENDS_SERVING},
    Serving.AUTHENTICATING: {
        Accepted: Serving.OPEN,
        Rejected: Serving.AWAITING,
        **_ENDS_SERVING,
    },
    Serving.OPEN: {
        Message: Serving.OPEN,
        Error: Serving.OPEN,
        MessageSent: Serving.OPEN,
        AnswerSent: Serving.OPEN,
        Disconnect: Serving.DRAINING,
        DrainBegun: Serving.DRAINING,
        Disconnecting: Serving.CLOSED,
        Expired: Serving.CLOSED,
        **_ENDS_SERVING,
    },
    Serving.DRAINING: {
        Message: Serving.DRAINING,
        Error: Serving.DRAINING,
        MessageSent: Serving.DRAINING,
        AnswerSent: Serving.DRAINING,
        Disconnect: Serving.DRAINING,
        Drained: Serving.CLOSED,
        Disconnecting: Serving.CLOSED,
        Expired: Serving.CLOSED,
        TimedOut: Serving.CLOSED,
        **_ENDS_SERVING,
    },
    Serving.CLOSED: {},
}
"""A client's CONNECTED is in no row (``SA-05``), a second CONNECT only in the first (``SA-27``)."""


class ConnectSent:
    """Our wish for a session."""


class DisconnectSent:
    """Our wish for an orderly end."""


class Connecting(State):
    """The states of a client."""

    IDLE = auto()  # CONNECT not sent, or refused
    WAITING = auto()  # CONNECT sent
    OPEN = auto()
    DRAINING = auto()  # DISCONNECT sent
    CLOSED = auto()


_ENDS_CLIENT: Final = {
    Fault: Connecting.CLOSED,
    Stopped: Connecting.CLOSED,
    ConnectionLost: Connecting.CLOSED,
}

CLIENT: Final[Table[Connecting]] = {
    Connecting.IDLE: {ConnectSent: Connecting.WAITING, Error: Connecting.IDLE, **_ENDS_CLIENT},
    Connecting.WAITING: {
        Connected: Connecting.OPEN,
        Error: Connecting.IDLE,
        **_ENDS_CLIENT,
    },
    Connecting.OPEN: {
        Message: Connecting.OPEN,
        Error: Connecting.OPEN,
        MessageSent: Connecting.OPEN,
        AnswerSent: Connecting.OPEN,
        DisconnectSent: Connecting.DRAINING,
        Disconnecting: Connecting.CLOSED,
        **_ENDS_CLIENT,
    },
    Connecting.DRAINING: {
        Message: Connecting.DRAINING,
        Error: Connecting.DRAINING,
        AnswerSent: Connecting.DRAINING,
        Disconnecting: Connecting.CLOSED,
        **_ENDS_CLIENT,
    },
    Connecting.CLOSED: {},
}
"""A server's CONNECT and DISCONNECT are in no row (``SA-05``)."""

# ── What is refused, and how ────────────────────────────────────────────────────────────────────

BAD_REQUEST, UNAUTHORIZED, FORBIDDEN, TIMED_OUT = 400, 401, 403, 408
TOO_LARGE, TOO_MANY, UNAVAILABLE = 413, 429, 503
"""These are error codes, as in HTTP."""

MISPLACED: Final[Mapping[type[Frame], frozenset[str]]] = {
    Connect: RESERVED - {CLIENT_ID, CLIENT_PASSCODE},
    Connected: RESERVED - {SESSION_ID, SESSION_EXPIRY},
    Disconnect: RESERVED - {SESSION_ID},
    Disconnecting: RESERVED - {SESSION_ID},
    Message: RESERVED - {SESSION_ID, MSG_ID, REF_MSG_ID, SEND_ONLY, MSG_MORE},
    Error: frozenset(),
}
