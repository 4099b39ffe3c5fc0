"""Ranges of offsets that are damaged or lost: the file ``damaged`` and sums over ranges."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from ..core.disk import Disk, read_file, replace_file
from .format import seal, unseal

FILE = "damaged"
_TEXT = re.compile(r"damaged (\d{1,20}) (\d{1,20}) (.*)", re.ASCII)

Range = tuple[int, int]  # a range has the offsets lo ≤ n < hi


def read(disk: Disk, directory: str) -> dict[Range, str]:
    """Return the ranges that the file names, and why; damaged lines are passed over."""
    data = read_file(disk, os.path.join(directory, FILE)) or b""
    found = {}
    for line in data.splitlines():
        match = _TEXT.fullmatch(unseal(line) or "")
        if match:
            found[int(match[1]), int(match[2])] = match[3]
    return found


def write(disk: Disk, directory: str, ranges: dict[Range, str]) -> None:
    lines = [seal(f"damaged {lo} {hi} {reason}") for (lo, hi), reason in sorted(ranges.items())]
    replace_file(disk, os.path.join(directory, FILE), b"".join(lines))


def merged(ranges: Iterable[Range]) -> list[Range]:
    result: list[Range] = []
    for lo, hi in sorted(ranges):
        if result and lo <= result[-1][1]:
            result[-1] = result[-1][0], max(hi, result[-1][1])
        else:
            result.append((lo, hi))
    return result


def uncovered(lo: int, hi: int, ranges: Iterable[Range]) -> list[Range]:
    result = []
    for known_lo, known_hi in merged(ranges):
        if known_hi <= lo or known_lo >= hi:
            continue
        if known_lo > lo:
            result.append((lo, known_lo))
        lo = known_hi
    if lo < hi:
        result.append((lo, hi))
    return result
