"""Compute where a stream is in its queues: this is the arithmetic of offsets, without Spark.

Spark keeps a stream's place as JSON in its checkpoint.  Ours is a dictionary, queue id → place::

    {"9f2c…": {"offset": 81920, "incarnation": 52…, "witness": 41…}}

``offset`` is the first offset that has *not* been read.  Incarnation and witness prove that the row
before the place is the very row that was read (``docs/queue-format.md``, "Lineage"); a place that
lacks them is accepted as it is.

A place may carry ``since``: the batch that ends there begins at ``since``, not where the batch
before it ended.  Only the first batch of a queue has it, and one that continues after a loss that
the operator accepted: Spark would ask ``startingOffsets`` again when it repeats the batch, and
``latest`` is another offset by then.  Where a stream begins, ``since`` is the place's own offset.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection, Mapping
from typing import NotRequired, TypedDict

from ..core.errors import QueueMismatch
from ..queue.interface import Queue
from ..queue.lineage import Landed, check_proof
from ..table.plan import Range, share

NEW_TABLE = "write to a new table with a new checkpoint; the queue still holds offsets from {begin}"
GO_ON = "or accept the loss with the option failOnDataLoss=false"


class Place(TypedDict):
    offset: int
    since: NotRequired[int]
    incarnation: NotRequired[int]
    witness: NotRequired[int]


Places = dict[str, Place]


def place_at(queue: Queue, offset: int) -> Place:
    place: Place = {"offset": offset}
    known = queue.place(offset)
    if known.incarnation:
        place["incarnation"] = known.incarnation
    if known.witness:
        place["witness"] = known.witness
    return place


def proof(place: Place) -> Landed | None:
    """Return what proves the history before ``place``; None for a place that has no proof."""
    if "incarnation" not in place and "witness" not in place:
        return None
    return Landed(place["offset"], place.get("incarnation", 0), place.get("witness", 0))


def latest_places(
    queues: Mapping[str, Queue],
    start: Mapping[str, Place],
    *,
    rows_max: int | None = None,
    ends: Mapping[str, int] | None = None,
    accept_loss: bool = False,
    retired: Collection[str] = (),
) -> Places:
    """Return where the next batch ends: at most ``rows_max`` rows after ``start``, over all queues.

    A queue that is new to ``start`` begins at its earliest offset; one that is not among ``queues``
    any more must be in ``retired``. ``ends`` caps every queue.
    """
    for name in start:
        if name not in queues and name not in retired:
            raise QueueMismatch(unknown_queue(name, queues))
    since: dict[str, int] = {}
    room: dict[str, int] = {}
    for name, queue in queues.items():
        since[name] = _begin_of_next(queue, start.get(name), accept_loss)
        end = queue.end() if ends is None else min(queue.end(), ends.get(name, 0))
        room[name] = max(0, end - since[name])
        if room[name] and name in start and not accept_loss:
            check_history(queue, start[name])
    if rows_max is not None:
        room = share(room, rows_max)
    places: Places = {}
    for name, queue in queues.items():
        before = start.get(name)
        if before is not None and not room[name] and since[name] == before["offset"]:
            # Nothing new: the very same place, or Spark sees a batch where there is none.
            places[name] = before
            continue
        place = place_at(queue, since[name] + room[name])
        # No batch ends where a stream begins.
        if before is None or since[name] != before["offset"] or before.get("since") == since[name]:
            place["since"] = since[name]
        places[name] = place
    for name in start:
        if name not in queues:
            places[name] = start[name]
    return places


def batch_ranges(
    queues: Mapping[str, Queue],
    start: Mapping[str, Place],
    end: Mapping[str, Place],
    *,
    parts: int = 1,
    rows_min: int = 1,
    accept_loss: bool = False,
    where: Mapping[str, str],
    access: object = None,
) -> list[Range]:
    """Return at most ``parts`` pieces a queue, of ``rows_min`` rows or more, for a batch.

    QueueMismatch if the checkpoint's rows are gone; the rest with ``accept_loss``.
    """
    ranges: list[Range] = []
    for name, place in end.items():
        lo = first_offset(start.get(name), place)
        hi = place["offset"]
        if hi <= lo:
            continue
        queue = queues.get(name)
        if queue is None:
            raise QueueMismatch(unknown_queue(name, queues))
        if accept_loss:
            lo, hi = max(lo, queue.begin()), min(hi, queue.end())
            if hi <= lo:
                continue
        else:
            check_place(queue, place, behind=lo)
            check_history(queue, place)
        landed = None if accept_loss else proof(place)
        pieces = max(1, min(parts, (hi - lo) // max(1, rows_min)))
        bounds = [lo + (hi - lo) * piece // pieces for piece in range(pieces + 1)]
        ranges += [
            Range(where[name], name, low, high, landed, access)
            for low, high in itertools.pairwise(bounds)
        ]
    return ranges


def first_offset(before: Place | None, place: Place) -> int:
    if "since" in place and place != before:
        return place["since"]
    return place["offset"] if before is None else before["offset"]


def check_place(queue: Queue, place: Place, behind: int | None = None) -> None:
    """Raise QueueMismatch unless reading can resume from ``place``, or from ``behind``."""
    begin, end, wanted = queue.begin(), queue.end(), place["offset"]
    if wanted > end:
        check_end(queue, place)
    earliest = wanted if behind is None else behind
    advice = f"{NEW_TABLE.format(begin=begin)}, {GO_ON}"
    if wanted > end:
        raise QueueMismatch(
            f"the checkpoint is ahead of queue {queue.queue_id}: it is at offset {wanted}, the "
            f"queue ends at {end} (is the queue's directory an older copy?); {advice}"
        )
    if earliest < begin:
        raise QueueMismatch(
            f"the checkpoint is behind what queue {queue.queue_id} trimmed: offset {earliest} is "
            f"wanted, the earliest kept is {begin}; {advice}"
        )


def check_end(queue: Queue, place: Place) -> None:
    """Raise QueueAway when only a power loss, which the gateway mends, has ended the queue."""
    known = proof(place)
    if known is not None:
        with contextlib.suppress(QueueMismatch):
            queue.check(known)


def check_history(queue: Queue, place: Place) -> None:
    known = proof(place)
    if known is None:
        return
    advice = f"{NEW_TABLE.format(begin=queue.begin())}, {GO_ON}"
    check_proof(queue.queue_id, known, queue.place(place["offset"]), advice)


def unknown_queue(name: str, queues: Mapping[str, Queue]) -> str:
    return (
        f"the checkpoint belongs to queue {name}, not to {', '.join(sorted(queues))}; "
        "give that queue's directory too, or use another checkpoint and table (a gateway which "
        f"is gone for good: the option retired={name})"
    )


def _begin_of_next(queue: Queue, before: Place | None, accept_loss: bool) -> int:
    if before is None:
        return queue.begin()
    if not accept_loss:
        check_place(queue, before)
        return before["offset"]
    end = queue.end()
    if before["offset"] > end:
        check_end(queue, before)
    return min(max(before["offset"], queue.begin()), end)
