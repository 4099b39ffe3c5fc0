"""``msgproto queue verify`` knows a broker's files."""

from __future__ import annotations

import random
import struct
from zlib import crc32

import pytest

from tests.queue.broker_files.world import DIRECTORY, World
from twisted_msgproto.queue.verify import Report, verify

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


def verified(world: World) -> Report:
    return verify(DIRECTORY, disk=world.disk)


def test_whole_files_are_whole(world: World) -> None:
    report = verified(world)
    assert report.whole
    assert "are kept in broker/log" in report.notes[-1]
    assert world.state.copied_messages


@pytest.mark.parametrize(
    ("file", "told"),
    [
        ("names", "broker/names: damaged"),
        ("settled", "broker/settled:"),
        ("log/00000000000000000000.segment", "broker/log/"),
    ],
)
def test_what_is_damaged_is_named(world: World, file: str, told: str) -> None:
    octets = bytearray(world.disk.octets_of(f"{BROKER}/{file}"))
    octets[len(octets) // 3] ^= 1
    world.disk.spoil(f"{BROKER}/{file}", bytes(octets))
    report = verified(world)
    assert any(line.startswith(told) for line in report.lines), report.lines
    assert not report.whole
    assert not report.damaged  # the queue's own messages are all there


def test_a_missing_log_could_not_be_looked_at(world: World) -> None:
    world.disk.remove(f"{BROKER}/log/identity")
    report = verified(world)
    assert any(line.startswith("broker: ") for line in report.unseen)
    assert not report.whole


def test_files_of_another_queue_are_told(world: World) -> None:
    octets = world.disk.octets_of(f"{BROKER}/settled")
    header = octets[:16] + bytes(16)
    world.disk.spoil(f"{BROKER}/settled", header + struct.pack("<I", crc32(header)) + octets[36:])
    (line,) = verified(world).lines
    assert "of another queue; nothing is settled" in line


def test_a_queue_without_a_broker_says_nothing_of_one(world: World) -> None:
    world.disk.remove(f"{BROKER}/names")
    assert not any("broker" in line for line in verified(world).notes)
