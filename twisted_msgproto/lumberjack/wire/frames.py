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
from itertools import accumulate, pairwise, repeat
from typing import Any, ClassVar, Final, NamedTuple

from ...core.compiled import compiled
from ...core.errors import Fault
from ...core.limits import Limit
from ...core.packed import PACKED_MIN, PackedBytes, PackedMaps, PackedNumbers, joined, kept_packed

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


# ── decoding: runs of J and of D frames ─────────────────────────────────────────────────────────

# A reader spends its time in two loops, over runs of J and of D frames.  Each is here in Python.
# The compiled module ``_scan`` does the same work several times as fast and is used where it was
# built; COMPILED tells.  A D frame that is not here as a whole, or breaks a limit, is not one for a
# run: it is read pair by pair.

FORM: Final = 5
"""This number changes with the arguments and results of ``_scan``; see
:func:`~twisted_msgproto.core.compiled.compiled`.
"""

_compiled: Any = compiled("twisted_msgproto.lumberjack._scan", FORM)

COMPILED: Final = _compiled is not None

KnownKey = tuple[bytes | tuple[bytes, ...], int, str]
"""A key as it stands in a D frame, length first; the size of that; the key as text."""

KNOWN_KEYS_MAX: Final = 32
KNOWN_KEYS_BYTES: Final = 1024
"""A frame of no more keys and bytes is remembered for the next read: shippers have ten keys or so.
More would cost a silent connection up to 2 MiB.
"""

_NO_KEY: Final[KnownKey] = ((), 0, "")
"""Stands where no key is known: no bytes ever start with an empty tuple."""


JsonRun = tuple[int, PackedNumbers, PackedBytes, list[tuple[int, int]], int]
"""Return J frames of one version that follow each other, and the W frames among them:

* the position behind them,
* the J frames' sequence numbers,
* and documents,
* of each W frame: how many J frames stand before it, and the window it announces,
* the bytes of the next J frame, if its header stands at the position and its end is not here; else
  0.
"""


def json_run_python(
    data: bytes, position: int, stop: int, count_max: int, window_max: int, windows_max: int
) -> JsonRun:
    """Return the run of J and W frames that begins at ``position``.

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
    bounds = array("i", accumulate(map(len, bodies), initial=0))
    columns = PackedNumbers("q", sequences), PackedBytes(b"".join(bodies), bounds)
    return position, *columns, windows, needed


def json_run_compiled(
    data: bytes, position: int, stop: int, count_max: int, window_max: int, windows_max: int
) -> JsonRun:
    position, sequences, bounds, bodies, windows, needed = _compiled.json_columns(
        data, position, stop, count_max, window_max, windows_max
    )
    columns = PackedNumbers("q", sequences), PackedBytes(bodies, array("i", bounds))
    return position, *columns, windows, needed


def cut_at_limit(run: JsonRun, bytes_max: int) -> tuple[JsonRun, int]:
    """Return what stands before the first document above ``bytes_max``, and the bytes of that, or
    0.
    """
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


class DataRun(NamedTuple):
    """D frames of one version that follow each other, up to ``position``.

    ``pairs`` has the pairs of each frame, and ``pair_count`` says how many were read, repeated keys
    included.  ``unusual``: the next frame's header stands there, and the frame is not one for a
    run.
    """

    position: int
    sequences: PackedNumbers
    pairs: Sequence[dict[str, str]]
    pair_count: int
    unusual: bool


def data_run_python(
    data: bytes,
    position: int,
    stop: int,
    count_max: int,
    pairs_stop: int,
    limits: DataLimits,
    keys: list[KnownKey],
) -> DataRun:
    """Return the run of D frames that begins at ``position``.

    They are at most ``count_max``, and none of them begins at or after ``stop``, or behind
    ``pairs_stop`` pairs.

    Frames that are cut short, above a limit or not UTF-8 are not for a run.  Frames that follow
    each other mostly have the same keys in the same order, so the keys of the last frame are
    compared, lengths and all, before anything is decoded; ``keys`` holds them from call to call.
    """
    end = len(data)
    unpack, unpack_header, header_size = LENGTH.unpack_from, LONG.unpack_from, LONG.size
    pairs_max, key_max, value_max, size_max = limits
    run_head = data[position] << 8 | data[position + 1]
    sequences: list[int] = []
    all_pairs: list[dict[str, str]] = []
    known_keys = keys
    pair_count = 0
    unusual = False
    try:
        for _ in repeat(None, count_max):
            if position >= stop or pair_count >= pairs_stop:
                break
            head, sequence, count = unpack_header(data, position)
            if head != run_head:
                break
            unusual = True  # until this frame has been read to its end
            if len(known_keys) != count:
                if count > pairs_max:
                    break
                known_keys = [_NO_KEY] * count
            pairs: dict[str, str] = {}
            known = True
            at = position + header_size
            for key_bytes, key_size, key in known_keys:
                if data.startswith(key_bytes, at):
                    at += key_size
                else:
                    known = False
                    (size,) = unpack(data, at)
                    if size > key_max:
                        raise ValueError
                    text_start = at + 4
                    at = text_start + size
                    key = data[text_start:at].decode()
                (size,) = unpack(data, at)
                if size > value_max:
                    raise ValueError
                text_start = at + 4
                at = text_start + size
                pairs[key] = data[text_start:at].decode()
            if at > end or at - position > size_max:
                break
            unusual = False
            if not known:
                known_keys = [_known_key(key) for key in pairs]
            position = at
            pair_count += count
            sequences.append(sequence)
            all_pairs.append(pairs)
    except (struct.error, ValueError):
        pass  # cut short, above a limit, or not UTF-8: UnicodeDecodeError is a ValueError
    keys[:] = known_keys if _are_few(known_keys) else ()
    return DataRun(position, PackedNumbers("q", sequences), all_pairs, pair_count, unusual)


def _are_few(keys: list[KnownKey]) -> bool:
    return len(keys) <= KNOWN_KEYS_MAX and sum([size for _, size, _ in keys]) <= KNOWN_KEYS_BYTES


def _known_key(key: str) -> KnownKey:
    nbytes = key.encode()
    return LENGTH.pack(len(nbytes)) + nbytes, 4 + len(nbytes), key


def data_run_compiled(
    data: bytes,
    position: int,
    stop: int,
    count_max: int,
    pairs_stop: int,
    limits: DataLimits,
    keys: list[KnownKey],
) -> DataRun:
    """See :func:`data_run_python`.  Its pairs are packed; repeated keys are not for a run."""
    position, sequences, pairs, key_bounds, key_bytes, value_bounds, value_bytes, unusual = (
        _compiled.data_columns(data, position, stop, count_max, pairs_stop, *limits)
    )
    bounds = array("i", pairs)
    maps = PackedMaps(
        bounds,
        PackedBytes(key_bytes, array("i", key_bounds)),
        PackedBytes(value_bytes, array("i", value_bounds)),
    )
    return DataRun(position, PackedNumbers("q", sequences), maps, bounds[-1], unusual)


json_run = json_run_compiled if COMPILED else json_run_python
data_run = data_run_compiled if COMPILED else data_run_python


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
