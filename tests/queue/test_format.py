"""The octets of segments, frames and sealed lines; every cut and every flipped bit of them."""

from __future__ import annotations

import errno
import os
from zlib import crc32

import pytest

from tests.sim.disk import SimulatedDisk, SimulatedFile
from tests.tools.queues import FRAME_MARKER, SEGMENT_HEADER_OCTETS
from twisted_msgproto.queue.format import (
    BLOCK_OCTETS,
    WINDOW_OCTETS,
    Damage,
    Identity,
    Record,
    Segment,
    SegmentHeader,
    pack_frame_header,
    read_readable,
)

IDENTITY = Identity("0123456789abcdef" * 2, b"8 octets")


def a_frame(first: int, count: int, payload: bytes, seed: int = IDENTITY.frame_seed) -> bytes:
    payload += bytes(-len(payload) % 8)
    header = pack_frame_header(
        seed, payload_crc=crc32(payload), octets=len(payload), first=first, count=count, runs=0
    )
    return header + payload


def a_segment(octets: bytes, *, first: int = 0) -> Segment:
    disk = SimulatedDisk()
    disk.make_directory("/q")
    file = disk.open("/q/segment", write=True)
    file.write(0, [SegmentHeader(1, IDENTITY, first).packed() + octets])
    return Segment(file, IDENTITY.frame_seed, first)


class Broken:
    """A file that cannot be read: EIO at first, then other errors."""

    def __init__(self, *errors: int) -> None:
        self.errors = list(errors)

    def size(self) -> int:
        return 2 * BLOCK_OCTETS

    def read(self, position: int, octets: int) -> bytes:
        error = self.errors.pop(0)
        raise OSError(error, os.strerror(error))


def test_only_what_the_disk_cannot_read_is_taken_for_zeros() -> None:
    """Want of memory is no damage, at the first read and at that of a block."""
    for errors in ([errno.ENOMEM], [errno.EIO, errno.ENOMEM], [errno.EIO, errno.EIO, errno.ENOMEM]):
        file = Broken(*errors)
        with pytest.raises(OSError) as told:
            read_readable(file, 0, 100, set())  # type: ignore[arg-type]
        assert (told.value.errno, file.errors) == (errno.ENOMEM, [])


def walked(segment: Segment, expected: int = 0) -> list[tuple[int, int]]:
    """What the segment's records hold, as ranges of offsets."""
    return [
        (item.first, item.end)
        for item in segment.walk(SEGMENT_HEADER_OCTETS, expected)
        if isinstance(item, Record)
    ]


def stretched(segment: Segment, bound: int) -> list[tuple[int, int, int, int | None]]:
    """The items of a walk in stretches, neighbouring records as one."""
    found: list[tuple[int, int, int, int | None]] = []
    for item in segment.walk(SEGMENT_HEADER_OCTETS, 0, bound=bound):
        if isinstance(item, Damage):
            found.append((item.position, item.end_position, item.lo, item.hi))
        elif found and found[-1][1] == item.position and found[-1][3] == item.first != 0:
            found[-1] = (found[-1][0], item.end_position, found[-1][2], item.end)
        else:
            found.append((item.position, item.end_position, item.first, item.end))
    return found


