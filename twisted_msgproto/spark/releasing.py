"""A stream of one's own releases rows of its queue with the mark of the option ``consumer``.

Spark's ``commit`` moves nothing: neither its file sink nor its checkpoint calls ``fsync``, so a
power cut then destroys rows that the table showed. :func:`release` is for the stream's owner, who
says how its output is made durable. The option ``releaseAfter`` waits for a time within which the
machine writes back all there was (Linux begins to after 30 s): no proof.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.disk import OS_DISK, exists, sync_file
from ..core.errors import ConfigurationError, QueueError
from .offsets import Place, Source, proof
from .source_options import Access, open_queues, queue_locations

OFFSET_LOG_VERSION = "v1"
"""The first line of every file of Spark's log of offsets; a later Spark may add a ``v2``."""

PENDING_MAX = 10_000
"""Places that wait for ``releaseAfter``; beyond it every second one is dropped."""


class LateMarks:
    """Places that become marks when they have been committed for ``seconds``."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._waiting: deque[tuple[float, Mapping[str, Place]]] = deque()

    def committed(self, places: Mapping[str, Place], now: float) -> None:
        self._waiting.append((now, places))
        if len(self._waiting) > PENDING_MAX:
            self._waiting = deque(
                one for index, one in enumerate(self._waiting) if index % 2 or index == 0
            )

    def due(self, now: float) -> Mapping[str, Place] | None:
        """Return the latest places that may be released at ``now``; None when there are none."""
        places = None
        while self._waiting and self._waiting[0][0] + self._seconds <= now:
            places = self._waiting.popleft()[1]
        return places


def move_marks(queues: Mapping[str, Source], consumer: str, places: Mapping[str, Place]) -> None:
    for name, place in places.items():
        if name in queues:
            queues[name].commit(consumer, place["offset"], proof(place))


def release(
    checkpoint: str | os.PathLike[str],
    queue: str | Sequence[str],
    consumer: str,
    *,
    sync: Callable[[], object] | None = None,
    token_file: str | None = None,
    authority: str | None = None,
    source: int = 0,
) -> dict[str, int]:
    places = committed_places(Path(checkpoint), source)
    if not places:
        return {}
    if sync is not None:
        sync()
    sync_tree(checkpoint)
    locations = queue_locations(queue) if isinstance(queue, str) else list(queue)
    queues = open_queues(locations, Access(token_file, authority))
    strangers = sorted(set(queues) - set(places))
    if strangers and not set(queues) & set(places):
        raise QueueError(f"the checkpoint {checkpoint} does not know queue {strangers[0]}")
    for one in queues.values():
        one.register(consumer)
    move_marks(queues, consumer, places)
    return {name: places[name]["offset"] for name in queues if name in places}


def committed_places(checkpoint: Path, source: int = 0) -> dict[str, Place]:
    """Return where the last committed batch of a ``checkpoint`` ends; empty before the first."""
    if not exists(OS_DISK, str(checkpoint / "offsets")):
        raise ConfigurationError(f"{checkpoint} is no checkpoint of Spark (it has no offsets/)")
    numbers = [int(path.name) for path in _entries(checkpoint / "commits") if path.name.isdigit()]
    if not numbers:
        return {}
    path = checkpoint / "offsets" / str(max(numbers))
    lines = path.read_text().splitlines()
    try:
        # The version, the batch's own metadata, then one line a source.
        places = json.loads(lines[2 + source])
        known = lines[0] == OFFSET_LOG_VERSION and all(
            isinstance(place["offset"], int) for place in places.values()
        )
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        known = False
    if not known:
        raise ConfigurationError(f"{path} has no offsets of the source msgproto at number {source}")
    return dict[str, Any](places)


def _entries(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except FileNotFoundError:
        return []


def _raised(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def sync_tree(directory: str | os.PathLike[str]) -> None:
    for folder, _, files in os.walk(directory, onerror=_raised):
        for name in files:
            with contextlib.suppress(FileNotFoundError):  # Spark removed it meanwhile
                sync_file(OS_DISK, os.path.join(folder, name))
        with contextlib.suppress(FileNotFoundError):
            OS_DISK.sync_directory(folder)
