"""A stream of one's own releases rows of its queue with the mark of the option ``consumer``.

Spark's ``commit`` moves nothing: neither its file sink nor its checkpoint calls ``fsync``, so a
power cut then destroys rows that the table showed. :func:`release` is for the stream's owner, who
says how its output is made durable.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..core.disk import OS_DISK, exists, sync_file
from ..core.errors import ConfigurationError, QueueError
from ..core.log_output import timed_line
from .offsets import Place, proof
from .source_options import Access, open_queues, queue_locations

OFFSET_LOG_VERSION = "v1"  # first line of every file there; a later Spark may add ``v2``


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
    """Let queues forget what a stream has committed and made durable; return the released offsets.

    Reads the last committed batch from the stream's ``checkpoint`` (a local directory), calls
    ``sync``, makes the checkpoint durable and only then publishes the batch's end as the mark of
    ``consumer``.  Call it as often as the queue's disk needs it, from the program of the stream or
    beside it: from a ``StreamingQueryListener``, from a timer, after ``awaitTermination()``.

    ``sync`` must make the sink's output durable before it returns: ``os.sync`` for a sink on this
    machine's disks under Linux; None for a sink that is durable when a batch is committed (an
    object store, a database, the durable topics of a broker).  ``queue`` is the source's option
    ``queue``.  ``source`` is the source's number in a query that has several.

    Raises ConfigurationError when the checkpoint is none, QueueMismatch when a queue never had
    what the checkpoint says, QueueError when a queue is not there or the checkpoint has none of
    them, OSError from the disk.
    """
    places = committed_places(Path(checkpoint), source)
    if not places:
        return {}
    if sync is not None:
        sync()
    sync_tree(checkpoint)
    locations = queue_locations(queue) if isinstance(queue, str) else list(queue)
    queues = open_queues(locations, Access(token_file, authority))
    if queues and queues.keys().isdisjoint(places):
        raise QueueError(f"the checkpoint {checkpoint} does not know queue {min(queues)}")
    for name, one in queues.items():
        known = one.describe().consumers
        one.register(consumer)
        if consumer not in known:
            names = ", ".join(sorted(known)) or "none"
            line = f"queue {name}: {consumer!r} is a new consumer; so far it knew: {names}"
            print(f"msgproto: {timed_line(time.time(), line)}", file=sys.stderr)
    released = {name: place for name, place in places.items() if name in queues}
    for name, place in released.items():
        queues[name].commit(consumer, place["offset"], proof(place))
    return {name: place["offset"] for name, place in released.items()}


def committed_places(checkpoint: Path, source: int = 0) -> dict[str, Place]:
    """Return where the last committed batch of a ``checkpoint`` ends; empty before the first."""
    if not exists(OS_DISK, str(checkpoint / "offsets")):
        raise ConfigurationError(f"{checkpoint} is no checkpoint of Spark (it has no offsets/)")
    numbers: list[int] = []
    with contextlib.suppress(FileNotFoundError):
        numbers = [int(name) for name in os.listdir(checkpoint / "commits") if name.isdigit()]
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
