"""The broker behind servers: what subscribers get, when they get it, who is too slow."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.error import ConnectionDone
from twisted.python.failure import Failure

from tests.micromsg2.cases import Case
from tests.micromsg2.layouts import encode_command, encode_error, encode_extension
from tests.micromsg2.streams import ack, handshake, message
from tests.tools.sinks import HeldSink, SafeSink
from twisted_msgproto.core.broker import LETTER_OCTETS

pytestmark = pytest.mark.usefixtures("short_turns")


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

    def test_who_publishes_much_to_many_is_not_read_until_that_is_done(self) -> None:
        """NB-07: the broker goes on in the next turns, and acknowledges after them"""
        factory = self.server_factory()
        sender, sending = self.connect(factory, "batch-ack:max-count=1000")
        watchers = [self.connect(factory, "pub-sub") for _ in range(120)]
        for watcher, _ in watchers:
            self.subscribe(watcher, "topic/a")
        transport = sender.transport
        sender.dataReceived(b"".join(message(n, b"x", "topic/a") for n in range(1, 1001)))
        self.assertEqual(transport.producerState, "paused")
        self.assertEqual(sending.value(), b"")
        while factory.broker.unfinished:
            self.clock.advance(0)
        self.assertEqual(transport.producerState, "producing")
        self.assertEqual(sending.value(), ack(1000))
        self.assertEqual({len(self.frames(each)) for _, each in watchers}, {1000})
        self.lose(sender, *(watcher for watcher, _ in watchers))

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
        self.assertEqual(factory.withheld.waiting, 2 * (len(message(1, b"1", "q")) + LETTER_OCTETS))
        (told,) = [line for line in self.lines if "is full" in line]
        self.assertIn("the queue 'q' is full and its senders wait; queue-messages is 1", told)
        consumer, consuming = self.connect(factory, "pub-sub;ack")
        self.subscribe(consumer, "q")
        self.assertEqual(self.bodies(consuming), [b"1"])
        consumer.dataReceived(ack(1, index=2))
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
        self.assertEqual(self.waiting(factory, "q"), 0)

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

    def test_no_message_inherits_the_type_of_another_senders(self) -> None:
        """HO-29, MM-29: in fan-in each message carries its own annotations"""
        factory = self.server_factory()
        typed, _ = self.connect(factory, "dotnet")
        untyped, _ = self.connect(factory, "dotnet")
        forging, _ = self.connect(factory, "pub-sub")
        reader, one = self.connect(factory, "dotnet;pub-sub")
        self.subscribe(reader, "topic/a")
        typed.dataReceived(encode_extension(1, b"A") + message(1, b"1", "topic/a"))
        untyped.dataReceived(message(1, b"2", "topic/a"))
        forging.dataReceived(message(1, b"3", "topic/a", b"dotnet-type:TB;"))
        typed.dataReceived(message(2, b"4", "topic/a"))
        kinds = [
            frame.payload if hasattr(frame, "payload") else frame[3] for frame in self.frames(one)
        ]
        self.assertEqual(kinds, [b"A", b"1", b"", b"2", b"3", b"A", b"4"])
        self.lose(typed, untyped, forging, reader)

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
        self.assertEqual(self.waiting(factory, "q"), 1)
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
