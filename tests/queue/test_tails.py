"""The end of the newest segment: what proves that it was published, and copies of what is cut.

All of it serves NB-12: after a loss of power ``end`` may be older than the records.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.queue.test_recovery import DIRECTORY, FIRST, cut, frames, goes_on, reopened, told
from tests.sim.disk import SimulatedDisk
from tests.tools.queues import FRAME_HEADER_BYTES, frame, sealed
from twisted_msgproto.core.errors import QueueAway, QueueMismatch
from twisted_msgproto.queue import Landed, QueueReader, SegmentLog, recovery

END = f"{DIRECTORY}/end"


def committed(disk: SimulatedDisk, name: str, offset: int, queue_id: str = "") -> None:
    """Put the file of a consumer there, as it was before the power was lost."""
    queue_id = queue_id or QueueReader(DIRECTORY, disk=disk).queue_id
    line = sealed(f"offset {offset:020d} queue {queue_id}")
    disk.open(f"{DIRECTORY}/consumers/{name}", write=True).write(0, [line])


def an_old_end(disk: SimulatedDisk) -> tuple[int, int]:
    """A queue of three groups whose ``end`` knows of two; where the last frame begins and ends."""
    log = SegmentLog(DIRECTORY, disk=disk)
    log.append([frame(0, 2)])
    log.append([frame(2, 1)])
    published = disk.bytes_of(END)
    log.append([frame(3, 3)])
    log.close()
    disk.spoil(END, published)
    return frames(disk)[-1]


def overwritten(disk: SimulatedDisk, position: int, nbytes: bytes) -> bytes:
    """Put other bytes into the first segment; all of them."""
    whole = bytearray(disk.bytes_of(FIRST))
    whole[position : position + len(nbytes)] = nbytes
    disk.spoil(FIRST, bytes(whole))
    return bytes(whole)


def a_spoilt_header(disk: SimulatedDisk) -> tuple[int, bytes]:
    """Make the last frame's header illegible; where it begins, and the tail from there on."""
    start, end = an_old_end(disk)
    return start, overwritten(disk, start, b"\xff" * FRAME_HEADER_BYTES)[start:end]


def copies(disk: SimulatedDisk) -> dict[str, bytes]:
    aside = f"{DIRECTORY}/quarantine/"
    return {
        path.removeprefix(aside): disk.bytes_of(path)
        for path in disk.paths()
        if path.startswith(aside)
    }


# -- readers before the gateway has started ------------------------------------------------------


def test_who_reads_before_the_gateway_has_started_waits_for_it__NB_12() -> None:
    """A bridge that began first called the queue an older copy, and advised to rewind the table."""
    disk = SimulatedDisk()
    an_old_end(disk)
    old = {path: disk.bytes_of(path) for path in (END, f"{DIRECTORY}/lineage")}
    reopened(disk).close()
    landed = QueueReader(DIRECTORY, disk=disk).place(6)
    for path, octets in old.items():
        disk.spoil(path, octets)
    reader = QueueReader(DIRECTORY, disk=disk)
    assert reader.end() == 3
    for ask in (reader.describe, reader.check, lambda place: reader.commit("spark", 6, place)):
        with pytest.raises(QueueAway, match="mends that when it starts"):
            ask(landed)
    for other in (replace(landed, witness=1), replace(landed, offset=7), Landed(6)):
        with pytest.raises(QueueMismatch, match="rewind"):
            reader.check(other)
    reopened(disk).close()
    assert reader.describe(landed).landed == landed


def test_what_a_consumer_has_committed_is_no_older_copy_either__NB_12() -> None:
    """The last record is damaged: only the gateway's start can say what that costs."""
    disk = SimulatedDisk()
    a_spoilt_header(disk)
    reader = QueueReader(DIRECTORY, disk=disk)
    with pytest.raises(QueueMismatch, match="rewind"):
        reader.check(Landed(6))
    committed(disk, "spark", 6)
    with pytest.raises(QueueAway, match="mends that when it starts"):
        reader.check(Landed(6))


# -- proofs of what was published -----------------------------------------------------------------


def test_one_flipped_bit_in_the_last_header_costs_that_record_and_is_told__NB_12() -> None:
    """Nothing but the record says how far it was published, and the rest of its header does."""
    sample = SimulatedDisk()
    start, end = an_old_end(sample)
    for bit in range(8 * FRAME_HEADER_BYTES):
        disk = SimulatedDisk()
        an_old_end(disk)
        at = start + bit // 8
        overwritten(disk, at, bytes([disk.bytes_of(FIRST)[at] ^ 1 << bit % 8]))
        spoilt = disk.bytes_of(FIRST)
        log = reopened(disk)
        assert (log.end, log.losses, cut(log)) == (6, 0, 0)
        assert told(log) == [(3, 6)]
        assert copies(disk) == {f"{0:020d}-{start}": spoilt[start:end]}
    goes_on(disk, log, (3, 6))


