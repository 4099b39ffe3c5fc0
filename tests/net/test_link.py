"""What the link does for every protocol, seen with a small one: lines in, ``ok`` out."""

from __future__ import annotations

from gc import collect
from typing import Any

from twisted.internet.defer import Deferred, fail
from twisted.internet.interfaces import ISSLTransport
from twisted.python.failure import Failure
from zope.interface import implementer

from tests.doubles import Tcp
from tests.tools.small_link import LineCounters, LineMachine, LinkCase, Sink, Writes
from twisted_msgproto import Message, MessageBatch
from twisted_msgproto.core.errors import (
    ConnectionClosed,
    Fault,
    ProtocolViolation,
    QueueError,
    TimedOut,
)
from twisted_msgproto.extend import CounterPaths
from twisted_msgproto.net.wires.stream import Output

FIRST_READ_BYTES, PARTIAL_READ_BYTES, READ_BYTES_MIN = 16 << 10, 64 << 10, 1 << 10
TURN_SECONDS = 0.008


class Links(LinkCase):
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
        self.assertEqual((transport.producerState, transport.disconnecting), ("producing", False))

    def test_slow_input_is_read_in_smaller_pieces_and_quick_input_in_larger_ones(self) -> None:
        """NB-07: a turn is bounded by the time that the bytes take, whatever they are."""
        server, transport = self.link(readBytes=256 << 10)
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

        self.assertEqual(transport.bufferSize, FIRST_READ_BYTES)
        took = 1e-9
        while read() != sizes[-1]:
            pass
        self.assertEqual(sizes, [FIRST_READ_BYTES << doubled for doubled in range(5)])
        took = 1e-5
        server.dataReceived(bytes(4095))  # too few to say anything
        self.assertEqual(transport.bufferSize, 256 << 10)
        server.dataReceived(bytes(4096))
        self.assertEqual(transport.bufferSize, READ_BYTES_MIN)
        for seconds in (TURN_SECONDS / 2.1, TURN_SECONDS / 1.9):  # twice as many, then as many
            took = seconds / transport.bufferSize
            self.assertEqual(read(), 2 * READ_BYTES_MIN)
        took = 1e-9
        while read() != sizes[-1]:
            pass
        took = 1e-6
        server.dataReceived(bytes(20_000))  # less than one read may return, and slow all the same
        self.assertLessEqual(transport.bufferSize * took, TURN_SECONDS)
        for _ in range(5):
            self.assertLessEqual(read() * took, TURN_SECONDS)
        took = 1e-9
        while read() != sizes[-1]:
            pass
        self.assertEqual(sizes[-1], 256 << 10)
        took = 1.0
        self.assertEqual((read(), read()), (READ_BYTES_MIN, READ_BYTES_MIN))
        took = 1e-9  # a peer that is as slow as can be is still read, and faster again
        read()
        self.assertGreater(read(), READ_BYTES_MIN)

    def test_a_message_that_does_not_end_is_read_in_smaller_pieces(self) -> None:
        """NB-02: a thousand of them would bring a gigabyte in one turn."""
        server, transport = self.link(readBytes=256 << 10)
        for _ in range(6):
            server.dataReceived(bytes(transport.bufferSize))
            self.assertLessEqual(transport.bufferSize, PARTIAL_READ_BYTES)
        self.assertEqual(transport.bufferSize, PARTIAL_READ_BYTES)
        server.dataReceived(b"\n")
        for _ in range(4):
            server.dataReceived((b"x" * 999 + b"\n") * (transport.bufferSize // 1000 + 1))
        self.assertEqual(transport.bufferSize, 256 << 10)
        while server.machine.unfinished:
            self.clock.advance(0)
        server.dataReceived(bytes(transport.bufferSize))
        self.assertEqual(transport.bufferSize, PARTIAL_READ_BYTES)

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
        # The next turn, which is no time from now: a reactor refuses what is due in the past.
        due = min(call.getTime() for call in self.clock.getDelayedCalls())
        self.assertEqual(due, self.clock.seconds())
        self.clock.advance(0)
        self.assertTrue(transport.aborted)
        self.assertEqual(self.tracebacks, 1)
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)

    def test_the_machine_advances_at_its_nearest_deadline_and_not_at_each_look(self) -> None:
        server, transport = self.link()
        advance, advanced = server.machine.advance, []
        server.machine.advance = lambda now: advanced.append(now) or advance(now)

        def due() -> list[float]:
            return [call.getTime() for call in self.clock.getDelayedCalls()]

        server.dataReceived(b"a\n")  # it has 60 s for the next one
        self.clock.advance(30)
        server.dataReceived(b"b\n")
        self.assertEqual(due(), [60])
        self.clock.advance(30)  # in vain
        self.assertEqual((advanced, due()), ([], [90]))
        server.machine.deadlines.set("idle", 70.0)
        server.flush()
        self.assertEqual(due(), [70])
        self.clock.advance(10)
        self.assertEqual((advanced, transport.disconnecting), ([70], True))

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

    def test_behind_what_the_disk_has_lost_nothing_is_kept(self) -> None:
        """HO-27: of one read, and of what comes after it: what is stored has no gap."""
        seen: list[Any] = []

        def batchReceived(self: Any, batch: MessageBatch) -> Any:
            seen.append(batch)
            return fail(QueueError("the disk is broken"))

        server, transport = self.link(batchReceived=batchReceived)
        server.dataReceived(b"a\nb\n")
        server.dataReceived(b"c\n")
        self.assertEqual((len(seen), transport.value()), (1, b"lost 1\n"))

    def test_a_server_that_stops_reads_no_more(self) -> None:
        server, transport = self.link(Sink(held=True))
        server.dataReceived(b"a\n")
        self.factory.drain()
        self.assertEqual(transport.producerState, "paused")

    def test_a_connection_lost_for_a_breach_of_the_protocol_says_that_breach(self) -> None:
        server, _ = self.link()
        breach = Failure(ProtocolViolation("a frame without a mask"))
        self.assertIs(server.whyLost(breach), breach.value)
        server.setCloseReason(TimedOut("silent for 60 s"))
        self.assertEqual(str(server.whyLost(breach)), "silent for 60 s")


# ── what the link does at its edges ─────────────────────────────────────────────────────────────


SPEAKS_TLS = "it speaks TLS, and this endpoint does not"


@implementer(ISSLTransport)
class Encrypted(Writes):
    """Says that it is TLS."""

    def setTcpNoDelay(self, enabled: bool) -> None:
        """No socket is behind this."""

    setTcpKeepAlive = setTcpNoDelay


class Edges(LinkCase):
    def test_what_a_peer_did_is_told_with_its_bytes_and_what_they_look_like__NB_09(self) -> None:
        for fault, text in (
            (Fault("a", "it is 'odd'", b"\x00\xff"), "it is 'odd' (starts with 00 ff)"),
            (Fault("a", "it\x1b"), "it\\x1b"),
            (
                Fault("a", "odd", b"\x16\x03\x01"),
                f"odd: {SPEAKS_TLS} (starts with 16 03 01)",
            ),
        ):
            server, _ = self.link()
            server.machine.receive = lambda inputs, now, fault=fault: [fault]
            server.dataReceived(b"x")
            self.assertEqual(self.logged, [f"{server.peer}: closed: {text}"])
            self.lose()

    def test_a_snapshot_says_what_is_not_safe_and_why_it_is_not_read(self) -> None:
        server, _ = self.link(Sink(held=True))
        self.assertEqual(
            server.snapshot(),
            {"session": server.session, "peer": server.peer, "client_id": None,
             "unsafe_bytes": 0, "not_read_because": None, "state": "open"},
        )  # fmt: skip
        server.dataReceived(b"abc\n")
        server.outputChanged(True)
        server.holdBack(True)
        shown = server.snapshot()
        self.assertGreater(shown["unsafe_bytes"], 3)
        self.assertEqual(shown["not_read_because"], "process-held-bytes, unread-output")

    def test_reading_stops_at_the_first_reason_and_goes_on_after_the_last(self) -> None:
        server, transport = self.link()
        told: list[str] = []
        server.machine.paused = lambda now: told.append(f"paused at {now:g}") or []
        server.machine.resumed = lambda now: told.append(f"resumed at {now:g}") or []
        for reason in ("a", "b", "b"):
            server.pauseReading(reason)
        self.assertEqual(server.snapshot()["not_read_because"], "a, b")
        self.clock.advance(3)
        server.resumeReading("a")
        self.assertEqual((server.reading, transport.producerState), (False, "paused"))
        server.resumeReading("b")
        server.resumeReading("b")
        self.assertEqual((server.reading, transport.producerState), (True, "producing"))
        self.assertEqual(told, ["paused at 0"] * 2 + ["paused at 3", "resumed at 3"])

    def test_who_has_more_than_its_share_is_paused_above_the_limit__NB_01__NB_03(self) -> None:
        """The limit, 100 kB, is shared by all of whom something waits; at half all are read."""
        for others, senders, own, paused in (
            (0, 1, 100, False),
            (0, 1, 101, True),
            (60, 1, 60, False),  # what others have left behind is nobody's share
            (50, 2, 50, False),
            (40, 2, 60, False),
            (60, 2, 50, False),
            (60, 2, 51, True),
            (90, 10, 10, False),
            (95, 10, 11, True),
            (80, 10, 11, False),
        ):
            sink = Sink(held=True)
            server, transport = self.link(sink)
            shared = self.factory.shared
            shared.limit = 100_000
            server.dataReceived(b"x" * 1000 + b"\n")
            shared.waiting, shared.senders = others * 1000 + 3000, senders
            server.dataReceived(b"x" * (own * 1000 - 5000) + b"\n")
            why = "process-unsafe-bytes" if paused else None
            self.assertEqual(server.snapshot()["not_read_because"], why, (others, senders, own))
            shared.waiting = 53_001
            sink.waiting[0].callback(None)
            self.assertEqual(server.reading, not paused)
            shared.waiting = own * 1000 + 47_000
            sink.waiting[1].callback(None)
            self.assertEqual((server.reading, transport.producerState), (True, "producing"))
            self.assertEqual(shared.senders, senders - 1)
            self.lose()

    def test_only_some_faults_mean_that_the_peer_did_not_answer_in_time(self) -> None:
        for reasons, kind in ((set(), ProtocolViolation), ({"shout"}, TimedOut)):
            server, transport = self.link(timeFaults=frozenset(reasons))
            server.dataReceived(b"!\n")
            self.assertEqual(transport.value(), b"bad\n")
            self.assertEqual(
                (type(server.closeReason), str(server.closeReason)), (kind, "a line '!'")
            )
            self.lose()

    def test_a_peer_that_does_not_read_is_not_read_until_it_reads__HO_27(self) -> None:
        for while_unread, state in ((False, "paused"), (True, "producing")):
            server, transport = self.link(readsWhileUnread=while_unread)
            server.outputChanged(True)
            self.assertEqual((transport.producerState, server.reading), (state, while_unread))
            server.outputChanged(False)
            self.assertEqual((transport.producerState, server.reading), ("producing", True))
            self.lose()

    def test_a_hand_shake_in_time_makes_the_connection_usable_once(self) -> None:
        secured: list[object] = []
        hooks = {"transportSecured": lambda self: secured.append(self)}
        server, transport = self.link(transport=Encrypted(), **hooks)
        self.assertEqual(secured, [])
        server.handshakeCompleted()
        server.handshakeCompleted()
        self.assertEqual(secured, [server])
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.assertFalse(transport.aborted)

    def test_a_hand_shake_has_its_time_and_no_more__HO_27(self) -> None:
        server, transport = self.link(transport=Encrypted())
        seconds = self.factory.limits["handshake"]
        self.clock.advance(seconds - 0.1)
        self.assertFalse(transport.aborted)
        self.clock.advance(0.1)
        self.assertTrue(transport.aborted)
        self.assertEqual(
            [line.partition(": ")[2] for line in self.logged],
            ["closed: no TLS hand-shake in time"],
        )
        self.lose()
        self.assertEqual(str(server.closeReason), "no TLS hand-shake in time")

    def test_who_is_given_up_is_cut_off_and_why_is_known__HO_27(self) -> None:
        ends: list[tuple[Any, str]] = [
            (lambda one: one.writeConnectionLost(), "another reason"),
            (lambda one: one.abort(), "the connection was given up"),
            (lambda one: one.displace(), "silent while connections were short"),
            (lambda one: one.unread(), "the peer took no bytes for 30 s"),
            (
                lambda one: one.cutOff(5, 100.0),
                "cut off: 5 bytes of an unfinished message arrive too slowly while memory is short;"
                " process-held-bytes is 100",
            ),
        ]
        for end, why in ends:
            server, transport = self.link()
            end(server)
            self.assertTrue(transport.aborted)
            server.setCloseReason(ConnectionClosed("another reason"))
            self.lose()
            self.assertEqual(str(server.closeReason), why)

    def test_nothing_is_read_on_while_something_else_pauses__NB_07(self) -> None:
        server, transport = self.link()
        server.dataReceived(b"x\n" * 7)
        server.holdBack(True)
        self.clock.advance(0)
        self.assertEqual(transport.value().count(b"ok"), 3)
        self.assertEqual(transport.producerState, "paused")
        server.holdBack(False)
        self.clock.advance(0)
        self.assertEqual(transport.value().count(b"ok"), 7)
        self.assertEqual(transport.producerState, "producing")

    def test_who_is_held_back_is_read_again_unless_it_has_gone__NB_02(self) -> None:
        server, transport = self.link()
        server.holdBack(True)
        self.assertEqual((transport.producerState, server.reading), ("paused", False))
        server.holdBack(False)
        self.assertEqual((transport.producerState, server.reading), ("producing", True))
        server.holdBack(True)
        self.lose()
        server.holdBack(False)
        self.assertEqual(transport.producerState, "paused")
        sink = Sink(held=True)
        server, transport = self.link(sink)
        self.factory.shared.limit = 3
        server.dataReceived(b"abcd\n")
        self.lose()
        sink.waiting[0].callback(None)
        self.assertEqual(transport.producerState, "paused")

    def test_while_a_peer_is_not_read_it_is_not_late__NB_02(self) -> None:
        server, transport = self.link()
        held = self.factory.shared.held
        held.bound(4000)
        server.dataReceived(b"x" * 2500)
        server.outputChanged(True)
        self.clock.advance(50)
        server.outputChanged(False)
        for seconds, octets, late in ((3.0 - 1, 1000, False), (2, 1001, True)):
            self.clock.advance(seconds)
            held.hold(Output(transport, self.clock, 30.0, self.fail), octets, self.clock.seconds())
            self.assertEqual(transport.aborted, late)

    def test_an_error_in_code_while_a_loss_is_told_ends_the_connection(self) -> None:
        sink = Sink(held=True)
        server, transport = self.link(sink)
        server.dataReceived(b"a\n")
        server.machine.not_safe = lambda place, now: (1 / 0 for _ in "x")
        sink.waiting[0].errback(Failure(QueueError("the disk is full")))
        self.assertTrue(transport.aborted)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_an_error_in_a_machine_that_ends_keeps_no_place_of_the_server(self) -> None:
        server, _ = self.link()
        server.machine.lost = lambda now: 1 / 0
        self.assertRaises(ZeroDivisionError, server.connectionLost)
        self.assertEqual(len(server.factory.liveConnections), 0)

        class Stateless(LineMachine):
            state = property(lambda machine: 1 / 0)

        server, _ = self.link()
        server.machine = Stateless()
        server.factory.counters.join(server, CounterPaths.of(LineCounters))
        self.assertRaises(ZeroDivisionError, server.connectionLost)
        self.assertEqual(len(server.factory.liveConnections), 0)

    def test_the_pace_follows_the_time_that_a_read_needs_and_not_the_hour__NB_07(self) -> None:
        server, transport = self.link()
        self.clock.advance(1e6)
        server.dataReceived(b"x" * 4096)
        self.assertEqual(transport.bufferSize, 16 << 10)

    def test_a_connection_owes_while_a_batch_is_not_safe_or_a_line_not_whole__NB_08(self) -> None:
        sink = Sink(held=True)
        server, _ = self.link(sink)
        self.assertFalse(server.owes)
        server.dataReceived(b"a\n")
        self.assertTrue(server.owes)
        sink.waiting[0].callback(None)
        self.assertFalse(server.owes)
        self.factory.shared.held.uncounted = 0
        server.dataReceived(b"b")
        self.assertTrue(server.owes)
        server.dataReceived(b"\n")
        sink.waiting[1].callback(None)
        self.assertFalse(server.owes)
        server.wire.held = 1  # TLS has something
        server.heldChanged()
        self.assertTrue(server.owes)
        server.wire.held = 0
        server.heldChanged()
        self.assertFalse(server.owes)
        server.wire.output.pauseProducing()  # the peer does not read
        self.assertTrue(server.owes)
        server.wire.output.resumeProducing()
        self.assertFalse(server.owes)
        server.abort()  # its place will be free in a moment
        self.assertTrue(server.owes)

    def test_after_an_orderly_end_nothing_that_comes_reaches_the_machine__NB_08(self) -> None:
        """NB-08: the place of the connection is free when it is lost, and not before."""
        server, transport = self.link()
        self.factory.drain()
        self.assertTrue(transport.disconnecting)
        self.factory.counters.as_dict()
        server.endNow()
        self.assertEqual(self.factory.counters.changed, {server}, "its last words may be counted")
        server.machine.receive = server.machine.outputs = None  # a call would raise
        server.received(b"a\n")
        server.dataReceived(b"a\n")
        server.flush()
        self.assertTrue(server.owes)

    def test_a_small_answer_does_not_wait_for_others__NB_11(self) -> None:
        transport = Tcp()
        self.link(transport=transport)
        self.assertEqual(transport.told, {"NoDelay": True, "KeepAlive": True})

    def test_who_is_given_up_is_not_told_of_as_unread(self) -> None:
        server, _ = self.link()
        server.abort()
        server.unread()
        self.assertEqual(self.logged, [])
        self.assertEqual(self.factory.counters["fault:unread"], 0)


class Hooks(LinkCase):
    def test_of_several_failures_of_a_batch_the_first_is_told_and_none_is_unhandled(self) -> None:
        sink = Sink(held=True)
        hooks: list[Deferred[None]] = []

        def messageReceived(self: Any, message: Message) -> Deferred[None]:
            hooks.append(Deferred())
            return hooks[-1]

        server, transport = self.link(sink, messageReceived=messageReceived)
        server.dataReceived(b"a\n")
        hooks[0].errback(Failure(QueueError("first")))
        sink.waiting[0].errback(Failure(QueueError("second")))
        self.assertEqual(transport.value(), b"lost 1\n")
        self.assertEqual(
            [line.partition(": ")[2] for line in self.logged], ["not acknowledged: first"]
        )
        self.lose()
        hooks.clear()
        sink.waiting.clear()
        collect()
        self.assertEqual(self.flushLoggedErrors(), [])

    def test_the_answer_about_a_long_name_is_the_same_but_not_remembered__NB_02(self) -> None:
        """NB-02: a thousand names of a mebi-character each took 4 GB of one session."""
        asked: list[str] = []

        class OfEvenLength:
            def allows(self, access: Any) -> bool:
                asked.append(access.name)
                return len(access.name) % 2 == 0

        server, _ = self.link()
        self.factory.authoriser = OfEvenLength()
        wide = "\U0001f600"
        for name, times in (
            ("", 1), ("x" * 255, 1), ("x" * 10_001, 3), (wide * 50, 1), (wide * 255, 3),
        ):  # fmt: skip
            for _ in range(3):
                self.assertEqual(server.refuses("call", name), len(name) % 2 == 1)
            self.assertEqual(asked, [name] * times)
            asked.clear()
        self.assertEqual(self.factory.counters["not_allowed"], 3 * 3)
        self.factory.peerLog.sum_up()
