"""Reading beside a writer: ranges, the published end, trimming, damage, consumers, a plan."""

from __future__ import annotations

import dataclasses
import errno
import random
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sim.disk import Cut, CutDisk, SimulatedDisk, SimulatedFile
from tests.tools.queues import (
    DIRECTORY,
    HEAD_BYTES,
    a_queue,
    a_reader,
    frame,
    ids,
    path_of,
    published,
    rows,
    sealed,
    segment_name,
)
from twisted_msgproto.core.disk import Stat
from twisted_msgproto.core.errors import QueueCorrupt, QueueError, QueueMismatch
from twisted_msgproto.queue import OS_DISK, Landed, QueueReader, QueueWriter, SegmentLog
from twisted_msgproto.queue.verify import segments, verify


@pytest.mark.parametrize("segment_bytes", [1, 1000, 1 << 20])
def test_every_range_gives_its_messages(segment_bytes: int) -> None:
    disk = SimulatedDisk()
    a_queue(disk, [1, 3, 2, 5, 1], segment_bytes=segment_bytes)
    for lo in range(13):
        for hi in range(lo, 13):
            found = rows(DIRECTORY, lo, hi, disk=disk)
            assert ids(found) == list(range(lo, hi))
            assert [row["offset"] for row in found] == list(range(lo, hi))


def test_batches_have_about_as_many_rows_as_asked() -> None:
    disk = SimulatedDisk()
    a_queue(disk, [4] * 25)
    reader = a_reader(disk)
    sizes = [one.num_rows for one in reader.read(0, 100, rows=10)]
    assert sizes == [12] * 8 + [4]
    assert [one.num_rows for one in reader.read(0, 100)] == [100]
    assert [one.num_rows for one in reader.read(3, 3)] == []


def test_heavy_messages_make_smaller_batches() -> None:
    disk = SimulatedDisk()
    log = SegmentLog(DIRECTORY, disk=disk)
    for number in range(10):
        log.append([frame(number, nbytes=5000)])
    sizes = [one.num_rows for one in a_reader(disk).read(0, 10, nbytes=9000)]
    assert sizes == [2] * 5
    assert [one.num_rows for one in a_reader(disk).read(0, 10)] == [10]
    exact = frame(0, nbytes=5000).nbytes
    assert [one.num_rows for one in a_reader(disk).read(0, 10, nbytes=exact)] == [1] * 10


@pytest.mark.parametrize(("lo", "hi"), [(0, 4), (4, 4), (-1, 2), (2, 1)])
def test_a_range_beyond_the_published_end_is_refused(lo: int, hi: int) -> None:
    """Readers never go past the published end."""
    disk = SimulatedDisk()
    a_queue(disk, [3])
    with pytest.raises(QueueMismatch, match=rf"offsets {lo} to {hi} .* which ends at 3"):
        list(a_reader(disk).read(lo, hi))


def test_what_was_written_but_not_published_is_not_there() -> None:
    disk = SimulatedDisk()
    log = a_queue(disk, [3])
    disk.fail_next("write", errno.EIO, "/end")
    log.append([frame(3)])
    reader = a_reader(disk)
    assert reader.end() == 3
    assert ids(rows(DIRECTORY, disk=disk)) == [0, 1, 2]
    with pytest.raises(QueueMismatch):
        list(reader.read(0, 4))


def test_trimming_while_a_range_is_read_ends_the_reading_cleanly() -> None:
    """Safe against concurrent trim: what is open stays readable, what is gone is said to be."""
    disk = SimulatedDisk()
    log = a_queue(disk, [1] * 4, segment_bytes=1)
    reading = a_reader(disk).read(0, 4, rows=1)
    assert next(reading).num_rows == 1
    a_reader(disk).commit("spark", 4)
    log.trim()
    with pytest.raises(QueueMismatch, match=r"offset 1 of the queue .* was trimmed"):
        list(reading)


