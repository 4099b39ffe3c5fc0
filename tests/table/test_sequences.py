"""Acts on a table in any order, each perhaps killed on its way, met by another one in the middle,
or on a disk that is full for a step or from a step on.

A model knows each row's fate: whatever else happens, no row is twice or lost, nothing that was
erased is there, and place - begin = rows + expired + damaged + erased + left out + rejected.
"""

from __future__ import annotations

import contextlib
import errno
import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from tests.table.test_dead_letters import Function, Pair
from tests.tools.loops import finish, loop_over
from tests.tools.tables import Gateway, check_sum, counted_rows
from twisted_msgproto.core.errors import MsgprotoError
from twisted_msgproto.spark import loop as loops
from twisted_msgproto.spark.loop import Pace
from twisted_msgproto.table import delta_table, landing, preflight
from twisted_msgproto.table.actions import Run
from twisted_msgproto.table.compact import compact
from twisted_msgproto.table.dead_letters import lists
from twisted_msgproto.table.delta_table import Table
from twisted_msgproto.table.landing import DAY, Target
from twisted_msgproto.table.retention import erase, expire, vacuum
from twisted_msgproto.table.rewind import rewind
from twisted_msgproto.table.shape import shape_of
from twisted_msgproto.table.storage import LocalStorage

STEPS = 30
FIRST_DAY = date(2023, 11, 15)

ACTS = (
    ["put"] * 4 + ["land"] * 5 + ["expire"] * 2 + ["erase"] * 2 + ["rewind"] * 3
    + ["compact", "stranger", "trim", "restore", "vacuum"]
)  # fmt: skip
MEANWHILE = ["land", "compact", "expire", "expire", "erase", "rewind", "rewind", "put", "stranger"]


class Killed(BaseException):
    pass


@dataclass
class Steps:
    """The steps in which acts change the table's folder; before one something else happens."""

    left: int | None = None
    event: Callable[[], None] | None = None
    dead: bool = False
    full: bool = False

    def step(self) -> None:
        if self.dead:
            raise Killed
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                self.left, self.dead = None, self.event is None
                if self.event is None:
                    raise Killed
                self.event()
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    found = Steps()

    def stepped(real: Callable[..., Any]) -> Callable[..., Any]:
        def work(*given: Any) -> Any:
            found.step()
            done = real(*given)
            found.step()
            return done

        return work

    for name in ("put", "put_new", "delete", "sync"):
        monkeypatch.setattr(LocalStorage, name, stepped(getattr(LocalStorage, name)))
    monkeypatch.setattr(landing, "make_durable", stepped(landing.make_durable))
    monkeypatch.setattr(loops, "ATTEMPT_SECONDS", 0.0)
    monkeypatch.setattr(delta_table, "CHECKPOINT_EVERY", 4)
    return found


def offsets_in(table: Table) -> set[int]:
    found = counted_rows(table)
    assert set(found.values()) <= {1}, "rows are there twice"
    return {at for _, at in found}


