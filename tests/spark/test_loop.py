"""The bridge's loop without Java: killed at every step, with the power cut, against other bridges,
over restored tables and restored queues.  What lands is exact, or refused in one line; what fails
is done again, and told.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.spark.conftest import damage_record, identity, messages, write
from tests.tools.disks import Killed, PowerDisk
from tests.tools.loops import drain, exactly, finish, landed_offsets, loop_over, places, run_here
from tests.tools.tables import TABLE_SCHEMA
from twisted_msgproto import cli
from twisted_msgproto.core.disk import File, OSDisk
from twisted_msgproto.core.errors import (
    MsgprotoError,
    Overtaken,
    QueueError,
    QueueMismatch,
    RewindNeeded,
    TableError,
)
from twisted_msgproto.queue import QueueReader, SegmentLog, segment_log
from twisted_msgproto.queue.payload import encode
from twisted_msgproto.spark import jobs
from twisted_msgproto.spark import loop as loops
from twisted_msgproto.spark.jobs import Meeting, SparkRunner
from twisted_msgproto.spark.loop import Loop, Maintenance, Pace
from twisted_msgproto.spark.source_options import open_range
from twisted_msgproto.table import plan
from twisted_msgproto.table.actions import Run
from twisted_msgproto.table.delta_table import Table
from twisted_msgproto.table.landing import (
    Failure,
    LandedRanges,
    Target,
    land_ranges,
    merged,
)
from twisted_msgproto.table.plan import Range
from twisted_msgproto.table.rewind import rewind
from twisted_msgproto.table.shape import Shape

PATIENCE = 60.0
"""How long a test waits for what must happen."""

Tasks = Sequence[Sequence[Range]]
OTHER = Run("0ther", "elsewhere", 4711)
IN_THREE = Pace(trigger=0, once=True, rows_max=600)
"""Three batches land a queue."""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "table"


def consumer(table: Path) -> str:
    return f"spark-{Table.open(table).table_id.replace('-', '')[:8]}"


def scripted(
    loop: Loop, monkeypatch: pytest.MonkeyPatch, *steps: Callable[[], object], see: Any = None
) -> list[Any]:
    """Runs the loop with one step before each round; what was seen before each.

    A step that returns False has no gateway answer.
    """
    asks, left, seen = loop.gateways.ask, list(steps), []

    def ask(landed: Any) -> Any:
        seen.append(see() if see else loop.progress.batches)
        if not left:
            loop.stop.set()
            return []
        return [] if left.pop(0)() is False else asks(landed, PATIENCE)

    monkeypatch.setattr(loop.gateways, "ask", ask)
    loop.run()
    return seen


# -- the ordinary course ---------------------------------------------------------------------------


def test_queues_land_and_their_marks_follow(table: Path, queue: Path, tmp_path: Path) -> None:
    """A commit says what its files hold, and between two batches there is maintenance."""
    second, seen, said = tmp_path / "second", list[int](), list[str]()
    write(second, messages(0, 70))
    damage_record(queue, b'{"n":777}')
    loop = drain(
        table, [queue, second], say=said.append, maintenance=lambda one: seen.append(one.version)
    )
    assert landed_offsets(table) == {
        identity(queue): [*range(600), *range(900, 1500)],
        identity(second): list(range(70)),
    }
    assert QueueReader(queue).consumers() == {consumer(table): 1500}
    assert QueueReader(second).consumers() == {consumer(table): 70}
    progress = loop.progress
    assert (progress.batches, progress.rows, progress.skipped) == (1, 1270, 300)
    newest = table / "_delta_log" / f"{Table.open(table).version:020}.json"
    first = json.loads(newest.read_text().splitlines()[0])
    assert first["commitInfo"]["msgproto"]["info"]["gateways"] == {
        identity(queue): {"lo": 0, "hi": 1500, "rows": 1200, "damaged": [[600, 900]]},
        identity(second): {"lo": 0, "hi": 70, "rows": 70, "damaged": []},
    }
    [line] = [line for line in said if "damaged" in line]
    assert "skipped 300 damaged rows" in line and "(offsets 600..899)" in line
    write(queue, messages(1500, 1000))
    drain(table, [queue], pace=IN_THREE, maintenance=lambda one: seen.append(one.version))
    assert seen == [1, 2, 3]


def test_a_batch_waits_for_the_trigger_unless_much_is_waiting(
    table: Path, queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, first = [100.0], 1500

    def more(count: int, **changes: Any) -> Callable[[], None]:
        def step() -> None:
            nonlocal first
            write(queue, messages(first, count, **changes))
            first += count

        return step

    loop = loop_over(table, [queue], pace=Pace(trigger=5.0), clock=lambda: now[0])
    seen = scripted(
        loop,
        monkeypatch,
        lambda: None,
        more(10),
        lambda: now.append(now.pop() + 5.0),
        more(19_999),
        more(1),
        more(1, body=[b"x" * (7 << 20)]),
        more(1, body=[b"x" * (1 << 20)]),
    )
    assert seen == [0, 1, 1, 2, 2, 3, 3, 4]
    exactly(table, queue)


def test_without_a_trigger_a_batch_begins_when_there_is_one_row(
    table: Path, queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = loop_over(table, [queue], pace=Pace(trigger=0, rows_max=1000))
    one_more = lambda: write(queue, messages(1500, 1))  # noqa: E731
    steps = [lambda: None, lambda: None, one_more, lambda: None]
    see = lambda: (loop.progress.batches, *(lag.rows for lag in loop.lags.values()))  # noqa: E731
    seen = scripted(loop, monkeypatch, *steps, see=see)
    assert seen == [(0,), (1, 500), (2, 0), (3, 0), (3, 0)]


@pytest.mark.parametrize(
    ("trigger", "took", "pause"),
    [
        (5.0, 0.0, 0.25),
        (5.0, 0.1, 0.8),
        (5.0, 4.9, 0.1),
        (5.0, 5.0, 1.0),
        (100.0, 0.0, 1.0),
        (0.0, 0.0, 0.01),
        (0.0, 0.002, 0.016),
    ],
)
def test_while_nothing_is_due_gateways_are_asked_at_intervals(
    table: Path,
    queue: Path,
    monkeypatch: pytest.MonkeyPatch,
    trigger: float,
    took: float,
    pause: float,
) -> None:
    now, stop, pauses = [100.0], threading.Event(), list[float]()
    monkeypatch.setattr(stop, "wait", pauses.append)
    loop = loop_over(table, [queue], pace=Pace(trigger), clock=lambda: now[0], stop=stop)
    scripted(loop, monkeypatch, lambda: None, lambda: now.append(now.pop() + took))
    assert pauses[0] == pytest.approx(pause)


def test_a_queue_of_rows_that_are_left_out_is_released_without_a_batch(
    table: Path, queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    loop = loop_over(table, [queue], pace=Pace(trigger=0), clock=lambda: now[0])
    loop.target = replace(loop.target, shape=Shape((("destination", ("access",)),)))
    seen = scripted(
        loop,
        monkeypatch,
        lambda: None,
        lambda: now.append(now.pop() + loops.EMPTY_SECONDS - 1),
        lambda: now.append(now.pop() + 1),
        see=lambda: loop.table.version,
    )
    assert seen == [0, 0, 0, 1]
    finish(loop)
    assert QueueReader(queue).consumers() == {consumer(table): 1500}
    assert places(table)[identity(queue)].offset == loop.progress.left_out == 1500


# -- several tables --------------------------------------------------------------------------------


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches that should meet wait as long as they have to."""
    monkeypatch.setattr(jobs, "MEET_SECONDS", PATIENCE)


