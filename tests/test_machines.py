"""One contract for all machines: whatever happens to them, their deadlines tell the truth.

Each machine takes random walks: what a peer may send, what an application may ask for, what a sink
may say, pauses, ends, and time which is sometimes late.  What must hold is asked after each step.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.micromsg2 import streams
from tests.mtl.broker import OPEN, control_peer, data_peer, with_queues
from tests.sabc import sides
from tests.sabc.sides import SESSION
from twisted_msgproto.core.connection import Connection, WorkLost
from twisted_msgproto.core.errors import Fault, LimitExceeded
from twisted_msgproto.core.machine import IllegalTransition
from twisted_msgproto.lumberjack.machine import Reader, Writer
from twisted_msgproto.lumberjack.wire import frames as lumberjack
from twisted_msgproto.micromsg2.machine import Client as MicroMsg2Client
from twisted_msgproto.micromsg2.machine import Server as MicroMsg2Server
from twisted_msgproto.micromsg2.wire.frames import encode_address
from twisted_msgproto.mtl import IngestProfile, QueueProfile
from twisted_msgproto.mtl import wire as control
from twisted_msgproto.mtl.machine import Arrival, Channel, ClientFlow
from twisted_msgproto.mtl.machine import Client as MtlClient
from twisted_msgproto.mtl.machine import Server as MtlServer
from twisted_msgproto.mtl.wire import data
from twisted_msgproto.sabc.machine import Client as SabcClient
from twisted_msgproto.sabc.machine import Server as SabcServer
from twisted_msgproto.sabc.wire import Connect, Connected, Disconnect, encode_head
from twisted_msgproto.umq.machine import Client as UmqClient
from twisted_msgproto.umq.machine import Server as UmqServer
from twisted_msgproto.umq.machine.attachments import Slot

NOW = 1_000_000.0
WALKS = 60
STEPS = 60
MOMENTS = (0.0, 0.0, 0.0, 0.1, 0.6, 2.0, 7.0, 31.0, 130.0)

Verb = Callable[[Any, float], object]

REFUSED = (IllegalTransition, LimitExceeded, ValueError)
"""What a verb says which cannot be now: a caller's own fault."""


@dataclass
class Case:
    """How a machine is made at :data:`NOW`, what its peer sends, and what its caller asks for."""

    make: Callable[[], Connection[Any, Any, Any]]
    inputs: Sequence[Any]
    verbs: Sequence[Verb] = field(default_factory=tuple)
    opening: Verb | None = None  # most walks begin in a session which stands


def made(machine: Connection[Any, Any, Any]) -> Connection[Any, Any, Any]:
    machine.connection_made(NOW)
    return machine


def lumberjack_writer() -> Writer:
    return Writer(window=2, compress=0)


def write(machine: Writer, now: float) -> None:
    machine.send([b"{}", b"{}"])
    machine.flush(now)


def micromsg2_client() -> Connection[Any, Any, Any]:
    machine = MicroMsg2Client(
        streams.proposal("batch-ack:max-count=3"), streams.limits(ack_wait=20)
    )
    machine.open()
    return made(machine)


def encode(frame: Connect | Connected | Disconnect) -> bytes:
    return encode_head(frame.command, frame.headers) + b"\0"


def sabc_client() -> Connection[Any, Any, Any]:
    machine = SabcClient()
    machine.connect("me", now=NOW)
    return machine


def umq_client() -> Connection[Any, Any, Any]:
    machine = UmqClient(None, NOW)
    machine.hello()
    return machine


def umq(verb: Callable[[Any], object]) -> Verb:
    def at(machine: Any, now: float) -> None:
        machine.clock = now
        verb(machine)

    return at


def mtl_server() -> MtlServer:
    return MtlServer(
        [with_queues(QueueProfile()), IngestProfile()],
        random=lambda count: bytes(count),  # every lease has one token, which may be shown
        session_names=lambda: "session",
        mechanisms=["PLAIN"],
    )


def asked(command: str, **body: object) -> Arrival:
    frames = [b"", f"Connection.{command}".encode(), control.json.dumps(body).encode()]
    return Arrival(Channel.CONTROL, [[control_peer(1), *frames]])


def written(*commands: Any) -> Arrival:
    messages = [[data_peer(1), *data.encode(command)] for command in commands]
    return Arrival(Channel.DATA, messages)


def replied(code: int, **body: object) -> list[list[bytes]]:
    return [[b"", *control.encode_reply(code, **body)]]


def opened(*steps: Any) -> Verb:
    def open_session(machine: Any, now: float) -> None:
        for step in steps:
            if callable(step):
                step(machine, now)
            else:
                machine.receive(step, now)
            machine.outputs()

    return open_session


