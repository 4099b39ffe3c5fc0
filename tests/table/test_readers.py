"""A landed table is read by everybody: exact rows, with a filter on each column, disk and S3.

Spark reads it without its Delta package, pyarrow, polars, pandas and duckdb by their own ways.
What every reader has to find is computed here by plain Python from the rows which were landed.
"""

from __future__ import annotations

import datetime as dt
import operator
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import reduce
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.spark.conftest import data_source
from tests.tools.s3 import Store
from tests.tools.tables import rows_of
from twisted_msgproto.queue import SCHEMA, Landed
from twisted_msgproto.table.actions import Run
from twisted_msgproto.table.delta_table import Table
from twisted_msgproto.table.landing import Files, Target
from twisted_msgproto.table.object_storage import storage_at

deltalake = pytest.importorskip("deltalake")

DAY = pa.field("day", pa.date32(), nullable=False)

RUN = Run("5eed", "here", 17)
GATEWAYS = ["1e5", "007", "a b/c%41=ä"]
"""Queue ids which a reader that guesses types, or does not decode a path, spoils."""

LONG = "s" * 32
"""What is behind this is not in a file's statistics."""

PARTITIONINGS = [("day",), ("protocol", "day")]


def landed_rows() -> list[pa.Table]:
    """Three batches over two days, every column null somewhere and valued elsewhere."""
    batches = []
    for number, gateway in enumerate(GATEWAYS):
        rows = rows_of(gateway, 10 * number, 10 * number + 12)
        count = rows.num_rows
        noon = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)
        changed: dict[str, Sequence[Any]] = {
            "received_at": [noon + dt.timedelta(hours=3 * n + number) for n in range(count)],
            "protocol": [["lumberjack", "umq", "mtl"][n % 3] for n in range(count)],
            "peer": [None if n % 4 == 0 else f"tcp:10.0.0.{n}:5" for n in range(count)],
            "session": [f"{LONG}-{n // 5}" for n in range(count)],
            "client_id": [None if number == 1 else f"ünï{n}" for n in range(count)],
            "kind": [["json", "call", "content"][n % 3] for n in range(count)],
            "message_id": [str(n) if n % 7 == 0 else f"{LONG}\U0010ffff{n}" for n in range(count)],
            "destination": [None if n % 2 else "" if n == 0 else f"d{n}" for n in range(count)],
            "fields": [None if n % 3 else [("k", str(n)), ("l", "")] for n in range(count)],
            "body": [None if n == 5 else b"\xff%d" % n for n in range(count)],
            "attachments": [[b"\0", b""] if n % 3 == 1 else None for n in range(count)],
            "truncated": [n == 7 for n in range(count)],
        }
        for name, values in changed.items():
            field = rows.schema.field(name)
            index = rows.schema.get_field_index(name)
            rows = rows.set_column(index, field, pa.array(values, field.type))
        batches.append(rows)
    return batches


class Place(NamedTuple):
    """Where a table stands, and what opens it."""

    location: str
    storage: dict[str, str]


def make_table(place: Place, partition_by: tuple[str, ...]) -> list[dict[str, Any]]:
    """Lands the rows in three commits; the rows, in order, as Python sees them."""
    batches = landed_rows()
    schema = batches[0].schema.append(DAY)
    for number, rows in enumerate(batches):
        table = Table.open_or_create(place.location, schema, partition_by, place.storage)
        target = Target(table.location, place.storage, schema, partition_by)
        files = Files(target, storage_at(place.location, place.storage))
        for batch in rows.to_batches():
            files.write(batch)
        gateway = GATEWAYS[number]
        table.commit(files.finish(), {gateway: Landed(99, 1, 1)}, before={}, run=RUN)
    found = []
    for rows in batches:
        for row in rows.to_pylist():
            fields = row["fields"]
            plain = {**row, "fields": None if fields is None else dict(fields)}
            found.append({**plain, "day": row["received_at"].date()})
    return found


HOW: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
}


