"""A bridge leaves its status in ``QUEUE/bridges/NAME.json``, NAME being the consumer's.

A bridge on the same machine writes it there itself, every second; one elsewhere sends it to the
process that serves the queue.  The gateway's status page reads it and needs neither the bridge nor
Spark.  The file is replaced whole, so a reader never sees half of one.  ``docs/spark.md`` describes
the keys.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

DIRECTORY: Final = "bridges"

STATUS_OCTETS_MAX: Final = 64 << 10
"""A status file above this is not read: a bridge writes some kilobytes."""

STATUSES_MAX: Final = 32

SENT_OCTETS_MAX: Final = 3 << 10
"""A status that is sent has at most this many octets, so that it fits into a request."""

LISTS: Final = ("known", "away")
"""These members of a status are lists; they are cut, in this order, where one is too long."""


def status_path(queue: str | os.PathLike[str], consumer: str) -> Path:
    """Return where the status of the bridge ``consumer`` stands."""
    return Path(queue) / DIRECTORY / f"{consumer}.json"


def read_statuses(queue: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the status of every bridge that ever ran on this queue, by consumer's name.

    The keys are described in ``docs/spark.md``.  A bridge that was killed still says ``running``:
    compare ``updated_at`` (seconds since 1970, written every second) with the time.  Unreadable
    files are left out, and of more than :data:`STATUSES_MAX` the oldest.
    """
    found = []
    for path in (Path(queue) / DIRECTORY).glob("*.json"):
        try:
            about = path.stat()
        except OSError:
            continue
        if about.st_size <= STATUS_OCTETS_MAX:
            found.append((about.st_mtime, path))
    statuses = []
    for path in sorted(path for _, path in sorted(found)[-STATUSES_MAX:]):
        try:
            status = json.loads(path.read_text())
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(status, dict):
            statuses.append({**status, "consumer": path.stem})
    return statuses


def write_status(path: Path, status: Mapping[str, Any]) -> None:
    """Write a status to ``path``, whole and for this user alone.  Raises OSError.

    The directory that ``path`` is in is made, but none above it: a queue that was moved away or
    whose disk is not there is not begun anew by those who read it.
    """
    path.parent.mkdir(mode=0o700, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(json.dumps(status))
    os.replace(fresh, path)


def cut_to_fit(status: Mapping[str, Any], octets: int = SENT_OCTETS_MAX) -> dict[str, Any]:
    """Return ``status`` with lists so short that it has at most ``octets`` as JSON."""
    fitting = dict(status)
    for name in LISTS:
        while fitting.get(name) and len(json.dumps(fitting)) > octets:
            fitting[name] = fitting[name][: len(fitting[name]) // 2]
    return fitting
