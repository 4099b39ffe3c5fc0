"""Topics behind a server, and its subscriptions: who gets what and when, who is too slow."""

from __future__ import annotations

import pytest

from tests.doubles import HeldSink
from tests.micromsg2.cases import Peers, numbered
from tests.micromsg2.streams import (
    ExtensionFrame,
    encode_command,
    encode_error,
    encode_extension,
    handshake,
    message,
)

pytestmark = pytest.mark.usefixtures("short_turns")

LETTER = 331
"""What a message of a byte weighs that waits for a subscriber of topic/a."""

MESSAGES, CONDITIONS, SUBSCRIBERS = 1000, 32, 20
STORM = ";".join(f"p{number}=N1" for number in range(CONDITIONS))
MATCHING = ";".join(f"p{number}:N1" for number in range(CONDITIONS)).encode()

REFUSALS = [
    (encode_command("subscribe"), "bad-command"),
    (encode_command("subscribe", {"destination": ""}), "bad-command"),
    (encode_command("unsubscribe"), "bad-command"),
    (encode_command("unsubscribe", {"destination": "a"}), "bad-command"),
    (encode_command("subscribe", {"destination": "a", "filter": "b<=Tx"}), "bad-filter"),
    (encode_command("subscribe", {"destination": "a", "filter": "nonsense"}), "bad-filter"),
    (encode_command("subscribe", {"destination": "a", "filter": "b=N1;" * 33}), "bad-filter"),
    (encode_command("subscribe", {"destination": "ä" * 128}), "bad-filter"),
]


class Topics(Peers):
    def test_every_subscriber_gets_what_its_filter_lets_pass(self) -> None:
        """MM-24, MM-25, MM-26: and each direction counts its own numbers (MM-13)"""
        self.serve()
        sender, first, second, all_of_it, other = self.sender(""), *(self.peer() for _ in range(4))
        sender.sent = 70
        first.subscribe("topic/a", "n>=N2")
        second.subscribe("topic/a", "n<N3")
        all_of_it.subscribe("topic/a")
        other.subscribe("topic/b")
        for number in (1, 2, 3):
            sender.send("topic/a", b"%d" % number, properties=b"n:N%d;" % number)
        frames = [(1, "topic/a", b"n:N2;", b"2"), (2, "topic/a", b"n:N3;", b"3")]
        self.assertEqual(first.frames, frames)
        self.assertEqual((second.bodies, all_of_it.bodies), ([b"1", b"2"], [b"1", b"2", b"3"]))
        self.assertEqual((other.frames, sender.frames), ([], []))
        self.assertEqual(len(self.sink.messages), 3)

    def test_who_is_too_slow_is_told_and_closed_and_nobody_waits_for_it(self) -> None:
        """MM-32: the others get theirs"""
        for limits in ({"subscriber_messages": 3}, {"subscriber_bytes": 3 * LETTER}):
            self.serve(limits=limits)
            sender, slow, good = self.sender(""), self.window(1), self.peer()
            slow.subscribe("topic/a")
            good.subscribe("topic/a")
            sender.send("topic/a", *numbered(4))
            self.assertFalse(slow.closed)
            sender.send("topic/a", b"4")
            self.assertTrue(slow.closed)
            self.assertTrue(slow.errors[0].startswith("slow-consumer: "))
            sender.send("topic/a", b"5")
            self.assertEqual((slow.bodies, good.bodies), (numbered(1), numbered(6)))
            self.assertEqual(self.factory.counters["fault:slow-consumer"], 1)

    def test_a_type_counts_with_the_message_that_waits__MM_29__MM_32(self) -> None:
        self.serve(limits={"subscriber_bytes": 4000})
        sender, slow = self.sender("dotnet"), self.window(1)
        slow.subscribe("topic/a")
        sender.write(encode_extension(1, b"x" * 512))
        sender.send("topic/a", *numbered(4))
        self.assertFalse(slow.closed)
        sender.send("topic/a", b"4")
        self.assertTrue(slow.closed)

    def test_subscribers_see_only_what_is_safe(self) -> None:
        """MM-19, MM-26: in order, though the sink may finish in any"""
        self.sink = HeldSink()
        self.serve()
        sender, watcher = self.sender(), self.peer()
        watcher.subscribe("topic/a")
        sender.send("topic/a", b"1")
        sender.send("topic/a", b"2")
        self.sink.waiting[1].callback(None)
        self.assertEqual(watcher.bodies, [])
        self.sink.waiting[0].callback(None)
        self.assertEqual(watcher.bodies, [b"1", b"2"])

    def test_each_message_has_the_type_of_its_own_sender(self) -> None:
        """HO-29, MM-29: in fan-in, and only for those who have the extension"""
        self.serve()
        typed, untyped, forging = self.sender("dotnet"), self.sender("dotnet"), self.sender("")
        reader, plain = self.peer("dotnet;pub-sub"), self.peer()
        reader.subscribe("topic/a")
        plain.subscribe("topic/a")
        typed.write(message(9, b"0", "topic/a") + encode_extension(1, b"A"))
        typed.send("topic/a", b"1")
        untyped.send("topic/a", b"2")
        forging.send("topic/a", b"3", properties=b"dotnet-type:TB;")
        typed.send("topic/a", b"4")
        kinds = [f.payload if isinstance(f, ExtensionFrame) else f[3] for f in reader.frames]
        self.assertEqual(kinds, [b"0", b"A", b"1", b"", b"2", b"3", b"A", b"4"])
        self.assertEqual(plain.bodies, numbered(5))

    def test_what_the_application_sends_goes_first(self) -> None:
        """MM-13: one window for both; the broker waits for its turn"""
        self.serve()
        sender, consumer = self.sender(), self.window(1)
        consumer.subscribe("topic/a")
        sent = [consumer.server.send("mine", body) for body in (b"0", b"1")]
        sender.send("topic/a", b"2")
        for count in (1, 2, 3):
            self.assertEqual(consumer.bodies, numbered(count))
            consumer.ack()
        self.assertEqual([self.successResultOf(deferred) for deferred in sent], [None, None])


