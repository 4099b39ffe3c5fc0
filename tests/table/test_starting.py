"""A start looks before it touches: what does not fit is one line and changes nothing."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.tools.loops import loop_over
from tests.tools.tables import RUN, TABLE_SCHEMA, land
from twisted_msgproto.core.errors import (
    ConfigurationError,
    MsgprotoError,
    RewindNeeded,
    TableChanged,
    TableError,
)
from twisted_msgproto.queue import Landed
from twisted_msgproto.table.actions import DataFile
from twisted_msgproto.table.disk import OSTableDisk
from twisted_msgproto.table.log import Table


def opened(
    path: Path, partition_by: Sequence[str] | None = None, schema: pa.Schema | None = None
) -> Table:
    """The table as a bridge has looked at it."""
    return loop_over(path, [], partition_by=partition_by, schema=schema).table


def refused(
    path: Path, partition_by: Sequence[str] | None = None, schema: pa.Schema | None = None
) -> str:
    """The one line; nothing below ``path`` is written."""
    before = sorted(path.rglob("*"))
    with pytest.raises(MsgprotoError) as raised:
        opened(path, partition_by, schema)
    assert sorted(path.rglob("*")) == before
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_partitioning_is_what_the_table_has_unless_one_asks_for_another(tmp_path: Path) -> None:
    assert opened(tmp_path / "t", ["protocol", "day"]).partition_by == ("protocol", "day")
    again = opened(tmp_path / "t")
    assert (again.partition_by, again.schema.names) == (("protocol", "day"), TABLE_SCHEMA.names)
    assert "is partitioned by protocol,day, not by day" in refused(tmp_path / "t", ["day"])


def test_a_directory_that_this_user_may_not_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(disk: OSTableDisk, path: str) -> list[str]:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr(OSTableDisk, "names", refuse)
    with pytest.raises(ConfigurationError, match=r"--table .* cannot be read: Permission denied$"):
        opened(tmp_path)


def test_a_file_in_the_tables_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("")
    assert "is not a directory" in refused(tmp_path / "t")


def with_type(name: str, kind: pa.DataType) -> pa.Schema:
    return TABLE_SCHEMA.set(TABLE_SCHEMA.get_field_index(name), pa.field(name, kind))


NESTED = pa.struct([("at", pa.list_(pa.int64())), ("by", pa.string())])
OTHERS = pa.struct([("at", pa.list_(pa.string())), ("by", pa.string())])


@pytest.mark.parametrize(
    ("theirs", "ours", "text"),
    [
        (pa.schema([("day", pa.date32()), ("n", pa.int64())]), None, "has no column 'gateway'"),
        (with_type("message_id", pa.int64()), None, "'message_id' .* is of type int64, not string"),
        (
            TABLE_SCHEMA.append(pa.field("owner", pa.string(), nullable=False)),
            None,
            "'owner' which must not be null",
        ),
        (with_type("fields", pa.map_(pa.string(), pa.int64())), None, "'fields' .* is of type map"),
        (with_type("attachments", pa.list_(pa.string())), None, "'attachments' .* of type list"),
        (
            TABLE_SCHEMA.append(pa.field("parsed", OTHERS)),
            TABLE_SCHEMA.append(pa.field("parsed", NESTED)),
            "'parsed' .* is of type struct",
        ),
    ],
)
def test_a_table_of_other_columns_is_refused(
    tmp_path: Path, theirs: pa.Schema, ours: pa.Schema | None, text: str
) -> None:
    write_deltalake(str(tmp_path / "t"), theirs.empty_table(), partition_by=["day"])
    assert re.search(text, refused(tmp_path / "t", schema=ours))


def test_columns_that_fit_are_no_hindrance(tmp_path: Path) -> None:
    """Another one which may be null, and nested ones by what they hold."""
    more = TABLE_SCHEMA.append(pa.field("comment", pa.string()))
    write_deltalake(str(tmp_path / "t"), more.empty_table(), partition_by=["day"])
    assert opened(tmp_path / "t").schema.names[-1] == "comment"
    nested = TABLE_SCHEMA.append(pa.field("parsed", NESTED))
    for _ in range(2):
        assert opened(tmp_path / "nested", schema=nested).schema.names[-1] == "parsed"


# -- operations -----------------------------------------------------------------------------------


@pytest.fixture
def landed(tmp_path: Path) -> Table:
    table = opened(tmp_path / "t")
    for hi in (10, 20, 30):
        land(table, "q", hi)
    return table


def test_a_table_which_forgets_places_is_refused__TB_03(landed: Table) -> None:
    """TB-03: checkpoints leave places out, and a bridge would land rows which are there."""
    place = landed.landed()["q"]
    DeltaTable(landed.location).alter.set_table_properties(
        {"delta.setTransactionRetentionDuration": "interval 0 seconds"},
        raise_if_not_exists=False,
    )
    line = refused(Path(landed.location))
    assert re.search(r"setTransactionRetentionDuration.*land twice.*verify", line)
    with pytest.raises(TableChanged, match=r"setTransactionRetentionDuration"):
        land(landed, "q", 40)
    assert landed.landed() == {"q": place}


def test_rows_that_a_query_copied_have_no_places_and_do_not_land_twice__TB_03(
    landed: Table, tmp_path: Path
) -> None:
    """TB-03: a table made from another one's rows does not know how far they go."""
    rows = DeltaTable(landed.location).to_pyarrow_table()
    write_deltalake(tmp_path / "copy", rows, partition_by=["day"])
    line = refused(tmp_path / "copy")
    assert re.search(r"holds rows of gateway q, .*land twice; land in a new", line)


