"""Workers land ranges of queues as Parquet files, durable before anybody hears of them.

What is written belongs to the table only when a commit says so. A task that fails removes it; one
that is killed leaves files that no log names, and vacuum removes them.
"""

from __future__ import annotations

import contextlib
import os
import queue as queues
import threading
import time
import uuid
from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..core.disk import sync_file
from ..core.errors import (
    MsgprotoError,
    Overtaken,
    QueueError,
    QueueMismatch,
    TableChanged,
    TableError,
)
from ..queue import SCHEMA
from ..queue.interface import Queue
from .actions import DataFile, statistics_of
from .delta_table import Table
from .object_storage import storage_at
from .plan import Range
from .row_offsets import covered, groups_of
from .shape import Shape, Shaper
from .storage import LocalStorage, Storage, one_line

DAY = pa.field("day", pa.date32(), nullable=False)  # of ``received_at``, UTC; no queue has it

TABLE_SCHEMA: pa.Schema = SCHEMA.append(DAY)

PARTITION_COLUMNS = ("day", "protocol")

READ_ROWS = 10_000  # of one record batch of a queue; small commits are merged up to it
GROUP_ROWS = 64_000  # a Parquet row group is written when it has this many rows ...

GROUP_BYTES = 32 << 20  # ... or has this many bytes: small groups need less memory

FOOTER_TEXT = 1024  # a footer has no bounds of a column in which a text is a few times as long

# Each holds a row group; beyond them the least lately used is closed. A backlog is read in order.
OPEN_FILES_MAX = 16

READERS_MAX = 16  # gateways read at once: a small range costs a round trip, not work

READ_AHEAD = 4

COMPRESSION_LEVEL = 1  # this is zstd at its fastest: half of snappy's size at about its cost

DICTIONARY_COLUMNS = (
    *("gateway", "protocol", "peer", "session", "client_id", "kind", "destination"),
    *("fields.key_value.key", "fields.key_value.value"),
)
"""The values of these columns repeat.  A dictionary of bodies and ids would be built in vain."""


@dataclass(frozen=True, slots=True)
class Target:
    """The table as a task has to know it: where it is, and how its files are written."""

    location: str
    storage: Mapping[str, str] = field(default_factory=dict)
    schema: pa.Schema = TABLE_SCHEMA
    partition_by: tuple[str, ...] = ("day",)
    shape: Shape | None = None  # all rows of the queue, as they are

    @property
    def file_schema(self) -> pa.Schema:
        """Return the columns that stand in the files: partition columns stand in the log alone."""
        return pa.schema([part for part in self.schema if part.name not in self.partition_by])


@dataclass(frozen=True, slots=True)
class Failure:
    """A gateway whose rows could not be read: whether it is another history, and one line."""

    mismatch: bool
    line: str


@dataclass(slots=True)
class LandedRanges:
    """What tasks have landed: whole, or with anything in ``failed`` no files."""

    files: list[DataFile] = field(default_factory=list)  # durable, for a commit
    rows: dict[str, int] = field(default_factory=dict)
    damaged: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    failed: dict[str, Failure] = field(default_factory=dict)
    dropped: int = 0  # a transform received these rows and did not return them
    left_out: dict[str, int] = field(default_factory=dict)  # by the table's shape
    errors: Counter[str] = field(default_factory=Counter)  # columns not made; "" is the body
    rejected: dict[str, dict[int, str]] = field(default_factory=dict)  # what was raised for them


OpenQueue = Callable[[Range], Queue]


def merged(parts: Iterable[LandedRanges]) -> LandedRanges:
    whole = LandedRanges()
    for part in parts:
        whole.files += part.files
        whole.dropped += part.dropped
        whole.failed.update(part.failed)
        whole.errors += part.errors
        for mine, theirs in ((whole.rows, part.rows), (whole.left_out, part.left_out)):
            for gateway, rows in theirs.items():
                mine[gateway] = mine.get(gateway, 0) + rows
        for gateway, offsets in part.rejected.items():
            whole.rejected.setdefault(gateway, {}).update(offsets)
        for gateway, damaged in part.damaged.items():
            whole.damaged[gateway] = sorted({*whole.damaged.get(gateway, []), *damaged})
    return whole


