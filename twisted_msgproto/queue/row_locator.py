"""Find where in a queue's segments a row stands, and its proof: see :class:`RowLocator`.

Frames are found by a few headers alone: a place costs a millisecond in a queue of any size.
"""

from __future__ import annotations

import errno
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ..core.disk import Disk
from .format import (
    FRAME_HEADER_BYTES,
    LINEAGE,
    SEGMENT_HEADER_BYTES,
    Identity,
    Published,
    Record,
    Segment,
    crc32,
)
from .lineage import Landed, Lineage, witness
from .payload import received_at
from .recovery import opened
from .troubles import REMEDY

LOOK_BYTES = 16 << 10


@contextmanager
def remedied(queue_id: str) -> Iterator[None]:
    """Say in the error of a segment that the disk cannot read what its reader can do."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        line = f"{error.strerror} now: queue {queue_id} is read again later; {REMEDY}"
        raise OSError(errno.EIO, line) from error


@dataclass(frozen=True, slots=True)
class Placed:
    segment: int
    record: Record


@dataclass(frozen=True, slots=True)
class RowLocator:
    """Rows of a queue at one moment; FileNotFoundError if a segment is trimmed meanwhile."""

    disk: Disk
    directory: str
    identity: Identity
    published: Published
    firsts: Sequence[int]
    lineage: Lineage

    @property
    def begin(self) -> int:
        return self.firsts[0] if self.firsts else self.published.offset

    def at(self, row: int) -> Placed | None:
        """Return the first frame that holds a message at or above ``row``, None if none does."""
        for first in self.firsts[bisect_right(self.firsts, row) - 1 :]:
            with self._opened(first) as segment:
                for item in segment.walk(*segment.locate(row), check=False):
                    if isinstance(item, Record) and item.end > row and item.count:
                        return Placed(first, item)
        return None

    @contextmanager
    def _opened(self, first: int) -> Iterator[Segment]:
        seed = self.identity.frame_seed
        with (
            remedied(self.identity.queue_id),
            opened(self.disk, self.directory, first, seed, window=LOOK_BYTES) as segment,
        ):
            if self.published.segment == first:
                segment.size = min(segment.size, self.published.nbytes)
            yield segment

    def landed(self, offset: int) -> Landed:
        """Return ``offset``, one that the queue has, with what is known of the row before it."""
        row = offset - 1
        if row < 0:
            return Landed(0)
        incarnation = self.lineage.incarnation(row)
        if row < self.begin and self.firsts:
            return self._before(self.begin, incarnation)
        placed = self.at(row)
        if placed is None or placed.record.first > row:  # it is damaged
            return Landed(offset, incarnation)
        record = placed.record
        return Landed(offset, incarnation, witness(record.payload_crc, row - record.first))

    def _before(self, first: int, incarnation: int) -> Landed:
        with self._opened(first) as segment:
            record = segment.record_at(SEGMENT_HEADER_BYTES)
            if record is not None and not record.count:
                payload = segment.payload(record)
                if crc32(payload) == record.payload_crc and len(payload) >= LINEAGE.size:
                    said, proof = LINEAGE.unpack_from(payload)
                    return Landed(first, incarnation or said, proof)
        return Landed(first, incarnation)

    def received_at(self, placed: Placed, row: int) -> int | None:
        """Return when the message ``row`` was received; None if that cannot be read."""
        with self._opened(placed.segment) as segment:
            record = placed.record
            head = segment.nbytes(record.position + FRAME_HEADER_BYTES, record.runs)
            return received_at(head, max(row - record.first, 0))
