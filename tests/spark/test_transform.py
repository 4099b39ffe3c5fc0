"""``--transform``: a function of one's own lands exactly once, or not at all."""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import re
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.spark.conftest import damage_record, data_source, identity, messages, write
from tests.spark.test_loop import Workers
from tests.spark.test_report import LOOPBACK, asked, shown
from tests.tools.loops import landed_offsets
from tests.tools.processes import Launcher, command_of, descendants, environment
from tests.tools.s3 import Store
from tests.tools.tables import TABLE_SCHEMA
from twisted_msgproto import cli
from twisted_msgproto.core.errors import ConfigurationError, TableError
from twisted_msgproto.queue import SCHEMA, Landed, QueueReader
from twisted_msgproto.table.actions import Run
from twisted_msgproto.table.delta_table import Table
from twisted_msgproto.table.landing import LandedRanges, Target
from twisted_msgproto.table.plan import Range
from twisted_msgproto.table.proof import verify

pytest.importorskip("pyspark")

from pyspark.sql import types as st

from twisted_msgproto.spark.jobs import SparkRunner
from twisted_msgproto.spark.transform import Transform, landed_schema, load_function

RUN = Run("5eed", "here", 17)
START_SECONDS = 400.0
"""How long Spark may take to start on a machine with much else to do."""

VIEW_SECONDS = 5.0
"""A function waits this long for another one to replace its view, in vain."""

