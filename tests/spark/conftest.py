"""A Spark session for all tests of this room, and queues to read."""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from twisted_msgproto import MessageBatch
from twisted_msgproto.queue import QueueReader, QueueWriter
from twisted_msgproto.spark import register


def messages(first: int, count: int, **changes: Any) -> MessageBatch:
    """Messages whose ids and bodies say which they are."""
    numbers = range(first, first + count)
    values: dict[str, Any] = {
        "protocol": "lumberjack",
        "kind": "json",
        "received_at": int(time.time() * 1e6),
        "peer": "tcp:127.0.0.1:5",
        "session": "lumberjack-1",
        "count": count,
        "nbytes": 20 * count,
        "message_id": list(numbers),
        "body": [b'{"n":%d}' % number for number in numbers],
    }
    return MessageBatch(**{**values, **changes})


def write(directory: Path, *batches: MessageBatch, **options: Any) -> None:
    """Makes ``batches`` durable in the queue, each a group of its own."""
    writer = QueueWriter(directory, **options)
    try:
        for batch in batches:
            answers: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
            writer.submit(batch, lambda error, first, answers=answers: answers.put(error))
            assert answers.get(timeout=60) is None
    finally:
        writer.close()


def fill(directory: Path) -> None:
    """Makes a queue with 1500 messages in five groups."""
    write(directory, *(messages(first, 300) for first in range(0, 1500, 300)))


@pytest.fixture(name="queue")
def a_queue(tmp_path: Path) -> Path:
    """A queue with 1500 messages in five groups."""
    directory = tmp_path / "queue"
    fill(directory)
    return directory


def damage_record(queue: Path, body: bytes) -> None:
    """Flips a bit in the one record which holds ``body``."""
    for segment in sorted(queue.glob("*.segment")):
        octets = bytearray(segment.read_bytes())
        at = octets.find(body)
        if at >= 0:
            octets[at] ^= 1
            segment.write_bytes(octets)
            return
    raise AssertionError(f"{body!r} is in no segment")


class Session:
    """What ``register`` needs of a session; it keeps the sources for a test to ask them itself."""

    def __init__(self) -> None:
        self.conf = self
        self.dataSource = self
        self.sources: dict[str, Any] = {}

    def set(self, name: str, value: str) -> None:
        """Nothing depends on it here."""

    def register(self, source: Any) -> None:
        self.sources[source.name()] = source


def data_source(format: str, **options: Any) -> Any:
    """The source of ``format(…)`` with its options, as Spark makes it; no Java is needed."""
    pytest.importorskip("pyspark")
    session: Any = Session()
    register(session)
    return session.sources[format]({name: str(value) for name, value in options.items()})


def stream(queue: Path | str, **options: Any) -> Any:
    """What Spark asks with ``readStream``: where batches end, and their rows."""
    source = data_source("msgproto", queue=queue, **options)
    return source.streamReader(source.schema())


def batch(queue: Path | str, *filters: Any, **options: Any) -> Any:
    """What Spark asks with ``read``, given these filters."""
    source = data_source("msgproto", queue=queue, pushFilters=bool(filters), **options)
    reader = source.reader(source.schema())
    assert not filters or list(reader.pushFilters(list(filters))) == list(filters)
    return reader


def offsets_of(reader: Any) -> list[int]:
    """The offsets in a reader's partitions, read by a copy of it as in a worker."""
    copy = pickle.loads(pickle.dumps(reader))
    batches = [rows for part in reader.partitions() for rows in copy.read(part)]
    return [offset for rows in batches for offset in rows.column("offset").to_pylist()]


@pytest.fixture
def command_here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lets the command run in this process, whose signals are the test's again afterwards."""
    monkeypatch.setattr(os, "setsid", lambda: None)
    before = {
        number: signal.getsignal(number)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    }
    yield
    for number, function in before.items():
        signal.signal(number, function)


Drain = Callable[..., Any]


@pytest.fixture
def drain(spark: Any, queue: Path, tmp_path: Path) -> Drain:
    """Lands what the queue holds in a Parquet table; returns the ended query."""
    from pyspark.errors import StreamingQueryException

    def run(
        *,
        source: str | None = None,
        table: Path = tmp_path / "table",
        checkpoint: Path | None = None,
        **options: Any,
    ) -> Any:
        stream = spark.readStream.format("msgproto").option("queue", source or str(queue))
        query = (
            stream.options(**options)
            .load()
            .writeStream.format("parquet")
            .option("path", str(table))
            .option("checkpointLocation", str(checkpoint or table / "_checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        with contextlib.suppress(StreamingQueryException):
            query.awaitTermination()
        return query

    return run


def identity(queue: Path) -> str:
    """The queue's id, which is the table's ``gateway``."""
    return QueueReader(queue).queue_id
