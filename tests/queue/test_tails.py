"""The end of the newest segment: what proves that it was published, and copies of what is cut.

All of it serves NB-12: after a loss of power ``end`` may be older than the records.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.sim.disk import SimulatedDisk
from tests.tools.queues import FRAME_HEADER_OCTETS, HEAD_OCTETS, frame, ids, rows
from twisted_msgproto.core.errors import QueueAway, QueueMismatch
from twisted_msgproto.queue import Landed, QueueReader, SegmentLog, consumers, damage, quarantine
from twisted_msgproto.queue.format import Segment
from twisted_msgproto.queue.proven import proven

DIRECTORY = "/queue"
FIRST = f"{DIRECTORY}/{0:020d}.segment"
END = f"{DIRECTORY}/end"


def an_old_end(disk: SimulatedDisk) -> tuple[int, int]:
    """A queue of three groups whose ``end`` knows of two; where the last frame begins and ends."""
    log = SegmentLog(DIRECTORY, disk=disk)
    log.append([frame(0, 2)])
    log.append([frame(2, 1)])
    published = disk.octets_of(END)
    log.append([frame(3, 3)])
    log.close()
    disk.spoil(END, published)
    segment = Segment(disk.open(FIRST), log.identity.frame_seed, 0)
    *_, last = segment.walk(HEAD_OCTETS, 0)
    return last.position, last.end_position


def overwritten(disk: SimulatedDisk, position: int, octets: bytes) -> bytes:
    """Put other octets into the first segment; all of them."""
    whole = bytearray(disk.octets_of(FIRST))
    whole[position : position + len(octets)] = octets
    disk.spoil(FIRST, bytes(whole))
    return bytes(whole)


def a_spoilt_header(disk: SimulatedDisk) -> tuple[int, bytes]:
    """Make the last frame's header illegible; where it begins, and the tail from there on."""
    start, end = an_old_end(disk)
    return start, overwritten(disk, start, b"\xff" * FRAME_HEADER_OCTETS)[start:end]


def copies(disk: SimulatedDisk) -> dict[str, bytes]:
    aside = f"{DIRECTORY}/{quarantine.DIRECTORY}/"
    return {
        path.removeprefix(aside): disk.octets_of(path)
        for path in disk.paths()
        if path.startswith(aside)
    }


def reopened(disk: SimulatedDisk) -> SegmentLog:
    return SegmentLog(DIRECTORY, disk=disk)


def goes_on(disk: SimulatedDisk, log: SegmentLog, *lost: tuple[int, int]) -> None:
    """New offsets follow, all but ``lost`` is there, and the next start has nothing to tell."""
    end = log.end
    assert log.append([frame(end, 2)]) == end + 2
    assert QueueReader(DIRECTORY, disk=disk).damaged() == list(lost)
    log.close()
    again = reopened(disk)
    assert (again.recovery.lines, again.end, again.damaged) == ([], end + 2, list(lost))
    here = [n for n in range(end + 2) if not any(lo <= n < hi for lo, hi in lost)]
    assert ids(rows(DIRECTORY, disk=disk)) == here
    again.close()


# -- readers before the gateway has started ------------------------------------------------------


def test_who_reads_before_the_gateway_has_started_waits_for_it__NB_12() -> None:
    """A bridge that began first called the queue an older copy, and advised to rewind the table."""
    disk = SimulatedDisk()
    an_old_end(disk)
    old = {path: disk.octets_of(path) for path in (END, f"{DIRECTORY}/lineage")}
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
    consumers.write(disk, DIRECTORY, "spark", reader.queue_id, 6)
    with pytest.raises(QueueAway, match="mends that when it starts"):
        reader.check(Landed(6))


# -- proofs of what was published -----------------------------------------------------------------


def test_one_flipped_bit_in_the_last_header_costs_that_record_and_is_told__NB_12() -> None:
    """Nothing but the record says how far it was published, and the rest of its header does."""
    sample = SimulatedDisk()
    start, end = an_old_end(sample)
    for bit in range(8 * FRAME_HEADER_OCTETS):
        disk = SimulatedDisk()
        an_old_end(disk)
        at = start + bit // 8
        overwritten(disk, at, bytes([disk.octets_of(FIRST)[at] ^ 1 << bit % 8]))
        spoilt = disk.octets_of(FIRST)
        log = reopened(disk)
        assert (log.end, log.losses, log.recovery.truncated_octets) == (6, 0, 0)
        assert log.recovery.quarantined == [(3, 6)]
        assert copies(disk) == {f"{0:020d}-{start}": spoilt[start:end]}
    goes_on(disk, log, (3, 6))


