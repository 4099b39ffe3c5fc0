"""The append side without its thread: segments, room, broken disks, and which segments go."""

from __future__ import annotations

import contextlib
import errno
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.sim.disk import Cut, SimulatedDisk
from tests.tools.queues import (
    DIRECTORY,
    HEAD_BYTES,
    a_queue,
    a_reader,
    frame,
    ids,
    path_of,
    rows,
    segment_name,
)
from twisted_msgproto.core.errors import QueueError, QueueFull
from twisted_msgproto.queue import QueueReader, SegmentLog, recovery

FRAME = 200
"""Bytes of a frame with one small message, rounded up."""


def a_long_log(disk: SimulatedDisk, count: int = 10) -> SegmentLog:
    log = a_queue(disk, [1] * count, segment_bytes=FRAME)
    assert segments(disk) == list(range(count))
    return log


def commit(disk: SimulatedDisk, consumer: str, offset: int) -> None:
    a_reader(disk).commit(consumer, offset)


def segments(disk: SimulatedDisk) -> list[int]:
    return [int(name[:20]) for name in sorted(disk.names(DIRECTORY)) if name.endswith(".segment")]


def found(disk: SimulatedDisk) -> list[int]:
    return ids(rows(DIRECTORY, disk=disk))


def test_a_file_in_place_of_the_queue_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "queue"):
        with pytest.raises(QueueError, match=f"{place}: it, or what it is in, is no directory"):
            SegmentLog(place)


def test_whatever_ends_an_opening_gives_the_lock_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> Any:
        raise KeyboardInterrupt

    disk = SimulatedDisk()
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(recovery, "new_identity", interrupted)
        SegmentLog(DIRECTORY, disk=disk)
    a_queue(disk).close()


# -- no room ------------------------------------------------------------------------------------


@pytest.mark.parametrize("room", range(0, 648, 49))
def test_a_full_disk_changes_nothing_and_the_same_group_goes_in_later(room: int) -> None:
    """Disk full, short writes included: nothing is published, it resumes when space is back."""
    disk = SimulatedDisk()
    log = a_queue(disk, [1])
    group = [frame(1, nbytes=500)]
    disk.capacity = disk.used() + room
    with pytest.raises(QueueFull, match="no room on the disk"):
        log.append(group)
    assert log.end == 1
    assert found(disk) == [0]
    disk.capacity = None
    assert log.append(group) == 2
    assert found(disk) == [0, 1]
    assert segments(disk) == [0]  # it goes on where it was


@pytest.mark.parametrize("room", [0, 1, HEAD_BYTES - 1, HEAD_BYTES, 100])
def test_a_full_disk_at_a_segment_s_beginning_changes_nothing(room: int) -> None:
    disk = SimulatedDisk()
    log = a_queue(disk, [1], segment_bytes=FRAME)
    disk.capacity = disk.used() + room
    for _ in range(3):
        with pytest.raises(QueueFull, match="no room on the disk"):
            log.append([frame(1)])
    disk.capacity = None
    log.append([frame(1)])
    disk.crash()
    assert a_queue(disk).recovery.lines == []
    assert log.nbytes == sum(
        len(disk.bytes_of(path)) for path in disk.paths() if path.endswith(".segment")
    )
    assert found(disk) == [0, 1]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
@pytest.mark.parametrize("operation", ["write", "sync"])
def test_every_way_of_having_no_room_is_no_room(operation: str, number: int) -> None:
    disk = SimulatedDisk()
    log = a_queue(disk)
    disk.fail_next(operation, number, ".segment")
    with pytest.raises(QueueFull):
        log.append([frame(0)])
    log.append([frame(0)])
    assert found(disk) == [0]
    assert segments(disk) == [0]


@pytest.mark.parametrize("killed", [False, True])
def test_what_fitted_of_a_group_without_room_is_not_kept(killed: bool) -> None:
    """A group may have several frames; those which fitted were told as failed, not as durable."""
    disk = SimulatedDisk()
    log = a_queue(disk, [1])
    disk.capacity = disk.used() + 3 * FRAME
    with pytest.raises(QueueFull):
        log.append([frame(number) for number in range(1, 9)])
    disk.crash() if killed else log.close()
    disk.capacity = None
    again = a_queue(disk)
    assert again.end == 1
    assert found(disk) == [0]


