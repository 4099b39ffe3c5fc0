"""The octets of segments, frames and sealed lines; every cut and every flipped bit of them."""

from __future__ import annotations

import errno
import importlib.util
import os
import struct
import sys
from zlib import crc32

import pytest

from tests.sim.disk import SimulatedDisk, SimulatedFile
from twisted_msgproto.queue import format as format_room
from twisted_msgproto.queue.format import (
    BLOCK_OCTETS,
    END_OCTETS,
    FORMAT_VERSION,
    FRAME_MARKER,
    FRAME_OCTETS_MAX,
    OFFSET_MAX,
    SEGMENT_HEADER_OCTETS,
    WINDOW_OCTETS,
    Damage,
    Identity,
    Published,
    Record,
    Segment,
    SegmentHeader,
    pack_frame_header,
    pack_lineage_frame,
    read_readable,
    seal,
    segment_name,
    segment_offset,
    unseal,
)

IDENTITY = Identity("0123456789abcdef" * 2, b"8 octets")


def flipped(octets: bytes) -> list[bytes]:
    """``octets`` with one bit changed, for every octet."""
    return [
        octets[:at] + bytes([octets[at] ^ (1 << at % 8)]) + octets[at + 1 :]
        for at in range(len(octets))
    ]


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


def test_without_the_faster_library_the_checksums_are_the_standard_library_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "isal", None)
    spec = importlib.util.find_spec("twisted_msgproto.queue.checksum")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.crc32 is crc32


def test_beyond_a_segment_there_is_nothing() -> None:
    segment = a_segment(bytes(10))
    assert len(segment.octets(segment.size - 1, 5)) == 1
    assert len(segment.octets(segment.size + 5, 5)) == 0


def test_the_next_record_is_looked_for_up_to_the_stop() -> None:
    segment = a_segment(a_frame(0, 2, b"12345678") + a_frame(2, 1, b"x"))
    first = segment.next_record(SEGMENT_HEADER_OCTETS, 0)
    assert first is not None
    second = segment.next_record(first.position + 1, 0)
    assert second is not None
    assert second.position == first.end_position
    assert segment.next_record(first.position + 1, 0, second.position) is None
    assert segment.next_record(first.position + 1, 0, second.position + 1) == second


def test_a_segment_that_has_changed_is_read_again_once_it_forgets() -> None:
    segment = a_segment(b"old")
    position = segment.size - 3
    assert segment.octets(position, 3) == b"old"
    segment.file.write(position, [b"new"])
    segment.forget()
    assert segment.octets(position, 3) == b"new"


def test_only_blocks_that_hold_the_octets_are_unread() -> None:
    segment = a_segment(bytes(3 * BLOCK_OCTETS))
    segment._unread = {1}
    assert not segment.unread(0, BLOCK_OCTETS)
    assert segment.unread(0, BLOCK_OCTETS + 1)
    assert segment.unread(2 * BLOCK_OCTETS - 1, 2 * BLOCK_OCTETS)
    assert not segment.unread(2 * BLOCK_OCTETS, 3 * BLOCK_OCTETS)


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


def test_a_sealed_line_says_when_it_is_damaged() -> None:
    """docs/queue-format.md, "Sealed lines"."""
    line = seal("offset 5 of ünïcode")
    assert line.endswith(b"\n")
    assert unseal(line) == "offset 5 of ünïcode"
    assert unseal(line.rstrip(b"\n")) == "offset 5 of ünïcode"
    for wrong in flipped(line[:-1]):
        assert unseal(wrong) is None
    for length in range(len(line) - 1):
        assert unseal(line[:length]) is None


def test_an_identity_comes_back_from_its_line_and_is_none_when_damaged() -> None:
    line = IDENTITY.sealed()
    assert Identity.unsealed(line) == IDENTITY
    for wrong in flipped(line[:-1]):
        assert Identity.unsealed(wrong) is None
    assert Identity.unsealed(seal("something else")) is None


def test_an_identity_of_another_format_version_is_told_by_its_number() -> None:
    assert Identity.unsealed(seal("msgproto-queue 3 whatever comes then")) == 3
    assert Identity.unsealed(seal("msgproto-queue 0 whatever comes then")) == 0
    assert Identity.unsealed(seal("msgproto-queue 1 whatever comes then")) is None
    whole = f"msgproto-queue 1 {IDENTITY.queue_id} {IDENTITY.seed.hex()}"
    assert Identity.unsealed(seal(whole)) == IDENTITY


def test_a_segment_header_comes_back_and_is_none_when_cut_or_damaged() -> None:
    header = SegmentHeader(1, IDENTITY, 2**40)
    octets = header.packed()
    assert len(octets) == SEGMENT_HEADER_OCTETS == 56
    assert SegmentHeader.unpacked(octets) == header
    assert SegmentHeader.unpacked(octets + b"more") == header
    for wrong in flipped(octets):
        assert SegmentHeader.unpacked(wrong) is None
    for length in range(len(octets)):
        assert SegmentHeader.unpacked(octets[:length]) is None
    other = b"OTHER..\n" + octets[8:-4]
    assert SegmentHeader.unpacked(other + crc32(other).to_bytes(4, "little")) is None


