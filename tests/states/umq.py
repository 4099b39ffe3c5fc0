"""UMQ: both sides call, with attachments that are there at once or come later."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from tests.states.pairs import (
    BOTH,
    Arrived,
    Faulted,
    Pairing,
    Refused,
    Report,
    Settled,
    Side,
    Unsure,
    must,
)
from twisted_msgproto.core.connection import WorkLost
from twisted_msgproto.core.errors import Fault
from twisted_msgproto.umq import UmqServerFactory
from twisted_msgproto.umq import terms as told
from twisted_msgproto.umq.machine import Client, Server


class Umq(Pairing):
    """A call is answered with its own payload and attachments as soon as it is stored."""

    OPTIONS: ClassVar = {
        "calls": (1, 2, 5),
        "answer-seconds": (None, 20.0),
        "attachments": (0, 1, 2),
    }
    stream = False
    half_close = False
    haste: ClassVar = {"hello-seconds": 10.0}
    patience: ClassVar = {"attachment-seconds": 60.0}

    def __init__(self, options: Mapping[str, Any], now: float, carried: list[Any]) -> None:
        super().__init__(options, now, carried)
        limits = UmqServerFactory(limits={"own-calls": options["calls"]}).limits
        self.machines = {Side.CLIENT: Client(limits, now), Side.SERVER: Server(limits, now)}

    def begin(self, now: float) -> list[tuple[Side, list[Report]]]:
        self.machines[Side.CLIENT].hello()
        return [(side, []) for side in BOTH]

    def room(self, side: Side) -> int:
        machine = self.machines[side]
        return self.options["calls"] - machine.calls_pending if machine.opened else 0

    def send(self, side: Side, bodies: list[bytes], now: float) -> list[bytes]:
        machine, seconds = self.machines[side], self.options["answer-seconds"]
        machine.clock = now
        for body in bodies:
            deadline = None if seconds is None else now + seconds
            machine.call(body.decode(), self._attached(body), waiter=body, deadline=deadline)
        return bodies

    def _attached(self, body: bytes) -> list[bytes]:
        return [body[:3] * number for number in range(self.options["attachments"])]

    def read(self, side: Side, events: Iterable[Any], now: float) -> list[Report]:
        reports: list[Report] = []
        calls: list[told.CallReceived] = []
        for event in events:
            match event:
                case told.HelloReceived():
                    self.machines[side].welcome()
                case told.WelcomeReceived():
                    reports += self.read(side, self.machines[side].accept(now), now)
                case told.CallReceived():
                    must(event.attachments == self._attached(event.payload.encode()), event)
                    calls.append(event)
                case told.CallsSafe():
                    for call in event.calls:
                        self.machines[side].result(call.id, call.payload, call.attachments)
                case told.ResultReceived():
                    body = event.payload.encode()
                    must(event.waiter == body, side, "got the answer to another call:", event)
                    must(event.attachments == self._attached(body), event)
                    reports.append(Settled([body]))
                case told.ErrorReceived():
                    reports.append(Refused([event.waiter]))
                case told.CallExpired():
                    reports.append(Unsure([event.waiter]))
                case WorkLost():
                    reports.append(Unsure(event.work, everything=True))
                case Fault():
                    reports.append(Faulted(event.reason))
                case told.FatalReceived():
                    must(event.code is not None, event)
        if calls:
            reports.insert(0, Arrived(calls, [call.payload.encode() for call in calls]))
        return reports

    def in_flight(self, side: Side) -> int:
        counters = self.machines[side].counters
        late = self.options["answer-seconds"] is not None
        must(late or not counters.unknown_answers, side, "got an answer that nobody waits for")
        return int(self.machines[side].calls_pending)

    def window(self, side: Side) -> int:
        return int(self.options["calls"])

    def finished(self, side: Side) -> bool:
        return bool(self.machines[side].finished)
