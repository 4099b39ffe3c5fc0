"""The bridge's loop without Java: killed at every step, with the power cut, against other bridges,
over restored tables and restored queues.  What lands is exact, or refused in one line.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.spark.conftest import damage_record, fill, identity, messages, write
from tests.tools.loops import drain, exactly, finish, landed_offsets, loop_over, places, run_here
from tests.tools.power import Killed, PowerDisk
from twisted_msgproto.core.errors import (
    Overtaken,
    QueueError,
    QueueMismatch,
    RewindNeeded,
    TableError,
)
from twisted_msgproto.queue import QueueReader
from twisted_msgproto.queue.columns import encode
from twisted_msgproto.queue.log import SegmentLog
from twisted_msgproto.spark.jobs import open_range
from twisted_msgproto.spark.loop import Pace
from twisted_msgproto.table import starting
from twisted_msgproto.table.actions import Run
from twisted_msgproto.table.landing import (
    TABLE_SCHEMA,
    LandedRanges,
    Range,
    Target,
    land_ranges,
    merged,
)
from twisted_msgproto.table.log import Table

PATIENCE = 60.0
"""How long a test waits for what must happen."""


def marks_are_behind_the_table(table: Path, queue: Path) -> None:
    """No gateway may trim what the table does not have."""
    place = places(table).get(identity(queue)) if (table / "_delta_log").exists() else None
    for offset in QueueReader(queue).consumers().values():
        assert offset <= (0 if place is None else place.offset)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "table"


# -- the ordinary course ---------------------------------------------------------------------------


def test_queues_land_and_their_marks_follow(table: Path, queue: Path, tmp_path: Path) -> None:
    write(tmp_path / "second", messages(0, 70))
    loop = drain(table, [queue, tmp_path / "second"])
    exactly(table, queue, tmp_path / "second")
    consumer = starting.consumer_name(Table.open(table).table_id)
    assert QueueReader(queue).consumers() == {consumer: 1500}
    assert QueueReader(tmp_path / "second").consumers() == {consumer: 70}
    assert (loop.progress.batches, loop.progress.rows) == (1, 1570)


def test_a_commit_says_what_its_files_hold(table: Path, queue: Path) -> None:
    damage_record(queue, b'{"n":777}')
    said: list[str] = []
    loop = drain(table, [queue], say=said.append)
    entry = Table.open(table)
    [first, *_] = [
        json.loads(line)
        for line in (table / "_delta_log" / f"{entry.version:020}.json").read_text().splitlines()
    ]
    assert first["commitInfo"]["msgproto"]["info"]["gateways"] == {
        identity(queue): {"lo": 0, "hi": 1500, "rows": 1200, "damaged": [[600, 900]]}
    }
    assert loop.progress.skipped == 300
    [line] = [line for line in said if "damaged" in line]
    assert "skipped 300 damaged rows" in line
    assert "(offsets 600..899)" in line


def test_a_kill_does_not_make_rows_damaged__TB_08(table: Path, queue: Path) -> None:
    """TB-08: "20000 damaged rows" although nothing was."""
    dying = killed_table(table, 6)
    with pytest.raises(Killed):
        drain(dying, [queue], runner=run_on(dying))
    loop = drain(table, [queue])
    assert loop.progress.skipped == 0
    exactly(table, queue)


# -- kills and power cuts --------------------------------------------------------------------------


def killed_table(table: Path, step: int | None) -> Table:
    """The table with a disk that dies; a new one is made on a good disk first."""
    if not (table / "_delta_log").exists():
        Table.create(table, TABLE_SCHEMA)
    return Table.open_for_writing(table, disk=PowerDisk(table, step))


def run_on(table: Table) -> Callable[[Target, Sequence[Sequence[Range]]], LandedRanges]:
    """Tasks which write through the table's own disk, so that their syncs are seen."""

    def run(target: Target, tasks: Sequence[Sequence[Range]]) -> LandedRanges:
        return merged(land_ranges(target, part, open_range, table.storage) for part in tasks)

    return run


