"""Make few large files of many small ones, in the order of gateway and offset.

A bridge that lands a batch a second makes 86,400 files a day. A compaction is one version,
abandoned when one of its files was removed meanwhile: of two, or of one and an expiry, one
succeeds. delta-rs' own ``optimize.compact`` doubles every row when two run at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from ..core.errors import MsgprotoError, Overtaken
from .actions import DataFile, Run
from .delta_table import Table
from .landing import discard, read_rows, target_of, write_file
from .row_offsets import KEY, FileLost, read_footer
from .storage import verify_tells

SMALL_BYTES = 16 << 20
TARGET_BYTES = 128 << 20  # a file becomes at most this large: Spark's readers make one task of it
MEMORY_BYTES = 128 << 20  # of uncompressed rows for one file; to sort takes four times that
SLICE_ROWS = 8192  # this many rows are passed to the writer at once; it makes row groups of them

DUE_FILES = 500
DUE_SECONDS = 600.0
DUE_BYTES = 512 << 20  # a bridge reads no more for one compaction; the next takes the rest


@dataclass(slots=True)
class Compacted:
    small: int = 0
    removed: int = 0
    added: int = 0
    bytes: int = 0
    given_up: int = 0  # groups of which a file was removed by others, or lost
    version: int | None = None


def small_files(files: Iterable[DataFile], small: int = SMALL_BYTES) -> list[DataFile]:
    return [file for file in files if file.size < small and None not in file.partition.values()]


def choose(
    files: Iterable[DataFile], *, small: int = SMALL_BYTES, target: int = TARGET_BYTES
) -> list[list[DataFile]]:
    """Return groups of small files of one partition, each of ``target`` bytes at most."""
    partitions: dict[tuple[tuple[str, str | None], ...], list[DataFile]] = {}
    for file in small_files(files, small):
        partitions.setdefault(tuple(sorted(file.partition.items())), []).append(file)
    return [
        group
        for key in sorted(partitions, key=str)
        for group in groups(partitions[key], target)
        if len(group) > 1
    ]


def groups(files: Iterable[DataFile], target: int = TARGET_BYTES) -> Iterator[list[DataFile]]:
    """Yield the files in the order they were written, at most about ``target`` bytes at once."""
    group: list[DataFile] = []
    nbytes = 0
    for file in sorted(files, key=lambda file: (file.modified, file.path)):
        if group and nbytes + file.size > target:
            yield group
            group, nbytes = [], 0
        group.append(file)
        nbytes += file.size
    yield group


def compact(
    table: Table,
    run: Run,
    *,
    small: int = SMALL_BYTES,
    target: int = TARGET_BYTES,
    memory: int = MEMORY_BYTES,
    bytes_max: int | None = None,
    dry_run: bool = False,
    say: Callable[[str], object] = lambda line: None,
) -> Compacted:
    """Compact small files, but no more once ``bytes_max`` were read; ``say`` what is given up."""
    files = table.files()
    done = Compacted(small=len(small_files(files, small)))
    for group in choose(files, small=small, target=target):
        if bytes_max is not None and done.bytes >= bytes_max:
            break
        if dry_run:
            done.removed += len(group)
            done.added += 1
            done.bytes += sum(file.size for file in group)
            continue
        try:
            for part in _fitting(table, group, memory):
                _replace(table, part, run, done)
        except FileLost as error:
            done.given_up += 1
            say(f"a file of {len(group)} is lost ({error}); {verify_tells(table.location)}")
        except Overtaken as error:
            done.given_up += 1
            say(str(error))
    return done


class Compactions:
    """Compactions of a bridge's table beside its batches: rows do not wait for them."""

    def __init__(
        self,
        run: Run,
        say: Callable[[str], object],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run = run
        self._say = say
        self._clock = clock
        self._last = clock()
        self._thread: threading.Thread | None = None

    def begin(self, table: Table) -> None:
        busy = self._thread is not None and self._thread.is_alive()
        if busy or self._clock() - self._last < DUE_SECONDS:
            return
        self._last = self._clock()
        place = table.location, dict(table.storage.options)
        self._thread = threading.Thread(
            target=self._compact, args=place, name="compaction", daemon=True
        )
        self._thread.start()

    def wait(self, seconds: float) -> None:
        if self._thread is not None:
            self._thread.join(seconds)

    def _compact(self, location: str, options: Mapping[str, str]) -> None:
        try:
            table = Table.open(location, options)
            if len(small_files(table.files())) > DUE_FILES:
                done = compact(table, self._run, bytes_max=DUE_BYTES)
                self._say(f"compaction made {done.added} files of {done.removed} small ones")
        except MsgprotoError as error:
            self._say(f"compaction failed: {error}")


def _fitting(table: Table, group: Sequence[DataFile], memory: int) -> Iterator[list[DataFile]]:
    part: list[DataFile] = []
    nbytes = 0
    for file in group:
        footer = read_footer(table.storage, file)
        groups = range(footer.num_row_groups)
        needed = sum(footer.row_group(index).total_byte_size for index in groups)
        if part and nbytes + needed > memory:
            yield part
            part, nbytes = [], 0
        part.append(file)
        nbytes += needed
    yield part


def _replace(table: Table, part: list[DataFile], run: Run, done: Compacted) -> None:
    if len(part) < 2:
        return
    target = target_of(table)
    rows = sorted_rows(
        row_group
        for file in part
        for row_group in read_rows(table.storage, file, target.file_schema)
    )
    new = write_file(target, table.storage, part[0].partition, rows)
    added = [new] if new is not None else []
    try:
        done.version = table.replace(part, added, run=run)
    except Overtaken:
        discard(table.storage, [file.path for file in added])
        raise
    done.removed += len(part)
    done.added += len(added)
    done.bytes += sum(file.size for file in part)


def sorted_rows(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    held = [table for table in tables if table.num_rows]
    if not held:
        return
    whole = pa.concat_tables(held)
    held.clear()
    keys = [(name, "ascending") for name in KEY if name in whole.column_names]
    if keys:
        whole = whole.sort_by(keys)
    for start in range(0, whole.num_rows, SLICE_ROWS):
        yield whole.slice(start, SLICE_ROWS)