@pytest.mark.parametrize("counts", [[1, 1, 1], [1, 1, 1, 1]], ids=["the newest", "an older one"])
def test_a_segment_that_is_cut_while_it_is_read_is_awaited(counts: list[int]) -> None:
    """RD-50: its rows are not damaged, they may be put back."""
    disk = SimulatedDisk()
    log = SegmentLog(DIRECTORY, disk=disk, segment_bytes=7 << 20)
    for count in counts:
        log.append([frame(log.end, count, nbytes=2 << 20)])
    path = path_of(0)
    whole = disk.bytes_of(path)
    reader = a_reader(disk)
    found = iter(reader.read(0, 3, 1))
    assert next(found).num_rows == 1
    disk.spoil(path, whole[: 5 << 20])
    with pytest.raises(QueueError, match="put it back"):
        list(found)
    assert reader.damaged() == []


def test_a_file_that_is_cut_behind_a_damaged_head_may_be_put_back__RD_50() -> None:
    disk = SimulatedDisk()
    a_queue(disk, [1, 1])
    whole = disk.bytes_of(path_of(0))
    head = whole.rindex(b"\x93MPF")
    disk.spoil(path_of(0), whole[:head] + b"x" + whole[head + 1 : -1])
    with pytest.raises(QueueError, match="put it back"):
        list(a_reader(disk).read(0, 2))


def test_a_segment_trimmed_between_listing_and_opening_is_looked_for_again() -> None:
    disk = SimulatedDisk()
    log = a_queue(disk, [1] * 4, segment_bytes=1)
    reader = a_reader(disk)
    reader.commit("spark", 2)
    open_file = disk.open

    def trimmed_first(path: str, *, write: bool = False) -> SimulatedFile:
        if path.endswith(".segment"):
            disk.open = open_file  # type: ignore[method-assign]
            log.trim()
        return open_file(path, write=write)

    disk.open = trimmed_first  # type: ignore[method-assign]
    with pytest.raises(QueueMismatch, match="was trimmed"):
        list(reader.read(1, 3))


def test_a_segment_whose_name_leads_nowhere_is_an_error_and_not_waited_for(
    tmp_path: Path,
) -> None:
    """As a link to a disk that is not there; verify says that it has not seen it."""
    log = SegmentLog(tmp_path, segment_bytes=1)
    for number in range(3):
        log.append([frame(number)])
    log.close()
    path = tmp_path / segment_name(1)
    path.unlink()
    path.symlink_to("nowhere")
    found = QueueReader(tmp_path).read(0, 3)
    with pytest.raises(FileNotFoundError, match=segment_name(1)):
        list(found)
    report = verify(tmp_path)
    assert (report.intact, report.damaged, report.messages) == (False, [], 2)
    assert report.unseen[0].startswith(f"{segment_name(1)}: not read")
    with pytest.raises(FileNotFoundError, match=segment_name(1)):
        segments(OS_DISK, str(tmp_path), 3)


@pytest.mark.parametrize("missing", [True, False])
def test_without_a_published_end_nothing_is_there(missing: bool) -> None:
    """A gateway may have been killed before it published its first one."""
    disk = SimulatedDisk()
    a_queue(disk, [3])
    if missing:
        disk.remove(path_of("end"))
    else:
        disk.spoil(path_of("end"), b"")
    described = a_reader(disk).describe()
    assert (described.begin, described.end) == (0, 0)
    assert (described.bytes, described.waiting_bytes, described.oldest) == (0, 0, None)


# -- damage ---------------------------------------------------------------------------------------


def test_only_the_part_of_a_damaged_range_which_was_asked_for_is_remembered() -> None:
    disk = SimulatedDisk()
    a_queue(disk, [1, 5, 1])
    octets = disk.bytes_of(path_of(0))
    disk.flip(path_of(0), octets.find(b"\x93MPF", HEAD_BYTES + 6))
    reader = a_reader(disk)
    assert [one.num_rows for one in reader.read(2, 4)] == []
    assert reader.damaged() == [(2, 4)]


