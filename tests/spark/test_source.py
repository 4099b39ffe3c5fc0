"""The data source ``msgproto``: schema, batches, admission, places, damage."""

from __future__ import annotations

import datetime as dt
import json
import pickle
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset
import pytest

from tests.spark.conftest import damage_record, identity, messages, write
from twisted_msgproto.core.errors import ConfigurationError, QueueAway, QueueError, QueueMismatch
from twisted_msgproto.queue import SCHEMA, QueueReader

pytest.importorskip("pyspark")

from pyspark.errors import StreamingQueryException
from pyspark.sql import datasource as sql
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
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

from tests.tools.sink_tables import SinkTable
from twisted_msgproto.spark import need_spark, ranges, source
from twisted_msgproto.spark.ranges import Piece, QueueRange, read_range
from twisted_msgproto.spark.source import (
    FilteredQueueReader,
    QueueBatchReader,
    QueueSource,
    QueueStreamReader,
    spark_schema,
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

slow = [pytest.mark.slow, pytest.mark.xdist_group("spark")]


def offsets_read(batches: list[pa.RecordBatch]) -> list[int]:
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


# -- without Spark running ------------------------------------------------------------------------


def test_the_schema_is_the_promised_table() -> None:
    assert spark_schema() == THE_TABLE
    assert QueueSource({}).schema() == THE_TABLE
    assert QueueSource.name() == "msgproto"


def test_record_batches_have_exactly_the_schema_spark_checks_for() -> None:
    """Spark compares the first batch of every task; types, zone and nullability have to agree."""
    assert to_arrow_schema(THE_TABLE, timezone="UTC").equals(SCHEMA)


def reader(queue: Path, **options: Any) -> QueueStreamReader:
    return QueueStreamReader({"queue": str(queue), **{k: str(v) for k, v in options.items()}})


def proof(queue: Path, offset: int) -> dict[str, int]:
    """What a place in Spark's checkpoint proves its history with."""
    landed = QueueReader(queue).place(offset)
    assert landed.witness
    numbers = {"incarnation": landed.incarnation, "witness": landed.witness}
    return {name: number for name, number in numbers.items() if number}


def test_a_stream_plans_reads_and_goes_on(queue: Path) -> None:
    stream = reader(queue, numPartitions=2, minPartitionRows=1)
    name = identity(queue)
    start = stream.initialOffset()
    assert start == {name: {"offset": 0, "since": 0}}
    first = stream.latestOffset(start, ReadMaxRows(400))
    assert first == {name: {"offset": 400, "since": 0, **proof(queue, 400)}}
    rest = stream.latestOffset(first, ReadAllAvailable())
    assert rest == stream.reportLatestOffset()
    assert rest == {name: {"offset": 1500, **proof(queue, 1500)}}
    parts = stream.partitions(start, first)
    assert [(part.lo, part.hi) for part in parts] == [(0, 200), (200, 400)]
    worker = pickle.loads(pickle.dumps(stream))
    assert offsets_read([b for part in parts for b in worker.read(part)]) == list(range(400))
    assert stream.partitions(rest, rest) == []
    stream.stop()


def test_the_option_limits_a_batch_and_nothing_does_by_default(queue: Path) -> None:
    assert reader(queue, maxRowsPerTrigger=7).getDefaultReadLimit() == ReadMaxRows(7)
    assert reader(queue).getDefaultReadLimit() == ReadAllAvailable()


def test_draining_ends_where_the_queue_ended_at_the_start(queue: Path) -> None:
    stream = reader(queue)
    stream.prepareForTriggerAvailableNow()
    write(queue, messages(1500, 10))
    latest = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    assert latest[identity(queue)]["offset"] == 1500


def test_only_a_named_consumer_holds_the_queue_and_spark_moves_no_mark(queue: Path) -> None:
    """TB-15: when Spark commits a batch nothing of it was synced, so nothing may be trimmed."""
    place = {identity(queue): {"offset": 900}}
    reader(queue).commit(place)
    assert QueueReader(queue).consumers() == {}
    stream = reader(queue, consumer="night")
    stream.initialOffset()
    assert QueueReader(queue).consumers() == {"night": 0}
    stream.commit({**place, "gone": {"offset": 1}})
    stream.latestOffset(place, ReadAllAvailable())
    assert QueueReader(queue).consumers() == {"night": 0}


def test_the_mark_follows_as_late_as_the_option_says(
    queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TB-15: with ``releaseAfter`` a mark moves only when its batch is that old."""
    clock = [1000.0]
    monkeypatch.setattr(source.time, "monotonic", lambda: clock[0])
    name = identity(queue)
    stream = reader(queue, consumer="night", releaseAfter="10m")
    stream.initialOffset()
    stream.commit({name: {"offset": 600}})
    clock[0] += 300
    stream.commit({name: {"offset": 900}})
    assert QueueReader(queue).consumers() == {"night": 0}
    clock[0] += 300
    stream.latestOffset({name: {"offset": 900}}, ReadAllAvailable())
    assert QueueReader(queue).consumers() == {"night": 600}
    clock[0] += 300
    stream.commit({name: {"offset": 1500}, "gone": {"offset": 1}})
    assert QueueReader(queue).consumers() == {"night": 900}
    assert QueueReader(queue).begin() == 0


def test_a_gateway_that_is_away_for_a_while_holds_a_stream_up_and_does_not_end_it(
    queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [QueueAway("gw1 does not answer")] * 3

    def away(self: QueueReader) -> int:
        if answers:
            raise answers.pop()
        return 1500

    monkeypatch.setattr(ranges, "PAUSE_SECONDS", 0.0)
    stream = reader(queue)
    start = stream.initialOffset()
    monkeypatch.setattr(QueueReader, "end", away)
    latest = stream.latestOffset(start, ReadAllAvailable())
    assert latest[identity(queue)]["offset"] == 1500 and answers == []
    answers.append(QueueAway("gw1 does not answer"))
    assert stream.reportLatestOffset() is None
    answers += [QueueAway("gw1 does not answer")] * 3
    with pytest.raises(QueueAway, match="gw1 does not answer"):
        ranges.patiently(QueueReader(queue).end, patience=0.0)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, 'needs .option\\("queue", DIRECTORY\\)'),
        ({"queue": " , "}, "needs"),
        (
            {"queue": "q", "startingOfsets": "latest"},
            "no option startingOfsets; did you mean startingOffsets",
        ),
        ({"queue": "q", "Cosumer": "c"}, "no option Cosumer; did you mean consumer"),
        ({"queue": "q", "maxRowsPerTrigger": "0"}, "maxRowsPerTrigger is a whole number from 1"),
        ({"queue": "q", "numPartitions": "two"}, "numPartitions is a whole number"),
        ({"queue": "q", "failOnDataLoss": "maybe"}, "failOnDataLoss is true or false"),
        ({"queue": "q", "startingOffsets": "soon"}, "startingOffsets is earliest, latest or JSON"),
        ({"queue": "q", "startingOffsets": '{"a": -3}'}, "startingOffsets has -3 for queue a"),
        ({"queue": "q", "startingOffsets": '{"a": true}'}, "startingOffsets has True"),
        ({"queue": "q", "startingOffsets": "{a"}, "startingOffsets is JSON as"),
        ({"queue": "q", "startingTimestamp": "noon"}, "startingTimestamp is milliseconds since"),
        ({"queue": "q", "startingOffsetsByTimestampStrategy": "x"}, "is error or latest, not x"),
        ({"queue": "q", "endingOffsets": "latest"}, "endingOffsets is for batch reads"),
        ({"queue": "q", "endingTimestamp": "0"}, "endingTimestamp is for batch reads"),
        ({"queue": "q", "releaseAfter": "10m"}, "releaseAfter needs the option consumer"),
        ({"queue": "q", "consumer": "c", "releaseAfter": "10"}, "releaseAfter is a duration as"),
    ],
)
def test_a_wrong_option_is_one_line(options: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        QueueStreamReader(options)


def test_a_directory_that_is_no_queue_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(QueueError, match="no queue in"):
        reader(tmp_path / "nothing").initialOffset()


def test_one_queue_given_twice_is_refused(queue: Path) -> None:
    with pytest.raises(ConfigurationError, match="are the same queue"):
        QueueStreamReader({"queue": f"{queue},file://{queue}"}).initialOffset()


def test_another_queue_at_the_place_of_the_first_is_noticed_by_the_worker(
    queue: Path, tmp_path: Path
) -> None:
    part = QueueRange(str(queue), identity(queue), 0, 10)
    assert offsets_read(list(read_range(part))) == list(range(10))
    ranges._opened.clear()
    shutil.rmtree(queue)
    write(queue, messages(0, 20))
    with pytest.raises(QueueMismatch, match="the stream reads"):
        list(read_range(part))


def test_what_spark_makes_of_no_partitions_has_no_rows() -> None:
    assert list(read_range(InputPartition(None))) == []


def test_small_groups_are_merged_into_large_batches(tmp_path: Path) -> None:
    queue = tmp_path / "queue"
    write(queue, *(messages(first, 5) for first in range(0, 500, 5)))
    batches = list(read_range(QueueRange(str(queue), identity(queue), 0, 500)))
    assert [batch.num_rows for batch in batches] == [500]
    assert batches[0].schema.equals(SCHEMA)


def test_damaged_rows_are_left_out_and_reported_once_a_task(
    queue: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    damage_record(queue, b'{"n":777}')
    ranges._opened.clear()
    rows = offsets_read(list(read_range(QueueRange(str(queue), identity(queue), 100, 1200))))
    assert rows == [*range(100, 600), *range(900, 1200)]
    assert capfd.readouterr().err == (
        f"msgproto: queue {identity(queue)}: 300 of the rows 100..1199 are damaged and were "
        "skipped (offsets 600..899)\n"
    )


def test_without_pyspark_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql.streaming.datasource", None)
    with pytest.raises(ConfigurationError) as caught:
        need_spark()
    assert "pip install 'twisted-msgproto[spark]'" in str(caught.value)
    assert "\n" not in str(caught.value)


# -- where reading begins and ends ----------------------------------------------------------------

SECOND = 1_000_000


@pytest.fixture
def timed(tmp_path: Path) -> Path:
    """Ten groups of ten rows, received at the seconds 1000, 1001, … 1009."""
    directory = tmp_path / "timed"
    groups = [messages(10 * n, 10, received_at=(1000 + n) * SECOND) for n in range(10)]
    write(directory, *groups)
    return directory


def begun(queue: Path, **options: Any) -> int:
    place = reader(queue, **options).initialOffset()[identity(queue)]
    assert place["since"] == place["offset"]
    return int(place["offset"])


def looked(queue: Path, *filters: Any, **options: Any) -> list[int]:
    batch = FilteredQueueReader({"queue": str(queue), **{k: str(v) for k, v in options.items()}})
    assert list(batch.pushFilters(list(filters))) == list(filters)
    copy = pickle.loads(pickle.dumps(batch))
    return offsets_read([b for part in batch.partitions() for b in copy.read(part)])


def test_a_stream_begins_where_the_options_say(timed: Path) -> None:
    name = identity(timed)
    assert begun(timed) == begun(timed, startingOffsets="earliest") == 0
    assert begun(timed, startingOffsets="latest") == 100
    for given, offset in ((23, 23), (-2, 0), (-1, 100), (100, 100)):
        assert begun(timed, startingOffsets=json.dumps({name: given})) == offset
    assert begun(timed, startingOffsets="{}") == 0
    assert begun(timed, startingTimestamp=1_004_000) == 40
    assert begun(timed, startingTimestamp=1_003_001) == 40
    assert begun(timed, startingTimestamp="1970-01-01T00:16:44Z") == 40
    assert begun(timed, startingTimestamp="1970-01-01T01:16:44+01:00") == 40
    assert begun(timed, startingTimestamp=0, startingOffsets="latest") == 0
    assert begun(timed, startingOffsetsByTimestamp=json.dumps({name: 1_009_000})) == 90


def test_a_queue_which_the_options_do_not_name_begins_at_its_earliest_offset(
    timed: Path, queue: Path
) -> None:
    options = {"queue": f"{timed},{queue}", "startingOffsets": json.dumps({identity(timed): 7})}
    places = QueueStreamReader(options).initialOffset()
    assert {name: place["offset"] for name, place in places.items()} == {
        identity(timed): 7,
        identity(queue): 0,
    }


def test_a_time_after_the_last_row_is_one_line_or_the_end(timed: Path) -> None:
    late = {"startingTimestamp": "1970-01-01T00:16:49.001Z"}
    with pytest.raises(ConfigurationError, match=r"no row .* after 1970-01-01T00:16:49\.001Z"):
        begun(timed, **late)
    assert begun(timed, **late, startingOffsetsByTimestampStrategy="latest") == 100
    assert looked(timed, endingTimestamp=9_999_999) == list(range(100))


def test_an_offset_which_the_queue_does_not_have_is_refused_unless_loss_is_accepted(
    timed: Path,
) -> None:
    beyond = json.dumps({identity(timed): 101})
    with pytest.raises(QueueMismatch, match=r"asks for offset 101 .* which has 0 to 100"):
        begun(timed, startingOffsets=beyond)
    assert begun(timed, startingOffsets=beyond, failOnDataLoss=False) == 100
    with pytest.raises(ConfigurationError, match="name queue other, which is not among"):
        begun(timed, startingOffsets='{"other": 1}')


def test_a_look_covers_what_the_options_say(timed: Path) -> None:
    name = identity(timed)
    assert looked(timed) == list(range(100))
    assert looked(
        timed, startingOffsets=json.dumps({name: 20}), endingOffsets=json.dumps({name: 35})
    ) == list(range(20, 35))
    assert looked(timed, startingTimestamp=1_002_000, endingTimestamp=1_004_000) == list(
        range(20, 40)
    )
    assert looked(timed, endingOffsetsByTimestamp=json.dumps({name: 1_001_000})) == list(range(10))
    assert looked(timed, startingOffsets="latest") == []


def test_a_time_is_found_beside_damaged_rows(timed: Path) -> None:
    damage_record(timed, b'{"n":40}')
    assert begun(timed, startingTimestamp=1_004_000) in range(40, 51)
    assert looked(timed, startingTimestamp=1_004_000) == list(range(50, 100))
    assert begun(timed, startingTimestamp=1_003_000) == 30


def test_filters_on_offsets_and_gateways_narrow_what_is_read(timed: Path) -> None:
    name = identity(timed)
    batch = FilteredQueueReader({"queue": str(timed)})
    asked = [sql.GreaterThan(("offset",), 41), sql.LessThanOrEqual(("offset",), 55)]
    batch.pushFilters(asked)
    assert [(part.lo, part.hi) for part in batch.partitions()] == [(42, 56)]
    assert looked(timed, *asked) == list(range(42, 56))
    assert looked(timed, sql.In(("offset",), (3, 9))) == [3, 9]
    assert looked(timed, sql.EqualTo(("gateway",), name)) == list(range(100))
    batch.pushFilters([sql.EqualTo(("gateway",), "another")])
    assert batch.partitions() == []
    batch.pushFilters([sql.EqualTo(("offset",), 1000)])
    assert batch.partitions() == []


def test_filters_on_columns_leave_rows_out_before_spark_has_them(timed: Path) -> None:
    write(timed, messages(0, 5, protocol="umq", destination=["a", None, "b", "c", None]))
    at = dt.datetime.fromtimestamp(1004, dt.UTC)
    assert looked(timed, sql.EqualTo(("protocol",), "umq")) == list(range(100, 105))
    assert looked(timed, sql.EqualTo(("received_at",), at)) == list(range(40, 50))
    assert looked(timed, sql.LessThan(("received_at",), at)) == list(range(40))
    assert looked(timed, sql.In(("destination",), ("a", "c", None))) == [100, 103]
    assert looked(timed, sql.Not(sql.EqualTo(("protocol",), "umq"))) == list(range(100))
    # Null-safe: a row without a destination is not equal to "a", and stays.
    assert looked(
        timed,
        sql.EqualTo(("protocol",), "umq"),
        sql.Not(sql.EqualNullSafe(("destination",), "a")),
    ) == [101, 102, 103, 104]
    assert looked(timed, sql.StringStartsWith(("protocol",), "um")) == list(range(100, 105))
    assert looked(timed, sql.EqualTo(("unknown",), 1)) == list(range(105))


def test_exactly_the_ranges_asked_for_are_read_one_task_each(timed: Path, queue: Path) -> None:
    tasks = [
        [Piece(str(timed), identity(timed), 5, 8), Piece(str(queue), identity(queue), 0, 2)],
        [Piece(str(queue), identity(queue), 700, 702)],
    ]
    batch = QueueBatchReader({"ranges": ranges.packed(tasks)})
    parts = batch.partitions()
    assert [offsets_read(list(batch.read(part))) for part in parts] == [[5, 6, 7, 0, 1], [700, 701]]
    with pytest.raises(ConfigurationError, match="the option ranges is JSON"):
        QueueBatchReader({"ranges": "[[1]]"}).partitions()


# -- with Spark -----------------------------------------------------------------------------------


class TestWithSpark:
    pytestmark = slow

    def test_a_stream_lands_every_row_once_and_goes_on_after_a_restart(
        self, drain: Any, queue: Path, tmp_path: Path
    ) -> None:
        query = drain(maxRowsPerTrigger=400)
        assert query.exception() is None
        assert [entry.numInputRows for entry in query.recentProgress] == [400, 400, 400, 300]
        table = SinkTable(tmp_path / "table")
        assert table.offsets() == {identity(queue): [(0, 1500)]}
        write(queue, messages(1500, 700))
        assert drain().exception() is None
        assert table.offsets() == {identity(queue): [(0, 2200)]}
        assert table.duplicates() == []
        assert table.counts() == {"lumberjack": 2200}

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
        landed = SinkTable(tmp_path / "table").read()
        assert landed.to_pylist() == expected.to_pylist()
        assert landed.schema.field("received_at").type == pa.timestamp("us", tz="UTC")
        for field in SCHEMA:
            assert landed.schema.field(field.name).nullable == field.nullable, field.name
        again = spark.read.parquet(str(tmp_path / "table"))
        assert again.schema == THE_TABLE
        assert again.count() == 4

    def test_a_batch_that_is_repeated_lands_once(
        self, drain: Any, queue: Path, tmp_path: Path
    ) -> None:
        """Ended between the sink's commit and Spark's own: the sink knows the batch."""
        table = tmp_path / "table"
        drain(maxRowsPerTrigger=600)
        forget_commit(table / "_checkpoint")
        write(queue, messages(1500, 100))
        assert drain(maxRowsPerTrigger=600).exception() is None
        assert SinkTable(table).offsets() == {identity(queue): [(0, 1600)]}
        assert SinkTable(table).duplicates() == []

    def test_a_batch_that_ended_half_written_lands_once(
        self, drain: Any, queue: Path, tmp_path: Path
    ) -> None:
        """Ended after files were written and before the sink's commit: the files are orphans."""
        table = tmp_path / "table"
        drain(maxRowsPerTrigger=600)
        newest = forget_commit(table / "_checkpoint")
        for path in (table / "_spark_metadata").glob(f"*{newest}*"):
            path.unlink()
        assert drain(maxRowsPerTrigger=600).exception() is None
        assert SinkTable(table).offsets() == {identity(queue): [(0, 1500)]}
        assert SinkTable(table).duplicates() == []
        every_file = pa.dataset.dataset([str(path) for path in table.glob("*.parquet")])
        assert every_file.count_rows() > 1500

    @pytest.mark.parametrize("case", ["other queue", "ahead", "trimmed"])
    def test_a_checkpoint_that_does_not_fit_ends_the_stream_with_one_clear_message(
        self, drain: Any, queue: Path, case: str
    ) -> None:
        older = shutil.copytree(queue, queue.with_name("older"))
        write(queue, messages(1500, 100))
        assert drain().exception() is None
        if case == "trimmed":
            for first in (1600, 1900):
                write(queue, messages(first, 300), segment_bytes=1)
            for segment in sorted(queue.glob("*.segment"))[:2]:
                segment.unlink()
            text = r"is behind what queue .* trimmed: offset 1600 is wanted, the earliest kept is"
        elif case == "ahead":
            shutil.rmtree(queue)
            older.rename(queue)
            text = r"is ahead of queue .*: it is at offset 1600, .* ends at 1500"
        else:
            shutil.rmtree(queue)
            write(queue, messages(0, 10))
            text = r"the checkpoint belongs to queue [0-9a-f]{32}, not to [0-9a-f]{32}"
        error = drain().exception()
        assert isinstance(error, StreamingQueryException)
        assert re.search(text, str(error))

    def test_a_damaged_range_is_skipped_and_the_stream_goes_on(
        self, drain: Any, queue: Path, tmp_path: Path
    ) -> None:
        damage_record(queue, b'{"n":777}')
        query = drain()
        assert query.exception() is None
        assert SinkTable(tmp_path / "table").offsets() == {identity(queue): [(0, 600), (900, 1500)]}
        assert query.lastProgress.numInputRows == 1200

    def test_an_accepted_loss_goes_on_with_what_is_kept(
        self, drain: Any, queue: Path, tmp_path: Path
    ) -> None:
        assert drain().exception() is None
        for first in (1500, 1800, 2100):
            write(queue, messages(first, 300), segment_bytes=1)
        for segment in sorted(queue.glob("*.segment"))[:2]:
            segment.unlink()
        begin = QueueReader(queue).begin()
        assert begin > 1500
        assert drain(failOnDataLoss=False).exception() is None
        assert SinkTable(tmp_path / "table").offsets() == {
            identity(queue): [(0, 1500), (begin, 2400)]
        }


def forget_commit(checkpoint: Path) -> int:
    """Takes back Spark's own commit of the newest batch, as if the process had ended before it."""
    newest = max(
        int(path.name) for path in (checkpoint / "commits").iterdir() if path.name[0] != "."
    )
    (checkpoint / "commits" / str(newest)).unlink()
    (checkpoint / "commits" / f".{newest}.crc").unlink(missing_ok=True)
    return newest
