"""Lumberjack's frames: what they are, encoded, and decoded in runs; without any role or clock.

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
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, ClassVar, Final, NamedTuple

from ...core.errors import Fault
from ...core.limits import Limit
from ...core.packed import (
    PACKED_MIN,
    PackedBytes,
    PackedMaps,
    PackedNumbers,
    compiled,
    joined,
    kept_packed,
)

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
"""It counts beside a message's payload: millions of empty ones must count as well."""

STEP_WEIGHT_BYTES: Final = 1000
"""It counts beside that for each run or other frame: empty ones must not make a turn long."""

PAIR_WEIGHT_BYTES: Final = 135
"""Each pair of a D frame counts as so many bytes: the shortest costs as much as a document."""

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
    """A ``W`` frame: the writer sends at most ``size`` data frames, then waits (``LJ-07``)."""

    version: int
    size: int
    compressed: bool = False


@dataclass(slots=True)
class Ack:
    """An ``A`` frame: every data frame up to ``sequence`` is safe (``LJ-05``, ``LJ-06``)."""

    version: int
    sequence: int


@dataclass(slots=True)
class Json:
    """A run of ``J`` frames: one sequence number and one document each (``LJ-04``)."""

    version: int
    sequences: PackedNumbers
    bodies: PackedBytes
    nbytes: int  # on the wire; inflated, where compressed
    compressed: bool = False
    windows: Sequence[tuple[int, int]] = ()  # of each W: J frames before it, size

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
    """A run of ``D`` frames: one sequence number and one mapping each (``LJ-03``)."""

    version: int
    sequences: PackedNumbers
    pairs: Sequence[dict[str, str]]  # with surrogate escapes for what is not UTF-8
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


Frame = Window | Json | Data | Compressed


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
    """Encode a ``D`` frame's pairs (``LJ-03``); UnicodeEncodeError for foreign surrogates."""
    parts = [LENGTH.pack(len(pairs))]
    for item in pairs.items():
        for text in item:
            data = str.encode(text, "utf-8", "surrogateescape")  # TypeError for what is no text
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
    """Return a ``C`` frame around whole ``frames``; ``level`` is zlib's (``LJ-08``, ``LJ-18``)."""
    payload = zlib.compress(frames, level)
    return SHORT.pack(version, TYPE_COMPRESSED, len(payload)) + payload


# ── decoding: runs of J and of D frames ─────────────────────────────────────────────────────────

# A reader spends its time in two loops, over runs of J and of D frames.  The compiled module
# ``_scan`` has both, and is used where it was built.  Elsewhere J frames are read here, and each D
# frame pair by pair, as one that is cut short or breaks a limit always is.

FORM: Final = 5
"""It changes with arguments and results of ``_scan``: see ``core.packed.compiled``."""

scan: Any = compiled("twisted_msgproto.lumberjack._scan", FORM)

COMPILED: Final = scan is not None


def json_columns(
    data: bytes, position: int, stop: int, count_max: int, window_max: int, windows_max: int
) -> tuple[int, Sequence[int], Iterable[int], bytes, list[tuple[int, int]], int]:
    """Return columns of the run of J and W frames that begins at ``position``, as ``_scan`` does.

    They are whole, at most ``count_max`` J and ``windows_max`` W frames, and none of them begins at
    or after ``stop``.  A W frame that announces 0 or more than ``window_max`` is not for a run.
    """
    unpack, header_size, end = LONG.unpack_from, LONG.size, len(data)
    json_head = data[position] << 8 | TYPE_JSON
    window_head = data[position] << 8 | TYPE_WINDOW
    sequences: list[int] = []
    bodies: list[bytes] = []
    windows: list[tuple[int, int]] = []
    needed = 0
    while len(bodies) < count_max and position < stop and position + header_size <= end:
        head, number, length = unpack(data, position)
        if head == json_head:
            start = position + header_size
            after = start + length
            if after > end:
                needed = after - position
                break
            sequences.append(number)
            bodies.append(data[start:after])
            position = after
        elif head == window_head and 0 < number <= window_max and len(windows) < windows_max:
            windows.append((len(bodies), number))
            position += HEADER_BYTES
        else:
            break
    bounds = accumulate(map(len, bodies), initial=0)
    return position, sequences, bounds, b"".join(bodies), windows, needed


JsonRun = tuple[int, PackedNumbers, PackedBytes, list[tuple[int, int]], int]
"""J frames of one version that follow each other, and the W frames among them:

* the position behind them,
* the J frames' sequence numbers,
* and documents,
* of each W frame: how many J frames stand before it, and the window it announces,
* the bytes of the next J frame, if its header stands at the position and its end is not here; else
  0.
"""


def json_run(*arguments: Any) -> JsonRun:
    """Return the run that begins at a position; the arguments are :func:`json_columns`'s."""
    read_columns = json_columns if scan is None else scan.json_columns
    position, sequences, bounds, bodies, windows, needed = read_columns(*arguments)
    columns = PackedNumbers("q", sequences), PackedBytes(bodies, array("i", bounds))
    return position, *columns, windows, needed


def cut_at_limit(run: JsonRun, bytes_max: int) -> tuple[JsonRun, int]:
    """Return what stands before the first document above ``bytes_max``; its bytes, or 0."""
    position, sequences, bodies, windows, needed = run
    bounds = bodies.bounds
    for row, (begin, end) in enumerate(pairwise(bounds)):
        if end - begin > bytes_max:
            kept = [window for window in windows if window[0] <= row]
            left = (bounds[-1] - begin) + LONG.size * (len(bodies) - row)
            left += HEADER_BYTES * (len(windows) - len(kept))
            columns = (
                PackedNumbers("q", sequences[:row]),
                PackedBytes(bodies.nbytes[:begin], bounds[: row + 1]),
            )
            return (position - left, *columns, kept, 0), end - begin
    too_long = needed - LONG.size
    return run, too_long if too_long > bytes_max else 0


class DataLimits(NamedTuple):
    pairs: int
    key_bytes: int
    value_bytes: int
    nbytes: int


def data_run(
    data: bytes, position: int, stop: int, count_max: int, pairs_stop: int, limits: DataLimits
) -> tuple[int, PackedNumbers, PackedMaps, bool]:
    """Return the run of D frames of one version that begins at ``position``.

    It has at most ``count_max``; none begins at or after ``stop`` or behind ``pairs_stop`` pairs,
    or is cut short, above a limit, not UTF-8, or names a key twice.

    Returns the position behind them, their sequence numbers and pairs, and whether the next
    frame's header stands at the position, and the frame is not one for a run.
    """
    position, sequences, pairs, key_bounds, keys, value_bounds, values, unusual = scan.data_columns(
        data, position, stop, count_max, pairs_stop, *limits
    )
    maps = PackedMaps(
        array("i", pairs),
        PackedBytes(keys, array("i", key_bounds)),
        PackedBytes(values, array("i", value_bounds)),
    )
    return position, PackedNumbers("q", sequences), maps, unusual


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
