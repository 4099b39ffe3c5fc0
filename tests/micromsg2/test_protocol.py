"""Server and client on string transports and a clock: hooks, sink, Deferreds, broker, the end."""

from __future__ import annotations

from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.error import ConnectionDone
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.logger import globalLogPublisher
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from tests.micromsg2.streams import ack, decode, handshake, message, messages, offers
from tests.tools.sinks import HeldSink, SafeSink
from twisted_msgproto.core.errors import ConnectionClosed, LimitExceeded, Refused
from twisted_msgproto.micromsg2 import (
    STANDARD,
    Extension,
    MessageRefused,
    MicroMsg2Client,
    MicroMsg2ClientFactory,
    MicroMsg2Server,
    MicroMsg2ServerFactory,
    Proposal,
)
from twisted_msgproto.micromsg2.wire import (
    BadText,
    Error,
    ExtensionFrame,
    encode_command,
    encode_error,
    encode_extension,
)

PEER = IPv4Address("TCP", "192.0.2.7", 54321)
WALL = 1_700_000_000.25


class Case(SynchronousTestCase):
    """Connected protocols with a sink, a clock and transports which only note."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.sink: Any = HeldSink()
        self.lines: list[str] = []
        globalLogPublisher.addObserver(self._observe)
        self.addCleanup(globalLogPublisher.removeObserver, self._observe)

    def _observe(self, event: dict[str, Any]) -> None:
        if str(event.get("log_namespace", "")).startswith("twisted_msgproto"):
            self.lines.append(event["log_format"].format(**event))

    def server_factory(self, protocol: type = MicroMsg2Server, **options: Any) -> Any:
        limits = {key.replace("_", "-"): v for key, v in options.pop("limits", {}).items()}
        factory = MicroMsg2ServerFactory(
            options.pop("sink", self.sink),
            limits=limits,
            clock=self.clock,
            wallClock=lambda: WALL,
            **options,
        )
        factory.protocol = protocol  # type: ignore[assignment]
        return factory

    def connect(self, factory: Any, extensions: str | None = None) -> tuple[Any, Any]:
        """A server protocol; in a session with ``extensions`` unless they are None."""
        server = factory.buildProtocol(PEER)
        transport = StringTransport(peerAddress=PEER)
        transport.protocol = server  # type: ignore[attr-defined]
        server.makeConnection(transport)
        if extensions is not None:
            server.dataReceived(handshake(extensions))
            server.dataReceived(handshake(extensions))
            transport.clear()
        return server, transport

    def client(
        self, protocol: type = MicroMsg2Client, extensions: str | None = "", **options: Any
    ) -> tuple[Any, Any]:
        """A client protocol; in a session with ``extensions`` unless they are None."""
        factory = MicroMsg2ClientFactory(
            options.pop("sink", None),
            proposal=Proposal(required=offers(extensions or ""), **options.pop("proposal", {})),
            limits={key.replace("_", "-"): v for key, v in options.pop("limits", {}).items()},
            clock=self.clock,
            wallClock=lambda: WALL,
        )
        factory.protocol = protocol  # type: ignore[assignment]
        client = factory.buildProtocol(PEER)
        transport = StringTransport(peerAddress=PEER)
        client.makeConnection(transport)  # type: ignore[union-attr]
        if extensions is not None:
            client.dataReceived(handshake())  # type: ignore[union-attr]
            transport.clear()
        return client, transport

    def lose(self, *protocols: Any) -> None:
        for protocol in protocols:
            protocol.connectionLost(Failure(ConnectionDone()))
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def frames(self, transport: Any) -> list[Any]:
        octets = transport.value()
        transport.clear()
        return decode([octets])

    def bodies(self, transport: Any) -> list[bytes]:
        return [row[3] for row in self.frames(transport) if isinstance(row, tuple)]

    def errors(self, transport: Any) -> list[str]:
        return [frame.text for frame in self.frames(transport) if isinstance(frame, Error)]


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

    def test_without_a_sink_acknowledged_means_accepted(self) -> None:
        server, transport = self.connect(self.server_factory(sink=None), "ack")
        server.dataReceived(message(1))
        self.assertEqual(transport.value(), ack(1))
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

    def test_a_peer_which_does_not_read_our_error_is_cut_off(self) -> None:
        """MM-33"""
        server, transport = self.connect(self.server_factory(limits={"unread_seconds": 5}))
        server.dataReceived(handshake("x-what"))
        self.assertTrue(transport.disconnecting)
        self.assertFalse(transport.disconnected)
        self.clock.advance(5.1)
        self.assertTrue(transport.disconnected)
        self.lose(server)

    def test_a_stopping_server_acknowledges_what_is_safe_and_closes(self) -> None:
        """MM-19"""
        factory = self.server_factory()
        server, transport = self.connect(factory, "batch-ack")
        server.dataReceived(message(1))
        drained = factory.drain()
        self.assertEqual(transport.producerState, "paused")
        self.assertFalse(transport.disconnecting)
        self.sink.safe()
        self.assertEqual(transport.value(), ack(1))
        self.assertTrue(transport.disconnecting)
        server.drain()
        server.connectionLost(Failure(ConnectionDone()))
        self.successResultOf(drained)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_a_peer_which_has_shut_its_side_still_gets_its_acks(self) -> None:
        server, transport = self.connect(self.server_factory(), "batch-ack")
        server.dataReceived(message(1))
        server.readConnectionLost()
        self.sink.safe()
        self.assertEqual(transport.value(), ack(1))
        self.assertTrue(transport.disconnecting)
        self.lose(server)

    def test_a_peer_which_reads_no_more_is_left(self) -> None:
        server, transport = self.connect(self.server_factory(), "batch-ack")
        server.writeConnectionLost()
        self.assertTrue(transport.disconnected)
        server.dataReceived(message(1))
        self.assertEqual(self.sink.batches, [])
        self.lose(server)


class Noting(MicroMsg2Server):
    """Notes what its hooks see; answers messages as it is told to."""

    def connectionMade(self) -> None:
        self.seen: list[Any] = []
        self.answers: dict[bytes, Any] = {}
        super().connectionMade()

    def sessionEstablished(self) -> None:
        self.seen.append("established")

    def sessionLost(self, reason: Failure) -> None:
        self.seen.append(reason.type.__name__)  # type: ignore[union-attr]

    def messageReceived(self, message: Any) -> Any:
        self.seen.append(message.body)
        answer = self.answers.get(message.body)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def errorReceived(self, code: str, text: str) -> None:
        self.seen.append((code, text))

    def commandReceived(self, name: str, parameters: Any) -> None:
        self.seen.append((name, dict(parameters)))

    def extensionReceived(self, name: str, content: Any) -> None:
        self.seen.append((name, content))


class Vendor(Extension):
    """A vendor's extension with frames and a command (MM-10)."""

    name = "x-vendor"
    has_frames = True
    commands = frozenset({"x-go"})


