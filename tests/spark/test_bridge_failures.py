"""The bridge's loop without Java: what fails is done again or told, and when batches begin."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.spark.conftest import identity, messages, write
from tests.tools.loops import drain, exactly, landed_offsets, loop_over, run_here
from twisted_msgproto.core.errors import (
    MsgprotoError,
    QueueError,
    QueueMismatch,
    RewindNeeded,
    TableError,
)
from twisted_msgproto.queue import QueueReader
from twisted_msgproto.spark import loop as loops
from twisted_msgproto.spark.bridge import Maintenance
from twisted_msgproto.spark.gateways import Gateway
from twisted_msgproto.spark.loop import Loop, Pace
from twisted_msgproto.table import starting
from twisted_msgproto.table.actions import Run
from twisted_msgproto.table.disk import OSTableDisk
from twisted_msgproto.table.landing import TABLE_SCHEMA, Failure, LandedRanges, Range, Target
from twisted_msgproto.table.log import Table

PATIENCE = 60.0
"""How long a test waits for what must happen."""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "table"


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


def test_a_drain_does_not_end_while_a_gateway_is_slow_to_answer__TB_09(
    table: Path, queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TB-09: a gateway which had answered once and was slow then counted as drained."""
    loop = loop_over(table, [queue])
    asks = loop.gateways.ask
    assert asks({}, PATIENCE)
    silent = [3]

    def ask(landed: Any) -> list[Gateway]:
        silent[0] -= 1
        return [] if silent[0] >= 0 else asks(landed, PATIENCE)

    monkeypatch.setattr(loop.gateways, "ask", ask)
    loop.run()
    exactly(table, queue)


def test_a_bridge_with_nothing_to_land_sees_that_its_table_was_taken_back__TB_05(
    table: Path, queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TB-05: what others commit is read before they may clean the log behind it."""
    monkeypatch.setattr(loops, "IDLE_SECONDS", 0.0)
    drain(table, [queue], pace=Pace(trigger=0, once=True, rows_max=600))
    stop = threading.Event()
    loop = loop_over(table, [queue], pace=Pace(trigger=0), stop=stop)
    DeltaTable(table).restore(1)
    asks, rounds = loop.gateways.ask, [0]

    def ask(landed: Any) -> list[Gateway]:
        rounds[0] += 1
        if rounds[0] > 3:
            stop.set()
        return asks(landed, PATIENCE)

    monkeypatch.setattr(loop.gateways, "ask", ask)
    with pytest.raises(RewindNeeded):
        loop.run()


class Silent(OSTableDisk):
    """A disk that does not answer so many times."""

    times = 0

    def names(self, path: str) -> list[str]:
        self._answer()
        return super().names(path)

    def read(self, path: str) -> bytes:
        self._answer()
        return super().read(path)

    def _answer(self) -> None:
        if self.times:
            self.times -= 1
            raise OSError(5, "the store does not answer")


def test_a_table_that_cannot_be_read_just_now_is_read_again_after_a_while(
    table: Path, queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops, "IDLE_SECONDS", 0.0)
    Table.create(table, TABLE_SCHEMA)
    disk = Silent()
    loop = loop_over(Table.open_for_writing(table, disk=disk), [queue])
    asks, rounds = loop.gateways.ask, [0]

    def ask(landed: Any) -> list[Gateway]:
        """Nobody answers for some rounds, in which the bridge looks at its table."""
        rounds[0] += 1
        disk.times = int(rounds[0] == 1)
        return asks(landed, PATIENCE) if rounds[0] > 3 else []

    monkeypatch.setattr(loop.gateways, "ask", ask)
    loop.run()
    assert disk.times == 0
    exactly(table, queue)


def test_a_checkpoint_which_fails_does_not_end_the_bridge(table: Path, queue: Path) -> None:
    said: list[str] = []
    opened = starting.open_table(str(table), None, None, {}, Run.new())

    def maintain() -> None:
        raise TableError("cannot write a checkpoint: No space left on device")

    opened.maintain = maintain  # type: ignore[method-assign]
    drain(opened, [queue], maintenance=Maintenance(Run.new(), said.append))
    exactly(table, queue)
    assert said == [
        "bridge: cannot write a checkpoint: No space left on device; it is tried again later"
    ]


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


def test_when_no_gateway_can_be_landed_the_first_one_s_reason_is_told__TB_09(
    table: Path, queue: Path, tmp_path: Path
) -> None:
    write(tmp_path / "other", messages(0, 3))
    loop = loop_over(table, [queue, tmp_path / "other"], pace=Pace())
    first, second = loop.gateways.all
    loop.gateways.refuse(second, "the second is older")
    loop.gateways.refuse(first, "the first is older")
    with pytest.raises(QueueMismatch, match="the first is older"):
        loop.run()