def test_behind_a_flipped_bit_an_unfinished_record_is_still_cut__NB_12() -> None:
    disk = SimulatedDisk()
    start, end = an_old_end(disk)
    overwritten(disk, start + 9, bytes([disk.octets_of(FIRST)[start + 9] ^ 4]))
    disk.spoil(FIRST, disk.octets_of(FIRST) + b"torn")
    log = reopened(disk)
    assert (log.end, log.damaged, log.recovery.truncated_octets) == (6, [(3, 6)], 4)
    assert len(disk.octets_of(FIRST)) == end
    goes_on(disk, log, (3, 6))


def test_what_a_consumer_has_committed_was_published__NB_12() -> None:
    disk = SimulatedDisk()
    start, tail = a_spoilt_header(disk)
    queue_id = QueueReader(DIRECTORY, disk=disk).queue_id
    # It committed before the power was lost, and its file is synced.
    consumers.write(disk, DIRECTORY, "spark", queue_id, 6)
    consumers.write(disk, DIRECTORY, "slow", queue_id, 2)
    log = reopened(disk)
    assert (log.end, log.losses, log.recovery.truncated_octets) == (6, 0, 0)
    assert log.recovery.quarantined == [(3, 6)]
    assert copies(disk) == {f"{0:020d}-{start}": tail}
    goes_on(disk, log, (3, 6))


def test_a_commit_above_records_that_are_gone_is_a_loss__NB_12() -> None:
    for left in (0, 7, FRAME_HEADER_OCTETS + 5):
        disk = SimulatedDisk()
        start, _ = an_old_end(disk)
        queue_id = QueueReader(DIRECTORY, disk=disk).queue_id
        consumers.write(disk, DIRECTORY, "spark", queue_id, 5)
        disk.spoil(FIRST, disk.octets_of(FIRST)[: start + left])
        log = reopened(disk)
        assert (log.end, log.losses, log.recovery.quarantined) == (5, 1, [(3, 5)])
        assert "consumer 'spark' has committed" in log.recovery.lines[-1]
        log.close()


def test_what_a_start_of_the_writer_has_found_was_published__NB_12() -> None:
    """``end`` may be gone; the file ``lineage`` says where that start began."""
    for end in (None, b"", b"\0" * 76):
        disk = SimulatedDisk()
        start, _ = an_old_end(disk)
        reopened(disk).close()
        overwritten(disk, start, b"\xff" * FRAME_HEADER_OCTETS)
        if end is None:
            disk.remove(END)
        else:
            disk.spoil(END, end)
        log = reopened(disk)
        assert (log.end, log.recovery.quarantined) == (6, [(3, 6)])
        goes_on(disk, log, (3, 6))


def test_when_all_segments_are_gone_offsets_go_on_behind_the_proof__NB_12() -> None:
    disk = SimulatedDisk()
    an_old_end(disk)
    consumers.write(disk, DIRECTORY, "spark", QueueReader(DIRECTORY, disk=disk).queue_id, 6)
    disk.remove(FIRST)
    log = reopened(disk)
    assert (log.begin, log.end, log.losses) == (6, 6, 1)


def test_known_damage_proves_what_lies_below_it() -> None:
    disk = SimulatedDisk()
    an_old_end(disk)
    queue_id = QueueReader(DIRECTORY, disk=disk).queue_id
    assert proven(disk, DIRECTORY, queue_id).offset == 0
    damage.write(disk, DIRECTORY, {(3, 9): "checksum", (1, 2): "checksum"})
    assert proven(disk, DIRECTORY, queue_id).offset == 9


def test_files_of_consumers_that_say_nothing_prove_nothing() -> None:
    """Another queue's and a damaged one: the queue opens."""
    disk = SimulatedDisk()
    a_spoilt_header(disk)
    queue_id = QueueReader(DIRECTORY, disk=disk).queue_id
    consumers.write(disk, DIRECTORY, "other", "f" * 32, 6)
    consumers.write(disk, DIRECTORY, "spoilt", queue_id, 6)
    disk.spoil(f"{DIRECTORY}/consumers/spoilt", b"offset 6")
    assert reopened(disk).end == 3


# -- copies of what is cut ------------------------------------------------------------------------


def test_without_any_proof_an_illegible_tail_is_told_as_possible_loss_and_kept__NB_12() -> None:
    disk = SimulatedDisk()
    start, tail = a_spoilt_header(disk)
    log = reopened(disk)
    assert (log.end, log.damaged, log.recovery.truncated_octets) == (3, [], len(tail))
    [line] = log.recovery.lines
    name = f"{0:020d}-{start}"
    assert line.startswith(f"possible loss: queue {log.queue_id}: cut {len(tail)} octets")
    assert "messages from offset 3 on" in line
    assert line.endswith(f"quarantine/{name}")
    assert copies(disk) == {name: tail}
    goes_on(disk, log)