class Hooks(Case):
    def test_every_hook_is_called(self) -> None:
        """MM-10, MM-15, MM-16, MM-33"""
        known = STANDARD.plus(Vendor)
        factory = self.server_factory(Noting, proposal=Proposal(known=known))
        server, _ = self.connect(factory, "x-vendor")
        server.dataReceived(
            message(1, b"m")
            + encode_command("x-go", {"a": "b"})
            + encode_extension(1, b"frame")
            + encode_error("code: text")
        )
        self.sink.safe()
        self.lose(server)
        self.assertEqual(
            server.seen,
            [
                "established",
                b"m",
                ("x-go", {"a": "b"}),
                ("x-vendor", b"frame"),
                ("code", "code: text"),
                "ConnectionDone",
            ],
        )

    def test_hooks_which_nobody_overrides_do_nothing(self) -> None:
        """MM-33: a received ERROR is logged"""
        known = STANDARD.plus(Vendor)
        server, _ = self.connect(self.server_factory(proposal=Proposal(known=known)), "x-vendor")
        octets = encode_command("x-go", {}) + encode_extension(1, b"") + encode_error("oh: \x07")
        server.dataReceived(octets)
        self.assertIn(r"said 'oh: \x07'", self.lines[-1])
        self.lose(server)

    def test_a_session_which_never_was_is_not_lost(self) -> None:
        server, _ = self.connect(self.server_factory(Noting))
        self.lose(server)
        self.assertEqual(server.seen, [])

    def test_a_message_which_is_refused_is_settled_and_goes_nowhere(self) -> None:
        """MM-19: raised at once, or later"""
        for late in (False, True):
            self.sink = HeldSink()
            factory = self.server_factory(Noting)
            server, transport = self.connect(factory, "pub-sub;batch-ack:max-count=3")
            watcher, watching = self.connect(factory, "pub-sub")
            watcher.dataReceived(encode_command("subscribe", {"destination": "commands"}))
            waiting: Deferred[None] = Deferred()
            server.answers[b"2"] = waiting if late else MessageRefused("not today")
            octets = message(1, b"1") + message(2, b"2") + message(3, b"3")
            server.dataReceived(octets)
            if late:
                self.assertEqual(self.sink.batches, [])
                waiting.errback(MessageRefused("not today"))
            (batch,) = self.sink.batches
            self.assertEqual((list(batch.body), batch.count), ([b"1", b"3"], 2))
            self.assertEqual(list(batch.message_id), [1, 3])
            self.sink.safe()
            self.assertEqual(
                self.frames(transport),
                [Error("refused: 2: not today"), ExtensionFrame(2, b"\0\3")],
            )
            self.assertEqual(self.bodies(watching), [b"1", b"3"])
            self.lose(server, watcher)

    def test_a_batch_of_refused_messages_never_reaches_the_sink(self) -> None:
        """MM-19"""
        server, transport = self.connect(self.server_factory(Noting), "ack")
        server.answers[b"1"] = MessageRefused()
        server.dataReceived(message(1, b"1"))
        self.assertEqual(self.sink.batches, [])
        self.assertEqual(self.frames(transport), [Error("refused: 1"), ExtensionFrame(1, b"\0\1")])
        self.lose(server)

    def test_a_message_whose_hook_fails_ends_the_session_and_is_named(self) -> None:
        """MM-19"""
        server, transport = self.connect(self.server_factory(Noting), "batch-ack")
        server.answers[b"2"] = ZeroDivisionError("x")
        server.dataReceived(message(1, b"1") + message(2, b"2"))
        self.assertEqual(self.errors(transport), ["failed: 2"])
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.assertEqual(self.sink.batches, [])
        self.lose(server)

    def test_an_ack_waits_for_the_hook_and_for_the_sink(self) -> None:
        """MM-19: and the sink gets the batches in order, whichever hook is done first"""
        server, transport = self.connect(self.server_factory(Noting), "batch-ack:max-count=2")
        first: Deferred[None] = Deferred()
        second: Deferred[None] = Deferred()
        server.answers |= {b"1": first, b"2": second}
        server.dataReceived(message(1, b"1"))
        server.dataReceived(message(2, b"2"))
        second.callback(None)
        self.assertEqual(self.sink.batches, [])
        first.callback(None)
        self.assertEqual([m.body for m in self.sink.messages], [b"1", b"2"])
        self.assertEqual(transport.value(), b"")
        self.sink.safe()
        self.assertEqual(transport.value(), ack(2))
        self.lose(server)

    def test_messages_without_a_sink_wait_for_their_hook_only(self) -> None:
        server, transport = self.connect(self.server_factory(Noting, sink=None), "ack")
        server.dataReceived(message(1, b"1"))
        self.assertEqual(transport.value(), ack(1))
        self.lose(server)

    def test_a_refused_batch_is_settled_message_by_message(self) -> None:
        """MM-19: from batchReceived, at once or later"""
        for result in (None, fail(MessageRefused("no"))):

            class Refusing(MicroMsg2Server):
                def batchReceived(self, batch: Any, result: Any = result) -> Any:
                    if result is None:
                        raise MessageRefused("no")
                    return result

            server, transport = self.connect(self.server_factory(Refusing), "batch-ack:max-count=2")
            server.dataReceived(messages(1, 2))
            self.assertEqual(
                self.frames(transport),
                [Error("refused: 1: no"), Error("refused: 2: no"), ExtensionFrame(1, b"\0\2")],
            )
            self.lose(server)

    def test_a_batch_may_be_handed_on_later(self) -> None:
        """A subclass which waits before it calls what it overrides"""

        class Late(Noting):
            def batchReceived(self, batch: Any) -> Any:
                self.gates = [*getattr(self, "gates", []), Deferred()]
                above = super().batchReceived
                return self.gates[-1].addCallback(lambda _: above(batch))

        server, transport = self.connect(self.server_factory(Late), "batch-ack:max-count=2")
        server.dataReceived(message(1, b"1"))
        server.dataReceived(message(2, b"2"))
        for gate in server.gates:
            gate.callback(None)
        self.sink.safe()
        self.assertEqual(transport.value(), ack(2))
        self.lose(server)


