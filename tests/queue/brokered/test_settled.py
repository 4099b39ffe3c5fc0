"""The file ``broker/settled``, octet by octet: how short it is, and what of it makes no sense."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.sim.disk import SimulatedDisk
from tests.tools.descriptors import no_file_stays_open
from twisted_msgproto.queue import OS_DISK
from twisted_msgproto.queue.brokered import settled
from twisted_msgproto.queue.brokered.marks import Marks
from twisted_msgproto.queue.brokered.settled import (
    Group,
    SettledFile,
    framed,
    header,
    parsed,
)

QUEUE = "0" * 32
PLACE = "/broker"
FAR = 10**9


def marks_of(*ranges: tuple[int, int]) -> Marks:
    """What is done of one segment with a million messages."""
    marks = Marks()
    marks.begun(FAR, FAR + 10**6)
    marks.settle(ranges)
    return marks


def test_a_group_behind_one_strange_octet_is_found() -> None:
    groups = [Group(settled=[(number, number + 1)]).packed() for number in range(2)]
    octets = header(QUEUE) + framed(groups[0]) + b"?" + framed(groups[1])
    found = parsed(octets, QUEUE)
    assert (found.groups, found.damaged_octets, found.torn_octets) == (groups, 1, 0)


def test_what_was_read_is_there_after_a_loss_of_power() -> None:
    """A killed process may have written a group without having come to its sync."""
    disk = SimulatedDisk()
    disk.make_directory(PLACE)
    disk.sync_directory("/")
    first, second = marks_of((FAR, FAR + 1)), Group(settled=[(FAR + 1, FAR + 2)])
    one = SettledFile(disk, PLACE, QUEUE)
    one.write(Group(), first)
    one.close()
    path = f"{PLACE}/{settled.FILE}"
    file = disk.open(path, write=True)
    file.write(file.size(), [framed(second.packed())])
    file.close()
    found = SettledFile(disk, PLACE, QUEUE).read()
    assert found is not None and len(found.groups) == 2
    for seed in range(5):
        disk.lose_power(random.Random(seed))
        again = SettledFile(disk, PLACE, QUEUE).read()
        assert again is not None and again.groups == found.groups


def test_reading_leaves_no_file_open(tmp_path: Path) -> None:
    one = SettledFile(OS_DISK, str(tmp_path), QUEUE)
    one.write(Group(), marks_of((FAR, FAR + 1)))
    one.close()
    with no_file_stays_open():
        for _ in range(3):
            assert one.read() is not None


def test_groups_are_added_to_the_file_that_a_group_began(tmp_path: Path) -> None:
    one = SettledFile(OS_DISK, str(tmp_path), QUEUE)
    marks = marks_of((FAR, FAR + 1))
    one.write(Group(), marks)
    for place in (FAR + 1, FAR + 2):
        one.write(Group(settled=[(place, place + 1)]), marks)
    one.close()
    found = parsed((tmp_path / settled.FILE).read_bytes(), QUEUE)
    assert len(found.groups) == 3


def test_the_file_is_replaced_when_it_is_twice_as_long_as_what_matters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(settled, "LONG_OCTETS", 100)
    disk = SimulatedDisk()
    disk.make_directory(PLACE)
    ranges = [(place, place + 1) for place in range(FAR, FAR + 8000, 16)]
    marks = marks_of(*ranges)
    one = SettledFile(disk, PLACE, QUEUE)
    one.write(Group(), marks)
    short = len(disk.octets_of(f"{PLACE}/{settled.FILE}"))
    group = Group(settled=ranges[:20])
    lengths = []
    for _ in range(20):
        one.write(group, marks)
        lengths.append(len(disk.octets_of(f"{PLACE}/{settled.FILE}")))
    one.close()
    step = len(framed(group.packed()))
    assert 2 * short < max(lengths) <= 2 * short + step
    replaced = [place for place, octets in enumerate(lengths) if octets == short]
    assert replaced and all(lengths[place - 1] > 2 * short for place in replaced)
