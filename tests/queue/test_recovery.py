"""What the writer repairs at its start: docs/queue-format.md, the table of cases, row by row."""

from __future__ import annotations

import contextlib
import copy
import errno
import functools
import os
import random
import re
import stat
import subprocess
from pathlib import Path

import pytest

from tests.sim.disk import Cut, CutDisk, SimulatedDisk, SimulatedFile
from tests.tools.queues import (
    HEAD_BYTES,
    SEGMENT_HEADER_BYTES,
    frame,
    frames_of,
    ids,
    published,
    rows,
    sealed,
    segment_header,
)
from twisted_msgproto.core.errors import QueueError, QueueMismatch
from twisted_msgproto.queue import QueueReader, SegmentLog
from twisted_msgproto.queue.verify import verify

DIRECTORY = "/queue"
FIRST = f"{DIRECTORY}/{0:020d}.segment"
COUNTS = [2, 1, 3]
"""Messages in each group of :func:`a_queue`."""
RANGES = [(0, 2), (2, 3), (3, 6)]


def a_queue(disk: SimulatedDisk, **options: int) -> SegmentLog:
    """Three groups with 2, 1 and 3 messages; closed."""
    log = SegmentLog(DIRECTORY, disk=disk, **options)
    first = 0
    for count in COUNTS:
        log.append([frame(first, count)])
        first += count
    log.close()
    return log


def copied(disk: SimulatedDisk) -> SimulatedDisk:
    return copy.deepcopy(disk, {id(disk.mutex): disk.mutex})


def frames(disk: SimulatedDisk) -> list[tuple[int, int]]:
    """Where each frame of the first segment begins and ends."""
    return [(one.position, one.end_position) for one in frames_of(disk.bytes_of(FIRST))]


def reopened(disk: SimulatedDisk, **options: int) -> SegmentLog:
    return SegmentLog(DIRECTORY, disk=disk, **options)


def found(disk: SimulatedDisk) -> list[int]:
    return ids(rows(DIRECTORY, disk=disk))


def missing(*lost: tuple[int, int], end: int = 6) -> list[int]:
    """All ids but those in the ranges ``lost``."""
    return [n for n in range(end) if not any(lo <= n < hi for lo, hi in lost)]


def told(log: SegmentLog) -> list[tuple[int, int]]:
    """The ranges of offsets that a start has said to be damaged."""
    lines = "\n".join(log.recovery.lines)
    return [(int(lo), int(hi)) for lo, hi in re.findall(r"offsets (\d+) to (\d+) \(", lines)]


def cut(log: SegmentLog) -> int:
    """How many bytes a start has said to have cut off."""
    return sum(map(int, re.findall(r"\bcut (\d+) bytes", "\n".join(log.recovery.lines))))


two_more = functools.cache(functools.partial(frame, count=2))


def goes_on(disk: SimulatedDisk, log: SegmentLog, *lost: tuple[int, int]) -> None:
    """All but ``lost`` is there, appending works, and the next start tells nothing again."""
    end = log.end
    assert log.append([two_more(end)]) == end + 2
    assert found(disk) == missing(*lost, end=end + 2)
    assert QueueReader(DIRECTORY, disk=disk).damaged() == list(lost)
    log.close()
    again = reopened(disk)
    assert told(again) == []
    assert (again.end, again.losses, again.recovery.lost) == (end + 2, log.losses, False)
    assert again.damaged == list(lost)
    assert found(disk) == missing(*lost, end=end + 2)
    again.close()


# -- behind the published end -----------------------------------------------------------------


def test_a_torn_tail_is_cut_at_every_byte() -> None:
    """An incomplete record above the published end is cut off: it was never acknowledged."""
    sample = SimulatedDisk()
    log = SegmentLog(DIRECTORY, disk=sample)
    log.append([frame(0, 2)])
    log.append([frame(2, 1)])
    published = sample.bytes_of(f"{DIRECTORY}/end")
    log.append([frame(3, 3)])
    log.close()
    sample.spoil(f"{DIRECTORY}/end", published)
    whole = sample.bytes_of(FIRST)
    start, end = frames(sample)[-1]
    for length in range(start, end):
        disk = copied(sample)
        disk.spoil(FIRST, whole[:length])
        again = reopened(disk)
        assert (again.end, again.losses) == (3, 0)
        assert again.recovery.lines == [
            f"cut {length - start} bytes of an unfinished record from {FIRST}"
        ] * (length > start)
        assert len(disk.bytes_of(FIRST)) == start
        goes_on(disk, again)


