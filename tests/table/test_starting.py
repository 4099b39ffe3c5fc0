"""A start looks before it touches: what does not fit is one line and changes nothing."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.tools.tables import RUN, land
from twisted_msgproto.core.errors import (
    ConfigurationError,
    MsgprotoError,
    RewindNeeded,
    TableChanged,
    TableError,
)
from twisted_msgproto.queue.lineage import Description, Landed
from twisted_msgproto.table.actions import DataFile
from twisted_msgproto.table.disk import OSTableDisk
from twisted_msgproto.table.landing import TABLE_SCHEMA
from twisted_msgproto.table.log import Table
from twisted_msgproto.table.object_commit import ObjectCommits
from twisted_msgproto.table.starting import (
    REWIND,
    check_gateway,
    check_not_moved,
    check_operations,
    check_partitioning,
    consumer_name,
    is_new,
    open_table,
)


def opened(path: Path, partition_by: list[str] | None = None) -> Table:
    return open_table(str(path), None, partition_by, {}, RUN)


def refused(path: Path, partition_by: list[str] | None = None) -> str:
    """The one line; nothing below ``path`` is written."""
    before = sorted(path.rglob("*"))
    with pytest.raises(MsgprotoError) as raised:
        check_operations(opened(path, partition_by))
    assert sorted(path.rglob("*")) == before
    assert "\n" not in str(raised.value)
    return str(raised.value)


def described(begin: int = 0, end: int = 10) -> Description:
    return Description("q", begin, end, Landed(end), 0, None, 0, (), {}, {})


def test_a_table_is_made_and_opened_again(tmp_path: Path) -> None:
    table = opened(tmp_path / "t")
    assert table.schema.names == TABLE_SCHEMA.names
    assert opened(tmp_path / "t").table_id == table.table_id


def test_partitioning_is_what_the_table_has_unless_one_asks_for_another(tmp_path: Path) -> None:
    assert opened(tmp_path / "t", ["protocol", "day"]).partition_by == ("protocol", "day")
    assert opened(tmp_path / "t").partition_by == ("protocol", "day")
    assert "is partitioned by protocol,day, not by day" in refused(tmp_path / "t", ["day"])


@pytest.mark.parametrize("columns", [["hour"], ["day", "day"], ["protocol"], []])
def test_only_some_columns_partition_a_table(columns: list[str]) -> None:
    with pytest.raises(ConfigurationError, match="--partition-by is day or protocol,day"):
        check_partitioning(columns)


def test_a_directory_that_this_user_may_not_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(disk: OSTableDisk, path: str) -> list[str]:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr(OSTableDisk, "names", refuse)
    with pytest.raises(ConfigurationError, match=r"--table .* cannot be read: Permission denied$"):
        is_new(str(tmp_path), {})


OTHER = pa.schema([("day", pa.date32()), ("price", pa.float64())])
NUMBERED = TABLE_SCHEMA.set(
    TABLE_SCHEMA.get_field_index("message_id"), pa.field("message_id", pa.int64())
)
OWNED = TABLE_SCHEMA.append(pa.field("owner", pa.string(), nullable=False))


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (OTHER, "has no column 'gateway'"),
        (NUMBERED, "'message_id' .* is of type int64, not string"),
        (OWNED, "'owner' which must not be null"),
    ],
)
def test_a_table_of_other_columns_is_refused(tmp_path: Path, schema: pa.Schema, text: str) -> None:
    write_deltalake(str(tmp_path / "t"), schema.empty_table(), partition_by=["day"])
    assert re.search(text, refused(tmp_path / "t"))


def test_a_new_column_which_may_be_null_is_no_hindrance(tmp_path: Path) -> None:
    more = TABLE_SCHEMA.append(pa.field("comment", pa.string()))
    write_deltalake(str(tmp_path / "t"), more.empty_table(), partition_by=["day"])
    assert opened(tmp_path / "t").schema.names[-1] == "comment"


def test_nested_columns_are_compared_by_what_they_hold(tmp_path: Path) -> None:
    kind = pa.struct([("at", pa.list_(pa.int64())), ("by", pa.string())])
    schema = pa.schema([*TABLE_SCHEMA, pa.field("parsed", kind)])
    open_table(str(tmp_path / "t"), schema, None, {}, RUN)
    open_table(str(tmp_path / "t"), schema, None, {}, RUN)
    other = pa.struct([("at", pa.list_(pa.string())), ("by", pa.string())])
    with pytest.raises(ConfigurationError, match=r"'parsed'.*is of type"):
        open_table(
            str(tmp_path / "t"), pa.schema([*TABLE_SCHEMA, ("parsed", other)]), None, {}, RUN
        )


def test_a_file_in_the_tables_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("")
    assert "is not a directory" in refused(tmp_path / "t")


# -- operations -----------------------------------------------------------------------------------


@pytest.fixture
def landed(tmp_path: Path) -> Table:
    table = opened(tmp_path / "t")
    for hi in (10, 20, 30):
        land(table, "q", hi)
    return table


def test_our_own_commits_go_on(landed: Table) -> None:
    check_operations(Table.open(landed.location))


def test_a_restore_is_refused_until_it_is_rewound__TB_05(landed: Table) -> None:
    """TB-05: after a restore there are fewer rows and the offset is the old one."""
    DeltaTable(landed.location).restore(1)
    assert DeltaTable(landed.location).to_pyarrow_table().num_rows == 10
    with pytest.raises(RewindNeeded, match=r"version 4 of .*RESTORE.*msgproto table rewind"):
        check_operations(Table.open(landed.location))


def test_a_table_which_forgets_places_is_refused__TB_03(landed: Table) -> None:
    """TB-03: checkpoints leave places out, and a bridge would land rows which are there."""
    place = landed.landed()["q"]
    DeltaTable(landed.location).alter.set_table_properties(
        {"delta.setTransactionRetentionDuration": "interval 0 seconds"},
        raise_if_not_exists=False,
    )
    with pytest.raises(TableError, match=r"setTransactionRetentionDuration.*land twice.*verify"):
        check_operations(Table.open(landed.location))
    with pytest.raises(TableChanged, match=r"setTransactionRetentionDuration"):
        land(landed, "q", 40)
    assert landed.landed() == {"q": place}


def test_rows_that_a_query_copied_have_no_places_and_do_not_land_twice__TB_03(
    landed: Table, tmp_path: Path
) -> None:
    """TB-03: a table made from another one's rows does not know how far they go."""
    rows = DeltaTable(landed.location).to_pyarrow_table()
    write_deltalake(tmp_path / "copy", rows, partition_by=["day"])
    with pytest.raises(TableError, match=r"holds rows of gateway q, .*land twice; land in a new"):
        check_operations(Table.open(tmp_path / "copy"))


