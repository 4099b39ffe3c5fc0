"""Reading beside a writer: ranges, the published end, trimming, damage, consumers."""

from __future__ import annotations

import dataclasses
import errno
import os
import random
from pathlib import Path
from zlib import crc32

import pytest

from tests.sim.disk import Cut, CutDisk, SimulatedDisk, SimulatedFile
from tests.tools.queues import batch, frame, ids, put, rows
from twisted_msgproto.core.errors import QueueCorrupt, QueueError, QueueMismatch
from twisted_msgproto.queue import QueueReader, QueueWriter, SegmentLog
from twisted_msgproto.queue import consumers as consumers_room
from twisted_msgproto.queue.columns import Encoded
from twisted_msgproto.queue.disk import File, OSDisk
from twisted_msgproto.queue.format import EMPTY_SEGMENT_OCTETS, OFFSET_MAX, Published, seal

DIRECTORY = "/queue"


def a_queue(disk: SimulatedDisk, counts: list[int], **options: int) -> SegmentLog:
    log = SegmentLog(DIRECTORY, disk=disk, **options)
    for count in counts:
        log.append([frame(log.end, count)])
    return log


def a_reader(disk: SimulatedDisk) -> QueueReader:
    return QueueReader(DIRECTORY, disk=disk)


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
        log.append([frame(number, octets=5000)])
    sizes = [one.num_rows for one in a_reader(disk).read(0, 10, octets=9000)]
    assert sizes == [2] * 5
    exact = frame(0, octets=5000).octets
    assert [one.num_rows for one in a_reader(disk).read(0, 10, octets=exact)] == [1] * 10


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


def test_what_was_trimmed_is_refused_and_says_where_the_queue_begins() -> None:
    disk = SimulatedDisk()
    log = a_queue(disk, [1] * 4, segment_bytes=1)
    reader = a_reader(disk)
    reader.commit("spark", 2)
    log.trim()
    assert reader.begin() == 2
    with pytest.raises(
        QueueMismatch, match=r"offset 1 of the queue .* was trimmed; it begins at 2"
    ):
        list(reader.read(1, 4))
    assert ids(rows(DIRECTORY, 2, 4, disk=disk)) == [2, 3]


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


def test_without_segments_everything_was_trimmed() -> None:
    disk = SimulatedDisk()
    a_queue(disk, [3])
    disk.remove(f"{DIRECTORY}/{0:020d}.segment")
    reader = a_reader(disk)
    assert reader.begin() == 3
    with pytest.raises(QueueMismatch, match="was trimmed; it begins at 3"):
        list(reader.read(0, 3))


def test_a_reader_says_how_often_messages_were_lost() -> None:
    disk = SimulatedDisk()
    a_queue(disk, [3]).close()
    published = a_reader(disk).published()
    assert published is not None
    further = dataclasses.replace(published, offset=published.offset + 5)
    disk.spoil(f"{DIRECTORY}/end", further.packed())
    log = SegmentLog(DIRECTORY, disk=disk)
    assert a_reader(disk).losses == log.losses == 1


@pytest.mark.parametrize("missing", [True, False])
def test_without_a_published_end_nothing_is_there(missing: bool) -> None:
    """A gateway may have been killed before it published its first one."""
    disk = SimulatedDisk()
    a_queue(disk, [3])
    if missing:
        disk.remove(f"{DIRECTORY}/end")
    else:
        disk.spoil(f"{DIRECTORY}/end", b"")
    described = a_reader(disk).describe()
    assert (described.begin, described.end) == (0, 0)
    assert (described.octets, described.waiting_octets, described.oldest) == (0, 0, None)


# -- damage ---------------------------------------------------------------------------------------


def spoiled(disk: SimulatedDisk, at: int, *, first: int = 0) -> None:
    path = f"{DIRECTORY}/{first:020d}.segment"
    octets = bytearray(disk.octets_of(path))
    octets[at] ^= 1
    disk.spoil(path, bytes(octets))


def test_damage_met_while_reading_is_passed_over_and_remembered() -> None:
    disk = SimulatedDisk()
    log = a_queue(disk, [2, 2, 2])
    octets = disk.octets_of(f"{DIRECTORY}/{0:020d}.segment")
    first = octets.find(b"\x93MPF", EMPTY_SEGMENT_OCTETS)
    second = octets.find(b"\x93MPF", first + 1)
    for at in (second + 5, second + 60):
        spoiled(disk, at)
        reader = a_reader(disk)
        assert reader.damaged() == []
        found = [row["offset"] for one in reader.read(0, 6) for row in one.to_pylist()]
        assert found == [0, 1, 4, 5]
        assert reader.damaged() == [(2, 4)]
        spoiled(disk, at)
    assert log.end == 6


