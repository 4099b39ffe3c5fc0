"""A D frame that is not here as a whole, or breaks a limit, is read pair by pair."""

from __future__ import annotations

from dataclasses import dataclass, field
from sys import getsizeof
from typing import NamedTuple

from . import scan
from .frames import LENGTH, LONG


class AboveLimit(NamedTuple):
    """Says which limit a D frame is above: a fault's reason, its text and the limit's name, which
    is empty where no operator sets it.
    """

    reason: str
    text: str
    name: str


@dataclass(slots=True)
class PartialData:
    """What was read of an incomplete D frame, so that nothing is read twice (``LJ-03``).

    Attributes:
        pair_count: pairs that the frame has.
        missing: pairs that are not read yet; 0 once the frame is here.
        start: the frame's first octets, for the log.
        octets: how much of the frame was read so far, its header included.
        texts_octets: what its keys and values occupy in memory.
        key: it was read, and its value was not; None between pairs.
        invalid_texts: keys and values that were not UTF-8; their octets are kept as surrogates.
    """

    version: int
    sequence: int
    pair_count: int
    start: bytes
    octets: int = LONG.size
    texts_octets: int = 0
    pairs: dict[str, str] = field(default_factory=dict)
    key: str | None = None
    invalid_texts: int = 0
    missing: int = field(init=False)

    def __post_init__(self) -> None:
        self.missing = self.pair_count

    @property
    def held_octets(self) -> int:
        """Return what it occupies in memory: for short texts ten times its octets."""
        return self.texts_octets + getsizeof(self.pairs)

    def read(
        self, octets: bytes, position: int, limits: scan.DataLimits
    ) -> tuple[int, int, AboveLimit | None]:
        """Read on from ``position``, as far as the octets reach.

        Return the position behind what was read, how many octets are needed there to go on (0 when
        the frame is here), and the limit that the frame is above, or None.
        """
        begin, end = position, len(octets)
        text_octets_max = limits.key_octets, limits.value_octets
        pairs, key = self.pairs, self.key
        needed = 0
        above: AboveLimit | None = None
        while self.missing:
            text_start = position + LENGTH.size
            if text_start > end:
                needed = LENGTH.size
                break
            (length,) = LENGTH.unpack_from(octets, position)
            if length > text_octets_max[key is not None]:
                what = "key" if key is None else "value"
                text = f"a {what} of {length} octets"
                above = AboveLimit(f"{what}-limit", text, "" if key is None else "data-octets")
                break
            text_end = text_start + length
            if text_end > end:
                needed = LENGTH.size + length
                break
            raw = octets[text_start:text_end]
            try:
                text = raw.decode()
            except UnicodeDecodeError:
                self.invalid_texts += 1
                text = raw.decode("utf-8", "surrogateescape")
            position = text_end
            self.texts_octets += getsizeof(text)
            if key is None:
                key = text
            else:
                pairs[key] = text
                key = None
                self.missing -= 1
        self.key = key
        self.octets += position - begin
        if self.octets > limits.octets:
            above = AboveLimit("data-limit", "a data frame is too large", "data-octets")
        return position, needed, above
