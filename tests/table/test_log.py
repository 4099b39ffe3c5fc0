"""Versions of a table's log: what stands in them as Delta wants it, what is read of other programs'
files, which tables this package makes, and which changes of a table stop its writers.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.tools.tables import RUN, TABLE_SCHEMA, land, stored_file
from twisted_msgproto.core.errors import ConfigurationError, TableChanged, TableError
from twisted_msgproto.queue import Landed
from twisted_msgproto.table import delta_table
from twisted_msgproto.table.actions import DataFile
from twisted_msgproto.table.delta_table import Table

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


# -- rows and places -------------------------------------------------------------------------------


def test_two_rewritings_of_one_run_are_two_versions__TB_11(table: Table) -> None:
    """What the run made before is not mistaken for what it is asked for now."""
    land(table, "a", 10)
    once, twice = (stored_file(table, "a", 0, 10) for _ in range(2))
    assert table.replace(table.files(), [once], run=RUN) == 2
    again = Table.open(table.location)
    assert again.replace([once], [twice], run=RUN) == 3
    assert again.files() == [twice]


def test_the_log_is_cleaned_at_most_once_in_its_time(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_table, "CHECKPOINT_EVERY", 1)
    start = now = 1_700_000_000.0
    writer = Table.open(table.location, clock=lambda: now)
    left = Path(table.location, "_delta_log", "_commit_0.json.tmp")
    cleaned: list[float] = []
    for offset, seconds in ((1, 0.0), (2, 599.0), (3, 600.0), (4, 601.0), (5, -1.0)):
        now = start + seconds
        left.touch()
        os.utime(left, (0, 0))
        before = writer.landed().get("a")
        writer.commit([], {"a": Landed(offset)}, before={"a": before}, run=RUN)
        writer.maintain()
        if not left.exists():
            cleaned.append(seconds)
    assert cleaned == [600.0, -1.0]  # the clock was set back


# -- what the table is -----------------------------------------------------------------------------


def changed(table: Table, **actions: Any) -> None:
    """Another program changes what the table is."""
    lines = [json.dumps({name: value}) for name, value in actions.items()]
    path = Path(table.location, f"_delta_log/{table.version + 1:020d}.json")
    path.write_text("\n".join(lines) + "\n")


def written_on(table: Table) -> str:
    """Why the table is not written on; empty when it is."""
    try:
        table.commit([], {"a": Landed(1)}, before={"a": None}, run=RUN)
    except TableChanged as error:
        assert "\n" not in str(error)
        return str(error)
    assert Table.open(table.location).landed() == {"a": Landed(1)}
    return ""


def with_field(name: str, field: pa.Field) -> pa.Schema:
    return TABLE_SCHEMA.set(TABLE_SCHEMA.get_field_index(name), field)


SAME = TABLE_SCHEMA
MORE = TABLE_SCHEMA.append(pa.field("more", pa.string()))
MUST = TABLE_SCHEMA.append(pa.field("more", pa.string(), nullable=False))
NUMBERED = with_field("peer", pa.field("peer", pa.int64()))
NEEDED = with_field("peer", pa.field("peer", pa.string(), nullable=False))


@pytest.mark.parametrize(
    ("schema", "by", "renamed", "reason"),
    [
        (SAME, ["day"], False, ""),
        (MORE, ["day"], False, ""),
        (SAME, ["day"], True, "it is another table, another"),
        (SAME, ["protocol", "day"], False, "it is partitioned by protocol, day now"),
        (SAME, [], False, "it is partitioned by nothing now"),
        (TABLE_SCHEMA.remove(1), ["day"], False, "its column 'offset' is gone"),
        (NUMBERED, ["day"], False, "its column 'peer' has another type"),
        (NEEDED, ["day"], False, "its column 'peer' must not be null now"),
        (MUST, ["day"], False, "its new column 'more' must not be null"),
    ],
)
def test_files_written_before_fit_or_it_is_said_why_not(
    tmp_path: Path, schema: pa.Schema, by: list[str], renamed: bool, reason: str
) -> None:
    table, other = (
        Table.create(tmp_path / name, one, columns)
        for name, one, columns in (("table", TABLE_SCHEMA, ["day"]), ("other", schema, by))
    )
    lines = Path(other.location, f"_delta_log/{0:020d}.json").read_text().splitlines()
    metadata: dict[str, Any] = json.loads(lines[-1])["metaData"]
    changed(table, metaData={**metadata, "id": "another" if renamed else table.table_id})
    found = written_on(table)
    assert reason in found and bool(found) == bool(reason)


@pytest.mark.parametrize(
    ("protocol", "unknown"),
    [
        ((1, 2, [], []), []),
        ((1, 7, [], ["appendOnly", "changeDataFeed"]), []),
        ((1, 7, [], ["checkConstraints", "identityColumns"]), ["identityColumns"]),
        ((2, 5, [], []), []),
        ((3, 8, [], []), ["reader version 3, writer version 8"]),
        ((3, 7, ["deletionVectors"], ["rowTracking"]), ["deletionVectors", "rowTracking"]),
    ],
)
@pytest.mark.parametrize("alone", [False, True], ids=["with metaData", "alone"])
def test_what_a_newer_table_needs_is_named(
    tmp_path: Path,
    protocol: tuple[int, int, list[str], list[str]],
    unknown: list[str],
    alone: bool,
) -> None:
    table = Table.create(tmp_path / "table", TABLE_SCHEMA)
    reader, writer, reading, writing = protocol
    versions = {"minReaderVersion": reader, "minWriterVersion": writer}
    features = {"readerFeatures": reading, "writerFeatures": writing}
    lines = Path(table.location, f"_delta_log/{0:020d}.json").read_text().splitlines()
    asked = {**versions, **(features if reading or writing else {})}
    changed(table, protocol=asked, **({} if alone else json.loads(lines[-1])))
    found = written_on(table)
    assert bool(found) == bool(unknown)
    assert all(text in found for text in unknown)
    if unknown:
        with pytest.raises(TableChanged, match=unknown[0]):
            Table.open(table.location)


@pytest.mark.parametrize(
    ("column", "mapping", "unknown"),
    [
        ({"comment": "whose it is"}, "none", ""),
        ({"delta.invariants": "{}"}, "none", "invariants"),
        ({"delta.generationExpression": "1"}, "none", "generatedColumns"),
        ({"delta.identity.start": 1}, "none", "identityColumns"),
        ({}, "name", "columnMapping"),
    ],
)
def test_columns_that_another_makes_or_renames_are_named(
    tmp_path: Path, column: dict[str, Any], mapping: str, unknown: str
) -> None:
    table = Table.create(tmp_path / "table", TABLE_SCHEMA)
    metadata: dict[str, Any] = lines(table, 0)[-1]["metaData"]
    schema = json.loads(metadata["schemaString"])
    schema["fields"][0]["metadata"] = column
    metadata["configuration"]["delta.columnMapping.mode"] = mapping
    changed(table, metaData={**metadata, "schemaString": json.dumps(schema)})
    found = written_on(table)
    assert unknown in found and bool(found) == bool(unknown)


@pytest.mark.parametrize(
    ("schema", "by", "text"),
    [
        (TABLE_SCHEMA, ["day", "hour", "minute"], "no column 'hour'"),
        (
            pa.schema([pa.field("day", pa.date32()), pa.field("u", pa.float16())]),
            ["day"],
            "cannot hold this schema",
        ),
    ],
)
def test_a_table_which_cannot_be_is_one_line(
    tmp_path: Path, schema: pa.Schema, by: list[str], text: str
) -> None:
    with pytest.raises(ConfigurationError, match=text) as told:
        Table.create(tmp_path / "table", schema, by)
    assert "\n" not in str(told.value) and len(str(told.value)) < 400, "no backtrace of Rust"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("interval 6 hours", 6 * 3600),
        ("interval 2 days", 2 * 86_400),
        ("interval 1 week", 604_800),
        ("interval 90 seconds", 90),
        ("interval 5 minutes", 300),
        ("for ever", 6 * 3600),
        (None, 6 * 3600),
    ],
)
def test_a_log_is_kept_for_as_long_as_its_property_says(
    tmp_path: Path, text: str | None, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_table, "CHECKPOINT_EVERY", 1)
    monkeypatch.setattr(delta_table, "CLEAN_SECONDS", 0.0)
    properties = {} if text is None else {"delta.logRetentionDuration": text}
    begin = now = 1_700_000_000.0
    table = Table.create(tmp_path / "t", TABLE_SCHEMA, properties=properties, clock=lambda: now)
    first = Path(table.location, f"_delta_log/{0:020d}.json")
    place = None
    for offset, age in enumerate((0.0, seconds - 0.5, seconds + 0.5), 1):
        now = begin + age
        assert first.exists()
        table.commit([], {"a": Landed(offset)}, before={"a": place}, run=RUN)
        place = Landed(offset)
        for path in first.parent.iterdir():
            os.utime(path, (begin, begin))
        table.maintain()
    assert not first.exists()


def test_a_clock_that_is_ahead_of_the_stores_cleans_no_log_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_table, "CHECKPOINT_EVERY", 1)
    monkeypatch.setattr(delta_table, "CLEAN_SECONDS", 0.0)
    table = Table.create(tmp_path / "t", TABLE_SCHEMA, clock=lambda: time.time() + 31_536_000.0)
    for offset in range(1, 9):
        before = table.landed().get("a")
        table.commit([], {"a": Landed(offset)}, before={"a": before}, run=RUN)
        table.maintain()
    assert Table.open(tmp_path / "t", version=1).landed() == {"a": Landed(1)}