def land_ranges(
    target: Target,
    ranges: Sequence[Range],
    open_queue: OpenQueue,
    storage: Storage | None = None,
    change: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None,
) -> LandedRanges:
    """Write ``ranges`` below the table, durably; name nothing in its log.

    A gateway that cannot be read is named in ``failed`` and ends the task. ``change`` makes the
    table's columns, by default as its shape says.
    """
    [landed] = land_together([(Writer(target, storage, change), ranges)], open_queue)
    if isinstance(landed, MsgprotoError):
        raise landed
    return landed


def land_together(
    works: Sequence[tuple[Writer, Sequence[Range]]], open_queue: OpenQueue
) -> list[LandedRanges | MsgprotoError]:
    """Land as :func:`land_ranges` several tables, reading once; one's error stops no other."""
    writers = [writer for writer, _ in works]
    reads = shared_reads([ranges for _, ranges in works])
    members = {id(read): parts for read, parts in reads}

    def opened(read: Range) -> Queue:
        queue = open_queue(read)
        for _, part in members[id(read)]:
            if part.landed not in (None, read.landed):
                queue.check(part.landed)
        return queue

    try:
        for read, item in read_all([read for read, _ in reads], opened):
            for number, part in members[id(read)]:
                writers[number].take(part, item if part is read else _cut(item, part))
            if all(writer.ended for writer in writers):
                break
        return [writer.finish() for writer in writers]
    except BaseException:
        for writer in writers:
            writer.remove()
        raise


class Writer:
    """What a task lands of one table; an error of its storage ends it, and no other table."""

    def __init__(
        self,
        target: Target,
        storage: Storage | None = None,
        change: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None,
    ) -> None:
        self.target = target
        self.error: MsgprotoError | None = None
        self._storage = storage
        self._shaper = None if target.shape is None else Shaper(target.shape)
        self._change = change or self._shaper
        self._files: Files | None = None
        self._landed = LandedRanges()

    @property
    def ended(self) -> bool:
        return self.error is not None or bool(self._landed.failed)

    def take(self, part: Range, item: Item) -> None:
        """Take what a read of ``part`` has yielded; see :func:`read_all`."""
        landed, gateway = self._landed, part.gateway
        if self.ended:
            return
        if isinstance(item, Failure):
            landed.failed[gateway] = item
        elif isinstance(item, pa.RecordBatch):
            if not item.num_rows:  # all were erased, or are another table's
                return
            with self._noting():
                rows = item if self._change is None else self._change(item)
                landed.rows[gateway] = landed.rows.get(gateway, 0) + rows.num_rows
                if rows.num_rows < item.num_rows:
                    left_out = landed.left_out.get(gateway, 0)
                    landed.left_out[gateway] = left_out + item.num_rows - rows.num_rows
                if rows.num_rows:
                    self._opened().write(rows)
        elif item:
            landed.damaged.setdefault(gateway, []).extend(item)

    def finish(self) -> LandedRanges | MsgprotoError:
        landed = self._landed
        if landed.failed:
            self.remove()
        elif self.error is None:
            if self._files is not None:
                with self._noting():
                    landed.files = self._files.finish()
            landed.errors = Counter() if self._shaper is None else self._shaper.errors
        return self.error or landed

    def remove(self) -> None:
        if self._files is not None:
            self._files.remove()

    def _opened(self) -> Files:
        if self._files is None:
            target = self.target
            storage = self._storage or storage_at(target.location, target.storage)
            self._files = Files(target, storage)
        return self._files

    @contextlib.contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            with undone(self.target, self.remove):
                yield
        except MsgprotoError as error:
            self.error = error


# -- reading --------------------------------------------------------------------------------------

Item = Any  # a record batch, the damaged ranges that the read of a range found, or a Failure


