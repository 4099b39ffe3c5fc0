"""Limits, error codes, events, states, tables and counters of MicroMsg2: data only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import auto
from typing import Any, Final

from ..core.errors import Fault
from ..core.limits import Limit
from ..core.machine import Happening, Own, State, Table, to
from .wire import frames
from .wire.frames import Command, Error, ExtensionFrame, Handshake, Messages, Part
from .wire.texts import Properties

NUMBER_OF_ACKS_DEFAULT: Final = 10
"""``batch-ack`` without a number means this (``MM-20``)."""

NUMBER_OF_ACKS_MAX: Final = 32767
"""No number above this may be agreed (``MM-20``): half of the sequence space."""

PARTS_MAX: Final = 64
"""A payload has no more parts (``MM-31``), or one for each 256 KiB that it may have."""

TYPE_NAME_BYTES_MAX: Final = 512

LIMITS: Final = (
    *frames.LIMITS,
    Limit("ack-count", 1024, "messages", "the largest window a peer may ask for (MM-20)", 1),
    Limit("checked-json-bytes", 512 << 10, "bytes", "a body the json extension checks (MM-28)"),
    Limit("handshake", 10.0, "s", "until the three handshake messages are through (MM-32)"),
    Limit(
        "idle-ack", 0.5, "s", "with ack, fewer than N that are safe are acked after this (MM-19)"
    ),
    Limit("idle-close", 120.0, "s", "no byte for this long in mid-payload ends it; 0 = off"),
    Limit("ack-wait", 0.0, "s", "a peer that acks nothing for this long is left; 0 = off"),
    Limit("payload-bytes", 16 << 20, "bytes", "a payload of several parts (MM-31)", 1),
)

HANDSHAKE_TIMEOUT: Final = "handshake-timeout"
IDLE_TIMEOUT: Final = "idle-timeout"
ACK_TIMEOUT: Final = "ack-timeout"
REFUSED_BY_PEER: Final = "refused-by-peer"
UNKNOWN_COMMAND: Final = "unknown-command"
BAD_COMMAND: Final = "bad-command"
BAD_PAYLOAD: Final = "bad-payload"
REFUSED: Final = "refused"
FAILED: Final = "failed"

ERROR_CHARACTERS_MAX: Final = 200
"""Errors that the machine sends are not longer."""

ANSWER_CHARACTERS_MAX: Final = 600
"""Errors of the application are not longer: the longest destination has its place in one."""


# ── Events ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True, frozen=True)
class SessionEstablished:
    """The handshake is through: who the peer is, and the agreed extensions by index from 1."""

    identity: str
    extensions: tuple[str, ...]


@dataclass(slots=True)
class MessagesReceived:
    """Messages arrived: columns, and the position for ``made_safe``.

    ``fields`` are what the table shows: properties as text, and what extensions add.
    ``properties`` are the same with their types, for filters; ``texts`` as they came.  ``notes``
    are what annotating extensions say, by their names: a row a message, or empty without any.
    ``nbytes`` is what came, ``weight`` what the properties take in memory beside it.
    """

    sequences: list[int] = field(default_factory=list)
    destinations: list[str] = field(default_factory=list)
    fields: list[Mapping[str, str]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    texts: list[bytes] = field(default_factory=list)
    properties: list[Properties] = field(default_factory=list)
    nbytes: int = 0
    position: int = 0
    notes: list[Mapping[str, str]] = field(default_factory=list)
    weight: int = 0

    def keep(self, rows: Sequence[int]) -> None:
        """Leave out all other messages; lists that somebody else has stay as they are."""
        columns = ("sequences", "destinations", "fields", "bodies", "texts", "properties", "notes")
        for name in columns:
            column = getattr(self, name)
            setattr(self, name, [column[row] for row in rows] if column else [])


@dataclass(slots=True, frozen=True)
class MessagesAcknowledged:
    """Our messages with these numbers are acknowledged, oldest first (``MM-21``)."""

    sequences: list[int]


@dataclass(slots=True, frozen=True)
class CommandReceived:
    """A command of one of the agreed extensions arrived (``MM-15``)."""

    name: str
    parameters: Mapping[str, str]


@dataclass(slots=True, frozen=True)
class ExtensionReceived:
    """A frame of an extension arrived; this is what the extension read (``MM-16``)."""

    name: str
    content: Any


@dataclass(slots=True, frozen=True)
class ErrorReceived:
    """The peer sent an ERROR; it closes nothing by itself (``MM-33``)."""

    code: str
    text: str


Event = (
    SessionEstablished
    | MessagesReceived
    | MessagesAcknowledged
    | CommandReceived
    | ExtensionReceived
    | ErrorReceived
    | Fault
)

# ── Tables ──────────────────────────────────────────────────────────────────────────────────────


class Step:
    """What leads on beside the peer's frames."""

    OPENED = Own()  # the client has sent its opening handshake
    CONNECTION_LOST = Own()  # the connection is gone


class Side(State):
    """A side of a connection is in one of these states."""

    IDLE = auto()  # client: nothing sent yet
    OPENING = auto()  # server: waits for the first handshake; client: for the answer to its own
    ANSWERED = auto()  # server: waits for the final handshake
    ESTABLISHED = auto()
    FAILED = auto()  # closing: nothing is read or acknowledged any more
    CLOSED = auto()


_ENDS: Final[Mapping[Happening, Side]] = {Fault: Side.FAILED, Step.CONNECTION_LOST: Side.CLOSED}

_SESSION: Final[Mapping[Happening, Side]] = {
    **to(Side.ESTABLISHED, Messages, Part, Command, ExtensionFrame, Error),
    **_ENDS,
}

CLIENT: Final[Table[Side]] = {
    Side.IDLE: {Step.OPENED: Side.OPENING, Step.CONNECTION_LOST: Side.CLOSED},
    Side.OPENING: {Handshake: Side.ESTABLISHED, Error: Side.FAILED, **_ENDS},
    Side.ANSWERED: {},
    Side.ESTABLISHED: _SESSION,
    Side.FAILED: {Step.CONNECTION_LOST: Side.CLOSED},
    Side.CLOSED: {},
}
"""A client is never ANSWERED: the server's answer leads straight into the session."""

SERVER: Final[Table[Side]] = {
    Side.IDLE: {},
    Side.OPENING: {Handshake: Side.ANSWERED, Error: Side.FAILED, **_ENDS},
    Side.ANSWERED: {Handshake: Side.ESTABLISHED, Error: Side.FAILED, **_ENDS},
    Side.ESTABLISHED: _SESSION,
    Side.FAILED: {Step.CONNECTION_LOST: Side.CLOSED},
    Side.CLOSED: {},
}
"""A server is never IDLE: it waits for the first handshake as soon as it is connected."""


@dataclass(slots=True)
class Counters:
    """Counts what one side has seen, as plain integers."""

    received: int = 0
    repeats: int = 0
    sent: int = 0
    acknowledged: int = 0
    acks: int = 0
    stray_acks: int = 0  # for what is not in flight (``MM-21``)
    over_window: int = 0  # messages beyond the agreed number (``MM-13``)
    bad_payloads: int = 0
    refused: int = 0
    untyped: int = 0  # properties (``MM-22``)
    unknown_commands: int = 0
    ignored_frames: int = 0  # of extensions that have none (``MM-33``)
    errors: int = 0
