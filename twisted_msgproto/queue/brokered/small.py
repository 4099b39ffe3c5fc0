"""Read frames of a few messages without Arrow, as far as a scan needs them.

Messages that come slowly are synced one by one, so each has a frame of its own, and Arrow takes
longer to begin with a frame than with a thousand messages.  Where the columns of a frame stand is
written in Arrow's metadata.  Frames with the same columns and as many messages have the same
metadata but for some numbers: a :class:`Layout` knows where these stand.  A frame that differs in
anything else, or whose checksum is wrong, is left to Arrow.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise, repeat
from typing import NamedTuple

import pyarrow as pa

from twisted_msgproto.core.broker.terms import LETTER_OCTETS

from ..checksum import crc32
from ..columns import RUNS
from ..format import FRAME_HEADER, FRAME_HEADER_OCTETS, FRAME_MARKER, Segment
from ..schema import BODY, ENVELOPE, KNOWN_COLUMNS, TYPES
from .frames import GATHERED_MESSAGES, seconds

SMALL_MESSAGES = 32
"""A frame of more messages is read with Arrow, which is faster then."""
SMALL_OCTETS = 16 << 10
"""So much is read at once behind the beginning of a frame.  A larger one may be left to Arrow: most
of the time goes to its checksum then.
"""
LAYOUTS_MAX = 1024

_SHAPE = slice(24, FRAME_HEADER_OCTETS + 8)
"""Here a frame says how many messages, octets of runs, columns and runs it has."""
_PREFIX = struct.Struct("<II")
"""Arrow's message begins with a continuation marker and the number of octets of its metadata."""
_HEADER, _BODY_LENGTH = 2, 3
"""Of the fields of Arrow's message, these are the record batch and the length of its columns."""
_BATCH_LENGTH, _BATCH_BUFFERS, _BATCH_FIELDS_OCTETS = 0, 2, 10
"""Of three fields of a record batch the first is the number of its rows, and the third lists the
buffers of its columns.
"""
_LENGTH_OCTETS = 8
_BUFFERS = {bit: len(pa.nulls(0, kind).buffers()) for bit, kind in TYPES.items()}
"""A column of the record batch has this many buffers; of each stands its place and its length."""
_BUFFER_OCTETS = 16
_COUNT = struct.Struct("<I")
_ONE = _COUNT.pack(1)
_NO_BODIES = (0,) * (SMALL_MESSAGES + 1)


@dataclass(slots=True)
class Few:
    """The messages of neighbouring small frames, without their bodies.

    It may be added to a scan, as a :class:`~.frames.Frame` may.
    """

    first: int
    _heads: list[bytes | None] = field(default_factory=list)
    _weights: list[int] = field(default_factory=list)
    _times: list[int] = field(default_factory=list)  # µs since 1970 UTC

    @property
    def count(self) -> int:
        return len(self._heads)

    @property
    def end(self) -> int:
        return self.first + len(self._heads)

    def heads(self) -> Sequence[bytes | None]:
        """Return the head of each envelope; None where there is no envelope."""
        return self._heads

    def only_head(self) -> bytes | None:
        """Return the head that all envelopes have; None if they differ, or one is missing."""
        head = self._heads[0]
        return head if self._heads.count(head) == len(self._heads) else None

    def weights(self) -> array[int]:
        return array("I", self._weights)

    def arrived(self) -> array[int]:
        return seconds(self._times)

    def add(self, head: bytes | None, weight: int, time: int) -> None:
        """Add a message that was received at ``time``, in µs since 1970 UTC."""
        self._heads.append(head)
        self._weights.append(weight)
        self._times.append(time)

    def add_all(
        self, heads: Sequence[bytes | None], weights: Sequence[int], times: Sequence[int]
    ) -> None:
        self._heads += heads
        self._weights += weights
        self._times += times


