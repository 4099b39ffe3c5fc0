"""Tables which a user's own stream lands with Spark's Parquet sink, read without Spark.

A directory which Structured Streaming writes is more than its files: which of them belong to the
table stands in the sink's log, ``_spark_metadata``.  Spark follows that log, other readers do not.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow.dataset as ds

from twisted_msgproto.spark.table import LandedTable

SINK_LOG = "_spark_metadata"
"""The directory of the Parquet sink's log inside the table."""

SINK_LOG_VERSION = "v1"
"""The first line of every file of that log."""


class SinkTable(LandedTable):
    """What a stream has landed in ``directory`` with the Parquet sink."""

    def files(self) -> list[Path]:
        """The Parquet files which make up the table now, in the order they were committed."""
        return sink_files(self.directory)

    def dataset(self) -> ds.Dataset | None:
        """The table as a pyarrow dataset; None while nothing has landed."""
        files = self.files()
        return ds.dataset([str(file) for file in files], format="parquet") if files else None


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
    """The entries of one file of the sink's log.  Raises ValueError when it is none."""
    version, *lines = text.splitlines() or [""]
    if version != SINK_LOG_VERSION:
        raise ValueError(f"{where} is not a log of Spark's file sink ({version!r})")
    return [json.loads(line) for line in lines if line]


def table_file(directory: Path, uri: str) -> Path:
    """Where a file of a log is now: the log has absolute paths, and a table may have moved."""
    parts = urlsplit(uri)
    path = Path(unquote(parts.path)) if parts.scheme == "file" else Path(uri)
    if not path.is_absolute():
        return directory / unquote(uri)
    return path if path.is_file() else directory / path.name
