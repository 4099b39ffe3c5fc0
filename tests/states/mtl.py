"""MTL: a control flow, a writing flow and a broker; connections come again under other names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import count
from typing import Any, ClassVar

from tests.states.pairs import (
    Arrived,
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
from twisted_msgproto.core.limits import Limits
from twisted_msgproto.mtl import Profile, terms
from twisted_msgproto.mtl import machine as machines
from twisted_msgproto.mtl.machine import Client, ClientFlow, Server, flows

CONTROL, DATA = machines.Channel.CONTROL, machines.Channel.DATA


class Ingest(Profile):
    """Contents are stored, and that is all."""

    name = "ingest"
    reads = False


class Both:
    """The machines of a client: its control flow and its writing flow, as one."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.control = Client(limits)
        self.flow = ClientFlow(reads=False, confirm=True, limits=limits)
        self.input_weight = 0
        self.unfinished = False
        self.gone = False

    @property
    def finished(self) -> bool:
        return self.gone or (self.control.finished and self.flow.finished)

    @property
    def deadline(self) -> float | None:
        times = [at for at in (self.control.deadline, self.flow.deadline) if at is not None]
        return min(times, default=None)

    def snapshot(self) -> dict[str, object]:
        return {**self.control.snapshot(), **self.flow.snapshot()}


