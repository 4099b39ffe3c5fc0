"""A server's messages on their way to the sink: acks, back-pressure, faults, the end."""

from __future__ import annotations

from tests.micromsg2.cases import Case
from tests.micromsg2.layouts import Error, ExtensionFrame, encode_extension
from tests.micromsg2.streams import ack, message, messages
from tests.tools.sinks import SafeSink


class Ingest(Case):
    def test_messages_reach_the_sink_as_columns_and_are_acked_when_it_says_safe(self) -> None:
        """MM-12, MM-19: one batch a read, the table's columns"""
        factory = self.server_factory()
        server, transport = self.connect(factory, "batch-ack:max-count=2")
        server.dataReceived(message(1, b"a", "q", b"k:N1;") + message(2, b"b", "topic/x"))
        (batch,) = self.sink.batches
        self.assertEqual(
            (batch.protocol, batch.kind, batch.peer, batch.client_id, batch.count),
            ("micromsg2", "message", "192.0.2.7:54321", "hulk", 2),
        )
        self.assertEqual(batch.received_at, 1_700_000_000_250_000)
        self.assertEqual(batch.session, "micromsg2-20231114T221320.250000Z-1")
        self.assertEqual(list(batch.message_id), [1, 2])
        self.assertEqual(list(batch.destination), ["q", "topic/x"])
        self.assertEqual(list(batch.fields), [{"k": "1"}, {}])
        self.assertEqual(list(batch.body), [b"a", b"b"])
        self.assertEqual(transport.value(), b"")
        self.sink.safe()
        self.assertEqual(transport.value(), ack(2))
        self.assertEqual(factory.counters["events"], 2)
        self.lose(server)

    def test_the_idle_ack_comes_by_itself(self) -> None:
        """MM-19: half a second"""
        server, transport = self.connect(self.server_factory(sink=SafeSink()), "batch-ack")
        server.dataReceived(message(1))
        self.clock.advance(0.49)
        self.assertEqual(transport.value(), b"")
        self.clock.advance(0.02)
        self.assertEqual(transport.value(), ack(1))
        self.lose(server)

    def test_the_type_of_dotnet_is_a_field(self) -> None:
        """MM-29"""
        server, _ = self.connect(self.server_factory(), "dotnet")
        server.dataReceived(encode_extension(1, b"A.B") + message(1, properties=b"k:N1;"))
        self.assertEqual(self.sink.messages[0].fields, {"k": "1", "dotnet-type": "A.B"})
        self.sink.safe()
        self.lose(server)

    def test_a_batch_which_will_never_be_safe_ends_the_session_without_its_ack(self) -> None:
        """MM-19: ERROR ``failed: <sequence>``, after the ack of what was safe before it"""
        factory = self.server_factory()
        server, transport = self.connect(factory, "batch-ack")
        server.dataReceived(message(1))
        server.dataReceived(messages(2, 2))
        server.dataReceived(message(4))
        self.sink.safe(1)
        self.sink.fail(OSError(5, "input/output error"))
        self.assertEqual(self.frames(transport), [ExtensionFrame(1, b"\0\1"), Error("failed: 2")])
        self.assertTrue(transport.disconnecting)
        self.sink.safe()
        self.assertEqual(transport.value(), b"")
        self.assertEqual(len(self.flushLoggedErrors(OSError)), 1)
        self.assertEqual(factory.counters["unsafe_batches"], 1)
        self.assertEqual(factory.counters["faults"], 0)  # not the peer's
        self.lose(server)

    def test_whole_messages_are_kept_though_the_connection_is_lost_before_their_ack(self) -> None:
        """MM-19"""
        server, transport = self.connect(self.server_factory(), "batch-ack")
        server.dataReceived(message(1))
        self.lose(server)
        self.sink.safe()
        self.assertEqual(len(self.sink.messages), 1)
        self.assertEqual(transport.value(), b"")

    def test_a_connection_with_too_much_which_is_not_safe_is_not_read(self) -> None:
        """MM-13: a peer above its window, until the octet limit pauses reading"""
        factory = self.server_factory(limits={"unsafe_octets": 100})
        server, transport = self.connect(factory, "batch-ack:max-count=2")
        server.dataReceived(messages(1, 5, b"x" * 30))
        self.assertEqual(transport.producerState, "paused")
        self.assertEqual(server.machine.counters.over_window, 3)
        self.sink.safe()
        self.assertEqual(transport.producerState, "producing")
        self.lose(server)
        self.assertEqual(factory.counters["over_window"], 3)

    def test_a_protocol_error_is_told_counted_logged_and_closed(self) -> None:
        """MM-33: flushed before the close"""
        factory = self.server_factory()
        server, transport = self.connect(factory, "batch-ack")
        server.dataReceived(b"\xff" + message(1))
        (text,) = self.errors(transport)
        self.assertTrue(text.startswith("protocol-error: "))
        self.assertTrue(transport.disconnecting)
        self.assertEqual(factory.counters["fault:protocol-error"], 1)
        self.assertIn("protocol-error: unknown flags 0xff (starts with ff 00", self.lines[-1])
        server.dataReceived(message(1))
        self.assertEqual(self.sink.batches, [])
        self.lose(server)

    def test_a_client_which_says_nothing_is_told_and_closed(self) -> None:
        """MM-32"""
        server, transport = self.connect(self.server_factory())
        self.clock.advance(9.9)
        self.assertEqual(transport.value(), b"")
        self.clock.advance(0.2)
        self.assertTrue(self.errors(transport)[0].startswith("handshake-timeout: "))
        self.assertTrue(transport.disconnecting)
        self.lose(server)
