"""After a power cut: take a table and its checkpoint back to what is durable for certain.

Spark does not sync what it writes.  After a power cut the newest files of the checkpoint, of the
sink's log and of the table may be empty or missing, in any mixture, and Spark then refuses to
start (or, worse, skips a batch whose log survived without its data).  The bridge knows up to which
batch it has synced everything (:class:`~.durable.BatchSync`), and the queue still has all rows
after that batch, because no later low-water mark was published.  So when the machine was started
anew since, what lies after that batch is taken back and written again; the files of the table which
nobody names any more stay as orphans, as those of a killed task do.

A bridge that was merely killed needs none of this: what it wrote is in the system's cache.

A Delta table syncs each batch by itself, the plan of the batch before it, so there only empty files
of the checkpoint are taken away.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import NamedTuple

from ..core.errors import ConfigurationError
from .checkpoint import PRIVATE, batch_numbers
from .durable import sync_path
from .report import replace_file
from .table import DELTA_LOG, SINK_LOG

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Mark(NamedTuple):
    """Up to which batch everything is durable (-1: none), and in which run of the machine."""

    batch: int
    boot: str


def boot_id() -> str:
    """A name for this run of the machine; empty where the system gives none."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


def read_mark(checkpoint: Path) -> Mark | None:
    """The mark in a checkpoint; None when no bridge has left one."""
    try:
        values = json.loads((checkpoint / PRIVATE / "synced").read_text())
        return Mark(int(values["batch"]), str(values["boot"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_mark(checkpoint: Path, mark: Mark) -> None:
    """Puts the mark in place, durably."""
    path = checkpoint / PRIVATE / "synced"
    fresh = json.dumps(mark._asdict())
    replace_file(path, fresh, durable=True)
    sync_path(path.parent)


def mend(checkpoint: Path, table: Path | None, boot: str | None = None) -> list[str]:
    """Takes back what may not be durable; returns a line for each thing done.

    ``table`` is None when it is not on this machine.  Raises ConfigurationError when the sink's
    log is not there any more up to the mark.
    """
    boot = boot_id() if boot is None else boot
    mark = read_mark(checkpoint)
    planned = batch_numbers(checkpoint / "offsets")
    if mark is None:
        if not planned:
            write_mark(checkpoint, Mark(-1, boot))
        return []
    lines: list[str] = []
    if table is not None and (table / DELTA_LOG).is_dir():
        lines = _remove_empty(checkpoint)
    elif planned and planned[-1] > mark.batch and (mark.boot != boot or not boot):
        lines = _roll_back(checkpoint, table, mark.batch, planned[-1])
    write_mark(checkpoint, Mark(mark.batch, boot))
    return lines


def _roll_back(checkpoint: Path, table: Path | None, batch: int, newest: int) -> list[str]:
    """Removes every batch after ``batch`` from the checkpoint and the sink's log."""
    if table is not None:
        _check_log(table / SINK_LOG, batch)
        _remove_after(table / SINK_LOG, batch)
    _remove_after(checkpoint / "commits", batch)
    _remove_after(checkpoint / "offsets", batch)
    metadata = checkpoint / "metadata"
    if batch < 0 and _is_empty(metadata):
        metadata.unlink()
    return [
        f"the machine was started anew: batches {batch + 1} to {newest} may not be durable and "
        "are landed again"
    ]


def _remove_after(directory: Path, batch: int) -> None:
    """Removes the files of later batches, newest first, with their checksum files."""
    with contextlib.suppress(FileNotFoundError):
        files = [(_number(path), path) for path in directory.iterdir()]
        for _, path in sorted(
            ((number, path) for number, path in files if number is not None and number > batch),
            reverse=True,
        ):
            path.unlink()
        sync_path(directory)


def _number(path: Path) -> int | None:
    """The batch of ``N``, ``N.compact`` and ``.N.crc``; None for another file."""
    number = path.name.lstrip(".").split(".")[0]
    return int(number) if number.isdigit() else None


def _check_log(log: Path, batch: int) -> None:
    """Raises ConfigurationError unless the log without later batches still names every file."""
    try:
        names = {path.name for path in log.iterdir()}
    except FileNotFoundError:
        names = set()
    whole = [n for n in range(batch + 1) if f"{n}.compact" in names]
    begin = whole[-1] + 1 if whole else 0
    missing = [n for n in range(begin, batch + 1) if str(n) not in names]
    if missing:
        raise ConfigurationError(
            f"after the power cut {log} lacks batch {missing[0]}, which was durable; restore the "
            "table, or land the queue in a new one"
        )


def _remove_empty(checkpoint: Path) -> list[str]:
    """Removes empty files of the checkpoint: plans whose batch never came, and done marks."""
    lines = []
    for kind in ("commits", "offsets"):
        for number in reversed(batch_numbers(checkpoint / kind)):
            path = checkpoint / kind / str(number)
            if not _is_empty(path):
                break
            path.unlink()
            lines.append(f"removed {path}, which a power cut has emptied")
    return lines


def _is_empty(path: Path) -> bool:
    """Whether a file which exists holds nothing, or nothing but zeros."""
    try:
        return not path.read_bytes().strip(b"\0")
    except OSError:
        return False
