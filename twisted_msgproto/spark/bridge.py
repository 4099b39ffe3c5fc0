"""The bridge process: queues → Structured Streaming → a table, until somebody ends it.

What happens between the rows and the table is Spark's: batches, retries, the checkpoint.  The
bridge looks after what Spark does not:

* everything that can be wrong is looked at before Java starts, and said in one line;
* one bridge a checkpoint and one a consumer's name (locks);
* SIGTERM and SIGINT let the running batch end, a second one does not wait;
* the low-water mark, after which the gateway may trim, is published when the landed files are
  durable, and also after the last batch;
* progress lines and the status file.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from ..core.errors import ConfigurationError, MsgprotoError
from . import need_spark
from .checkpoint import PRIVATE, check_sink, is_remote, locked, newest_done, newest_planned
from .durable import BatchSync, sync_delta, sync_files
from .mend import Mark, boot_id, mend, write_mark
from .offsets import Places, Source, check_places, initial_places
from .report import Batch, Lag, Progress, StatusFiles, lag, lock_path, progress_line
from .session import first_line, spark_session
from .table import DELTA_LOG, SINK_LOG, open_delta

FORMATS = ("parquet", "delta")

ROWS_MAX = {"parquet": 1_000_000, "delta": 200_000}
"""Rows of one batch at most: bounds its time and, for Delta, the memory of this process."""

LOOK_SECONDS = 0.1
"""How often the bridge looks at the stream."""

REPORT_SECONDS = 1.0
"""How often status file and low-water mark are written, and a progress line at most."""

OWN_ERROR = re.compile(r"twisted_msgproto\.core\.errors\.\w+: (.+)")
"""One of our errors in what a Python worker sent through Java."""

PYTHON_ERROR = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\S.*)")
"""The last line of a worker's traceback, which says what it was."""


@dataclass(slots=True, frozen=True)
class BridgeOptions:
    """What ``msgproto bridge`` was asked for.

    ``queues`` are directories or ``grpc://host:port``; ``trigger`` is the least time from one
    batch to the next in seconds (0: the next begins when the last ends); ``once`` drains what is
    there and ends; ``rows_max`` bounds a batch (None: by format).  ``accept_loss`` goes on after
    what is lost, ``retired`` names queues which are gone for good; ``settings`` are Spark's;
    ``token_file`` and ``authority`` are files for queues on other machines.
    """

    queues: Sequence[str]
    table: str
    format: str = "parquet"
    checkpoint: str | None = None
    trigger: float = 0.0
    once: bool = False
    consumer: str = "spark"
    master: str = "local[*]"
    rows_max: int | None = None
    accept_loss: bool = False
    retired: Sequence[str] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    token_file: str | None = None
    authority: str | None = None

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise ConfigurationError(f"--format is {' or '.join(FORMATS)}, not {self.format!r}")
        if not re.fullmatch(r"\w[\w.-]{0,63}", self.consumer, re.ASCII):
            raise ConfigurationError(
                f"--consumer is 1 to 64 letters, digits, - . and _, not {self.consumer!r}"
            )
        if self.format == "delta" and is_remote(self.table):
            raise ConfigurationError("--format delta writes to directories on this machine")

    @property
    def checkpoint_location(self) -> str:
        """Where the checkpoint is: as given, else ``TABLE/_checkpoint``."""
        return self.checkpoint or f"{self.table.rstrip('/')}/_checkpoint"


def local_path(location: str) -> Path | None:
    """The absolute path of a place on this machine; None for one elsewhere."""
    return None if is_remote(location) else Path(location.removeprefix("file://")).absolute()


class Ending:
    """The wish to end, from signals: once (after the batch), twice (now)."""

    SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

    def __init__(self) -> None:
        self.wishes = 0

    def _wish(self, number: int, frame: FrameType | None) -> None:
        self.wishes += 1

    def install(self) -> None:
        """Takes the signals; again after pyspark has put its own function there."""
        for number in self.SIGNALS:
            signal.signal(number, self._wish)


