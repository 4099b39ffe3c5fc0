"""Remains of failed groups, damaged frames and copies: what a broker delivers all the same."""

from __future__ import annotations

import errno
import random

import pytest

from tests.queue.broker_files.test_faults import BROKER, a_world, reopened
from tests.queue.broker_files.world import DIRECTORY, NAMES, World
from tests.sim.disk import CutDisk, SimulatedDisk
from tests.tools.queues import FRAME_MARKER, batch, encode
from twisted_msgproto import MessageBatch
from twisted_msgproto.core.broker.envelopes import head
from twisted_msgproto.queue import SegmentLog
from twisted_msgproto.queue.broker_files import BrokerState

# -- remains, and what is read while it is written ------------------------------------------------


def with_remains(world: World) -> None:
    """A group that could not be synced, nor cut off, stands behind the last one."""
    path = segment_of(world, world.log.firsts[-1])
    before = len(world.disk.bytes_of(path))
    world.disk.fail_next("sync", errno.EIO, path)
    world.disk.fail_next("truncate", errno.EIO, path)
    with pytest.raises(OSError, match="error"):
        world.publish(1)
    assert world.unsure
    world.unsure.clear()
    assert len(world.disk.bytes_of(path)) > before


def segment_of(world: World, first: int) -> str:
    return f"{DIRECTORY}/{first:020d}.segment"


def test_a_message_whose_group_failed_is_not_read_although_it_stands_there() -> None:
    world = World(random.Random(1))
    ids = world.publish(1)
    end = world.log.end
    with_remains(world)
    loaded = world.state.load([*ids, end])
    assert [message.message_id for message in loaded.messages] == ids
    assert loaded.unreadable == [end]


def test_remains_of_a_failed_group_are_in_no_queue_and_in_no_copy() -> None:
    """Other messages have their offsets since."""
    world = World(random.Random(1))
    world.publish(1)
    end = world.log.end
    with_remains(world)
    world.publish()
    assert world.log.firsts == [0, end]
    world.crash(power=False)
    world.consume()
    world.tidy()
    assert world.log.begin == end
    assert world.copied() == len([message_id for message_id in world.there if message_id < end])
    world.crash(power=True)


def test_a_write_in_progress_ends_what_is_read_and_is_read_when_it_is_whole() -> None:
    world = World(random.Random(1))
    path = segment_of(world, 0)
    first = world.publish(2)
    second = world.publish(2)
    assert len(world.log.firsts) == 1
    whole = world.disk.bytes_of(path)
    world.disk.spoil(path, whole[:-9])
    assert world.state.load(second).unread == second
    world.disk.spoil(path, whole)
    loaded = world.state.load(first + second)
    assert [message.message_id for message in loaded.messages] == first + second


def test_a_damaged_frame_costs_its_messages_and_those_behind_it_are_read() -> None:
    world = World(random.Random(3))
    first, second, third = (world.publish(1) for _ in range(3))
    assert len(world.log.firsts) == 1
    path = segment_of(world, 0)
    octets = world.disk.bytes_of(path)
    at = octets.find(FRAME_MARKER, octets.find(FRAME_MARKER, octets.find(FRAME_MARKER) + 1) + 1)
    world.disk.spoil(path, octets[: at + 16] + b"----" + octets[at + 20 :])
    loaded = world.state.load(first + second + third)
    assert [message.message_id for message in loaded.messages] == first + third
    assert loaded.unreadable == second


def test_what_is_trimmed_while_it_is_read_comes_from_its_copy() -> None:
    world = a_world()
    world.consume()
    world.trim()
    world.tend()  # now it is copied, and may go
    begin, ids = world.log.begin, sorted(world.there)
    open_file = world.disk.open

    def trim_and_open(path: str, *, write: bool = False) -> object:
        if path == segment_of(world, begin):
            world.trim()
        return open_file(path, write=write)

    world.disk.open = trim_and_open  # type: ignore[method-assign, assignment]
    loaded = world.state.load(ids)
    assert world.log.begin > begin
    assert loaded.unreadable == []
    assert [message.message_id for message in loaded.messages] == ids


def test_a_queue_that_was_forgotten_at_the_end_is_forgotten_after_it() -> None:
    disk = SimulatedDisk()
    log = SegmentLog(DIRECTORY, disk=disk)
    state = BrokerState(log, report=lambda line: None)
    state.restored()
    state.declare({NAMES[0]: 0, NAMES[1]: 0})
    state.forget(NAMES[0])
    state.close()
    log.close()
    log = SegmentLog(DIRECTORY, disk=disk)
    state = BrokerState(log, report=lambda line: None)
    assert set(state.restored()) == {NAMES[1]}
    state.close()
    log.close()


