"""A queue's files consist of sealed lines, segment headers, frames and the published end.

``docs/queue-format.md`` specifies the format; its tables and these ``struct`` formats agree.
Nothing here opens a file: :class:`Segment` reads through a ``File`` of its caller's ``Disk``.
"""

from __future__ import annotations

import errno
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from zlib import crc32 as zlib_crc32

if TYPE_CHECKING:
    from ..core.disk import File

crc32: Callable[..., int] = zlib_crc32  # of bytes, continuing from ``start=0``

try:
    # Three times as fast: it uses the processor's carry-less multiplication.
    from isal import isal_zlib

    _isal: Any = isal_zlib
    crc32 = _isal.crc32
except ImportError:  # pragma: no cover - the tests run with the extra
    pass

FORMAT_VERSION = 1

SEGMENT_MAGIC = b"\x93MPQSEG\n"
END_MAGIC = b"\x93MPQEND\n"
FRAME_MARKER = b"\x93MPF"

SEGMENT_HEADER = struct.Struct("<8sII16s8sQI")
FRAME_HEADER = struct.Struct("<4sIIIQII")
FRAME_CHECKED = struct.Struct("<IIQII")
END = struct.Struct("<8sQQQ")
LINEAGE = struct.Struct("<QQ")
CHECKSUM = struct.Struct("<I")

SEGMENT_HEADER_BYTES = SEGMENT_HEADER.size + CHECKSUM.size
FRAME_HEADER_BYTES = FRAME_HEADER.size
FRAME_CHECKED_AT = FRAME_HEADER_BYTES - FRAME_CHECKED.size
EMPTY_SEGMENT_BYTES = SEGMENT_HEADER_BYTES + FRAME_HEADER_BYTES + LINEAGE.size
"""Its header, and the frame that names the row before it."""
END_BYTES = END.size + CHECKSUM.size

IDENTITY_FILE = "identity"

ALIGNMENT = 8
SEGMENT_SUFFIX = ".segment"
OFFSET_MAX = 2**63 - 1  # the table's ``offset`` is a signed 64-bit integer
FRAME_BYTES_MAX = 2**31 - 1  # Arrow's text and binary columns count bytes in 31 bits

WINDOW_BYTES = 1 << 20
READ_ON = 4

BLOCK_BYTES = 4096  # where a disk cannot be read, this much is tried at a time
BLOCK_READS_MAX = 3  # a resetting disk, or a store elsewhere, fails once

_SEGMENT_NAME = re.compile(r"(\d{20})\.segment", re.ASCII)


# -- sealed lines ---------------------------------------------------------------------------------


def seal(text: str) -> bytes:
    data = text.encode()
    return b"%s %08x\n" % (data, crc32(data))


def unseal(line: bytes) -> str | None:
    data, _, checksum = line.rstrip(b"\n").rpartition(b" ")
    if checksum != b"%08x" % crc32(data):
        return None
    return data.decode("utf-8", "replace")


# -- names ----------------------------------------------------------------------------------------


def segment_name(first: int) -> str:
    return f"{first:020d}{SEGMENT_SUFFIX}"


def segment_offset(name: str) -> int | None:
    match = _SEGMENT_NAME.fullmatch(name)
    return int(match[1]) if match else None


# -- headers --------------------------------------------------------------------------------------


def checked(head: bytes) -> bytes:
    return head + CHECKSUM.pack(crc32(head))


def _unpacked(form: struct.Struct, magic: bytes, data: bytes) -> list[Any] | None:
    head = data[: form.size]
    if len(head) < form.size or not data.startswith(magic) or not data.startswith(checked(head)):
        return None
    return [*form.unpack(head)[1:]]


@dataclass(slots=True, frozen=True)
class Identity:
    """A queue's permanent name (32 hexadecimal digits) and its secret seed."""

    queue_id: str
    seed: bytes

    @property
    def frame_seed(self) -> int:
        return crc32(self.seed)

    def sealed(self) -> bytes:
        return seal(f"msgproto-queue {FORMAT_VERSION} {self.queue_id} {self.seed.hex()}")

    @classmethod
    def unsealed(cls, data: bytes) -> Identity | int | None:
        """Return what the file says; a format version we do not know; None if it is damaged."""
        text = unseal(data) or ""
        match = re.fullmatch(r"msgproto-queue (\d+)(?: ([0-9a-f]{32}) ([0-9a-f]{16}))?.*", text)
        if match is None:
            return None
        if int(match[1]) != FORMAT_VERSION:
            return int(match[1])
        return cls(match[2], bytes.fromhex(match[3])) if match[2] else None


