"""Read a landed table back without Spark: fast enough to ask it every second.

A directory which Structured Streaming writes is more than its files.  Killed tasks and repeated
batches leave Parquet files behind that do not belong to the table; which ones do stands in the
sink's log, ``_spark_metadata``.  Spark follows that log, other readers do not: reading the
directory with a plain Parquet reader can show rows twice.  :class:`LandedTable` follows it.

With Spark the same table is ``spark.read.parquet(TABLE)`` (see :func:`read_with_spark`); a Delta
table has a log of its own, which every Delta reader follows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from ..core.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SINK_LOG = "_spark_metadata"
"""The directory of the Parquet sink's log inside the table."""

SINK_LOG_VERSION = "v1"
"""The first line of every file of that log."""

DELTA_LOG = "_delta_log"
"""The directory of a Delta table's log."""


class LandedTable:
    """What a bridge has landed in ``directory`` (Parquet or Delta), at the moment of each call.

    A table that does not exist yet is an empty one.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)

    @property
    def format(self) -> str:
        """``"delta"`` when the directory has a Delta log, else ``"parquet"``."""
        return "delta" if (self.directory / DELTA_LOG).is_dir() else "parquet"

    def files(self) -> list[Path]:
        """The Parquet files which make up the table now, in the order they were committed."""
        if self.format == "delta":
            return [_local(uri) for uri in open_delta(self.directory).file_uris()]
        return sink_files(self.directory)

    def dataset(self) -> ds.Dataset | None:
        """The table as a pyarrow dataset; None while nothing has landed."""
        files = self.files()
        return ds.dataset([str(file) for file in files], format="parquet") if files else None

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows (all, or some columns), ordered as they were committed."""
        dataset = self.dataset()
        if dataset is None:
            from ..queue import SCHEMA

            empty = SCHEMA.empty_table()
            return empty if columns is None else empty.select(list(columns))
        return dataset.to_table(columns=None if columns is None else list(columns))

    def count(self) -> int:
        """How many rows have landed; reads the files' footers only."""
        dataset = self.dataset()
        return 0 if dataset is None else int(dataset.count_rows())

    def counts(self) -> dict[str, int]:
        """Rows per protocol."""
        grouped = self.read(["protocol"]).group_by("protocol").aggregate([([], "count_all")])
        names, counts = grouped.column("protocol"), grouped.column("count_all")
        return dict(sorted(zip(names.to_pylist(), counts.to_pylist(), strict=True)))

    def duplicates(self) -> list[tuple[str, int, int]]:
        """(gateway, offset, times) of every row which is there more than once: nothing, always."""
        return duplicates(self.read(["gateway", "offset"]))

    def offsets(self) -> dict[str, list[tuple[int, int]]]:
        """Per gateway the ranges [lo, hi) of offsets in the table, in order, as few as possible."""
        return ranges(self.read(["gateway", "offset"]))

    def summary(self) -> dict[str, Any]:
        """Rows, rows per protocol, duplicates and offset ranges, ready for JSON."""
        return {
            "table": str(self.directory),
            "format": self.format,
            "rows": self.count(),
            "protocols": self.counts(),
            "duplicates": len(self.duplicates()),
            "offsets": self.offsets(),
        }


def duplicates(table: pa.Table) -> list[tuple[str, int, int]]:
    """(gateway, offset, times) of the pairs which ``table`` holds more than once."""
    counted = table.group_by(["gateway", "offset"]).aggregate([([], "count_all")])
    twice = counted.filter(pc.greater(counted.column("count_all"), 1))
    columns = [twice.column(name).to_pylist() for name in ("gateway", "offset", "count_all")]
    return sorted(zip(*columns, strict=True))


def ranges(table: pa.Table) -> dict[str, list[tuple[int, int]]]:
    """Per gateway the ranges [lo, hi) of the offsets in ``table``."""
    found: dict[str, list[tuple[int, int]]] = {}
    for gateway in sorted(pc.unique(table.column("gateway")).to_pylist()):
        mine = table.filter(pc.equal(table.column("gateway"), gateway)).column("offset")
        offsets = pc.unique(mine).sort()
        # A range ends where the step to the next offset is more than one.
        steps = pc.subtract(offsets[1:], offsets[:-1])
        breaks = pc.indices_nonzero(pc.greater(steps, 1)).to_pylist()
        firsts = [0, *(index + 1 for index in breaks)]
        lasts = [*breaks, len(offsets) - 1]
        found[gateway] = [
            (offsets[first].as_py(), offsets[last].as_py() + 1)
            for first, last in zip(firsts, lasts, strict=True)
        ]
    return found


def sink_files(directory: Path) -> list[Path]:
    """The files which the Parquet sink's log of ``directory`` names, in order of their batches.

    The log has one file a batch, ``N``; every tenth is ``N.compact`` and repeats all before it.
    A file which Spark is just writing has another name, so what has a number is whole.
    """
    log = directory / SINK_LOG
    batches: dict[int, Path] = {}
    compacted = -1
    try:
        names = [entry.name for entry in log.iterdir()]
    except OSError:
        return []
    for name in names:
        number, dot, suffix = name.partition(".")
        if not number.isdigit() or suffix not in ("", "compact") or (dot and not suffix):
            continue
        batch = int(number)
        if suffix == "compact":
            compacted = max(compacted, batch)
            batches[batch] = log / name
        else:
            batches.setdefault(batch, log / name)
    files: dict[str, Path] = {}
    for batch in sorted(batch for batch in batches if batch >= compacted):
        try:
            text = batches[batch].read_text()
        except FileNotFoundError:
            # Compacted and removed since we listed it: begin again with what is there now.
            return sink_files(directory)
        for entry in log_entries(text, batches[batch]):
            if entry["action"] == "add":
                files[entry["path"]] = table_file(directory, entry["path"])
            else:
                files.pop(entry["path"], None)
    return list(files.values())


def log_entries(text: str, where: Path) -> list[dict[str, Any]]:
    """The entries of one file of the sink's log.  Raises ConfigurationError when it is none."""
    version, *lines = text.splitlines() or [""]
    if version != SINK_LOG_VERSION:
        raise ConfigurationError(f"{where} is not a log of Spark's file sink ({version!r})")
    return [json.loads(line) for line in lines if line]


def open_delta(directory: Path) -> Any:
    """The Delta table.  Raises ConfigurationError when the extra ``delta`` is absent."""
    try:
        from deltalake import DeltaTable
    except ImportError:
        raise ConfigurationError(
            "Delta tables need the wheel deltalake: pip install 'twisted-msgproto[delta]'"
        ) from None
    return DeltaTable(str(directory))


def read_with_spark(spark: SparkSession, directory: str | Path) -> DataFrame:
    """The table as a Spark DataFrame: Parquet by its sink's log, Delta by its list of files."""
    table = LandedTable(directory)
    if table.format == "delta":
        from .tablesource import read_table

        return read_table(spark, directory)
    return spark.read.parquet(str(directory))


def table_file(directory: Path, uri: str) -> Path:
    """Where a file of a log is now.

    The Parquet sink's log has absolute paths, and a table may have moved; Delta's are relative.
    """
    path = _local(uri)
    if not path.is_absolute():
        return directory / unquote(uri)
    return path if path.is_file() else directory / path.name


def _local(uri: str) -> Path:
    """The path of a ``file:`` URI or of a plain path."""
    parts = urlsplit(uri)
    return Path(unquote(parts.path)) if parts.scheme == "file" else Path(uri)
