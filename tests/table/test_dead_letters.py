"""Rows for which a transform raises: in the table of dead letters, once, or in the main table."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.table.conftest import both
from tests.tools.disks import POWERS, Killed, PowerDisk
from tests.tools.loops import finish, loop_over
from tests.tools.tables import (
    TABLE_SCHEMA,
    Gateway,
    check_sum,
    counted_rows,
    expected_rows,
    opened_again,
)
from twisted_msgproto.core.errors import (
    ConfigurationError,
    Overtaken,
    QueueAway,
    QueueMismatch,
    TableChanged,
    TableError,
)
from twisted_msgproto.queue import Landed, QueueReader
from twisted_msgproto.spark import loop as loops
from twisted_msgproto.spark.loop import Loop, Pace
from twisted_msgproto.spark.source_options import open_range
from twisted_msgproto.table import preflight, retention
from twisted_msgproto.table.actions import Run
from twisted_msgproto.table.dead_letters import DEAD_SCHEMA, DeadLetters, FunctionFailed
from twisted_msgproto.table.delta_table import Table
from twisted_msgproto.table.landing import LandedRanges, Target, land_ranges, merged
from twisted_msgproto.table.plan import Range
from twisted_msgproto.table.proof import verify
from twisted_msgproto.table.retention import expire, vacuum
from twisted_msgproto.table.rewind import rewind

Tasks = Sequence[Sequence[Range]]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "ATTEMPT_SECONDS", 0.0)


@dataclass
class Function:
    """A transform that raises for rows with these offsets, and lands the others as they are."""

    bad: Collection[int]
    by_row: bool = True
    runs: int = 0
    disk: Any = None

    def __call__(self, target: Target, tasks: Tasks) -> LandedRanges:
        self.runs += 1
        for part in (one for ranges in tasks for one in ranges):
            gone = {at for lo, hi in part.erased for at in range(lo, hi)}
            if reasons := [at for at in self.bad if part.lo <= at < part.hi and at not in gone]:
                raise FunctionFailed("m:f", f"ValueError: {min(reasons)}", by_row=self.by_row)
        storage = self.disk
        return merged(land_ranges(target, ranges, open_range, storage) for ranges in tasks)


@dataclass
class Pair:
    """A main table and its dead letters, landed as a bridge does."""

    main: Table
    dead: str = ""
    run: Run = field(default_factory=Run.new)
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.dead = self.dead or f"{self.main.location}-dead"

    @property
    def letters(self) -> Table:
        return Table.open(self.dead, dict(self.main.storage.options))

    def loop(self, function: Function, *gateways: Gateway, **options: Any) -> Loop:
        main, run = opened_again(self.main), Run.new()
        if "letters" not in options:
            storage = dict(main.storage.options)
            dead = preflight.open_table(self.dead, DEAD_SCHEMA, None, storage, run)
            opened = options.pop("open_queue", open_range)
            options["letters"] = DeadLetters(main, dead, run, opened)
        places = [gateway.directory for gateway in gateways]
        return loop_over(main, places, runner=function, run=run, say=self.said.append, **options)

    def land(self, function: Function, *gateways: Gateway, **options: Any) -> Loop:
        loop = self.loop(function, *gateways, **options)
        loop.run()
        finish(loop)
        return loop

    def check(self, gateway: Gateway, bad: Collection[int], begin: int = 0) -> None:
        """Each row is once in one of both, and both add up."""
        end = gateway.reader.end()
        dead = Counter((gateway.id, at) for at in bad)
        assert counted_rows(self.main) == expected_rows(gateway, begin, end) - dead
        assert counted_rows(self.letters) == dead
        found = check_sum(self.main, gateway)
        assert found.landed is not None and found.landed.offset == end
        assert found.rejected == len(bad)
        if bad:
            other = verify(self.letters)
            assert other.intact, list(other.findings())


def consumers(gateway: Gateway) -> set[int]:
    return set(gateway.reader.consumers().values())


@pytest.fixture
def pair(local: Table) -> Pair:
    return Pair(local)


# -- the ordinary course ---------------------------------------------------------------------------


@both
def test_rows_for_which_the_function_raises_are_dead_letters(table: Table, a: Gateway) -> None:
    pair = Pair(table)
    a.put(399)
    [body] = [row["body"] for batch in a.reader.read(3, 4) for row in batch.to_pylist()]
    loop = pair.land(Function({3, 17, 18}), a)
    pair.check(a, {3, 17, 18})
    assert (loop.progress.rows, loop.progress.rejected) == (397, 3)
    a.put(100)
    pair.land(Function({3, 17, 18, 499}), a)
    pair.check(a, {3, 17, 18, 499})
    assert consumers(a) == {500}
    rows = DeltaTable(pair.dead, storage_options={**table.storage.options}).to_pyarrow_table()
    first = rows.sort_by("offset").to_pylist()[0]
    assert (first["body"], first["_error"]) == (body, "ValueError: 3")
    [line] = [line for line in pair.said if line.endswith("(offsets 499): ValueError: 499")]
    assert line.startswith(f"bridge rejected 1 rows of queue {a.id} in batch ")


def test_a_function_is_halved_only_after_three_failures(pair: Pair, a: Gateway) -> None:
    a.put(20)
    function, left = Function({5}), [2]

    def heals(target: Target, tasks: Tasks) -> LandedRanges:
        left[0] -= 1
        if left[0] < 0:
            function.bad = ()
        return Function.__call__(function, target, tasks)

    loop = pair.loop(function, a)
    loop.runner = heals
    loop.run()
    pair.check(a, ())
    assert loop.progress.failures == 2


# -- what is not the rows' fault -------------------------------------------------------------------


def files_of(table: Table) -> list[Path]:
    return list(Path(table.location).rglob("*.parquet"))


@pytest.mark.parametrize(
    ("function", "options", "line"),
    [
        (
            Function(range(50, 62)),
            {},
            "ValueError: 50, at offset 50 of gateway ID and for 11 rows up to offset 60 of gateway "
            "ID: more than the 10 that may be dead letters of one batch; mend the function",
        ),
        (
            Function({5}, by_row=False),
            {},
            "ValueError: 5; it looks across rows, so any of offsets 0 to 101 of gateway ID may be "
            "the reason",
        ),
        (
            Function({5, 77}),
            {"letters": None},
            "ValueError: 5, at offset 5 of gateway ID; mend the function, or name a table for such "
            "rows (dead_letters)",
        ),
    ],
    ids=["too many rows", "a function across rows", "no dead letters"],
)
def test_the_bridge_stops_in_one_line_that_names_gateway_and_offsets(
    pair: Pair, a: Gateway, function: Function, options: dict[str, Any], line: str
) -> None:
    a.put(100)
    with pytest.raises(TableError) as told:
        pair.land(replace(function), a, **options)
    assert str(told.value) == f"the transform m:f failed: {line}".replace("ID", a.id)
    assert files_of(pair.main) == [] and pair.main.landed() == {}
    assert set(a.reader.consumers().values()) <= {0}


def test_of_a_large_batch_one_row_in_a_hundred_may_be_rejected(pair: Pair, a: Gateway) -> None:
    a.put(1199)
    pair.land(Function(range(100, 112)), a, pace=Pace(trigger=0, once=True, cores=3))
    assert len(opened_again(pair.main).files()) > 3
    assert any("(offsets 100, 101, 102, 103, 104 and 7 more): " in line for line in pair.said)
    pair.check(a, range(100, 112))
    a.put(1200)
    with pytest.raises(TableError, match=r"and for 13 rows up to offset 1412 .*more than the 12"):
        pair.land(Function(range(1400, 1413)), a)


def test_a_function_that_lands_nothing_any_more_stops_the_bridge(pair: Pair, a: Gateway) -> None:
    """Batches of a row each do not pass as many small batches with one bad row."""
    a.put(100)
    small = Pace(trigger=0, once=True, rows_max=1)
    for _ in range(2):  # a supervisor starts it again
        with pytest.raises(TableError, match=r"at offset 10 of .* more than the 0 that may be"):
            pair.land(Function(range(100)), a, pace=small)
        assert counted_rows(pair.letters) == expected_rows(a, 0, 10)
        assert not counted_rows(pair.main)
    # One that was mended goes on, though another row is wrong.
    pair.land(Function({*range(10), 12}), a, pace=replace(small, rows_max=20))
    pair.check(a, {*range(10), 12})
    a.put(20)
    with pytest.raises(TableError, match=r"at offset 112 of"):
        pair.land(Function(range(102, 120)), a, pace=small)


@pytest.mark.parametrize("when", range(4, 9))
def test_a_disk_that_fails_while_a_batch_is_halved_is_not_the_rows_fault(
    pair: Pair, a: Gateway, when: int
) -> None:
    a.put(20)
    function = Function({5})

    def full(target: Target, tasks: Tasks) -> LandedRanges:
        if function.runs + 1 == when:
            function.runs += 1
            raise TableError("the table: No space left on device")
        return Function.__call__(function, target, tasks)

    loop = pair.loop(function, a)
    loop.runner = full
    with pytest.raises(TableError, match="No space left"):
        loop.run()
    assert files_of(pair.main) == [] and pair.main.landed() == {}
    pair.land(Function({5}), a)
    pair.check(a, {5})


def test_a_gateway_that_goes_while_a_batch_is_halved_keeps_its_rows(
    pair: Pair, a: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    from twisted_msgproto.table.landing import Failure

    a.put(20)
    function = Function({5})

    def away(target: Target, tasks: Tasks) -> LandedRanges:
        if function.runs == 4:
            function.runs += 1
            return LandedRanges(failed={a.id: Failure(False, "it is away")})
        return Function.__call__(function, target, tasks)

    loop = pair.loop(function, a)
    loop.runner = away
    loop.run()
    assert any("is away and keeps its place: it is away" in line for line in pair.said)
    pair.check(a, {5})


# -- the main table decides, the dead letters follow -----------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("power", POWERS)
def test_killed_before_any_step_each_row_is_once_in_one_of_both(
    tmp_path: Path, power: str, pytestconfig: pytest.Config
) -> None:
    """In the short form each step meets one of the ends, by turns."""
    long = pytestconfig.getoption("--long")
    Table.create(tmp_path / "first" / "main", TABLE_SCHEMA)
    preflight.open_table(str(tmp_path / "first" / "dead"), DEAD_SCHEMA, None, {}, Run.new())
    for step in range(0 if long else POWERS.index(power), 400, 1 if long else len(POWERS)):
        root = shutil.copytree(tmp_path / "first", tmp_path / str(step))
        gateway = Gateway(tmp_path / f"queue{step}")
        gateway.put(11)
        main = Table.open(root / "main")
        disk = PowerDisk(root, step)
        pair = Pair(main, str(root / "dead"))
        killed = True
        try:
            tables = [Table.open_for_writing(root / name, disk=disk) for name in ("main", "dead")]
            function = Function({1, 4, 5, 9}, disk=tables[0].storage)
            run = Run.new()
            loop = loop_over(
                tables[0],
                [gateway.directory],
                runner=function,
                run=run,
                pace=Pace(trigger=0, once=True, rows_max=6),
                letters=DeadLetters(tables[0], tables[1], run, open_range),
                say=pair.said.append,
            )
            loop.run()
            killed = False
        except Killed:
            pass
        finish(loop)
        if power != "kill":
            disk.cut(torn=power == "torn")
        dead_before = verify(pair.letters)
        assert dead_before.intact, list(dead_before.findings())
        kept = {gateway.id: gateway.reader.begin()}
        assert kept[gateway.id] <= min([12, *waiting_rows(pair.main)]), step
        gateway.put(5)
        pair.land(Function({1, 4, 5, 9, 13}), gateway)
        pair.check(gateway, {1, 4, 5, 9, 13})
        assert not list((root / "main" / "_bridge" / "rejected").glob("*.json")) or killed
        if not killed:
            break
    assert step > 40


def waiting_rows(main: Table) -> Iterator[int]:
    import json

    for path in Path(main.location, "_bridge", "rejected").glob("*.json"):
        yield from map(int, json.loads(path.read_text() or "{}"))


class Stop(BaseException):
    """The process is gone between the main table and the dead letters."""


def stopped_between(pair: Pair, function: Function, *gateways: Gateway) -> None:
    """Run a bridge until rows have been rejected, and end it before they are dead letters."""

    def opened(part: Range) -> Any:
        raise Stop

    with pytest.raises(Stop):
        pair.land(function, *gateways, open_queue=opened)


def test_vacuum_removes_what_a_killed_bridge_has_listed_and_not_what_waits(
    pair: Pair, a: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their texts may quote a message."""
    a.put(30)

    def killed(*given: Any, **more: Any) -> int:
        raise Stop

    with monkeypatch.context() as patch, pytest.raises(Stop):
        patch.setattr(Table, "commit", killed)
        pair.land(Function({5, 6}), a)
    stopped_between(pair, Function({2, 3}), a)
    assert sorted(waiting_rows(pair.main)) == [2, 3, 5, 6]
    gone = vacuum(opened_again(pair.main), clock=lambda: time.time() + 2 * 86_400).paths
    assert sum(path.startswith("_bridge/") for path in gone) == 1
    assert sorted(waiting_rows(pair.main)) == [2, 3]
    pair.land(Function(()), a)
    pair.check(a, {2, 3})


