from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.tools.tables import RUN, TABLE_SCHEMA, data_file, land
from twisted_msgproto.core.errors import Overtaken
from twisted_msgproto.queue.lineage import Landed
from twisted_msgproto.table import log
from twisted_msgproto.table.actions import Run
from twisted_msgproto.table.local_commit import LocalCommits
from twisted_msgproto.table.log import Table
from twisted_msgproto.table.snapshot import read_version


def test_a_new_table_is_empty_and_every_reader_knows_it(table: Table) -> None:
    assert (table.version, table.landed(), table.files()) == (0, {}, [])
    assert table.schema.names == TABLE_SCHEMA.names
    assert table.partition_by == ("day",)
    delta = DeltaTable(table.location)
    assert str(delta.metadata().id) == table.table_id
    assert (delta.protocol().min_reader_version, delta.protocol().min_writer_version) == (1, 2)
    assert delta.metadata().configuration["delta.logRetentionDuration"] == "interval 6 hours"


def test_rows_and_how_far_they_go_are_one_version(table: Table) -> None:
    assert land(table, "a", 10) == 1
    again = Table.open(table.location)
    assert again.landed() == table.landed() == {"a": Landed(10, 5, 7)}
    assert again.files() == table.files()
    delta = DeltaTable(table.location)
    assert delta.transaction_version("msgproto:a") == 10
    assert delta.to_pyarrow_table().num_rows == 10


def test_two_rewritings_of_one_run_are_two_versions__TB_11(table: Table) -> None:
    """What the run made before is not mistaken for what it is asked for now."""
    land(table, "a", 10)
    once, twice = (data_file(Path(table.location), "a", 0, 10) for _ in range(2))
    assert table.replace(table.files(), [once], run=RUN) == 2
    again = Table.open(table.location)
    assert again.replace([once], [twice], run=RUN) == 3
    assert again.files() == [twice]


def test_a_batch_that_has_landed_is_found_though_its_files_were_written_anew__TB_11(
    table: Table,
) -> None:
    land(table, "a", 10)
    anew = [data_file(Path(table.location), "a", 0, 10)]
    again = Table.open(table.location)
    assert again.commit(anew, {"a": Landed(10, 5, 7)}, before={"a": None}, run=RUN) == 1


def test_a_file_that_another_removed_is_not_rewritten_again__TB_04(table: Table) -> None:
    land(table, "a", 10)
    other = Table.open(table.location)
    files = table.files()
    other.replace(files, [data_file(Path(table.location), "a", 0, 10)], run=RUN)
    with pytest.raises(Overtaken, match=f"removed {files[0].path}"):
        table.replace(files, [], run=Run("0ther", "elsewhere", 4711))


def test_what_a_writer_notes_beside_its_run_is_read_again(table: Table) -> None:
    table.commit([], {"a": Landed(1)}, before={"a": None}, run=RUN, info={"lag": 3})
    table.replace([], [], run=RUN, info={"files": 4})
    assert [read_version(table.storage, n).info for n in (1, 2)] == [{"lag": 3}, {"files": 4}]


def test_an_opened_table_has_no_checkpoint_made_before_one_is_due(table: Table) -> None:
    land(table, "a", 5)
    again = Table.open(table.location)
    again.maintain()
    assert "_last_checkpoint" not in again.storage.log_names()


def test_the_log_is_cleaned_at_most_once_in_its_time(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "CHECKPOINT_EVERY", 1)
    now = [1_700_000_000.0]
    cleaned: list[float] = []
    monkeypatch.setattr(LocalCommits, "clean", lambda *_: cleaned.append(now[0]))
    writer = Table.open(table.location, clock=lambda: now[0])
    start = now[0]
    for offset, seconds in ((1, 0.0), (2, 599.0), (3, 600.0), (4, 601.0)):
        now[0] = start + seconds
        before = writer.landed().get("a")
        writer.commit([], {"a": Landed(offset)}, before={"a": before}, run=RUN)
        writer.maintain()
    assert cleaned == [start + 600.0]
