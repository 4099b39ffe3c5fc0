"""Inflate the payload of a C frame slice by slice (``LJ-08``, ``LJ-17``)."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

_inflating: Any = zlib
_ERRORS: tuple[type[Exception], ...] = (zlib.error,)
try:
    # isal inflates two to three times faster; zlib does the same work where it is not installed.
    from isal import isal_zlib

    _inflating = isal_zlib
    _ERRORS = (zlib.error, cast(type[Exception], isal_zlib.error))
except ImportError:  # pragma: no cover - the tests run with the extra
    pass

PIECE_OCTETS: Final = 256 << 10
"""The inflater is given this much at a time, because it copies what it does not come to."""


class BrokenStream(ValueError):
    """The payload of a C frame is not one whole zlib stream."""


class Inflation:
    """Inflates the payload of one C frame from its start to its end.

    Attributes:
        version: the version octet of the C frame.
        start: the first octets of the C frame, for the log.
        pieces: its octets, which are not copied.
        octets: how many these are.
        ended: whether the zlib stream has been read to its end.
        trailing_octets: how many octets stand behind that end; known once it was read.
    """

    __slots__ = (
        *("_given", "_inflater", "_left", "_number", "_tail"),
        *("ended", "octets", "pieces", "start", "trailing_octets", "version"),
    )

    def __init__(self, version: int, pieces: Sequence[memoryview], start: bytes) -> None:
        self.version = version
        self.pieces = pieces
        self.octets = sum(map(len, pieces))
        self.start = start
        self.ended = False
        self._inflater: Any = _inflating.decompressobj()
        self._tail: bytes | memoryview = b""
        self._number = 0  # of the piece that comes next, or whose octets are given now
        self._given = 0  # octets of that piece
        self._left = self.octets  # not given yet

    def rewound(self) -> Inflation:
        """Return an inflation of the same payload that stands at its start."""
        return Inflation(self.version, self.pieces, self.start)

    def more(self, octets_max: int) -> list[bytes]:
        """Return the next octets in pieces, at most ``octets_max``; none only at the end.

        Raises BrokenStream if this is not zlib, or if the stream does not end.
        """
        inflater = self._inflater
        chunks: list[bytes] = []
        room = octets_max
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
                self.trailing_octets = len(inflater.unused_data) + self._left
                self._inflater = None  # its memory is needed for the next one
            if chunk:
                chunks.append(chunk)
                room -= len(chunk)
            elif not (self.ended or self._tail or self._left):
                raise BrokenStream("the zlib stream of a compressed frame is unfinished")
        return chunks

    def _next(self) -> memoryview | bytes:
        """Return the next octets of the payload; none only at its end."""
        if not self._left:
            return b""
        piece = self.pieces[self._number]
        octets = piece[self._given : self._given + PIECE_OCTETS]
        self._given += len(octets)
        if self._given == len(piece):
            self._number, self._given = self._number + 1, 0
        self._left -= len(octets)
        return octets


@dataclass(slots=True)
class Level:
    """One stream of frames: the connection's own (index 0), or what a C frame inflates to.

    Attributes:
        octets: what is here of it.
        position: of the next frame within ``octets``.
        inflation: where further octets come from; None for the connection's own.
        wanted: so many octets must be inflated before anything is read again.
    """

    octets: bytes = b""
    position: int = 0
    inflation: Inflation | None = None
    wanted: int = 0
    _chunks: list[bytes] = field(default_factory=list)

    def want(self, needed: int) -> None:
        """The frame that begins at ``position`` needs ``needed`` octets, and they are not here."""
        rest = self.octets[self.position :]
        self.octets, self.position = rest, 0
        self.wanted = needed - len(rest)
        self._chunks = [rest] if rest else []

    def add(self, chunks: Sequence[bytes], octets: int, last: bool) -> None:
        """Note that ``chunks`` were inflated, ``octets`` together; ``last``: nothing follows."""
        self._chunks += chunks
        self.wanted -= octets
        if self.wanted <= 0 or last:
            chunks, self._chunks = self._chunks, []
            self.octets = chunks[0] if len(chunks) == 1 else b"".join(chunks)
            self.wanted = 0

    @property
    def held_octets(self) -> int:
        """Return how many octets are kept of it, without the payload of its C frame."""
        if self.inflation is None:
            return len(self.octets) - self.position
        return sum(map(len, self._chunks)) if self.wanted else len(self.octets)