@both
def test_what_waits_is_landed_at_the_next_start_before_anything_else(
    table: Table, a: Gateway
) -> None:
    """And again where the table of dead letters could not be written just now."""
    pair = Pair(table)
    a.put(30)
    stopped_between(pair, Function({2, 3, 20}), a)
    assert not counted_rows(pair.letters)
    assert consumers(a) == {0}
    loop = pair.loop(Function(()), a)  # nothing is new
    assert loop.letters is not None
    real, errors = loop.letters.table.commit, [TableError("no answer"), TableError("no answer")]

    def commit(*given: Any, **how: Any) -> int:
        if errors:
            raise errors.pop()
        return real(*given, **how)

    loop.letters.table.commit = commit  # type: ignore[method-assign]
    loop.run()
    finish(loop)
    assert loop.progress.failures == 2
    pair.check(a, {2, 3, 20})
    assert consumers(a) == {31}
    options = {**table.storage.options}
    errors = (
        DeltaTable(pair.dead, storage_options=options)
        .to_pyarrow_table()
        .column("_error")
        .to_pylist()
    )
    assert sorted(errors) == ["ValueError: 2", "ValueError: 20", "ValueError: 3"]


def test_without_the_dead_letters_a_start_is_refused_while_rows_wait(
    pair: Pair, a: Gateway
) -> None:
    a.put(30)
    stopped_between(pair, Function({2, 3}), a)
    with pytest.raises(ConfigurationError, match=f"^2 rows of gateway {a.id} which .* once more"):
        pair.land(Function(()), a, letters=None)
    pair.land(Function(()), a)
    a.put(5)
    pair.land(Function(()), a, letters=None)
    pair.check(a, {2, 3})


