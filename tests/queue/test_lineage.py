"""Incarnations and witnesses: what proves that a place is still the same place of a queue."""

from __future__ import annotations

import copy
import errno
import itertools
import random
from collections.abc import Callable

import pytest

from tests.sim.disk import Cut, CutDisk, SimulatedDisk
from tests.sim.gateway import a_log as numbered
from tests.tools.queues import DIRECTORY, HEAD_BYTES, a_reader, frame, frame_header, path_of, sealed
from twisted_msgproto.core.errors import QueueFull, QueueMismatch
from twisted_msgproto.queue import Landed, SegmentLog

FILE = path_of("lineage")


class Numbers:
    """Incarnations 1001, 1002, …, and the last one that was drawn."""

    def __init__(self, first: int = 1001) -> None:
        self._numbers = itertools.count(first)
        self.last = 0

    def __call__(self) -> int:
        self.last = next(self._numbers)
        return self.last


def a_log(disk: SimulatedDisk, incarnation: int | Callable[[], int], **options: int) -> SegmentLog:
    make = incarnation if callable(incarnation) else lambda: incarnation
    return numbered(disk, make, **options)


def appended(log: SegmentLog, *counts: int) -> None:
    for count in counts:
        log.append([frame(log.end, count)])


def begun_again(
    disk: SimulatedDisk, incarnation: int | Callable[[], int], **options: int
) -> SegmentLog:
    disk.crash()
    return a_log(disk, incarnation, **options)


def copied(disk: SimulatedDisk, log: SegmentLog) -> tuple[SimulatedDisk, SegmentLog]:
    """A snapshot of a machine, with its disk and what runs on it."""
    return copy.deepcopy((disk, log), {id(disk.mutex): disk.mutex})


def starts(disk: SimulatedDisk) -> list[tuple[int, int]]:
    """The starts that the file knows: first offset and incarnation."""
    lines = [line.split() for line in disk.bytes_of(FILE).splitlines()]
    return [(int(words[1]), int(words[2])) for words in lines if words[0] == b"start"]


def commit(disk: SimulatedDisk, offset: int) -> None:
    a_reader(disk).commit("spark", offset)


# -- what is kept ---------------------------------------------------------------------------------


def test_each_start_has_its_own_number_from_its_first_row_on() -> None:
    disk = SimulatedDisk()
    appended(a_log(disk, 11), 2, 2)
    appended(begun_again(disk, 22), 1)
    appended(begun_again(disk, 33), 3)
    places = [a_reader(disk).place(offset) for offset in range(9)]
    assert [place.incarnation for place in places] == [0, 11, 11, 11, 11, 22, 33, 33, 33]
    assert [place.offset for place in places] == list(range(9))
    assert places[0] == Landed(0)
    assert len({place.witness for place in places}) == 9
    assert [place.witness % 2**31 for place in places[1:]] == [0, 1, 0, 1, 0, 0, 1, 2]
    assert a_reader(disk).describe().landed == places[8]


def test_a_start_without_rows_is_replaced_by_the_next() -> None:
    disk = SimulatedDisk()
    for number in range(1, 50):
        begun_again(disk, number)
    appended(begun_again(disk, 50), 1)
    for number in range(51, 60):
        begun_again(disk, number)
    assert starts(disk) == [(0, 50), (1, 59)]
    assert a_reader(disk).place(1).incarnation == 50


def test_no_more_starts_than_the_limit_are_kept() -> None:
    disk = SimulatedDisk()
    appended(a_log(disk, 1), *[1] * 1000)
    disk.spoil(FILE, b"".join(sealed(f"start {at} {at + 1}") for at in range(1000)))
    for number in range(1000, 1005):
        appended(begun_again(disk, number + 1), 1)
    assert starts(disk) == [(number, number + 1) for number in range(5, 1005)]
    places = [a_reader(disk).place(offset).incarnation for offset in (5, 6, 1005)]
    assert places == [0, 6, 1005]


