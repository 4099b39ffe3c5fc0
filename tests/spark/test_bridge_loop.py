"""The bridge's loop without Java: killed at every step, with the power cut, against other bridges,
over restored tables and restored queues.  What lands is exact, or refused in one line.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.spark.conftest import damage_record, identity, messages, write
from tests.tools.loops import drain, finish, landed_offsets, loop_over, places
from tests.tools.power import Killed, PowerDisk
from twisted_msgproto.core.errors import (
    MsgprotoError,
    Overtaken,
    QueueError,
    QueueMismatch,
    RewindNeeded,
    TableError,
)
from twisted_msgproto.queue import QueueReader
from twisted_msgproto.spark import loop as loops
from twisted_msgproto.spark.jobs import open_range, run_here
from twisted_msgproto.spark.loop import Loop, Pace
from twisted_msgproto.table import starting
from twisted_msgproto.table.actions import Run
from twisted_msgproto.table.disk import OSTableDisk
from twisted_msgproto.table.landing import (
    TABLE_SCHEMA,
    Failure,
    LandedRanges,
    Range,
    Target,
    land_ranges,
    merged,
)
from twisted_msgproto.table.log import Table

PATIENCE = 60.0
"""How long a test waits for what must happen."""


def exactly(table: Path, *queues: Path) -> None:
    """Every row of ``queues`` stands in ``table`` exactly once, and the table says so."""
    expected = {identity(queue): list(range(QueueReader(queue).end())) for queue in queues}
    assert landed_offsets(table) == expected
    assert {name: place.offset for name, place in places(table).items()} == {
        name: len(offsets) for name, offsets in expected.items()
    }


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


def test_a_restart_goes_on_where_the_table_is(table: Path, queue: Path) -> None:
    drain(table, [queue], pace=Pace(trigger=0, once=True, rows_max=400))
    write(queue, messages(1500, 250))
    loop = drain(table, [queue])
    assert loop.progress.rows == 250
    exactly(table, queue)


def test_a_batch_has_at_most_so_many_rows(table: Path, queue: Path) -> None:
    loop = drain(table, [queue], pace=Pace(trigger=0, once=True, rows_max=400))
    assert loop.progress.batches == 4
    assert DeltaTable(table).version() == 4


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


def steps_of_a_drain(tmp_path: Path, queue: Path) -> int:
    copy = tmp_path / "counted"
    shutil.copytree(queue, copy)
    table = killed_table(tmp_path / "counted-table", None)
    drain(table, [copy], runner=run_on(table), pace=Pace(trigger=0, once=True, rows_max=600))
    return disk_of(table).steps


@pytest.mark.parametrize("end", ["kill", "cut", "torn"])
def test_killed_before_any_step_it_lands_every_row_once__TB_01_TB_02(
    tmp_path: Path, queue: Path, end: str
) -> None:
    """TB-01, TB-02: kill or power cut before every write, sync, link and folder of three batches.

    After each, a new start lands the rest; a mark is never ahead of what survived.
    """
    steps = steps_of_a_drain(tmp_path, queue)
    assert steps > 15
    for step in range(steps + 1):
        table, copy = tmp_path / f"table{step}", tmp_path / f"queue{step}"
        shutil.copytree(queue, copy)
        dying = killed_table(table, step)
        loop = loop_over(
            dying, [copy], runner=run_on(dying), pace=Pace(trigger=0, once=True, rows_max=600)
        )
        try:
            loop.run()
            assert step == steps
        except Killed:
            pass
        finish(loop)
        if end != "kill":
            disk_of(dying).cut(torn=end == "torn")
        marks_are_behind_the_table(table, copy)
        write(copy, messages(1500, 10))
        drain(table, [copy])
        exactly(table, copy)
        shutil.rmtree(table)
        shutil.rmtree(copy)


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


def test_the_queue_is_trimmed_below_the_mark_and_everything_goes_on(
    table: Path, tmp_path: Path
) -> None:
    queue = tmp_path / "small"
    write(queue, *(messages(first, 300) for first in range(0, 1500, 300)), segment_bytes=4096)
    drain(table, [queue])
    write(queue, messages(1500, 10), segment_bytes=4096)
    drain(table, [queue])
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
    """TB-06: the same id, the same epoch, written past what had landed: 1000 rows never landed."""
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


# -- failures --------------------------------------------------------------------------------------


def fails(times: int, error: Exception, then: Any = run_here) -> Any:
    left = [times]

    def run(target: Target, tasks: Sequence[Sequence[Range]]) -> LandedRanges:
        if left[0]:
            left[0] -= 1
            raise error
        result: LandedRanges = then(target, tasks)
        return result

    return run


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "ATTEMPT_SECONDS", 0.0)


def test_a_batch_which_fails_is_run_again_a_few_times(
    table: Path, queue: Path, quick: None
) -> None:
    said: list[str] = []
    loop = drain(table, [queue], runner=fails(2, TableError("a worker was lost")), say=said.append)
    exactly(table, queue)
    assert loop.progress.failures == 2
    assert said.count("bridge: a worker was lost; the batch is run again") == 2


def test_a_batch_which_fails_for_ever_ends_the_bridge_with_its_line__TB_11(
    table: Path, queue: Path, quick: None
) -> None:
    """TB-11: a full disk was a traceback."""
    with pytest.raises(TableError, match="No space left"):
        drain(table, [queue], runner=fails(99, TableError("the table: No space left on device")))
    assert QueueReader(queue).consumers() == {starting.consumer_name(Table.open(table).table_id): 0}


def test_one_gateway_which_cannot_be_read_does_not_stop_the_others__TB_09(
    table: Path, queue: Path, tmp_path: Path
) -> None:
    """TB-09: one gateway away ended the stream for all."""
    second = tmp_path / "second"
    write(second, messages(0, 70))
    lost = identity(second)

    def partly(target: Target, tasks: Sequence[Sequence[Range]]) -> LandedRanges:
        if any(part.gateway == lost for ranges in tasks for part in ranges):
            return LandedRanges(failed={lost: Failure(False, "it went away")})
        seen.set()
        return run_here(target, tasks)

    seen = threading.Event()
    stop = threading.Event()
    loop = loop_over(table, [queue, second], runner=partly, pace=Pace(trigger=0), stop=stop)
    thread = threading.Thread(target=loop.run, daemon=True)
    thread.start()
    assert seen.wait(PATIENCE)
    stop.set()
    thread.join(PATIENCE)
    assert landed_offsets(table) == {identity(queue): list(range(1500))}
    assert [one.location for one in loop.report("running").aside] == [str(second)]


def test_a_drain_says_which_gateway_is_missing(
    table: Path, queue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops, "AWAY_SECONDS", 0.0)
    loop = loop_over(table, [queue, tmp_path / "none"])
    with pytest.raises(QueueError, match="no queue in"):
        loop.run()
    exactly(table, queue)


def test_a_commit_which_fails_commits_the_same_files_again(
    table: Path, queue: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = starting.open_table(str(table), None, None, {}, Run.new())
    committed = opened.commit
    errors: list[MsgprotoError] = [TableError("no answer"), TableError("no answer")]

    def commit(*words: Any, **options: Any) -> int:
        if errors:
            raise errors.pop()
        return committed(*words, **options)

    monkeypatch.setattr(opened, "commit", commit)
    drain(opened, [queue])
    exactly(table, queue)
    assert len(list(table.rglob("*.parquet"))) == 1


class LosesAnAnswer(OSTableDisk):
    """Makes one version's name and says that it failed."""

    def __init__(self) -> None:
        self.lost = False

    def link(self, old: str, new: str) -> None:
        super().link(old, new)
        if not self.lost:
            self.lost = True
            raise OSError(5, "Input/output error", new)


