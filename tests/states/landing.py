"""A gateway's queue, a bridge and its table on disks that forget, and what must be in them.

Real are the segment log and its recovery, the reader, the bridge's loop with its plans and marks,
and the table's log.  Threads are called at once, and a data file holds offsets and bodies in place
of Parquet, which would be most of the time.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.sim.disk import Cut, CutDisk
from tests.sim.gateway import DIRECTORY, a_log
from tests.states.pairs import BEGIN, must
from tests.tools.tables import TABLE_SCHEMA
from twisted_msgproto import MessageBatch
from twisted_msgproto.cli import consumers
from twisted_msgproto.core.disk import Disk
from twisted_msgproto.core.errors import MsgprotoError, QueueError, QueueFull, TableError
from twisted_msgproto.queue import QueueReader, SegmentLog
from twisted_msgproto.queue.format import segment_name
from twisted_msgproto.queue.payload import encode
from twisted_msgproto.queue.recovery import segment_offsets
from twisted_msgproto.spark.daemon_threads import DaemonThreadPool
from twisted_msgproto.spark.gateways import Gateways, Marks
from twisted_msgproto.spark.loop import ATTEMPT_SECONDS, Loop, Pace
from twisted_msgproto.table import preflight
from twisted_msgproto.table.actions import DataFile, Run
from twisted_msgproto.table.checkpoint import PARQUET_MARK
from twisted_msgproto.table.delta_table import Table
from twisted_msgproto.table.landing import (
    Failure,
    LandedRanges,
    Target,
    make_durable,
    read_all,
)
from twisted_msgproto.table.plan import Range

TABLE = "/table"
NAME = "spark"
DAY = "2023-11-14"

RUN_SECONDS = 100.0
"""Two runs of a bridge are this far apart: pauses are over, and it looks at the table anew."""

RUNS_MAX = 20
"""A bridge that nothing hinders has landed everything within this many runs."""


class Inline(DaemonThreadPool):
    """Does at once what threads would do."""

    def submit(self, work: Callable[[], None]) -> None:
        work()


class Pauses(threading.Event):
    """A bridge that waits for rows ends its run; one that waits to try again tries again."""

    def wait(self, timeout: float | None = None) -> bool:
        if timeout is None or timeout < ATTEMPT_SECONDS:
            self.set()
        return self.is_set()


class Least(random.Random):
    """Whatever may be lost is lost."""

    def randint(self, a: int, b: int) -> int:
        return a


Rows = list[tuple[int, str]]
"""Offsets and bodies."""


def rows_in(nbytes: bytes) -> Rows:
    """What a data file holds."""
    return [tuple(row) for row in json.loads(nbytes.removesuffix(PARQUET_MARK))]


class Bridge:
    """One life of a bridge: raises TableError if the table cannot be opened."""

    def __init__(self, site: Site, number: int, rows_max: int) -> None:
        run = Run(f"{number:08x}", "here", number)
        self._site = site
        self._files = 0
        self._run = run
        self.table = Table.open_or_create(
            TABLE,
            TABLE_SCHEMA,
            run=run,
            disk=site.table_disk,
            clock=lambda: site.now,
        )
        preflight.check_operations(self.table)
        self._batches = 0
        self._stop = Pauses()
        gateways = Gateways(
            [DIRECTORY],
            lambda location: site.reader(),
            NAME,
            lambda description, known: preflight.check_gateway(
                TABLE, description, known, start_begin=False
            ),
            site.said.append,
            lambda: site.now,
        )
        self.marks = Marks(NAME, lambda gateway: site.reader(), lambda: None, site.said.append)
        gateways._crew = gateways._searching = self.marks._crew = Inline(1, "inline")
        self._loop = Loop(
            self.table,
            Target(TABLE),
            gateways,
            self.marks,
            self._land,
            run,
            Pace(trigger=0.0, rows_max=rows_max),
            self._stop,
            say=site.said.append,
            maintenance=self._landed,
            clock=lambda: site.now,
            wall=lambda: site.now,
        )

    def run(self, batches: int) -> None:
        """Land at most so many batches; MsgprotoError when it cannot go on."""
        self._site.now += RUN_SECONDS
        self._batches = batches
        self._stop.clear()
        self._loop.run()

    def _landed(self, table: Table) -> None:
        table.maintain()
        self._batches -= 1
        if self._batches <= 0:
            self._stop.set()

    def _land(self, target: Target, tasks: Sequence[Sequence[Range]]) -> LandedRanges:
        """A task of Spark's: as ``land_ranges``, but for the format of the file."""
        landed = LandedRanges()
        rows: Rows = []
        ranges = [part for task in tasks for part in task]
        for part, item in read_all(ranges, lambda part: self._site.reader()):
            if isinstance(item, Failure):
                landed.failed[part.gateway] = item
                return landed
            if isinstance(item, list):
                landed.damaged.setdefault(part.gateway, []).extend(item)
            else:
                bodies = [body.decode() for body in item.column("body").to_pylist()]
                rows += zip(item.column("offset").to_pylist(), bodies, strict=True)
                landed.rows[part.gateway] = landed.rows.get(part.gateway, 0) + item.num_rows
        if rows:
            try:
                landed.files = [self._file(rows)]
            except OSError as error:
                raise TableError(f"the table cannot be written: {error}") from error
        return landed

    def _file(self, rows: Rows) -> DataFile:
        storage = self.table.storage
        disk: Disk = storage.disk  # type: ignore[attr-defined]
        self._files += 1
        path = f"day={DAY}/{self._run.id}-{self._files}"
        octets = json.dumps(rows).encode() + PARQUET_MARK
        disk.make_directory(f"{TABLE}/day={DAY}")
        disk.open(f"{TABLE}/{path}", write=True).write(0, [octets])
        make_durable(storage, [path])
        return DataFile(path, len(octets), {"day": DAY}, len(rows), "", int(self._site.now * 1000))


