"""Repair what a loss of power may leave of a log on a local disk.

This package makes versions and checkpoints durable before it relies on them; other programs sync
nothing. A torn checkpoint is removed when the log without it still says everything; a torn last
version, or one whose files are incomplete, becomes an empty version of the same number, which a
reader may have seen. Everything else is for a person to decide.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable

from ..core.errors import TableError
from .actions import Commit, DataFile, Torn, version_name
from .checkpoint import LAST_CHECKPOINT
from .snapshot import (
    READ_ERRORS,
    Listing,
    base_state,
    check_checkpoint,
    list_log,
    read_version,
    refused,
)
from .storage import LOG, LocalStorage

EMPTY = "EMPTY"
PARQUET_MARK = b"PAR1"
"""Every complete Parquet file ends with these bytes."""


def mend(storage: LocalStorage, clock: Callable[[], float]) -> list[str]:
    """Make the log whole; return a line for each thing done."""
    listing = list_log(storage)
    if not listing.exists:
        return []
    lines = _mend_checkpoints(storage, listing)
    if lines:
        listing = list_log(storage)
    return [*lines, *_mend_versions(storage, listing, clock)]


def _mend_checkpoints(storage: LocalStorage, listing: Listing) -> list[str]:
    torn: list[tuple[int, tuple[str, ...]]] = []
    for version, names in reversed(listing.checkpoints):
        try:
            check_checkpoint(storage, names)
        except READ_ERRORS as error:
            if not refused(storage, error):
                torn.append((version, names))
                continue
        break  # one that cannot be read just now may be whole: it stays
    if torn:
        # Raises when the log does not say everything without them.
        base_state(storage, listing, listing.newest, files=False)
    hint = _hinted(storage)
    stale = hint is not None and hint not in {v for v, _ in listing.checkpoints} - dict(torn).keys()
    if stale:
        _remove(storage, LAST_CHECKPOINT)
    for _, names in torn:
        for name in names:
            _remove(storage, name)
    if torn or stale:
        storage.disk.sync_directory(storage.log_path())
    return [
        *(f"removed checkpoint {v}, which a loss of power has torn" for v, _ in torn),
        *([f"removed {LAST_CHECKPOINT}, which names no checkpoint"] if stale else []),
    ]


def _hinted(storage: LocalStorage) -> int | None:
    try:
        return int(json.loads(storage.read(f"{LOG}/{LAST_CHECKPOINT}"))["version"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        return -1


def _mend_versions(
    storage: LocalStorage, listing: Listing, clock: Callable[[], float]
) -> list[str]:
    newest = listing.newest
    _, base = base_state(storage, listing, newest, files=False)
    commits: list[Commit] = []
    for version in range(base.version + 1, newest + 1):
        try:
            commits.append(read_version(storage, version))
        except Torn as error:
            return [_mend_last(storage, version, newest, str(error), clock)]
    for commit in _since_own(commits):
        gone = _not_whole(storage, commit, commits)
        if gone:
            return [_mend_last(storage, commit.version, newest, f"{gone} is not whole", clock)]
    return []


def _mend_last(
    storage: LocalStorage, version: int, newest: int, reason: str, clock: Callable[[], float]
) -> str:
    if version != newest or version == 0:
        behind = f"and version {newest} stands behind it" if version else "and it is the first"
        raise TableError(
            f"version {version} of {storage.location} is torn ({reason}), {behind}: restore the "
            "table's folder from a copy, or land the queues in a new table"
        )
    _make_empty(storage, version, reason, clock)
    return f"version {version} is empty now: a loss of power has torn it ({reason})"


def _make_empty(
    storage: LocalStorage, version: int, reason: str, clock: Callable[[], float]
) -> None:
    """Replace a torn version, durably, by one of no run: what came before is still checked."""
    info = {
        "timestamp": int(clock() * 1000),
        "operation": EMPTY,
        "operationParameters": {"reason": reason},
        "engineInfo": "twisted-msgproto",
    }
    data = json.dumps({"commitInfo": info}).encode() + b"\n"
    storage.put(f"{LOG}/{version_name(version)}", data)


def _since_own(commits: list[Commit]) -> list[Commit]:
    """Return the versions from our last one on, before which everything was durable."""
    own = [place for place, commit in enumerate(commits) if commit.run is not None]
    return commits[own[-1] :] if own else commits


def _not_whole(storage: LocalStorage, commit: Commit, commits: list[Commit]) -> str:
    removed = {
        path for later in commits if later.version > commit.version for path in later.removed
    }
    for file in commit.added:
        if file.path not in removed and not _is_whole(storage, file):
            return file.path
    return ""


def _is_whole(storage: LocalStorage, file: DataFile) -> bool:
    """Return whether a file is there to its end; raise OSError where that cannot be seen."""
    try:
        opened = storage.disk.open(storage.path(file.path))
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        end = max(0, opened.size() - len(PARQUET_MARK))
        return opened.size() == file.size and opened.read(end, file.size) == PARQUET_MARK
    finally:
        opened.close()


def _remove(storage: LocalStorage, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        storage.disk.remove(storage.log_path(name))
