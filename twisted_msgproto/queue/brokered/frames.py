"""A broker needs the envelopes and bodies of a frame; they stay as Arrow has them."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, TypeVar

import pyarrow as pa

from twisted_msgproto.core.broker.envelopes import head_of
from twisted_msgproto.core.broker.terms import LETTER_OCTETS
from twisted_msgproto.core.errors import QueueCorrupt

from ..arrays import compute, scalar_of
from ..checksum import crc32
from ..columns import RUNS
from ..format import Record, Segment
from ..schema import BODY, ENVELOPE, KNOWN_COLUMNS, MESSAGE_ID_INTEGER, OCTETS, stored_schema

COLUMNS_WORD = struct.Struct("<I")
SECOND = 1_000_000
WEIGHT_MAX = 2**32 - 1

_NONE = scalar_of(0, pa.int32())
_LETTER = scalar_of(LETTER_OCTETS, pa.int64())


def second(time: int) -> int:
    """Return µs since 1970 as whole seconds that fit 32 bits without a sign."""
    return min(max(time // SECOND, 0), WEIGHT_MAX)


def seconds(times: Sequence[int]) -> array[int]:
    try:
        return array("I", [time // SECOND for time in times])
    except OverflowError:
        return array("I", map(second, times))


class Messages(Protocol):
    """Neighbouring messages of the log, as far as they matter to a scan.

    The lists that its methods return have an item for each message.
    """

    first: int

    @property
    def count(self) -> int:
        """Return the number of messages."""

    def heads(self) -> Sequence[bytes | None]:
        """Return the head of each envelope; None where there is no envelope."""

    def only_head(self) -> bytes | None:
        """Return the head that all envelopes have; None if they differ, or one is missing."""

    def weights(self) -> array[int]:
        """Return what each message weighs: :func:`twisted_msgproto.core.broker.weight`."""

    def arrived(self) -> array[int]:
        """Return the second in which each message was received, since 1970 UTC."""


@dataclass(slots=True)
class Frame:
    """The messages of one frame, as far as they matter to a broker.

    ``numbers`` are the message ids where they are numbers; in the broker's own log these are the
    places.
    """

    first: int
    count: int
    times: Sequence[int]
    """The messages of each run were received at these times, µs since 1970 UTC."""
    counts: Sequence[int]
    envelopes: pa.BinaryArray
    bodies: pa.BinaryArray
    numbers: pa.Int64Array | None

    def received_at(self) -> Iterator[int]:
        """Yield for each message when it was received, µs since 1970 UTC."""
        for time, count in zip(self.times, self.counts, strict=True):
            for _ in range(count):
                yield time

    def received(self, row: int) -> int:
        """Return when the message ``row`` was received, µs since 1970 UTC."""
        for time, count in zip(self.times, self.counts, strict=True):
            if row < count:
                return time
            row -= count
        raise IndexError("a row behind the frame")

    def heads(self) -> list[bytes | None]:
        _, bounds, data = self.envelopes.buffers()
        start, stop = self.envelopes.offset, self.envelopes.offset + self.count + 1
        places = memoryview(bounds).cast("B").cast("i")[start:stop]
        octets = b"" if data is None else data.to_pybytes()
        return [
            octets[lo : min(hi, lo + int.from_bytes(octets[lo + 2 : lo + 4], "little"))]
            if lo < hi
            else None
            for lo, hi in pairwise(places)
        ]

    def only_head(self) -> bytes | None:
        """Return the head that all envelopes have; see :class:`Messages`."""
        if self.envelopes.null_count:
            return None
        try:
            head = head_of(self.envelopes[0].as_py())
        except ValueError:
            return None
        pc = compute()
        return head if pc.all(pc.starts_with(self.envelopes, head)).as_py() else None

    def weights(self) -> array[int]:
        pc = compute()
        octets = pc.add(
            pc.fill_null(pc.binary_length(self.envelopes), _NONE),
            pc.fill_null(pc.binary_length(self.bodies), _NONE),
        )
        column = pc.add(octets.cast(pa.int64()), _LETTER).cast(pa.uint32())
        weights = array("I")
        start = weights.itemsize * column.offset
        weights.frombytes(column.buffers()[1].slice(start, weights.itemsize * self.count))
        return weights

    def arrived(self) -> array[int]:
        """Return the second in which each message was received; see :class:`Messages`."""
        arrived = array("I")
        for time, count in zip(self.times, self.counts, strict=True):
            arrived.extend(array("I", [second(time)]) * count)
        return arrived


GATHERED_MESSAGES = 4096
"""Neighbouring frames are joined up to this many messages: each step costs the same for one
message as for a thousand.
"""


Others = TypeVar("Others", bound=Messages)


def gathered(parts: Iterable[Frame | Others]) -> Iterator[Frame | Others]:
    """Yield the same messages in fewer frames: neighbours are joined.  Other parts stay."""
    joined: list[Frame] = []
    count = 0
    for frame in parts:
        if joined and (
            not isinstance(frame, Frame)
            or frame.first != joined[-1].first + joined[-1].count
            or count + frame.count > GATHERED_MESSAGES
        ):
            yield _joined(joined)
            joined, count = [], 0
        if isinstance(frame, Frame):
            joined.append(frame)
            count += frame.count
        else:
            yield frame
    if joined:
        yield _joined(joined)


def _joined(frames: list[Frame]) -> Frame:
    if len(frames) == 1:
        return frames[0]
    return Frame(
        frames[0].first,
        sum([frame.count for frame in frames]),
        [time for frame in frames for time in frame.times],
        [count for frame in frames for count in frame.counts],
        pa.concat_arrays([frame.envelopes for frame in frames]),
        pa.concat_arrays([frame.bodies for frame in frames]),
        None,
    )


def may_have_envelopes(segment: Segment, record: Record) -> bool:
    """Return whether a frame has the column of envelopes, by the first octets of its payload."""
    position = record.end_position - record.octets + 32
    octets = segment.octets(position, COLUMNS_WORD.size) if record.runs else b""
    if len(octets) < COLUMNS_WORD.size:
        return False
    return bool(COLUMNS_WORD.unpack(octets)[0] & ENVELOPE)


def read_frame(segment: Segment, record: Record) -> Frame | None:
    """Return a frame's messages; None if none of them has an envelope.

    Raises QueueCorrupt for a damaged one, OSError from the disk.
    """
    payload = segment.payload(record)
    if crc32(payload) != record.payload_crc:
        raise QueueCorrupt("checksum")
    try:
        columns, runs, _, _ = RUNS.unpack_from(payload)
        if not columns & ENVELOPE:
            return None
        if columns & ~KNOWN_COLUMNS:
            raise ValueError(f"unknown columns {columns:#x}")
        times = struct.unpack_from(f"<{runs}q", payload, RUNS.size)
        counts = struct.unpack_from(f"<{runs}I", payload, RUNS.size + 8 * runs)
        schema = stored_schema(columns)
        batch = pa.ipc.read_record_batch(pa.py_buffer(payload[record.runs :]), schema)
        if not sum(counts) == batch.num_rows == record.count:
            raise ValueError(f"not {record.count} messages")
        nothing = pa.nulls(record.count, OCTETS)
        bodies = batch.column("body") if columns & BODY else nothing
        integers = columns & MESSAGE_ID_INTEGER
        return Frame(
            record.first,
            record.count,
            times,
            counts,
            batch.column("envelope"),
            bodies,
            batch.column("message_id") if integers else None,
        )
    except Exception as error:  # nonsense is met by struct and Arrow, each in its way
        raise QueueCorrupt(f"the record at offset {record.first} makes no sense: {error}") from None
