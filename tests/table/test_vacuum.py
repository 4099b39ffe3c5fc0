"""Vacuum removes what nobody needs, and nothing which somebody reads or is about to commit.

``rewind`` sets a gateway back to what is proven, and what lands again is there once.
"""

from __future__ import annotations

import os
import resource
import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.table.conftest import both
from tests.tools.loops import finish, loop_over
from tests.tools.tables import RUN, Gateway, check_sum, delta, stored_file, tear_column
from tests.tools.tables import counted_rows as rows
from tests.tools.tables import create_table as create
from tests.tools.tables import expected_rows as expected
from tests.tools.tables import land_gateways as land
from tests.tools.tables import opened_again as again
from twisted_msgproto import cli
from twisted_msgproto.core.errors import TableError
from twisted_msgproto.queue import Landed
from twisted_msgproto.table import gaps
from twisted_msgproto.table import retention as module
from twisted_msgproto.table.actions import DataFile, Run
from twisted_msgproto.table.compact import compact
from twisted_msgproto.table.delta_table import Table
from twisted_msgproto.table.proof import verify
from twisted_msgproto.table.retention import expire, vacuum
from twisted_msgproto.table.rewind import rewind
from twisted_msgproto.table.shape import Shape

DAY = 86_400.0


def tomorrow() -> float:
    return time.time() + DAY + 60


def fill(table: Table, a: Gateway, batches: int = 4) -> None:
    for number in range(batches):
        a.put(5, day=number * 2 // batches)
        land(table, a)


def put(table: Table, path: str) -> None:
    """A file which no log names."""
    with table.storage.filesystem().open_output_stream(path) as stream:
        stream.write(b"left behind")


def exists(table: Table, path: str) -> bool:
    try:
        table.storage.size(path)
    except FileNotFoundError:
        return False
    return True


@pytest.mark.parametrize("expiry", [False, True], ids=["replaced", "expired"])
def test_files_which_went_out_go_a_day_later(table: Table, a: Gateway, expiry: bool) -> None:
    fill(table, a)
    before = {file.path for file in table.files()}
    expire(table, date(2023, 11, 16), RUN) if expiry else compact(table, RUN)
    old = before - {file.path for file in table.files()}
    assert vacuum(table).paths == []
    done = vacuum(table, clock=tomorrow)
    assert done.paths == sorted(old) and len(old) == (2 if expiry else 4)
    assert done.bytes > 0
    assert not any(exists(table, path) for path in old)
    assert rows(table) == expected(a, 11 if expiry else 0, 21)
    assert verify(table).intact
    assert vacuum(table, clock=tomorrow).paths == []


@both
def test_orphans_go_a_day_later_and_not_before(table: Table, a: Gateway) -> None:
    fill(table, a)
    orphan = f"{table.files()[0].path.rpartition('/')[0]}/part-orphan.parquet"
    put(table, orphan)
    assert vacuum(table).paths == []
    assert vacuum(table, clock=tomorrow, dry_run=True).paths == [orphan]
    assert exists(table, orphan)
    assert vacuum(table, clock=tomorrow).paths == [orphan]
    assert not exists(table, orphan)
    assert rows(table) == expected(a, 0, 21)


@both
def test_files_of_another_table_below_this_one_are_its_own(table: Table, a: Gateway) -> None:
    """They were orphans of the outer one: a day later all of its rows were gone."""
    fill(table, a)
    inner = create(f"{table.storage.location}/inner/most", storage=table.storage.options)
    fill(inner, a)
    put(table, "inner/part-orphan.parquet")
    assert vacuum(table, clock=tomorrow).paths == ["inner/part-orphan.parquet"]
    assert verify(again(inner)).intact and rows(inner) == expected(a, 0, 41)


def test_files_behind_a_link_to_a_folder_stay(local: Table, a: Gateway, tmp_path: Path) -> None:
    """They are the table's own, as in ``latest``, or those of others; two that lead back to
    where they stand had no end.
    """
    fill(local, a)
    for name in ("here", "there"):
        (Path(local.storage.location) / name).symlink_to(".")
    live = tmp_path / local.storage.location / local.files()[0].path
    (Path(local.storage.location) / "latest").symlink_to(live.parent)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "own.parquet").write_bytes(b"of others")
    (Path(local.storage.location) / "other").symlink_to(elsewhere)
    assert vacuum(local, clock=tomorrow).paths == []
    assert verify(local).intact and (elsewhere / "own.parquet").exists()


