"""Frames of messages with envelopes, as the broker reads them: what makes no sense is damage."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from tests.queue.brokered.world import DIRECTORY, NAMES
from tests.sim.disk import SimulatedDisk
from twisted_msgproto.core.broker.envelopes import head
from twisted_msgproto.core.broker.terms import QueueName, weight
from twisted_msgproto.core.errors import QueueCorrupt
from twisted_msgproto.core.message import MessageBatch
from twisted_msgproto.queue.brokered import check, settled
from twisted_msgproto.queue.brokered.frames import Frame, gathered, may_have_envelopes, read_frame
from twisted_msgproto.queue.brokered.kept import copied
from twisted_msgproto.queue.brokered.marks import Marks
from twisted_msgproto.queue.checksum import crc32
from twisted_msgproto.queue.columns import RUNS, encode
from twisted_msgproto.queue.schema import BODY, ENVELOPE, KNOWN_COLUMNS

OWN, OTHER = head("mtl", NAMES[0]), head("umq", NAMES[1])


def frame(*envelopes: bytes | None) -> Frame:
    count = len(envelopes)
    column = pa.array(envelopes, pa.binary())
    return Frame(5, count, (7, 9), (1, count - 1), column, pa.nulls(count, pa.binary()), None)


def test_a_row_has_the_time_of_its_run_and_none_is_behind_the_last() -> None:
    one = frame(OWN, OWN, OWN)
    assert [one.received(row) for row in range(3)] == [7, 9, 9]
    with pytest.raises(IndexError, match="behind the frame"):
        one.received(3)


@pytest.mark.parametrize("most", [4, 5])
def test_frames_are_joined_up_to_a_number_of_messages__NB_02(
    most: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("twisted_msgproto.queue.brokered.frames.GATHERED_MESSAGES", most)
    column = pa.array([OWN] * 2, pa.binary())
    parts = [
        Frame(first, 2, (7,), (2,), column, pa.nulls(2, pa.binary()), None)
        for first in range(0, 14, 2)
    ]
    assert [(one.first, one.count) for one in gathered(parts)] == [(0, 4), (4, 4), (8, 4), (12, 2)]


def test_only_neighbours_are_joined_and_one_alone_stays_as_it_is() -> None:
    """A place is a frame's first one and a row: with a gap inside, messages would be others."""
    bounds = [(0, 1), (1, 4), (4, 5), (6, 8), (8, 9), (20, 21)]
    parts = [
        Frame(
            lo,
            hi - lo,
            (lo,),
            (hi - lo,),
            *[pa.array([b"%d" % lo] * (hi - lo), pa.binary())] * 2,
            None,
        )
        for lo, hi in bounds
    ]
    found = list(gathered(parts))
    assert [(one.first, one.count) for one in found] == [(0, 5), (6, 3), (20, 1)]
    assert found[2] is parts[5]
    assert found[0].bodies.to_pylist() == [b"0", b"1", b"1", b"1", b"4"]
    assert list(found[0].received_at()) == [0, 1, 1, 1, 4]


def test_a_message_weighs_what_the_broker_counts_for_it() -> None:
    envelopes, bodies = [OWN, None, OTHER + b"own"], [None, b"body", b"a" * 300]
    columns = [pa.array(column, pa.binary()) for column in (envelopes, bodies)]
    one = Frame(5, 3, (7,), (3,), *columns, None)
    messages = zip(envelopes, bodies, strict=True)
    expected = [weight(envelope or b"", body or b"") for envelope, body in messages]
    assert list(one.weights()) == expected
    rest = Frame(6, 2, (7,), (2,), *[column[1:] for column in columns], None)
    assert list(rest.weights()) == expected[1:]


def test_the_heads_are_those_that_envelopes_begin_with() -> None:
    """An envelope that is shorter than its head says is a head as a whole: it makes no sense."""
    long = head("mtl", QueueName("tests", "n" * 300))
    envelopes = [OWN + b"own", None, long + b"x" * 70_000, OWN[:-1], b"", OTHER]
    assert frame(*envelopes).heads() == [OWN, None, long, OWN[:-1], None, OTHER]


def test_a_copy_has_some_rows_and_knows_their_octets__NB_02() -> None:
    bodies = pa.array([b"a", b"b" * 1000, None], pa.binary())
    one = Frame(5, 3, (7, 9), (1, 2), pa.array([OWN] * 3, pa.binary()), bodies, None)
    copy = copied(one, (50, 60, 70), (1, 2))
    assert copy.places == [60, 70]
    assert copy.bodies == [b"b" * 1000, None]
    assert copy.octets == 2 * len(OWN) + 1000
    copy.add(copied(one, (50, 60, 70), (0,)))
    assert (copy.places, copy.octets) == ([60, 70, 50], 3 * len(OWN) + 1001)