@pytest.mark.parametrize("length", [1, FRAME_HEADER_OCTETS - 1, FRAME_HEADER_OCTETS + 8])
def test_an_unfinished_record_is_kept_aside_before_it_is_cut__NB_12(length: int) -> None:
    disk = SimulatedDisk()
    start, _ = an_old_end(disk)
    disk.spoil(FIRST, disk.octets_of(FIRST)[: start + length])
    tail = disk.octets_of(FIRST)[start:]
    disk.journal.clear()
    log = reopened(disk)
    name = f"{0:020d}-{start}.unfinished"
    [line] = log.recovery.lines
    assert line == (
        f"cut {length} octets of an unfinished record from {FIRST}; "
        f"they are kept in quarantine/{name}"
    )
    assert copies(disk) == {name: tail}
    done = list(disk.journal)
    assert done.index(("sync_directory", "quarantine")) < done.index(("truncate", FIRST[7:]))
    goes_on(disk, log)


def test_only_the_newest_unfinished_records_are_kept__NB_12() -> None:
    disk = SimulatedDisk()
    places = []
    for number in range(quarantine.UNFINISHED_KEPT + 3):
        log = reopened(disk)
        log.append([frame(number)])
        log.close()
        whole = disk.octets_of(FIRST)
        places.append(len(whole))
        disk.spoil(FIRST, whole + b"torn %d" % number)
    reopened(disk).close()
    newest = places[-quarantine.UNFINISHED_KEPT :]
    assert set(copies(disk)) == {f"{0:020d}-{place}.unfinished" for place in newest}


def test_of_many_copies_those_of_the_last_places_are_kept_wherever_they_are() -> None:
    """Places of several digits, in several segments, in any order; copies of damage all stay."""
    disk = SimulatedDisk()
    places = [(first, at) for first in (0, 7, 2000) for at in (112, 520, 1000, 9999, 10_000)]
    damaged = f"{0:020d}-64"
    with_names = disk.names
    disk.names = lambda path: sorted(with_names(path), reverse=True)  # type: ignore[method-assign]
    disk.make_directory(DIRECTORY)
    file = disk.open(FIRST, write=True)
    file.write(0, [bytes(20_000)])
    quarantine.keep(disk, DIRECTORY, Segment(file, 0, 0), 64, 8, bytes(8))
    for number, (first, at) in enumerate(places, 1):
        segment = Segment(file, 0, first)
        quarantine.keep(disk, DIRECTORY, segment, at, 8, bytes(8), suffix=quarantine.UNFINISHED)
        newest = places[max(number - quarantine.UNFINISHED_KEPT, 0) : number]
        names = {f"{one:020d}-{place}.unfinished" for one, place in newest}
        assert set(copies(disk)) == {damaged, *names}
    # The queue is replaced by an older copy of it, beside its quarantine.
    segment = Segment(file, 0, 0)
    quarantine.keep(disk, DIRECTORY, segment, 700, 8, bytes(8), suffix=quarantine.UNFINISHED)
    kept = set(copies(disk)) - {damaged}
    assert f"{0:020d}-700.unfinished" in kept
    assert len(kept) == quarantine.UNFINISHED_KEPT


def test_a_copy_has_a_limit_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine, "COPY_OCTETS_MAX", 40)
    disk = SimulatedDisk()
    _, tail = a_spoilt_header(disk)
    [line] = reopened(disk).recovery.lines
    assert line.endswith("(the first 40 of them)")
    assert list(copies(disk).values()) == [tail[:40]]


def test_what_cannot_be_copied_is_not_cut__NB_12() -> None:
    """On a full disk the tail stays, and messages go into a new segment when there is room."""
    disk = SimulatedDisk()
    a_spoilt_header(disk)
    whole = disk.octets_of(FIRST)
    disk.capacity = disk.used()
    log = reopened(disk)
    assert disk.octets_of(FIRST) == whole
    assert (log.end, log.recovery.truncated_octets) == (3, 0)
    assert any("could not be copied aside" in line for line in log.recovery.lines)
    disk.capacity = None
    goes_on(disk, log)
    assert disk.octets_of(FIRST) == whole


def test_in_a_segment_without_messages_it_is_cut_all_the_same() -> None:
    disk = SimulatedDisk()
    SegmentLog(DIRECTORY, disk=disk).close()
    disk.spoil(FIRST, disk.octets_of(FIRST) + b"torn")
    disk.capacity = disk.used()
    log = reopened(disk)
    assert log.recovery.truncated_octets == 4
    disk.capacity = None
    goes_on(disk, log)