def run_bridge(options: BridgeOptions, say: Callable[[str], None] | None = None) -> int:
    """Runs a bridge until it is told to end (or has drained, ``once``); returns 0.

    ``say`` gets each line for the operator (default: stdout, flushed).  Raises ConfigurationError
    or QueueError, one line, for everything that keeps it from running.  Takes the process's
    signals, and its own session if it can.
    """
    need_spark()
    ending = Ending()
    ending.install()
    with contextlib.suppress(PermissionError):
        os.setsid()
    bridge = Bridge(options, ending, say or _say)
    try:
        with bridge.prepared() as descriptors:
            return bridge.run(descriptors)
    except KeyboardInterrupt:
        # pyspark's own function was in place for a moment while its context was made.
        return 0
    except BaseException as error:
        bridge.failed(error)
        raise


def _say(line: str) -> None:
    with contextlib.suppress(BrokenPipeError):
        print(line, flush=True)


class Bridge:
    """One run of a bridge; made and driven by :func:`run_bridge`."""

    def __init__(self, options: BridgeOptions, ending: Ending, say: Callable[[str], None]) -> None:
        self.options = options
        self.ending = ending
        self.say = say
        self.table = local_path(options.table)
        self.checkpoint = local_path(options.checkpoint_location)
        self.locations = [
            location if (path := local_path(location)) is None else str(path)
            for location in options.queues
        ]
        self.queues: dict[str, Source] = {}
        self.progress = Progress()
        self.status: StatusFiles | None = None
        self._scratch = Path()
        self._sync = BatchSync(self.table, self.checkpoint)
        self._seen: tuple[int, str] | None = None
        self._published: Places = {}

    @contextlib.contextmanager
    def prepared(self) -> Iterator[list[int]]:
        """Looks at everything, takes the locks, registers; gives the locks' descriptors."""
        from .source import Access, open_queues

        options = self.options
        if options.format == "delta":
            _need_delta()
        self._check_table()
        access = Access(options.token_file, options.authority)
        self.queues = open_queues(self.locations, access)
        directories = {
            name: path
            for name, location in zip(self.queues, self.locations, strict=True)
            if (path := local_path(location)) is not None
        }
        with contextlib.ExitStack() as stack:
            descriptors = []
            if self.checkpoint is not None:
                path = self.checkpoint / PRIVATE
                what = f"the checkpoint {self.checkpoint}"
                descriptors.append(stack.enter_context(locked(path / "lock", what)))
            for directory in directories.values():
                path = lock_path(directory, options.consumer)
                what = f"the consumer {options.consumer!r} of {directory}"
                descriptors.append(stack.enter_context(locked(path, what)))
            self._scratch = self._make_scratch(stack)
            self._check_checkpoint()
            for queue in self.queues.values():
                queue.register(options.consumer)
            about = {
                "table": options.table,
                "format": options.format,
                "checkpoint": options.checkpoint_location,
            }
            self.status = StatusFiles(directories, options.consumer, about)
            self._write_status("starting")
            yield descriptors

    def _check_table(self) -> None:
        if self.table is None:
            return
        other = DELTA_LOG if self.options.format == "parquet" else SINK_LOG
        if (self.table / other).is_dir():
            found = "delta" if other == DELTA_LOG else "parquet"
            raise ConfigurationError(f"the table {self.table} is of --format {found}")
        try:
            self.table.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"--table {self.table}: {error.strerror}") from None

    def _check_checkpoint(self) -> None:
        """Whether the stream can go on, and what is in the table already."""
        if self.checkpoint is None:
            return
        for line in mend(self.checkpoint, self.table):
            self.say(f"bridge: {line}")
        planned = newest_planned(self.checkpoint)
        if planned is not None:
            check_places(
                self.queues,
                planned.places,
                accept_loss=self.options.accept_loss,
                retired=self.options.retired,
            )
        if self.table is not None:
            check_sink(self.table, self.checkpoint)
        # What is planned has not landed: its rows must not be published as not needed.
        done = newest_done(self.checkpoint)
        self.progress.landed = initial_places(self.queues) if done is None else done.places

    def _make_scratch(self, stack: contextlib.ExitStack) -> Path:
        """A private directory; what a killed bridge left in it is removed."""
        if self.checkpoint is None:
            import tempfile

            return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="msgproto-bridge-")))
        scratch = self.checkpoint / PRIVATE
        for name in ("local", "warehouse"):
            shutil.rmtree(scratch / name, ignore_errors=True)
        (scratch / "pause").unlink(missing_ok=True)
        return scratch

    def run(self, descriptors: Sequence[int]) -> int:
        """Starts Spark and the stream, watches it, ends it."""
        options = self.options
        with spark_session(options.master, self._scratch, options.settings, descriptors) as spark:
            self.ending.install()
            if self.ending.wishes:
                self._write_status("ended")
                return 0
            query = self._start(spark)
            self.say(self._running_line())
            try:
                self._watch(query)
            finally:
                with contextlib.suppress(Exception):
                    query.stop()
            error = query.exception()
            self._take_progress(query)
            self._publish()
            if error is not None and not self.ending.wishes:
                raise self._explained(error)
            self._write_status("ended")
            self.say(f"bridge ended: {progress_line(self.progress, self._lags(), time.time())}")
        return 0

    def _start(self, spark: Any) -> Any:
        from . import register

        options = self.options
        register(spark)
        source = {
            "queue": ",".join(self.locations),
            "maxRowsPerTrigger": options.rows_max or ROWS_MAX[options.format],
            "numPartitions": spark.sparkContext.defaultParallelism,
            "failOnDataLoss": str(not options.accept_loss).lower(),
            "retired": ",".join(options.retired),
            "pauseFile": str(self._scratch / "pause"),
            "tokenFile": options.token_file or "",
            "tlsCa": options.authority or "",
        }
        writer = spark.readStream.format("msgproto").options(**source).load().writeStream
        writer = writer.option("checkpointLocation", _spark_location(options.checkpoint_location))
        if options.once:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{int(options.trigger * 1000)} milliseconds")
        if options.format == "parquet":
            writer = writer.format("parquet").option("path", _spark_location(options.table))
        else:
            assert self.table is not None
            writer = writer.foreachBatch(DeltaSink(self.table, self.checkpoint))
        query = writer.start()
        while query.isActive and query.status["message"].startswith("Initializing"):
            time.sleep(LOOK_SECONDS / 5)
        return query

    def _watch(self, query: Any) -> None:
        """Until the stream ends, or a signal has asked for it and the batch has ended."""
        next_report = 0.0
        shown: Batch | None = None
        while query.isActive:
            if self.ending.wishes:
                (self._scratch / "pause").touch()
                # From the touch on no batch is planned; one that was, keeps the trigger active.
                if self.ending.wishes > 1 or not query.status["isTriggerActive"]:
                    break
            self._take_progress(query)
            now = time.monotonic()
            if now >= next_report:
                next_report = now + REPORT_SECONDS
                self._publish()
                lags = self._lags()
                self._write_status("running", lags)
                if self.progress.last is not shown:
                    shown = self.progress.last
                    self.say(progress_line(self.progress, lags, time.time()))
            time.sleep(LOOK_SECONDS)

    def _take_progress(self, query: Any) -> None:
        """Counts the batches which have ended since the last look."""
        newest = query.lastProgress
        if newest is None or self._key(newest) == self._seen:
            return
        fresh = []
        for entry in reversed(query.recentProgress):
            if self._key(entry) == self._seen:
                break
            fresh.append(entry)
        for entry in reversed(fresh):
            source = entry.sources[0]
            end = _places(source.endOffset)
            if end is None:
                continue
            seconds = entry.batchDuration / 1000
            batch = Batch(entry.batchId, entry.numInputRows, seconds, time.time())
            missing = self.progress.add(batch, end, _places(source.startOffset))
            if missing:
                self.say(
                    f"bridge skipped {missing} damaged rows in batch {entry.batchId} "
                    "(msgproto queue verify DIR names them)"
                )
        self._seen = self._key(newest)

    @staticmethod
    def _key(entry: Any) -> tuple[int, str]:
        return entry.batchId, entry.timestamp

    def _publish(self) -> None:
        """Makes what has landed durable, then publishes the low-water mark."""
        landed = self.progress.landed
        if landed == self._published:
            return
        if self.progress.last is not None:
            batch = self.progress.last.number
            self._sync.reach(batch)
            if self.checkpoint is not None:
                write_mark(self.checkpoint, Mark(batch, boot_id()))
        for name, queue in self.queues.items():
            if name in landed and landed.get(name) != self._published.get(name):
                # After an accepted loss the table may be ahead of the queue for a while.
                offset = min(landed[name]["offset"], queue.end())
                queue.commit(self.options.consumer, offset)
        self._published = landed

    def _lags(self) -> dict[str, Lag]:
        now = time.time()
        lags = {}
        for name, queue in self.queues.items():
            # The figures are for people; a queue that cannot be asked just now has none.
            with contextlib.suppress(MsgprotoError, OSError):
                lags[name] = lag(queue, self.progress.landed, now)
        return lags

    def _write_status(
        self, state: str, lags: Mapping[str, Lag] | None = None, error: str | None = None
    ) -> None:
        if self.status is not None:
            with contextlib.suppress(OSError):
                lags = self._lags() if lags is None else lags
                self.status.write(state, self.progress, lags, error)

    def failed(self, error: BaseException) -> None:
        """Notes in the status file why the bridge ended."""
        self._write_status("failed", error=first_line(error))

    def _running_line(self) -> str:
        options = self.options
        return (
            f"bridge running from {', '.join(options.queues)} to {options.table} "
            f"({options.format}, consumer {options.consumer}, pid {os.getpid()})"
        )

    def _explained(self, error: BaseException) -> ConfigurationError:
        log = self._scratch / "spark.log"
        return ConfigurationError(f"{stream_error(str(error))}; Spark's log: {log}")


