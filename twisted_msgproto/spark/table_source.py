"""Read landed tables in Spark without Java packages: with ``format("msgproto-table")``, or faster.

The former reads the files by Arrow in Spark's Python workers, :func:`read_table` by Spark's own
Parquet reader. Both use the schema of the table's log: Spark would guess the type of a partition's
values from the names of folders, and make a number of a gateway ``1e5``.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.types import StructType

from ..core.errors import ConfigurationError, TableError
from ..queue.queue_directories import path_of
from ..queue.reader import READ_ROWS
from ..table.actions import version_name
from ..table.object_storage import plain_options, storage_at
from ..table.storage import LOG, Storage, one_line
from .filters import expression
from .source import arrow_schema
from .source_options import microseconds, refuse_misspelt, split_list, truth, whole

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

TABLE_NAME = "msgproto-table"

FILES_MAX = 500  # for one call of Spark's Parquet reader, which plans long lists slowly

TASKS_DEFAULT = 8

TASK_BYTES_MIN = 4 << 20  # of files put together; a task costs some 10 ms

TABLE_OPTIONS = (
    "path",
    "columns",
    "versionAsOf",
    "timestampAsOf",
    "numPartitions",
    "pushFilters",
)

STORAGE_PREFIX = "storage."


class TableOptions:
    def __init__(self, options: Mapping[str, str]) -> None:
        given = {name.lower(): value for name, value in options.items()}
        refuse_misspelt(
            {name: value for name, value in options.items() if "." not in name}, TABLE_OPTIONS
        )
        self.location: str = given.get("path", "")
        if not self.location:
            raise ConfigurationError(
                'the source msgproto-table needs a table: .load("/data/messages")'
            )
        self.storage: dict[str, str] = {
            name.removeprefix(STORAGE_PREFIX): value
            for name, value in given.items()
            if name.startswith(STORAGE_PREFIX)
        }
        self.version: int | dt.datetime | None = None
        if text := given.get("versionasof"):
            if not re.fullmatch(r"\d+", text):
                raise ConfigurationError(f"the option versionAsOf is a version, not {text!r}")
            self.version = int(text)
        if text := given.get("timestampasof"):
            seconds = microseconds(text, "timestampAsOf") / 1e6
            self.version = dt.datetime.fromtimestamp(seconds, dt.UTC)
        self.columns: list[str] = split_list(given.get("columns", ""))
        self.tasks: int = whole(given, "numPartitions") or TASKS_DEFAULT
        self.push_filters: bool = truth(given, "pushFilters", default=False)


def open_table(
    location: str, storage: Mapping[str, str], version: int | dt.datetime | None = None
) -> DeltaTable:
    try:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError
    except ImportError:
        raise ConfigurationError(
            "tables need the wheel deltalake: pip install 'twisted-msgproto[spark]'"
        ) from None
    try:
        table = DeltaTable(path_of(location), storage_options=plain_options(storage) or None)
        if isinstance(version, int) and version > table.version():
            raise ConfigurationError(
                f"the table {location} has no version {version}: its newest is {table.version()}"
            )
        if version is not None and not went_back(table, storage_at(location, storage), version):
            raise ConfigurationError(
                f"the table {location} cannot be read as of {version}: its log begins later"
            )
    except TableNotFoundError:
        raise ConfigurationError(f"there is no table at {location}") from None
    except TableError as error:
        raise ConfigurationError(str(error)) from None
    except (DeltaError, OSError, ValueError) as error:
        line = one_line(error)
        raise ConfigurationError(f"the table {location} cannot be opened: {line}") from None
    return table


def went_back(table: DeltaTable, place: Storage, version: int | dt.datetime) -> bool:
    """Load an older version; False if it is not kept (delta-rs may take a later one for it)."""
    from deltalake.exceptions import TableNotFoundError

    try:
        table.load_as_version(version)
    except TableNotFoundError:
        return False
    if isinstance(version, int):
        return True
    [info] = place.filesystem().get_file_info([f"{LOG}/{version_name(table.version())}"])
    # It compares milliseconds.
    return info.mtime_ns is None or info.mtime_ns < version.timestamp() * 1e9 + 1e6


def table_schema(table: DeltaTable) -> StructType:
    return StructType.fromJson(json.loads(table.schema().to_json()))


def table_dataset(table: DeltaTable, location: str) -> ds.FileSystemDataset:
    from deltalake.exceptions import DeltaError

    try:
        return table.to_pyarrow_dataset()
    except (DeltaError, ValueError) as error:
        line = one_line(error)
        raise ConfigurationError(f"the table {location} cannot be read: {line}") from None


class TableFile(NamedTuple):
    """One file of a table: its path below it, its size, what all its rows have in common."""

    path: str
    bytes: int
    known: Any


class TableReader(DataSourceReader):
    def __init__(self, options: TableOptions, schema: StructType) -> None:
        self._options = options
        self._schema = arrow_schema(schema)
        self._whole = self._schema
        self._wanted: pc.Expression | None = None

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        table = open_table(options.location, options.storage, options.version)
        dataset = table_dataset(table, options.location)
        sizes = table._table.get_add_file_sizes()
        files = [
            TableFile(one.path, sizes.get(one.path, 0), one.partition_expression)
            for one in dataset.get_fragments(self._wanted)
        ]
        return [InputPartition(group) for group in shared(files, options.tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        place = storage_at(self._options.location, self._options.storage).filesystem()
        parquet = ds.ParquetFileFormat()
        for file in partition.value or ():  # None is what Spark makes of "no partitions"
            fragment = parquet.make_fragment(file.path, place, file.known)
            dataset = ds.FileSystemDataset([fragment], self._schema, parquet, place)
            for batch in dataset.to_batches(
                filter=self._wanted, batch_size=READ_ROWS, batch_readahead=2
            ):
                if batch.num_rows:
                    yield pa.RecordBatch.from_arrays(batch.columns, schema=self._schema)


class FilteredTableReader(TableReader):
    """The same for one query, whose filters are used here too (option ``pushFilters``)."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._wanted = expression(filters, self._schema)
        return filters


