"""Incarnations and witnesses prove that a place in a queue is the same place as before.

A queue that was restored from an older copy keeps its id and assigns the same offsets again.  Two
numbers prove that a row is the very row that a table has landed:

* the **incarnation** is drawn at random at every start of a writer, and is durable before that
  writer's first row is published.  A copy that is written on has another one from there on;
* the **witness** of a row is the checksum of the frame in which it stands, and its place there. It
  distinguishes two histories that a snapshot of a running machine leaves with the same incarnation.

Both are kept for every row in the queue and for the last one that was trimmed.  The file
``lineage`` says where each incarnation begins; see ``docs/queue-format.md``, "Lineage".
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from twisted_msgproto.core.errors import QueueMismatch

from ..core.disk import Disk, read_file, replace_file
from .format import seal, unseal

FILE = "lineage"
NUMBER_BITS = 63  # of incarnations and witnesses, which are a table's signed 64-bit versions
PLACE_BITS = 31  # of a witness, for the row's place in its frame; the checksum is above it
STARTS_MAX = 1000  # bounds the file of a gateway that restarts each minute, never trimmed
FILES_PARSED_MAX = 64

_START = re.compile(r"start (\d{1,20}) (\d{1,20})", re.ASCII)
_LOSSES = re.compile(r"losses (\d{1,9})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Landed:
    """How far a table has landed a queue, with a proof that it is this queue's history."""

    offset: int
    """This is the offset after the last landed row."""
    incarnation: int = 0
    """These 63 bits name the writer start that wrote row ``offset`` - 1; 0 when it is not known."""
    witness: int = 0
    """These 63 bits are the CRC-32 of the payload that holds row ``offset`` - 1, times 2**31,
    plus the row's place in that frame; 0 when it is not known.
    """


@dataclass(frozen=True, slots=True)
class Description:
    """All that a plan needs to know of a queue, at one moment."""

    queue_id: str
    begin: int
    end: int
    landed: Landed
    """This is the lineage of ``end``: a table that lands everything keeps it."""
    bytes: int
    """The queue's segments hold this many bytes together."""
    oldest: int | None
    """The first waiting row was received at this time, µs since 1970 UTC; None when nothing waits.

    A row waits that stands at or above the place that was asked for, or ``begin`` without one.
    """
    waiting_bytes: int
    """About this many bytes of segments wait."""
    damaged: tuple[tuple[int, int], ...]
    """Ranges lo ≤ offset < hi that are known to be damaged or lost, and not trimmed."""
    consumers: Mapping[str, int]
    """Each consumer has committed up to this offset."""
    moved: Mapping[str, int] = field(default_factory=dict)
    """Each consumer's offset last changed at this time, µs since 1970 UTC."""


def witness(payload_crc: int, place: int) -> int:
    return payload_crc << PLACE_BITS | place


REWIND = (
    "'msgproto table rewind TABLE --queue QUEUE' sets this table back to what is in both; a new "
    "table begins anew"
)


def check_bounds(queue_id: str, landed: Landed, begin: int, end: int) -> None:
    """Raise QueueMismatch if ``landed`` lies outside of what the queue holds."""
    if landed.offset > end:
        raise QueueMismatch(
            f"queue {queue_id} ends at offset {end}, but rows up to {landed.offset} have landed: "
            f"it was restored from an older copy, or its disk lost what it had confirmed. {REWIND}"
        )
    if landed.offset < begin:
        raise QueueMismatch(
            f"offset {landed.offset} of the queue {queue_id} was trimmed before it landed; it "
            f"begins at {begin}: its consumer was forgotten, or another one was taken for it. "
            f"The rows between are gone; a new table begins at {begin}"
        )


def check_proof(queue_id: str, landed: Landed, here: Landed, advice: str = REWIND) -> None:
    """Raise QueueMismatch if the row that was read is not the one that is ``here``.

    What one of the two does not know (0) is not compared.
    """
    row = f"row {landed.offset - 1} of the queue {queue_id} is not the one which was read"
    if landed.incarnation and here.incarnation and landed.incarnation != here.incarnation:
        raise QueueMismatch(
            f"{row}, it was written by another start of its gateway: the queue was restored from "
            f"an older copy and written on since; {advice}"
        )
    if landed.witness and here.witness and landed.witness != here.witness:
        raise QueueMismatch(
            f"{row}, though the same start of its gateway wrote both: its machine was set back to "
            f"a snapshot and went on from there; {advice}"
        )


@dataclass(frozen=True, slots=True)
class Lineage:
    starts: tuple[tuple[int, int], ...] = ()
    losses: int = 0  # so many starts found that published messages were lost

    def incarnation(self, row: int) -> int:
        """Return the writer start whose row this is; 0 when it is not known."""
        index = bisect_right(self.starts, row, key=lambda start: start[0])
        return self.starts[index - 1][1] if index else 0

    def started(self, end: int, incarnation: int, *, lost: bool = False) -> Lineage:
        """Return the history with a start at ``end``; one without rows before it is replaced."""
        earlier = [start for start in self.starts if start[0] < end]
        starts = (*earlier, (end, incarnation))[-STARTS_MAX:]
        return Lineage(starts, self.losses + lost)

    def trimmed(self, begin: int) -> Lineage:
        index = bisect_right(self.starts, begin - 1, key=lambda start: start[0])
        return Lineage(self.starts[max(index - 1, 0) :], self.losses)

    def sealed(self) -> bytes:
        lines = [f"start {first} {number}" for first, number in self.starts]
        if self.losses:
            lines.append(f"losses {self.losses}")
        return b"".join(map(seal, lines))


@lru_cache(FILES_PARSED_MAX)
def unsealed(data: bytes) -> Lineage | None:
    starts: list[tuple[int, int]] = []
    count = 0
    for line in data.splitlines():
        text = unseal(line) or ""
        if start := _START.fullmatch(text):
            starts.append((int(start[1]), int(start[2])))
        elif losses := _LOSSES.fullmatch(text):
            count = int(losses[1])
        else:
            return None
    return Lineage(tuple(starts), count) if starts else None


def read(disk: Disk, directory: str) -> Lineage | None:
    data = read_file(disk, os.path.join(directory, FILE))
    return unsealed(data) if data else None


def write(disk: Disk, directory: str, lineage: Lineage) -> None:
    replace_file(disk, os.path.join(directory, FILE), lineage.sealed())