def disk_of(table: Table) -> PowerDisk:
    disk: PowerDisk = table.storage.disk  # type: ignore[attr-defined]
    return disk


def steps_of_a_drain(tmp_path: Path) -> int:
    queue = tmp_path / "counted"
    fill(queue)
    table = killed_table(tmp_path / "counted-table", None)
    drain(table, [queue], runner=run_on(table), pace=Pace(trigger=0, once=True, rows_max=600))
    return disk_of(table).steps


@pytest.mark.parametrize("end", ["kill", "cut", "torn"])
def test_killed_before_any_step_it_lands_every_row_once__TB_01_TB_02(
    tmp_path: Path, end: str
) -> None:
    """TB-01, TB-02: kill or power cut before every write, sync, link and folder of three batches.

    After each, a new start lands the rest; a mark is never ahead of what survived.
    """
    steps = steps_of_a_drain(tmp_path)
    assert steps > 15
    for step in range(steps + 1):
        table, queue = tmp_path / f"table{step}", tmp_path / f"queue{step}"
        fill(queue)  # a copy's first writer waits
        dying = killed_table(table, step)
        loop = loop_over(
            dying, [queue], runner=run_on(dying), pace=Pace(trigger=0, once=True, rows_max=600)
        )
        try:
            loop.run()
            assert step == steps
        except Killed:
            pass
        finish(loop)
        if end != "kill":
            disk_of(dying).cut(torn=end == "torn")
        marks_are_behind_the_table(table, queue)
        write(queue, messages(1500, 10))
        drain(table, [queue])
        exactly(table, queue)
        shutil.rmtree(table)
        shutil.rmtree(queue)


def test_a_restart_with_nothing_new_trims_only_what_is_durable__TB_01(
    table: Path, queue: Path
) -> None:
    """TB-01: killed before the commit's folder was synced; the next start had nothing to land."""
    last = None
    for step in range(200):
        shutil.rmtree(table, ignore_errors=True)
        dying = killed_table(table, step)
        loop = loop_over(dying, [queue], runner=run_on(dying))
        try:
            loop.run()
            break
        except Killed:
            last = step
        before = DeltaTable(table).version()
        again = Table.open_for_writing(table, disk=PowerDisk(table))
        # What the first one had not synced is not durable yet.
        disk_of(again)._octets = set(disk_of(dying)._octets)
        disk_of(again)._names = dict(disk_of(dying)._names)
        second = loop_over(again, [queue], runner=run_on(again))
        second.run()
        finish(second)
        disk_of(again).cut(torn=False)
        marks_are_behind_the_table(table, queue)
        if before == 1:
            assert second.progress.batches == 0
        for consumer in QueueReader(queue).consumers():
            QueueReader(queue).forget(consumer)
    assert last is not None


def test_killed_between_the_tasks_and_the_commit_leaves_orphans_only(
    table: Path, queue: Path
) -> None:
    def dies(target: Target, tasks: Sequence[Sequence[Range]]) -> LandedRanges:
        run_here(target, tasks)
        raise Killed

    with pytest.raises(Killed):
        drain(table, [queue], runner=dies)
    assert len(list(table.rglob("*.parquet"))) == 1
    drain(table, [queue])
    assert len(list(table.rglob("*.parquet"))) == 2
    exactly(table, queue)


# -- other bridges ---------------------------------------------------------------------------------


def test_two_bridges_on_one_gateway_exclude_each_other__TB_03(table: Path, queue: Path) -> None:
    """TB-03, TB-04: two bridges, each with a checkpoint of its own, landed rows twice or never."""
    other = Run("0ther", "elsewhere", 4711)

    def overtaken(target: Target, tasks: Sequence[Sequence[Range]]) -> LandedRanges:
        landed = run_here(target, tasks)
        drain(table, [queue], run=other)
        return landed

    loop = loop_over(table, [queue], runner=overtaken)
    with pytest.raises(Overtaken, match="process 4711 on elsewhere"):
        loop.run()
    exactly(table, queue)


