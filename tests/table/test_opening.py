"""Which logs are a table, and what it is: by its versions and checkpoints, whole, torn and gone.

What other programs leave torn, because they sync nothing, is mended, or refused with one line.

A start looks before it touches: what does not fit is one line and changes nothing.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import shutil
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.tools.loops import loop_over
from tests.tools.tables import RUN, TABLE_SCHEMA, land, rows_of, stored_file
from twisted_msgproto import cli
from twisted_msgproto.core.disk import OSDisk
from twisted_msgproto.core.errors import (
    ConfigurationError,
    MsgprotoError,
    RewindNeeded,
    TableChanged,
    TableError,
)
from twisted_msgproto.queue import Landed
from twisted_msgproto.table import preflight
from twisted_msgproto.table.delta_table import Table
from twisted_msgproto.table.properties import check_properties

NEWEST = 7
ALL = range(NEWEST + 1)


def version(number: int) -> str:
    return f"{number:020d}.json"


def checkpoint(number: int, part: int = 0, parts: int = 0) -> str:
    return f"{number:020d}.checkpoint{f'.{part:010d}.{parts:010d}' if parts else ''}.parquet"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table whose version N says that N rows have landed, with a checkpoint of each version."""
    path = tmp_path_factory.mktemp("opening") / "table"
    table = Table.create(path, TABLE_SCHEMA)
    for number in ALL[1:]:
        file = stored_file(table, "a", number - 1, number)
        before = {"a": table.landed().get("a")}
        table.commit([file], {"a": Landed(number)}, before=before, run=RUN)
        DeltaTable(path).create_checkpoint()
    (path / "_delta_log/_last_checkpoint").unlink()
    return path


def left(template: Path, path: Path, versions: Sequence[int], checkpoints: Sequence[int]) -> Path:
    """A copy with these versions and checkpoints alone; the folder of its log."""
    shutil.copytree(template, path)
    kept = {*map(version, versions), *map(checkpoint, checkpoints)}
    for file in (path / "_delta_log").iterdir():
        if file.name not in kept:
            file.unlink()
    return path / "_delta_log"


@pytest.mark.parametrize(
    ("versions", "checkpoints", "torn", "text"),
    [
        (ALL, [], [], ""),
        (ALL[:2], [], [], ""),
        ([], [7], [], ""),
        ([5, 6], [4], [], ""),  # the checkpoint's own version may be gone
        ([4, 5, 6], [4], [], ""),
        ([6], [4], [], "lacks version 0; restore the table's folder from a copy"),
        ([], [4], [], ""),
        ([3], [4], [], ""),
        ([5], [4, 6], [6], "lacks version 0; checkpoint 6 cannot be read"),
        ([5, 6, 7], [4, 6], [], ""),
        ([5, 6, 7], [4, 6], [6], ""),
        ([7], [4, 6], [], ""),
        (ALL, [4], [4], ""),
        ([5, 6], [4], [4], "lacks version 0; checkpoint 4 cannot be read"),
        ([3, 4, 5], [2, 4], [2, 4], "lacks version 0; checkpoint 4 cannot be read"),
        ([0, 2], [], [], "lacks version 1; restore"),
        ([1], [], [], "lacks version 0; restore"),
        ([5, 7], [4], [], "lacks version 0; restore"),
        (ALL[:3], [], [1], "version 1 of .* is torn: a line of it is cut; if it is the last"),
        ([], [], [], "is not a table: it has no _delta_log"),
    ],
)
def test_a_table_is_its_newest_checkpoint_behind_which_nothing_is_missing(
    template: Path,
    tmp_path: Path,
    versions: Sequence[int],
    checkpoints: Sequence[int],
    torn: Sequence[int],
    text: str,
) -> None:
    log = left(template, tmp_path / "table", versions, checkpoints)
    for number in torn:
        path = log / (checkpoint(number) if checkpoints else version(number))
        path.write_bytes(path.read_bytes()[:-10])
    if text:
        with pytest.raises(TableError, match=text) as told:
            Table.open(tmp_path / "table")
        assert "\n" not in str(told.value)
        return
    newest = max([*versions, *checkpoints])
    table = Table.open(tmp_path / "table")
    assert (table.version, table.landed(), len(table.files())) == (
        newest,
        {"a": Landed(newest)} if newest else {},
        newest,
    )


