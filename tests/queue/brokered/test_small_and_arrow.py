"""A small frame says without Arrow what it says with Arrow, and none is left to it in vain."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from typing import Any
from zlib import crc32

import pytest

from tests.queue.brokered.test_small_frames import DIRECTORY, IDENTITY, NAMES, one
from tests.sim.disk import SimulatedDisk
from tests.tools.queues import FRAME_HEADER_OCTETS, SEGMENT_HEADER_OCTETS, encode, segment_name
from twisted_msgproto import MessageBatch
from twisted_msgproto.core.broker.envelopes import head
from twisted_msgproto.core.errors import QueueCorrupt
from twisted_msgproto.queue import SegmentLog
from twisted_msgproto.queue.brokered import small
from twisted_msgproto.queue.brokered.frames import read_frame
from twisted_msgproto.queue.brokered.small import (
    Layout,
    SmallFrames,
    layout_of,
)
from twisted_msgproto.queue.columns import RUNS
from twisted_msgproto.queue.format import Record, Segment, pack_frame_header

OWN = head("mtl", NAMES[0])


class Frames:
    """The frames of one segment, and its octets."""

    def __init__(self, groups: Sequence[Sequence[MessageBatch]]) -> None:
        self._disk = SimulatedDisk()
        log = SegmentLog(DIRECTORY, disk=self._disk, make_identity=lambda: IDENTITY)
        for group in groups:
            log.append([encode(list(group))])
        log.close()
        self._path = f"{DIRECTORY}/{segment_name(0)}"

    @property
    def records(self) -> list[Record]:
        """The frames that have messages, as they are now."""
        walk = self.segment.walk(SEGMENT_HEADER_OCTETS, 0)
        return [item for item in walk if isinstance(item, Record) and item.count]

    @property
    def segment(self) -> Segment:
        """The segment as it is now: what was read of it before is not remembered."""
        return Segment(self._disk.open(self._path), IDENTITY.frame_seed, 0)

    def octets_of(self, record: Record) -> bytes:
        """The octets of one frame."""
        return self._disk.octets_of(self._path)[record.position : record.end_position]

    def put(self, record: Record, frame: bytes, count: int | None = None) -> None:
        """Put another frame of the same length, with right checksums, in the place of one.

        Its header says that it has ``count`` messages, if that is given.
        """
        payload = frame[FRAME_HEADER_OCTETS:]
        changed = bytearray(self._disk.octets_of(self._path))
        changed[record.position : record.end_position] = (
            pack_frame_header(
                IDENTITY.frame_seed,
                payload_crc=crc32(payload),
                octets=len(payload),
                first=record.first,
                count=record.count if count is None else count,
                runs=record.runs,
            )
            + payload
        )
        self._disk.spoil(self._path, bytes(changed))


def plain(count: int, *, time: int = 10**15, body: bytes | None = b"body") -> MessageBatch:
    """Messages with the same envelope."""
    bodies = None if body is None else [body] * count
    return MessageBatch("mtl", "one", time, count=count, body=bodies, envelope=[OWN] * count)


def say_the_same(frames: Frames) -> None:
    """Read each small frame by itself, with Arrow and without."""
    for record in frames.records:
        few, behind = SmallFrames(frames.segment).read(record.position, record.first, record.end)
        whole = read_frame(frames.segment, record)
        assert (few.first, few.count, few.end) == (record.first, record.count, record.end)
        assert behind == record.end_position
        if whole is None:
            assert few.heads() == [None] * record.count
        else:
            assert list(few.heads()) == whole.heads()
            assert few.only_head() == (few.heads()[0] if len(set(few.heads())) == 1 else None)
            assert (few.weights(), few.arrived()) == (whole.weights(), whole.arrived())


@pytest.mark.parametrize("seed", range(8))
def test_16_a_small_frame_says_without_arrow_what_it_says_with_it(seed: int) -> None:
    source = random.Random(seed)
    say_the_same(
        Frames(
            [
                [one(source, size, 10**6 * number * run, mixed=True) for run in range(runs)]
                for number in range(20)
                for runs, size in [source.choice([(1, 1), (1, 7), (2, 1), (3, 5), (12, 2)])]
            ]
        )
    )


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Layout]:
    """The layouts that are made of frames."""
    layouts: list[Layout] = []

    def noted(frame: bytes, whole: Any = layout_of) -> Layout | None:
        layout: Layout | None = whole(frame)
        assert layout is not None
        layouts.append(layout)
        return layout

    monkeypatch.setattr(small, "layout_of", noted)
    return layouts


@pytest.mark.parametrize("side", ["before", "after"])
def test_16_a_frame_that_differs_beside_its_length_has_a_layout_of_its_own(
    side: str, made: list[Layout]
) -> None:
    """Its neighbours are as long, and have as many messages and the same columns."""
    frames = Frames([[plain(2)] for _ in range(3)])
    first, second, last = frames.records
    octets = frames.octets_of(second)
    layout = layout_of(octets)
    assert layout is not None
    begin = octets.index(getattr(layout, side), FRAME_HEADER_OCTETS + second.runs)
    for at in range(begin, begin + len(getattr(layout, side))):
        other = octets[:at] + bytes([octets[at] ^ 1]) + octets[at + 1 :]
        found = layout_of(other)
        if found and found.frame.format == layout.frame.format and found.fits(other):
            break
    else:
        raise AssertionError("no octet may differ")
    frames.put(second, other)
    few, behind = SmallFrames(frames.segment).read(first.position, first.first, last.end)
    assert (few.end, behind) == (last.end, last.end_position)
    one_by_one = SmallFrames(frames.segment)
    for record in frames.records:
        few, _ = one_by_one.read(record.position, record.first, record.end)
        assert few.end == record.end
    around = [(one.before, one.after) for one in made]
    assert around == 2 * [around[0], (found.before, found.after), around[0]]


def test_16_a_frame_whose_last_bound_is_nonsense_is_left_to_arrow() -> None:
    frames = Frames([[plain(2)] for _ in range(3)])
    first, second, last = frames.records
    octets = bytearray(frames.octets_of(second))
    layout = layout_of(bytes(octets))
    assert layout is not None
    bounds_at = layout.columns_at + layout.frame.unpack_from(octets)[-2]
    bounds = layout.bounds.unpack_from(octets, bounds_at)
    struct.pack_into("<3i", octets, bounds_at, *bounds[:2], 1 << 20)
    frames.put(second, bytes(octets))
    few, behind = SmallFrames(frames.segment).read(first.position, first.first, last.end)
    assert (few.end, behind) == (second.first, second.position)


@pytest.mark.parametrize(
    ("runs", "counts"), [(1, (3,)), (1, (1,)), (2, (1, 2)), (2, (2, 1 << 31)), (2, (0, 0))]
)
def test_16_a_frame_whose_runs_count_other_messages_is_left_to_arrow(
    runs: int, counts: tuple[int, ...]
) -> None:
    """Arrow says that it is damaged.  Otherwise times would be those of other messages."""
    times = [10**15 + 10**6 * run for run in range(runs)]
    frames = Frames([[plain(2 // runs, time=time) for time in times]] * 3)
    first, second, last = frames.records
    octets = bytearray(frames.octets_of(second))
    struct.pack_into(f"<{runs}I", octets, FRAME_HEADER_OCTETS + RUNS.size + 8 * runs, *counts)
    frames.put(second, bytes(octets))
    few, behind = SmallFrames(frames.segment).read(first.position, first.first, last.end)
    assert (few.end, behind) == (second.first, second.position)
    with pytest.raises(QueueCorrupt, match="not 2 messages"):
        read_frame(frames.segment, frames.records[1])


def test_16_no_layout_is_made_of_a_frame_that_makes_no_sense() -> None:
    """Each bit of what describes a frame is turned round, as if another program had written it."""
    frames = Frames([[plain(2), plain(1, time=7)]])
    (record,) = frames.records
    whole = frames.octets_of(record)
    usual = layout_of(whole)
    assert usual is not None
    outcomes = set()
    for bit in range(8 * 16, 8 * usual.columns_at):
        octets = bytearray(whole)
        octets[bit // 8] ^= 1 << bit % 8
        outcomes.add(layout_of(bytes(octets)) is None)
    assert outcomes == {True, False}


@pytest.mark.parametrize("count", [1, 3])
def test_16_a_frame_whose_columns_have_other_messages_is_left_to_arrow(count: int) -> None:
    """Its header and its run agree with each other."""
    frames = Frames([[plain(2)] for _ in range(3)])
    first, _, last = frames.records
    octets = bytearray(frames.octets_of(last))
    struct.pack_into("<I", octets, FRAME_HEADER_OCTETS + RUNS.size + 8, count)
    frames.put(last, bytes(octets), count)
    few, behind = SmallFrames(frames.segment).read(first.position, first.first, last.end + 1)
    assert (few.end, behind) == (last.first, last.position)
    with pytest.raises(QueueCorrupt, match=f"not {count} messages"):
        read_frame(frames.segment, frames.records[-1])
