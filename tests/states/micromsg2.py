"""MicroMsg2: both sides send, with or without acknowledgements, across the end of the numbers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from tests.states.pairs import (
    BOTH,
    Arrived,
    Faulted,
    Pairing,
    Report,
    Settled,
    Side,
    Unsure,
    must,
)
from twisted_msgproto.core.connection import WorkLost
from twisted_msgproto.core.errors import Fault
from twisted_msgproto.core.limits import Limits
from twisted_msgproto.micromsg2 import Offer, Proposal, terms
from twisted_msgproto.micromsg2.machine import Client, Server

UNLIMITED = 8
"""So many are sent at once where there is no window."""

SPACE_SIZE = 65_535


class MicroMsg2(Pairing):
    """The number of a message is forgotten when it is acknowledged."""

    OPTIONS: ClassVar = {
        "acks": ("ack", "batch-ack", "batch-ack", ""),
        "count": (1, 2, 5),
        "more": ((), ("json",), ("json", "dotnet")),
        "sent-before": (0, 65_534),
        "ack-wait": (0.0, 30.0),
    }
    # The peer that is told why goes on; that a batch was lost is said with an ERROR before the end.
    patience: ClassVar = {
        "idle-timeout": 120.0,
        "ack-timeout": 0.0,
        "failed": 0.0,
        "refused-by-peer": 0.0,
    }
    haste: ClassVar = {"handshake-timeout": 10.0}

    def __init__(self, options: Mapping[str, Any], now: float, carried: list[Any]) -> None:
        super().__init__(options, now, carried)
        offers = [Offer(name) for name in options["more"]]
        if options["acks"]:
            offers.append(Offer(options["acks"], {"max-count": str(options["count"])}))
        limits = Limits.of(terms.LIMITS).replace({"ack-wait": options["ack-wait"]})
        self.machines = {
            Side.CLIENT: Client(Proposal(optional=tuple(offers)), limits),
            Side.SERVER: Server(None, limits),
        }
        self.sent: dict[Side, deque[tuple[int, bytes]]] = {side: deque() for side in BOTH}
        for sender in BOTH:
            self._skip(sender, options["sent-before"])

    def _skip(self, sender: Side, count: int) -> None:
        """So many numbers have come and gone before: the next ones wrap soon."""
        self.machines[sender]._last_sent = count
        inbox = self.machines[sender.other]._inbox
        window = inbox.window
        inbox._last = inbox._sliced = count
        window.received = window.safe = window.acknowledged = window.marked = count

    def begin(self, now: float) -> list[tuple[Side, list[Report]]]:
        began = []
        for side, machine in self.machines.items():
            began.append((side, self.read(side, machine.connection_made(now), now)))
        self.machines[Side.CLIENT].open()
        return [*began, (Side.CLIENT, [])]

    def room(self, side: Side) -> int:
        room = self.machines[side].room
        return UNLIMITED if room is None else room

    def send(self, side: Side, bodies: list[bytes], now: float) -> list[bytes]:
        machine = self.machines[side]
        address = machine.address("orders", {"a": 1})
        numbers = machine.send_run(address, bodies, now=now)
        if machine.sending is None:
            return []
        self.sent[side] += zip(numbers, bodies, strict=True)
        return bodies

    def read(self, side: Side, events: Iterable[Any], now: float) -> list[Report]:
        reports: list[Report] = []
        for event in events:
            match event:
                case terms.MessagesReceived():
                    reports.append(Arrived(event.position, list(event.bodies)))
                case terms.MessagesAcknowledged():
                    reports.append(Settled(self._released(side, event.sequences)))
                case WorkLost():
                    reports.append(Unsure(self._released(side, event.work), everything=True))
                case Fault():
                    reports.append(Faulted(event.reason))
                case terms.ErrorReceived():
                    expected = {*self.patience, *self.haste}
                    must(event.code in expected, side, "is told", event.code, event.text)
                case terms.SessionEstablished():
                    must(self.options["acks"] in (*event.extensions, ""), event.extensions)
        return reports

    def _released(self, side: Side, numbers: list[int]) -> list[bytes]:
        released = [self.sent[side].popleft() for _ in numbers]
        must([number for number, _ in released] == numbers, side, "acknowledged", numbers)
        return [body for _, body in released]

    def in_flight(self, side: Side) -> int:
        must(not self.machines[side].counters.over_window, side, "got more than its window")
        must(not self.machines[side].counters.stray_acks, side, "got a stray ack")
        must(self.machines[side].unacknowledged <= self.window(side), "more than the window")
        return int(self.machines[side].in_flight)

    def window(self, side: Side) -> int:
        sending = self.machines[side].sending
        return 0 if sending is None else sending.limit
