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

A :class:`Decoder` returns data frames as **runs**: neighbours of one version and one type in one
object, as columns.  A window of 2,048 events in one read is one :class:`Json`, so that nothing
above this module has to work per event.  Where a run begins and ends depends on how the octets
arrived; the sequence of events in them does not (``LJ-20``).

A peer's fault is never raised: it is the last item that :meth:`Decoder.feed` returns.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from ...core.limits import Limit
from ...core.packed import PACKED_MIN, PackedNumbers, PackedOctets, joined, kept_packed

FAULT_OCTETS: Final = 16
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
"""All frames have one of these type octets."""

SHORT = struct.Struct(">BBI")  # version, type, number
LONG = struct.Struct(">HII")  # version and type as one number, sequence, length or count
HEAD_AND_SEQUENCE = struct.Struct(">HI")
LENGTH = struct.Struct(">I")

HEADER_OCTETS: Final = SHORT.size
"""A ``C`` frame has version, type and length."""

ACK_OCTETS: Final = SHORT.size
"""An ``A`` frame has version, type and sequence number."""

COMPRESSION_DEPTH_MAX: Final = 3
"""Compressed frames may be nested this deep (``LJ-08``)."""

MESSAGE_WEIGHT_OCTETS: Final = 100
"""A message counts as this many octets beside its payload: millions of empty ones must count as
well.
"""

STEP_WEIGHT_OCTETS: Final = 1000
"""A run of data frames, or a frame of another type, counts as this many octets beside all that:
a turn may decode many octets, but a stream of empty frames must not make it long.
"""

PAIR_WEIGHT_OCTETS: Final = 135
"""Each pair of a D frame counts as this many octets: the shortest costs as much as a document.
"""

OCTETS_MAX: Final = 1 << 30
"""What limits of octets may be raised to: places in octets are 31-bit integers."""

LIMITS: Final = (
    Limit("window", 65_536, "events", "what a W frame may announce (LJ-07)", 1),
    Limit(
        "compressed-octets", 64 << 20, "octets", "the payload of one C frame (LJ-17)", 1, OCTETS_MAX
    ),
    Limit(
        "inflated-octets",
        64 << 20,
        "octets",
        "what one C frame may inflate to whatever its ratio, nesting summed",
        1,
        OCTETS_MAX,
    ),
    Limit(
        "inflated-ratio",
        500,
        "octets",
        "what each octet of a C frame may inflate to, where that is more than inflated-octets",
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
    Limit("json-octets", 16 << 20, "octets", "the document of one J frame (LJ-17)", 1, OCTETS_MAX),
    Limit(
        "data-octets",
        64 << 20,
        "octets",
        "one D frame in all, as it is held in memory",
        1,
        OCTETS_MAX,
    ),
    Limit("slice-octets", 4 << 20, "octets", "what is decoded in one turn (LJ-13)", 1, OCTETS_MAX),
)
"""Checked on headers, before an octet is held for what they announce (``LJ-17``)."""

NESTED_SHARE: Final = 4
"""The payloads of all C frames within one C frame may have a fourth of ``inflated-octets``."""

PAIRS_MAX: Final = 1024
"""A D frame has no more pairs (``LJ-17``)."""

KEY_OCTETS: Final = 1024
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

    ``octets`` counts the frames as they stood on the wire (inflated, where compressed).
    ``windows``: of each ``W`` frame among them, how many of them stand before it, and its size.
    """

    version: int
    sequences: PackedNumbers
    bodies: PackedOctets
    octets: int
    compressed: bool = False
    windows: Sequence[tuple[int, int]] = ()

    @property
    def long(self) -> bool:
        """It is worth to be handed on alone."""
        return len(self.sequences) >= PACKED_MIN

    @classmethod
    def joined(cls, runs: list[Json]) -> Json:
        """Return the J frames of runs that followed each other as one run, of the first one's
        version.
        """
        sequences = PackedNumbers("q")
        for run in runs:
            sequences.extend(run.sequences)
        octets = sum([run.octets for run in runs])
        return cls(runs[0].version, sequences, joined([run.bodies for run in runs]), octets)


@dataclass(slots=True)
class Data:
    """A run of ``D`` frames: one sequence number and one mapping each (``LJ-03``).

    Octets that are not UTF-8 stand in keys and values as surrogate escapes.
    """

    version: int
    sequences: PackedNumbers
    pairs: Sequence[dict[str, str]]
    octets: int
    compressed: bool = False

    windows: ClassVar[Sequence[tuple[int, int]]] = ()
    """W frames do not stand among D frames, but beside them: see :class:`Json`."""

    @property
    def long(self) -> bool:
        """It is worth to be handed on alone."""
        return kept_packed(self.pairs)

    @classmethod
    def joined(cls, runs: list[Data]) -> Data:
        """Runs that followed each other as one, of the first one's version."""
        sequences = PackedNumbers("q")
        for run in runs:
            sequences.extend(run.sequences)
        pairs = [pairs for run in runs for pairs in run.pairs]
        return cls(runs[0].version, sequences, pairs, sum([run.octets for run in runs]))


@dataclass(slots=True)
class Compressed:
    """An outermost ``C`` frame has ended, and every frame in it was whole (``LJ-08``)."""

    version: int


Frame = Window | Ack | Json | Data | Compressed


# ── Encoding ────────────────────────────────────────────────────────────────────────────────────


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

    Surrogate escapes become the octets they stand for; UnicodeEncodeError for other surrogates.
    """
    parts = [LENGTH.pack(len(pairs))]
    for item in pairs.items():
        for text in item:
            octets = text.encode("utf-8", "surrogateescape")
            parts += (LENGTH.pack(len(octets)), octets)
    return b"".join(parts)


def encode_data_around(
    sequences: Sequence[int], encoded_pairs: Iterable[bytes], version: int = VERSION_1
) -> bytes:
    """Return a run of ``D`` frames around what :func:`encode_pairs` returned for each."""
    head = version << 8 | TYPE_DATA
    pack = HEAD_AND_SEQUENCE.pack
    parts: list[bytes] = []
    for sequence, octets in zip(sequences, encoded_pairs, strict=True):
        parts += (pack(head, sequence), octets)
    return b"".join(parts)


def encode_data(
    sequences: Sequence[int], pairs: Iterable[Mapping[str, str]], version: int = VERSION_1
) -> bytes:
    """Return a run of ``D`` frames; surrogate escapes become the octets they stand for
    (``LJ-03``).
    """
    return encode_data_around(sequences, map(encode_pairs, pairs), version)


def encode_compressed(frames: bytes, level: int = 3, version: int = VERSION_2) -> bytes:
    """Return one ``C`` frame around ``frames``; these must be complete (``LJ-08``, ``LJ-18``).

    ``level`` is zlib's, 1 (fast) to 9 (small).
    """
    payload = zlib.compress(frames, level)
    return SHORT.pack(version, TYPE_COMPRESSED, len(payload)) + payload