def stream_error(text: str) -> str:
    """The one line of what Spark says about a failed stream: our own words if they are in it."""
    own = OWN_ERROR.search(text)
    if own is not None:
        return own[1].strip()
    python = PYTHON_ERROR.search(text)
    return f"the stream failed: {first_line(Exception(python[1] if python else text))}"


class DeltaSink:
    """Writes each batch to a Delta table with delta-rs, once: its number goes into the commit.

    Spark calls again with the same number when the process ended between the table's commit and
    its own; the table then says that it has that number.  The numbers belong to one checkpoint,
    so they stand under the stream's id, which is the checkpoint's.
    """

    def __init__(self, table: Path, checkpoint: Path | None) -> None:
        self._table = table
        self._checkpoint = checkpoint

    def __call__(self, frame: Any, batch: int) -> None:
        """The function of ``foreachBatch``."""
        from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

        session = frame.sparkSession
        application = session.sparkContext.getLocalProperty("sql.streaming.queryId")
        if application is None:
            raise ConfigurationError("Spark did not say which stream this batch is of")
        exists = DeltaTable.is_deltatable(str(self._table))
        if exists:
            done = DeltaTable(str(self._table)).transaction_version(application)
            if done is not None and done >= batch:
                return
        if self._checkpoint is not None:
            # The plan must outlive a power cut when the batch does, or it is planned differently.
            sync_files([self._checkpoint / "metadata", self._checkpoint / "offsets" / str(batch)])
        write_deltalake(
            str(self._table),
            frame.toArrow(),
            mode="append",
            commit_properties=CommitProperties(app_transactions=[Transaction(application, batch)]),
        )
        sync_delta(self._table, DeltaTable(str(self._table)).version())


def _need_delta() -> None:
    try:
        import deltalake  # noqa: F401
    except ImportError:
        open_delta(Path())


def _places(text: Any) -> Places | None:
    """The places in a progress entry, which has them as JSON text or, before any, not at all."""
    if not text or text == "null":
        return None
    places: Places = json.loads(text) if isinstance(text, str) else text
    return places


def _spark_location(location: str) -> str:
    path = local_path(location)
    return location if path is None else str(path)