class Mtl(Pairing):
    """Messages on the wire are (channel, name of the connection, frames); None: it has ended."""

    OPTIONS: ClassVar = {"window": (1, 2, 5), "half-open": (False, True)}
    both_ways = False
    stream = False
    half_close = False
    loss_ends = False

    def __init__(self, options: Mapping[str, Any], now: float, carried: list[Any]) -> None:
        super().__init__(options, now, carried)
        serials, tokens, names = count(1), count(1), count(1)
        self._serials = serials
        self.client = Both(Limits.of(terms.CLIENT_LIMITS).replace({"window": options["window"]}))
        self.server = Server(
            [Ingest()],
            random=lambda octets: next(tokens).to_bytes(octets, "big"),
            session_names=lambda: f"session-{next(names)}",
            data_port=5050,
        )
        self.machines = {Side.CLIENT: self.client, Side.SERVER: self.server}  # type: ignore[dict-item]
        self.names = {CONTROL: self._name(), DATA: self._name()}
        self.lease = 0
        self.bodies: dict[int, bytes] = {}  # by their numbers, of the flow
        self.up: list[Any] = []  # beside what the machines write: connections that have ended

    def _name(self) -> bytes:
        serial = next(self._serials)
        return flows.connection_name(b"\0" + serial.to_bytes(4, "big"), serial)

    def _change(self, channel: machines.Channel) -> None:
        """The client has another connection; the server hears of the end of the one before."""
        self.up.append((channel, self.names[channel], None))
        self.names[channel] = self._name()

    def begin(self, now: float) -> list[tuple[Side, list[Report]]]:
        self._ask(now)
        return [(Side.CLIENT, []), (Side.SERVER, [])]

    def _ask(self, now: float) -> None:
        control = self.client.control
        control.open("host", now)
        control.profile("ingest", now)
        self.lease = control.writer(("events",), "full", now)

    def room(self, side: Side) -> int:
        return 20 - self.client.flow.unsettled

    def send(self, side: Side, bodies: list[bytes], now: float) -> list[bytes]:
        contents = [("events", b"", body) for body in bodies]
        numbers = self.client.flow.send(contents, now)
        self.bodies.update(zip(numbers, bodies, strict=True))
        return bodies

    # ── frames in ───────────────────────────────────────────────────────────────────────────────

    def receive(self, side: Side, inputs: Any, now: float) -> list[Report]:
        reports: list[Report] = []
        for channel, name, frames in inputs:
            if side is Side.SERVER:
                if frames is None:
                    self.server.leaving(name)
                    events = self.server.left([name], now)
                else:
                    events = self.server.receive(machines.Arrival(channel, [[name, *frames]]), now)
            elif self.names[channel] != name:
                continue  # that connection has ended
            elif channel is CONTROL:
                events = self.client.control.receive([frames], now)
            else:
                events = self.client.flow.receive([frames], now)
            reports += self.read(side, events, now)
        return reports

    def read(self, side: Side, events: Iterable[Any], now: float) -> list[Report]:
        reports: list[Report] = []
        for event in events:
            match event:
                case machines.ContentReceived():
                    reports.append(Arrived(event.position, event.bodies, event.flow))
                case terms.ContentsConfirmed():
                    reports.append(Settled(self._released(event.numbers)))
                case terms.ContentsRefused():
                    reports.append(Refused(self._released(event.numbers)))
                case terms.LeaseGranted():
                    if event.number == self.lease:
                        self._change(DATA)
                        self.client.flow.renew(event.token, now)
                case terms.SocketDropped():
                    self._change(CONTROL)
                case terms.FlowSuspended():
                    self.client.control.renew(self.lease, now)
                case terms.FlowGivenUp():
                    reports += self._give_up(now)
                    self.lease = self.client.control.writer(("events",), "full", now)
                case terms.RequestRefused() | terms.RequestTimedOut():
                    self._ask(now)
                case WorkLost():
                    must(side is Side.CLIENT, side, "lost", event)
                    reports.append(Unsure(self._released(event.work)))
        return reports

    def _give_up(self, now: float) -> list[Report]:
        """What the flow has not settled goes on another one."""
        events = self.client.flow.lost(now)
        self.client.control.release(self.lease)
        reports = [Skipped(), *self.read(Side.CLIENT, events, now)]
        must(not self.bodies, "the flow forgot", self.bodies)
        self.client.flow = ClientFlow(reads=False, confirm=True, limits=self.client.limits)
        return reports

    def _released(self, numbers: list[int]) -> list[bytes]:
        return [self.bodies.pop(number) for number in numbers]

    # ── the calls of all machines ───────────────────────────────────────────────────────────────

    def call(self, side: Side, name: str, *arguments: Any) -> list[Report]:
        if side is Side.SERVER:
            return super().call(side, name, *arguments)
        client, now = self.client, arguments[-1]
        if name == "lost":
            if client.gone:
                return []
            client.gone = True
            client.control.lost(now)
            return self.read(side, client.flow.lost(now), now)
        if name == "ended":
            return []  # ZeroMQ tells nobody
        reports = []
        for machine in (client.control, client.flow):
            reports += self.read(side, getattr(machine, name)(*arguments), now)
        return reports

    def outputs(self, side: Side, now: float) -> Any:
        if side is Side.SERVER:
            control, data = self.server.outputs()
            down = [(CONTROL, parts[0], parts[1:]) for parts in control]
            return down + [(DATA, parts[0], parts[1:]) for parts in data]
        up, self.up = self.up, []
        up += [(CONTROL, self.names[CONTROL], frames) for frames in self.client.control.outputs()]
        up += [(DATA, self.names[DATA], frames) for frames in self.client.flow.outputs()]
        return up

    def timers(self, side: Side) -> bool:
        if side is Side.SERVER:
            return super().timers(side)
        flow, control = self.client.flow, self.client.control
        return flow.deadlines.next is not None or control.deadlines.next is not None

    def counters(self, side: Side) -> Mapping[str, int]:
        return self.server.counters if side is Side.SERVER else self.client.control.counters

    def in_flight(self, side: Side) -> int:
        in_flight = self.client.flow.snapshot()["in_flight"]
        assert isinstance(in_flight, int)
        return in_flight if side is Side.CLIENT else 0

    def window(self, side: Side) -> int:
        return int(self.options["window"])

    def cut(self, now: float) -> bool:
        """Both connections come again by themselves, and only the server hears of it."""
        before = dict(self.names)
        for channel in (CONTROL, DATA):
            self._change(channel)
        if not self.options["half-open"]:
            self.up.clear()
            for name in before.values():
                self.server.leaving(name)
            must(not self.read(Side.SERVER, self.server.left(before.values(), now), now), "late")
        return False
