"""The file ``broker/settled``, octet by octet: how short it is, and what of it makes no sense."""

from __future__ import annotations

import pytest

from twisted_msgproto.core.broker.numbers import Numbers
from twisted_msgproto.queue.brokered import settled
from twisted_msgproto.queue.brokered.marks import Marks
from twisted_msgproto.queue.brokered.settled import (
    BITS,
    RANGES,
    RECORD,
    TRIES,
    TRIES_IN_A_ROW,
    Group,
    apply,
    framed,
    header,
    parsed,
    snapshot,
    taken,
)

QUEUE = "0" * 32
FAR = 10**9


def tries_of(*places: int) -> Numbers:
    """Some places that were tried once."""
    tries = Numbers()
    tries.extend(list(places), [1] * len(places))
    return tries


def marks_of(*ranges: tuple[int, int]) -> Marks:
    """What is done of one segment with a million messages."""
    marks = Marks()
    marks.begun(FAR, FAR + 10**6)
    marks.settle(ranges)
    return marks


def kinds(payload: bytes) -> list[tuple[int, int, int]]:
    """The heads of the records of a payload."""
    found, at = [], 0
    while at < len(payload):
        found.append(RECORD.unpack_from(payload, at))
        at += RECORD.size + found[-1][1]
    return found


def test_what_has_no_base_says_0() -> None:
    group = Group(settled=[(FAR, FAR + 1)], tries=tries_of(FAR, FAR + 1000))
    assert kinds(group.packed()) == [(TRIES, 32, 0), (RANGES, 16, 0)]


@pytest.mark.parametrize("step", [1, 7])
def test_tries_of_neighbours_stand_in_a_row_wherever_they_are(step: int) -> None:
    places = list(range(FAR, FAR + 1000, step))
    packed = Group(tries=tries_of(*places)).packed()
    assert kinds(packed) == [(TRIES_IN_A_ROW, 2 * (places[-1] + 1 - FAR), FAR)]
    marks = marks_of()
    apply(packed, marks)
    assert [marks.tries.get(place) for place in places] == [1] * len(places)


def test_what_is_done_here_and_there_stands_as_bits_and_in_a_row_as_a_range() -> None:
    here_and_there = [(place, place + 1) for place in range(FAR, FAR + 10_000, 2)]
    ((kind, octets, base),) = kinds(snapshot(marks_of(*here_and_there)))
    assert (kind, base) == (BITS, FAR)
    assert octets <= 10_000 // 8
    assert kinds(snapshot(marks_of((FAR, FAR + 100_000)))) == [(RANGES, 16, 0)]


@pytest.mark.parametrize("kind", ["ranges", "bits"])
def test_a_record_that_is_cut_makes_no_sense(kind: str) -> None:
    ranges = [(place, place + 1) for place in range(FAR, FAR + 80, 2)]
    marks = marks_of(*ranges)
    payload = snapshot(marks) if kind == "bits" else Group(settled=ranges).packed()
    assert kinds(payload)[0][0] == (BITS if kind == "bits" else RANGES)
    again = marks_of()
    assert taken([payload[:-1]], again) == 1
    assert not again.is_settled(FAR)
    assert taken([payload], again) == 0
    assert again.is_settled(FAR)


def test_a_group_behind_one_strange_octet_is_found() -> None:
    groups = [Group(settled=[(number, number + 1)]).packed() for number in range(2)]
    octets = header(QUEUE) + framed(groups[0]) + b"?" + framed(groups[1])
    found = parsed(octets, QUEUE)
    assert (found.groups, found.damaged_octets, found.torn_octets) == (groups, 1, 0)


def test_no_group_begins_in_another_one() -> None:
    """What was written last is torn, and by chance its octets go on where a whole group ends."""
    first = b"ends like a marker begins" + settled.MARKER[:1]
    torn = framed(b"never a group")[1:]
    found = parsed(header(QUEUE) + framed(first) + torn, QUEUE)
    assert (found.groups, found.damaged_octets, found.torn_octets) == ([first], 0, len(torn))
