"""What a broker keeps beside the log: what it releases, what it forgets, what a start relies on."""

from __future__ import annotations

import random
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import pytest

from tests.queue.brokered.test_faults import BROKER, SETTLED, a_world, reopened
from tests.queue.brokered.test_remains import copies, segment_of
from tests.queue.brokered.world import DIRECTORY, NAMES, World
from tests.sim.disk import SimulatedDisk, SimulatedFile
from tests.tools.queues import batch, encode
from twisted_msgproto import MessageBatch
from twisted_msgproto.core.broker import QueueName
from twisted_msgproto.core.broker.envelopes import head
from twisted_msgproto.queue import SegmentLog
from twisted_msgproto.queue.brokered import BrokerState
from twisted_msgproto.queue.brokered import state as state_room
from twisted_msgproto.queue.brokered.kept import Copy, Kept
from twisted_msgproto.queue.brokered.marks import Marks


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
    assert name in world.state._names.first
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


def test_an_envelope_that_makes_no_sense_is_in_no_queue_and_told() -> None:
    world = a_world()
    strange = batch(1, 2)
    strange.envelope = [b"\2", b"\2\0\0"]
    world.log.append([encode([strange])])
    world.lines.clear()
    world.crash(power=False)
    assert world.lines == [
        "broker: 2 messages have envelopes that make no sense; they are in no queue"
    ]


def test_copies_of_which_nothing_waits_any_more_go_after_a_start() -> None:
    """They were settled when nobody was there to remove them."""
    world = copies(kept_segment_bytes=100)
    assert world.state._kept.log.segments > 1
    world.settle(sorted(world.there))
    world.close()
    world.open()
    assert list(world.state._kept) == []
    world.tend()
    assert world.state._kept.log.segments == 1


@pytest.mark.parametrize("power", [False, True])
def test_a_broker_that_has_not_read_its_queues_neither_settles_nor_releases(power: bool) -> None:
    """It does not know yet what waits."""
    world = a_world()
    world.consume()
    world.close()
    world.log = SegmentLog(DIRECTORY, disk=world.disk, segment_bytes=1500)
    assert world.log.segments > 1
    state = BrokerState(world.log, report=world.lines.append, **world.options)
    state.tend()
    assert world.log.trim() == 0
    world.crash(power=power)
    assert world.there


def test_what_came_back_without_its_tries_has_none_after_a_start() -> None:
    world = World(random.Random(1))
    tried, other = world.publish(20)[:2]
    world.state.tried({tried: 3, other: 4})
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
    octets = world.disk.octets_of(path)
    world.disk.spoil(path, octets[:-1] + bytes([octets[-1] ^ 1]))
    world.lines.clear()
    queues = reopened(world)
    assert not any(waiting.places for waiting in queues.values())
    assert not any("in no queue" in line for line in world.lines)
    assert list(world.state._marks.unsettled(first, others[0])) == []


def test_a_start_counts_what_waits_of_each_segment_so_that_none_goes_before_its_last_message() -> (
    None
):
    world = a_world()
    for first, end in zip(world.log.firsts, [*world.log.firsts[1:], world.log.end], strict=True):
        here = [place for place in sorted(world.there) if first <= place < end]
        world.settle(here[1:])
    world.tend()
    assert world.log.segments > 1
    world.crash(power=False)
    for segment in world.state._marks:
        waits = [place for place in world.there if segment.first <= place < segment.end]
        assert segment.outstanding == len(waits) == 1
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
    assert [segment.outstanding for segment in world.state._marks][:1] == [40]
    assert sum(segment.outstanding for segment in world.state._marks) == world.log.end == 80


def test_a_segment_that_ends_before_the_next_one_has_a_message_is_done_up_to_there_alone() -> None:
    """What comes behind it would be settled before it was published."""
    world = World(random.Random(1))
    world.publish()
    world.consume()
    assert world.log.trim(ending=True) == 0
    assert world.log.firsts == [0, world.log.end]
    world.settle(sorted(world.there))
    world.tend()
    places = world.publish()
    world.crash(power=True)
    assert sorted(world.there) == places


