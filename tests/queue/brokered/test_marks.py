"""What is done, in memory and in the file ``settled``: ranges, bits, and what makes no sense."""

from __future__ import annotations

import json
import random
import struct
from array import array
from typing import Any

import pytest

from tests.core.broker.test_numbers import weight
from tests.queue.brokered.world import DIRECTORY, NAMES
from tests.sim.disk import SimulatedDisk
from twisted_msgproto.core.broker.envelopes import head
from twisted_msgproto.core.broker.terms import QueueName
from twisted_msgproto.queue.brokered import marks as module
from twisted_msgproto.queue.brokered import scan, settled
from twisted_msgproto.queue.brokered.frames import second, seconds
from twisted_msgproto.queue.brokered.marks import Marks, Moved, Segment, ranges_of
from twisted_msgproto.queue.brokered.scan import Scan
from twisted_msgproto.queue.format import OFFSET_MAX

QUEUE_ID = "5" * 32


@pytest.mark.parametrize(
    ("places", "ranges"),
    [
        ([], []),
        ([3], [(3, 4)]),
        ([3, 4, 5], [(3, 6)]),
        ([5, 3, 4, 3, 5], [(3, 6)]),
        ([9, 1, 1, 2], [(1, 3), (9, 10)]),
        ([1, 1, 3], [(1, 2), (3, 4)]),
        ([1, 4], [(1, 2), (4, 5)]),
        ([5, 5], [(5, 6)]),
    ],
)
def test_places_are_as_few_ranges_as_can_be(places: list[int], ranges: list[Any]) -> None:
    assert ranges_of(places) == ranges_of(iter(places)) == ranges