def test_a_gateway_whose_rows_wait_lands_nothing_else_and_the_others_go_on(
    pair: Pair, a: Gateway, b: Gateway
) -> None:
    a.put(30)
    stopped_between(pair, Function({2}), a)
    a.put(30)
    b.put(30)
    tried = [0]

    def away(part: Range) -> Any:
        tried[0] += 1
        if tried[0] < 3:
            raise QueueAway("it does not answer")
        if tried[0] == 3:
            assert counted_rows(pair.main)[b.id, 30] == 1
            assert not counted_rows(pair.main)[a.id, 31]
        return open_range(part)

    pair.land(Function({7, 40}), a, b, open_queue=away)
    dead = Counter([(a.id, 2), (a.id, 40), (b.id, 7)])
    assert counted_rows(pair.letters) == dead
    assert counted_rows(pair.main) == expected_rows(a, 0, 61) + expected_rows(b, 0, 31) - dead
    assert verify(pair.main).intact
    assert [line for line in pair.said if "is away and keeps its place" in line]


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("dead", [False, True])
def test_a_table_that_goes_while_its_bridge_runs_ends_it_and_moves_no_mark(
    pair: Pair, a: Gateway, replaced: bool, dead: bool
) -> None:
    a.put(30)
    pair.land(Function({2}), a)
    a.put(30)
    loop = pair.loop(Function({2, 40}), a)
    place = Path(pair.dead if dead else pair.main.location)
    place.rename(place.with_name("elsewhere"))
    if replaced:
        Table.create(place, DEAD_SCHEMA if dead else TABLE_SCHEMA)
    with pytest.raises(TableChanged, match=f"^version 1 of {place} is gone: the table was removed"):
        loop.run()
    finish(loop)
    assert consumers(a) == {31}
    shutil.rmtree(place, ignore_errors=True)
    place.with_name("elsewhere").rename(place)
    pair.land(Function({2, 40}), a)
    pair.check(a, {2, 40})


