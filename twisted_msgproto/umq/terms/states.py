"""UMQ's limits, states and transitions say what may happen when, as data.

The tables name the peer's frames as :mod:`..wire` has them, and what we do ourselves by the classes
that end in ``Sent``; so a peer can never make a step that is ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import auto
from typing import Any, Final

from ...core.limits import Limit
from ...core.machine import State, Table
from .. import wire
from ..wire import (
    AttachmentError,
    Call,
    Callback,
    CallError,
    Fatal,
    Hello,
    Result,
    SetAttribute,
    TopicClose,
    TopicUpdate,
    UnsetAttribute,
    Unsubscribe,
    Welcome,
)

LIMITS: Final = (
    *wire.LIMITS,
    Limit("hello-seconds", 10.0, "s", "from the upgrade to H, and from H to W (UM-20)", 0.001),
    Limit("attachment-octets", 16 << 20, "octets", "one attachment (UM-19)", 1),
    Limit("attachments-octets", 64 << 20, "octets", "attachments that wait (UM-19)", 1),
    Limit("attachment-seconds", 60.0, "s", "the next attachment's arrival (UM-19)", 0.001),
    Limit("announcements", 1024, "messages", "with attachments to come (UM-19)", 1),
    Limit("waiting-messages", 1024, "messages", "behind such attachments (UM-19)", 1),
    Limit("calls", 1024, "calls", "of the peer, not answered yet (UM-20)", 1),
    Limit("calls-octets", 64 << 20, "octets", "such calls, with attachments (UM-20)", 1),
    Limit("own-calls", 4096, "calls", "of ours, not answered yet (UM-20)", 1),
    Limit("callbacks", 1024, "callbacks", "registered here (UM-20)", 1),
    Limit("topics", 1024, "topics", "the peer subscribed here (UM-20)", 1),
    Limit("subscriptions", 1024, "topics", "we subscribed (UM-20)", 1),
    Limit("attributes", 256, "attributes", "of the peer (UM-20)", 1),
    Limit("attributes-octets", 1 << 20, "octets", "names, values, attachments of these", 1),
)

HELLO_CHARACTERS: Final = 1 << 16

HELLO_ATTACHMENTS: Final = 4

HELLO_ATTACHMENT_OCTETS: Final = 1 << 16

FILL_SECONDS: Final = 45.0
"""An attachment of ours that is not filled by then is sent as - (``UM-04``)."""

CLOSING_SECONDS: Final = 60.0
"""Late updates of a topic that we left are dropped silently for this long (``UM-14``)."""

CLOSING_TOPICS: Final = 1024


# ── What happens, beside the peer's frames ──────────────────────────────────────────────────────


class HelloSent:
    """Our ``H``."""


class HelloCompleted:
    """The last attachment of the peer's ``H``."""


class WelcomeSent:
    """Our ``W``."""


class CommandSent:
    """A command of ours in the open session."""


class FatalSent:
    """Our ``F``."""


class Faulted:
    """A fault of the peer, and our ``F``."""


class ConnectionLost:
    """The end of the connection."""


class ClientState(State):
    """The states of a client."""

    START = auto()
    AWAITING_WELCOME = auto()
    OPEN = auto()
    CLOSED = auto()


class ServerState(State):
    """The states of a server."""

    AWAITING_HELLO = auto()
    RECEIVING_HELLO = auto()  # H's attachments are on their way
    AUTHORISING = auto()  # the application decides between W and F
    OPEN = auto()
    CLOSED = auto()


_SESSION: Final = (
    Call,
    Callback,
    Result,
    CallError,
    TopicUpdate,
    TopicClose,
    Unsubscribe,
    SetAttribute,
    UnsetAttribute,
    AttachmentError,
    wire.Attachment,
    CommandSent,
)


def _ends(closed: Any) -> dict[type, Any]:
    return {Fatal: closed, FatalSent: closed, Faulted: closed, ConnectionLost: closed}


CLIENT: Final[Table[ClientState]] = {
    ClientState.START: {
        HelloSent: ClientState.AWAITING_WELCOME,
        **_ends(ClientState.CLOSED),
    },
    ClientState.AWAITING_WELCOME: {
        Welcome: ClientState.OPEN,
        **_ends(ClientState.CLOSED),
    },
    ClientState.OPEN: {
        **{event: ClientState.OPEN for event in _SESSION},
        **_ends(ClientState.CLOSED),
    },
    ClientState.CLOSED: {},
}
"""Frames are the peer's (``UM-06`` … ``UM-08``); what we send ends in ``Sent``."""

SERVER: Final[Table[ServerState]] = {
    ServerState.AWAITING_HELLO: {
        Hello: ServerState.RECEIVING_HELLO,
        **_ends(ServerState.CLOSED),
    },
    ServerState.RECEIVING_HELLO: {
        wire.Attachment: ServerState.RECEIVING_HELLO,
        AttachmentError: ServerState.RECEIVING_HELLO,
        HelloCompleted: ServerState.AUTHORISING,
        **_ends(ServerState.CLOSED),
    },
    ServerState.AUTHORISING: {
        WelcomeSent: ServerState.OPEN,
        **_ends(ServerState.CLOSED),
    },
    ServerState.OPEN: {
        **{event: ServerState.OPEN for event in _SESSION},
        **_ends(ServerState.CLOSED),
    },
    ServerState.CLOSED: {},
}
"""Before our ``W`` the peer may send ``H``, its attachments and ``F``, no more (``UM-07``)."""


@dataclass(slots=True)
class Counters:
    """What a machine has seen, as plain integers."""

    calls: int = 0
    calls_refused: int = 0
    results: int = 0
    errors: int = 0
    unknown_answers: int = 0
    updates: int = 0
    late_updates: int = 0
    unknown_topics: int = 0
    attachments: int = 0
    attachments_failed: int = 0
