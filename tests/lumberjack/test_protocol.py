"""The server on a clock: sink, timers, pressure."""

from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionDone
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

from tests.doubles import HeldSink, LoggedCase
from tests.lumberjack.frames import (
    encode_ack,
    encode_compressed,
    encode_data,
    encode_json,
    encode_window,
)
from twisted_msgproto.lumberjack import (
    LumberjackServerFactory,
)

PEER = IPv4Address("TCP", "192.0.2.7", 54321)


class Server(LoggedCase):
    """A connected server protocol with a sink, a clock and a transport which only notes."""

    def setUp(self):
        super().setUp()
        self.sink = HeldSink()

    def connect(self, **limits):
        self.factory = LumberjackServerFactory(
            self.sink,
            limits={name.replace("_", "-"): value for name, value in limits.items()},
            clock=self.clock,
            wallClock=lambda: 1_700_000_000.25,
        )
        server = self.factory.buildProtocol(PEER)
        transport = StringTransport(peerAddress=PEER)
        server.makeConnection(transport)
        return server, transport

    def lose(self, server):
        server.connectionLost(Failure(ConnectionDone()))
        self.assertEqual(self.clock.getDelayedCalls(), [])

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

    def test_a_slow_sink_is_bridged_with_them_while_the_server_stops(self):
        """LJ-14."""
        server, transport = self.connect(unsafe_bytes=1, drain=100)
        server.dataReceived(encode_window(1) + encode_json([1], [b"{}"]))
        self.factory.drain()
        self.clock.pump([0.5] * 13)
        self.assertEqual(transport.value(), encode_ack(0) * 2)
        self.sink.safe()
        self.assertEqual(transport.value(), encode_ack(0) * 2 + encode_ack(1))
        server.connectionLost(Failure(ConnectionDone()))
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_batches_weigh_however_little_is_in_them(self):
        """LJ-17: each is objects in memory, and a peer chooses how many it makes of its bytes."""
        server, transport = self.connect(unsafe_bytes=10_000)
        tiny = encode_json([1], [b""]) + encode_data([2], [{}])
        server.dataReceived(encode_window(1000) + tiny * 2)
        self.assertEqual(transport.producerState, "producing")
        server.dataReceived(tiny)
        self.assertEqual(transport.producerState, "paused")
        self.sink.safe()
        self.assertEqual(transport.producerState, "producing")
        self.assertEqual(self.factory.shared.waiting, 0)
        self.lose(server)

    def test_a_large_compressed_frame_is_decoded_over_several_turns(self):
        """LJ-13: and what waits for the sink holds the decoding back too."""
        server, transport = self.connect(slice_bytes=10_000, unsafe_bytes=20_000)
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

    def test_a_half_close_behind_a_large_compressed_frame_waits_for_all_of_it(self):
        """LJ-19."""
        server, transport = self.connect(slice_bytes=1000)
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
