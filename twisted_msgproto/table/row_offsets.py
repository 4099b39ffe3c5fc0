"""Read from the files of a table that offsets of which gateways they hold."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder

from ..core.errors import TableError
from ..queue.arrays import array_of, scalar_of
from ..queue.damage import Range, merged
from .actions import DataFile
from .delta_table import Table
from .snapshot import refused
from .storage import Storage, one_line

SETTLE_RANGES = 4096

Ranges = tuple[pa.Array, pa.Array]

# Arrow's own array and scalar would import pandas.
NONE: Ranges = (pa.nulls(0, pa.int64()), pa.nulls(0, pa.int64()))
TRUE: pa.Array = array_of([True], pa.bool_())
ONE: pa.Scalar = scalar_of(1, pa.int64())


def united(lo: pa.Array, hi: pa.Array) -> tuple[Ranges, Ranges]:
    """Return what ranges cover together, and what two of them cover; in order, disjoint."""
    once, twice = _swept(lo, hi)
    return once, _swept(*twice)[0]


def _swept(lo: pa.Array, hi: pa.Array) -> tuple[Ranges, Ranges]:
    """Return the union of ranges, and where each begins below the end of those before it."""
    if not len(lo):
        return NONE, NONE
    order = pc.sort_indices(lo)
    lo, hi = lo.take(order), hi.take(order)
    top = pc.cumulative_max(hi)
    before = pa.concat_arrays([lo[:1], top[:-1]])
    begins = pc.greater(lo, before)
    starts = pa.concat_arrays([TRUE, begins[1:]])
    ends = pa.concat_arrays([begins[1:], TRUE])
    again = pc.less(lo, before)
    twice = lo.filter(again), pc.min_element_wise(hi, before).filter(again)
    return (lo.filter(starts), top.filter(ends)), twice


@dataclass(slots=True)
class Coverage:
    """Offsets seen of one gateway, once and again; ranges in Arrow, as there may be billions."""

    rows: int = 0
    _once: Ranges = NONE
    _twice: Ranges = NONE
    _waiting: list[Ranges] = field(default_factory=list)
    _waits: int = 0

    def add(self, lo: pa.Array, hi: pa.Array) -> None:
        self._waiting.append((lo, hi))
        self._waits += len(lo)
        self.rows += (pc.sum(hi).as_py() or 0) - (pc.sum(lo).as_py() or 0)
        # Waiting as long as what is known keeps the work for each range constant.
        if self._waits >= max(SETTLE_RANGES, len(self._once[0])):
            self._settle()

    def ranges(self) -> list[Range]:
        self._settle()
        return _pairs(self._once)

    def twice(self) -> list[Range]:
        self._settle()
        return _pairs(self._twice)

    def _settle(self) -> None:
        if self._waiting:
            self._once, again = united(*_joined([self._once, *self._waiting]))
            if len(again[0]):
                self._twice = united(*_joined([self._twice, again]))[0]
            self._waiting.clear()
            self._waits = 0


def _joined(parts: Sequence[Ranges]) -> Ranges:
    return pa.concat_arrays([lo for lo, _ in parts]), pa.concat_arrays([hi for _, hi in parts])


def _pairs(ranges: Ranges) -> list[Range]:
    return list(zip(ranges[0].to_pylist(), ranges[1].to_pylist(), strict=True))


def without(ranges: Iterable[Range], others: Iterable[Range]) -> list[Range]:
    """Return what of ``ranges`` none of ``others`` covers; both in any order."""
    return list(_without(merged(ranges), merged(others)))


def _without(ranges: list[Range], others: list[Range]) -> Iterator[Range]:
    place = 0
    for lo, hi in ranges:
        while place < len(others) and others[place][1] <= lo:
            place += 1
        at = place
        while at < len(others) and others[at][0] < hi:
            if lo < others[at][0]:
                yield lo, others[at][0]
            lo = max(lo, others[at][1])
            at += 1
        if lo < hi:
            yield lo, hi


def covered(offsets: Any, ranges: Iterable[Range]) -> Any:
    """Return for each of ``offsets``, which lie close together, whether a range covers it."""
    bounds = pc.min_max(offsets).as_py()
    whole = [] if bounds["min"] is None else [(bounds["min"], bounds["max"] + 1)]
    parts = without(whole, without(whole, ranges))
    numbers = [offset for lo, hi in parts for offset in range(lo, hi)]
    return pc.is_in(offsets, pa.array(numbers, offsets.type))


def size(ranges: Iterable[Range]) -> int:
    return sum(hi - lo for lo, hi in ranges)


VIEWS = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}

KEY = ("gateway", "offset")
TEXTS = ("string", "large_string", "string_view")


class FileLost(Exception):
    """A file that the log names is not there or is torn; the text names it."""


@dataclass(slots=True)
class Offsets:
    gateways: dict[str, Coverage] = field(default_factory=dict)
    nameless: int = 0
    lost: dict[str, str] = field(default_factory=dict)

    def add(self, rows: pa.Table) -> None:
        held = rows.drop_null()
        self.nameless += rows.num_rows - held.num_rows
        if not held.num_rows:
            return
        encoded = held.column("gateway").combine_chunks().dictionary_encode()
        codes, names = encoded.indices, encoded.dictionary.to_pylist()
        offset = held.column("offset").combine_chunks()
        breaks = pc.or_(
            pc.not_equal(pc.subtract(offset[1:], offset[:-1]), ONE),
            pc.not_equal(codes[1:], codes[:-1]),
        )
        lo = offset.filter(pa.concat_arrays([TRUE, breaks]))
        hi = pc.add(offset.filter(pa.concat_arrays([breaks, TRUE])), ONE)
        of = codes.filter(pa.concat_arrays([TRUE, breaks]))
        for code in pc.unique(of).to_pylist():
            mine = pc.equal(of, scalar_of(code, pa.int32()))
            coverage = self.gateways.setdefault(names[code], Coverage())
            coverage.add(lo.filter(mine), hi.filter(mine))


def has_keys(table: Table) -> bool:
    """Return whether the rows of a table, as they stand in its files, have gateway and offset."""
    stored = (column for column in table.schema if column.name not in table.partition_by)
    kinds = {column.name: str(column.type) for column in stored}
    return kinds.get("gateway") in TEXTS and kinds.get("offset") == "int64"


def check_columns(table: Table) -> None:
    if not has_keys(table):
        raise TableError(
            f"{table.location} does not have the columns gateway (string) and offset (bigint) in "
            "its files: which rows it holds cannot be told"
        )


def read_offsets(
    storage: Storage, files: Iterable[DataFile], *, every_column: bool = False
) -> Offsets:
    """Return which offsets ``files`` hold; ``every_column`` is read, too."""
    found = Offsets()
    for file, rows in row_groups(storage, files, None if every_column else KEY):
        if isinstance(rows, FileLost):
            found.lost[file.path] = str(rows)
        else:
            found.add(rows.select(KEY))
    return found


def row_groups(
    storage: Storage, files: Iterable[DataFile], columns: Sequence[str] | None
) -> Iterator[tuple[DataFile, pa.Table | FileLost]]:
    """Yield the row groups of files, and what is lost of each."""
    for file in files:
        try:
            for rows in groups_of(storage, file, columns):
                yield file, rows
        except FileLost as error:
            yield file, error


def read_footer(storage: Storage, file: DataFile) -> pq.FileMetaData:
    """Return what a file says of itself; FileLost if it is not whole as the log names it."""
    try:
        with storage.filesystem().open_input_file(file.path) as source:
            if source.size() != file.size:
                raise FileLost(f"it has {source.size()} bytes, the log says {file.size}")
            footer = pq.ParquetFile(source).metadata
    except (OSError, pa.ArrowException) as error:
        raise _judged(storage, file, error) from error
    if file.rows is not None and footer.num_rows != file.rows:
        raise FileLost(f"it has {footer.num_rows} rows, the log says {file.rows}")
    return footer


def groups_of(
    storage: Storage, file: DataFile, columns: Sequence[str] | None = None
) -> Iterator[pa.Table]:
    footer = read_footer(storage, file)
    wanted = None if columns is None else [*columns]
    for group in range(footer.num_row_groups):
        try:
            with storage.filesystem().open_input_file(file.path) as source:
                rows = pq.ParquetFile(source, metadata=footer).read_row_group(group, wanted)
        except (OSError, pa.ArrowException) as error:
            raise _judged(storage, file, error) from error
        yield _plain(rows)


def _plain(rows: pa.Table) -> pa.Table:
    """Return rows without views: a file of delta-rs asks for them, and few functions take them."""
    for place, column in enumerate(rows.schema):
        if column.type in VIEWS:
            plain = rows.column(place).cast(VIEWS[column.type])
            rows = rows.set_column(place, column.name, plain)
    return rows


def _judged(storage: Storage, file: DataFile, error: Exception) -> Exception:
    if isinstance(error, FileNotFoundError):
        return FileLost("it is missing")
    if refused(storage, error):
        return TableError(f"cannot read {file.path} of {storage.location}: {one_line(error)}")
    return FileLost(f"it is torn ({one_line(error)})")


def queried(table: Table, query: str) -> Iterator[pa.Table]:
    """Yield what an SQL query over ``rows``, those of the table, says; TableError, one line."""
    place = table.location
    if table.storage.local and ("\\" in place or unquote(place) != place):
        raise TableError(
            f"rows of {place}: delta-rs, which looks for them, takes \\ and % with two "
            "digits for other characters, so it finds another place; rename the directory for this"
        )
    try:
        delta = DeltaTable(table.location, table.version, dict(table.storage.options))
        for batch in QueryBuilder().register("rows", delta).execute(query):
            yield _plain(pa.table(pa.record_batch(batch)))
    except Exception as error:  # delta-rs raises its own types, which differ between releases
        raise TableError(f"rows of {table.location}: {one_line(error)}") from error


def gateways_of(storage: Storage, file: DataFile) -> Iterator[tuple[str, int, int]]:
    """Yield gateway, lowest offset and rows; FileLost for a gone file that has to be opened."""
    try:
        statistics = json.loads(file.statistics)
        least, most, nulls = (statistics[name] for name in ("minValues", "maxValues", "nullCount"))
        if least["gateway"] == most["gateway"] and not any(nulls[name] for name in KEY):
            yield least["gateway"], int(least["offset"]), int(statistics["numRecords"])
            return
    except (ValueError, KeyError, TypeError):
        pass
    for rows in groups_of(storage, file, KEY):
        by = rows.group_by("gateway").aggregate([("offset", "min"), ("offset", "count")])
        for row in by.to_pylist():
            if row["gateway"] is not None and row["offset_min"] is not None:
                yield row["gateway"], row["offset_min"], row["offset_count"]


END = 1 << 63


def bounds_of(file: DataFile) -> Range:
    """Return between which offsets a file's rows are, as its statistics say; else all of them."""
    found = _extremes(file, "offset", int)
    return (found[0], found[1] + 1) if found else (0, END)


def _extremes(file: DataFile, column: str, kind: type) -> tuple[Any, Any] | None:
    try:
        statistics = json.loads(file.statistics)
        least, most = (statistics[name][column] for name in ("minValues", "maxValues"))
    except (ValueError, KeyError, TypeError):
        return None
    return (least, most) if isinstance(least, kind) and isinstance(most, kind) else None


def may_hold(file: DataFile, low: int, high: int) -> bool:
    """Return whether a file may have offsets low ≤ offset < high, as its statistics say."""
    least, end = bounds_of(file)
    return least < high and end > low


def may_be_of(file: DataFile, gateway: str) -> bool:
    found = _extremes(file, "gateway", str)
    return found is None or bool(found[0] <= gateway <= found[1])
