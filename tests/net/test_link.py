"""What the link does for every protocol, seen with a small one: lines in, ``ok`` out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from twisted.internet.defer import Deferred, fail
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.logger import Logger, LogLevel, formatEvent, globalLogPublisher
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from twisted_msgproto.core.connection import Connection, WorkLost
from twisted_msgproto.core.deadlines import Deadlines
from twisted_msgproto.core.errors import Fault, ProtocolViolation, QueueError, TimedOut
from twisted_msgproto.core.message import MessageBatch
from twisted_msgproto.net.factory import MsgprotoServerFactory
from twisted_msgproto.net.link import FIRST_READ_OCTETS, PARTIAL_READ_OCTETS, READ_OCTETS_MIN
from twisted_msgproto.net.session import Session
from twisted_msgproto.net.sink import IMessageSink
from twisted_msgproto.net.turns import TURN_SECONDS


@dataclass
class LineReceived:
    body: bytes
    place: int


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
        self.fault: Fault | None = None
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
                self.fault = Fault("shout", "a line '!'", line)
                self.closed = True
                self.out.append(b"bad\n")
                events.append(self.fault)
            elif line.startswith(b"="):
                self.asked -= 1
                events.append(Answered(line[1:]))
            else:
                self.counters.lines += 1
                self.open.append(self.counters.lines)
                events.append(LineReceived(line, self.counters.lines))
        self.deadlines.set("idle", now + 60)
        return events

    def made_safe(self, place: Any, now: float) -> list[Any]:
        self.open.remove(place)
        self.out.append(b"ok %d\n" % place)
        return []

    def not_safe(self, place: Any, now: float) -> list[Any]:
        self.open.remove(place)
        self.out.append(b"lost %d\n" % place)
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
    def held(self) -> int:
        return len(self.rest)

    @property
    def state(self) -> str:
        return "ending" if self.ending else "open"

    def snapshot(self) -> dict[str, object]:
        return {"state": self.state}


class LineServer(Session):
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
        self.deliver(batch, event.place)

    def _answered(self, event: Answered) -> None:
        self.answers_seen.append(event.body)

    answerEvents = frozenset({Answered})
    actions: ClassVar[Mapping[type, Any]] = {
        Fault: Session.peerFaulted,
        LineReceived: _deliver,
        Answered: _answered,
    }


@implementer(IMessageSink)
class Sink:
    """Safe at once, or when the test says so."""

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
    """A transport which keeps its writes apart."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.aborted = False

    def write(self, data: bytes) -> None:
        super().write(data)
        self.writes.append(data)

    def abortConnection(self) -> None:
        self.aborted = True