def at_once(works: Sequence[Callable[[], Any]]) -> list[Any]:
    with ThreadPoolExecutor(len(works)) as pool:
        return [one.result(PATIENCE) for one in [pool.submit(work) for work in works]]


def counting() -> tuple[Meeting, list[int]]:
    """A meeting of two tables, and how many each of its jobs has landed."""
    batches: list[int] = []

    def land(works: Sequence[tuple[Target, Tasks]]) -> list[Any]:
        batches.append(len(works))
        return [LandedRanges() for _ in works]

    return Meeting(land, 2), batches


def range_of(lo: int, hi: int) -> list[list[Range]]:
    return [[Range("/queue", "a", lo, hi)]]


class Workers:
    """Runs jobs in this process, in the place of Spark's context; ``said`` is what they are."""

    defaultParallelism = 2
    pid = 7
    returncode: int | None = None

    def __init__(self, error: Exception | None = None, ended: int | None = None) -> None:
        self.said: list[tuple[Any, ...]] = []
        self.error, self.ended = error, ended
        self._gateway = SimpleNamespace(proc=self)

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, seconds: float) -> None:
        if self.ended is None:
            raise subprocess.TimeoutExpired("java", seconds)
        self.returncode = self.ended

    def setJobGroup(self, *words: Any) -> None:
        self.said.append(words)

    def cancelJobGroup(self, group: str) -> None:
        self.said.append((group,))

    def parallelize(self, rows: Any, number: int) -> Any:
        def planned(work: Any) -> Any:
            def collect() -> list[Any]:
                if self.error:
                    raise self.error
                return [one for n in range(number) for one in work(n, iter(rows))]

            return SimpleNamespace(collect=collect)

        return SimpleNamespace(mapPartitionsWithIndex=planned)


