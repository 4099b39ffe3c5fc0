"""What the link does for every protocol, seen with a small one: lines in, ``ok`` out."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import fail
from twisted.python.failure import Failure

from tests.tools.small_link import LineMachine, LinkCase, Sink
from twisted_msgproto import MessageBatch
from twisted_msgproto.core.errors import NotStored, ProtocolViolation, QueueError, TimedOut

FIRST_READ_OCTETS, PARTIAL_READ_OCTETS, READ_OCTETS_MIN = 16 << 10, 64 << 10, 1 << 10
TURN_SECONDS = 0.008


class Links(LinkCase):
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
        self.assertEqual((transport.producerState, transport.disconnecting), ("producing", False))
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
        took = 1e-5
        server.dataReceived(bytes(4000))  # too few to say anything
        self.assertEqual(transport.bufferSize, 256 << 10)
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
        self.assertEqual((read(), read()), (READ_OCTETS_MIN, READ_OCTETS_MIN))
        took = 1e-9  # a peer that is as slow as can be is still read, and faster again
        read()
        self.assertGreater(read(), READ_OCTETS_MIN)
        self.lose()

    def test_a_message_that_does_not_end_is_read_in_smaller_pieces(self) -> None:
        """NB-02: a thousand of them would bring a gigabyte in one turn."""
        server, transport = self.link(readOctets=256 << 10)
        for _ in range(6):
            server.dataReceived(bytes(transport.bufferSize))
            self.assertLessEqual(transport.bufferSize, PARTIAL_READ_OCTETS)
        self.assertEqual(transport.bufferSize, PARTIAL_READ_OCTETS)
        server.dataReceived(b"\n")
        for _ in range(4):
            server.dataReceived((b"x" * 999 + b"\n") * (transport.bufferSize // 1000 + 1))
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
        # The next turn, which is no time from now: a reactor refuses what is due in the past.
        due = min(call.getTime() for call in self.clock.getDelayedCalls())
        self.assertEqual(due, self.clock.seconds())
        self.clock.advance(0)
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
        self.assertEqual(transport.producerState, "paused")
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
        self.assertIsInstance(server.ending, NotStored)
        self.assertEqual(str(server.ending), "what came could not be stored: the disk is broken")

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
        server, transport = self.link()
        transport.producer.pauseProducing()
        self.assertEqual(transport.producerState, "paused")
        self.clock.advance(30)
        self.assertIsInstance(server.ending, TimedOut)
        self.assertEqual(str(server.ending), "the peer took no octets for 30 s")
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

    def test_a_hook_may_end_the_server_from_inside(self) -> None:
        def batchReceived(self: Any, batch: MessageBatch) -> None:
            self.close()

        server, transport = self.link(batchReceived=batchReceived)
        server.dataReceived(b"a\nb\n")
        self.assertEqual(transport.writes, [b"ok 1\nok 2\n"])
        self.assertTrue(transport.disconnecting)
        self.lose()
