"""The writer's side of a Lumberjack connection, without I/O or clock.

What is queued when the writer may send forms a **window** (``LJ-18``).  Sequence numbers begin at 1
in each, so an ack's number *is* the count of events it covers and never wraps (``LJ-12``).  Then
the writer waits for it (``LJ-09``).  With ``pipelining`` an ack belongs to the oldest window in
flight; this is only right with readers that acknowledge every window.

The caller of a :class:`Writer` calls ``flush(now)`` after ``send``, ``submit`` and ``receive``,
``paused(now)`` and ``resumed(now)`` around times in which the transport has not written our bytes,
and ``lost(now)`` at the end: it returns the unacknowledged batches, in order (``LJ-15``).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from ...core.connection import Connection, WorkLost
from ...core.deadlines import Deadlines
from ...core.errors import Fault, LimitExceeded
from ...core.limits import Limits
from ...core.machine import Machine, SendWindow
from ..terms import (
    COMPRESS_DEFAULT,
    FRAME_BYTES,
    WINDOW_DEFAULT,
    WRITER,
    WRITER_LIMITS,
    Event,
    KeptAlive,
    PartAcknowledged,
    PreparedBatch,
    Step,
    WindowAcknowledged,
    WriterCounters,
    WriterEvent,
    Writing,
)
from ..wire.frames import (
    HEADER_BYTES,
    KEY_BYTES,
    PAIRS_MAX,
    VERSION_1,
    VERSION_2,
    Ack,
    AckDecoder,
    encode_ack,
    encode_compressed,
    encode_data_around,
    encode_json,
    encode_pairs,
    encode_window,
)


class Packer:
    """The limits of events, and how batches are made of them (``LJ-17``, ``LJ-18``)."""

    def __init__(self, limits: Limits, version: int) -> None:
        if version not in (1, 2):
            raise ValueError(f"version 1 or 2, not {version!r}")
        self.version = version
        self._limits = limits

    def pack(self, events: Iterable[Event], token: Any = None) -> PreparedBatch:
        """Return one batch: of documents in version 2, of mappings in version 1 (``LJ-21``).

        Raises LimitExceeded if one of them is above a limit, TypeError if one is of the wrong
        type for the version, ValueError if there is none.
        """
        if self.version == 2:
            return self._pack_documents(events, token)
        return self._pack_mappings(events, token)

    def _pack_documents(self, events: Iterable[Event], token: Any) -> PreparedBatch:
        documents: list[Any] = list(events)
        if not documents:
            raise ValueError("no events")
        if set(map(type, documents)) != {bytes}:
            other = next(type(event) for event in documents if type(event) is not bytes)
            raise TypeError(f"version 2 sends JSON documents as bytes, not {other.__name__}")
        sizes = list(map(len, documents))
        self._limits.check("json-bytes", max(sizes))
        return PreparedBatch(documents, sum(sizes) + FRAME_BYTES * len(documents), token)

    def _pack_mappings(self, events: Iterable[Event], token: Any) -> PreparedBatch:
        payloads = []
        for event in events:
            if not isinstance(event, Mapping):
                raise TypeError(f"version 1 sends mappings of text, not {type(event).__name__}")
            payloads.append(self._encode(event))
        if not payloads:
            raise ValueError("no events")
        return PreparedBatch(payloads, sum(map(len, payloads)) + FRAME_BYTES * len(payloads), token)

    def _encode(self, pairs: Mapping[str, str]) -> bytes:
        if len(pairs) > PAIRS_MAX:
            raise LimitExceeded(f"{len(pairs)} pairs, at most {PAIRS_MAX}; nothing sent")
        longest = max(pairs, key=len, default="")
        # UTF-8 takes 1 to 4 bytes a character: most keys need not be encoded to be sure.
        if len(longest) * 4 > KEY_BYTES:
            size = max(len(key.encode("utf-8", "surrogateescape")) for key in pairs)
            if size > KEY_BYTES:
                raise LimitExceeded(f"a key of {size} bytes, at most {KEY_BYTES}; nothing sent")
        payload = encode_pairs(pairs)
        self._limits.check("data-bytes", len(payload) + FRAME_BYTES - 4)
        return payload


@dataclass(slots=True)
class Flight:
    """One window in flight: it knows the batch of each of its events, in order."""

    portions: deque[tuple[PreparedBatch, int]]  # batch, events of it that are not acknowledged
    size: int
    acknowledged: int = 0

    def acknowledge(self, count: int) -> list[PreparedBatch]:
        self.acknowledged += count
        done = []
        while count:
            batch, events = self.portions[0]
            covered = min(count, events)
            count -= covered
            batch.acknowledged += covered
            if covered == events:
                self.portions.popleft()
            else:
                self.portions[0] = (batch, events - covered)
            if not batch.missing:
                done.append(batch)
        return done


_SENDING: Final = (Writing.IDLE, Writing.FLOWING)
_SILENT: Final = (Writing.FAILED, Writing.CLOSED)
_HEARING: Final = (Writing.IDLE, Writing.FLOWING, Writing.BLOCKED, Writing.DRAINING)


class Writer(Connection[bytes, bytes, WriterEvent]):
    """The sending side (client): it forms windows, and returns what is not acknowledged.

    Serves ``LJ-02``, ``LJ-05`` … ``LJ-09``, ``LJ-12``, ``LJ-15``, ``LJ-17``, ``LJ-18`` and
    ``LJ-21``.

    Attributes:
        counters: plain integers for metrics.
        fault: what the reader did wrong, or None.
        capacity: events that may be unacknowledged before the writer must wait (``LJ-09``).
        unsent: events that are queued and not in flight.
        unsent_bytes: their frames, not compressed.
        in_flight: events that were sent and are not acknowledged.
    """

    counters: WriterCounters
    deadlines: Deadlines
    fault: Fault | None = None

    _heard_at: float  # the last sign of life, or when the oldest window was formed

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        version: int = 2,
        window: int = WINDOW_DEFAULT,
        compress: int = COMPRESS_DEFAULT,
        pipelining: int = 1,
    ) -> None:
        """Make a writer for one connection.

        ``limits`` holds at least :data:`WRITER_LIMITS` (their defaults where it is None).
        ``version`` 2 writes ``J`` frames only, 1 ``D`` frames only (``LJ-21``).  ``window`` is in
        events, ``compress`` is zlib's level (0 = off), ``pipelining`` is in windows.  ValueError
        for what cannot be, TypeError for what is no whole number.
        """
        numbers = {"window": window, "compress": compress, "pipelining": pipelining}
        for name, value in {"version": version, **numbers}.items():
            if type(value) is not int:
                raise TypeError(f"{name}: a whole number is expected, not {type(value).__name__}")
        limits = Limits.of(WRITER_LIMITS) if limits is None else limits
        window_max = limits.integer("window")
        if not 1 <= window <= window_max:
            raise ValueError(f"a window of 1 to {window_max} events, not {window}")
        if not 0 <= compress <= 9:
            raise ValueError(f"a compression level of 0 to 9, not {compress}")
        if pipelining < 1:
            raise ValueError(f"pipelining of at least 1 window, not {pipelining}")
        self._limits = limits
        self._packer = Packer(limits, version)
        self._version = VERSION_2 if version == 2 else VERSION_1
        self._window = window
        self._level = compress
        self._window_bytes = limits.integer("window-bytes")
        self._compressed_bytes_max = limits.integer("compressed-bytes")
        self._inflated_bytes_max = limits.integer("inflated-bytes")
        self._timeout = limits["timeout"]
        self.deadlines = Deadlines()

        self.counters = WriterCounters()
        self.capacity: int = window * pipelining
        self.unsent: int = 0
        self.unsent_bytes: int = 0
        self.in_flight: int = 0

        self._machine = Machine(WRITER, Writing.IDLE)
        self._decoder = AckDecoder()
        self._queue: OrderedDict[PreparedBatch, None] = OrderedDict()
        self._flights = SendWindow[Flight](pipelining)  # of windows; numbered as they were formed
        self._out: list[bytes] = []
        self._paused = False  # our bytes wait in the transport: silence means nothing

    # ── what the caller may look at ─────────────────────────────────────────────────────────────

    @property
    def state(self) -> Writing:
        return self._machine.state

    @property
    def unacknowledged(self) -> int:
        """How many events were handed in and are not acknowledged."""
        return self.unsent + self.in_flight

    @property
    def wanted(self) -> int:
        """Return how many events more would go out with the next window, if it were formed now."""
        return max(0, self._window - self.unsent) if self.state in _SENDING else 0

    @property
    def input_weight(self) -> int:
        return self._decoder.held

    @property
    def finished(self) -> bool:
        """Nothing is in flight after ``drain``, or the reader broke the protocol."""
        return self.state in _SILENT or (self.state is Writing.DRAINING and not len(self._flights))

    def snapshot(self) -> dict[str, object]:
        return {
            "state": self.state.name,
            "window": self._window,
            "windows_in_flight": len(self._flights),
            "in_flight": self.in_flight,
            "unsent": self.unsent,
            "unsent_bytes": self.unsent_bytes,
            "acknowledged": self.counters.acknowledged,
        }

    # ── events in ───────────────────────────────────────────────────────────────────────────────

    def send(self, events: Iterable[Event], token: Any = None) -> PreparedBatch:
        """Queue ``events`` as one batch, acknowledged together; ``token`` comes back with it.

        Raises LimitExceeded (and queues nothing) if an event is above a limit or too much waits
        already; TypeError and ValueError as :meth:`Packer.pack`; IllegalTransition when the writer
        is draining, has failed or is closed.
        """
        batch = self._packer.pack(events, token)
        self._limits.check("unsent-events", self.unsent + len(batch.payloads))
        self._limits.check("unsent-bytes", self.unsent_bytes + batch.nbytes)
        self.submit(batch)
        return batch

    def submit(self, batch: PreparedBatch) -> None:
        """Queue a batch that was made before, perhaps for a connection that is lost.

        What is acknowledged of it is not written again.  IllegalTransition as with ``send``.
        """
        self._machine.step(Step.EVENTS_QUEUED)
        batch.written = batch.acknowledged
        self._queue[batch] = None
        self.unsent += batch.missing
        self.unsent_bytes += _bytes_left(batch)

    def withdraw(self, batch: PreparedBatch) -> bool:
        """Remove a batch from the queue; return False if any of it is in flight."""
        if batch not in self._queue or batch.written > batch.acknowledged:
            return False
        del self._queue[batch]
        self.unsent -= batch.missing
        self.unsent_bytes -= _bytes_left(batch)
        return True

    def flush(self, now: float) -> int:
        """Form windows of what is queued, while the writer may send; how many (``LJ-18``)."""
        before = self.counters.windows
        while self._queue and self.state in _SENDING:
            if not len(self._flights):
                self._heard_at = now
            self._form_window()
        idle = self.deadlines.next is None
        if idle and self._timeout and len(self._flights) and not self._paused:
            self.deadlines.set("timeout", self._heard_at + self._timeout)
        return self.counters.windows - before

    def _form_window(self) -> None:
        flight, payloads = self._take()
        self._flights.sent(self.counters.windows, flight)
        self.counters.windows += 1
        self.unsent -= flight.size
        self.in_flight += flight.size
        self._encode(payloads)
        self._machine.step(Step.WINDOW_SENT)
        if self._flights.full:
            self._machine.step(Step.WINDOWS_FILLED)

    def _take(self) -> tuple[Flight, list[bytes]]:
        payloads: list[bytes] = []
        portions: deque[tuple[PreparedBatch, int]] = deque()
        nbytes = 0
        while self._queue and len(payloads) < self._window:
            batch = next(iter(self._queue))
            start = batch.written
            end = min(len(batch.payloads), start + self._window - len(payloads))
            if nbytes + batch.nbytes > self._window_bytes:
                end = self._end_of_room(batch, end, nbytes)
                if end == start and not payloads:
                    end = start + 1
                if end == start:
                    break
            taken = batch.payloads[start:end]
            nbytes += sum(map(len, taken)) + FRAME_BYTES * len(taken)
            payloads += taken
            portions.append((batch, end - start))
            batch.written = end
            if end < len(batch.payloads):
                break
            del self._queue[batch]
        self.unsent_bytes -= nbytes
        return Flight(portions, len(payloads)), payloads

    def _end_of_room(self, batch: PreparedBatch, end: int, nbytes: int) -> int:
        for index in range(batch.written, end):
            nbytes += len(batch.payloads[index]) + FRAME_BYTES
            if nbytes > self._window_bytes:
                return index
        return end

    def _encode(self, payloads: list[bytes]) -> None:
        sequences = range(1, len(payloads) + 1)
        version = self._version
        encode = encode_json if version == VERSION_2 else encode_data_around
        frames = encode(sequences, payloads, version)
        announcement = encode_window(len(payloads), version)
        if self._level and len(frames) <= self._inflated_bytes_max:
            compressed = encode_compressed(frames, self._level, version)
            # A document near its own limit, and not compressible: plain, it is within the limits.
            if len(compressed) - HEADER_BYTES <= self._compressed_bytes_max:
                frames = compressed
        self._out += (announcement, frames)

    # ── bytes in ───────────────────────────────────────────────────────────────────────────────

    def receive(self, inputs: bytes, now: float) -> list[WriterEvent]:
        if self.state not in _HEARING:
            return []
        events: list[WriterEvent] = []
        for frame in self._decoder.feed(inputs):
            event = self._acknowledge(frame) if type(frame) is Ack else frame
            if type(event) is Fault:
                self._fail(event)
            else:
                self._heard_at = now
                self._machine.step(type(event))
            events.append(event)  # type: ignore[arg-type]
            if self.fault is not None:
                break
            if type(event) is WindowAcknowledged and not len(self._flights):
                self._machine.step(Step.ALL_ACKNOWLEDGED)
        return events

    def _acknowledge(self, ack: Ack) -> WriterEvent:
        sequence = ack.sequence
        if sequence == 0:
            return KeptAlive()
        flight = self._flights.oldest
        if flight is None or sequence > flight.size:
            sent = "and nothing is in flight" if flight is None else f"of a window of {flight.size}"
            return Fault("ack", f"an ack of {sequence} {sent}", encode_ack(sequence))
        count = sequence - flight.acknowledged
        if count <= 0:
            return KeptAlive()
        self.counters.acknowledged += count
        self.in_flight -= count
        batches = flight.acknowledge(count)
        if flight.acknowledged < flight.size:
            return PartAcknowledged(count, batches)
        self._flights.acknowledge_oldest()
        return WindowAcknowledged(count, batches)

    def _fail(self, fault: Fault) -> None:
        self.fault = fault
        self._machine.step(Fault)
        self._decoder.end()
        self._out.clear()
        self.deadlines.clear_all()

    # ── time ────────────────────────────────────────────────────────────────────────────────────

    def resumed(self, now: float) -> list[WriterEvent]:
        self._paused = False
        self._heard_at = now
        if self._timeout and len(self._flights) and self.state in _HEARING:
            self.deadlines.set("timeout", now + self._timeout)
        return []

    def _look_for_life(self, now: float, events: list[WriterEvent]) -> None:
        """Fail if the reader has sent no sign of life for too long (``LJ-15``)."""
        if not len(self._flights) or self._paused:
            return
        deadline = self._heard_at + self._timeout
        if now < deadline:
            self.deadlines.set("timeout", deadline)
            return
        fault = Fault("timeout", f"no ack for {self._timeout:g} s")
        self._fail(fault)
        events.append(fault)

    timely: ClassVar[dict[Any, Any]] = {"timeout": _look_for_life}

    # ── the end ─────────────────────────────────────────────────────────────────────────────────

    def drain(self, now: float) -> list[WriterEvent]:
        """Form no further window; close the connection once ``finished``.

        What is queued comes back from ``lost``.  Raises IllegalTransition when the writer has
        failed or is closed.
        """
        self._machine.step(Step.DRAIN_BEGUN)
        return []

    def outputs(self) -> bytes:
        if not self._out:
            return b""
        data = b"".join(self._out)
        self._out.clear()
        return data

    def lost(self, now: float) -> list[WriterEvent | WorkLost]:
        if self.state is Writing.CLOSED:
            return []
        self._machine.step(Step.CONNECTION_LOST)
        self._decoder.end()
        self._out.clear()
        self.deadlines.clear_all()
        batches: dict[PreparedBatch, None] = {}  # one may stand in two windows and in the queue
        for flight in self._flights.drain():
            batches.update((batch, None) for batch, _ in flight.portions)
        batches.update(self._queue)
        self._queue.clear()
        self.unsent = self.unsent_bytes = self.in_flight = 0
        return [WorkLost(list(batches))] if batches else []


def _bytes_left(batch: PreparedBatch) -> int:
    if not batch.written:
        return batch.nbytes
    rest = batch.payloads[batch.written :]
    return sum(map(len, rest)) + FRAME_BYTES * len(rest)