class Serving(Case):
    """The broker behind real server protocols."""

    def subscribe(self, server: Any, destination: str, expression: str | None = None) -> None:
        parameters = {"destination": destination}
        if expression is not None:
            parameters["filter"] = expression
        server.dataReceived(encode_command("subscribe", parameters))

    def setUp(self) -> None:
        super().setUp()
        self.sink = SafeSink()

    def test_two_subscribers_with_different_filters_see_exactly_their_messages(self) -> None:
        """MM-24, MM-25, MM-26: and each direction counts its own numbers (MM-13)"""
        factory = self.server_factory()
        sender, sending = self.connect(factory, "")
        first, one = self.connect(factory, "pub-sub;batch-ack")
        second, two = self.connect(factory, "pub-sub")
        self.subscribe(first, "topic/a", "n>=N2")
        self.subscribe(second, "topic/a", "n<N3")
        for number in (1, 2, 3):
            octets = message(number + 70, b"%d" % number, "topic/a", b"n:N%d;" % number)
            sender.dataReceived(octets)
        self.assertEqual(
            self.frames(one),
            [(1, "topic/a", b"n:N2;", b"2"), (2, "topic/a", b"n:N3;", b"3")],
        )
        self.assertEqual(
            self.frames(two),
            [(1, "topic/a", b"n:N1;", b"1"), (2, "topic/a", b"n:N2;", b"2")],
        )
        self.assertEqual(sending.value(), b"")
        self.assertEqual(len(self.sink.messages), 3)
        self.lose(sender, first, second)

    def test_subscribers_see_only_what_is_safe(self) -> None:
        """MM-19, MM-26: in order, though the sink may finish in any"""
        self.sink = HeldSink()
        factory = self.server_factory()
        sender, _ = self.connect(factory, "batch-ack")
        watcher, watching = self.connect(factory, "pub-sub")
        self.subscribe(watcher, "q")
        sender.dataReceived(message(1, b"1", "q"))
        sender.dataReceived(message(2, b"2", "q"))
        self.sink.waiting[1].callback(None)
        self.assertEqual(watching.value(), b"")
        self.sink.waiting[0].callback(None)
        self.assertEqual(self.bodies(watching), [b"1", b"2"])
        self.lose(sender, watcher)

    def test_a_full_queue_withholds_acks(self) -> None:
        """MM-19, MM-32"""
        factory = self.server_factory(brokerQueues=["q"], limits={"queue_messages": 1})
        sender, sending = self.connect(factory, "batch-ack:max-count=2")
        sender.dataReceived(message(1, b"1", "q") + message(2, b"2", "q"))
        self.clock.advance(5)
        self.assertEqual(sending.value(), b"")
        self.assertEqual(factory.withheld.waiting, 2 * len(message(1, b"1", "q")))
        consumer, consuming = self.connect(factory, "pub-sub;ack")
        self.subscribe(consumer, "q")
        self.assertEqual(self.bodies(consuming), [b"1"])
        self.assertEqual(sending.value(), ack(2))
        self.assertEqual(factory.withheld.waiting, 0)
        self.lose(sender, consumer)

    def test_senders_to_full_queues_are_not_read_when_too_much_is_withheld(self) -> None:
        """MM-32: a sender without acks stops by this alone"""
        factory = self.server_factory(
            brokerQueues=["q"], limits={"queue_messages": 1, "withheld_octets": 10}
        )
        sender, sending = self.connect(factory, "")
        other, others = self.connect(factory, "")
        sender.dataReceived(message(1, b"12345", "q") + message(2, b"123456", "q"))
        self.assertEqual(sending.producerState, "paused")
        self.assertEqual(others.producerState, "producing")
        consumer, consuming = self.connect(factory, "pub-sub")
        self.subscribe(consumer, "q")
        self.assertEqual(self.bodies(consuming), [b"12345", b"123456"])
        self.assertEqual(sending.producerState, "producing")
        self.lose(sender, other, consumer)

    def test_a_lost_consumers_messages_go_to_the_next_in_order(self) -> None:
        """MM-27"""
        factory = self.server_factory(brokerQueues=["q"])
        first, one = self.connect(factory, "pub-sub;batch-ack:max-count=3")
        self.subscribe(first, "q")
        sender, _ = self.connect(factory, "")
        sender.dataReceived(b"".join(message(n, b"%d" % n, "q") for n in range(1, 6)))
        self.assertEqual(self.bodies(one), [b"1", b"2", b"3"])
        first.dataReceived(ack(1, index=2))
        self.assertEqual(self.bodies(one), [b"4"])
        second, two = self.connect(factory, "pub-sub;batch-ack:max-count=9")
        self.subscribe(second, "q")
        self.assertEqual(self.bodies(two), [b"5"])
        first.connectionLost(Failure(ConnectionDone()))
        self.assertEqual(self.bodies(two), [b"2", b"3", b"4"])
        second.dataReceived(ack(4, index=2))
        self.lose(sender, second)
        self.assertEqual(len(factory.broker.queues["q"]), 0)

    def test_the_type_of_dotnet_travels_with_a_message(self) -> None:
        """MM-29: to those who have the extension"""
        factory = self.server_factory()
        sender, _ = self.connect(factory, "dotnet")
        typed, one = self.connect(factory, "dotnet;pub-sub")
        plain, two = self.connect(factory, "pub-sub")
        self.subscribe(typed, "topic/a")
        self.subscribe(plain, "topic/a")
        octets = encode_extension(1, b"A") + message(1, b"1", "topic/a")
        sender.dataReceived(message(9, b"0", "topic/a") + octets)
        sender.dataReceived(message(2, b"2", "topic/a"))
        kinds = [getattr(frame, "payload", None) or frame[3] for frame in self.frames(one)]
        self.assertEqual(kinds, [b"0", b"A", b"1", b"2"])
        self.assertEqual(self.bodies(two), [b"0", b"1", b"2"])
        self.lose(sender, typed, plain)

    def test_a_refused_subscription_is_told_and_the_connection_stays(self) -> None:
        """MM-24, MM-25, MM-32"""
        server, transport = self.connect(
            self.server_factory(limits={"subscriptions": 1}), "pub-sub"
        )
        self.subscribe(server, "a", "b<=Tx")
        self.subscribe(server, "a")
        self.subscribe(server, "b")
        server.dataReceived(encode_command("unsubscribe", {"destination": "c"}))
        codes = [text.partition(":")[0] for text in self.errors(transport)]
        self.assertEqual(codes, ["bad-filter", "limit-exceeded", "bad-command"])
        self.assertTrue(server.machine.established)
        self.lose(server)

    def test_subscribing_without_the_extension_is_an_unknown_command(self) -> None:
        """MM-15, MM-25"""
        for factory in (self.server_factory(), self.server_factory(broker=False)):
            server, transport = self.connect(factory, "json")
            self.subscribe(server, "a")
            self.assertEqual(self.errors(transport), ["unknown-command: subscribe"])
            self.lose(server)

    def test_a_server_without_a_broker_does_not_know_pub_sub(self) -> None:
        """MM-06"""
        server, transport = self.connect(self.server_factory(broker=False))
        server.dataReceived(handshake("pub-sub"))
        self.assertEqual(transport.value(), encode_error("unsupported-extension: pub-sub"))
        self.lose(server)

    def test_a_slow_subscriber_is_told_and_closed(self) -> None:
        """MM-32"""
        factory = self.server_factory(limits={"subscriber_messages": 2})
        slow, transport = self.connect(factory, "pub-sub;ack")
        self.subscribe(slow, "topic/a")
        sender, _ = self.connect(factory, "")
        sender.dataReceived(b"".join(message(n, b"%d" % n, "topic/a") for n in range(5)))
        found = self.frames(transport)
        self.assertEqual(found[0][3], b"0")
        self.assertTrue(found[1].text.startswith("slow-consumer: "))
        self.assertTrue(transport.disconnecting)
        self.assertEqual(factory.counters["fault:slow-consumer"], 1)
        slow.too_slow()
        self.lose(slow, sender)

    def test_a_consumer_which_acknowledges_nothing_is_left_and_its_messages_return(self) -> None:
        """MM-27, MM-32"""
        factory = self.server_factory(brokerQueues=["q"], limits={"ack_wait": 7})
        stuck, transport = self.connect(factory, "pub-sub;ack")
        self.subscribe(stuck, "q")
        sender, _ = self.connect(factory, "")
        sender.dataReceived(message(1, b"1", "q"))
        self.clock.advance(6)
        self.assertFalse(transport.disconnecting)
        self.clock.advance(1.5)
        self.assertTrue(self.errors(transport)[-1].startswith("ack-timeout: "))
        stuck.connectionLost(Failure(ConnectionDone()))
        self.assertEqual(len(factory.broker.queues["q"]), 1)
        self.lose(sender)

    def test_a_consumer_which_does_not_read_gets_no_more_until_it_does(self) -> None:
        """MM-32: what waits, waits in the broker"""
        factory = self.server_factory()
        consumer, transport = self.connect(factory, "pub-sub")
        self.subscribe(consumer, "q")
        sender, _ = self.connect(factory, "")
        transport.producer.pauseProducing()
        sender.dataReceived(message(1, b"1", "q"))
        self.assertEqual(transport.value(), b"")
        transport.producer.resumeProducing()
        self.assertEqual(self.bodies(transport), [b"1"])
        self.lose(consumer, sender)

    def test_what_the_application_sends_goes_first(self) -> None:
        """MM-13: one window for both; the broker waits for its turn"""
        factory = self.server_factory()
        consumer, transport = self.connect(factory, "pub-sub;ack")
        self.subscribe(consumer, "q")
        sent = [consumer.send("mine", b"a"), consumer.send("mine", b"b")]
        sender, _ = self.connect(factory, "")
        sender.dataReceived(message(1, b"c", "q"))
        for number, body in ((1, b"a"), (2, b"b"), (3, b"c")):
            self.assertEqual(self.bodies(transport), [body])
            consumer.dataReceived(ack(number, index=2))
        self.assertEqual(self.bodies(transport), [])
        self.assertEqual([self.successResultOf(deferred) for deferred in sent], [None, None])
        self.lose(consumer, sender)

    def test_more_than_a_window_is_pushed_as_a_consumer_without_acks_reads(self) -> None:
        """MM-27"""
        factory = self.server_factory(brokerQueues=["q"])
        sender, _ = self.connect(factory, "")
        sender.dataReceived(b"".join(message(1, b"%d" % n, "q") for n in range(600)))
        consumer, transport = self.connect(factory, "pub-sub")
        self.subscribe(consumer, "q")
        for _ in range(3):
            factory.broker.ready(consumer)
        self.assertEqual(self.bodies(transport), [b"%d" % n for n in range(600)])
        self.lose(sender, consumer)


