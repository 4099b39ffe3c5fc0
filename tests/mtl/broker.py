"""A broker's machine with its hands on the table: requests, commands and what comes back."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterable, Sequence
from typing import Any

from twisted.internet.task import Clock

from twisted_msgproto.core.limits import Limits
from twisted_msgproto.mtl import (
    IngestProfile,
    Profile,
    QueueProfile,
    TestProfile,
    machine,
    terms,
)
from twisted_msgproto.mtl.machine import Server, flows
from twisted_msgproto.mtl.wire import data
from twisted_msgproto.net.broker import ServedBroker

# The words of MTL's machines, for all tests of them.
Arrival, Channel = machine.Arrival, machine.Channel
Peer, connection_name = flows.Peer, flows.connection_name
Confirm, Content, Dismiss = data.Confirm, data.Content, data.Dismiss
Lease, Ping, Pong = data.Lease, data.Ping, data.Pong
Reject, Response, Summon = data.Reject, data.Response, data.Summon
DataCommand = data.DataCommand

CLIENT_LIMITS = Limits.of(terms.CLIENT_LIMITS)
SERVER_LIMITS = Limits.of(terms.SERVER_LIMITS)

OPEN = {"protocol": {"name": "MTL", "version": 1}, "virtual-host": "host"}
FULL, NONE = "full", "none"


def control_peer(number: int) -> bytes:
    return connection_name(b"\0C" + number.to_bytes(3, "big"), number)


def data_peer(number: int) -> bytes:
    return connection_name(b"\0D" + number.to_bytes(3, "big"), 1_000_000 + number)


def with_queues(profile: Profile, limits: Limits = SERVER_LIMITS) -> Profile:
    """The profile, which has queues now if it wants any."""
    if isinstance(profile, QueueProfile):
        profile.serve(ServedBroker(Clock(), limits, wallClock=lambda: 0.0))
    return profile


class Broker:
    """A :class:`Server` with a clock of its own.

    ``events`` keeps every event; what was sent to a peer is taken with ``to(peer)``.
    """

    def __init__(
        self,
        profiles: Sequence[Profile] | None = None,
        *,
        mechanisms: Sequence[str] = (),
        limits: dict[str, object] | None = None,
        **options: Any,
    ) -> None:
        self.limits = SERVER_LIMITS.replace(limits or {})
        if profiles is None:
            profiles = [TestProfile(), QueueProfile(), IngestProfile()]
        profiles = [with_queues(profile, self.limits) for profile in profiles]
        names = itertools.count(1)
        self.server = Server(
            profiles,
            self.limits,
            random=random.Random(7).randbytes,
            session_names=lambda: f"session-{next(names)}",
            mechanisms=mechanisms,
            data_port=5050,
            **options,
        )
        self.now = 1000.0
        self.events: list[machine.ServerEvent] = []
        self.sent: dict[bytes, list[list[bytes]]] = {}
        self.known: dict[bytes, Peer] = {}
        self._peers = itertools.count(1)

    def collect(self, found: Sequence[machine.ServerEvent] = ()) -> list[machine.ServerEvent]:
        self.events += found
        for messages in self.server.outputs():
            for peer, *frames in messages:
                self.sent.setdefault(peer, []).append(frames)
        return list(found)

    def receive(self, channel: Channel, *messages: list[bytes]) -> list[machine.ServerEvent]:
        return self.collect(self.server.receive(Arrival(channel, messages, self.known), self.now))

    def leave(self, *peers: bytes) -> list[machine.ServerEvent]:
        """These connections end, and there was nothing more to read of them."""
        for peer in peers:
            self.server.leaving(peer)
        return self.collect(self.server.left(peers, self.now))

    def to(self, peer: bytes) -> list[list[bytes]]:
        return self.sent.pop(peer, [])

    # ── control ─────────────────────────────────────────────────────────────────────────────────

    def ask_raw(self, peer: bytes, *frames: bytes) -> list[list[bytes]]:
        self.receive(Channel.CONTROL, [peer, *frames])
        return self.to(peer)

    def ask(self, peer: bytes, command: str, body: object) -> tuple[int, dict[str, Any]]:
        text = json.dumps(body).encode()
        ((empty, code, reply),) = self.ask_raw(peer, b"", f"Connection.{command}".encode(), text)
        assert empty == b""
        return int(code), json.loads(reply)

    def session(self, profile: str | None = "queue", host: str = "host") -> bytes:
        """A control peer whose session is ready, with a profile."""
        peer = control_peer(next(self._peers))
        assert self.ask(peer, "Open", {**OPEN, "virtual-host": host})[0] == 201
        if profile is not None:
            assert self.ask(peer, "Profile", {"profile": profile})[0] == 200
        return peer

    def lease(
        self, peer: bytes, way: str, resources: Sequence[str] = ("a",), confirm: str = FULL
    ) -> str:
        code, body = self.ask(peer, way, {"resources": list(resources), "confirm": confirm})
        assert (code, body["port"]) == (202, 5050), body
        return str(body["lease"])

    # ── data ────────────────────────────────────────────────────────────────────────────────────

    def command(self, peer: bytes, *commands: data.DataCommand) -> list[data.DataCommand]:
        """Send commands in one read; what came back to that peer."""
        self.receive(Channel.DATA, *([peer, *data.encode(command)] for command in commands))
        return self.got(peer)

    def got(self, peer: bytes) -> list[data.DataCommand]:
        return [data.decode(*frames) for frames in self.to(peer)]

    def connect(self, token: str) -> bytes:
        """A data peer which has shown this lease."""
        peer = self.shows(token)
        assert self.got(peer) == [Response(1, 200)]
        return peer

    def shows(self, token: str) -> bytes:
        """A data peer which shows this lease, whatever it is good for."""
        peer = data_peer(next(self._peers))
        self.receive(Channel.DATA, [peer, *data.encode(Lease(1, token))])
        return peer

    def flow(
        self,
        way: str,
        resources: Sequence[str] = ("a",),
        confirm: str = FULL,
        profile: str = "queue",
        host: str = "host",
    ) -> bytes:
        """A data peer which reads or writes, in a session of its own."""
        return self.connect(self.lease(self.session(profile, host), way, resources, confirm))

    def reader(self, resource: str = "a", confirm: str = FULL, **more: Any) -> bytes:
        """A data peer which has summoned ``resource``; what it got at once is taken."""
        peer = self.flow("Reader", (resource,), confirm, **more)
        assert data.Response(2, 200) in self.command(peer, data.Summon(2, resource))
        return peer

    # ── time and the sink ───────────────────────────────────────────────────────────────────────

    def wait(self, seconds: float) -> float | None:
        """Let time pass, calling ``tick`` as it asks for."""
        end, due = self.now + seconds, self._tick()
        while due is not None and due <= end:
            self.now = due
            due = self._tick()
        self.now = end
        return self._tick()

    def _tick(self) -> float | None:
        self.collect(self.server.advance(self.now))
        return self.server.deadline

    def safe(self, event: Any, safe: bool = True) -> None:
        say = self.server.made_safe if safe else self.server.not_safe
        self.collect(say(event.position, self.now))

    @property
    def dropped(self) -> dict[str, int]:
        prefix = "dropped:"
        return {
            name.removeprefix(prefix): count
            for name, count in self.server.counters.items()
            if name.startswith(prefix)
        }


def contents(*sequences: int, resource: str = "a") -> list[data.DataCommand]:
    return [data.Content(number, resource, body=b"%d" % number) for number in sequences]


def bodies(commands: Sequence[data.DataCommand]) -> list[bytes]:
    return [command.body for command in commands if isinstance(command, data.Content)]


def write(broker: Broker, *numbers: int, resource: str = "a", safe: bool = True) -> bytes:
    """A writer which has sent contents of these bodies, made safe."""
    writer = broker.flow("Writer", [resource])
    broker.command(writer, *contents(*numbers, resource=resource))
    if safe:
        broker.safe(broker.events[-1])
    broker.got(writer)
    return writer


def settled(got: Sequence[DataCommand], sent: Iterable[int]) -> dict[int, type]:
    """Sequence → what has settled it first."""
    found: dict[int, type] = {}
    for command in got:
        if isinstance(command, Confirm | Reject):
            for number in sent:
                if number == command.sequence or (command.multiple and number < command.sequence):
                    found.setdefault(number, type(command))
    return found


def store(broker: Broker) -> set[bytes]:
    """The sink has all that it was given."""
    told = [event for event in broker.events if isinstance(event, machine.ContentReceived)]
    for event in told:
        broker.safe(event)
    broker.events.clear()
    return {body for event in told for body in event.bodies}
