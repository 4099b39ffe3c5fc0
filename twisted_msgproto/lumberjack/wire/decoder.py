"""Decode what a reader reads: runs of data frames, windows, and compressed frames."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, cast

from ...core.errors import Fault
from ...core.limits import Limits
from ...core.packed import PackedNumbers, PackedOctets, kept_packed, listed
from . import scan
from .frames import (
    COMPRESSION_DEPTH_MAX,
    FAULT_OCTETS,
    LENGTH,
    LIMITS,
    LONG,
    MESSAGE_WEIGHT_OCTETS,
    SHORT,
    STEP_WEIGHT_OCTETS,
    TYPE_ACK,
    TYPE_COMPRESSED,
    TYPE_DATA,
    TYPE_JSON,
    TYPE_WINDOW,
    VERSIONS,
    Ack,
    Compressed,
    Data,
    Frame,
    Json,
    Window,
)

_inflating: Any = zlib
_INFLATE_ERRORS: tuple[type[Exception], ...] = (zlib.error,)
try:
    # isal inflates two to three times faster; zlib does the same work where it is not installed.
    from isal import isal_zlib

    _inflating = isal_zlib
    _INFLATE_ERRORS = (zlib.error, cast(type[Exception], isal_zlib.error))
except ImportError:  # pragma: no cover - the tests run with the extra
    pass


@dataclass(slots=True)
class _Level:
    """Is one stream of frames: the connection's own (index 0), or what a C frame inflated to."""

    octets: bytes = b""
    position: int = 0
    version: int = 0  # of the C frame around it


@dataclass(slots=True)
class _PartialData:
    """Keeps what was read of an incomplete D frame, so that nothing is read twice."""

    version: int
    sequence: int
    missing: int  # pairs
    start: bytes  # its first octets, for the log
    octets: int = LONG.size
    pairs: dict[str, str] = field(default_factory=dict)
    key: str | None = None  # read, its value is not


@dataclass(slots=True)
class _Inflation:
    """A C frame on its way to be a level: inflated in steps, none larger than a slice."""

    version: int
    inflater: Any
    tail: bytes
    start: bytes  # its first octets, for the log
    chunks: list[bytes] = field(default_factory=list)