@pytest.mark.parametrize("rejected", [{2, 21}, {21}])
def test_a_row_that_is_damaged_before_it_is_a_dead_letter_is_counted_as_damaged(
    pair: Pair, a: Gateway, rejected: set[int]
) -> None:
    from tests.spark.conftest import damage_record

    a.put(30)
    bodies = [row["body"] for batch in a.reader.read(0, 31) for row in batch.to_pylist()]
    stopped_between(pair, Function(rejected), a)
    damage_record(a.directory, bodies[21])
    pair.land(Function(()), a)
    assert counted_rows(pair.letters) == {(a.id, offset): 1 for offset in rejected - {21}}
    report = verify(pair.letters)
    assert report.intact, list(report.findings())
    found = report.gateways[a.id]
    assert found.landed is not None
    assert found.damaged_rows == 1
    assert found.landed.offset - found.begin == found.rows + found.left_out + 1


# -- other bridges, other tables -------------------------------------------------------------------


@pytest.fixture
def keeping(monkeypatch: pytest.MonkeyPatch, a: Gateway) -> None:
    """A second consumer, so that the queue still has all rows when a table is set back."""
    a.reader.register("slow")


@pytest.mark.usefixtures("keeping")
def test_a_bridge_that_slept_does_not_land_the_dead_letters_of_another_again(
    pair: Pair, a: Gateway
) -> None:
    a.put(30)
    done: list[int] = []

    def meanwhile(part: Range) -> Any:
        if not done:
            done.append(1)
            pair.land(Function({2}), a)
            a.put(10)
            pair.land(Function({35}), a)
        return open_range(part)

    with pytest.raises(Overtaken):
        pair.land(Function({2}), a, open_queue=meanwhile)
    pair.check(a, {2, 35})


