"""Streams of one's own with Spark, from the source to its Parquet sink, and how a table is read.

A landed table is what its log says, whatever else lies in its directory; a sink's table too.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from tests.spark.conftest import data_source, identity, messages, write
from tests.tools.loops import by_gateway
from twisted_msgproto.queue import SCHEMA, QueueReader
from twisted_msgproto.spark import release
from twisted_msgproto.spark.landed_table import LandedTable

pytest.importorskip("pyspark")

from pyspark.errors import StreamingQueryException
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

THE_TABLE = StructType(
    [
        StructField("gateway", StringType(), False),
        StructField("offset", LongType(), False),
        StructField("received_at", TimestampType(), False),
        StructField("protocol", StringType(), False),
        StructField("peer", StringType()),
        StructField("session", StringType()),
        StructField("client_id", StringType()),
        StructField("kind", StringType()),
        StructField("message_id", StringType()),
        StructField("destination", StringType()),
        StructField("fields", MapType(StringType(), StringType())),
        StructField("body", BinaryType()),
        StructField("attachments", ArrayType(BinaryType())),
        StructField("truncated", BooleanType(), False),
    ]
)
"""The table as users are promised it, spelled out once more."""


def test_the_schema_is_the_promised_table() -> None:
    assert data_source("msgproto").schema() == THE_TABLE


def rows(gateway: str, lo: int, hi: int, protocol: str = "umq") -> pa.Table:
    count = hi - lo
    values = {
        "gateway": [gateway] * count,
        "offset": list(range(lo, hi)),
        "received_at": [0] * count,
        "protocol": [protocol] * count,
        "truncated": [False] * count,
    }
    columns = [pa.array(values.get(f.name, [None] * count), f.type) for f in SCHEMA]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def test_a_landed_table_is_what_its_log_names(tmp_path: Path) -> None:
    place = tmp_path / "tab le ü"
    table = LandedTable(place)
    assert (table.dataset(), table.duplicates()) == (None, [])
    assert table.read().schema == SCHEMA
    write_deltalake(str(place), rows("g", 0, 10))
    write_deltalake(str(place), rows("g", 12, 20, "sabc"), mode="append")
    write_deltalake(str(place), rows("g", 18, 22), mode="append")
    pq.write_table(rows("g", 0, 10), place / "orphan.parquet")
    assert table.read().num_rows == 22
    assert table.duplicates() == [("g", 18, 2), ("g", 19, 2)]


@pytest.mark.slow
@pytest.mark.xdist_group("spark")
class TestWithSpark:
    def test_a_stream_lands_every_row_once_over_a_restart_and_releases_what_is_durable__TB_15(
        self, spark: Any, drain: Any, queue: Path, tmp_path: Path
    ) -> None:
        """It ended between the sink's commit and Spark's own: the batch is repeated.

        TB-15: Spark's own commit makes nothing durable, so it moves no mark.
        """
        table = tmp_path / "table"
        query = drain(maxRowsPerTrigger=400, consumer="night")
        assert query.exception() is None
        assert [entry.numInputRows for entry in query.recentProgress] == [400, 400, 400, 300]

        def landed() -> dict[str, list[int]]:
            return by_gateway(spark.read.parquet(str(table)).select("gateway", "offset").toArrow())

        assert landed() == {identity(queue): [*range(1500)]}
        forget_commit(table / "_checkpoint")
        write(queue, messages(1500, 700))
        assert drain(maxRowsPerTrigger=1000, consumer="night").exception() is None
        assert landed() == {identity(queue): [*range(2200)]}
        assert QueueReader(queue).consumers() == {"night": 0}
        done = release(table / "_checkpoint", str(queue), "night", sync=os.sync)
        assert done == {identity(queue): 2200}
        assert QueueReader(queue).consumers() == {"night": 2200}

        shutil.rmtree(queue)
        write(queue, messages(0, 10))
        error = drain().exception()
        assert isinstance(error, StreamingQueryException)
        text = r"the checkpoint belongs to queue [0-9a-f]{32}, not to [0-9a-f]{32}"
        assert re.search(text, str(error))

    def test_a_frame_which_was_queried_with_a_filter_still_has_every_row(
        self, spark: Any, queue: Path
    ) -> None:
        """Spark keeps the filters which it once gave to a source: it may not be given any."""
        reader = spark.read.format("msgproto").option("queue", str(queue))
        frame = reader.load()
        assert frame.where("offset < 10").count() == 10
        assert frame.count() == 1500
        once = reader.option("pushFilters", "true").load()
        assert once.where("offset >= 1000 AND protocol = 'lumberjack'").count() == 500

    def test_values_and_nullability_arrive_as_they_were(
        self, spark: Any, drain: Any, tmp_path: Path
    ) -> None:
        queue = tmp_path / "odd"
        odd = messages(
            0,
            3,
            protocol="mtl",
            kind="content",
            received_at=1_700_000_000_123_456,
            client_id="ünï",
            message_id=["a", "b", "c"],
            destination=["x", None, ""],
            fields=[{"k": "v", "l": ""}, {}, None],
            body=[b"\xff\x00", b"", None],
            attachments=[[b"\x00", b""], [], None],
            truncated=[True, False, False],
        )
        write(queue, odd, messages(3, 1, peer=None, session=None, body=None))
        expected = pa.Table.from_batches(list(QueueReader(queue).read(0, 4)))
        seen = spark.read.format("msgproto").option("queue", str(queue)).load()
        assert seen.schema == THE_TABLE
        assert seen.orderBy("offset").toArrow().to_pylist() == expected.to_pylist()
        assert drain(source=str(queue)).exception() is None
        landed = spark.read.parquet(str(tmp_path / "table"))
        assert landed.schema == THE_TABLE
        assert landed.orderBy("offset").toArrow().to_pylist() == expected.to_pylist()
        [file, *_] = (tmp_path / "table").glob("*.parquet")
        assert pq.read_schema(file).field("received_at").type == pa.timestamp("us", tz="UTC")


def forget_commit(checkpoint: Path) -> None:
    """Takes back Spark's own commit of the newest batch, as if the process had ended before it."""
    newest = max(
        int(path.name) for path in (checkpoint / "commits").iterdir() if path.name[0] != "."
    )
    (checkpoint / "commits" / str(newest)).unlink()
    (checkpoint / "commits" / f".{newest}.crc").unlink(missing_ok=True)
