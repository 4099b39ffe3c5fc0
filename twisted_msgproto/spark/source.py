"""The Spark data source ``msgproto``: queues as a stream, and as a table for a quick look.

::

    register(spark)
    spark.readStream.format("msgproto").option("queue", "/var/lib/gateway/queue").load()

Spark runs this code in three places, none of which is the driver program: one long-lived Python
process beside the driver plans batches (``latestOffset``, ``partitions``, ``commit``), a short one
plans how to read, and pooled workers read.  So a reader is pickled again and again and opens its
queues only where it stands; and it must be importable there (``PYTHONPATH`` or installed).

A worker yields whole Arrow record batches of some ten thousand rows, which Spark takes over
without touching a row in Python.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ..core.errors import ConfigurationError, QueueMismatch
from ..queue import SCHEMA, QueueReader
from .offsets import (
    Place,
    Source,
    batch_ranges,
    check_queues_known,
    initial_places,
    latest_places,
)

NAME = "msgproto"
"""What ``format()`` takes."""

PARTITIONS_DEFAULT = 2
"""Tasks a batch and queue has at most, unless the option ``numPartitions`` says otherwise."""

PARTITION_ROWS_MIN = 20_000
"""Below this a second task costs more than it saves (measured: a task costs some 10 ms)."""

READ_ROWS = 10_000
"""Rows of one Arrow batch; small commits are merged up to it."""

OPTIONS = (
    "queue",
    "consumer",
    "maxRowsPerTrigger",
    "numPartitions",
    "minPartitionRows",
    "failOnDataLoss",
    "retired",
    "tokenFile",
    "tlsCa",
    "pauseFile",
)
"""The options of the source, as ``docs/spark.md`` has them; their case does not matter."""


def spark_schema() -> StructType:
    """The table of INTERFACES as a Spark type, built by hand.

    ``StructType.fromDDL`` asks a running Spark context, which a worker does not have.
    """
    return StructType([StructField(f.name, spark_type(f.type), f.nullable) for f in SCHEMA])


def spark_type(arrow: pa.DataType) -> DataType:
    """The Spark type of a column of the queue's schema."""
    if pa.types.is_map(arrow):
        return MapType(spark_type(arrow.key_type), spark_type(arrow.item_type))
    if pa.types.is_list(arrow):
        return ArrayType(spark_type(arrow.value_type))
    if pa.types.is_timestamp(arrow):
        return TimestampType()
    simple: dict[pa.DataType, DataType] = {
        pa.string(): StringType(),
        pa.binary(): BinaryType(),
        pa.int64(): LongType(),
        pa.bool_(): BooleanType(),
    }
    return simple[arrow]


class Access(NamedTuple):
    """What opens the queues of other machines: files which hold the token and the authority."""

    token_file: str | None = None
    authority: str | None = None


def open_queue(location: str, access: Access = Access()) -> Source:  # noqa: B008  a tuple
    """The queue at ``location``: a directory, or ``grpc://HOST:PORT``, ``grpc+tls://HOST:PORT``.

    Raises QueueError with one line when there is none.
    """
    if location.startswith(("grpc://", "grpc+tls://")):
        from .flight import FlightQueue

        return FlightQueue(location, token_file=access.token_file, authority=access.authority)
    return QueueReader(location.removeprefix("file://"))


def open_queues(
    locations: Sequence[str],
    access: Access = Access(),  # noqa: B008  a tuple
) -> dict[str, Source]:
    """The queues by their ids.  Raises ConfigurationError when two locations are one queue."""
    queues: dict[str, Source] = {}
    where: dict[str, str] = {}
    for location in locations:
        queue = open_queue(location, access)
        if queue.queue_id in queues:
            raise ConfigurationError(
                f"{where[queue.queue_id]} and {location} are the same queue ({queue.queue_id})"
            )
        queues[queue.queue_id] = queue
        where[queue.queue_id] = location
    return queues


