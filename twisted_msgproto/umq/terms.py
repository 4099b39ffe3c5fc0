"""What UMQ's machines are made of, as data: events, limits, states with their tables, counters.

Messages that can have attachments come complete by default: the event is returned when the last
attachment is there.  :class:`AttachmentsAnnounced` says earlier that one is on its way; whoever
wants its attachments one by one answers it with the machine's ``stream`` (``UM-19``).

The tables name the peer's frames as :mod:`.wire` has them, and what we do ourselves by the classes
that end in ``Sent``; so a peer can never make a step that is ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import auto
from typing import Final

from ..core.limits import Limit
from ..core.machine import Own, State, Table, to
from . import wire
from .wire import BY_LETTER, Commands, UmqFault


@dataclass(slots=True, frozen=True)
class AttachmentFailure:
    """What stands for an attachment that its sender could not deliver (``UM-04``)."""

    text: str


Attachment = bytes | AttachmentFailure


@dataclass(slots=True)
class HelloReceived:
    """An ``H`` with all its attachments: answer with ``welcome`` or ``fatal`` (``UM-06``)."""

    version: int
    payload: str
    attachments: list[Attachment] = field(default_factory=list)


@dataclass(slots=True)
class WelcomeReceived:
    """A ``W`` with all its attachments: the session is established (``UM-07``)."""

    version: int
    payload: str
    attachments: list[Attachment] = field(default_factory=list)


@dataclass(slots=True)
class FatalReceived:
    """``F``, the peer's last word; ``code`` is None if it spells none (``UM-08``)."""

    code: int | None
    text: str


@dataclass(slots=True)
class CallReceived:
    """A ``C``: answer ``id`` with ``result`` or ``error`` (``UM-09``)."""

    id: str
    payload: str
    attachments: list[Attachment] = field(default_factory=list)


@dataclass(slots=True)
class CallbackReceived:
    """A ``B`` for a callback that is registered; it is answered like a call (``UM-11``)."""

    id: str
    callback: int
    payload: str
    attachments: list[Attachment] = field(default_factory=list)


@dataclass(slots=True)
class ResultReceived:
    """An ``R``, the answer to the call that was made with ``waiter`` (``UM-10``)."""

    number: int
    waiter: object
    payload: str
    attachments: list[Attachment] = field(default_factory=list)


@dataclass(slots=True)
class ErrorReceived:
    """An ``E``: our call failed at the peer (``UM-09``)."""

    number: int
    waiter: object
    payload: str


@dataclass(slots=True)
class CallExpired:
    """A call of ours without an answer in time (``UM-20``); one that comes later is ignored."""

    number: int
    waiter: object


@dataclass(slots=True)
class TopicUpdated:
    """A ``T`` for a topic to which we subscribed (``UM-12``)."""

    topic: int
    payload: str
    attachments: list[Attachment] = field(default_factory=list)


@dataclass(slots=True)
class TopicClosed:
    """A ``D``: the publisher ended the topic; it is forgotten (``UM-13``)."""

    topic: int


@dataclass(slots=True)
class TopicUnsubscribed:
    """A ``U`` for a topic that we publish: it is closed, ``D`` is on its way (``UM-14``)."""

    topic: int


@dataclass(slots=True)
class AttributeSet:
    """An ``S``: the peer's attribute has a value now (``UM-15``)."""

    name: str
    value: str
    attachments: list[Attachment] = field(default_factory=list)


@dataclass(slots=True)
class AttributeUnset:
    """An ``X``: the peer's attribute is gone (``UM-16``); it may never have been there."""

    name: str


Message = (
    HelloReceived
    | WelcomeReceived
    | CallReceived
    | CallbackReceived
    | ResultReceived
    | TopicUpdated
    | AttributeSet
)

Streamable = CallReceived | ResultReceived
"""The attachments of these can be had one by one (``UM-19``)."""


@dataclass(slots=True)
class AttachmentsAnnounced:
    """Call ``stream(message)`` to have it now, and then one AttachmentArrived for each."""

    message: Streamable
    count: int


@dataclass(slots=True)
class AttachmentArrived:
    """An attachment, or its failure, of a message that is streamed (``UM-19``)."""

    message: Streamable
    index: int
    attachment: Attachment


@dataclass(slots=True)
class CallsSafe:
    """Calls that the sink has made safe: they may be answered now."""

    calls: Sequence[CallReceived | CallbackReceived]


@dataclass(slots=True)
class MemoryLimitExceeded:
    """The refusal of the peer's ``what``: the process keeps too much, this session most."""

    what: str


Event = (
    Message
    | CallsSafe
    | FatalReceived
    | ErrorReceived
    | CallExpired
    | TopicClosed
    | TopicUnsubscribed
    | AttributeUnset
    | AttachmentsAnnounced
    | AttachmentArrived
    | MemoryLimitExceeded
    | UmqFault
)
"""Everything a machine tells; a FatalReceived or a UmqFault is the last event of all."""