class Sending(Case):
    """The client's verbs (and the server's: they are the same)."""

    def test_a_sent_message_fires_on_its_ack(self) -> None:
        """MM-12, MM-19"""
        client, transport = self.client(extensions="batch-ack:max-count=2")
        sent = [client.send("q", b"%d" % n, {"k": n}) for n in range(3)]
        self.assertEqual(
            self.frames(transport), [(1, "q", b"k:N0;", b"0"), (2, "q", b"k:N1;", b"1")]
        )
        for deferred in sent:
            self.assertNoResult(deferred)
        client.dataReceived(ack(2))
        self.assertEqual([self.successResultOf(d) for d in sent[:2]], [None, None])
        self.assertEqual(self.frames(transport), [(3, "q", b"k:N2;", b"2")])
        client.dataReceived(ack(3))
        self.successResultOf(sent[2])
        self.lose(client)

    def test_without_acks_it_fires_when_it_is_written(self) -> None:
        """MM-13"""
        client, transport = self.client()
        self.successResultOf(client.sendMany("q", [b"1", b"2"]))
        self.assertEqual(self.bodies(transport), [b"1", b"2"])
        self.successResultOf(client.sendMany("q", []))
        self.lose(client)

    def test_many_messages_fire_once(self) -> None:
        """MM-19"""
        client, transport = self.client(extensions="batch-ack:max-count=3")
        sent = client.sendMany("q", [b"%d" % n for n in range(5)])
        client.dataReceived(ack(3))
        self.assertNoResult(sent)
        client.dataReceived(ack(5))
        self.successResultOf(sent)
        self.assertEqual(len(self.bodies(transport)), 5)
        self.lose(client)

    def test_json_is_encoded_when_it_was_agreed(self) -> None:
        """MM-28: octets pass as they are"""
        client, transport = self.client(extensions="json")
        client.send("q", {"a": 1})
        client.send("q", b"[]")
        self.assertEqual(self.bodies(transport), [b'{"a":1}', b"[]"])
        self.assertEqual(client.decoded(b'{"a":1}'), {"a": 1})
        self.failureResultOf(client.send("q", float("nan")), ValueError)
        plain, _ = self.client()
        self.failureResultOf(plain.send("q", {"a": 1}), TypeError)
        self.assertEqual(plain.decoded(b"{}"), b"{}")
        self.lose(client, plain)

    def test_a_type_stands_before_its_message(self) -> None:
        """MM-29"""
        client, transport = self.client(extensions="dotnet")
        client.send("q", b"1", typeName="A.B")
        client.send("q", b"2", typeName="A.B")
        found = self.frames(transport)
        self.assertEqual(found[0], ExtensionFrame(1, b"A.B"))
        self.assertEqual([row[3] for row in found[1:]], [b"1", b"2"])
        self.lose(client)

    def test_a_refusal_of_the_peer_fails_that_message_alone(self) -> None:
        """MM-19, MM-28"""

        class Quiet(MicroMsg2Client):
            def errorReceived(self, code: str, text: str) -> None:
                """Not logged."""

        client, transport = self.client(Quiet, extensions="batch-ack:max-count=4")
        sent = [client.send("q", b"") for _ in range(3)]
        many = client.sendMany("q", [b"", b""])
        client.dataReceived(
            encode_error("refused: 2: not today")
            + encode_error("bad-payload: 3: not JSON")
            + encode_error("refused: 4")
            + encode_error("refused: 77")
            + encode_error("refused: x")
        )
        refusal = self.failureResultOf(sent[1], Refused)
        self.assertEqual(refusal.value.code, "refused")
        self.failureResultOf(sent[2], Refused)
        self.failureResultOf(many, Refused)
        self.assertNoResult(sent[0])
        client.dataReceived(ack(4))
        self.successResultOf(sent[0])
        self.assertEqual(len(self.frames(transport)), 5)
        client.dataReceived(ack(5))
        self.assertEqual(client.machine.in_flight, 0)
        self.lose(client)

    def test_what_is_not_acknowledged_fails_when_the_connection_is_lost(self) -> None:
        """MM-19: whether the peer has it is not known"""
        client, _ = self.client(extensions="ack")
        sent = [client.send("q", b""), client.send("q", b"")]
        self.lose(client)
        for deferred in sent:
            self.failureResultOf(deferred, ConnectionClosed)
        self.failureResultOf(client.send("q", b""), ConnectionClosed)
        with self.assertRaises(ConnectionClosed):
            client.sendCommand("a")
        self.assertEqual(client._unsentMessages, 0)

    def test_the_reason_of_the_end_is_what_the_peer_said(self) -> None:
        """MM-33"""
        client, _ = self.client(extensions="ack")
        sent = client.send("q", b"")
        client.dataReceived(encode_error("failed: 1"))
        self.lose(client)
        self.assertIn("failed: 1", str(self.failureResultOf(sent, ConnectionClosed).value))
        broken, _ = self.client(extensions="ack")
        sent = broken.send("q", b"")
        broken.dataReceived(b"\xff")
        self.lose(broken)
        self.assertIn("unknown flags", str(self.failureResultOf(sent, ConnectionClosed).value))

    def test_nothing_is_sent_before_the_session(self) -> None:
        client, _ = self.client(extensions=None)
        self.failureResultOf(client.send("q", b""), ConnectionClosed)
        with self.assertRaises(ConnectionClosed):
            client.subscribe("q")
        self.lose(client)

    def test_what_cannot_be_sent_fails_at_once(self) -> None:
        """MM-12, MM-22, MM-31, MM-32"""
        client, transport = self.client(
            extensions="ack", limits={"payload_octets": 10, "unsent_messages": 2}
        )
        self.failureResultOf(client.send("ä" * 128, b""), BadText)
        self.failureResultOf(client.send("q", b"", {"K": 1}), BadText)
        self.failureResultOf(client.send("q", b"x" * 11), LimitExceeded)
        self.assertEqual(transport.value(), b"")
        sent = [client.send("q", b"") for _ in range(3)]
        self.failureResultOf(client.send("q", b""), LimitExceeded)
        self.lose(client)
        for deferred in sent:
            self.failureResultOf(deferred, ConnectionClosed)

    def test_octets_which_wait_are_bounded(self) -> None:
        """MM-32"""
        client, _ = self.client(extensions="ack", limits={"unsent_octets": 10})
        sent = [client.send("q", b"x" * 9) for _ in range(2)]
        self.failureResultOf(client.send("q", b"xx"), LimitExceeded)
        self.lose(client)
        for deferred in sent:
            self.failureResultOf(deferred, ConnectionClosed)

    def test_a_cancelled_send_is_not_sent_if_it_waits(self) -> None:
        client, transport = self.client(extensions="ack")
        flying, waiting, last = (client.send("q", b"%d" % n) for n in range(3))
        for deferred in (flying, waiting):
            deferred.addErrback(lambda failure: None)
            deferred.cancel()
        client.dataReceived(ack(1))
        self.assertEqual(self.bodies(transport), [b"0", b"2"])
        client.dataReceived(ack(2))
        self.successResultOf(last)
        self.assertEqual((client._unsentMessages, client._unsentOctets), (0, 0))
        self.lose(client)

    def test_sending_stops_while_the_transport_is_full(self) -> None:
        client, transport = self.client()
        transport.producer.pauseProducing()
        sent = client.send("q", b"1")
        self.assertNoResult(sent)
        self.assertEqual(transport.value(), b"")
        transport.producer.resumeProducing()
        self.successResultOf(sent)
        self.assertEqual(self.bodies(transport), [b"1"])
        self.lose(client)

    def test_a_client_reads_on_while_its_own_output_waits(self) -> None:
        """MM-32: else two full sides would wait for each other; a server does pause"""
        client, transport = self.client()
        transport.producer.pauseProducing()
        self.assertEqual(transport.producerState, "producing")
        server, other = self.connect(self.server_factory(), "")
        other.producer.pauseProducing()
        self.assertEqual(other.producerState, "paused")
        self.clock.advance(31)
        self.assertTrue(transport.disconnected)
        self.assertTrue(other.disconnected)
        self.lose(client, server)

    def test_a_producer_is_paused_while_its_messages_wait(self) -> None:
        """MM-19: while the window is full"""

        class Producer:
            state = "producing"

            def pauseProducing(self) -> None:
                self.state = "paused"

            def resumeProducing(self) -> None:
                self.state = "producing"

        client, transport = self.client(extensions="batch-ack:max-count=2")
        producer = Producer()
        client.registerProducer(producer)
        with self.assertRaises(RuntimeError):
            client.registerProducer(Producer())
        first = client.send("q", b"")
        self.assertEqual(producer.state, "producing")
        second = client.send("q", b"")
        self.assertEqual(producer.state, "paused")
        client.dataReceived(ack(1))
        self.assertEqual(producer.state, "producing")
        transport.producer.pauseProducing()
        self.assertEqual(producer.state, "paused")
        transport.producer.resumeProducing()
        self.assertEqual(producer.state, "producing")
        client.dataReceived(ack(2))
        self.successResultOf(first)
        self.successResultOf(second)
        client.unregisterProducer()
        with self.assertRaises(RuntimeError):
            client.registerProducer(producer, streaming=False)
        self.lose(client)

    def test_other_frames_are_sent(self) -> None:
        """MM-15, MM-16, MM-33"""
        client, transport = self.client(extensions="dotnet")
        client.sendCommand("go", a="b")
        client.sendExtension("dotnet", b"T")
        client.sendError("code", "text")
        self.assertEqual(self.frames(transport)[1:], [ExtensionFrame(1, b"T"), Error("code: text")])
        self.lose(client)