def test_rows_of_other_programs_are_no_hindrance(tmp_path: Path) -> None:
    """Rows without a gateway, and files that are lost."""
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
    assert opened(tmp_path / "t").version == 1


def test_a_rewind_of_one_gateway_does_not_vouch_for_the_others__TB_05(landed: Table) -> None:
    """TB-05: rows of every gateway went with a restore."""
    land(landed, "other", 10)
    DeltaTable(landed.location).restore(1)
    for gateway in ("q", "other"):
        assert re.search(r"version 5 of .*RESTORE.*table rewind", refused(Path(landed.location)))
        table = Table.open(landed.location)
        before = {gateway: table.landed()[gateway]}
        places = {gateway: Landed(5)}
        table.replace([], [], run=RUN, operation="REWIND", landed=places, before=before)
    assert opened(Path(landed.location)).landed() == {"q": Landed(5), "other": Landed(5)}


@pytest.mark.parametrize("mode", ["overwrite", "append"])
def test_an_overwrite_is_refused_and_rows_that_others_append_are_not(
    landed: Table, mode: str
) -> None:
    rows = DeltaTable(landed.location).to_pyarrow_table().slice(0, 1)
    write_deltalake(landed.location, rows, mode=mode)  # type: ignore[call-overload]
    if mode == "append":
        assert opened(Path(landed.location)).version == 4
    else:
        assert "by another program" in refused(Path(landed.location))


def test_a_log_which_does_not_reach_back_to_the_last_landing_is_refused(landed: Table) -> None:
    delta = DeltaTable(landed.location)
    delta.optimize.z_order(["offset"])
    delta.create_checkpoint()
    for version in range(4):
        os.unlink(Path(landed.location) / "_delta_log" / f"{version:020}.json")
    with pytest.raises(RewindNeeded, match="has no version 3 any more"):
        opened(Path(landed.location))


def test_a_version_which_tears_while_it_is_looked_at_is_one_line(landed: Table) -> None:
    DeltaTable(landed.location).optimize.compact()
    landed.refresh()
    newest = Path(landed.location, "_delta_log", f"{landed.version:020d}.json")
    newest.write_bytes(newest.read_bytes()[:-20])
    with pytest.raises(TableError, match=f"version {landed.version} of .* cannot be read"):
        loop_over(landed, [])
