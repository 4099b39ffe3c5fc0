"""Make Spark's tasks of ranges of queues: open a queue, and read the rows of a task."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition

from ..core.errors import ConfigurationError, QueueAway, QueueMismatch
from ..queue import SCHEMA
from ..queue.lineage import Landed
from .offsets import Range, Source
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


class Piece(NamedTuple):
    """Rows lo ≤ offset < hi of the queue ``gateway``, to be had at ``location``.

    ``end``, ``incarnation`` and ``witness`` prove the history of an offset at or after ``hi``, as
    in :class:`~twisted_msgproto.queue.lineage.Landed`; without them (0) nothing is proved.
    """

    location: str
    gateway: str
    lo: int
    hi: int
    end: int = 0
    incarnation: int = 0
    witness: int = 0

    @property
    def landed(self) -> Landed | None:
        """Return the proof; None when there is none."""
        if not self.incarnation and not self.witness:
            return None
        return Landed(self.end, self.incarnation, self.witness)


class QueueRange(InputPartition):
    """The work of one task: one range of a queue, or several of any number of queues."""

    def __init__(
        self,
        location: str,
        gateway: str,
        lo: int,
        hi: int,
        access: Access = Access(),  # noqa: B008  a tuple
        landed: Landed | None = None,
    ) -> None:
        proof = () if landed is None else (landed.offset, landed.incarnation, landed.witness)
        self.pieces = [Piece(location, gateway, lo, hi, *proof)]
        self.access = access

    @classmethod
    def of(cls, pieces: Sequence[Piece], access: Access) -> QueueRange:
        """Return a task that reads ``pieces``, one after the other."""
        made = cls(*pieces[0][:4], access)
        made.pieces = list(pieces)
        return made

    @property
    def lo(self) -> int:
        return self.pieces[0].lo

    @property
    def hi(self) -> int:
        """Return the offset after the last one of the first range."""
        return self.pieces[0].hi

    def __repr__(self) -> str:
        return f"QueueRange({', '.join(map(repr, self.pieces))})"


def packed(tasks: Iterable[Iterable[Piece]]) -> str:
    """Return the option ``ranges``: exactly these ranges, a task each, as JSON."""
    return json.dumps([[list(piece) for piece in pieces] for pieces in tasks])


def unpacked(text: str, access: Access) -> list[QueueRange]:
    """Return the tasks of the option ``ranges``.  Raises ConfigurationError with one line."""
    try:
        tasks = [[Piece(*piece) for piece in pieces] for pieces in json.loads(text)]
    except (TypeError, ValueError):
        raise ConfigurationError(
            "the option ranges is JSON: a list of tasks, each a list of "
            "[LOCATION, QUEUE-ID, FIRST OFFSET, OFFSET AFTER THE LAST] and a proof of the end"
        ) from None
    return [QueueRange.of(pieces, access) for pieces in tasks if pieces]


_opened: dict[str, Source] = {}
"""Queues that this worker process has open; Spark uses a worker for many tasks."""


def read_range(
    part: InputPartition, wanted: pc.Expression | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one task in the source's schema; damaged rows are left out and reported.

    ``wanted`` leaves out rows that the query would throw away.  The report of damage is a line
    on stderr of the worker, which Spark passes on.  Raises QueueMismatch when another queue
    stands at the location now, or when rows were trimmed meanwhile.
    """
    if not isinstance(part, QueueRange):  # what Spark makes of "no partitions"
        return
    for piece in part.pieces:
        for batch in read_piece(piece, part.access):
            kept = batch if wanted is None else batch.filter(wanted)
            if kept.num_rows:
                yield pa.RecordBatch.from_arrays(kept.columns, schema=SCHEMA)


def read_piece(piece: Piece, access: Access) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one range as the queue returns them; with the same errors and report."""
    queue = _opened.get(piece.location)
    if queue is None or queue.queue_id != piece.gateway:
        queue = _opened[piece.location] = open_queue(piece.location, access, PATIENCE_SECONDS)
    if queue.queue_id != piece.gateway:
        raise QueueMismatch(
            f"{piece.location} is queue {queue.queue_id}, the stream reads {piece.gateway}"
        )
    batches = queue.read(piece.lo, piece.hi, READ_ROWS, landed=piece.landed)
    yield from batches
    if batches.damaged:
        print(damage_line(piece, batches.damaged), file=sys.stderr, flush=True)


def damage_line(piece: Piece, damaged: Sequence[tuple[int, int]]) -> str:
    """One line for rows that could not be read, as the read itself met them."""
    within = [(max(piece.lo, lo), min(piece.hi, hi)) for lo, hi in damaged]
    missing = sum(hi - lo for lo, hi in within)
    return (
        f"msgproto: queue {piece.gateway}: {missing} of the rows {piece.lo}..{piece.hi - 1} are "
        f"damaged and were skipped (offsets {', '.join(f'{lo}..{hi - 1}' for lo, hi in within)})"
    )


def located(ranges: Iterable[Range], where: dict[str, str], access: Access) -> list[QueueRange]:
    """Each range as a task, with the location of its queue."""
    return [
        QueueRange(where[part.gateway], part.gateway, part.lo, part.hi, access, part.landed)
        for part in ranges
    ]
