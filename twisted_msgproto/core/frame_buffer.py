"""The beginning of a frame is kept until the rest of it has come."""

from __future__ import annotations

from typing import Final

PIECE_BYTES: Final = 64 << 10
"""Shorter reads are joined up to this size: a piece for each would weigh more than its bytes."""


class FrameBuffer:
    """The bytes of a frame that is not here in full, in pieces: one buffer that grows with each
    read would be moved again and again, and leave holes in the process's memory.
    """

    __slots__ = ("_last", "_pieces", "nbytes")

    def __init__(self) -> None:
        self._pieces: list[bytes | bytearray] | None = None  # made late: most connections
        self._last: bytearray | None = None  # are idle most of the time
        self.nbytes: int = 0

    def add(self, nbytes: bytes) -> None:
        size = len(nbytes)
        self.nbytes += size
        if size >= PIECE_BYTES:
            self._sealed().append(nbytes)
        elif self._last is None:
            self._last = bytearray(nbytes)
        else:
            self._last += nbytes
            if len(self._last) >= PIECE_BYTES:
                self._sealed()

    def start(self, nbytes: int) -> bytes:
        first = self._pieces[0] if self._pieces else self._last
        return b"" if first is None else bytes(first[:nbytes])

    def taken(self) -> list[bytes | bytearray]:
        pieces, last = self._pieces, self._last
        self._pieces = self._last = None
        self.nbytes = 0
        if pieces is None:
            return [] if last is None else [last]
        if last is not None:
            pieces.append(last)
        return pieces

    def _sealed(self) -> list[bytes | bytearray]:
        if self._pieces is None:
            self._pieces = []
        if self._last is not None:
            self._pieces.append(self._last)
            self._last = None
        return self._pieces
