"""What a plan asks of a queue in its directory: offsets, times, octets, consumers, at one time."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sim.disk import SimulatedDisk, SimulatedFile
from tests.tools.queues import frame
from twisted_msgproto.core.errors import QueueCorrupt, QueueMismatch
from twisted_msgproto.queue import QueueReader, SegmentLog
from twisted_msgproto.queue.format import EMPTY_SEGMENT_OCTETS, Published
from twisted_msgproto.queue.lineage import Landed

DIRECTORY = "/queue"
BEGAN = 1_700_000_000_000_000
"""When the first message of a test's batch was received; the n-th comes n µs later."""


def path(name: str | int) -> str:
    return f"{DIRECTORY}/{name:020d}.segment" if isinstance(name, int) else f"{DIRECTORY}/{name}"


def a_queue(disk: SimulatedDisk, *counts: int, segment_bytes: int = 1) -> SegmentLog:
    log = SegmentLog(DIRECTORY, disk=disk, segment_bytes=segment_bytes)
    for count in counts:
        log.append([frame(log.end, count)])
    return log


def a_reader(disk: SimulatedDisk) -> QueueReader:
    return QueueReader(DIRECTORY, disk=disk)


def test_an_empty_queue_has_nothing_that_waits() -> None:
    disk = SimulatedDisk()
    log = a_queue(disk)
    described = a_reader(disk).describe(Landed(0))
    assert described.queue_id == log.queue_id
    assert (described.begin, described.end, described.landed) == (0, 0, Landed(0))
    assert (described.oldest, described.waiting_octets) == (None, 0)
    assert described.octets == EMPTY_SEGMENT_OCTETS == log.octets
    assert (described.damaged, described.consumers, described.moved) == ((), {}, {})


@pytest.mark.parametrize("segment_bytes", [1, 1 << 20])
def test_what_waits_is_what_stands_at_or_above_the_place(segment_bytes: int) -> None:
    disk = SimulatedDisk()
    counts = (2, 1, 3, 2)
    log = SegmentLog(DIRECTORY, disk=disk, segment_bytes=segment_bytes)
    octets = []
    for count in counts:
        before = log.octets
        log.append([frame(log.end, count)])
        octets.append(log.octets - before)
    reader = a_reader(disk)
    firsts = {0: 0, 2: 1, 3: 2, 6: 3}
    for _ in range(2):  # also when it remembers where it looked before
        for offset in range(9):
            described = reader.describe(reader.place(offset))
            assert described.octets == log.octets
            began = max((first for first in firsts if first <= offset), default=0)
            if offset == 8:
                assert (described.oldest, described.waiting_octets) == (None, 0)
                continue
            # The test's frames are of one batch each: one time for all of a frame.
            assert described.oldest == BEGAN + began
            waiting = sum(octets[firsts[began] :])
            assert waiting - EMPTY_SEGMENT_OCTETS * 4 <= described.waiting_octets <= waiting
        assert reader.describe().oldest == BEGAN
    commit = reader.register("spark")
    assert commit == 0


def test_times_of_consumers_are_when_their_offsets_changed() -> None:
    disk = SimulatedDisk()
    log = a_queue(disk, 3)
    reader = a_reader(disk)
    disk.now = 1000
    reader.register("spark")
    disk.now = 2000
    reader.commit("spark", 0)
    reader.commit("other", 2)
    described = reader.describe()
    assert described.consumers == {"spark": 0, "other": 2}
    assert described.moved == {"spark": 1000, "other": 2000}
    disk.now = 3000
    reader.commit("spark", 3)
    assert reader.describe().moved == {"spark": 3000, "other": 2000}
    log.close()


def test_a_consumer_which_is_forgotten_meanwhile_has_no_time() -> None:
    disk = SimulatedDisk()
    a_queue(disk, 3)
    reader = a_reader(disk)
    reader.register("spark")
    modified = disk.modified

    def forgotten(name: str) -> int:
        reader.forget("spark")
        return modified(name)

    disk.modified = forgotten  # type: ignore[method-assign]
    described = reader.describe()
    assert (described.consumers, described.moved) == ({"spark": 0}, {})


