"""A stream of octets may arrive in many ways."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

PIECE_OCTETS: Final = (1, 2, 3, 7, 64)
"""A whole stream is cut into pieces of each of these sizes."""


def splits(octets: bytes, everywhere: int = 400) -> Iterator[list[bytes]]:
    """Iterate over ways to cut ``octets`` into pieces, each a list of all the pieces in order.

    First comes the stream as a whole, then in pieces of 1, 2, 3, 7 and 64 octets, then cut in two
    at each place; a stream longer than ``everywhere`` octets is cut in two at about that many
    places, spread evenly over it.
    """
    yield [octets]
    for size in PIECE_OCTETS:
        yield [octets[at : at + size] for at in range(0, len(octets), size)]
    for cut in range(1, len(octets), max(1, len(octets) // everywhere)):
        yield [octets[:cut], octets[cut:]]