class Asked(NamedTuple):
    """One filter, in the words of each reader; ``kept`` is what it means."""

    column: str
    how: str
    value: Any = None
    """None where rows without a value are asked for, or those with one."""

    def kept(self, found: Any) -> bool:
        if self.value is None:
            return (found is None) == (self.how == "IS NULL")
        return found is not None and HOW[self.how](found, self.value)

    def of(self, column: Any) -> Any:
        """As pyarrow and polars have it."""
        if self.value is None:
            return column.is_null() if self.how == "IS NULL" else ~column.is_null()
        return HOW[self.how](column, self.value)

    @property
    def sql(self) -> str:
        kind = {dt.datetime: "TIMESTAMPTZ", dt.date: "DATE"}.get(type(self.value), "")
        value = self.value if isinstance(self.value, (bool, int)) else f"{kind} '{self.value}'"
        return f'"{self.column}" {self.how} {"" if self.value is None else value}'


ASKED = [
    Asked("gateway", "=", "1e5"),
    Asked("offset", ">=", 20),
    Asked("received_at", "<", dt.datetime(2026, 2, 1, 5, tzinfo=dt.UTC)),
    Asked("protocol", "=", "umq"),
    Asked("peer", "IS NULL"),
    Asked("session", "<>", f"{LONG}-1"),
    Asked("client_id", "=", "ünï3"),
    Asked("kind", "<>", "content"),
    Asked("message_id", "=", "7"),
    Asked("destination", "=", ""),
    Asked("fields", "IS NOT NULL"),
    Asked("body", "IS NULL"),
    Asked("attachments", "IS NULL"),
    Asked("truncated", "=", True),
    Asked("day", ">", dt.date(2026, 1, 31)),
]
"""A filter on each column of the table."""


PLAIN = [field.name for field in SCHEMA if not pa.types.is_nested(field.type)]


def asked_of(place: Place, rows: list[dict[str, Any]]) -> Iterator[Asked]:
    """With every comparison of each plain column with some of its values; of a table on a disk,
    since statistics are the same in a store.
    """
    yield from ASKED
    for name in PLAIN if not place.storage else ():
        values = sorted({row[name] for row in rows} - {None})
        for value in (values[0], values[-1]):
            yield from (Asked(name, how, value) for how in HOW)


def expected(rows: list[dict[str, Any]], asked: Asked) -> list[tuple[str, int]]:
    return sorted(key(row) for row in rows if asked.kept(row[asked.column]))


def key(row: dict[str, Any]) -> tuple[str, int]:
    return row["gateway"], row["offset"]


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """A row as ``make_table`` has it, whatever a reader makes of maps, bytes and zones."""
    found = dict(row)
    fields, parts = found["fields"], found["attachments"]
    if isinstance(fields, dict) and set(fields) == {"key", "value"}:  # duckdb
        found["fields"] = dict(zip(fields["key"], fields["value"], strict=True))
    elif fields is not None and not isinstance(fields, dict):
        pairs = [tuple(f.values()) if isinstance(f, dict) else tuple(f) for f in fields]
        found["fields"] = dict(pairs)
    found["attachments"] = None if parts is None else [bytes(part) for part in parts]
    found["body"] = None if found["body"] is None else bytes(found["body"])
    time = found["received_at"]
    found["received_at"] = time.astimezone(dt.UTC) if time.tzinfo else time.replace(tzinfo=dt.UTC)
    return found


def check_all(rows: list[dict[str, Any]], seen: list[dict[str, Any]]) -> None:
    assert sorted(map(plain, seen), key=key) == sorted(rows, key=key)


def open_delta(place: Place) -> Any:
    return deltalake.DeltaTable(place.location, storage_options=place.storage or None)


TABLES = [
    pytest.param(("s3", PARTITIONINGS[0]), id="s3-day", marks=pytest.mark.slow),
    pytest.param(("disk", PARTITIONINGS[1]), id="disk-protocol-day"),
]
"""Each storage and each partitioning once."""


@pytest.fixture(scope="module", params=TABLES)
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Place, list[dict[str, Any]]]:
    """A table that tests read and leave as it is: each is landed once for all readers.

    S3 is a server on loopback, which is a process of its own.
    """
    storage, partition_by = request.param
    place = Place(str(tmp_path_factory.mktemp("landed") / "table"), {})
    if storage == "s3":
        pytest.importorskip("moto.server", reason="pip install 'moto[s3]' flask flask-cors")
        store: Store = request.getfixturevalue("s3")
        place = Place(store.new_location(), store.options)
    return place, make_table(place, partition_by)


@pytest.fixture
def place(made: tuple[Place, list[dict[str, Any]]]) -> Place:
    return made[0]


