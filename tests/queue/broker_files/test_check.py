"""``msgproto queue verify`` knows a broker's files.

What is done, in memory and in the file ``settled``: ranges, bits, and what makes no sense.
"""

from __future__ import annotations

import random
import struct
from typing import Any
from zlib import crc32

import pytest

from tests.queue.broker_files.world import DIRECTORY, NAMES, World
from twisted_msgproto.core.broker import QueueName
from twisted_msgproto.queue.broker_files.marks import Marks, Moved
from twisted_msgproto.queue.verify import verify

BROKER = f"{DIRECTORY}/broker"


@pytest.fixture(name="world")
def a_world() -> World:
    """Messages of which some are in the broker's own log; everything is closed."""
    world = World(random.Random(1))
    for _ in range(4):
        world.publish()
        world.consume()
        world.trim()
        world.settle_some(0.3)
        world.tend()
    world.close()
    return world


def verified(world: World) -> Any:
    return verify(DIRECTORY, disk=world.disk)


def test_whole_files_are_whole(world: World) -> None:
    report = verified(world)
    assert report.intact
    assert "are kept in broker/log" in report.notes[-1]
    assert world.copied()


@pytest.mark.parametrize(
    ("file", "told"),
    [
        ("names", "broker/names: damaged"),
        ("settled", "broker/settled:"),
        ("log/00000000000000000000.segment", "broker/log/"),
    ],
)
def test_what_is_damaged_is_named(world: World, file: str, told: str) -> None:
    octets = bytearray(world.disk.bytes_of(f"{BROKER}/{file}"))
    octets[len(octets) // 3] ^= 1
    world.disk.spoil(f"{BROKER}/{file}", bytes(octets))
    report = verified(world)
    assert any(line.startswith(told) for line in report.lines), report.lines
    assert not report.intact
    assert not report.damaged  # the queue's own messages are all there


def test_a_missing_log_could_not_be_looked_at(world: World) -> None:
    world.disk.remove(f"{BROKER}/log/identity")
    report = verified(world)
    assert any(line.startswith("broker: ") for line in report.unseen)
    assert not report.intact


def test_files_of_another_queue_are_told(world: World) -> None:
    octets = world.disk.bytes_of(f"{BROKER}/settled")
    header = octets[:16] + bytes(16)
    world.disk.spoil(f"{BROKER}/settled", header + struct.pack("<I", crc32(header)) + octets[36:])
    (line,) = verified(world).lines
    assert "of another queue; nothing is settled" in line


def test_a_queue_without_a_broker_says_nothing_of_one(world: World) -> None:
    world.disk.remove(f"{BROKER}/names")
    assert not any("broker" in line for line in verified(world).notes)


def test_marks_are_a_set_of_offsets_whatever_segments_they_lie_in() -> None:
    """Segments begin anywhere, and what is marked ends anywhere."""
    source = random.Random(5)
    for _ in range(40):
        firsts = sorted(source.sample(range(1, 150), 5))
        marks, done = Marks(), set[int]()
        for first in source.sample(firsts, 5):
            marks.begun(first)
        bounds = dict(zip(firsts, [*firsts[1:], 400], strict=True))
        for segment in marks:
            segment.outstanding = bounds[segment.first] - segment.first
        for _ in range(12):
            lo = source.randrange(160)
            hi = lo + source.randrange(1, 40)
            new = set(range(max(lo, firsts[0]), hi)) - done
            changed = {max(first for first in firsts if first <= offset) for offset in new}
            assert marks.settle([(lo, hi)]) == changed
            done |= new
            lo = source.randrange(160)
            waiting = [row for row in range(70) if lo + row >= firsts[0] and lo + row not in done]
            assert list(marks.unsettled(lo, lo + 70)) == waiting
            for segment in marks:
                here = set(range(segment.first, bounds[segment.first]))
                assert segment.outstanding == len(here - done)
                ranges = segment.ranges()
                found = [offset for lo, hi in ranges for offset in range(lo, hi)]
                assert found == sorted(here & done)
                lo, hi = segment.first + 1, min(segment.first + 12, bounds[segment.first])
                assert segment.settled(lo, hi) == len(done.intersection(range(lo, hi)))


def test_what_is_said_of_moved_messages_is_a_dictionary() -> None:
    """In whatever order they were moved, and however often; queues without any are forgotten."""
    source = random.Random(7)
    moved, known = Moved(), dict[int, QueueName]()
    for _ in range(300):
        ids = [source.randrange(400) for _ in range(source.randrange(1, 9))]
        match source.randrange(3):
            case 0:
                moved.remove(min(ids), max(ids))
                for message_id in range(min(ids), max(ids)):
                    known.pop(message_id, None)
            case 1:
                other = Moved()
                other.note(ids, NAMES[1])
                moved.merge(other)
                known.update(dict.fromkeys(ids, NAMES[1]))
            case _:
                name = QueueName("tests", str(source.randrange(1000)))
                moved.note(ids, name)
                known.update(dict.fromkeys(ids, name))
        if not source.randrange(9):
            assert moved.queues() == set(known.values())
            assert len(moved._names) == len(moved._known) == len(set(known.values()))
        assert bool(moved) == bool(known)
        assert {message_id: name for name, some in moved for message_id in some} == known
        assert [moved.get(message_id) for message_id in range(400)] == list(
            map(known.get, range(400))
        )
        assert moved.last == max(known, default=-1)
