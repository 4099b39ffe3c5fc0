"""Decode what a reader reads: runs of data frames, windows, and compressed frames."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Any, Final

from ...core.errors import Fault
from ...core.frame_buffer import FrameBuffer
from ...core.limits import Limits
from ...core.packed import PackedNumbers, kept_packed, listed
from . import frames
from .frames import (
    COMPRESSION_DEPTH_MAX,
    FAULT_BYTES,
    KEY_BYTES,
    LIMITS,
    LONG,
    MESSAGE_WEIGHT_BYTES,
    NESTED_SHARE,
    PAIR_WEIGHT_BYTES,
    PAIRS_MAX,
    SHORT,
    STEP_WEIGHT_BYTES,
    TYPE_ACK,
    TYPE_COMPRESSED,
    TYPE_DATA,
    TYPE_JSON,
    TYPE_WINDOW,
    VERSIONS,
    Compressed,
    Data,
    Frame,
    Json,
    Window,
)
from .partial import BrokenStream, Inflation, Level, PartialData


class _Reading(Enum):
    """How the outermost C frame is read (``LJ-08``, ``LJ-17``).

    Nothing of a C frame is handed on before it is known to be good to its end.  Frames of a small
    one are kept until then; a large one is read twice, so that nothing of it needs to be kept.
    """

    NONE = auto()  # no C frame is being read
    KEPT = auto()  # its frames are kept until its end; this way every C frame begins
    CHECKED = auto()  # it is large: its frames are checked and forgotten
    HANDED_ON = auto()  # it was checked to its end and is read again


_KEPT_TURNS: Final = 4
"""A C frame of more turns is read twice: so its frames take no more memory than a turn decodes."""

Inspect = Callable[[Sequence[Frame]], "tuple[str, str] | None"]


class Decoder:
    """The way from bytes to frames.

    ``feed(bytes)`` returns the complete frames; call ``feed(b"")`` again as long as ``unfinished``
    is true: a compressed frame may hold more than one turn should decode.  After a :class:`Fault`
    nothing is decoded any more.

    No frame within a C frame is returned before the whole of that C frame was found to be good
    (``LJ-08``, ``LJ-17``).
    """

    # Instances share the names of up to 30 attributes; with more a connection weighs 1.2 KB more.

    # Of the outermost C frame that is being read, set when it begins:
    _oddities: tuple[int, int]  # the two counters at that time
    _inflated_bytes: int  # with all nested ones
    _inflated_max: int
    _nested_compressed_bytes: int
    _nested_inflated_bytes: int

    # Of what is gathered, set with it:
    _begins: bytes  # version and type, as far as they are here
    _needed: int  # bytes; nothing can be decoded before this many were gathered

    _budget: int  # bytes that this call may still decode

    def __init__(self, limits: Limits | None = None, inspect: Inspect | None = None) -> None:
        """``inspect`` is called with frames of a large C frame while it is checked, in order, after
        all frames before it were returned.  It returns the reason and the text of a fault, or None.
        It sees each frame once, and all of them are returned later.
        """
        limits = Limits.of(LIMITS) if limits is None else limits
        self._limits = limits
        self._inspect: Inspect = inspect or (lambda frames: None)
        self._json_bytes_max = limits.integer("json-bytes")
        data_bytes = limits.integer("data-bytes")
        self._data_limits = frames.DataLimits(PAIRS_MAX, KEY_BYTES, data_bytes, data_bytes)
        self._window_max = limits.integer("window")
        self._slice_bytes = limits.integer("slice-bytes")

        # So short that no number of frames in it is above what one call decodes, nor a document
        # above its limit.
        self._usual_bytes_max = min(
            self._json_bytes_max, self._slice_bytes // (STEP_WEIGHT_BYTES // SHORT.size + 2)
        )
        self.clean: bool = True  # the stream stands between two frames

        self.unfinished: bool = False  # whole frames are left for the next call
        self.trailing_bytes: int = 0  # behind the end of zlib streams, ignored (``LJ-08``)
        self.invalid_texts: int = 0  # not UTF-8, kept (``LJ-03``)

        self._levels = [Level()]  # the innermost stream of frames is the last

        self._reading = _Reading.NONE
        self._turns = 0  # since the outermost C frame began
        self._kept: list[Frame] = []  # its frames that are not handed on (yet)

        self._partial: PartialData | None = None
        self._gathered = FrameBuffer()  # the start of a frame that is known to be longer
        self._found: list[Frame | Fault] = []  # what this call returns
        self._frames: list[Any] = self._found  # where frames are put: there, or among the kept
        self._over = False

    @property
    def incomplete(self) -> bool:
        """The start of a frame is here, and its end is not (or was not reached yet)."""
        return (
            self._gathered.nbytes > 0
            or self._partial is not None
            or len(self._levels) > 1
            or self._levels[0].position < len(self._levels[0].nbytes)
        )

    @property
    def first_bytes(self) -> bytes:
        """How the frame starts that is read now or has begun; empty between frames."""
        if self._partial is not None:
            return self._partial.start
        level = self._levels[-1]
        nbytes = level.nbytes[level.position : level.position + FAULT_BYTES]
        if not nbytes and level.inflation is not None:
            return level.inflation.start
        return nbytes or self._gathered.start(FAULT_BYTES)

    @property
    def held_bytes(self) -> int:
        outer = self._levels[0]
        held = self._gathered.nbytes + len(outer.nbytes) - outer.position
        if len(self._levels) > 1:
            held += sum([level.held_bytes for level in self._levels[1:]])
            outermost = self._levels[1].inflation
            assert outermost is not None
            held += outermost.nbytes
            held += sum([getattr(frame, "nbytes", SHORT.size) for frame in self._kept])
        if self._partial is not None:
            held += self._partial.held_bytes
        return held

    @property
    def compressed_version(self) -> int | None:
        """The version byte of the C frame that is read, or has begun to arrive; None: none is."""
        if len(self._levels) > 1:
            outermost = self._levels[1].inflation
            assert outermost is not None
            return outermost.version
        if self._partial is not None:
            return None
        (outer,) = self._levels
        gathered = self._gathered.nbytes
        start = self._begins if gathered else outer.nbytes[outer.position : outer.position + 2]
        return start[0] if start[1:] == b"C" else None

    def end(self) -> None:
        self._over = True
        self._usual_bytes_max = -1  # not the usual read, either
        self._gathered = FrameBuffer()
        self._levels = [Level()]
        self._partial = None
        self._kept = []

    def feed(self, data: bytes) -> list[Frame | Fault]:
        """Whole frames among what has arrived so far, perhaps with a Fault as the last item."""
        if self.clean and len(data) <= self._usual_bytes_max:
            usual = self._usual_read(data)
            if usual is not None:
                return [usual]
        if self._over:
            return []
        found: list[Frame | Fault] = []
        self._found = found
        if self._reading is _Reading.NONE or self._reading is _Reading.HANDED_ON:
            self._frames = found
        self._budget = self._slice_bytes
        if not self._take_in(data):
            return []
        self._turns += 1
        if self._reading is _Reading.KEPT and (self._turns > _KEPT_TURNS or self._kept_many()):
            self._reading = _Reading.CHECKED
        # Each step either moves on and returns True, or can do no more and returns False.
        more = True
        while more and self._budget > 0:
            more = self._step()
            self._budget -= STEP_WEIGHT_BYTES
        outer = self._levels[0]
        if outer.position == len(outer.nbytes):
            outer.nbytes, outer.position = b"", 0
        # Not when the last step could do no more: then only further bytes help.
        # What stands before the C frame must have been dealt with when that is inspected.
        if self._reading is _Reading.CHECKED and not found:
            self._inspect_kept()
        incomplete = self.incomplete
        self.unfinished = more and incomplete and not self._over
        self.clean = not incomplete and not self._over
        self._found = []
        if self._frames is found:  # the caller's now: a silent connection does not hold them
            self._frames = self._found
        return found

    def _usual_read(self, data: bytes) -> Json | None:
        """Return a read that is one run of J frames, or None: so small windows cost less code."""
        size = len(data)
        if size < LONG.size or data[0] not in VERSIONS:
            return None
        position, sequences, bodies, windows, _ = frames.json_run(
            data, 0, size, size, self._window_max, size
        )
        if position < size or not sequences:
            return None
        bytes_of_run = bodies.bounds[-1] + LONG.size * len(sequences)
        return Json(data[0], sequences, bodies, bytes_of_run, False, windows)

    def _take_in(self, nbytes: bytes) -> bool:
        """Join ``nbytes`` to what waits; False if that is known to be less than a frame."""
        outer, gathered = self._levels[0], self._gathered
        if gathered.nbytes:
            if gathered.nbytes + len(nbytes) < self._needed:
                gathered.add(nbytes)
                return False
            # Above the bytes of its header the type of a frame is known.
            known = self._needed > SHORT.size and self._partial is None
            if known and self._begins[1] == TYPE_COMPRESSED:
                self._take_compressed(nbytes)
                return True
            outer.nbytes, outer.position = b"".join((*gathered.taken(), nbytes)), 0
        elif nbytes:
            rest = outer.nbytes[outer.position :]
            outer.nbytes, outer.position = (rest + nbytes if rest else nbytes), 0
        return True

    def _take_compressed(self, data: bytes) -> None:
        """Read the rest of the outermost C frame that has been gathered: it is not copied."""
        gathered = self._gathered
        start = gathered.start(FAULT_BYTES)
        missing = self._needed - gathered.nbytes
        gathered.add(data[:missing])
        (outer,) = self._levels
        outer.nbytes, outer.position = data[missing:], 0
        pieces = [memoryview(piece) for piece in gathered.taken()]
        pieces[0] = pieces[0][SHORT.size :]
        self._enter(Inflation(start[0], pieces, start))

    def _step(self) -> bool:
        level = self._levels[-1]
        if level.wanted:
            return self._refill(level)
        if self._partial is not None:
            return self._scan_pairs(level, self._partial)
        data, position = level.nbytes, level.position
        available = len(data) - position
        if not available:
            if level.inflation is None:
                return False
            return self._leave(level) if level.inflation.ended else self._incomplete(level, 1)
        if data[position] not in VERSIONS:
            return self._fault("version", f"version byte {data[position]:#04x}, not '1' or '2'")
        if available < 2:
            return self._incomplete(level, 2)
        known = self._SCANS.get(data[position + 1])
        if known is None:
            return self._fault("frame-type", f"frame type {data[position + 1]:#04x}")
        needed, scan_frames = known
        if available < needed:
            return self._incomplete(level, needed)
        return scan_frames(self, level)

    def _fault(self, reason: str, text: str, data: bytes = b"", limit: str = "") -> bool:
        self._found.append(Fault(reason, text, data or self.first_bytes, limit=limit))
        self.end()
        return False

    def _above(self, reason: str, text: str, name: str, data: bytes = b"") -> bool:
        told = f"{text}; {name} is {self._limits.integer(name)}" if name else text
        return self._fault(reason, told, data, name)

    def _incomplete(self, level: Level, needed: int) -> bool:
        if level.inflation is not None:
            if level.inflation.ended:
                return self._fault("partial-frame", "a compressed frame ends with a partial frame")
            level.want(needed)
            return True
        # On the connection the rest will come.  What is here is gathered, and looked at again when
        # there is enough: a frame in many pieces costs linear time.
        rest = level.nbytes[level.position :]
        self._gathered.add(rest)
        self._begins, self._needed = rest[:2], needed
        level.nbytes, level.position = b"", 0
        return False

    # Each scan begins where a whole header stands, and leaves level.position behind what it read.

    def _scan_window(self, level: Level) -> bool:
        version, _, size = SHORT.unpack_from(level.nbytes, level.position)
        if size > self._window_max:
            return self._above("window-limit", f"a window of {size}", "window")
        level.position += SHORT.size
        self._budget -= SHORT.size
        self._frames.append(Window(version, size, len(self._levels) > 1))
        return True

    def _scan_ack(self, level: Level) -> bool:
        """Refuse a frame that only readers send (``LJ-05``)."""
        frame = level.nbytes[level.position : level.position + SHORT.size]
        return self._fault("wrong-role", "a frame 'A' from a writer", frame)

    def _scan_json(self, level: Level) -> bool:
        """Return a run of J frames, with the W frames among them.

        What can be checked for a whole run is not checked for each frame: a document that is here
        in full can be above its limit only if more bytes than the limit are here.
        """
        data, start, end = level.nbytes, level.position, len(level.nbytes)
        # The budget bounds bytes and, by their weight, the number of small documents.
        budget = self._budget
        run = frames.json_run(
            data,
            start,
            min(end, start + budget),
            budget // MESSAGE_WEIGHT_BYTES + 1,
            self._window_max,
            budget // STEP_WEIGHT_BYTES + 1,
        )
        too_long = 0
        position, sequences, bodies, windows, needed = run
        if position + needed - start > self._json_bytes_max:  # or none is above the limit
            run, too_long = frames.cut_at_limit(run, self._json_bytes_max)
            position, sequences, bodies, windows, needed = run
        if position == start and not needed and not too_long:
            return self._scan_window(level)  # it is no usual one, or the last of all bytes
        level.position = position
        compressed = len(self._levels) > 1
        count = len(sequences)
        if count:
            size = bodies.bounds[-1] + LONG.size * count
            self._budget = budget - size - MESSAGE_WEIGHT_BYTES * count
            version = data[start]
            self._frames.append(Json(version, sequences, bodies, size, compressed, windows))
        else:
            self._frames += [Window(data[start], size, compressed) for _, size in windows]
        self._budget -= (STEP_WEIGHT_BYTES + SHORT.size) * len(windows)
        if too_long:
            return self._above("json-limit", f"a document of {too_long} bytes", "json-bytes")
        if needed:
            return self._incomplete(level, needed)
        return True

    def _scan_data(self, level: Level) -> bool:
        """Return whole D frames within every limit; others are left to :meth:`_scan_pairs`."""
        if frames.scan is None:
            return self._begin_data(level)
        start = level.position
        budget = self._budget
        level.position, sequences, pairs, unusual = frames.data_run(
            level.nbytes,
            start,
            min(len(level.nbytes), start + budget),
            budget // MESSAGE_WEIGHT_BYTES + 1,
            budget // PAIR_WEIGHT_BYTES + 1,
            self._data_limits,
        )
        if sequences:
            size = level.position - start
            self._spend_on_data(size, len(sequences), pairs.bounds[-1])
            self._add_data(level.nbytes[start], sequences, pairs, size)
        return not unusual or self._begin_data(level)

    def _begin_data(self, level: Level) -> bool:
        head, sequence, count = LONG.unpack_from(level.nbytes, level.position)
        if count > self._data_limits.pairs:
            return self._fault("pairs-limit", f"{count} pairs, at most {PAIRS_MAX}")
        start = level.nbytes[level.position : level.position + FAULT_BYTES]
        level.position += LONG.size
        self._partial = PartialData(head >> 8, sequence, count, count, start)
        return True

    def _scan_pairs(self, level: Level, partial: PartialData) -> bool:
        invalid_before = partial.invalid_texts
        level.position, needed, above = partial.read(
            level.nbytes, level.position, self._data_limits
        )
        self.invalid_texts += partial.invalid_texts - invalid_before
        if above:
            return self._above(*above)
        if needed:
            return self._incomplete(level, needed)
        self._partial = None
        self._spend_on_data(partial.nbytes, 1, partial.pair_count)
        self._add_data(
            partial.version, PackedNumbers("q", [partial.sequence]), [partial.pairs], partial.nbytes
        )
        return True

    def _spend_on_data(self, nbytes: int, frames: int, pairs: int) -> None:
        self._budget -= nbytes + MESSAGE_WEIGHT_BYTES * frames + PAIR_WEIGHT_BYTES * pairs

    def _add_data(
        self, version: int, sequences: PackedNumbers, pairs: Sequence[dict[str, str]], size: int
    ) -> None:
        compressed = len(self._levels) > 1
        run = self._frames[-1] if self._frames else None
        if (
            type(run) is Data
            and run.version == version
            and run.compressed is compressed
            and not kept_packed(run.pairs)
            and not kept_packed(pairs)
        ):
            run.sequences.extend(sequences)
            run.pairs = listed(run.pairs)
            run.pairs += pairs
            run.nbytes += size
        else:
            self._frames.append(Data(version, sequences, pairs, size, compressed))

    # ── C frames ────────────────────────────────────────────────────────────────────────────────

    def _begin_compressed(self, level: Level) -> bool:
        version, _, length = SHORT.unpack_from(level.nbytes, level.position)
        nested = len(self._levels) > 1
        if not length:
            return self._fault("compressed-limit", "a compressed frame of no bytes")
        if length > self._limits.integer("compressed-bytes"):
            text = f"a compressed frame of {length} bytes"
            return self._above("compressed-limit", text, "compressed-bytes")
        if len(self._levels) > COMPRESSION_DEPTH_MAX:
            depth = COMPRESSION_DEPTH_MAX
            return self._fault("compressed-depth", f"compressed frames deeper than {depth}")
        nested_bytes = self._nested_compressed_bytes + length if nested else 0
        if nested_bytes > self._limits.integer("inflated-bytes") // NESTED_SHARE:
            text = f"{nested_bytes} bytes of nested compressed frames"
            return self._above("compressed-limit", text, "inflated-bytes")
        if len(level.nbytes) - level.position < SHORT.size + length:
            return self._incomplete(level, SHORT.size + length)
        if nested:
            self._nested_compressed_bytes += length
        start = level.nbytes[level.position : level.position + FAULT_BYTES]
        begin = level.position + SHORT.size
        level.position = begin + length
        payload = memoryview(level.nbytes)[begin : level.position]
        return self._enter(Inflation(version, (payload,), start))

    def _enter(self, inflation: Inflation) -> bool:
        if len(self._levels) == 1:
            self._turns = 0
            self._oddities = (self.trailing_bytes, self.invalid_texts)
            ratio = self._limits.integer("inflated-ratio")
            self._inflated_max = max(
                self._limits.integer("inflated-bytes"), ratio * inflation.nbytes
            )
            self._count_anew()
            self._reading = _Reading.KEPT
            self._frames = self._kept = []
        self._descend(inflation)
        return True

    def _descend(self, inflation: Inflation) -> None:
        level = Level(inflation=inflation)
        level.want(1)
        self._levels.append(level)

    def _count_anew(self) -> None:
        self._inflated_bytes = 0
        self._nested_inflated_bytes = self._nested_compressed_bytes = 0

    def _refill(self, level: Level) -> bool:
        """Inflate one slice more; a C frame and all nested in it share one bound (``LJ-08``)."""
        inflation = level.inflation
        assert inflation is not None
        if self._reading is _Reading.KEPT and self._inflated_bytes >= self._slice_bytes:
            self._check()
            return True
        nested = len(self._levels) > 2
        usual = self._inflated_max == self._limits["inflated-bytes"]
        bound = "inflated-bytes" if usual else "inflated-ratio"
        room = self._inflated_max - self._inflated_bytes
        if nested:
            nested_room = self._limits.integer("inflated-bytes") - self._nested_inflated_bytes
            room, bound = min((room, bound), (nested_room, "inflated-bytes"))
        try:
            # One byte above the room tells "too much" from "just enough".
            chunks = inflation.more(min(room + 1, self._slice_bytes))
        except BrokenStream as error:
            return self._fault("zlib", str(error), inflation.start)
        size = sum(map(len, chunks))
        if size > room:
            text = f"inflates to more than {self._inflated_bytes + room} bytes"
            return self._above("inflated-limit", text, bound, inflation.start)
        self._budget -= size
        self._inflated_bytes += size
        if nested:
            self._nested_inflated_bytes += size
        level.add(chunks, size, inflation.ended)
        return True

    def _check(self) -> None:
        self._reading = _Reading.CHECKED
        # The frames in front of it are handed on first.
        self._budget = 0

    def _inspect_kept(self) -> bool:
        why = self._inspect(self._kept)
        if why is not None:
            outermost = self._levels[1].inflation
            assert outermost is not None
            return self._fault(*why, outermost.start)
        self._kept.clear()
        return True

    def _leave(self, level: Level) -> bool:
        inflation = level.inflation
        assert inflation is not None
        if self._reading is _Reading.KEPT and len(self._levels) == 2 and self._kept_many():
            self._check()
            return True
        self.trailing_bytes += inflation.trailing_bytes
        if len(self._levels) > 2:
            self._levels.pop()
        elif self._reading is _Reading.CHECKED:
            return self._inspect_kept() and self._rewind(inflation)
        else:
            self._ended(inflation)
        return True

    def _kept_many(self) -> bool:
        if len(self._kept) * STEP_WEIGHT_BYTES > max(self._slice_bytes, STEP_WEIGHT_BYTES):
            return True
        windows = sum(
            [
                len(frame.sequences) + len(frame.windows) if isinstance(frame, Json | Data) else 1
                for frame in self._kept
            ]
        )
        return windows > self._limits["compressed-windows"]

    def _rewind(self, inflation: Inflation) -> bool:
        self.trailing_bytes, self.invalid_texts = self._oddities
        self._count_anew()
        self._reading = _Reading.HANDED_ON
        self._frames = self._found
        self._levels.pop()
        self._descend(inflation.rewound())
        return True

    def _ended(self, inflation: Inflation) -> None:
        self._levels.pop()
        found = self._frames = self._found
        if self._kept:
            found += self._kept
            self._kept = []
        self._reading = _Reading.NONE
        found.append(Compressed(inflation.version))

    _SCANS = {  # noqa: RUF012 - a table of the class, never changed
        TYPE_WINDOW: (SHORT.size, _scan_json),
        TYPE_ACK: (SHORT.size, _scan_ack),
        TYPE_JSON: (LONG.size, _scan_json),
        TYPE_DATA: (LONG.size, _scan_data),
        TYPE_COMPRESSED: (SHORT.size, _begin_compressed),
    }
