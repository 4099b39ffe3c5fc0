"""Consumers note how far they have committed in one small file each, in ``consumers/``.

A consumer writes only its own file; the queue's writer reads them all to know what may be trimmed.
A consumer that is a bridge leaves its status in ``bridges/NAME.json``, too: itself on the same
machine, every second; one elsewhere sends it to the process that serves the queue.  The gateway's
status page reads it and needs neither the bridge nor Spark.  ``docs/spark.md`` describes the keys.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from twisted_msgproto.core.errors import QueueError, QueueMismatch

from ..core.disk import Disk, read_file, replace_or_overwrite, write_file, writing
from .format import OFFSET_MAX, seal, unseal
from .lineage import Description, Landed

if TYPE_CHECKING:
    from .interface import Queue

DIRECTORY = "consumers"
STANDS_STILL_SECONDS = 3600.0  # a bridge without a commit for so long is gone: the disk fills

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}", re.ASCII)
_TEXT = re.compile(r"offset (\d{20}) queue ([0-9a-f]{32})", re.ASCII)


def _path(directory: str, consumer: str) -> str:
    if not _NAME.fullmatch(consumer):
        raise QueueError(
            f"a consumer's name is 1 to 64 of A-Z a-z 0-9 . _ - and does not begin with a dot, "
            f"not {consumer!r}"
        )
    return os.path.join(directory, DIRECTORY, consumer)


def read(disk: Disk, directory: str, consumer: str, queue_id: str) -> int | None:
    """Return what ``consumer`` has committed, 0 if its file is damaged, None without one."""
    nbytes = read_file(disk, _path(directory, consumer))
    if nbytes is None:
        return None
    match = _TEXT.fullmatch(unseal(nbytes) or "")
    return int(match[1]) if match and match[2] == queue_id else 0


def write(disk: Disk, directory: str, consumer: str, queue_id: str, offset: int) -> None:
    """Make ``offset`` durable for ``consumer``; on a full disk the file is written over.

    That makes room. QueueError for a wrong name or offset, OSError from the disk.
    """
    path = _path(directory, consumer)
    if not 0 <= offset <= OFFSET_MAX:
        raise QueueError(f"no offset: {offset}")
    nbytes = seal(f"offset {offset:020d} queue {queue_id}")
    before = read_file(disk, path)
    if before == nbytes:
        return  # the time of the file says when its offset last changed
    try:
        replace_or_overwrite(disk, path, nbytes)
    except OSError:
        # Or else the next one would find what a failed sync has left in memory alone.
        with contextlib.suppress(OSError):
            if before is None:
                disk.remove(path)
            elif read_file(disk, path) != before:
                write_file(disk, path, before)
        raise


def confirm(disk: Disk, directory: str) -> None:
    """Make durable that the known consumers are there; a killed process may not have."""
    disk.sync_directory(os.path.join(directory, DIRECTORY))


def remove(disk: Disk, directory: str, consumer: str) -> None:
    path = _path(directory, consumer)
    with contextlib.suppress(OSError):  # first: a kill in between leaves what can be forgotten
        status_path(directory, consumer).unlink()
    try:
        disk.remove(path)
    except FileNotFoundError:
        raise QueueError(f"no consumer {consumer!r} in {directory}") from None
    disk.sync_directory(os.path.join(directory, DIRECTORY))


def moved(disk: Disk, directory: str, consumer: str) -> int | None:
    """Return when ``consumer``'s offset last changed, µs since 1970 UTC; None without a file."""
    try:
        return disk.stat(_path(directory, consumer)).written
    except FileNotFoundError:
        return None


def names(disk: Disk, directory: str) -> list[str]:
    try:
        found = disk.names(os.path.join(directory, DIRECTORY))
    except FileNotFoundError:
        return []
    return sorted(name for name in found if _NAME.fullmatch(name))


def read_all(disk: Disk, directory: str, queue_id: str) -> dict[str, int]:
    found = {name: read(disk, directory, name, queue_id) for name in names(disk, directory)}
    return {name: offset for name, offset in found.items() if offset is not None}


def bereft(committed: Mapping[str, int], begin: int) -> list[str]:
    """Return a line for each consumer that needs messages which somebody has removed."""
    return [
        f"messages {offset} to {begin} are in no segment, and the consumer {name!r} has committed "
        f"only those below {offset}: somebody has removed segments, or the consumer's file; put "
        "them back while the gateway is stopped, or the messages are lost"
        for name, offset in committed.items()
        if offset < begin
    ]