def test_bridges_of_different_gateways_share_both_tables(
    pair: Pair, a: Gateway, b: Gateway
) -> None:
    a.put(30)
    b.put(30)
    stopped_between(pair, Function({2}), a)
    done: list[int] = []

    def meanwhile(part: Range) -> Any:
        if not done:
            done.append(1)
            pair.land(Function({4}), a)
        return open_range(part)

    pair.land(Function({3, 5}), b, open_queue=meanwhile)
    a.put(30)
    pair.land(Function({40}), a)
    dead = Counter([(a.id, 2), (a.id, 40), (b.id, 3), (b.id, 5)])
    assert counted_rows(pair.letters) == dead
    assert counted_rows(pair.main) == expected_rows(a, 0, 61) + expected_rows(b, 0, 31) - dead
    assert verify(opened_again(pair.main)).intact and verify(pair.letters).intact


def test_one_table_of_dead_letters_is_of_one_table(pair: Pair, a: Gateway, tmp_path: Path) -> None:
    a.put(30)
    pair.land(Function({2}), a)
    other = Pair(Table.create(tmp_path / "other", TABLE_SCHEMA), pair.dead)
    with pytest.raises(ConfigurationError, match="has the dead letters of another table"):
        other.land(Function({2}), a)


# -- tables that are set back ----------------------------------------------------------------------


def set_back(table: Table, gateway: Gateway) -> None:
    """Lose a file, and rewind: everything lands again."""
    table.refresh()
    first = min(table.files(), key=lambda file: file.modified)
    table.storage.delete(first.path)
    done = rewind(opened_again(table), Run.new(), queues={gateway.id: gateway.reader})
    assert done.gateways[0].place.offset == 0


@pytest.mark.usefixtures("keeping")
def test_dead_letters_stay_dead_when_the_main_table_is_set_back(pair: Pair, a: Gateway) -> None:
    """The function was mended meanwhile, and spoilt elsewhere."""
    a.put(30)
    pair.land(Function({2, 3}), a)
    set_back(pair.main, a)
    assert verify(opened_again(pair.main)).intact
    a.put(10)
    pair.land(Function({7, 35}), a)
    pair.check(a, {2, 3, 7, 35})
    set_back(pair.main, a)
    pair.land(Function(()), a)
    pair.check(a, {2, 3, 7, 35})


