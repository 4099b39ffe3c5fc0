"""What stands in a version's file, as Delta wants it, and what is read of other programs' files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.tools.tables import RUN, TABLE_SCHEMA, land
from twisted_msgproto.core.errors import TableError
from twisted_msgproto.queue.lineage import Landed
from twisted_msgproto.table.actions import DataFile
from twisted_msgproto.table.log import Table

FULL = DataFile(
    path="day=2026-01-31/ä %20.parquet",
    size=1,
    partition={"day": "2026-01-31", "hour": None},
    rows=3,
    statistics='{"numRecords":3}',
    modified=77,
)
BARE = DataFile("b.parquet", 1, {})


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A table at half past a second of 1970, with the files that are committed here."""
    found = Table.create(tmp_path / "table", TABLE_SCHEMA, clock=lambda: 1.5)
    for file in (FULL, BARE):
        path = Path(found.location, file.path)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x")
    return found


def version(table: Table, number: int) -> Path:
    return Path(table.location, f"_delta_log/{number:020d}.json")


def lines(table: Table, number: int) -> list[dict[str, Any]]:
    return list(map(json.loads, version(table, number).read_bytes().splitlines()))


def test_the_first_version_says_what_the_table_is(table: Table) -> None:
    info, protocol, metadata = lines(table, 0)
    assert info["commitInfo"]["operation"] == "CREATE TABLE"
    assert info["commitInfo"]["isBlindAppend"] is False
    assert protocol == {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
    assert metadata["metaData"]["createdTime"] == 1500
    assert metadata["metaData"]["format"] == {"provider": "parquet", "options": {}}
    assert metadata["metaData"]["partitionColumns"] == ["day"]


def test_actions_stand_as_delta_wants_them(table: Table) -> None:
    place = {"q": Landed(7, 5, 6)}
    table.commit([FULL], place, before={}, run=RUN, notes={"note": 4}, info={"seconds": 1.5})
    info, *transactions, add = lines(table, 1)
    assert info["commitInfo"] == {
        **{"timestamp": 1500, "operation": "WRITE", "operationParameters": {"mode": "Append"}},
        **{"isBlindAppend": True, "engineInfo": "twisted-msgproto"},
        "msgproto": {
            **{"run": RUN.id, "host": RUN.host, "pid": RUN.pid, "operation": "WRITE"},
            **{"actions": 5, "info": {"seconds": 1.5}},
        },
    }
    values = {"msgproto:q": 7, "msgproto-incarnation:q": 5, "msgproto-witness:q": 6, "note": 4}
    assert {one["txn"]["appId"]: one["txn"]["version"] for one in transactions} == values
    assert {one["txn"]["lastUpdated"] for one in transactions} == {1500}
    assert add["add"] == {
        **{"path": "day=2026-01-31/%C3%A4%20%2520.parquet", "size": 1, "modificationTime": 77},
        **{"partitionValues": dict(FULL.partition), "dataChange": True},
        "stats": FULL.statistics,
    }
    table.replace([FULL], [BARE], run=RUN)
    info, remove, add = lines(table, 2)
    assert info["commitInfo"]["isBlindAppend"] is False
    assert remove["remove"] == {
        **{"path": "day=2026-01-31/%C3%A4%20%2520.parquet", "deletionTimestamp": 1500},
        **{"dataChange": False, "extendedFileMetadata": True},
        **{"partitionValues": dict(FULL.partition), "size": 1},
    }
    assert (add["add"]["dataChange"], "stats" in add["add"]) == (False, False)
    table.replace([BARE], [], run=RUN, data_change=True)
    assert lines(table, 3)[1]["remove"]["dataChange"] is True


@pytest.mark.parametrize("change", [None, replace(FULL, path="c.parquet")])
def test_a_version_is_known_to_its_writer_as_others_read_it(
    table: Table, change: DataFile | None
) -> None:
    """What it notes besides places is not noted again, or moved, by the next one."""
    notes = {"msgproto-dropping:q": 0}
    table.commit([FULL], {"q": Landed(10, 5, 7)}, before={}, run=RUN, notes=notes)
    if change is not None:
        Path(table.location, change.path).write_bytes(b"x")
        table.replace([FULL], [change], run=RUN)
    other = Table.open(table.location)
    assert table.files() == other.files() == [change or FULL]
    assert dict(table.transactions) == dict(other.transactions)
    assert table.landed() == other.landed() == {"q": Landed(10, 5, 7)}


ADD = {"path": "a%20b", "size": 1, "partitionValues": {"day": "1"}}
FILE = DataFile("a b", 1, {"day": "1"})


@pytest.mark.parametrize(
    ("add", "file"),
    [
        (ADD, FILE),
        ({**ADD, "modificationTime": 4, "stats": None}, replace(FILE, modified=4)),
        *(
            ({**ADD, "stats": text}, replace(FILE, rows=rows, statistics=text))
            for text, rows in {
                '{"numRecords":0}': 0,
                '{"numRecords":"1"}': None,
                "{}": None,
                "{": None,
                "[]": None,
                "null": None,
            }.items()
        ),
    ],
)
def test_what_another_program_left_out_of_a_file_has_a_plain_value(
    table: Table, add: dict[str, Any], file: DataFile
) -> None:
    version(table, 1).write_text(json.dumps({"add": add}) + "\n")
    assert Table.open(table.location).files() == [file]
    version(table, 2).write_text(json.dumps({"remove": {"path": "a%20b"}, "x": {}}) + "\n")
    assert Table.open(table.location).files() == []


@pytest.mark.parametrize(
    ("info", "operation", "run", "timestamp"),
    [
        ({}, "", "", 0),
        ({"operation": "MERGE", "timestamp": 5}, "MERGE", "", 5),
        ({"operation": "A", "msgproto": {"operation": "B"}, "timestamp": None}, "B", "", 0),
        ({"msgproto": {"run": "r", "info": None}}, "", "r/", 0),
        ({"msgproto": {"run": "r", "host": "h", "pid": 3, "info": {"a": 1}}}, "", "r/h3", 0),
    ],
)
def test_who_made_a_version_is_what_it_says_of_itself__TB_05(
    table: Table, info: dict[str, Any], operation: str, run: str, timestamp: int
) -> None:
    """TB-05: by this a version is known again, and an older copy of a table is told apart."""
    actions = [{"txn": {"appId": "x", "version": 3}}, {"commitInfo": info}]
    version(table, 1).write_text("\n".join(map(json.dumps, actions)) + "\n")
    [commit] = table.refresh()
    assert (commit.operation, commit.timestamp) == (operation, timestamp)
    made = commit.run and f"{commit.run.id}/{commit.run.host}{commit.run.pid or ''}"
    assert (made or "") == run
    assert commit.info == ((info.get("msgproto") or {}).get("info") or {})
    assert dict(table.transactions) == {"x": 3}
    assert table.landed() == {}
    land(table, "q", 3)  # it is what it was, so it is written on
    other = {"commitInfo": {**info, "operation": "OTHER", "msgproto": {"run": "other"}}}
    version(table, 2).write_text(json.dumps(other) + "\n")
    with pytest.raises(TableError, match=r"version 2 of .* is gone"):
        land(table, "q", 4)


@pytest.mark.parametrize(
    ("octets", "text"),
    [
        (b"", "it is empty"),
        (b"\0\0 \r\n", "it is empty"),
        (b"{}\n{", "a line of it is cut"),
        (b"[]\n", "a line of it is not an action"),
        (b'{"commitInfo":{}}\n[]\n', "a line of it is not an action"),
        (b'{"add":{"size":1}}\n', "it holds an action without 'path'"),
        (b'{"txn":{"appId":"x"}}\n', "it holds an action without 'version'"),
        (b'{"commitInfo":{"msgproto":{"actions":1}}}\n', "it holds 0 of 1 actions"),
        (b'{"commitInfo":{"msgproto":{"actions":0}}}\n{}\n', "it holds 1 of 0 actions"),
        (b'{"commitInfo":{"msgproto":{"actions":1}}}\n\n{"x":{}}\n', ""),
    ],
)
def test_a_version_of_which_a_part_is_lost_is_torn(table: Table, octets: bytes, text: str) -> None:
    version(table, 1).write_bytes(octets)
    if not text:
        assert [commit.version for commit in table.refresh()] == [1]
        return
    with pytest.raises(TableError, match=f"version 1 of .* is torn: {text}"):
        Table.open(table.location)


def test_places_are_three_transactions_and_those_of_others_are_none(table: Table) -> None:
    """A place of which a part was never written is the rest of it."""
    table.commit([], {"q": Landed(7, 5, 6)}, before={}, run=RUN)
    others = [("other", 9), ("msgproto:p", 7)]
    actions = [{"txn": {"appId": name, "version": value}} for name, value in others]
    version(table, 2).write_text("\n".join(map(json.dumps, actions)) + "\n")
    assert Table.open(table.location).landed() == {"q": Landed(7, 5, 6), "p": Landed(7, 0, 0)}


@pytest.mark.parametrize(
    ("change", "known"),
    [
        ({}, True),
        ({"run": replace(RUN, id="other")}, False),
        ({"landed": {"q": Landed(8, 5, 6)}}, False),
    ],
)
def test_a_commit_that_is_asked_for_again_knows_what_became_of_it__TB_11(
    table: Table, change: dict[str, Any], known: bool
) -> None:
    """Its own version is found in the log; that of another run, or to another place, is not."""
    other = Table.open(table.location)
    asked: dict[str, Any] = {"landed": {"q": Landed(7, 5, 6)}, "before": {"q": None}, "run": RUN}
    other.commit([FULL], **{**asked, **change})
    if known:
        assert table.commit([FULL], **asked) == table.version == 1
    else:
        with pytest.raises(TableError, match="moved gateway q"):
            table.commit([FULL], **asked)
        assert not version(table, 2).exists()