class ClientLife(Case):
    def test_a_client_opens_the_handshake_and_says_when_it_is_through(self) -> None:
        """MM-02, MM-04"""
        factory = MicroMsg2ClientFactory(clock=self.clock)
        client = factory.buildProtocol(None)
        transport = StringTransport()
        client.makeConnection(transport)  # type: ignore[union-attr]
        (opening,) = decode([transport.value()], 1)
        self.assertEqual(
            [str(offer) for offer in opening.optional],  # type: ignore[attr-defined]
            ["batch-ack:max-count=100", "pub-sub"],
        )
        waiting = client.whenEstablished()  # type: ignore[union-attr]
        dropped = client.whenEstablished()  # type: ignore[union-attr]
        dropped.addErrback(lambda failure: None)
        dropped.cancel()
        self.assertNoResult(waiting)
        client.dataReceived(handshake("", "batch-ack:max-count=50;pub-sub"))  # type: ignore[union-attr]
        self.assertIs(self.successResultOf(waiting), client)
        self.assertIs(self.successResultOf(client.whenEstablished()), client)  # type: ignore[union-attr]
        self.assertEqual(client.machine.room, 50)  # type: ignore[union-attr]
        self.lose(client)
        self.failureResultOf(client.whenEstablished(), ConnectionClosed)  # type: ignore[union-attr]

    def test_a_refused_client_says_why(self) -> None:
        """MM-06"""
        client, transport = self.client(extensions=None)
        waiting = client.whenEstablished()
        client.dataReceived(encode_error("unsupported-extension: json"))
        self.assertTrue(transport.disconnecting)
        self.lose(client)
        failure = self.failureResultOf(waiting, Refused)
        self.assertEqual(failure.value.code, "unsupported-extension")
        self.failureResultOf(client.whenEstablished(), Refused)

    def test_a_client_which_refuses_or_is_left_says_so(self) -> None:
        """MM-05, MM-32"""
        for octets in (handshake(major=2), b""):
            client, transport = self.client(extensions=None)
            waiting = client.whenEstablished()
            client.dataReceived(octets)
            self.clock.advance(0 if octets else 11)
            self.assertTrue(transport.disconnecting)
            self.lose(client)
            self.failureResultOf(waiting, ConnectionClosed)

    def test_a_client_receives_and_acknowledges(self) -> None:
        """MM-18: the same hooks and sinks as on a server"""
        sink = HeldSink()
        client, transport = self.client(extensions="ack", sink=sink)
        client.dataReceived(message(1, b"x", "topic/a"))
        self.assertEqual(sink.messages[0].destination, "topic/a")
        self.assertEqual(transport.value(), b"")
        sink.safe()
        self.assertEqual(transport.value(), ack(1))
        self.lose(client)

    def test_subscriptions_are_commands(self) -> None:
        """MM-25: a filter which cannot be is the caller's fault"""
        client, transport = self.client(extensions="pub-sub")
        client.subscribe("topic/a", "n>=N2 ; name=Jonas")
        client.subscribe("q")
        client.unsubscribe("q")
        found = [(f.name, f.parameters) for f in self.frames(transport)]
        self.assertEqual(
            found,
            [
                ("subscribe", {"destination": "topic/a", "filter": "n>=N2;name=TJonas"}),
                ("subscribe", {"destination": "q"}),
                ("unsubscribe", {"destination": "q"}),
            ],
        )
        with self.assertRaises(BadText):
            client.subscribe("a", "n<=Tx")
        self.lose(client)
        other, _ = self.client()
        with self.assertRaises(ValueError):
            other.subscribe("a")
        self.lose(other)

    def test_closing_waits_for_what_is_not_safe_and_leaving_does_not(self) -> None:
        """MM-19"""
        for verb, waits in (("close", True), ("leave", False)):
            sink = HeldSink()
            client, transport = self.client(extensions="ack", sink=sink)
            client.dataReceived(message(1))
            gone = getattr(client, verb)()
            self.assertEqual(transport.disconnecting, not waits)
            sink.safe()
            self.assertEqual(transport.value(), ack(1) if waits else b"")
            self.assertTrue(transport.disconnecting)
            self.assertNoResult(gone)
            self.lose(client)
            self.successResultOf(gone)
            self.successResultOf(getattr(client, verb)())

    def test_a_client_is_no_consumer_of_a_broker(self) -> None:
        """MM-25: pub-sub commands of a peer are the application's on this side"""

        class Seeing(MicroMsg2Client):
            seen = ""

            def commandReceived(self, name: str, parameters: Any) -> None:
                self.seen = name

        client, _ = self.client(Seeing, extensions="pub-sub")
        client.dataReceived(encode_command("subscribe", {"destination": "a"}))
        self.assertEqual(client.seen, "subscribe")
        self.lose(client)

    def test_a_machine_has_a_side(self) -> None:
        from twisted_msgproto.micromsg2.connection import MicroMsg2Protocol

        with self.assertRaises(NotImplementedError):
            MicroMsg2Protocol().makeMachine()