def test_what_the_writer_noted_is_known_to_every_reader() -> None:
    disk = SimulatedDisk()
    a_queue(disk, [2, 2]).close()
    disk.flip(path_of(0), 150)
    SegmentLog(DIRECTORY, disk=disk).close()
    assert a_reader(disk).damaged() == [(0, 2)]
    disk.spoil(path_of("damaged"), disk.bytes_of(path_of("damaged")) + b"damaged 5 x\n")
    assert a_reader(disk).damaged() == [(0, 2)]


# -- a queue which is none ------------------------------------------------------------------------


def test_the_queue_of_another_user_is_told_with_what_to_do() -> None:
    disk = SimulatedDisk()
    SegmentLog(DIRECTORY, disk=disk).close()
    disk.fail_next("open", errno.EACCES, "/identity")
    with pytest.raises(QueueError, match=r"run this as the user that its gateway runs as"):
        QueueReader(DIRECTORY, disk=disk)


def test_what_was_given_in_place_of_a_queue_is_said(tmp_path: Path) -> None:
    gateway, damaged = tmp_path / "gateway", tmp_path / "damaged"
    several = tmp_path / "several"
    for made in (gateway / "queue", damaged, several / "0", several / "1"):
        QueueWriter(made).close()
    (damaged / "identity").write_text("?")
    (tmp_path / "empty").mkdir()
    for place, words in {
        tmp_path / "none": "there is no such directory",
        tmp_path / "empty": "nothing has written there yet",
        gateway: f"there is one in {gateway / 'queue'}",
        several: f"it has several in it, such as {several / '0'}",
        damaged: "its file identity is damaged",
        "http://localhost:8480": "no queue in http://localhost:8480: a directory, grpc://HOST:PORT",
    }.items():
        with pytest.raises(QueueError, match=r"^no queue in ") as caught:
            QueueReader(place)
        assert words in str(caught.value)
    (tmp_path / "file").write_text("")
    with pytest.raises(QueueError, match="cannot read the queue"):
        QueueReader(tmp_path / "file")


def test_an_end_which_is_just_being_written_is_read_again() -> None:
    disk = SimulatedDisk()
    a_queue(disk, [3])
    good = disk.bytes_of(path_of("end"))
    disk.spoil(path_of("end"), published(9, 0, 0)[:20] + good[20:])
    reader = a_reader(disk)
    read_file = SimulatedFile.read
    reads = []

    def read(self: SimulatedFile, position: int, nbytes: int) -> bytes:
        reads.append(position)
        if len(reads) == 3:
            disk.spoil(path_of("end"), good)
        return read_file(self, position, nbytes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimulatedFile, "read", read)
        assert reader.end() == 3
    assert len(reads) >= 3


def test_an_end_damaged_for_good_says_what_mends_it() -> None:
    disk = SimulatedDisk()
    log = a_queue(disk, [3])
    disk.spoil(path_of("end"), b"\xff" * 48)
    with pytest.raises(QueueCorrupt, match="the gateway mends it when it starts"):
        a_reader(disk).end()
    log.append([frame(3)])
    assert a_reader(disk).end() == 4


# -- consumers ------------------------------------------------------------------------------------


def test_a_new_consumer_begins_at_the_first_offset_which_is_kept() -> None:
    disk = SimulatedDisk()
    log = a_queue(disk, [1] * 4, segment_bytes=1)
    reader = a_reader(disk)
    assert reader.register("first") == 0
    reader.commit("first", 3)
    log.trim()
    assert reader.register("second") == 3
    assert reader.register("first") == 3
    assert reader.consumers() == {"first": 3, "second": 3}


def test_a_consumer_behind_what_was_trimmed_is_told_the_beginning() -> None:
    disk = SimulatedDisk()
    log = a_queue(disk, [1] * 4, segment_bytes=1)
    reader = a_reader(disk)
    reader.commit("spark", 3)
    log.trim()
    disk.spoil(path_of("consumers/spark"), b"damaged")
    assert reader.register("spark") == 3


