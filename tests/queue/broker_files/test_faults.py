"""Full and broken disks, damaged files, and what an operator reads of it."""

from __future__ import annotations

import errno
import random
import threading

import pytest

from tests.queue.broker_files.world import DIRECTORY, NAMES, World
from tests.tools.queues import FRAME_MARKER, batch, put
from twisted_msgproto.core.broker import QueueName
from twisted_msgproto.core.errors import QueueClosed, QueueError, QueueFull
from twisted_msgproto.queue import QueueWriter, SegmentLog
from twisted_msgproto.queue.broker_files import state as state_room

BROKER = f"{DIRECTORY}/broker"
SETTLED = f"{BROKER}/settled"


def a_world(seed: int = 1, **options: object) -> World:
    """Messages, some of them settled."""
    world = World(random.Random(seed), **options)
    for _ in range(3):
        world.publish()
        world.settle_some(0.3)
        world.tend()
    return world


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS])
@pytest.mark.parametrize("operation", ["write", "sync"])
def test_what_cannot_be_written_is_told_once_and_written_later(operation: str, number: int) -> None:
    world = a_world()
    world.settle_some(0.5)
    world.disk.fail_next(operation, number, "settled", times=3)
    for _ in range(3):
        world.tend()
    assert world.unsure
    world.tend()
    assert not world.unsure
    told = [line for line in world.lines if "what is settled" in line]
    assert len(told) == 2
    assert "cannot be written" in told[0]
    assert told[1] == "broker: what is settled can be written again"
    world.crash(power=True)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("operation", ["write", "sync"])
def test_nothing_of_the_log_goes_before_it_is_copied(operation: str, number: int) -> None:
    world = a_world()
    world.consume()
    before = len(world.log.firsts)
    assert before > 1
    world.disk.fail_next(operation, number, "broker/log", times=2)
    for _ in range(2):
        world.trim()
        world.tend()
        assert len(world.log.firsts) == before
    assert sum("messages that wait for long cannot be written" in one for one in world.lines) == 1
    world.tidy(3)
    assert len(world.log.firsts) == 1
    assert world.lines[-1] == "broker: messages that wait for long can be written again"
    world.crash(power=True)


def test_on_a_full_disk_what_is_settled_still_makes_room() -> None:
    """Nothing has to be written for it: what is not there does not come again."""
    world = a_world()
    world.consume()
    world.settle(sorted(world.there))
    world.disk.capacity = world.disk.used()
    world.tend()
    world.trim()
    assert len(world.log.firsts) == 1
    world.disk.mend()
    world.crash(power=True)
    assert not {message_id for message_id in world.there if message_id < world.log.begin}


def test_a_queue_that_cannot_be_made_durable_is_not_there() -> None:
    world = a_world()
    name = QueueName("micromsg2", "new")
    world.disk.fail_next("write", errno.ENOSPC, "names")
    with pytest.raises(QueueFull):
        world.state.declare({name: world.state.end})
    world.disk.fail_next("sync", errno.EIO, "names")
    with pytest.raises(OSError, match="error"):
        world.state.declare({name: world.state.end})
    world.crash(power=True)
    assert name not in world.state.restored()
    world.state.declare({name: world.state.end})
    world.crash(power=True)
    assert name in world.state.restored()


def test_a_name_is_durable_when_declare_returns_also_after_a_kill_and_a_loss_of_power() -> None:
    """A killed process may have renamed the file without its directory being synced.

    When that sync has failed, the next one succeeds without the name: the file is put there again.
    """
    world = a_world()
    name = QueueName("micromsg2", "new")
    world.disk.fail_next("sync_directory", errno.EIO, "broker")
    with pytest.raises(OSError, match="error"):
        world.state.declare({name: world.state.end})
    world.crash(power=False)
    assert name in world.state.restored()
    world.crash(power=True)
    assert name in world.state.restored()