@pytest.fixture
def rows(made: tuple[Place, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return made[1]


def test_pyarrow_reads_it(place: Place, rows: list[dict[str, Any]]) -> None:
    dataset = open_delta(place).to_pyarrow_dataset()
    check_all(rows, dataset.to_table().to_pylist())
    for asked in asked_of(place, rows):
        chosen = asked.of(pc.field(asked.column))
        seen = dataset.to_table(columns=["gateway", "offset"], filter=chosen)
        assert sorted(map(key, seen.to_pylist())) == expected(rows, asked), asked


def test_duckdb_reads_it_over_pyarrow(place: Place, rows: list[dict[str, Any]]) -> None:
    duckdb = pytest.importorskip("duckdb", reason="pip install duckdb")
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    connection.register("landed", open_delta(place).to_pyarrow_dataset())
    result = connection.execute("SELECT * FROM landed").to_arrow_table()
    check_all(rows, result.to_pylist())
    for asked in ASKED:
        query = f'SELECT gateway, "offset" FROM landed WHERE {asked.sql}'
        assert sorted(connection.execute(query).fetchall()) == expected(rows, asked), asked.column


def test_polars_reads_it(place: Place, rows: list[dict[str, Any]]) -> None:
    polars = pytest.importorskip("polars", reason="pip install polars")
    frame = polars.scan_delta(place.location, storage_options=place.storage or None)
    seen = frame.collect().to_dicts()
    check_all(rows, seen)
    for asked in asked_of(place, rows):
        chosen = frame.filter(asked.of(polars.col(asked.column)))
        found = chosen.select("gateway", "offset").collect()
        assert sorted(found.rows()) == expected(rows, asked), asked


def test_pandas_reads_it(place: Place, rows: list[dict[str, Any]]) -> None:
    pytest.importorskip("pandas", reason="pip install pandas")
    frame = open_delta(place).to_pandas(types_mapper=pandas_type)
    assert sorted(zip(frame.gateway, frame.offset, strict=True)) == sorted(map(key, rows))


def pandas_type(kind: pa.DataType) -> Any:
    """Arrow's own types in pandas, so that bytes and null stay what they are."""
    import pandas as pd

    return pd.ArrowDtype(kind)


@pytest.mark.slow
@pytest.mark.xdist_group("spark")
class TestSpark:
    """Spark without its Delta package."""

    def load(self, spark: Any, place: Place, **options: str) -> Any:
        storage = {f"storage.{name}": value for name, value in place.storage.items()}
        reader = spark.read.format("msgproto-table").options(**storage, **options)
        return reader.load(place.location)

    def check(self, frame: Any, rows: list[dict[str, Any]]) -> None:
        check_all(rows, frame.toArrow().to_pylist())
        self.check_filters(lambda: frame, rows)

    def check_filters(self, made: Callable[[], Any], rows: list[dict[str, Any]]) -> None:
        """Each filter has a scan of its own; all are one query, which Spark plans once."""
        from pyspark.sql.functions import lit

        scans = []
        for asked in ASKED:
            words = asked.sql.replace('"', "`").replace("TIMESTAMPTZ", "TIMESTAMP")
            name = lit(asked.column).alias("asked")
            scans.append(made().where(words).select(name, "gateway", "offset"))
        seen = reduce(lambda one, other: one.union(other), scans).collect()
        for asked in ASKED:
            found = [(row.gateway, row.offset) for row in seen if row.asked == asked.column]
            assert sorted(found) == expected(rows, asked), asked.column

    def test_the_table_source_reads_it(
        self, spark: Any, place: Place, rows: list[dict[str, Any]]
    ) -> None:
        frame = self.load(spark, place)
        assert frame.schema["gateway"].dataType.simpleString() == "string"
        assert frame.schema["day"].dataType.simpleString() == "date"
        check_all(rows, frame.toArrow().to_pylist())
        # For one filter a frame, Spark's filters can be used where files are read.
        self.check_filters(lambda: self.load(spark, place, pushFilters="true"), rows)

    def test_a_frame_which_was_queried_with_a_filter_still_has_every_row(
        self, spark: Any, tmp_path: Path
    ) -> None:
        """Spark keeps the filters which it once gave to a source: it may not be given any."""
        place = Place(str(tmp_path / "table"), {})
        rows = make_table(place, ("day",))
        frame = self.load(spark, place)
        assert frame.where("offset < 1").count() < len(rows)
        assert frame.count() == len(rows)

    def test_sparks_own_parquet_reader_reads_it_whatever_its_name__RD_11(
        self, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Two scans make a frame: the tables have 6 and 18 files.

        RD-11: Spark took names for patterns, and a blank for "%20", then a URL's for a name.
        """
        from twisted_msgproto.spark import read_table, table_source

        for partition_by, files in zip(PARTITIONINGS, (4, 12), strict=True):
            monkeypatch.setattr(table_source, "FILES_MAX", files)
            place = Place(str(tmp_path / f"é #%?&='\";,[x]*{{2}} {'-'.join(partition_by)}"), {})
            rows = make_table(place, partition_by)
            assert files < len(open_delta(place).file_uris()) < 2 * files
            for location in (place.location, Path(place.location).as_uri()):
                self.check(read_table(spark, location), rows)

    def test_an_older_version_and_some_columns(self, spark: Any, tmp_path: Path) -> None:
        from twisted_msgproto.spark import read_table

        place = Place(str(tmp_path / "table"), {})
        rows = make_table(place, ("day",))
        first = [row for row in rows if row["gateway"] == GATEWAYS[0]]
        old = self.load(spark, place, versionAsOf="1")
        assert sorted(map(key, (row.asDict() for row in old.collect()))) == sorted(map(key, first))
        assert read_table(spark, place.location, version=1).count() == len(first)
        narrow = self.load(spark, place, columns="offset, day,gateway")
        assert narrow.columns == ["offset", "day", "gateway"]
        assert sorted((r.gateway, r.offset) for r in narrow.collect()) == sorted(map(key, rows))
        empty = self.load(spark, place, versionAsOf="0")
        assert empty.count() == 0 and empty.columns == old.columns
        assert read_table(spark, place.location, version=0).count() == 0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "needs a table"),
        ({"path": "/nowhere/at/all"}, "there is no table at /nowhere/at/all"),
        ({"path": "/dev/null"}, "the table /dev/null cannot be opened: "),
        ({"path": "TABLE", "versionAsOf": "x"}, "versionAsOf is a version"),
        ({"path": "TABLE", "versionAsOf": "9"}, "the table .* has no version 9: its newest is "),
        ({"path": "TABLE", "versionAsOf": "0"}, "cannot be read as of 0: its log begins later"),
        ({"path": "TABLE", "timestampAsOf": "1"}, "as of 1970-01-01 .*: its log begins later"),
        ({"path": "TABLE", "timestampAsOf": "1790000000000000"}, "AsOf is milliseconds since 1970"),
        ({"path": "TABLE", "versionAsO": "1"}, "no option versionAsO; did you mean versionAsOf"),
        ({"path": "TABLE", "columns": "gateway,nosuch"}, "has no column nosuch"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path: Path, options: dict[str, str], text: str) -> None:
    pytest.importorskip("pyspark")
    from twisted_msgproto.core.errors import ConfigurationError

    table = tmp_path / "table"
    make_table(Place(str(table), {}), ("day",))
    open_delta(Place(str(table), {})).create_checkpoint()
    for log in sorted((table / "_delta_log").glob("*.json"))[:-1]:
        log.unlink()  # as the log's cleanup does
    given = {name: value.replace("TABLE", str(table)) for name, value in options.items()}
    with pytest.raises(ConfigurationError, match=text) as caught:
        data_source("msgproto-table", **given).schema()
    assert "\n" not in str(caught.value)


def test_a_stream_of_a_table_is_refused_in_words(tmp_path: Path) -> None:
    """Spark itself said that a local variable of its own has no value."""
    pytest.importorskip("pyspark")
    from twisted_msgproto.core.errors import ConfigurationError

    with pytest.raises(ConfigurationError, match="stream the queue"):
        data_source("msgproto-table", path=tmp_path).streamReader(None)


def test_partitions_and_statistics_choose_the_files(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    from pyspark.sql import datasource as sql

    table = tmp_path / "table"
    for rows in landed_rows():
        whole = rows.append_column(DAY, rows.column("received_at").cast(pa.date32()))
        deltalake.write_deltalake(str(table), whole, mode="append", partition_by=["day"])
    files = len(open_delta(Place(str(table), {})).file_uris())
    for version, log in enumerate(sorted((table / "_delta_log").glob("*.json"))):
        os.utime(log, ns=(0, version * 1_000_000_000 + 999_000))  # history tells milliseconds

    def planned(*filters: Any, **options: Any) -> int:
        source = data_source("msgproto-table", path=table, pushFilters=True, **options)
        reader = source.reader(source.schema())
        assert list(reader.pushFilters(list(filters))) == list(filters)
        return sum(len(part.value) for part in reader.partitions())

    assert planned() == planned(versionAsOf=2) == planned(timestampAsOf=2000) == files == 6
    assert planned(versionAsOf=0) == planned(timestampAsOf=999) == 2
    assert planned(sql.EqualTo(("day",), dt.date(2026, 1, 31))) == 3
    assert planned(sql.EqualTo(("gateway",), "1e5")) == 2
    assert planned(sql.GreaterThan(("offset",), 31)) == 0
    assert planned(sql.EqualTo(("fields",), {"k": "1"})) == files


def test_files_are_shared_among_tasks_by_their_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_table(Place(str(tmp_path / "table"), {}), ("protocol", "day"))
    monkeypatch.setattr("twisted_msgproto.spark.table_source.TASK_BYTES_MIN", 1)
    source = data_source("msgproto-table", path=tmp_path / "table", numPartitions=4)
    groups = [part.value for part in source.reader(source.schema()).partitions()]
    paths = [file.path for group in groups for file in group]
    assert len(groups) in (4, 5) and len(paths) == 18 and paths == sorted(set(paths))
    assert max(map(len, groups)) <= 6
    monkeypatch.undo()
    [whole] = source.reader(source.schema()).partitions()
    assert len(whole.value) == 18


UTC = dt.UTC

EXTREMES: Mapping[pa.DataType, Sequence[Any]] = {
    pa.timestamp("us", "UTC"): [
        dt.datetime(1, 1, 1, tzinfo=UTC),  # Go's zero
        dt.datetime(999, 5, 5, 1, 2, 3, 500_000, tzinfo=UTC),
        dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        dt.datetime(2026, 1, 31, tzinfo=UTC),
        dt.datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    ],
    pa.date32(): [dt.date(1, 1, 1), dt.date(999, 5, 5), dt.date(1969, 12, 31), dt.date.max],
    pa.int64(): [-(1 << 63), -1, 0, (1 << 53) + 1, (1 << 63) - 1],
    pa.float64(): [-1.7976931348623157e308, -0.0, 5e-324, 0.1, 1.7976931348623157e308],
    pa.string(): ["", "\0", "ä" * 40, "\ue000", "\U0010ffff" * 33],
    pa.decimal128(38, 2): [Decimal("-" + "9" * 36 + ".99"), Decimal("0.00"), Decimal("0.01")],
    pa.bool_(): [False, True],
}


@pytest.mark.parametrize("kind", EXTREMES, ids=str)
def test_a_reader_finds_every_value_of_a_column_however_far(
    tmp_path: Path, kind: pa.DataType
) -> None:
    """Files of one value and of two: what a file's bounds say hides none of them."""
    schema = pa.schema([pa.field("gateway", pa.string()), pa.field("x", kind), DAY])
    table = Table.create(tmp_path, schema)
    files = []
    values = EXTREMES[kind]
    for some in [*combinations(values, 1), *combinations(values, 2)]:
        writer = Files(Target(str(tmp_path), schema=schema), table.storage)
        count = len(some) + 1
        days = pa.array([dt.date(2026, 1, 31)] * count, pa.date32())
        columns = [pa.array(["g"] * count), pa.array([None, *some], kind), days]
        writer.write(pa.RecordBatch.from_arrays(columns, schema=schema))
        files += writer.finish()
    table.commit(files, {"g": Landed(1, 1, 1)}, before={}, run=RUN)
    delta = deltalake.DeltaTable(str(tmp_path))
    for value in values:
        wanted = pa.scalar(value, kind)
        for filter in (
            pc.field("x") == wanted,
            (pc.field("x") >= wanted) & (pc.field("x") <= wanted),
        ):
            found = delta.to_pyarrow_dataset().to_table(filter=filter)
            assert found.num_rows == len(values), value
