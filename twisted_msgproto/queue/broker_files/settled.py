"""The file ``broker/settled`` says what consumers are done with, group by group.

A group is one frame, written and synced together; what is behind the last whole group never was.
When groups have made the file long, it is replaced by one frame with all that still matters.  The
layout stands in ``docs/queue-format.md``.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from twisted_msgproto.core.broker.message_table import SMALL, MessageTable
from twisted_msgproto.core.broker.terms import QueueName

from ...core.disk import Disk, File, exists, read_file, replace_file
from ..damage import Range
from ..format import CHECKSUM, checked, crc32
from .marks import Marks, Moved, Segment, bit_ranges

FILE = "settled"
MAGIC = b"\x93MPBSET\n"
VERSION = 1
HEADER = struct.Struct("<8sII16s")
MARKER = b"\x93MPG"
FRAME = struct.Struct("<4sII")
RECORD = struct.Struct("<IIQ")
PAIR = struct.Struct("<QQ")
RANGES, BITS, TRIES, MOVED = 1, 2, 3, 4
HEADER_BYTES = HEADER.size + CHECKSUM.size
LONG_BYTES = 1 << 20  # a shorter file is not replaced, however little of it still matters


@dataclass(slots=True)
class Group:
    """What happened since the last group; of each id, the last word counts."""

    settled: list[Range] = field(default_factory=list)
    tries: MessageTable = field(default_factory=lambda: MessageTable(SMALL))
    moved: Moved = field(default_factory=Moved)

    def __bool__(self) -> bool:
        return bool(self.settled or self.tries.count or self.moved)

    def packed(self) -> bytes:
        return b"".join((_tries(self.tries), _moved(self.moved), _ranges(self.settled)))


def _record(kind: int, base: int, content: bytes) -> bytes:
    return RECORD.pack(kind, len(content), base) + content


def _ranges(ranges: Sequence[Range]) -> bytes:
    if not ranges:
        return b""
    flat = [offset for one in ranges for offset in one]
    return _record(RANGES, 0, struct.pack(f"<{len(flat)}Q", *flat))


def _tries(tries: MessageTable) -> bytes:
    flat = [number for tried in tries for number in tried]
    return _record(TRIES, 0, struct.pack(f"<{len(flat)}Q", *flat)) if flat else b""


def _moved(moved: Moved) -> bytes:
    records = []
    for name, message_ids in moved:
        text = json.dumps(list(name)).encode()
        packed = struct.pack(f"<{len(message_ids)}Q", *message_ids)
        records.append(_record(MOVED, len(text), text + packed))
    return b"".join(records)


def _segment(segment: Segment) -> bytes:
    if segment.scattered():
        return _record(BITS, segment.first, segment.bits())
    return _ranges(segment.ranges())


def snapshot(marks: Marks) -> bytes:
    settled = b"".join([_segment(segment) for segment in marks])
    return settled + _tries(marks.tries) + _moved(marks.moved)


def apply(payload: bytes, marks: Marks) -> None:
    at = 0
    while at < len(payload):
        kind, nbytes, base = RECORD.unpack_from(payload, at)
        at += RECORD.size
        content = payload[at : at + nbytes]
        at += nbytes
        if len(content) < nbytes:
            raise ValueError("a record is cut")
        _apply(kind, base, content, marks)


def _apply(kind: int, base: int, content: bytes, marks: Marks) -> None:
    if kind == RANGES:
        marks.settle(PAIR.iter_unpack(content))
    elif kind == BITS:
        marks.settle(bit_ranges(content, base))
    elif kind == TRIES:
        for message_id, tries in PAIR.iter_unpack(content):
            marks.note_tries(message_id, tries)
    elif kind == MOVED:
        space, name = json.loads(content[:base])
        message_ids = struct.unpack(f"<{(len(content) - base) // 8}Q", content[base:])
        marks.moved.note(message_ids, QueueName(space, name))
    else:
        raise ValueError(f"unknown record {kind}")


def framed(payload: bytes) -> bytes:
    return FRAME.pack(MARKER, crc32(payload), len(payload)) + payload


def header(queue_id: str) -> bytes:
    return checked(HEADER.pack(MAGIC, VERSION, HEADER_BYTES, bytes.fromhex(queue_id)))


@dataclass(slots=True)
class Found:
    groups: list[bytes] = field(default_factory=list)
    damaged_bytes: int = 0  # no frame, with one behind them
    ours: bool = True  # False for a damaged header, another queue or version


def parsed(data: bytes, queue_id: str) -> Found:
    found = Found()
    if data[:HEADER_BYTES] != header(queue_id):
        found.ours = False
        return found
    at = end = HEADER_BYTES
    while 0 <= at < len(data):
        payload = _frame_at(data, at)
        if payload is None:  # damaged, or a group that was not written to its end
            at = data.find(MARKER, at + 1)
            continue
        found.damaged_bytes += at - end
        found.groups.append(payload)
        at = end = at + FRAME.size + len(payload)
    return found


def _frame_at(data: bytes, at: int) -> bytes | None:
    if len(data) - at < FRAME.size:
        return None
    marker, checksum, length = FRAME.unpack_from(data, at)
    payload = data[at + FRAME.size : at + FRAME.size + length]
    if marker != MARKER or len(payload) < length or crc32(payload) != checksum:
        return None
    return payload


class SettledFile:
    """The file.  Every method may raise OSError; then nothing of that group counts."""

    def __init__(self, disk: Disk, directory: str, queue_id: str) -> None:
        self._disk = disk
        self._path = os.path.join(directory, FILE)
        self._queue_id = queue_id
        self._file: File | None = None
        self._end = 0
        self._short = 0

    def read(self) -> Found | None:
        """Return what the file holds, and will hold after a loss of power; None without a file."""
        nbytes = read_file(self._disk, self._path)
        if nbytes is None:
            return None
        with contextlib.closing(self._disk.open(self._path, write=True)) as file:
            file.sync()  # a killed process may not have come to it
        return parsed(nbytes, self._queue_id)

    def write(self, group: Group, marks: Marks) -> None:
        """Make a group durable, which ``marks`` hold already; after a failure all of them.

        A second sync of a file may succeed without having written what the first could not.
        """
        if self._file is None or self._end > max(LONG_BYTES, 2 * self._short):
            self._replace(marks)
            return
        data = framed(group.packed())
        try:
            self._file.write(self._end, [data])
            self._file.sync()
        except OSError:
            self.close()
            raise
        self._end += len(data)

    def removed(self) -> bool:
        if self._file is None or exists(self._disk, self._path):
            return False
        self.close()
        return True

    def _replace(self, marks: Marks) -> None:
        self.close()
        data = header(self._queue_id) + framed(snapshot(marks))
        replace_file(self._disk, self._path, data)
        self._file = self._disk.open(self._path, write=True)
        self._end = self._short = len(data)

    def close(self) -> None:
        """Close the file; the next write replaces it."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None


def taken(groups: Iterable[bytes], marks: Marks) -> int:
    nonsense = 0
    for payload in groups:
        try:
            apply(payload, marks)
        except (ValueError, TypeError, RecursionError, struct.error):
            nonsense += 1
    return nonsense