def test_a_message_of_which_one_bit_is_another_is_not_delivered() -> None:
    """Arrow reads it all the same; what was asked for and is missing is told."""
    disk = SimulatedDisk()
    a_queue(disk, [2, 2, 2])
    spoiled(disk, disk.octets_of(f"{DIRECTORY}/{0:020d}.segment").index(b"body 2"))
    reader = a_reader(disk)
    found = reader.read(0, 3)
    assert [row["offset"] for one in found for row in one.to_pylist()] == [0, 1]
    assert list(found.damaged) == [(2, 3)]
    assert reader.damaged() == [(2, 4)]  # no other message of that frame can be read either


def test_records_that_are_missing_at_a_segment_s_end_are_awaited() -> None:
    """RD-50: until a start has noted that they are lost."""
    disk = SimulatedDisk()
    log = a_queue(disk, [2, 2])
    octets = disk.octets_of(f"{DIRECTORY}/{0:020d}.segment")
    log.append([frame(4, 2)])
    disk.spoil(f"{DIRECTORY}/{0:020d}.segment", octets)
    with pytest.raises(QueueError, match=r"offsets 4 to 6 .* restart the gateway"):
        list(a_reader(disk).read(1, 6))
    log.close()
    SegmentLog(DIRECTORY, disk=disk)
    found = a_reader(disk).read(1, 6)
    assert [row["offset"] for one in found for row in one.to_pylist()] == [1, 2, 3]
    assert list(found.damaged) == [(4, 6)]