def test_rows_of_other_programs_are_no_hindrance(tmp_path: Path) -> None:
    """Rows without a gateway, files that are lost, and tables whose rows have no names."""
    strange = opened(tmp_path / "t")
    named = {"offset": [7], "received_at": [0], "protocol": ["x"], "truncated": [False]}
    values = {field.name: [None] for field in strange.schema} | named
    schema = pa.schema([pa.field(field.name, field.type) for field in strange.schema])
    rows = pa.table(values, schema=schema)
    path = "day=1970-01-01/other.parquet"
    (tmp_path / "t" / "day=1970-01-01").mkdir()
    pq.write_table(rows.drop_columns(["day"]), tmp_path / "t" / path)
    size = (tmp_path / "t" / path).stat().st_size
    lost = DataFile("day=1970-01-01/lost.parquet", 17, {"day": "1970-01-01"})
    (tmp_path / "t" / lost.path).write_bytes(b"PAR1")
    strange.commit([DataFile(path, size, lost.partition), lost], {}, before={}, run=RUN)
    (tmp_path / "t" / lost.path).unlink()
    check_operations(strange)
    nameless = pa.schema([pa.field("day", pa.date32(), nullable=False), ("n", pa.int64())])
    check_operations(Table.create(tmp_path / "nameless", nameless))


