"""``rewind`` sets a gateway back to what is proven, and what lands again is there once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.table.conftest import table_in
from tests.tools.tables import RUN, Gateway
from tests.tools.tables import counted_rows as rows
from tests.tools.tables import expected_rows as expected
from tests.tools.tables import land_gateways as land
from tests.tools.tables import opened_again as again
from twisted_msgproto.core.errors import TableError
from twisted_msgproto.queue import Landed, SegmentLog
from twisted_msgproto.table import gaps
from twisted_msgproto.table.actions import DataFile, Run
from twisted_msgproto.table.log import Table
from twisted_msgproto.table.rewind import rewind
from twisted_msgproto.table.verify import verify


@pytest.fixture(params=["local", "s3"])
def table(request: pytest.FixtureRequest) -> Table:
    return table_in(request)


def delta(table: Table) -> DeltaTable:
    return DeltaTable(table.location, storage_options=dict(table.storage.options))


def fill(table: Table, *gateways: Gateway, batches: int = 3) -> list[list[DataFile]]:
    """Batches of ten rows a gateway; the files of each."""
    found = []
    for _ in range(batches):
        for gateway in gateways:
            gateway.put(10 - gateway.rows % 10)
        found.append(land(table, *gateways))
    return found


def consumer(table: Table) -> str:
    """The name of a bridge's mark."""
    return f"spark-{table.table_id.replace('-', '')[:8]}"


def trimmed(gateway: Gateway) -> None:
    """The gateway starts, trims and ends."""
    log = SegmentLog(gateway.directory)
    log.trim()
    log.close()


def test_after_a_restore_the_place_is_what_the_rows_prove(table: Table, a: Gateway) -> None:
    fill(table, a)
    delta(table).restore(2)
    table.refresh()
    assert (table.landed()[a.id].offset, rows(table)) == (30, expected(a, 0, 20))
    plan = rewind(again(table), RUN, queues={a.id: a.reader})
    assert [(found.place.offset, found.removed) for found in plan.gateways] == [(20, 0)]
    table.refresh()
    assert table.landed()[a.id] == a.reader.place(20)
    land(table, a)
    assert rows(table) == expected(a, 0, 30)
    assert verify(table, {a.id: a.reader}).whole


def test_rows_behind_a_hole_go_in_the_version_which_sets_the_place(
    table: Table, a: Gateway, b: Gateway
) -> None:
    """What is landed again must not be in the table twice."""
    batches = fill(table, a, b, batches=4)
    [lost] = batches[1]
    table.storage.delete(lost.path)
    plan = rewind(again(table), RUN, queues={g.id: g.reader for g in (a, b)})
    assert {found.gateway: found.place.offset for found in plan.gateways} == {a.id: 10, b.id: 10}
    assert {found.removed for found in plan.gateways} == {20}
    table.refresh()
    assert plan.version == table.version
    assert rows(table) == expected(a, 0, 10) + expected(b, 0, 10)
    land(table, a, b)
    assert rows(table) == expected(a, 0, 40) + expected(b, 0, 40)
    assert verify(table).whole


def test_one_gateway_goes_back_and_the_others_rows_in_its_files_stay(
    table: Table, a: Gateway, b: Gateway
) -> None:
    fill(table, a, b)
    path = table.files()[0].path
    again_path = path.rpartition("/")[0] + "/again.parquet"
    filesystem = table.storage.filesystem()
    with filesystem.open_input_file(path) as source:
        read = pq.ParquetFile(source).read()
    mine = read.filter([g == a.id for g in read.column("gateway").to_pylist()]).slice(4, 2)
    with filesystem.open_output_stream(again_path) as stream:
        pq.write_table(mine, stream)
    twice = DataFile(again_path, table.storage.size(again_path), table.files()[0].partition)
    table.commit([twice], {}, before={}, run=RUN)
    offsets = mine.column("offset").to_pylist()
    assert verify(table).gateways[a.id].twice == [(offsets[0], offsets[-1] + 1)]
    plan = rewind(table, RUN, queues={a.id: a.reader}, gateways=[a.id])
    assert [found.place.offset for found in plan.gateways] == [offsets[0]]
    assert rows(table) == expected(a, 0, offsets[0]) + expected(b, 0, 30)
    land(table, a, b)
    assert rows(table) == expected(a, 0, 30) + expected(b, 0, 30)


@pytest.mark.parametrize("name", ["", "mine"])
def test_a_queue_does_not_forget_what_has_to_land_again(
    local: Table, a: Gateway, name: str
) -> None:
    """The mark of the bridge lets it trim what is in the table: until it is taken out there."""
    own = name or consumer(local)
    a.reader.register(own)
    batches = fill(local, a)
    # The gateway has not trimmed yet: it ended before.
    a.reader.commit(own, 30)
    local.storage.delete(batches[1][0].path)
    plan = rewind(again(local), RUN, queues={a.id: a.reader}, dry_run=True)
    assert a.reader.consumers() == {own: 30}
    plan = rewind(again(local), RUN, queues={a.id: a.reader})
    assert [(found.place.offset, found.removed) for found in plan.gateways] == [(10, 10)]
    trimmed(a)
    local.refresh()
    land(local, a)
    assert rows(local) == expected(a, 0, 30)