def test_a_second_bridge_sees_that_it_is_one_too_many__TB_04(table: Path, queue: Path) -> None:
    first = loop_over(table, [queue], pace=Pace(trigger=0))
    first.batch(first.gateways.ask({}) or first.gateways.ask({}, PATIENCE))
    write(queue, messages(1500, 10))
    drain(table, [queue], run=Run("0ther", "elsewhere", 4711))
    write(queue, messages(1510, 10))
    with pytest.raises(TableError, match="process 4711 on elsewhere has moved gateway"):
        first.run()
    drain(table, [queue])
    exactly(table, queue)


def test_what_another_bridge_has_just_committed_is_no_mark_before_it_is_durable__TB_01(
    table: Path, queue: Path
) -> None:
    """TB-01: it may have died between its version and the sync of that."""
    loop = loop_over(table, [queue])
    loop.table.sync()
    answered = loop.gateways.ask({})
    place, name = QueueReader(queue).place(1500), identity(queue)
    Table.open(table).commit([], {name: place}, before={}, run=Run.new())
    loop.batch(answered)
    assert loop.table.landed() == {name: place}
    for durable in (False, True):
        if durable:
            loop.table.sync()
        loop._note(loop.gateways.ask(loop.table.landed()))
        assert loop.marks.unsent() == ({name} if durable else set())


def test_bridges_of_different_gateways_share_a_table(
    table: Path, queue: Path, tmp_path: Path
) -> None:
    second = tmp_path / "second"
    write(second, messages(0, 70))

    def with_company(target: Target, tasks: Sequence[Sequence[Range]]) -> LandedRanges:
        landed = run_here(target, tasks)
        if not landed_elsewhere.is_set():
            landed_elsewhere.set()
            drain(table, [second])
        return landed

    landed_elsewhere = threading.Event()
    drain(table, [queue], runner=with_company)
    exactly(table, queue, second)


# -- tables which were changed behind the bridge's back --------------------------------------------


def test_a_table_which_was_taken_back_is_refused__TB_05(table: Path, queue: Path) -> None:
    """TB-05: after a restore the rows are gone and the offset still says they are there."""
    drain(table, [queue], pace=Pace(trigger=0, once=True, rows_max=600))
    DeltaTable(table).restore(1)
    for _ in range(2):  # refused again, until somebody has rewound it
        with pytest.raises(RewindNeeded, match="msgproto table rewind"):
            drain(table, [queue])


def test_taken_back_while_a_batch_ran_nothing_lands_on_top__TB_05(table: Path, queue: Path) -> None:
    drain(table, [queue], pace=Pace(trigger=0, once=True, rows_max=600))
    write(queue, messages(1500, 10))

    def restored(target: Target, tasks: Sequence[Sequence[Range]]) -> LandedRanges:
        landed = run_here(target, tasks)
        DeltaTable(table).restore(1)
        return landed

    with pytest.raises(RewindNeeded):
        drain(table, [queue], runner=restored)
    with pytest.raises(RewindNeeded):
        drain(table, [queue])


def test_a_table_from_a_backup_lands_what_it_lacks__TB_05(
    table: Path, queue: Path, tmp_path: Path
) -> None:
    """TB-05: with the checkpoint elsewhere, a restored table had holes and nobody said so."""
    drain(table, [queue])
    shutil.copytree(table, tmp_path / "backup")
    write(queue, messages(1500, 100))
    drain(table, [queue])
    shutil.rmtree(table)
    shutil.copytree(tmp_path / "backup", table)
    drain(table, [queue])
    exactly(table, queue)


def test_a_table_from_a_backup_whose_rows_were_trimmed_is_refused__TB_05(
    table: Path, tmp_path: Path
) -> None:
    queue = tmp_path / "small"
    write(queue, messages(0, 300), segment_bytes=4096)
    drain(table, [queue], pace=Pace(trigger=0, once=True, rows_max=100))
    shutil.copytree(table, tmp_path / "backup")
    for first in range(300, 3000, 300):
        write(queue, messages(first, 300), segment_bytes=4096)
    drain(table, [queue])
    write(queue, messages(3000, 300), segment_bytes=4096)
    assert QueueReader(queue).begin() > 300
    shutil.rmtree(table)
    shutil.copytree(tmp_path / "backup", table)
    with pytest.raises(QueueMismatch):
        drain(table, [queue])