def test_a_published_end_comes_back_and_is_none_when_cut_or_damaged() -> None:
    published = Published(2**40, 2**39, 12345, 2**62, 2**61, 77)
    octets = published.packed()
    assert Published.unpacked(octets) == published
    for wrong in flipped(octets):
        assert Published.unpacked(wrong) is None
    for length in range(len(octets)):
        assert Published.unpacked(octets[:length]) is None
    other = b"OTHER..\n" + octets[8 : END_OCTETS - 4]
    assert Published.unpacked(other + crc32(other).to_bytes(4, "little")) is None


def test_segment_names_sort_by_offset_and_other_names_are_none() -> None:
    assert segment_name(42) == "00000000000000000042.segment"
    assert segment_offset(segment_name(42)) == 42
    for name in ("end", "42.segment", "00000000000000000042.segment.new", "x" * 20 + ".segment"):
        assert segment_offset(name) is None


def test_walking_gives_the_records_in_order() -> None:
    octets = a_frame(0, 3, b"abc") + a_frame(3, 1, b"") + a_frame(4, 2, b"x" * 100)
    segment = a_segment(octets)
    records = list(segment.walk(SEGMENT_HEADER_OCTETS, 0))
    assert walked(segment) == [(0, 3), (3, 4), (4, 6)]
    assert all(isinstance(record, Record) for record in records)
    assert bytes(segment.payload(records[0]))[:3] == b"abc"  # type: ignore[arg-type]
    assert records[-1].end_position == segment.size


def test_every_flipped_bit_costs_one_record_at_most_and_is_seen() -> None:
    """FAULTS, bit flips over every octet: the others stay readable, the damage has its range."""
    frames = [a_frame(0, 3, b"abc"), a_frame(3, 1, b"defg"), a_frame(4, 2, b"x" * 40)]
    octets = b"".join(frames)
    ranges = [(0, 3), (3, 4), (4, 6)]
    ends = [len(frames[0]), len(frames[0]) + len(frames[1]), len(octets)]
    for at, wrong in enumerate(flipped(octets)):
        hit = next(index for index, end in enumerate(ends) if at < end)
        segment = a_segment(wrong)
        items = list(segment.walk(SEGMENT_HEADER_OCTETS, 0))
        assert walked(segment) == [one for index, one in enumerate(ranges) if index != hit]
        damage = [item for item in items if isinstance(item, Damage)]
        assert len(damage) == 1
        assert damage[0].lo == ranges[hit][0]
        # The last record's end is known although no other follows (NB-12).
        assert damage[0].hi == ranges[hit][1]


def test_every_cut_leaves_the_records_before_it() -> None:
    frames = [a_frame(0, 3, b"abc"), a_frame(3, 1, b"defg"), a_frame(4, 2, b"x" * 40)]
    octets = b"".join(frames)
    for length in range(len(octets)):
        segment = a_segment(octets[:length])
        items = list(segment.walk(SEGMENT_HEADER_OCTETS, 0))
        whole = sum(
            length >= end for end in (len(frames[0]), len(frames[0]) + len(frames[1]), len(octets))
        )
        assert walked(segment) == [(0, 3), (3, 4), (4, 6)][:whole]
        tails = items[whole:]
        at_a_seam = length in (0, len(frames[0]), len(frames[0]) + len(frames[1]))
        assert [type(tail) for tail in tails] == ([] if at_a_seam else [Damage])
        assert all(isinstance(tail, Damage) and tail.hi is None for tail in tails)


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
    for at in (70, 64 + 40, 64 + 200, len(octets) - 5, len(octets) // 2):
        spoiled = bytearray(octets)
        spoiled[at] ^= 1
        segment = a_segment(bytes(spoiled))
        slow = [item for item in segment.walk(64, 0) if isinstance(item, Damage)]
        fast = [item for item in segment.walk(64, 0, bound=2**63) if isinstance(item, Damage)]
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


def test_locating_works_beside_damage() -> None:
    count = 3000
    octets = bytearray(b"".join(a_frame(n, 1, b"x" * 3000) for n in range(count)))
    octets[len(octets) // 3 : len(octets) // 3 * 2] = b"\xff" * (len(octets) // 3)
    segment = a_segment(bytes(octets))
    for offset in (0, count // 2, count - 1):
        position, first = segment.locate(offset)
        assert first <= offset
        assert position == SEGMENT_HEADER_OCTETS or segment.record_at(position) is not None


def test_what_is_reserved_is_0() -> None:
    """A later version may give it a meaning, and reads what older ones wrote."""
    header = SegmentHeader(FORMAT_VERSION, Identity("1" * 32, b"\2" * 8), 3).packed()
    assert format_room.SEGMENT_HEADER.unpack_from(header)[-1] == 0
    frame = pack_lineage_frame(1, first=5, incarnation=6, witness=7)
    *_, count, runs = format_room.FRAME_HEADER.unpack_from(frame)
    assert (count, runs) == (0, 0)


def test_offsets_and_octets_are_bounded_by_what_counts_them() -> None:
    """The table's offset has 64 bits, and a bound of Arrow's columns 32, both with a sign."""
    for form, most in (("<q", OFFSET_MAX), ("<i", FRAME_OCTETS_MAX)):
        assert struct.unpack(form, struct.pack(form, most)) == (most,)
        with pytest.raises(struct.error):
            struct.pack(form, most + 1)
