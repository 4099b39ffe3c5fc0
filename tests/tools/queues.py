"""Queues in tests: batches with known bodies, putting them, and what comes back."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from twisted_msgproto import MessageBatch
from twisted_msgproto.queue import OS_DISK, SCHEMA, Disk, QueueReader, QueueWriter
from twisted_msgproto.queue.columns import Encoded, encode

PATIENCE_SECONDS = 60.0


def batch(first: int, count: int = 1, *, octets: int = 0) -> MessageBatch:
    """``count`` messages whose ids are ``first``, ``first`` + 1, … and whose bodies say so."""
    bodies = [b"body %d" % number for number in range(first, first + count)]
    if octets:
        bodies = [body.ljust(octets, b".") for body in bodies]
    return MessageBatch(
        "lumberjack",
        "json",
        1_700_000_000_000_000 + first,
        peer="tcp:127.0.0.1:1",
        count=count,
        octets=sum(map(len, bodies)),
        message_id=list(range(first, first + count)),
        body=bodies,
    )


def frame(first: int, count: int = 1, *, octets: int = 0) -> Encoded:
    return encode([batch(first, count, octets=octets)])


class Results:
    """Callbacks for :meth:`QueueWriter.submit`, and a place to wait for them."""

    def __init__(self) -> None:
        self.given: dict[int, BaseException | None] = {}
        """Each batch's result by its number, in the order of the calls."""
        self.firsts: dict[int, int | None] = {}
        """Each batch's first offset, None if it was not written."""
        self.again: list[int] = []
        """Batches which were called back more than once: a fault of the queue."""
        self._changed = threading.Condition()

    def submit(self, writer: QueueWriter, batch: MessageBatch, number: int | None = None) -> None:
        """Submit ``batch`` as number ``number``, which is its first message's id by default."""
        assert batch.message_id is not None or number is not None
        key = int(batch.message_id[0]) if number is None else number  # type: ignore[index, arg-type]

        def called(error: BaseException | None, first: int | None) -> None:
            with self._changed:
                if key in self.given:
                    self.again.append(key)
                self.given[key] = error
                self.firsts[key] = first
                self._changed.notify_all()

        writer.submit(batch, called)

    def wait(self, count: int) -> list[BaseException | None]:
        """Wait until ``count`` batches were called back; their results in the order of calls."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.given) >= count, PATIENCE_SECONDS)
            assert self.again == []
            return list(self.given.values())


def put(writer: QueueWriter, *batches: MessageBatch) -> list[BaseException | None]:
    """Submit ``batches`` and wait for all of them; their results in that order."""
    results = Results()
    for number, one in enumerate(batches):
        results.submit(writer, one, number)
    results.wait(len(batches))
    return [results.given[number] for number in range(len(batches))]


def rows(
    directory: str | os.PathLike[str],
    lo: int | None = None,
    hi: int | None = None,
    *,
    disk: Disk = OS_DISK,
    **options: Any,
) -> list[dict[str, Any]]:
    reader = QueueReader(directory, disk=disk)
    lo = reader.begin() if lo is None else lo
    hi = reader.end() if hi is None else hi
    batches = list(reader.read(lo, hi, **options))
    assert all(one.schema.equals(SCHEMA, check_metadata=True) for one in batches)
    found: list[dict[str, Any]] = pa.Table.from_batches(batches, SCHEMA).to_pylist()
    return found


def ids(rows: Sequence[dict[str, Any]]) -> list[int]:
    """The rows' message ids as numbers; each body must say the same."""
    for row in rows:
        assert row["body"].startswith(b"body %d" % int(row["message_id"]))
    return [int(row["message_id"]) for row in rows]
