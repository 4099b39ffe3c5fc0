"""Lumberjack's limits, events, states, tables and counters, of both sides: data only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import auto
from typing import Any, Final

from ..core.errors import Fault
from ..core.limits import Limit
from ..core.machine import Happening, Own, State, Table, to
from .wire import frames
from .wire.frames import Compressed, Data, Json, Window

READER_LIMITS: Final = (
    *frames.LIMITS,
    Limit("idle-ack", 1.0, "s", "a window that stays short is acked after this; 0 = off (LJ-13)"),
    Limit(
        "keepalive",
        3.0,
        "s",
        "while v2 writers wait they get an ack 0 at this interval; 0 = off (LJ-14)",
    ),
    Limit("idle-close", 120.0, "s", "no byte for this long in mid-frame ends it; 0 = off (LJ-17)"),
)
""":class:`Reader` has these limits (``LJ-13``, ``LJ-14``, ``LJ-17``)."""


# ── Events of the reader ────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class JsonReceived:
    """Documents arrived: columns, and the position for ``made_safe`` (``LJ-04``)."""

    sequences: Sequence[int]
    bodies: Sequence[bytes]
    nbytes: int
    position: int


@dataclass(slots=True)
class DataReceived:
    """Mappings arrived: columns, and the position for ``made_safe`` (``LJ-03``)."""

    sequences: Sequence[int]
    pairs: Sequence[dict[str, str]]
    nbytes: int
    position: int


ReaderEvent = JsonReceived | DataReceived | Fault
"""A read returns one event for each run of one kind; a Fault is always the last event of all."""


class Step:
    """What leads on beside the peer's frames."""

    EMPTY_WINDOW = Own()  # a ``W`` 0 arrived: an empty batch that changes no window (``LJ-07``)
    WINDOW_COMPLETED = Own()
    TAIL_ACKNOWLEDGED = Own()  # of a window that stays short (``LJ-13``)
    STOPPED = Own()  # the writer has shut its side (``LJ-19``), or this one ends
    CONNECTION_LOST = Own()
    EVENTS_QUEUED = Own()
    WINDOW_SENT = Own()
    WINDOWS_FILLED = Own()  # as many windows are in flight as may be
    ALL_ACKNOWLEDGED = Own()  # nothing is in flight any more
    DRAIN_BEGUN = Own()


class Reading(State):
    EMPTY = auto()  # no data frame waits for the rest of its window
    FILLING = auto()  # some do
    DRAINING = auto()  # nothing more is read; acks are still owed
    FAILED = auto()  # the writer broke the protocol; nothing is read or acknowledged any more
    CLOSED = auto()


_READS: Final[Mapping[Happening, Reading]] = {
    Window: Reading.EMPTY,
    Json: Reading.FILLING,
    Data: Reading.FILLING,
    Step.STOPPED: Reading.DRAINING,
    Fault: Reading.FAILED,
    Step.CONNECTION_LOST: Reading.CLOSED,
}

READER: Final[Table[Reading]] = {
    Reading.EMPTY: {**_READS, **to(Reading.EMPTY, Step.EMPTY_WINDOW, Compressed)},
    Reading.FILLING: {
        **_READS,
        **to(Reading.FILLING, Step.EMPTY_WINDOW, Compressed),
        **to(Reading.EMPTY, Step.WINDOW_COMPLETED, Step.TAIL_ACKNOWLEDGED),
    },
    Reading.DRAINING: {Fault: Reading.FAILED, Step.CONNECTION_LOST: Reading.CLOSED},
    Reading.FAILED: {Step.CONNECTION_LOST: Reading.CLOSED},
    Reading.CLOSED: {},
}
"""An ``A`` is in no row: the decoder refuses it (``LJ-05``)."""


@dataclass(slots=True)
class ReaderCounters:
    events: int = 0
    windows: int = 0
    acks: int = 0
    keepalives: int = 0


# ── The writer's ──

WINDOW_DEFAULT: Final = 2048
"""A window has this many events by default: Beats sends at most that many."""

COMPRESS_DEFAULT: Final = 3
"""This is zlib's level by default (``LJ-18``)."""

