"""``counts`` tells what is in a table, from statistics where they suffice."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tools.upkept import RUN, Gateway, create, land
from twisted_msgproto.core.errors import TableError
from twisted_msgproto.table import counts as counting
from twisted_msgproto.table.counts import counts


@pytest.mark.parametrize("partition_by", [("day",), ("protocol", "day")])
def test_rows_by_gateway_protocol_and_day(tmp_path: Path, partition_by: tuple[str, ...]) -> None:
    table = create(tmp_path / "table", partition_by=partition_by)
    a, b = Gateway(tmp_path / "a"), Gateway(tmp_path / "b")
    a.put(10, protocol="umq")
    b.put(4)
    land(table, a, b)
    b.put(3, day=1)
    land(table, a, b)
    found = counts(table)
    assert (found.rows, found.files) == (19, len(table.files()))
    of_a, of_b = found.gateways[a.id], found.gateways[b.id]
    assert (of_a.landed, of_a.begin, of_a.rows) == (11, 0, 11)
    assert of_a.protocols == {"lumberjack": 1, "umq": 10}
    assert of_a.days == {"2023-11-15": 11}
    assert of_b.protocols == {"lumberjack": 8}
    assert of_b.days == {"2023-11-15": 5, "2023-11-16": 3}
    assert of_b.files == 2


def test_a_gateway_without_rows_is_named(tmp_path: Path) -> None:
    table, a = create(tmp_path / "table"), Gateway(tmp_path / "a")
    files = land(table, a)
    table.replace(files, [], run=RUN, data_change=True)
    found = counts(table).gateways[a.id]
    assert (found.landed, found.begin, found.rows, found.files) == (1, None, 0, 0)


def test_files_whose_statistics_suffice_are_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, a = create(tmp_path / "table"), Gateway(tmp_path / "a")
    a.put(9)
    [file] = land(table, a)
    values = {"gateway": a.id, "offset": 0, "protocol": "lumberjack"}
    statistics = {"numRecords": 10, "minValues": values, "maxValues": values | {"offset": 9}}
    known = replace(file, path=file.path, statistics=json.dumps(statistics))
    monkeypatch.setattr(table, "files", lambda: [known])
    monkeypatch.delattr(counting, "read_footer")
    found = counts(table).gateways[a.id]
    assert (found.rows, found.begin, found.protocols) == (10, 0, {"lumberjack": 10})


def test_a_lost_file_is_one_line(tmp_path: Path) -> None:
    table, a = create(tmp_path / "table"), Gateway(tmp_path / "a")
    [file] = land(table, a)
    table.storage.delete(file.path)
    with pytest.raises(TableError, match="it is missing; 'msgproto table verify'"):
        known = [replace(file, statistics="")]
        table.files = lambda: known  # type: ignore[method-assign]
        counts(table)