@dataclass(slots=True, frozen=True)
class SegmentHeader:
    version: int
    identity: Identity
    first: int

    def packed(self) -> bytes:
        queue_id, seed = bytes.fromhex(self.identity.queue_id), self.identity.seed
        numbers = self.version, SEGMENT_HEADER_BYTES, queue_id, seed, self.first, 0
        return checked(SEGMENT_HEADER.pack(SEGMENT_MAGIC, *numbers))

    @classmethod
    def unpacked(cls, data: bytes) -> SegmentHeader | None:
        found = _unpacked(SEGMENT_HEADER, SEGMENT_MAGIC, data)
        if found is None:
            return None
        version, _, queue_id, seed, first, _ = found
        return cls(version, Identity(queue_id.hex(), seed), first)


@dataclass(slots=True, frozen=True)
class Published:
    """What the file ``end`` says: readers may read up to ``offset``, and no further."""

    offset: int
    segment: int  # where the segment that was being written begins
    nbytes: int  # that segment was this long at that time

    def packed(self) -> bytes:
        return checked(END.pack(END_MAGIC, self.offset, self.segment, self.nbytes))

    @classmethod
    def unpacked(cls, data: bytes) -> Published | None:
        found = _unpacked(END, END_MAGIC, data)
        return None if found is None else cls(*found)


def pack_frame_header(
    frame_seed: int, *, payload_crc: int, nbytes: int, first: int, count: int, runs: int
) -> bytes:
    """Return what stands before a payload of ``nbytes`` bytes, ``runs`` of them its head."""
    checked = FRAME_CHECKED.pack(payload_crc, nbytes, first, count, runs)
    return FRAME_MARKER + CHECKSUM.pack(crc32(checked, frame_seed)) + checked


def pack_lineage_frame(frame_seed: int, *, first: int, incarnation: int, witness: int) -> bytes:
    """Return the frame at the head of a segment: what proves the row ``first`` - 1."""
    payload = LINEAGE.pack(incarnation, witness)
    crc, nbytes = crc32(payload), len(payload)
    head = pack_frame_header(
        frame_seed, payload_crc=crc, nbytes=nbytes, first=first, count=0, runs=0
    )
    return head + payload


@dataclass(slots=True)
class Record:
    """One frame: ``count`` messages from ``first`` on (0 in a frame of lineage)."""

    position: int
    first: int
    count: int
    nbytes: int  # of the whole frame, header included
    runs: int  # bytes of the runs at the head of the payload
    payload_crc: int

    @property
    def end(self) -> int:
        return self.first + self.count

    @property
    def end_position(self) -> int:
        return self.position + self.nbytes


@dataclass(slots=True)
class Damage:
    """Bytes that are no valid record, and the offsets that are lost with them.

    ``hi`` is None if nothing valid follows in the segment: the caller has to know how far offsets
    went. ``lo == hi``: no message lost; ``position == end_position``: missing without remains.
    """

    position: int
    end_position: int
    lo: int
    hi: int | None
    reason: str


def read_readable(file: File, position: int, nbytes: int, most: int) -> bytes:
    """Return ``most`` bytes, or those before a block that stays unreadable after several tries.

    OSError if it is among the first ``nbytes``: the disk may read it another time.
    """
    try:
        return file.read(position, most)
    except OSError as error:
        _check_read_error(error)
    found = bytearray()
    end = min(position + most, file.size())
    while (at := position + len(found)) < end:
        # Up to the next boundary: a disk loses whole blocks.
        piece = _read_block(file, at, min(BLOCK_BYTES - at % BLOCK_BYTES, end - at))
        if piece is None and len(found) < nbytes:
            raise OSError(errno.EIO, f"the disk cannot read the block at {at}")
        if not piece:
            break
        found += piece
    return bytes(found)


def _read_block(file: File, position: int, nbytes: int) -> bytes | None:
    for _ in range(BLOCK_READS_MAX):
        try:
            return file.read(position, nbytes)
        except OSError as error:
            _check_read_error(error)
    return None