FRAME_BYTES: Final = 10
"""A data frame needs this many bytes beside its document; with encoded pairs it is 4 less."""

WRITER_LIMITS: Final = (
    *frames.LIMITS,
    Limit("window-bytes", 4 << 20, "bytes", "one window's frames, not compressed (LJ-18)", 1),
    Limit("timeout", 30.0, "s", "for a sign of life while windows are in flight; 0 = off (LJ-15)"),
    Limit("unsent-events", 100_000, "events", "that wait to be written; send fails above", 1),
    Limit("unsent-bytes", 64 << 20, "bytes", "that wait to be written; send fails above", 1),
)
""":class:`Writer` has these limits; it never writes events above those of the reader."""

Event = bytes | Mapping[str, str]
"""A writer sends this: a JSON document (version 2), or pairs of text (version 1)."""


@dataclass(slots=True, eq=False)
class PreparedBatch:
    """Events that were submitted together, as they will stand in frames."""

    payloads: Sequence[bytes]  # documents, or encoded pairs; never changed
    nbytes: int  # of their frames, not compressed
    token: Any = None  # the caller's own
    written: int = 0  # of the first, acknowledged or in flight
    acknowledged: int = 0

    @property
    def missing(self) -> int:
        return len(self.payloads) - self.acknowledged


# ── Events of the writer ────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class PartAcknowledged:
    """``count`` more events of a window are acknowledged, and not yet all of it (``LJ-06``).

    ``batches`` are those that are wholly acknowledged by now, oldest first.
    """

    count: int
    batches: list[PreparedBatch]


@dataclass(slots=True)
class WindowAcknowledged:
    """The last ``count`` events of the oldest window in flight are acknowledged."""

    count: int
    batches: list[PreparedBatch]


@dataclass(slots=True)
class KeptAlive:
    """An ack arrived that covers nothing new: the reader lives and needs more time (``LJ-15``)."""


WriterEvent = PartAcknowledged | WindowAcknowledged | KeptAlive | Fault
"""Each ack is one event; a Fault is always the last event of all."""


class Writing(State):
    IDLE = auto()  # nothing is in flight
    FLOWING = auto()  # windows are in flight, and another may follow (pipelining)
    BLOCKED = auto()  # no window may be sent before the oldest is acknowledged (LJ-09)
    DRAINING = auto()  # no window will be sent any more; acks are awaited
    FAILED = auto()  # the reader broke the protocol or fell silent
    CLOSED = auto()


_ENDS: Final[Mapping[Happening, Writing]] = {
    Step.DRAIN_BEGUN: Writing.DRAINING,
    Fault: Writing.FAILED,
    Step.CONNECTION_LOST: Writing.CLOSED,
}

WRITER: Final[Table[Writing]] = {
    Writing.IDLE: {
        **to(Writing.IDLE, Step.EVENTS_QUEUED, KeptAlive),
        Step.WINDOW_SENT: Writing.FLOWING,
        **_ENDS,
    },
    Writing.FLOWING: {
        **to(Writing.FLOWING, Step.EVENTS_QUEUED, Step.WINDOW_SENT, KeptAlive),
        **to(Writing.FLOWING, PartAcknowledged, WindowAcknowledged),
        Step.WINDOWS_FILLED: Writing.BLOCKED,
        Step.ALL_ACKNOWLEDGED: Writing.IDLE,
        **_ENDS,
    },
    Writing.BLOCKED: {
        **to(Writing.BLOCKED, Step.EVENTS_QUEUED, PartAcknowledged, KeptAlive),
        WindowAcknowledged: Writing.FLOWING,
        **_ENDS,
    },
    Writing.DRAINING: {
        **to(Writing.DRAINING, PartAcknowledged, WindowAcknowledged),
        **to(Writing.DRAINING, Step.ALL_ACKNOWLEDGED, KeptAlive),
        **_ENDS,
    },
    Writing.FAILED: {Step.CONNECTION_LOST: Writing.CLOSED},
    Writing.CLOSED: {},
}
"""An ack in a state without its row covers what was never sent: a Fault (``LJ-15``)."""


@dataclass(slots=True)
class WriterCounters:
    windows: int = 0
    acknowledged: int = 0