def on_session(verb: str, *arguments: Any) -> Verb:
    def say(machine: Any, now: float) -> None:
        for session in machine.sessions():
            getattr(machine, verb)(session, *arguments, now)

    return say


def summoned(machine: Any, now: float) -> None:
    machine.summon("a", now)


SABC = [
    sides.msg(b"x", msg_id="1"),
    sides.msg(b"x", msg_id="2", final=False, msg_more="yes") + sides.NUDGE,
    sides.msg(b"yes", ref_msg_id="1"),
    sides.msg(b"x", msg_id="3", send_only="yes"),
]
UMQ = ["C1:x", "A2:C2:y", b"1", "-:lost", "R1:z", "E1:no", "A1:T5:u", "D5", "S:a=b"]
MTL = [data.Response(n, code) for n in (1, 2, 3, 4) for code in (200, 403)]

CASES = {
    "lumberjack-reader": Case(
        lambda: made(Reader()),
        [
            lumberjack.encode_window(2),
            lumberjack.encode_json([1], [b"{}"]),
            lumberjack.encode_data_around([1], [lumberjack.encode_pairs({"a": "b"})]),
            lumberjack.encode_json([1], [b"{}"])[:7],
        ],
    ),
    "lumberjack-writer": Case(
        lumberjack_writer, [lumberjack.encode_ack(n) for n in (0, 1, 2)], [write]
    ),
    "micromsg2-server": Case(
        lambda: made(MicroMsg2Server(limits=streams.limits(ack_wait=20))),
        [
            streams.handshake("batch-ack:max-count=3"),
            streams.message(1),
            streams.message(2, continued=True),
            streams.message(2)[:5],
            streams.ack(1),
        ],
        [lambda m, now: m.send_run(encode_address("a"), [b"x"], now=now)],
        opened(*[streams.handshake("batch-ack:max-count=3")] * 2),
    ),
    "micromsg2-client": Case(
        micromsg2_client,
        [streams.handshake("batch-ack:max-count=3"), streams.message(1), streams.ack(1)],
        [lambda m, now: m.send_run(encode_address("a"), [b"x"], now=now)],
    ),
    "sabc-server": Case(
        lambda: made(SabcServer()),
        [
            encode(Connect({"client-id": "me"})),
            *SABC,
            encode(Disconnect({"session-id": SESSION})),
        ],
        [
            lambda m, now: m.accept(SESSION, expires=now + 60),
            lambda m, now: m.reject(now),
            lambda m, now: m.request(b"x", None, now),
            lambda m, now: m.answer("1", b"y"),
        ],
        opened(encode(Connect({"client-id": "me"})), lambda m, now: m.accept(SESSION)),
    ),
    "sabc-client": Case(
        sabc_client,
        [encode(Connected({"session-id": SESSION})), *SABC],
        [lambda m, now: m.request(b"x", None, now, seconds=3.0), lambda m, now: m.disconnect(now)],
        opened(encode(Connected({"session-id": SESSION}))),
    ),
    "umq-server": Case(
        lambda: UmqServer(None, NOW),
        [["H1:"], *([message] for message in UMQ)],
        [
            umq(lambda m: m.welcome()),
            umq(lambda m: m.result("1", "x")),
            umq(lambda m: m.call("x", deadline=m.clock + 5)),
        ],
        opened(["H1:"], umq(lambda m: m.welcome())),
    ),
    "umq-client": Case(
        umq_client,
        [["W1:"], UMQ[:3], *([message] for message in UMQ)],
        [
            umq(lambda m: m.call("x", [Slot()], deadline=m.clock + 5)),
            umq(lambda m: m.unsubscribe(m.subscribe())),
        ],
        opened(["W1:"], umq(lambda m: m.accept(m.clock))),
    ),
    "mtl-server": Case(
        mtl_server,
        [
            asked("Open", **OPEN),
            asked("Authorize", mechanism="PLAIN", response=""),
            asked("Profile", profile="queue"),
            asked("Writer", resources=["a"], confirm="full"),
            asked("Reader", resources=["a"], confirm="none"),
            written(data.Lease(1, "0" * 40)),
            written(*(data.Content(n, "a", body=b"x") for n in range(2, 5))),
            written(data.Summon(2, "a"), data.Pong()),
        ],
        [on_session("authorize", None), on_session("refuse"), on_session("withdraw")],
        opened(
            asked("Open", **OPEN),
            asked("Authorize", mechanism="PLAIN", response=""),
            on_session("authorize", None),
            asked("Profile", profile="queue"),
            asked("Writer", resources=["a"], confirm="full"),
            written(data.Lease(1, "0" * 40)),
        ),
    ),
    "mtl-client": Case(
        MtlClient,
        [
            replied(201, profiles=["queue"]),
            replied(200),
            replied(202, port=5050, lease="0" * 40),
            replied(401, mechanisms=["PLAIN"]),
            replied(403, reason="no"),
        ],
        [
            lambda m, now: m.open("host", now),
            lambda m, now: m.profile("queue", now),
            lambda m, now: m.reader(["a"], "full", now),
            lambda m, now: m.authorize(lambda names: None, now),
        ],
    ),
    "mtl-flow": Case(
        lambda: ClientFlow(reads=True, confirm=True),
        [[data.encode(c)] for c in (*MTL, data.Content(1, "a"), data.Ping(), data.Pong())],
        [lambda m, now: m.renew("lease", now), summoned],
    ),
}
"""Both sides of five protocols, and the data flow of an MTL client, which is a machine too."""