MODULE = """
import os
import time

from pyspark.sql import Window
from pyspark.sql import functions as sf
from pyspark.sql.types import StringType

def same(messages):
    return messages

def even(messages):
    return messages.where("offset % 2 = 0").select("gateway", "offset", "received_at")

def shuffled(messages):
    return messages.repartition(3).select("gateway", "offset", "received_at", "protocol")

NAMES = ["a.b", "`x`", "a`b", "*", "select", "_error", "ä", "\\U0001f600"]

def named(messages):
    inner = sf.struct(*(sf.lit(1).alias(name) for name in NAMES)).alias("s")
    numbers = (sf.col("offset").alias(name) for name in NAMES)
    return messages.select("gateway", "offset", "received_at", inner, *numbers)

def own_day(messages):
    day = sf.when(sf.col("offset") < 700, sf.lit("2026-01-01")).otherwise("2026-01-02")
    return messages.select("gateway", "offset", day.cast("date").alias("day"))

shout = sf.udf(lambda body: loud(bytes(body)), StringType())

def loud(body):
    return body.decode().upper()

def with_python(messages):
    return messages.select("gateway", "offset", "received_at", shout("body").alias("loud"))

def raises(messages):
    raise ValueError("no such thing\\nand more")

def raises_in_a_task(messages):
    broken = sf.udf(lambda offset: 1 // (offset - 700), "long")
    return messages.select("gateway", "offset", "received_at", broken("offset").alias("b"))

def of_sql(messages):
    number = sf.expr("cast(if(offset = 700, 'x', '1') as int)")
    return messages.select("gateway", "offset", "received_at", number.alias("n"))

def of_arrow(messages):
    def each(batches):
        for batch in batches:
            assert 700 not in batch.column(1).to_pylist()
            yield batch
    return messages.mapInArrow(each, messages.schema)

def too_late(messages):
    day = sf.when(sf.col("offset") != 700, sf.lit("2026-01-01").cast("date"))
    return messages.select("gateway", "offset", day.alias("day"))

class NotThere(LookupError):
    pass

def on_the_driver(messages):
    if messages.where("offset = 700").count():
        raise NotThere("700")
    return messages

def across(messages):
    best = sf.max("offset").over(Window.partitionBy("gateway"))
    number = 1 / (sf.col("offset") - 700)
    return messages.select("gateway", "offset", "received_at", number.alias("n"), best.alias("m"))

def fails_with(error):
    def each(offset):
        if offset == 700:
            raise error
        return offset
    return sf.udf(each, "long")("offset").alias("n")

def memory(messages):
    return messages.select("gateway", "offset", "received_at", fails_with(MemoryError("no more")))

def disk(messages):
    error = OSError(28, "No space left on device")
    return messages.select("gateway", "offset", "received_at", fails_with(error))

def crash(messages):
    def each(offset):
        return os._exit(3) if offset == 700 else offset
    number = sf.udf(each, "long")("offset")
    return messages.select("gateway", "offset", "received_at", number.alias("n"))

calls = []

def other_columns(messages):
    calls.append(1)
    number = sf.lit(1) if len(calls) == 1 else sf.lit("one")
    return messages.select("gateway", "offset", "received_at", number.alias("n"))

def fewer_columns(messages):
    calls.append(1)
    names = ["gateway", "offset", "received_at", "body"]
    return messages.select(names if len(calls) == 1 else names[:3])

def no_time(messages):
    calls.append(1)
    return messages if len(calls) == 1 else messages.drop("received_at")

def twice(messages):
    both = sf.explode(sf.array(sf.lit(1), sf.lit(2))).alias("n")
    return messages.select("gateway", "offset", "received_at", both)

def joined(messages):
    names = messages.sparkSession.createDataFrame([("json", 1)], "kind string, n int")
    return messages.join(sf.broadcast(names.distinct()), "kind", "left")

def joined_right(messages):
    names = messages.sparkSession.createDataFrame([("json", 1)], "kind string, n int")
    return messages.join(names, "kind", "right")

def with_itself(messages):
    return messages.join(messages.select("offset"), "offset")

def counted(messages):
    return messages.groupBy("gateway", "received_at").count()

def once(messages):
    return messages.dropDuplicates(["message_id"])

def of_view(messages):
    messages.createOrReplaceTempView("messages")
    return messages.sparkSession.sql("SELECT *, 1 AS n FROM messages WHERE protocol != 'umq'")

turns = []

def by_turns(messages):
    messages.createOrReplaceTempView("messages")
    if turns:
        turns.pop()()
    return messages.sparkSession.sql("SELECT gateway, offset, received_at FROM messages")

def of_most(messages):
    messages.createOrReplaceTempView("messages")
    query = "SELECT *, (SELECT max(offset) FROM messages) AS most FROM messages"
    return messages.sparkSession.sql(query)

def limited(messages):
    return messages.orderBy("offset").limit(10)

def returns_rows(messages):
    return messages.collect()

def hesitant(messages):
    def each(offset):
        if offset == 15:
            open("waits", "w").close()
            time.sleep(600)
        if offset in (6, 10):
            raise ValueError("not this one")
        return offset
    number = sf.udf(each, "long")("offset").alias("n")
    return messages.select("gateway", "offset", "received_at", number)

nothing = 5
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    name = f"transforms_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    yield name
    from pyspark import cloudpickle

    if loaded := sys.modules.pop(name, None):
        with contextlib.suppress(ValueError):
            cloudpickle.unregister_pickle_by_value(loaded)


# -- without Spark running ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("nothing", "--transform is MODULE:FUNCTION, not 'nothing'"),
        (":f", "is MODULE:FUNCTION"),
        ("no.such.module:f", "there is no such module"),
        ("MODULE:missing", "has no missing"),
        ("MODULE:nothing", "has no function nothing"),
        ("needy:f", "it needs no_such_library"),
        ("broken:f", "importing it failed: SyntaxError"),
    ],
)
def test_what_is_no_function_is_one_line_before_java_starts(
    module: str,
    tmp_path: Path,
    queue: Path,
    name: str,
    text: str,
    capsys: pytest.CaptureFixture[str],
    command_here: None,
) -> None:
    (tmp_path / "needy.py").write_text("import no_such_library")
    (tmp_path / "broken.py").write_text("def f(:")
    words = ["bridge", "--queue", str(queue), "--table", "table"]
    assert cli.main([*words, "--transform", name.replace("MODULE", module)]) == 2
    told = capsys.readouterr().err
    assert text in told and told.count("\n") == 1
    assert str(tmp_path) not in sys.path
    assert not (tmp_path / "table").exists()


def test_a_wrong_queue_is_told_before_java_starts_where_the_table_is_there(
    module: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command_here: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Table.create(tmp_path / "table", TABLE_SCHEMA)
    monkeypatch.setattr("twisted_msgproto.spark.bridge.spark_context", None)
    words = ["bridge", "--queue", "none", "--table", "table", "--transform", f"{module}:same"]
    assert cli.main(words) == 2
    assert "no queue in" in capsys.readouterr().err


def test_the_table_has_the_functions_columns_and_a_day() -> None:
    assert landed_schema("m:f", data_source("msgproto").schema()).names == [*SCHEMA.names, "day"]
    own = st.StructType().add("day", "date").add("n", "integer", nullable=False)
    assert landed_schema("m:f", own).names == ["n", "day"]
    # A table that is there already gets it, too: sf.lit(1) was refused, and to leave it out again.
    assert landed_schema("m:f", own).field("n").nullable


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (st.StructType().add("n", "integer"), r"must return received_at .* or day"),
        (st.StructType().add("received_at", "string"), r"must return received_at"),
        (st.StructType().add("day", "string"), "day which is no date"),
        (st.StructType().add("day", "date").add("v", st.VariantType()), "returns v as variant"),
        *(
            (st.StructType().add("day", "date").add("a", kind), "returns a as timestamp_ntz")
            for kind in (
                st.ArrayType(st.TimestampNTZType()),
                st.MapType(st.TimestampNTZType(), st.StringType()),
                st.MapType(st.StringType(), st.TimestampNTZType()),
            )
        ),
        (st.StructType().add("day", "date").add("Day", "date"), "column day twice"),
        *(
            (inner, "m:f: the column .* has a name that cannot be: .*; give it an alias$")
            for name in ("count(1)", "a b", "", "a\0b")
            for inner in (
                st.StructType().add("day", "date").add(name, "long"),
                st.StructType().add("day", "date").add("s", st.StructType().add(name, "long")),
            )
        ),
        (st.StructType().add("day", "date").add("s", st.StructType()), "a structure of nothing"),
    ],
)
def test_what_cannot_be_a_table_is_one_line(schema: st.StructType, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text) as told:
        landed_schema("m:f", schema)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "the batch failed: ValueError"),
        ("[X] boom\nat org.apache", "the batch failed: [X] boom"),
        (
            "An exception was thrown from the Python worker: "
            'Traceback (most recent call last):\n  File "x.py", line 1\n'
            "twisted_msgproto.core.errors.QueueMismatch: it is another queue\n\nat org.x",
            "it is another queue",
        ),
        (
            '[X] worker:\nTraceback (most recent call last):\n  File "x.py", line 1, in f\n'
            "    f()\nOSError: no disk\n\nat org.x",
            "the batch failed: OSError: no disk",
        ),
        (
            "Error from python worker:\n  Traceback (most recent call last):\n"
            '    File "queue.py", line 1, in <module>\n      raise OSError("no disk")\n'
            "  OSError: no disk\nPYTHONPATH was:\n  /a:/b\njava.io.EOFException",
            "the batch failed: OSError: no disk",
        ),
        (
            "An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collect.\n"
            ": org.apache.spark.SparkException: Job aborted due to stage failure: Lost task 1.0 "
            "(executor driver): org.apache.spark.SparkException: Python worker exited\n\tat org.x",
            "the batch failed: Python worker exited",
        ),
        (
            "An error occurred while calling o5.count.\n: org.apache.spark.SparkException: Task "
            "failed: java.net.UnknownHostException: store\n\tat org.x",
            "the batch failed: UnknownHostException: store",
        ),
        (
            "An error occurred while calling o5.count.\n: java.lang.StackOverflowError\n\tat org.x",
            "the batch failed: java.lang.StackOverflowError",
        ),
    ],
)
def test_what_spark_says_about_a_failed_job_is_cut_to_a_line__TB_11(text: str, line: str) -> None:
    with pytest.raises(TableError) as told:
        SparkRunner(Workers(ValueError(text)), Path("/its/log"))(Target("/table"), [])
    assert str(told.value) == f"{line}; Spark's log: /its/log"


# -- with Spark -----------------------------------------------------------------------------------


class Landing:
    """Lands a queue through functions as the bridge does: plan, land, one commit."""

    def __init__(
        self, spark: Any, queue: Path, table: Path | str, storage: dict[str, str] | None = None
    ) -> None:
        self.runner = SparkRunner(spark.sparkContext, Path("spark.log"))
        self.queue = queue
        self.location = table
        self.storage = storage or {}

    def tasks(self, cuts: list[int]) -> list[list[Range]]:
        reader = QueueReader(self.queue)
        end = reader.place(cuts[-1])
        pairs = itertools.pairwise(cuts)
        return [[Range(str(self.queue), reader.queue_id, lo, hi, end)] for lo, hi in pairs]

    def __call__(self, name: str, cuts: list[int]) -> tuple[LandedRanges, Table]:
        transform = Transform(self.runner, name)
        table = Table.open_or_create(self.location, transform.schema, storage=self.storage)
        before = table.landed()
        target = Target(table.location, self.storage, transform.schema, table.partition_by)
        landed = transform(target, self.tasks(cuts))
        gateway = identity(self.queue)
        end = {gateway: Landed(cuts[-1], 1, 1)}
        table.commit(landed.files, end, before={gateway: before.get(gateway)}, run=RUN)
        return landed, table

    def rows(self) -> list[dict[str, Any]]:
        import deltalake

        table = deltalake.DeltaTable(str(self.location), storage_options=self.storage)
        rows: list[dict[str, Any]] = table.to_pyarrow_table().sort_by("offset").to_pylist()
        return rows


@pytest.fixture
def landing(spark: Any, queue: Path, tmp_path: Path) -> Landing:
    return Landing(spark, queue, tmp_path / "table")


@pytest.mark.slow
@pytest.mark.xdist_group("spark")
class TestWithSpark:
    def test_rows_land_once_with_the_commit_and_batch_after_batch(
        self, landing: Landing, module: str, queue: Path
    ) -> None:
        landed, table = landing(f"{module}:same", [0, 400, 800])
        assert landed.rows == {identity(queue): 800} and landed.dropped == 0
        assert table.landed()[identity(queue)].offset == 800
        landing(f"{module}:same", [800, 1500])
        rows = landing.rows()
        assert [row["offset"] for row in rows] == list(range(1500))
        assert rows[77]["body"] == b'{"n":77}' and rows[77]["day"] == rows[77]["received_at"].date()

    def test_rows_which_the_function_leaves_out_are_counted_in_an_object_store_too(
        self, spark: Any, module: str, queue: Path, s3: Store
    ) -> None:
        landing = Landing(spark, queue, s3.new_location(), s3.options)
        landed, _ = landing(f"{module}:even", [0, 700, 1500])
        assert (landed.rows, landed.dropped) == ({identity(queue): 1500}, 750)
        rows = landing.rows()
        assert rows[0].keys() == {"gateway", "offset", "received_at", "day"}
        assert [row["offset"] for row in rows] == list(range(0, 1500, 2))

    @pytest.mark.parametrize("name", ["with_python", "own_day"])
    def test_a_function_may_do_what_spark_can(
        self, landing: Landing, module: str, name: str
    ) -> None:
        landing(f"{module}:{name}", [0, 700, 1500])
        rows = landing.rows()
        assert [row["offset"] for row in rows] == list(range(1500))
        if name == "with_python":
            assert rows[3]["loud"] == '{"N":3}'
        if name == "own_day":
            assert [row["day"] for row in rows[699:701]] == [dt.date(2026, 1, n) for n in (1, 2)]

    def test_a_column_may_have_any_name_that_delta_knows(
        self, landing: Landing, module: str
    ) -> None:
        landing(f"{module}:named", [0, 1500])
        for row in landing.rows():
            names = row.keys() - {"gateway", "offset", "received_at", "day", "s"}
            assert names == row["s"].keys() and len(names) == 8
            assert {row[name] for name in names} == {row["offset"]}

    def test_a_function_which_needs_only_some_rows_ends_the_batch_all_the_same(
        self, landing: Landing, module: str
    ) -> None:
        landed, _ = landing(f"{module}:limited", [0, 700, 1500])
        assert landed.dropped == 1490
        assert [row["offset"] for row in landing.rows()] == list(range(10))

    def test_damage_is_told_by_the_reads_and_is_not_dropped_rows(
        self, landing: Landing, module: str, queue: Path
    ) -> None:
        damage_record(queue, b'{"n":777}')
        landed, _ = landing(f"{module}:shuffled", [0, 700, 1500])
        assert [row["offset"] for row in landing.rows()] == [*range(600), *range(900, 1500)]
        assert landed.damaged == {identity(queue): [(600, 700), (700, 900)]} or landed.damaged == {
            identity(queue): [(600, 900), (600, 900)]
        }
        assert landed.rows == {identity(queue): 1200} and landed.dropped == 0

    def test_a_function_which_cannot_be_called_is_one_line_at_the_start(
        self, landing: Landing, module: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Spark wants pandas for functions over Arrow; the extra ``spark`` does not bring it."""

        def refused(name: str) -> str:
            with pytest.raises(ConfigurationError) as caught:
                landing(f"{module}:{name}", [0, 1500])
            assert "\n" not in str(caught.value)
            return str(caught.value)

        assert refused("raises").endswith("raises failed: ValueError: no such thing")
        assert "returns_rows returned list, not a DataFrame" in refused("returns_rows")
        monkeypatch.setitem(sys.modules, "pandas", None)
        assert "a transform needs pandas" in refused("same")

    @pytest.mark.parametrize(
        ("name", "by_row", "text"),
        [
            ("raises_in_a_task", True, "ZeroDivisionError: integer division or modulo by zero"),
            ("of_sql", True, "[CAST_INVALID_INPUT] The value 'x' of the type"),
            ("of_arrow", True, "AssertionError"),
            ("too_late", True, "a row of the result has no day, which the table needs"),
            ("on_the_driver", True, "NotThere: 700"),
            ("across", False, "[DIVIDE_BY_ZERO] Division by zero"),
            ("memory", None, "MemoryError: no more"),
            ("disk", None, "OSError: [Errno 28] No space left on device"),
            ("crash", None, "m:crash: the batch failed: "),
            ("other_columns", None, "'n' was int32 and is string"),
            ("fewer_columns", None, "'body' was binary and is not there"),
            ("no_time", None, "must return received_at (a timestamp) or day (a date)"),
        ],
    )
    def test_what_a_function_raises_is_told_from_what_is_not_its_fault(
        self,
        landing: Landing,
        module: str,
        name: str,
        by_row: bool | None,
        text: str,
        capfd: pytest.CaptureFixture[str],
    ) -> None:
        with pytest.raises(TableError) as caught:
            landing(f"{module}:{name}", [0, 1500])
        told = str(caught.value).replace(module, "m")
        assert text in told and "\n" not in told and f"m:{name}" in told
        assert getattr(caught.value, "by_row", None) is by_row
        assert "QueryContextLogger" not in capfd.readouterr().err
        assert not list(Path(landing.location).rglob("*.parquet"))
        assert Table.open(landing.location).landed() == {}

    @pytest.mark.parametrize(
        ("name", "expected"),
        [
            *((name, True) for name in ("same", "even", "with_python", "of_view", "joined")),
            *((name, True) for name in ("shuffled", "twice", "of_arrow")),
            *((name, False) for name in ("limited", "counted", "once", "of_most", "across")),
            *((name, False) for name in ("joined_right", "with_itself")),
        ],
    )
    def test_whether_a_function_looks_across_rows(
        self, landing: Landing, module: str, spark: Any, name: str, expected: bool
    ) -> None:
        from twisted_msgproto.spark.source import spark_schema
        from twisted_msgproto.spark.transform import by_row

        result = load_function(f"{module}:{name}")(spark.createDataFrame([], spark_schema()))
        assert by_row(result._jdf.queryExecution().analyzed()) is expected

    def test_a_function_that_returns_more_rows_lands_them(
        self, landing: Landing, module: str
    ) -> None:
        landed, _ = landing(f"{module}:twice", [0, 700, 1500])
        assert landed.dropped == 0 and len(landing.rows()) == 3000

    def test_functions_of_two_tables_do_not_see_each_others_views(
        self, landing: Landing, module: str, spark: Any, queue: Path, tmp_path: Path
    ) -> None:
        """A table got another one's rows in the place of its own, and moved on."""
        beside = Landing(spark, queue, tmp_path / "beside")
        other = threading.Thread(target=beside, args=[f"{module}:by_turns", [0, 1000]])

        def meanwhile() -> None:
            other.start()
            other.join(VIEW_SECONDS)

        load_function(f"{module}:by_turns")
        sys.modules[module].turns.extend([meanwhile, lambda: None])
        landing(f"{module}:by_turns", [0, 700])
        other.join()
        assert [row["offset"] for row in landing.rows()] == list(range(700))
        assert [row["offset"] for row in beside.rows()] == list(range(1000))

    def test_a_gateway_which_cannot_be_read_is_named_and_nothing_lands(
        self, landing: Landing, module: str, queue: Path
    ) -> None:
        transform = Transform(landing.runner, f"{module}:same")
        table = Table.open_or_create(landing.location, transform.schema)
        target = Target(table.location, {}, transform.schema, table.partition_by)
        proven = landing.tasks([0, 700])
        other = Range(str(queue), "another", 0, 10, Landed(10))
        landed = transform(target, [*proven, [other]])
        assert list(landed.failed) == ["another"] and landed.failed["another"].mismatch
        assert landed.files == []

    def test_example_json_columns(self, spark: Any, tmp_path: Path) -> None:
        queue = tmp_path / "logs"
        line = b'{"@timestamp": "2026-01-31T12:00:00Z", "level": "warn", "status": 503, '
        line += b'"duration_ms": 1.5, "host": {"name": "web1"}, "message": "slow"}'
        write(queue, messages(0, 3, body=[line, b"plain text", b'{"status": "many"}']))
        landing = Landing(spark, queue, tmp_path / "table")
        landing("examples.transforms.json_columns:typed", [0, 3])
        first, second, third = landing.rows()
        assert first["logged_at"] == dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)
        assert (first["level"], first["status"], first["host"]) == ("warn", 503, "web1")
        assert (first["json_error"], first["body"]) == (None, None)
        assert (second["json_error"], second["body"]) == ("the body is not JSON", b"plain text")
        assert third["status"] is None and third["body"] == b'{"status": "many"}'

    def test_example_masking(self, spark: Any, tmp_path: Path) -> None:
        queue = tmp_path / "mails"
        write(
            queue,
            messages(
                0,
                3,
                protocol="mtl",
                kind="content",
                peer="tcp:192.168.7.21:5000",
                destination=["a", "health", None],
                fields=[{"from": "jo@example.org"}, None, None],
                body=[b"from jo.doe@mail.example.org at 10.1.2.3", b"ok", b"\xff\xfe"],
            ),
        )
        landing = Landing(spark, queue, tmp_path / "table")
        landed, _ = landing("examples.transforms.masking:masked", [0, 3])
        assert landed.dropped == 1
        first, third = landing.rows()
        assert first["body"] == b"from <mail> at 10.1.2.0"
        assert first["fields"] == [("from", "<mail>")]
        assert first["peer"] == "tcp:192.168.7.0:5000"
        assert (third["offset"], third["body"], third["masked"]) == (2, None, "dropped")