def test_a_read_leaves_no_file_open(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, closed = SimulatedDisk(), list[str]()
    a_queue(disk, [1] * 3, segment_bytes=1)
    reader = a_reader(disk)
    monkeypatch.setattr(SimulatedFile, "close", lambda self: closed.append(self._path))
    disk.journal.clear()
    assert [one.num_rows for one in reader.read(0, 3)] == [3]
    opened = [name for operation, name in disk.journal if operation == "open"]
    assert sorted(path.rpartition("/")[2] for path in closed) == sorted(opened)
    assert len([name for name in opened if name.endswith(".segment")]) == 3


def test_a_record_which_makes_no_sense_is_passed_over() -> None:
    disk = SimulatedDisk()
    log = a_queue(disk, [1])
    log.append([Encoded(1, [bytes(16)], 16, 16, crc32(bytes(16)))])
    log.append([frame(2)])
    reader = a_reader(disk)
    found = [row["offset"] for one in reader.read(0, 3) for row in one.to_pylist()]
    assert found == [0, 2]
    assert reader.damaged() == [(1, 2)]


def test_only_the_part_of_a_damaged_range_which_was_asked_for_is_remembered() -> None:
    disk = SimulatedDisk()
    a_queue(disk, [1, 5, 1])
    octets = disk.octets_of(f"{DIRECTORY}/{0:020d}.segment")
    spoiled(disk, octets.find(b"\x93MPF", EMPTY_SEGMENT_OCTETS + 6))
    reader = a_reader(disk)
    assert [one.num_rows for one in reader.read(2, 4)] == []
    assert reader.damaged() == [(2, 4)]


def test_what_the_writer_noted_is_known_to_every_reader() -> None:
    disk = SimulatedDisk()
    a_queue(disk, [2, 2]).close()
    spoiled(disk, 150)
    SegmentLog(DIRECTORY, disk=disk).close()
    assert a_reader(disk).damaged() == [(0, 2)]
    disk.spoil(f"{DIRECTORY}/damaged", disk.octets_of(f"{DIRECTORY}/damaged") + b"damaged 5 x\n")
    reader = a_reader(disk)
    assert reader.damaged() == [(0, 2)]
    assert (reader._damaged_from(1), reader._damaged_from(2)) == ([(0, 2)], [])


# -- a queue which is none ------------------------------------------------------------------------


def test_without_a_queue_there_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(QueueError, match="no queue in"):
        QueueReader(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(QueueError, match="no queue in"):
        QueueReader(tmp_path / "empty")
    (tmp_path / "file").write_text("")
    with pytest.raises(QueueError, match="cannot read the queue"):
        QueueReader(tmp_path / "file")


def test_the_queue_of_another_user_is_told_with_what_to_do() -> None:
    disk = SimulatedDisk()
    SegmentLog(DIRECTORY, disk=disk).close()
    disk.fail_next("open", errno.EACCES, "/identity")
    with pytest.raises(QueueError, match=r"run this as the user that its gateway runs as"):
        QueueReader(DIRECTORY, disk=disk)


def test_what_was_given_in_place_of_a_queue_is_said(tmp_path: Path) -> None:
    gateway, damaged = tmp_path / "gateway", tmp_path / "damaged"
    several = tmp_path / "several"
    for place in (gateway / "queue", damaged, several / "0", several / "1"):
        QueueWriter(place).close()
    (damaged / "identity").write_text("?")
    (tmp_path / "empty").mkdir()
    for given, words in {
        tmp_path / "none": "there is no such directory",
        tmp_path / "empty": "nothing has written there yet",
        gateway: f"there is one in {gateway / 'queue'}",
        several: f"it has several in it, such as {several / '0'}",
        damaged: "its file identity is damaged",
        "http://localhost:8480": "no queue in http://localhost:8480: a directory, grpc://HOST:PORT",
    }.items():
        with pytest.raises(QueueError, match=r"^no queue in ") as caught:
            QueueReader(given)
        assert words in str(caught.value)


def test_a_new_queue_begins_and_ends_at_zero() -> None:
    disk = SimulatedDisk()
    a_queue(disk, [])
    reader = a_reader(disk)
    assert (reader.begin(), reader.end(), reader.losses) == (0, 0, 0)
    assert list(reader.read(0, 0)) == []
    disk.spoil(f"{DIRECTORY}/end", b"")
    assert reader.end() == 0
    disk.remove(f"{DIRECTORY}/end")
    assert reader.end() == 0


def test_an_end_which_is_just_being_written_is_read_again() -> None:
    disk = SimulatedDisk()
    a_queue(disk, [3])
    good = disk.octets_of(f"{DIRECTORY}/end")
    disk.spoil(f"{DIRECTORY}/end", Published(9, 0, 0, 0).packed()[:20] + good[20:])
    reader = a_reader(disk)
    read_file = SimulatedFile.read
    reads = []

    def read(self: SimulatedFile, position: int, octets: int) -> bytes:
        reads.append(position)
        if len(reads) == 3:
            disk.spoil(f"{DIRECTORY}/end", good)
        return read_file(self, position, octets)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimulatedFile, "read", read)
        assert reader.end() == 3
    assert len(reads) >= 3


def test_an_end_damaged_for_good_says_what_mends_it() -> None:
    disk = SimulatedDisk()
    log = a_queue(disk, [3])
    disk.spoil(f"{DIRECTORY}/end", b"\xff" * 48)
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
    disk.spoil(f"{DIRECTORY}/consumers/spark", b"damaged")
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


def test_a_registered_consumer_holds_what_it_needs() -> None:
    disk = SimulatedDisk()
    log = a_queue(disk, [1] * 4, segment_bytes=1)
    reader = a_reader(disk)
    reader.register("slow")
    reader.commit("fast", 4)
    assert log.trim() == 0


def test_a_commit_is_durable_when_it_returns() -> None:
    disk = SimulatedDisk()
    a_queue(disk, [5])
    reader = a_reader(disk)
    reader.commit("spark", 3)
    for seed in range(20):
        disk.lose_power(random.Random(seed))
        assert reader.consumers() == {"spark": 3}
        reader.commit("spark", 3)


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "../up", "ä", "x" * 65, "a b", "-x"])
def test_a_consumer_s_name_never_becomes_another_path(name: str) -> None:
    disk = SimulatedDisk()
    a_queue(disk, [5])
    with pytest.raises(QueueError, match="a consumer's name is"):
        a_reader(disk).commit(name, 3)


@pytest.mark.parametrize("offset", [-1, 2**63])
def test_a_commit_of_no_offset_is_refused(offset: int) -> None:
    disk = SimulatedDisk()
    a_queue(disk, [5])
    with pytest.raises(QueueError):
        a_reader(disk).commit("spark", offset)
    with pytest.raises(QueueError, match="no offset"):
        consumers_room.write(disk, DIRECTORY, "spark", "q", offset)


def test_a_commit_beyond_the_end_is_refused() -> None:
    disk = SimulatedDisk()
    a_queue(disk, [5])
    with pytest.raises(QueueMismatch, match=r"commits offset 6 of the queue .* which ends at 5"):
        a_reader(disk).commit("spark", 6)