@pytest.mark.usefixtures("keeping")
def test_rows_that_wait_are_judged_again_when_their_table_is_set_back(
    pair: Pair, a: Gateway
) -> None:
    a.put(30)
    stopped_between(pair, Function({2, 3}), a)
    set_back(pair.main, a)
    pair.land(Function({3}), a)
    pair.check(a, {3})


def test_days_that_expire_while_places_are_set_back_stay_counted(
    pair: Pair, a: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    for day in range(3):
        a.put(20, day=day)
    pair.land(Function({2, 30}), a)

    class Meanwhile(QueueReader):
        def place(self, offset: int) -> Landed:
            expire(opened_again(pair.main), date(2023, 11, 16), Run.new())
            return super().place(offset)

    queues = {a.id: Meanwhile(a.directory)}
    with pytest.raises(TableError, match="then rewind again"):
        rewind(opened_again(pair.main), Run.new(), queues=queues)
    rewind(opened_again(pair.main), Run.new(), queues=queues)
    assert verify(opened_again(pair.main)).intact
    # The other way round: what is expired is counted on top of what the rewind has counted.
    expire(opened_again(pair.main), date(2023, 11, 17), Run.new())
    table, real = opened_again(pair.main), retention.days_before

    def meanwhile(*given: Any) -> Any:
        found = real(*given)
        rewind(opened_again(pair.main), Run.new(), queues={a.id: a.reader})
        return found

    monkeypatch.setattr(retention, "days_before", meanwhile)
    expire(table, date(2023, 11, 18), Run.new())
    assert verify(opened_again(pair.main)).intact


def test_a_batch_is_not_counted_on_top_of_what_a_rewind_has_counted_anew(
    pair: Pair, a: Gateway
) -> None:
    a.put(20)
    pair.land(Function({2}), a)
    expire(opened_again(pair.main), date(2023, 11, 16), Run.new())
    a.put(20, day=1)
    loop = pair.loop(Function({30}), a)
    assert loop.letters is not None
    real = loop.letters.notes

    def meanwhile(*given: Any) -> Any:
        notes = real(*given)
        rewind(opened_again(pair.main), Run.new(), queues={a.id: a.reader})
        return notes

    loop.letters.notes = meanwhile  # type: ignore[method-assign]
    with pytest.raises(Overtaken, match="changed msgproto-rejected"):
        loop.run()
    pair.land(Function({30}), a)
    assert verify(opened_again(pair.main)).intact


@pytest.mark.usefixtures("keeping")
def test_dead_letters_that_were_deleted_do_not_land_again(pair: Pair, a: Gateway) -> None:
    a.put(30)
    pair.land(Function({2, 3}), a)
    DeltaTable(pair.dead).delete("offset = 2")
    set_back(pair.main, a)
    pair.land(Function(()), a)
    assert counted_rows(pair.main) == expected_rows(a, 0, 31) - Counter([(a.id, 2), (a.id, 3)])
    assert counted_rows(pair.letters) == Counter([(a.id, 3)])
    assert verify(opened_again(pair.main)).gateways[a.id].rejected == 2


def test_dead_letters_of_another_history_hide_nothing(
    pair: Pair, a: Gateway, tmp_path: Path
) -> None:
    a.put(10)
    shutil.copytree(a.directory, tmp_path / "copy")
    a.put(10)
    pair.land(Function({2, 15}), a)
    older = Gateway.at(tmp_path / "copy")
    older.rows += 100
    older.put(12)
    queues = {older.id: older.reader}
    rewind(opened_again(pair.main), Run.new(), queues=queues, discard_rows=True)
    with pytest.raises(QueueMismatch, match=r"in the dead letters .*table rewind"):
        pair.land(Function(()), older)
    rewind(pair.letters, Run.new(), queues=queues, discard_rows=True)
    pair.land(Function({20}), older)
    pair.check(older, {2, 20})


def test_a_function_that_also_drops_rows_can_be_verified(pair: Pair, a: Gateway) -> None:
    def dropping(target: Target, tasks: Tasks) -> LandedRanges:
        landed = Function({2, 25})(target, tasks)
        return replace(landed, dropped=1)

    a.put(20)
    pair.land(Function({2}), a)
    a.put(20)
    loop = pair.loop(Function({2, 25}), a)
    loop.runner = dropping
    loop.run()
    report = verify(opened_again(pair.main))
    assert report.intact, list(report.findings())
    assert report.gateways[a.id].dropped == [(25, 26)]