@pytest.mark.usefixtures("patient")
def test_tables_at_the_same_place_read_the_queue_once(
    tmp_path: Path, queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "TASK_ROWS_MIN", 200)
    spark = SparkRunner(workers := Workers(), Path("log"), 2)
    tables = [tmp_path / "raw", tmp_path / "typed"]
    loops = [loop_over(one, [queue], runner=spark, pace=IN_THREE) for one in tables]
    at_once([loop.run for loop in loops])
    words = [f"{rows} rows of 1 gateways" for rows in (1200, 1200, 600)]
    assert workers.said == [(jobs.JOB_GROUP, text, True) for text in words]
    for loop, one in zip(loops, tables, strict=True):
        finish(loop)
        exactly(one, queue)
        assert len(list(one.rglob("*.parquet"))) == 5, "the last batch is too small for two tasks"


@pytest.mark.usefixtures("patient")
def test_a_job_has_as_many_tasks_as_a_table_has_most(tmp_path: Path, queue: Path) -> None:
    (tmp_path / "2").write_text("a file, where the table should be")
    spark = SparkRunner(Workers(), Path("log"), 3)
    part = Range(str(queue), identity(queue), 0, 1500)
    halves = [[replace(part, hi=700)], [replace(part, lo=700)]]

    def landed(number: int) -> Any:
        try:
            return spark(Target(str(tmp_path / f"{number}")), [[part]] if number else halves)
        except TableError as error:
            return str(error)

    two, one, none = at_once([partial(landed, number) for number in range(3)])
    assert two.rows == one.rows == {part.gateway: 1500}
    assert [file.rows for file in two.files + one.files] == [700, 800, 1500]
    assert str(tmp_path / "2") in none


def of_java(name: str) -> Exception:
    error: Exception = type(name, (Exception,), {"__module__": "py4j.protocol"})("no room")
    return error


@pytest.mark.parametrize(
    ("error", "ended", "line"),
    [
        (ValueError("no room"), -9, "the batch failed: no room; Spark's log: log"),
        (of_java("Py4JJavaError"), -9, "the batch failed: no room; Spark's log: log"),
        (of_java("Py4JNetworkError"), None, "the batch failed: no room; Spark's log: log"),
        (of_java("Py4JNetworkError"), -9, "(pid 7) ended with status -9"),
        (OSError("no room"), -9, "(pid 7) ended with status -9"),
    ],
)
def test_a_job_that_fails_is_a_line(error: Exception, ended: int | None, line: str) -> None:
    spark = SparkRunner(workers := Workers(error, ended), Path("log"))
    with pytest.raises(MsgprotoError, match=re.escape(line)):
        spark(Target("/one"), range_of(0, 10))
    assert len(workers.said) == 1, "it is not run again"


def test_a_fault_of_a_read_is_the_queues_and_no_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    def torn(part: Range) -> None:
        raise pa.ArrowInvalid("torn")

    monkeypatch.setattr(jobs, "open_range", torn)
    landed = SparkRunner(Workers(), Path("log"))(Target("/one"), range_of(0, 10))
    assert landed == LandedRanges(failed={"a": Failure(False, "/queue: torn")})


def test_a_queue_that_could_not_be_read_is_opened_anew(tmp_path: Path, queue: Path) -> None:
    """What a worker has open may be no more: a queue that is not there is away, and not another."""
    spark, name = SparkRunner(Workers(), Path("log")), identity(queue)

    def failure(lo: int, hi: int) -> Failure | None:
        ranges = [[Range(str(queue), name, lo, hi)]]
        return spark(Target(str(tmp_path / "table")), ranges).failed.get(name)

    assert failure(0, 1500) is None
    queue.rename(tmp_path / "first")
    write(queue, messages(0, 1500))
    name = identity(queue)
    assert failure(0, 1500) is None
    too_far = failure(1500, 1600)
    queue.rename(tmp_path / "elsewhere")
    gone = failure(0, 1500)
    assert too_far and gone and (too_far.mismatch, gone.mismatch) == (True, False)


def test_a_runner_that_was_cancelled_begins_no_job() -> None:
    spark = SparkRunner(workers := Workers(), Path("log"))
    spark.cancel()
    with pytest.raises(TableError, match="the bridge ends"):
        spark(Target("/one"), range_of(0, 10))
    assert workers.said == [(jobs.JOB_GROUP,)]


