"""What the disk cannot read now is not absent (RD-50): at each file of a queue and its broker.

Each test here fails the reads of one file, or of the names in one directory, for a while.  Whoever
reads it says so or does without; nothing is given up, and everything is as before afterwards.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from tests.doubles import own_time
from tests.queue.broker_files.world import DIRECTORY, NAMES, World
from twisted_msgproto.core.errors import QueueError
from twisted_msgproto.queue import QueueReader, SegmentLog, damage, troubles
from twisted_msgproto.queue.broker_files import message_frames
from twisted_msgproto.queue.verify import verify

ERRORS = [errno.EIO, errno.EACCES, errno.ESTALE]


def a_world() -> World:
    """Messages wait in segments and in copies, some of them moved, tried or settled; one place is
    known to be damaged, though nothing waits there.
    """
    world = World(random.Random(3), kept_segment_bytes=330)
    for round in range(8):
        world.publish(7)
        world.settle_some(0.3)
        world.try_some()
        if round < 4:
            world.move_some(NAMES[0])
            world.consume()
            world.trim()
            world.tend()
    world.tidy(3)
    own = next(at for at in range(world.log.begin, world.log.end) if at not in world.there)
    damage.write(world.disk, DIRECTORY, {(own, own + 1): "checksum"})
    world.crash(power=False)
    assert len(world.log.firsts) > 2
    assert len([path for path in world.disk.paths() if "/broker/log/0" in path]) > 1
    assert len(world.there) > 20
    return world


def places_to_read() -> list[str]:
    """All files but the locks, and all directories that are listed."""
    files = [path for path in a_world().disk.paths() if not path.endswith("lock")]
    directories = [DIRECTORY, f"{DIRECTORY}/consumers", f"{DIRECTORY}/broker/log"]
    return [*files, *directories, f"{DIRECTORY}/broker/log/consumers"]


PLACES = places_to_read()
CASES = [
    (place, number)
    for index, place in enumerate(PLACES)
    for number in (errno.EIO, ERRORS[1 + index % 2])  # all but a broken block are alike
]


def segments_of(world: World) -> dict[str, bytes]:
    return {
        path: world.disk.bytes_of(path) for path in world.disk.paths() if path.endswith(".segment")
    }


def is_as_before(world: World, damaged: list[damage.Range]) -> None:
    """Nothing was noted, moved aside or begun anew."""
    assert (world.log.damaged, world.log.losses) == (damaged, 0)
    assert not [path for path in world.disk.paths() if "quarantine" in path]


@pytest.mark.parametrize(("place", "number"), CASES)
def test_a_start_gives_up_nothing__RD_50(place: str, number: int) -> None:
    """RD-50, RD-58: it refuses with one line that names the file, or does without it."""
    world = a_world()
    damaged, segments = world.log.damaged, segments_of(world)
    world.disk.crash()
    world.disk.cannot_read(place, number)
    for _ in range(2):
        try:
            world.open()  # all messages are there then: it checks that
        except QueueError as error:
            assert place.rpartition("/")[2] in str(error)
            assert "\n" not in str(error)
            assert ("dd if=FILE" in str(error)) is (number == errno.EIO)
            world.log.close()
        else:
            world.close()
    world.disk.crash()
    for path, octets in segments.items():
        assert world.disk.bytes_of(path).startswith(octets)
    world.disk.can_read()
    world.open()
    is_as_before(world, damaged)


def test_a_start_says_that_it_checks_later_what_it_cannot_read_now__RD_50() -> None:
    world = a_world()
    world.close()
    world.disk.cannot_read(min(segments_of(world)))
    log = SegmentLog(DIRECTORY, disk=world.disk, segment_bytes=800)
    [line] = log.recovery.lines
    assert "the disk cannot read 1 of its segments now; they are checked later" in line
    log.close()


@pytest.mark.parametrize("directory", [DIRECTORY, f"{DIRECTORY}/broker/log"])
def test_a_start_makes_nothing_again_from_what_it_cannot_read__RD_50(directory: str) -> None:
    """RD-50: the segments alone say which queue it is."""
    world = a_world()
    damaged = world.log.damaged
    world.disk.crash()
    world.disk.remove(f"{directory}/identity")
    for path in segments_of(world):
        if path.startswith(f"{directory}/0"):
            world.disk.cannot_read(path)
    with pytest.raises(QueueError, match="dd if=FILE"):
        world.open()
    world.disk.can_read()
    world.disk.crash()
    world.open()
    is_as_before(world, damaged)


def tried(call: Callable[[], Any]) -> Any:
    """Do what may fail while the disk cannot read; whoever asked is told then."""
    with suppress(OSError, QueueError):
        return call()
    return None


@pytest.mark.parametrize(("place", "number"), CASES)
def test_a_running_broker_gives_up_nothing_and_heals_by_itself__RD_50(
    place: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RD-50: it settles, drops and trims nothing that waits, and needs no other start."""
    monkeypatch.setattr(message_frames, "OPEN_MAX", 1)  # next to nothing is in memory
    monkeypatch.setattr(message_frames, "FRAMES_MAX", 1)
    world = a_world()
    damaged = world.log.damaged
    world.disk.cannot_read(place, number)
    for _ in range(3):
        tried(lambda: world.publish(5))
        loaded = world.state.load(sorted(world.there))
        assert loaded.unreadable == []
        assert {*loaded.unread, *[message.message_id for message in loaded.messages]} == {
            *world.there
        }
        assert bool(loaded.unread) == (loaded.error is not None)
        world.settle_some(0.4)  # little is left of the copies: they are moved together
        tried(world.consume)
        tried(world.trim)
        tried(world.log.check_older)
        world.tend()
    world.disk.can_read()
    world.tidy(3)
    assert world.state.failing() <= 1  # reading is calm after some seconds
    loaded = world.state.load(sorted(world.there))
    assert [message.message_id for message in loaded.messages] == sorted(world.there)
    while world.log.unchecked:
        world.log.check_older()
    known = [(lo, hi) for lo, hi in damaged if hi > world.log.begin]
    is_as_before(world, known)
    world.crash(power=True)
    is_as_before(world, known)


