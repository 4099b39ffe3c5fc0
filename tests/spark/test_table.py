"""A landed table is what its log says, whatever else lies in its directory; a sink's table too."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import write_deltalake

from tests.tools.sink_tables import SinkTable
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


def test_a_sinks_table_is_what_its_log_names(tmp_path: Path) -> None:
    """By this other tests count rows of people's own streams."""
    sink = Sink(tmp_path / "tab le%20ü")
    taken_back = sink.file("back", rows("g", 0, 10))
    sink.commit(0, sink.file("a", rows("g", 0, 10)), sink.file("b", rows("g", 12, 20, "sabc")))
    sink.commit(1, sink.file("c", rows("h", 0, 5)), compact=True)
    (sink.log / "0").unlink()
    sink.commit(2, sink.file("d", rows("g", 18, 22)), taken_back)
    delete = json.dumps({"path": taken_back.as_uri(), "action": "delete"})
    (sink.log / "3").write_text(f"v1\n{delete}")
    sink.file("orphan", rows("g", 0, 10))
    for name in (".1.crc", "1.tmp", "2."):
        (sink.log / name).touch()
    table = SinkTable(sink.directory.rename(tmp_path / "elsewhere"))
    assert table.counts() == {"sabc": 8, "umq": 19}
    assert table.offsets() == {"g": [(0, 10), (12, 22)], "h": [(0, 5)]}
    assert table.duplicates() == [("g", 18, 2), ("g", 19, 2)]