def test_records_in_stretches_are_the_same_records() -> None:
    """However the segment is spoiled, and also with frames larger than a window."""
    sizes = [3, 0, 40, 2 * WINDOW_OCTETS, 5, 5, WINDOW_OCTETS - 100, 9]
    octets = b"".join(a_frame(2 * n, 2, b"x" * size) for n, size in enumerate(sizes))
    whole = a_segment(octets)
    assert stretched(whole, 2**63) == [(SEGMENT_HEADER_OCTETS, whole.size, 0, 16)]
    items = list(whole.walk(SEGMENT_HEADER_OCTETS, 0, bound=4))
    ranges = [(item.first, item.end) for item in items if isinstance(item, Record)]
    assert ranges[:2] == [(0, 4), (4, 6)]
    for at in (70, 104, 264, len(octets) - 5, len(octets) // 2):
        spoiled = bytearray(octets)
        spoiled[at] ^= 1
        segment = a_segment(bytes(spoiled))
        slow = [item for item in segment.walk(SEGMENT_HEADER_OCTETS, 0) if isinstance(item, Damage)]
        fast = [
            item
            for item in segment.walk(SEGMENT_HEADER_OCTETS, 0, bound=2**63)
            if isinstance(item, Damage)
        ]
        assert slow == fast
        assert len(slow) == 1
    for length in range(0, 300, 7):
        segment = a_segment(octets[:length])
        assert stretched(segment, 2**63) == stretched(segment, 0)


def test_a_missing_record_is_damage_without_octets() -> None:
    segment = a_segment(a_frame(0, 1, b"") + a_frame(5, 1, b""))
    items = list(segment.walk(SEGMENT_HEADER_OCTETS, 0))
    gap = items[1]
    assert isinstance(gap, Damage)
    assert (gap.lo, gap.hi, gap.position == gap.end_position) == (1, 5, True)


def test_a_record_below_the_expected_offset_does_not_count() -> None:
    """A queue's own segment sent as a message's body is no record: its offsets are used up."""
    old = a_frame(0, 1, b"old")
    segment = a_segment(b"\0" * 8 + old + a_frame(7, 1, b"new"))
    assert walked(segment, 7) == [(7, 8)]


def test_a_frame_of_another_seed_does_not_count() -> None:
    """Nobody who lacks the seed can send a body which looks like a frame."""
    forged = a_frame(0, 1000, b"forged", seed=crc32(b"a guess!"))
    spoiled = b"\0" * 32 + forged
    assert walked(a_segment(spoiled + a_frame(1, 1, b""))) == [(1, 2)]


def test_a_record_is_found_behind_damage_larger_than_a_window() -> None:
    spoiled = b"\xff" * (WINDOW_OCTETS + 1003)
    assert walked(a_segment(spoiled + a_frame(9, 1, b"here"))) == [(9, 10)]


@pytest.mark.parametrize("before", range(40))
def test_a_record_is_found_wherever_its_header_lies_across_a_window(before: int) -> None:
    spoiled = b"\xff" * (WINDOW_OCTETS - SEGMENT_HEADER_OCTETS + SEGMENT_HEADER_OCTETS - before)
    assert walked(a_segment(spoiled + a_frame(9, 1, b"here") + b"tail")) == [(9, 10)]


class CountingFile:
    """Counts the octets read from another file."""

    def __init__(self, file: SimulatedFile) -> None:
        self._file = file
        self.octets = 0

    def size(self) -> int:
        return self._file.size()

    def read(self, position: int, octets: int) -> bytes:
        data = self._file.read(position, octets)
        self.octets += len(data)
        return data


def test_a_body_full_of_markers_is_looked_through_once() -> None:
    """What a peer sends cannot make the search for the next record slow."""
    segment = a_segment(FRAME_MARKER * (3 * WINDOW_OCTETS // 4) + a_frame(9, 1, b"here"))
    counting = CountingFile(segment.file)  # type: ignore[arg-type]
    segment.file = counting  # type: ignore[assignment]
    assert walked(segment) == [(9, 10)]
    assert counting.octets < 2 * segment.size


def test_locating_an_offset_reads_little_and_never_overshoots() -> None:
    """Reading from the middle of a segment costs the same wherever the middle is."""
    count = 3000
    octets = b"".join(a_frame(2 * n, 2, b"x" * 3000) for n in range(count))
    segment = a_segment(octets)
    assert segment.size > 8 * WINDOW_OCTETS
    for offset in (0, 1, 2, 77, 2 * count // 3, 2 * count - 1):
        position, first = segment.locate(offset)
        assert first <= offset
        record = segment.record_at(position)
        assert record is not None
        assert record.first == first
        assert position + 2 * WINDOW_OCTETS >= SEGMENT_HEADER_OCTETS + offset // 2 * (3000 + 32)
