"""Rows, data files and commits for tests of the table.

A :class:`Gateway` is a real queue, landed as a bridge does.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import os
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from tests.tools.queues import batch, put
from twisted_msgproto.core.errors import TableError
from twisted_msgproto.queue import SCHEMA, Landed, QueueReader, QueueWriter, SegmentLog
from twisted_msgproto.table.actions import DataFile, Run
from twisted_msgproto.table.delta_table import Table
from twisted_msgproto.table.erased import Notes
from twisted_msgproto.table.gaps import batch_notes
from twisted_msgproto.table.landing import Target, land_ranges, open_output
from twisted_msgproto.table.plan import Range
from twisted_msgproto.table.proof import GatewayReport, verify

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


def stored_file(table: Table, gateway: str, lo: int, hi: int) -> DataFile:
    """Lands rows in one Parquet file of a table, which no commit names yet."""
    path = f"day=2026-01-31/{uuid.uuid4().hex}.parquet"
    with open_output(table.storage, path) as stream:
        pq.write_table(rows_of(gateway, lo, hi), stream)
    return DataFile(
        path=path,
        size=table.storage.size(path),
        partition={"day": "2026-01-31"},
        rows=hi - lo,
        statistics=f'{{"numRecords":{hi - lo}}}',
        modified=int(time.time() * 1000),
    )


def land(table: Table, gateway: str, hi: int, run: Run = RUN) -> int:
    before = table.landed().get(gateway)
    lo = before.offset if before else 0
    files = [stored_file(table, gateway, lo, hi)]
    return table.commit(files, {gateway: Landed(hi, 5, 7)}, before={gateway: before}, run=run)


BRIDGE = Run("b41d6e", "here", 16)
DAY_MICROSECONDS = 86_400_000_000
FIRST_DAY = 1_700_006_400_000_000
"""2023-11-15 00:00 UTC, µs since 1970."""


class Gateway:
    def __init__(self, directory: Path, *, new: bool = True) -> None:
        self.directory = directory
        self.rows = 0
        if new:
            self.put(1)
        else:
            self.rows = self.reader.end()

    @classmethod
    def at(cls, directory: Path) -> Gateway:
        return cls(directory, new=False)

    @property
    def reader(self) -> QueueReader:
        return QueueReader(self.directory)

    @functools.cached_property
    def id(self) -> str:
        return self.reader.queue_id

    def put(
        self,
        count: int,
        *,
        day: int = 0,
        protocol: str = "lumberjack",
        body: Callable[[int], bytes] = b"body %d".__mod__,
        fields: Callable[[int], Mapping[str, str] | None] | None = None,
    ) -> None:
        """Store messages whose bodies are numbered, received on a day counted from FIRST_DAY."""
        writer = QueueWriter(self.directory, segment_bytes=1)
        for first in range(self.rows, self.rows + count, 5):
            size = min(5, self.rows + count - first)
            put(
                writer,
                dataclasses.replace(
                    batch(first, size),
                    received_at=FIRST_DAY + day * DAY_MICROSECONDS + first,
                    protocol=protocol,
                    body=[body(number) for number in range(first, first + size)],
                    fields=fields and [fields(n) for n in range(first, first + size)],
                ),
            )
        writer.close()
        self.rows += count

    def trim(self) -> None:
        """The gateway starts, trims and ends."""
        log = SegmentLog(self.directory)
        log.trim()
        log.close()


def land_gateways(
    table: Table, *gateways: Gateway, to: Mapping[str, int] | None = None
) -> list[DataFile]:
    """Land what waits, in one commit as a bridge makes it; its files."""
    ranges, places, before = [], {}, {}
    erased = Notes(table.storage).of(table.transactions)
    for gateway in gateways:
        reader = gateway.reader
        known = table.landed().get(reader.queue_id)
        lo = known.offset if known else reader.begin()
        place = reader.place((to or {}).get(reader.queue_id, reader.end()))
        gone = tuple(erased.get(reader.queue_id, ()))
        ranges.append(
            Range(str(gateway.directory), reader.queue_id, lo, place.offset, place, erased=gone)
        )
        places[reader.queue_id], before[reader.queue_id] = place, known
    target = Target(table.location, dict(table.storage.options), partition_by=table.partition_by)
    landed = land_ranges(target, ranges, lambda part: QueueReader(part.location), table.storage)
    assert not landed.failed
    begins = {part.gateway: part.lo for part in ranges if before[part.gateway] is None}
    notes = batch_notes(begins, landed.damaged, table.transactions)
    table.commit(landed.files, places, before=before, run=BRIDGE, notes=notes)
    return landed.files


def check_sum(table: Table, gateway: Gateway, erased: int | None = None) -> GatewayReport:
    """Place − begin = rows + expired + damaged + erased + left out + rejected; nothing is wrong."""
    report = verify(opened_again(table), {gateway.id: gateway.reader}, every_column=True)
    assert report.intact, list(report.findings())
    found = report.gateways[gateway.id]
    gone = sum(hi - lo for lo, hi in found.erased)
    absent = found.expired_rows + found.damaged_rows + gone + found.left_out + found.rejected
    assert found.landed is not None
    assert found.landed.offset - found.begin == found.rows + absent
    assert erased in (None, gone)
    return found


def delta(table: Table) -> DeltaTable:
    """The table as delta-rs sees it."""
    return DeltaTable(table.location, storage_options={**table.storage.options})


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """What each call gave, or the TableError that it raised; all begun together."""
    barrier = threading.Barrier(len(calls))

    def run(call: Callable[[], Any]) -> Any:
        barrier.wait()
        try:
            return call()
        except TableError as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return [*pool.map(run, calls)]


def tear_column(table: Table, file: DataFile, name: str) -> None:
    """Let the pages of one column of a file be empty bytes."""
    path = Path(table.location, file.path)
    group = pq.ParquetFile(path).metadata.row_group(0)
    columns = (group.column(index) for index in range(group.num_columns))
    [torn] = [one for one in columns if one.path_in_schema == name]
    octets = bytearray(path.read_bytes())
    start = torn.data_page_offset
    octets[start : start + torn.total_compressed_size] = bytes(torn.total_compressed_size)
    path.write_bytes(octets)


def age_log(location: str | Path, seconds: float) -> None:
    """Let the files of a table's log have been written earlier."""
    for path in Path(location, "_delta_log").iterdir():
        written = path.stat().st_mtime - seconds
        os.utime(path, (written, written))


def create_table(location: str | Path, **options: object) -> Table:
    return Table.create(location, TABLE_SCHEMA, **options)  # type: ignore[arg-type]


def opened_again(table: Table) -> Table:
    return Table.open(table.location, dict(table.storage.options))


def counted_rows(table: Table) -> Counter[tuple[str, int]]:
    """Every row's gateway and offset, read from the files which the table has now."""
    table.refresh()
    found: Counter[tuple[str, int]] = Counter()
    for file in table.files():
        with table.storage.filesystem().open_input_file(file.path) as source:
            read: pa.Table = pq.ParquetFile(source).read(columns=["gateway", "offset"])
        found.update(zip(*(column.to_pylist() for column in read.columns), strict=True))
    return found


def expected_rows(gateway: Gateway, lo: int, hi: int) -> Counter[tuple[str, int]]:
    return Counter((gateway.id, offset) for offset in range(lo, hi))
