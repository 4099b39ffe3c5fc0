"""Copies in the broker's own log: which stand for their messages, and when they may go."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import pytest

from tests.queue.brokered.world import DIRECTORY, NAMES
from tests.sim.disk import SimulatedDisk, SimulatedFile
from twisted_msgproto.core.broker.envelopes import head
from twisted_msgproto.core.message import MessageBatch
from twisted_msgproto.queue import QueueReader
from twisted_msgproto.queue.brokered import BrokerState
from twisted_msgproto.queue.brokered.kept import Chunk, Copy, Kept
from twisted_msgproto.queue.brokered.marks import Marks
from twisted_msgproto.queue.columns import encode
from twisted_msgproto.queue.format import EMPTY_SEGMENT_OCTETS, segment_name
from twisted_msgproto.queue.log import SegmentLog

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


@pytest.mark.parametrize("later", [[12, 15], [15], [9, 15], [10, 12], [15, 16]])
def test_a_later_copy_stands_for_each_that_has_places_of_it(later: list[int]) -> None:
    """The octets of the earlier one are in the log still, and so are their marks."""
    disk = SimulatedDisk()
    kept = opened(disk)
    for places in ([1, 5], [10, 15], [20, 25]):
        put(kept, *places)
    put(kept, *later)
    expected = [(1, 6), (later[0], later[-1] + 1), (20, 26)]
    assert spans(kept) == expected
    assert kept.spans() == [(1, 6), (min(later[0], 10), max(later[-1], 15) + 1), (20, 26)]
    frames = [frame for _, frame in kept.frames()]
    assert [kept.current(frame) for frame in frames] == [True, False, True, True]
    kept.close()
    again = opened(disk)
    assert spans(again) == expected
    assert again.spans() == kept.spans()


@pytest.mark.parametrize("begin", [11, 12, 15, 16])
def test_a_copy_of_what_the_queue_s_log_still_has_is_not_needed(begin: int) -> None:
    disk = SimulatedDisk()
    kept = opened(disk)
    put(kept, 1, 5)
    put(kept, 11, 15)
    kept.close()
    again = opened(disk, begin=begin)
    assert spans(again) == ([(1, 6), (11, 16)] if begin > 15 else [(1, 6)])
    assert again.spans() == [(1, 6), (11, 16)]
    copies = [frame for _, frame in again.frames()]
    assert [again.current(frame) for frame in copies] == [True, begin > 15]


def test_a_copy_s_messages_came_when_their_messages_did() -> None:
    times = [5, 5, 9, 9, 9, 7, 5]
    kept = opened(SimulatedDisk())
    put(kept, *range(7), times=times)
    ((_, frame),) = kept.frames()
    assert list(frame.received_at()) == times
    assert frame.numbers is not None
    assert frame.numbers.to_pylist() == list(range(7))


def test_a_copy_without_messages_has_no_octets() -> None:
    assert Copy([], [], [], []).octets == 0


def test_what_waits_has_the_octets_of_its_envelopes_and_bodies_after_a_start_too() -> None:
    disk = SimulatedDisk()
    kept = opened(disk)
    put(kept, 1, 2, octets=3000)
    least = 2 * (3000 + len(OWN))
    assert least <= kept.live_octets <= least + 1000
    kept.close()
    assert least <= opened(disk).live_octets <= least + 1000


def test_copies_are_found_from_an_offset_on_and_behind_a_damaged_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Segments before it are passed over; no file stays open."""
    disk = SimulatedDisk()
    kept = opened(disk, segment_bytes=1)
    for place in (1, 2, 3):
        put(kept, place)
    closed: list[str] = []
    monkeypatch.setattr(SimulatedFile, "close", lambda self: closed.append(self._path))
    assert [frame.first for _, frame in kept.frames(2)] == [2]
    assert [frame.first for _, frame in kept.frames(1)] == [1, 2]
    assert len(closed) == 1 + 2
    whole = opened(SimulatedDisk())
    for place in (1, 2, 3):
        put(whole, place)
    path = f"{DIRECTORY}/log/{0:020d}.segment"
    octets = bytearray(whole._disk.octets_of(path))  # type: ignore[attr-defined]
    octets[octets.index(b"x" * 9)] ^= 1
    whole._disk.spoil(path, bytes(octets))  # type: ignore[attr-defined]
    assert [frame.first for _, frame in whole.frames()] == [1, 2]


def test_small_copies_share_a_segment() -> None:
    kept = opened(SimulatedDisk())
    put(kept, 1)
    put(kept, 2)
    assert kept.log.segments == 1


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


def test_what_waits_of_a_segment_is_copied_with_one_write() -> None:
    """Messages that are for no queue stand between: their frames are not neighbours."""
    disk = SimulatedDisk()
    log = SegmentLog(DIRECTORY, disk=disk)
    state = BrokerState(log, report=lambda line: None, pin=0)
    state.restored()
    state.declare({NAMES[0]: 0})
    for number in range(6):
        batch = MessageBatch("mtl", "content", 5, count=1, body=[b"%d" % number])
        if number % 2:
            batch.envelope = [OWN]
        log.append([encode([batch])])
    state.tend()
    QueueReader(DIRECTORY, disk=disk).commit("spark", log.end)
    log.trim(ending=True)
    state.tend()
    assert [chunk.places for chunk in state._kept] == [array("q", [1, 3, 5])]


def test_a_copy_that_was_written_again_in_the_next_segment_is_found_once() -> None:
    """What a broken disk did not let be cut off still stands at the end of the segment before."""
    disk = SimulatedDisk()
    kept = opened(disk, segment_bytes=1)
    put(kept, 1, 5)
    put(kept, 11, 15)
    earlier, later = [f"{kept.log.directory}/{segment_name(first)}" for first in kept.log.firsts]
    kept.close()
    copy = disk.octets_of(later)[EMPTY_SEGMENT_OCTETS:]
    disk.spoil(earlier, disk.octets_of(earlier) + copy)
    again = opened(disk)
    assert [frame.first for _, frame in again.frames()] == [0, 2]
    assert spans(again) == [(1, 6), (11, 16)]