@pytest.mark.parametrize("missing", ["segment", "all"])
def test_a_full_disk_lets_a_queue_open_which_needs_a_new_segment(missing: str) -> None:
    disk = SimulatedDisk()
    log = a_queue(disk, [1, 1], segment_bytes=FRAME)
    log.close()
    for name in [f"{1:020d}.segment"] if missing == "segment" else disk.names(DIRECTORY):
        if name.endswith(".segment"):
            disk.spoil(f"{DIRECTORY}/{name}", b"")
    disk.fail_next("truncate", errno.ENOSPC, ".segment", times=2)  # at the start, at an append
    again = a_queue(disk)
    assert any("no room" in line for line in again.recovery.lines)
    with pytest.raises(QueueFull):
        again.append([frame(7)])
    again.append([frame(7)])
    assert again.end == 3
    assert ids(rows(DIRECTORY, 2, 3, disk=disk)) == [7]


# -- a broken disk ------------------------------------------------------------------------------


def test_a_broken_write_whose_remains_cannot_be_cut_off_leaves_no_trace() -> None:
    """Records at or above the next segment's first offset do not count."""
    disk = SimulatedDisk()
    log = a_queue(disk, [1])
    disk.fail_next("sync", errno.EIO, ".segment")
    disk.fail_next("truncate", errno.EIO, ".segment")
    with pytest.raises(OSError, match="Input/output error"):
        log.append([frame(100, 2)])
    log.append([frame(1)])
    log.append([frame(2)])
    assert found(disk) == [0, 1, 2]
    log.close()
    again = a_queue(disk)
    assert again.recovery.lines == []
    assert found(disk) == [0, 1, 2]


