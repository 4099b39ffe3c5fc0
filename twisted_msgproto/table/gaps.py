"""Notes in the table's own log say why offsets are not in a table, where nothing was lost.

A row may be missing because the table began later, because its day expired, or because the queue
had lost it before.  The log keeps such reasons as application transactions, which stay through
checkpoints, log cleanup, vacuum, compaction and a copy of the table:

* ``msgproto-begin:GATEWAY`` is the first offset that the table was to hold;
* ``msgproto-expired:GATEWAY:LO`` is the offset after the last one of rows that were expired, from
  offset LO on; rows that expire next to them move it up, so a table that expires a day every day
  keeps one note a gateway;
* ``msgproto-damaged:GATEWAY:LO`` is the same for rows that were damaged in the queue;
* ``msgproto-left-out:GATEWAY`` counts the rows that the table's shape leaves out,
  ``msgproto-rejected:GATEWAY`` those that its transform could not land (``dead_letters.py``), and
  ``msgproto-expired-rows:GATEWAY``, ``msgproto-damaged-rows:GATEWAY`` those of the ranges above,
  which are noted coarsely: where rows are left out or rejected, only these counts say what has to
  be there;
* ``msgproto-deriving:TABLE:DEFINITION`` is one more than the version of another table that this one
  is being made of, and 0 once it is made; ``msgproto-derived-parts`` counts what it has of it;
* ``msgproto-dropping:GATEWAY`` is the first offset of the first batch from which a transform
  dropped rows: from there on, an offset that is absent may be one that was dropped.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from itertools import pairwise

from ..queue.damage import Range, merged

BEGIN_PREFIX = "msgproto-begin:"
EXPIRED_PREFIX = "msgproto-expired:"
DAMAGED_PREFIX = "msgproto-damaged:"
DROPPING_PREFIX = "msgproto-dropping:"
LEFT_OUT_PREFIX = "msgproto-left-out:"
REJECTED_PREFIX = "msgproto-rejected:"
EXPIRED_ROWS_PREFIX = "msgproto-expired-rows:"
DAMAGED_ROWS_PREFIX = "msgproto-damaged-rows:"
DERIVING_PREFIX = "msgproto-deriving:"
DERIVED_PARTS = "msgproto-derived-parts"

COUNTS = (LEFT_OUT_PREFIX, REJECTED_PREFIX, EXPIRED_ROWS_PREFIX, DAMAGED_ROWS_PREFIX)

NOTES_MAX = 16  # in a commit, of a kind and gateway: around midnight many small ones expire


def offsets(transactions: Mapping[str, int], prefix: str) -> dict[str, int]:
    return {
        name.removeprefix(prefix): offset
        for name, offset in transactions.items()
        if name.startswith(prefix)
    }


def half_derived(transactions: Mapping[str, int]) -> bool:
    """Return whether a table is being made of another one, and has only a part of it."""
    return any(offsets(transactions, DERIVING_PREFIX).values())


def counted(transactions: Mapping[str, int], prefix: str) -> dict[str, int]:
    """Return how many rows a count with this prefix says, for each gateway of which it says any."""
    return {gateway: rows for gateway, rows in offsets(transactions, prefix).items() if rows}


def absent(transactions: Mapping[str, int], gateway: str) -> int:
    """Return how many rows below a gateway's place are absent for reasons that are counted."""
    return sum(transactions.get(prefix + gateway, 0) for prefix in COUNTS)


def absent_notes(transactions: Mapping[str, int], gateway: str, rows: int) -> dict[str, int]:
    """Return the notes with which ``rows`` are absent below a place that was set back."""
    for prefix in COUNTS:
        if gateway in counted(transactions, prefix):
            return dict.fromkeys((one + gateway for one in COUNTS), 0) | {prefix + gateway: rows}
    return {}


def added(prefix: str, rows: Mapping[str, int], transactions: Mapping[str, int]) -> dict[str, int]:
    return {
        prefix + gateway: transactions.get(prefix + gateway, 0) + number
        for gateway, number in rows.items()
        if number
    }


def sizes(ranges: Mapping[str, Iterable[Range]]) -> dict[str, int]:
    return {
        gateway: sum(hi - lo for lo, hi in merged(list(parts))) for gateway, parts in ranges.items()
    }


def noted(transactions: Mapping[str, int], prefix: str) -> dict[str, list[Range]]:
    """Return the ranges of each gateway that are noted with this prefix, in order."""
    found: dict[str, list[Range]] = {}
    for name, hi in transactions.items():
        if name.startswith(prefix):
            gateway, _, lo = name.removeprefix(prefix).rpartition(":")
            if gateway and lo.isdecimal():
                found.setdefault(gateway, []).append((int(lo), hi))
    return {gateway: merged(ranges) for gateway, ranges in found.items()}


def notes(
    prefix: str, ranges: Mapping[str, Iterable[Range]], transactions: Mapping[str, int]
) -> dict[str, int]:
    """Return the transactions that note ``ranges``, given those that the table has."""
    known = noted(transactions, prefix)
    return {
        f"{prefix}{gateway}:{lo}": hi
        for gateway, new in ranges.items()
        for lo, hi in merged([*known.get(gateway, []), *_fewer(merged(new))])
        if (lo, hi) not in known.get(gateway, [])
    }


def batch_notes(
    begins: Mapping[str, int],
    damaged: Mapping[str, Iterable[Range]],
    transactions: Mapping[str, int],
    dropped_from: Mapping[str, int] | None = None,
    left_out: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """Return the notes of a batch beside its places; ``begins`` are gateways new to the table."""
    found = {BEGIN_PREFIX + gateway: offset for gateway, offset in begins.items()}
    known = offsets(transactions, DROPPING_PREFIX)
    for gateway, offset in (dropped_from or {}).items():
        if gateway not in known:
            found[DROPPING_PREFIX + gateway] = offset
    found |= added(LEFT_OUT_PREFIX, left_out or {}, transactions)
    found |= added(DAMAGED_ROWS_PREFIX, sizes(damaged), transactions)
    return found | (notes(DAMAGED_PREFIX, damaged, transactions) if damaged else {})


def _fewer(ranges: list[Range]) -> list[Range]:
    neighbours = enumerate(pairwise(ranges))
    gaps = [(after[0] - before[1], index) for index, (before, after) in neighbours]
    closed = {index for _, index in heapq.nsmallest(len(ranges) - NOTES_MAX, gaps)}
    found: list[Range] = []
    for index, (lo, hi) in enumerate(ranges):
        if index - 1 in closed:
            found[-1] = (found[-1][0], hi)
        else:
            found.append((lo, hi))
    return found
