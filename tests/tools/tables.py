"""Rows, data files and commits for tests of the table."""

from __future__ import annotations

import datetime
import os
import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from twisted_msgproto.queue import SCHEMA, Landed
from twisted_msgproto.table.actions import DataFile, Run
from twisted_msgproto.table.log import Table

TABLE_SCHEMA = SCHEMA.append(pa.field("day", pa.date32(), nullable=False))
TIME = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC)
RUN = Run("5eed", "here", 17)


def rows_of(gateway: str, lo: int, hi: int) -> pa.Table:
    """Rows ``lo`` to ``hi`` of a queue, as its reader gives them."""
    count = hi - lo
    columns: dict[str, list[object]] = {name: [None] * count for name in SCHEMA.names}
    columns.update(
        gateway=[gateway] * count,
        offset=list(range(lo, hi)),
        received_at=[TIME + datetime.timedelta(microseconds=n) for n in range(lo, hi)],
        protocol=["lumberjack"] * count,
        body=[b"%d" % n for n in range(lo, hi)],
        truncated=[False] * count,
    )
    return pa.table(columns, schema=SCHEMA)


def data_file(table: Path, gateway: str, lo: int, hi: int) -> DataFile:
    """Lands rows in one synced Parquet file of the table, which no commit names yet."""
    folder = table / "day=2026-01-31"
    folder.mkdir(exist_ok=True)
    path = folder / f"{uuid.uuid4().hex}.parquet"
    pq.write_table(rows_of(gateway, lo, hi), path)
    for name in (path, folder, table):
        descriptor = os.open(name, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    return DataFile(
        path=str(path.relative_to(table)),
        size=path.stat().st_size,
        partition={"day": "2026-01-31"},
        rows=hi - lo,
        statistics=f'{{"numRecords":{hi - lo}}}',
        modified=int(path.stat().st_mtime * 1000),
    )


def land(table: Table, gateway: str, hi: int, run: Run = RUN) -> int:
    before = table.landed().get(gateway)
    lo = before.offset if before else 0
    files = [data_file(Path(table.location), gateway, lo, hi)]
    return table.commit(files, {gateway: Landed(hi, 5, 7)}, before={gateway: before}, run=run)


def stored_file(table: Table, gateway: str, lo: int, hi: int) -> DataFile:
    """Lands rows in one Parquet file of a table wherever it is; no commit names it yet."""
    path = f"day=2026-01-31/{uuid.uuid4().hex}.parquet"
    filesystem = table.storage.filesystem()
    with filesystem.open_output_stream(path) as stream:
        pq.write_table(rows_of(gateway, lo, hi), stream)
    return DataFile(
        path=path,
        size=table.storage.size(path),
        partition={"day": "2026-01-31"},
        rows=hi - lo,
        statistics=f'{{"numRecords":{hi - lo}}}',
        modified=1,
    )
