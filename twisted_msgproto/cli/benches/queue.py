"""Measure what the queue costs above the disk: beside write + sync of the same octets in the same
groups.

* *encoded groups*: encoded before the clock runs, through ``SegmentLog.append``.
* *from columns*: message batches through ``QueueWriter.submit``, encoding included, with a few
  groups in flight, as connections have them.

In each round both sides alternate slice by slice, on the same disk.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from twisted_msgproto.core.message import MessageBatch
from twisted_msgproto.queue import QueueReader, QueueWriter, SegmentLog
from twisted_msgproto.queue.arrays import compute
from twisted_msgproto.queue.columns import Encoded, encode

from ..measuring import Comparison, Figures, Gauge, Reading, Row, timed
from .raw import RawFile

BODY_OCTETS = 300
MESSAGES = 400_000
"""One round has this many octets."""
IN_FLIGHT = 4
SLICES = 10
MAX_BYTES = 1 << 40
FRAME_OCTETS = 32
"""A frame's head and end have this many octets; the raw write writes them too."""


class Load(NamedTuple):
    """Describes groups of ``group`` messages, submitted in batches of ``batch``, ``groups_max`` a
    round.

    The two marks and goals are of encoded groups and of columns; None: not measured.
    """

    group: int
    batch: int
    groups_max: int
    append: tuple[float | None, float | None] | None
    columns: tuple[float | None, float | None] | None


LOADS = (
    Load(1000, 1000, 400, append=(0.9, 1.0), columns=(0.5, 0.7)),
    Load(1000, 50, 400, append=None, columns=(None, None)),
    Load(16_384, 2048, 24, append=(None, None), columns=(None, None)),
    Load(1, 1, 1000, append=(None, None), columns=(None, None)),
)


def batches(group: int, groups: int, batch: int) -> list[list[MessageBatch]]:
    """Groups of batches as the Lumberjack reader makes them: 300 octets of text a message."""
    source = random.Random(1)
    bodies = [source.randbytes(BODY_OCTETS // 2).hex().encode() for _ in range(group)]
    made = []
    sequence = 0
    for number in range(groups):
        parts = []
        for start in range(0, group, batch):
            count = min(batch, group - start)
            parts.append(
                MessageBatch(
                    "lumberjack",
                    "json",
                    1_700_000_000_000_000 + number,
                    peer="tcp:127.0.0.1:50000",
                    session="lumberjack-20260101T000000-1",
                    count=count,
                    octets=count * BODY_OCTETS,
                    message_id=list(range(sequence + 1, sequence + 1 + count)),
                    body=bodies[start : start + count],
                )
            )
            sequence += count
        made.append(parts)
    return made


class Bed:
    """Holds one load on the disk: the queue and the raw file beside it, made when first needed."""

    def __init__(self, directory: Path, load: Load, groups: int) -> None:
        self._directory = directory
        self._load = load
        # A round is SLICES slices, of one group each at least.
        self._groups = max(1, groups // SLICES)

    @property
    def messages(self) -> int:
        """Return the octets of one slice."""
        return self._groups * self._load.group

    @cached_property
    def work(self) -> list[list[MessageBatch]]:
        """Return the batches of one slice."""
        return batches(self._load.group, self._groups, self._load.batch)

    @cached_property
    def _encoded(self) -> list[Encoded]:
        return [encode(parts) for parts in self.work]

    @cached_property
    def _frames(self) -> list[bytes]:
        frames = (b"".join(map(bytes, encoded.pieces)) for encoded in self._encoded)
        return [frame + bytes(FRAME_OCTETS) for frame in frames]

    @cached_property
    def _raw(self) -> RawFile:
        return RawFile(self._directory)

    @cached_property
    def _log(self) -> SegmentLog:
        return SegmentLog(self._directory / "log", max_bytes=MAX_BYTES)

    @cached_property
    def _writer(self) -> QueueWriter:
        return QueueWriter(
            self._directory / "queue", max_bytes=MAX_BYTES, group_messages=self._load.group
        )

    def raw(self) -> Figures:
        """Write and sync the same octets."""
        return self._raw.write(self._frames, self.messages)

    def append(self) -> Figures:
        """Append groups that were encoded before."""
        # The same groups again and again: what is on the disk differs by its offsets only.
        log, encoded = self._log, self._encoded
        with timed(self.messages) as figures:
            for frame in encoded:
                log.append([frame])
        figures.groups = len(encoded)
        return figures

    def columns(self) -> Figures:
        """Submit batches, with a few groups in flight, and wait until all are durable."""
        before = self._writer.statistics()["groups"]
        with timed(self.messages) as figures:
            submit_all(self._writer, self.work)
        figures.groups = self._writer.statistics()["groups"] - before
        return figures

    def read(self) -> Reading:
        """Return the microseconds of CPU to read a message of the queue; all of it is read."""
        if not self._writer.end:
            self.columns()
        reader = QueueReader(self._directory / "queue")
        compute()  # its import is not measured
        with timed(reader.end()) as figures:
            rows = sum(batch.num_rows for batch in reader.read(0, reader.end()))
        if rows != reader.end():
            raise RuntimeError(f"{rows} rows in a queue which ends at {reader.end()}")
        return Reading(figures.cpu_per_million, {"messages": rows})

    def close(self) -> None:
        """Close what was opened."""
        for name in ("_raw", "_log", "_writer"):
            opened: Any = self.__dict__.get(name)
            if opened is not None:
                opened.close()


def submit_all(writer: QueueWriter, work: Sequence[Sequence[MessageBatch]]) -> None:
    """Submit groups of batches, :data:`IN_FLIGHT` at a time; returns when all are durable."""
    flight = threading.Semaphore(IN_FLIGHT)
    done = threading.Semaphore(0)
    errors: list[BaseException] = []

    def part_done(error: BaseException | None, first: int | None) -> None:
        if error is not None:
            errors.append(error)

    def group_done(error: BaseException | None, first: int | None) -> None:
        part_done(error, first)
        flight.release()
        done.release()

    for parts in work:
        flight.acquire()
        for part in parts[:-1]:
            writer.submit(part, part_done)
        writer.submit(parts[-1], group_done)
    for _ in work:
        done.acquire()
    if errors:
        raise errors[0]


def comparisons(arguments: argparse.Namespace) -> Iterator[Row]:
    """Yield the rows of the queue; ``arguments`` are those of ``msgproto bench``."""
    for load in LOADS:
        groups = max(1, int(min(load.groups_max, MESSAGES // load.group) * arguments.scale))
        with (
            tempfile.TemporaryDirectory(prefix="msgproto-bench-", dir=arguments.queue) as made,
            closing(Bed(Path(made), load, groups)) as bed,
        ):
            yield from _rows(load, bed)


def _rows(load: Load, bed: Bed) -> Iterator[Row]:
    size = f"groups of {load.group:,}"
    beside = f"write + fdatasync of the same octets in {size}"
    if load.append is not None:
        mark, goal = load.append
        yield Comparison(
            f"queue append, encoded {size}",
            beside,
            "rate",
            bed.append,
            bed.raw,
            mark=mark,
            goal=goal,
            slices=SLICES,
        )
    if load.columns is not None:
        mark, goal = load.columns
        handed = "" if load.batch == load.group else f" in batches of {load.batch:,}"
        yield Comparison(
            f"queue append from columns, {size}{handed}",
            beside,
            "rate",
            bed.columns,
            bed.raw,
            mark=mark,
            goal=goal,
            slices=SLICES,
        )
        yield Gauge(f"queue read, {size}{handed}", "CPU s per million", bed.read, repeats=True)
