"""What a broker keeps beside the log: what it releases, what it forgets, what a start relies on.

A broker's durable half beside a writer that writes, with threads and a real disk.
"""

from __future__ import annotations

import errno
import random
import threading
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from tests.queue.broker_files.test_faults import BROKER, SETTLED, a_world, reopened
from tests.queue.broker_files.test_remains import copies, segment_of
from tests.queue.broker_files.world import DIRECTORY, NAMES, World
from tests.sim.disk import SimulatedDisk
from tests.tools.queues import Results, encode
from twisted_msgproto import MessageBatch
from twisted_msgproto.core.broker import QUEUED_MESSAGE_BYTES, QueueName
from twisted_msgproto.core.broker.envelopes import head
from twisted_msgproto.queue import QueueReader, QueueWriter, SegmentLog
from twisted_msgproto.queue.broker_files import BrokerState, settled
from twisted_msgproto.queue.format import seal


class Nothing(random.Random):
    """The worst that a loss of power can do: nothing stays that was not synced."""

    def randint(self, a: int, b: int) -> int:
        return a


# -- starts ---------------------------------------------------------------------------------------


def test_the_first_start_of_a_broker_has_nothing_to_tell() -> None:
    assert World(random.Random(1)).lines == []


def test_a_name_whose_rename_a_kill_left_unsynced_is_durable_on_a_full_disk_too() -> None:
    """Messages for the queue are acknowledged from then on, and it is declared no second time."""
    world = a_world()
    name = QueueName("micromsg2", "new")
    with world.cut_after(4):  # truncate, write, sync, rename
        world.state.declare({name: world.state.end})
    world.disk.crash()
    world.disk.capacity = world.disk.used()
    world.open()
    assert name in world.state.restored()
    world.disk.lose_power(Nothing())
    world.disk.mend()
    assert name in reopened(world)


@pytest.mark.parametrize(("spoilt", "other"), [(None, None), (b"damaged", SETTLED)])
def test_names_that_are_gone_or_damaged_are_told_whatever_else_is_there(
    spoilt: bytes | None, other: str | None
) -> None:
    """Only where there is neither file there never was a queue."""
    world = a_world()
    world.close()
    if spoilt is None:
        world.disk.remove(f"{BROKER}/names")
    else:
        world.disk.spoil(f"{BROKER}/names", spoilt)
    if other is not None:
        world.disk.remove(other)
    world.lines.clear()
    reopened(world)
    assert [line for line in world.lines if "known from their messages alone" in line]


@pytest.mark.parametrize("name", ["[x]", "[1]", "[[], []]", "[" * 9000 + "]"])
def test_names_that_make_no_sense_are_damaged_and_keep_no_broker_from_starting(name: str) -> None:
    """Their checksums are right."""
    world = a_world()
    world.close()
    head = world.disk.bytes_of(f"{BROKER}/names").splitlines(keepends=True)[0]
    world.disk.spoil(f"{BROKER}/names", head + seal(f"queue 0 {name}") + seal("end 1"))
    world.lines.clear()
    reopened(world)
    assert [line for line in world.lines if "known from their messages alone" in line]


@pytest.mark.parametrize("gap", [False, True], ids=["trimmed", "started"])
@pytest.mark.parametrize("spoilt", [None, b""])
def test_without_its_names_nothing_of_a_broker_is_trimmed_where_none_runs(
    spoilt: bytes | None, gap: bool
) -> None:
    """They are known from their messages at the next start."""
    world = a_world()
    for _ in range(3):
        world.publish()
    world.tend()
    world.consume()
    world.close()
    if spoilt is None:
        world.disk.remove(f"{BROKER}/names")
    else:
        world.disk.spoil(f"{BROKER}/names", spoilt)
    _, second, third, *_ = world.log.firsts
    waiting = {message_id for message_id in world.there if not second <= message_id < third}
    assert min(waiting) < second
    if gap:
        world.disk.remove(f"{DIRECTORY}/{second:020d}.segment")
    log = SegmentLog(DIRECTORY, disk=world.disk, segment_bytes=800)
    assert log.trim(ending=True) == 0
    log.close()
    found = {one for queue in reopened(world).values() for one in queue.message_ids}
    assert found >= waiting if gap else found == {*world.there}


