"""The column of envelopes, and queues of format version 1, which had none."""

from __future__ import annotations

import dataclasses
import errno
from array import array
from pathlib import Path

import pyarrow as pa
import pytest

from tests.sim.disk import SimulatedDisk
from tests.tools.queues import Results, batch, frame, put, rows
from twisted_msgproto.core.errors import QueueError, QueueFull
from twisted_msgproto.core.message import Message, MessageBatch
from twisted_msgproto.core.packed import PackedOctets
from twisted_msgproto.queue import SCHEMA, QueueReader, QueueWriter
from twisted_msgproto.queue import format as queue_format
from twisted_msgproto.queue.columns import Assembly, encode
from twisted_msgproto.queue.format import Identity, Segment, SegmentHeader
from twisted_msgproto.queue.log import SegmentLog
from twisted_msgproto.queue.schema import ENVELOPE, stored_schema

DIRECTORY = "/queue"
FIRST = f"{DIRECTORY}/{0:020d}.segment"


def enveloped(first: int, envelopes: list[bytes | None]) -> MessageBatch:
    """Messages with envelopes."""
    return dataclasses.replace(batch(first, len(envelopes)), envelope=envelopes)


def test_readers_pass_over_envelopes(tmp_path: Path) -> None:
    writer = QueueWriter(tmp_path)
    alone = MessageBatch("mtl", "content", 5, count=2, envelope=[b"a", None])
    assert put(writer, enveloped(0, [b"one", None]), batch(2), alone) == [None] * 3
    writer.close()
    found = rows(tmp_path)
    assert [row["message_id"] for row in found] == ["0", "1", "2", None, None]
    assert [row["body"] for row in found[3:]] == [None, None]
    assert list(found[0]) == SCHEMA.names
    assert "envelope" not in SCHEMA.names
    assert not hasattr(Message("mtl", "content", 5), "envelope")
    assert len(list(enveloped(0, [b"one", None]))) == 2


def test_frames_with_and_without_envelopes_are_one_stretch_for_a_reader() -> None:
    """Nothing is copied for the column that the table does without."""
    assembly = Assembly("g")
    for number in range(4):
        one = encode([enveloped(number, [b"e"]) if number % 2 else batch(number)])
        octets = memoryview(b"".join(bytes(memoryview(piece)) for piece in one.pieces))
        assembly.add(octets, one.runs, number, 1, number, number + 1)
    assert len(assembly._parts) == 1
    assert assembly.finish().num_rows == 4


def test_envelopes_are_counted_and_come_back_from_the_frame() -> None:
    packed = PackedOctets(b"aabb", array("i", [0, 2, 4]))
    several = [
        enveloped(0, [b"\xff\0", None, b""]),
        batch(3),
        dataclasses.replace(batch(4, 2), envelope=packed),
    ]
    one = encode(several)
    assert one.envelopes == 4
    octets = b"".join(bytes(memoryview(piece)) for piece in one.pieces)
    columns = int.from_bytes(octets[:4], "little")
    assert columns & ENVELOPE
    body = pa.ipc.read_record_batch(pa.py_buffer(octets[one.runs :]), stored_schema(columns))
    assert body.column("envelope").to_pylist() == [b"\xff\0", None, b"", None, b"aa", b"bb"]
    assert encode([batch(0)]).envelopes == 0


def test_a_wrong_number_of_envelopes_is_the_batch_s_own_error(tmp_path: Path) -> None:
    wrong = dataclasses.replace(batch(0, 2), envelope=[b"one"])
    writer = QueueWriter(tmp_path)
    results = Results()
    results.submit(writer, wrong)
    results.submit(writer, batch(2))
    failed, kept = results.wait(2)
    assert isinstance(failed, ValueError)
    assert kept is None
    writer.close()


def test_callbacks_get_the_first_offset_of_their_batch(tmp_path: Path) -> None:
    """Batches of a group with a wrong one between them, packed ones and empty ones too."""
    writer = QueueWriter(tmp_path, commit_delay=0.05)
    wrong = dataclasses.replace(batch(5, 2), body=[b"one"])
    batches = [batch(0, 3), wrong, MessageBatch("mtl", "content", 5), batch(3, 600), batch(603)]
    told = Results()
    for number, one in enumerate(batches):
        told.submit(writer, one, number)
    told.wait(5)
    empty = told.firsts.pop(2)  # of another session, which has its own turn
    assert empty in (0, 3, 603, 604)
    assert told.firsts == {0: 0, 1: None, 3: 3, 4: 603}
    writer.close()
    writer = QueueWriter(tmp_path)
    told = Results()
    told.submit(writer, batch(604))
    told.wait(1)
    assert told.firsts == {604: 604}
    writer.close()


# -- version 1 ------------------------------------------------------------------------------------


def old_queue(disk: SimulatedDisk) -> Identity:
    """A queue as a program of format version 1 left it, with three messages."""
    log = SegmentLog(DIRECTORY, disk=disk)
    log.append([frame(0, 3)])
    log.close()
    header = SegmentHeader(1, log.identity, 0, 0).packed()
    disk.spoil(FIRST, header + disk.octets_of(FIRST)[len(header) :])
    text = f"msgproto-queue 1 {log.queue_id} {log.identity.seed.hex()}"
    disk.spoil(f"{DIRECTORY}/identity", queue_format.seal(text))
    return log.identity


def versions(disk: SimulatedDisk) -> dict[int, int]:
    """The format version of each segment."""
    found = {}
    for path in disk.paths():
        if path.endswith(".segment"):
            first = int(path[-28:-8])
            header = Segment(disk.open(path), 0, first).header()
            assert header is not None
            found[first] = header.version
    return found


def test_a_queue_of_version_1_is_read_and_gets_a_new_segment() -> None:
    disk = SimulatedDisk()
    identity = old_queue(disk)
    assert [row["message_id"] for row in rows(DIRECTORY, disk=disk)] == ["0", "1", "2"]
    assert b"msgproto-queue 1 " in disk.octets_of(f"{DIRECTORY}/identity")
    log = SegmentLog(DIRECTORY, disk=disk)
    assert disk.octets_of(f"{DIRECTORY}/identity") == identity.sealed()
    log.append([encode([enveloped(3, [b"e"])])])
    log.close()
    assert versions(disk) == {0: 1, 3: 2}
    assert QueueReader(DIRECTORY, disk=disk).identity == identity
    assert [row["message_id"] for row in rows(DIRECTORY, disk=disk)] == ["0", "1", "2", "3"]


def test_the_version_is_durable_before_anything_of_it_is() -> None:
    """An older program must not take envelopes for damage: on a full disk nothing is appended."""
    disk = SimulatedDisk()
    old_queue(disk)
    disk.fail_next("rename", errno.ENOSPC, "identity", times=2)
    log = SegmentLog(DIRECTORY, disk=disk)
    with pytest.raises(QueueFull):
        log.append([frame(3)])
    assert b"msgproto-queue 1 " in disk.octets_of(f"{DIRECTORY}/identity")
    log.append([frame(3)])
    assert b"msgproto-queue 2 " in disk.octets_of(f"{DIRECTORY}/identity")
    log.close()


def test_an_older_program_says_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimulatedDisk()
    SegmentLog(DIRECTORY, disk=disk).close()
    monkeypatch.setattr(queue_format, "FORMAT_VERSION", 1)
    monkeypatch.setattr("twisted_msgproto.queue.recovery.FORMAT_VERSION", 1)
    with pytest.raises(QueueError, match="has format version 2; this program knows 1"):
        QueueReader(DIRECTORY, disk=disk)