def _check_read_error(error: OSError) -> None:
    if error.errno != errno.EIO:
        raise error


class Segment:
    """Reads a segment file up to ``size``, ``window`` bytes at a time; OSError is no damage."""

    def __init__(
        self,
        file: File,
        frame_seed: int,
        first: int,
        size: int | None = None,
        window: int = WINDOW_BYTES,
    ) -> None:
        self.file = file
        self.first = first
        self.size: int = file.size() if size is None else size
        self._window_bytes = window
        self.frame_seed = frame_seed
        self._window = memoryview(b"")
        self._window_position = 0

    def header(self) -> SegmentHeader | None:
        return SegmentHeader.unpacked(bytes(self.nbytes(0, SEGMENT_HEADER_BYTES)))

    def nbytes(self, position: int, nbytes: int) -> memoryview:
        nbytes = min(nbytes, self.size - position)
        if nbytes <= 0:
            return memoryview(b"")
        start = position - self._window_position
        if start < 0 or start + nbytes > len(self._window):
            # Who reads on reads more at a time: what a few small windows leave when they are freed
            # together the C library gives back, and each page of the next ones is met anew.
            ahead = self._window_bytes * (READ_ON if 0 < start <= len(self._window) else 1)
            most = min(max(nbytes, ahead), self.size - position)
            self._window = memoryview(self._read(position, nbytes, most))
            self._window_position = position
            start = 0
        return self._window[start : start + nbytes]

    def _read(self, position: int, nbytes: int, most: int) -> bytes:
        try:
            return read_readable(self.file, position, nbytes, most)
        except OSError as error:
            raise OSError(error.errno, f"{segment_name(self.first)}: {error.strerror}") from error

    def forget(self) -> None:
        """Read again what was read: the file may have changed."""
        self._window = memoryview(b"")

    def payload(self, record: Record) -> memoryview:
        return self.nbytes(record.position + FRAME_HEADER_BYTES, record.nbytes - FRAME_HEADER_BYTES)

    def record_at(self, position: int, expected: int = 0) -> Record | None:
        """Return a record by its header; None without one, below ``expected``, or if cut."""
        nbytes = self.nbytes(position, FRAME_HEADER_BYTES)
        if len(nbytes) < FRAME_HEADER_BYTES:
            return None
        marker, checksum, payload_crc, length, first, count, runs = FRAME_HEADER.unpack(nbytes)
        if marker != FRAME_MARKER or checksum != crc32(nbytes[8:], self.frame_seed):
            return None
        if first < expected or position + FRAME_HEADER_BYTES + length > self.size:
            return None
        return Record(position, first, count, FRAME_HEADER_BYTES + length, runs, payload_crc)

    def damaged_record_at(self, position: int, expected: int) -> Record | None:
        """Return the record here with a flipped bit or wrong marker in its header, or None.

        It has the offset ``expected`` and its full length, so it was written whole. Bodies' frames
        lack the seed.
        """
        data = bytes(self.nbytes(position, FRAME_HEADER_BYTES))
        if len(data) < FRAME_HEADER_BYTES:
            return None
        checksum = CHECKSUM.unpack_from(data, len(FRAME_MARKER))[0]
        fields = data[FRAME_CHECKED_AT:]
        found = fields if (checksum ^ crc32(fields, self.frame_seed)).bit_count() <= 1 else None
        number = int.from_bytes(fields, "little")
        for bit in range(8 * len(fields)):
            other = (number ^ 1 << bit).to_bytes(len(fields), "little")
            if crc32(other, self.frame_seed) == checksum:
                found = other
        if found is None:
            return None
        payload_crc, length, first, count, runs = FRAME_CHECKED.unpack(found)
        record = Record(position, first, count, FRAME_HEADER_BYTES + length, runs, payload_crc)
        whole = length and length % ALIGNMENT == 0 and record.end_position <= self.size
        return record if whole and first == expected else None

    def cut_at(self, position: int) -> bool:
        """Return whether what stands there is shorter than a header, or than its own says."""
        nbytes = self.nbytes(position, FRAME_HEADER_BYTES)
        if len(nbytes) < FRAME_HEADER_BYTES:
            return True
        marker, checksum, _, length, _, _, _ = FRAME_HEADER.unpack(nbytes)
        right = checksum == crc32(nbytes[FRAME_CHECKED_AT:], self.frame_seed)
        whole = position + FRAME_HEADER_BYTES + length <= self.size
        return right and marker == FRAME_MARKER and not whole

    def unfinished_at(self, position: int) -> bool:
        """Return whether what stands there is cut, or nothing but zeros: never wholly written."""
        if self.cut_at(position):
            return True
        for start in range(position, self.size, self._window_bytes):
            nbytes = min(self._window_bytes, self.size - start)
            if self._read(start, nbytes, nbytes).strip(b"\0"):
                return False
        return True

    def next_record(self, position: int, expected: int, stop: int | None = None) -> Record | None:
        """Return the first record from ``position`` on, by its header alone."""
        stop = self.size if stop is None else stop
        while position < stop:
            # One look at a window, however many false markers are in it: peers choose the bodies.
            window = bytes(self.nbytes(position, self._window_bytes))
            found = window.find(FRAME_MARKER)
            while found >= 0 and position + found < stop:
                record = self.record_at(position + found, expected)
                if record is not None:
                    return record
                found = window.find(FRAME_MARKER, found + 1)
            # A marker may lie across the end of this window.
            position += max(1, len(window) - len(FRAME_MARKER) + 1)
        return None

    def locate(self, offset: int) -> tuple[int, int]:
        """Return the position and first offset of a frame at or before ``offset``, by halving."""
        position, first = SEGMENT_HEADER_BYTES, self.first
        stop = self.size
        while stop - position > self._window_bytes:
            middle = (position + stop) // 2
            try:
                record = self.next_record(middle, self.first, stop)
            except OSError:  # what stands before such a block is found without it
                record = None
            if record is None or record.first > offset:
                stop = middle
            else:
                position, first = record.position, record.first
        return position, first

    def stretch(self, position: int, expected: int, bound: int) -> tuple[int, int]:
        """Skip valid records to ``bound`` or a frame above a window; return position, offset."""
        unpack, seed = FRAME_HEADER.unpack_from, self.frame_seed
        while True:
            window = self.nbytes(position, self._window_bytes)
            available = len(window) - FRAME_HEADER_BYTES
            at = 0
            while at <= available and expected < bound:
                marker, checksum, payload_crc, length, first, count, _ = unpack(window, at)
                payload = at + FRAME_HEADER_BYTES
                end = payload + length
                if (
                    marker != FRAME_MARKER
                    or first != expected
                    or end > len(window)
                    or crc32(window[at + 8 : payload], seed) != checksum
                    or crc32(window[payload:end]) != payload_crc
                ):
                    break
                at = end
                expected = first + count
            if not at:
                return position, expected
            position += at

    def walk(
        self, position: int, expected: int, *, check: bool = True, bound: int | None = None
    ) -> Iterator[Record | Damage]:
        """Yield every record from ``position`` on, and what is damaged between them, in order.

        ``expected`` is the first offset; ``check`` checks payloads. A damaged header that nothing
        follows is damage with offsets where possible (:meth:`damaged_record_at`). With ``bound``
        many records below it may come as one, several times as fast. Last is a :class:`Damage` with
        ``hi`` None if the segment ends in no record.
        """
        while position < self.size:
            if bound is not None:
                end_position, end = self.stretch(position, expected, bound)
                if end > expected:
                    nbytes = end_position - position
                    yield Record(position, expected, end - expected, nbytes, 0, 0)
                    position, expected = end_position, end
                    continue
            record = self.record_at(position, expected)
            if record is None:
                if following := self.next_record(position + 1, expected):
                    end_position, end = following.position, following.first
                elif last := self.damaged_record_at(position, expected):
                    end_position, end = last.end_position, last.end
                else:
                    yield Damage(position, self.size, expected, None, "no record")
                    return
                yield Damage(position, end_position, expected, end, "record header")
                position, expected = end_position, end
                continue
            if record.first > expected:
                yield Damage(position, position, expected, record.first, "records missing")
            if check and crc32(self.payload(record)) != record.payload_crc:
                yield Damage(position, record.end_position, record.first, record.end, "checksum")
            else:
                yield record
            position, expected = record.end_position, record.end