def test_a_rewind_of_one_gateway_does_not_vouch_for_the_others__TB_05(landed: Table) -> None:
    """TB-05: rows of every gateway went with a restore."""
    land(landed, "other", 10)
    DeltaTable(landed.location).restore(1)
    for gateway in ("q", "other"):
        table = Table.open(landed.location)
        with pytest.raises(RewindNeeded, match="RESTORE"):
            check_operations(table)
        before = table.landed()[gateway]
        table.replace(
            [],
            [],
            run=RUN,
            operation=REWIND,
            landed={gateway: Landed(5)},
            before={gateway: before},
        )
    check_operations(Table.open(landed.location))


def test_an_overwrite_and_a_foreign_delete_are_refused(landed: Table) -> None:
    DeltaTable(landed.location).delete("offset = 3")
    with pytest.raises(RewindNeeded):
        check_operations(Table.open(landed.location))


def test_what_only_arranges_rows_goes_on(landed: Table) -> None:
    DeltaTable(landed.location).optimize.z_order(["offset"])
    DeltaTable(landed.location).vacuum(retention_hours=0, enforce_retention_duration=False)
    check_operations(Table.open(landed.location))


def test_a_log_which_does_not_reach_back_to_the_last_landing_is_refused(landed: Table) -> None:
    delta = DeltaTable(landed.location)
    delta.optimize.z_order(["offset"])
    delta.create_checkpoint()
    for version in range(4):
        os.unlink(Path(landed.location) / "_delta_log" / f"{version:020}.json")
    with pytest.raises(RewindNeeded, match="has no version 3 any more"):
        check_operations(Table.open(landed.location))


def test_a_version_which_tears_while_it_is_looked_at_is_one_line(landed: Table) -> None:
    DeltaTable(landed.location).optimize.compact()
    landed.refresh()
    newest = Path(landed.location, "_delta_log", f"{landed.version:020d}.json")
    newest.write_bytes(newest.read_bytes()[:-20])
    with pytest.raises(TableError, match=f"version {landed.version} of .* cannot be read"):
        check_operations(landed)


def test_a_gateway_which_another_bridge_moved_is_named__TB_04(landed: Table) -> None:
    other = Table.open(landed.location)
    before = landed.landed()
    land(other, "q", 40)
    with pytest.raises(MsgprotoError, match="process 17 on here has moved gateway q"):
        check_not_moved(landed, before, landed.refresh())
    check_not_moved(landed, landed.landed(), [])


# -- gateways -------------------------------------------------------------------------------------


def test_two_tables_have_two_consumers() -> None:
    assert consumer_name("0aB1-2c3d4-e5") == "spark-0aB12c3d"


def test_an_unknown_gateway_which_has_trimmed_is_refused_unless_one_says_so() -> None:
    with pytest.raises(MsgprotoError, match=r"trimmed its rows below offset 5.*--start begin"):
        check_gateway("t", described(begin=5), None, start_begin=False)
    check_gateway("t", described(begin=5), None, start_begin=True)
    check_gateway("t", described(begin=5), Landed(7), start_begin=False)
    check_gateway("t", described(begin=0), None, start_begin=False)


def test_a_store_that_lets_writers_overwrite_each_other_is_not_opened_for_writing__TB_11(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(commits: ObjectCommits) -> None:
        raise TableError("writers would overwrite each other")

    monkeypatch.setattr(ObjectCommits, "prove", refused)
    with pytest.raises(TableError, match="overwrite each other"):
        Table.open_for_writing("s3://bucket/table")