class TableSource(DataSource):
    """``format("msgproto-table")``.  The options are listed in ``docs/reading-the-table.md``."""

    @classmethod
    def name(cls) -> str:
        return TABLE_NAME

    def schema(self) -> StructType:
        options = TableOptions(self.options)
        schema = table_schema(open_table(options.location, options.storage, options.version))
        strangers = [name for name in options.columns if name not in schema.names]
        if strangers:
            raise ConfigurationError(
                f"the table {options.location} has no column {strangers[0]} (it has "
                f"{', '.join(schema.names)})"
            )
        return StructType([schema[name] for name in options.columns or schema.names])

    def reader(self, schema: StructType) -> DataSourceReader:
        options = TableOptions(self.options)
        return (FilteredTableReader if options.push_filters else TableReader)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        raise ConfigurationError(
            "a table is no source of streams here: stream the queue (format msgproto), or use "
            "Spark's Delta connector"
        )


def shared(files: Sequence[TableFile], tasks: int) -> list[list[TableFile]]:
    total = sum(file.bytes for file in files)
    goal = max(TASK_BYTES_MIN, -(-total // tasks))
    groups: list[list[TableFile]] = []
    room = 0
    for file in sorted(files, key=lambda file: file.path):
        if not groups or file.bytes > room:
            groups.append([])
            room = goal
        groups[-1].append(file)
        room -= file.bytes
    return groups


def read_table(
    spark: SparkSession,
    location: str | os.PathLike[str],
    *,
    storage: Mapping[str, str] | None = None,
    version: int | None = None,
) -> DataFrame:
    """Read the table at ``location`` as it is now (or as of ``version``) with Spark's Parquet
    reader.

    Every worker must reach the files: a directory on a shared disk, or an object store for which
    Spark has its own connector and settings (``s3://`` is handed to it as ``s3a://``). ``storage``
    are options of the object store; delta-rs reads the log here on the driver.

    Raises ConfigurationError with one line when there is no table.
    """
    place = os.fspath(location)
    table = open_table(place, storage or {}, version)
    dataset = table_dataset(table, place)
    schema = table_schema(table)
    # A plain path would be one of the cluster's own file system.
    root = re.sub("^s3://", "s3a://", re.sub("^/", "file:///", storage_at(place).location))
    files = [f"{root}/{one.path}" for one in dataset.get_fragments()]
    if not files:
        return spark.createDataFrame([], schema)
    reader = spark.read.schema(schema).option("basePath", root)
    reader = reader.option("__globPaths__", "false")  # or else * and [ in a name are a pattern
    parts = [
        reader.parquet(*files[first : first + FILES_MAX])
        for first in range(0, len(files), FILES_MAX)
    ]
    return reduce(lambda one, other: one.union(other), parts)
