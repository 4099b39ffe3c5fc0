"""A Spark-like consumer: intent log, write, commit, and crashes between any two of them."""

from __future__ import annotations

import contextlib
from typing import Any

from tests.sim.gateway import DIRECTORY
from twisted_msgproto.queue import QueueReader

NAME = "spark"

COLUMNS = ["offset", "session", "message_id", "body", "attachments"]
"""What a world looks at; the other columns have tests of their own, and take their time."""


def rows_of(reader: QueueReader, start: int, end: int) -> list[dict[str, Any]]:
    """The rows start ≤ offset < end, as far as a world looks at them."""
    return [row for batch in reader.read(start, end) for row in batch.select(COLUMNS).to_pylist()]


class Consumer:
    """Micro-batches: what a batch holds is written down before it is written to the table.

    ``table`` maps a batch to its rows, as a sink does which replaces a batch that comes again.
    ``committed`` is what the last commit said; the queue may trim up to there.
    """

    def __init__(self, world: Any) -> None:
        self._world = world
        self.intents: dict[int, tuple[int, int]] = {}
        self.table: dict[int, list[dict[str, Any]]] = {}
        self.finished = -1  # the last batch whose commit is in the log
        self.registered = False
        self.stopped = False

    @property
    def landed(self) -> int:
        return self.intents[self.finished][1] if self.finished >= 0 else 0

    def rows(self) -> list[dict[str, Any]]:
        return [row for batch in sorted(self.table) for row in self.table[batch]]

    def run(self) -> None:
        """One micro-batch; comes back by itself."""
        world = self._world
        if self.stopped:
            return
        world.clock.callLater(world.options["trigger"], self.run)
        if world.queue_exists() and (
            not self.registered or self.finished + 1 in self.intents or self._news()
        ):
            # What it cannot tell the queue on a full disk it tells it the next time.
            with contextlib.suppress(OSError):
                self.batch()

    def batch(self) -> None:
        world = self._world
        reader = QueueReader(DIRECTORY, disk=world.disk)
        if not self.registered:
            reader.register(NAME)
            self.registered = True
        batch = self.finished + 1
        if batch not in self.intents:
            start = self.landed
            end = min(reader.end(), start + world.options["batch"])
            if end <= start:
                return
            self.intents[batch] = (start, end)
        if self._crashes():
            return
        self.write(batch, self.read(reader, *self.intents[batch]))
        if self._crashes():
            return
        self.finished = batch
        if not self._crashes():  # commit() of a batch may never come; the next one covers it
            reader.commit(NAME, self.landed)

    def _news(self) -> bool:
        """Whether there is something to read: asked first, for most of the time there is not."""
        end: int = self._world.gateway.log.end
        return end > self.landed

    def read(self, reader: QueueReader, start: int, end: int) -> list[dict[str, Any]]:
        return rows_of(reader, start, end)

    def write(self, batch: int, rows: list[dict[str, Any]]) -> None:
        """Put a batch into the table; a batch which comes again changes nothing."""
        self.table[batch] = rows

    def _crashes(self) -> bool:
        world = self._world
        return bool(world.source.random() < world.faults["consumer_crash"])