def test_a_damaged_frame_is_told_once_and_the_others_are_copied() -> None:
    world = World(random.Random(1))
    for _ in range(4):
        world.publish(2)
    first = world.log.firsts[0]
    damaged = [message_id for message_id in world.there if message_id < 2]
    world.close()
    path = segment_of(world, first)
    octets = world.disk.bytes_of(path)
    at = octets.find(FRAME_MARKER, octets.find(FRAME_MARKER, octets.find(FRAME_MARKER) + 1) + 1)
    world.disk.spoil(path, octets[: at - 1] + bytes([octets[at - 1] ^ 1]) + octets[at:])
    queues = reopened(world)
    lost = set(world.there) - {
        message_id for waiting in queues.values() for message_id in waiting.message_ids
    }
    assert lost
    assert lost >= set(damaged)
    told = [line for line in world.lines if "in no queue" in line]
    assert len(told) == 1
    world.consume()
    world.tidy()
    assert [line for line in world.lines if "in no queue" in line] == told
    copied = sorted(set(world.there) - lost)
    copied = [message_id for message_id in copied if message_id < world.log.begin]
    assert copied
    loaded = world.state.load(copied)
    assert [message.message_id for message in loaded.messages] == copied


# -- starts and ends ------------------------------------------------------------------------------


def test_a_queue_that_found_a_full_disk_at_its_first_start_goes_on_later() -> None:
    """There is no segment then."""
    world = World(random.Random(1))
    world.disk = CutDisk()
    world.disk.fail_next("write", errno.ENOSPC, f"{DIRECTORY}/.0")
    world.open()
    assert world.log.firsts == []
    world.publish()
    world.settle_some()
    world.tend()
    world.crash(power=True)
    assert world.there


def test_a_broker_that_ends_before_it_has_read_its_queues_settles_nothing() -> None:
    """It does not know yet what waits: a segment of which it knows nothing is not done."""
    world = a_world()
    world.close()
    world.log = SegmentLog(DIRECTORY, disk=world.disk, segment_bytes=800)
    state = world.broker()
    state.close()
    world.log.close()
    world.open()
    assert world.there


# -- the broker's own log -------------------------------------------------------------------------


def test_frames_of_another_kind_in_the_broker_s_own_log_are_passed_over() -> None:
    """Without ids, or without envelopes; what stands behind them is found."""
    world = a_world()
    world.consume()
    world.tidy()
    assert world.copied()
    world.close()
    log = SegmentLog(f"{BROKER}/log", disk=world.disk)
    strange = MessageBatch("mtl", "content", 1, count=1, body=[b"x"])
    strange.envelope = [head("mtl", NAMES[0])]
    log.append([encode([strange]), encode([batch(1)])])
    log.close()
    world.open()
    world.publish(6)
    world.consume()
    world.tidy()
    world.crash(power=True)


def copies(**options: int) -> World:
    """A world with copies in several frames, of which none is settled."""
    world = World(random.Random(1), **options)
    for _ in range(2):
        world.publish(6)
        world.publish(6)
        world.consume()
        world.tidy()
    return world


def test_a_damaged_copy_costs_its_frame_at_a_start_and_is_told() -> None:
    world = copies(kept_segment_bytes=100)
    copied = world.copies()
    assert len(copied) > 1
    gone = set(copied[0])
    world.close()
    spoil_copy(world, 0)
    queues = reopened(world)
    found = {message_id for waiting in queues.values() for message_id in waiting.message_ids}
    assert set(world.there) - found == gone
    assert any(line.startswith("broker: ") and "damaged" in line for line in world.lines)


def spoil_copy(world: World, first: int) -> None:
    """Flip a bit in the last frame of a segment of the broker's own log."""
    path = f"{BROKER}/log/{first:020d}.segment"
    octets = world.disk.bytes_of(path)
    world.disk.spoil(path, octets[:-1] + bytes([octets[-1] ^ 1]))


@pytest.mark.parametrize("spoilt", [1, None], ids=["one", "all"])
def test_a_damaged_copy_does_not_keep_its_segment_for_ever(spoilt: int | None) -> None:
    """It cannot be moved; the next ones are, if they are whole."""
    world = copies(kept_segment_bytes=100)
    copied = {first: ids for first, ids in world.copies().items() if ids}
    left = [ids[0] for ids in copied.values()]
    for first in [*copied][:spoilt]:
        spoil_copy(world, first)
    for ids in copied.values():
        world.settle([message_id for message_id in ids[1:] if message_id in world.there])
    world.tend()
    assert min(world.copies()) > 0
    assert not any("written" in line for line in world.lines)
    loaded = world.state.load(left)
    assert loaded.unreadable == left[:spoilt]
    assert [message.message_id for message in loaded.messages] == left[len(loaded.unreadable) :]
    for message in loaded.messages:
        assert (message.envelope, message.body) == world.there[message.message_id][1:]


def test_a_copy_s_segment_that_a_full_disk_keeps_goes_later() -> None:
    """The head of the segment behind it has to be durable first, and there is no room for it."""
    world = World(random.Random(1), kept_segment_bytes=100)
    world.publish()
    world.publish()
    world.consume()
    world.trim()
    world.tend()  # some are copied
    world.settle(sorted(world.there))
    for _ in range(3):
        world.publish()
    world.consume()
    world.trim()  # others are to be copied
    world.disk.fail_next("sync", errno.ENOSPC, "broker/log/.0")
    world.tend()
    assert world.state.failing() == 1
    assert list(world.copies()) == [0]
    world.tidy()
    assert min(world.copies()) > 0
    assert world.state.failing() == 0
    world.crash(power=True)
