"""The bridge process lands queues in a Delta table, one Spark job a batch, until somebody ends it.

The main thread receives signals and waits, so that it can end the process whatever hangs. The loop
(``loop.py``) plans, lands and commits. A third (``gateways.py``) sends marks and writes the status.
What can be wrong is checked before Java starts and reported in one line.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Final, TypeVar

import pyarrow as pa

from ..core.disk import OS_DISK, exists
from ..core.errors import (
    ConfigurationError,
    MsgprotoError,
    QueueAway,
    QueueError,
    QueueMismatch,
    TableError,
)
from ..core.log_output import LogOutput, json_line, missing_line, timed_line
from ..queue.lineage import Landed
from ..table import preflight
from ..table.actions import Run
from ..table.dead_letters import DEAD_SCHEMA, DeadLetters
from ..table.delta_table import Table
from ..table.landing import DAY, TABLE_SCHEMA, Target
from ..table.object_storage import storage_at
from ..table.shape import Shape
from ..table.storage import LocalStorage
from . import need_spark
from .configuration import BridgeOptions
from .gateways import AWAY, REFUSED, Gateways, Marks
from .jobs import Runner, SparkRunner
from .locks import locked, own_folder, private_directory, remove_halves
from .loop import AWAY_SECONDS, Loop, Maintenance, Pace
from .registration import first_line, fork_workers_by
from .report import (
    Batch,
    Progress,
    Report,
    SentStatuses,
    StatusFiles,
    first_few,
    lock_path,
    progress_line,
)
from .session import SCHEDULING_JAVA, spark_context, within
from .source_options import is_remote, open_queue, open_range

LOG_SOURCE = "twisted_msgproto.bridge"

Answer = TypeVar("Answer")

PRIVATE = "_bridge"  # the bridges' own directory below a table

TEMPORARY = "bridge"

LOOK_SECONDS = 0.1

ASIDE_SECONDS_MIN, ASIDE_SECONDS_MAX = 1.0, 60.0  # pauses double between them
GRACE_SECONDS = 2.0  # for a running batch after SIGTERM; else it lands next time
CANCEL_SECONDS = 0.5  # for a cancelled batch, before nobody waits for it any more
MARKS_SECONDS = 1.0  # the last marks and the last status may need this long


class Ending:
    """Signals to end so far: one means after the batch, two mean now."""

    SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

    def __init__(self) -> None:
        self.wishes: int = 0
        self._interrupts = False

    def _wish(self, number: int, frame: FrameType | None) -> None:
        # Nothing more: what a lock protects must not be touched in a signal's function.
        self.wishes += 1
        if self._interrupts:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def interrupting(self) -> Iterator[None]:
        """In here a wish does not wait: nothing is under way that would have to end in order."""
        self._interrupts = True
        try:
            if self.wishes:
                raise KeyboardInterrupt
            yield
        finally:
            self._interrupts = False

    def install(self) -> None:
        """To be called again after pyspark has installed its own."""
        for number in self.SIGNALS:
            signal.signal(number, self._wish)


def run_bridge(options: BridgeOptions | Sequence[BridgeOptions]) -> int:
    """Run a bridge until it is told to end (or has drained, ``once``); return 0.

    Several ``options``, which differ in what concerns a table alone, are several tables in one
    process.  Raises MsgprotoError, one line, or OSError with a file's name.  It installs signal
    functions, and starts a session of its own if it can.
    """
    need_spark()
    ending = Ending()
    ending.install()
    with contextlib.suppress(PermissionError):
        os.setsid()
    several = [options] if isinstance(options, BridgeOptions) else list(options)
    json = several[0].json_log
    output = LogOutput(1, lambda n: _line(missing_line(n).rstrip(), json))

    def say(line: str) -> None:
        output.write(_line(line, json))
        output.flush()

    bridges = [Bridge(one, ending, say, alone=len(several) == 1) for one in several]
    with contextlib.closing(output):
        try:
            run_all(bridges, ending)
        except KeyboardInterrupt:
            # While Spark started: by a wish to end, or by pyspark's own function for SIGINT.
            for bridge in bridges:
                bridge.interrupted()
        except BaseException as error:
            if not any(bridge.error is error for bridge in bridges):  # that one stood aside
                for bridge in bridges:
                    bridge.failed(error)
            raise
    return 0


def run_all(bridges: Sequence[Bridge], ending: Ending) -> None:
    """Land all tables with one session of Spark; beside others one that fails is tried again."""
    first = bridges[0]
    schedules = not any(bridge.options.transform for bridge in bridges)
    with contextlib.ExitStack() as stack:
        for bridge in bridges:
            stack.callback(bridge.leave)
            bridge.look_first()
        aside = [bridge for bridge in bridges if bridge.error]
        if len(aside) == len(bridges):  # nothing would land
            told = {str(one.error): f"{one.options.name}: {one.error}" for one in aside}
            raise ConfigurationError("; ".join(told if len(told) == 1 else told.values()))
        for bridge in aside:
            bridge.stand_aside()
        # A table that stands aside leaves its folder, and another copy may take its place.
        folder = first.folder if len(bridges) == 1 else None
        scratch = folder or stack.enter_context(temporary_folder())
        java = SCHEDULING_JAVA if schedules else ""
        with ending.interrupting():  # Java takes its time to start
            context = stack.enter_context(
                spark_context(
                    first.options.master,
                    scratch,
                    first.options.settings,
                    java,
                    lambda line: first.say(f"bridge: {line}"),
                )
            )
        ending.install()
        sharing = [bridge for bridge in bridges if bridge.options.transform is None]
        runner = SparkRunner(context, scratch / "spark.log", len(sharing))
        if not schedules:
            fork_workers_by(context, f"{__package__}.transform")
        if sharing:
            runner.warm()
        if len(bridges) == 1:
            first.land(runner)
            return
        threads = [
            threading.Thread(target=bridge.keep_landing, args=[runner], name=bridge.options.name)
            for bridge in bridges
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for bridge in bridges:
            if bridge.fatal is not None:
                raise bridge.fatal
        for bridge in bridges:
            if bridge.error is not None and not ending.wishes:
                raise bridge.error


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Make a private folder for Spark's log and spills, whose files stay when the bridge fails."""
    with own_folder(private_directory(), TEMPORARY) as scratch:
        yield scratch
        with contextlib.suppress(OSError):
            for path in scratch.glob("*.*"):  # neither its lock nor its folders
                path.unlink()