@pytest.mark.parametrize("seed", range(5))
def test_a_start_makes_the_name_of_a_segment_anew_in_which_no_end_was_published__NB_12(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """NB-12: a killed process has not synced it, a later start's sync has failed."""

    def cut(path: str) -> None:
        raise Cut

    disk = SimulatedDisk()
    log = a_queue(disk, [1], segment_bytes=FRAME)
    with monkeypatch.context() as patched:
        patched.setattr(disk, "sync_directory", cut)
        with pytest.raises(Cut):
            log.append([frame(1)])
    disk.crash()
    assert segments(disk) == [0, 1]
    disk.fail_next("sync_directory", errno.EIO, "queue")
    with pytest.raises(QueueError, match="Input/output error"):
        a_queue(disk)
    disk.crash()
    log = a_queue(disk)
    assert (log.recovery.lines, log.append([frame(1)])) == ([], 2)
    disk.lose_power(random.Random(seed))
    assert a_queue(disk).damaged == []
    assert found(disk) == [0, 1]


def test_damage_is_forgotten_with_the_segments_that_had_it() -> None:
    disk = SimulatedDisk()
    a_long_log(disk, 5).close()
    for first in range(3):
        path = path_of(first)
        disk.spoil(path, disk.bytes_of(path)[:-8] + bytes(8))
    log = a_queue(disk)
    assert log.damaged == [(0, 3)]
    commit(disk, "spark", 2)
    assert log.trim() == 2
    assert log.damaged == [(2, 3)]


def test_an_end_that_could_not_be_published_is_published_when_nothing_is_appended() -> None:
    disk = SimulatedDisk()
    log = a_queue(disk)
    disk.fail_next("write", errno.EIO, "/end")
    log.append([frame(0)])
    assert a_reader(disk).end() == 0
    log.publish_again()
    assert a_reader(disk).end() == 1
    disk.journal.clear()
    log.publish_again()
    assert list(disk.journal) == []


class FailingDisk(SimulatedDisk):
    """The call number ``at`` raises OSError ``number``; calls are counted from 0 on."""

    calls = 0
    at, number = -1, 0

    def note(self, operation: str, path: str) -> None:
        self.calls += 1
        if self.calls - 1 == self.at:
            raise OSError(self.number, os.strerror(self.number), path)
        super().note(operation, path)


def story(disk: SimulatedDisk) -> int:
    """All that a log does to its disk; what fails is tried again, thrice.  Returns its end."""

    def attempt(work: Callable[[], object]) -> Any:
        for _ in range(3):
            try:
                return work()
            except (OSError, QueueError):
                continue
        pytest.fail("it failed thrice")

    log = attempt(lambda: a_queue(disk, segment_bytes=2 * FRAME, max_bytes=20 * FRAME))
    for number in range(6):
        assert attempt(lambda number=number: log.append([frame(number)])) == number + 1
        attempt(log.look)
        attempt(log.publish_again)
        attempt(lambda number=number: commit(disk, "spark", number - number % 3))
        attempt(log.trim)
    attempt(lambda: commit(disk, "spark", 5))
    attempt(lambda: log.trim(ending=True))
    log.close()
    assert not disk.opened.total()
    return int(log.end)


def test_whatever_call_of_the_disk_fails_nothing_is_lost_and_no_file_stays_open__NB_12() -> None:
    """Each call has one of the errors, by turns, before a loss of power and before a kill.

    NB-12: a sync of names that failed is not believed when it succeeds the next time.
    """
    errors = errno.EIO, errno.ENOSPC, errno.EROFS
    whole = FailingDisk()
    end = story(whole)
    for at in range(2 * whole.calls):
        disk = FailingDisk()
        disk.at, disk.number = at % whole.calls, errors[at % 3]
        assert story(disk) == end
        disk.lose_power(random.Random(at)) if at < whole.calls else disk.crash()
        log = a_queue(disk)
        log.append([frame(end)])
        log.close()
        assert ids(rows(DIRECTORY, disk=disk)) == [*range(log.begin, 7)], at
        assert log.begin <= 5
        assert log.damaged == []
        assert not disk.opened.total()


# -- the operating system's disk ----------------------------------------------------------------


def test_directories_are_for_their_owner_alone(tmp_path: Path) -> None:
    """Directory 0700, files 0600."""
    directory = tmp_path / "above" / "q"
    log = SegmentLog(directory)
    log.append([frame(0)])
    QueueReader(directory).commit("spark", 0)
    log.close()
    for parent, directories, files in os.walk(directory):
        assert os.stat(parent).st_mode & 0o777 == 0o700
        for name in (*directories, *files):
            mode = os.stat(os.path.join(parent, name)).st_mode & 0o777
            assert mode == (0o700 if name in directories else 0o600), name


def test_a_directory_of_other_things_keeps_its_mode(tmp_path: Path) -> None:
    """``--queue /tmp`` is a slip; it must not lock everybody out."""
    directory = tmp_path / "shared"
    directory.mkdir(mode=0o755)
    (directory / "something-else").write_text("")
    SegmentLog(directory).close()
    assert directory.stat().st_mode & 0o777 == 0o755


# -- which segments go, and when -----------------------------------------------------------------


def test_segments_below_every_consumer_s_offset_are_trimmed_and_no_others() -> None:
    disk = SimulatedDisk()
    log = a_long_log(disk)
    before = log.nbytes
    commit(disk, "spark", 7)
    commit(disk, "slow", 4)
    assert log.trim() == 4
    assert (log.begin, len(log.firsts), log.trimmed_segments) == (4, 6, 4)
    assert log.nbytes < before
    assert found(disk) == list(range(4, 10))
    commit(disk, "slow", 10)
    assert log.trim() == 3
    assert log.begin == 7


def test_without_a_broker_no_segment_of_its_queues_goes() -> None:
    disk = SimulatedDisk()
    a_long_log(disk, 5).close()
    disk.make_directory(f"{DIRECTORY}/broker")
    disk.open(f"{DIRECTORY}/broker/names", write=True).write(0, [b"queue "])
    log = a_queue(disk)
    commit(disk, "spark", 5)
    assert log.trim() == log.trim(ending=True) == 0
    assert log.withheld
    assert found(disk) == list(range(5))


@pytest.mark.parametrize("operation", ["write", "sync", "rename", "sync_directory"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_nothing_goes_before_the_head_behind_it_is_on_the_disk(operation: str, number: int) -> None:
    """The newest head alone says whose row came before."""
    disk = SimulatedDisk()
    log = a_long_log(disk, 2)
    place = a_reader(disk).place(2)
    commit(disk, "spark", 2)
    disk.fail_next(operation, number, "queue" if operation == "sync_directory" else segment_name(2))
    with pytest.raises(QueueFull if number == errno.ENOSPC else OSError):
        log.trim(ending=True)
    assert segments(disk)[:2] == [0, 1]
    assert log.trim(ending=True) == 2
    assert segments(disk) == [2]
    disk.lose_power(random.Random(1))
    log = a_queue(disk)
    assert a_reader(disk).place(2) == place
    log.append([frame(2)])
    assert found(disk) == [2]


def test_a_consumer_whose_file_is_damaged_keeps_everything() -> None:
    disk = SimulatedDisk()
    log = a_long_log(disk)
    commit(disk, "spark", 10)
    disk.spoil(path_of("consumers/spark"), b"offset 00000000000000000009 que")
    assert a_reader(disk).consumers() == {"spark": 0}
    assert log.trim() == 0


# -- max_bytes ----------------------------------------------------------------------------------


def test_at_its_limit_the_queue_waits_for_its_slowest_consumer() -> None:
    """max-bytes: back-pressure; what a consumer has not committed is never deleted."""
    disk = SimulatedDisk()
    log = a_queue(disk, max_bytes=10 * FRAME)
    with pytest.raises(QueueFull, match="no consumer is registered"):
        for number in range(100):
            log.append([frame(number)])
    end = log.end
    assert end >= 6
    assert log.nbytes <= 10 * FRAME
    commit(disk, "fast", end)
    commit(disk, "slow", 1)
    with pytest.raises(QueueFull, match="waiting for 'slow'"):
        log.append([frame(end)])
    assert found(disk) == list(range(end))
    commit(disk, "slow", end // 2)
    log.append([frame(end)])
    assert log.begin > 0
    assert found(disk) == list(range(log.begin, end + 1))


def test_a_consumer_that_was_forgotten_does_not_come_back_after_a_loss_of_power() -> None:
    disk = SimulatedDisk()
    a_queue(disk).close()
    commit(disk, "gone", 0)
    a_reader(disk).forget("gone")
    disk.lose_power(random.Random(1))
    assert a_reader(disk).consumers() == {}


def test_at_its_limit_a_queue_whose_every_message_is_committed_goes_on() -> None:
    disk = SimulatedDisk()
    log = a_queue(disk, max_bytes=4 * FRAME)
    log.append([frame(0, nbytes=2 * FRAME)])
    commit(disk, "spark", 1)
    log.append([frame(1, nbytes=2 * FRAME)])
    assert segments(disk) == [1]
    assert found(disk) == [1]


def test_a_group_above_the_limit_goes_into_an_empty_queue() -> None:
    """Or it could never be written at all."""
    disk = SimulatedDisk()
    log = a_queue(disk, max_bytes=2 * FRAME)
    log.append([frame(0, nbytes=10 * FRAME)])
    assert found(disk) == [0]
    with pytest.raises(QueueFull):
        log.append([frame(1)])


def test_a_start_on_a_full_disk_may_trim_and_goes_on_in_its_newest_segment() -> None:
    """That segment's head is durable, so nothing has to be written before an older one goes."""
    disk = SimulatedDisk()
    log = a_queue(disk, [1, 1], segment_bytes=1)
    log.close()
    commit(disk, "spark", 1)
    log = a_queue(disk)
    disk.capacity = disk.used()
    with pytest.raises(QueueFull):
        log.append([frame(2)])
    assert log.trim() == 1
    disk.capacity = None
    log.append([frame(2)])
    assert found(disk) == [1, 2]
    assert segments(disk) == [1]
    log.close()


def test_the_head_of_a_segment_that_has_to_begin_counts_towards_the_limit() -> None:
    log = a_queue(SimulatedDisk(), [1, 1], segment_bytes=1)
    for max_bytes, fits in ((log.nbytes, True), (log.nbytes - 1, False)):
        other = a_queue(SimulatedDisk(), [1], segment_bytes=1, max_bytes=max_bytes)
        with contextlib.nullcontext() if fits else pytest.raises(QueueFull):
            other.append([frame(1)])


def test_what_is_left_of_a_segment_without_its_name_is_gone_after_the_next_start(
    tmp_path: Path,
) -> None:
    (tmp_path / f".{segment_name(1)}.new").write_bytes(b"a part of a head")
    other = tmp_path / ".notes.new"
    other.write_bytes(b"not a segment")
    SegmentLog(tmp_path).close()
    assert list(tmp_path.glob(".*.new")) == [other]
