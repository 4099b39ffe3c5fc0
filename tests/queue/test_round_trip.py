"""What is put into the queue comes out of it: values, nulls, order, offsets."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa

from twisted_msgproto import MessageBatch
from twisted_msgproto.queue import SCHEMA, QueueReader, QueueWriter


def put(writer: QueueWriter, *batches: MessageBatch) -> list[BaseException | None]:
    """Submit ``batches`` and wait until each was called back; their errors in that order."""
    done = threading.Event()
    errors: list[BaseException | None] = []

    def called(error: BaseException | None, first: int | None) -> None:
        errors.append(error)
        if len(errors) == len(batches):
            done.set()

    for batch in batches:
        writer.submit(batch, called)
    assert done.wait(30)
    return errors


def rows(directory: Path, lo: int = 0, hi: int | None = None) -> list[dict[str, Any]]:
    reader = QueueReader(directory)
    batches = list(reader.read(lo, reader.end() if hi is None else hi))
    assert all(batch.schema.equals(SCHEMA, check_metadata=True) for batch in batches)
    return pa.Table.from_batches(batches, SCHEMA).to_pylist()


def test_every_column_comes_back_as_it_was_put(tmp_path: Path) -> None:
    """INTERFACES, "The table": values survive exactly, null and empty stay apart."""
    writer = QueueWriter(tmp_path / "q")
    errors = put(
        writer,
        MessageBatch(
            "lumberjack",
            "json",
            5,
            peer="tcp:127.0.0.1:9",
            count=2,
            octets=6,
            message_id=[1, 2],
            body=[b'"a"', b"\xff\x00"],
        ),
        MessageBatch(
            "mtl",
            "content",
            -6,
            session="s",
            client_id="c",
            count=3,
            octets=6,
            message_id=["x", None, "z"],
            destination=["d", None, ""],
            fields=[{"a": "b", "c": ""}, {}, None],
            body=[b"", None, b"1"],
            attachments=[None, [], [b"1", b""]],
            truncated=[True, False, True],
        ),
    )
    assert errors == [None, None]
    assert writer.end == 5
    writer.close()
    found = rows(tmp_path / "q")
    assert [row["gateway"] for row in found] == [writer.queue_id] * 5
    assert [row["offset"] for row in found] == [0, 1, 2, 3, 4]
    assert [row["protocol"] for row in found] == ["lumberjack"] * 2 + ["mtl"] * 3
    assert [row["kind"] for row in found] == ["json"] * 2 + ["content"] * 3
    assert [row["peer"] for row in found] == ["tcp:127.0.0.1:9"] * 2 + [None] * 3
    assert [row["session"] for row in found] == [None] * 2 + ["s"] * 3
    assert [row["client_id"] for row in found] == [None] * 2 + ["c"] * 3
    assert [row["message_id"] for row in found] == ["1", "2", "x", None, "z"]
    assert [row["destination"] for row in found] == [None, None, "d", None, ""]
    assert [row["fields"] for row in found] == [None, None, [("a", "b"), ("c", "")], [], None]
    assert [row["body"] for row in found] == [b'"a"', b"\xff\x00", b"", None, b"1"]
    assert [row["attachments"] for row in found] == [None, None, None, [], [b"1", b""]]
    assert [row["truncated"] for row in found] == [False, False, True, False, True]
    assert [row["received_at"].timestamp() * 1e6 for row in found] == [5, 5, -6, -6, -6]
