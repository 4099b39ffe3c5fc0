"""Make Spark's tasks of ranges of queues: open a queue, and read the rows of a task."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition

from ..core.errors import ConfigurationError, QueueAway, QueueMismatch
from ..queue import SCHEMA
from ..table.landing import Range
from .offsets import Source
from .opening import open_queue
from .options import Access

PATIENCE_SECONDS = 60.0
"""A gateway may be away this long (while it restarts, say) before a stream or a query ends."""

PAUSE_SECONDS = 0.5

READ_ROWS = 10_000


def patiently(ask: Callable[[], Answer], patience: float = PATIENCE_SECONDS) -> Answer:
    """Return what ``ask`` answers; a gateway that is away is asked again for ``patience`` seconds.

    Raises QueueAway, one line, when it stays away.
    """
    deadline = time.monotonic() + patience
    while True:
        try:
            return ask()
        except QueueAway:
            if time.monotonic() >= deadline:
                raise
        time.sleep(PAUSE_SECONDS)


def open_queues(
    locations: Sequence[str],
    access: Access = Access(),  # noqa: B008  a tuple
) -> dict[str, Source]:
    """Return the queues by their ids.  Raises ConfigurationError when two locations are one
    queue.
    """
    queues: dict[str, Source] = {}
    where: dict[str, str] = {}
    for location in locations:
        queue = patiently(partial(open_queue, location, access, PATIENCE_SECONDS))
        if queue.queue_id in queues:
            raise ConfigurationError(
                f"{where[queue.queue_id]} and {location} are the same queue ({queue.queue_id})"
            )
        queues[queue.queue_id] = queue
        where[queue.queue_id] = location
    return queues


Answer = TypeVar("Answer")


class QueueRange(InputPartition):
    """The work of one task."""

    def __init__(self, part: Range) -> None:
        self.part = part

    def __repr__(self) -> str:
        return f"QueueRange({self.part!r})"


_opened: dict[str, Source] = {}
"""Queues that this worker process has open; Spark uses a worker for many tasks."""


def read_range(
    partition: InputPartition, wanted: pc.Expression | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one task in the source's schema; damaged rows are left out and reported.

    ``wanted`` leaves out rows that the query would throw away.  The report of damage is a line
    on stderr of the worker, which Spark passes on.  Raises QueueMismatch when another queue
    stands at the location now, or when rows were trimmed meanwhile.
    """
    if not isinstance(partition, QueueRange):  # what Spark makes of "no partitions"
        return
    part = partition.part
    queue = _opened.get(part.location)
    if queue is None or queue.queue_id != part.gateway:
        access = part.access if isinstance(part.access, Access) else Access()
        queue = _opened[part.location] = open_queue(part.location, access, PATIENCE_SECONDS)
    if queue.queue_id != part.gateway:
        raise QueueMismatch(
            f"{part.location} is queue {queue.queue_id}, the stream reads {part.gateway}"
        )
    batches = queue.read(part.lo, part.hi, READ_ROWS, landed=part.landed)
    for batch in batches:
        kept = batch if wanted is None else batch.filter(wanted)
        if kept.num_rows:
            yield pa.RecordBatch.from_arrays(kept.columns, schema=SCHEMA)
    if batches.damaged:
        print(damage_line(part, batches.damaged), file=sys.stderr, flush=True)


def damage_line(part: Range, damaged: Sequence[tuple[int, int]]) -> str:
    """One line for rows that could not be read, as the read itself met them."""
    within = [(max(part.lo, lo), min(part.hi, hi)) for lo, hi in damaged]
    missing = sum(hi - lo for lo, hi in within)
    return (
        f"msgproto: queue {part.gateway}: {missing} of the rows {part.lo}..{part.hi - 1} are "
        f"damaged and were skipped (offsets {', '.join(f'{lo}..{hi - 1}' for lo, hi in within)})"
    )