class Both(Case):
    """Our client against our server, octets carried by hand."""

    def carry(self, *pairs: tuple[Any, Any, Any, Any]) -> None:
        moved = True
        while moved:
            moved = False
            for client, one, server, two in pairs:
                up, down = one.value(), two.value()
                one.clear()
                two.clear()
                if up:
                    server.dataReceived(up)
                if down:
                    client.dataReceived(down)
                moved |= bool(up or down)

    def test_a_message_travels_from_client_to_client(self) -> None:
        """MM-12, MM-19, MM-25, MM-26, MM-28"""
        factory = self.server_factory(sink=SafeSink())
        sides = []
        for extensions in ("json;batch-ack", "json;pub-sub;ack"):
            client, one = self.client(extensions=None, proposal={})
            client.factory.proposal = Proposal(required=offers(extensions))
            client.machine = client.makeMachine()
            one.clear()
            client._write()
            server, two = self.connect(factory)
            sides.append((client, one, server, two))
        self.carry(*sides)
        (sender, *_), (watcher, *_) = sides
        got: list[Any] = []
        watcher.factory.sink = SafeSink()
        watcher.subscribe("topic/a", "n>N1")
        self.carry(*sides)
        sent = [sender.send("topic/a", {"n": n}, {"n": n}) for n in range(4)]
        self.carry(*sides)
        self.clock.advance(0.6)
        self.carry(*sides)
        for deferred in sent:
            self.successResultOf(deferred)
        got = [watcher.decoded(m.body) for m in watcher.factory.sink.messages]
        self.assertEqual(got, [{"n": 2}, {"n": 3}])
        self.assertEqual(factory.broker.snapshot()["broker_acknowledged"], 2)
        for client, _, server, _ in sides:
            client.connectionLost(Failure(ConnectionDone()))
            server.connectionLost(Failure(ConnectionDone()))
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_succeed_is_not_waited_for(self) -> None:
        """A hook's Deferred which has fired already costs no turn"""

        class At(Noting):
            def messageReceived(self, message: Any) -> Any:
                return succeed(None)

        server, transport = self.connect(self.server_factory(At, sink=None), "ack")
        server.dataReceived(message(1))
        self.assertEqual(transport.value(), ack(1))
        self.lose(server)