def test_on_a_full_disk_a_known_consumer_can_commit_so_that_it_can_be_trimmed() -> None:
    disk = SimulatedDisk()
    log = a_queue(disk, [1] * 4, segment_bytes=1)
    reader = a_reader(disk)
    reader.register("spark")
    disk.capacity = disk.used()
    reader.commit("spark", 4)
    assert reader.consumers() == {"spark": 4}
    assert log.trim() == 3
    with pytest.raises(OSError, match="No space left"):
        for number in range(100):
            reader.commit(f"another-{number}", 0)
    disk.capacity = None
    disk.fail_next("rename", errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        reader.commit("spark", 3)


def test_on_a_full_disk_a_commit_is_written_over_the_old_one_synced_and_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []

    class Disk(OSDisk):
        """Has no room for a second file."""

        def __init__(self) -> None:
            super().__init__()
            self._sync = synced.append

        def open(self, path: str, *, write: bool = False) -> File:
            if write and path.endswith(".new"):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
            return super().open(path, write=write)

    disk, directory = Disk(), str(tmp_path)
    disk.make_directory(str(tmp_path / consumers_room.DIRECTORY))
    queue_id = "5" * 32
    consumers_room.write(OSDisk(), directory, "spark", queue_id, 3)
    before = set(os.listdir("/dev/fd"))
    consumers_room.write(disk, directory, "spark", queue_id, 7)
    assert len(synced) == 1
    assert set(os.listdir("/dev/fd")) == before
    assert consumers_room.read(disk, directory, "spark", queue_id) == 7


def test_the_last_offset_that_a_table_can_have_may_be_committed() -> None:
    disk = SimulatedDisk()
    a_queue(disk, [5])
    consumers_room.write(disk, DIRECTORY, "spark", "5" * 32, OFFSET_MAX)
    assert consumers_room.read(disk, DIRECTORY, "spark", "5" * 32) == OFFSET_MAX


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("killed", [False, True])
def test_who_is_registered_stays_so_after_a_loss_of_power__NB_12(killed: bool, seed: int) -> None:
    """NB-12: a sync of names that failed, or that a kill has cut off, is made up for."""
    disk = CutDisk()
    log = a_queue(disk, [1] * 4, segment_bytes=1)
    reader = a_reader(disk)
    reader.commit("another", 4)
    if killed:
        disk.left = 4  # truncate, write, sync, rename
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


def test_a_consumer_of_another_queue_has_committed_nothing() -> None:
    disk = SimulatedDisk()
    a_queue(disk, [5])
    path = f"{DIRECTORY}/consumers/spark"
    a_reader(disk).commit("spark", 3)
    disk.spoil(path, seal(f"offset {3:020d} queue {'f' * 32}"))
    assert a_reader(disk).consumers() == {"spark": 0}


def test_consumers_come_and_go() -> None:
    disk = SimulatedDisk()
    a_queue(disk, [5])
    reader = a_reader(disk)
    reader.commit("a", 1)
    reader.commit("b", 2)
    disk.spoil(f"{DIRECTORY}/consumers/b", disk.octets_of(f"{DIRECTORY}/consumers/b"))
    disk._change(f"{DIRECTORY}/consumers", [(".b.new", disk._content(f"{DIRECTORY}/end"))])
    assert reader.consumers() == {"a": 1, "b": 2}
    consumers_room.remove(disk, DIRECTORY, "a")
    assert reader.consumers() == {"b": 2}
    with pytest.raises(QueueError, match="no consumer 'a'"):
        consumers_room.remove(disk, DIRECTORY, "a")


def test_a_consumer_forgotten_while_all_are_listed_is_left_out() -> None:
    disk = SimulatedDisk()
    a_queue(disk, [5])
    reader = a_reader(disk)
    reader.commit("a", 1)
    names = disk.names
    disk.names = lambda path: [*names(path), "gone"]  # type: ignore[method-assign]
    assert reader.consumers() == {"a": 1}


def test_a_queue_without_the_directory_of_consumers_has_none() -> None:
    disk = SimulatedDisk()
    a_queue(disk, [5])
    assert consumers_room.read_all(disk, "/elsewhere", "q") == {}


def test_a_reader_follows_a_living_writer(tmp_path: Path) -> None:
    writer = QueueWriter(tmp_path / "q", segment_bytes=2000)
    reader = QueueReader(tmp_path / "q")
    for number in range(0, 50, 5):
        assert put(writer, batch(number, 5)) == [None]
        assert reader.end() == number + 5
        assert ids(rows(tmp_path / "q", number, number + 5)) == list(range(number, number + 5))
    writer.close()