class Decoder:
    """Turns octets into frames.

    ``feed(octets)`` returns the complete frames; call ``feed(b"")`` again as long as ``unfinished``
    is
    true: a compressed frame may hold more than one turn should decode.  After a :class:`Fault`
    nothing is decoded any more.

    Attributes:
        clean: nothing waits for more octets or another call: the stream stands between two frames.
        unfinished: whole frames are here that the last call did not come to.
        trailing_octets: octets that stood behind the end of zlib streams, ignored (``LJ-08``).
        invalid_texts: keys and values that were not UTF-8, kept (``LJ-03``).
    """

    def __init__(self, limits: Limits | None = None) -> None:
        """``limits`` holds at least :data:`LIMITS`; their defaults where it is None."""
        limits = Limits.of(LIMITS) if limits is None else limits
        self._compressed_octets_max = limits.integer("compressed-octets")
        self._inflated_octets_max = limits.integer("inflated-octets")
        self._json_octets_max = limits.integer("json-octets")
        self._data_limits = scan.DataLimits(
            limits.integer("pairs"),
            limits.integer("key-octets"),
            limits.integer("value-octets"),
            limits.integer("data-octets"),
        )
        self._window_max = limits.integer("window")
        self._slice_octets = limits.integer("slice-octets")

        # So short that no number of frames in it is above what one call decodes, nor a document
        # above its limit.
        self._usual_octets_max = min(
            self._json_octets_max, self._slice_octets // (STEP_WEIGHT_OCTETS // SHORT.size + 2)
        )
        self.clean = True

        self.unfinished = False
        self.trailing_octets = 0
        self.invalid_texts = 0

        self._levels = [_Level()]  # the innermost stream of frames is the last
        self._inflation: _Inflation | None = None
        self._inflated_octets = 0  # of the outermost C frame that is being read
        self._partial: _PartialData | None = None
        self._keys: list[scan.KnownKey] = []  # of the last D frame, as they stood there
        self._gathered = bytearray()  # the start of a frame that is known to be longer
        self._needed = 0  # octets; nothing can be decoded before this many were gathered
        self._frames: list[Frame | Fault] = []
        self._budget = 0  # octets that this call may still decode
        self._failed = False

    @property
    def incomplete(self) -> bool:
        """The start of a frame is here, and its end is not (or was not reached yet)."""
        return (
            bool(self._gathered)
            or self._partial is not None
            or self._inflation is not None
            or len(self._levels) > 1
            or self._levels[0].position < len(self._levels[0].octets)
        )

    @property
    def first_octets(self) -> bytes:
        """How the frame starts that is read now or has begun; empty between frames."""
        if self._inflation is not None:
            return self._inflation.start
        if self._partial is not None:
            return self._partial.start
        level = self._levels[-1]
        octets = level.octets[level.position : level.position + FAULT_OCTETS]
        return octets or bytes(self._gathered[:FAULT_OCTETS])

    @property
    def held_octets(self) -> int:
        """Return how many octets the decoder holds."""
        held = len(self._gathered) + sum(len(level.octets) for level in self._levels)
        if self._inflation is not None:
            held += len(self._inflation.tail) + sum(map(len, self._inflation.chunks))
        if self._partial is not None:
            held += self._partial.octets
        return held

    def feed(self, octets: bytes) -> list[Frame | Fault]:
        """Whole frames among what has arrived so far, perhaps with a Fault as the last item."""
        if self.clean and len(octets) <= self._usual_octets_max:
            usual = self._usual_read(octets)
            if usual is not None:
                return [usual]
        if self._failed or not self._take_in(octets):
            return []
        frames: list[Frame | Fault] = []
        self._frames = frames
        self._budget = self._slice_octets
        # Each step either moves on and returns True, or can do no more and returns False.
        more = True
        while more and self._budget > 0:
            more = self._step()
            self._budget -= STEP_WEIGHT_OCTETS
        outer = self._levels[0]
        if outer.position == len(outer.octets):
            outer.octets, outer.position = b"", 0
        # Not when the last step could do no more: then only further octets help.
        incomplete = self.incomplete
        self.unfinished = more and incomplete
        self.clean = not incomplete and not self._failed
        self._frames = []
        return frames

    def _usual_read(self, octets: bytes) -> Json | None:
        """A read that is nothing but one run of J frames, as a small window mostly is, or None.

        What is below would find the same, but it is ready for everything, and a small window costs
        as much as the code it goes through.
        """
        size = len(octets)
        if size < LONG.size or octets[0] not in VERSIONS:
            return None
        position, sequences, bodies, windows, _ = scan.json_run(
            octets, 0, size, size, self._window_max, size
        )
        if position < size or not sequences:
            return None
        octets_of_run = bodies.bounds[-1] + LONG.size * len(sequences)
        return Json(octets[0], sequences, bodies, octets_of_run, False, windows)

    def _take_in(self, octets: bytes) -> bool:
        """Join ``octets`` to what waits; False if that is known to be less than a frame."""
        outer = self._levels[0]
        if self._gathered:
            if len(self._gathered) + len(octets) < self._needed:
                self._gathered += octets
                return False
            outer.octets, outer.position = b"".join((self._gathered, octets)), 0
            self._gathered = bytearray()
        elif octets:
            rest = outer.octets[outer.position :]
            outer.octets, outer.position = (rest + octets if rest else octets), 0
        return True

    def _fail(self) -> None:
        """Let go of everything: after a fault nothing is read."""
        self._failed = True
        self.unfinished = False
        self._levels = [_Level()]
        self._inflation = self._partial = None
        self._gathered = bytearray()

    def _step(self) -> bool:
        if self._inflation is not None:
            return self._inflate(self._inflation)
        level = self._levels[-1]
        if self._partial is not None:
            return self._scan_pairs(level, self._partial)
        octets, position = level.octets, level.position
        available = len(octets) - position
        if not available:
            return len(self._levels) > 1 and self._leave_level()
        if octets[position] not in VERSIONS:
            return self._fault("version", f"version octet {octets[position]:#04x}, not '1' or '2'")
        if available < 2:
            return self._incomplete(level, 2)
        known = self._SCANS.get(octets[position + 1])
        if known is None:
            return self._fault("frame-type", f"frame type {octets[position + 1]:#04x}")
        needed, scan_frames = known
        if available < needed:
            return self._incomplete(level, needed)
        return scan_frames(self, level)

    def _fault(self, reason: str, text: str) -> bool:
        self._frames.append(Fault(reason, text, self.first_octets))
        self._fail()
        return False

    def _incomplete(self, level: _Level, needed: int) -> bool:
        """What begins at this position wants ``needed`` octets, and they are not here."""
        if len(self._levels) > 1:
            return self._fault("partial-frame", "a compressed frame ends with a partial frame")
        # On the connection the rest will come.  What is here is gathered in a growing buffer and
        # looked at again when there is enough: a frame in many pieces costs linear time.
        self._gathered = bytearray(memoryview(level.octets)[level.position :])
        self._needed = needed
        level.octets, level.position = b"", 0
        return False

    # Each scan begins where a whole header stands, and leaves level.position behind what it read.

    def _scan_window(self, level: _Level) -> bool:
        version, _, size = SHORT.unpack_from(level.octets, level.position)
        if size > self._window_max:
            return self._fault("window-limit", f"a window of {size}, at most {self._window_max}")
        level.position += SHORT.size
        self._budget -= SHORT.size
        self._frames.append(Window(version, size, len(self._levels) > 1))
        return True

    def _scan_ack(self, level: _Level) -> bool:
        version, _, sequence = SHORT.unpack_from(level.octets, level.position)
        level.position += SHORT.size
        self._budget -= SHORT.size
        self._frames.append(Ack(version, sequence))
        return True

    def _scan_json(self, level: _Level) -> bool:
        """Return a run of J frames, with the W frames among them.

        What can be checked for a whole run is not checked for each frame: a document that is here
        in full can be above its limit only if more octets than the limit are here.
        """
        octets, start, end = level.octets, level.position, len(level.octets)
        # The budget bounds octets and, by their weight, the number of small documents.
        budget = self._budget
        run = scan.json_run(
            octets,
            start,
            min(end, start + budget),
            budget // MESSAGE_WEIGHT_OCTETS + 1,
            self._window_max,
            budget // STEP_WEIGHT_OCTETS + 1,
        )
        too_long = 0
        position, sequences, bodies, windows, needed = run
        if position + needed - start > self._json_octets_max:  # or none is above the limit
            run, too_long = self._cut_at_limit(run)
            position, sequences, bodies, windows, needed = run
        if position == start and not needed and not too_long:
            return self._scan_window(level)  # it is no usual one, or the last of all octets
        level.position = position
        compressed = len(self._levels) > 1
        count = len(sequences)
        if count:
            size = bodies.bounds[-1] + LONG.size * count
            self._budget = budget - size - MESSAGE_WEIGHT_OCTETS * count
            version = octets[start]
            self._frames.append(Json(version, sequences, bodies, size, compressed, windows))
        else:
            self._frames += [Window(octets[start], size, compressed) for _, size in windows]
        if windows:
            self._budget -= (STEP_WEIGHT_OCTETS + SHORT.size) * len(windows)
        if too_long:
            text = f"a document of {too_long} octets, at most {self._json_octets_max}"
            return self._fault("json-limit", text)
        if needed:
            return self._incomplete(level, needed)
        return position < end or compressed  # with nothing left a further step is spared

    def _cut_at_limit(self, run: scan.JsonRun) -> tuple[scan.JsonRun, int]:
        """Return what stands before the first document above the limit, and the octets of that, or
        0.
        """
        position, sequences, bodies, windows, needed = run
        bounds = bodies.bounds
        for row, (begin, end) in enumerate(pairwise(bounds)):
            if end - begin > self._json_octets_max:
                kept = [window for window in windows if window[0] <= row]
                left = (bounds[-1] - begin) + LONG.size * (len(bodies) - row)
                left += SHORT.size * (len(windows) - len(kept))
                columns = (
                    PackedNumbers("q", sequences[:row]),
                    PackedOctets(bodies.octets[:begin], bounds[: row + 1]),
                )
                return (position - left, *columns, kept, 0), end - begin
        too_long = needed - LONG.size
        return run, too_long if too_long > self._json_octets_max else 0

    def _scan_data(self, level: _Level) -> bool:
        """Return a run of D frames that are all here and keep every limit: the usual case, and
        quick.

        A frame that is anything but usual is left to :meth:`_scan_pairs`, from its start.
        """
        start = level.position
        stop = min(len(level.octets), start + self._budget)
        count_max = self._budget // MESSAGE_WEIGHT_OCTETS + 1
        run = scan.data_run(level.octets, start, stop, count_max, self._data_limits, self._keys)
        level.position = run.position
        if run.sequences:
            size = run.position - start
            self._budget -= size + MESSAGE_WEIGHT_OCTETS * len(run.sequences)
            self._add_data(level.octets[start], run.sequences, run.pairs, size)
        return not run.unusual or self._begin_data(level)

    def _begin_data(self, level: _Level) -> bool:
        head, sequence, count = LONG.unpack_from(level.octets, level.position)
        pairs_max = self._data_limits.pairs
        if count > pairs_max:
            return self._fault("pairs-limit", f"{count} pairs, at most {pairs_max}")
        start = level.octets[level.position : level.position + FAULT_OCTETS]
        level.position += LONG.size
        self._partial = _PartialData(head >> 8, sequence, count, start)
        return True

    def _scan_pairs(self, level: _Level, partial: _PartialData) -> bool:
        """Continue the D frame that has begun, as far as the octets reach."""
        octets, position, end = level.octets, level.position, len(level.octets)
        unpack = LENGTH.unpack_from
        limits = self._data_limits.key_octets, self._data_limits.value_octets
        pairs, key, missing = partial.pairs, partial.key, partial.missing
        needed = 0
        fault: tuple[str, str] | None = None
        while missing:
            text_start = position + 4
            if text_start > end:
                needed = 4
                break
            (length,) = unpack(octets, position)
            if length > limits[key is not None]:
                what = "key" if key is None else "value"
                limit = limits[key is not None]
                fault = (f"{what}-limit", f"a {what} of {length} octets, at most {limit}")
                break
            text_end = text_start + length
            if text_end > end:
                needed = 4 + length
                break
            raw = octets[text_start:text_end]
            try:
                text = raw.decode()
            except UnicodeDecodeError:
                self.invalid_texts += 1
                text = raw.decode("utf-8", "surrogateescape")
            position = text_end
            if key is None:
                key = text
            else:
                pairs[key] = text
                key = None
                missing -= 1
        partial.octets += position - level.position
        partial.key, partial.missing = key, missing
        level.position = position
        octets_max = self._data_limits.octets
        if partial.octets > octets_max:
            fault = ("data-limit", f"a data frame of more than {octets_max} octets")
        if fault:
            return self._fault(*fault)
        if needed:
            return self._incomplete(level, needed)
        self._partial = None
        self._budget -= partial.octets + MESSAGE_WEIGHT_OCTETS
        self._add_data(
            partial.version, PackedNumbers("q", [partial.sequence]), [pairs], partial.octets
        )
        return True

    def _add_data(
        self, version: int, sequences: PackedNumbers, pairs: Sequence[dict[str, str]], size: int
    ) -> None:
        """Put whole D frames into the run that they continue, or begin a new run."""
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
            run.octets += size
        else:
            self._frames.append(Data(version, sequences, pairs, size, compressed))

    def _begin_compressed(self, level: _Level) -> bool:
        version, _, length = SHORT.unpack_from(level.octets, level.position)
        if not 0 < length <= self._compressed_octets_max:
            limit = self._compressed_octets_max
            return self._fault(
                "compressed-limit", f"a compressed frame of {length} octets, 1 to {limit}"
            )
        if len(self._levels) > COMPRESSION_DEPTH_MAX:
            depth = COMPRESSION_DEPTH_MAX
            return self._fault("compressed-depth", f"compressed frames deeper than {depth}")
        if len(level.octets) - level.position < SHORT.size + length:
            return self._incomplete(level, SHORT.size + length)
        if len(self._levels) == 1:
            self._inflated_octets = 0
        start = level.octets[level.position : level.position + FAULT_OCTETS]
        begin = level.position + SHORT.size
        level.position = begin + length
        payload = level.octets[begin : level.position]
        self._inflation = _Inflation(version, _inflating.decompressobj(), payload, start)
        return True

    def _inflate(self, inflation: _Inflation) -> bool:
        """Inflate one slice more; a C frame and all nested in it share one bound (``LJ-08``)."""
        room = self._inflated_octets_max - self._inflated_octets
        inflater = inflation.inflater
        try:
            # One octet above the room tells "too much" from "just enough".
            chunk = inflater.decompress(inflation.tail, min(room + 1, self._slice_octets))
        except _INFLATE_ERRORS as error:
            return self._fault("zlib", f"a compressed frame is not zlib: {error}")
        self._inflated_octets += len(chunk)
        self._budget -= len(chunk)
        if len(chunk) > room:
            limit = self._inflated_octets_max
            return self._fault("inflated-limit", f"inflates to more than {limit} octets")
        inflation.chunks.append(chunk)
        inflation.tail = inflater.unconsumed_tail
        if not inflater.eof:
            if chunk or inflation.tail:
                return True
            return self._fault("zlib", "the zlib stream of a compressed frame is unfinished")
        self.trailing_octets += len(inflater.unused_data)
        self._levels.append(_Level(b"".join(inflation.chunks), 0, inflation.version))
        self._inflation = None
        return True

    def _leave_level(self) -> bool:
        level = self._levels.pop()
        if len(self._levels) == 1:
            self._frames.append(Compressed(level.version))
        return True

    _SCANS = {  # noqa: RUF012 - a table of the class, never changed
        TYPE_WINDOW: (SHORT.size, _scan_json),
        TYPE_ACK: (SHORT.size, _scan_ack),
        TYPE_JSON: (LONG.size, _scan_json),
        TYPE_DATA: (LONG.size, _scan_data),
        TYPE_COMPRESSED: (SHORT.size, _begin_compressed),
    }
    """This maps a frame's type to the octets of its header, and to the function that reads on
    from there.
    """