def test_behind_a_flipped_bit_an_unfinished_record_is_still_cut__NB_12() -> None:
    disk = SimulatedDisk()
    start, end = an_old_end(disk)
    overwritten(disk, start + 9, bytes([disk.bytes_of(FIRST)[start + 9] ^ 4]))
    disk.spoil(FIRST, disk.bytes_of(FIRST) + b"torn")
    log = reopened(disk)
    assert (log.end, log.damaged, cut(log)) == (6, [(3, 6)], 4)
    assert len(disk.bytes_of(FIRST)) == end
    goes_on(disk, log, (3, 6))


def test_what_a_consumer_has_committed_was_published__NB_12() -> None:
    disk = SimulatedDisk()
    start, tail = a_spoilt_header(disk)
    # It committed before the power was lost, and its file is synced.
    committed(disk, "spark", 6)
    committed(disk, "slow", 2)
    log = reopened(disk)
    assert (log.end, log.losses, cut(log)) == (6, 0, 0)
    assert told(log) == [(3, 6)]
    assert copies(disk) == {f"{0:020d}-{start}": tail}
    goes_on(disk, log, (3, 6))


def test_a_commit_above_records_that_are_gone_is_a_loss__NB_12() -> None:
    for left in (0, 7, FRAME_HEADER_BYTES + 5):
        disk = SimulatedDisk()
        start, _ = an_old_end(disk)
        committed(disk, "spark", 5)
        disk.spoil(FIRST, disk.bytes_of(FIRST)[: start + left])
        log = reopened(disk)
        assert (log.end, log.losses, told(log)) == (5, 1, [(3, 5)])
        assert "consumer 'spark' has committed" in log.recovery.lines[-1]
        log.close()


def test_what_a_start_of_the_writer_has_found_was_published__NB_12() -> None:
    """``end`` may be gone; the file ``lineage`` says where that start began."""
    for end in (None, b"", b"\0" * 76):
        disk = SimulatedDisk()
        start, _ = an_old_end(disk)
        reopened(disk).close()
        overwritten(disk, start, b"\xff" * FRAME_HEADER_BYTES)
        if end is None:
            disk.remove(END)
        else:
            disk.spoil(END, end)
        log = reopened(disk)
        assert (log.end, told(log)) == (6, [(3, 6)])
        goes_on(disk, log, (3, 6))


def test_known_damage_proves_what_lies_below_it() -> None:
    disk = SimulatedDisk()
    an_old_end(disk)
    lines = sealed("damaged 1 2 checksum") + sealed("damaged 3 9 checksum")
    disk.open(f"{DIRECTORY}/damaged", write=True).write(0, [lines])
    assert reopened(disk).end == 9


def test_files_of_consumers_that_say_nothing_prove_nothing() -> None:
    """Another queue's and a damaged one: the queue opens."""
    disk = SimulatedDisk()
    a_spoilt_header(disk)
    committed(disk, "other", 6, "f" * 32)
    committed(disk, "spoilt", 6)
    disk.spoil(f"{DIRECTORY}/consumers/spoilt", b"offset 6")
    assert reopened(disk).end == 3


# -- copies of what is cut ------------------------------------------------------------------------


def test_without_any_proof_an_illegible_tail_is_told_as_possible_loss_and_kept__NB_12() -> None:
    disk = SimulatedDisk()
    start, tail = a_spoilt_header(disk)
    log = reopened(disk)
    assert (log.end, log.damaged, cut(log)) == (3, [], len(tail))
    [line] = log.recovery.lines
    name = f"{0:020d}-{start}"
    assert line.startswith(f"possible loss: queue {log.queue_id}: cut {len(tail)} bytes")
    assert "messages from offset 3 on" in line
    assert line.endswith(f"quarantine/{name}")
    assert copies(disk) == {name: tail}
    done = list(disk.journal)
    synced = done.index(("sync_directory", "quarantine"))
    assert synced < len(done) - done[::-1].index(("truncate", FIRST[7:]))
    goes_on(disk, log)


def test_a_copy_has_a_limit_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "COPY_BYTES_MAX", 40)
    disk = SimulatedDisk()
    _, tail = a_spoilt_header(disk)
    [line] = reopened(disk).recovery.lines
    assert line.endswith("(the first 40 of them)")
    assert list(copies(disk).values()) == [tail[:40]]


def test_what_cannot_be_copied_is_not_cut__NB_12() -> None:
    """On a full disk the tail stays, and messages go into a new segment when there is room."""
    disk = SimulatedDisk()
    a_spoilt_header(disk)
    whole = disk.bytes_of(FIRST)
    disk.capacity = disk.used()
    log = reopened(disk)
    assert disk.bytes_of(FIRST) == whole
    assert (log.end, cut(log)) == (3, 0)
    assert any("could not be copied aside" in line for line in log.recovery.lines)
    disk.capacity = None
    goes_on(disk, log)
    assert disk.bytes_of(FIRST) == whole


def test_in_a_segment_without_messages_it_is_cut_all_the_same() -> None:
    disk = SimulatedDisk()
    SegmentLog(DIRECTORY, disk=disk).close()
    disk.spoil(FIRST, disk.bytes_of(FIRST) + b"torn")
    disk.capacity = disk.used()
    log = reopened(disk)
    assert cut(log) == 4
    disk.capacity = None
    goes_on(disk, log)
