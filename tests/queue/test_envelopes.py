"""The column of envelopes."""

from __future__ import annotations

import dataclasses
from array import array
from pathlib import Path

import pyarrow as pa

from tests.tools.queues import Results, batch, encode, put, rows
from twisted_msgproto import Message, MessageBatch
from twisted_msgproto.core.packed import PackedOctets
from twisted_msgproto.queue import SCHEMA, QueueWriter
from twisted_msgproto.queue.schema import ENVELOPE, stored_schema


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
