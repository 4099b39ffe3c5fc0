"""Every queue offers this to its readers, on this machine or on another.

:class:`~.reader.QueueReader` is a :class:`Queue` in a directory,
:class:`~twisted_msgproto.spark.flight_client.FlightQueue` one that is served over Arrow Flight.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import pyarrow as pa

from . import damage
from .damage import Range
from .lineage import Description, Landed


class Rows:
    """The record batches of one read, in order; afterwards it says what was damaged.

    It can be read once.
    """

    def __init__(self, batches: Iterator[pa.RecordBatch], met: list[Range]) -> None:
        self._batches = batches
        self._met = met

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        return next(self._batches)

    @property
    def damaged(self) -> list[Range]:
        """Return the ranges lo ≤ offset < hi that this very read met as damaged, up to now, in
        order.
        """
        return damage.merged(self._met)


class Queue(Protocol):
    """A queue that can be described, read and told what is not needed any more.

    Every method may raise QueueError, one line: QueueMismatch for what is not this queue's
    history, QueueAway when its gateway does not answer.
    """

    @property
    def queue_id(self) -> str:
        """Names the queue for good: the table's ``gateway``."""

    def begin(self) -> int:
        """Return the first offset that is kept."""

    def end(self) -> int:
        """Return the offset after the last published row."""

    def describe(self, landed: Landed | None = None) -> Description:
        """Return all that a plan needs, of the rows from ``landed`` on; checks ``landed`` first."""

    def place(self, offset: int) -> Landed:
        """Return ``offset`` with the incarnation and the witness of row ``offset`` - 1."""

    def check(self, landed: Landed) -> None:
        """Raise QueueMismatch, saying why and what to do, if ``landed`` is not its history."""

    def read(self, lo: int, hi: int, rows: int = ..., *, landed: Landed | None = None) -> Rows:
        """Return the rows lo ≤ offset < hi, about ``rows`` a batch; checks ``landed`` first."""

    def register(self, consumer: str) -> int:
        """Make ``consumer`` known, and keep from now on what it needs; its offset."""

    def commit(self, consumer: str, offset: int, landed: Landed | None = None) -> None:
        """Say that ``consumer`` needs nothing below ``offset``; checks ``landed`` first."""

    def forget(self, consumer: str) -> None:
        """Forget ``consumer`` and what it still needs."""