@both
@pytest.mark.parametrize("wrong", [tomorrow, lambda: 1e9], ids=["ahead", "behind"])
def test_files_of_a_running_batch_stay_where_the_clock_is_wrong__TB_01(
    table: Table, a: Gateway, wrong: Callable[[], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """TB-01: a bridge has written them and is about to commit them."""
    fill(table, a)
    monkeypatch.setattr(module, "time", SimpleNamespace(time=wrong))
    fresh = f"{table.files()[0].path.rpartition('/')[0]}/part-fresh.parquet"
    put(table, fresh)
    assert vacuum(table).paths == []
    assert exists(table, fresh)
    assert not [name for name in table.storage.log_names() if name.endswith(".tmp")]


def test_days_that_are_kept_stay_where_the_clock_is_ahead(
    local: Table, a: Gateway, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    days = (datetime.now(UTC).date() - date(2023, 11, 15)).days
    a.put(5, day=days)
    land(local, a)
    ahead = SimpleNamespace(time=lambda: time.time() + 366 * 86_400)
    monkeypatch.setattr(module, "time", ahead)
    assert cli.main(["table", "expire", local.location, "--keep", "30d"]) == 0
    assert "took out 1 days before" in capsys.readouterr().out
    assert rows(local) == expected(a, 1, 6)


@both
def test_a_full_disk_can_be_vacuumed(table: Table, a: Gateway) -> None:
    """The time of the disk is asked without a byte of room."""
    fill(table, a)
    orphan = f"{table.files()[0].path.rpartition('/')[0]}/part-orphan.parquet"
    put(table, orphan)
    old = [orphan] if table.storage.local else []
    for path in old:
        os.utime(os.path.join(table.location, path), (0, 0))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        removed = vacuum(table).paths
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert removed == old


@pytest.mark.parametrize("log", ["versions", "a checkpoint too", "a checkpoint alone"])
def test_a_file_which_went_out_just_now_stays_however_old_it_is(
    local: Table, a: Gateway, log: str
) -> None:
    fill(local, a)
    old = [file.path for file in local.files()]
    for path in old:
        os.utime(Path(local.location, path), (1e9, 1e9))
    compact(local, RUN)
    if log != "versions":
        DeltaTable(local.location).create_checkpoint()
    if log == "a checkpoint alone":
        for version in Path(local.location, "_delta_log").glob("*.json"):
            version.unlink()
    fresh = Table.open(local.location)
    assert vacuum(fresh).paths == []
    assert vacuum(fresh, clock=tomorrow).paths == sorted(old)


@pytest.mark.parametrize("name", ["*2.json", "*.checkpoint.parquet"])
def test_a_torn_log_is_no_leave_to_remove(local: Table, a: Gateway, name: str) -> None:
    fill(local, a)
    compact(local, RUN)
    DeltaTable(local.location).create_checkpoint()
    files = sorted(Path(local.location).rglob("*.parquet"))
    [torn] = Path(local.location, "_delta_log").glob(name)
    torn.write_bytes(torn.read_bytes()[:-20])
    with pytest.raises(TableError, match="is torn"):
        vacuum(local, clock=tomorrow)
    assert sorted(Path(local.location).rglob("*.parquet")) == files


def test_a_file_which_is_committed_while_we_look_stays(local: Table, a: Gateway) -> None:
    """Another writer's commit after our last refresh is seen before anything goes."""
    other = Table.open(local.location)
    fill(other, a)
    done = vacuum(local, clock=tomorrow)
    assert done.paths == []
    assert rows(local) == expected(a, 0, 21)


def test_rests_of_commits_and_checksums_go_and_other_files_stay(local: Table, a: Gateway) -> None:
    fill(local, a)
    [kept, *_] = [file.path for file in local.files()]
    folder, _, name = kept.rpartition("/")
    stay = [
        f"{folder}/.{name}.crc",
        f"{folder}/README.txt",
        "notes.parquet.txt",
        "_spark_metadata/x.parquet",
        ".hidden/x.parquet",
        "_delta_log/_last_checkpoint",
    ]
    go = [
        "_delta_log/_commit_0123.json.tmp",
        f"{folder}/.part-gone.parquet.crc",
        f"{folder}/part-gone.parquet",
        "stray.parquet",
    ]
    for path in [*stay, *go]:
        Path(local.location, path).parent.mkdir(exist_ok=True)
        put(local, path)
    assert vacuum(local, clock=tomorrow).paths == sorted(go)
    assert all(exists(local, path) for path in stay)
    assert not any(exists(local, path) for path in go)
    assert rows(local) == expected(a, 0, 21)


def fill_together(table: Table, *gateways: Gateway, batches: int = 3) -> list[list[DataFile]]:
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


@both
def test_after_a_restore_the_place_is_what_the_rows_prove(table: Table, a: Gateway) -> None:
    fill_together(table, a)
    delta(table).restore(2)
    table.refresh()
    assert (table.landed()[a.id].offset, rows(table)) == (30, expected(a, 0, 20))
    plan = rewind(again(table), RUN, queues={a.id: a.reader})
    assert [(found.place.offset, found.removed) for found in plan.gateways] == [(20, 0)]
    table.refresh()
    assert table.landed()[a.id] == a.reader.place(20)
    land(table, a)
    assert rows(table) == expected(a, 0, 30)
    assert verify(table, {a.id: a.reader}).intact


def test_rows_of_which_one_column_is_torn_land_again(local: Table, a: Gateway) -> None:
    fill(local, a)
    tear_column(local, local.files()[1], "body")
    rewind(again(local), RUN, queues={a.id: a.reader})
    land(again(local), a)
    assert rows(local) == expected(a, 0, 21)
    assert verify(again(local), every_column=True).intact


def test_one_gateway_goes_back_and_the_others_rows_in_its_files_stay(
    table: Table, a: Gateway, b: Gateway
) -> None:
    fill_together(table, a, b)
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
    batches = fill_together(local, a)
    # The gateway has not trimmed yet: it ended before.
    a.reader.commit(own, 30)
    local.storage.delete(batches[1][0].path)
    plan = rewind(again(local), RUN, queues={a.id: a.reader}, dry_run=True)
    assert a.reader.consumers() == {own: 30}
    plan = rewind(again(local), RUN, queues={a.id: a.reader})
    assert [(found.place.offset, found.removed) for found in plan.gateways] == [(10, 10)]
    a.trim()
    local.refresh()
    land(local, a)
    assert rows(local) == expected(a, 0, 30)


def test_what_was_trimmed_while_the_rows_were_looked_for_stays_in_the_table(
    local: Table, a: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = consumer(local)
    a.reader.register(own)
    batches = fill_together(local, a)
    a.reader.commit(own, 30)
    local.storage.delete(batches[1][0].path)
    reader = a.reader
    placed = reader.place

    def place_then_trim(offset: int) -> Landed:
        found = placed(offset)
        a.trim()
        return found

    monkeypatch.setattr(reader, "place", place_then_trim)
    version = local.version
    with pytest.raises(TableError, match="trimmed meanwhile"):
        rewind(again(local), RUN, queues={a.id: reader})
    assert again(local).version == version


def test_a_whole_table_needs_no_queue_and_keeps_its_places(table: Table, a: Gateway) -> None:
    fill_together(table, a)
    landed, version = table.landed(), table.version
    plan = rewind(table, RUN)
    assert (plan.version, table.landed()) == (version + 1, landed)
    assert rows(table) == expected(a, 0, 30)
    # The rows above a place may be in the queue, too.
    table.commit([stored_file(table, a.id, 30, 33)], {}, before={}, run=RUN)
    with pytest.raises(TableError, match="intact up to offset 30 of 30; --queue names its queue"):
        rewind(again(table), RUN)


def test_where_a_transform_drops_rows_a_table_that_lost_its_last_ones_needs_the_queue__TB_05(
    local: Table, a: Gateway
) -> None:
    """TB-05: rows which went with a restore cannot be told from dropped ones."""
    fill_together(local, a)
    notes = {gaps.DROPPING_PREFIX + a.id: 0}
    local.replace([], [], run=RUN, notes=notes)
    delta(local).restore(2)
    with pytest.raises(TableError, match="intact up to offset 20 of 30; --queue"):
        rewind(again(local), RUN)
    plan = rewind(again(local), RUN, queues={a.id: a.reader})
    assert [found.place.offset for found in plan.gateways] == [20]


@pytest.mark.parametrize("more", [False, True], ids=["one", "and one that stays"])
@pytest.mark.parametrize("shared", [False, True], ids=["of one gateway", "of two"])
def test_a_lost_file_whose_rows_no_queue_has_goes_with_its_day(
    local: Table, a: Gateway, b: Gateway, shared: bool, more: bool
) -> None:
    """Nothing goes below the begin of the queue.  The days expired, and rows of days that were
    gone were missing for ever: neither rewind nor derive could be used any more.
    """
    gateways = [a, b] if shared else [a]
    batches = []
    for day in (0, 0, 1, 1):
        for each in gateways:
            each.put(10 - each.rows % 10, day=day)
        batches += land(local, *gateways)
    local.storage.delete(batches[1].path)
    if more:
        local.storage.delete(batches[2].path)
    for each in gateways:
        each.reader.register("test")
        each.reader.commit("test", 30)
        each.trim()
    before, queues = local.version, {each.id: each.reader for each in gateways}
    line = r"intact up to offset 10, and its queue begins at 30: .*, expire their day, or land"
    with pytest.raises(TableError, match=line):
        rewind(local, RUN, queues=queues)
    assert again(local).version == before
    done = expire(again(local), date(2023, 11, 16), RUN)
    assert done.gateways == {each.id: [(0, 20)] for each in gateways}
    report = verify(again(local))
    missing = [(20, 30)] if more else []
    assert {tuple(found.missing) for found in report.gateways.values()} == {tuple(missing)}
    assert report.intact is not more
    if not more:
        rewind(again(local), RUN, queues=queues)
        assert rows(local) == sum((expected(each, 20, 40) for each in gateways), Counter())


@pytest.mark.parametrize("named", [True, False], ids=["a lost file", "no file"])
def test_what_another_gateway_misses_is_not_of_a_lost_file(
    local: Table, a: Gateway, b: Gateway, named: bool
) -> None:
    """Each counts from 0: it kept rows from expiring, or was noted as expired with them."""
    a.put(20)
    [old] = land(local, a)
    b.put(10, day=1)
    [_, later] = sorted(land(local, b), key=lambda file: file.partition["day"] or "")
    local.storage.delete(old.path)
    local.storage.delete(later.path)
    if not named:
        local.replace([later], [], run=RUN)
    done = expire(again(local), date(2023, 11, 16), RUN)
    assert done.gateways == {a.id: [(0, 21)], b.id: [(0, 1)]}
    found = verify(again(local)).gateways
    assert (found[a.id].missing, found[b.id].missing) == ([], [(1, 11)])


def test_where_rows_are_left_out_those_of_a_lost_file_expire_by_their_number(
    local: Table, a: Gateway
) -> None:
    for day in (0, 1):
        a.put(5, day=day, protocol="umq")
        a.put(5, day=day)
        loop = loop_over(again(local), [a.directory])
        loop.target = replace(loop.target, shape=Shape((("protocol", ("lumberjack",)),)))
        loop.run()
        finish(loop)
    [lost, stays] = sorted(again(local).files(), key=lambda file: file.modified)
    local.storage.delete(lost.path)
    assert not verify(again(local)).intact
    other = Path(local.location, stays.path)
    content = other.read_bytes()
    other.unlink()
    assert expire(again(local), date(2023, 11, 16), RUN, dry_run=True).rows == 0
    other.write_bytes(content)
    done = expire(again(local), date(2023, 11, 16), RUN)
    assert (done.rows, done.uncounted) == (6, {a.id: 6})
    found = check_sum(local, a)
    assert (found.rows, found.expired_rows, found.left_out) == (5, 6, 10)


@both
def test_rows_which_the_queue_cannot_give_again_go_only_when_that_is_said(
    table: Table, a: Gateway, tmp_path: Path
) -> None:
    """TB-06: a queue restored from an older copy, and written on."""
    fill_together(table, a, batches=1)
    a.put(4)
    shutil.copytree(a.directory, tmp_path / "copy")
    a.put(6)
    land(table, a)
    restored = Gateway.at(tmp_path / "copy")
    restored.put(20, day=1)
    report = verify(table, {a.id: restored.reader})
    [line] = report.findings()
    assert not report.intact
    assert line.startswith(f"not its queue: gateway {a.id} row 19 of the queue")
    with pytest.raises(TableError, match=r"6 rows from offset 14 on are in this table alone"):
        rewind(table, RUN, queues={a.id: restored.reader})
    assert rows(table) == expected(a, 0, 20)
    plan = rewind(table, RUN, queues={a.id: restored.reader}, discard_rows=True)
    [found] = plan.gateways
    assert (found.place.offset, found.removed, found.lost) == (14, 6, 6)
    land(table, restored)
    assert rows(table) == expected(a, 0, 34)
    assert verify(table, {a.id: restored.reader}).intact


def test_a_queue_which_was_restored_and_not_written_on(
    local: Table, a: Gateway, tmp_path: Path
) -> None:
    fill_together(local, a, batches=1)
    shutil.copytree(a.directory, tmp_path / "copy")
    fill_together(local, a, batches=1)
    restored = Gateway.at(tmp_path / "copy")
    with pytest.raises(TableError, match=r"10 rows from offset 10 on are in this table alone"):
        rewind(local, RUN, queues={a.id: restored.reader})


def test_a_bridge_which_lands_meanwhile_is_not_overrun(
    local: Table, a: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = fill_together(local, a)
    local.storage.delete(batches[1][0].path)
    bridge = again(local)
    reader = a.reader
    placed = reader.place

    def land_then_place(offset: int) -> Landed:
        a.put(5)
        land(bridge, a)
        return placed(offset)

    monkeypatch.setattr(reader, "place", land_then_place)
    with pytest.raises(TableError, match=r"moved gateway .*stop what writes this table"):
        rewind(again(local), Run("0ther", "there", 18), queues={a.id: reader})
    assert again(local).landed()[a.id].offset == 35