@pytest.mark.parametrize(
    ("one", "other", "most"),
    [
        ({"a": (0, 10)}, {"a": (5, 15)}, True),
        ({"a": (0, 10)}, {"a": (6, 16)}, False),
        ({"a": (0, 12)}, {"a": (2, 7)}, False),
        ({"a": (0, 10), "b": (0, 2)}, {"a": (4, 10), "b": (5, 9)}, True),
        ({"a": (0, 10), "b": (0, 2)}, {"a": (4, 10), "c": (0, 7)}, False),
    ],
)
def test_tables_share_a_read_of_half_their_rows(one: Any, other: Any, most: bool) -> None:
    assert jobs.shares(one, other) == jobs.shares(other, one) == most


@pytest.mark.usefixtures("patient")
def test_a_table_that_is_behind_lands_alone() -> None:
    meeting, batches = counting()
    spans = (0, 1000), (900, 1000)
    at_once([partial(meeting, Target(f"/{lo}"), range_of(lo, hi)) for lo, hi in spans])
    assert batches == [1, 1]


@pytest.mark.usefixtures("patient")
def test_tables_meet_again_after_rows_of_another_gateway() -> None:
    """Few rows of many gateways: no batch has the gateways of the one before it."""
    meeting, batches = counting()
    targets = Target("/one"), Target("/other")
    at_once([partial(meeting, target, range_of(0, 10)) for target in targets])
    for target in targets:
        meeting(target, [[Range("/another", "b", 0, 10)]])
    at_once([partial(meeting, target, range_of(10, 20)) for target in targets])
    assert batches == [2, 1, 1, 2]


def test_a_table_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "MEET_SECONDS", 0.001)
    meeting, batches = counting()
    meeting(Target("/one"), range_of(0, 10))
    monkeypatch.setattr(jobs, "MEET_SECONDS", PATIENCE * 10)
    meeting(Target("/elsewhere"), [[Range("/other", "b", 0, 10)]])
    for _ in range(2):
        meeting(Target("/one"), range_of(10, 20))
    assert batches == [1, 1, 1, 1]


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("how", ["job", "table", "queue"])
def test_what_fails_together_lands_alone(how: str) -> None:
    """A table whose rows end a worker, or whose place is not the queue's, ends no other's batch;
    what one table's own storage says is said once.
    """
    good, full = LandedRanges(rows={"a": 10}), TableError("no room")
    sizes: list[int] = []

    def land(works: Sequence[tuple[Target, Tasks]]) -> list[Any]:
        sizes.append(len(works))
        if how != "table" and "/bad" in (target.location for target, _ in works):
            if how == "job":
                raise full
            return [LandedRanges(failed={"a": Failure(True, "another history")})] * len(works)
        return [full if target.location == "/bad" else good for target, _ in works]

    meeting = Meeting(land, 2)

    def told(location: str) -> Any:
        try:
            return meeting(Target(location), range_of(0, 10)).rows
        except TableError as error:
            return str(error)

    bad = {} if how == "queue" else "no room"
    assert at_once([partial(told, "/bad"), partial(told, "/good")]) == [bad, good.rows]
    assert sizes == ([2] if how == "table" else [2, 1, 1])


@pytest.mark.usefixtures("patient")
def test_a_gateway_that_is_away_is_not_waited_for_again_for_each_table() -> None:
    away = LandedRanges(failed={"a": Failure(False, "it does not answer")})
    jobs_of: list[int] = []

    def land(works: Sequence[tuple[Target, Tasks]]) -> list[Any]:
        jobs_of.append(len(works))
        return [away] * len(works)

    meeting = Meeting(land, 2)
    targets = Target("/one"), Target("/other")
    found = at_once([partial(meeting, target, range_of(0, 10)) for target in targets])
    assert (found, jobs_of) == ([away, away], [2])


@pytest.mark.parametrize("late", [0.0, 0.2, 0.4, 3.0])
def test_batches_of_all_tables_are_due_at_the_same_times(late: float) -> None:
    """However late one begins, the next is half a trigger to one and a half away."""
    due = loops.next_due(60.0 + late, 1.0)
    assert due == int(due) and 0.5 <= due - 60.0 - late < 1.5
    assert loops.next_due(60.0 + late, 0.0) == 60.0 + late


# -- kills and power cuts --------------------------------------------------------------------------


def killed_table(table: Path, step: int | None) -> Table:
    """The table with a disk that dies; a new one is made on a good disk first."""
    if not (table / "_delta_log").exists():
        Table.create(table, TABLE_SCHEMA)
    return Table.open_for_writing(table, disk=PowerDisk(table, step))


def run_on(table: Table) -> Callable[[Target, Tasks], LandedRanges]:
    """Tasks which write through the table's own disk, so that their syncs are seen."""

    def run(target: Target, tasks: Tasks) -> LandedRanges:
        return merged(land_ranges(target, part, open_range, table.storage) for part in tasks)

    return run


