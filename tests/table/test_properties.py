"""Which tables this package makes, and which changes of a table stop its writers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.tools.tables import RUN, TABLE_SCHEMA
from twisted_msgproto.core.errors import ConfigurationError, TableChanged
from twisted_msgproto.queue.lineage import Landed
from twisted_msgproto.table import log
from twisted_msgproto.table.log import Table


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
        ((1, 7, [], ["appendOnly"]), ["reader version 1, writer version 7"]),
        ((2, 5, [], []), ["reader version 2, writer version 5"]),
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
    with pytest.raises(ConfigurationError, match=text):
        Table.create(tmp_path / "table", schema, by)


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
    monkeypatch.setattr(log, "CHECKPOINT_EVERY", 1)
    monkeypatch.setattr(log, "CLEAN_SECONDS", 0.0)
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
