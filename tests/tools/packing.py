"""Packed columns out of lists."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

from twisted_msgproto.core.packed import PackedMaps, PackedNumbers, PackedOctets


def rows(texts: Sequence[bytes], before: bytes = b"") -> PackedOctets:
    """The texts one behind another, between octets which belong to none of them."""
    bounds = array("i", [len(before)])
    for text in texts:
        bounds.append(bounds[-1] + len(text))
    return PackedOctets(before + b"".join(texts) + b"behind", bounds)


def packed_frames(
    numbers: Sequence[int], bodies: Sequence[bytes]
) -> tuple[PackedNumbers, PackedOctets]:
    return PackedNumbers("q", numbers), rows(bodies, b"??")


def packed_maps(values: Sequence[Mapping[str, str]]) -> PackedMaps:
    bounds = array("i", [0])
    for value in values:
        bounds.append(bounds[-1] + len(value))
    keys = rows([key.encode() for value in values for key in value])
    items = rows([item.encode() for value in values for item in value.values()])
    return PackedMaps(bounds, keys, items)