# -- what is released -----------------------------------------------------------------------------


# -- what is written and forgotten ----------------------------------------------------------------


def test_a_queue_that_is_gone_is_not_remembered_as_gone__NB_02() -> None:
    world = a_world()
    world.settle(sorted(world.there))
    for name in NAMES:
        world.state.forget(name)
    world.tend()
    assert world.state._forgotten == set()


def test_what_was_settled_last_is_written_when_a_broker_is_closed() -> None:
    world = a_world()
    settled = sorted(world.there)
    world.settle(settled)
    world.close()
    world.unsure.clear()
    world.open()
    assert world.there == {}


def test_marks_stay_while_a_copy_of_their_places_is_there_and_no_longer__NB_02() -> None:
    """Without them a copy of what was settled would wait again."""
    log = SegmentLog(DIRECTORY, disk=SimulatedDisk())
    state = BrokerState(log, report=lambda line: None)
    state.restored()
    state._log = SimpleNamespace(begin=30)  # type: ignore[assignment]
    every = [(0, 10), (2, 5), (9, 10), (10, 11), (9, 11), (10, 20), (19, 25), (24, 29), (0, 30)]
    some: list[tuple[tuple[int, int], ...]] = [(), *((one,) for one in every)]
    some += [(one, two) for one, two in combinations(every, 2) if one[1] < two[0]]
    for spans in some:
        state._kept.spans = lambda spans=spans: list(spans)  # type: ignore[method-assign, misc]
        state._marks = Marks()
        for first in (0, 10, 20, 30):
            state._marks.begun(first)
        state._trim()
        needed = [
            first
            for first in (0, 10, 20)
            if any(lo < first + 10 and hi > first for lo, hi in spans)
        ]
        assert [segment.first for segment in state._marks] == [*needed, 30]


@pytest.mark.parametrize("octets", [1, 1 << 20])
def test_what_is_copied_is_written_when_it_has_become_large(
    octets: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NB-02: a copy is in memory until then."""
    monkeypatch.setattr(state_room, "COPY_OCTETS", octets)
    monkeypatch.setattr("twisted_msgproto.queue.brokered.frames.GATHERED_MESSAGES", 1)
    world = World(random.Random(1))
    frames = 3
    for _ in range(frames):
        one = MessageBatch("mtl", "content", 1, count=1, body=[b"x"])
        one.envelope = [head("mtl", NAMES[0])]
        world.state.declare({NAMES[0]: 0})
        world.log.append([encode([one])])
    assert world.log.segments == 1
    written: list[int] = []
    put = Kept.put

    def noted(self: Kept, copy: Copy) -> None:
        written.append(len(copy.places))
        put(self, copy)

    monkeypatch.setattr(Kept, "put", noted)
    world.state._copy(0, world.log.end)
    assert written == ([1] * frames if octets == 1 else [frames])


def test_a_closed_broker_leaves_no_file_open(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, closed = list[str](), list[str]()
    open_file = SimulatedDisk.open

    def noted(self: Any, path: str, *, write: bool = False) -> SimulatedFile:
        file = open_file(self, path, write=write)
        opened.append(path)
        return file

    monkeypatch.setattr(SimulatedDisk, "open", noted)
    monkeypatch.setattr(SimulatedFile, "close", lambda self: closed.append(self._path))
    world = copies()
    world.settle_some()
    world.tend()
    world.crash(power=False)
    world.consume()
    world.trim()
    world.tend()
    world.state.load(sorted(world.there))
    opened.clear()
    closed.clear()
    world.crash(power=False)
    world.publish(12)
    world.consume()
    world.trim()
    world.settle_some()
    world.tend()
    world.state.load(sorted(world.there))
    assert len(opened) > len(closed)
    world.close()
    assert sorted(opened) == sorted(closed)
