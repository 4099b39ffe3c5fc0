"""The bridge process lands queues in a Delta table, one Spark job a batch, until somebody ends it.

It has three threads.  The main one receives signals and waits, so that it can end the process
whatever hangs.  The loop (``loop.py``) plans, lands and commits.  The third (``marks.py``)
sends marks to the gateways and writes the status files.  Everything that can be wrong is checked
before Java starts and reported in one line.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import pyarrow as pa

from ..core.errors import (
    ConfigurationError,
    QueueAway,
    QueueError,
    QueueMismatch,
    TableError,
)
from ..core.logs import LogOutput, json_line, missing_line, timed_line
from ..queue.lineage import Landed
from ..queue.queue_directories import queues_at
from ..table import preflight
from ..table.actions import Run
from ..table.compact import Compactions
from ..table.disk import stands
from ..table.landing import TABLE_SCHEMA, Target
from ..table.log import Table
from ..table.object_storage import storage_at
from ..table.plan import ROWS_MAX
from ..table.storage import LocalStorage
from . import need_spark
from .gateways import AWAY, REFUSED, Gateways, Marks
from .jobs import Runner, SparkRunner
from .locks import LOCK, locked, own_folder, private_directory, remove_halves
from .loop import AWAY_SECONDS, Loop, Pace
from .options import Access, is_remote, open_queue
from .report import (
    Batch,
    Progress,
    Report,
    SentStatuses,
    StatusFiles,
    lock_path,
    progress_line,
)
from .session import SCHEDULING_JAVA, check_master, first_line, spark_context, within

LOG_SOURCE = "twisted_msgproto.bridge"

Answer = TypeVar("Answer")

TRIGGER_SECONDS = 1.0
"""At least this time lies between two batches, unless the operator sets another."""

PRIVATE = "_bridge"
"""The bridges' own directory below a table; readers and vacuum pass over such names."""

TEMPORARY = "bridge"

LOOK_SECONDS = 0.1

GRACE_SECONDS = 2.0
"""After SIGTERM the running batch may last this long; then it is cancelled and lands next time."""

CANCEL_SECONDS = 0.5
"""A cancelled batch may need this long to end before nobody waits for it any more."""

MARKS_SECONDS = 1.0
"""The last marks and the last status may need this long."""


@dataclass(slots=True, frozen=True)
class BridgeOptions:
    """The options of ``msgproto bridge``.

    ``queues`` are directories or ``grpc://host:port``; ``trigger`` is the least time from one batch
    to the next in seconds (0: the next begins when the last ends); ``once`` drains what is there
    and ends; ``consumer`` is None for the name from the table's id; ``partition_by`` is None for
    what the table has; ``start_begin`` accepts gateways that the table does not know although they
    have trimmed rows; ``transform`` is ``MODULE:FUNCTION``; ``settings`` are Spark's, ``storage``
    the object store's; ``token_file`` and ``authority`` are files for queues on other machines, and
    ``proxy`` is the URL of one in front of them; with ``json_log`` each line that it prints is a
    JSON object.
    """

    queues: Sequence[str]
    table: str
    partition_by: Sequence[str] | None = None
    trigger: float = TRIGGER_SECONDS
    once: bool = False
    consumer: str | None = None
    start_begin: bool = False
    transform: str | None = None
    master: str = "local[*]"
    rows_max: int = ROWS_MAX
    storage: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    token_file: str | None = None
    authority: str | None = None
    proxy: str | None = None
    json_log: bool = False

    def __post_init__(self) -> None:
        if self.consumer is not None and not re.fullmatch(
            r"\w[\w.-]{0,63}", self.consumer, re.ASCII
        ):
            raise ConfigurationError(
                f"--consumer is 1 to 64 letters, digits, - . and _, not {self.consumer!r}"
            )
        if self.partition_by is not None:
            preflight.check_partitioning(self.partition_by)
        for option, texts in (("--table", [self.table]), ("--queue", self.queues)):
            for text in texts:
                if any("\ud800" <= letter <= "\udfff" for letter in text):
                    raise ConfigurationError(f"{option} {text!r} is not UTF-8")
        check_master(self.master)

        places: dict[str, str] = {}
        for location in self.locations:
            place = location if is_remote(location) else os.path.realpath(location)
            if place in places:
                raise ConfigurationError(f"{places[place]} and {location} are the same queue")
            places[place] = location

    @property
    def access(self) -> Access:
        return Access(self.token_file, self.authority, self.proxy)

    @property
    def locations(self) -> list[str]:
        """Return the queues that there are now, directories as absolute paths: workers have other
        working directories.

        A directory stands for the queues in it, too.
        """
        found: list[str] = []
        for queue in self.queues:
            place = queue.removeprefix("file://")
            found += [queue] if is_remote(queue) else queues_at(os.path.abspath(place))
        return found


