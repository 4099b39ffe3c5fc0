"""The bridge's loop reads the table, plans, lands, commits and marks; Spark only runs its jobs::

    refresh the table → ask every gateway → plan → run the job → commit → sync → marks

The table is the truth: where a batch begins is what the table says, its commit moves that place
together with the rows, and what a gateway may trim is what the table says once it is durable.  So
the loop has no state that matters; it may be killed between any two steps.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from ..core.errors import MsgprotoError, QueueError, QueueMismatch, TableError
from ..queue.lineage import Landed
from ..table import preflight
from ..table.actions import Commit, Run
from ..table.compact import Compactions
from ..table.dead_letters import DeadLetters, FunctionFailed, land_without, refuse_waiting
from ..table.delta_table import Table
from ..table.erased import Notes, hidden, united
from ..table.gaps import COUNTS, batch_notes
from ..table.landing import Failure, LandedRanges, Target, merged
from ..table.plan import BYTES_MAX, ROWS_MAX, Plan, Range, Waiting, joined, plan_batch
from .gateways import ANSWERS, AWAY, NEW, REFUSED, Gateway, Gateways, Marks
from .jobs import Runner
from .report import Aside, Batch, Lag, Progress, Report, first_few, lag

EMPTY_SECONDS = 10.0  # between commits of places that moved without a row

EARLY_ROWS = 20_000
EARLY_BYTES = 8 << 20  # a batch then starts before the trigger: it would only grow later

# While nothing is due, asking gateways takes an eighth of the time, and LOOKS times a trigger, at
# most: idle gateways would keep a core busy.
LOOK_SECONDS_MIN = 0.01
LOOK_SECONDS_MAX = 1.0
LOOK_SHARE = 8
LOOKS = 20

ATTEMPTS_MAX = 3  # after this many failures of a batch in a row the bridge ends with the last error

ATTEMPT_SECONDS = 1.0

FILE_SECONDS_MAX = 3600.0  # older ones are not committed: vacuum may have removed them
AWAY_SECONDS = 10.0  # for any gateway at a start, for each with ``--once``

# An idle bridge reads the table this often: others' commits, before they clean the log; and if it
# is one too many, that should not wait for rows.
IDLE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Pace:
    """When batches begin and how large they get."""

    trigger: float = 1.0  # seconds from one begin to the next; 0: when the last ends
    once: bool = False  # land what is there, and end
    rows_max: int = ROWS_MAX
    bytes_max: int = BYTES_MAX
    cores: int = 2


@dataclass(eq=False)
class Loop:
    """One run of the loop, in one thread.

    ``stop`` ends it after the running batch. ``maintenance`` is called between batches; ``check``
    once a round, and raises when there is no point in going on. Without ``letters``, rows for which
    a transform raises end it. ``progress`` has the figures of earlier loops, which count on.
    """

    table: Table
    target: Target
    gateways: Gateways
    marks: Marks
    runner: Runner
    own_run: Run
    pace: Pace
    stop: threading.Event
    _: KW_ONLY
    access: object = None
    say: Callable[[str], None] = lambda line: None
    maintenance: Callable[[Table], None] = Table.maintain
    check: Callable[[], None] = lambda: None
    letters: DeadLetters | None = None
    progress: Progress = field(default_factory=Progress)
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self.table.seen = self._seen
        self._erased = Notes(self.table.storage)
        self.progress.landed = self.table.landed()
        self.lags: dict[str, Lag] = {}
        self._due = float("-inf")
        self._looked = self._began = self._committed = self.clock()
        self._until: dict[str, int] = {}
        self._attempts = 0
        self._rejected = self.letters.in_a_row if self.letters else 0
        self._pending: tuple[Plan, LandedRanges] | None = None

    def run(self) -> None:
        self.table.sync()
        if self.letters is None:
            refuse_waiting(self.table)
        while not self.stop.is_set():
            self.check()
            asked = self.clock()
            answered = self.gateways.ask(self.table.landed())
            self._note(answered)
            answered = self._followed(answered)
            if self._is_due(answered):
                self.batch(answered)
                continue
            if self.pace.once:
                self._committed = float("-inf")  # who answers has no more
            if self._pending:
                self._land(None, LandedRanges(), 0.0)
            if self.pace.once and self._drained():
                break
            if not self.gateways.in_state(NEW, ANSWERS, AWAY):  # waiting does not help
                raise QueueMismatch(self.gateways.all[0].line)
            if self.clock() - self._looked >= IDLE_SECONDS:
                self._looked = self.clock()
                self._look_idly()
            self.stop.wait(self._pause(self.clock() - asked))
        self._committed = float("-inf")  # there is no later batch
        if self._pending:
            self._land(None, LandedRanges(), 0.0)

    def _pause(self, took: float) -> float:
        trigger = 0.0 if self.pace.once else self.pace.trigger
        pause = max(LOOK_SECONDS_MIN, LOOK_SHARE * took, trigger / LOOKS)
        left = self._due - self.clock()
        return min(LOOK_SECONDS_MAX, pause, left if left > 0 else pause)

    def _places(self) -> dict[str, Landed]:
        """Return how far the table has landed, and beyond it what it leaves out."""
        return self.table.landed() | (dict(self._pending[0].landed) if self._pending else {})

    # -- looking ----------------------------------------------------------------------------------

    def _note(self, answered: Iterable[Gateway]) -> None:
        """Note lags for people, marks that the table has proven, and where ``once`` ends."""
        landed, places = self.table.landed(), self._places()
        now = self.wall()
        proven: dict[str, Landed] = {}
        for one in answered:
            assert one.description is not None
            known = landed.get(one.gateway)
            self.lags[one.gateway] = lag(places.get(one.gateway), one.description, now)
            self._until.setdefault(one.gateway, one.description.end)
            if known is not None and one.gateway not in self._waiting:
                proven[one.gateway] = known
        self.progress.landed = {
            name: place for name, place in landed.items() if name in self.gateways.by_id
        }
        if self.table.durable:
            self.marks.want(proven)

    def _seen(self, commit: Commit) -> None:
        rows = preflight.note_erased(self.table, commit)
        if rows:
            what = f"version {commit.version} ({commit.operation}, by another program)"
            self.say(f"bridge: {what} erased {rows} rows; they will not land again")

    def _look(self) -> None:
        """Reads what others have committed; raises when nothing may land on top of it."""
        self.table.refresh()
        self.table.check_places(self.progress.landed)

    def _look_idly(self) -> None:
        try:
            self._look()
        except TableError as error:
            if type(error) is not TableError:
                raise
            return  # a store that does not answer just now
        self.table.sync()

    def _is_due(self, answered: Iterable[Gateway]) -> bool:
        behind = [one for one in answered if self.lags[one.gateway].rows > 0]
        if self.pace.once:
            landed = self._places()
            behind = [one for one in behind if self._begin(one, landed) < self._until[one.gateway]]
        if not behind:
            return False
        if self.pace.once or self.clock() >= self._due:
            return True
        rows = sum(self.lags[one.gateway].rows for one in behind)
        nbytes = sum(one.description.waiting_bytes for one in behind if one.description)
        return rows >= EARLY_ROWS or nbytes >= EARLY_BYTES

    @staticmethod
    def _begin(one: Gateway, landed: Mapping[str, Landed]) -> int:
        assert one.description is not None
        known = landed.get(one.gateway)
        return one.description.begin if known is None else known.offset

    def _drained(self) -> bool:
        """Return whether all has landed; QueueError when a gateway stays away."""
        for one in self.gateways.in_state(REFUSED):
            raise QueueMismatch(one.line)
        now = self.clock()
        for one in self.gateways.in_state(NEW, AWAY):
            if now - max(self._began, one.since) > AWAY_SECONDS:
                raise QueueError(one.line or f"{one.name} is away")
        landed = self._places()
        # A gateway that answered before may be slow to answer now: its rows are still missing.
        return all(
            one.state == ANSWERS
            and one.gateway in self._until
            and one.gateway not in self._waiting
            and self._begin(one, landed) >= self._until[one.gateway]
            for one in self.gateways.all
        )

    # -- a batch ----------------------------------------------------------------------------------

    def batch(self, answered: Iterable[Gateway]) -> None:
        began = self.clock()
        self._due = next_due(began, self.pace.trigger)
        try:
            self._look()
        except TableError as error:
            if type(error) is not TableError:
                raise
            self._failed(error)  # a store that does not answer just now
            return
        places = self._places()
        waiting = [
            Waiting(
                one.gateway, one.location, places.get(one.gateway), one.description, self.access
            )
            for one in answered
            if one.description is not None
        ]
        plan = self._plan(waiting)
        if plan is None:
            return
        try:
            landed = self._run(plan)
        except TableError as error:
            self._failed(error)
            return
        if landed.failed:
            for gateway, failure in landed.failed.items():
                self.gateways.fail(gateway, failure)
            self._due = float("-inf")
            return
        if self.clock() - began > FILE_SECONDS_MAX:
            self._failed(TableError(f"a batch took more than {FILE_SECONDS_MAX:.0f} s"))
            return
        self._land(plan, landed, self.clock() - began)

    def _run(self, plan: Plan) -> LandedRanges:
        try:
            landed = self.runner(self.target, plan.tasks)
        except FunctionFailed as error:
            if self._attempts < ATTEMPTS_MAX - 1 or self.stop.is_set():
                raise
            before = self._rejected if self.letters else None
            landed = land_without(
                self._run_part, self.table.storage, plan.tasks, error, before, self.pace.cores
            )
        rejected = sum(map(len, landed.rejected.values()))
        self._rejected = 0 if sum(landed.rows.values()) else self._rejected + rejected
        return landed

    def _run_part(self, tasks: Sequence[Sequence[Range]]) -> LandedRanges:
        if self.stop.is_set():
            raise TableError("the bridge ends")
        return self.runner(self.target, tasks)

    def _land(self, plan: Plan | None, landed: LandedRanges, seconds: float) -> None:
        """Commit a batch; one without a row waits for the next that has some, or a while."""
        if self._pending:
            before, rows = self._pending
            plan = before if plan is None else joined(before, plan)
            landed = merged([rows, landed])
        assert plan is not None
        recent = self.clock() - self._committed < EMPTY_SECONDS
        if landed.left_out and not landed.files and recent:
            self._pending = plan, landed
            return
        version = self._commit(plan, landed)
        if version is None:
            return
        self._pending, self._committed = None, self.clock()
        self._attempts = 0
        self._after(version, plan, landed, seconds)

    def _plan(self, waiting: list[Waiting]) -> Plan | None:
        batch = plan_batch(
            waiting,
            self.gateways.place,
            cores=self.pace.cores,
            rows_max=self.pace.rows_max,
            bytes_max=self.pace.bytes_max,
        )
        transactions = {**self.table.transactions, **self.table.due}
        known = self._erased.of(transactions)
        if self.letters is not None and self.letters.kept:
            known = united([known, self.letters.kept])
        return None if batch is None else hidden(batch, known)

    def _commit(self, plan: Plan, landed: LandedRanges) -> int | None:
        """Return the version that holds the batch; None when the batch has to be run again."""
        entries = {name: entry(plan, landed, name) for name in plan.landed}
        begins = {name: each["lo"] for name, each in entries.items() if not plan.before.get(name)}
        dropped_from = {name: each["lo"] for name, each in entries.items() if landed.dropped}
        notes = batch_notes(
            begins, landed.damaged, self.table.transactions, dropped_from, landed.left_out
        )
        if self.letters is not None:
            bounds = {name: (each["lo"], each["hi"]) for name, each in entries.items()}
            counts, more = self.letters.notes(bounds, landed.rejected)
            notes |= more
            for name in filter(counts.get, counts):
                entries[name]["rejected"] = counts[name]
        known = self.table.transactions
        counted = {name: known.get(name, 0) for name in notes if name.startswith(COUNTS)}
        attempts = 0
        while True:
            try:
                return self.table.commit(
                    landed.files,
                    plan.landed,
                    before=plan.before,
                    run=self.own_run,
                    info={"gateways": entries},
                    notes=notes,
                    notes_before=counted,
                )
            except TableError as error:
                attempts += 1
                # Overtaken among them: who has moved a gateway, ends the bridge.
                if type(error) is not TableError or attempts == ATTEMPTS_MAX:
                    raise
                self.say(f"bridge: {error}; the same files are committed again")
                if self.stop.wait(ATTEMPT_SECONDS):
                    return None

    def _failed(self, error: MsgprotoError) -> None:
        self.check()
        self.progress.failures += 1
        self._attempts += 1
        if self.stop.is_set():
            return
        if self._attempts >= ATTEMPTS_MAX:
            raise error
        self.say(f"bridge: {error}; the batch is run again")
        self._due = float("-inf")
        self.stop.wait(ATTEMPT_SECONDS)

    def _after(self, version: int, plan: Plan, landed: LandedRanges, seconds: float) -> None:
        self.table.sync()
        if self.letters is not None:
            self.letters.decided()
        for gateway, offsets in landed.rejected.items():
            self.say(rejected_line(gateway, offsets, version))
        self._followed([self.gateways.by_id[gateway] for gateway in plan.landed])
        self.marks.want(
            {name: place for name, place in plan.landed.items() if name not in self._waiting}
        )
        self.gateways.settle(plan.landed)
        rows = sum(landed.rows.values()) - landed.dropped
        self.progress.landed = {**self.progress.landed, **plan.landed}
        self.progress.add(Batch(version, rows, seconds, self.wall()), landed)
        for gateway, parts in landed.damaged.items():
            if parts:
                self.say(damage_line(gateway, parts, version))
        for gateway, place in plan.landed.items():
            one = self.gateways.by_id[gateway]
            if one.description is not None:
                left = max(0, one.description.end - place.offset)
                self.lags[gateway] = Lag(left, self.lags[gateway].oldest_age if left else 0.0)
        self.maintenance(self.table)

    # -- dead letters -----------------------------------------------------------------------------

    @property
    def _waiting(self) -> Collection[str]:
        return self.letters.waiting if self.letters else ()

    def _followed(self, answered: Iterable[Gateway]) -> list[Gateway]:
        """Land dead letters, and return those gateways of which none wait any more."""
        answered = list(answered)
        if self.letters is None:
            return answered
        for one in answered:
            try:
                if one.queue is not None:
                    self.letters.check(one.gateway, one.queue)
                if one.gateway not in self._waiting or self.stop.is_set():
                    continue
                failure = self.letters.follow(one.gateway, one.location, self.access)
            except QueueError as error:
                failure = Failure(isinstance(error, QueueMismatch), str(error))
            except TableError as error:
                if type(error) is not TableError:
                    raise
                self._failed(error)
                return []
            if failure is not None:
                self.gateways.fail(one.gateway, failure)
            else:
                self._attempts = 0
                self.marks.want({one.gateway: self.table.landed()[one.gateway]})
        return [
            one for one in answered if one.state == ANSWERS and one.gateway not in self._waiting
        ]

    # -- telling ----------------------------------------------------------------------------------

    def report(self, state: str, error: str | None = None) -> Report:
        """Return what there is to say now; any thread may ask."""
        now = self.clock()
        aside = [
            Aside(one.location, one.gateway, one.state, one.line, now - one.since)
            for one in self.gateways.in_state(AWAY, REFUSED)
        ]
        return Report(
            state,
            self.progress,
            dict(self.lags),
            len(self.gateways.all),
            tuple(aside),
            error,
        )


class Maintenance:
    """Work between two batches; an error in it is reported, as no batch depends on it."""

    def __init__(self, run: Run, say: Callable[[str], None]) -> None:
        self._say = say
        self._compactions = Compactions(run, lambda line: say(f"bridge: {line}"))

    def __call__(self, table: Table) -> None:
        """Do what is due; raise TableError only when the table was changed behind us."""
        try:
            table.maintain()
        except TableError as error:
            if type(error) is not TableError:
                raise
            self._say(f"bridge: {error}; it is tried again later")
        self._compactions.begin(table)


def next_due(began: float, trigger: float) -> float:
    """Return when the next batch is due: all tables of a process at the same time, to read once."""
    return trigger * math.ceil(began / trigger + 0.5) if trigger else began


def entry(plan: Plan, landed: LandedRanges, gateway: str) -> dict[str, Any]:
    parts = [part for ranges in plan.tasks for part in ranges if part.gateway == gateway]
    found = {
        "lo": min(part.lo for part in parts),
        "hi": plan.landed[gateway].offset,
        "rows": landed.rows.get(gateway, 0),
        "damaged": [list(part) for part in landed.damaged.get(gateway, [])],
    }
    left_out = landed.left_out.get(gateway, 0)
    return found | ({"left_out": left_out} if left_out else {})


def rejected_line(gateway: str, offsets: Mapping[int, str], version: int) -> str:
    return (
        f"bridge rejected {len(offsets)} rows of queue {gateway} in batch {version} (offsets "
        f"{first_few(sorted(offsets))}): {offsets[min(offsets)]}"
    )


def damage_line(gateway: str, parts: Iterable[tuple[int, int]], version: int) -> str:
    parts = list(parts)
    rows = sum(hi - lo for lo, hi in parts)
    ranges = ", ".join(f"{lo}..{hi - 1}" for lo, hi in parts)
    return (
        f"bridge skipped {rows} damaged rows of queue {gateway} in batch {version} "
        f"(offsets {ranges})"
    )