LIMITS: Final = (
    *wire.LIMITS,
    Limit("hello-seconds", 10.0, "s", "from the upgrade to H, and from H to W (UM-20)", 0.001),
    Limit("attachment-bytes", 16 << 20, "bytes", "one attachment (UM-19)", 1),
    Limit("attachments-bytes", 64 << 20, "bytes", "attachments that wait (UM-19)", 1),
    Limit("attachment-seconds", 60.0, "s", "the next attachment's arrival (UM-19)", 0.001),
    Limit("announcements", 1024, "messages", "with attachments to come (UM-19)", 1),
    Limit("waiting-messages", 1024, "messages", "behind such attachments (UM-19)", 1),
    Limit("calls", 1024, "calls", "of the peer, not answered yet (UM-20)", 1),
    Limit("calls-bytes", 64 << 20, "bytes", "such calls, with attachments (UM-20)", 1),
    Limit("own-calls", 4096, "calls", "of ours, not answered yet (UM-20)", 1),
    Limit("call-seconds", 60.0, "s", "a call of ours is answered, or fails (UM-20)", 0.001),
    Limit("callbacks", 1024, "callbacks", "registered here (UM-20)", 1),
    Limit("topics", 1024, "topics", "the peer subscribed here (UM-20)", 1),
    Limit("own-subscriptions", 1024, "topics", "we subscribed (UM-20)", 1),
    Limit("attributes", 256, "attributes", "of the peer (UM-20)", 1),
    Limit("attributes-bytes", 1 << 20, "bytes", "names, values, attachments of these", 1),
)

HELLO_CHARACTERS: Final = 1 << 16

HELLO_ATTACHMENTS: Final = 4

HELLO_ATTACHMENT_BYTES: Final = 1 << 16

FILL_SECONDS: Final = 45.0
"""An attachment of ours that is not filled by then is sent as - (``UM-04``)."""

CLOSING_SECONDS: Final = 60.0
"""Late updates of a topic that we left are dropped silently for this long (``UM-14``)."""

CLOSING_TOPICS: Final = 1024


# ── What happens, beside the peer's frames ──────────────────────────────────────────────────────


class Step:
    ATTACHMENT = Own()  # a binary message of the peer (``UM-01``)
    HELLO_SENT = Own()  # our ``H``
    HELLO_COMPLETED = Own()  # the last attachment of the peer's ``H``
    WELCOME_SENT = Own()  # our ``W``
    COMMAND_SENT = Own()  # a command of ours in the open session
    FATAL_SENT = Own()  # our ``F``
    FAULTED = Own()  # a fault of the peer, and our ``F``
    CONNECTION_LOST = Own()  # the end of the connection


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
    *(one for letter, one in BY_LETTER.items() if letter not in "HWF!"),
    Step.ATTACHMENT,
    Step.COMMAND_SENT,
)

_ENDS: Final = (Commands.FATAL, Step.FATAL_SENT, Step.FAULTED, Step.CONNECTION_LOST)

CLIENT: Final[Table[ClientState]] = {
    ClientState.START: {
        Step.HELLO_SENT: ClientState.AWAITING_WELCOME,
        **to(ClientState.CLOSED, *_ENDS),
    },
    ClientState.AWAITING_WELCOME: {
        Commands.WELCOME: ClientState.OPEN,
        **to(ClientState.CLOSED, *_ENDS),
    },
    ClientState.OPEN: {
        **to(ClientState.OPEN, *_SESSION),
        **to(ClientState.CLOSED, *_ENDS),
    },
    ClientState.CLOSED: {},
}
"""Frames are the peer's (``UM-06`` … ``UM-08``); what we send ends in ``Sent``."""

SERVER: Final[Table[ServerState]] = {
    ServerState.AWAITING_HELLO: {
        Commands.HELLO: ServerState.RECEIVING_HELLO,
        **to(ServerState.CLOSED, *_ENDS),
    },
    ServerState.RECEIVING_HELLO: {
        **to(ServerState.RECEIVING_HELLO, Step.ATTACHMENT, Commands.ATTACHMENT_ERROR),
        Step.HELLO_COMPLETED: ServerState.AUTHORISING,
        **to(ServerState.CLOSED, *_ENDS),
    },
    ServerState.AUTHORISING: {
        Step.WELCOME_SENT: ServerState.OPEN,
        **to(ServerState.CLOSED, *_ENDS),
    },
    ServerState.OPEN: {
        **to(ServerState.OPEN, *_SESSION),
        **to(ServerState.CLOSED, *_ENDS),
    },
    ServerState.CLOSED: {},
}
"""Before our ``W`` the peer may send ``H``, its attachments and ``F``, no more (``UM-07``)."""


@dataclass(slots=True)
class Counters:
    calls: int = 0
    calls_refused: int = 0
    results: int = 0
    errors: int = 0
    unknown_answers: int = 0
    updates: int = 0
    attachments: int = 0
    attachments_failed: int = 0
