"""Reading a queue: any number of processes, no lock, beside a living writer.

:class:`QueueReader` never goes past the published end and never touches the writer's files.  What
it finds damaged it passes over and remembers (:meth:`QueueReader.damaged`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pyarrow as pa

from twisted_msgproto.core.errors import QueueCorrupt, QueueError, QueueMismatch

from . import consumers, damage, recovery
from .checksum import crc32
from .columns import Assembly
from .damage import Range
from .disk import OS_DISK, Disk, read_whole
from .format import Published, Record, Segment, segment_name

READ_ROWS = 10_000
READ_OCTETS = 32 << 20
"""A batch is given out at this weight, however few rows it has."""
END_READS_MAX = 100
"""How often the published end is read again when a read meets a write."""


class QueueReader:
    """Reads the queue in ``directory``.

    Raises QueueError if there is no queue.  A reader holds no files between calls, may be made
    anywhere at any time, and costs the writer nothing.  Not for use by several threads at once.
    """

    def __init__(self, directory: str | os.PathLike[str], *, disk: Disk = OS_DISK) -> None:
        self.directory = os.path.abspath(os.fspath(directory))
        self._disk = disk
        try:
            identity = recovery.read_identity(disk, self.directory)
        except (NotADirectoryError, PermissionError) as error:
            raise QueueError(f"cannot read the queue {self.directory}: {error}") from error
        if identity is None:
            raise QueueError(f"no queue in {self.directory} (nothing has written there yet)")
        self.identity = identity
        self.queue_id = identity.queue_id
        """Names this queue for good: the table's ``gateway``."""
        self._met: dict[Range, str] = {}

    @property
    def epoch(self) -> int:
        """How often published records were lost (see the document of the format)."""
        return recovery.read_epoch(self._disk, self.directory) or 0

    def begin(self) -> int:
        """The first offset which is kept."""
        firsts = recovery.segment_offsets(self._disk, self.directory)
        return firsts[0] if firsts else self.end()

    def end(self) -> int:
        """The published end: the offset after the last message which may be read.

        Raises QueueCorrupt if the file is damaged for good (the writer mends it when it starts).
        """
        published = self._published()
        return published.offset if published is not None else 0

    def _published(self) -> Published | None:
        for _ in range(END_READS_MAX):
            octets = read_whole(self._disk, os.path.join(self.directory, "end"))
            if not octets:
                return None
            published = Published.unpacked(octets)
            if published is not None:
                return published
        raise QueueCorrupt(
            f"the published end of the queue {self.directory} is damaged; "
            "the gateway mends it when it starts"
        )

    def damaged(self) -> list[Range]:
        """Ranges lo ≤ offset < hi which are damaged or lost and not yet trimmed, in order.

        What the writer has found and noted, and what this reader has come across.
        """
        begin = self.begin()
        known = [*damage.read(self._disk, self.directory), *self._met]
        return damage.merged((lo, hi) for lo, hi in known if hi > begin)

    def read(
        self, lo: int, hi: int, rows: int = READ_ROWS, octets: int = READ_OCTETS
    ) -> Iterator[pa.RecordBatch]:
        """The messages lo ≤ offset < hi in the columns of SCHEMA, about ``rows`` a batch.

        Batches hold whole groups where that is possible and never more than 2 × ``rows``, unless
        a group does.  Damaged messages are missing from them.  Raises QueueMismatch if ``lo`` was
        trimmed or ``hi`` is beyond the published end, OSError from the disk.
        """
        end = self.end()
        if not 0 <= lo <= hi <= end:
            raise QueueMismatch(
                f"offsets {lo} to {hi} asked of the queue {self.queue_id}, which ends at {end}"
            )
        assembly = Assembly(self.queue_id)
        for segment, record in self._records(lo, hi):
            first, last = max(record.first, lo), min(record.end, hi)
            payload = segment.payload(record)
            try:
                if crc32(payload) != record.payload_crc:
                    raise QueueCorrupt("checksum")
                assembly.add(payload, record.runs, record.first, record.count, first, last)
            except QueueCorrupt as error:
                self._met[record.first, record.end] = str(error)
                continue
            if assembly.rows >= rows or assembly.octets >= octets:
                yield assembly.finish()
        if assembly.rows:
            yield assembly.finish()

    def _records(self, lo: int, hi: int) -> Iterator[tuple[Segment, Record]]:
        """The records which hold lo ≤ offset < hi; what is missing is noted as damaged."""
        while lo < hi:
            firsts = recovery.segment_offsets(self._disk, self.directory)
            if not firsts or firsts[0] > lo:
                raise QueueMismatch(
                    f"offset {lo} of the queue {self.queue_id} was trimmed; "
                    f"it begins at {firsts[0] if firsts else self.end()}"
                )
            index = max(index for index, first in enumerate(firsts) if first <= lo)
            first = firsts[index]
            following = firsts[index + 1] if index + 1 < len(firsts) else hi
            try:
                file = self._disk.open(os.path.join(self.directory, segment_name(first)))
            except FileNotFoundError:
                continue  # trimmed since it was listed: look again
            try:
                segment = Segment(file, self.identity.frame_seed, first)
                stop = min(hi, following)
                for record in self._segment_records(segment, lo, stop):
                    yield segment, record
            finally:
                file.close()
            lo = stop

    def _segment_records(self, segment: Segment, lo: int, stop: int) -> Iterator[Record]:
        """One segment's records which hold lo ≤ offset < stop, by their headers."""
        position, expected = segment.locate(lo)
        for item in segment.walk(position, expected, check=False):
            item_hi = item.end if isinstance(item, Record) else item.hi
            expected = stop if item_hi is None else item_hi
            if expected > lo:
                if isinstance(item, Record):
                    yield item
                else:
                    self._met[max(item.lo, lo), min(expected, stop)] = item.reason
            if expected >= stop:
                return
        self._met[max(expected, lo), stop] = "records missing"

    # -- consumers --------------------------------------------------------------------------------

    def register(self, consumer: str) -> int:
        """Make ``consumer`` known, from now on nothing it needs is trimmed; its offset.

        A new consumer begins at the first offset which is kept; a known one stays where it is.
        """
        known = consumers.read(self._disk, self.directory, consumer, self.queue_id)
        if known is not None:
            return max(known, self.begin())
        self.commit(consumer, self.begin())
        # A segment may have gone between the look and the commit; from here on none does.
        begin = self.begin()
        if begin:
            self.commit(consumer, begin)
        return begin

    def commit(self, consumer: str, offset: int) -> None:
        """Make durable that ``consumer`` needs nothing below ``offset`` any more.

        Raises QueueMismatch for an offset beyond the published end, QueueError for an impossible
        name, OSError from the disk.
        """
        end = self.end()
        if offset > end:
            raise QueueMismatch(
                f"{consumer!r} commits offset {offset} of the queue {self.queue_id}, "
                f"which ends at {end}"
            )
        consumers.write(self._disk, self.directory, consumer, self.queue_id, offset)

    def consumers(self) -> dict[str, int]:
        """Every registered consumer's committed offset."""
        return consumers.read_all(self._disk, self.directory, self.queue_id)