@pytest.mark.parametrize(
    ("envelopes", "only"),
    [
        ((OWN + b"x", OWN), OWN),
        ((OWN + b"x",), OWN),
        ((OWN, OTHER), None),
        ((OWN, None), None),
        ((b"\2\2", b"\2\2"), None),
    ],
)
def test_only_head_is_that_of_all_envelopes_or_none(envelopes: Any, only: bytes | None) -> None:
    assert frame(*envelopes).only_head() == only


def test_a_frame_that_is_cut_before_its_columns_has_no_envelopes() -> None:
    record: Any = SimpleNamespace(end_position=100, octets=60, runs=8)
    for octets, has in ((b"", False), (struct.pack("<I", ENVELOPE), True), (bytes(4), False)):
        segment: Any = SimpleNamespace(octets=lambda at, size, found=octets: found)
        assert may_have_envelopes(segment, record) is has


@pytest.mark.parametrize(
    ("columns", "spoil", "text"),
    [
        (ENVELOPE | BODY, True, "checksum"),
        (ENVELOPE | 1 << 31, False, "unknown columns"),
        (ENVELOPE, False, "makes no sense"),
    ],
)
def test_a_payload_that_makes_no_sense_is_damage(columns: int, spoil: bool, text: str) -> None:
    payload = RUNS.pack(columns, 1, *[0] * (len(RUNS.unpack(bytes(RUNS.size))) - 2)) + bytes(12)
    record: Any = SimpleNamespace(payload_crc=crc32(payload) ^ spoil, runs=20, count=1, first=3)
    segment: Any = SimpleNamespace(payload=lambda record: payload)
    with pytest.raises(QueueCorrupt, match=text):
        read_frame(segment, record)


def test_a_frame_whose_runs_count_other_messages_than_it_has_is_damage() -> None:
    """Otherwise messages would stand at places that are others'."""
    batch = MessageBatch("mtl", "content", 5, count=2, body=[b"a", b"b"], envelope=[OWN, OWN])
    encoded = encode([batch])
    payload = memoryview(b"".join(encoded.pieces))
    segment: Any = SimpleNamespace(payload=lambda record: payload)
    record = SimpleNamespace(payload_crc=encoded.crc, runs=encoded.runs, count=2, first=3)
    whole: Any = read_frame(segment, record)  # type: ignore[arg-type]
    assert (whole.first, whole.count, list(whole.received_at())) == (3, 2, [5, 5])
    for count in (1, 3):
        record.count = count
        with pytest.raises(QueueCorrupt, match=f"not {count} messages"):
            read_frame(segment, record)  # type: ignore[arg-type]


def test_messages_without_bodies_are_read_as_well() -> None:
    """An empty message is one: then the frame has no column of bodies."""
    encoded = encode([MessageBatch("mtl", "content", 5, count=2, envelope=[OWN, None])])
    payload = memoryview(b"".join(encoded.pieces))
    segment: Any = SimpleNamespace(payload=lambda record: payload)
    record: Any = SimpleNamespace(payload_crc=encoded.crc, runs=encoded.runs, count=2, first=3)
    found = read_frame(segment, record)
    assert found is not None
    assert found.bodies.to_pylist() == [None, None]
    assert found.heads() == [OWN, None]
    assert list(found.weights()) == [weight(OWN, b""), weight(b"", b"")]


def test_a_frame_without_envelopes_is_none_of_the_brokers() -> None:
    payload = RUNS.pack(BODY, 1, *[0] * (len(RUNS.unpack(bytes(RUNS.size))) - 2))
    record: Any = SimpleNamespace(payload_crc=crc32(payload), runs=20, count=1, first=3)
    segment: Any = SimpleNamespace(payload=lambda record: payload)
    assert read_frame(segment, record) is None
    assert KNOWN_COLUMNS & ENVELOPE


def test_files_of_another_queue_are_told_and_no_file_is_no_fault() -> None:
    disk = SimulatedDisk()
    here = f"{DIRECTORY}/broker"
    disk.make_directory(DIRECTORY)
    disk.make_directory(here)
    assert list(check.faults(disk, DIRECTORY, "5" * 32)) == []
    settled.SettledFile(disk, here, "6" * 32)._replace(Marks())
    (line,) = check.faults(disk, DIRECTORY, "5" * 32)
    assert "of another queue; nothing is settled" in line