class QueueRange(InputPartition):
    """Rows lo ≤ offset < hi of the queue ``gateway``, to be had at ``location``."""

    def __init__(
        self,
        location: str,
        gateway: str,
        lo: int,
        hi: int,
        access: Access = Access(),  # noqa: B008  a tuple
    ) -> None:
        self.location = location
        self.access = access
        self.gateway = gateway
        self.lo = lo
        self.hi = hi

    def __repr__(self) -> str:
        return f"QueueRange({self.location!r}, {self.gateway!r}, {self.lo}, {self.hi})"


_opened: dict[str, Source] = {}
"""Queues which this worker process has open; Spark uses a worker for many tasks."""


def read_range(part: InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows of one partition in the source's schema; damaged rows are left out and reported.

    The report is a line on stderr of the worker, which Spark passes on.  Raises QueueMismatch
    when another queue stands at the location now, or when rows were trimmed meanwhile.
    """
    if not isinstance(part, QueueRange):  # what Spark makes of "no partitions"
        return
    queue = _opened.get(part.location)
    if queue is None or queue.queue_id != part.gateway:
        queue = _opened[part.location] = open_queue(part.location, part.access)
    if queue.queue_id != part.gateway:
        raise QueueMismatch(
            f"{part.location} is queue {queue.queue_id}, the stream reads {part.gateway}"
        )
    rows = 0
    for batch in queue.read(part.lo, part.hi, READ_ROWS):
        rows += batch.num_rows
        yield pa.RecordBatch.from_arrays(batch.columns, schema=SCHEMA)
    missing = part.hi - part.lo - rows
    if missing:
        print(damage_line(queue, part.lo, part.hi, missing), file=sys.stderr, flush=True)


def damage_line(queue: Source, lo: int, hi: int, missing: int) -> str:
    """One line for rows which could not be read: how many, and which ranges are known."""
    known = [(max(lo, a), min(hi, b)) for a, b in queue.damaged() if a < hi and b > lo]
    ranges = ", ".join(f"{a}..{b - 1}" for a, b in known) or "not known"
    return (
        f"msgproto: queue {queue.queue_id}: {missing} of the rows {lo}..{hi - 1} are damaged and "
        f"were skipped (offsets {ranges})"
    )


class _Settings:
    """The options, read and checked once; every reader has them."""

    def __init__(self, options: Mapping[str, str]) -> None:
        # Spark hands a dictionary which forgets about case when it is pickled: compare in lower.
        given = {name.lower(): value for name, value in options.items()}
        self.locations = split_list(given.get("queue") or given.get("path", ""))
        if not self.locations:
            raise ConfigurationError(
                'the source msgproto needs .option("queue", DIRECTORY): one queue, or several with '
                "commas between them"
            )
        self.consumer = given.get("consumer") or None
        self.rows_max = _whole(given, "maxRowsPerTrigger")
        self.parts = _whole(given, "numPartitions") or PARTITIONS_DEFAULT
        self.rows_min = _whole(given, "minPartitionRows") or PARTITION_ROWS_MIN
        self.accept_loss = not _truth(given, "failOnDataLoss", True)
        self.retired = frozenset(split_list(given.get("retired", "")))
        self.access = Access(given.get("tokenfile") or None, given.get("tlsca") or None)
        self.pause_file = given.get("pausefile") or None


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches over the queues and reads their ranges.

    ``latestOffset`` must take arguments: with none, Spark silently turns admission control off.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._settings = _Settings(options)
        self._ends: dict[str, int] | None = None
        self._queues: dict[str, Source] | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Workers get a copy: queues stay closed on the way.
        return {**self.__dict__, "_queues": None}

    @property
    def queues(self) -> dict[str, Source]:
        """The queues by id, opened where and when they are needed first."""
        if self._queues is None:
            self._queues = open_queues(self._settings.locations, self._settings.access)
            if self._settings.consumer is not None:
                for queue in self._queues.values():
                    queue.register(self._settings.consumer)
        return self._queues

    def initialOffset(self) -> dict[str, Any]:
        """Where a stream without a checkpoint begins: the earliest offset of every queue."""
        return dict(initial_places(self.queues))

    def getDefaultReadLimit(self) -> ReadLimit:
        """Admission control: the option ``maxRowsPerTrigger``."""
        rows_max = self._settings.rows_max
        return ReadAllAvailable() if rows_max is None else ReadMaxRows(rows_max)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next batch ends, within ``limit``.

        Raises QueueMismatch, and so ends the stream, when ``start`` does not fit the queues.
        """
        settings = self._settings
        if settings.pause_file is not None and os.path.exists(settings.pause_file):
            check_queues_known(self.queues, start, settings.retired)
            return start
        return dict(
            latest_places(
                self.queues,
                start,
                rows_max=limit.max_rows if isinstance(limit, ReadMaxRows) else None,
                ends=self._ends,
                accept_loss=settings.accept_loss,
                retired=settings.retired,
            )
        )

    def prepareForTriggerAvailableNow(self) -> None:
        """From here on the stream ends where the queues end now."""
        self._ends = {name: queue.end() for name, queue in self.queues.items()}

    def reportLatestOffset(self) -> dict[str, Any]:
        """Where the queues end, for Spark's own progress figures."""
        return {
            name: {"offset": queue.end(), "epoch": queue.epoch}
            for name, queue in self.queues.items()
        }

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The ranges of the batch start → end."""
        settings = self._settings
        where = dict(zip(self.queues, settings.locations, strict=True))
        ranges = batch_ranges(
            self.queues,
            start,
            end,
            parts=settings.parts,
            rows_min=settings.rows_min,
            accept_loss=settings.accept_loss,
        )
        return [QueueRange(where[part.gateway], *part, settings.access) for part in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range."""
        return read_range(partition)

    def commit(self, end: dict[str, Place]) -> None:
        """Publishes the low-water mark of the option ``consumer``; the gateway trims, not we."""
        if self._settings.consumer is None:
            return
        for name, place in end.items():
            if name in self.queues:
                self.queues[name].commit(self._settings.consumer, place["offset"])

    def stop(self) -> None:
        """The stream has ended; nothing is held open that needs closing."""
        self._queues = None


class QueueBatchReader(DataSourceReader):
    """What the queues hold now, as a table: for a look, a count, a test."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._settings = _Settings(options)

    def partitions(self) -> Sequence[InputPartition]:
        """The ranges from the earliest to the last durable row."""
        settings = self._settings
        queues = open_queues(settings.locations, settings.access)
        where = dict(zip(queues, settings.locations, strict=True))
        ranges = batch_ranges(
            queues,
            initial_places(queues),
            {name: {"offset": q.end(), "epoch": q.epoch} for name, q in queues.items()},
            parts=settings.parts,
            rows_min=settings.rows_min,
            accept_loss=True,  # a running gateway may trim while we look
        )
        return [QueueRange(where[part.gateway], *part, settings.access) for part in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range."""
        return read_range(partition)


class QueueSource(DataSource):
    """``format("msgproto")``.  The options are listed in ``docs/spark.md``."""

    @classmethod
    def name(cls) -> str:
        """The name which ``format()`` takes."""
        return NAME

    def schema(self) -> StructType:
        """The columns of the table, the same for every queue."""
        return spark_schema()

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Spark asks for this with ``readStream``."""
        return QueueStreamReader(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Spark asks for this with ``read``."""
        return QueueBatchReader(self.options)


def split_list(text: str) -> list[str]:
    """The parts of a comma separated list, without blanks around them; empty parts are dropped."""
    return [part.strip() for part in text.split(",") if part.strip()]


def _whole(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return None
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise ConfigurationError(f"the option {name} is a whole number from 1, not {text!r}")
    return number


def _truth(given: Mapping[str, str], name: str, default: bool) -> bool:
    text = given.get(name.lower())
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise ConfigurationError(f"the option {name} is true or false, not {text!r}")
    return text.lower() == "true"