def test_a_consumer_begins_behind_what_goes_while_it_is_registered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = SimulatedDisk()
    log = a_queue(disk, [1] * 4, segment_bytes=1)
    reader = a_reader(disk)
    reader.commit("fast", 4)
    commit = reader.commit

    def late(consumer: str, offset: int) -> None:
        log.trim()
        commit(consumer, offset)

    monkeypatch.setattr(reader, "commit", late)
    assert reader.register("new") == log.begin == 3
    assert reader.consumers() == {"fast": 4, "new": 3}


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "../up", "ä", "x" * 65, "a b", "-x"])
def test_a_consumer_s_name_never_becomes_another_path(name: str) -> None:
    disk = SimulatedDisk()
    a_queue(disk, [5])
    with pytest.raises(QueueError, match="a consumer's name is"):
        a_reader(disk).commit(name, 3)


def test_on_a_full_disk_a_known_consumer_can_commit_so_that_it_can_be_trimmed() -> None:
    disk = SimulatedDisk()
    log = a_queue(disk, [1] * 4, segment_bytes=1)
    reader = a_reader(disk)
    reader.register("spark")
    disk.capacity = disk.used()
    opened = disk.opened.total()
    reader.commit("spark", 4)
    assert disk.opened.total() == opened
    disk.lose_power(random.Random(1))
    assert reader.consumers() == {"spark": 4}
    log = SegmentLog(DIRECTORY, disk=disk)
    assert log.trim() == 3
    with pytest.raises(OSError, match="No space left"):
        for number in range(100):
            reader.commit(f"another-{number}", 0)
    disk.capacity = None
    disk.fail_next("rename", errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        reader.commit("spark", 3)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("killed", [False, True])
def test_who_is_registered_stays_so_after_a_loss_of_power__NB_12(killed: bool, seed: int) -> None:
    """NB-12: a sync of names that failed, or that a kill has cut off, is made up for."""
    disk = CutDisk()
    log = a_queue(disk, [1] * 4, segment_bytes=1)
    reader = a_reader(disk)
    reader.commit("another", 4)
    if killed:
        disk.left = 4  # write, truncate, sync, rename
        with pytest.raises(Cut):
            reader.register("spark")
        disk.left = None
    else:
        disk.fail_next("sync_directory", errno.EIO, "consumers")
        with pytest.raises(OSError, match="Input/output"):
            reader.register("spark")
    assert reader.register("spark") == 0
    log.close()
    disk.lose_power(random.Random(seed))
    assert a_reader(disk).consumers() == {"another": 4, "spark": 0}


@pytest.mark.parametrize("seed", range(4))
def test_what_is_committed_at_a_second_try_stays_so_after_a_loss_of_power(seed: int) -> None:
    """It was in memory alone, and the next start told of messages that somebody had removed."""
    disk = SimulatedDisk()
    log = a_queue(disk, [1] * 4, segment_bytes=1)
    reader = a_reader(disk)
    reader.commit("spark", 1)
    disk.fail_next("sync_directory", errno.EIO, "consumers")
    with pytest.raises(OSError, match="Input/output"):
        reader.commit("spark", 3)
    reader.commit("spark", 3)
    assert log.trim() == 3
    log.close()
    disk.lose_power(random.Random(seed))
    assert SegmentLog(DIRECTORY, disk=disk).recovery.lines == []
    assert a_reader(disk).consumers() == {"spark": 3}


def test_a_consumer_of_another_queue_has_committed_nothing() -> None:
    disk = SimulatedDisk()
    a_queue(disk, [5])
    path = path_of("consumers/spark")
    a_reader(disk).commit("spark", 3)
    disk.spoil(path, sealed(f"offset {3:020d} queue {'f' * 32}"))
    assert a_reader(disk).consumers() == {"spark": 0}


def test_a_consumer_forgotten_while_all_are_listed_is_left_out() -> None:
    disk = SimulatedDisk()
    a_queue(disk, [5])
    reader = a_reader(disk)
    reader.commit("a", 1)
    names = disk.names
    disk.names = lambda path: [*names(path), "gone"]  # type: ignore[method-assign]
    assert reader.consumers() == {"a": 1}


def test_consumers_come_and_go(tmp_path: Path) -> None:
    disk = SimulatedDisk()
    a_queue(disk, [5])
    reader = a_reader(disk)
    reader.commit("a", 1)
    reader.commit("b", 2)
    disk.open(f"{DIRECTORY}/consumers/.b.new", write=True).write(0, [b"half a line"])
    assert reader.consumers() == {"a": 1, "b": 2}
    reader.forget("a")
    assert reader.consumers() == {"b": 2}
    with pytest.raises(QueueError, match="no consumer 'a'"):
        reader.forget("a")
    (other := tmp_path / "other.json").touch()
    with pytest.raises(QueueError, match="a consumer's name is 1 to 64 of"):
        reader.forget(str(other.with_suffix("")))
    assert other.exists()


@pytest.mark.parametrize("offset", [-1, 6, 2**63])
def test_a_commit_beyond_the_queue_is_refused(offset: int) -> None:
    disk = SimulatedDisk()
    a_queue(disk, [5])
    with pytest.raises(QueueError):
        a_reader(disk).commit("spark", offset)
    assert a_reader(disk).consumers() == {}


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9)), max_size=9))
def test_ranges_of_damage_are_merged_and_in_order(noted: list[tuple[int, int]]) -> None:
    disk = SimulatedDisk()
    a_queue(disk, [1])
    ranges = [(lo, lo + size) for lo, size in noted]
    lines = [sealed(f"damaged {lo} {hi} two words") for lo, hi in ranges]
    disk.open(path_of("damaged"), write=True).write(0, [b"".join(lines)])
    merged = a_reader(disk).damaged()
    offsets = sorted({offset for lo, hi in ranges for offset in range(lo, hi)})
    assert [offset for lo, hi in merged for offset in range(lo, hi)] == offsets
    assert all(first[1] < second[0] for first, second in pairwise(merged))


