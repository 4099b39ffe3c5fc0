"""Which segments go, when, and how a queue keeps its limit of octets."""

from __future__ import annotations

import contextlib
import errno
import random

import pytest

from tests.queue.test_log import DIRECTORY, FRAME, a_log, a_long_log, commit, found, segments
from tests.sim.disk import SimulatedDisk
from tests.tools.queues import frame
from twisted_msgproto.core.errors import QueueFull
from twisted_msgproto.queue import QueueReader, consumers
from twisted_msgproto.queue.format import (
    segment_name,
)


def test_without_consumers_nothing_is_trimmed() -> None:
    disk = SimulatedDisk()
    log = a_long_log(disk)
    assert log.trim() == 0
    assert found(disk) == list(range(10))


def test_segments_below_every_consumer_s_offset_are_trimmed_and_no_others() -> None:
    disk = SimulatedDisk()
    log = a_long_log(disk)
    before = log.octets
    commit(disk, "spark", 7)
    commit(disk, "slow", 4)
    assert log.trim() == 4
    assert (log.begin, log.segments, log.trimmed_segments) == (4, 6, 4)
    assert log.octets < before
    assert found(disk) == list(range(4, 10))
    commit(disk, "slow", 10)
    assert log.trim() == 3
    assert log.begin == 7


def test_a_segment_is_kept_until_its_last_message_is_committed() -> None:
    disk = SimulatedDisk()
    log = a_log(disk, segment_bytes=FRAME)
    log.append([frame(0, 5)])
    log.append([frame(5)])
    commit(disk, "spark", 4)
    assert log.trim() == 0
    commit(disk, "spark", 5)
    assert log.trim() == 1
    assert log.begin == 5


def test_without_a_broker_no_segment_of_its_queues_goes() -> None:
    disk = SimulatedDisk()
    a_long_log(disk, 5).close()
    disk.make_directory(f"{DIRECTORY}/broker")
    disk.open(f"{DIRECTORY}/broker/names", write=True).write(0, [b"queue "])
    log = a_log(disk)
    commit(disk, "spark", 5)
    assert log.trim() == log.trim(ending=True) == 0
    assert log.withheld
    assert found(disk) == list(range(5))


def test_segments_that_end_at_or_below_an_offset_are_removed_but_for_the_newest() -> None:
    log = a_long_log(SimulatedDisk(), 5)
    assert log.remove_below(2) == 2
    assert log.firsts == [2, 3, 4]
    assert log.remove_below(2) == 0
    assert log.remove_below(100) == 2
    assert (log.firsts, log.begin, log.trimmed_segments) == ([4], 4, 4)


def test_the_newest_segment_stays_so_that_offsets_go_on() -> None:
    disk = SimulatedDisk()
    log = a_long_log(disk, 3)
    commit(disk, "spark", 3)
    assert log.trim() == 2
    assert log.trim() == 0
    log.close()
    again = a_log(disk)
    assert (again.begin, again.end) == (2, 3)


@pytest.mark.parametrize(
    ("operation", "number"),
    [("write", errno.ENOSPC), ("sync", errno.ENOSPC), ("write", errno.EIO), ("sync", errno.EIO)],
)
def test_nothing_goes_before_the_head_behind_it_is_on_the_disk(operation: str, number: int) -> None:
    """The newest head alone says whose row came before; without room it stays as it was."""
    disk = SimulatedDisk()
    log = a_long_log(disk, 2)
    disk.fail_next("sync", errno.EIO, segment_name(2))
    with pytest.raises(OSError, match="Input/output error"):
        log.append([frame(2)])
    commit(disk, "spark", 2)
    # Without room there is neither a new file for the head nor the old one's octets.
    disk.fail_next(operation, number, segment_name(2), times=2 if number == errno.ENOSPC else 1)
    if number == errno.ENOSPC:
        assert log.trim() == 1
    else:
        with pytest.raises(OSError, match="Input/output error"):
            log.trim()
    assert segments(disk)[-2:] == [1, 2]
    assert log.trim() == 1
    assert segments(disk) == [2]
    log.append([frame(2)])
    assert found(disk) == [2]


@pytest.mark.parametrize("seed", range(3))
def test_a_head_whose_sync_failed_is_written_again__NB_12(seed: int) -> None:
    """The next sync of the same file succeeds without it."""
    disk = SimulatedDisk()
    log = a_long_log(disk, 2)
    commit(disk, "spark", 2)
    disk.fail_next("sync", errno.EIO, segment_name(2))
    with pytest.raises(OSError, match="Input/output error"):
        log.trim(ending=True)
    assert log.append([frame(2)]) == 3
    disk.lose_power(random.Random(seed))
    log = a_log(disk)
    assert (log.end, log.damaged, log.recovery.lines) == (3, [], [])
    assert found(disk)[-1] == 2


def test_a_consumer_whose_file_is_damaged_keeps_everything() -> None:
    disk = SimulatedDisk()
    log = a_long_log(disk)
    commit(disk, "spark", 10)
    disk.spoil(f"{DIRECTORY}/consumers/spark", b"offset 00000000000000000009 que")
    assert QueueReader(DIRECTORY, disk=disk).consumers() == {"spark": 0}
    assert log.trim() == 0


# -- max_bytes ----------------------------------------------------------------------------------


def test_at_its_limit_the_queue_waits_for_its_slowest_consumer() -> None:
    """max-bytes: back-pressure; what a consumer has not committed is never deleted."""
    disk = SimulatedDisk()
    log = a_log(disk, max_bytes=10 * FRAME)
    with pytest.raises(QueueFull, match="no consumer is registered"):
        for number in range(100):
            log.append([frame(number)])
    end = log.end
    assert end >= 6
    assert log.octets <= 10 * FRAME
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
    a_log(disk).close()
    commit(disk, "gone", 0)
    QueueReader(DIRECTORY, disk=disk).forget("gone")
    disk.lose_power(random.Random(1))
    assert consumers.names(disk, DIRECTORY) == []


def test_at_its_limit_a_queue_whose_every_message_is_committed_goes_on() -> None:
    disk = SimulatedDisk()
    log = a_log(disk, max_bytes=4 * FRAME)
    log.append([frame(0, octets=2 * FRAME)])
    commit(disk, "spark", 1)
    log.append([frame(1, octets=2 * FRAME)])
    assert segments(disk) == [1]
    assert found(disk) == [1]


def test_a_group_above_the_limit_goes_into_an_empty_queue() -> None:
    """Or it could never be written at all."""
    disk = SimulatedDisk()
    log = a_log(disk, max_bytes=2 * FRAME)
    log.append([frame(0, octets=10 * FRAME)])
    assert found(disk) == [0]
    with pytest.raises(QueueFull):
        log.append([frame(1)])


def test_a_start_on_a_full_disk_may_trim_and_goes_on_in_its_newest_segment() -> None:
    """That segment's head is durable, so nothing has to be written before an older one goes."""
    disk = SimulatedDisk()
    log = a_log(disk, segment_bytes=1)
    log.append([frame(0)])
    log.append([frame(1)])
    log.close()
    commit(disk, "spark", 1)
    log = a_log(disk)
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
    log = a_log(SimulatedDisk(), segment_bytes=1)
    log.append([frame(0)])
    log.append([frame(1)])
    for max_bytes, fits in ((log.octets, True), (log.octets - 1, False)):
        other = a_log(SimulatedDisk(), segment_bytes=1, max_bytes=max_bytes)
        other.append([frame(0)])
        with contextlib.nullcontext() if fits else pytest.raises(QueueFull):
            other.append([frame(1)])
