"""The reader's side of a Lumberjack connection: bytes in, events out, without I/O or clock.

Sequence numbers only name frames: writers restart them with every window, let them run over
windows and reconnects, or begin at 0, so neither side compares their size (``LJ-11``).  Frames go
to the sink at once, because *safe* and *acknowledged* are two states (``LJ-13``).

A C frame may take several calls to decode: finish what is ``unfinished`` before ``ended``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar, Final, cast

from ...core.connection import Connection, WorkLost
from ...core.deadlines import Deadlines
from ...core.errors import Fault
from ...core.limits import Limits
from ...core.machine import Machine, ReceiveWindow
from ..terms import (
    READER,
    READER_LIMITS,
    DataReceived,
    JsonReceived,
    ReaderCounters,
    ReaderEvent,
    Reading,
    Step,
)
from ..wire.decoder import Decoder
from ..wire.frames import (
    ACK_BYTES,
    VERSION_1,
    VERSION_2,
    Compressed,
    Data,
    Frame,
    Json,
    Window,
    encode_ack,
)

_OPEN: Final = (Reading.EMPTY, Reading.FILLING)
_SILENT: Final = (Reading.FAILED, Reading.CLOSED)

_OtherFrame = Window | Compressed | Fault


@dataclass(slots=True)
class _Inspected:
    """The windows that end in a C frame, counted before its frames are handed on."""

    size: int  # of the window in force
    count: int  # data frames of the current window
    completed: int = 0  # windows, whose acks will wait for the end of the C frame
    announced: int = 0  # W frames
    version: int = VERSION_2  # of the last data frame

    def arrive(self, total: int) -> None:
        full, self.count = divmod(self.count + total, self.size)
        self.completed += full

    def announce(self, size: int) -> None:
        """Note a W frame: it ends a short window, and 0 is answered by itself."""
        self.announced += 1
        if size:
            self.completed += self.count > 0
            self.size, self.count = size, 0
        else:
            self.completed += 1


class Reader(Connection[bytes, bytes, ReaderEvent]):
    """The receiving side (server): it counts windows and owes acks.

    Serves ``LJ-02`` … ``LJ-08``, ``LJ-11``, ``LJ-13``, ``LJ-14``, ``LJ-16``, ``LJ-17``, ``LJ-19``
    and ``LJ-20``.

    Attributes:
        counters: plain integers for metrics.
        fault: what the writer did wrong, or None.
        decoder: its ``trailing_bytes`` and ``invalid_texts`` count oddities that are no faults.
    """

    counters: ReaderCounters
    deadlines: Deadlines
    fault: Fault | None = None

    _now: float  # when the last call began
    _heard_at: float  # when bytes came last, or reading was resumed

    def __init__(self, limits: Limits | None = None) -> None:
        """``limits`` holds at least :data:`READER_LIMITS`; their defaults where it is None."""
        limits = Limits.of(READER_LIMITS) if limits is None else limits
        self._idle_ack = limits["idle-ack"]
        self._keepalive = limits["keepalive"]
        self._idle_close = limits["idle-close"]

        times = (self._idle_ack, self._keepalive, self._idle_close)
        # Whatever happens, nothing is due sooner after it; the deadline is not later than that, and
        # the exact time is looked for when it comes, not with every message.
        self._shortest = min(filter(None, times), default=inf)
        self.deadlines = Deadlines()

        self.counters = ReaderCounters()
        self.decoder: Decoder = Decoder(limits, self._inspect)

        self._machine = Machine(READER, Reading.EMPTY)
        # Its marks are acks as they stand on the wire, those of one run of frames in one: they are
        # due together, and there may be as many as frames.
        self._window = ReceiveWindow[bytearray]()
        self._size = 1  # of the window in force; before any W it is 1 (LJ-07)
        self._count = 0  # data frames of the current window so far
        # What would acknowledge all data frames so far, in the last one's version (LJ-02).
        self._last = encode_ack(0, VERSION_2)
        self._held: list[tuple[int, bytearray]] = []  # acks within a C frame that has not ended
        self._windows_max = limits.integer("compressed-windows")
        self._inspected: _Inspected | None = None  # a large C frame, before it is handed on
        self._out: list[bytes | bytearray] = []
        self._paused = False
        self._waiting_since: float | None = None  # an ack waits for the sink; last keep-alive

    # ── what the caller may look at ─────────────────────────────────────────────────────────────

    @property
    def state(self) -> Reading:
        return self._machine.state

    @property
    def unfinished(self) -> bool:
        return self.decoder.unfinished

    @property
    def unacknowledged(self) -> int:
        """How many events arrived and are not acknowledged yet."""
        return self._window.unacknowledged

    @property
    def finished(self) -> bool:
        """Return whether nothing more is read, and no ack is owed (``LJ-19``)."""
        state = self._machine.state
        return state in _SILENT or (state is Reading.DRAINING and not self._window.waiting)

    @property
    def input_weight(self) -> int:
        return self.decoder.held_bytes

    @property
    def no_partial_input(self) -> bool:
        return self.decoder.clean

    def snapshot(self) -> dict[str, object]:
        return {
            "state": self.state.name,
            "window": self._size,
            "received": self._window.received,
            "safe": self._window.safe,
            "acknowledged": self._window.acknowledged,
            "held_bytes": self.decoder.held_bytes,
            "paused": self._paused,
        }

    # ── bytes in ───────────────────────────────────────────────────────────────────────────────

    def receive(self, inputs: bytes, now: float) -> list[ReaderEvent]:
        machine = self._machine
        if machine.state not in _OPEN:
            return []
        self._now = self._heard_at = now
        events: list[ReaderEvent] = []
        runs: list[Any] = []  # not given out yet: the next one may join them
        for frame in self.decoder.feed(inputs):
            kind = type(frame)
            if kind is Json or kind is Data:
                run: Any = frame
                if runs and (runs[-1].long or run.long or kind is not type(runs[-1])):
                    events.append(self._give_out(runs))
                    runs = []
                runs.append(run)
                self._receive(run, kind)
            elif not self._follow(cast(_OtherFrame, frame)):
                break
        if runs:
            events.append(self._give_out(runs))
        if self.fault is not None:
            events.append(self.fault)
        if not self.decoder.clean and self._waiting_since is None and self._compressed_by_version_2:
            self._waiting_since = now
        waiting = self._window.waiting
        if waiting and waiting[0][0] <= self._window.safe:  # of what had come before this read
            self._give_acks(self._window.due())
        self._look_soon(now)
        return events

    def _inspect(self, frames: Sequence[Frame]) -> tuple[str, str] | None:
        """Look at frames of a C frame that is checked before it is handed on (``LJ-17``)."""
        seen = self._inspected
        if seen is None:
            seen = self._inspected = _Inspected(self._size, self._count)
        for frame in frames:
            if isinstance(frame, Json | Data):
                seen.version = frame.version
                start = 0
                for end, announced in frame.windows:
                    seen.arrive(end - start)
                    seen.announce(announced)
                    start = end
                seen.arrive(len(frame.sequences) - start)
            else:
                assert isinstance(frame, Window)  # the decoder refuses all others there
                seen.announce(frame.size)
        if max(seen.completed, seen.announced) > self._windows_max:
            name = "compressed-windows"
            text = f"too many windows in one compressed frame; {name} is {self._windows_max}"
            return "compressed-windows-limit", text
        return None

    def _follow(self, frame: _OtherFrame) -> bool:
        """Do what a frame without data asks for; False for a fault."""
        empty = type(frame) is Window and not frame.size
        self._machine.step(Step.EMPTY_WINDOW if empty else type(frame))
        if type(frame) is Window:
            if frame.size:
                self._announce(frame.size, frame.compressed)
            else:
                self._answer_empty(frame)
        elif type(frame) is Compressed:
            self._release_held()
        else:
            assert type(frame) is Fault
            self.fault = frame
            return False
        return True

    def _receive(self, run: Json | Data, kind: type) -> None:
        """Count data frames, and acknowledge each window where it ends (``LJ-07``, ``LJ-13``)."""
        self._machine.step(kind)
        version, sequence, total = run.version, run.sequences.value, len(run.sequences)
        position = self._window.received  # of the run's first frame
        self._window.receive(total)
        if version != self._last[0] and self._waiting_since is not None:
            self._waiting_since = self._now  # version 1 knows no keep-alives: they begin anew
        windows, size, count, start = run.windows, self._size, self._count, 0
        acks: list[bytes] = []
        for end, announced in (*windows, (total, 0)):
            # Windows follow each other without further W frames: all that are full by ``end``.
            full = start - count + size
            while full <= end:
                acks.append(encode_ack(sequence(full - 1), version))
                self.counters.windows += 1
                full += size
            count = end - full + size
            if announced:
                if count and end:
                    acks.append(encode_ack(sequence(end - 1), version))
                elif count and position > self._covered:  # all that it has came before this run
                    self._mark(bytearray(self._last), position, run.compressed)
                size, count = announced, 0
            start = end
        if acks:
            self._mark(bytearray().join(acks), position + total - count, run.compressed)
        self._size, self._count = size, count
        self._last = encode_ack(sequence(total - 1), version)
        self.counters.events += total
        if not count:  # of the last window all has come, or none
            self._machine.step(Step.WINDOW_COMPLETED)

    def _give_out(self, runs: list[Any]) -> ReaderEvent:
        position = self._window.slice()
        run = runs[0]
        kind = type(run)
        if len(runs) > 1:
            run = kind.joined(runs)
        if kind is Json:
            return JsonReceived(run.sequences, run.bodies, run.nbytes, position)
        return DataReceived(run.sequences, run.pairs, run.nbytes, position)

    def _mark(self, acks: bytearray, position: int, held: bool) -> None:
        """Let ``acks`` wait for the sink, or first for the end of the C frame (``LJ-08``)."""
        marks = self._held if held else self._window.waiting
        if marks and marks[-1][0] == position:
            marks[-1][1].extend(acks)
        elif held:
            self._held.append((position, acks))
        else:
            self._window.mark(acks, position)
            if self._waiting_since is None:
                self._waiting_since = self._now

    def _release_held(self) -> None:
        """Note that a C frame ended well: what it completed may be acknowledged (``LJ-08``)."""
        for position, acks in self._held:
            self._mark(acks, position, held=False)
        self._held.clear()
        self._inspected = None
        if not self._window.waiting:
            self._waiting_since = None

    @property
    def _covered(self) -> int:
        return self._held[-1][0] if self._held else self._window.marked

    def _acknowledge_tail(self, held: bool) -> None:
        """Acknowledge what came of a window that stays short, if it is not yet (``LJ-13``)."""
        if self._window.received > self._covered:
            self._mark(bytearray(self._last), self._window.received, held)

    def _announce(self, size: int, compressed: bool) -> None:
        """Follow a W frame: it ends a short window, and starts a new one (``LJ-07``)."""
        if self._count:
            self._acknowledge_tail(held=compressed)
        self._size, self._count = size, 0

    def _answer_empty(self, frame: Window) -> None:
        """Follow a ``W`` 0: its ack stands in line behind those that are owed (``LJ-07``)."""
        if frame.version == VERSION_2:
            acks = bytearray(encode_ack(0, VERSION_2))
            self._mark(acks, self._covered, held=frame.compressed)

    def ended(self, now: float) -> list[ReaderEvent]:
        """The writer has shut its sending side: ack what is whole, forget what is not (LJ-19).

        Finish what is ``unfinished`` first.  Close the connection once ``finished``.
        """
        self._now = now
        if self.state in _OPEN:
            self._acknowledge_tail(held=False)
            self._machine.step(Step.STOPPED)
            self._give_acks(self._window.due())
            self._look_soon(now)
        return []

    def drain(self, now: float) -> list[ReaderEvent]:
        """Read nothing any more, because this side ends: close the connection once ``finished``.

        What is owed is acknowledged, and no more.  The writer may be in mid-window, and a writer
        that mistakes any ack for that of its whole window would lose the rest of it (``LJ-13``).
        Nor does a C frame count as ended well if the rest of it is not read (``LJ-08``).
        """
        if self.state in _OPEN:
            self._machine.step(Step.STOPPED)
        return []

    # ── what the sink says ──────────────────────────────────────────────────────────────────────

    def made_safe(self, position: int, now: float) -> list[ReaderEvent]:
        """Note that the events up to the ``position`` of one are safe (``LJ-13``)."""
        self._now = now
        self._give_acks(self._window.made_safe(position))
        return []

    def not_safe(self, position: int, now: float) -> list[ReaderEvent]:
        """The events up to ``position`` never will be safe: no ack for them or for what follows.

        Nothing more is read; what is due before them is acknowledged when it is safe (``LJ-13``).
        """
        self._window.never_safe(position)
        return self.drain(now)

    def _give_acks(self, acks: list[bytearray]) -> None:
        if not acks or self._machine.state in _SILENT:
            return
        self._out += acks
        self.counters.acks += sum(map(len, acks)) // ACK_BYTES
        self._waiting_since = None
        if self._window.waiting or (not self.decoder.clean and self._compressed_by_version_2):
            self._waiting_since = self._now
            self._look_soon(self._now)

    # ── time ────────────────────────────────────────────────────────────────────────────────────

    def resumed(self, now: float) -> list[ReaderEvent]:
        self._paused = False
        self._heard_at = now
        self._look_soon(now)
        return []

    def _look_soon(self, now: float) -> None:
        due, soon = self.deadlines.next, now + self._shortest
        if soon < inf and (due is None or soon < due):  # once in a while, not for each message
            self.deadlines.set("look", soon)

    def _look(self, now: float, events: list[ReaderEvent]) -> None:
        """Do what is due at ``now``, and come back when something will be (LJ-13, LJ-14, LJ-17)."""
        self._now = now
        self._look_at_silence(now, events)
        self._look_at_waiting(now)
        deadlines = (self._idle_deadline(), self._keepalive_deadline())
        due = min((deadline for deadline in deadlines if deadline is not None), default=None)
        if due is not None:
            self.deadlines.set("look", due)

    timely: ClassVar[dict[Any, Any]] = {"look": _look}

    def _idle_deadline(self) -> float | None:
        if self._paused or self.state not in _OPEN:
            return None
        tail = self._window.received > self._covered
        incomplete = self.decoder.incomplete
        if tail and not incomplete and self._idle_ack:
            return self._heard_at + self._idle_ack
        if (tail or incomplete) and self._idle_close:
            return self._heard_at + self._idle_close
        return None

    def _look_at_silence(self, now: float, events: list[ReaderEvent]) -> None:
        deadline = self._idle_deadline()
        if deadline is None or now < deadline:
            return
        if self.decoder.incomplete or not self._idle_ack:
            seconds = self._idle_close
            text = f"no byte for {seconds:g} s, and a frame or window is open"
            self.fault = Fault("idle", text, self.decoder.first_bytes)
            self._machine.step(Fault)
            events.append(self.fault)
        else:
            self._acknowledge_tail(held=False)
            self._machine.step(Step.TAIL_ACKNOWLEDGED)
            self._give_acks(self._window.due())

    def _keepalive_deadline(self) -> float | None:
        if not self._keepalive or self._waiting_since is None or self.state in _SILENT:
            return None
        # A v1 writer would take a keep-alive for the ack of its batch (LJ-14).
        if self._last[0] == VERSION_1:
            return None
        if self._window.waiting:
            if self._window.waiting[0][1][0] == VERSION_1:
                return None
        elif not self._compressed_by_version_2:
            return None
        return self._waiting_since + self._keepalive

    @property
    def _compressed_by_version_2(self) -> bool:
        decoder = self.decoder
        return (
            decoder.compressed_version == VERSION_2
            and self.state in _OPEN
            and (self._inspected is None or self._inspected.version == VERSION_2)
        )

    def _look_at_waiting(self, now: float) -> None:
        deadline = self._keepalive_deadline()
        if deadline is not None and now >= deadline:
            self._out.append(encode_ack(0, VERSION_2))
            self.counters.keepalives += 1
            self._waiting_since = now

    # ── bytes out ──────────────────────────────────────────────────────────────────────────────

    def outputs(self) -> bytes:
        """Return and forget every ack that is due, for one write."""
        if not self._out:
            return b""
        data = b"".join(self._out)
        self._out.clear()
        return data

    def lost(self, now: float) -> list[ReaderEvent | WorkLost]:
        """Note that the connection is gone.  Events that were returned stay."""
        if self.state is not Reading.CLOSED:
            self._machine.step(Step.CONNECTION_LOST)
            self.decoder.end()
            self._out.clear()
            self.deadlines.clear_all()
        return []
