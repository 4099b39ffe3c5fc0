"""Read a queue: any number of processes may, without a lock, beside a living writer.

:class:`QueueReader` never reads past the published end and never changes the writer's files.  It
skips what is damaged, and remembers it (:meth:`QueueReader.damaged`).  What the disk cannot read is
an error and no damage: the disk may read it another time.  So is what somebody has taken away: it
may be put back, until a start of the writer has noted that it is lost.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import pyarrow as pa

from twisted_msgproto.core.errors import QueueAway, QueueCorrupt, QueueError, QueueMismatch

from ..core.disk import OS_DISK, Disk, read_file
from . import consumers, damage, lineage, queue_directories, recovery
from .damage import Range
from .format import OFFSET_MAX, Published, Record, Segment, crc32, segment_name
from .interface import Rows
from .lineage import Description, Landed
from .payload import Assembly
from .recovery import proven
from .row_locator import RowLocator, remedied

READ_ROWS = 10_000
READ_BYTES = 32 << 20  # a batch is returned at this size, however few rows it has
END_READS_MAX = 100
LOOKS_MAX = 100

Look = TypeVar("Look")
Note = Callable[[int, int, str], None]  # called with each damaged range lo ≤ offset < hi, and why

NOTHING_PUBLISHED = Published(0, 0, 0)
WHATEVER_STANDS_THERE = Published(OFFSET_MAX, OFFSET_MAX, 0)  # behind the published end, too


class QueueReader:
    """A reader of the queue in ``directory``.

    Raises QueueError if there is no queue.  A reader holds no files between calls, may be made
    anywhere at any time, and costs the writer nothing.  Several threads may ask and commit, but not
    while one reads rows.
    """

    def __init__(self, directory: str | os.PathLike[str], *, disk: Disk = OS_DISK) -> None:
        self.directory: str = os.path.abspath(os.fspath(directory))
        self._disk = disk
        try:
            identity = recovery.read_identity(disk, self.directory)
        except (PermissionError, NotADirectoryError) as error:
            raise QueueError(queue_directories.unreadable(self.directory, error)) from error
        if identity is None:
            raise QueueError(queue_directories.no_queue(os.fspath(directory)))
        self.identity = identity
        self.queue_id: str = identity.queue_id
        """Names this queue for good: the table's ``gateway``."""
        self._met: dict[Range, str] = {}

    @property
    def losses(self) -> int:
        """How often published messages were lost (see the document of the format)."""
        return self._lineage().losses

    def begin(self) -> int:
        """Return the first offset that is kept."""
        firsts = recovery.segment_offsets(self._disk, self.directory)
        return firsts[0] if firsts else self.end()

    def end(self) -> int:
        """Return the published end: the offset after the last message that may be read.

        Raises QueueCorrupt if the file is damaged for good (the writer mends it when it starts).
        """
        published = self.published()
        return published.offset if published is not None else 0

    def published(self) -> Published | None:
        """Return what the file ``end`` says; None if it is missing or empty.

        Raises QueueCorrupt if it is damaged for good.
        """
        for _ in range(END_READS_MAX):
            data = read_file(self._disk, os.path.join(self.directory, "end"))
            if not data:
                return None
            published = Published.unpacked(data)
            if published is not None:
                return published
        raise QueueCorrupt(
            f"the published end of the queue {self.directory} is damaged; "
            "the gateway mends it when it starts"
        )

    def damaged(self) -> list[Range]:
        """Ranges lo ≤ offset < hi that are damaged or lost and not yet trimmed, in order.

        What the writer has found and noted, and what this reader has come across.
        """
        return self._damaged_from(self.begin())

    def _damaged_from(self, begin: int) -> list[Range]:
        known = [*damage.read(self._disk, self.directory), *self._met]
        return damage.merged((lo, hi) for lo, hi in known if hi > begin)

    # -- history ----------------------------------------------------------------------------------

    def describe(self, landed: Landed | None = None) -> Description:
        """Return all that a plan needs, of the rows from ``landed`` (default: from the first one)
        on.

        Costs a few small reads, whatever the queue holds.  Raises QueueMismatch if ``landed`` is
        not this queue's history, QueueAway if that will only be known when the gateway has started
        (as :meth:`check` does, too), OSError from the disk.
        """

        def look(locator: RowLocator) -> Description:
            if landed is not None:
                self._check(landed, locator)
            end = locator.published.offset
            start = locator.begin if landed is None else landed.offset
            sizes = self._bytes(locator)
            placed = locator.at(start) if start < end else None
            oldest, waiting = None, 0
            if placed is not None and placed.record.first < end:
                oldest = locator.received_at(placed, start)
                waiting = sum(nbytes for first, nbytes in sizes.items() if first >= placed.segment)
                waiting -= placed.record.position
            standing = consumers.read_all(self._disk, self.directory, self.queue_id)
            moved = {
                name: time
                for name in standing
                if (time := consumers.moved(self._disk, self.directory, name)) is not None
            }
            return Description(
                self.queue_id,
                locator.begin,
                end,
                locator.landed(end),
                sum(sizes.values()),
                oldest,
                waiting,
                tuple(self._damaged_from(locator.begin)),
                standing,
                moved,
            )

        return self._looked(look)

    def place(self, offset: int) -> Landed:
        """Return ``offset`` with the incarnation and the witness of row ``offset`` - 1.

        Raises QueueMismatch for an offset that was trimmed or is beyond the published end.
        """

        def look(locator: RowLocator) -> Landed:
            self._check_bounds(Landed(offset), locator)
            return locator.landed(offset)

        return self._looked(look)

    def check(self, landed: Landed) -> None:
        """Raise QueueMismatch, saying why and what to do, if ``landed`` is not its history."""
        self._looked(lambda locator: self._check(landed, locator))

    def _looked(self, look: Callable[[RowLocator], Look]) -> Look:
        self._check_identity()
        for _ in range(LOOKS_MAX):
            published = self.published() or NOTHING_PUBLISHED
            firsts = recovery.segment_offsets(self._disk, self.directory)
            if firsts and firsts[0] > published.offset:
                continue  # it was trimmed up to an end that was published in between
            locator = RowLocator(
                self._disk, self.directory, self.identity, published, firsts, self._lineage()
            )
            try:
                return look(locator)
            except FileNotFoundError:
                continue  # a segment was trimmed meanwhile
        raise QueueCorrupt(
            f"the segments of the queue {self.directory} and its published end do not fit; "
            "the gateway mends it when it starts"
        )

    def _check_identity(self) -> None:
        now = recovery.read_identity(self._disk, self.directory)
        if now is not None and now != self.identity:
            raise QueueMismatch(
                f"{self.directory} holds the queue {now.queue_id} now, not {self.queue_id}: "
                "another queue was put in its place"
            )

    def _lineage(self) -> lineage.Lineage:
        return lineage.read(self._disk, self.directory) or lineage.Lineage()

    def _check(self, landed: Landed, locator: RowLocator) -> None:
        end = locator.published.offset
        if landed.offset > end and self._had_published(landed, locator):
            raise QueueAway(
                f"the published end {end} of the queue {self.queue_id} is older than "
                f"its messages, of which {landed.offset} have landed: its machine has lost power, "
                "and its gateway mends that when it starts"
            )
        self._check_bounds(landed, locator)
        lineage.check_proof(self.queue_id, landed, locator.landed(landed.offset))

    def _had_published(self, landed: Landed, locator: RowLocator) -> bool:
        """Return whether rows beyond the published end are this queue's history all the same.

        A power loss may leave an older ``end``: until the gateway has started, messages prove more.
        """
        if proven(self._disk, self.directory, self.queue_id).offset >= landed.offset:
            return True
        here = replace(locator, published=WHATEVER_STANDS_THERE).landed(landed.offset)
        return here.witness != 0 and here.witness == landed.witness

    def _check_bounds(self, landed: Landed, locator: RowLocator) -> None:
        lineage.check_bounds(self.queue_id, landed, locator.begin, locator.published.offset)

    def _bytes(self, locator: RowLocator) -> dict[int, int]:
        sizes = {
            first: self._disk.stat(os.path.join(self.directory, segment_name(first))).nbytes
            for first in locator.firsts
        }
        if locator.published.segment in sizes:
            sizes[locator.published.segment] = locator.published.nbytes
        return sizes

    # -- rows -------------------------------------------------------------------------------------

    def read(
        self,
        lo: int,
        hi: int,
        rows: int = READ_ROWS,
        nbytes: int = READ_BYTES,
        *,
        landed: Landed | None = None,
    ) -> Rows:
        """Return the messages lo ≤ offset < hi in the columns of SCHEMA, about ``rows`` a batch.

        Batches hold whole groups where that is possible and never more than 2 × ``rows``, unless
        a group does.  Damaged messages are missing from them; :attr:`Rows.damaged` says which.
        The first batch raises QueueMismatch if ``landed`` is not this queue's history, ``lo`` was
        trimmed or ``hi`` is beyond the published end; any may raise OSError from the disk, and
        does so for rows that it cannot read now and that were not noted as damaged; QueueError
        for rows whose file somebody has removed or cut, and that were not noted either.
        """
        met: list[Range] = []

        def note(first: int, last: int, why: str) -> None:
            self._met[first, last] = why
            met.append((max(first, lo), min(last, hi)))

        return Rows(self._batches(lo, hi, rows, nbytes, landed, note), met)

    def _batches(
        self, lo: int, hi: int, rows: int, nbytes: int, landed: Landed | None, note: Note
    ) -> Iterator[pa.RecordBatch]:
        if landed is not None:
            self.check(landed)
        else:
            self._check_identity()
        end = self.end()
        if not 0 <= lo <= hi <= end:
            raise QueueMismatch(
                f"offsets {lo} to {hi} asked of the queue {self.queue_id}, which ends at {end}"
            )
        assembly = Assembly(self.queue_id)
        added: list[Record] = []
        for segment, record, payload in self._records(lo, hi, note):
            first, last = max(record.first, lo), min(record.end, hi)
            try:
                if crc32(payload) != record.payload_crc:
                    raise QueueCorrupt("checksum")
                assembly.add(payload, record.runs, record.first, record.count, first, last)
            except QueueCorrupt as error:
                self._check_there(segment, record.position, record.first, first, last)
                note(record.first, record.end, str(error))
                continue
            added.append(record)
            if assembly.rows >= rows or assembly.nbytes >= nbytes:
                yield from self._finished(assembly, added, lo, hi, note)
                added = []
        if assembly.rows:
            yield from self._finished(assembly, added, lo, hi, note)

    def _finished(
        self, assembly: Assembly, added: Sequence[Record], lo: int, hi: int, note: Note
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the records that were added, but for those that make no sense."""
        try:
            batch = assembly.finish()
        except QueueCorrupt as error:
            if len(added) == 1:
                note(added[0].first, added[0].end, str(error))
                return
            for one in added:
                yield from self._batches(max(one.first, lo), min(one.end, hi), 1, 1, None, note)
            return
        yield batch

    def _records(
        self, lo: int, hi: int, note: Note
    ) -> Iterator[tuple[Segment, Record, memoryview]]:
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
            stop = min(hi, following)
            seed = self.identity.frame_seed
            try:
                with (
                    # Who passed over these rows would have lost them.
                    remedied(self.queue_id),
                    recovery.opened(self._disk, self.directory, first, seed) as segment,
                ):
                    for record in self._segment_records(segment, lo, stop, note):
                        yield segment, record, segment.payload(record)
            except FileNotFoundError:
                if recovery.is_listed(self._disk, self.directory, first):
                    raise
                continue  # trimmed since it was listed: look again
            lo = stop

    def _segment_records(
        self, segment: Segment, lo: int, stop: int, note: Note
    ) -> Iterator[Record]:
        position, expected = segment.locate(lo)
        for item in segment.walk(position, expected, check=False):
            item_hi = item.end if isinstance(item, Record) else item.hi
            expected = stop if item_hi is None else item_hi
            if expected > lo:
                if isinstance(item, Record):
                    yield item
                else:
                    first, last = max(item.lo, lo), min(expected, stop)
                    if item_hi is None:
                        self._check_there(segment, item.position, item.lo, first, last)
                    note(first, last, item.reason)
            if expected >= stop:
                return
        first = max(expected, lo)
        self._check_there(segment, segment.size, expected, first, stop)
        note(first, stop, "records missing")

    def _check_there(
        self, segment: Segment, position: int, expected: int, first: int, last: int
    ) -> None:
        """Raise QueueError if first ≤ offset < last are in no file, and may be put back."""
        if not self._ends_at(segment, position):
            return
        lost = damage.uncovered(first, last, damage.read(self._disk, self.directory))
        if lost:
            path = os.path.join(self.directory, segment_name(segment.first))
            where = f"{path} was cut short"
            if position == segment.size:
                where += f", or {segment_name(expected)} removed"
            raise QueueError(
                f"offsets {lost[0][0]} to {lost[-1][1]} of the queue {self.queue_id} are in no "
                f"segment: {where}; put it back, or restart the gateway, which notes what is lost"
            )

    def _ends_at(self, segment: Segment, position: int) -> bool:
        if segment.cut_at(position) or segment.file.size() < segment.size:
            return True
        published = self.published()
        return (
            published is not None
            and published.segment == segment.first
            and segment.file.size() < published.nbytes
        )

    # -- consumers --------------------------------------------------------------------------------

    def register(self, consumer: str) -> int:
        """Make ``consumer`` known, from now on nothing it needs is trimmed; its offset.

        A new consumer begins at the first offset that is kept; a known one stays where it is.
        """
        known = consumers.read(self._disk, self.directory, consumer, self.queue_id)
        if known is not None:
            consumers.confirm(self._disk, self.directory)
            return max(known, self.begin())
        self.commit(consumer, self.begin())
        # A segment may have gone between the look and the commit; from here on none does.
        begin = self.begin()
        if begin:
            self.commit(consumer, begin)
        return begin

    def commit(self, consumer: str, offset: int, landed: Landed | None = None) -> None:
        """Make durable that ``consumer`` needs nothing below ``offset`` any more.

        Raises QueueMismatch if ``landed`` is not this queue's history and for an offset beyond
        the published end, QueueError for an impossible name, OSError from the disk.
        """
        if landed is not None:
            self.check(landed)
        end = self.end()
        if offset > end:
            raise QueueMismatch(
                f"{consumer!r} commits offset {offset} of the queue {self.queue_id}, "
                f"which ends at {end}"
            )
        consumers.write(self._disk, self.directory, consumer, self.queue_id, offset)

    def forget(self, consumer: str) -> None:
        """Forget ``consumer``, what it still needs, and the status of its bridge; the gateway may
        continue to write.

        A consumer that still lives makes itself known again with its next commit.  Raises
        QueueError if there is none of this name.
        """
        consumers.remove(self._disk, self.directory, consumer)

    def consumers(self) -> dict[str, int]:
        """Return every registered consumer's committed offset."""
        return consumers.read_all(self._disk, self.directory, self.queue_id)


def is_unpublished(directory: str) -> bool:
    """Return whether a queue that no process writes has more than its published end says.

    After a loss of power the end may be older than what was acknowledged, and only a writer's
    start publishes the rest.  Raises QueueError if it cannot be read.
    """
    try:
        published = QueueReader(directory).published()
    except QueueCorrupt:
        return True
    firsts = recovery.segment_offsets(OS_DISK, directory)
    if published is None or not firsts:
        return bool(firsts)
    newest = os.path.join(directory, segment_name(firsts[-1]))
    at_end = (published.segment, published.nbytes)
    return firsts[-1] > published.segment or (firsts[-1], os.path.getsize(newest)) > at_end