def test_the_files_of_a_table_are_those_of_the_version_that_was_read(
    template: Path, tmp_path: Path
) -> None:
    """Others went on meanwhile."""
    log = left(template, tmp_path / "table", [5], [4])
    table = Table.open(tmp_path / "table")
    for name in (version(6), version(7), checkpoint(6)):
        shutil.copy(template / "_delta_log" / name, log)
    assert (table.version, len(table.files())) == (5, 5)


@pytest.mark.parametrize(("lost", "base"), [(0, 6), (1, None), (2, None)])
def test_a_checkpoint_in_parts_is_one_when_all_of_them_are_there(
    template: Path, tmp_path: Path, lost: int, base: int | None
) -> None:
    log = left(template, tmp_path / "table", [6, 7], [6])
    actions = pq.read_table(log / checkpoint(6))
    (log / checkpoint(6)).unlink()
    for part, rows in ((1, actions.slice(0, 3)), (2, actions.slice(3))):
        if part != lost:
            pq.write_table(rows, log / checkpoint(6, part, 2))
    if base is None:
        with pytest.raises(TableError, match="lacks version 0"):
            Table.open(tmp_path / "table")
        return
    table = Table.open(tmp_path / "table")
    assert (table.version, table.landed(), len(table.files())) == (7, {"a": Landed(7)}, 7)


@pytest.mark.parametrize("action", [b"metaData", b"protocol"])
def test_a_log_that_does_not_say_what_the_table_is_is_none(
    template: Path, tmp_path: Path, action: bytes
) -> None:
    log = left(template, tmp_path / "table", [0], [])
    first = (log / version(0)).read_bytes().replace(b'{"commitInfo', b'{"other')
    kept = [line for line in first.splitlines(keepends=True) if action not in line]
    (log / version(0)).write_bytes(b"".join(kept))
    with pytest.raises(TableError, match="names no table up to version 0"):
        Table.open(tmp_path / "table")


def test_names_that_are_none_of_a_log_are_passed_over(template: Path, tmp_path: Path) -> None:
    log = left(template, tmp_path / "table", [0, 1], [])
    for name in ("x.json", version(3) + ".tmp", "1.json", f"{9:020d}.crc", "_last_checkpoint"):
        (log / name).write_bytes(b"?")
    assert Table.open(tmp_path / "table").version == 1


class Disk(OSDisk):
    """A disk that lists names which are gone, or refuses to list any."""

    def __init__(self, *more: str, refusing: str | None = None) -> None:
        super().__init__()
        self.more, self.refusing = more, refusing

    def names(self, path: str) -> list[str]:
        if self.refusing is not None:
            raise OSError(self.refusing)
        return [*super().names(path), *self.more]


def test_a_version_that_goes_while_the_log_is_read_is_one_line(
    template: Path, tmp_path: Path
) -> None:
    left(template, tmp_path / "table", ALL, [])
    with pytest.raises(TableError, match=r"version 8 of .* went while its log was read; try again"):
        Table.open(tmp_path / "table", disk=Disk(version(8)))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("plain", "plain"),
        ("two\n  lines", "two lines"),
        ("<Error><Code>No</Code><Message>it is\nnot</Message></Error>", "No: it is not"),
        ("<Error><Code>No</Code></Error>", "No"),
        ("<Message>alone</Message>", "<Message>alone</Message>"),
        ("\x1b[31;1mred\x1b[0m ↳ why", "red why"),
        ("x" * 301, "x" * 300),
        ("", "OSError"),
    ],
)
def test_what_a_store_says_is_one_line_without_its_markup(
    template: Path, text: str, line: str
) -> None:
    refusing: Any = Disk(refusing=text)
    with pytest.raises(TableError) as told:
        Table.open(template, disk=refusing)
    assert str(told.value) == f"cannot read {template}: {line}"


