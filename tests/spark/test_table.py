"""A landed table is what its log says, whatever else lies in its directory; a sink's table too."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from tests.tools.sink_tables import SinkTable, sink_files
from twisted_msgproto.queue import SCHEMA
from twisted_msgproto.spark.table import LandedTable


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


class Sink:
    """Writes a table as Spark's file sink does."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.log = directory / "_spark_metadata"
        self.log.mkdir(parents=True)
        self.entries: list[dict[str, object]] = []

    def file(self, name: str, table: pa.Table) -> Path:
        path = self.directory / name
        pq.write_table(table, path)
        return path

    def commit(self, batch: int, *paths: Path, compact: bool = False) -> None:
        fresh = [{"path": path.as_uri(), "action": "add"} for path in paths]
        self.entries += fresh
        lines = ["v1", *(json.dumps(entry) for entry in (self.entries if compact else fresh))]
        name = f"{batch}.compact" if compact else str(batch)
        (self.log / name).write_text("\n".join(lines))


@pytest.fixture
def sink(tmp_path: Path) -> Sink:
    return Sink(tmp_path / "table")


def test_a_table_that_is_not_there_yet_is_empty(tmp_path: Path) -> None:
    table = LandedTable(tmp_path / "nothing")
    assert (table.dataset(), table.count(), table.counts()) == (None, 0, {})
    assert (table.duplicates(), table.offsets()) == ([], {})
    assert table.read().schema == SCHEMA


def test_a_landed_table_is_what_its_log_names(tmp_path: Path) -> None:
    place = tmp_path / "tab le ü"
    write_deltalake(str(place), rows("g", 0, 10))
    write_deltalake(str(place), rows("g", 12, 20, "sabc"), mode="append")
    write_deltalake(str(place), rows("g", 18, 22), mode="append")
    pq.write_table(rows("g", 0, 10), place / "orphan.parquet")
    table = LandedTable(place)
    assert table.count() == 22
    assert table.counts() == {"sabc": 8, "umq": 14}
    assert table.offsets() == {"g": [(0, 10), (12, 22)]}
    assert table.duplicates() == [("g", 18, 2), ("g", 19, 2)]


# -- the tables of people's own streams -----------------------------------------------------------


def test_only_files_of_the_log_count(sink: Sink) -> None:
    sink.commit(0, sink.file("a.parquet", rows("g", 0, 10)))
    sink.file("orphan.parquet", rows("g", 0, 10))
    (sink.log / ".1.crc").touch()
    (sink.log / "1.tmp").touch()
    (sink.log / "2.").touch()
    table = SinkTable(sink.directory)
    assert table.count() == 10
    assert table.duplicates() == []


def test_counts_offsets_and_duplicates(sink: Sink) -> None:
    sink.commit(0, sink.file("a", rows("g", 0, 10)), sink.file("b", rows("g", 12, 20, "sabc")))
    sink.commit(1, sink.file("c", rows("h", 0, 5)), sink.file("d", rows("g", 18, 22)))
    table = SinkTable(sink.directory)
    assert table.counts() == {"sabc": 8, "umq": 19}
    assert table.offsets() == {"g": [(0, 10), (12, 22)], "h": [(0, 5)]}
    assert table.duplicates() == [("g", 18, 2), ("g", 19, 2)]


def test_a_compacted_log_stands_for_all_before_it(sink: Sink) -> None:
    for batch in range(9):
        sink.commit(batch, sink.file(f"f{batch}", rows("g", batch, batch + 1)))
    sink.commit(9, sink.file("f9", rows("g", 9, 10)), compact=True)
    sink.commit(10, sink.file("f10", rows("g", 10, 11)))
    assert [path.name for path in sink_files(sink.directory)] == [f"f{n}" for n in range(11)]
    for batch in range(9):
        (sink.log / str(batch)).unlink()
    assert SinkTable(sink.directory).offsets() == {"g": [(0, 11)]}


def test_a_file_which_the_log_took_back_does_not_count(sink: Sink) -> None:
    path = sink.file("a", rows("g", 0, 1))
    sink.commit(0, path)
    (sink.log / "1").write_text("v1\n" + json.dumps({"path": path.as_uri(), "action": "delete"}))
    assert sink_files(sink.directory) == []


def test_a_table_which_moved_is_still_read(sink: Sink, tmp_path: Path) -> None:
    sink.commit(0, sink.file("a", rows("g", 0, 3)))
    moved = sink.directory.rename(tmp_path / "elsewhere")
    assert SinkTable(moved).count() == 3


def test_an_odd_name_is_read(tmp_path: Path) -> None:
    sink = Sink(tmp_path / "tab le%20ü")
    sink.commit(0, sink.file("a", rows("g", 0, 3)))
    assert SinkTable(sink.directory).count() == 3


def test_a_log_that_is_none_is_said_in_one_line(sink: Sink) -> None:
    (sink.log / "0").write_text("v9\n")
    with pytest.raises(ValueError, match="not a log of Spark's file sink"):
        SinkTable(sink.directory).files()


def test_a_batch_without_files_is_fine(sink: Sink) -> None:
    sink.commit(0)
    assert SinkTable(sink.directory).count() == 0