@pytest.mark.parametrize("groups", [0, 2], ids=["nothing published", "some published"])
def test_a_start_does_not_believe_a_sync_after_one_that_failed__NB_12(groups: int) -> None:
    """NB-12: the second start published what was in no file after a loss of power."""
    disk = SimulatedDisk()
    log = SegmentLog(DIRECTORY, disk=disk)
    for first in range(groups):
        log.append([frame(first)])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SimulatedFile, "sync", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            log.append([frame(groups, 2)])
    disk.crash()
    disk.fail_next("sync", errno.EIO, ".segment")
    with pytest.raises(QueueError, match="Input/output"):
        reopened(disk)
    disk.crash()
    assert reopened(disk).end == groups + 2
    disk.lose_power(random.Random(1))
    again = reopened(disk)
    assert (again.end, again.losses, again.recovery.lines) == (groups + 2, 0, [])
    goes_on(disk, again)


def test_damage_above_the_published_end_which_a_valid_record_follows_is_no_torn_tail() -> None:
    """The published end on disk may be old: what lies above it may have been acknowledged."""
    disk = SimulatedDisk()
    log = SegmentLog(DIRECTORY, disk=disk)
    log.append([frame(0, 2)])
    published = disk.bytes_of(f"{DIRECTORY}/end")
    log.append([frame(2, 1)])
    log.append([frame(3, 3)])
    log.close()
    disk.spoil(f"{DIRECTORY}/end", published)
    disk.flip(FIRST, frames(disk)[1][0] + 40)
    again = reopened(disk)
    assert told(again) == [(2, 3)]
    assert (again.end, again.losses) == (6, 0)
    goes_on(disk, again, (2, 3))


# -- below the published end ------------------------------------------------------------------


def test_every_flipped_bit_costs_its_own_record_and_is_told_once() -> None:
    """FAULTS: bit flips over every byte of a segment; FAULTS "no manual step"."""
    sample = SimulatedDisk()
    queue_id = a_queue(sample).queue_id
    whole = sample.bytes_of(FIRST)
    places = frames(sample)
    for at in range(len(whole)):
        disk = copied(sample)
        octets = bytearray(whole)
        octets[at] ^= 1 << at % 8
        disk.spoil(FIRST, bytes(octets))
        log = reopened(disk)
        hit = [RANGES[index] for index, (lo, hi) in enumerate(places) if lo <= at < hi]
        assert (log.end, log.losses) == (6, 0)
        assert told(log) == hit
        if hit:
            start, end = next(place for place in places if place[0] <= at < place[1])
            kept = disk.bytes_of(f"{DIRECTORY}/quarantine/{0:020d}-{start}")
            assert kept == bytes(octets[start:end])
            line = f"queue {queue_id} offsets {hit[0][0]} to {hit[0][1]} ("
            assert sum(line in text for text in log.recovery.lines) == 1
        else:
            head = "damaged segment header" if at < SEGMENT_HEADER_BYTES else "48 damaged bytes"
            assert head in log.recovery.lines[0]
            assert "no message is lost" in log.recovery.lines[0]
        if at % 4 == 0:
            goes_on(disk, log, *hit)


def test_every_cut_costs_what_was_cut_off_and_is_a_loss() -> None:
    """FAULTS: truncation over every byte; offsets which were published are never used again."""
    sample = SimulatedDisk()
    a_queue(sample)
    whole = sample.bytes_of(FIRST)
    ends = [end for _, end in frames(sample)]
    for length in range(len(whole)):
        disk = copied(sample)
        disk.spoil(FIRST, whole[:length])
        left = sum(length >= end for end in ends)
        lost = (RANGES[left][0], 6)
        log = reopened(disk)
        assert log.recovery.lost
        assert (log.end, log.losses) == (6, 1)
        assert told(log) == [lost]
        if length % 4 == 0:
            goes_on(disk, log, lost)


