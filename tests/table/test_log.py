from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.tools.tables import RUN, TABLE_SCHEMA, data_file, land
from twisted_msgproto.core.errors import Overtaken, TableError
from twisted_msgproto.queue.lineage import Landed
from twisted_msgproto.table.actions import Run
from twisted_msgproto.table.log import Table


def test_a_new_table_is_empty_and_every_reader_knows_it(table: Table) -> None:
    assert (table.version, table.landed(), table.files()) == (0, {}, [])
    assert table.schema.names == TABLE_SCHEMA.names
    assert table.partition_by == ("day",)
    delta = DeltaTable(table.location)
    assert str(delta.metadata().id) == table.table_id
    assert (delta.protocol().min_reader_version, delta.protocol().min_writer_version) == (1, 2)
    assert delta.metadata().configuration["delta.logRetentionDuration"] == "interval 6 hours"


def test_a_second_table_is_not_made_over_the_first(table: Table) -> None:
    with pytest.raises(TableError, match="is a table already"):
        Table.create(table.location, TABLE_SCHEMA)
    assert Table.open_or_create(table.location, TABLE_SCHEMA).table_id == table.table_id


def test_rows_and_how_far_they_go_are_one_version(table: Table) -> None:
    assert land(table, "a", 10) == 1
    again = Table.open(table.location)
    assert again.landed() == table.landed() == {"a": Landed(10, 5, 7)}
    assert again.files() == table.files()
    delta = DeltaTable(table.location)
    assert delta.transaction_version("msgproto:a") == 10
    assert delta.to_pyarrow_table().num_rows == 10


def test_a_writer_of_the_same_gateway_is_overtaken_and_named(table: Table) -> None:
    other = Table.open(table.location)
    land(other, "a", 10, Run("0ther", "elsewhere", 4711))
    with pytest.raises(Overtaken, match=r"process 4711 on elsewhere") as refused:
        table.commit([], {"a": Landed(5)}, before={"a": None}, run=RUN)
    assert (refused.value.host, refused.value.pid) == ("elsewhere", 4711)
    assert refused.value.run == "0ther"


def test_writers_of_different_gateways_pass_each_other(table: Table) -> None:
    other = Table.open(table.location)
    assert land(other, "a", 10) == 1
    assert land(table, "b", 20) == 2
    assert table.landed() == {"a": Landed(10, 5, 7), "b": Landed(20, 5, 7)}


def test_a_location_without_a_table_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(TableError, match=r"is not a table: it has no _delta_log"):
        Table.open(tmp_path)


def test_compaction_takes_files_out_and_puts_others_in(table: Table) -> None:
    land(table, "a", 5)
    land(table, "a", 10)
    whole = data_file(Path(table.location), "a", 0, 10)
    table.replace(table.files(), [whole], run=RUN)
    assert table.files() == [whole]
    assert table.landed() == {"a": Landed(10, 5, 7)}
    assert DeltaTable(table.location).to_pyarrow_table().num_rows == 10