@pytest.mark.parametrize("name", [b"{}", b"[[], []]", b"[1]", b"[" * 9000, b"\xff"])
def test_what_is_settled_in_a_way_that_makes_no_sense_keeps_no_broker_from_starting(
    name: bytes,
) -> None:
    """Its checksum is right."""
    world = a_world()
    world.close()
    record = settled.RECORD.pack(settled.MOVED, len(name) + 8, len(name)) + name + bytes(8)
    world.disk.spoil(SETTLED, world.disk.bytes_of(SETTLED) + settled.framed(record))
    world.lines.clear()
    reopened(world)
    assert [line for line in world.lines if "1 groups make no sense" in line]


def test_copies_of_which_nothing_waits_any_more_go_after_a_start() -> None:
    """They were settled when nobody was there to remove them."""
    world = copies(kept_segment_bytes=100)
    assert len(world.copies()) > 1
    world.settle(sorted(world.there))
    world.close()
    world.open()
    world.tend()
    assert len(world.copies()) == 1


@pytest.mark.parametrize("power", [False, True])
def test_a_broker_that_has_not_read_its_queues_neither_settles_nor_releases(power: bool) -> None:
    """It does not know yet what waits."""
    world = a_world()
    world.consume()
    world.close()
    world.log = SegmentLog(DIRECTORY, disk=world.disk, segment_bytes=800)
    assert len(world.log.firsts) > 1
    state = world.broker()
    state.tend()
    assert world.log.trim() == 0
    world.crash(power=power)
    assert world.there


@pytest.mark.parametrize("written", [True, False])
def test_what_came_back_without_its_tries_has_none_after_a_start(written: bool) -> None:
    world = World(random.Random(1))
    tried, other = world.publish(20)[:2]
    world.state.tried({tried: 3, other: 4})
    if written:
        world.tend()
    world.state.move([tried], NAMES[0].dead, tries=False)
    world.state.move([other], NAMES[0].dead, tries=True)
    world.tend()
    world.close()
    assert dict(reopened(world)[NAMES[0].dead].tries) == {other: 4}


def test_of_a_finished_segment_nothing_is_read_at_the_next_start() -> None:
    """What is damaged in it is nobody's loss, and no line."""
    world = a_world()
    world.settle(sorted(world.there))
    world.tend()
    world.close()
    first, *others = world.log.firsts
    assert others
    path = segment_of(world, first)
    octets = world.disk.bytes_of(path)
    world.disk.spoil(path, octets[:-1] + bytes([octets[-1] ^ 1]))
    world.lines.clear()
    queues = reopened(world)
    assert not any(waiting.message_ids for waiting in queues.values())
    assert not any("in no queue" in line for line in world.lines)


def test_a_start_counts_what_waits_of_each_segment_so_that_none_goes_before_its_last_message() -> (
    None
):
    world = a_world()
    for first, end in zip(world.log.firsts, [*world.log.firsts[1:], world.log.end], strict=True):
        here = [message_id for message_id in sorted(world.there) if first <= message_id < end]
        world.settle(here[1:])
    world.tend()
    assert len(world.log.firsts) > 1
    world.crash(power=False)
    world.consume()
    assert world.log.trim() == 0


def test_messages_that_are_all_in_one_queue_are_counted_at_a_start_wherever_they_are() -> None:
    """Else their segment would stay for ever."""
    world = World(random.Random(1))
    world.state.declare({NAMES[0]: 0})
    for _ in range(2):
        one = MessageBatch("mtl", "content", 1, count=40, body=[b"x"] * 40)
        one.envelope = [head("mtl", NAMES[0])] * 40
        world.log.append([encode([one])])
    world.close()
    reopened(world)
    world.consume()
    world.state.settle([*range(39), *range(40, 80)])
    world.state.tend()
    assert world.log.trim(ending=True) == 0
    world.state.settle([39])
    world.state.tend()
    assert world.log.trim(ending=True) > 0


