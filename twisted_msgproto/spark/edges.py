"""Turn options such as ``startingOffsets`` into the offsets where reading begins and ends."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping

import pyarrow.compute as pc

from ..core.errors import ConfigurationError, QueueMismatch
from .offsets import GO_ON, Source
from .options import EARLIEST, LATEST, Edge

PROBE_ROWS = 1000
"""A search reads this many rows at a time at first; past damaged rows it grows by this factor."""


def starting_offsets(
    queues: Mapping[str, Source],
    edge: Edge,
    *,
    accept_loss: bool = False,
    latest_when_too_late: bool = False,
) -> dict[str, int]:
    """Return the first offset to read of every queue.

    A queue that the options do not name begins at its earliest offset.  Raises
    ConfigurationError for a queue that is not there and for a time after the last row (unless
    ``latest_when_too_late``), QueueMismatch for an offset that the queue does not have.
    """
    check_named(queues, edge, "starting")
    found = {}
    for name, queue in queues.items():
        micros = edge.micros if edge.micros is not None else edge.times.get(name)
        if micros is None:
            wanted = edge.offsets.get(name, edge.everywhere)
            found[name] = _offset(queue, wanted, "startingOffsets", accept_loss)
            continue
        offset = offset_at(queue, micros)
        if offset is None and not latest_when_too_late:
            raise ConfigurationError(
                f"queue {name} has no row received at or after {_shown(micros)} (to begin at its "
                "end then: option startingOffsetsByTimestampStrategy=latest)"
            )
        found[name] = queue.end() if offset is None else offset
    return found


def ending_offsets(
    queues: Mapping[str, Source], edge: Edge, *, accept_loss: bool = False
) -> dict[str, int]:
    """Return the offset after the last one to read, of every queue; the same errors."""
    check_named(queues, edge, "ending")
    found = {}
    for name, queue in queues.items():
        micros = edge.micros if edge.micros is not None else edge.times.get(name)
        if micros is None:
            wanted = edge.offsets.get(name, edge.everywhere)
            found[name] = _offset(queue, wanted, "endingOffsets", accept_loss)
        else:
            offset = offset_at(queue, micros)
            found[name] = queue.end() if offset is None else offset
    return found


def check_named(queues: Mapping[str, Source], edge: Edge, side: str) -> None:
    """Raises ConfigurationError when the options name a queue that is not there."""
    strangers = sorted(edge.named - set(queues))
    if strangers:
        raise ConfigurationError(
            f"the {side} offsets name queue {strangers[0]}, which is not among "
            f"{', '.join(sorted(queues))}"
        )


def _offset(queue: Source, wanted: int | str, option: str, accept_loss: bool) -> int:
    begin, end = queue.begin(), queue.end()
    if wanted == EARLIEST:
        return begin
    if wanted == LATEST:
        return end
    assert isinstance(wanted, int)
    if begin <= wanted <= end:
        return wanted
    if accept_loss:
        return min(max(wanted, begin), end)
    raise QueueMismatch(
        f"the option {option} asks for offset {wanted} of queue {queue.queue_id}, which has "
        f"{begin} to {end}; choose another, {GO_ON}"
    )


def offset_at(queue: Source, micros: int) -> int | None:
    """Return the first offset whose row was received at or after ``micros``; None when there is
    none.

    It is found by halving, as times rise with the offsets.  Where a gateway's clock was set back
    they do not; then one of the places is found where times pass ``micros``.
    """
    lo, hi = queue.begin(), queue.end()
    end = hi
    while lo < hi:
        middle = (lo + hi) // 2
        seen = _row_at(queue, middle, hi)
        if seen is None or seen[1] >= micros:  # nothing but damaged rows from here on
            hi = middle
        else:
            lo = seen[0] + 1
    return lo if lo < end and _row_at(queue, lo, end) is not None else None


def _row_at(queue: Source, lo: int, hi: int) -> tuple[int, int] | None:
    """Offset and time (microseconds) of the first row lo ≤ offset < hi that can be read."""
    width = 1
    while lo < hi:
        stop = min(hi, lo + width)
        for batch in queue.read(lo, stop, 1):
            if batch.num_rows:
                time = pc.cast(batch.column("received_at")[0], "int64").as_py()
                return batch.column("offset")[0].as_py(), time
        lo, width = stop, width * PROBE_ROWS
    return None


def _shown(micros: int) -> str:
    try:
        time = dt.datetime.fromtimestamp(micros / 1e6, dt.UTC)
    except (OverflowError, ValueError, OSError):
        return f"{micros // 1000} ms"
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
