"""Looking over a whole queue without its lock."""

from __future__ import annotations

import errno

import pytest

from tests.sim.disk import SimulatedDisk, SimulatedFile
from tests.tools.queues import DIRECTORY, a_queue, frame, path_of, sealed, segment_header
from twisted_msgproto.queue import QueueReader, SegmentLog
from twisted_msgproto.queue.verify import verify


def test_a_whole_queue_is_counted_beside_its_writer() -> None:
    disk = SimulatedDisk()
    log = a_queue(disk, [2, 3, 1], segment_bytes=1)
    report = verify(DIRECTORY, disk=disk)
    assert (report.queue_id, report.begin, report.end) == (log.queue_id, 0, 6)
    assert (report.damaged, report.lines, report.unpublished_bytes) == ([], [], 0)
    assert (report.messages, report.groups, report.nbytes) == (6, 3, log.nbytes)
    assert [(part.lo, part.hi, part.messages) for part in report.segments] == [
        (0, 2, 2),
        (2, 5, 3),
        (5, 6, 1),
    ]


def test_what_lies_behind_the_published_end_is_no_damage() -> None:
    disk = SimulatedDisk()
    log = a_queue(disk, [2])
    published = disk.bytes_of(path_of("end"))
    before = log.nbytes
    log.append([frame(2)])
    disk.spoil(path_of("end"), published)
    disk.spoil(path_of(0), disk.bytes_of(path_of(0)) + b"half a frame")
    report = verify(DIRECTORY, disk=disk)
    assert (report.damaged, report.lines, report.messages) == ([], [], 2)
    assert report.unpublished_bytes == len(disk.bytes_of(path_of(0))) - before
    disk.spoil(path_of(0), disk.bytes_of(path_of(0))[:before] + b"half a frame")
    assert verify(DIRECTORY, disk=disk).unpublished_bytes == 12


def test_bytes_which_cost_nothing_are_told() -> None:
    disk = SimulatedDisk()
    a_queue(disk, [1, 1])
    octets = disk.bytes_of(path_of(0))
    second = octets.rfind(b"\x93MPF")
    disk.spoil(path_of(0), octets[:second] + bytes(8) + octets[second:])
    report = verify(DIRECTORY, disk=disk)
    assert report.damaged == []
    assert "8 damaged bytes" in report.lines[0]


def test_a_segment_which_says_it_is_another_is_told() -> None:
    disk = SimulatedDisk()
    log = a_queue(disk, [1])
    own, seed = log.queue_id, disk.bytes_of(path_of(0))[32:40]
    for header in (segment_header(1, own, seed, 5), segment_header(1, "f" * 32, seed, 0)):
        disk.spoil(path_of(0), header + disk.bytes_of(path_of(0))[len(header) :])
        assert "says it begins at offset" in verify(DIRECTORY, disk=disk).lines[0]


def test_ranges_the_writer_noted_and_has_not_trimmed_are_damaged() -> None:
    disk = SimulatedDisk()
    a_queue(disk, [1, 1, 1], segment_bytes=1).close()
    disk.remove(path_of(1))
    log = SegmentLog(DIRECTORY, disk=disk)
    assert verify(DIRECTORY, disk=disk).damaged == [(1, 2)]
    QueueReader(DIRECTORY, disk=disk).commit("spark", 3)
    log.trim()
    assert verify(DIRECTORY, disk=disk).damaged == []


def test_a_range_that_was_noted_is_damaged_though_its_segment_can_be_read() -> None:
    disk = SimulatedDisk()
    a_queue(disk, [1, 1, 1]).close()
    line = sealed("damaged 1 2 records missing")
    disk.open(path_of("damaged"), write=True).write(0, [line])
    assert verify(DIRECTORY, disk=disk).damaged == [(1, 2)]


def test_what_is_trimmed_meanwhile_is_no_fault() -> None:
    disk = SimulatedDisk()
    log = a_queue(disk, [1] * 4, segment_bytes=1)
    QueueReader(DIRECTORY, disk=disk).commit("spark", 2)
    open_file = disk.open

    def open_and_trim(name: str, *, write: bool = False) -> SimulatedFile:
        if name == path_of(0):
            log.trim()
        return open_file(name, write=write)

    disk.open = open_and_trim  # type: ignore[method-assign]
    report = verify(DIRECTORY, disk=disk)
    assert (report.damaged, report.lines) == ([], [])
    assert [part.lo for part in report.segments] == [2, 3]
    assert report.messages == 2


# -- what could not be looked at ------------------------------------------------------------------


@pytest.mark.parametrize("spoilt", [None, b"", b"\0" * 76])
def test_without_the_published_end_records_are_checked_and_that_is_said__NB_12(
    spoilt: bytes | None,
) -> None:
    disk = SimulatedDisk()
    a_queue(disk, [2, 3, 1], segment_bytes=1).close()
    if spoilt is None:
        disk.remove(path_of("end"))
    else:
        disk.spoil(path_of("end"), spoilt)
    report = verify(DIRECTORY, disk=disk)
    assert (report.end, report.messages, report.lines, report.damaged) == (6, 6, [], [])
    [line] = report.unseen
    assert line.startswith(f"the file 'end' is {'damaged' if spoilt else 'missing'}")
    assert not report.intact
    disk.flip(path_of(5), -9)
    assert verify(DIRECTORY, disk=disk).damaged == [(5, 6)]


