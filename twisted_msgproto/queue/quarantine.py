"""Copies of damaged octets and of cut tails are kept in ``quarantine/``, for a person to see."""

from __future__ import annotations

import contextlib
import os

from .disk import Disk, replace_whole
from .format import Segment

DIRECTORY = "quarantine"
COPY_OCTETS_MAX = 64 << 20
UNFINISHED = ".unfinished"
UNFINISHED_KEPT = 8
"""At most this number of copies of unfinished records is kept, and the oldest go first.

A loss of power may leave one copy of up to one group.
"""


def copied(segment: Segment, position: int, octets: int) -> bytes:
    """Return as much of a stretch or tail as is copied aside.  Raises OSError."""
    return bytes(segment.octets(position, min(octets, COPY_OCTETS_MAX)))


def keep(
    disk: Disk,
    directory: str,
    segment: Segment,
    position: int,
    octets: int,
    copied: bytes,
    *,
    suffix: str = "",
) -> str:
    """Put ``copied`` of ``octets`` octets of ``segment`` aside, durably; return in words where they
    are.

    Raises OSError if they cannot be written.
    """
    aside = os.path.join(directory, DIRECTORY)
    name = f"{segment.first:020d}-{position}{suffix}"
    disk.make_directory(aside)
    replace_whole(disk, os.path.join(aside, name), copied)
    if suffix:
        _forget_oldest(disk, aside, suffix, name)
    part = "" if len(copied) == octets else f" (the first {len(copied)} of them)"
    return f"{DIRECTORY}/{name}{part}"


def _forget_oldest(disk: Disk, aside: str, suffix: str, made: str) -> None:
    """Remove all but the newest copies with this suffix; a failure leaves them there.

    The one that was ``made`` now is the newest, also beside those of a queue that went further and
    was replaced by an older copy of it.
    """
    names = [name for name in disk.names(aside) if name.endswith(suffix)]
    # A later place in the queue was written later: a later segment, or more digits in the same one.
    names.sort(key=lambda name: (name == made, name.partition("-")[0], len(name), name))
    for name in names[:-UNFINISHED_KEPT]:
        with contextlib.suppress(OSError):
            disk.remove(os.path.join(aside, name))