class Ending:
    """Signals to end so far: one means after the batch, two mean now."""

    SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

    def __init__(self) -> None:
        self.wishes = 0
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
        """Install the signal functions; again after pyspark has installed its own."""
        for number in self.SIGNALS:
            signal.signal(number, self._wish)


def run_bridge(options: BridgeOptions, say: Callable[[str], None] | None = None) -> int:
    """Run a bridge until it is told to end (or has drained, ``once``); return 0.

    ``say`` receives each line for the operator (default: stdout, flushed).  Raises MsgprotoError,
    one line, for everything that keeps it from running.  It installs signal functions, and starts a
    session of its own if it can.
    """
    need_spark()
    ending = Ending()
    ending.install()
    with contextlib.suppress(PermissionError):
        os.setsid()
    json = options.json_log
    output = LogOutput(1, lambda n: _line(missing_line(n)[:-1], json))
    bridge = Bridge(options, ending, say or partial(_say, output, json))
    with contextlib.closing(output):
        try:
            bridge.run()
        except KeyboardInterrupt:
            # While Spark started: by a wish to end, or by pyspark's own function for SIGINT.
            bridge.interrupted()
        except OSError as error:
            bridge.failed(error)
            if bridge.loop is not None or error.filename is None:
                raise
            # The start has met a file that is not as it has to be, or not this user's.
            raise ConfigurationError(f"cannot use {error.filename}: {error.strerror}") from error
        except BaseException as error:
            bridge.failed(error)
            raise
    return 0


def _say(output: LogOutput, json: bool, line: str) -> None:
    output.write(_line(line, json))
    output.flush()


def _line(text: str, json: bool) -> str:
    now = time.time()
    return (json_line(now, "info", LOG_SOURCE, text) if json else timed_line(now, text)) + "\n"


