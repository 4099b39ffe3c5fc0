"""A writer that opens a queue checks and mends it.

The table of cases stands in ``docs/queue-format.md``, "What the writer repairs at its start".  In
one sentence: incomplete records that were never published are copied aside and cut off; published
records that are damaged are copied aside, reported once and skipped; offsets are never assigned
twice.  The file ``end`` is not the only proof of what was published (:func:`proven`).

What the disk cannot read now is not damaged.  A start needs the small files and the newest segment,
and OSError ends it before any message is lost; older segments are checked later, but for what is
in no file: readers wait until a start has noted that.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from twisted_msgproto.core.errors import QueueError, QueueMismatch

from ..core.disk import NO_ROOM, Disk, read_file, replace_file
from . import consumers, damage, lineage
from .damage import Range
from .format import (
    FORMAT_VERSION,
    IDENTITY_FILE,
    OFFSET_MAX,
    SEGMENT_HEADER_BYTES,
    WINDOW_BYTES,
    Damage,
    Identity,
    Published,
    Record,
    Segment,
    SegmentHeader,
    segment_name,
    segment_offset,
)
from .troubles import REMEDY

LOOK_BYTES = 64 << 10
WRITE_AGAIN_BYTES = 1 << 20


@dataclass(slots=True)
class Recovery:
    """What was found at a start.  ``lines`` say it for the log, one line each."""

    lost: bool = False
    """Published messages are gone with their bytes: a disk lost what it had confirmed."""
    lines: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Found:
    """The state of the queue after recovery, and where appending resumes."""

    identity: Identity
    end: int
    sizes: dict[int, int]  # first offset of each segment → its bytes, in order
    appendable: bool  # to the newest segment; else a new one begins at ``end``
    damaged: dict[Range, str]
    unchecked: deque[int]  # first offsets of these, newest last
    recovery: Recovery


def segment_offsets(disk: Disk, directory: str) -> list[int]:
    offsets = (segment_offset(name) for name in disk.names(directory))
    return sorted(offset for offset in offsets if offset is not None)


def is_listed(disk: Disk, directory: str, first: int) -> bool:
    """Return whether a segment that was not found is there all the same, as a link to nowhere."""
    return segment_name(first) in disk.names(directory)


@contextlib.contextmanager
def opened(
    disk: Disk,
    directory: str,
    first: int,
    frame_seed: int,
    *,
    write: bool = False,
    window: int = WINDOW_BYTES,
) -> Iterator[Segment]:
    """Open a segment for a while.  Raises OSError, and FileNotFoundError if it was trimmed."""
    path = os.path.join(directory, segment_name(first))
    with contextlib.closing(disk.open(path, write=write)) as file:
        yield Segment(file, frame_seed, first, window=window)


def read_identity(disk: Disk, directory: str) -> Identity | None:
    """Return what the file says, None if it is damaged; QueueError for another version."""
    data = read_file(disk, os.path.join(directory, IDENTITY_FILE))
    identity = Identity.unsealed(data) if data is not None else None
    if isinstance(identity, int):
        raise QueueError(
            f"queue {directory} has format version {identity}; this program knows {FORMAT_VERSION}"
        )
    return identity


def read_headers(
    disk: Disk, directory: str, firsts: list[int], *, all_needed: bool
) -> dict[int, tuple[SegmentHeader | None, int]]:
    """Return each segment's header (None if damaged) and size, by first offset.

    OSError where the disk cannot read; without ``all_needed`` older ones are None then.
    """
    headers: dict[int, tuple[SegmentHeader | None, int]] = {}
    for first in firsts:
        with opened(disk, directory, first, 0, window=0) as segment:
            header = None
            try:
                header = segment.header()
            except OSError:
                if all_needed or first == firsts[-1]:
                    raise
            headers[first] = header, segment.size
    return headers


def findings(
    segment: Segment, first: int, bound: int | None, *, stretches: bool = False
) -> Iterator[Record | Damage]:
    """Yield a segment's records below ``bound`` and its damage, the end of it included.

    ``bound`` is the next segment's first offset, and what is missing up to there comes last; None
    in the newest, which ends with a :class:`Damage` with ``hi`` None if with no record.
    ``stretches``: many records may come as one.
    """
    expected = first
    limit = (OFFSET_MAX if bound is None else bound) if stretches else None
    for item in segment.walk(SEGMENT_HEADER_BYTES, first, bound=limit):
        if isinstance(item, Record):
            if bound is not None and item.first >= bound:
                break
            expected = item.end
        else:
            if bound is not None and (item.hi is None or item.hi >= bound):
                item.hi = bound
                if item.lo < bound:
                    yield item
                return
            if item.hi is not None:
                expected = item.hi
        yield item
    if bound is not None and expected < bound:
        yield Damage(segment.size, segment.size, expected, bound, "records missing")


def recover(disk: Disk, directory: str, *, check_bytes: int, has_queues: bool) -> Found:
    """Check the queue in ``directory``, mend what has to be mended, and return where to resume.

    The caller holds the lock, and makes the damage durable (:func:`put_damaged`). ``check_bytes``
    of the newest segments are checked, the last one in full. ``has_queues``: a broker may need what
    consumers do not. QueueError for what is not ours to mend, OSError from the disk; then no
    message was lost.
    """
    recovery = Recovery()
    firsts = segment_offsets(disk, directory)
    all_needed = read_identity(disk, directory) is None
    headers = read_headers(disk, directory, firsts, all_needed=all_needed)
    for header, _ in headers.values():
        if header is not None and header.version != FORMAT_VERSION:
            raise QueueError(
                f"queue {directory} has format version {header.version}; "
                f"this program knows {FORMAT_VERSION}"
            )
    identity = _identity(disk, directory, headers, recovery)
    firsts = list(headers)
    for first, (header, _) in headers.items():
        if header is not None and header.identity.queue_id != identity.queue_id:
            raise QueueMismatch(
                f"{os.path.join(directory, segment_name(first))} belongs to the queue "
                f"{header.identity.queue_id}, the directory to {identity.queue_id}"
            )
    published = Published.unpacked(read_file(disk, os.path.join(directory, "end")) or b"")
    known = furthest(published, proven(disk, directory, identity.queue_id))
    state = Found(
        identity,
        0,
        {first: size for first, (_, size) in headers.items()},
        False,
        damage.read(disk, directory),
        deque(),
        recovery,
    )
    if not has_queues:
        _remove_again(disk, directory, state)
        firsts = list(state.sizes)
    checkable = check_bytes
    oldest_checked = len(firsts) - 1
    while oldest_checked > 0 and checkable >= state.sizes[firsts[oldest_checked]]:
        checkable -= state.sizes[firsts[oldest_checked]]
        oldest_checked -= 1
    unread: list[OSError] = []
    for index, (first, bound) in enumerate(pairwise(firsts)):
        try:
            if index >= oldest_checked or not _reaches(disk, directory, state, first, bound):
                check_segment(disk, directory, state, first, bound)
                continue
        except OSError as error:
            unread.append(error)
        state.unchecked.append(first)
    if unread:
        recovery.lines.append(
            f"queue {directory}: the disk cannot read {len(unread)} of its segments now; they are "
            f"checked later: {unread[0]}; {REMEDY}"
        )
    _newest(disk, directory, state, headers, published, known)
    begin = firsts[0] if firsts else state.end
    state.damaged = {(lo, hi): why for (lo, hi), why in state.damaged.items() if hi > begin}
    return state


def _remove_again(disk: Disk, directory: str, state: Found) -> None:
    """Remove what all consumers have behind them; a power loss after a failed sync restored it."""
    committed = consumers.read_all(disk, directory, state.identity.queue_id)
    low = min(committed.values(), default=0)
    gone = -1
    for first, bound in pairwise(state.sizes):
        with contextlib.suppress(OSError):  # for what it cannot read now it stays
            if bound <= low and not _reaches(disk, directory, state, first, bound):
                gone = first
    for first in [first for first in state.sizes if first <= gone]:
        disk.remove(os.path.join(directory, segment_name(first)))
        del state.sizes[first]


def check_segment(disk: Disk, directory: str, state: Found, first: int, bound: int) -> None:
    path = os.path.join(directory, segment_name(first))
    with opened(disk, directory, first, state.identity.frame_seed) as segment:
        if segment.header() is None:
            state.recovery.lines.append(f"damaged segment header in {path}: no message is lost")
        for item in findings(segment, first, bound, stretches=True):
            if isinstance(item, Damage) and item.hi is not None:
                _quarantine(disk, directory, state, segment, item, item.hi)


def _reaches(disk: Disk, directory: str, state: Found, first: int, bound: int) -> bool:
    seed = state.identity.frame_seed
    with opened(disk, directory, first, seed, window=LOOK_BYTES) as segment:
        position, end = segment.locate(bound)
        for item in segment.walk(position, end, check=False):
            end = item.end if isinstance(item, Record) else item.hi or end
    return not damage.uncovered(end, bound, state.damaged)


def _newest(
    disk: Disk,
    directory: str,
    state: Found,
    headers: dict[int, tuple[SegmentHeader | None, int]],
    published: Published | None,
    known: Proven,
) -> None:
    recovery = state.recovery
    if not headers:
        if known.offset:
            why = f"all segments below the end {known.offset} ({known.by}) are gone"
            _note_loss(recovery, why)
        state.end = known.offset
        return
    first, (header, _) = list(headers.items())[-1]
    path = os.path.join(directory, segment_name(first))
    with opened(disk, directory, first, state.identity.frame_seed, write=True) as segment:
        size, end = segment.size, first
        position = min(SEGMENT_HEADER_BYTES, size)
        tail: Damage | None = None
        for item in findings(segment, first, None, stretches=True):
            if isinstance(item, Record):
                end, position = item.end, item.end_position
            elif item.hi is None:
                tail = item
            else:
                _quarantine(disk, directory, state, segment, item, item.hi)
                end, position = item.hi, item.end_position
        state.end = max(end, known.offset)
        state.appendable = header is not None
        if header is None and end > first:
            recovery.lines.append(f"damaged segment header in {path}: no message is lost")
        if end >= known.offset:
            if tail is not None:
                _cut(disk, directory, state, segment, position)
            # What a killed process had written but not synced is published now.
            _write_again(segment, known.offset)
            segment.file.sync()
            return
        # Published messages are damaged, or gone with their bytes.
        state.appendable = False
        where = tail or Damage(position, size, end, None, "records missing")
        in_place = tail is not None and _in_place(segment, position, published, known)
        _quarantine(disk, directory, state, segment, where, known.offset)
        if not in_place:
            why = f"the queue ends at {end}, it was published up to {known.offset} ({known.by})"
            _note_loss(recovery, why)


def _write_again(segment: Segment, published: int) -> None:
    """Write again what is above ``published``, in its place; on a full disk only sync.

    An earlier start's sync may have failed: pages that could not be written count as clean, and the
    next one succeeds without them.
    """
    file, size = segment.file, segment.file.size()
    position = segment.locate(published)[0] if published > segment.first else 0
    while position < size:
        try:
            data = file.read(position, WRITE_AGAIN_BYTES)
        except OSError as error:
            raise OSError(error.errno, error.strerror, segment_name(segment.first)) from error
        try:
            file.write(position, [data])
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            return
        position += len(data)


def _in_place(segment: Segment, position: int, published: Published | None, known: Proven) -> bool:
    if published is not None and published.offset == known.offset:
        return published.segment == segment.first and segment.size >= published.nbytes
    return not segment.unfinished_at(position)


def _cut(disk: Disk, directory: str, state: Found, segment: Segment, position: int) -> None:
    """Cut off what no record follows from ``position`` on; what may have been one is copied aside.

    What cannot be copied stays, and a new segment begins; if its name were the same, it is cut off
    all the same.
    """
    recovery, nbytes = state.recovery, segment.size - position
    path = os.path.join(directory, segment_name(segment.first))
    if segment.unfinished_at(position):
        recovery.lines.append(f"cut {nbytes} bytes of an unfinished record from {path}")
    else:
        copied = copied_aside(segment, position, nbytes)  # what cannot be read is not cut
        try:
            place = keep_aside(disk, directory, segment, position, nbytes, copied)
            kept = f"they are kept in {place}"
        except OSError as error:
            kept = f"they could not be copied aside: {error}"
            if state.end > segment.first:
                state.appendable = False
                recovery.lines.append(
                    f"left {nbytes} bytes that are no record in {path} at {position}, "
                    f"because they could not be copied aside: {error}"
                )
                return
        recovery.lines.append(
            f"possible loss: queue {state.identity.queue_id}: cut {nbytes} bytes that are no "
            f"record from {path} at {position}; nothing proves that they were published, but they "
            f"may have held messages from offset {state.end} on; {kept}"
        )
    segment.file.truncate(position)
    state.sizes[segment.first] = position


def _quarantine(
    disk: Disk, directory: str, state: Found, segment: Segment, found: Damage, hi: int
) -> None:
    path = os.path.join(directory, segment_name(segment.first))
    nbytes = found.end_position - found.position
    if found.lo >= hi:
        state.recovery.lines.append(
            f"{nbytes} damaged bytes in {path} at {found.position}: no message is lost"
        )
        return
    new = damage.uncovered(found.lo, hi, state.damaged)
    if not new:
        return
    copied = copied_aside(segment, found.position, nbytes)
    for lo, end in new:
        state.damaged[lo, end] = found.reason
        state.recovery.lines.append(
            f"damaged: queue {state.identity.queue_id} offsets {lo} to {end} "
            f"({end - lo} messages, {found.reason}) in {path} at {found.position}; "
            "what follows stays readable"
        )
    if nbytes:
        try:
            keep_aside(disk, directory, segment, found.position, nbytes, copied)
        except OSError as error:
            state.recovery.lines.append(f"could not copy the damaged bytes aside: {error}")


def put_damaged(disk: Disk, directory: str, state: Found) -> None:
    """Make the list of damaged ranges durable if it changed; a full disk only costs a telling."""
    if state.damaged != damage.read(disk, directory):
        try:
            damage.write(disk, directory, state.damaged)
        except OSError as error:
            state.recovery.lines.append(f"could not write the list of damaged ranges: {error}")


def new_identity() -> Identity:
    return Identity(secrets.token_hex(16), secrets.token_bytes(8))


def _identity(
    disk: Disk,
    directory: str,
    headers: dict[int, tuple[SegmentHeader | None, int]],
    recovery: Recovery,
) -> Identity:
    identity = read_identity(disk, directory)
    if identity is not None:
        return identity
    known = [header.identity for header, _ in headers.values() if header is not None]
    if known:
        identity = known[-1]
        recovery.lines.append(f"made the queue's identity {identity.queue_id} again")
    else:
        identity = new_identity()
        if headers:
            recovery.lines.append(
                f"nothing in {directory} says which queue it is: its segments are in "
                f"{QUARANTINE}, the queue {identity.queue_id} begins"
            )
            disk.make_directory(os.path.join(directory, QUARANTINE))
            for first in headers:
                name = segment_name(first)
                aside = os.path.join(directory, QUARANTINE, f"{identity.queue_id[:8]}-{name}")
                disk.rename(os.path.join(directory, name), aside)
            headers.clear()
    replace_file(disk, os.path.join(directory, IDENTITY_FILE), identity.sealed())
    return identity


def _note_loss(recovery: Recovery, why: str) -> None:
    recovery.lost = True
    recovery.lines.append(f"published messages were lost: {why}")


QUARANTINE = "quarantine"
COPY_BYTES_MAX = 64 << 20


def copied_aside(segment: Segment, position: int, nbytes: int) -> bytes:
    return bytes(segment.nbytes(position, min(nbytes, COPY_BYTES_MAX)))


def keep_aside(
    disk: Disk, directory: str, segment: Segment, position: int, nbytes: int, copied: bytes
) -> str:
    """Put ``copied`` of ``nbytes`` bytes aside, durably; return where they are, in words."""
    aside = os.path.join(directory, QUARANTINE)
    name = f"{segment.first:020d}-{position}"
    disk.make_directory(aside)
    replace_file(disk, os.path.join(aside, name), copied)
    part = "" if len(copied) == nbytes else f" (the first {len(copied)} of them)"
    return f"{QUARANTINE}/{name}{part}"


@dataclass(frozen=True, slots=True)
class Proven:
    """A proof that all offsets below ``offset`` were published; ``by`` says it in words."""

    offset: int
    by: str


def proven(disk: Disk, directory: str, queue_id: str) -> Proven:
    """Return the greatest offset that something other than the file ``end`` proves.

    A power loss may leave an older ``end``. Durable before it is relied on are: consumers' offsets,
    for they commit what they read; starts in ``lineage``; and what ``damaged`` names. A consumer's
    damaged file proves nothing. Raises OSError for what cannot be read now.
    """
    known = lineage.read(disk, directory)
    starts = known.starts if known is not None else ()
    found = [
        Proven(max((hi for _, hi in damage.read(disk, directory)), default=0), "known damage"),
        Proven(max((first for first, _ in starts), default=0), "an earlier start of the gateway"),
    ]
    for name in consumers.names(disk, directory):
        offset = consumers.read(disk, directory, name, queue_id) or 0
        found.append(Proven(offset, f"what consumer {name!r} has committed"))
    return max(found, key=lambda one: one.offset)


def furthest(published: Published | None, other: Proven) -> Proven:
    if published is not None and published.offset >= other.offset:
        return Proven(published.offset, "the published end")
    return other
