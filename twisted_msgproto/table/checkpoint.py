"""Make checkpoints of a log on a local disk, and remove what they make needless.

delta-rs writes the checkpoint, but neither durably nor in one step.  So it works in a folder of its
own, over a log of hard links; what it wrote is synced and then linked into the table's log, and
only then does ``_last_checkpoint`` name it.  A reader never meets half a checkpoint of ours, and a
kill leaves nothing but a folder that the next clean-up removes.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import uuid
from collections.abc import Mapping, Sequence

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from .actions import version_name
from .properties import CHECKPOINT_EVERY, LOG_RETENTION_HOURS
from .snapshot import CHECKPOINT, VERSION, Base, Listing, list_log, one_line
from .storage import LOG, PRIVATE, TEMPORARY_PREFIX, LocalStorage

LAST_CHECKPOINT = "_last_checkpoint"
SCRATCH_PREFIX = "checkpoint-"
LEFTOVER_SECONDS = 3600.0
"""No living writer keeps a temporary file so long."""
KEPT_CHECKPOINTS = 3
"""The newest checkpoints all stay; one in this many stays of the older ones within the
retention.
"""
THINNED = 10

_INTERVAL = re.compile(r"\s*(?:interval\s+)?(\d+)\s*(second|minute|hour|day|week)s?\s*", re.I)
_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}


def write_checkpoint(storage: LocalStorage, base: Base, version: int) -> Base:
    """Make a checkpoint of ``version``, durably; everything up to it is durable already.

    Raises:
        OSError: the disk refused, or a file of the log is gone; the table is as it was.
    """
    scratch = storage.path(f"{PRIVATE}/{SCRATCH_PREFIX}{uuid.uuid4().hex}")
    try:
        made = _made_in(scratch, storage, base, version)
        _put_in_place(storage, os.path.join(scratch, LOG), made, version)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return Base(version, (made,))


def clean_log(
    storage: LocalStorage, properties: Mapping[str, str], until: int, now: float
) -> list[str]:
    """Remove from the log what is older than the retention and behind a checkpoint.

    ``until`` is the newest checkpoint that is durable; ``now`` is in seconds since 1970.  Returns
    the names of the removed files.  Every version younger than the retention stays readable.
    """
    listing, names = list_log(storage), storage.log_names()
    needless = _leftovers(storage, names, now)
    if properties.get("delta.enableExpiredLogCleanup", "true").lower() != "false":
        needless += _expired(storage, listing, names, until, now - retention_seconds(properties))
    for name in needless:
        with contextlib.suppress(FileNotFoundError):
            storage.disk.remove(storage.log_path(name))
    _remove_scratches(storage, now)
    return needless


def retention_seconds(properties: Mapping[str, str]) -> float:
    """Return ``delta.logRetentionDuration`` in seconds; the package's own when it is not
    understood.
    """
    found = _INTERVAL.fullmatch(properties.get("delta.logRetentionDuration", ""))
    if found is None:
        return LOG_RETENTION_HOURS * 3600.0
    return float(int(found[1]) * _SECONDS[found[2].lower()])


def _made_in(scratch: str, storage: LocalStorage, base: Base, version: int) -> str:
    """Has delta-rs make the checkpoint in a folder of its own; returns the file's name there."""
    log = os.path.join(scratch, LOG)
    os.makedirs(log)
    versions = [version_name(number) for number in range(base.version + 1, version + 1)]
    for name in (*base.names, *versions):
        os.link(storage.log_path(name), os.path.join(log, name))
    try:
        DeltaTable(scratch).create_checkpoint()
    except DeltaError as error:
        raise OSError(one_line(error)) from error
    return f"{version:020d}.checkpoint.parquet"


def _put_in_place(storage: LocalStorage, scratch_log: str, made: str, version: int) -> None:
    disk, log = storage.disk, storage.log_path()
    disk.sync(os.path.join(scratch_log, made))
    with contextlib.suppress(FileExistsError):  # another bridge made the same
        disk.link(os.path.join(scratch_log, made), os.path.join(log, made))
    disk.sync_directory(log)
    with open(os.path.join(scratch_log, LAST_CHECKPOINT), "rb") as file:
        hint = file.read()
    storage.put(storage.log_path(LAST_CHECKPOINT), hint)


def _expired(
    storage: LocalStorage, listing: Listing, names: Sequence[str], until: int, cutoff: float
) -> list[str]:
    durable = [(version, parts) for version, parts in listing.checkpoints if version <= until]
    old = [version for version, parts in durable if _modified(storage, parts[0]) <= cutoff]
    anchor = old[-1] if old else -1
    stay = {version for version, _ in durable[-KEPT_CHECKPOINTS:]}
    stay |= {version for version in old[-1:]}
    stay |= {version for version, _ in durable if not version % (THINNED * CHECKPOINT_EVERY)}
    needless = []
    for name in names:
        if found := VERSION.fullmatch(name):
            if int(found[1]) < anchor:
                needless.append(name)
        elif (found := CHECKPOINT.fullmatch(name)) and int(found[1]) <= until:
            version = int(found[1])
            if version < anchor or version not in stay:
                needless.append(name)
    return sorted(needless)


def _leftovers(storage: LocalStorage, names: Sequence[str], now: float) -> list[str]:
    temporary = [n for n in names if n.startswith(TEMPORARY_PREFIX) and n.endswith(".tmp")]
    return [n for n in temporary if _modified(storage, n) <= now - LEFTOVER_SECONDS]


def _remove_scratches(storage: LocalStorage, now: float) -> None:
    private = storage.path(PRIVATE)
    with contextlib.suppress(FileNotFoundError):
        for name in storage.disk.names(private):
            path = os.path.join(private, name)
            if (
                name.startswith(SCRATCH_PREFIX)
                and storage.disk.modified(path) <= now - LEFTOVER_SECONDS
            ):
                shutil.rmtree(path, ignore_errors=True)


def _modified(storage: LocalStorage, name: str) -> float:
    try:
        return storage.disk.modified(storage.log_path(name))
    except FileNotFoundError:
        return float("inf")