@pytest.mark.parametrize("count", [1, 2, 3, 500])
@pytest.mark.parametrize("kind", [list, tuple, lambda places: array("q", places)])
def test_places_that_ascend_without_a_gap_are_not_sorted(
    kind: Any, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most are: a consumer acknowledges thousands of messages in the order of the queue."""
    monkeypatch.setattr(module, "sorted", pytest.fail, raising=False)
    assert ranges_of(kind(range(70, 70 + count))) == [(70, 70 + count)]


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


def test_what_is_marked_behind_a_segment_leaves_it_as_it_is__NB_02() -> None:
    """Its bits would otherwise grow to its end with zeros."""
    marks = Marks()
    before, segment = marks.begun(0, 100), marks.begun(200)
    assert marks.settle([(100, 201)]) == {200}
    assert (before.bits(), segment.bits()) == (b"", b"\1")


def test_no_less_than_nothing_is_outstanding_when_more_is_marked() -> None:
    """A range may have messages that never were in a queue; the segment would stay for ever."""
    marks = Marks()
    segment = marks.begun(0)
    assert segment.outstanding == 0
    segment.outstanding = 2
    marks.settle([(0, 1), (1, 9), (9, 10)])
    assert segment.outstanding == 0


def test_of_many_marks_only_those_are_read_that_are_asked_for() -> None:
    """A segment has a million messages, and each of its frames is looked up once."""
    reads: list[int] = []

    class Octets(bytearray):
        def __getitem__(self, key: Any) -> Any:
            found = super().__getitem__(key)
            reads.append(len(found))
            return found

    segment = Segment(100)
    segment.set(100, 900)
    segment._bits = Octets(segment.bits())
    assert segment.settled(108, 116) == 8
    assert list(segment.unsettled(180, 181)) == []
    assert segment.set(112, 120) == 0
    assert reads == [1, 1, 2]


def test_where_nothing_is_done_no_row_becomes_an_object() -> None:
    """Most frames of a log are such when a broker starts."""
    marks = Marks()
    marks.begun(0)
    marks.begun(5000)
    assert marks.unsettled(1000, 4000) == range(3000)


def test_a_place_before_between_or_behind_segments_is_in_none_and_not_done() -> None:
    marks = Marks()
    assert marks.of(5) is None
    marks.begun(10, 20)
    marks.begun(30, 40)
    marks.settle([(0, 50)])
    segments = [marks.of(place) for place in (5, 10, 19, 20, 29, 30, 39, 40)]
    assert [one and one.first for one in segments] == [None, 10, 10, None, None, 30, 30, None]
    assert marks.live(array("q", [5, 15, 25, 35, 45])) == 3


def test_the_newest_segment_has_every_offset_that_there_may_be() -> None:
    marks = Marks()
    newest = marks.begun(0)
    assert marks.of(OFFSET_MAX - 1) is newest


def test_marks_go_over_the_bounds_of_segments_and_know_what_is_done() -> None:
    marks = Marks()
    marks.begun(100)
    marks.begun(0)  # in front of one that is there
    marks.begun(200)
    assert [(one.first, one.end) for one in marks][:2] == [(0, 100), (100, 200)]
    assert marks.settle([(98, 102), (150, 151)]) == {0, 100}
    assert marks.unsettled(97, 104) == [0, 5, 6]
    assert [marks.is_settled(place) for place in (97, 98, 101, 102)] == [False, True, True, False]
    assert marks.live(array("q", [97, 98, 150])) == 1
    behind = Marks()
    behind.begun(100)
    assert list(behind.unsettled(98, 103)) == [2, 3, 4]  # what is in no segment is no row of it
    assert marks.settle([(98, 102)]) == set()


def test_what_is_marked_of_a_finished_segment_is_done_already() -> None:
    marks = Marks()
    marks.begun(0)
    marks.begun(10)
    first = next(iter(marks))
    first.set(0, 9)
    first.outstanding = 1
    first.finish()
    assert (first.outstanding, first.bits()) == (0, b"")
    assert first.ranges() == [(0, 10)]
    assert first.settled(3, 7) == 4
    assert marks.settle([(0, 5)]) == set()
    assert list(marks.unsettled(0, 10)) == []
    assert list(marks.unsettled(8, 12)) == [2, 3]


def test_a_message_without_tries_is_not_among_those_that_were_tried() -> None:
    marks = Marks()
    marks.note_tries(1, 2)
    marks.note_tries(2, 3)
    marks.note_tries(1, 0)
    marks.note_tries(7, 0)
    assert dict(marks.tries) == {2: 3}


def test_marks_beyond_the_end_of_the_log_are_dropped_and_told() -> None:
    marks = Marks()
    marks.begun(0)
    marks.tries.update([(3, 1), (10, 1)])
    marks.moved.note([4, 12], NAMES[0])
    assert marks.drop_from(10)
    assert (dict(marks.tries), list(marks.moved)) == ({3: 1}, [(NAMES[0], [4])])
    assert not marks.drop_from(10)
    marks.moved.note([10], NAMES[0])
    assert marks.drop_from(10)
    assert not marks.drop_from(10)
    marks.moved.note([1_000_000], NAMES[0])
    marks.tries.update([(2_000_000, 1)])
    assert marks.drop_from(10)
    assert not marks.drop_from(10)
    marks.limit = 10
    marks.settle([(8, 10)])
    assert not marks.drop_from(10)
    marks.settle([(8, 12)])
    assert marks.drop_from(10)


@pytest.mark.parametrize("place", [10, 2**64 - 1])
@pytest.mark.parametrize("which", ["tries", "moved"])
def test_marks_from_the_end_of_the_log_on_are_dropped_wherever_they_are(
    place: int, which: str
) -> None:
    """A file that makes no sense may say any number of 64 bits."""
    marks = Marks()
    if which == "tries":
        marks.note_tries(place, 1)
    else:
        marks.moved.note([place], NAMES[0])
    assert marks.drop_from(10)
    assert not marks.drop_from(10)


def test_of_a_segment_that_is_dropped_nothing_is_left() -> None:
    marks = Marks()
    marks.begun(0)
    marks.begun(10)
    marks.tries.update([(9, 1), (10, 2)])
    marks.moved.note([9, 10], NAMES[0])
    marks.drop(0)
    assert [segment.first for segment in marks] == [10]
    assert (dict(marks.tries), list(marks.moved)) == ({10: 2}, [(NAMES[0], [10])])
    assert marks.moved  # one message is some as well
    assert marks.of(9) is None


def test_few_tries_are_forgotten_with_the_many_that_are_done() -> None:
    marks = Marks()
    marks.begun(0)
    marks.tries.update([(3, 1), (500, 1)])
    marks.settle([(0, 400)])
    assert dict(marks.tries) == {500: 1}


def test_what_is_said_of_moved_messages_is_a_dictionary() -> None:
    """In whatever order they were moved, and however often; queues without any are forgotten."""
    source = random.Random(7)
    moved, known = Moved(), dict[int, QueueName]()
    for _ in range(300):
        places = [source.randrange(400) for _ in range(source.randrange(1, 9))]
        match source.randrange(3):
            case 0:
                moved.remove(min(places), max(places))
                for place in range(min(places), max(places)):
                    known.pop(place, None)
            case 1:
                other = Moved()
                other.note(places, NAMES[1])
                moved.merge(other)
                known.update(dict.fromkeys(places, NAMES[1]))
            case _:
                name = QueueName("tests", str(source.randrange(1000)))
                moved.note(places, name)
                known.update(dict.fromkeys(places, name))
        if not source.randrange(9):
            assert moved.queues() == set(known.values())
            assert len(moved._names) == len(moved._known) == len(set(known.values()))
        assert bool(moved) == bool(known)
        assert {place: name for name, some in moved for place in some} == known
        assert [moved.get(place) for place in range(400)] == list(map(known.get, range(400)))
        assert moved.last == max(known, default=-1)


def test_a_dead_letter_costs_little() -> None:
    """NB-02: their number is bounded for each queue, and there are many queues."""
    moved = Moved()
    for place in range(0, 30_000, 3):
        moved.note([place], NAMES[place % 2])
    assert weight(moved._places) <= 10 * 10_000
    assert len(moved._names) == 2


# -- the file -------------------------------------------------------------------------------------


def said() -> bytes:
    """The payload of a frame that has every kind of record."""
    marks = Marks()
    marks.begun(0)
    marks.begun(1000)
    marks.settle([(0, 100), *((place, place + 1) for place in range(1000, 1100, 3))])
    marks.tries.update([(500, 2), *((place, place % 3 + 1) for place in range(600, 620))])
    marks.moved.note([501], NAMES[1])
    return settled.snapshot(marks)


def test_far_into_the_log_a_segment_takes_no_more_bits_than_messages__NB_02() -> None:
    first = 10**12
    segment = Segment(first)
    assert segment.set(first, first + 9) == 9
    assert len(segment.bits()) == 2
    assert list(segment.unsettled(first, first + 12)) == [9, 10, 11]
    assert segment.set(first, first + 40) == 31
    assert len(segment.bits()) == 5


def test_bits_are_shorter_than_ranges_where_these_are_many() -> None:
    for settled_ranges, scattered in (
        ([(0, 128)], False),
        ([(0, 80)], True),
        ([(2, 4), (8, 10), (64, 128)], True),
        ([(number, number + 1) for number in range(0, 128, 2)], True),
    ):
        segment = Segment(0)
        for lo, hi in settled_ranges:
            segment.set(lo, hi)
        assert segment.scattered() == scattered


def test_what_was_written_is_read_again() -> None:
    marks = Marks()
    marks.begun(0)
    marks.begun(1000)
    assert settled.taken([said()], marks) == 0
    assert settled.snapshot(marks) == said()


def test_tries_stand_in_the_shorter_form_and_zeros_as_pairs() -> None:
    """NB-02: ten million tried messages are 20 MB in the file, and not 160."""
    for tries, octets in (
        ([(place, 3) for place in range(1000)], 2 * 1000),
        ([(place, 3) for place in range(500, 1500)], 2 * 1000),
        ([(place, 3) for place in range(0, 7000, 7)], 2 * 6994),
        ([(place, 3) for place in range(0, 9000, 9)], 16 * 1000),
        ([(place, place % 2) for place in range(1000)], 16 * 1000),
    ):
        group = settled.Group()
        group.tries.update(tries)
        payload = group.packed()
        assert len(payload) == settled.RECORD.size + octets
        marks = Marks()
        marks.begun(0)
        marks.tries.update([(1, 9), (4, 9)])
        settled.apply(payload, marks)
        expected = {1: 9, 4: 9} | dict(tries)
        assert dict(marks.tries) == {place: one for place, one in expected.items() if one}


def test_moved_messages_in_any_order_are_read_as_older_releases_wrote_them() -> None:
    text = json.dumps(list(NAMES[1])).encode()
    places = (9, 2, 30, 3)
    record = settled.RECORD.pack(settled.MOVED, len(text) + 32, len(text)) + text
    marks = Marks()
    settled.apply(record + struct.pack("<4Q", *places), marks)
    assert list(marks.moved) == [(NAMES[1], sorted(places))]


def test_a_payload_that_is_cut_or_of_another_kind_makes_no_sense_and_is_counted() -> None:
    payload = said()
    strange = settled.RECORD.pack(9, 0, 0)
    for spoilt in (payload[:-1], payload + b"x", strange):
        with pytest.raises(ValueError):
            settled.apply(spoilt, Marks())
    assert settled.taken([payload[:-1], strange, payload], Marks()) == 2


def test_damage_costs_the_frame_that_it_hit_also_where_a_marker_stands_in_it() -> None:
    good = settled.framed(said())
    bad = bytearray(settled.framed(settled.MARKER + b"x" * 40))
    bad[-1] ^= 1
    octets = settled.header(QUEUE_ID) + good + bytes(bad) + good
    found = settled.parsed(octets, QUEUE_ID)
    assert (found.groups, found.damaged_octets, found.torn_octets) == ([said()] * 2, len(bad), 0)
    found = settled.parsed(octets[:-1], QUEUE_ID)
    assert (len(found.groups), found.torn_octets) == (1, len(bad) + len(good) - 1)
    assert not settled.parsed(octets, "6" * 32).ours


class Short:
    """A file on a full disk: one octet less is written than was wanted."""

    closed = False

    def write(self, position: int, pieces: list[bytes]) -> int:
        return sum(map(len, pieces)) - 1

    def close(self) -> None:
        self.closed = True


def test_a_group_that_does_not_fit_on_the_disk_does_not_count() -> None:
    disk = SimulatedDisk()
    disk.make_directory(DIRECTORY)
    marks, file = Marks(), settled.SettledFile(disk, DIRECTORY, QUEUE_ID)
    file.write(settled.Group([(0, 1)]), marks)
    whole = disk.octets_of(f"{DIRECTORY}/{settled.FILE}")
    short: Any = Short()
    file._file = short
    with pytest.raises(OSError, match="No space"):
        file.write(settled.Group([(1, 2)]), marks)
    assert short.closed
    assert disk.octets_of(f"{DIRECTORY}/{settled.FILE}") == whole


def test_a_file_that_has_become_long_is_closed_when_another_takes_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(settled, "LONG_OCTETS", 0)
    disk = SimulatedDisk()
    disk.make_directory(DIRECTORY)
    marks, file = Marks(), settled.SettledFile(disk, DIRECTORY, QUEUE_ID)
    file.write(settled.Group([(0, 1)]), marks)
    long: Any = Short()
    file._file, file._end = long, 1 << 20
    file.write(settled.Group([(1, 2)]), marks)
    assert long.closed
    assert file._file is not long
    file.close()


# -- what waits -----------------------------------------------------------------------------------


class Names:
    """Every queue is there."""

    def holds(self, name: object, place: int) -> bool:
        return True


class Rows:
    """Messages with these heads, from the offset 0 on."""

    first = 0

    def __init__(self, *heads: bytes | None) -> None:
        self.count = len(heads)
        self._heads = list(heads)

    def heads(self) -> list[bytes | None]:
        return self._heads

    def only_head(self) -> bytes | None:
        return self._heads[0] if len(set(self._heads)) == 1 else None

    def weights(self) -> list[int]:
        return [10] * self.count

    def arrived(self) -> list[int]:
        return [1] * self.count


def scanned(rows: Any, marks: Marks) -> Scan:
    names: Any = Names()
    found = Scan(names, marks)
    found.add(rows)
    return found


def test_a_queue_of_two_protocols_has_its_messages_in_order() -> None:
    mtl, umq = head("mtl", NAMES[0]), head("umq", NAMES[0])
    marks = Marks()
    marks.begun(0)
    found = scanned(Rows(umq, mtl, None, umq, b"\2", mtl), marks)
    assert list(found.queues[NAMES[0]].places) == [0, 1, 3, 5]
    assert found.nonsense == 1


def test_messages_that_are_all_in_one_queue_have_their_tries_too() -> None:
    marks = Marks()
    marks.begun(0)
    marks.tries.update([(1, 4), (90, 9)])
    found = scanned(Rows(*[head("mtl", NAMES[0])] * 3), marks)
    queue = found.queues[NAMES[0]]
    assert (list(queue.places), dict(queue.tries)) == ([0, 1, 2], {1: 4})


def test_what_is_done_among_messages_of_one_queue_does_not_wait_any_more() -> None:
    marks = Marks()
    marks.begun(0)
    marks.settle([(1, 2)])
    marks.tries.update([(2, 4), (90, 9)])
    queue = scanned(Rows(*[head("mtl", NAMES[0])] * 3), marks).queues[NAMES[0]]
    assert (list(queue.places), dict(queue.tries)) == ([0, 2], {2: 4})


def test_few_heads_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "HEADS_REMEMBERED_MAX", 2)
    marks = Marks()
    marks.begun(0)
    source = random.Random(1)
    heads = [head(source.choice(["mtl", "umq"]), name) for name in NAMES * 4]
    found = scanned(Rows(*heads), marks)
    assert len(found._heads) <= 2
    assert sum(len(queue.places) for queue in found.queues.values()) == len(heads)


def test_times_that_32_bits_cannot_hold_are_the_nearest_that_they_can() -> None:
    times = [-1_000_000, 0, 1_500_000, 10**18]
    assert [second(time) for time in times] == [0, 0, 1, 2**32 - 1]
    assert list(seconds(times)) == [0, 0, 1, 2**32 - 1]
    near = [1_500_000, 0, 1, 999_999, 1_000_000, 1_999_999, 2_000_000, 4_294_967_295 * 10**6]
    whole = [1, 0, 0, 0, 1, 1, 2, 4_294_967_295]
    assert list(seconds(near)) == [second(time) for time in near] == whole
    assert list(seconds([1])) == [0]


def test_messages_that_were_not_tried_have_no_tries() -> None:
    marks = Marks()
    marks.begun(0)
    queue = scanned(Rows(*[head("mtl", NAMES[0])] * 3), marks).queues[NAMES[0]]
    assert (list(queue.places), dict(queue.tries)) == ([0, 1, 2], {})


def test_what_lies_wholly_behind_the_limit_keeps_nothing_else_of_its_group_back() -> None:
    """The log was restored from an older copy, and its newest segment is open."""
    marks = Marks()
    marks.begun(100)
    marks.limit = 110
    assert marks.settle([(105, 106), (120, 121), (109, 130), (107, 108)]) == {100}
    assert [place for place in range(100, 110) if marks.is_settled(place)] == [105, 107, 109]
    assert marks.drop_from(110)
