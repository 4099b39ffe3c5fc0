"""The figures of a queue: those in memory, and those that a thread reads from its files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from ...core.errors import QueueMismatch
from .verdict import Verdict, safe_and_landing

CONSUMERS_SHOWN_MAX: Final = 100
"""At most this number of consumers is shown; few queues have more than three."""

RANGES_SHOWN_MAX: Final = 100

NOTHING_READ: Final[Mapping[str, Any]] = {
    "oldest": None,
    "consumers": [],
    "bridges": [],
    "unheld": [],
    "unreadable": None,
}
MEND: Final = "start its gateway, or run msgproto queue mend"

NEVER_REFUSES: Final[Mapping[str, Any]] = {
    "refusal": None,
    "stalled_because": None,
    "damaged_messages": 0,
}
"""A queue that nobody writes is asked for nothing that it could refuse."""


def written_figures(writer: Any) -> dict[str, Any]:
    statistics = writer.statistics()
    return {
        **statistics,
        "directory": writer.directory,
        "queue_id": writer.queue_id,
        "max_octets": writer.max_octets,
        "left_octets": max(writer.max_octets - statistics["stored_octets"], 0),
        "damaged": [list(damage) for damage in writer.damaged[:RANGES_SHOWN_MAX]],
        "stalled_because": writer.stalled,
        "refusal": writer.refusal,
        **NOTHING_READ,
    }


def queue_figures(writer: Any, read: Mapping[str, Any]) -> dict[str, Any]:
    unreadable = read["unreadable"] or writer.unreadable
    return {**written_figures(writer), **read, "unreadable": unreadable}


def read_figures(directory: str, now: float) -> dict[str, Any]:
    """Return those figures of a queue that are read from its disk, which may take long.

    ``now`` is in seconds since 1970 UTC.  What cannot be read is missing, and ``unreadable`` says
    why.
    """
    from .bridging import bridges_of  # as the writer, it needs the packages of a queue

    shown: dict[str, Any] = dict(NOTHING_READ)
    try:
        disk = os.statvfs(directory)
        shown["disk_free_octets"] = disk.f_bavail * disk.f_frsize
        shown["bridges"] = bridges_of(directory, now)
        shown |= _consumers(directory, now)
        shown["unheld"] = unheld_queues(directory, now)
    except Exception as error:  # the queue is closing, or its disk fails: the rest is still known
        shown["unreadable"] = f"{type(error).__name__}: {error}"
    return shown


def unheld_queues(directory: str, now: float) -> list[dict[str, Any]]:
    """Return the figures of the queues beside ``directory`` that no gateway holds.

    ``now`` is in seconds since 1970 UTC.  One that is empty has landed, whoever reads it.
    """
    from ...queue.below import unheld

    return [_unheld(place, now) for place in unheld(directory)]


def _unheld(directory: str, now: float) -> dict[str, Any]:
    from ...queue import QueueReader
    from ...queue.below import is_unpublished

    queue: dict[str, Any] = {**NEVER_REFUSES, "consumers": [], "unreadable": None}
    kept = 0
    try:
        reader = QueueReader(directory)
        kept = reader.end() - reader.begin()
        queue["damaged_messages"] = sum(hi - lo for lo, hi in reader.damaged())
        queue["unpublished"] = is_unpublished(directory)
        queue |= _consumers(directory, now)
    except Exception as error:  # nobody else would say so: no gateway opens it
        queue["unreadable"] = f"{type(error).__name__}: {error}"
    whole = not queue["damaged_messages"] and queue["unreadable"] is None
    if queue.get("unpublished"):
        verdict = Verdict(False, f"What it may have acknowledged last is not published: {MEND}.")
    else:
        verdict = Verdict(True, "") if whole and not kept else safe_and_landing(queue)
    behind = max((one["behind_messages"] for one in queue["consumers"]), default=kept)
    return {
        "directory": directory,
        "behind_messages": behind,
        **verdict.as_dict(),
    }


def _consumers(directory: str, now: float) -> dict[str, Any]:
    from ...queue import QueueReader
    from ...queue.lineage import Landed

    reader = QueueReader(directory)
    described = reader.describe()
    found = []
    for name, offset in sorted(described.consumers.items())[:CONSUMERS_SHOWN_MAX]:
        try:
            oldest = reader.describe(Landed(max(offset, described.begin))).oldest
        except QueueMismatch:  # it was trimmed meanwhile
            oldest = None
        moved = described.moved.get(name)
        waits = 0.0 if oldest is None else max(0.0, now - max(oldest, moved or 0) / 1e6)
        found.append(
            {
                "name": name,
                "offset": offset,
                "behind_messages": max(described.end - offset, 0),
                "lost_messages": max(described.begin - offset, 0),
                "moved": moved,
                "still_seconds": round(waits, 1),
            }
        )
    return {"consumers": found, "oldest": described.oldest}
