"""The checkpoint of a bridge: one owner, and a look inside before Spark starts.

Spark's checkpoint is a directory with one small file a batch: ``offsets/N`` says where batch N
ends and is written before it, ``commits/N`` says that it is done.  Between the two the sink writes
its own log (``_spark_metadata/N`` in a Parquet table).  Looking first costs a millisecond and
gives one clear line where Spark would start a Java machine and end with a page.

Two bridges on one checkpoint would write the same batch twice, so a bridge holds a lock on
``CHECKPOINT/.bridge/lock``.  The Java machine inherits the lock: when a bridge is killed outright
its Java lives on for a moment, may still finish a batch, and keeps the next bridge waiting.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ..core.errors import ConfigurationError
from .offsets import Places
from .table import SINK_LOG

PRIVATE = ".bridge"
"""The bridge's own directory inside the checkpoint; Spark leaves it alone."""

LINGER_SECONDS_MAX = 30.0
"""How long a new bridge waits for the Java machine of one that was killed."""

LOG_VERSION = "v1"
"""The first line of every file in ``offsets`` and ``commits``."""


class Known(NamedTuple):
    """A batch which a checkpoint knows: its number, and where it ends in every queue."""

    batch: int
    places: Places


def is_remote(location: str) -> bool:
    """Whether ``location`` names another file system (``s3a://…``): then no file of it is ours."""
    return "://" in location and not location.startswith("file://")


def batch_numbers(directory: Path) -> list[int]:
    """The batches which have a file in ``directory`` (``offsets``, ``commits``), in order."""
    try:
        names = [entry.name for entry in directory.iterdir()]
    except OSError:
        return []
    return sorted(int(name) for name in names if name.isdigit())


def newest_planned(checkpoint: Path) -> Known | None:
    """The newest batch which was planned; None for a new checkpoint.

    It may be done or not; a stream goes on with it in any case.  Raises ConfigurationError when
    the checkpoint is of something else than one ``msgproto`` source.
    """
    return _newest(checkpoint, batch_numbers(checkpoint / "offsets"))


def newest_done(checkpoint: Path) -> Known | None:
    """The newest batch which is in the table for certain; None while there is none.

    Raises ConfigurationError as :func:`newest_planned` does.
    """
    planned = set(batch_numbers(checkpoint / "offsets"))
    return _newest(checkpoint, [n for n in batch_numbers(checkpoint / "commits") if n in planned])


def _newest(checkpoint: Path, numbers: list[int]) -> Known | None:
    if not numbers:
        return None
    path = checkpoint / "offsets" / str(numbers[-1])
    return Known(numbers[-1], read_places(path.read_text(), path))


def read_places(text: str, where: Path) -> Places:
    """The places in one file of ``offsets``: a version, Spark's own line, one line a source."""
    lines = text.splitlines()
    try:
        if lines[0] != LOG_VERSION or len(lines) != 3:
            raise ValueError("not one source")
        places: Any = json.loads(lines[2])
        return {
            name: {key: int(number) for key, number in place.items()}  # type: ignore[misc]
            for name, place in places.items()
            if place["offset"] >= 0 and place["epoch"] >= 0
        }
    except (IndexError, KeyError, TypeError, ValueError, AttributeError):
        raise ConfigurationError(
            f"{where} is not of a bridge's checkpoint; choose another --checkpoint"
        ) from None


def check_sink(table: Path, checkpoint: Path) -> None:
    """Raises ConfigurationError when the Parquet table was written under another checkpoint.

    The sink skips every batch whose number stands in its log already.  With a fresh checkpoint on
    an old table it would skip new rows without a word, so that pair is refused.
    """
    logged = newest_logged(table)
    if logged is None:
        return
    numbers = batch_numbers(checkpoint / "offsets")
    if not numbers or numbers[-1] < logged:
        raise ConfigurationError(
            f"the table {table} has batches up to {logged}, the checkpoint {checkpoint} knows "
            f"{'up to ' + str(numbers[-1]) if numbers else 'none'}: they do not belong together "
            "and Spark would skip rows; use the table's own checkpoint, or a new table"
        )


def newest_logged(table: Path) -> int | None:
    """The newest batch in the log of a Parquet table; None when there is no log."""
    try:
        names = [entry.name for entry in (table / SINK_LOG).iterdir()]
    except OSError:
        return None
    numbers = [int(name.removesuffix(".compact")) for name in names if name[:1].isdigit()]
    return max(numbers, default=None)


@contextlib.contextmanager
def locked(path: Path, what: str, wait: float = LINGER_SECONDS_MAX) -> Iterator[int]:
    """Holds the lock file ``path``; gives its descriptor, for a child to inherit.

    ``what`` names the thing for the error text.  A lock whose owner lives is refused at once; one
    whose owner is dead is held by a Java machine that is just ending, and is waited for.  Raises
    ConfigurationError when it is not to be had.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + wait
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                owner = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
                if _alive(owner) or time.monotonic() > deadline:
                    raise ConfigurationError(
                        f"{what} is in use by another bridge (pid {owner or 'unknown'})"
                    ) from None
            time.sleep(0.1)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield descriptor
    finally:
        os.close(descriptor)


def _alive(owner: str) -> bool:
    """Whether the process which wrote its number into the lock file still runs."""
    if not owner.isdigit():
        return True
    try:
        os.kill(int(owner), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    # A killed process which nobody has waited for yet is as good as gone.
    with contextlib.suppress(OSError, IndexError):
        state = Path(f"/proc/{owner}/stat").read_text().rpartition(")")[2].split()[0]
        return state not in ("Z", "X")
    return True