def test_an_end_older_than_a_commit_does_not_hide_damage__NB_12() -> None:
    disk = SimulatedDisk()
    log = a_queue(disk, [2])
    published = disk.bytes_of(path_of("end"))
    start = log.nbytes
    log.append([frame(2, 4)])
    QueueReader(DIRECTORY, disk=disk).commit("spark", 6)
    log.close()
    disk.spoil(path_of("end"), published)
    report = verify(DIRECTORY, disk=disk)
    assert (report.intact, report.messages, report.unpublished_bytes) == (True, 6, 0)
    assert "'spark' has committed" in report.notes[0]
    disk.spoil(path_of(0), disk.bytes_of(path_of(0))[:start] + b"\xff" * 500)
    report = verify(DIRECTORY, disk=disk)
    assert report.damaged == [(2, 6)]


@pytest.mark.parametrize("spoilt", [None, b"start 0 x"])
def test_a_lineage_that_cannot_be_read_is_said__NB_12(spoilt: bytes | None) -> None:
    disk = SimulatedDisk()
    a_queue(disk, [2]).close()
    if spoilt is None:
        disk.remove(path_of("lineage"))
    else:
        disk.spoil(path_of("lineage"), spoilt)
    report = verify(DIRECTORY, disk=disk)
    assert (report.messages, report.lines, report.intact) == (2, [], False)
    assert "'lineage' is missing or damaged" in report.unseen[0]


@pytest.mark.parametrize("operation", ["open", "read"])
def test_a_segment_that_cannot_be_read_is_said_and_the_others_are_checked__NB_12(
    operation: str,
) -> None:
    disk = SimulatedDisk()
    a_queue(disk, [2, 3, 1], segment_bytes=1).close()
    disk.fail_next(operation, errno.EACCES, path_of(2))
    report = verify(DIRECTORY, disk=disk)
    [line] = report.unseen
    assert line.startswith(f"{2:020d}.segment: not read")
    assert (report.messages, report.lines, report.damaged) == (3, [], [])
    assert not report.intact


def a_crash(disk: SimulatedDisk, remains: bytes) -> SegmentLog:
    """Two groups, of which the published end knows one, and ``remains``."""
    log = a_queue(disk, [2])
    published = disk.bytes_of(path_of("end"))
    log.append([frame(2, 4)])
    disk.spoil(path_of("end"), published)
    disk.spoil(path_of(0), disk.bytes_of(path_of(0)) + remains)
    return log


def test_behind_the_end_of_an_open_queue_nothing_is_looked_at_and_that_is_said__NB_12() -> None:
    disk = SimulatedDisk()
    log = a_crash(disk, b"torn")
    report = verify(DIRECTORY, disk=disk)
    assert report.unseen == [
        f"{0:020d}.segment: {report.unpublished_bytes} bytes behind the published end were not "
        "looked at, because process 1 has the queue open"
    ]
    log.close()


def test_a_write_that_is_published_meanwhile_is_nothing_to_say() -> None:
    disk = SimulatedDisk()
    log = a_queue(disk, [2])
    append = log.append
    holder = disk.lock_holder
    octets = disk.bytes_of(path_of(0))
    disk.spoil(path_of(0), octets + b"under way")

    def published_meanwhile(name: str) -> str | None:
        append([frame(2)])
        return holder(name)

    disk.lock_holder = published_meanwhile  # type: ignore[method-assign]
    report = verify(DIRECTORY, disk=disk)
    assert (report.intact, report.messages) == (True, 2)


def test_what_a_crash_has_left_is_looked_at__NB_12() -> None:
    disk = SimulatedDisk()
    a_crash(disk, b"torn")
    disk.crash()
    report = verify(DIRECTORY, disk=disk)
    assert report.intact
    assert report.notes == [
        f"{0:020d}.segment: 4 whole messages behind the published end; the next start of the "
        "gateway publishes them"
    ]


def test_damage_behind_an_old_end_is_found__NB_12() -> None:
    disk = SimulatedDisk()
    a_crash(disk, b"")
    disk.crash()
    disk.flip(path_of(0), disk.bytes_of(path_of(0)).rfind(b"\x93MPF") + 17)
    report = verify(DIRECTORY, disk=disk)
    assert (report.damaged, report.intact) == ([], False)
    assert "damaged offsets 2 to 6 behind the published end" in report.lines[0]


def test_a_tail_that_may_have_been_a_record_is_said__NB_12() -> None:
    disk = SimulatedDisk()
    a_crash(disk, b"\xff" * 99)
    disk.crash()
    report = verify(DIRECTORY, disk=disk)
    assert (report.lines, report.intact) == ([], False)
    assert "99 bytes at its end are no record" in report.unseen[0]


def test_without_the_end_a_newest_segment_that_cannot_be_read_hides_no_other__NB_12() -> None:
    disk = SimulatedDisk()
    a_queue(disk, [2, 3, 1], segment_bytes=1).close()
    disk.remove(path_of("end"))
    disk.fail_next("read", errno.ESTALE, path_of(5), times=2)
    report = verify(DIRECTORY, disk=disk)
    assert (report.messages, report.lines, report.damaged) == (5, [], [])
    assert report.unseen[0].startswith("the file 'end' is missing")
    assert report.unseen[1].startswith(f"{5:020d}.segment: not read to its end")
    assert len(report.unseen) == 2


def test_behind_a_damaged_end_of_an_open_queue_nothing_is_looked_at__NB_12() -> None:
    """What its writer has published meanwhile is not known either."""
    disk = SimulatedDisk()
    log = a_crash(disk, b"torn")
    disk.spoil(path_of("end"), bytes(76))
    report = verify(DIRECTORY, disk=disk)
    assert (report.messages, report.lines, report.damaged) == (6, [], [])
    assert report.unseen[0].startswith("the file 'end' is damaged")
    assert report.unseen[1:] == [
        f"{0:020d}.segment: 4 bytes behind the published end were not looked at, because process "
        "1 has the queue open"
    ]
    log.close()
