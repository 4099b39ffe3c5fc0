"""A broker's durable half over a disk that forgets, and what must be there after each crash."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any
from unittest import mock

from tests.sim.disk import Cut, CutDisk
from tests.tools.queues import encode
from twisted_msgproto import MessageBatch
from twisted_msgproto.core.broker import QueueName, weight
from twisted_msgproto.core.broker.envelopes import head
from twisted_msgproto.queue import QueueReader, SegmentLog
from twisted_msgproto.queue.broker_files import BrokerState, overflow, state

DIRECTORY = "/queue"
NAMES = [QueueName("micromsg2", "a"), QueueName("micromsg2", "b"), QueueName("mtl/v/p", "c")]


class World:
    """One queue directory with a broker over it, and a model of what is in which queue.

    Attributes:
        there: id → (queue, envelope, body) of all that was acknowledged and is not settled.
        going: those that were settled, or moved, after the last group that was written.
    """

    def __init__(
        self, source: random.Random, *, pin: int = 0, kept_segment_bytes: int = 1350
    ) -> None:
        self.source = source
        self.pin = pin
        self.kept_segment_bytes = kept_segment_bytes
        self.disk = CutDisk()
        self.lines: list[str] = []
        self.there: dict[int, tuple[QueueName, bytes, bytes]] = {}
        self.tries: dict[int, int] = {}
        self.unsure: dict[int, tuple[QueueName, bytes, bytes]] = {}
        self.declared: set[QueueName] = set()
        self.moves: dict[int, set[QueueName]] = {}
        self.number = 0
        self.open()

    def open(self) -> None:
        """Start; the queues must be what the model says."""
        self.log = SegmentLog(DIRECTORY, disk=self.disk, segment_bytes=800)
        self.state = self.broker()
        self.check(self.state.restored())

    def broker(self) -> BrokerState:
        with (
            mock.patch.object(state, "PIN_BYTES", self.pin),
            mock.patch.object(overflow, "SEGMENT_BYTES", self.kept_segment_bytes),
        ):
            return BrokerState(self.log, report=self.lines.append)

    # -- what happens -----------------------------------------------------------------------------

    def publish(self, count: int = 6, *, declare: bool = True) -> list[int]:
        """Messages for random queues, with others between; the ids of the former."""
        batches, rows = [], []
        first = self.log.end
        message_id = first
        for _ in range(self.source.randint(1, 3)):
            envelopes: list[bytes | None] = []
            bodies = []
            for _ in range(count):
                self.number += 1
                body = b"%d" % self.number * self.source.randint(0, 9)
                bodies.append(body)
                if self.source.random() < 0.2:
                    envelopes.append(None)
                else:
                    name = self.source.choice(NAMES)
                    envelopes.append(head("mtl", name) + b"%d" % self.number)
                    rows.append((message_id, name, envelopes[-1], body))
                message_id += 1
            batches.append(MessageBatch("mtl", "content", self.number, count=count, body=bodies))
            if any(envelopes):
                batches[-1].envelope = envelopes
        if declare:
            new = {name: first for _, name, _, _ in rows}
            self.state.declare(new)
            self.declared |= new.keys()
        for message_id, name, envelope, body in rows:
            assert envelope is not None
            self.unsure[message_id] = name, envelope, body
        self.log.append([encode(batches)])
        for message_id, *_ in rows:
            self.there[message_id] = self.unsure.pop(message_id)
        return [message_id for message_id, *_ in rows]

    def settle(self, ids: list[int]) -> None:
        self.state.settle(ids)
        for message_id in ids:
            self.unsure[message_id] = self.there.pop(message_id)
            self.tries.pop(message_id, None)

    def settle_some(self, share: float = 0.5) -> None:
        self.settle(
            [message_id for message_id in sorted(self.there) if self.source.random() < share]
        )

    def move_some(self, to: QueueName, share: float = 0.2) -> None:
        ids = [message_id for message_id in sorted(self.there) if self.source.random() < share]
        self.state.move(ids, to, tries=True)
        for message_id in ids:
            before, envelope, body = self.there[message_id]
            self.moves.setdefault(message_id, {before}).add(to)
            self.there[message_id] = to, envelope, body

    def try_some(self, share: float = 0.2) -> None:
        tries = {message_id: 3 for message_id in sorted(self.there) if self.source.random() < share}
        self.state.tried(tries)
        self.tries |= tries

    def tend(self) -> None:
        """Write what was noted; from now on it may not be forgotten."""
        self.state.tend()
        if not self.state.failing():
            self.moves.clear()
            # What was settled is written, and never comes again.
            self.unsure.clear()

    def consume(self) -> None:
        """The table has everything: the log may go, but for the broker."""
        QueueReader(DIRECTORY, disk=self.disk).commit("spark", self.log.end)

    def trim(self) -> None:
        self.log.trim()

    def tidy(self, rounds: int = 2) -> None:
        """What may go is copied at first, and goes the next time."""
        for _ in range(rounds):
            self.trim()
            self.tend()

    def close(self) -> None:
        self.state.close()
        self.log.close()

    # -- crashes ----------------------------------------------------------------------------------

    @contextmanager
    def cut_after(self, changes: int) -> Iterator[None]:
        """Whatever happens inside ends before its change number ``changes`` of the disk."""
        self.disk.left = changes
        try:
            yield
        except Cut:
            pass
        finally:
            self.disk.left = None

    def crash(self, *, power: bool) -> None:
        """The process ends, or the machine; start again."""
        if power:
            self.disk.lose_power(self.source)
        else:
            self.disk.crash()
        self.open()

    def check(self, queues: Any) -> None:
        """The queues hold what was acknowledged and is not settled, in order; nothing is lost."""
        found: dict[int, QueueName] = {}
        tries: dict[int, int] = {}
        for name, waiting in queues.items():
            ids = list(waiting.message_ids)
            assert ids == sorted(set(ids))
            assert len(waiting.weights) == len(waiting.arrived) == len(ids)
            for message_id in ids:
                assert message_id not in found
                found[message_id] = name
            tries |= dict(waiting.tries)
        missing = self.there.keys() - found.keys()
        assert not missing, f"lost: {sorted(missing)}"
        unknown = found.keys() - self.there.keys() - self.unsure.keys()
        assert not unknown, f"again, or never there: {sorted(unknown)}"
        assert self.declared <= queues.keys()
        for message_id, name in found.items():
            known = (self.there | self.unsure)[message_id]
            assert name == known[0] or name in self.moves.get(message_id, ()), (
                message_id,
                name,
                known,
            )
        assert {message_id for message_id, number in tries.items() if number} <= found.keys()
        self.there = {
            message_id: (name, *(self.there | self.unsure)[message_id][1:])
            for message_id, name in found.items()
        }
        self.unsure.clear()
        self.moves.clear()
        loaded = self.state.load(sorted(self.there))
        assert loaded.unreadable == []
        assert [message.message_id for message in loaded.messages] == sorted(self.there)
        for message in loaded.messages:
            _, envelope, body = self.there[message.message_id]
            assert (message.envelope, message.body) == (envelope, body)
            assert message.nbytes == weight(envelope, body)

    # -- what is on the disk ----------------------------------------------------------------------

    def copies(self) -> dict[int, list[int]]:
        """The ids that are copied, by the first offset of the broker's own segments."""
        directory = f"{DIRECTORY}/broker/log"
        reader, found = QueueReader(directory, disk=self.disk), dict[int, list[int]]()
        names = sorted(name for name in self.disk.names(directory) if name.endswith(".segment"))
        bounds = [*(int(name[:20]) for name in names), reader.end()]
        for first, end in pairwise(bounds):
            rows = [row for some in reader.read(first, end) for row in some.to_pylist()]
            found[first] = [int(row["message_id"]) for row in rows]
        return found

    def copied(self) -> int:
        """How many messages were copied so far."""
        return QueueReader(f"{DIRECTORY}/broker/log", disk=self.disk).end()

    def copied_bytes(self) -> int:
        paths = [path for path in self.disk.paths() if "/broker/log/0" in path]
        return sum(len(self.disk.bytes_of(path)) for path in paths)