def test_a_trim_keeps_what_is_known_of_the_last_row_it_removes_and_drops_older_starts() -> None:
    disk = SimulatedDisk()
    numbers = Numbers()
    for _ in range(6):
        appended(begun_again(disk, numbers, segment_bytes=1), 2, 1)
    log = begun_again(disk, numbers, segment_bytes=1)
    places = [a_reader(disk).place(offset) for offset in range(19)]
    for begin in (3, 8, 18):
        commit(disk, begin)
        log.trim(ending=True)
        assert log.begin == begin
        assert starts(disk)[0][0] < begin <= starts(disk)[1][0]
        reader = a_reader(disk)
        assert [reader.place(offset) for offset in range(begin, 19)] == places[begin:]
        with pytest.raises(QueueMismatch, match="was trimmed"):
            reader.place(begin - 1)
    log.close()
    again = begun_again(disk, numbers)
    assert a_reader(disk).place(18) == places[18]
    appended(again, 1)
    assert a_reader(disk).place(18) == places[18]


def test_a_full_disk_is_trimmed_and_nothing_of_the_lineage_is_lost() -> None:
    disk = SimulatedDisk()
    numbers = Numbers()
    for _ in range(3):
        appended(begun_again(disk, numbers, segment_bytes=1), 2, 2)
    log = begun_again(disk, numbers, segment_bytes=1)
    appended(log, 1)
    places = [a_reader(disk).place(offset) for offset in range(14)]
    commit(disk, 0)
    disk.capacity = disk.used()
    commit(disk, 10)
    assert log.trim() == 5
    assert [a_reader(disk).place(offset) for offset in range(10, 14)] == places[10:]
    disk.lose_power(random.Random(1))
    disk.capacity = None
    begun_again(disk, numbers)
    reader = a_reader(disk)
    assert [reader.place(offset) for offset in range(10, 14)] == places[10:]


def test_a_trim_which_cannot_shorten_the_file_does_it_later() -> None:
    disk = SimulatedDisk()
    numbers = Numbers()
    for _ in range(3):
        appended(begun_again(disk, numbers, segment_bytes=1), 2)
    log = begun_again(disk, numbers, segment_bytes=1)
    commit(disk, 4)
    disk.fail_next("open", errno.ENOSPC, ".lineage.new")
    assert log.trim() == 2
    assert len(starts(disk)) == 4
    appended(log, 1)
    assert len(starts(disk)) == 3


def test_a_start_on_a_full_disk_publishes_nothing_before_its_number_is_durable() -> None:
    disk = SimulatedDisk()
    appended(a_log(disk, 11), 2)
    disk.capacity = disk.used()
    log = begun_again(disk, 22)
    assert "no room" in log.recovery.lines[-1]
    with pytest.raises(QueueFull, match="no room"):
        appended(log, 1)
    assert a_reader(disk).end() == 2
    disk.capacity = None
    appended(log, 1)
    assert [a_reader(disk).place(offset).incarnation for offset in (2, 3)] == [11, 22]


def test_a_segment_given_up_says_whose_row_comes_before_it() -> None:
    disk = SimulatedDisk()
    log = a_log(disk, 11, segment_bytes=1)
    appended(log, 1, 1)
    place = a_reader(disk).place(2)
    disk.fail_next("sync", errno.EIO, f"{DIRECTORY}/{2:020d}")
    with pytest.raises(OSError, match="Input/output"):
        appended(log, 1)
    commit(disk, 2)
    assert (log.trim(), log.begin) == (2, 2)
    disk.lose_power(random.Random(1))
    assert a_reader(disk).place(2) == place


def test_a_head_that_is_too_short_says_nothing_of_the_row_before_it() -> None:
    """Its checksums are right."""
    disk = SimulatedDisk()
    log = a_log(disk, 11)
    appended(log, 3)
    commit(disk, 3)
    assert (log.trim(ending=True), log.begin) == (1, 3)
    log.close()
    path = path_of(3)
    octets = disk.bytes_of(path)
    disk.spoil(path, octets[:56] + frame_header(octets[32:40], bytes(8), 3, 0, 0) + bytes(8))
    assert a_reader(disk).describe().landed == Landed(3, 11)
    log = a_log(disk, 12)
    appended(log, 1)
    assert a_reader(disk).describe().landed.incarnation == 12