def test_when_all_segments_are_gone_the_offsets_go_on() -> None:
    disk = SimulatedDisk()
    a_queue(disk)
    disk.remove(FIRST)
    assert QueueReader(DIRECTORY, disk=disk).begin() == 6
    log = reopened(disk)
    assert (log.begin, log.end, log.losses) == (6, 6, 1)
    log.append([frame(6)])
    assert found(disk) == [6]


def test_a_loss_is_counted_each_time_published_records_are_lost_and_never_else() -> None:
    """QUEUE_AND_SPARK: power loss with the published end ahead of the data."""
    disk = SimulatedDisk()
    for rises in range(4):
        log = reopened(disk)
        assert log.losses == rises
        for number in range(3):
            log.append([frame(number)])
        log.close()
        assert reopened(disk).losses == rises
        disk.crash()
        # The disk had confirmed what it then lost.
        path = max(path for path in disk.paths() if path.endswith(".segment"))
        disk.spoil(path, disk.bytes_of(path)[:-1])
        log = reopened(disk)
        assert (log.losses, log.end) == (rises + 1, 3 * (rises + 1))
        log.close()


def test_damage_in_an_older_segment_is_found_up_to_its_end() -> None:
    path = f"{DIRECTORY}/{2:020d}.segment"
    for kept, more in ((HEAD_BYTES, 0), (-1, 0), (HEAD_BYTES, 300), (0, 0)):
        disk = SimulatedDisk()
        a_queue(disk, segment_bytes=1)
        disk.spoil(path, disk.bytes_of(path)[:kept] + b"\0" * more)
        log = reopened(disk)
        assert told(log) == [(2, 3)]
        assert (log.end, log.losses) == (6, 0)
        goes_on(disk, log, (2, 3))