def _line(text: str, json: bool) -> str:
    now = time.time()
    return (json_line(now, "info", LOG_SOURCE, text) if json else timed_line(now, text)) + "\n"


# Spark says so of a module with ``@udf("int")`` outside of functions: import it in a session.
NO_SESSION: Final = "SESSION_OR_CONTEXT_NOT_EXISTS"


class Bridge:
    def __init__(
        self,
        options: BridgeOptions,
        ending: Ending,
        say: Callable[[str], None],
        *,
        alone: bool = True,
    ) -> None:
        self.options = options
        self.ending = ending
        self.say = say if alone else lambda line: say(f"{options.name}: {line}")
        self.own_run: Run = Run.new()
        self.error: BaseException | None = None  # why the table stands aside just now
        self.fatal: BaseException | None = None
        self._alone = alone
        self._pause = ASIDE_SECONDS_MIN
        self._progress = Progress()
        self._shown: Batch | None = None
        self._fresh()

    def _fresh(self) -> None:
        self.consumer = self.options.consumer or ""
        self.status: StatusFiles | None = None
        self.sent: SentStatuses  # as long as there is a loop
        self.loop: Loop | None = None
        self.folder: Path | None = None
        self._unnoticed: list[BaseException] = []
        self._unsaid: list[str] = []
        self._directories: dict[str, Path] = {}
        self._unlocked: set[str] = set()
        self._held = contextlib.ExitStack()
        self._gateways: Gateways
        self._table: Table | None = None

    # -- starting ---------------------------------------------------------------------------------

    def look_first(self) -> None:
        """Look at queues and table before Java starts; among others an error is noted alone."""
        try:
            self._look()
        except (QueueError, TableError) as error:
            if self._alone:
                raise
            self.error = error

    def _look(self) -> None:
        for place in self.options.locations:
            if not is_remote(place):
                open_queue(place)  # a wrong directory is told before Java starts
        self._gateways = self._made_gateways()
        self._look_before_making()
        if self.options.transform is None:
            self._open(landed_schema_of(self.options.shape))
        else:
            from .transform import load_function

            try:
                load_function(self.options.transform)  # a wrong one is told before Java starts
            except ConfigurationError as error:
                if NO_SESSION not in str(error):
                    raise

    def keep_landing(self, spark: SparkRunner) -> None:
        """Land beside other tables: what keeps this one from it does not concern them."""
        while True:
            told, batches = self.status, self._progress.batches
            # What only a later try met is the table's: its disk, or who else lands it meanwhile.
            aside = (MsgprotoError, OSError) if self.error is not None else (QueueError, TableError)
            try:
                if self.ending.wishes:
                    raise KeyboardInterrupt
                if self.error is not None:
                    self._wait_aside()
                    self._fresh()
                    self._look()
                    self.error = None
                self.land(spark)
                return
            except KeyboardInterrupt:
                self.status = self.status or told  # none yet of a table that it looks at anew
                self.interrupted()
                return
            except aside as error:
                if self._progress.batches > batches:
                    self._pause = ASIDE_SECONDS_MIN
                self.error = error
                self.stand_aside()
                if self.options.once:
                    return
            except BaseException as error:
                self.failed(error)
                self.fatal = error
                self.ending.wishes += 1  # what it is, the others have too, or will
                return

    def stand_aside(self) -> None:
        error = self.error
        assert error is not None
        if self.status is None:
            with contextlib.suppress(MsgprotoError, OSError):
                self._prepare_status()
        self._progress.landed = {}  # nobody knows
        self._progress.failures += self.loop is None  # else its batches are counted
        self._write(self._told("aside", first_line(error)))
        again = "" if self.options.once else f"; it is tried again in {self._pause:.0f} s"
        self.leave()
        self.say(f"stands aside: {error}{again}")

    def _prepare_status(self) -> None:
        """Find out where a table's status belongs that could not be opened for landing."""
        options = self.options
        if not self.consumer:
            table = Table.open(options.table, options.storage)
            self.consumer = preflight.consumer_name(table.table_id)
        for place in options.locations:
            if not is_remote(place):
                self._directories[open_queue(place).queue_id] = Path(place)
        self.status = self._status_files(options.table)

    def _wait_aside(self) -> None:
        until = time.monotonic() + self._pause
        self._pause = min(ASIDE_SECONDS_MAX, 2 * self._pause)
        while time.monotonic() < until:
            time.sleep(LOOK_SECONDS)
            if self.ending.wishes:
                raise KeyboardInterrupt

    def _made_gateways(self) -> Gateways:
        options = self.options
        place = storage_at(options.table, options.storage)
        return Gateways(
            options.locations,
            partial(open_queue, access=options.access),
            None,
            partial(preflight.check_gateway, place.location, start_begin=options.start_begin),
            # A start that is refused says one line and nothing else.
            lambda line: self._unsaid.append(line) if self.status is None else self.say(line),
            more=self._more,
        )

    def _look_before_making(self) -> None:
        """Ask every gateway before a new table is made: a start that is refused makes none."""
        options = self.options
        if not self._answered(partial(preflight.is_new, options.table, options.storage)):
            return
        with contextlib.ExitStack() as stack:
            if options.consumer is not None:
                self._lock(stack, options.consumer)
            check_answers(self._gateways, {}, self.ending)
        if self.ending.wishes:
            raise KeyboardInterrupt

    def _lock(self, stack: contextlib.ExitStack, consumer: str) -> None:
        for place in self.options.locations:
            self._lock_queue(stack, place, consumer)

    @staticmethod
    def _lock_queue(stack: contextlib.ExitStack, place: str, consumer: str) -> None:
        try:
            # What is no directory is said better by the gateway's own answer.
            if is_remote(place) or not exists(OS_DISK, os.path.join(place, "")):
                return
        except OSError as error:
            raise ConfigurationError(f"cannot lock {place}: {error.strerror}") from None
        lock = lock_path(Path(place), consumer)
        stack.enter_context(locked(lock, f"the consumer {consumer!r} of {place}"))
        remove_halves(lock.parent, f"{consumer}.json.")

    def _more(self, known: Collection[str]) -> Iterator[str]:
        if self._table is None:
            return
        try:
            locations = self.options.locations
        except QueueError:  # the directory is read again later; those that are known answer or not
            return
        for place in locations:
            if place in known:
                continue
            try:
                self._lock_queue(self._held, place, self.consumer)
            except ConfigurationError as error:
                if place not in self._unlocked:
                    self._unlocked.add(place)
                    self.say(f"bridge: {place} is not landed: {error}")
                continue
            self.say(f"bridge: {place} is a new queue")
            yield place

    def _answered(self, ask: Callable[[], Answer]) -> Answer:
        """Return what ``ask`` does: a store or a disk that hangs does not hold up a signal."""
        done: list[Answer] = []
        thread = threading.Thread(
            target=self._caught, args=[lambda: done.append(ask())], name="asking", daemon=True
        )
        thread.start()
        while thread.is_alive():
            thread.join(LOOK_SECONDS)
            if self.ending.wishes:
                raise KeyboardInterrupt
        if not done:
            raise self._unnoticed.pop()
        return done[0]

    def _open_table(self, schema: pa.Schema | None) -> Table:
        options = self.options

        def opened() -> Table:
            typed = options.shape is not None and options.shape.columns is not None
            table = preflight.open_table(
                options.table,
                schema,
                options.partition_by,
                options.storage,
                self.own_run,
                grows=typed or options.transform is not None,
                properties=options.properties,
                say=lambda line: self.say(f"bridge: {line}"),
            )
            preflight.check_operations(table)
            return table

        table = self._answered(opened)
        self.consumer = options.consumer or preflight.consumer_name(table.table_id)
        return table

    def _open(self, schema: pa.Schema) -> None:
        table = self._table = self._open_table(schema)
        self._gateways.consumer = self.consumer
        self._lock(self._held, self.consumer)
        check_answers(self._gateways, table.landed(), self.ending)
        self._answered(
            partial(preflight.grow, table, schema, self.own_run, self.options.properties)
        )
        if isinstance(table.storage, LocalStorage):
            above = Path(table.storage.path(PRIVATE))
            self.folder = self._held.enter_context(own_folder(above, self.consumer))
        self._note_directories()
        self.status = self._status_files(table.location)
        for line in self._unsaid:
            self.say(line)
        self._progress.landed = table.landed()
        self._write(self._told("starting"))

    def _status_files(self, table: str) -> StatusFiles:
        whole = None if self.folder is None else self.folder / "status.json"
        return StatusFiles(
            self._directories,
            self.consumer,
            {"table": table},
            whole=whole,
            once=self.options.once,
            every=self.options.every,
        )

    def _note_directories(self) -> None:
        for one in list(self._gateways.all):
            if one.gateway and not is_remote(one.location):
                self._directories[one.gateway] = Path(one.location)

    # -- running ----------------------------------------------------------------------------------

    def leave(self) -> None:
        self._held.close()

    def land(self, spark: SparkRunner) -> None:
        options, gateways = self.options, self._gateways
        runner: Runner = spark
        schema = landed_schema_of(options.shape)
        if options.transform is not None:
            from .transform import Transform

            # The table's columns are the function's, which only Spark can say.
            runner = transform = Transform(spark, options.transform)
            schema = transform.schema
            self._open(schema)
        table = self._table
        assert table is not None
        stop = threading.Event()
        marks = Marks(self.consumer, gateways.opened, self._report, self.say)
        assert self.status is not None
        self.sent = SentStatuses(self.status, self.consumer, gateways.opened)
        self.loop = loop = Loop(
            table,
            Target(
                table.location, options.storage, schema, table.partition_by, shape=options.shape
            ),
            gateways,
            marks,
            runner,
            self.own_run,
            Pace(options.trigger, options.once, options.rows_max, cores=spark.cores),
            stop,
            access=options.access,
            say=self.say,
            maintenance=Maintenance(self.own_run, self.say),
            check=spark.check,
            letters=self._answered(partial(self._dead_letters, table)),
            progress=self._progress,
        )
        self.say(
            f"bridge running from {first_few(options.queues)} to {table.location} "
            f"(consumer {self.consumer}, pid {os.getpid()})"
        )
        marks.start()
        thread = threading.Thread(target=self._caught, args=[loop.run], name="loop", daemon=True)
        thread.start()
        self._wait(thread, stop, spark)
        marks.finish(MARKS_SECONDS)
        if self._unnoticed and not self.ending.wishes:
            raise self._unnoticed.pop()
        drained = options.once and not self.ending.wishes
        report = replace(loop.report("ended"), drained=drained)
        self._write(report)
        self.say(f"bridge ended: {progress_line(report, time.time())}")

    def _dead_letters(self, table: Table) -> DeadLetters | None:
        options, own = self.options, self.own_run
        if options.dead_letters is None:
            return None
        letters = preflight.open_table(
            options.dead_letters,
            DEAD_SCHEMA,
            None,
            options.storage,
            own,
            say=lambda line: self.say(f"bridge: {options.dead_letters}: {line}"),
        )
        return DeadLetters(table, letters, own, open_range, Maintenance(own, self.say))

    def _caught(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._unnoticed.append(error)

    def _wait(self, thread: threading.Thread, stop: threading.Event, spark: SparkRunner) -> None:
        deadline = float("inf")
        while thread.is_alive():
            thread.join(LOOK_SECONDS)
            if self.ending.wishes and not stop.is_set():
                stop.set()
                deadline = time.monotonic() + GRACE_SECONDS
            if self.ending.wishes > 1 or time.monotonic() > deadline:
                within(0.0, spark.cancel)
                thread.join(CANCEL_SECONDS)
                return

    def _report(self) -> None:
        if self.loop is None:
            return
        assert self.status is not None
        report = self.loop.report("running")
        if report.progress.last is not self._shown:
            self._shown = report.progress.last
            self.say(progress_line(report, time.time()))
        self._note_directories()
        with contextlib.suppress(OSError):
            self.status.write(report)
        self.sent.send(report, self._gateways.remote())

    def _write(self, report: Report) -> None:
        sending: threading.Thread | None = None
        if self.loop is not None:
            remote = self._gateways.remote()
            work = partial(self.sent.finish, report, remote, MARKS_SECONDS)
            sending = threading.Thread(target=work, name="last status")
            sending.start()
        if self.status is not None:
            # A disk that hangs must not keep the process from its end.
            within(MARKS_SECONDS, partial(self.status.write, report))
        if sending is not None:
            sending.join(MARKS_SECONDS)

    def interrupted(self) -> None:
        self._write(self._told("ended"))

    def failed(self, error: BaseException) -> None:
        line = first_line(error)
        if self.loop is not None:
            self.say(f"bridge failed: {line}")
            self._write(self.loop.report("failed", line))
        else:
            self._write(self._told("failed", line))

    def _told(self, state: str, error: str | None = None) -> Report:
        return Report(state, self._progress, error=error)


def landed_schema_of(shape: Shape | None) -> pa.Schema:
    return TABLE_SCHEMA if shape is None else shape.schema.append(DAY)


def check_answers(gateways: Gateways, landed: Mapping[str, Landed], ending: Ending) -> None:
    """Ask all, and wait for one to answer; QueueError for one that does not fit, or for none."""
    deadline = time.monotonic() + AWAY_SECONDS
    while not ending.wishes:
        gateways.ask(landed)
        for one in gateways.in_state(AWAY, REFUSED):
            if one.state == REFUSED:
                raise QueueMismatch(one.line) from one.error
            if not isinstance(one.error, QueueAway):
                raise QueueError(one.line) from one.error
        if gateways.by_id and not gateways.unheard():
            return
        if time.monotonic() > deadline:
            if gateways.by_id:
                return
            one = gateways.all[0]
            raise QueueError(one.line or f"{one.location} does not answer") from one.error
        time.sleep(LOOK_SECONDS)
