"""Looking over a whole queue without its lock."""

from __future__ import annotations

import errno

import pytest

from tests.sim.disk import SimulatedDisk, SimulatedFile
from tests.tools.queues import frame
from twisted_msgproto.queue import QueueReader, SegmentLog
from twisted_msgproto.queue.columns import Encoded
from twisted_msgproto.queue.format import Identity, SegmentHeader
from twisted_msgproto.queue.verify import verify

DIRECTORY = "/queue"


def a_queue(disk: SimulatedDisk, counts: list[int], **options: int) -> SegmentLog:
    log = SegmentLog(DIRECTORY, disk=disk, **options)
    for count in counts:
        log.append([frame(log.end, count)])
    return log


def path(first: int) -> str:
    return f"{DIRECTORY}/{first:020d}.segment"


def test_a_whole_queue_is_counted_beside_its_writer() -> None:
    disk = SimulatedDisk()
    log = a_queue(disk, [2, 3, 1], segment_bytes=1)
    report = verify(DIRECTORY, disk=disk)
    assert (report.queue_id, report.epoch, report.begin, report.end) == (log.queue_id, 0, 0, 6)
    assert (report.damaged, report.lines, report.unpublished_octets) == ([], [], 0)
    assert (report.messages, report.groups, report.octets) == (6, 3, log.octets)
    assert [(part.lo, part.hi, part.messages) for part in report.segments] == [
        (0, 2, 2),
        (2, 5, 3),
        (5, 6, 1),
    ]


def test_what_lies_behind_the_published_end_is_no_damage() -> None:
    disk = SimulatedDisk()
    log = a_queue(disk, [2])
    published = disk.octets_of(f"{DIRECTORY}/end")
    before = log.octets
    log.append([frame(2)])
    disk.spoil(f"{DIRECTORY}/end", published)
    disk.spoil(path(0), disk.octets_of(path(0)) + b"half a frame")
    report = verify(DIRECTORY, disk=disk)
    assert (report.damaged, report.lines, report.messages) == ([], [], 2)
    assert report.unpublished_octets == len(disk.octets_of(path(0))) - before
    disk.spoil(path(0), disk.octets_of(path(0))[:before] + b"half a frame")
    assert verify(DIRECTORY, disk=disk).unpublished_octets == 12


def test_the_remains_of_a_failed_group_are_not_counted() -> None:
    disk = SimulatedDisk()
    log = a_queue(disk, [2])
    disk.fail_next("sync", errno.EIO, ".segment")
    disk.fail_next("truncate", errno.EIO, ".segment")
    with pytest.raises(OSError, match="Input/output error"):
        log.append([frame(2, 7)])
    log.append([frame(2)])
    report = verify(DIRECTORY, disk=disk)
    assert (report.messages, report.groups, report.lines, report.damaged) == (3, 2, [], [])


def test_every_flipped_bit_is_found() -> None:
    sample = SimulatedDisk()
    a_queue(sample, [2, 1])
    size = len(sample.octets_of(path(0)))
    for at in range(size):
        disk = SimulatedDisk()
        a_queue(disk, [2, 1])
        octets = bytearray(disk.octets_of(path(0)))
        octets[at] ^= 1 << at % 8
        disk.spoil(path(0), bytes(octets))
        report = verify(DIRECTORY, disk=disk)
        assert report.lines
        assert report.messages + sum(hi - lo for lo, hi in report.damaged) == 3


def test_lost_octets_are_found() -> None:
    disk = SimulatedDisk()
    a_queue(disk, [2, 1])
    whole = disk.octets_of(path(0))
    for length in range(len(whole)):
        disk.spoil(path(0), whole[:length])
        report = verify(DIRECTORY, disk=disk)
        assert report.lines
        assert report.messages + sum(hi - lo for lo, hi in report.damaged) == 3


def test_a_record_which_makes_no_sense_is_found() -> None:
    disk = SimulatedDisk()
    log = a_queue(disk, [1])
    log.append([Encoded(1, [bytes(16)], 16, 16, 0xECBB4B55)])
    report = verify(DIRECTORY, disk=disk)
    assert report.damaged == [(1, 2)]
    assert report.messages == 1


def test_octets_which_cost_nothing_are_told() -> None:
    disk = SimulatedDisk()
    a_queue(disk, [1, 1])
    octets = disk.octets_of(path(0))
    second = octets.rfind(b"\x93MPF")
    disk.spoil(path(0), octets[:second] + bytes(8) + octets[second:])
    report = verify(DIRECTORY, disk=disk)
    assert report.damaged == []
    assert "8 damaged octets" in report.lines[0]


def test_a_segment_which_says_it_is_another_is_told() -> None:
    disk = SimulatedDisk()
    log = a_queue(disk, [1])
    for header in (
        SegmentHeader(1, log.identity, 5, 0),
        SegmentHeader(1, Identity("f" * 32, b"01234567"), 0, 0),
    ):
        disk.spoil(path(0), header.packed() + disk.octets_of(path(0))[64:])
        assert "says it begins at offset" in verify(DIRECTORY, disk=disk).lines[0]


def test_ranges_the_writer_noted_and_has_not_trimmed_are_damaged() -> None:
    disk = SimulatedDisk()
    a_queue(disk, [1, 1, 1], segment_bytes=1).close()
    disk.remove(path(1))
    log = SegmentLog(DIRECTORY, disk=disk)
    assert verify(DIRECTORY, disk=disk).damaged == [(1, 2)]
    QueueReader(DIRECTORY, disk=disk).commit("spark", 3)
    log.trim()
    assert verify(DIRECTORY, disk=disk).damaged == []


@pytest.mark.parametrize("when", [1, 2])
def test_what_is_trimmed_meanwhile_is_no_fault(when: int) -> None:
    """Whether it goes between listing and weighing, or between weighing and reading."""
    disk = SimulatedDisk()
    log = a_queue(disk, [1] * 4, segment_bytes=1)
    QueueReader(DIRECTORY, disk=disk).commit("spark", 2)
    open_file = disk.open
    opened: list[str] = []

    def open_and_trim(name: str, *, write: bool = False) -> SimulatedFile:
        opened.append(name)
        if name == path(0) and opened.count(name) == when:
            log.trim()
        return open_file(name, write=write)

    disk.open = open_and_trim  # type: ignore[method-assign]
    report = verify(DIRECTORY, disk=disk)
    assert (report.damaged, report.lines) == ([], [])
    assert [part.lo for part in report.segments] == [2, 3]
    assert report.messages == 2