class BadBlocks(SimulatedDisk):
    """A disk which cannot read some blocks of one file."""

    def __init__(self) -> None:
        super().__init__()
        self.bad: set[int] = set()
        self.number = errno.EIO

    def open(self, path: str, *, write: bool = False) -> SimulatedFile:
        file = super().open(path, write=write)
        if path == FIRST:
            read = file.read

            def bad_read(position: int, nbytes: int) -> bytes:
                end = min(position + nbytes, file.size())
                for block in range(position // 4096, -(-end // 4096)):
                    if block in self.bad:
                        raise OSError(self.number, "cannot be read")
                return read(position, nbytes)

            file.read = bad_read  # type: ignore[method-assign]
        return file


def zeros_for_the_bad(disk: BadBlocks) -> None:
    """What ``dd conv=noerror,sync`` makes of the file."""
    octets = bytearray(disk.bytes_of(FIRST))
    for block in disk.bad:
        octets[4096 * block : 4096 * (block + 1)] = bytes(len(octets[4096 * block :][:4096]))
    disk.spoil(FIRST, bytes(octets))
    disk.bad = set()


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_a_start_gives_up_no_block_before_zeros_stand_for_it__RD_50(bad: int) -> None:
    """RD-50, RD-58: it may be read another time.  The remedy that its line names costs only what is
    in the block.
    """
    disk = BadBlocks()
    log = SegmentLog(DIRECTORY, disk=disk)
    for number in range(40):
        log.append([frame(number, nbytes=100)])
    places = frames(disk)
    log.close()
    disk.bad = {bad}
    hit = [
        number
        for number, (start, end) in enumerate(places)
        if start < 4096 * (bad + 1) and end > 4096 * bad
    ]
    assert 3 < len(hit) < 20
    lost = (hit[0], hit[-1] + 1)
    reader = QueueReader(DIRECTORY, disk=disk)
    before = {path: disk.bytes_of(path) for path in disk.paths()}
    with pytest.raises(QueueError, match=f"{0:020d}.segment: the disk cannot read .*dd if=FILE"):
        reopened(disk)
    assert {path: disk.bytes_of(path) for path in disk.paths()} == before
    zeros_for_the_bad(disk)
    again = reopened(disk)
    assert (again.end, again.losses, again.damaged) == (40, 0, [lost])
    assert [row["offset"] for row in rows(DIRECTORY, disk=disk)] == missing(lost, end=40)
    assert reader.damaged() == [lost]
    goes_on(disk, again, lost)


def follow_the_line(directory: Path) -> Path:
    """Do in ``directory`` what a line says of a file that is never read again."""
    disk = SimulatedDisk()
    a_queue(disk)
    disk.cannot_read(FIRST)
    with pytest.raises(QueueError) as caught:
        reopened(disk)
    told = re.search(r"\((cp .*)\)", str(caught.value))
    assert told is not None
    file = directory / "FILE"
    file.write_bytes(bytes(range(100)) * 99)
    file.chmod(0o600)
    environment = {**os.environ, "PATH": f"{directory / 'bin'}:{os.environ['PATH']}"}
    subprocess.run(
        told[1], shell=True, cwd=directory, env=environment, stderr=subprocess.DEVNULL, check=False
    )
    assert file.read_bytes() == bytes(range(100)) * 99
    return file


def test_what_a_line_says_of_a_file_that_is_never_read_again_keeps_its_owner_and_mode(
    tmp_path: Path,
) -> None:
    """The gateway could not open a copy that root had made."""
    file = follow_the_line(tmp_path)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [file]


def test_a_copy_that_had_no_room_takes_no_files_place(tmp_path: Path) -> None:
    """It had zeros for all that stands behind its end."""
    dd = tmp_path / "bin" / "dd"
    dd.parent.mkdir()
    dd.write_text("#!/bin/sh\nhead -c 4096 FILE > COPY\nexit 1\n")
    dd.chmod(0o700)
    follow_the_line(tmp_path)


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_a_reader_passes_over_no_block_that_the_disk_may_read_another_time__NB_12(bad: int) -> None:
    """NB-12: a reader that skips rows has lost them, whatever a later read gives."""
    disk = BadBlocks()
    log = SegmentLog(DIRECTORY, disk=disk)
    for number in range(40):
        log.append([frame(number, nbytes=100)])
    whole = next(number for number, (_, end) in enumerate(frames(disk)) if end > 4096 * bad)
    disk.bad = {bad}
    reader = QueueReader(DIRECTORY, disk=disk)
    found, offsets = reader.read(0, 40, 1), list[int]()
    with pytest.raises(OSError, match=r"cannot read the block .* read again later; .*dd if=FILE"):
        for batch in found:
            offsets += batch.column("offset").to_pylist()
    assert offsets == [*range(whole)]
    assert (found.damaged, reader.damaged()) == ([], [])
    disk.bad.clear()
    assert [row["offset"] for row in rows(DIRECTORY, disk=disk)] == missing(end=40)


@pytest.mark.parametrize("row", [0, 10, 18, 22, 30, 39])
def test_a_block_that_the_disk_cannot_read_hides_no_other_row(row: int) -> None:
    """A search in the segment looks at its middle first, whose block is within one message."""
    disk = BadBlocks()
    log = SegmentLog(DIRECTORY, disk=disk)
    for number in range(40):
        log.append([frame(number, nbytes=100_000)])
    disk.bad = {len(disk.bytes_of(FIRST)) // 2 // 4096}
    found = QueueReader(DIRECTORY, disk=disk).read(row, row + 1)
    assert [batch.column("offset").to_pylist() for batch in found] == [[row]]


def test_a_description_that_the_disk_cannot_read_says_what_to_do() -> None:
    disk = BadBlocks()
    log = SegmentLog(DIRECTORY, disk=disk)
    log.append([frame(0, nbytes=10_000)])
    disk.bad = {0}
    with pytest.raises(OSError, match=r"cannot read the block .* read again later; .*dd if=FILE"):
        QueueReader(DIRECTORY, disk=disk).describe()


@pytest.mark.parametrize("failures", [1, 3])
def test_a_read_error_that_passes_costs_nothing__NB_12(failures: int) -> None:
    """NB-12: a start quarantines for good what it takes for damage, and readers pass over it."""
    disk = SimulatedDisk()
    a_queue(disk)
    disk.fail_next("read", errno.EIO, FIRST, times=failures)
    log = reopened(disk)
    assert (log.damaged, log.recovery.lines) == ([], [])
    disk.fail_next("read", errno.EIO, FIRST, times=failures)
    assert found(disk) == missing()
    goes_on(disk, log)


def test_a_tail_which_the_disk_cannot_read_is_not_cut__NB_12_RD_50() -> None:
    """NB-12: a loss of power leaves the last block unreadable, and an end from before it."""
    disk = BadBlocks()
    log = SegmentLog(DIRECTORY, disk=disk)
    log.append([frame(0, nbytes=100)])
    while frames(disk)[-1][0] < 4096:
        published = disk.bytes_of(f"{DIRECTORY}/end")
        log.append([frame(log.end, nbytes=100)])
    last = log.end - 1
    log.close()
    disk.spoil(f"{DIRECTORY}/end", published)
    for disk.number in (errno.EIO, errno.EACCES):
        disk.bad = {1}
        with pytest.raises(QueueError, match="cannot open the queue"):
            reopened(disk)
    disk.bad = set()
    again = reopened(disk)
    assert (again.end, again.damaged) == (last + 1, [])


def test_bytes_between_records_which_cost_nothing_are_told_and_passed_over() -> None:
    disk = SimulatedDisk()
    a_queue(disk)
    octets = disk.bytes_of(FIRST)
    place = frames(disk)[1][0]
    disk.spoil(FIRST, octets[:place] + b"\xff" * 16 + octets[place:])
    log = reopened(disk)
    assert told(log) == []
    assert log.recovery.lines == [f"16 damaged bytes in {FIRST} at {place}: no message is lost"]
    assert found(disk) == missing()
    goes_on(disk, log)


def test_records_missing_without_remains_are_damage() -> None:
    disk = SimulatedDisk()
    a_queue(disk)
    octets = disk.bytes_of(FIRST)
    start, end = frames(disk)[1]
    disk.spoil(FIRST, octets[:start] + octets[end:])
    log = reopened(disk)
    assert told(log) == [(2, 3)]
    assert not disk.exists(f"{DIRECTORY}/quarantine")
    goes_on(disk, log, (2, 3))


@pytest.mark.parametrize("seed", range(4))
def test_a_segment_that_a_loss_of_power_brings_back_is_removed_again(seed: int) -> None:
    """The sync of its removal failed, and those behind it were removed for good."""
    disk = SimulatedDisk()
    log = SegmentLog(DIRECTORY, disk=disk, segment_bytes=1)
    for number in range(6):
        log.append([frame(number)])
    reader = QueueReader(DIRECTORY, disk=disk)
    reader.commit("spark", 2)
    disk.fail_next("sync_directory", errno.EIO, DIRECTORY)
    with pytest.raises(OSError, match="Input/output"):
        log.trim()
    reader.commit("spark", 4)
    assert log.trim() == 2
    log.close()
    disk.lose_power(random.Random(seed))
    assert f"{0:020d}.segment" in disk.names(DIRECTORY)
    with_queues = copied(disk)  # of a broker: it may need what consumers do not
    with_queues.make_directory(f"{DIRECTORY}/broker")
    with_queues.open(f"{DIRECTORY}/broker/names", write=True).write(0, [b"queue "])
    assert reopened(with_queues).damaged == [(2, 4)]
    for _ in range(2):
        log = SegmentLog(DIRECTORY, disk=disk)
        assert (log.begin, log.damaged, log.recovery.lines) == (4, [], [])
        log.close()
        disk.lose_power(random.Random(seed))


def test_more_damage_later_is_told_with_its_own_range_only() -> None:
    disk = SimulatedDisk()
    a_queue(disk)
    places = frames(disk)
    for index in (1, 0):
        disk.flip(FIRST, places[index][0] + 40)
        log = reopened(disk)
        assert told(log) == [RANGES[index]]
        log.close()
    assert log.damaged == [(0, 3)]
    assert found(disk) == [3, 4, 5]


def test_a_disk_too_full_for_the_copies_costs_only_the_copies() -> None:
    disk = SimulatedDisk()
    a_queue(disk)
    places = frames(disk)
    disk.flip(FIRST, places[0][0] + 40)
    disk.capacity = disk.used()
    log = reopened(disk)
    assert told(log) == [(0, 2)]
    assert sum("could not" in line for line in log.recovery.lines) == 2
    assert found(disk) == [2, 3, 4, 5]
    log.close()
    disk.capacity = None
    # What could not be noted is told again.
    assert told(reopened(disk)) == [(0, 2)]


# -- identity, end ---------------------------------------------------------------------


def test_a_damaged_or_missing_identity_is_made_again_from_the_segments() -> None:
    for spoil in (b"", b"msgproto-queue 1 x\n", None):
        disk = SimulatedDisk()
        queue_id = a_queue(disk).queue_id
        if spoil is None:
            disk.remove(f"{DIRECTORY}/identity")
        else:
            disk.spoil(f"{DIRECTORY}/identity", spoil)
        with pytest.raises(QueueError, match="no queue in"):
            QueueReader(DIRECTORY, disk=disk)
        log = reopened(disk)
        assert log.queue_id == queue_id
        assert log.recovery.lines == [f"made the queue's identity {queue_id} again"]
        goes_on(disk, log)


def test_a_queue_of_which_nothing_says_its_name_is_put_aside_and_a_new_one_begins() -> None:
    disk = SimulatedDisk()
    queue_id = a_queue(disk, segment_bytes=1).queue_id
    old = {path: disk.bytes_of(path) for path in disk.paths() if path.endswith(".segment")}
    for path, octets in old.items():
        disk.spoil(path, b"\0" * 64 + octets[64:])
    disk.spoil(f"{DIRECTORY}/identity", b"")
    log = reopened(disk)
    assert log.queue_id != queue_id
    assert (log.begin, log.end) == (6, 6)
    assert log.recovery.lost
    assert any("says which queue it is" in line for line in log.recovery.lines)
    assert sum("/quarantine/" in path for path in disk.paths()) == len(old)
    log.append([frame(6)])
    assert found(disk) == [6]


def test_a_damaged_or_missing_end_is_made_again() -> None:
    for spoil in (b"", b"\0" * 48, None):
        disk = SimulatedDisk()
        a_queue(disk)
        if spoil is None:
            disk.remove(f"{DIRECTORY}/end")
        else:
            disk.spoil(f"{DIRECTORY}/end", spoil)
        log = reopened(disk)
        assert (log.end, log.losses, log.recovery.lines) == (6, 0, [])
        goes_on(disk, log)


def test_another_format_version_is_refused_in_one_line() -> None:
    disk = SimulatedDisk()
    log = a_queue(disk)
    disk.spoil(FIRST, segment_header(3, log.queue_id, b"12345678", 0))
    with pytest.raises(QueueError, match="format version 3; this program knows 1"):
        reopened(disk)
    disk.spoil(f"{DIRECTORY}/identity", sealed("msgproto-queue 4"))
    with pytest.raises(QueueError, match="format version 4; this program knows 1"):
        QueueReader(DIRECTORY, disk=disk)


def test_a_segment_of_another_queue_is_refused_in_one_line() -> None:
    disk = SimulatedDisk()
    a_queue(disk)
    disk.spoil(FIRST, segment_header(1, "f" * 32, b"12345678", 0))
    with pytest.raises(QueueMismatch, match="belongs to the queue fffff"):
        reopened(disk)


def test_a_published_end_of_a_later_queue_state_is_lost_data() -> None:
    """The directory was restored from an old copy, but for its end."""
    disk = SimulatedDisk()
    a_queue(disk)
    size = len(disk.bytes_of(FIRST))
    disk.spoil(f"{DIRECTORY}/end", published(10, 0, size + 500))
    log = reopened(disk)
    assert (log.end, log.losses) == (10, 1)
    assert told(log) == [(6, 10)]
    assert QueueReader(DIRECTORY, disk=disk).losses == 1
    assert found(disk) == missing()


# -- older segments ---------------------------------------------------------------------------


def test_older_segments_are_checked_later_and_their_damage_is_told_then() -> None:
    disk = SimulatedDisk()
    a_queue(disk, segment_bytes=1)
    damaged = f"{DIRECTORY}/{0:020d}.segment"
    octets = bytearray(disk.bytes_of(damaged))
    octets[-9] ^= 1
    octets[20] ^= 1
    disk.spoil(damaged, bytes(octets))
    log = reopened(disk, check_bytes=0)
    assert log.recovery.lines == []
    assert log.unchecked == 2
    assert log.check_older() == []
    told = log.check_older()
    assert len(told) == 2
    assert "damaged segment header" in told[0]
    assert "offsets 0 to 2" in told[1]
    assert log.unchecked == 0
    assert log.check_older() == []
    assert log.damaged == [(0, 2)]
    assert QueueReader(DIRECTORY, disk=disk).damaged() == [(0, 2)]
    goes_on(disk, log, (0, 2))


# -- crashes at any time ----------------------------------------------------------------------


def test_power_lost_at_any_time_loses_nothing_that_was_appended() -> None:
    """Acknowledged = synced: 400 lives of a queue on a disk that forgets and fails."""
    for seed in range(20):
        source = random.Random(seed)
        disk = CutDisk()
        expected: dict[int, int] = {}
        maybe: dict[int, int] = {}
        number = 0
        queue_id = None
        for _ in range(20):
            log = reopened(disk, segment_bytes=2000)
            assert queue_id in (None, log.queue_id), "the queue forgot its name"
            queue_id = log.queue_id
            assert not log.recovery.lost
            assert told(log) == []
            here = {row["offset"]: int(row["message_id"]) for row in rows(DIRECTORY, disk=disk)}
            assert {n: here.get(n) for n in expected if n >= log.begin} == {
                n: value for n, value in expected.items() if n >= log.begin
            }
            # A record which was never acknowledged may be there all the same, once.
            assert set(here.items()) <= set(expected.items()) | set(maybe.items())
            expected = here
            maybe = {}
            for _ in range(source.randint(0, 12)):
                count = source.randint(1, 4)
                if source.random() < 0.1:
                    operation = source.choice(["write", "sync"])
                    disk.fail_next(operation, errno.EIO, ".segment")
                try:
                    end = log.append([frame(number, count)])
                    expected |= {end - count + n: number + n for n in range(count)}
                except OSError:
                    maybe |= {log.end + n: number + n for n in range(count)}
                number += count
                if source.random() < 0.1:
                    reader = QueueReader(DIRECTORY, disk=disk)
                    reader.commit("spark", source.randint(log.begin, reader.end()))
                    log.trim()
            disk.mend()
            if source.random() < 0.5:  # killed in the midst of an append
                disk.left = source.randint(0, 10)  # with another segment there are as many steps
                maybe |= {log.end + n: number + n for n in range(3)}
                with contextlib.suppress(Cut):
                    log.append([frame(number, 3)])
                disk.left = None
                number += 3
            if source.random() < 0.7:
                disk.lose_power(source)
            else:
                disk.crash()
        reopened(disk).close()
        report = verify(DIRECTORY, disk=disk)
        assert (report.damaged, report.lines) == ([], [])


def test_as_much_as_asked_is_checked_at_once_newest_first() -> None:
    disk = SimulatedDisk()
    a_queue(disk, segment_bytes=1)
    sizes = [len(disk.bytes_of(path)) for path in disk.paths() if path.endswith(".segment")]
    for octets, unchecked in ((0, 2), (sizes[2], 1), (sizes[2] + sizes[1], 0), (10**6, 0)):
        log = reopened(disk, check_bytes=octets)
        assert log.unchecked == unchecked
        log.close()
