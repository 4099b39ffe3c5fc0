"""A small protocol for tests of the link: lines in, ``ok`` out."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.logger import Logger, LogLevel, formatEvent, globalLogPublisher
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from twisted_msgproto import IMessageSink, MessageBatch
from twisted_msgproto.core.connection import Connection, WorkLost
from twisted_msgproto.core.deadlines import Deadlines
from twisted_msgproto.core.errors import Fault
from twisted_msgproto.extend import MsgprotoServerFactory
from twisted_msgproto.net import Session
from twisted_msgproto.net.session import SessionLink


@dataclass
class LineReceived:
    body: bytes
    position: int


@dataclass
class Answered:
    body: bytes


@dataclass(slots=True)
class LineCounters:
    lines: int = 0


class LineMachine(Connection[bytes, bytes, Any]):
    """A line is acknowledged when it is safe; ``?`` asks us for nothing, ``!`` is a fault.

    At most ``slice_lines`` are read in one call.  A line ``=x`` answers a question of ours.
    """

    slice_lines = 3

    def __init__(self) -> None:
        self.deadlines = Deadlines()
        self.counters = LineCounters()
        self.ending = False
        self.closed = False
        self.rest = b""
        self.open: list[int] = []
        self.out: list[bytes] = []
        self.asked = 0

    def receive(self, inputs: bytes, now: float) -> list[Any]:
        events: list[Any] = []
        self.rest += inputs
        for _ in range(self.slice_lines):
            if b"\n" not in self.rest or self.closed or self.ending:
                break
            line, self.rest = self.rest.split(b"\n", 1)
            if line == b"!":
                self.closed = True
                self.out.append(b"bad\n")
                events.append(Fault("shout", "a line '!'", line))
            elif line.startswith(b"="):
                self.asked -= 1
                events.append(Answered(line[1:]))
            else:
                self.counters.lines += 1
                self.open.append(self.counters.lines)
                events.append(LineReceived(line, self.counters.lines))
        self.deadlines.set("idle", now + 60)
        return events

    def made_safe(self, position: Any, now: float) -> list[Any]:
        self.open.remove(position)
        self.out.append(b"ok %d\n" % position)
        return []

    def not_safe(self, position: Any, now: float) -> list[Any]:
        self.open.remove(position)
        self.out.append(b"lost %d\n" % position)
        return self.drain(now)

    def idle(self, now: float, events: list[Any]) -> None:
        self.closed = True

    timely: ClassVar = {"idle": idle}

    def drain(self, now: float) -> list[Any]:
        self.ending = True
        return []

    def lost(self, now: float) -> list[Any]:
        self.closed = True
        self.deadlines.clear_all()
        work, self.asked = list(range(self.asked)), 0
        return [WorkLost(work)] if work else []

    def outputs(self) -> bytes:
        out, self.out = b"".join(self.out), []
        return out

    @property
    def unfinished(self) -> bool:
        return b"\n" in self.rest and not self.closed and not self.ending

    @property
    def finished(self) -> bool:
        return self.closed or (self.ending and not self.open)

    @property
    def input_weight(self) -> int:
        return len(self.rest)

    @property
    def state(self) -> str:
        return "closed" if self.closed else "ending" if self.ending else "open"

    def snapshot(self) -> dict[str, object]:
        return {"state": self.state}


class LineLink(SessionLink):
    log = Logger(namespace="twisted_msgproto.lines")
    machine: LineMachine
    lost: list[Any]

    def makeMachine(self) -> LineMachine:
        self.lost = []
        self.answers_seen: list[bytes] = []
        return LineMachine()

    def transportSecured(self) -> None:
        self.establish()

    def workLost(self, work: list[Any], reason: Any) -> None:
        self.lost += work

    def ask(self) -> None:
        self.machine.asked += 1
        self.machine.out.append(b"?\n")
        self._settle()

    def _deliver(self, event: LineReceived) -> None:
        batch = MessageBatch(
            "lines", "line", 0, self.peer, self.session, None, 1, len(event.body), body=[event.body]
        )
        self.deliver(batch, event.position)

    def _answered(self, event: Answered) -> None:
        self.answers_seen.append(event.body)

    answerEvents = frozenset({Answered})
    actions: ClassVar[Mapping[type, Any]] = {
        Fault: SessionLink.peerFaulted,
        LineReceived: _deliver,
        Answered: _answered,
    }


class LineServer(Session, link=LineLink):
    """Only hooks."""


@implementer(IMessageSink)
class Sink:
    def __init__(self, held: bool = False) -> None:
        self.held = held
        self.bodies: list[bytes] = []
        self.waiting: list[Deferred[Any]] = []

    def put(self, batch: MessageBatch) -> Any:
        assert batch.body is not None
        self.bodies += batch.body
        waiting: Deferred[Any] = Deferred()
        if self.held:
            self.waiting.append(waiting)
        else:
            waiting.callback(None)
        return waiting


class Writes(StringTransport):
    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.aborted = False

    def write(self, data: bytes) -> None:
        super().write(data)
        self.writes.append(data)

    def abortConnection(self) -> None:
        self.aborted = True


class MsgprotoServerFactoryOfLines(MsgprotoServerFactory):
    protocolName = "lines"
    protocol = LineServer  # type: ignore[assignment]


class LinkCase(SynchronousTestCase):
    """Makes one link over a transport in memory, and keeps what is logged of it."""

    def link(
        self, sink: Any = None, transport: Writes | None = None, **hooks: Any
    ) -> tuple[Any, Writes]:
        self.clock = Clock()
        self.factory = MsgprotoServerFactoryOfLines(sink or Sink(), clock=self.clock)
        ours = {name: hooks.pop(name) for name in list(hooks) if hasattr(LineLink, name)}
        link = type("Link", (LineLink,), ours)
        base = types.new_class("Base", (LineServer,), {"link": link})
        server: Any = type("Server", (base,), hooks)()
        server.factory = self.factory
        transport = transport or Writes()
        self.logged: list[str] = []
        self.tracebacks = 0
        globalLogPublisher.addObserver(self.observe)
        self.addCleanup(globalLogPublisher.removeObserver, self.observe)
        server.makeConnection(transport)
        self.server, self.transport = server, transport
        self.addCleanup(self.lose)
        return server.link, transport

    def observe(self, event: Any) -> None:
        if "peer" in event:
            if event["log_level"] >= LogLevel.warn:
                self.logged.append(formatEvent(event))
            self.tracebacks += event.get("log_failure") is not None

    def lose(self) -> None:
        from twisted.internet.error import ConnectionLost

        server, self.server = self.server, None
        if server is not None:
            server.connectionLost(Failure(ConnectionLost()))
        self.assertEqual(self.clock.getDelayedCalls(), [])