def test_what_was_trimmed_while_the_rows_were_looked_for_stays_in_the_table(
    local: Table, a: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = consumer(local)
    a.reader.register(own)
    batches = fill(local, a)
    a.reader.commit(own, 30)
    local.storage.delete(batches[1][0].path)
    reader = a.reader
    placed = reader.place

    def place_then_trim(offset: int) -> Landed:
        found = placed(offset)
        trimmed(a)
        return found

    monkeypatch.setattr(reader, "place", place_then_trim)
    version = local.version
    with pytest.raises(TableError, match="trimmed meanwhile"):
        rewind(again(local), RUN, queues={a.id: reader})
    assert again(local).version == version


def test_a_whole_table_needs_no_queue_and_keeps_its_places(table: Table, a: Gateway) -> None:
    fill(table, a)
    landed, version = table.landed(), table.version
    plan = rewind(table, RUN)
    assert (plan.version, table.landed()) == (version + 1, landed)
    assert rows(table) == expected(a, 0, 30)


def test_where_a_transform_drops_rows_a_table_that_lost_its_last_ones_needs_the_queue__TB_05(
    local: Table, a: Gateway
) -> None:
    """TB-05: rows which went with a restore cannot be told from dropped ones."""
    fill(local, a)
    notes = {gaps.DROPPING_PREFIX + a.id: 0}
    local.replace([], [], run=RUN, notes=notes)
    delta(local).restore(2)
    with pytest.raises(TableError, match="whole up to offset 20 of 30; --queue"):
        rewind(again(local), RUN)
    plan = rewind(again(local), RUN, queues={a.id: a.reader})
    assert [found.place.offset for found in plan.gateways] == [20]


def test_what_is_not_whole_needs_the_queue(local: Table, a: Gateway) -> None:
    batches = fill(local, a)
    local.storage.delete(batches[1][0].path)
    with pytest.raises(TableError, match=r"whole up to offset 10 of 30; --queue names its queue"):
        rewind(local, RUN)


def test_nothing_goes_below_the_begin_of_the_queue(local: Table, a: Gateway) -> None:
    batches = fill(local, a)
    local.storage.delete(batches[1][0].path)
    a.reader.register("test")
    a.reader.commit("test", 20)
    trimmed(a)
    before = local.version
    with pytest.raises(TableError, match=r"whole up to offset 10, and its queue begins at 20"):
        rewind(local, RUN, queues={a.id: a.reader})
    assert again(local).version == before


def test_rows_which_the_queue_cannot_give_again_go_only_when_that_is_said(
    table: Table, a: Gateway, tmp_path: Path
) -> None:
    """TB-06: a queue restored from an older copy, and written on."""
    fill(table, a, batches=1)
    a.put(4)
    shutil.copytree(a.directory, tmp_path / "copy")
    a.put(6)
    land(table, a)
    restored = Gateway.at(tmp_path / "copy")
    restored.put(20, day=1)
    report = verify(table, {a.id: restored.reader})
    assert not report.whole
    with pytest.raises(TableError, match=r"6 rows from offset 14 on are in this table alone"):
        rewind(table, RUN, queues={a.id: restored.reader})
    assert rows(table) == expected(a, 0, 20)
    plan = rewind(table, RUN, queues={a.id: restored.reader}, discard_rows=True)
    [found] = plan.gateways
    assert (found.place.offset, found.removed, found.lost) == (14, 6, 6)
    land(table, restored)
    assert rows(table) == expected(a, 0, 34)
    assert verify(table, {a.id: restored.reader}).whole


def test_a_queue_which_was_restored_and_not_written_on(
    local: Table, a: Gateway, tmp_path: Path
) -> None:
    fill(local, a, batches=1)
    shutil.copytree(a.directory, tmp_path / "copy")
    fill(local, a, batches=1)
    restored = Gateway.at(tmp_path / "copy")
    with pytest.raises(TableError, match=r"10 rows from offset 10 on are in this table alone"):
        rewind(local, RUN, queues={a.id: restored.reader})


def test_a_bridge_which_lands_meanwhile_is_not_overrun(
    local: Table, a: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = fill(local, a)
    local.storage.delete(batches[1][0].path)
    bridge = again(local)
    reader = a.reader
    placed = reader.place

    def land_then_place(offset: int) -> Landed:
        a.put(5)
        land(bridge, a)
        return placed(offset)

    monkeypatch.setattr(reader, "place", land_then_place)
    with pytest.raises(TableError, match=r"moved gateway .*stop the bridge of this table"):
        rewind(again(local), Run("0ther", "there", 18), queues={a.id: reader})
    assert again(local).landed()[a.id].offset == 35


def test_rewinding_twice_changes_nothing_more(local: Table, a: Gateway) -> None:
    batches = fill(local, a)
    local.storage.delete(batches[1][0].path)
    would = rewind(local, RUN, queues={a.id: a.reader}, dry_run=True)
    assert (would.version, would.gateways[0].place.offset, would.gateways[0].removed) == (
        None,
        10,
        10,
    )
    assert again(local).version == local.version
    rewind(local, RUN, queues={a.id: a.reader})
    plan = rewind(local, RUN, queues={a.id: a.reader})
    assert (plan.gateways[0].place.offset, plan.gateways[0].removed, plan.files) == (10, 0, [])