def disk_of(table: Table) -> PowerDisk:
    disk: PowerDisk = table.storage.disk  # type: ignore[attr-defined]
    return disk


def marks_are_behind_the_table(table: Path, queue: Path) -> None:
    """No gateway may trim what the table does not have."""
    place = places(table).get(identity(queue)) if (table / "_delta_log").exists() else None
    for offset in QueueReader(queue).consumers().values():
        assert offset <= (0 if place is None else place.offset)


def loop_on(dying: Table, queue: Path) -> Loop:
    pace = Pace(trigger=0, once=True, rows_max=6)
    return loop_over(dying, [queue], runner=run_on(dying), pace=pace)


@pytest.mark.parametrize("end", ["kill", "cut", "torn"])
def test_killed_before_any_step_it_lands_every_row_once__TB_01_TB_02_TB_08(
    tmp_path: Path, end: str
) -> None:
    """TB-01, TB-02: kill or power cut before every write, sync, link and folder of three batches.

    After each, a new start lands the rest; a mark is never ahead of what survived.  TB-08: no row
    counts as damaged.
    """
    for step in range(200):
        table, queue = tmp_path / f"table{step}", tmp_path / f"queue{step}"
        write(queue, *(messages(first, 5) for first in range(0, 15, 5)))  # a copy's writer waits
        dying = killed_table(table, step)
        loop = loop_on(dying, queue)
        try:
            loop.run()
        except Killed:
            killed = True
        else:
            killed = False
        finish(loop)
        if end != "kill":
            disk_of(dying).cut(torn=end == "torn")
        marks_are_behind_the_table(table, queue)
        write(queue, messages(15, 10))
        assert drain(table, [queue]).progress.skipped == 0
        exactly(table, queue)
        if not killed:
            break
    assert step > 15


def test_a_restart_with_nothing_new_trims_only_what_is_durable__TB_01(
    table: Path, queue: Path
) -> None:
    """TB-01: killed before the commit's folder was synced; the next start had nothing to land."""
    for step in range(200):
        shutil.rmtree(table, ignore_errors=True)
        dying = killed_table(table, step)
        loop = loop_over(dying, [queue], runner=run_on(dying))
        try:
            loop.run()
            break
        except Killed:
            pass
        before = DeltaTable(table).version()
        again = Table.open_for_writing(table, disk=disk_of(dying).restarted())
        second = loop_over(again, [queue], runner=run_on(again))
        second.run()
        finish(second)
        if before == 1:
            assert second.progress.batches == 0
            assert list(QueueReader(queue).consumers().values()) == [1500]
        disk_of(again).cut(torn=False)
        marks_are_behind_the_table(table, queue)
        for name in QueueReader(queue).consumers():
            QueueReader(queue).forget(name)
    assert 5 < step < 199


# -- failures --------------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "ATTEMPT_SECONDS", 0.0)