def read_all(ranges: Sequence[Range], open_queue: OpenQueue) -> Iterator[tuple[Range, Item]]:
    """Yield each range's record batches, then its damage; in threads, as queues are far away."""
    by_queue: dict[str, list[Range]] = {}
    for part in ranges:
        by_queue.setdefault(part.location, []).append(part)
    if len(by_queue) <= 1:
        yield from _read_some(ranges, open_queue)
        return
    waiting: queues.SimpleQueue[list[Range]] = queues.SimpleQueue()
    for parts in by_queue.values():
        waiting.put(parts)
    ahead: queues.Queue[tuple[Range, Item] | BaseException | None] = queues.Queue(READ_AHEAD)
    stopped = threading.Event()
    readers = min(READERS_MAX, len(by_queue))
    for _ in range(readers):
        threading.Thread(
            target=_read_ahead, args=[waiting, open_queue, ahead, stopped], daemon=True
        ).start()
    try:
        while readers:
            item = ahead.get()
            if item is None:
                readers -= 1
            elif isinstance(item, BaseException):
                raise item
            else:
                yield item
    finally:
        stopped.set()


def _read_ahead(
    waiting: queues.SimpleQueue[list[Range]],
    open_queue: OpenQueue,
    ahead: queues.Queue[tuple[Range, Item] | BaseException | None],
    stopped: threading.Event,
) -> None:
    """Read queue after queue in a thread; the last item is None."""

    def put(item: tuple[Range, Item] | BaseException | None) -> None:
        while not stopped.is_set():
            with contextlib.suppress(queues.Full):
                return ahead.put(item, timeout=0.1)

    try:
        while not stopped.is_set():
            for item in _read_some(waiting.get_nowait(), open_queue):
                put(item)
                if stopped.is_set():
                    return
    except queues.Empty:
        put(None)
    except BaseException as error:
        put(error)


def _read_some(ranges: Sequence[Range], open_queue: OpenQueue) -> Iterator[tuple[Range, Item]]:
    for number, part in enumerate(ranges):
        try:
            queue = open_queue(part)
            if queue.queue_id != part.gateway:
                raise QueueMismatch(
                    f"{part.location} is queue {queue.queue_id}, the batch is of {part.gateway}"
                )
            rows = queue.read(part.lo, part.hi, READ_ROWS, landed=part.landed)
            for batch in rows:
                yield part, _without(batch, part.erased) if part.erased else batch
            yield part, list(rows.damaged)
        except (MsgprotoError, OSError, pa.ArrowException) as error:
            line = str(error) if isinstance(error, QueueError) else f"{part.location}: {error}"
            failure = Failure(isinstance(error, QueueMismatch), " ".join(line.split()))
            yield from ((one, failure) for one in ranges[number:])
            return


def _without(batch: pa.RecordBatch, erased: Iterable[tuple[int, int]]) -> pa.RecordBatch:
    return batch.filter(pc.invert(covered(batch.column("offset"), erased)))


def shared_reads(
    works: Sequence[Sequence[Range]],
) -> list[tuple[Range, list[tuple[int, Range]]]]:
    """Return what is read once for all ``works``, and whose parts it has: number and range."""
    found: list[tuple[Range, list[tuple[int, Range]]]] = []
    every = [(number, part) for number, ranges in enumerate(works) for part in ranges]
    for number, part in sorted(every, key=lambda one: (one[1].gateway, one[1].lo)):
        read, parts = found[-1] if found else (part, [])
        if parts and part.lo < read.hi and _queue_of(part) == _queue_of(read):
            last = max(read, part, key=lambda one: one.hi)
            found[-1] = replace(last, lo=read.lo, erased=()), [*parts, (number, part)]
        else:
            found.append((part, [(number, part)]))
    return found


def _queue_of(part: Range) -> tuple[object, ...]:
    return part.gateway, part.location, part.access


def _cut(item: Item, part: Range) -> Item:
    if isinstance(item, Failure):
        return item
    if isinstance(item, pa.RecordBatch):
        offsets = item.column("offset")
        lo, hi = (
            bisect_left(offsets, at, key=lambda one: one.as_py()) for at in (part.lo, part.hi)
        )
        rows = item.slice(lo, hi - lo)
        return _without(rows, part.erased) if part.erased else rows
    within = ((max(lo, part.lo), min(hi, part.hi)) for lo, hi in item)
    return [(lo, hi) for lo, hi in within if lo < hi]


