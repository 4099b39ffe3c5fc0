"""Lumberjack: our writer and our reader."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from tests.states.pairs import (
    Arrived,
    Faulted,
    Pairing,
    Report,
    Settled,
    Side,
    Unsure,
)
from twisted_msgproto.core.connection import WorkLost
from twisted_msgproto.core.errors import Fault
from twisted_msgproto.core.limits import Limits
from twisted_msgproto.lumberjack import terms
from twisted_msgproto.lumberjack.machine import Reader, Writer


class Lumberjack(Pairing):
    """A writer flushes after each call, as our client does."""

    OPTIONS: ClassVar = {
        "version": (2, 2, 1),
        "window": (1, 2, 5),
        "pipelining": (1, 3),
        "compress": (0, 3),
        "slice": (1 << 10, 4 << 20),
        "idle-ack": (1.0, 0.0),
    }
    both_ways = False
    patience: ClassVar = {"timeout": 30.0, "idle": 120.0}
    kept_alive = frozenset({"idle"})

    def __init__(self, options: Mapping[str, Any], now: float, carried: list[Any]) -> None:
        super().__init__(options, now, carried)
        limits = {"slice-bytes": options["slice"], "idle-ack": options["idle-ack"]}
        self.writer = Writer(
            version=options["version"],
            window=options["window"],
            compress=options["compress"],
            pipelining=options["pipelining"],
        )
        self.reader = Reader(Limits.of(terms.READER_LIMITS).replace(limits))
        self.machines = {Side.CLIENT: self.writer, Side.SERVER: self.reader}
        self.sent: deque[bytes] = deque()  # and not acknowledged, in order
        self.carried = carried

        if options["version"] == 2:
            self.kept_alive = frozenset({"timeout", "idle"})

    def begin(self, now: float) -> list[tuple[Side, list[Report]]]:
        return [
            (side, self.read(side, machine.connection_made(now), now))
            for side, machine in self.machines.items()
        ]

    def room(self, side: Side) -> int:
        return 20 - self.writer.unacknowledged

    def resubmit(self) -> list[bytes]:
        """Hand in the batches of the connection before."""
        bodies = []
        for batch in self.carried:
            bodies += batch.token[batch.acknowledged :]
            self.writer.submit(batch)
        self.sent += bodies
        return bodies

    def send(self, side: Side, bodies: list[bytes], now: float) -> list[bytes]:
        version_1 = self.options["version"] == 1
        self.writer.send([{"b": b.decode()} for b in bodies] if version_1 else bodies, bodies)
        self.sent += bodies
        return bodies

    def outputs(self, side: Side, now: float) -> Any:
        if side is Side.CLIENT:
            self.writer.flush(now)
        return self.machines[side].outputs()

    def read(self, side: Side, events: Iterable[Any], now: float) -> list[Report]:
        reports: list[Report] = []
        for event in events:
            match event:
                case terms.JsonReceived():
                    reports.append(Arrived(event.position, list(event.bodies)))
                case terms.DataReceived():
                    bodies = [pairs["b"].encode() for pairs in event.pairs]
                    reports.append(Arrived(event.position, bodies))
                case terms.PartAcknowledged() | terms.WindowAcknowledged():
                    reports.append(Settled([self.sent.popleft() for _ in range(event.count)]))
                case WorkLost():
                    self.work = event.work
                    bodies = [body for p in event.work for body in left(p)]
                    reports.append(Unsure(bodies, everything=True))
                case Fault():
                    reports.append(Faulted(event.reason))
        return reports

    def whole(self, side: Side) -> bool:
        drains = side is Side.SERVER and self.reader.state is terms.Reading.DRAINING
        return drains or super().whole(side)  # it reads nothing any more, be it half a frame

    def in_flight(self, side: Side) -> int:
        return self.writer.in_flight if side is Side.CLIENT else 0

    def window(self, side: Side) -> int:
        return int(self.options["window"] * self.options["pipelining"])


def left(batch: terms.PreparedBatch) -> list[bytes]:
    """What of a batch is not acknowledged."""
    return list(batch.token[batch.acknowledged :])