def test_a_segment_that_ends_before_the_next_one_has_a_message_is_done_up_to_there_alone() -> None:
    """What comes behind it would be settled before it was published."""
    world = World(random.Random(1))
    world.publish()
    world.consume()
    assert world.log.trim(ending=True) == 0
    assert world.log.firsts == [0, world.log.end]
    world.settle(sorted(world.there))
    world.tend()
    ids = world.publish()
    world.crash(power=True)
    assert sorted(world.there) == ids


# -- what is written and forgotten ----------------------------------------------------------------


def test_what_was_settled_last_is_written_when_a_broker_is_closed() -> None:
    world = a_world()
    settled = sorted(world.there)
    world.settle(settled)
    world.close()
    world.unsure.clear()
    world.open()
    assert (world.there, world.lines) == ({}, [])


def test_a_closed_broker_leaves_no_file_open() -> None:
    """Nor one whose size could not be known, nor for a read that comes late."""
    world = copies()
    world.crash(power=False)
    world.publish(12)
    world.consume()
    world.trim()
    world.settle_some()
    world.tend()
    for _ in range(2):
        world.disk.fail_next("size", errno.EIO, ".segment")
        assert world.state.load(sorted(world.there)).unread
    world.state.load(sorted(world.there))
    assert world.disk.opened.total() > 3
    world.close()
    late = world.state.load(sorted(world.there))
    assert (late.messages, late.unread) == ([], sorted(world.there))
    assert not world.disk.opened.total()


def test_few_segments_are_open_at_once_and_none_that_is_gone() -> None:
    """An open file would keep its bytes on the disk."""

    def opened() -> set[str]:
        """The segments of the queue's log that are open, but for the one being written."""
        paths = {path for path, count in world.disk.opened.items() if count and "/queue/0" in path}
        return paths - {f"{DIRECTORY}/{world.log.firsts[-1]:020d}.segment"}

    world = World(random.Random(1))
    for _ in range(30):
        world.publish()
    assert len(world.log.firsts) > 20
    for message_id in sorted(world.there):
        world.state.load([message_id])
        assert len(opened()) <= 8
    world.settle([message_id for message_id in world.there if message_id < world.log.firsts[-2]])
    world.tend()
    world.consume()
    assert world.log.trim() > 10
    world.state.load(sorted(world.there))
    assert {path for path in opened() if path < f"{DIRECTORY}/{world.log.begin:020d}"} == set()


def test_a_letter_has_the_time_at_which_its_batch_came() -> None:
    world = World(random.Random(1))
    first = world.log.end
    batches = [
        MessageBatch("mtl", "content", 1_500_000 * number, count=2, body=[b"a", b"b"])
        for number in (1, 2)
    ]
    for one in batches:
        one.envelope = [head("mtl", NAMES[0])] * 2
    world.state.declare({NAMES[0]: first})
    world.log.append([encode(batches)])
    loaded = world.state.load([first + 1, first + 2])
    assert [message.arrived for message in loaded.messages] == [1.5, 3.0]


def test_a_frame_whose_runs_count_other_messages_than_it_has_is_damage() -> None:
    """Otherwise messages would stand at ids that are others'."""
    for count in (1, 3):
        world = World(random.Random(1))
        one = MessageBatch("mtl", "content", 5, count=2, body=[b"a", b"b"])
        one.envelope = [head("mtl", NAMES[0])] * 2
        world.state.declare({NAMES[0]: 0})
        world.log.append([replace(encode([one]), count=count)])
        assert world.state.load(range(count)).unreadable == [*range(count)]
        world.close()
        queues = reopened(world)
        assert list(queues[NAMES[0]].message_ids) == []


def test_what_is_settled_is_written_anew_when_half_of_it_matters_no_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(settled, "LONG_BYTES", 100)
    world = World(random.Random(1))
    lengths = []
    for _ in range(60):
        world.publish(2)
        world.settle_some(0.9)
        world.tend()
        lengths.append(len(world.disk.bytes_of(SETTLED)))
    assert any(after < before for before, after in pairwise(lengths))
    assert sum(after <= before for before, after in pairwise(lengths)) < 12  # it grows by half
    assert max(lengths) < 2000
    world.crash(power=True)


HERE = QueueName("mtl/v/p", "here")
MESSAGES = 40
ROUNDS = 60


