"""The server protocol on a string transport and a clock: hooks, sink, timers, back-pressure."""

import struct

from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.logger import globalLogPublisher
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from tests.lumberjack.frames import (
    encode_ack,
    encode_compressed,
    encode_data,
    encode_json,
    encode_window,
)
from tests.tools.sinks import HeldSink
from twisted_msgproto.lumberjack import LumberjackServer, LumberjackServerFactory

PEER = IPv4Address("TCP", "192.0.2.7", 54321)


class Case(SynchronousTestCase):
    """A connected server protocol with a sink, a clock and a transport which only notes."""

    sink_class = HeldSink
    protocol = LumberjackServer

    def setUp(self):
        self.clock = Clock()
        self.sink = self.sink_class()
        self.lines = []
        globalLogPublisher.addObserver(self._observe)
        self.addCleanup(globalLogPublisher.removeObserver, self._observe)

    def _observe(self, event):
        if str(event.get("log_namespace", "")).startswith("twisted_msgproto"):
            self.lines.append(event["log_format"].format(**event))

    def connect(self, **limits):
        self.factory = LumberjackServerFactory(
            self.sink,
            limits={name.replace("_", "-"): value for name, value in limits.items()},
            clock=self.clock,
            wallClock=lambda: 1_700_000_000.25,
        )
        self.factory.protocol = self.protocol
        return self.another()

    def another(self):
        server = self.factory.buildProtocol(PEER)
        server.transport = None
        transport = StringTransport(peerAddress=PEER)
        transport.protocol = server
        server.makeConnection(transport)
        return server, transport

    def lose(self, server):
        server.connectionLost(Failure(ConnectionDone()))
        self.assertEqual(self.clock.getDelayedCalls(), [])


class Ingest(Case):
    def test_events_reach_the_sink_as_columns_and_are_acked_when_it_says_safe(self):
        """LJ-04, LJ-13: one batch a read, with what all of it shares."""
        server, transport = self.connect()
        server.dataReceived(encode_window(2) + encode_json([1, 2], [b"{}", b"[]"]))
        (batch,) = self.sink.batches
        self.assertEqual(
            (batch.protocol, batch.kind, batch.peer, batch.client_id, batch.count),
            ("lumberjack", "json", "192.0.2.7:54321", None, 2),
        )
        self.assertEqual(batch.received_at, 1_700_000_000_250_000)
        self.assertEqual(batch.session, "lumberjack-20231114T221320.250000Z-1")
        self.assertEqual((batch.message_id, batch.body), ([1, 2], [b"{}", b"[]"]))
        self.assertEqual(transport.value(), b"")
        self.sink.safe()
        self.assertEqual(transport.value(), encode_ack(2))
        self.lose(server)

    def test_data_frames_have_fields_and_no_body(self):
        """LJ-03: the table's columns."""
        server, _ = self.connect()
        server.dataReceived(encode_data([7], [{"host": "web-1"}]))
        (message,) = self.sink.messages
        self.assertEqual((message.kind, message.message_id), ("data", 7))
        self.assertEqual((message.fields, message.body), ({"host": "web-1"}, None))
        self.sink.safe()
        self.lose(server)

    def test_whole_frames_are_kept_though_the_connection_is_lost_before_their_ack(self):
        """LJ-13."""
        server, transport = self.connect()
        server.dataReceived(encode_window(5) + encode_json([1], [b"{}"]))
        self.lose(server)
        self.sink.safe()
        self.assertEqual(len(self.sink.messages), 1)
        self.assertEqual(transport.value(), b"")

    def test_a_batch_which_will_never_be_safe_closes_without_ack(self):
        """LJ-13: nor is anything after it acked."""
        server, transport = self.connect()
        server.dataReceived(encode_window(1) + encode_json([1], [b"{}"]))
        server.dataReceived(encode_json([2], [b"{}"]))
        self.sink.fail(OSError(5, "input/output error"))
        self.assertTrue(transport.disconnected or transport.disconnecting)
        self.sink.safe()
        self.assertEqual(transport.value(), b"")
        self.assertEqual(len(self.flushLoggedErrors(OSError)), 1)
        self.assertEqual(self.factory.counters["unsafe_batches"], 1)
        self.lose(server)