class Subscriptions(Peers):
    def test_one_that_cannot_be_is_refused_with_a_code_and_the_connection_stays(self) -> None:
        """MM-24, MM-25: when it is set"""
        self.serve()
        peer = self.peer()
        for octets, _ in REFUSALS:
            peer.write(octets)
        codes = [text.partition(":")[0] for text in peer.errors]
        self.assertEqual(codes, [code for _, code in REFUSALS])
        self.assertEqual(len(self.factory.broker.queues), 0)
        self.assertTrue(peer.server.established)

    def test_they_are_bounded_and_so_are_queues(self) -> None:
        """MM-32: another filter is no other subscription, and a topic is no queue"""
        self.serve("a", limits={"subscriptions": 2, "broker_queues": 2})
        peer, other = self.peer(), self.peer()
        for name, expression in (("topic/a", ""), ("b", ""), ("b", "x=N1"), ("c", "")):
            peer.subscribe(name, expression)
        self.assertEqual(peer.errors, ["limit-exceeded: c: subscriptions allows 2"])
        other.subscribe("c")
        self.assertEqual(other.errors, ["limit-exceeded: c: broker-queues allows 2"])
        peer.unsubscribe("topic/a")
        peer.subscribe("a")
        self.assertEqual(len(peer.errors), 1)
        self.assertEqual(sorted(self.factory.broker.queues), ["a", "b"])

    def test_who_has_unsubscribed_gets_nothing_more_and_keeps_what_is_in_flight(self) -> None:
        """MM-25"""
        self.serve()
        sender, consumer, other = self.sender(), self.window(9), self.window(9)
        for name in ("topic/a", "q"):
            consumer.subscribe(name)
            other.subscribe(name)
            sender.send(name, b"1")
            consumer.unsubscribe(name)
            before = len(consumer.bodies)
            sender.send(name, b"2")
            self.assertEqual(len(consumer.bodies), before)
            self.assertEqual(other.bodies[-1], b"2")
        consumer.unsubscribe("q")
        self.assertEqual(consumer.errors, ["bad-command: unsubscribe: not subscribed to q"])
        consumer.ack()

    def test_without_the_extension_or_a_broker_there_are_none(self) -> None:
        """MM-06, MM-15, MM-25"""
        for broker in (True, False):
            self.factory = self.server_factory(broker=broker)
            peer = self.peer("json")
            peer.subscribe("a")
            self.assertEqual(peer.errors, ["unknown-command: subscribe"])
            peer.lose()
        server, transport = self.connect(self.factory)
        server.dataReceived(handshake("pub-sub"))
        self.assertEqual(transport.value(), encode_error("unsupported-extension: pub-sub"))


class Turns(Peers):
    """What takes longer than one turn (NB-07)."""

    def test_a_storm_of_filters_takes_many_turns_and_what_comes_meanwhile_waits(self) -> None:
        """NB-07: it took one of 111 ms and more"""
        self.serve(limits={"subscriber_messages": 10 * MESSAGES})
        sender, watchers = self.sender(), [self.peer() for _ in range(SUBSCRIBERS)]
        for watcher in watchers:
            watcher.subscribe("topic/a", STORM)
            watcher.subscribe("topic/b")
        first, second = numbered(MESSAGES), numbered(3, MESSAGES)
        sender.send("topic/a", *first, properties=MATCHING)
        self.sender().send("topic/b", *second)
        self.assertTrue(self.factory.broker.unfinished)
        self.gone(watchers[-1])
        watchers[-2].unsubscribe("topic/a")
        self.assertGreater(self.turns(), 4)
        self.assertEqual(sender.acknowledged, MESSAGES)
        self.assertTrue(all(watcher.bodies == first + second for watcher in watchers[:-2]))
        self.assertEqual((watchers[-2].bodies, watchers[-1].bodies), (second, []))