def a_batch(number: int) -> MessageBatch:
    """Messages for one queue; every third has no queue."""
    envelopes = [
        None if row % 3 == 2 else head("mtl", HERE) + b"%d" % (number + row)
        for row in range(MESSAGES)
    ]
    return MessageBatch(
        *("mtl", "content", 2_000_000 * number, "p", f"session {number % 5}"),
        count=MESSAGES,
        nbytes=100,
        message_id=list(range(number, number + MESSAGES)),
        body=[b"%d" % (number + row) * 20 for row in range(MESSAGES)],
        envelope=envelopes,
    )


def test_what_is_published_and_settled_from_several_threads_is_there_after_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer trims and the broker copies, settles and reads at the same time."""
    monkeypatch.setattr("twisted_msgproto.queue.writer.IDLE_S", 0.005)  # it trims as often
    lines: list[str] = []
    monkeypatch.setattr("twisted_msgproto.queue.broker_files.overflow.SEGMENT_BYTES", 20_000)
    writer = QueueWriter(tmp_path, segment_bytes=20_000, max_bytes=120_000, report=lines.append)
    state = writer.broker()
    assert state.restored() == {}
    state.declare({HERE: state.end})
    reader = QueueReader(tmp_path)
    results, over, errors = Results(), threading.Event(), []

    def tend() -> None:
        try:
            while not over.is_set():
                state.tend()
                over.wait(0.002)
        except BaseException as error:
            errors.append(error)

    def consume() -> None:
        try:
            while not over.wait(0.005):
                reader.commit("spark", reader.end())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=one) for one in (tend, consume)]
    for one in threads:
        one.start()
    waiting: set[int] = set()
    try:
        for number in range(ROUNDS):
            results.submit(writer, a_batch(number * MESSAGES))
            results.wait(number + 1)
            first = results.firsts[number * MESSAGES]
            assert first is not None
            ids = [first + row for row in range(MESSAGES) if row % 3 != 2]
            waiting.update(ids[:3])
            state.settle(ids[3:])
            some = sorted(waiting)[:: max(1, len(waiting) // 20)]
            loaded = state.load(some)
            assert [message.message_id for message in loaded.messages] == some
            for message in loaded.messages:
                assert message.envelope == head("mtl", HERE) + b"%d" % message.message_id
                assert message.body == b"%d" % message.message_id * 20
    finally:
        over.set()
        for one in threads:
            one.join()
    assert not errors
    assert QueueReader(tmp_path / "broker" / "log").end()
    state.close()
    writer.close()
    again = QueueWriter(tmp_path, segment_bytes=20_000, report=lines.append)
    other = again.broker()
    found = other.restored()[HERE]
    assert found.message_ids.tolist() == sorted(waiting)
    for message_id, weight, second in zip(
        found.message_ids, found.weights, found.arrived, strict=True
    ):
        text = b"%d" % message_id
        assert weight == QUEUED_MESSAGE_BYTES + len(head("mtl", HERE)) + 21 * len(text)
        assert second == message_id // MESSAGES * MESSAGES * 2
    assert lines == []
    other.close()
    again.close()


def test_large_messages_are_copied_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a broker holds in memory for that is bounded, however much a segment has."""
    monkeypatch.setattr("twisted_msgproto.queue.broker_files.state.PIN_BYTES", 0)
    disk = SimulatedDisk()
    log = SegmentLog(DIRECTORY, disk=disk, segment_bytes=16 << 20)
    kept = BrokerState(log, report=pytest.fail)
    kept.restored()
    kept.declare({NAMES[0]: 0})
    envelope = head("mtl", NAMES[0])
    for _ in range(6):
        batch = MessageBatch("mtl", "one", 0, count=1, body=[bytes(3 << 20)], envelope=[envelope])
        log.append([encode([batch])])
    QueueReader(DIRECTORY, disk=disk).commit("spark", log.end)
    log.trim()
    kept.tend()
    kept.close()
    copies = QueueReader(f"{DIRECTORY}/broker/log", disk=disk)
    assert [some.num_rows for some in copies.read(0, copies.end(), rows=1)] == [3, 2]
    log.close()