def test_names_that_cannot_be_put_there_again_are_a_start_that_fails_or_a_full_disk() -> None:
    world = a_world()
    world.disk.fail_next("write", errno.EIO, ".names.new")
    with pytest.raises(QueueError, match=r"cannot open .*: .*error"):
        world.crash(power=False)
    world.disk.fail_next("write", errno.ENOSPC, ".names.new")
    world.crash(power=False)
    assert set(NAMES) <= set(world.state.restored())


def test_what_came_before_a_queue_was_made_is_not_in_it() -> None:
    world = World(random.Random(3))
    world.state.declare({QueueName("micromsg2", "another"): 0})
    world.publish(declare=False)
    assert world.there
    world.there.clear()
    world.crash(power=True)
    world.publish()  # with the names
    world.crash(power=True)


def test_a_forgotten_queue_begins_anew() -> None:
    world = a_world()
    world.settle(sorted(world.there))
    for name in NAMES:
        world.state.forget(name)
    world.declared.clear()
    world.tend()
    world.crash(power=True)
    assert set(world.state.restored()) == set()
    world.publish()
    world.crash(power=True)


def test_a_queue_that_is_used_again_at_once_is_not_forgotten() -> None:
    world = a_world()
    world.settle(sorted(world.there))
    for name in NAMES:
        world.state.forget(name)
    world.publish()
    world.tend()
    world.crash(power=True)


@pytest.mark.parametrize("file", ["names", "settled"])
def test_no_damage_of_a_file_loses_a_message(file: str) -> None:
    """Flipped bytes, and other lengths: what is lost there is delivered again."""
    world = a_world(2)
    world.move_some(NAMES[0].dead)
    world.tend()
    world.close()
    path = f"{BROKER}/{file}"
    whole = world.disk.bytes_of(path)
    there = dict(world.there)
    spoiled = [
        whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :] for at in range(0, len(whole), 3)
    ]
    spoiled += [whole[:length] for length in range(0, len(whole), 7)]
    for octets in spoiled:
        world.disk.spoil(path, octets)
        world.lines.clear()
        queues = reopened(world)
        found = {message_id for waiting in queues.values() for message_id in waiting.message_ids}
        assert there.keys() <= found
        assert set(NAMES) <= queues.keys()
        if file == "names":
            assert len(world.lines) == 1
            assert "known from their messages alone" in world.lines[0]
        world.state.tend()
        world.close()
        world.lines.clear()
        reopened(world)  # it is mended
        assert world.lines == []
        world.close()


def reopened(world: World) -> dict:
    """The queues as they are found, without a look at the model."""
    queues: dict = {}
    world.check = lambda found: queues.update(found)  # type: ignore[method-assign]
    world.open()
    return queues


def test_what_is_settled_is_made_durable_anew_at_each_start() -> None:
    """What is read may be what a disk could not write before the process was killed."""
    world = a_world()
    world.close()
    world.disk.journal.clear()
    reopened(world)
    operations = [(operation, name) for operation, name in world.disk.journal if "settled" in name]
    written = operations.index(("write", ".settled.new"))
    synced = operations.index(("sync", ".settled.new"), written)
    assert ("rename", "settled") in operations[synced:]


