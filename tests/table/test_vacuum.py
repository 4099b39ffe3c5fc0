"""Vacuum removes what nobody needs, and nothing which somebody reads or is about to commit."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from types import SimpleNamespace

import pytest
from deltalake import DeltaTable

from tests.table.conftest import table_in
from tests.tools.tables import RUN, Gateway
from tests.tools.tables import counted_rows as rows
from tests.tools.tables import expected_rows as expected
from tests.tools.tables import land_gateways as land
from twisted_msgproto.core.errors import TableError
from twisted_msgproto.table import retention as module
from twisted_msgproto.table.compact import compact
from twisted_msgproto.table.landing import Target, land_ranges
from twisted_msgproto.table.log import Table
from twisted_msgproto.table.plan import Range
from twisted_msgproto.table.retention import expire, vacuum
from twisted_msgproto.table.verify import verify

DAY = 86_400.0


@pytest.fixture(params=["local", "s3"])
def table(request: pytest.FixtureRequest) -> Table:
    return table_in(request)


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


def test_files_which_were_replaced_go_a_day_later(table: Table, a: Gateway) -> None:
    fill(table, a)
    old = [file.path for file in table.files()]
    compact(table, RUN)
    assert vacuum(table).paths == []
    done = vacuum(table, clock=tomorrow)
    assert done.paths == sorted(old)
    assert done.bytes > 0
    assert not any(exists(table, path) for path in old)
    assert rows(table) == expected(a, 0, 21)
    assert verify(table).whole
    assert vacuum(table, clock=tomorrow).paths == []


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


def test_a_full_disk_can_be_vacuumed(table: Table, a: Gateway) -> None:
    """The time of the disk is asked without an octet of room."""
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


def test_a_file_that_is_gone_is_not_committed__TB_01(table: Table, a: Gateway) -> None:
    """TB-01: another program's vacuum may keep nothing.  The batch is landed anew."""
    place = a.reader.place(1)
    target = Target(table.location, dict(table.storage.options), table.schema, table.partition_by)
    part = Range(str(a.directory), a.id, 0, 1, place)
    files = land_ranges(target, [part], lambda part: a.reader).files
    table.storage.delete(files[0].path)
    with pytest.raises(TableError, match=r"part-.* of .* was removed before it was committed"):
        table.commit(files, {a.id: place}, before={a.id: None}, run=RUN)
    assert table.refresh() == []
    land(table, a)
    assert rows(table) == expected(a, 0, 1)


def test_expired_files_go_a_day_later(table: Table, a: Gateway) -> None:
    fill(table, a)
    expire(table, date(2023, 11, 16), RUN)
    assert len(vacuum(table, clock=tomorrow).paths) == 2
    assert verify(table).whole


def test_a_file_which_went_out_just_now_stays_however_old_it_is(local: Table, a: Gateway) -> None:
    fill(local, a)
    old = [file.path for file in local.files()]
    for path in old:
        os.utime(Path(local.location, path), (1e9, 1e9))
    compact(local, RUN)
    assert vacuum(local).paths == []


@pytest.mark.parametrize("cleaned", [False, True])
def test_what_went_out_is_known_from_a_checkpoint_too(
    local: Table, a: Gateway, cleaned: bool
) -> None:
    fill(local, a)
    old = [file.path for file in local.files()]
    for path in old:
        os.utime(Path(local.location, path), (1e9, 1e9))
    compact(local, RUN)
    DeltaTable(local.location).create_checkpoint()
    if cleaned:
        for path in Path(local.location, "_delta_log").glob("*.json"):
            path.unlink()
    fresh = Table.open(local.location)
    assert vacuum(fresh).paths == []
    assert vacuum(fresh, clock=tomorrow).paths == sorted(old)


def test_a_torn_version_is_no_leave_to_remove(local: Table, a: Gateway) -> None:
    fill(local, a)
    compact(local, RUN)
    files = sorted(Path(local.location).rglob("*.parquet"))
    second = Path(local.location, "_delta_log", f"{2:020d}.json")
    second.write_bytes(second.read_bytes()[:-20])
    with pytest.raises(TableError, match=r"version 2 of .* is torn"):
        vacuum(local, clock=tomorrow)
    assert sorted(Path(local.location).rglob("*.parquet")) == files


def test_a_torn_checkpoint_is_no_leave_to_remove(local: Table, a: Gateway) -> None:
    fill(local, a)
    compact(local, RUN)
    DeltaTable(local.location).create_checkpoint()
    [checkpoint] = Path(local.location, "_delta_log").glob("*.parquet")
    checkpoint.write_bytes(b"PAR1")
    with pytest.raises(TableError, match="is torn"):
        vacuum(local, clock=tomorrow)


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


def test_vacuum_syncs_what_took_the_place_before_it_removes(
    local: Table, a: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(local, a)
    DeltaTable(local.location).optimize.compact()
    steps: list[str] = []
    disk = type(local.storage.disk)  # type: ignore[attr-defined]
    sync, remove = disk.sync, disk.remove
    monkeypatch.setattr(disk, "sync", lambda self, p: (steps.append(f"sync {p}"), sync(self, p)))
    monkeypatch.setattr(
        disk, "remove", lambda self, p: (steps.append(f"remove {p}"), remove(self, p))
    )
    fresh = Table.open(local.location)
    new = [str(Path(local.location, file.path)) for file in fresh.files()]
    assert len(vacuum(fresh, clock=tomorrow).paths) == 4
    first = next(n for n, step in enumerate(steps) if step.startswith("remove"))
    assert {f"sync {path}" for path in new} <= set(steps[:first])
