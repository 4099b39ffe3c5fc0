"""sABC: both sides send requests and messages that want no answer, in parts where they are long."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import count
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
    Skipped,
    Unsure,
    must,
)
from twisted_msgproto.core.connection import WorkLost
from twisted_msgproto.core.errors import Fault
from twisted_msgproto.sabc import SabcServerFactory
from twisted_msgproto.sabc import terms as told
from twisted_msgproto.sabc.machine import Client, Server

SESSIONS = count(1)


class Sabc(Pairing):
    """A request is answered with its own body, or with nothing, as soon as it is stored."""

    OPTIONS: ClassVar = {
        "requests": (1, 2, 5),
        "part-bytes": (20, 65_536),
        "hooked": (True, False),
        "answers": ("many", "one", "empty"),
        "send-only": (0, 3),
        "expires": (None, None, 60.0),
        "lenient": (False, True),
    }
    haste: ClassVar = {"connect-seconds": 10.0}

    def __init__(self, options: Mapping[str, Any], now: float, carried: list[Any]) -> None:
        super().__init__(options, now, carried)
        limits = SabcServerFactory(
            limits={
                "outstanding-requests": options["requests"],
                "part-bytes": options["part-bytes"],
            }
        ).limits
        unhooked = () if options["hooked"] else ("request", "send-only")
        self.machines = {
            Side.CLIENT: Client(limits, lenient=options["lenient"], unhooked=unhooked),
            Side.SERVER: Server(limits, lenient=options["lenient"], unhooked=unhooked),
        }
        self.expired = False  # requests were, on one of the sides
        self.abandoned: set[str | None] = set()  # parts of them came too late

    def begin(self, now: float) -> list[tuple[Side, list[Report]]]:
        for machine in self.machines.values():
            machine.connection_made(now)
        self.machines[Side.CLIENT].connect("me", now=now)
        return [(side, []) for side in BOTH]

    def room(self, side: Side) -> int:
        machine = self.machines[side]
        return machine.room if machine.state.name == "OPEN" else 0

    def send(self, side: Side, bodies: list[bytes], now: float) -> list[bytes]:
        machine, answered = self.machines[side], []
        for body in bodies:
            every = self.options["send-only"]
            if every and not int(body.strip(b'"cs.')) % every:
                machine.send_only(body)
            else:
                machine.request(body, body, now)
                answered.append(body)
        return answered

    def read(self, side: Side, events: Iterable[Any], now: float) -> list[Report]:
        reports: list[Report] = []
        for event in events:
            match event:
                case told.ConnectReceived():
                    seconds = self.options["expires"]
                    expires = None if seconds is None else now + seconds
                    self.machines[side].accept(f"S{next(SESSIONS)}", expires=expires)
                case told.MessagesReceived():
                    must(True not in event.truncated, side, "cut a message:", event)
                    reports.append(Arrived(event.position, list(event.bodies)))
                case told.MessagesSafe():
                    self._answer(side, event.messages)
                case told.ResponsesReceived():
                    self._compare(event)
                    reports.append(Settled([_bytes(waiter) for waiter in event.waiters]))
                case told.RequestFailed():
                    reports.append(Refused([_bytes(event.waiter)]))
                case told.RequestsTimedOut():
                    self.expired = True
                    reports.append(Unsure([_bytes(waiter) for waiter in event.waiters]))
                case WorkLost():
                    bodies = [_bytes(waiter) for _, waiter in event.work]
                    reports.append(Unsure(bodies, everything=True))
                case Fault():
                    reports.append(Faulted(event.reason))
                case told.MessageAbandoned():
                    self.abandoned.add(event.id)
                    reports.append(Skipped())
                case told.FrameRefused():
                    # A sender that has given up counts no longer what its peer has still to answer.
                    draining = self.machines[Side.SERVER].state.name == "DRAINING"
                    many = event.code == 429 and self.expired
                    late = event.code == 408 and event.id in self.abandoned
                    must(draining or many or late, side, "refuses:", event)
                    reports.append(Skipped())
                case told.FrameDiscarded():
                    must(False, side, "discards:", event)
        return reports

    def _answer(self, side: Side, messages: told.MessagesReceived) -> None:
        machine, ids = self.machines[side], messages.ids
        if messages.kind == "send-only":
            machine.settle(len(ids))
        elif self.options["answers"] == "empty":
            machine.acknowledge(ids)
        else:
            bodies = dict(zip(ids, messages.bodies, strict=True))
            if self.options["answers"] == "many":
                ids = machine.answer_all(ids, messages.bodies)
            for id in ids:
                machine.answer(id, bodies[id])

    def _compare(self, event: told.ResponsesReceived) -> None:
        """An answer is that to its own request."""
        if self.options["hooked"] and self.options["answers"] != "empty":
            must(event.bodies == event.waiters, "answers to other requests:", event)
        else:
            must(not any(event.bodies), "an answer with a body:", event)

    def in_flight(self, side: Side) -> int:
        return int(self.machines[side].outstanding)

    def window(self, side: Side) -> int:
        return int(self.options["requests"])


def _bytes(waiter: object) -> bytes:
    assert isinstance(waiter, bytes)
    return waiter
