"""Frames that are read in parts: a D frame pair by pair, a C frame slice by slice."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from sys import getsizeof
from typing import Any, Final, cast

from .frames import LENGTH, LONG, DataLimits

AboveLimit = tuple[str, str, str]
"""A fault's reason and text, and the name of the limit; empty where no operator sets it."""


@dataclass(slots=True)
class PartialData:
    """What was read of an incomplete D frame, so that nothing is read twice (``LJ-03``)."""

    version: int
    sequence: int
    pair_count: int
    missing: int  # pairs that are not read yet
    start: bytes  # for the log
    nbytes: int = LONG.size  # read so far, with the header
    texts_bytes: int = 0  # of keys and values in memory
    pairs: dict[str, str] = field(default_factory=dict)
    key: str | None = None  # its value was not read
    invalid_texts: int = 0  # not UTF-8, kept as surrogates

    @property
    def held_bytes(self) -> int:
        """Return what it occupies in memory: for short texts ten times its bytes."""
        return self.texts_bytes + getsizeof(self.pairs)

    def read(
        self, content: bytes, position: int, limits: DataLimits
    ) -> tuple[int, int, AboveLimit | None]:
        """Read on from ``position``, as far as the bytes reach.

        Return the position behind what was read, how many bytes are needed there to go on (0 when
        the frame is here), and the limit that the frame is above, or None.
        """
        begin, end = position, len(content)
        text_bytes_max = limits.key_bytes, limits.value_bytes
        pairs, key = self.pairs, self.key
        needed = 0
        above: AboveLimit | None = None
        while self.missing:
            text_start = position + LENGTH.size
            if text_start > end:
                needed = LENGTH.size
                break
            (length,) = LENGTH.unpack_from(content, position)
            if length > text_bytes_max[key is not None]:
                what = "key" if key is None else "value"
                text = f"a {what} of {length} bytes"
                above = f"{what}-limit", text, "" if key is None else "data-bytes"
                break
            text_end = text_start + length
            if text_end > end:
                needed = LENGTH.size + length
                break
            raw = content[text_start:text_end]
            try:
                text = raw.decode()
            except UnicodeDecodeError:
                self.invalid_texts += 1
                text = raw.decode("utf-8", "surrogateescape")
            position = text_end
            self.texts_bytes += getsizeof(text)
            if key is None:
                key = text
            else:
                pairs[key] = text
                key = None
                self.missing -= 1
        self.key = key
        self.nbytes += position - begin
        if self.nbytes > limits.nbytes:
            above = "data-limit", "a data frame is too large", "data-bytes"
        return position, needed, above


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
    """The payload of one C frame, inflated from its start to its end."""

    def __init__(self, version: int, pieces: Sequence[memoryview], start: bytes) -> None:
        self.version = version
        self.pieces = pieces
        self.nbytes: int = sum(map(len, pieces))
        self.start = start  # for the log
        self.ended: bool = False  # the zlib stream was read to its end
        self._inflater: Any = _inflating.decompressobj()
        self._tail: bytes | memoryview = b""
        self._number = 0  # of the piece that comes next, or whose bytes are given now
        self._given = 0  # bytes of that piece
        self._left = self.nbytes  # not given yet

    def rewound(self) -> Inflation:
        return Inflation(self.version, self.pieces, self.start)

    def more(self, bytes_max: int) -> list[bytes]:
        """Return up to ``bytes_max`` bytes in pieces, none only at the end; raises BrokenStream."""
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
    """One stream of frames: the connection's own (index 0), or what a C frame inflates to."""

    nbytes: bytes = b""  # what is here
    position: int = 0  # of the next frame in that
    inflation: Inflation | None = None  # None: the connection's own
    wanted: int = 0  # so many must be inflated before anything is read
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