def test_a_disk_that_reads_now_and_then_is_told_in_few_lines__RD_50(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """RD-50: whatever fails has one line a minute, one at its end; for reads once it is calm."""
    now = 1000.0
    monkeypatch.setattr(troubles, "time", own_time(monotonic=lambda: now))
    world = a_world()
    before = len(world.lines)
    for round in range(60):
        world.disk.cannot_read(f"{DIRECTORY}/broker/log", ERRORS[round % 3])
        world.disk.fail_next("write", errno.EIO, "settled")
        world.settle_some(0.05)
        world.state.load(sorted(world.there))
        world.tend()
        world.disk.mend()
        world.state.load(sorted(world.there))
        world.tend()
    told = world.lines[before:]
    assert 2 <= len(told) <= 10, told
    assert any("cannot be read now" in line for line in told)
    assert world.state.failing() == 1
    now += 5
    world.tend()
    assert world.state.failing() == 0
    assert world.lines[before:] == [*told, "broker: messages of queues can be read again"]


@pytest.mark.parametrize("number", ERRORS, ids=errno.errorcode.get)
def test_a_file_whose_facts_cannot_be_read_is_told_in_one_line(number: int) -> None:
    """Whether somebody has removed it is not known then: nothing is raised, nothing is lost."""
    world = a_world()
    before = len(world.lines)
    for _ in range(9):
        world.disk.fail_next("stat", number, "broker/")
        world.settle_some(0.1)
        world.state.tend()
        assert not world.state.read_errors()
        world.disk.mend()
    world.tend()
    assert world.state.failing() == 0
    assert 2 <= len(world.lines) - before <= 3, world.lines[before:]
    world.crash(power=True)


@pytest.mark.parametrize("number", [*ERRORS, errno.EMFILE], ids=errno.errorcode.get)
def test_zeros_are_proposed_for_a_broken_block_alone__RD_50(number: int) -> None:
    """RD-50: who follows that line loses what only a right, or a free descriptor, would give."""
    world = a_world()
    world.disk.cannot_read(DIRECTORY, number)
    before = len(world.lines)
    world.state.load(sorted(world.there))
    (line,) = [line for line in world.lines[before:] if "cannot be read now" in line]
    assert ("copy with zeros" in line) == (number == errno.EIO)
    assert [error.errno for error in world.state.read_errors()] == [number]


def facts_of(reader: QueueReader) -> dict[str, Callable[[], Any]]:
    """All that a reader says of the queue, by the name of the question."""
    return {
        "describe": reader.describe,
        "read": lambda: [
            row for some in reader.read(reader.begin(), reader.end()) for row in some.to_pylist()
        ],
        "damaged": reader.damaged,
        "consumers": reader.consumers,
        "losses": lambda: reader.losses,
        "end": reader.end,
        "place": lambda: [reader.place(at) for at in range(reader.begin(), reader.end() + 1)],
        "check": lambda: reader.check(reader.place(reader.end())),
        "register": lambda: reader.register("spark"),
        "commit": lambda: reader.commit("spark", reader.consumers()["spark"]),
    }


@pytest.mark.parametrize(("place", "number"), [case for case in CASES if "broker" not in case[0]])
def test_a_reader_says_what_is_right_or_that_it_cannot_read__RD_50(place: str, number: int) -> None:
    """RD-50: what it passes over is lost to its consumer, and so is a proof that it leaves out."""
    world = a_world()
    reader = QueueReader(DIRECTORY, disk=world.disk)
    right = {name: ask() for name, ask in facts_of(reader).items()}
    failed = 0
    world.disk.cannot_read(place, number)
    for some in (reader, tried(lambda: QueueReader(DIRECTORY, disk=world.disk))):
        for name, ask in facts_of(some).items() if some is not None else ():
            try:
                said = ask()
            except (OSError, QueueError):
                failed += 1
            else:
                assert said == right[name], name
    assert failed
    world.disk.can_read()
    assert {name: ask() for name, ask in facts_of(reader).items()} == right


@pytest.mark.parametrize(("place", "number"), CASES)
def test_verify_names_what_it_could_not_read__RD_50(place: str, number: int) -> None:
    """RD-50: it must not call sound, or damaged, what it has not seen."""
    world = a_world()
    world.crash(power=False)
    before = verify(DIRECTORY, disk=world.disk)
    world.disk.cannot_read(place, number)
    try:
        report = verify(DIRECTORY, disk=world.disk)
    except (OSError, QueueError) as error:
        told = [str(error)]
    else:
        told = report.unseen
        known = [] if place.endswith("/damaged") else before.damaged
        assert (report.lines, report.damaged) == (before.lines, known)
    where = (place.rpartition("/")[2], f"cannot read the queue {place.rpartition('/')[0]}:")
    assert any(one in line for line in told for one in where), told
    world.disk.can_read()
    assert verify(DIRECTORY, disk=world.disk) == before