@pytest.mark.parametrize("how", ["one byte", "other groups' beginnings", "nothing"])
def test_a_damaged_group_is_told_in_one_line_and_costs_none_behind_it(how: str) -> None:
    """What the group itself settled is delivered again, and no more than that."""
    for number in range(5):
        world = a_world()
        groups = []
        for _ in range(6):
            world.publish()
            begin, before = len(world.disk.bytes_of(SETTLED)), world.there.keys() | set()
            world.settle_some(0.3)
            world.tend()
            groups.append((begin, len(world.disk.bytes_of(SETTLED)), before - world.there.keys()))
        world.close()
        begin, end, settled = groups[number]
        octets = bytearray(world.disk.bytes_of(SETTLED))
        assert begin < end < len(octets) and settled
        if how == "one byte":
            octets[(begin + end) // 2] ^= 1
        else:
            piece = octets[begin : begin + 4] if how.startswith("other") else b"\0"
            octets[begin:end] = (piece * (end - begin))[: end - begin]
        world.disk.spoil(SETTLED, bytes(octets))
        there = dict(world.there)
        queues = reopened(world)
        waiting = {message_id for found in queues.values() for message_id in found.message_ids}
        assert there.keys() <= waiting <= there.keys() | settled
        assert len(world.lines) == 1
        assert "is delivered again" in world.lines[0]


def test_a_file_of_another_queue_is_put_aside_and_told() -> None:
    world = a_world()
    world.close()
    octets = world.disk.bytes_of(SETTLED)
    world.disk.spoil(SETTLED, octets[:16] + b"\xff" * 16 + octets[32:])
    there = dict(world.there)
    queues = reopened(world)
    assert there.keys() <= {
        message_id for waiting in queues.values() for message_id in waiting.message_ids
    }
    assert any("is another queue's" in line for line in world.lines)
    assert world.disk.exists(f"{DIRECTORY}/quarantine/broker-settled")


def test_a_log_from_an_older_copy_does_not_take_new_messages_for_settled() -> None:
    """The marks tell of offsets which the log gives a second time."""
    world = World(random.Random(5))
    world.publish()
    world.close()
    files = [path for path in world.disk.paths() if "/broker/" not in path]
    older = {path: world.disk.bytes_of(path) for path in files}
    world.open()
    world.publish()
    world.settle(sorted(world.there))
    world.tend()
    world.close()
    for path in world.disk.paths():
        if path.endswith(".segment") and "/broker/" not in path and path not in older:
            world.disk.remove(path)
    for path, octets in older.items():
        world.disk.spoil(path, octets)
    world.there.clear()
    reopened(world)
    del world.check
    assert any("restored from an older copy" in line for line in world.lines)
    world.publish()
    world.crash(power=True)
    assert world.there


def test_a_message_that_cannot_be_read_any_more_is_told_and_not_waited_for() -> None:
    """It costs none that stands behind it, after a start neither."""
    world = a_world()
    world.consume()
    world.tidy()
    kept = [message_id for message_id in sorted(world.there) if message_id < world.log.begin]
    assert kept
    world.publish()
    world.consume()
    world.tidy()
    path = next(one for one in world.disk.paths() if "/broker/log/" in one and "segment" in one)
    world.disk.flip(path, world.disk.bytes_of(path).rfind(FRAME_MARKER) - 9)
    loaded = world.state.load(there := sorted(world.there))
    assert loaded.unreadable == kept
    assert "cannot be read any more" in world.lines[-1]
    world.close()
    found = {message_id for queue in reopened(world).values() for message_id in queue.message_ids}
    assert [*kept, *sorted(found)] == there


def test_a_full_log_names_the_broker_and_goes_on_once_messages_were_copied() -> None:
    world = World(random.Random(1), pin=1 << 30)
    world.log.close()
    world.state.close()
    world.log = SegmentLog(DIRECTORY, disk=world.disk, segment_bytes=800, max_bytes=3200)
    world.state = world.broker()
    world.state.restored()
    full = None
    while full is None:
        try:
            world.publish()
        except QueueFull as error:
            full = str(error)
        world.consume()
    assert "in queues of the broker have to be copied, or consumed" in full
    world.state.tend()
    world.unsure.clear()
    world.publish()
    world.crash(power=True)


def test_a_queue_with_dead_letters_is_not_forgotten() -> None:
    world = a_world()
    world.move_some(NAMES[0].dead, 1.0)
    for name in NAMES:
        world.state.forget(name)
    world.tend()
    world.tend()
    world.declared = {NAMES[0]}
    world.crash(power=True)
    assert world.there
    world.settle(sorted(world.there))
    world.state.forget(NAMES[0])
    world.tend()
    world.declared.clear()
    world.crash(power=True)
    assert not world.state.restored()


def test_without_a_broker_its_messages_stay_in_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway that is started without the servers that have queues may lose nothing of them."""
    world = a_world()
    world.consume()
    world.close()
    before = len(world.log.firsts)
    log = SegmentLog(DIRECTORY, disk=world.disk, segment_bytes=800)
    assert log.trim() == 0
    assert len(log.firsts) == before
    log.close()
    lines: list[str] = []
    told = threading.Event()

    def report(line: str) -> None:
        lines.append(line)
        told.set()

    monkeypatch.setattr("twisted_msgproto.queue.writer.IDLE_S", 0.01)
    monkeypatch.setattr("twisted_msgproto.queue.writer.WATCH_S", 0.05)
    writer = QueueWriter(DIRECTORY, disk=world.disk, segment_bytes=800, report=report)
    assert told.wait(60)
    assert put(writer, batch(1), batch(2)) == [None] * 2
    writer.close()
    assert len(lines) == 1
    assert "no server with queues runs" in lines[0]
    world.open()


def test_a_broker_has_a_minute_to_join_before_it_is_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = a_world()
    world.consume()
    world.close()
    lines: list[str] = []
    looks = threading.Semaphore(0)
    trim = SegmentLog.trim

    def noted(log: SegmentLog) -> int:
        looks.release()
        return trim(log)

    monkeypatch.setattr("twisted_msgproto.queue.writer.IDLE_S", 0.005)
    monkeypatch.setattr("twisted_msgproto.queue.writer.WATCH_S", 3600.0)
    monkeypatch.setattr(SegmentLog, "trim", noted)
    writer = QueueWriter(DIRECTORY, disk=world.disk, segment_bytes=800, report=lines.append)
    for _ in range(3):  # each look is followed by one at the broker, in the same thread
        assert looks.acquire(timeout=60)
    writer.close()
    assert lines == []
    world.open()


def test_the_broker_s_own_log_does_not_grow_with_what_was_settled() -> None:
    """One message that nobody takes does not keep all the others on the disk."""
    world = World(random.Random(1), kept_segment_bytes=1080)
    for number in range(40):
        world.publish(4)
        world.consume()
        world.trim()
        world.tend()
        world.trim()
        if number % 8 == 7:  # most were copied meanwhile
            world.settle(sorted(world.there)[2:])
        world.tend()
        waits = sum(400 + len(body) for _, _, body in world.there.values())
        assert world.copied_bytes() <= 3 * 2000 + 2 * waits + 2000
    assert {0, 1} & world.there.keys() or len(world.there) == 2
    world.crash(power=True)


def test_a_broker_that_was_closed_does_nothing_more() -> None:
    world = a_world()
    world.state.close()
    written = {path: world.disk.bytes_of(path) for path in world.disk.paths()}
    world.state.settle(sorted(world.there)[:3])
    world.state.tend()
    with pytest.raises(QueueClosed):  # a declaration that waited for a full disk
        world.state.declare({QueueName("micromsg2", "new"): 0})
    world.state.close()
    assert {path: world.disk.bytes_of(path) for path in world.disk.paths()} == written


@pytest.mark.parametrize("messages", [1, 2])
def test_many_messages_are_copied_in_several_pieces(
    messages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_room, "COPY_MESSAGES", messages)
    world = a_world()
    world.consume()
    world.tidy()
    assert world.copied() > 4
    world.close()
    world.open()


def test_the_pin_keeps_as_much_of_the_log_as_it_says_and_no_more() -> None:
    world = World(random.Random(1), pin=2200)
    for _ in range(12):
        world.publish()
        world.consume()
        world.trim()
        world.tend()
        world.trim()
        assert world.log.nbytes <= 2200 + 2 * 800 + 400
    assert world.log.nbytes > 1600
    assert world.copied()
    world.crash(power=True)
