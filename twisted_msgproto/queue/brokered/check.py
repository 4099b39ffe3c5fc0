"""Check a broker's files, for ``msgproto queue verify``.  It only reads."""

from __future__ import annotations

import os
from collections.abc import Iterator

from ..disk import Disk, read_whole
from . import names, settled
from .kept import DIRECTORY as LOG

DIRECTORY = "broker"


def has_broker(disk: Disk, directory: str) -> bool:
    return read_whole(disk, os.path.join(directory, DIRECTORY, names.FILE)) is not None


def log_of(directory: str) -> str:
    return os.path.join(directory, DIRECTORY, LOG)


def faults(disk: Disk, directory: str, queue_id: str) -> Iterator[str]:
    """Yield what is wrong with the small files, one line each.  Raises OSError."""
    here = os.path.join(directory, DIRECTORY)
    octets = read_whole(disk, os.path.join(here, names.FILE))
    if octets is not None and names.parsed(octets, queue_id) is None:
        yield (
            f"{DIRECTORY}/{names.FILE}: damaged, or of another queue; the next start of the "
            "gateway knows the queues from their messages"
        )
    octets = read_whole(disk, os.path.join(here, settled.FILE))
    if octets is None:
        return
    found = settled.parsed(octets, queue_id)
    if not found.ours:
        yield f"{DIRECTORY}/{settled.FILE}: damaged header, or of another queue; nothing is settled"
    if found.damaged_octets:
        yield (
            f"{DIRECTORY}/{settled.FILE}: {found.damaged_octets} damaged octets; what they settled "
            "is delivered again"
        )