@dataclass
class World:
    """One queue, and a table of all its rows (with dead letters) or of those that it chooses."""

    path: Path
    chance: random.Random
    steps: Steps
    typed: bool
    day: int = 0
    rows: list[tuple[int, str]] = field(default_factory=lambda: [(0, "lumberjack")])
    gone: set[int] = field(default_factory=set)
    """May be absent: expired, erased, or both."""
    erased: set[int] = field(default_factory=set)
    now: set[int] = field(default_factory=set)
    seen: set[int] = field(default_factory=set)
    """Were there in the act of now."""
    doubt: bool = False
    """Others have set the table back, and nobody has rewound it since."""
    alone: bool = True
    """Nothing else happens in the act of now."""

    def __post_init__(self) -> None:
        self.queue = Gateway(self.path / "queue")
        self.place = self.path / "table"
        shape = shape_of(
            {"columns": {"n": {"type": "long"}}, "where": {"protocol": ["mtl", "umq"]}}
        )
        self.shape = shape if self.typed else None
        self.bad = range(0 if self.typed else 3, 0 if self.typed else 500, 11)
        self.land()
        self.now = self.there()

    def left_out(self, at: int) -> bool:
        return self.typed and self.rows[at][1] == "lumberjack"

    def there(self) -> set[int]:
        return offsets_in(Table.open(self.place))

    def dead(self) -> set[int]:
        """Dead letters, and what waits to become some."""
        if self.typed:
            return set()
        pair = Pair(Table.open(self.place))
        found, place = offsets_in(pair.letters), pair.main.landed()[self.queue.id].offset
        for path in lists(pair.main.transactions):
            with contextlib.suppress(FileNotFoundError):
                waiting = map(int, json.loads(pair.main.storage.read(path)))
                found |= {at for at in waiting if at < place}
        return found

    # -- acts -------------------------------------------------------------------------------------

    def put(self) -> None:
        self.day += self.chance.random() < 0.3
        count = self.chance.randrange(1, 9)
        protocol = self.chance.choice(("lumberjack", "mtl", "umq"))
        self.queue.put(count, day=self.day, protocol=protocol)
        self.rows += [(self.day, protocol)] * count

    def land(self, *, all_of_it: bool = False) -> None:
        rows_max = 1000 if all_of_it else self.chance.choice((3, 10, 1000))
        pace = Pace(trigger=0, once=True, rows_max=rows_max)
        if self.shape is None:
            table = preflight.open_table(str(self.place), None, None, {}, Run.new())
            # It was mended meanwhile, or spoilt again.
            bad = self.bad if self.chance.random() < 0.7 else ()
            loop = Pair(table).loop(Function(bad), self.queue, pace=pace)
        else:
            schema = self.shape.schema.append(DAY)
            table = preflight.open_table(str(self.place), schema, None, {}, Run.new(), grows=True)
            preflight.grow(table, schema, Run.new(), {})
            loop = loop_over(table, [self.queue.directory], pace=pace)
            loop.target = Target(str(self.place), {}, schema, shape=self.shape)
        loop.run()
        if self.chance.random() < 0.6:
            finish(loop)

    def compact(self) -> None:
        compact(Table.open_for_writing(self.place), Run.new())

    def expire(self) -> None:
        before = FIRST_DAY + timedelta(days=max(0, self.day - self.chance.randrange(3)))
        expire(Table.open_for_writing(self.place), before, Run.new())

    def erase(self) -> None:
        table, known = Table.open_for_writing(self.place), sorted(self.there())
        chosen = self.chance.sample(known, min(len(known), self.chance.randrange(1, 5)))
        ranges = {self.queue.id: [(at, at + 1) for at in chosen]}
        done = erase(table, Run.new(), offsets=ranges, purge=self.chance.random() < 0.3)
        self.erased |= {
            at for ranges in done.gateways.values() for lo, hi in ranges for at in range(lo, hi)
        }

    def rewind(self) -> None:
        queues = {self.queue.id: self.queue.reader}
        rewind(Table.open_for_writing(self.place), Run.new(), queues=queues)
        self.doubt &= not self.alone

    def stranger(self) -> None:
        delta, number = DeltaTable(self.place), self.chance.randrange(6)
        some = f"offset % 7 = {number}"
        if number < 2:
            delta.delete(some)
        elif number == 2:
            delta.update({"received_at": "received_at"}, predicate=some)
        elif number == 3:
            rows = delta.to_pyarrow_table(columns=["gateway", "offset"])
            same = "old.gateway = new.gateway AND old.offset = new.offset"
            merge = delta.merge(rows.slice(1, 5), same, source_alias="new", target_alias="old")
            merge.when_matched_delete(f"new.{some}").execute()
        elif number == 4:
            delta.optimize.z_order(["offset"])
        else:
            delta.optimize.compact()

    def vacuum(self) -> None:
        vacuum(Table.open_for_writing(self.place), clock=lambda: time.time() + 2 * 86_400)

    def restore(self) -> None:
        newest = DeltaTable(self.place).version()
        with contextlib.suppress(DeltaError):  # its files were purged
            DeltaTable(self.place).restore(self.chance.randrange(max(0, newest - 4), newest))
            self.doubt = True

    def trim(self) -> None:
        self.queue.trim()

    # -- what must hold ---------------------------------------------------------------------------

    @contextlib.contextmanager
    def disturbed(self) -> Iterator[None]:
        def meanwhile() -> None:
            self.alone = False
            self.seen |= self.there()
            with contextlib.suppress(MsgprotoError):
                getattr(self, self.chance.choice(MEANWHILE))()
            self.seen |= self.there()

        def full() -> None:
            self.alone = False
            self.steps.full = self.chance.random() < 0.5
            raise OSError(errno.ENOSPC, "No space left on device")

        what = self.chance.choice(["", "kill", "full", "other", "other", "other"])
        self.alone = True
        self.steps.left = self.chance.randrange(4 if what == "other" else 12) if what else None
        self.steps.event = {"other": meanwhile, "full": full}.get(what)
        try:
            yield
        except Killed:
            pass
        finally:
            self.steps.left, self.steps.event = None, None
            self.steps.dead = self.steps.full = False

    def act(self) -> bool:
        """Do something; return False where the table cannot go on, as it says."""
        name = self.chance.choice(ACTS)
        self.seen = set(self.now)
        try:
            with self.disturbed():
                getattr(self, name)()
        except MsgprotoError as error:
            if "are in neither" in str(error):  # set back by others to what the queue has trimmed
                return False
            assert self.doubt or not self.alone, f"{name}: {error}"
        self.now = self.there()
        if name != "restore":
            self.gone |= self.seen - self.now
        self.check()
        return True

    def check(self) -> None:
        there = self.now
        if self.doubt:
            return
        table = Table.open(self.place)
        check_sum(table, self.queue)
        place = table.landed()[self.queue.id].offset
        kept, dead = {at for at in range(place) if not self.left_out(at)}, self.dead()
        assert there <= kept, f"not to be there: {sorted(there - kept)}"
        assert not there & dead, f"in both tables: {sorted(there & dead)}"
        lost = kept - there - dead - self.gone
        assert not lost, f"lost: {sorted(lost)}"
        assert not there & self.erased, f"erased: {sorted(there & self.erased)}"


@pytest.mark.parametrize("seed", [*range(8), 27, 42])
def test_whatever_is_done_to_a_table_each_row_has_its_fate(
    tmp_path: Path, steps: Steps, seed: int
) -> None:
    world = World(tmp_path, random.Random(seed), steps, typed=bool(seed % 2))
    for _ in range(STEPS):
        if not world.act():
            return
    if not world.doubt:
        world.land(all_of_it=True)
        world.now = world.there()
        world.check()
        assert Table.open(world.place).landed()[world.queue.id].offset == len(world.rows)