class Layout(NamedTuple):
    """Where the numbers of a frame stand, and what has to stand around them.

    ``frame`` reads a frame from its beginning: its header up to the first message's offset; its
    ``shape``; the time of the first run, and the other times and all counts; what Arrow's message
    has ``before`` the length of its columns, and ``after`` it, up to the list of their buffers; and
    of that list where the bounds of the bodies stand, the bounds of the envelopes, and the
    envelopes.  These are counted from ``columns_at``, where in the frame the columns begin.
    """

    frame: struct.Struct
    shape: bytes
    before: bytes
    after: bytes
    columns_at: int
    bounds: struct.Struct
    messages: int
    columns: int

    def fits(self, frame: bytes) -> bool:
        try:
            values = self.frame.unpack_from(frame)
        except struct.error:
            return False
        return (values[5], *values[8:10]) == (self.shape, self.before, self.after)

    def add(
        self,
        few: Few,
        octets: bytes,
        at: int,
        end: int,
        time: int,
        runs: bytes,
        bodies_at: int,
        bounds_at: int,
        start: int,
    ) -> bool:
        """Add the messages of the frame from ``at`` to ``end``; it was checked and has this layout.

        The other arguments are what ``frame`` has read.  False if they make no sense.
        """
        columns = at + self.columns_at
        start += columns
        try:
            bounds = self.bounds.unpack_from(octets, columns + bounds_at)
            bodies = _NO_BODIES[: self.messages + 1]
            if self.columns & BODY:
                bodies = self.bounds.unpack_from(octets, columns + bodies_at)
            if start + bounds[-1] > end:
                return False
            if self.messages == 1 and runs == _ONE:
                lo, hi = bounds
                few.add(
                    _head(octets, start + lo, start + hi),
                    LETTER_OCTETS + hi - lo + bodies[1] - bodies[0],
                    time,
                )
            else:
                spans = list(pairwise(bounds))
                sizes = [hi - lo for lo, hi in pairwise(bodies)]
                few.add_all(
                    [_head(octets, start + lo, start + hi) for lo, hi in spans],
                    [
                        LETTER_OCTETS + hi - lo + size
                        for (lo, hi), size in zip(spans, sizes, strict=True)
                    ],
                    _times(time, runs, self.messages),
                )
        except (struct.error, IndexError):
            return False
        return True


def _head(octets: bytes, lo: int, hi: int) -> bytes | None:
    head = octets[lo : lo + (octets[lo + 2] | octets[lo + 3] << 8)] if lo < hi else None
    return octets[lo:hi] if head and len(head) > hi - lo else head


def _times(time: int, runs: bytes, count: int) -> list[int]:
    """Return when each message was received; ``runs`` are the first count, or the other times and
    all counts.  Raises struct.error if they count other messages than ``count``.
    """
    if runs == _COUNT.pack(count):
        return [time] * count
    others = (len(runs) - 4) // 12
    numbers = struct.unpack(f"<{others}q{others + 1}I", runs)
    times, counts = (time, *numbers[:others]), numbers[others:]
    if sum(counts) != count:
        raise struct.error("the runs have other messages")
    return list(chain(*map(repeat, times, counts)))


def layout_of(frame: bytes) -> Layout | None:
    """Return the layout of a frame that was checked; None if Arrow has to read it."""
    try:
        return _layout(frame)
    except struct.error:  # a frame that makes no sense
        return None


def _layout(frame: bytes) -> Layout | None:
    *_, count, runs_octets = FRAME_HEADER.unpack_from(frame)
    columns, runs, _, _ = RUNS.unpack_from(frame, FRAME_HEADER_OCTETS)
    shape, bounds = frame[_SHAPE], struct.Struct(f"<{count + 1}i")
    head = f"<4sIIIQ{len(shape)}s"
    if not columns & ENVELOPE:
        form = struct.Struct(f"{head}{7 * '0s'}")
        return Layout(form, shape, b"", b"", 0, bounds, count, columns)
    message_at = FRAME_HEADER_OCTETS + runs_octets
    message = frame[message_at:]
    length_at, buffers_at = _places_in(message, count)
    columns_at = _PREFIX.size + _PREFIX.unpack_from(message)[1]
    (buffers,) = struct.unpack_from("<I", message, buffers_at - 4)
    if columns & ~KNOWN_COLUMNS or buffers != _buffers_below(columns, KNOWN_COLUMNS + 1):
        return None
    length_end = length_at + _LENGTH_OCTETS
    of_runs = f"8xq{12 * runs - 8}s{runs_octets - RUNS.size - 12 * runs}x"
    of_message = f"{length_at}s{_LENGTH_OCTETS}x{buffers_at - length_end}s"
    bodies = _BUFFER_OCTETS * (_buffers_below(columns, BODY) + 1)
    bounds_at = _BUFFER_OCTETS * (_buffers_below(columns, ENVELOPE) + 1)
    of_bodies = f"{bodies}xq{bounds_at - bodies - 8}x" if columns & BODY else f"0s{bounds_at}x"
    return Layout(
        struct.Struct(f"{head}{of_runs}{of_message}{of_bodies}q8xq"),
        shape,
        message[:length_at],
        message[length_end:buffers_at],
        message_at + columns_at,
        bounds,
        count,
        columns,
    )


