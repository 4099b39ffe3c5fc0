"""Check a whole queue: what is in it, what is damaged, which offsets are lost.

It only reads, needs no lock, and may run beside a living writer.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from twisted_msgproto.core.errors import QueueCorrupt

from . import damage, recovery
from .columns import Assembly
from .damage import Range
from .disk import OS_DISK, Disk
from .format import Record, Segment, segment_name
from .reader import QueueReader


@dataclass(slots=True)
class SegmentReport:
    """Describes one segment: its offsets lo ≤ n < hi, its octets, its complete groups and
    messages.
    """

    name: str
    lo: int
    hi: int
    octets: int
    groups: int = 0
    messages: int = 0


@dataclass(slots=True)
class Report:
    """Reports what :func:`verify` found."""

    queue_id: str
    epoch: int
    begin: int
    end: int
    segments: list[SegmentReport] = field(default_factory=list)
    damaged: list[Range] = field(default_factory=list)
    """Ranges below the published end that cannot be read."""
    lines: list[str] = field(default_factory=list)
    """These are the faults, one line each."""
    unpublished_octets: int = 0
    """These lie behind the published end: a write under way, or the rest of a crash."""

    @property
    def octets(self) -> int:
        """Return what all segments hold together."""
        return sum(segment.octets for segment in self.segments)

    @property
    def messages(self) -> int:
        """Messages that can be read."""
        return sum(segment.messages for segment in self.segments)

    @property
    def groups(self) -> int:
        """Groups that can be read."""
        return sum(segment.groups for segment in self.segments)


def segments(disk: Disk, directory: str, end: int) -> list[SegmentReport]:
    """Return the segments by their names and sizes alone; what is trimmed meanwhile is left out."""
    firsts = recovery.segment_offsets(disk, directory)
    found = []
    for index, first in enumerate(firsts):
        following = firsts[index + 1] if index + 1 < len(firsts) else max(first, end)
        name = segment_name(first)
        try:
            file = disk.open(os.path.join(directory, name))
        except FileNotFoundError:
            continue
        try:
            found.append(SegmentReport(name, first, following, file.size()))
        finally:
            file.close()
    return found


def verify(directory: str | os.PathLike[str], *, disk: Disk = OS_DISK) -> Report:
    """Read and decode every record of a queue up to its published end.

    Raises QueueError if there is no queue, OSError from the disk.
    """
    reader = QueueReader(directory, disk=disk)
    end = reader.end()
    report = Report(reader.queue_id, reader.epoch, reader.begin(), end)
    listed = segments(disk, reader.directory, end)
    ranges: list[Range] = []
    for found in listed:
        try:
            file = disk.open(os.path.join(reader.directory, found.name))
        except FileNotFoundError:
            continue  # trimmed since it was listed
        report.segments.append(found)
        try:
            segment = Segment(file, reader.identity.frame_seed, found.lo)
            _verify_segment(segment, found, found is listed[-1], report, ranges)
        finally:
            file.close()
    ranges.extend(damage.read(disk, reader.directory))
    report.damaged = damage.merged(
        (max(lo, report.begin), min(hi, end)) for lo, hi in ranges if hi > report.begin and lo < end
    )
    return report


def _verify_segment(
    segment: Segment, found: SegmentReport, newest: bool, report: Report, ranges: list[Range]
) -> None:
    header = segment.header()
    if header is None:
        report.lines.append(f"{found.name}: damaged segment header; no message is lost")
    elif header.identity.queue_id != report.queue_id or header.first != found.lo:
        report.lines.append(
            f"{found.name}: says it begins at offset {header.first} of the queue "
            f"{header.identity.queue_id}"
        )
    expected = found.lo
    for item in recovery.checked(segment, found.lo, None if newest else found.hi):
        if (item.first if isinstance(item, Record) else item.lo) >= report.end:
            report.unpublished_octets += segment.size - item.position
            break
        if isinstance(item, Record) and not item.count:
            continue  # the segment's lineage
        if isinstance(item, Record):
            expected = item.end
            try:
                assembly = Assembly(report.queue_id)
                payload = segment.payload(item)
                assembly.add(payload, item.runs, item.first, item.count, item.first, item.end)
                assembly.finish().validate(full=True)
            except (QueueCorrupt, ValueError) as error:
                ranges.append((item.first, item.end))
                report.lines.append(f"{found.name} at {item.position}: {error}")
            else:
                found.groups += 1
                found.messages += item.count
        else:
            expected = report.end if item.hi is None else item.hi
            if item.lo < expected:
                ranges.append((item.lo, expected))
            report.lines.append(
                f"{found.name} at {item.position}: {item.end_position - item.position} damaged "
                f"octets ({item.reason}), offsets {item.lo} to {expected}"
            )
    if newest and expected < report.end:
        ranges.append((expected, report.end))
        report.lines.append(f"{found.name}: ends at offset {expected}, published is {report.end}")
