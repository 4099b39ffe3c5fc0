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
    segment_name,
)
from .lineage import Landed, Lineage, witness
from .payload import received_at
from .recovery import opened

LOOK_BYTES = 16 << 10


@dataclass(frozen=True, slots=True)
class Placed:
    segment: int
    record: Record


class RowLocator:
    """The frames of single rows; FileNotFoundError when a segment is trimmed meanwhile."""

    def __init__(self, disk: Disk, directory: str, identity: Identity) -> None:
        self._disk = disk
        self._directory = directory
        self._identity = identity

    def at(self, row: int, firsts: Sequence[int], published: Published) -> Placed | None:
        """Return the first frame that holds a message at or above ``row``, None if none does.

        ``firsts`` are the segments there are, in order.
        """
        index = bisect_right(firsts, row) - 1
        if index < 0:
            return None
        for first in firsts[index:]:
            with self._opened(first, published) as segment:
                record = _in_segment(segment, row)
            if record is None or record.first > row:
                _check_read(segment)
            if record is not None:
                return Placed(first, record)
        return None

    @contextmanager
    def _opened(self, first: int, published: Published) -> Iterator[Segment]:
        seed = self._identity.frame_seed
        with opened(
            self._disk, self._directory, first, seed, window=LOOK_BYTES, blanks=True
        ) as segment:
            if published.segment == first:
                segment.size = min(segment.size, published.nbytes)
            yield segment

    # -- lineage ----------------------------------------------------------------------------------

    def landed(
        self, offset: int, firsts: Sequence[int], published: Published, lineage: Lineage
    ) -> Landed:
        """Return ``offset``, one that the queue has, with what is known of the row before it."""
        row = offset - 1
        if row < 0:
            return Landed(0)
        incarnation = lineage.incarnation(row)
        if firsts and row < firsts[0]:
            return self.before(firsts[0], published, lineage)
        placed = self.at(row, firsts, published)
        if placed is None or placed.record.first > row:  # it is damaged
            return Landed(offset, incarnation)
        record = placed.record
        return Landed(offset, incarnation, witness(record.payload_crc, row - record.first))

    def before(self, first: int, published: Published, lineage: Lineage) -> Landed:
        """Return what the head of the segment ``first`` says of the row before it."""
        incarnation = lineage.incarnation(first - 1) if first else 0
        with self._opened(first, published) as segment:
            record = segment.record_at(SEGMENT_HEADER_BYTES)
            if record is not None and not record.count:
                payload = segment.payload(record)
                if crc32(payload) == record.payload_crc:
                    said, proof = LINEAGE.unpack_from(payload)
                    return Landed(first, incarnation or said, proof)
            _check_read(segment)
        return Landed(first, incarnation)

    # -- times ------------------------------------------------------------------------------------

    def received_at(self, placed: Placed, row: int, published: Published) -> int | None:
        """Return when the message ``row`` was received; None if that cannot be read."""
        with self._opened(placed.segment, published) as segment:
            record = placed.record
            head = segment.nbytes(record.position + FRAME_HEADER_BYTES, record.runs)
            _check_read(segment)
            return received_at(head, max(row - record.first, 0))


def _in_segment(segment: Segment, row: int) -> Record | None:
    for item in segment.walk(*segment.locate(row), check=False):
        if isinstance(item, Record) and item.end > row and item.count:
            return item
    return None


def _check_read(segment: Segment) -> None:
    """Raise OSError if the search is incomplete because of a read error."""
    if segment.unread():
        raise OSError(errno.EIO, f"the disk cannot read all of {segment_name(segment.first)} now")