def _buffers_below(columns: int, bit: int) -> int:
    return sum([number for one, number in _BUFFERS.items() if one & columns and one < bit])


def _places_in(message: bytes, count: int) -> tuple[int, int]:
    """Return where the length of the columns, and the first of their buffers, stand in Arrow's
    metadata.  It is a flatbuffer: tables that say where their fields are.

    Raises struct.error for what is none, for a batch that has not ``count`` rows, and for one with
    more fields: it may be compressed.
    """

    def number(form: str, at: int) -> int:
        return int(struct.unpack_from(form, message, at)[0])

    def fields_of(table: int) -> int:
        return table - number("<i", table)

    def field_at(table: int, field: int) -> int:
        return table + number("<H", fields_of(table) + 4 + 2 * field)

    def followed(at: int) -> int:
        return at + number("<I", at)

    whole = followed(_PREFIX.size)
    batch = followed(field_at(whole, _HEADER))
    if number("<H", fields_of(batch)) != _BATCH_FIELDS_OCTETS:
        raise struct.error("another table")
    if number("<q", field_at(batch, _BATCH_LENGTH)) != count:
        raise struct.error("other messages")
    return field_at(whole, _BODY_LENGTH), followed(field_at(batch, _BATCH_BUFFERS)) + 4


class SmallFrames:
    """A reader of the small frames of one segment."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._layouts: dict[bytes, Layout] = {}

    def read(self, position: int, expected: int, bound: int) -> tuple[Few, int]:
        """Read consecutive small frames from ``position`` on that begin below the offset ``bound``.

        ``expected`` is the offset of the first one.  Return their messages, at most about
        :data:`~.frames.GATHERED_MESSAGES`, and the position behind them.  Raises OSError.
        """
        few = Few(expected)
        bound = min(bound, expected + GATHERED_MESSAGES)
        taken = -1
        while taken and few.end < bound:
            octets, at = self._segment.at_hand(position, SMALL_OCTETS)
            taken = self._take(octets, at, few, bound)
            position += taken
        return few, position

    def _take(self, octets: bytes, begin: int, few: Few, bound: int) -> int:
        """Add the frames from ``begin`` on; return how many octets they have."""
        seed = self._segment.frame_seed
        at, expected = begin, few.end
        layout = self._layout_at(octets, at)
        while layout is not None and expected < bound:
            try:
                (
                    marker,
                    checksum,
                    payload_crc,
                    length,
                    first,
                    shape,
                    time,
                    runs,
                    before,
                    after,
                    bodies_at,
                    bounds_at,
                    start,
                ) = layout.frame.unpack_from(octets, at)
            except struct.error:
                break  # the octets end here
            if shape != layout.shape or before != layout.before or after != layout.after:
                layout = self._layout_at(octets, at, but=layout)
                continue
            payload = at + FRAME_HEADER_OCTETS
            end = payload + length
            if (
                marker != FRAME_MARKER
                or first != expected
                or end > len(octets)
                or crc32(octets[at + 8 : payload], seed) != checksum
                or crc32(octets[payload:end]) != payload_crc
            ):
                break
            if not layout.columns & ENVELOPE:
                nothing = [0] * layout.messages
                few.add_all([None] * layout.messages, nothing, nothing)
            elif not layout.add(few, octets, at, end, time, runs, bodies_at, bounds_at, start):
                break
            at = end
            expected += layout.messages
        return at - begin

    def _layout_at(self, octets: bytes, at: int, but: Layout | None = None) -> Layout | None:
        shape = octets[at + _SHAPE.start : at + _SHAPE.stop]
        layout = self._layouts.get(shape)
        if layout is None or layout is but:
            frame = self._checked(octets, at)
            layout = None if frame is None else layout_of(frame)
            if frame is None or layout is None or not layout.fits(frame):
                return None
            if len(self._layouts) >= LAYOUTS_MAX:
                self._layouts.clear()
            self._layouts[shape] = layout
        return layout

    def _checked(self, octets: bytes, at: int) -> bytes | None:
        if len(octets) - at < FRAME_HEADER_OCTETS:
            return None
        marker, checksum, payload_crc, length, _, count, runs = FRAME_HEADER.unpack_from(octets, at)
        payload = at + FRAME_HEADER_OCTETS
        end = payload + length
        if (
            marker != FRAME_MARKER
            or not 0 < count <= SMALL_MESSAGES
            or not RUNS.size <= runs <= length <= len(octets) - payload
            or crc32(octets[at + 8 : payload], self._segment.frame_seed) != checksum
            or crc32(octets[payload:end]) != payload_crc
        ):
            return None
        return octets[at:end]