@pytest.mark.slow
@pytest.mark.xdist_group("bridges")
class TestBridge:
    """The whole command, as an operator runs it."""

    def test_what_a_function_rejects_is_in_one_of_both_over_a_kill_and_a_slow_one_is_ended(
        self, launch: Launcher, module: str, tmp_path: Path
    ) -> None:
        """Its table has the properties of the file before the first batch; the kill is between its
        commit and the dead letters, which the page of a gateway tells of.
        """
        few, table, dead = tmp_path / "few", tmp_path / "table", tmp_path / "dead"
        write(few, messages(0, 8))
        with open(tmp_path / f"{module}.py", "a") as code:
            code.write('text = sf.udf(str, "string")\n')  # this needs a session
        (tmp_path / "bridge.toml").write_text(
            'queue = "few"\nmaster = "local[1]"\nmax_rows = 7\n[[table]]\nlocation = "table"\n'
            f'transform = "{module}:hesitant"\ndead_letters = "dead"\n'
            'properties = { "delta.appendOnly" = "false", "owner" = "night" }\n'
        )
        words, env = ("bridge", "--config", "bridge.toml"), environment(pandas=True)
        day = dt.datetime.fromtimestamp(messages(0, 1).received_at / 1e6, dt.UTC).date()
        dead.mkdir()
        for one in (day, day + dt.timedelta(1)):  # dead letters cannot be written
            (dead / f"day={one}").write_text("")
        killed = launch(*words, env=env)
        killed.line(r"bridge: the table .*dead cannot be written", seconds=START_SECONDS)
        killed.kill()
        opened = Table.open(table)
        place = opened.landed()[identity(few)].offset
        assert place == 7 and set(QueueReader(few).consumers().values()) == {0}
        assert opened.properties["owner"] == "night"
        assert Table.open(dead).landed() == {}
        for path in dead.glob("day=*"):
            path.unlink()
        (dead / "_delta_log" / f"{1:020}.json").write_text("{")

        write(few, messages(8, 4))
        gateway = launch(
            *("lumberjack", f"--endpoint={LOOPBACK}", f"--queue={few}", f"--status={LOOPBACK}"),
            module="twisted",
        )
        page = gateway.address("status").removeprefix("tcp:")
        running = launch(*words, env=env)
        running.line(r"bridge: .*dead: version 1 is empty now", seconds=START_SECONDS)
        running.line(r"rejected 1 rows .*\(offsets 10\).*not this one", seconds=START_SECONDS)
        # Each of the workers that the function ended left its place to one with all imports.
        workers = [command_of(pid) for pid in descendants(running.pid)]
        assert any("-m twisted_msgproto.spark.transform" in each for each in workers), workers
        while (bridges := shown(page))[0]["rejected_rows"] != 1:
            assert running.process.poll() is None, (bridges, running.output)
            time.sleep(0.1)
        assert [one["table"] for one in bridges] == [str(table)]
        found = re.search(
            r"(?m)^msgproto_bridge_rejected_rows\w*{(.*)} 1.0$", asked(page, "/metrics")
        )
        assert found and f'table="{table}"' in found[1]
        gateway.end()
        write(few, messages(12, 4))
        while not (tmp_path / "waits").exists():
            assert running.process.poll() is None, running.output
            time.sleep(0.01)
        assert running.end(seconds=START_SECONDS) == 0, running.output
        report = verify(Table.open(table), {identity(few): QueueReader(few)})
        counted = report.gateways[identity(few)]
        assert report.intact and (counted.rows, counted.rejected) == (10, 2)
        assert set(QueueReader(few).consumers().values()) == {12}
        assert landed_offsets(dead) == {identity(few): [6, 10]}
        assert landed_offsets(table) == {identity(few): [n for n in range(12) if n not in (6, 10)]}