# -- partitions -----------------------------------------------------------------------------------

Values = tuple[str, ...]


def split(batch: pa.RecordBatch, partition_by: Sequence[str]) -> Iterator[tuple[Values, pa.Table]]:
    """Split ``batch`` by the values of its partition columns; usually nothing is copied."""
    table = pa.Table.from_batches([batch])
    parts: list[tuple[Values, pa.Table]] = [((), table)]
    for name in partition_by:
        parts = [
            ((*values, value), inner)
            for values, outer in parts
            for value, inner in _split_by(outer, name)
        ]
    yield from parts


def _split_by(table: pa.Table, name: str) -> Iterator[tuple[str, pa.Table]]:
    if name in table.schema.names:
        keys = table.column(name)
    else:
        keys = table.column("received_at").cast(pa.date32())
    values = pc.unique(keys)
    for value in values:
        rows = table if len(values) == 1 else table.filter(pc.equal(keys, value))
        yield str(value), rows


# -- files ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def undone(target: Target, undo: Callable[[], object]) -> Iterator[None]:
    """Undo what was written if that is not completed; what a storage refuses is a TableError."""
    try:
        yield
    except BaseException as error:
        undo()
        if isinstance(error, (OSError, pa.ArrowException)):
            line = one_line(error)
            raise TableError(f"the table {target.location} cannot be written: {line}") from error
        raise


class Files:
    """Parquet files of one task, one open at a time for each partition value."""

    def __init__(self, target: Target, storage: Storage) -> None:
        self._target = target
        self._storage = storage
        self._open: OrderedDict[Values, PartitionFile] = OrderedDict()
        self._closed: list[PartitionFile] = []

    def write(self, batch: pa.RecordBatch) -> None:
        for values, table in split(batch, self._target.partition_by):
            file = self._open.get(values)
            if file is None:
                if len(self._open) >= OPEN_FILES_MAX:
                    self._close(next(iter(self._open)))
                file = self._open[values] = PartitionFile(self._target, self._storage, values)
            else:
                self._open.move_to_end(values)
            file.write(table)

    def finish(self) -> list[DataFile]:
        while self._open:
            self._close(next(iter(self._open)))
        make_durable(self._storage, [file.path for file in self._closed])
        return [file.data_file() for file in self._closed]

    def remove(self) -> None:
        for file in [*self._closed, *self._open.values()]:
            with contextlib.suppress(Exception):
                file.close()
            with contextlib.suppress(Exception):
                self._storage.delete(file.path)

    def _close(self, values: Values) -> None:
        file = self._open[values]
        file.close()
        self._closed.append(self._open.pop(values))


def open_output(storage: Storage, path: str) -> pa.NativeFile:
    """Return a new file below the table, and its folders, whose names will survive."""
    if isinstance(storage, LocalStorage):
        storage.make_folder(path)
    return storage.filesystem().open_output_stream(path)


def make_durable(storage: Storage, paths: Sequence[str]) -> None:
    """Return when closed files below the table would survive a loss of power."""
    if isinstance(storage, LocalStorage):
        whole = [storage.path(path) for path in paths]
        for path in whole:
            sync_file(storage.disk, path)
        for folder in sorted({os.path.dirname(path) for path in whole}):
            storage.disk.sync_directory(folder)