class Bridge:
    def __init__(self, options: BridgeOptions, ending: Ending, say: Callable[[str], None]) -> None:
        self.options = options
        self.ending = ending
        self.say = say
        self.own_run = Run.new()
        self.consumer = options.consumer or ""
        self.status: StatusFiles | None = None
        self.sent: SentStatuses | None = None
        self.loop: Loop | None = None
        self._shown: Batch | None = None
        self._unnoticed: list[BaseException] = []
        self._unsaid: list[str] = []
        self._directories: dict[str, Path] = {}
        self._folder: Path | None = None
        self._growing: contextlib.ExitStack | None = None
        self._unlocked: set[str] = set()

    # -- starting ---------------------------------------------------------------------------------

    def run(self) -> None:
        for place in self.options.locations:
            if not is_remote(place):
                open_queue(place)  # a wrong directory is told before Java starts
        gateways = self._gateways()
        self._look_before_making(gateways)
        if self.options.transform is None:
            table = self._open_table(None)
            with (
                self._prepared(table, gateways),
                self._scratch() as scratch,
                self._spark(scratch, SCHEDULING_JAVA) as context,
            ):
                runner = SparkRunner(context, scratch / "spark.log")
                self._drive(table, gateways, runner, runner, TABLE_SCHEMA)
            return
        from .transform import Transform, load_function

        load_function(self.options.transform)  # a wrong one is told before Java starts
        # The table's columns are the function's, which only Spark can say.
        with self._scratch() as scratch, self._spark(scratch) as context:
            spark_runner = SparkRunner(context, scratch / "spark.log")
            transform = Transform(spark_runner, self.options.transform)
            table = self._open_table(transform.schema)
            with self._prepared(table, gateways):
                self._drive(table, gateways, spark_runner, transform, transform.schema)

    def _gateways(self) -> Gateways:
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

    def _look_before_making(self, gateways: Gateways) -> None:
        """Asks every gateway before a new table is made: a start that is refused makes none."""
        options = self.options
        if not self._answered(partial(preflight.is_new, options.table, options.storage)):
            return
        with contextlib.ExitStack() as stack:
            if options.consumer is not None:
                self._lock(stack, options.consumer)
            check_answers(gateways, {}, self.ending)
        if self.ending.wishes:
            raise KeyboardInterrupt

    def _lock(self, stack: contextlib.ExitStack, consumer: str) -> None:
        for place in self.options.locations:
            self._lock_queue(stack, place, consumer)

    @staticmethod
    def _lock_queue(stack: contextlib.ExitStack, place: str, consumer: str) -> None:
        try:
            # What is no directory is said better by the gateway's own answer.
            if is_remote(place) or not stands(os.path.join(place, "")):
                return
        except OSError as error:
            raise ConfigurationError(f"cannot lock {place}: {error.strerror}") from None
        lock = lock_path(Path(place), consumer)
        stack.enter_context(locked(lock, f"the consumer {consumer!r} of {place}"))
        remove_halves(lock.parent, f"{consumer}.json.")

    def _more(self, known: Collection[str]) -> Iterator[str]:
        if self._growing is None:
            return
        try:
            locations = self.options.locations
        except QueueError:  # the directory is read again later; those that are known answer or not
            return
        for place in locations:
            if place in known:
                continue
            try:
                self._lock_queue(self._growing, place, self.consumer)
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
        with self.ending.interrupting():
            while thread.is_alive():
                thread.join(LOOK_SECONDS)
        if not done:
            raise self._unnoticed.pop()
        return done[0]

    def _open_table(self, schema: pa.Schema | None) -> Table:
        options = self.options

        def opened() -> Table:
            table = preflight.open_table(
                options.table, schema, options.partition_by, options.storage, self.own_run
            )
            preflight.check_operations(table)
            return table

        table = self._answered(opened)
        self.consumer = options.consumer or preflight.consumer_name(table.table_id)
        return table

    @contextlib.contextmanager
    def _prepared(self, table: Table, gateways: Gateways) -> Iterator[None]:
        """Acquire the locks and ask every gateway once, before Java starts."""
        gateways.consumer = self.consumer
        with contextlib.ExitStack() as stack:
            self._lock(stack, self.consumer)
            self._growing = stack
            check_answers(gateways, table.landed(), self.ending)
            if isinstance(table.storage, LocalStorage):
                above = Path(table.storage.path(PRIVATE))
                self._folder = stack.enter_context(own_folder(above, self.consumer))
            self.status = self._status_files(table, gateways)
            for line in self._unsaid:
                self.say(line)
            self._write(Report("starting", Progress(landed=table.landed())))
            yield

    def _status_files(self, table: Table, gateways: Gateways) -> StatusFiles:
        self._note_directories(gateways)
        whole = None if self._folder is None else self._folder / "status.json"
        about = {"table": table.location}
        return StatusFiles(self._directories, self.consumer, about, whole=whole)

    def _note_directories(self, gateways: Gateways) -> None:
        for one in list(gateways.all):
            if one.gateway and not is_remote(one.location):
                self._directories[one.gateway] = Path(one.location)

    @contextlib.contextmanager
    def _scratch(self) -> Iterator[Path]:
        """A private folder for Spark's log and spills.

        It is the one below the table where there is one.  Else it stands in this user's temporary
        directory, and its files stay when the bridge fails: its log says why.
        """
        if self._folder is not None:
            yield self._folder
            return
        with own_folder(private_directory(), TEMPORARY) as scratch:
            yield scratch
            with contextlib.suppress(OSError):
                for path in scratch.iterdir():
                    if path.is_file() and path.name != LOCK:
                        path.unlink()

    @contextlib.contextmanager
    def _spark(self, scratch: Path, java: str = "") -> Iterator[Any]:
        opened = spark_context(
            self.options.master,
            scratch,
            self.options.settings,
            java,
            lambda line: self.say(f"bridge: {line}"),
        )
        with contextlib.ExitStack() as stack:
            with self.ending.interrupting():  # Java takes its time to start
                context = stack.enter_context(opened)
            self.ending.install()
            yield context

    # -- running ----------------------------------------------------------------------------------

    def _drive(
        self,
        table: Table,
        gateways: Gateways,
        spark: SparkRunner,
        runner: Runner,
        schema: pa.Schema,
    ) -> None:
        options = self.options
        spark.warm()
        stop = threading.Event()
        opened = OpenedMarks(gateways, options)
        marks = Marks(self.consumer, opened, self._report, self.say)
        assert self.status is not None
        self.sent = SentStatuses(self.status, self.consumer, opened)
        self.loop = loop = Loop(
            table,
            Target(table.location, options.storage, schema, table.partition_by),
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
        )
        self.say(self._running_line(table))
        marks.start()
        thread = threading.Thread(target=self._caught, args=[loop.run], name="loop", daemon=True)
        thread.start()
        self._wait(thread, stop, spark)
        marks.finish(MARKS_SECONDS)
        if self._unnoticed and not self.ending.wishes:
            raise self._unnoticed[0]
        report = loop.report("ended")
        self._write(report)
        self.say(f"bridge ended: {progress_line(report, time.time())}")

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
                cancel = threading.Thread(target=self._caught, args=[spark.cancel], daemon=True)
                cancel.start()
                thread.join(CANCEL_SECONDS)
                return

    def _report(self) -> None:
        """Write the status, and a line for a new batch; the marks' thread calls this once a
        second.
        """
        if self.loop is None:
            return
        report = self.loop.report("running")
        if report.progress.last is not self._shown:
            self._shown = report.progress.last
            self.say(progress_line(report, time.time()))
        if self.status is not None:
            self._note_directories(self.loop.gateways)
            with contextlib.suppress(OSError):
                self.status.write(report)
        if self.sent is not None:
            self.sent.send(report, self.loop.gateways.remote())

    def _write(self, report: Report) -> None:
        if self.status is not None:
            # A disk that hangs must not keep the process from its end.
            within(MARKS_SECONDS, partial(self.status.write, report))

    def interrupted(self) -> None:
        self._write(Report("ended", Progress()))

    def failed(self, error: BaseException) -> None:
        """Write into the status file why the bridge ended."""
        line = first_line(error)
        if self.loop is not None:
            self.say(f"bridge failed: {line}")
            self._write(self.loop.report("failed", line))
        else:
            self._write(Report("failed", Progress(), error=line))

    def _running_line(self, table: Table) -> str:
        queues = self.options.queues
        shown = ", ".join(queues[:3]) + (f" and {len(queues) - 3} more" if len(queues) > 3 else "")
        return (
            f"bridge running from {shown} to {table.location} "
            f"(consumer {self.consumer}, pid {os.getpid()})"
        )


