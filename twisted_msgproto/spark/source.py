"""The Spark data source ``msgproto`` reads queues as a stream, and as a table for a quick query.

No code here runs in the driver program: one long-lived Python process beside it plans batches, a
short one plans how to read, and pooled workers read. So a reader is pickled again and again and
opens its queues only where it stands.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from ..core.errors import QueueAway, QueueMismatch
from ..core.log_output import timed_line
from ..queue import SCHEMA
from ..queue.interface import Queue
from ..table.plan import Range
from .filters import Bounds, bounds, expression
from .offsets import (
    batch_ranges,
    latest_places,
    place_at,
)
from .source_options import (
    PATIENCE_SECONDS,
    Settings,
    open_queues,
    open_range,
    patiently,
)


def spark_schema() -> StructType:
    return from_arrow_schema(SCHEMA)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the very Arrow schema that Spark expects of a task that yields ``schema``."""
    return to_arrow_schema(schema, timezone="UTC")


def read_range(
    partition: InputPartition, wanted: pc.Expression | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one task; damaged ones are told on stderr, which Spark passes on."""
    part: Range | None = partition.value
    if part is None:  # what Spark makes of "no partitions"
        return
    queue = open_range(part, PATIENCE_SECONDS)
    if queue.queue_id != part.gateway:
        raise QueueMismatch(
            f"{part.location} is queue {queue.queue_id}, the stream reads {part.gateway}"
        )
    batches = queue.read(part.lo, part.hi, landed=part.landed)
    for batch in batches:
        kept = batch if wanted is None else batch.filter(wanted)
        if kept.num_rows:
            yield pa.RecordBatch.from_arrays(kept.columns, schema=SCHEMA)
    if batches.damaged:
        line = timed_line(time.time(), damage_line(part, batches.damaged))
        print(f"msgproto: {line}", file=sys.stderr)


def damage_line(part: Range, damaged: Sequence[tuple[int, int]]) -> str:
    within = [(max(part.lo, lo), min(part.hi, hi)) for lo, hi in damaged]
    missing = sum(hi - lo for lo, hi in within)
    return (
        f"queue {part.gateway}: {missing} of the rows {part.lo}..{part.hi - 1} are "
        f"damaged and were skipped (offsets {', '.join(f'{lo}..{hi - 1}' for lo, hi in within)})"
    )


NAME = "msgproto"


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Batches over the queues.

    ``latestOffset`` must have arguments: with none, Spark silently turns admission control off.
    There is no ``commit``: it does not mean durable, so the mark of ``consumer`` stays
    (``releasing.py``).
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._settings = Settings(options)
        self._settings.refuse_ending()
        self._ends: dict[str, int] | None = None
        self._queues: dict[str, Queue] | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Workers get a copy: queues stay closed on the way.
        return {**self.__dict__, "_queues": None}

    @property
    def queues(self) -> dict[str, Queue]:
        if self._queues is None:
            self._queues = open_queues(self._settings.locations, self._settings.access)
            consumer = self._settings.consumer
            if consumer is not None:
                for queue in self._queues.values():
                    patiently(partial(queue.register, consumer))
        return self._queues

    def initialOffset(self) -> dict[str, Any]:
        settings = self._settings

        def begun() -> dict[str, Any]:
            offsets = settings.starting_offsets(self.queues)
            return {
                name: {**place_at(queue, offsets[name]), "since": offsets[name]}
                for name, queue in self.queues.items()
            }

        return patiently(begun)

    def getDefaultReadLimit(self) -> ReadLimit:
        rows_max = self._settings.rows_max
        return ReadAllAvailable() if rows_max is None else ReadMaxRows(rows_max)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return where the next batch ends; a QueueMismatch ends the stream."""
        settings = self._settings
        planned = partial(
            latest_places,
            self.queues,
            start,
            rows_max=limit.max_rows if isinstance(limit, ReadMaxRows) else None,
            ends=self._ends,
            accept_loss=settings.accept_loss,
            retired=settings.retired,
        )
        return dict(patiently(planned))

    def prepareForTriggerAvailableNow(self) -> None:
        self._ends = {name: patiently(queue.end) for name, queue in self.queues.items()}

    def reportLatestOffset(self) -> dict[str, Any] | None:
        try:
            return {name: place_at(queue, queue.end()) for name, queue in self.queues.items()}
        except QueueAway:
            return None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        settings = self._settings
        where = dict(zip(self.queues, settings.locations, strict=True))
        planned = partial(
            batch_ranges,
            self.queues,
            start,
            end,
            parts=settings.parts,
            rows_min=settings.rows_min,
            accept_loss=settings.accept_loss,
            where=where,
            access=settings.access,
        )
        return [InputPartition(part) for part in patiently(planned)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(partition)


class QueueBatchReader(DataSourceReader):
    def __init__(self, options: Mapping[str, str]) -> None:
        self._settings = Settings(options)
        self._bounds = Bounds()
        self._wanted: pc.Expression | None = None

    def partitions(self) -> Sequence[InputPartition]:
        settings = self._settings
        queues = open_queues(settings.locations, settings.access)
        where = dict(zip(queues, settings.locations, strict=True))
        first = settings.starting_offsets(queues)
        last = settings.ending_offsets(queues)
        limits = self._bounds
        for name in queues:
            first[name] = max(first[name], limits.lo)
            last[name] = min(last[name], limits.hi) if limits.wants(name) else 0
        ranges = batch_ranges(
            queues,
            {name: {"offset": first[name]} for name in queues},
            {name: {"offset": last[name]} for name in queues},
            parts=settings.parts,
            rows_min=settings.rows_min,
            accept_loss=True,  # a running gateway may trim while we look
            where=where,
            access=settings.access,
        )
        return [InputPartition(part) for part in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(partition, self._wanted)


class FilteredQueueReader(QueueBatchReader):
    """The same for one query, whose filters are used here too (option ``pushFilters``)."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._bounds = bounds(filters)
        self._wanted = expression(filters, SCHEMA)
        return filters


class QueueSource(DataSource):
    """``format("msgproto")``.  The options are listed in ``docs/data-source.md``."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return spark_schema()

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return QueueStreamReader(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        filtered = Settings(self.options).push_filters
        return (FilteredQueueReader if filtered else QueueBatchReader)(self.options)