def test_a_commit_whose_answer_was_lost_lands_once(table: Path, queue: Path, quick: None) -> None:
    Table.create(table, TABLE_SCHEMA)
    disk = LosesAnAnswer()
    loop = drain(Table.open_for_writing(table, disk=disk), [queue])
    assert disk.lost
    exactly(table, queue)
    assert loop.progress.batches == 1


def test_files_which_are_too_old_are_not_committed(
    table: Path, queue: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops, "FILE_SECONDS_MAX", 10.0)
    now = [0.0]

    def slow(target: Target, tasks: Sequence[Sequence[Range]]) -> LandedRanges:
        now[0] += 11.0 if now[0] == 0.0 else 0.0
        return run_here(target, tasks)

    loop = drain(table, [queue], runner=slow, clock=lambda: now[0])
    assert loop.progress.failures == 1
    exactly(table, queue)


# -- pace ------------------------------------------------------------------------------------------


class Paced:
    """A loop whose clock stands still, and how many batches it has made."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop

    def look(self) -> bool:
        """One look at the gateways; whether a batch is due."""
        answered = self.loop.gateways.ask(self.loop.table.landed(), PATIENCE)
        assert answered
        self.loop._note(answered)
        due = self.loop._is_due(answered)
        if due:
            self.loop.batch(answered)
        return due


def test_a_batch_waits_for_the_trigger_unless_much_is_waiting(
    table: Path, queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    paced = Paced(loop_over(table, [queue], pace=Pace(trigger=5.0), clock=lambda: now[0]))
    assert paced.look()
    write(queue, messages(1500, 10))
    assert not paced.look()
    now[0] += 5.0
    assert paced.look()
    monkeypatch.setattr(loops, "EARLY_ROWS", 20)
    write(queue, messages(1510, 19))
    assert not paced.look()
    write(queue, messages(1529, 1))
    assert paced.look()
    monkeypatch.setattr(loops, "EARLY_OCTETS", 1000)
    write(queue, messages(1530, 1, body=[b"x" * 50]))
    assert not paced.look()
    write(queue, messages(1531, 1, body=[b"x" * 5000]))
    assert paced.look()
    exactly(table, queue)


def test_without_a_trigger_a_batch_begins_when_there_is_one_row(table: Path, queue: Path) -> None:
    paced = Paced(loop_over(table, [queue], pace=Pace(trigger=0)))
    assert paced.look()
    write(queue, messages(1500, 1))
    assert paced.look()
    assert not paced.look()


def test_batches_are_maintained_in_between(table: Path, queue: Path) -> None:
    seen: list[int] = []
    drain(
        table,
        [queue],
        pace=Pace(trigger=0, once=True, rows_max=600),
        maintenance=lambda opened: seen.append(opened.version),
    )
    assert seen == [1, 2, 3]


def test_a_partitioned_table_reads_back(table: Path, queue: Path) -> None:
    opened = starting.open_table(str(table), None, ["protocol", "day"], {}, Run.new())
    drain(opened, [queue])
    exactly(table, queue)
    rows = DeltaTable(table).to_pyarrow_table()
    assert rows.column("protocol").unique().to_pylist() == ["lumberjack"]
    assert pa.types.is_date(rows.schema.field("day").type)
