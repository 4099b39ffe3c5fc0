"""Where single rows of a queue stand: frames with messages, what proves a row, and its time."""

from __future__ import annotations

import pytest

from tests.sim.disk import SimulatedDisk
from tests.tools.queues import batch, frame
from twisted_msgproto.queue import QueueReader, SegmentLog, places
from twisted_msgproto.queue.columns import encode
from twisted_msgproto.queue.format import EMPTY_SEGMENT_OCTETS, segment_name
from twisted_msgproto.queue.lineage import Landed, Lineage, witness
from twisted_msgproto.queue.places import Places

DIRECTORY = "/queue"


class Queue:
    """Three segments, each with a frame of three messages behind its lineage."""

    def __init__(self) -> None:
        self.disk = disk = SimulatedDisk()
        log = SegmentLog(DIRECTORY, disk=disk, segment_bytes=1)
        for first in (0, 3):
            log.append([frame(first, 3)])
        log.append([encode([batch(6), batch(7, 2)])])
        self.firsts, identity = list(log.firsts), log.identity
        log.close()
        published = QueueReader(DIRECTORY, disk=disk).published()
        assert published is not None
        self.published = published
        self.places = Places(disk, DIRECTORY, identity)


@pytest.mark.parametrize("row", range(9))
def test_the_frame_of_a_row_has_it_whether_it_was_looked_for_before_or_not(row: int) -> None:
    """A segment begins with a frame of no messages, which is at no row."""
    queue = Queue()
    for _ in range(2):
        placed = queue.places.at(row, queue.firsts, queue.published)
        assert placed is not None
        assert (placed.segment, placed.record.first) == (row // 3 * 3, row // 3 * 3)
        assert placed.record.count == 3


def test_the_place_after_each_row_is_proved_by_its_frame_and_the_beginning_by_nothing() -> None:
    queue = Queue()
    assert queue.places.landed(0, queue.firsts, queue.published, Lineage()) == Landed(0)
    for offset in range(1, 10):
        row = offset - 1
        placed = queue.places.at(row, queue.firsts, queue.published)
        assert placed is not None
        landed = queue.places.landed(offset, queue.firsts, queue.published, Lineage())
        assert landed == Landed(offset, 0, witness(placed.record.payload_crc, row % 3))


def test_a_row_in_front_of_a_frame_has_the_time_of_its_first_message() -> None:
    """What stood in front of it is damaged."""
    queue = Queue()
    placed = queue.places.at(6, queue.firsts, queue.published)
    assert placed is not None
    times = [batch(6).received_at, batch(7).received_at]
    for row, time in ((5, times[0]), (6, times[0]), (7, times[1]), (8, times[1])):
        assert queue.places.received_at(placed, row, queue.published) == time


def test_the_places_that_were_asked_for_last_are_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(places, "HINTS_MAX", 2)
    found = Queue().places
    for row in (1, 2, 1, 3):
        found.remember(row, 0, 64)
    assert set(found._hints) == {1, 3}


@pytest.mark.parametrize("first", [0, 3])
def test_a_head_that_is_damaged_proves_nothing__NB_12(first: int) -> None:
    """A table that stands there would be told that this is another queue."""
    queue = Queue()
    path = f"{DIRECTORY}/{segment_name(first)}"
    octets = bytearray(queue.disk.octets_of(path))
    sound = queue.places.before(first, queue.published, Lineage())
    octets[EMPTY_SEGMENT_OCTETS - 1] ^= 1
    queue.disk.spoil(path, bytes(octets))
    assert queue.places.before(first, queue.published, Lineage()) == Landed(first)
    assert (sound.witness > 0) == (first > 0)