class Hooks(Case):
    class protocol(LumberjackServer):
        def connectionMade(self):
            self.seen = []
            self.answers = []
            super().connectionMade()

        def sessionEstablished(self):
            self.seen.append("established")

        def sessionLost(self, reason):
            self.seen.append(reason.type.__name__)

        def messageReceived(self, message):
            self.seen.append(message.body)
            return self.answers.pop(0) if self.answers else None

    def test_each_message_is_seen_and_its_deferred_delays_the_ack(self):
        """LJ-13: the acknowledgement follows the hook and the sink."""
        server, transport = self.connect()
        waiting = Deferred()
        server.answers = [None, waiting]
        server.dataReceived(encode_window(2) + encode_json([1, 2], [b"a", b"b"]))
        self.sink.safe()
        self.assertEqual(transport.value(), b"")
        waiting.callback(None)
        self.assertEqual(transport.value(), encode_ack(2))
        self.lose(server)
        self.assertEqual(server.seen, ["established", b"a", b"b", "ConnectionDone"])


class RaisingBatchHook(Case):
    class protocol(LumberjackServer):
        def batchReceived(self, batch):
            raise ZeroDivisionError

    def test_what_stands_behind_a_batch_which_was_refused_is_not_kept(self):
        """LJ-13: the session would have a gap."""
        server, transport = self.connect()
        seen = []

        def batchReceived(batch):
            seen.append(batch.kind)
            raise ZeroDivisionError

        server.batchReceived = batchReceived
        server.dataReceived(encode_json([1], [b"a"]) + encode_data([2], [{}]) + b"nonsense")
        self.assertEqual(seen, ["json"])
        self.assertEqual(transport.value(), b"")
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.lose(server)


class Faults(Case):
    def test_a_fault_closes_with_one_line_a_counter_and_no_ack(self):
        """LJ-16: peer address, reason, first octets in hex."""
        server, transport = self.connect()
        server.dataReceived(b"GET / HTTP/1.1\r\n\r\n")
        self.assertTrue(transport.disconnecting)
        self.assertEqual(transport.value(), b"")
        self.assertEqual(
            self.lines,
            [
                "192.0.2.7:54321: closed without ack: version octet 0x47, not '1' or '2' "
                "(starts with 47 45 54 20 2f 20 48 54 54 50 2f 31 2e 31 0d 0a)"
            ],
        )
        self.assertEqual(self.factory.counters["fault:version"], 1)
        server.dataReceived(encode_json([1], [b"{}"]))
        self.assertEqual(self.sink.batches, [])
        self.lose(server)

    def test_events_before_a_fault_are_kept_and_not_acked(self):
        """LJ-16: what was acknowledged is safe; the rest the writer resends."""
        server, transport = self.connect()
        server.dataReceived(encode_json([1], [b"{}"]) + b"x")
        self.assertEqual(len(self.sink.messages), 1)
        self.sink.safe()
        self.assertEqual(transport.value(), b"")
        self.lose(server)

    def test_a_peer_which_does_not_let_itself_be_closed_is_cut_off(self):
        """FAULTS: unread output is bounded in time."""
        server, transport = self.connect(unread_seconds=5)
        server.dataReceived(b"x")
        self.assertFalse(transport.disconnected)
        self.clock.advance(6)
        self.assertTrue(transport.disconnected)
        self.lose(server)


class KeepAlives(Case):
    def test_a_slow_sink_is_bridged_with_keepalives(self):
        """LJ-14: version 2 only."""
        server, transport = self.connect()
        server.dataReceived(encode_window(1) + encode_json([4], [b"{}"]))
        self.clock.pump([0.5] * 13)
        self.assertEqual(transport.value(), encode_ack(0) * 2)
        self.sink.safe()
        self.assertEqual(transport.value(), encode_ack(0) * 2 + encode_ack(4))
        self.lose(server)

    def test_a_slow_sink_is_bridged_with_them_while_the_server_stops(self):
        """LJ-14."""
        server, transport = self.connect(unsafe_octets=1, drain=100)
        server.dataReceived(encode_window(1) + encode_json([1], [b"{}"]))
        self.factory.drain()
        self.clock.pump([0.5] * 13)
        self.assertEqual(transport.value(), encode_ack(0) * 2)
        self.sink.safe()
        self.assertEqual(transport.value(), encode_ack(0) * 2 + encode_ack(1))
        server.connectionLost(Failure(ConnectionDone()))
        self.assertEqual(self.clock.getDelayedCalls(), [])