class PartitionFile:
    def __init__(self, target: Target, storage: Storage, values: Values) -> None:
        self.partition: dict[str, str] = dict(zip(target.partition_by, values, strict=True))
        folders = [f"{name}={quote(value, safe='')}" for name, value in self.partition.items()]
        self.path: str = "/".join([*folders, f"part-{uuid.uuid4().hex}.parquet"])
        self._schema = target.file_schema
        self._stream = open_output(storage, self.path)
        self._writer = pq.ParquetWriter(
            self._stream,
            self._schema,
            compression="zstd",
            compression_level=COMPRESSION_LEVEL,
            use_dictionary=[
                name for name in DICTIONARY_COLUMNS if name.split(".")[0] in self._schema.names
            ],
        )
        self._held: list[pa.Table] = []
        self._rows = self._bytes = 0
        self._size = 0
        self._closed = False
        # A footer does not say it, and NaN has no place in an order.
        self._floats = [part.name for part in self._schema if pa.types.is_floating(part.type)]
        self._finite = True
        self._strings = [part.name for part in self._schema if pa.types.is_string(part.type)]
        self._bounds: dict[str, tuple[str, str]] = {}

    def write(self, table: pa.Table) -> None:
        table = table.select(self._schema.names)
        self._held.append(table)
        self._rows += table.num_rows
        self._bytes += table.nbytes
        if self._rows >= GROUP_ROWS or self._bytes >= GROUP_BYTES:
            self._write_group()

    def _write_group(self) -> None:
        group = pa.concat_tables(self._held).cast(self._schema)
        self._held = []
        self._rows = self._bytes = 0
        for name in self._floats:
            self._finite &= pc.all(pc.is_finite(group.column(name))).as_py() is not False
        for name in self._strings:
            column = group.column(name)
            if (pc.max(pc.binary_length(column)).as_py() or 0) >= FOOTER_TEXT:
                bounds = pc.min_max(column).as_py()
                known = self._bounds.get(name, (bounds["min"], bounds["max"]))
                self._bounds[name] = min(known[0], bounds["min"]), max(known[1], bounds["max"])
        self._writer.write_table(group, row_group_size=group.num_rows)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._held:
            self._write_group()
        self._writer.close()
        self._size = self._stream.tell()
        self._stream.close()

    def data_file(self) -> DataFile:
        footer = self._writer.writer.metadata
        return DataFile(
            path=self.path,
            size=self._size,
            partition=self.partition,
            rows=footer.num_rows,
            statistics=statistics_of(footer, finite=self._finite, texts=self._bounds),
            modified=int(time.time() * 1000),
        )


# -- files anew: in another order, or without some rows -------------------------------------------


def target_of(table: Table) -> Target:
    storage = table.storage
    return Target(table.location, dict(storage.options), table.schema, table.partition_by)


def read_rows(storage: Storage, file: DataFile, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield a file's row groups in the columns of ``schema``, perhaps null; or raise FileLost."""
    for rows in groups_of(storage, file):
        columns = [
            rows.column(column.name).cast(column.type)
            if column.name in rows.column_names
            else pa.nulls(rows.num_rows, column.type)
            for column in schema
        ]
        yield pa.Table.from_arrays(columns, schema=schema)


def write_file(
    target: Target,
    storage: Storage,
    partition: Mapping[str, str | None],
    rows: Iterable[pa.Table],
) -> DataFile | None:
    """Write one durable file of a partition that no log names yet; return None without rows."""
    values = tuple(partition[name] or "" for name in target.partition_by)
    file: PartitionFile | None = None

    def undo() -> None:
        if file is not None:
            with contextlib.suppress(Exception):
                file.close()
            discard(storage, [file.path])

    with undone(target, undo):
        for part in rows:
            if part.num_rows:
                file = file or PartitionFile(target, storage, values)
                file.write(part)
        if file is None:
            return None
        file.close()
        make_durable(storage, [file.path])
        return file.data_file()


def rewrite(
    table: Table,
    files: Sequence[DataFile],
    kept: Callable[[pa.Table], Any],
    *,
    lost: Container[str] = (),
    **how: Any,
) -> int:
    """Replace files but the ``lost`` by those with the rows ``kept``, as :meth:`Table.replace`."""
    target, storage = target_of(table), table.storage
    added: list[DataFile] = []

    def rows_of(file: DataFile) -> Iterator[pa.Table]:
        for rows in read_rows(storage, file, target.file_schema):
            yield rows.filter(kept(rows))

    try:
        for file in files:
            if file.path not in lost:
                new = write_file(target, storage, file.partition, rows_of(file))
                added += [] if new is None else [new]
        return table.replace(files, added, data_change=True, **how)
    except (Overtaken, TableChanged):
        discard(storage, [file.path for file in added])
        raise


def discard(storage: Storage, paths: Iterable[str]) -> None:
    """Remove files that no log names, as far as that is possible; vacuum does the rest."""
    for path in paths:
        with contextlib.suppress(Exception):
            storage.delete(path)
