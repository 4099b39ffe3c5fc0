"""A stream of bytes may arrive in many ways."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

PIECE_BYTES: Final = (1, 2, 3, 7, 64)


def splits(data: bytes, everywhere: int = 400) -> Iterator[list[bytes]]:
    """Iterate over ways to cut ``nbytes`` into pieces, each a list of all the pieces in order.

    First comes the stream as a whole, then in pieces of 1, 2, 3, 7 and 64 bytes, then cut in two
    at each place; a stream longer than ``everywhere`` bytes is cut in two at about that many
    places, spread evenly over it.
    """
    yield [data]
    for size in PIECE_BYTES:
        yield [data[at : at + size] for at in range(0, len(data), size)]
    for cut in range(1, len(data), max(1, len(data) // everywhere)):
        yield [data[:cut], data[cut:]]
