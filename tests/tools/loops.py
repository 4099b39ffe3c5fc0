"""The bridge's loop in this process: real queues, a real table, no Java.

Tables which a user's own stream lands with Spark's Parquet sink, read without Spark.

A directory which Structured Streaming writes is more than its files: which of them belong to the
table stands in the sink's log, ``_spark_metadata``.  Spark follows that log, other readers do not.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from tests.spark.conftest import identity
from twisted_msgproto.queue import Landed, QueueReader
from twisted_msgproto.spark.gateways import Gateways, Marks
from twisted_msgproto.spark.landed_table import LandedTable
from twisted_msgproto.spark.loop import Loop, Pace
from twisted_msgproto.spark.source_options import open_queue, open_range
from twisted_msgproto.table import preflight
from twisted_msgproto.table.actions import Run
from twisted_msgproto.table.delta_table import Table
from twisted_msgproto.table.landing import LandedRanges, Target, land_ranges, merged
from twisted_msgproto.table.plan import Range

if TYPE_CHECKING:
    import pyarrow.dataset as ds


def run_here(target: Target, tasks: Sequence[Sequence[Range]]) -> LandedRanges:
    return merged(land_ranges(target, ranges, open_range) for ranges in tasks)


def loop_over(
    table: Table | Path,
    queues: Iterable[Path | str],
    *,
    runner: Callable[[Target, Sequence[Sequence[Range]]], LandedRanges] = run_here,
    pace: Pace | None = None,
    start_begin: bool = False,
    say: Callable[[str], None] = print,
    stop: threading.Event | None = None,
    run: Run | None = None,
    schema: pa.Schema | None = None,
    partition_by: Sequence[str] | None = None,
    **options: object,
) -> Loop:
    """A loop over ``queues``, as a bridge makes one, which drains them unless ``pace`` says more.

    Its marks are sent when :func:`finish` is called.
    """
    own_run = run or Run.new()
    if not isinstance(table, Table):
        table = preflight.open_table(str(table), schema, partition_by, {}, own_run)
    preflight.check_operations(table)
    consumer = preflight.consumer_name(table.table_id)
    gateways = Gateways(
        [str(queue) for queue in queues],
        open_queue,
        consumer,
        partial(preflight.check_gateway, table.location, start_begin=start_begin),
        say,
    )
    marks = Marks(
        consumer,
        lambda name: open_queue(gateways.by_id[name].location),
        lambda: None,
        say,
    )
    return Loop(
        table,
        Target(table.location, table.storage.options, partition_by=table.partition_by),
        gateways,
        marks,
        runner,
        own_run,
        pace or Pace(trigger=0, once=True),
        stop or threading.Event(),
        say=say,
        **options,  # type: ignore[arg-type]
    )


def finish(loop: Loop) -> None:
    loop.marks.send()
    loop.marks.finish(10.0)
    assert not loop.marks.unsent()


def drain(table: Table | Path, queues: Sequence[Path | str], **options: object) -> Loop:
    loop = loop_over(table, queues, **options)  # type: ignore[arg-type]
    loop.run()
    finish(loop)
    return loop


def landed_offsets(table: Path) -> dict[str, list[int]]:
    """Every offset in the table, by gateway, as an independent reader finds them."""
    from deltalake import DeltaTable

    return by_gateway(DeltaTable(str(table)).to_pyarrow_table(columns=["gateway", "offset"]))


def by_gateway(rows: pa.Table) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for gateway, offset in zip(*(column.to_pylist() for column in rows.columns), strict=True):
        found.setdefault(gateway, []).append(offset)
    return {gateway: sorted(offsets) for gateway, offsets in found.items()}


def places(table: Path) -> dict[str, Landed]:
    return Table.open(table).landed()


def exactly(table: Path, *queues: Path) -> None:
    """Every row of ``queues`` stands in ``table`` exactly once, and the table says so."""
    expected = {identity(queue): list(range(QueueReader(queue).end())) for queue in queues}
    assert landed_offsets(table) == expected
    assert {name: place.offset for name, place in places(table).items()} == {
        name: len(offsets) for name, offsets in expected.items()
    }


SINK_LOG = "_spark_metadata"
"""The directory of the Parquet sink's log inside the table."""

SINK_LOG_VERSION = "v1"
"""The first line of every file of that log."""


class SinkTable(LandedTable):
    """What a stream has landed in ``directory`` with the Parquet sink."""

    def counts(self) -> dict[str, int]:
        return dict(Counter(self.read(["protocol"]).column(0).to_pylist()))

    def offsets(self) -> dict[str, list[int]]:
        """Every offset, by gateway."""
        return by_gateway(self.read(["gateway", "offset"]))

    def files(self) -> list[Path]:
        """The Parquet files which make up the table now, in the order they were committed."""
        return sink_files(self.directory)

    def dataset(self) -> ds.Dataset | None:
        """The table as a pyarrow dataset; None while nothing has landed."""
        import pyarrow.dataset as ds  # it imports pandas

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