def test_a_description_belongs_together_while_the_queue_is_trimmed_and_grows() -> None:
    disk = SimulatedDisk()
    log = a_queue(disk, 2, 2)
    reader = a_reader(disk)
    names, opened = disk.names, disk.open
    trimmed: list[int] = []

    def trim_first(name: str) -> list[str]:
        if name == DIRECTORY and not trimmed:
            trimmed.append(log.end)
            log.append([frame(log.end)])
            reader.commit("spark", log.end)
            log.trim(ending=True)
        return names(name)

    disk.names = trim_first  # type: ignore[method-assign]
    described = reader.describe()
    assert (described.begin, described.end) == (5, 5)

    log.append([frame(5), frame(6)])
    log.append([frame(7)])
    trimmed.append(0)

    def trim_then(name: str, *, write: bool = False) -> object:
        if name == path(5) and len(trimmed) == 2:
            trimmed.append(1)
            reader.commit("spark", 8)
            log.trim()
        return opened(name, write=write)

    disk.open = trim_then  # type: ignore[assignment, method-assign]
    described = QueueReader(DIRECTORY, disk=disk).describe()
    assert (described.begin, described.end) == (7, 8)


def test_an_end_which_fits_no_segment_is_told() -> None:
    """After a power cut `end` may be older than what was trimmed; the gateway mends it."""
    disk = SimulatedDisk()
    log = a_queue(disk, 2, 2)
    a_reader(disk).commit("spark", 2)
    log.trim()
    disk.spoil(path("end"), Published(1, 0, 200, 0).packed())
    with pytest.raises(QueueCorrupt, match="do not fit; the gateway mends it when it starts"):
        a_reader(disk).describe()


def test_an_end_that_is_older_than_the_newest_segment_is_that_of_readers() -> None:
    """A loss of power may leave one: until the gateway starts, its messages are not published."""
    disk = SimulatedDisk()
    log = a_queue(disk, 2)
    older = disk.octets_of(path("end"))
    log.append([frame(2)])
    log.append([frame(3)])
    disk.spoil(path("end"), older)
    described = a_reader(disk).describe()
    assert (described.begin, described.end) == (0, 2)


def test_a_queue_whose_segments_are_gone_still_has_its_end() -> None:
    disk = SimulatedDisk()
    a_queue(disk, 2).close()
    end = Published.unpacked(disk.octets_of(path("end")))
    assert end is not None
    disk.spoil(path("end"), Published(2, 0, end.octets, 0).packed())
    disk.remove(path(0))
    described = a_reader(disk).describe()
    assert (described.begin, described.end, described.octets) == (2, 2, 0)
    assert (described.landed.offset, described.landed.witness) == (2, 0)


def test_another_queue_in_the_place_of_this_one_is_refused() -> None:
    """TB-07, without a server: everything in it would look damaged."""
    disk, other = SimulatedDisk(), SimulatedDisk()
    a_queue(disk, 2)
    log = a_queue(other, 2)
    reader = a_reader(disk)
    disk.spoil(path("identity"), other.octets_of(path("identity")))
    for call in (
        reader.describe,
        lambda: reader.place(1),
        lambda: reader.check(Landed(1)),
        lambda: list(reader.read(0, 2)),
        lambda: list(reader.read(0, 2, landed=Landed(0))),
    ):
        with pytest.raises(QueueMismatch, match=f"holds the queue {log.queue_id} now"):
            call()


def test_what_waits_behind_damage_is_told_of_the_next_row_that_is_whole() -> None:
    disk = SimulatedDisk()
    a_queue(disk, 2, 2, 2)
    octets = bytearray(disk.octets_of(path(2)))
    octets[EMPTY_SEGMENT_OCTETS + 10] ^= 1
    disk.spoil(path(2), bytes(octets))
    assert a_reader(disk).describe(Landed(2)).oldest == BEGAN + 4
    disk.remove(path(4))
    disk.spoil(path("end"), Published(4, 2, len(octets), 0).packed())
    described = a_reader(disk).describe(Landed(2))
    assert (described.oldest, described.waiting_octets) == (None, 0)


def test_rows_which_are_written_and_not_published_do_not_wait() -> None:
    disk = SimulatedDisk()
    a_queue(disk, 2, 2)
    octets = disk.octets_of(path(0))
    disk.spoil(path(0), octets[: EMPTY_SEGMENT_OCTETS + 8])
    disk.spoil(path("end"), Published(2, 0, len(octets), 0).packed())
    described = a_reader(disk).describe()
    assert (described.end, described.oldest, described.waiting_octets) == (2, None, 0)


def test_a_question_leaves_no_file_open(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimulatedDisk()
    a_queue(disk, 3, 3)
    reader = a_reader(disk)
    opened, closed, open_file = list[str](), list[str](), disk.open

    def noted(path: str, *, write: bool = False) -> Any:
        file = open_file(path, write=write)
        opened.append(path)
        return file

    monkeypatch.setattr(disk, "open", noted)
    monkeypatch.setattr(SimulatedFile, "close", lambda self: closed.append(self._path))
    reader.describe(reader.place(1))
    assert opened and sorted(opened) == sorted(closed)