# -- power cuts -----------------------------------------------------------------------------------


def worked(disk: SimulatedDisk, numbers: Numbers, told: dict[int, Landed]) -> None:
    """Starts, groups, commits and trims; ``told`` is what a table would have kept."""
    for _ in range(3):
        log = a_log(disk, numbers, segment_bytes=700)
        for count in (2, 1, 3):
            appended(log, count)
            place = a_reader(disk).describe().landed
            assert (place.incarnation, place.offset) == (numbers.last, log.end)
            told[log.end] = place
        commit(disk, log.end - 1)
        log.trim()
        commit(disk, log.end)
        log.trim(ending=True)
        assert log.begin == log.end
        log.close()


def test_power_cut_at_every_step_loses_nothing_of_the_lineage() -> None:
    whole = CutDisk()
    worked(whole, Numbers(), {})
    assert whole.changes > 100
    proved = 0
    for step in range(whole.changes):
        disk, numbers, told = CutDisk(), Numbers(), dict[int, Landed]()
        disk.left = step
        with pytest.raises(Cut):
            worked(disk, numbers, told)
        disk.left = None
        disk.lose_power(random.Random(step))
        log = begun_again(disk, numbers, segment_bytes=700)
        reader = a_reader(disk)
        for place in told.values():
            if place.offset >= log.begin:
                assert reader.place(place.offset) == place, step
                proved += 1
        # Whatever is there has a start of its own from here on.
        end = log.end
        appended(log, 1)
        assert reader.place(end + 1).incarnation == numbers.last
        if end and end in told:
            assert reader.place(end) == told[end], step
    assert proved > whole.changes


# -- what is refused ------------------------------------------------------------------------------


def test_a_restart_of_the_gateway_is_no_error() -> None:
    disk = SimulatedDisk()
    appended(a_log(disk, 11), 5)
    landed = a_reader(disk).describe().landed
    for number in range(12, 15):
        log = begun_again(disk, number)
        a_reader(disk).check(landed)
        appended(log, 2)
        a_reader(disk).check(landed)
        assert a_reader(disk).describe(landed).end == log.end


def test_a_queue_restored_from_an_older_copy_is_refused_when_it_was_written_on() -> None:
    """TB-06: same id, and the rows which came since would never land."""
    disk = SimulatedDisk()
    log = a_log(disk, 11)
    appended(log, 5)
    older, _ = copied(disk, log)
    appended(begun_again(disk, 22), 5)
    landed = a_reader(disk).describe().landed
    log = begun_again(older, 33)
    for _ in range(4):
        with pytest.raises(QueueMismatch, match=r"ends at offset \d, but .* 10 .*table rewind"):
            a_reader(older).check(landed)
        appended(log, 1)
    appended(log, 1)
    reader = a_reader(older)
    told = r"row 9 .* written by another start .* restored from an older copy.* table rewind"
    for _ in range(2):
        with pytest.raises(QueueMismatch, match=told):
            reader.check(landed)
        with pytest.raises(QueueMismatch, match=told):
            reader.describe(landed)
        with pytest.raises(QueueMismatch, match=told):
            next(reader.read(10, log.end, landed=landed))
        with pytest.raises(QueueMismatch, match=told):
            reader.commit("spark", 10, landed)
        appended(log, 7)
    assert reader.consumers() == {}
    reader.check(Landed(5, 11))  # what both copies have in common


def test_a_machine_set_back_to_a_snapshot_is_refused_though_it_kept_its_number() -> None:
    """TB-06, the other way: the snapshot has the running writer in it."""
    disk = SimulatedDisk()
    log = a_log(disk, 11)
    appended(log, 5)
    snapshot = copied(disk, log)
    appended(log, 5)
    landed = a_reader(disk).describe().landed
    older, log = snapshot
    log.append([frame(100, 5)])
    reader = a_reader(older)
    for _ in range(2):
        with pytest.raises(QueueMismatch, match=r"row 9 .* snapshot .* table rewind"):
            reader.check(landed)
        log.append([frame(200, 3)])
    reader.check(Landed(5, 11))


