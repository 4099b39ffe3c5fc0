"""Check a whole queue: what is in it, what is damaged, which offsets are lost.

What could not be read is named, too: a check that saw half of a queue must not call it sound.
It only reads, needs no lock, and may run beside a living writer.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TypeVar

from twisted_msgproto.core.errors import QueueCorrupt, QueueError

from ..core.disk import OS_DISK, Disk
from . import consumers, damage, lineage, recovery
from .damage import Range
from .format import OFFSET_MAX, Damage, Published, Record, Segment, segment_name
from .payload import Assembly
from .reader import QueueReader
from .recovery import Proven, furthest, proven

Asked = TypeVar("Asked")


@dataclass(slots=True)
class SegmentReport:
    name: str
    lo: int
    hi: int
    bytes: int
    groups: int = 0
    messages: int = 0


@dataclass(slots=True)
class Report:
    queue_id: str
    begin: int
    end: int
    segments: list[SegmentReport] = field(default_factory=list)
    damaged: list[Range] = field(default_factory=list)  # below the published end
    lines: list[str] = field(default_factory=list)
    unpublished_bytes: int = 0  # a write under way, or a crash's rest
    unseen: list[str] = field(default_factory=list)  # lines: which part, and why
    notes: list[str] = field(default_factory=list)  # lines, no faults

    @property
    def intact(self) -> bool:
        return not (self.damaged or self.lines or self.unseen)

    @property
    def nbytes(self) -> int:
        return sum(segment.bytes for segment in self.segments)

    @property
    def messages(self) -> int:
        return sum(segment.messages for segment in self.segments)

    @property
    def groups(self) -> int:
        return sum(segment.groups for segment in self.segments)


def segments(disk: Disk, directory: str, end: int) -> list[SegmentReport]:
    """Return the segments by names and sizes alone, without what is trimmed now; OSError."""
    found = []
    for report in _listed(disk, directory, end):
        try:
            report.bytes = disk.stat(os.path.join(directory, report.name)).nbytes
        except FileNotFoundError:
            if recovery.is_listed(disk, directory, report.lo):
                raise
        else:
            found.append(report)
    return found


def _listed(disk: Disk, directory: str, end: int) -> list[SegmentReport]:
    firsts = recovery.segment_offsets(disk, directory)
    return [
        SegmentReport(segment_name(first), first, max(first, end) if hi is None else hi, 0)
        for first, hi in zip_longest(firsts, firsts[1:])
    ]


def verify(directory: str | os.PathLike[str], *, disk: Disk = OS_DISK) -> Report:
    """Read and decode every record of a queue up to its published end.

    Raises QueueError if there is no queue, OSError if its identity or its names cannot be read.
    """
    reader = QueueReader(directory, disk=disk)
    report = Report(reader.queue_id, 0, 0)
    published = _look_at_ends(disk, reader, report)
    firsts = recovery.segment_offsets(disk, reader.directory)
    newest = firsts[-1] if firsts else None
    report.begin = firsts[0] if firsts else report.end
    # In this order: a living writer trims what is committed already.
    committed = consumers.read_all(disk, reader.directory, reader.queue_id)
    report.lines += consumers.bereft(committed, report.begin)
    if report.end and not firsts:
        report.lines.append(
            f"there is no segment: of the messages below the end {report.end} none is left"
        )
    if published is None and newest is not None:
        report.end = max(report.end, newest)
    ranges: list[Range] = []
    behind: Behind | None = None
    for found in _listed(disk, reader.directory, report.end):
        try:
            with recovery.opened(
                disk, reader.directory, found.lo, reader.identity.frame_seed
            ) as segment:
                found.bytes = segment.size
                report.segments.append(found)
                last = found.lo == newest
                behind = _verify_segment(segment, found, last, published is None, report, ranges)
        except OSError as error:
            gone = isinstance(error, FileNotFoundError)
            if not gone or recovery.is_listed(disk, reader.directory, found.lo):
                report.unseen.append(f"{found.name}: not read to its end: {error}")
    if behind is not None:
        _tell_behind(disk, reader, report, behind)
    _verify_broker(disk, reader, report)
    ranges.extend(_asked(report, lambda: damage.read(disk, reader.directory), {}))
    end = report.end
    report.damaged = damage.merged(
        (max(lo, report.begin), min(hi, end)) for lo, hi in ranges if hi > report.begin and lo < end
    )
    return report


def _asked(report: Report, read: Callable[[], Asked], otherwise: Asked) -> Asked:
    """Return what ``read`` reads, or ``otherwise`` and a line where the disk cannot read now."""
    try:
        return read()
    except OSError as error:
        report.unseen.append(f"not read: {error}")
        return otherwise


def _verify_broker(disk: Disk, reader: QueueReader, report: Report) -> None:
    from .broker_files import state as check

    where = f"{check.DIRECTORY}/log"
    try:
        if not check.has_broker(disk, reader.directory):
            return
        report.lines += check.faults(disk, reader.directory, reader.queue_id)
        kept = verify(os.path.join(reader.directory, where), disk=disk)
    except (OSError, QueueError) as error:
        report.unseen.append(f"{check.DIRECTORY}: {error}")
        return
    report.lines += [f"{where}/{line}" for line in kept.lines]
    report.unseen += [f"{where}: {line}" for line in kept.unseen]
    report.lines += [
        f"{where}: {hi - lo} copies of messages are damaged, at its offsets {lo} to {hi}"
        for lo, hi in kept.damaged
    ]
    report.notes.append(
        f"a broker has queues over it; {kept.messages} messages, some of them settled, are kept in "
        f"{where}"
    )


def _look_at_ends(disk: Disk, reader: QueueReader, report: Report) -> Published | None:
    # In this order: a living writer publishes before any consumer can commit.
    nothing = Proven(0, "nothing that could be read")
    other = _asked(report, lambda: proven(disk, reader.directory, reader.queue_id), nothing)
    try:
        published, why = reader.published(), "missing"
    except QueueCorrupt:
        published, why = None, "damaged"
    except OSError as error:
        published, why = None, f"not read ({error})"
    known = furthest(published, other)
    report.end = known.offset
    if published is None:
        report.unseen.append(
            f"the file 'end' is {why}: how far messages were published is only known from "
            f"{known.by} (offset {known.offset}), and from the records that are there"
        )
    elif published.offset < known.offset:
        report.notes.append(
            f"the file 'end' is old, it says {published.offset}: the queue was published up to "
            f"{known.offset} at least, which {known.by} proves"
        )
    unknown: lineage.Lineage | None = lineage.Lineage()
    if _asked(report, lambda: lineage.read(disk, reader.directory), unknown) is None:
        report.unseen.append(
            "the file 'lineage' is missing or damaged: which start of the gateway wrote these "
            "messages is not known"
        )
    return published


@dataclass(slots=True)
class Behind:
    """What lies behind the published end of the newest segment."""

    name: str
    nbytes: int
    messages: int = 0
    damaged: list[Range] = field(default_factory=list)
    unknown: int = 0  # these bytes are no record, and may have been one


def _tell_behind(disk: Disk, reader: QueueReader, report: Report, behind: Behind) -> None:
    holder = disk.lock_holder(os.path.join(reader.directory, "lock"))
    if holder is not None:
        try:
            now = reader.published()
        except QueueCorrupt:
            now = None
        if now is None or now.offset <= report.end:
            report.unseen.append(
                f"{behind.name}: {behind.nbytes} bytes behind the published end were not looked "
                f"at, because process {holder} has the queue open"
            )
        return
    if behind.messages:
        report.notes.append(
            f"{behind.name}: {behind.messages} whole messages behind the published end; the next "
            "start of the gateway publishes them"
        )
    for lo, hi in behind.damaged:
        report.lines.append(
            f"{behind.name}: damaged offsets {lo} to {hi} behind the published end, which may be "
            "older than they are"
        )
    if behind.unknown:
        report.unseen.append(
            f"{behind.name}: {behind.unknown} bytes at its end are no record; nothing proves that "
            "they were published, but they may have held messages"
        )


def _verify_segment(
    segment: Segment,
    found: SegmentReport,
    newest: bool,
    open_ended: bool,
    report: Report,
    ranges: list[Range],
) -> Behind | None:
    """Judge the records of a segment; return what lies behind the published end.

    An ``open_ended`` queue was published as far as its newest segment has records, at least.
    """
    header = segment.header()
    if header is None:
        report.lines.append(f"{found.name}: damaged segment header; no message is lost")
    elif header.identity.queue_id != report.queue_id or header.first != found.lo:
        report.lines.append(
            f"{found.name}: says it begins at offset {header.first} of the queue "
            f"{header.identity.queue_id}"
        )
    expected, limit = found.lo, OFFSET_MAX if newest and open_ended else report.end
    behind: Behind | None = None
    for item in recovery.findings(segment, found.lo, None if newest else found.hi):
        lo, hi = (item.first, item.end) if isinstance(item, Record) else (item.lo, item.hi)
        if behind is None and (lo >= limit or (limit == OFFSET_MAX and hi is None)):
            report.unpublished_bytes += segment.size - item.position
            if not newest:
                return None
            behind = Behind(found.name, segment.size - item.position)
        if behind is not None:
            _look_behind(segment, item, behind)
            continue
        if lo == hi and isinstance(item, Record):
            continue  # the segment's lineage
        expected = report.end if hi is None else hi
        if isinstance(item, Record):
            try:
                assembly = Assembly(report.queue_id)
                payload = segment.payload(item)
                assembly.add(payload, item.runs, item.first, item.count, item.first, item.end)
                assembly.finish()
            except QueueCorrupt as error:
                ranges.append((item.first, item.end))
                report.lines.append(f"{found.name} at {item.position}: {error}")
            else:
                found.groups += 1
                found.messages += item.count
        else:
            if lo < expected:
                ranges.append((lo, expected))
            report.lines.append(
                f"{found.name} at {item.position}: {item.end_position - item.position} damaged "
                f"bytes ({item.reason}), offsets {lo} to {expected}"
            )
    if newest and open_ended:
        found.hi = report.end = max(report.end, expected)
    if newest and expected < report.end:
        ranges.append((expected, report.end))
        report.lines.append(f"{found.name}: ends at offset {expected}, published is {report.end}")
    return behind


def _look_behind(segment: Segment, item: Record | Damage, behind: Behind) -> None:
    if isinstance(item, Record):
        behind.messages += item.count
    elif item.hi is not None:
        behind.damaged.append((item.lo, item.hi))
    elif not segment.unfinished_at(item.position):
        behind.unknown = segment.size - item.position