@pytest.mark.parametrize("spoilt", [False, True])
def test_a_head_that_is_damaged_proves_nothing__NB_12(spoilt: bool) -> None:
    """A table that stands there would be told that this is another queue."""
    disk = SimulatedDisk()
    log = a_queue(disk, [3, 3], segment_bytes=1)
    reader = a_reader(disk)
    place = reader.place(3)
    reader.commit("spark", 3)
    log.trim()
    if spoilt:
        disk.flip(path_of(3), HEAD_BYTES - 1)
    assert reader.place(3) == dataclasses.replace(place, witness=0 if spoilt else place.witness)
    reader.check(place)


# -- what a plan asks: offsets, times, bytes, consumers, at one time -----------------------------

BEGAN = 1_700_000_000_000_000
"""When the first message of a test's batch was received; the n-th comes n µs later."""


def test_an_empty_queue_has_nothing_that_waits() -> None:
    disk = SimulatedDisk()
    log = a_queue(disk, [])
    described = a_reader(disk).describe(Landed(0))
    assert described.queue_id == log.queue_id
    assert (described.begin, described.end, described.landed) == (0, 0, Landed(0))
    assert (described.oldest, described.waiting_bytes) == (None, 0)
    assert described.bytes == HEAD_BYTES == log.nbytes
    assert (described.damaged, described.consumers, described.moved) == ((), {}, {})