# -- torn ------------------------------------------------------------------------------------------

DAY = pa.array([20484] * 5, pa.int32()).cast(pa.date32())


def foreign_append(table: Table) -> None:
    rows = rows_of("foreign", 0, 5).append_column("day", DAY)
    write_deltalake(table.location, rows.cast(TABLE_SCHEMA), mode="append")


def foreign_checkpoint(table: Table) -> None:
    DeltaTable(table.location).create_checkpoint()


def newest(table: Table, ending: str) -> Path:
    return max((Path(table.location) / "_delta_log").glob(f"*{ending}"))


def newest_data(table: Table) -> Path:
    table.refresh()
    return Path(table.location) / Table.open(table.location).files()[-1].path


def lose(path: Path, loss: str) -> None:
    nbytes = path.read_bytes()
    left = {"empty": b"", "torn": nbytes[: len(nbytes) // 2]}
    left["cut at a line"] = b"".join(nbytes.splitlines(keepends=True)[:-1])
    path.unlink()
    if loss != "missing":
        path.write_bytes(left[loss])


LOSSES = ["empty", "torn", "missing"]
CASES: list[tuple[str, Callable[[Table], None], Callable[[Table], Path]]] = [
    ("commit", foreign_append, lambda table: newest(table, ".json")),
    ("data", foreign_append, newest_data),
    ("checkpoint", foreign_checkpoint, lambda table: newest(table, ".checkpoint.parquet")),
    (
        "last checkpoint",
        foreign_checkpoint,
        lambda table: Path(table.location) / "_delta_log/_last_checkpoint",
    ),
]


@pytest.mark.parametrize("followed", [False, True], ids=["last", "followed"])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_what_others_left_torn_is_mended_or_refused(
    case: tuple[str, Callable[[Table], None], Callable[[Table], Path]],
    loss: str,
    followed: bool,
    table: Table,
) -> None:
    name, work, victim = case
    land(table, "a", 5)
    work(table)
    path = victim(table)
    if followed:
        foreign_append(table)
    lose(path, loss)
    if followed and name in ("commit", "data"):
        with pytest.raises(TableError, match=r"restore the table's folder from a copy") as refused:
            Table.open_for_writing(table.location)
        assert "\n" not in str(refused.value)
        return
    mended = Table.open_for_writing(table.location)
    assert mended.landed() == {"a": Landed(5, 5, 7)}
    if name == "commit" and loss != "missing":  # its number is not used again
        assert (mended.version, b'"EMPTY"' in path.read_bytes()) == (2, True)
    land(mended, "a", 9)
    rows = DeltaTable(table.location).to_pyarrow_table()
    found = [n for g, n in zip(*(rows[c].to_pylist() for c in ("gateway", "offset")), strict=True)]
    foreign = 5 if followed else 0
    assert len(found) == 9 + foreign
    if (name, loss) not in (("commit", "missing"), ("last checkpoint", "missing")):
        assert mended.mended


def test_a_commit_of_ours_which_was_cut_at_a_line_is_known_as_torn(table: Table) -> None:
    land(table, "a", 5)
    lose(newest(table, ".json"), "cut at a line")
    with pytest.raises(TableError, match="holds 3 of 4 actions"):
        Table.open(table.location)
    assert Table.open_for_writing(table.location).landed() == {}


def test_a_torn_first_version_is_refused(table: Table) -> None:
    lose(newest(table, ".json"), "torn")
    with pytest.raises(TableError, match="and it is the first"):
        Table.open_for_writing(table.location)


def test_a_torn_checkpoint_without_the_versions_before_it_is_refused(table: Table) -> None:
    land(table, "a", 5)
    foreign_checkpoint(table)
    lose(newest(table, ".checkpoint.parquet"), "torn")
    (Path(table.location) / "_delta_log" / version(0)).unlink()
    with pytest.raises(TableError, match=r"lacks version 0; checkpoint 1 cannot be read"):
        Table.open_for_writing(table.location)


def test_a_checkpoint_which_names_no_table_is_passed_over(table: Table) -> None:
    land(table, "a", 5)
    foreign_checkpoint(table)
    path = newest(table, ".checkpoint.parquet")
    actions = pq.read_table(path)
    pq.write_table(actions.filter(pc.is_null(actions["metaData"])), path)
    assert Table.open(table.location).landed() == {"a": Landed(5, 5, 7)}


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
    assert preflight.is_new(str(tmp_path / "t"), {})
    assert opened(tmp_path / "t", ["protocol", "day"]).partition_by == ("protocol", "day")
    assert not preflight.is_new(str(tmp_path / "t"), {})
    again = opened(tmp_path / "t")
    assert (again.partition_by, again.schema.names) == (("protocol", "day"), TABLE_SCHEMA.names)
    line = refused(tmp_path / "t", ["day"])
    assert line.endswith(
        "is partitioned by protocol,day, not by day; leave --partition-by out, or land into a new"
        " table"
    )
    assert opened(tmp_path / "t").partition_by == ("protocol", "day")
    assert opened(tmp_path / "new", ["day"]).partition_by == ("day",)


def test_a_directory_that_this_user_may_not_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(disk: OSDisk, path: str) -> list[str]:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr(OSDisk, "names", refuse)
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


@pytest.mark.parametrize(
    ("by", "remedy"),
    [("protocol", r'keep = \["protocol"\], or have the function'), ("kind", "another location")],
)
def test_a_table_whose_partitions_are_no_columns_of_its_rows_any_more_is_refused(
    tmp_path: Path, by: str, remedy: str
) -> None:
    """A bridge that does not keep such a column failed with the first batch, by a KeyError."""
    without = [column for column in TABLE_SCHEMA if column.name != "protocol"]
    write_deltalake(str(tmp_path / "t"), TABLE_SCHEMA.empty_table(), partition_by=[by, "day"])
    line = refused(tmp_path / "t", schema=pa.schema(without))
    assert re.search(rf"is partitioned by {by}, .*: .*{remedy}", line)


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


def test_a_table_which_forgets_places_is_refused__TB_03(
    landed: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    """TB-03: checkpoints leave places out, and a bridge would land rows which are there."""
    place = landed.landed()["q"]
    DeltaTable(landed.location).alter.set_table_properties(
        {"delta.setTransactionRetentionDuration": "interval 0 seconds"},
        raise_if_not_exists=False,
    )
    line = refused(Path(landed.location))
    assert re.search(
        r"setTransactionRetentionDuration.*land twice; remove the property.*verify", line
    )
    with pytest.raises(TableChanged, match=r"setTransactionRetentionDuration"):
        land(landed, "q", 40)
    assert landed.landed() == {"q": place}
    log = Path(landed.location, "_delta_log")
    newest = max(log.glob("*.json"))  # as ALTER TABLE … UNSET TBLPROPERTIES does
    [changed] = [
        action
        for action in map(json.loads, newest.read_text().splitlines())
        if "metaData" in action
    ]
    del changed["metaData"]["configuration"]["delta.setTransactionRetentionDuration"]
    (log / f"{int(newest.stem) + 1:020}.json").write_text(json.dumps(changed))
    command = re.search("'msgproto (table verify .*)' that every", line)
    assert command is not None
    assert cli.main(shlex.split(command[1])) in (0, 1)  # its data files are made up
    assert f"gateway q: landed {place.offset}" in capsys.readouterr().out
    land(opened(Path(landed.location)), "q", 40)


def test_rows_that_a_query_copied_have_no_places_and_do_not_land_twice__TB_03(
    landed: Table, tmp_path: Path
) -> None:
    """TB-03: a table made from another one's rows does not know how far they go."""
    rows = DeltaTable(landed.location).to_pyarrow_table()
    write_deltalake(tmp_path / "copy", rows, partition_by=["day"])
    line = refused(tmp_path / "copy")
    assert re.search(r"holds rows of gateway q, .*land twice; land in a new", line)


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
def test_rows_that_others_write_over_or_append_are_refused__RD_30(landed: Table, mode: str) -> None:
    rows = DeltaTable(landed.location).to_pyarrow_table().slice(0, 1)
    write_deltalake(landed.location, rows, mode=mode)  # type: ignore[call-overload]
    line = refused(Path(landed.location))
    assert re.search("version 4 of .*by another program.* (added|changed) rows.*table rewind", line)


def test_rows_without_a_key_may_be_appended__RD_30(tmp_path: Path) -> None:
    schema = pa.schema([field.with_nullable(True) for field in TABLE_SCHEMA])
    write_deltalake(str(tmp_path / "t"), schema.empty_table(), partition_by=["day"])
    land(opened(tmp_path / "t"), "q", 10)
    rows = DeltaTable(tmp_path / "t").to_pyarrow_table().slice(0, 1)
    for name in ("gateway", "offset"):
        place = rows.schema.get_field_index(name)
        rows = rows.set_column(place, name, pa.nulls(1, rows.schema.field(name).type))
    write_deltalake(tmp_path / "t", rows, mode="append")
    assert opened(tmp_path / "t").version == 2


def test_a_log_which_does_not_reach_back_to_the_last_landing_is_refused(landed: Table) -> None:
    delta = DeltaTable(landed.location)
    delta.optimize.z_order(["offset"])
    delta.create_checkpoint()
    for version in range(4):
        os.unlink(Path(landed.location) / "_delta_log" / f"{version:020}.json")
    with pytest.raises(RewindNeeded, match="has no version 3 any more"):
        opened(Path(landed.location))


# -- properties ------------------------------------------------------------------------------------


def test_a_table_gets_its_properties_at_a_start_once(tmp_path: Path) -> None:
    def opened(**properties: str) -> Table:
        place = str(tmp_path / "table")
        table = preflight.open_table(place, None, None, {}, RUN, properties=properties)
        preflight.grow(table, table.schema, RUN, properties)
        return table

    days = {"delta.logRetentionDuration": "interval 2 days", "owner": "us"}
    new = opened(**days)
    assert new.version == 0 and days.items() <= new.properties.items()
    assert opened(**days).version == 0
    land(new, "a", 5)
    changed = opened(owner="them")
    assert changed.version == 2
    assert DeltaTable(tmp_path / "table").metadata().configuration == {
        **new.properties,
        "owner": "them",
    }
    assert [commit.operation for commit in new.refresh()] == ["SET TBLPROPERTIES"]
    land(new, "a", 9)  # a bridge that runs meanwhile goes on
    assert opened().properties == changed.properties


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("delta.enableChangeDataFeed", "true", "is none of delta.appendOnly, "),
        ("Delta.appendOnly", "true", "is none of delta.appendOnly, "),
        ("delta.appendOnly", "yes", "is true or false, not 'yes'"),
        ("delta.enableExpiredLogCleanup", "interval 2 days", "is true or false"),
        ("delta.logRetentionDuration", "true", 'is an interval as "interval 30 days", not'),
        ("delta.deletedFileRetentionDuration", "interval 2 days", ""),
        ("delta.appendOnly", "false", ""),
        ("owner", "true", ""),
    ],
)
def test_a_table_has_no_property_that_is_not_kept_to(name: str, value: str, line: str) -> None:
    with pytest.raises(ConfigurationError) if line else nullcontext() as refused:
        check_properties({"owner": "us", name: value})
    assert not refused or f"properties: {name} {line}" in str(refused.value)