class BackPressure(Case):
    def test_reading_pauses_above_the_unsafe_octets_of_a_connection(self):
        """LJ-17: then goes on when the sink has caught up; safe octets no longer count."""
        server, transport = self.connect(unsafe_octets=10_000)
        server.dataReceived(encode_window(1000) + encode_json([1], [b"x" * 6000]))
        self.assertEqual(transport.producerState, "producing")
        server.dataReceived(encode_json([2], [b"x" * 6000]))
        self.assertEqual(transport.producerState, "paused")
        self.clock.advance(500)
        self.assertEqual(transport.value(), b"")
        self.sink.safe(1)
        self.assertEqual(transport.producerState, "paused")
        self.sink.safe(1)
        self.assertEqual(transport.producerState, "producing")
        self.clock.advance(1.1)
        self.assertEqual(transport.value(), encode_ack(2))
        self.lose(server)

    def test_a_connection_which_is_lost_while_it_is_paused_leaves_no_timer(self):
        """FAULTS: nothing is left over, also when the sink catches up later."""
        server, _ = self.connect(unsafe_octets=1)
        server.dataReceived(encode_window(2) + encode_json([1], [b"{}"]))
        self.lose(server)
        self.sink.safe()
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_batches_weigh_however_little_is_in_them(self):
        """LJ-17: each is objects in memory, and a peer chooses how many it makes of its octets."""
        server, transport = self.connect(unsafe_octets=10_000)
        tiny = encode_json([1], [b""]) + encode_data([2], [{}])
        server.dataReceived(encode_window(1000) + tiny * 2)
        self.assertEqual(transport.producerState, "producing")
        server.dataReceived(tiny)
        self.assertEqual(transport.producerState, "paused")
        self.sink.safe()
        self.assertEqual(transport.producerState, "producing")
        self.assertEqual(self.factory.budget.waiting, 0)
        self.lose(server)

    def test_a_large_compressed_frame_is_decoded_over_several_turns(self):
        """LJ-13: and what waits for the sink holds the decoding back too."""
        server, transport = self.connect(slice_octets=10_000, unsafe_octets=20_000)
        body = b"x" * 900
        frame = encode_compressed(encode_window(60) + encode_json(range(1, 61), [body] * 60))
        server.dataReceived(frame)
        self.assertEqual(transport.producerState, "paused")
        for _ in range(50):
            self.clock.advance(0)
        decoded = len(self.sink.messages)
        self.assertTrue(0 < decoded < 60, decoded)
        for _ in range(50):
            self.sink.safe()
            self.clock.advance(0)
        self.assertEqual(len(self.sink.messages), 60)
        self.assertEqual(transport.value(), encode_ack(60))
        self.assertEqual(transport.producerState, "producing")
        self.lose(server)


class Unfinished(Case):
    """FAULTS: what all connections hold of unfinished frames is bounded in all."""

    def test_pairs_without_end_are_cut_off_and_a_good_writer_is_acknowledged__NB_02(self):
        """NB-02: a thousand pairs of a D frame take ten times the octets that have come."""
        good, transport = self.connect(process_held_octets=300_000)
        pairs = b"".join(struct.pack(">I", 2) + b"%02x" % (n % 256) for n in range(2046))
        begun = b"2D" + struct.pack(">II", 1, 1024) + pairs
        crowd = [self.another() for _ in range(5)]
        for server, _ in crowd:
            server.dataReceived(begun)
        self.assertTrue(any(theirs.disconnected for _, theirs in crowd))
        good.dataReceived(encode_window(1) + encode_json([1], [b"{}"]))
        self.sink.safe()
        self.assertEqual(transport.value(), encode_ack(1))
        for server, _ in crowd:
            server.connectionLost(Failure(ConnectionDone()))
        self.lose(good)