def check_answers(gateways: Gateways, landed: Mapping[str, Landed], ending: Ending) -> None:
    """Asks every gateway, and waits a little for one to answer.

    ``landed`` is how far the table has landed them.  Raises QueueError, one line: for a gateway
    that is there and does not fit, for a directory that is no queue, and when not one gateway
    answers.
    """
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


class OpenedMarks:
    def __init__(self, gateways: Gateways, options: BridgeOptions) -> None:
        self._gateways = gateways
        self._options = options
        self._opened: dict[str, Any] = {}

    def __call__(self, name: str) -> Any:
        one = self._gateways.by_id[name]
        if one.state in (AWAY, REFUSED):
            self._opened.pop(name, None)
            return None
        queue = self._opened.get(name)
        if queue is None:
            queue = open_queue(one.location, self._options.access, queue_id=name)
            if queue.queue_id != name:
                return None
            self._opened[name] = queue
        return queue


class Maintenance:
    """Work between two batches: checkpoints, the log's cleanup and compaction.

    Compaction has a thread of its own; rows do not wait for it.  An error in it is reported and
    does not end the bridge, because the bridge's own batches do not depend on it.
    """

    def __init__(self, run: Run, say: Callable[[str], None]) -> None:
        self._say = say
        self._compactions = Compactions(run, lambda line: say(f"bridge: {line}"))

    def __call__(self, table: Table) -> None:
        """Do what is due; the loop calls this after every commit.

        Raises TableError only when nothing may land any more: the table was changed behind us.
        """
        try:
            table.maintain()
        except TableError as error:
            if type(error) is not TableError:
                raise
            self._say(f"bridge: {error}; it is tried again later")
        self._compactions.begin(table)