class Site:
    """Two machines: one with the queue and its gateway, one with the table and its bridge.

    Attributes:
        rows: all bodies that were acknowledged or that a start has kept, by offset.
        lost: offsets of them that the disk has destroyed (:meth:`destroy`).
        doubtful: groups, frame by frame, that were not acknowledged since the last one that was.
    """

    def __init__(self, segment_bytes: int, rows_max: int) -> None:
        self._segment_bytes = segment_bytes
        self._rows_max = rows_max
        self.queue_disk = CutDisk()
        self.table_disk = CutDisk()
        self.now = BEGIN
        self.said: list[str] = []
        self.rows: list[str] = []
        self.lost: set[int] = set()
        self.losses = 0
        self.doubtful: list[list[list[str]]] = []
        self.log: SegmentLog | None = None
        self.bridge: Bridge | None = None
        self.dark = True
        """The queue's machine has lost its power, and its gateway has not started since."""
        self._sent = 0
        self._starts = 0
        self._lives = 0

    def reader(self) -> QueueReader:
        return QueueReader(DIRECTORY, disk=self.queue_disk)

    # ── the gateway ─────────────────────────────────────────────────────────────────────────────

    def start_gateway(self, lossy_from: int | None = None) -> None:
        """Recover the queue, unless the disk refuses; what was published must be there.

        ``lossy_from``: what was published from there on may be lost, and something is.
        """
        self._starts += 1
        try:
            self.log = a_log(
                self.queue_disk, lambda: self._starts, segment_bytes=self._segment_bytes
            )
        except QueueError:
            self.queue_disk.crash()  # the process ends with a line
            return
        self.dark = False
        known = len(self.rows)
        damaged = {n for lo, hi in self.log.damaged for n in range(lo, hi)}
        if lossy_from is not None:
            must(known - 1 in damaged, "the queue says damaged", damaged, "of", known)
            self.lost |= damaged & {*range(lossy_from, known)}
        must(damaged <= self.lost, "the queue says damaged", damaged, "not", self.lost)
        self._check_recovered(self.log, known)

    def _check_recovered(self, log: SegmentLog, known: int) -> None:
        must(log.losses == self.losses, "the losses are", log.losses, log.recovery.lines)
        must(log.end >= known, "the queue ends at", log.end, "and was acknowledged up to", known)
        found = self._read(log.begin, log.end)
        kept = [body for offset, body in found if offset >= known]
        must(
            not kept or any(kept in _beginnings(group) for group in self.doubtful),
            "a start has kept",
            kept,
            "of",
            self.doubtful,
        )
        self.rows += kept
        self.doubtful.clear()
        there = [n for n in range(log.begin, log.end) if n not in self.lost]
        must(found == [(n, self.rows[n]) for n in there], "the queue has", found, "not", self.rows)

    def _read(self, lo: int, hi: int) -> Rows:
        columns = ["offset", "body"]
        return [
            (row["offset"], row["body"].decode())
            for batch in self.reader().read(lo, hi)
            for row in batch.select(columns).to_pylist()
        ]

    def append(self, counts: Sequence[int]) -> None:
        """A group of batches of so many messages each: acknowledged, or refused."""
        assert self.log is not None
        frames = [self._bodies(count) for count in counts]
        self.doubtful.append(frames)
        try:
            self.log.append([encode([_batch(bodies)]) for bodies in frames])
        except (QueueFull, OSError):
            return
        self.rows += [body for bodies in frames for body in bodies]
        self.doubtful.clear()

    def _bodies(self, count: int) -> list[str]:
        self._sent += count
        return [f"{number}." for number in range(self._sent - count, self._sent)]

    def trim(self, *, ending: bool) -> None:
        assert self.log is not None
        try:
            self.log.trim(ending=ending)
        except (QueueFull, OSError):
            # Whatever it could not do it does the next time.
            return

    @property
    def unpublished(self) -> bool:
        """The disk has refused the published end, once at least, since the gateway has started."""
        return self.log is not None and bool(self.log.publish_failures)

    def kill_gateway(self) -> None:
        self.queue_disk.crash()
        self.log = None

    def destroy(self, nbytes: int) -> None:
        """The disk loses the end of the newest segment with rows, though it was synced.

        That is damage in the middle where a later segment has been begun; else it is a loss.
        """
        assert self.log is not None
        newest = self.log.firsts[-1]
        path = f"{DIRECTORY}/{segment_name(newest)}"
        self.kill_gateway()
        self.queue_disk.mend()
        self.queue_disk.spoil(path, self.queue_disk.bytes_of(path)[:-nbytes])
        self.losses += segment_offsets(self.queue_disk, DIRECTORY)[-1] == newest
        self.start_gateway(lossy_from=newest)

    # ── the bridge ──────────────────────────────────────────────────────────────────────────────

    def start_bridge(self) -> None:
        """Open the table, unless its disk refuses."""
        self._lives += 1
        try:
            self.bridge = Bridge(self, self._lives, self._rows_max)
        except TableError as error:
            self._refused(error)
        else:
            self._check_not_ahead(self.bridge.table)

    def run_bridge(self, batches: int) -> None:
        assert self.bridge is not None
        try:
            self.bridge.run(batches)
        except MsgprotoError as error:
            self._refused(error)
            self.bridge = None

    def _refused(self, error: Exception) -> None:
        """Only a disk may stop a bridge: nobody else has touched table or queue."""
        must(type(error) is TableError, "the bridge ends with", type(error).__name__, error)

    def send_marks(self) -> None:
        assert self.bridge is not None
        self.bridge.marks.send()

    def reset(self, share: float) -> None:
        """An operator sets the consumer to what the queue has and the table too."""
        assert self.bridge is not None
        reader = self.reader()
        landed = self.landed(self.bridge.table)
        begin = reader.begin()
        if NAME in reader.consumers() and landed >= begin:
            try:
                consumers.reset(reader, NAME, begin + int(share * (landed - begin)))
            except OSError:
                return

    @staticmethod
    def landed(table: Table) -> int:
        """How far the table has landed the queue."""
        return max((place.offset for place in table.landed().values()), default=0)

    # ── machines ────────────────────────────────────────────────────────────────────────────────

    def cut(self, disk: CutDisk, changes: int, work: Callable[[], None]) -> None:
        """Both processes that use a disk, and do this, end before the next but so many changes."""
        disk.left = changes
        try:
            work()
        except Cut:
            if disk is self.queue_disk:
                self.kill_gateway()
            else:
                self.bridge = None
        finally:
            disk.left = None

    def lose_power(self, source: random.Random, *, queue: bool, table: bool) -> None:
        if queue:
            self.log = None
            self.queue_disk.lose_power(source)
            self.dark = True
        if table:
            self.bridge = None
            self.table_disk.lose_power(source)

    # ── what must hold ──────────────────────────────────────────────────────────────────────────

    def check(self) -> None:
        """What holds after each step."""
        if self.log is not None:
            reader = self.reader()
            end = reader.end()
            must(self.log.end == len(self.rows), "the log has", self.log.end, "of", self.rows)
            must(end == self.log.end or self.unpublished, "published is", end, "of", self.rows)
            must(reader.losses == self.losses, "the losses are", reader.losses)
        if self.bridge is not None:
            self._check_not_ahead(self.bridge.table)

    def _check_not_ahead(self, table: Table) -> None:
        """Neither trimmed nor released is anything that has not landed."""
        if not self.dark:
            landed, reader = self.landed(table), self.reader()
            marks: Mapping[str, Any] = reader.consumers()
            must(reader.begin() <= landed, "trimmed to", reader.begin(), "and landed to", landed)
            must(marks.get(NAME, 0) <= landed, "released to", marks, "and landed to", landed)
            must(landed <= len(self.rows), "landed to", landed, "of", len(self.rows))

    def finish(self) -> None:
        """Without faults all lands; after a loss of power on both sides all is there still."""
        self.queue_disk.mend()
        self.table_disk.mend()
        self._catch_up()
        self.lose_power(Least(), queue=True, table=True)
        self._catch_up()

    def _catch_up(self) -> None:
        if self.unpublished:
            self.kill_gateway()
        if self.log is None:
            self.start_gateway()
        if self.bridge is None:
            self.start_bridge()
        must(self.log is not None and self.bridge is not None, "it does not start")
        assert self.bridge is not None
        for _ in range(RUNS_MAX):
            if self.landed(self.bridge.table) >= len(self.rows):
                break
            self.run_bridge(len(self.rows))
            must(self.bridge is not None, "the bridge ends on a good disk")
        self.send_marks()
        self.check()
        self._check_table(Table.open(TABLE, disk=self.table_disk))

    def _check_table(self, table: Table) -> None:
        """Each row once, in order, without a gap; a lost one if it had landed before."""
        must(self.landed(table) == len(self.rows), "landed to", self.landed(table))
        found: Rows = []
        for file in sorted(map(self._rows_of, table.files())):
            found += file
        offsets = [offset for offset, _ in found]
        must(offsets == sorted(set(offsets)), "rows are there twice, or out of order:", found)
        missing = {*range(len(self.rows))} - {*offsets}
        must(missing <= self.lost, "missing are", sorted(missing - self.lost), "of", found)
        wrong = [row for row in found if row[1] != self.rows[row[0]]]
        must(not wrong, "other rows landed:", wrong)

    def _rows_of(self, file: DataFile) -> Rows:
        return rows_in(self.table_disk.bytes_of(f"{TABLE}/{file.path}"))


def _batch(bodies: Sequence[str]) -> MessageBatch:
    octets = [body.encode() for body in bodies]
    return MessageBatch(
        "lumberjack", "event", int(BEGIN * 1e6), session="s", count=len(octets), body=octets
    )


def _beginnings(group: Sequence[Sequence[str]]) -> list[list[str]]:
    """What a start may keep of a group: its first frames, all of them at most."""
    return [
        [body for bodies in group[:count] for body in bodies] for count in range(len(group) + 1)
    ]
