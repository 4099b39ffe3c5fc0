"""Lumberjack's frames are defined and encoded here, without any state, role or clock.

The grammar, all integers 32-bit unsigned in network order (``LJ-02`` … ``LJ-08``)::

    frame      = version (window / data / json / ack / compressed)
    version    = "1" / "2"
    window     = "W" size
    data       = "D" sequence pair-count *pair
    pair       = key-length key value-length value
    json       = "J" sequence length document
    ack        = "A" sequence
    compressed = "C" length zlib-stream-of-whole-frames

A :class:`Decoder` returns data frames as **runs**, so that nothing above has to work per event;
where a run begins depends on how the bytes arrived, the events in it do not (``LJ-20``).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, cast

from ...core.errors import Fault
from ...core.limits import Limit
from ...core.packed import PACKED_MIN, PackedBytes, PackedNumbers, joined, kept_packed

FAULT_BYTES: Final = 16
"""A fault shows this much of its frame (``LJ-16``)."""

VERSION_1: Final = 0x31
VERSION_2: Final = 0x32
VERSIONS: Final = (VERSION_1, VERSION_2)

TYPE_WINDOW: Final = ord("W")
TYPE_DATA: Final = ord("D")
TYPE_JSON: Final = ord("J")
TYPE_ACK: Final = ord("A")
TYPE_COMPRESSED: Final = ord("C")
TYPES: Final = frozenset((TYPE_WINDOW, TYPE_DATA, TYPE_JSON, TYPE_ACK, TYPE_COMPRESSED))

SHORT = struct.Struct(">BBI")  # version, type, number
LONG = struct.Struct(">HII")  # version and type as one number, sequence, length or count
HEAD_AND_SEQUENCE = struct.Struct(">HI")
LENGTH = struct.Struct(">I")

HEADER_BYTES: Final = SHORT.size

ACK_BYTES: Final = SHORT.size

COMPRESSION_DEPTH_MAX: Final = 3
"""Compressed frames may be nested this deep (``LJ-08``)."""

MESSAGE_WEIGHT_BYTES: Final = 100
"""A message counts as this many bytes beside its payload: millions of empty ones must count as
well.
"""

STEP_WEIGHT_BYTES: Final = 1000
"""A run of data frames, or a frame of another type, counts as this many bytes beside all that:
a turn may decode many bytes, but a stream of empty frames must not make it long.
"""

PAIR_WEIGHT_BYTES: Final = 135
"""Each pair of a D frame counts as this many bytes: the shortest costs as much as a document.
"""

BYTES_MAX: Final = 1 << 30
"""What limits of bytes may be raised to: places in bytes are 31-bit integers."""

LIMITS: Final = (
    Limit("window", 65_536, "events", "what a W frame may announce (LJ-07)", 1),
    Limit(
        "compressed-bytes", 64 << 20, "bytes", "the payload of one C frame (LJ-17)", 1, BYTES_MAX
    ),
    Limit(
        "inflated-bytes",
        64 << 20,
        "bytes",
        "what one C frame may inflate to whatever its ratio, nesting summed",
        1,
        BYTES_MAX,
    ),
    Limit(
        "inflated-ratio",
        500,
        "bytes",
        "what each byte of a C frame may inflate to, where that is more than inflated-bytes",
        1,
        2000,
    ),
    Limit(
        "compressed-windows",
        65_536,
        "windows",
        "that are announced or end within one C frame: their acks wait for its end",
        1,
    ),
    Limit("json-bytes", 16 << 20, "bytes", "the document of one J frame (LJ-17)", 1, BYTES_MAX),
    Limit(
        "data-bytes",
        64 << 20,
        "bytes",
        "one D frame in all, as it is held in memory",
        1,
        BYTES_MAX,
    ),
    Limit("slice-bytes", 4 << 20, "bytes", "what is decoded in one turn (LJ-13)", 1, BYTES_MAX),
)
"""Checked on headers, before a byte is held for what they announce (``LJ-17``)."""

NESTED_SHARE: Final = 4
"""The payloads of all C frames within one C frame may have a fourth of ``inflated-bytes``."""

PAIRS_MAX: Final = 1024
"""A D frame has no more pairs (``LJ-17``)."""

KEY_BYTES: Final = 1024
"""Its keys are not longer."""


@dataclass(slots=True)
class Window:
    """A ``W`` frame says that the writer sends at most ``size`` data frames before it waits
    (``LJ-07``).
    """

    version: int
    size: int
    compressed: bool = False


@dataclass(slots=True)
class Ack:
    """An ``A`` frame says that the reader has every data frame up to ``sequence`` safe
    (``LJ-05``, ``LJ-06``).
    """

    version: int
    sequence: int


@dataclass(slots=True)
class Json:
    """A run of ``J`` frames: one sequence number and one document each (``LJ-04``).

    ``nbytes`` counts the frames as they stood on the wire (inflated, where compressed).
    ``windows``: of each ``W`` frame among them, how many of them stand before it, and its size.
    """

    version: int
    sequences: PackedNumbers
    bodies: PackedBytes
    nbytes: int
    compressed: bool = False
    windows: Sequence[tuple[int, int]] = ()

    @property
    def long(self) -> bool:
        """It is worth to be handed on alone."""
        return len(self.sequences) >= PACKED_MIN

    @classmethod
    def joined(cls, runs: list[Json]) -> Json:
        sequences = PackedNumbers("q")
        for run in runs:
            sequences.extend(run.sequences)
        nbytes = sum([run.nbytes for run in runs])
        return cls(runs[0].version, sequences, joined([run.bodies for run in runs]), nbytes)


@dataclass(slots=True)
class Data:
    """A run of ``D`` frames: one sequence number and one mapping each (``LJ-03``).

    Bytes that are not UTF-8 stand in keys and values as surrogate escapes.
    """

    version: int
    sequences: PackedNumbers
    pairs: Sequence[dict[str, str]]
    nbytes: int
    compressed: bool = False

    windows: ClassVar[Sequence[tuple[int, int]]] = ()
    """W frames do not stand among D frames, but beside them: see :class:`Json`."""

    @property
    def long(self) -> bool:
        return kept_packed(self.pairs)

    @classmethod
    def joined(cls, runs: list[Data]) -> Data:
        sequences = PackedNumbers("q")
        for run in runs:
            sequences.extend(run.sequences)
        pairs = [pairs for run in runs for pairs in run.pairs]
        return cls(runs[0].version, sequences, pairs, sum([run.nbytes for run in runs]))


@dataclass(slots=True)
class Compressed:
    """An outermost ``C`` frame has ended, and every frame in it was whole (``LJ-08``)."""

    version: int


Frame = Window | Ack | Json | Data | Compressed


# ── encoding ────────────────────────────────────────────────────────────────────────────────────


def encode_window(size: int, version: int = VERSION_2) -> bytes:
    """Return one ``W`` frame (``LJ-07``)."""
    return SHORT.pack(version, TYPE_WINDOW, size)


def encode_ack(sequence: int, version: int = VERSION_2) -> bytes:
    """Return one ``A`` frame (``LJ-05``)."""
    return SHORT.pack(version, TYPE_ACK, sequence)


def encode_json(
    sequences: Sequence[int], bodies: Iterable[bytes], version: int = VERSION_2
) -> bytes:
    """Return a run of ``J`` frames (``LJ-04``)."""
    head = version << 8 | TYPE_JSON
    pack = LONG.pack
    parts: list[bytes] = []
    for sequence, body in zip(sequences, bodies, strict=True):
        parts += (pack(head, sequence, len(body)), body)
    return b"".join(parts)


def encode_pairs(pairs: Mapping[str, str]) -> bytes:
    """Return what stands behind the sequence number of a ``D`` frame: the count, then the pairs
    (LJ-03).

    Surrogate escapes become the bytes they stand for; UnicodeEncodeError for other surrogates.
    """
    parts = [LENGTH.pack(len(pairs))]
    for item in pairs.items():
        for text in item:
            data = text.encode("utf-8", "surrogateescape")
            parts += (LENGTH.pack(len(data)), data)
    return b"".join(parts)


def encode_data_around(
    sequences: Sequence[int], encoded_pairs: Iterable[bytes], version: int = VERSION_1
) -> bytes:
    """Return a run of ``D`` frames around what :func:`encode_pairs` returned for each."""
    head = version << 8 | TYPE_DATA
    pack = HEAD_AND_SEQUENCE.pack
    parts: list[bytes] = []
    for sequence, nbytes in zip(sequences, encoded_pairs, strict=True):
        parts += (pack(head, sequence), nbytes)
    return b"".join(parts)


def encode_compressed(frames: bytes, level: int = 3, version: int = VERSION_2) -> bytes:
    """Return one ``C`` frame around ``frames``; these must be complete (``LJ-08``, ``LJ-18``).

    ``level`` is zlib's, 1 (fast) to 9 (small).
    """
    payload = zlib.compress(frames, level)
    return SHORT.pack(version, TYPE_COMPRESSED, len(payload)) + payload


# ── what a writer reads ─────────────────────────────────────────────────────────────────────────


class AckDecoder:
    """The decoder of what a writer reads: ``A`` frames of either version, and nothing else.

    A reader that sends anything else is recognised at its first wrong byte, so a hostile one makes
    a writer hold at most five bytes (``LJ-02``, ``LJ-05``, ``LJ-21``).
    """

    __slots__ = ("_failed", "_start")

    def __init__(self) -> None:
        self._start = b""  # of a frame whose end has not come
        self._failed = False

    @property
    def held(self) -> int:
        return len(self._start)

    def end(self) -> None:
        self._start = b""

    def feed(self, nbytes: bytes) -> list[Ack | Fault]:
        if self._failed:
            return []
        nbytes = self._start + nbytes
        end = len(nbytes)
        found: list[Ack | Fault] = []
        for position in range(0, end, SHORT.size):
            fault = _no_ack(nbytes[position : position + 2])
            if fault:
                self._failed, self._start = True, b""
                found.append(Fault(*fault, nbytes[position : position + FAULT_BYTES]))
                return found
            if position + SHORT.size <= end:
                version, _, sequence = SHORT.unpack_from(nbytes, position)
                found.append(Ack(version, sequence))
        self._start = nbytes[end - end % SHORT.size :]
        return found


def _no_ack(start: bytes) -> tuple[str, str] | None:
    if start[0] not in VERSIONS:
        return "version", f"version byte {start[0]:#04x}, not '1' or '2'"
    if start[1:] in (b"", b"A"):
        return None
    if start[1] in TYPES:
        return "wrong-role", f"a frame {chr(start[1])!r} from a reader"
    return "frame-type", f"frame type {start[1]:#04x}"


# ── the payload of a C frame, inflated slice by slice (LJ-08, LJ-17) ────────────────────────────

_inflating: Any = zlib
_ERRORS: tuple[type[Exception], ...] = (zlib.error,)
try:
    # isal inflates two to three times faster; zlib does the same work where it is not installed.
    from isal import isal_zlib

    _inflating = isal_zlib
    _ERRORS = (zlib.error, cast(type[Exception], isal_zlib.error))
except ImportError:  # pragma: no cover - the tests run with the extra
    pass

PIECE_BYTES: Final = 256 << 10
"""The inflater is given this much at a time, because it copies what it does not come to."""


class BrokenStream(ValueError):
    pass


class Inflation:
    """The payload of one C frame, inflated from its start to its end.

    Attributes:
        start: the first bytes of the C frame, for the log.
        ended: whether the zlib stream has been read to its end.
        trailing_bytes: how many bytes stand behind that end; known once it was read.
    """

    __slots__ = (
        *("_given", "_inflater", "_left", "_number", "_tail"),
        *("ended", "nbytes", "pieces", "start", "trailing_bytes", "version"),
    )

    def __init__(self, version: int, pieces: Sequence[memoryview], start: bytes) -> None:
        self.version = version
        self.pieces = pieces
        self.nbytes: int = sum(map(len, pieces))
        self.start = start
        self.ended: bool = False
        self._inflater: Any = _inflating.decompressobj()
        self._tail: bytes | memoryview = b""
        self._number = 0  # of the piece that comes next, or whose bytes are given now
        self._given = 0  # bytes of that piece
        self._left = self.nbytes  # not given yet

    def rewound(self) -> Inflation:
        return Inflation(self.version, self.pieces, self.start)

    def more(self, bytes_max: int) -> list[bytes]:
        """Return the next bytes in pieces, at most ``bytes_max``; none only at the end.

        Raises BrokenStream if this is not zlib, or if the stream does not end.
        """
        inflater = self._inflater
        chunks: list[bytes] = []
        room = bytes_max
        while room and not self.ended:
            tail = self._tail
            if not tail:
                tail = self._next()
            try:
                chunk = inflater.decompress(tail, room)
            except _ERRORS as error:
                raise BrokenStream(f"a compressed frame is not zlib: {error}") from None
            self._tail = inflater.unconsumed_tail
            if inflater.eof:
                self.ended = True
                self.trailing_bytes = len(inflater.unused_data) + self._left
                self._inflater = None  # its memory is needed for the next one
            if chunk:
                chunks.append(chunk)
                room -= len(chunk)
            elif not (self.ended or self._tail or self._left):
                raise BrokenStream("the zlib stream of a compressed frame is unfinished")
        return chunks

    def _next(self) -> memoryview | bytes:
        if not self._left:
            return b""
        piece = self.pieces[self._number]
        data = piece[self._given : self._given + PIECE_BYTES]
        self._given += len(data)
        if self._given == len(piece):
            self._number, self._given = self._number + 1, 0
        self._left -= len(data)
        return data


@dataclass(slots=True)
class Level:
    """One stream of frames: the connection's own (index 0), or what a C frame inflates to.

    Attributes:
        bytes: what is here of it.
        position: of the next frame within ``nbytes``.
        inflation: where further bytes come from; None for the connection's own.
        wanted: so many bytes must be inflated before anything is read again.
    """

    nbytes: bytes = b""
    position: int = 0
    inflation: Inflation | None = None
    wanted: int = 0
    _chunks: list[bytes] = field(default_factory=list)

    def want(self, needed: int) -> None:
        rest = self.nbytes[self.position :]
        self.nbytes, self.position = rest, 0
        self.wanted = needed - len(rest)
        self._chunks = [rest] if rest else []

    def add(self, chunks: Sequence[bytes], nbytes: int, last: bool) -> None:
        self._chunks += chunks
        self.wanted -= nbytes
        if self.wanted <= 0 or last:
            chunks, self._chunks = self._chunks, []
            self.nbytes = chunks[0] if len(chunks) == 1 else b"".join(chunks)
            self.wanted = 0

    @property
    def held_bytes(self) -> int:
        if self.inflation is None:
            return len(self.nbytes) - self.position
        return sum(map(len, self._chunks)) if self.wanted else len(self.nbytes)