def test_a_new_table_for_an_old_queue_is_refused_unless_one_says_so__TB_05(
    table: Path, tmp_path: Path
) -> None:
    """TB-05: a table which was removed was begun again in the middle, without a word."""
    queue = tmp_path / "small"
    for first in range(0, 3000, 300):
        write(queue, messages(first, 300), segment_bytes=4096)
    drain(table, [queue])
    write(queue, messages(3000, 300), segment_bytes=4096)
    begin = QueueReader(queue).begin()
    assert begin > 0
    shutil.rmtree(table)
    with pytest.raises(QueueMismatch, match="--start begin"):
        drain(table, [queue])
    drain(table, [queue], start_begin=True)
    assert landed_offsets(table) == {identity(queue): list(range(begin, 3300))}


def test_compaction_and_appends_of_others_go_on(table: Path, queue: Path) -> None:
    drain(table, [queue], pace=Pace(trigger=0, once=True, rows_max=600))
    DeltaTable(table).optimize.z_order(["offset"])
    write(queue, messages(1500, 10))
    drain(table, [queue])
    exactly(table, queue)


def test_rows_which_others_removed_are_refused(table: Path, queue: Path) -> None:
    drain(table, [queue])
    DeltaTable(table).delete("offset = 7")
    with pytest.raises(RewindNeeded, match="changed rows which the bridge had landed"):
        drain(table, [queue])


# -- queues which are not what they were -----------------------------------------------------------


def test_an_older_copy_of_the_queue_is_refused__TB_06(
    table: Path, queue: Path, tmp_path: Path
) -> None:
    """TB-06: the same id, written past what had landed: 1000 rows never landed."""
    shutil.copytree(queue, tmp_path / "backup")
    write(queue, messages(1500, 100))
    drain(table, [queue])
    shutil.rmtree(queue)
    shutil.copytree(tmp_path / "backup", queue)
    with pytest.raises(QueueMismatch):
        drain(table, [queue])
    write(queue, messages(1500, 200, body=[b"other %d" % n for n in range(200)]))
    with pytest.raises(QueueMismatch):
        drain(table, [queue])
    assert len(landed_offsets(table)[identity(queue)]) == 1600


def test_a_machine_set_back_to_a_snapshot_is_refused__TB_06(
    table: Path, queue: Path, tmp_path: Path
) -> None:
    """TB-06: a snapshot has the running gateway in it, which keeps its number; the rows tell."""
    running = SegmentLog(queue, make_incarnation=lambda: 11)
    running.append([encode([messages(1500, 100)])])
    shutil.copytree(queue, tmp_path / "snapshot")
    running.append([encode([messages(1600, 100)])])
    running.close()
    drain(table, [queue])
    shutil.rmtree(queue)
    shutil.copytree(tmp_path / "snapshot", queue)
    for rows in (100, 50):  # as long as what landed, and longer
        again = SegmentLog(queue, make_incarnation=lambda: 11)
        again.append([encode([messages(9000, rows)])])
        again.close()
        with pytest.raises(QueueMismatch, match="snapshot"):
            drain(table, [queue])
    assert len(landed_offsets(table)[identity(queue)]) == 1700
    assert max(QueueReader(queue).consumers().values(), default=0) <= 1600


def test_a_queue_which_is_swapped_while_the_bridge_runs_lands_nothing__TB_07(
    table: Path, queue: Path, tmp_path: Path
) -> None:
    """TB-07: another queue behind the same address; 600 of its rows were trimmed unread."""
    second = tmp_path / "second"
    write(second, messages(0, 600))

    def swapped(target: Target, tasks: Sequence[Sequence[Range]]) -> LandedRanges:
        shutil.rmtree(queue)
        shutil.copytree(second, queue)
        return run_here(target, tasks)

    with pytest.raises(QueueError):
        drain(table, [queue], runner=swapped)
    assert QueueReader(queue).consumers() == {}
    assert places(table) == {}