def test_a_batch_which_fails_is_run_again_and_not_for_ever__TB_11(
    table: Path, queue: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TB-11: a full disk was a traceback.  What counts are failures in a row."""

    def full(target: Target, tasks: Tasks) -> LandedRanges:
        raise TableError("the table: No space left on device")

    said = list[str]()
    with pytest.raises(TableError, match="No space left"):
        drain(table, [queue], runner=full, say=said.append)
    assert said == ["bridge: the table: No space left on device; the batch is run again"] * 2
    assert QueueReader(queue).consumers() == {consumer(table): 0}
    lost = TableError("a worker was lost")
    runs = [lost, lost, None, lost, lost, None]

    def run(target: Target, tasks: Tasks) -> LandedRanges:
        failure = runs.pop(0)
        if failure is not None:
            raise failure
        return run_here(target, tasks)

    now = [100.0]
    options: Any = {"pace": Pace(trigger=60), "clock": lambda: now[0]}
    loop = loop_over(table, [queue], runner=run, say=said.append, **options)
    steps: list[Callable[[], object]] = [lambda: None] * 6
    steps[3] = lambda: now.append(now.pop() + 90) or write(queue, messages(1500, 10))
    scripted(loop, monkeypatch, *steps)
    assert (runs, loop.progress.failures) == ([], 4)
    assert said.count("bridge: a worker was lost; the batch is run again") == 4
    exactly(table, queue)


def test_one_gateway_which_cannot_be_read_does_not_stop_the_others__TB_09(
    table: Path, queue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TB-09: one gateway away ended the stream for all."""
    second = tmp_path / "second"
    write(second, messages(0, 70))
    lost = identity(second)

    def partly(target: Target, tasks: Tasks) -> LandedRanges:
        if any(part.gateway == lost for ranges in tasks for part in ranges):
            return LandedRanges(failed={lost: Failure(False, "it went away")})
        return run_here(target, tasks)

    loop = loop_over(table, [queue, second], runner=partly, pace=Pace(trigger=3600))
    for one in loop.gateways.all:
        one.pause = 8.0
    assert scripted(loop, monkeypatch, *[lambda: None] * 2) == [0, 0, 1]
    assert [one.pause for one in loop.gateways.all] == [0.0, 16.0], "who has landed is asked soon"
    assert landed_offsets(table) == {identity(queue): list(range(1500))}
    assert [one.location for one in loop.report("running").aside] == [str(second)]


def test_a_drain_says_which_gateway_is_missing(
    table: Path, queue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops, "AWAY_SECONDS", 0.0)
    with pytest.raises(QueueError, match="no queue in"):
        drain(table, [queue, tmp_path / "none"])
    exactly(table, queue)
    write(queue, messages(1500, 10))
    loop = loop_over(table, [queue, tmp_path / "none"])
    loop.target = replace(loop.target, shape=Shape((("destination", ("access",)),)))
    with pytest.raises(QueueError, match="no queue in"):
        loop.run()
    assert places(table)[identity(queue)].offset == 1510, "also past rows that are left out"


def test_when_no_gateway_can_be_landed_the_first_one_s_reason_is_told__TB_09(
    table: Path, queue: Path, tmp_path: Path
) -> None:
    write(tmp_path / "other", messages(0, 3))
    loop = loop_over(table, [queue, tmp_path / "other"], pace=Pace())
    first, second = loop.gateways.all
    loop.gateways.refuse(second, QueueMismatch("the second is older"))
    loop.gateways.refuse(first, QueueMismatch("the first is older"))
    with pytest.raises(QueueMismatch, match="the first is older"):
        loop.run()


@pytest.mark.parametrize("failures", [2, 3])
def test_a_commit_which_fails_commits_the_same_files_again(
    table: Path, queue: Path, quick: None, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    opened, said = Table.create(table, TABLE_SCHEMA), list[str]()
    committed = opened.commit
    errors: list[MsgprotoError] = [TableError("no answer") for _ in range(failures)]

    def commit(*words: Any, **options: Any) -> int:
        if errors:
            raise errors.pop()
        return committed(*words, **options)

    monkeypatch.setattr(opened, "commit", commit)
    if failures == 3:
        with pytest.raises(TableError, match="no answer"):
            drain(opened, [queue], say=said.append)
    else:
        drain(opened, [queue], say=said.append)
        exactly(table, queue)
    assert (errors, len(list(table.rglob("*.parquet")))) == ([], 1)
    assert said == ["bridge: no answer; the same files are committed again"] * 2


@pytest.mark.parametrize("runner_fails", [True, False])
def test_a_signal_while_a_batch_fails_ends_it_and_the_next_start_lands_all(
    table: Path, queue: Path, monkeypatch: pytest.MonkeyPatch, runner_fails: bool
) -> None:
    said, opened = list[str](), Table.create(table, TABLE_SCHEMA)

    def fail(*words: Any, **options: Any) -> Any:
        loop.stop.set()
        raise TableError("no answer")

    runner = fail if runner_fails else run_here
    loop = loop_over(opened, [queue], pace=Pace(trigger=0), runner=runner, say=said.append)
    monkeypatch.setattr(opened, "commit", fail)
    loop.run()
    assert len(said) == (not runner_fails)
    drain(table, [queue])
    exactly(table, queue)


def test_rows_that_others_erase_while_it_runs_are_told(
    table: Path, queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def others() -> None:
        DeltaTable(table).delete("offset < 5")
        DeltaTable(table).alter.set_table_properties(
            {"delta.logRetentionDuration": "interval 40 days"}
        )
        write(queue, messages(1500, 10))

    loop = loop_over(table, [queue], pace=Pace(trigger=0), say=said.append)
    scripted(loop, monkeypatch, lambda: None, others, lambda: None)
    assert said == [
        "bridge: version 2 (DELETE, by another program) erased 5 rows; they will not land again"
    ]


def test_a_checkpoint_which_fails_does_not_end_the_bridge(table: Path, queue: Path) -> None:
    said: list[str] = []
    opened = Table.create(table, TABLE_SCHEMA)

    def maintain() -> None:
        raise TableError("cannot write a checkpoint: No space left on device")

    opened.maintain = maintain  # type: ignore[method-assign]
    drain(opened, [queue], maintenance=Maintenance(Run.new(), said.append))
    exactly(table, queue)
    assert said == [
        "bridge: cannot write a checkpoint: No space left on device; it is tried again later"
    ]

    def changed() -> None:
        raise Overtaken("by another bridge")

    opened.maintain = changed  # type: ignore[method-assign]
    write(queue, messages(1500, 10))
    with pytest.raises(Overtaken):
        drain(opened, [queue], maintenance=Maintenance(Run.new(), said.append))


class Faulty(OSDisk):
    """Does not answer so many times."""

    def __init__(self) -> None:
        super().__init__()
        self.silent = 0

    def names(self, path: str) -> list[str]:
        self._answer()
        return super().names(path)

    def open(self, path: str, *, write: bool = False) -> File:
        self._answer()
        return super().open(path, write=write)

    def _answer(self) -> None:
        if self.silent:
            self.silent -= 1
            raise OSError(5, "the store does not answer")


def test_files_which_are_too_old_are_not_committed(
    table: Path, queue: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops, "FILE_SECONDS_MAX", 10.0)
    now = [0.0]

    def slow(target: Target, tasks: Tasks) -> LandedRanges:
        now[0] += 11.0 if now[0] == 0.0 else 0.0
        return run_here(target, tasks)

    loop = drain(table, [queue], runner=slow, clock=lambda: now[0])
    assert loop.progress.failures == 1
    exactly(table, queue)


def test_a_drain_does_not_end_while_a_gateway_is_slow_to_answer__TB_09(
    table: Path, queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TB-09: a gateway which had answered once and was slow then counted as drained."""
    loop = loop_over(table, [queue])
    assert loop.gateways.ask({}, PATIENCE)
    scripted(loop, monkeypatch, *[lambda: False] * 3, *[lambda: None] * 2)
    exactly(table, queue)


def test_a_bridge_with_nothing_to_land_sees_that_its_table_was_taken_back__TB_05(
    table: Path, queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TB-05: what others commit is read before they may clean the log behind it."""
    monkeypatch.setattr(loops, "IDLE_SECONDS", 0.0)
    drain(table, [queue], pace=IN_THREE)
    loop = loop_over(table, [queue], pace=Pace(trigger=0))
    DeltaTable(table).restore(1)
    with pytest.raises(RewindNeeded):
        scripted(loop, monkeypatch, *[lambda: None] * 3)


def test_a_table_that_cannot_be_read_just_now_is_read_again_after_a_while(
    table: Path, queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Table.create(table, TABLE_SCHEMA)
    disk, now = Faulty(), [100.0]
    opened = Table.open_for_writing(table, disk=disk)
    loop = loop_over(opened, [queue], pace=Pace(trigger=0), clock=lambda: now[0])

    def silent(after: float) -> bool:
        now[0] += after
        disk.silent = 1
        return False

    steps: list[Any] = [partial(silent, after) for after in (59.0, 1.0, 59.0)]
    steps.append(lambda: setattr(disk, "silent", 0))
    seen = scripted(loop, monkeypatch, *steps, see=lambda: disk.silent)
    assert seen == [0, 1, 0, 1, 0], "it is read once a minute"
    exactly(table, queue)


# -- other bridges ---------------------------------------------------------------------------------


def test_two_bridges_on_one_gateway_exclude_each_other__TB_03_TB_04(
    table: Path, queue: Path
) -> None:
    """TB-03, TB-04: two bridges, each with a checkpoint of its own, landed rows twice or never."""

    def overtaken(target: Target, tasks: Tasks) -> LandedRanges:
        landed = run_here(target, tasks)
        drain(table, [queue], run=OTHER)
        return landed

    with pytest.raises(Overtaken, match="process 4711 on elsewhere"):
        loop_over(table, [queue], runner=overtaken).run()
    exactly(table, queue)


def test_a_bridge_whose_gateway_was_moved_between_its_batches_ends_and_names_who__TB_04(
    table: Path, queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else both would land by turns, each where the other one has ended."""

    def moved() -> None:
        write(queue, messages(1500, 10))
        drain(table, [queue], run=OTHER)
        write(queue, messages(1510, 10))

    loop = loop_over(table, [queue], pace=Pace(trigger=0))
    line = r"process 4711 on elsewhere, moved gateway .*: let one land it"
    with pytest.raises(Overtaken, match=line):
        scripted(loop, monkeypatch, lambda: None, moved, lambda: None)
    assert loop.progress.batches == 1


def test_what_another_bridge_has_just_committed_is_no_mark_before_it_is_durable__TB_01(
    table: Path, queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TB-01: it may have died between its version and the sync of that."""
    place, name, now = QueueReader(queue).place(1500), identity(queue), [100.0]
    loop = loop_over(table, [queue], pace=Pace(trigger=0), clock=lambda: now[0])
    seen = scripted(
        loop,
        monkeypatch,
        lambda: Table.open(table).commit([], {name: place}, before={}, run=Run.new()),
        lambda: now.append(now.pop() + 60),  # it looks around, and syncs what it finds
        lambda: None,
        see=lambda: loop.marks.unsent(),
    )
    assert loop.table.landed() == {name: place}
    assert seen == [set(), set(), set(), {name}]


# -- tables which were changed behind the bridge's back --------------------------------------------


def restored(table: Path) -> None:
    DeltaTable(table).restore(1)


def row_added(table: Path) -> None:
    rows = DeltaTable(table).to_pyarrow_table().slice(0, 1)
    write_deltalake(table, rows, mode="append")


@pytest.mark.parametrize("change", [restored, row_added])
@pytest.mark.parametrize("running", [False, True], ids=["before a start", "while a batch ran"])
def test_a_table_whose_rows_are_not_those_that_landed_is_refused__TB_05__RD_30(
    table: Path, queue: Path, change: Callable[[Path], None], running: bool
) -> None:
    """TB-05: after a restore the rows are gone and the offset still says they are there."""
    drain(table, [queue], pace=IN_THREE)
    write(queue, messages(1500, 10))

    def meanwhile(target: Target, tasks: Tasks) -> LandedRanges:
        landed = run_here(target, tasks)
        change(table)
        return landed

    if running:
        with pytest.raises(RewindNeeded, match=r"(changed|added) rows"):
            drain(table, [queue], runner=meanwhile)
    else:
        change(table)
    for _ in range(2):  # refused again, until somebody has rewound it
        with pytest.raises(RewindNeeded) as refused:
            drain(table, [queue])
    command = re.search("'msgproto (table rewind.*)' sets", str(refused.value))
    assert command is not None
    assert cli.main(shlex.split(command[1].replace("QUEUE", str(queue)))) == 0
    drain(table, [queue])
    exactly(table, queue)


def test_a_bridge_that_stood_aside_lands_again_what_was_set_back__TB_11(
    table: Path, queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took its version from before for an answer that was lost, and told the queue so."""
    drain(table, [queue], pace=IN_THREE, run=OTHER)
    [first, *_] = Table.open(table).files()
    (table / first.path).unlink()
    rewind(Table.open_for_writing(table), Run.new(), queues={identity(queue): QueueReader(queue)})
    loop, ahead = loop_over(table, [queue], pace=IN_THREE, run=OTHER), list[int]()

    def want(landed: Any) -> None:
        ahead.extend(at.offset - places(table)[name].offset for name, at in landed.items())

    monkeypatch.setattr(loop.marks, "want", want)
    loop.run()
    exactly(table, queue)
    assert max(ahead) == 0


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


def test_an_old_queue_is_landed_by_no_table_that_lacks_what_it_trimmed__TB_05(
    table: Path, tmp_path: Path
) -> None:
    """TB-05: a table which was removed was begun again in the middle, without a word."""
    queue = tmp_path / "small"
    write(queue, messages(0, 300), segment_bytes=4096)
    drain(table, [queue], pace=Pace(trigger=0, once=True, rows_max=100))
    shutil.copytree(table, tmp_path / "backup")
    for first in range(300, 2400, 300):
        write(queue, messages(first, 300), segment_bytes=4096)
    drain(table, [queue])
    write(queue, messages(2400, 300), segment_bytes=4096)
    begin = QueueReader(queue).begin()
    assert begin > 300
    shutil.rmtree(table)
    shutil.copytree(tmp_path / "backup", table)
    with pytest.raises(QueueMismatch):
        drain(table, [queue])
    shutil.rmtree(table)
    with pytest.raises(QueueMismatch, match=r"trimmed .* below offset \d+.*--start begin"):
        drain(table, [queue])
    drain(table, [queue], start_begin=True)
    assert landed_offsets(table) == {identity(queue): list(range(begin, 2700))}


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
    table: Path, queue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TB-06: a snapshot has the running gateway in it, which keeps its number; the rows tell."""
    monkeypatch.setattr(segment_log, "new_incarnation", lambda: 11)
    running = SegmentLog(queue)
    running.append([encode([messages(1500, 100)])])
    shutil.copytree(queue, tmp_path / "snapshot")
    running.append([encode([messages(1600, 100)])])
    running.close()
    drain(table, [queue])
    shutil.rmtree(queue)
    shutil.copytree(tmp_path / "snapshot", queue)
    for rows in (100, 50):  # as long as what landed, and longer
        again = SegmentLog(queue)
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

    def swapped(target: Target, tasks: Tasks) -> LandedRanges:
        shutil.rmtree(queue)
        shutil.copytree(second, queue)
        return run_here(target, tasks)

    with pytest.raises(QueueError):
        drain(table, [queue], runner=swapped)
    assert QueueReader(queue).consumers() == {}
    assert places(table) == {}