class Links(SynchronousTestCase):
    def link(self, sink: Any = None, **hooks: Any) -> tuple[Any, Writes]:
        self.clock = Clock()
        self.factory = MsgprotoServerFactoryOfLines(sink or Sink(), clock=self.clock)
        server: Any = type("Server", (LineServer,), hooks)()
        server.factory = self.factory
        transport = Writes()
        self.logged: list[str] = []
        self.tracebacks = 0
        globalLogPublisher.addObserver(self.observe)
        self.addCleanup(globalLogPublisher.removeObserver, self.observe)
        server.makeConnection(transport)
        self.server, self.transport = server, transport
        return server, transport

    def observe(self, event: Any) -> None:
        if "peer" in event:
            if event["log_level"] >= LogLevel.warn:
                self.logged.append(formatEvent(event))
            self.tracebacks += event.get("log_failure") is not None

    def lose(self) -> None:
        from twisted.internet.error import ConnectionLost

        self.server.connectionLost(Failure(ConnectionLost()))
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_all_that_one_read_leads_to_leaves_in_one_write(self) -> None:
        server, transport = self.link()
        server.dataReceived(b"a\nb\nc\n")
        self.assertEqual(transport.writes, [b"ok 1\nok 2\nok 3\n"])
        self.lose()

    def test_what_is_safe_later_is_acknowledged_later_in_any_order(self) -> None:
        sink = Sink(held=True)
        server, transport = self.link(sink)
        server.dataReceived(b"a\nb\n")
        self.assertEqual(transport.writes, [])
        sink.waiting[1].callback(None)
        sink.waiting[0].callback(None)
        self.assertEqual(transport.writes, [b"ok 2\n", b"ok 1\n"])
        self.lose()

    def test_one_turn_reads_a_slice_and_reading_pauses_until_all_is_read(self) -> None:
        """NB-07"""
        server, transport = self.link()
        server.dataReceived(b"x\n" * 7)
        self.assertEqual(transport.value(), b"ok 1\nok 2\nok 3\n")
        self.assertEqual(transport.producerState, "paused")
        self.assertEqual(len(transport.writes), 1)
        self.clock.advance(0)
        self.assertEqual(len(transport.writes), 3)
        self.assertEqual(transport.value().count(b"ok"), 7)
        self.assertEqual(transport.producerState, "producing")
        self.lose()

    def test_slow_input_is_read_in_smaller_pieces_and_quick_input_in_larger_ones(self) -> None:
        """NB-07: a turn is bounded by the time that the octets take, whatever they are."""
        server, transport = self.link(readOctets=256 << 10)
        took = 1e-6

        class Timed(LineMachine):
            def receive(machine, inputs: bytes, now: float) -> list[Any]:
                self.clock.rightNow += took * len(inputs)
                return []

        server.machine = Timed()
        sizes = []

        def read() -> int:
            """What the transport would return, if the peer sends as fast as it can."""
            sizes.append(transport.bufferSize)
            server.dataReceived(bytes(transport.bufferSize))
            return int(transport.bufferSize)

        self.assertEqual(transport.bufferSize, FIRST_READ_OCTETS)
        took = 1e-9
        while read() != sizes[-1]:
            pass
        self.assertEqual(sizes[-1], 256 << 10)
        server.dataReceived(bytes(4000))
        took = 1e-6
        server.dataReceived(bytes(20_000))  # less than one read may return, and slow all the same
        for _ in range(5):
            self.assertLessEqual(read() * took, TURN_SECONDS)
        took = 1e-9
        while read() != sizes[-1]:
            pass
        self.assertEqual(sizes[-1], 256 << 10)
        took = 1.0
        self.assertEqual((read(), read()), (READ_OCTETS_MIN, READ_OCTETS_MIN))
        self.lose()

    def test_a_message_that_does_not_end_is_read_in_smaller_pieces(self) -> None:
        """NB-02: a thousand of them would bring a gigabyte in one turn."""
        server, transport = self.link(readOctets=256 << 10)
        for _ in range(20):
            server.dataReceived(bytes(transport.bufferSize))
            self.assertLessEqual(transport.bufferSize, PARTIAL_READ_OCTETS)
        self.assertEqual(transport.bufferSize, PARTIAL_READ_OCTETS)
        server.dataReceived(b"\n")
        for _ in range(4):
            server.dataReceived(b"line\n" * (transport.bufferSize // 5 + 1))
        self.assertEqual(transport.bufferSize, 256 << 10)
        while server.machine.unfinished:
            self.clock.advance(0)
        server.dataReceived(bytes(transport.bufferSize))
        self.assertEqual(transport.bufferSize, PARTIAL_READ_OCTETS)
        self.lose()

    def test_what_fails_in_a_later_turn_ends_the_connection_too(self) -> None:
        server, transport = self.link()
        deliver = server.deliver

        def fails(batch: MessageBatch, place: Any) -> None:
            if batch.body == [b"e"]:
                raise RuntimeError("in a later turn")
            deliver(batch, place)

        server.deliver = fails
        server.dataReceived(b"a\nb\nc\nd\ne\nf\n")
        self.assertFalse(transport.aborted)
        self.clock.advance(0)
        self.assertTrue(transport.aborted)
        self.assertEqual(self.tracebacks, 1)
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)
        self.lose()

    def test_what_fails_when_the_sink_answers_later_ends_the_connection_too(self) -> None:
        sink = Sink(held=True)
        server, transport = self.link(sink)
        server.dataReceived(b"a\n")

        def fails(octets: bytes) -> None:
            raise RuntimeError("when the sink has answered")

        server._write = fails
        sink.waiting[0].callback(None)
        self.assertTrue(transport.aborted)
        self.assertEqual(self.tracebacks, 1)
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)
        self.lose()

    def test_a_half_closed_connection_is_read_to_its_end_and_answered(self) -> None:
        """HO-06"""
        sink = Sink(held=True)
        server, transport = self.link(sink)
        server.dataReceived(b"x\n" * 7)
        server.readConnectionLost()
        self.assertFalse(transport.disconnecting)
        self.clock.advance(0)
        self.assertFalse(transport.disconnecting)
        for waiting in sink.waiting:
            waiting.callback(None)
        self.assertEqual(transport.value().count(b"ok"), 7)
        self.assertTrue(transport.disconnecting)
        self.lose()

    def test_a_fault_is_a_line_a_counter_and_the_machines_last_words(self) -> None:
        server, transport = self.link()
        server.dataReceived(b"a\n")
        server.dataReceived(b"!\nb\n")
        self.assertEqual(transport.value(), b"ok 1\nbad\n")
        self.assertTrue(transport.disconnecting)
        self.assertEqual(
            [line.partition(": ")[2] for line in self.logged],
            ["closed: a line '!' (starts with 21)"],
        )
        self.assertEqual(self.factory.counters["fault:shout"], 1)
        server.dataReceived(b"c\n")
        self.assertEqual(self.factory.sink.bodies, [b"a"])
        self.lose()

    def test_a_disks_error_is_one_line_and_nothing_behind_it_is_kept(self) -> None:
        """HO-27: of one read, and of what comes after it."""
        seen: list[Any] = []

        def batchReceived(self: Any, batch: MessageBatch) -> Any:
            seen.append(batch)
            return fail(QueueError("the disk is broken"))

        server, transport = self.link(batchReceived=batchReceived)
        server.dataReceived(b"a\nb\n")
        server.dataReceived(b"c\n")
        self.assertEqual(len(seen), 1)
        self.assertEqual(
            [line.partition(": ")[2] for line in self.logged],
            ["not acknowledged: the disk is broken"],
        )
        self.assertEqual(self.tracebacks, 0)
        self.assertEqual(self.factory.counters["unsafe_batches"], 1)
        self.assertEqual(transport.value(), b"lost 1\n")
        self.lose()

    def test_a_hook_which_raises_is_an_error_in_code_with_its_traceback(self) -> None:
        def batchReceived(self: Any, batch: MessageBatch) -> Any:
            raise ZeroDivisionError

        server, _ = self.link(batchReceived=batchReceived)
        server.dataReceived(b"a\n")
        self.assertEqual(self.tracebacks, 1)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.lose()

    def test_a_server_which_stops_acknowledges_what_came_and_reads_no_more(self) -> None:
        sink = Sink(held=True)
        server, transport = self.link(sink)
        server.dataReceived(b"a\n")
        stopped = self.factory.drain()
        self.assertEqual(transport.producerState, "paused")
        server.dataReceived(b"b\n")
        sink.waiting[0].callback(None)
        self.assertEqual(transport.value(), b"ok 1\n")
        self.assertTrue(transport.disconnecting)
        self.assertNoResult(stopped)
        self.lose()
        self.successResultOf(stopped)

    def test_one_timer_follows_the_machines_deadline(self) -> None:
        server, transport = self.link()
        server.dataReceived(b"a\n")
        self.clock.advance(59)
        server.dataReceived(b"b\n")
        self.clock.advance(59)
        self.assertFalse(transport.disconnecting)
        self.clock.advance(1)
        self.assertTrue(transport.disconnecting)
        self.lose()

    def test_what_was_not_answered_is_told_once_at_the_end(self) -> None:
        server, _ = self.link()
        server.ask()
        server.ask()
        server.dataReceived(b"=yes\n")
        self.lose()
        self.assertEqual((server.answers_seen, server.lost), ([b"yes"], [0]))

    def test_who_does_not_read_is_a_line_and_a_counter_and_is_cut_off(self) -> None:
        """HO-27"""
        _, transport = self.link()
        transport.producer.pauseProducing()
        self.assertEqual(transport.producerState, "paused")
        self.clock.advance(30)
        self.assertTrue(transport.aborted)
        self.assertEqual(self.factory.counters["fault:unread"], 1)
        self.assertIn("does not read", self.logged[0])
        self.lose()

    def test_who_is_cut_off_while_memory_is_short_is_told_of_once(self) -> None:
        """NB-02: a line with the option, a counter, and a reason for those who wait."""
        server, transport = self.link()
        server.cutOff(5000, 4096.0)
        server.cutOff(6000, 4096.0)
        self.assertTrue(transport.aborted)
        self.assertEqual(len(self.logged), 1)
        self.assertRegex(self.logged[0], "cut off: 5000 octets .* process-held-octets is 4096")
        self.assertEqual(self.factory.counters["fault:process-held-octets"], 1)
        self.lose()
        self.assertRegex(str(server.ending), "^cut off: 5000 octets")

    def test_a_hand_shake_that_takes_too_long_is_a_line_and_a_counter(self) -> None:
        server, transport = self.link()
        server._handshakeExpired()
        self.assertTrue(transport.aborted)
        self.assertIn("no TLS hand-shake in time", self.logged[0])
        self.assertEqual(self.factory.counters["fault:handshake"], 1)
        self.lose()
        self.assertIsInstance(server.ending, TimedOut)

    def test_a_connection_lost_for_a_breach_of_the_protocol_says_that_breach(self) -> None:
        server, _ = self.link()
        breach = Failure(ProtocolViolation("a frame without a mask"))
        self.assertIs(server.whyLost(breach), breach.value)
        server.because(TimedOut("silent for 60 s"))
        self.assertEqual(str(server.whyLost(breach)), "silent for 60 s")
        self.lose()

    def test_a_connection_counts_as_a_sender_while_something_of_it_waits__NB_01(self) -> None:
        sink = Sink(held=True)
        server, _ = self.link(sink)
        budget = self.factory.budget
        self.assertEqual(budget.senders, 0)
        server.dataReceived(b"a\nb\n")
        self.assertEqual(budget.senders, 1)
        for waiting in sink.waiting:
            waiting.callback(None)
        self.assertEqual(budget.senders, 0)
        self.lose()

    def test_what_is_not_whole_counts_for_the_process_until_the_end(self) -> None:
        """NB-02"""
        server, _ = self.link()
        held = self.factory.budget.held
        server.dataReceived(b"ab")
        self.assertEqual(held.held, 0)  # so little is not counted
        held.uncounted = 0
        server.dataReceived(b"c")
        self.assertEqual(held.held, 3)
        server.dataReceived(b"d")
        self.assertEqual(held.held, 4)
        server.dataReceived(b"\nxy")
        self.assertEqual(held.held, 2)
        self.lose()
        self.assertEqual(held.held, 0)

    def test_the_figures_of_a_live_connection_can_be_read(self) -> None:
        """FC-03"""
        server, _ = self.link()
        server.dataReceived(b"a\nb\n")
        self.assertEqual(self.factory.counters["lines"], 2)
        self.lose()
        self.assertEqual(self.factory.counters["lines"], 2)

    def test_a_hook_may_end_the_server_from_inside(self) -> None:
        def batchReceived(self: Any, batch: MessageBatch) -> None:
            self.drain()

        server, transport = self.link(batchReceived=batchReceived)
        server.dataReceived(b"a\nb\n")
        self.assertEqual(transport.writes, [b"ok 1\nok 2\n"])
        self.assertTrue(transport.disconnecting)
        self.lose()


class MsgprotoServerFactoryOfLines(MsgprotoServerFactory):
    protocolName = "lines"
    protocol = LineServer  # type: ignore[assignment]
