"""Copies in the broker's own log: which stand for their messages, and when they may go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.queue.brokered.world import DIRECTORY, NAMES
from tests.sim.disk import SimulatedDisk
from tests.tools.queues import HEAD_OCTETS, segment_name
from twisted_msgproto.core.broker.envelopes import head
from twisted_msgproto.queue.brokered.kept import Chunk, Copy, Kept
from twisted_msgproto.queue.brokered.marks import Marks

OWN = head("mtl", NAMES[0])
QUEUE_ID = "5" * 32


def opened(disk: SimulatedDisk, *, begin: int = 1000, **options: int) -> Kept:
    disk.make_directory(DIRECTORY)
    return Kept(disk, DIRECTORY, QUEUE_ID, begin=begin, **options)


def put(kept: Kept, *places: int, times: Sequence[int] = (), octets: int = 9) -> None:
    """Copy messages with these places."""
    count = len(places)
    bodies: list[bytes | None] = [b"x" * octets] * count
    kept.put(Copy([*places], [*times] or [7] * count, [OWN] * count, bodies))


def spans(kept: Kept) -> list[Any]:
    return [chunk.span for chunk in kept]


# -- trimming -------------------------------------------------------------------------------------


def settled(*places: int) -> Marks:
    marks = Marks()
    marks.begun(0)
    marks.settle([(place, place + 1) for place in places])
    return marks


def test_a_segment_without_waiting_messages_goes_though_there_is_room__NB_02() -> None:
    """What is known of its copies is forgotten, and of those alone."""
    kept = opened(SimulatedDisk(), segment_bytes=2000)
    put(kept, *range(10), octets=180)
    put(kept, 10)
    put(kept, 20)
    assert kept.log.firsts == [0, 10]
    marks = settled(*range(11))
    kept.refresh(marks, lambda chunk: True)
    assert kept.spans() == [(0, 11), (20, 21)]
    assert kept.octets < 2 * kept.live_octets + 2 * 2000
    kept.trim(marks)
    assert kept.log.firsts == [10]
    assert kept.spans() == [(10, 11), (20, 21)]


def test_the_log_holds_twice_what_waits_and_no_more_is_moved_than_that_takes__NB_02(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = opened(SimulatedDisk(), segment_bytes=500)
    for first in range(0, 200, 20):
        put(kept, *range(first, first + 20), octets=100)
    marks = settled(*[place for place in range(200) if place % 20 > 7])
    kept.refresh(marks, lambda chunk: True)
    before = {chunk.span: chunk.first for chunk in kept}
    assert kept.octets > 2 * kept.live_octets + 1000
    move = kept._move

    def moved(chunk: Chunk, marks: Marks) -> None:
        oldest, second = kept.log.firsts[:2]
        assert oldest <= chunk.first < second
        move(chunk, marks)

    monkeypatch.setattr(kept, "_move", moved)
    kept.trim(marks)
    assert kept.octets <= 2 * kept.live_octets + 1000
    waiting = {place for chunk in kept for place in chunk.places if not marks.is_settled(place)}
    assert waiting == {place for place in range(200) if place % 20 <= 7}
    begin = kept.log.begin
    stayed = {span: first for span, first in before.items() if first >= begin}
    assert 0 < len(stayed) < 10
    assert stayed.items() <= {chunk.span: chunk.first for chunk in kept}.items()


def test_a_copy_that_was_written_again_in_the_next_segment_is_found_once() -> None:
    """What a broken disk did not let be cut off still stands at the end of the segment before."""
    disk = SimulatedDisk()
    kept = opened(disk, segment_bytes=1)
    put(kept, 1, 5)
    put(kept, 11, 15)
    earlier, later = [f"{kept.log.directory}/{segment_name(first)}" for first in kept.log.firsts]
    kept.close()
    copy = disk.octets_of(later)[HEAD_OCTETS:]
    disk.spoil(earlier, disk.octets_of(earlier) + copy)
    again = opened(disk)
    assert [frame.first for _, frame in again.frames()] == [0, 2]
    assert spans(again) == [(1, 6), (11, 16)]