@pytest.mark.parametrize("segment_bytes", [1, 1 << 20])
def test_what_waits_is_what_stands_at_or_above_the_place(segment_bytes: int) -> None:
    disk = SimulatedDisk()
    counts = (2, 1, 3, 2)
    log = SegmentLog(DIRECTORY, disk=disk, segment_bytes=segment_bytes)
    octets = []
    for count in counts:
        before = log.nbytes
        log.append([frame(log.end, count)])
        octets.append(log.nbytes - before)
    reader = a_reader(disk)
    firsts = {0: 0, 2: 1, 3: 2, 6: 3}
    for offset in range(9):
        described = reader.describe(reader.place(offset))
        assert described.bytes == log.nbytes
        began = max((first for first in firsts if first <= offset), default=0)
        if offset == 8:
            assert (described.oldest, described.waiting_bytes) == (None, 0)
            continue
        # The test's frames are of one batch each: one time for all of a frame.
        assert described.oldest == BEGAN + began
        waiting = sum(octets[firsts[began] :])
        assert waiting - HEAD_BYTES * 4 <= described.waiting_bytes <= waiting
    assert reader.describe().oldest == BEGAN
    commit = reader.register("spark")
    assert commit == 0


def test_times_of_consumers_are_when_their_offsets_changed() -> None:
    disk = SimulatedDisk()
    log = a_queue(disk, [3], segment_bytes=1)
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
    a_queue(disk, [3], segment_bytes=1)
    reader = a_reader(disk)
    reader.register("spark")
    stat = disk.stat

    def forgotten(path: str) -> Stat:
        if path.endswith("/spark"):
            reader.forget("spark")
        return stat(path)

    disk.stat = forgotten  # type: ignore[method-assign]
    described = reader.describe()
    assert (described.consumers, described.moved) == ({"spark": 0}, {})


def test_a_description_belongs_together_while_the_queue_is_trimmed_and_grows() -> None:
    disk = SimulatedDisk()
    log = a_queue(disk, [2, 2], segment_bytes=1)
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
        if name == path_of(5) and len(trimmed) == 2:
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
    log = a_queue(disk, [2, 2], segment_bytes=1)
    a_reader(disk).commit("spark", 2)
    log.trim()
    disk.spoil(path_of("end"), published(1, 0, 200))
    with pytest.raises(QueueCorrupt, match="do not fit; the gateway mends it when it starts"):
        a_reader(disk).describe()


def test_an_end_that_is_older_than_the_newest_segment_is_that_of_readers() -> None:
    """A loss of power may leave one: until the gateway starts, its messages are not published."""
    disk = SimulatedDisk()
    log = a_queue(disk, [2], segment_bytes=1)
    older = disk.bytes_of(path_of("end"))
    log.append([frame(2)])
    log.append([frame(3)])
    disk.spoil(path_of("end"), older)
    described = a_reader(disk).describe()
    assert (described.begin, described.end) == (0, 2)


def test_another_queue_in_the_place_of_this_one_is_refused() -> None:
    """TB-07, without a server: everything in it would look damaged."""
    disk, other = SimulatedDisk(), SimulatedDisk()
    a_queue(disk, [2], segment_bytes=1)
    log = a_queue(other, [2], segment_bytes=1)
    reader = a_reader(disk)
    disk.spoil(path_of("identity"), other.bytes_of(path_of("identity")))
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
    a_queue(disk, [2, 2, 2], segment_bytes=1)
    octets = disk.bytes_of(path_of(2))
    disk.flip(path_of(2), HEAD_BYTES + 10)
    assert a_reader(disk).describe(Landed(2)).oldest == BEGAN + 4
    disk.remove(path_of(4))
    disk.spoil(path_of("end"), published(4, 2, len(octets)))
    described = a_reader(disk).describe(Landed(2))
    assert (described.oldest, described.waiting_bytes) == (None, 0)


def test_rows_which_are_written_and_not_published_do_not_wait() -> None:
    disk = SimulatedDisk()
    a_queue(disk, [2, 2], segment_bytes=1)
    octets = disk.bytes_of(path_of(0))
    disk.spoil(path_of(0), octets[: HEAD_BYTES + 8])
    disk.spoil(path_of("end"), published(2, 0, len(octets)))
    described = a_reader(disk).describe()
    assert (described.end, described.oldest, described.waiting_bytes) == (2, None, 0)