class Refused(Case):
    def test_a_batch_which_comes_again_is_told_with_how_often_it_was_refused(self):
        """NB-10: a refused batch comes again for ever; the line names the option and the count."""
        server, _ = self.connect(json_octets=100)
        frame = encode_json([1], [b"x" * 200])
        server.dataReceived(frame)
        self.assertIn("a document of 200 octets; json-octets is 100 (", self.lines[-1])
        self.lose(server)
        for times in (2, 3):
            server, _ = self.another()
            server.dataReceived(frame)
            self.assertIn(f"is 100; refused {times} times, it comes again (", self.lines[-1])
            server.connectionLost(Failure(ConnectionDone()))
        server, _ = self.another()
        server.dataReceived(encode_json([2], [b"x" * 200]))  # another one
        self.assertIn("json-octets is 100 (", self.lines[-1])
        server.connectionLost(Failure(ConnectionDone()))


class TheEnd(Case):
    def test_a_half_closed_writer_gets_its_acks_then_the_close(self):
        """LJ-19: no idle wait; an incomplete frame is dropped."""
        server, transport = self.connect()
        server.dataReceived(encode_window(5) + encode_json([1, 2], [b"{}", b"{}"]) + b"2J")
        server.readConnectionLost()
        self.assertEqual(transport.value(), b"")
        self.assertFalse(transport.disconnecting)
        self.sink.safe()
        self.assertEqual(transport.value(), encode_ack(2))
        self.assertTrue(transport.disconnecting)
        self.lose(server)

    def test_a_half_close_behind_a_large_compressed_frame_waits_for_all_of_it(self):
        """LJ-19."""
        server, transport = self.connect(slice_octets=1000)
        count = 60
        server.dataReceived(
            encode_compressed(encode_json(range(count), [b"x" * 900] * count) + encode_window(9))
        )
        server.readConnectionLost()
        for _ in range(200):
            self.sink.safe()
            self.clock.advance(0)
        self.assertEqual(len(self.sink.messages), count)
        self.assertTrue(transport.value().endswith(encode_ack(count - 1)))
        self.assertTrue(transport.disconnecting)
        self.lose(server)

    def test_draining_reads_no_more_acks_whole_windows_and_closes(self):
        """ECOSYSTEM: stopService stops reading, flushes and acks, then drops."""
        server, transport = self.connect()
        server.dataReceived(encode_window(2) + encode_json([1, 2, 1], [b"{}", b"{}", b"{}"]))
        drained = self.factory.drain()
        self.assertNoResult(drained)
        self.assertEqual(transport.producerState, "paused")
        self.assertFalse(transport.disconnecting)
        self.sink.safe()
        self.assertEqual(transport.value(), encode_ack(2))
        self.assertTrue(transport.disconnecting)
        server.connectionLost(Failure(ConnectionDone()))
        self.successResultOf(drained)
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.assertIsNone(self.factory.buildProtocol(PEER))

    def test_draining_acks_nothing_of_a_compressed_frame_which_was_not_read_to_its_end(self):
        """LJ-08: nobody knows yet whether it ends well; this one ends with a partial frame."""
        server, transport = self.connect(slice_octets=500)
        body = b"x" * 200
        windows = b"".join(encode_window(1) + encode_json([n], [body]) for n in range(1, 20))
        server.dataReceived(encode_window(1) + encode_json([77], [body]))
        server.dataReceived(encode_compressed(windows + b"2J\0"))
        self.assertEqual(transport.producerState, "paused")
        self.factory.drain()
        self.clock.pump([0.1] * 20)
        self.sink.safe()
        self.assertEqual(transport.value(), encode_ack(77))
        self.assertTrue(transport.disconnecting)
        server.connectionLost(Failure(ConnectionDone()))

    def test_counters_of_a_connection_end_up_with_the_factory(self):
        server, _ = self.connect()
        server.dataReceived(encode_window(2) + encode_json([1, 2], [b"{}", b"{}"]))
        self.sink.safe()
        self.lose(server)
        counters = self.factory.counters
        self.assertEqual(
            {name: counters[name] for name in ("events", "windows", "acks", "connections_total")},
            {"events": 2, "windows": 1, "acks": 1, "connections_total": 1},
        )
        self.assertEqual(self.factory.liveConnections, {})
