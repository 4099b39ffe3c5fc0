"""Frames of messages with envelopes, as the broker reads them: what makes no sense is damage."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import pytest

from tests.queue.brokered.world import DIRECTORY, NAMES
from tests.sim.disk import SimulatedDisk
from tests.tools.queues import encode
from twisted_msgproto import MessageBatch
from twisted_msgproto.core.broker.envelopes import head
from twisted_msgproto.core.errors import QueueCorrupt
from twisted_msgproto.queue.brokered import check, settled
from twisted_msgproto.queue.brokered.frames import may_have_envelopes, read_frame
from twisted_msgproto.queue.brokered.marks import Marks
from twisted_msgproto.queue.columns import RUNS
from twisted_msgproto.queue.schema import BODY, ENVELOPE

OWN, OTHER = head("mtl", NAMES[0]), head("umq", NAMES[1])


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


def test_files_of_another_queue_are_told_and_no_file_is_no_fault() -> None:
    disk = SimulatedDisk()
    here = f"{DIRECTORY}/broker"
    disk.make_directory(DIRECTORY)
    disk.make_directory(here)
    assert list(check.faults(disk, DIRECTORY, "5" * 32)) == []
    settled.SettledFile(disk, here, "6" * 32)._replace(Marks())
    (line,) = check.faults(disk, DIRECTORY, "5" * 32)
    assert "of another queue; nothing is settled" in line