class Walk:
    """One machine, its clock, and the places which its sink has not answered yet."""

    def __init__(self, case: Case, seed: int) -> None:
        self.case = case
        self.source = random.Random(seed)
        self.machine = case.make()
        self.now = NOW
        self.positions: list[Any] = []
        self.events = self.placed = self.faults = 0
        if case.opening is not None and self.source.random() < 0.8:
            case.opening(self.machine, NOW)
        self.armed = 0  # steps after which there was a deadline

    def heard(self, events: Sequence[Any]) -> None:
        self.events += len(events)
        for event in events:
            position = getattr(event, "position", None)
            if position is not None:
                self.positions.append(position)
                self.placed += 1
        assert all(type(event) is not WorkLost for event in events)
        faults = [event for event in events if isinstance(event, Fault)]
        assert faults in ([], list(events[-1:]))
        self.faults += len(faults)
        assert self.faults <= 1

    def let_time_pass(self) -> None:
        machine, until = self.machine, self.now + self.source.choice(MOMENTS)
        if self.source.random() < 0.2:
            self.now = until
        while (deadline := machine.deadline) is not None and deadline <= until:
            self.now = max(self.now, deadline)
            self.heard(machine.advance(self.now))
            machine.outputs()
            # Progress: what was due is not due again.
            assert machine.deadline is None or machine.deadline > self.now
        self.now = until

    def step(self) -> None:
        machine, now, source = self.machine, self.now, self.source
        what = source.random()
        if what < 0.5:
            self.heard(machine.receive(source.choice(self.case.inputs), now))
        elif what < 0.7 and self.case.verbs:
            with contextlib.suppress(REFUSED):
                source.choice(self.case.verbs)(machine, now)
        elif what < 0.85 and self.positions:
            say = machine.made_safe if source.random() < 0.9 else machine.not_safe
            try:
                self.heard(say(self.positions.pop(source.randrange(len(self.positions))), now))
            except ValueError:
                assert machine.finished  # it does not know of it any more
        elif what < 0.9:
            machine.paused(now)
        elif what < 0.97:
            machine.resumed(now)
        elif what < 0.98 and not machine.finished:
            machine.drain(now)
        elif what < 0.99 and not machine.finished:
            machine.ended(now)
        machine.outputs()
        assert machine.deadline is None or machine.deadline >= now or machine.unfinished

    def on(self) -> None:
        """Until there is nothing more to do: then the caller closes the connection."""
        for _ in range(STEPS):
            if self.machine.finished:
                break
            self.let_time_pass()
            self.step()
            self.armed += self.machine.deadline is not None

    def end(self) -> None:
        machine, now = self.machine, self.now
        assert all(type(event) is WorkLost or event for event in machine.lost(now))
        assert machine.finished
        for later in (now, now + 1e6):
            assert machine.deadline is None
            assert machine.deadlines.next is None
            assert machine.advance(later) == []
            assert not any(machine.outputs())
        assert machine.lost(now) == []
        assert isinstance(machine.snapshot(), dict)


@pytest.mark.parametrize("name", CASES)
def test_deadlines_tell_the_truth_in_any_life(name: str) -> None:
    """HO-26 and the contract: no deadline in the past, none twice, none after the end."""
    armed = events = told = 0
    for seed in range(WALKS):
        walk = Walk(CASES[name], seed)
        try:
            walk.on()
            told += walk.placed + walk.faults
            walk.end()
        except Exception as error:
            error.add_note(f"{name}, seed {seed}")
            raise
        armed += walk.armed
        events += walk.events
    assert armed > WALKS
    assert events > WALKS
    assert told or name in ("mtl-client", "mtl-flow")