class Watch:
    """Consumers that have rows to commit and do not move.  Times are in seconds."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[int, float]] = {}
        self.still: dict[str, float] = {}

    def look(self, committed: Mapping[str, int], end: int, now: float) -> list[str]:
        behind = {name: offset for name, offset in committed.items() if offset < end}
        self._since = {
            name: known
            if (known := self._since.get(name)) is not None and known[0] == offset
            else (offset, now)
            for name, offset in behind.items()
        }
        before = self.still
        self.still = {
            name: now - since
            for name, (_, since) in self._since.items()
            if now - since >= STANDS_STILL_SECONDS
        }
        return [name for name in self.still if name not in before]


_AHEAD_SECONDS: Final = 86_400.0
TIME_MAX: Final = 1e11

STATUSES: Final = "bridges"

STATUS_BYTES_MAX: Final = 64 << 10  # a bridge writes some kilobytes

STATUSES_MAX: Final = 32

SENT_BYTES_MAX: Final = 3 << 10  # so that it fits into a request

LISTS: Final = ("known", "away")  # cut, in this order, where a status is too long


def status_path(queue: str | os.PathLike[str], consumer: str) -> Path:
    return Path(queue) / STATUSES / f"{consumer}.json"


def read_statuses(queue: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the status of every bridge that ever ran on this queue, by consumer's name.

    A killed bridge still says ``running``: compare ``updated_at`` (seconds since 1970, each
    second). Unreadable files are left out, and beyond :data:`STATUSES_MAX` the oldest.
    """
    found = []
    for path in (Path(queue) / STATUSES).glob("*.json"):
        try:
            about = path.stat()
        except OSError:
            continue
        if about.st_size <= STATUS_BYTES_MAX:
            found.append((about.st_mtime, path))
    statuses = []
    for path in sorted(path for _, path in sorted(found)[-STATUSES_MAX:]):
        if (status := read_status(path)) is not None:
            statuses.append({**status, "consumer": path.stem})
    return statuses


def read_status(path: Path) -> dict[str, Any] | None:
    try:
        status = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return None
    return status if isinstance(status, dict) else None


SILENT_SECONDS: Final = 30.0  # a bridge writes each second; from elsewhere each 5 s


def rests_until(status: Mapping[str, Any], now: float) -> float:
    """Return until when nobody misses a bridge, in seconds since 1970 UTC; 0.0 if it is missed.

    Killed or failed, it is missed; a clock a day ahead is not believed.
    """
    until, heard = _time(status.get("rests_until")), _time(status.get("updated_at"))
    alive = status.get("state") in ("starting", "running") and now - heard <= SILENT_SECONDS
    believed = heard - now <= _AHEAD_SECONDS and (alive or status.get("state") == "ended")
    return until if believed else 0.0


def by_our_clock(status: Mapping[str, Any], now: float) -> dict[str, Any]:
    """Return a status that comes from another machine ``now``, with the times of our clock."""
    heard = _time(status.get("updated_at"))
    times = [name for name in ("updated_at", "rests_until") if heard and _time(status.get(name))]
    return {**status, **{name: status[name] - heard + now for name in times}}


def standings(
    queue: Queue, described: Description, statuses: Mapping[str, Mapping[str, Any]], now: float
) -> Iterator[dict[str, Any]]:
    """Yield what is to be said of each consumer; ``now`` is in seconds since 1970 UTC."""
    for name, offset in sorted(described.consumers.items()):
        try:
            oldest = queue.describe(Landed(max(offset, described.begin))).oldest
        except QueueMismatch:  # it was trimmed meanwhile
            oldest = None
        moved = described.moved.get(name)
        until = rests_until(statuses.get(name, {}), now)
        since = None if oldest is None else max(oldest / 1e6, (moved or 0) / 1e6, until)
        yield {
            "name": name,
            "offset": offset,
            "behind_messages": max(described.end - offset, 0),
            "lost_messages": max(described.begin - offset, 0),
            "moved": moved,
            "still_seconds": 0.0 if since is None else round(max(0.0, now - since), 1),
            "rests_seconds": round(max(0.0, until - now), 1),
            "overdue_seconds": round(max(0.0, now - until), 1) if until else 0.0,
        }


def resting(queue: str | os.PathLike[str]) -> set[str]:
    """Return the consumers whose bridges nobody misses now."""
    now = time.time()
    return {one["consumer"] for one in read_statuses(queue) if rests_until(one, now) > now}


def _time(value: object) -> float:
    """Return a time of a status that may come from another machine; 0.0 for what is none."""
    known = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if known and 0 < value < TIME_MAX else 0.0  # type: ignore[operator,arg-type]


def write_status(path: Path, status: Mapping[str, Any]) -> None:
    """Write a status to ``path``, whole, for this user alone; OSError.  Only its folder is made."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with writing(fresh), os.fdopen(descriptor, "w") as file:
            file.write(json.dumps(status))
        os.replace(fresh, path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise


def cut_to_fit(status: Mapping[str, Any], nbytes: int = SENT_BYTES_MAX) -> dict[str, Any]:
    """Return ``status`` with lists so short that it has at most ``nbytes`` as JSON."""
    fitting = dict(status)
    for name in LISTS:
        while fitting.get(name) and len(json.dumps(fitting)) > nbytes:
            fitting[name] = fitting[name][: len(fitting[name]) // 2]
    return fitting