def test_what_was_trimmed_before_it_landed_is_refused() -> None:
    disk = SimulatedDisk()
    log = a_log(disk, 11, segment_bytes=1)
    appended(log, 2, 2, 2)
    landed = a_reader(disk).place(2)
    commit(disk, 4)
    log.trim()
    with pytest.raises(QueueMismatch, match=r"offset 2 .* trimmed before it landed.* begins at 4"):
        a_reader(disk).check(landed)
    with pytest.raises(QueueMismatch, match="begins at 4"):
        a_reader(disk).describe(Landed(0))


def test_what_is_not_known_is_not_compared() -> None:
    disk = SimulatedDisk()
    appended(a_log(disk, 11), 5)
    reader = a_reader(disk)
    place = reader.place(3)
    for known in (Landed(3), Landed(3, 11), Landed(3, 0, place.witness), place):
        reader.check(known)
    for wrong in (Landed(3, 12), Landed(3, 0, place.witness + 1), Landed(3, 12, place.witness)):
        with pytest.raises(QueueMismatch):
            reader.check(wrong)


def test_rows_which_were_lost_after_they_landed_are_still_this_history() -> None:
    """A disk which lost what it had confirmed: a loss is counted, offsets are never used again."""
    disk = SimulatedDisk()
    appended(a_log(disk, 11), 2, 2, 2)
    places = [a_reader(disk).place(offset) for offset in range(7)]
    segment = path_of(0)
    octets = disk.bytes_of(segment)
    disk.spoil(segment, octets[: HEAD_BYTES + (len(octets) - HEAD_BYTES) // 3])
    log = begun_again(disk, 22)
    assert (log.losses, log.end) == (1, 6)
    reader = a_reader(disk)
    for landed in places:
        reader.check(landed)
    assert reader.place(6) == Landed(6, 11)
    appended(log, 1)
    for landed in places:
        reader.check(landed)
    assert reader.place(5) == Landed(5, 11)
    assert reader.place(7).incarnation == 22
    assert reader.describe(places[6]).damaged == ((2, 6),)


def test_a_row_whose_payload_is_damaged_is_still_known_by_its_header() -> None:
    disk = SimulatedDisk()
    appended(a_log(disk, 11), 2, 2)
    place = a_reader(disk).place(2)
    segment = path_of(0)
    octets = bytearray(disk.bytes_of(segment))
    octets[HEAD_BYTES + 60] ^= 1
    disk.spoil(segment, bytes(octets))
    assert a_reader(disk).place(2) == place
    octets[HEAD_BYTES + 10] ^= 1
    disk.spoil(segment, bytes(octets))
    assert a_reader(disk).place(2) == Landed(2, 11)
    a_reader(disk).check(place)


@pytest.mark.parametrize("kind", ["missing", "damaged", "empty", "other"])
def test_a_lineage_which_is_lost_makes_no_queue_another(kind: str) -> None:
    disk = SimulatedDisk()
    appended(a_log(disk, 11, segment_bytes=1), 2, 2, 2)
    places = [a_reader(disk).place(offset) for offset in range(7)]
    if kind == "missing":
        disk.remove(FILE)
    elif kind == "damaged":
        disk.flip(FILE, 3)
    else:
        disk.spoil(FILE, b"" if kind == "empty" else sealed("something 1 2"))
    reader = a_reader(disk)
    for landed in places:
        reader.check(landed)
    log = begun_again(disk, 22, segment_bytes=1)
    assert any("the lineage of the queue" in text for text in log.recovery.lines)
    appended(log, 1)
    for landed in places:
        reader.check(landed)
    assert reader.place(4) == Landed(4, 0, places[4].witness)
    assert reader.place(7).incarnation == 22
    commit(disk, 4)
    log.trim()
    # The head of the segment behind it says what the file does not know any more.
    assert reader.place(4) == places[4]
